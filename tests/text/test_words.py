"""Text as whole words: vocabulary, prepared folder, ELMo's windows."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from bert_jax.corpus import prepare, reader, train_vocab
from bert_jax.examples import loader
from bert_jax.text import characters, open_vocabulary, words
from bert_jax.text.vocabulary import SpecialIds

LENGTH = 6
DOCUMENTS = [
  [f"{a} {b} sat on the mat ." for a in ("One", "no") for b in ("cat", "dog")]
  + [f"naïve reader{i} , {'x' * 70} and <S> too !"]
  for i in range(12)
]
VOCABULARY = [*words.SPECIAL, *"the mat . sat on cat dog One no".split()]


def write_text(path):
  text = "\n\n".join("\n".join(document) for document in DOCUMENTS)
  path.write_text(text + "\n", encoding="utf-8")
  return str(path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  """A folder of the documents, split at spaces, 12 words known."""
  path = tmp_path_factory.mktemp("words")
  vocab = path / "words.txt"
  vocab.write_text("".join(f"{w}\n" for w in VOCABULARY), encoding="utf-8")
  output = str(path / "prepared")
  prepare.prepare(
    write_text(path / "t.txt"),
    str(vocab),
    output,
    heldout=0.2,
    processes=1,
    rules="spaces",
  )
  return output


def sentences(prepared, split):
  """The words of each document of a split, one after the other, by hand.

  Which document is in which split says the folder: of each, the reader's name.
  """
  opened = reader.open_prepared(prepared)
  part = opened.splits[split]
  with open(os.path.join(prepared, "others.txt"), encoding="utf-8") as f:
    names = [*opened.vocab, *f.read().split("\n")[:-1]]
  found = []
  for begin, end in zip(part.sentences[:-1], part.sentences[1:], strict=True):
    found.append([names[i] for i in part.tokens[begin:end]])
  return found, part


def test_rules_of_words():
  one = words.build(VOCABULARY)
  split = lambda v, text: [  # noqa: E731
    word for word, _ in v.plain.pre_tokenizer.pre_tokenize_str(text)
  ]
  text = "The cat's naïve e\u0301t 1,000.5 U.S. (x-ray) don't--stop _a_ …"
  assert split(one, text) == (
    "The cat's naïve e\u0301t 1,000.5 U.S . ( x-ray ) don't - - stop _a_ …"
  ).split(" ")
  two = words.build(VOCABULARY, rules="spaces")
  assert split(two, text) == text.split()
  ids = one.encode_batch(["the mat.", "No <S> </S> on"])
  known = {word: i for i, word in enumerate(VOCABULARY)}
  assert ids[0] == [known["the"], known["mat"], known["."]]
  # A text can write no special word.
  unk = words.UNKNOWN
  assert two.encode_batch(["<S> on </S> <UNK>"])[0] == [unk, 7, unk, unk]
  assert one.word_starts(ids[0]).all() and one.vocab_size == 12
  with pytest.raises(ValueError, match="rules 'letters'"):
    words.build(VOCABULARY, rules="letters")


def test_a_vocabulary_is_words_by_count(tmp_path, capsys):
  text = write_text(tmp_path / "t.txt")
  out = tmp_path / "w.txt"
  found = train_vocab.train_vocab(
    text, 100, str(out), kind="words", rules="spaces"
  )
  counts = {}
  for document in DOCUMENTS:
    for sentence in document:
      for word in sentence.split():
        counts[word] = counts.get(word, 0) + 1
  often = [w for w in counts if counts[w] > 1 and w not in words.SPECIAL]
  right = [*words.SPECIAL, *sorted(often, key=lambda w: (-counts[w], w))]
  assert list(found) == right
  assert out.read_text(encoding="utf-8").split() == right
  loaded = open_vocabulary.load(str(out), rules="spaces")
  assert loaded.kind == "words" and list(loaded.pieces) == right
  message = "--rules=spaces: only of --tokenizer=words"
  with pytest.raises(ValueError, match=message):
    train_vocab.train_vocab(text, 100, str(out) + "2", rules="spaces")


def test_the_folder_has_every_word(prepared):
  """The vocabulary is exact; what is beyond it keeps its letters."""
  opened = reader.open_prepared(prepared)
  assert opened.vocab == VOCABULARY and opened.vocab_size == 12
  everything = []
  for split in reader.SPLITS:
    found, part = sentences(prepared, split)
    assert all(s[0] == "<S>" and s[-1] == "</S>" for s in found)
    everything += [" ".join(s[1:-1]) for s in found]
    assert part.spellings is not None
  written = [s for document in DOCUMENTS for s in document]
  assert sorted(everything) == sorted(written)
  train, _ = sentences(prepared, "train")
  flat = [word for sentence in train for word in sentence]
  counts = [flat.count(word) for word in VOCABULARY]
  # `<S>` in a text is a word like any other, but not of the vocabulary.
  marks = sum("<S>" in sentence[1:] for sentence in train)
  counts[0] -= marks
  counts[2] = sum(word not in VOCABULARY for word in flat) + marks
  assert opened.unigrams.tolist() == counts
  assert opened.special == SpecialIds(None, 2, 0, 1, None)
  # A run gets the vocabulary, not the words of its text.
  assert sorted(opened.tokenizer_files()) == [
    "pieces.json",
    "tokenizer_config.json",
    "vocab.txt",
  ]
  again = opened.tokenizer
  assert again.options == {"rules": "spaces"}


def spelt(word, mark=False):
  marks = characters.SPECIAL
  return characters.word_ids(marks[word] if mark else word)


def marked(sentence):
  """[T, 50] of a sentence, whose ends are marks."""
  last = len(sentence) - 1
  return [spelt(w, i in (0, last)) for i, w in enumerate(sentence)]


def known(word, mark):
  """The id that is predicted."""
  if word in VOCABULARY and (mark or word not in words.SPECIAL):
    return VOCABULARY.index(word)
  return words.UNKNOWN


def stream(prepared, split):
  """[(characters, id)] of a split's text, and where sentences end."""
  found, _ = sentences(prepared, split)
  rows = []
  for sentence in found:
    last = len(sentence) - 1
    for i, (word, chars) in enumerate(
      zip(sentence, marked(sentence), strict=True)
    ):
      rows.append((chars, known(word, i in (0, last)), i == 0, i == last))
  return rows


def test_windows_have_the_words_and_their_neighbours(prepared):
  """Every word of an epoch once, in order within a row; targets by hand."""
  data = loader.open_data(prepared, "elmo", seed=3, length=LENGTH)
  text = stream(prepared, "train")
  places = {}
  for i in range(len(text)):
    key = str([row[0] for row in text[i : i + LENGTH]])
    places.setdefault(key, []).append(i)
  seen = []
  batch = data.read(0, len(text) // LENGTH + 2)
  for row in range(len(batch["char_ids"])):
    real = batch["sequence_ids"][row] == 1
    count = int(real.sum())
    assert real[:count].all() and not batch["char_ids"][row, count:].any()
    chars = batch["char_ids"][row, :count].tolist()
    starts = [
      i
      for i in range(len(text) - count + 1)
      if [r[0] for r in text[i : i + count]] == chars
    ]
    assert starts
    rights = []
    for begin in starts:
      window = range(begin, begin + count)
      following = [0 if text[i][3] else text[i + 1][1] for i in window]
      preceding = [0 if text[i][2] else text[i - 1][1] for i in window]
      rights.append((following, preceding))
    found = tuple(
      batch[f"{name}_ids"][row, :count].tolist()
      for name in ("next", "previous")
    )
    assert found in rights
    ends = [text[i][3] for i in range(starts[0], starts[0] + count)]
    begins = [text[i][2] for i in range(starts[0], starts[0] + count)]
    weights = np.zeros((2, LENGTH))
    weights[0, :count] = np.logical_not(ends)
    weights[1, :count] = np.logical_not(begins)
    assert batch["next_weights"][row].tolist() == weights[0].tolist()
    assert batch["previous_weights"][row].tolist() == weights[1].tolist()
    seen.append(count)
  assert sum(seen) >= len(text)


def test_streams_go_on_from_batch_to_batch(prepared):
  """Forward from the beginning, backward from the end, as published."""
  rows = 3
  data = loader.open_data(prepared, "elmo", length=LENGTH, streams=rows)
  text = stream(prepared, "train")
  # Links of neighbours in a sentence: (left, right).
  links = [
    (text[i], text[i + 1]) for i in range(len(text) - 1) if not text[i][3]
  ]
  windows = len(links) // (rows * LENGTH)
  batches = [data.read(s * rows, rows) for s in range(windows)]
  for row in range(rows):
    ahead = np.concatenate([b["next_ids"][row] for b in batches])
    read = np.concatenate([b["char_ids"][row] for b in batches]).tolist()
    back = np.concatenate([b["previous_ids"][row] for b in batches[::-1]])
    back_read = np.concatenate([b["back_char_ids"][row] for b in batches[::-1]])
    size = windows * LENGTH
    found = [
      begin
      for begin in range(len(links) - size + 1)
      if [left[0] for left, _ in links[begin : begin + size]] == read
    ]
    (begin,) = [b for b in found if b // size == row]
    mine = links[begin : begin + size]
    assert [right[1] for _, right in mine] == ahead.tolist()
    assert [left[1] for left, _ in mine] == back.tolist()
    assert [right[0] for _, right in mine] == back_read.tolist()
  assert all(b["next_weights"].all() for b in batches)
  # `</S>` is never read forward, `<S>` never backward.
  ends = characters.word_ids(characters.END_SENTENCE)
  assert not (batches[0]["char_ids"] == ends).all(-1).any()


@pytest.mark.parametrize("streams", [0, 4])
def test_rows_depend_on_their_number_alone(prepared, streams):
  """On neither hosts, nor steps, nor restarts."""
  options = dict(seed=1, length=LENGTH, streams=streams)
  whole = loader.open_data(prepared, "elmo", **options).read(0, 48)
  parts = [
    loader.open_data(prepared, "elmo", **options).read(first, 2)
    for first in range(46, -1, -2)
  ][::-1]
  for key, value in whole.items():
    joined = np.concatenate([part[key] for part in parts])
    np.testing.assert_array_equal(value, joined)
  with_hosts = loader.open_data(prepared, "elmo", **options)
  with loader.batches(with_hosts, 2, 4, host_index=1, host_count=2) as batches:
    batch = next(batches).batch
  np.testing.assert_array_equal(batch["next_ids"], whole["next_ids"][10:12])
  held = loader.open_heldout(prepared, "elmo", length=LENGTH, streams=streams)
  batch = held.read(0, len(held) + 2)
  assert not batch["next_weights"][-2:].any()


def test_words_in_another_order_are_refused(tmp_path):
  path = tmp_path / "words.txt"
  path.write_text("</S>\n<S>\n<UNK>\nthe\n")
  with pytest.raises(ValueError, match="begins with <S>, </S>, <UNK>; put"):
    open_vocabulary.load(str(path))


def test_what_cannot_serve_is_refused(prepared, tmp_path):
  with pytest.raises(ValueError, match="length is 1"):
    loader.open_data(prepared, "elmo", length=1)
  with pytest.raises(ValueError, match="streams is -1"):
    loader.open_data(prepared, "elmo", streams=-1)
  with pytest.raises(ValueError, match="too few for data.streams=900"):
    loader.open_data(prepared, "elmo", streams=900)
  other = shutil.copytree(prepared, tmp_path / "other")
  with pytest.raises(ValueError, match="one folder only"):
    loader.open_data(
      f"{prepared}=0.5,{other}=0.5", "elmo", length=LENGTH, streams=2
    )
  with pytest.raises(ValueError, match="no token for pad, mask"):
    loader.open_data(prepared, "doc_sentences", length=16)
  others = tmp_path / "others.txt"
  others.write_text("a\nb\n")
  with pytest.raises(ValueError, match="others.txt has 2 words.*says 3"):
    reader._read_others(str(others), 3)


def test_the_commands(tmp_path):
  """From text to a folder, and another folder of the same words."""
  text, out = write_text(tmp_path / "t.txt"), str(tmp_path / "w.txt")
  run = lambda *args: subprocess.run(  # noqa: E731
    [sys.executable, "-m", *args], capture_output=True, text=True
  )
  made = run(
    *("bert_jax", "vocab", "--input", text, "--tokenizer", "words"),
    *("--size", "100", "--output", out),
  )
  assert made.returncode == 0, made.stderr
  folder = str(tmp_path / "p")
  made = run(
    *("bert_jax", "prepare", "--input", text, "--vocab", out),
    *("--output", folder, "--processes", "1", "--heldout", "0.2"),
  )
  assert made.returncode == 0, made.stderr
  assert "--config elmo:original" in made.stdout
  assert "--config.data.cased=True" in made.stdout
  wrong = run(
    *("bert_jax", "prepare", "--input", text, "--vocab", out, "--rules"),
    *("original", "--output", folder + "2", "--processes", "1"),
  )
  assert wrong.returncode == 1 and "Traceback" not in wrong.stderr
  assert "rules 'original'" in wrong.stderr
