"""Compares likelihoods with sums in NumPy; tests BLiMP and cloze texts."""

import io
import json
import tarfile

import jax
import numpy as np
import pytest
import tiny_models

from bert_jax.cli.main import execute
from bert_jax.use import blimp, likelihood, likelihood_tests, text_inputs
from bert_jax.weights.load import open_model

TEXTS = ["the cats sat.", "", "unaffable cat", "a b cd . the mat"]
MASK_ID, CLS_ID, SEP_ID = 4, 2, 3


pytestmark = pytest.mark.usefixtures("fast_compilation")


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("bert") / "model"
  return tiny_models.write_model(path, "bert", "pretraining", dict(pairs=True))


@pytest.fixture(scope="module")
def bert(bert_folder):
  return open_model(bert_folder, default_tower="discriminator")


def log_softmax(x):
  x = np.asarray(x, np.float64)
  return x - x.max() - np.log(np.exp(x - x.max()).sum())


def padded_batch(ids):
  """Returns a batch of one row, padded to 16 tokens."""
  row, sequence_ids = np.zeros((2, 1, 16), np.int32)
  row[0, : len(ids)], sequence_ids[0, : len(ids)] = ids, 1
  return dict(input_ids=row, sequence_ids=sequence_ids)


def masked_log_p(model, ids, positions):
  """Returns log P of each piece at `positions[0]`, with `positions` masked."""
  batch = padded_batch(ids)
  batch["input_ids"][0, positions] = MASK_ID
  batch["cls_positions"] = np.zeros((1, 1), np.int32)
  batch["mlm_positions"] = np.array([positions[:1]], np.int32)
  outputs = compute_outputs(model.module, model.params, batch)
  return log_softmax(outputs["mlm_logits"][0, 0])


def compute_outputs(module, params, batch):
  return jax.jit(apply_module, static_argnums=0)(module, params, batch)


def apply_module(module, params, batch):
  return module.apply({"params": params}, batch)


# For each of `TEXTS`: its ids, and the positions of the pieces of each word.
IDS_AND_WORDS = [
  ([2, 5, 7, 8, 12, 3], [[1], [2], [3], [4]]),
  ([2, 3], []),
  ([2, 13, 14, 15, 6, 3], [[1, 2, 3], [4]]),
  ([2, 16, 17, 18, 19, 12, 5, 11, 3], [[1], [2], [3, 4], [5], [6], [7]]),
]


def test_the_texts_have_the_expected_ids(bert):
  texts = [text_inputs.text_of_string(id=0, text=text) for text in TEXTS]
  encoded = text_inputs.encode(bert, texts)
  assert [tokens.ids.tolist() for tokens in encoded] == [
    ids for ids, _ in IDS_AND_WORDS
  ]


def test_pll_masks_one_token_after_another(bert):
  # The pseudo-log-likelihood (pll) is the sum of log P of every token, each
  # while only this token is masked.
  expected = [
    sum(masked_log_p(bert, ids, [i])[ids[i]] for i in range(1, len(ids) - 1))
    for ids, _ in IDS_AND_WORDS
  ]
  scores = likelihood.score_texts(bert, TEXTS, "pll")
  np.testing.assert_allclose(scores, expected, atol=1e-4)
  # The order of the texts and the size of the batches change no score.
  reversed_scores = likelihood.score_texts(
    bert, TEXTS[::-1], "pll", batch_tokens=40
  )
  np.testing.assert_allclose(reversed_scores[::-1], scores, atol=1e-4)


def test_pll_word_l2r_masks_the_later_pieces_of_the_word(bert):
  expected = [
    sum(
      masked_log_p(bert, ids, word[i:])[ids[word[i]]]
      for word in words
      for i in range(len(word))
    )
    for ids, words in IDS_AND_WORDS
  ]
  scores = likelihood.score_texts(bert, TEXTS, "pll_word_l2r")
  np.testing.assert_allclose(scores, expected, atol=1e-4)
  assert abs(scores[2] - likelihood.score_texts(bert, TEXTS[2:3])[0]) > 1e-3


def test_electras_discriminator_sums_log_p_of_original_tokens(tmp_path):
  path = tiny_models.write_model(
    tmp_path / "electra", "electra", "pretraining", generator_hidden=8, mlp=64
  )
  model = open_model(path, default_tower="discriminator")
  assert likelihood.default_method(model) == "rtd"
  scores = likelihood.score_texts(model, TEXTS)
  for (ids, _), score in zip(IDS_AND_WORDS, scores, strict=True):
    outputs = compute_outputs(model.module, model.params, padded_batch(ids))[
      "rtd_logits"
    ]
    expected = log_p_original(outputs[0, 1 : len(ids) - 1]).sum()
    np.testing.assert_allclose(score, expected, atol=1e-4)


def test_the_likelihood_of_gpt_is_the_sum_over_its_tokens(tmp_path):
  path = tiny_models.write_model(tmp_path / "gpt", "gpt", "pretraining")
  model = open_model(path, default_tower="discriminator")
  (tokens,) = text_inputs.encode(
    model, [text_inputs.text_of_string(id=0, text="abc de")]
  )
  outputs = compute_outputs(
    model.module, model.params, padded_batch(tokens.ids)
  )
  logits = outputs["lm_logits"][0]
  expected = sum(
    log_softmax(logits[i])[token_id]
    for i, token_id in enumerate(tokens.ids[1:])
  )
  scores = likelihood.score_texts(model, ["abc de", "a", ""])
  np.testing.assert_allclose(scores, [expected, 0, 0], atol=1e-4)


def test_predict_blanks_finds_the_likeliest_piece(bert):
  texts = ["the [MASK] sat.", "a [MASK] b", "un[MASK] . the"]
  answers = ["cats", "unaffable", "b"]
  first_guess, *unknown_guesses = likelihood.predict_blanks(
    bert, texts, answers
  )
  log_p = masked_log_p(bert, [2, 5, 7, 8, 12, 3], [2])
  assert first_guess.answer_log_p == pytest.approx(log_p[7], abs=1e-4)
  assert first_guess.piece == tiny_models.WORDS[log_p.argmax()]
  assert first_guess.is_right == (log_p.argmax() == 7)
  # "unaffable" has three pieces, and "unb" has no piece "b".
  assert [guess.answer_log_p for guess in unknown_guesses] == [None, None]
  assert not any(guess.is_right for guess in unknown_guesses)
  (guess,) = likelihood.predict_blanks(bert, texts[:1], [first_guess.piece])
  assert guess.is_right


def minimal_pair(uid, term, good, bad):
  return dict(
    sentence_good=good, sentence_bad=bad, UID=uid, linguistics_term=term
  )


PAIRS_BY_FILE = {
  "x": [minimal_pair("x", "binding", "the cat", "the cats")] * 2,
  "y": [minimal_pair("y", "s-selection", "a b", "a b")],
  "z": [minimal_pair("z", "argument_structure", "a mat", "a on")],
}


def write_blimp(path):
  path.mkdir()
  for name, pairs in PAIRS_BY_FILE.items():
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    (path / f"{name}.jsonl").write_text(lines)
  with tarfile.open(path.parent / "blimp.tar.xz", "w:xz") as tar:
    for name in PAIRS_BY_FILE:
      content = (path / f"{name}.jsonl").read_bytes()
      info = tarfile.TarInfo(f"data/{name}.jsonl")
      info.size = len(content)
      tar.addfile(info, io.BytesIO(content))
  return path


def test_accuracies_of_blimp_are_means_over_files():
  files = [
    blimp.MinimalPairs("x", "binding", ["a"] * 4, ["b"] * 4),
    blimp.MinimalPairs("y", "binding", ["a"] * 2, ["b"] * 2),
    blimp.MinimalPairs("z", "ellipsis", ["a"] * 2, ["b"] * 2),
  ]
  good = [np.array([1, 1, 1, 0]), np.array([0, 0]), np.array([2, 2])]
  bad = [np.zeros(4), np.array([0, 1]), np.array([1, 3])]
  results = blimp.accuracies(files, good, bad)
  assert results["files"]["x"]["accuracy"] == 0.75
  assert results["files"]["y"] == dict(
    phenomenon="binding", accuracy=0.0, pairs=2, ties=1
  )
  assert results["phenomena"]["binding"] == dict(accuracy=0.375, files=2)
  assert results["accuracy"] == pytest.approx((0.75 + 0.0 + 0.5) / 3)
  table = blimp.markdown_table(results)
  assert "| **binding** | 6 | 0.3750 |" in table
  assert "| **mean of 3 of 67 files** | 8 | 0.4167 |" in table


def log_p_original(logits):
  """Returns log P(token is original) for a discriminator's logits."""
  return -np.log1p(np.exp(np.asarray(logits, np.float64)))


@pytest.mark.parametrize("family", ["gpt", "electra"])
def test_gpt_and_electra_prefer_the_sentences_that_numpy_does(family, tmp_path):
  sizes = dict(generator_hidden=8) if family == "electra" else {}
  path = tiny_models.write_model(
    tmp_path / family, family, "pretraining", **sizes
  )
  model = open_model(path, default_tower="discriminator")
  good = ["the cat sat", "a cat sat on", "on a mat", "b c", "sat the mat"]
  bad = ["the cats sat", "a cats sat on", "on mat a", "c b", "sit the mat"]
  pairs = [
    minimal_pair("x", "binding", good_sentence, bad_sentence)
    for good_sentence, bad_sentence in zip(good, bad, strict=True)
  ]
  (tmp_path / "blimp").mkdir()
  lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
  (tmp_path / "blimp" / "x.jsonl").write_text(lines)

  def expected_score(text):
    if family == "gpt":
      # Each letter is a piece. A capital stands for the last letter of a word.
      letters = [word[:-1] + word[-1].upper() for word in text.split()]
      vocabulary = "abcdefghijklmnopqrstuvwxyz.,"
      vocabulary = ["?", *vocabulary, *vocabulary.upper()]
      ids = [vocabulary.index(letter) for letter in "".join(letters)]
      outputs = compute_outputs(model.module, model.params, padded_batch(ids))[
        "lm_logits"
      ][0]
      return sum(
        log_softmax(outputs[i - 1])[ids[i]] for i in range(1, len(ids))
      )
    ids = [CLS_ID, *map(tiny_models.WORDS.index, text.split()), SEP_ID]
    outputs = compute_outputs(model.module, model.params, padded_batch(ids))[
      "rtd_logits"
    ][0]
    return log_p_original(outputs[1 : len(ids) - 1]).sum()

  expected = np.array(
    [[expected_score(text) for text in texts] for texts in (good, bad)]
  )
  scores = likelihood.score_texts(model, [*good, *bad]).reshape(2, -1)
  np.testing.assert_allclose(scores, expected, atol=1e-4)
  method = likelihood.default_method(model)
  path = str(tmp_path / "blimp")
  results = likelihood_tests.run_blimp(
    model, path, method, max_pairs=None, batch_tokens=99
  )
  accuracy = np.mean(expected[0] > expected[1])
  assert results["files"]["x"]["accuracy"] == accuracy
  assert 0.0 < results["accuracy"] < 1.0


def run_command(*arguments):
  execute(["likelihood", *map(str, arguments)])


def test_the_command_reads_blimp_and_cloze_files(
  bert_folder, bert, tmp_path, capsys
):
  path = write_blimp(tmp_path / "blimp")
  (tmp_path / "c.jsonl").write_text('{"text": "a [MASK]", "answer": "b"}\n')
  output = tmp_path / "results.json"
  arguments = ["--model", bert_folder, "--output", output]
  run_command(*arguments, "--blimp", path, "--cloze", tmp_path / "c.jsonl")
  assert "cloze: accuracy" in capsys.readouterr().out
  results = json.loads(output.read_text())
  assert results["method"] == "pll" and results["cloze"]["texts"] == 1
  good, bad = likelihood.score_texts(bert, ["the cat", "the cats"])
  assert results["blimp"]["files"]["x"]["accuracy"] == float(good > bad)
  assert results["blimp"]["files"]["y"]["ties"] == 1
  assert results["blimp"]["phenomena"]["argument_structure"]["files"] == 2
  run_command(*arguments, "--blimp", tmp_path / "blimp.tar.xz")
  assert json.loads(output.read_text())["blimp"] == results["blimp"]
  run_command(*arguments, "--blimp", path, "--pairs", 1)
  result_by_file = json.loads(output.read_text())["blimp"]["files"]
  assert [result["pairs"] for result in result_by_file.values()] == [1, 1, 1]


@pytest.mark.parametrize(
  "arguments, message",
  [
    ([], "--blimp or --cloze"),
    (["--blimp", "none"], "folder or tar file of BLiMP (No such file or dire"),
    (
      ["--blimp", "two.jsonl"],
      "two.jsonl is not a folder or tar file of BLiMP (fi",
    ),
    (
      ["--blimp", "cut.tar.xz"],
      "cut.tar.xz is not a folder or tar file of BLiMP (",
    ),
    (["--blimp", "empty"], "empty has no .jsonl file"),
    (["--blimp", "bad"], "bad: a.jsonl:3 has no 'sentence_bad'"),
    (
      ["--blimp", "twice"],
      "twice: two files have the UID 'a'; remove one of them",
    ),
    (["--blimp", "blimp", "--output", "no/x.json"], "no/x.json: No such file"),
    (
      ["--blimp", "blimp", "--method", "lm"],
      "'lm' does not fit this model's head; choose 'pll'",
    ),
    (
      ["--cloze", "two.jsonl"],
      'two.jsonl:1: the line must have a "text" with one',
    ),
    (["--cloze", "long.jsonl"], "36 tokens; the model takes 34"),
    (["--blimp", "blimp", "--pairs", "0"], "--pairs=0 must be at least 1"),
  ],
)
def test_bad_input_gets_one_sentence(
  arguments, message, bert_folder, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  write_blimp(tmp_path / "blimp")
  content = (tmp_path / "blimp.tar.xz").read_bytes()
  (tmp_path / "cut.tar.xz").write_bytes(content[: len(content) // 2])
  (tmp_path / "empty").mkdir()
  (tmp_path / "bad").mkdir()
  bad_pair = dict(sentence_good="a", UID="a", linguistics_term="b")
  lines = "\n\n".join(
    map(json.dumps, [bad_pair | dict(sentence_bad="b"), bad_pair])
  )
  # The file has a byte-order mark, and a blank line that counts as a line.
  (tmp_path / "bad" / "a.jsonl").write_text("\ufeff" + lines)
  (tmp_path / "twice").mkdir()
  for name in "xy":
    path = tmp_path / "twice" / f"{name}.jsonl"
    path.write_text("\ufeff" + lines.split("\n")[0] + "\r\n")
  (tmp_path / "two.jsonl").write_text('{"text": "[MASK] [MASK]"}\n')
  long_cloze = {"text": "[MASK] " + "the " * 33, "answer": "a"}
  (tmp_path / "long.jsonl").write_text(json.dumps(long_cloze) + "\n")
  with pytest.raises(SystemExit) as exit_info:
    run_command("--model", bert_folder, *arguments)
  assert str(exit_info.value).startswith("error: ") and message in str(
    exit_info.value
  )
  assert "\n" not in str(exit_info.value)


def test_a_model_without_a_pretraining_head_is_refused(tmp_path):
  path = tiny_models.write_model(tmp_path / "encoder", "bert")
  with pytest.raises(
    SystemExit, match="family bert for encoder has no likelihood; use"
  ):
    run_command("--model", path, "--blimp", write_blimp(tmp_path / "b"))
