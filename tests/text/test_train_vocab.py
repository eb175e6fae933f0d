"""Tests `train_vocab`: its pieces, its warnings, and cased vocabularies."""

import functools
import json
import os
import subprocess
import sys

import pytest
import tiny_vocabularies
from children import without_progress
from text_files import names_in

from bert_jax.corpus import split_text, train_vocab
from bert_jax.text import open_vocabulary, train_vocabulary, wordpiece
from bert_jax.text.vocabulary import SPECIAL_TOKENS


def make_text() -> str:
  """Returns a text of words in which all syllables are equally frequent."""
  syllables = ["ka", "lo", "mi", "ru", "ste", "pon", "ta", "vi", "sol", "e"]
  words = [
    first + second + third
    for first in syllables
    for second in syllables
    for third in syllables
  ]
  lines = [" ".join(words[i::37]) + " don't!" for i in range(37)]
  return "\n\n".join(lines * 2) + "\nÉté Zürich [SEP] été.\n"


def run_vocab(tmp_path, *arguments: str, threads: str = "2"):
  output = tmp_path / f"vocab-{len(names_in(tmp_path))}.txt"
  command = [sys.executable, "-m", "bert_jax", "vocab", "--output", output]
  process = subprocess.run(
    [*command, *arguments],
    env={**os.environ, "RAYON_NUM_THREADS": threads},
    capture_output=True,
    text=True,
  )
  return process, output


def test_runs_write_the_same_file_of_the_asked_size(tmp_path):
  text_path = tmp_path / "text.txt"
  text_path.write_text(make_text(), encoding="utf-8")
  contents = []
  for threads in ("1", "2", "2"):
    arguments = ("--input", str(text_path), "--size", "400")
    process, output = run_vocab(tmp_path, *arguments, threads=threads)
    assert process.returncode == 0, process.stderr
    contents.append(output.read_bytes())
  assert contents[0] == contents[1] == contents[2]
  pieces = open_vocabulary.read_vocab(str(output))
  assert len(pieces) == 400
  assert tuple(pieces[:5]) == SPECIAL_TOKENS
  assert "été" not in pieces and "##!" not in pieces and "!" in pieces
  assert all(piece == piece.lower() for piece in pieces[5:])
  tokenizer = wordpiece.build(pieces)
  (ids,) = tokenizer.encode_batch([make_text()])
  assert tokenizer.special.unk not in ids
  assert len(ids) < 0.5 * len(make_text())


def test_a_cased_vocabulary_keeps_capitals_and_accents(tmp_path):
  text_path = tmp_path / "text.txt"
  text_path.write_text("Été Été Zürich Zürich " * 20, encoding="utf-8")
  pieces = train_vocab.train_vocab(
    str(text_path), size=100, output=str(tmp_path / "v.txt"), lower_case=False
  )
  assert {"Été", "Zürich"} <= set(pieces)


def test_too_little_text_gives_fewer_pieces_and_a_warning(tmp_path):
  text_path = tmp_path / "text.txt"
  text_path.write_text("one two one two\n")
  arguments = ("--input", str(text_path), "--size", "500")
  process, output = run_vocab(tmp_path, *arguments)
  assert process.returncode == 0
  assert "too small for --size=500" in process.stderr
  assert process.stdout == (
    f"next: bert_jax prepare --input {text_path} --vocab {output} --output"
    " data/mine\n"
  )
  pieces = open_vocabulary.read_vocab(str(output))
  assert len(pieces) < 30 and {"one", "two"} <= set(pieces)


def test_frequent_pairs_are_merged_first():
  counts = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
  pieces = train_vocabulary.train_wordpiece(counts, 100)
  # After the special tokens come all letters, then the letters that occur
  # inside words, with ##. The most frequent pairs are e-s and s-t, each with 9
  # occurrences.
  alphabet = sorted(set("lowernewestwidest"))
  assert pieces[5 : 5 + len(alphabet)] == alphabet
  inner_letters = sorted({letter for word in counts for letter in word[1:]})
  start = 5 + len(alphabet)
  stop = start + len(inner_letters)
  assert pieces[start:stop] == [f"##{letter}" for letter in inner_letters]
  assert pieces[stop : stop + 2] == ["##es", "##est"]


@pytest.mark.parametrize(
  "text, size, message",
  [
    ("", 500, "no text in it"),
    (" \n\x00\n", 500, "no text in it"),
    ("a", 20, "size=20 is too small"),
    (None, 500, "there is no file"),
  ],
)
def test_bad_input_gets_one_sentence(tmp_path, text, size, message):
  path = tmp_path / "text.txt"
  if text is not None:
    path.write_text(text)
  arguments = ("--input", str(path), "--size", str(size))
  process, output = run_vocab(tmp_path, *arguments)
  assert process.returncode == 1
  error = without_progress(process.stderr)
  assert error.startswith("error: ") and message in error
  assert error.count("\n") == 1
  assert not output.exists()


@pytest.mark.parametrize(
  "algorithm, name",
  [("wordpiece", "v.txt"), ("words", "v.txt"), ("unigram", "v.model")],
)
def test_a_vocabulary_is_not_overwritten(tmp_path, algorithm, name):
  text_path = tmp_path / "text.txt"
  text_path.write_text("Some words and more words.\n" * 9)
  output = tmp_path / name
  output.write_text("somebody's own\n")
  with pytest.raises(ValueError, match=f"{name} exists; delete it or choose"):
    train_vocab.train_vocab(
      str(text_path), size=100, output=str(output), algorithm=algorithm
    )
  assert output.read_text() == "somebody's own\n"
  assert len(list(tmp_path.iterdir())) == 2


def test_split_text_overwrites_no_file(tmp_path):
  text_path = tmp_path / "text.txt"
  text_path.write_text("Some words.\n")
  with pytest.raises(ValueError, match="text.txt exists; delete it or choose"):
    split_text.split_text(
      [str(text_path)],
      str(text_path),
      format="auto",
      errors="strict",
      language="en",
    )
  assert text_path.read_text() == "Some words.\n"


@pytest.mark.parametrize(
  "algorithm, text, message",
  [
    ("wordpiece", "one two one two\n", "the text is too small for --size=500"),
    ("wordpiece", "ภาษาไทยไม่มีช่องว่างเลย" * 9, "a space every 207 charac"),
    (
      "words",
      "ภาษาไทยไม่มีช่องว่างเลย" * 9,
      "a word is the text between two spaces",
    ),
    (
      "words",
      "one two one two three\n",
      "words of the text occur 2 times. A model",
    ),
  ],
)
def test_a_warning_says_why_there_are_fewer_pieces(
  tmp_path, capsys, algorithm, text, message
):
  (tmp_path / "text.txt").write_text(text)
  output = str(tmp_path / "v.txt")
  train_vocab.train_vocab(
    str(tmp_path / "text.txt"), size=500, output=output, algorithm=algorithm
  )
  lines = capsys.readouterr().err.splitlines()
  (warning,) = [line for line in lines if "size=500" in line]
  assert message in warning


def test_a_model_is_cased_beside_an_uncased_vocabulary(tmp_path):
  text_path = tmp_path / "text.txt"
  text_path.write_text(
    "Ete Été Zürich ete zürich im Haus " * 40, encoding="utf-8"
  )
  train = functools.partial(train_vocab.train_vocab, str(text_path), 100)

  def cleaned_text(path, **options):
    vocabulary = open_vocabulary.load(str(path), **options)
    return vocabulary.plain_text_tokenizer.normalizer.normalize_str("Été")

  folder = tmp_path / "folder"
  folder.mkdir()
  train(str(folder / "vocab.txt"), lower_case=False)
  train(str(folder / "x.txt"))
  # `train_vocab` writes this name of its cleaning rules into a cased model.
  protobuf_field, rule_name = (
    tiny_vocabularies.protobuf_field,
    b"nmt_nfkc_cased",
  )
  content = tiny_vocabularies.sentencepiece_model(
    tiny_vocabularies.ALBERT_PIECES
  )
  content += protobuf_field(3, protobuf_field(1, rule_name))
  (folder / "spiece.model").write_bytes(content)
  (folder / "x.model").write_bytes(content)
  assert (
    cleaned_text(folder / "spiece.model")
    == cleaned_text(folder / "x.model")
    == "Été"
  )
  assert cleaned_text(folder / "vocab.txt") == cleaned_text(folder) == "Été"
  assert cleaned_text(folder / "x.txt") == "ete"
  # The settings belong to vocab.txt, even if it has been deleted.
  (folder / "vocab.txt").unlink()
  assert cleaned_text(folder) == "Été"
  model_folder = tmp_path / "only_model"
  model_folder.mkdir()
  model_path = model_folder / "spiece.model"
  (folder / "spiece.model").replace(model_path)
  for settings in (
    {"do_lower_case": False},
    {"do_lower_case": True},
    {"tokenizer_class": "AlbertTokenizer", "keep_accents": False},
  ):
    path = model_folder / "tokenizer_config.json"
    path.write_text(json.dumps(settings))
    assert cleaned_text(model_path) == cleaned_text(model_folder) == "Été"
    with pytest.raises(ValueError, match="with capitals and with accents, and"):
      cleaned_text(model_path, keep_accents=False)
    with pytest.raises(ValueError, match="and lower_case=True asks for text"):
      cleaned_text(model_path, lower_case=True)


def test_an_argument_sets_accents_if_the_settings_do_not(tmp_path):
  (tmp_path / "spiece.model").write_bytes(
    tiny_vocabularies.sentencepiece_model(tiny_vocabularies.ALBERT_PIECES)
  )
  path = tmp_path / "tokenizer_config.json"
  path.write_text(json.dumps({"do_lower_case": False}))

  def cleaned_text(**options):
    vocabulary = open_vocabulary.load(str(tmp_path), **options)
    return vocabulary.plain_text_tokenizer.normalizer.normalize_str("Été")

  # transformers' AlbertTokenizer strips accents with these settings.
  assert cleaned_text() == "Ete" and cleaned_text(keep_accents=False) == "Ete"
  assert cleaned_text(keep_accents=True) == "Été"
