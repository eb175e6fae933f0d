"""Tests that fine-tuning accepts odd input, or refuses it in one sentence."""

import io
import json
import sys

import finetune_files as files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
import tiny_tasks

from bert_jax.cli.main import execute
from bert_jax.tasks import batches, encoded_rows, prepare_task, task_inputs
from bert_jax.tasks.files import tables
from bert_jax.tasks.task_inputs import Input
from bert_jax.text import model_tokenizer
from bert_jax.training import parts, start_from
from bert_jax.use import likelihood_tests, predict, text_inputs
from bert_jax.weights import model_folder
from bert_jax.weights.load import open_model

COLUMN_OPTIONS = dict(columns=" text = my text , label = my label")


def read_contents(path, **options):
  task = task_inputs.find_task("mine", **options)
  return task_inputs.read(task, [Input("train", str(path))])


@pytest.mark.parametrize(
  "options, message",
  [
    (
      COLUMN_OPTIONS | dict(labels=["a", "b", "a"]),
      "--labels: 'a' is there twice",
    ),
    (
      COLUMN_OPTIONS | dict(labels=["a"]),
      "a task of kind classification needs two or more",
    ),
    (
      COLUMN_OPTIONS | dict(kind="regression", labels=["1", "2"]),
      "labels of kind regression are numbers, without names",
    ),
    (dict(kind="tagging", labels=["O", "B-X", "Y"]), "--labels: tag 'Y' is"),
  ],
)
def test_impossible_labels_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    task_inputs.find_task("mine", **options)


def test_columns_and_labels_with_spaces_or_surrogates_are_read(tmp_path):
  path = tmp_path / "a.tsv"
  path.write_bytes(
    b"\xef\xbb\xbfmy text\tmy label\r\na\tnot spam \r\nb\tspam\r\n"
  )
  contents = read_contents(path, **COLUMN_OPTIONS)
  assert contents.task.labels == ("not spam", "spam")
  assert [example["texts"] for example in contents.splits["train"]] == [
    ["a"],
    ["b"],
  ]
  line = '{"my text": "x \\ud83d", "my label": "\\uDC00"}\n'
  path = files.write_text(
    tmp_path / "a.jsonl", line + line.replace("\\uDC00", "b")
  )
  contents = read_contents(path, **COLUMN_OPTIONS)
  assert contents.splits["train"][0]["texts"] == ["x \ufffd"]
  assert contents.task.labels == ("b", "\ufffd")
  # A pair of surrogates is one character.
  assert tables.parse_json('["\\ud83d\\ude00"]') == ["\U0001f600"]
  lines = [{"my text": "a", "my label": ["b"]}]
  path = files.write_jsonl(tmp_path / "b.jsonl", lines)
  with pytest.raises(ValueError, match=r"b\.jsonl:1: label \['b'\] is neither"):
    read_contents(path, **COLUMN_OPTIONS)


def test_a_byte_order_mark_at_the_start_is_left_out(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"\xef\xbb\xbfa\r\nb\xef\xbb\xbf")
  assert [*text_inputs.read_lines(str(path))] == ["a", "b\ufeff"]
  odd_text = '{"id": "\\ud800", "words": ["a\\udfff"]}'
  (tmp_path / "a.jsonl").write_text(odd_text)
  (text,) = text_inputs.read_texts(str(tmp_path / "a.jsonl"))
  assert (text.id, text.text) == ("\ufffd", "a\ufffd")
  path.write_bytes(b"a\n\xff\n")
  with pytest.raises(ValueError, match=r"a\.txt:2: the line is not UTF-8"):
    list(text_inputs.read_lines(str(path)))


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("models")
  for kind in ("classification", "tagging"):
    tiny_tasks.write_fine_tuned(path / kind, kind)
  return path


def run_command(verb, **value_by_flag):
  flags = value_by_flag.items()
  execute(
    [
      verb,
      *(f"--{name.replace('_', '-')}={setting}" for name, setting in flags),
    ]
  )


def test_odd_lines_are_predicted(models_folder, tmp_path):
  source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
  lines = b'{"words": ["cat", "\\ud800", ""]}\r\n{"text": " "}'
  source.write_bytes(b"\xef\xbb\xbf" + lines)
  flags = dict(model=models_folder / "tagging", input=source, output=target)
  run_command("predict", **flags)
  predictions = [
    json.loads(line) for line in target.read_text("utf-8").splitlines()
  ]
  assert [prediction["words"] for prediction in predictions] == [
    ["cat", "\ufffd", ""],
    [],
  ]
  assert [len(prediction["tags"]) for prediction in predictions] == [3, 0]


@pytest.mark.parametrize(
  "content, wrong_flags, message",
  [
    (b"", {}, "in.jsonl has no lines"),
    (b'{"text": "a"}\n[]', {}, "in.jsonl:2: it is not an object"),
    (b"\xff", {}, "in.jsonl:1: the line is not UTF-8"),
    (
      b'{"text": "a"}',
      dict(output="in.jsonl"),
      "the output in.jsonl is the inp",
    ),
    (b'{"text": "a"}', dict(input="no"), "error: no: No such file or directo"),
    (b'{"text": "a"}', dict(output="no/o"), "no/o: No such file"),
    (b'{"text": "a"}', dict(dtype="half"), "error: argument --dtype: invalid"),
    (b"", dict(input="-"), "error: stdin has no lines"),
    (b"\xff", dict(input="-"), "error: stdin:1: the line is not UTF-8"),
  ],
)
def test_predict_refuses_bad_input_in_one_sentence(
  models_folder, tmp_path, monkeypatch, content, wrong_flags, message
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "in.jsonl").write_bytes(content)
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
  flags = dict(
    model=models_folder / "classification", input="in.jsonl", output="out"
  )
  with pytest.raises(SystemExit) as error:
    run_command("predict", **flags | wrong_flags)
  assert message in str(error.value) and "\n" not in str(error.value)
  assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
  assert (tmp_path / "in.jsonl").read_bytes() == content


def test_a_model_with_nan_is_refused(tmp_path):
  weights = tiny_tasks.write_model(tmp_path / "whole")
  arrays = weights.arrays | {"mlm/bias": weights.arrays["mlm/bias"] * np.nan}
  path = str(tmp_path / "broken")
  model_folder.write(path, weights._replace(arrays=arrays))
  predictor = predict.open_predictor(path)
  with pytest.raises(
    ValueError, match="logits are not finite; the model is broken"
  ):
    predict.predict(predictor, [{"id": 1, "text": "cat [MASK]"}])
  pair = dict(sentence_good="cat", sentence_bad="dog", UID="x")
  lines = [pair | dict(linguistics_term="binding")]
  (tmp_path / "blimp").mkdir()
  files.write_jsonl(tmp_path / "blimp" / "x.jsonl", lines)
  model = open_model(path, default_tower="discriminator")
  with pytest.raises(
    ValueError, match="scores are not finite; use a checkpoint"
  ):
    likelihood_tests.run_blimp(
      model,
      str(tmp_path / "blimp"),
      "pll",
      max_pairs=None,
      batch_tokens=99,
    )


def test_no_answer_is_only_for_question_models(models_folder):
  with pytest.raises(ValueError, match="only questions can have no answer"):
    predict.open_predictor(
      str(models_folder / "classification"), no_answer=True
    )


def test_evaluate_refuses_bad_flags_in_one_sentence(models_folder, tmp_path):
  folder = tiny_tasks.write_task(tmp_path / "task")
  long_folder = str(tmp_path / "long")
  task = tiny_tasks.TASKS["classification"]
  texts = [dict(id="0", texts=["red " * 40], label="cat")]
  encoded = prepare_task.encode_examples(
    task, texts, tiny_tasks.vocabulary(), length=64
  )
  meta = encoded_rows.read_meta(folder)
  tokenizer = tiny_tasks.tokenizer_files()
  encoded_rows.save(
    long_folder, task, {"validation": (encoded.rows, texts)}, meta, tokenizer
  )
  (tmp_path / "file").write_text("")
  flags = dict(model=models_folder / "classification", data=folder)
  for wrong_flags, message in (
    (dict(output=tmp_path / "file"), "file: File exists"),
    (dict(split="tets"), "no split 'tets'; it has train, validation"),
    (dict(batch_size=0), "--batch-size=0 must be at least 1"),
    (dict(batch_size="x"), "argument --batch-size: invalid int"),
    (
      dict(data=long_folder),
      "has rows of 42 tokens, but the model takes 40; prepare the task",
    ),
    (
      dict(model=models_folder / "tagging"),
      "kind classification, but the model predicts kind tag",
    ),
  ):
    wrong_flags = dict(output=tmp_path / "out") | wrong_flags
    with pytest.raises(SystemExit) as error:
      run_command("evaluate", **flags | wrong_flags)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_split_without_labels_is_not_evaluated(tmp_path):
  path = files.write_text(
    tmp_path / "a.tsv", "my text\tmy label\nred\ta\ncat\tb\n"
  )
  unlabelled_path = files.write_text(tmp_path / "b.tsv", "my text\nred\n")
  vocab_path = files.write_text(
    tmp_path / "vocab.txt", "\n".join(tiny_tasks.PIECES)
  )
  folder = str(tmp_path / "task")
  inputs = [Input("train", path), Input("test", unlabelled_path)]
  prepare_task.prepare(
    task_inputs.find_task("mine", **COLUMN_OPTIONS), inputs, vocab_path, folder
  )
  training_split = batches.open_task(
    batch_size=2, seed=0, path=folder, validation="train,test"
  )
  with pytest.raises(ValueError, match="split 'test' has a label. Pass --conf"):
    batches.open_splits(training_split)


@pytest.mark.parametrize("labels", ["2.5", "2.5 2.5", "2.5  1"])
def test_a_split_without_a_correlation_is_not_evaluated(tmp_path, labels):
  lines = "".join(f"red\t{label}\n" for label in labels.split(" "))
  table_path = files.write_text(
    tmp_path / "a.tsv", "my text\tmy label\n" + lines
  )
  vocab_path = files.write_text(
    tmp_path / "vocab.txt", "\n".join(tiny_tasks.PIECES)
  )
  folder = str(tmp_path / "task")
  # In the last case a label is missing, which the splits train and validation
  # do not allow.
  inputs = [Input("held", table_path)]
  task = task_inputs.find_task("mine", "regression", **COLUMN_OPTIONS)
  prepare_task.prepare(task, inputs, vocab_path, folder)
  training_split = batches.open_task(
    batch_size=2, seed=0, path=folder, train="held", validation="held"
  )
  if "1" in labels:
    (split,) = batches.open_splits(training_split)
    assert len(split.examples) == 3
    return
  with pytest.raises(
    ValueError, match=r"'held' has only the label 2.5 .*validation="
  ):
    batches.open_splits(training_split)
  # If no labels are predicted, no metric is needed.
  assert len(batches.open_splits(training_split, predicts_labels=False)) == 1


def test_a_word_table_gets_rows_or_loses_padding():
  word_path = "encoder/embeddings/word/embedding"
  drawn_table = np.arange(12, dtype=np.float32).reshape(6, 2)
  tree = {"encoder": {"embeddings": {"word": {"embedding": None}}}}
  tree = jax.tree.map(
    lambda _: jnp.asarray(drawn_table), tree, is_leaf=lambda x: x is None
  )

  def copy_table(array):
    contents = parts.PretrainedModel("x", {"labels": None}, {word_path: array})
    params, _ = start_from.take_parameters(
      contents, tree, is_pretrained=lambda path: True, labels=()
    )
    return np.asarray(params["encoder"]["embeddings"]["word"]["embedding"])

  # A table with too few rows, as for GPT-1's three new ids, keeps the drawn
  # rows at the end.
  old_table = np.full((3, 2), -1.0, np.float32)
  np.testing.assert_array_equal(
    copy_table(old_table), [*old_table, *drawn_table[3:]]
  )
  padded_table = np.arange(16, dtype=np.float32).reshape(8, 2) + 50.0
  np.testing.assert_array_equal(copy_table(padded_table), padded_table[:6])
  with pytest.raises(ValueError, match=r"x: encoder/.* \[8, 3\], not \[6, 2\]"):
    copy_table(np.zeros((8, 3), np.float32))


def test_a_causal_model_without_the_new_ids_is_refused(tmp_path):
  head = dict(num_labels=2)
  path = tiny_models.write_model(
    tmp_path / "gpt", "gpt", "sequence_classification", head, ["a", "b"]
  )
  with pytest.raises(
    ValueError, match="need 60 pieces, but the model has 57 and lacks .*; fine"
  ):
    predict.open_predictor(path)


@pytest.mark.parametrize("has_tokenizer_json", [False, True])
def test_gaps_between_ids_are_filled_with_pieces(tmp_path, has_tokenizer_json):
  """Ids without a piece, as in fairseq's files, get "madeupword" pieces."""
  path = tiny_models.write_model(tmp_path / "roberta", "roberta")
  vocab_path = tmp_path / "roberta" / "vocab.json"
  ids = json.loads(vocab_path.read_text("utf-8"))
  ids["<mask>"] += 3
  vocab_path.write_text(json.dumps(ids))
  tiny_models.delete_digests(path)
  if has_tokenizer_json:
    tokenizer = model_tokenizer.build(
      model_folder.read_tokenizer_files(path), path
    )
    (tmp_path / "roberta" / "tokenizer.json").write_text(tokenizer.to_str())
  table_path = files.write_text(
    tmp_path / "a.tsv", "my text\tmy label\nred\ta\ncat\tb\n"
  )
  folder = str(tmp_path / "task")
  task, inputs = (
    task_inputs.find_task("mine", **COLUMN_OPTIONS),
    [Input("train", table_path)],
  )
  prepare_task.prepare(task, inputs, path, folder)
  pieces = batches.open_folder(folder).vocab
  assert len(pieces) == ids["<mask>"] + 1 and pieces[-2] == "madeupword0002"
  start_from.read_for_fine_tuning(path, pieces, folder)
  message = "its piece 262 is 'madeupword0002', but in"
  with pytest.raises(ValueError, match=message):
    start_from.read_for_fine_tuning(path, [*pieces[:-2], "x", "<mask>"], folder)
