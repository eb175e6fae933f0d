"""Tests `--add-tokens FILE`, and models without rows for the new pieces.

Here a row is a row of the word table: the embedding of one piece.
"""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tasks
from flax import traverse_util
from tiny_added_tokens import MAKE_VOCABULARY
from tiny_vocabularies import bert_vocabulary

import bert_jax
from bert_jax.cli.main import execute
from bert_jax.corpus import reader
from bert_jax.text import added_tokens, open_vocabulary, token_files, words
from bert_jax.training import start_from
from bert_jax.use import predict
from bert_jax.weights import hf, model_folder

TOKEN_LINES = """covid19
[E1]

the
New York
covid19
COVID19
{"content": "art", "single_word": true}
{"content": "[X]", "special": true}
[MASK]
"""


def write_and_add(vocabulary, path, text):
  path.write_text(text, encoding="utf-8")
  return token_files.add_from_file(vocabulary, str(path))


def test_each_line_is_added_or_reported(tmp_path):
  vocabulary = bert_vocabulary("the art new york")
  new_vocabulary, report = write_and_add(
    vocabulary, tmp_path / "add.txt", TOKEN_LINES
  )
  new_pieces = ["covid19", "[E1]", "New York", "[X]"]
  assert list(new_vocabulary.pieces[vocabulary.vocab_size :]) == new_pieces
  assert list(new_vocabulary.pieces[: vocabulary.vocab_size]) == list(
    vocabulary.pieces
  )
  assert report == (
    f"{tmp_path}/add.txt: 4 new pieces after the 9 pieces of the vocabulary:"
    " 'covid19', '[E1]', 'New York', '[X]'; already pieces, now found whole in"
    " any text: 'art'; left out, since each is one piece already:"
    " 'the', '[MASK]'; left out, since each is on an earlier line: 'covid19',"
    " 'COVID19'; empty lines: 1."
  )
  token_by_content = {
    token.content: token for token in new_vocabulary.added_tokens
  }
  assert (
    token_by_content["art"].single_word
    and not token_by_content["covid19"].single_word
  )
  assert new_vocabulary.never_masked_ids == [new_vocabulary.pieces.index("[X]")]
  # transformers' add_tokens has the same defaults: normalized and not special.
  flags = added_tokens.flags_of(token_by_content["[E1]"])
  assert flags == added_tokens.flags_of(added_tokens.AddedToken("a"))
  (ids,) = new_vocabulary.encode_batch(["the [e1] COVID19 new york"])
  pieces = [new_vocabulary.pieces[i] for i in ids]
  assert pieces == ["the", "[E1]", "covid19", "New York"]


@pytest.mark.parametrize("family", MAKE_VOCABULARY)
def test_ids_are_those_of_add_tokens(family, tmp_path):
  """Adds tokens from a file, and to transformers' tokenizer by `add_tokens`.

  Both must give the same ids.
  """
  transformers = pytest.importorskip("transformers")
  new_tokens = ["covid19", "[E1]", "New York", "\u00c9lan", "\u4e2d\u6587"]

  def write(vocabulary, name):
    (tmp_path / name).mkdir()
    open_vocabulary.save(vocabulary, str(tmp_path / name))
    model_types = {"gpt1": "openai-gpt"}
    config = json.dumps({"model_type": model_types.get(family, family)})
    (tmp_path / name / "config.json").write_text(config)
    return transformers.AutoTokenizer.from_pretrained(tmp_path / name)

  vocabulary = MAKE_VOCABULARY[family]()
  reference = write(vocabulary, "before")
  new_vocabulary, _ = write_and_add(
    vocabulary, tmp_path / "a.txt", "\n".join(new_tokens)
  )
  assert reference.add_tokens(new_tokens) == len(new_tokens)
  tokenizer = write(new_vocabulary, "after")
  size = vocabulary.vocab_size
  assert tokenizer.convert_tokens_to_ids(new_tokens) == list(
    range(size, size + 5)
  )
  for text in (
    "the covid19[E1]an",
    "New York, new york",
    "\u00c9LAN\u4e2d\u6587",
  ):
    expected = reference(text)["input_ids"]
    assert tokenizer(text)["input_ids"] == expected
    ids = reference(text, add_special_tokens=False)["input_ids"]
    assert new_vocabulary.encode_batch([text]) == [ids]
    saved_vocabulary = open_vocabulary.load(str(tmp_path / "after"))
    assert saved_vocabulary.encode_batch([text]) == [ids]
  # Adding the same tokens again changes nothing.
  unchanged_vocabulary, report = write_and_add(
    new_vocabulary, tmp_path / "a.txt", "\n".join(new_tokens)
  )
  assert unchanged_vocabulary is new_vocabulary and " 0 new pieces" in report


def test_fillers_between_ids_do_not_shift_new_ones(tmp_path):
  """Adds tokens to a vocabulary in which three ids before the mask are unused.

  RoBERTa's published files are like this. The new ids must follow the mask.
  """
  vocabulary = MAKE_VOCABULARY["roberta"]()
  files = open_vocabulary.to_files(vocabulary)
  vocab = json.loads(files["vocab.json"])
  vocab["<mask>"] += 3
  folder_path = tmp_path / "gap"
  folder_path.mkdir()
  (folder_path / "vocab.json").write_text(json.dumps(vocab))
  (folder_path / "merges.txt").write_bytes(files["merges.txt"])
  vocabulary_with_gap = open_vocabulary.load(str(folder_path))
  assert vocabulary_with_gap.vocab_size == vocabulary.vocab_size + 3
  new_vocabulary, _ = write_and_add(
    vocabulary_with_gap, tmp_path / "a.txt", "covid19\nz9\n"
  )
  assert new_vocabulary.added_ids == [
    vocabulary_with_gap.vocab_size,
    vocabulary_with_gap.vocab_size + 1,
  ]
  (folder_path / "out").mkdir()
  open_vocabulary.save(new_vocabulary, str(folder_path / "out"))
  reloaded_vocabulary = open_vocabulary.load(str(folder_path / "out"))
  assert list(reloaded_vocabulary.pieces) == list(new_vocabulary.pieces)
  assert reloaded_vocabulary.encode_batch(
    ["the z9 a"]
  ) == new_vocabulary.encode_batch(["the z9 a"])
  assert reloaded_vocabulary.special == vocabulary_with_gap.special


def test_words_are_added_as_words(tmp_path):
  vocabulary = words.build(
    [*words.SPECIAL_WORDS, "the", "cat"], other_words=["dog"]
  )
  new_vocabulary, report = write_and_add(
    vocabulary, tmp_path / "a.txt", "covid19\ncat\ncovid19\n"
  )
  assert list(new_vocabulary.pieces) == [
    *words.SPECIAL_WORDS,
    "the",
    "cat",
    "covid19",
  ]
  assert list(new_vocabulary.other_words) == ["dog"]
  assert "1 new pieces after the 5" in report and "already: 'cat'" in report
  assert new_vocabulary.encode_batch(["the covid19 dog"]) == [[3, 5, 6]]
  with pytest.raises(ValueError, match=r"a.txt:1: '\[E1\]' is 3 words by"):
    write_and_add(vocabulary, tmp_path / "a.txt", "[E1]\n")
  vocabulary_split_at_spaces = words.build(
    [*words.SPECIAL_WORDS, "the"], other_words=(), source="v", rules="spaces"
  )
  new_vocabulary, _ = write_and_add(
    vocabulary_split_at_spaces, tmp_path / "a.txt", "[E1]\n"
  )
  assert new_vocabulary.encode_batch(["the [E1]"]) == [[3, 4]]


@pytest.mark.parametrize(
  "text, message",
  [
    ("", "a.txt has no tokens; write one on each line"),
    ("\n\n", "a.txt has no tokens"),
    ("x\n\u0007\n", r"a.txt:2: nothing is left of '\\x07' when"),
    ('{"content": "x", "strip": true}', "a.txt:1: 'strip' is wrong; a token"),
    ('{"content": "x", "special": 1}', "a.txt:1: 'special' is wrong"),
    ('{"content": 3}', "a.txt:1: 'content' is wrong"),
    (b"a\xff", r"a.txt is not UTF-8 \(byte 1\)"),
  ],
)
def test_bad_files_are_refused_in_a_sentence(text, message, tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  with pytest.raises(ValueError, match=message):
    token_files.add_from_file(bert_vocabulary("the"), str(path))


def test_missing_files_and_original_rules_are_refused(tmp_path):
  with pytest.raises(ValueError, match="--add-tokens=.*none: No such file"):
    token_files.add_from_file(bert_vocabulary("the"), str(tmp_path / "none"))
  with pytest.raises(ValueError, match="'original' cannot have added tokens"):
    write_and_add(bert_vocabulary("the", "original"), tmp_path / "a.txt", "x\n")
  # A line that begins with a brace, but is no JSON object, is a text.
  new_vocabulary, _ = write_and_add(
    bert_vocabulary("the"), tmp_path / "a.txt", "{x}\n{\n"
  )
  assert list(new_vocabulary.pieces[-2:]) == ["{x}", "{"]


def run_verb(verb, *arguments):
  execute([verb, *map(str, arguments)])


def test_the_command_writes_a_folder_with_the_tokens(tmp_path, capsys):
  vocab_path = tmp_path / "vocab.txt"
  vocab_path.write_bytes(bert_vocabulary("the a virus art").files["vocab.txt"])
  (tmp_path / "add.txt").write_text(TOKEN_LINES)
  text = "the covid19 virus [X].\nthe virus.\n\na art.\nCOVID19 [E1].\n"
  (tmp_path / "t.txt").write_text(text * 3)
  flags = ["--input", tmp_path / "t.txt", "--vocab", vocab_path, "--heldout=0"]
  flags += ["--processes=1", "--output", tmp_path / "p"]
  run_verb("prepare", *flags, "--add-tokens", tmp_path / "add.txt")
  assert "4 new pieces after the 9" in capsys.readouterr().err
  opened = reader.open_prepared(str(tmp_path / "p"))
  corpus = opened.splits["train"]
  pieces = [opened.vocab[i] for i in corpus.tokens]
  assert pieces[:5] == ["the", "covid19", "virus", "[X]", "[UNK]"]
  assert corpus.never_masked_ids == (opened.vocab.index("[X]"),)
  assert opened.vocab_size == len(opened.unigrams) == 13
  assert opened.unigrams[opened.vocab.index("covid19")] == 6
  # The same command has nothing to do now. Without --add-tokens, it refuses the
  # folder, which has a different vocabulary.
  run_verb("prepare", *flags, "--add-tokens", tmp_path / "add.txt")
  assert "nothing to do" in capsys.readouterr().err
  with pytest.raises(SystemExit, match="the vocabulary differs"):
    run_verb("prepare", *flags)
  # The prepared folder can also be opened as a vocabulary.
  vocabulary = open_vocabulary.load(str(tmp_path / "p"))
  assert list(vocabulary.pieces) == opened.vocab


def test_new_rows_are_means_or_random():
  """A new row is the mean of the rows of old pieces, or is drawn at random.

  If no old piece is known, the row is always drawn.
  """
  vocabulary = bert_vocabulary("co ##vi ##d a")
  table = np.arange(9 * 2, dtype=np.float32).reshape(9, 2)
  drawn_rows = -np.ones((3, 2), np.float32)
  new_pieces, old_ids_of = (
    ["covid", "a a", "zzz"],
    added_tokens.old_piece_cutter(vocabulary),
  )
  assert [old_ids_of(name) for name in new_pieces] == [[5, 6, 7], [8, 8], []]
  rows = start_from.new_word_rows(
    table, new_pieces, old_ids_of, "mean", drawn_rows
  )
  np.testing.assert_array_equal(rows, [[12, 13], [16, 17], [-1, -1]])
  rows = start_from.new_word_rows(
    table, new_pieces, old_ids_of, "drawn", drawn_rows
  )
  np.testing.assert_array_equal(rows, drawn_rows)
  # The tokenizer may already have the new pieces, while its model has no rows
  # for them.
  new_vocabulary = added_tokens.add_tokens(
    vocabulary, [added_tokens.AddedToken(piece) for piece in new_pieces]
  )
  new_ids_of = added_tokens.old_piece_cutter(new_vocabulary)
  assert any(new_ids_of(name) for name in new_pieces)
  old_ids_before = added_tokens.old_piece_cutter(
    new_vocabulary, vocabulary.vocab_size
  )
  assert [old_ids_before(name) for name in new_pieces] == [
    [5, 6, 7],
    [8, 8],
    [],
  ]
  # An output bias has one number for each piece.
  bias = start_from.new_word_rows(
    table[:, 0], new_pieces, old_ids_of, "mean", drawn_rows[:, 0]
  )
  np.testing.assert_array_equal(bias, [12, 16, -1])
  with pytest.raises(ValueError, match="init_new_rows='x' is not one of mean"):
    start_from.new_word_rows(table, new_pieces, old_ids_of, "x", drawn_rows)
  with pytest.raises(ValueError, match=r"shape \[2, 2\], .* 3 new pieces"):
    start_from.new_word_rows(
      table, new_pieces, old_ids_of, "mean", drawn_rows[:2]
    )
  assert start_from.describe_new_rows(new_pieces, "mean") == (
    "new rows of the word table: 3 ('covid', 'a a', 'zzz'), each the mean of"
    " old rows"
  )
  assert start_from.describe_new_rows([*"abcdefgh"], "drawn").endswith(
    "and 2 more), all random"
  )


@pytest.fixture(scope="module")
def models_without_rows(tmp_path_factory):
  """Writes three models with 17 rows; two have tokenizers with 19 pieces."""
  path = tmp_path_factory.mktemp("short")
  weights = tiny_tasks.write_fine_tuned(path / "tuned", "classification")
  num_rows = len(tiny_tasks.PIECES)
  ids_json = json.dumps({"covid19": num_rows, "[E1]": num_rows + 1}).encode()
  files = tiny_tasks.tokenizer_files() | {"added_tokens.json": ids_json}
  weights = weights._replace(tokenizer_files=files)
  model_folder.write(str(path / "model"), weights)
  hf.write(str(path / "hf"), weights)
  return path


def test_pieces_without_rows_are_named_when_a_model_is_opened(
  models_without_rows, tmp_path, capsys
):
  message = (
    "19 pieces, but the word table has 17 rows; these pieces have no row:"
    " 'covid19'"
  )
  for name in ("model", "hf"):
    model = bert_jax.load(str(models_without_rows / name))
    assert model.config["model"]["vocab_size"] == 17
    output = capsys.readouterr()
    line = (
      f"note: {models_without_rows}/{name}: the tokenizer has {message}, '[E1]'"
    )
    assert line in output.err
    assert not output.out
    with pytest.raises(
      ValueError,
      match="need 19 pieces, but the model has 17 and lacks"
      " 'covid19', '.E1.'; fine-tune",
    ):
      predict.open_predictor(str(models_without_rows / name))
  flags = ["--family=bert", "--from=hf", "--model", models_without_rows / "hf"]
  run_verb("convert", *flags, "--output", tmp_path / "a")
  assert message in capsys.readouterr().err
  flags = ["--family=bert", "--to=hf", "--model", models_without_rows / "model"]
  run_verb("convert", *flags, "--output", tmp_path / "b")
  assert message in capsys.readouterr().err
  # If every piece has a row, no piece is named.
  bert_jax.load(str(models_without_rows / "tuned"))
  assert "piece" not in capsys.readouterr().err


@pytest.mark.parametrize("method", start_from.NEW_ROW_METHODS)
def test_init_from_prints_the_new_rows(method, tmp_path):
  """Starts from a model with 17 rows, but a tokenizer and data of 19 pieces.

  A printed line must name the two new rows, and how they are made.
  """
  pieces = [*tiny_tasks.PIECES, "[E1]", "red dogs"]
  id_by_piece = {piece: i for i, piece in enumerate(pieces) if i >= 17}
  files = {"added_tokens.json": json.dumps(id_by_piece).encode()}
  weights = tiny_tasks.write_model(tmp_path / "short")
  files |= tiny_tasks.tokenizer_files()
  path = tmp_path / "longer"
  model_folder.write(str(path), weights._replace(tokenizer_files=files))
  source = start_from.read_for_fine_tuning(str(path), pieces, "data")
  table = "encoder/embeddings/word/embedding"
  flat = {name: jnp.asarray(array) for name, array in source.arrays.items()}
  flat[table] = jnp.full((19, flat[table].shape[1]), -1.0)
  tree = traverse_util.unflatten_dict(flat, sep="/")
  params, lines = start_from.take_parameters(
    source,
    tree,
    is_pretrained=lambda name: name == table,
    labels=(),
    init_new_rows=method,
  )
  descriptions = {"mean": "each the mean of old rows", "drawn": "all random"}
  line = "new rows of the word table: 2 ('[E1]', 'red dogs'), "
  line += descriptions[method]
  assert line in lines
  rows = np.asarray(traverse_util.flatten_dict(params, sep="/")[table])
  np.testing.assert_array_equal(rows[:17], source.arrays[table])
  # All pieces of "[E1]" are unknown, so its row is drawn.
  ids = [tiny_tasks.PIECES.index(piece) for piece in ("red", "dog", "##s")]
  expected = source.arrays[table][ids].mean(0) if method == "mean" else rows[17]
  np.testing.assert_allclose(rows[18], expected, rtol=1e-6)
  assert (rows[17] == -1).all()


def test_rows_without_pieces_are_never_filled_in(tmp_path):
  """Fills a mask with a model whose last rows belong to no piece.

  No candidate may be one of these rows.
  """
  weights = tiny_tasks.write_model(tmp_path / "m")
  path = str(tmp_path / "longer")
  config = json.loads(json.dumps(weights.config))
  config["model"]["vocab_size"] += 7
  arrays = dict(weights.arrays)
  for name in ("encoder/embeddings/word/embedding", "mlm/bias"):
    padding = [(0, 7)] + [(0, 0)] * (arrays[name].ndim - 1)
    arrays[name] = np.pad(arrays[name], padding)
  arrays["mlm/bias"][-7:] = 50.0
  model_folder.write(path, weights._replace(config=config, arrays=arrays))
  predictor = predict.open_predictor(path, top_k=5)
  example = {"id": 0, "text": "red [MASK] runs"}
  (prediction,) = predict.predict(predictor, [example])
  candidates = prediction["masks"][0]
  assert {candidate["token"] for candidate in candidates} <= set(
    tiny_tasks.PIECES
  )
  # The softmax is over all rows. Here the rows without pieces have almost all
  # of the probability.
  assert sum(candidate["probability"] for candidate in candidates) < 1e-6


def test_a_tokenizer_json_of_wordpiece_prepares_text(tmp_path):
  """Prepares text with a folder that has tokenizer.json, but no vocab.txt.

  The tokenizer keeps accents, so the prepared text must have them.
  """
  content = bert_vocabulary("the é e").special_tokenizer.to_str()
  content = content.replace('"strip_accents":true', '"strip_accents":false')
  (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
  (tmp_path / "t.txt").write_text("the É.\nthe e.\n\nthe é.\nE e.\n" * 3)
  flags = ["--input", tmp_path / "t.txt", "--vocab", tmp_path, "--heldout=0"]
  flags += ["--processes=1", "--output", tmp_path / "p"]
  run_verb("prepare", *flags)
  opened = reader.open_prepared(str(tmp_path / "p"))
  tokens = opened.splits["train"].tokens[:3].tolist()
  assert [opened.vocab[i] for i in tokens] == ["the", "é", "[UNK]"]
  assert opened.special == bert_vocabulary("the").special
  transformers = pytest.importorskip("transformers")
  (tmp_path / "p" / "config.json").write_text('{"model_type": "bert"}')
  reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "p")
  assert reference.tokenize("the É e") == ["the", "é", "e"]


@pytest.mark.parametrize("as_json", [False, True])
def test_config_has_the_padding_id_of_the_tokenizer(as_json, tmp_path):
  """config.json has the id of [PAD], whichever file holds the pieces."""
  weights = tiny_tasks.write_model(tmp_path / "m")
  pieces = [*tiny_tasks.PIECES[1:], "[PAD]"]
  files = {"vocab.txt": "".join(f"{name}\n" for name in pieces).encode()}
  if as_json:
    vocabulary = open_vocabulary.from_files(files, "x", lower_case=True)
    tokenizer = added_tokens.make_model_tokenizer(vocabulary)
    files = {"tokenizer.json": tokenizer.to_str().encode()}
  hf.write(str(tmp_path / "hf"), weights._replace(tokenizer_files=files))
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert config["pad_token_id"] == len(pieces) - 1
