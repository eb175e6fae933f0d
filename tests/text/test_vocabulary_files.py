"""Tests tokenizers that are read from intact and from damaged files."""

import json
import random
import types

import pytest
from tiny_vocabularies import (
  ALBERT_PIECES,
  bert_vocabulary,
  gpt1_vocabulary,
  pieces_and_slices,
  random_texts,
  roberta_vocabulary,
  sentencepiece_model,
  write_files,
)

from bert_jax.tasks import questions
from bert_jax.text import model_tokenizer, open_vocabulary, unigram
from bert_jax.use import text_inputs


def make_files(family, as_json=False):
  """Returns {name: content} of the files of a family's tokenizer.

  With `as_json`, the only file is tokenizer.json. Without it, this file is left
  out.
  """
  vocabulary = {
    "bert": lambda: bert_vocabulary("the a ##n é ##é 中 x中"),
    "roberta": roberta_vocabulary,
    "gpt1": gpt1_vocabulary,
    "albert": lambda: unigram.build(sentencepiece_model(ALBERT_PIECES)),
  }[family]()
  files = open_vocabulary.to_files(vocabulary, with_digests=False)
  # Only prepared folders have pieces.json.
  files.pop("pieces.json", None)
  if as_json:
    return {"tokenizer.json": vocabulary.special_tokenizer.to_str().encode()}
  return {
    name: content for name, content in files.items() if name != "tokenizer.json"
  }


def test_a_folder_may_have_only_a_sentencepiece_model(tmp_path):
  content = sentencepiece_model(ALBERT_PIECES)
  model = unigram.parse_model(content, "x")
  assert model.pieces == ALBERT_PIECES and model.scores[3] == -3.0
  folder = write_files(tmp_path / "albert", {"spiece.model": content})
  vocabulary = open_vocabulary.load(folder)
  assert [piece for piece, _ in pieces_and_slices(vocabulary, "The an")] == [
    "▁the",
    "▁a",
    "n",
  ]
  assert vocabulary == open_vocabulary.load(f"{folder}/spiece.model")
  tokenizer = model_tokenizer.build({"spiece.model": content}, folder)
  assert tokenizer.encode("the", "an [MASK]").ids == [2, 5, 3, 6, 7, 4, 3]
  # The folder of a run also has a tokenizer.json.
  run_tokenizer = model_tokenizer.build(vocabulary.files, folder)
  assert run_tokenizer.encode("the", "an [MASK]").ids == [2, 5, 3, 6, 7, 4, 3]
  assert run_tokenizer.decode([2, 5, 3]) == tokenizer.decode([2, 5, 3]) == "the"
  assert model_tokenizer.build({"config.json": b"{}"}, folder) is None


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt1", "albert"])
def test_tokenizer_json_gives_the_same_tokenizer(family, tmp_path):
  vocabulary = open_vocabulary.load(
    write_files(tmp_path / "a", make_files(family))
  )
  json_vocabulary = open_vocabulary.load(
    write_files(tmp_path / "b", make_files(family, as_json=True))
  )
  texts = random_texts(200)
  assert vocabulary.encode_batch(texts) == json_vocabulary.encode_batch(texts)
  assert vocabulary.encode_offsets(
    texts, special=True
  ) == json_vocabulary.encode_offsets(texts, special=True)
  assert vocabulary.special == json_vocabulary.special
  assert list(vocabulary.pieces) == list(json_vocabulary.pieces)
  assert vocabulary.chunk_pattern == json_vocabulary.chunk_pattern
  assert vocabulary.normalize_ascii == json_vocabulary.normalize_ascii


def test_settings_of_a_folder_are_used(tmp_path):
  def load_with_settings(**settings):
    text = json.dumps(settings).encode()
    files = make_files("bert") | {"tokenizer_config.json": text}
    folder = write_files(tmp_path / "x", files)
    return open_vocabulary.load(folder), model_tokenizer.build(files, folder)

  for settings, pieces in (
    ({"do_lower_case": False}, ["[UNK]", "é", "x中"]),
    ({"do_lower_case": False, "strip_accents": True}, ["[UNK]"] * 2 + ["x中"]),
    ({"do_lower_case": True, "strip_accents": False}, ["é", "é", "x中"]),
    ({"do_lower_case": True}, ["[UNK]", "[UNK]", "x中"]),
  ):
    vocabulary, model_tokenizer_of_folder = load_with_settings(
      tokenize_chinese_chars=False, **settings
    )
    assert [
      piece for piece, _ in pieces_and_slices(vocabulary, "É é x中")
    ] == pieces
    assert model_tokenizer_of_folder.encode("É é x中").tokens == [
      "[CLS]",
      *pieces,
      "[SEP]",
    ]
    (ids,) = vocabulary.encode_batch(["É é x中"])
    assert [vocabulary.pieces[i] for i in ids] == pieces
    folder = tmp_path / "again"
    folder.mkdir(exist_ok=True)
    open_vocabulary.save(vocabulary, str(folder))
    reloaded = open_vocabulary.load(str(folder))
    assert reloaded == vocabulary and reloaded.options == vocabulary.options
  vocabulary, _ = load_with_settings(do_lower_case=False, strip_accents=None)
  assert [piece for piece, _ in pieces_and_slices(vocabulary, "é x中")] == [
    "é",
    "[UNK]",
    "中",
  ]
  for settings, message in (
    (
      {"do_lower_case": "no"},
      "tokenizer_config.json: 'do_lower_case' is 'no', not true or false",
    ),
    ({"do_lower_case": True, "rules": 3}, "'rules' is 3, not text"),
    # rules="original" cleans text like the first release of BERT, which has no
    # such option.
    ({"rules": "original", "strip_accents": False}, "have no .'strip_accents'"),
  ):
    with pytest.raises(ValueError, match=message):
      load_with_settings(**settings)


def load_error(folder, damage):
  """Returns the message of the error when a folder is opened, or None.

  Args:
    folder: a folder with a damaged tokenizer.
    damage: describes damage that must be refused. None means that the folder
      may be opened without an error.
  """
  try:
    vocabulary = open_vocabulary.load(folder)
    vocabulary.encode_special("the [MASK] <mask> \ud800")
  except ValueError as error:
    assert "\n" not in str(error) and str(error).startswith(f"{folder}/"), error
    return str(error)
  assert damage is None, f"{damage} was accepted"
  return None


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt1", "albert"])
@pytest.mark.parametrize("is_json", [False, True])
def test_damaged_files_are_named(family, is_json, tmp_path):
  contents, rng = make_files(family, as_json=is_json), random.Random(0)
  for name, content in contents.items():
    damaged_contents = {
      "empty": b"",
      "binary": bytes(range(128, 256)) + content,
      "cut": content[: len(content) // 2 - 1],
    }
    if name == "merges.txt":
      # An empty or shorter file of merges is valid. So the damage is a pair
      # that makes no piece, or a line with three pieces. The message about the
      # pair mentions the vocabulary file instead, where pieces are missing.
      damaged_contents["empty"], damaged_contents["cut"] = (
        b"a b",
        content[:-1] + b" x",
      )
    for damage, damaged_content in damaged_contents.items():
      folder = write_files(tmp_path / "x", contents | {name: damaged_content})
      message = load_error(folder, damage=f"{name} ({damage})")
      assert name in message or name == "merges.txt", message
  # Random damage may be accepted, but may raise only a ValueError.
  for _ in range(60):
    name = rng.choice(list(contents))
    damaged_content = bytearray(contents[name])
    for _ in range(3):
      damaged_content[rng.randrange(len(damaged_content))] = rng.randrange(256)
    load_error(
      write_files(tmp_path / "x", contents | {name: bytes(damaged_content)}),
      damage=None,
    )


def test_repeated_and_missing_pieces_are_refused(tmp_path):
  def assert_refused(files, message):
    with pytest.raises(ValueError, match=message):
      open_vocabulary.load(write_files(tmp_path / "x", files))
    for name in files:
      (tmp_path / "x" / name).unlink()

  vocab = make_files("bert")["vocab.txt"]
  assert_refused({"vocab.txt": vocab + b"a\n"}, "'a' is in line 7 and again in")
  model = sentencepiece_model([*ALBERT_PIECES, "n"])
  assert_refused({"spiece.model": model}, "'n' is piece 7 and also piece 9")
  files = make_files("roberta")
  changed_content = files["vocab.json"].replace(b'"#"', b'"$"')
  assert_refused(
    files | {"vocab.json": changed_content},
    "1 ids below 266 have no piece, the first is 6",
  )
  json_content = make_files("bert", as_json=True)["tokenizer.json"]
  changed_content = json_content.replace(b'"##n":7', b'"a":7')
  assert_refused(
    {"tokenizer.json": changed_content},
    "1 ids below 12 have no piece, the first is 6",
  )
  content_with_other_unk = json_content.replace(
    b'"unk_token":"[UNK]"', b'"unk_token":"[X]"'
  )
  assert_refused(
    {"tokenizer.json": content_with_other_unk},
    r"its pieces lack the unknown token '\[X\]'",
  )
  assert_refused(
    {name: content for name, content in files.items() if name != "merges.txt"},
    "no merges",
  )


QUOTED_TEXTS = (
  ("a ''na'' the", ["a", "''", "n", "a", "''", "the"]),
  ("``a``", ["``", "a", "``"]),
  ("''''n", ["''", "''", "n"]),
  ("'''a'", ["''", "'", "a", "'"]),
  ("a\u0301''n ''", ["a\u0301", "''", "n", "''"]),
  ("n''a\"", ["n", "''", "a", '"']),
)


def texts_at(text, offsets):
  """Returns the text at each pair of offsets; equal pairs are counted once."""
  return [text[begin:end] for begin, end in dict.fromkeys(offsets)]


@pytest.mark.parametrize("is_json", [False, True])
def test_offsets_cover_both_characters_of_a_quote(is_json, tmp_path):
  """Encodes texts with '' and ``, which ALBERT replaces by one character, ".

  The offsets must cover both characters of the text.
  """
  content = sentencepiece_model([*ALBERT_PIECES, '"', "'", "a"])
  name = "tokenizer.json" if is_json else "spiece.model"
  files = {name: unigram.build(content).files[name]}
  path = write_files(tmp_path / "x", files)
  vocabulary = open_vocabulary.load(path)
  model = types.SimpleNamespace(
    config={"family": "albert", "model": {"vocab_size": vocabulary.vocab_size}},
    tokenizer=model_tokenizer.build(files, path),
  )
  for text, expected in QUOTED_TEXTS:
    (encoded,) = vocabulary.encode_offsets([text])
    assert texts_at(text, encoded.offsets) == expected, text
    context = questions.encode_context(vocabulary, text)
    assert texts_at(text, map(tuple, context.offsets.tolist())) == expected
    (encoded_text,) = text_inputs.encode(
      model, [text_inputs.text_of_string(id=0, text=text)]
    )
    text_offsets = encoded_text.offsets[encoded_text.begin : encoded_text.end]
    assert texts_at(text, text_offsets) == expected
    # The quotes may also be in the middle of a text.
    (encoded_in_middle,) = vocabulary.encode_offsets([f"n {text} n"])
    assert texts_at(f"n {text} n", encoded_in_middle.offsets) == [
      "n",
      *expected,
      "n",
    ]


@pytest.mark.parametrize(
  "replacements, text, expected",
  [
    ([("...", "\u2026")], "a...n....", ["a", "...", "n", "...", "."]),
    ([("->", "\u2192"), ("''", '"')], "a->''n", ["a", "->", "''", "n"]),
    ([("&quot;", '"')], "&quot;a&quot;", ["&quot;", "a", "&quot;"]),
    ([("nn", "ta")], "annn", ["a", "nn", "n"]),
    # Characters that a rule deletes belong to no piece.
    ([("..", "")], "a..n", ["a", "n"]),
  ],
)
def test_offsets_cover_all_replaced_characters(
  replacements, text, expected, tmp_path
):
  pieces = [*ALBERT_PIECES, "a", "t", ".", '"', "\u2026", "\u2192"]
  content = unigram.build(sentencepiece_model(pieces)).files["tokenizer.json"]
  json_object = json.loads(content)
  json_object["normalizer"] = {
    "type": "Sequence",
    "normalizers": [
      {"type": "Replace", "pattern": {"String": old}, "content": new}
      for old, new in replacements
    ],
  }
  files = {"tokenizer.json": json.dumps(json_object).encode()}
  vocabulary = open_vocabulary.load(write_files(tmp_path / "x", files))
  (encoded,) = vocabulary.encode_offsets([text])
  assert texts_at(text, encoded.offsets) == expected
