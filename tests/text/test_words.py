"""Tests text as whole words: vocabularies, prepared folders, ELMo's rows."""

import itertools
import pathlib
import shutil
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from bert_jax.corpus import prepare, reader, train_vocab
from bert_jax.examples import loader
from bert_jax.text import characters, open_vocabulary, words
from bert_jax.text.vocabulary import SpecialIds

LENGTH = 6
DOCUMENTS = [
  [
    f"{article} {animal} sat on the mat ."
    for article in ("One", "no")
    for animal in ("cat", "dog")
  ]
  + [f"naïve reader{i} , {'x' * 70} and <S> too !"]
  for i in range(12)
]
COMMON_WORDS = "the mat . sat on cat dog One no"
VOCABULARY = [*words.SPECIAL_WORDS, *COMMON_WORDS.split()]


def write_text(path):
  text = "\n\n".join("\n".join(document) for document in DOCUMENTS)
  path.write_text(text + "\n", encoding="utf-8")
  return str(path)


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory):
  """Returns a prepared folder of `DOCUMENTS`, which are split at spaces.

  Its vocabulary has 12 pieces.
  """
  path = tmp_path_factory.mktemp("words")
  vocab_path = path / "words.txt"
  vocab_path.write_text(
    "".join(f"{word}\n" for word in VOCABULARY), encoding="utf-8"
  )
  output = str(path / "prepared")
  prepare.prepare(
    write_text(path / "t.txt"),
    str(vocab_path),
    output,
    heldout=0.2,
    processes=1,
    rules="spaces",
  )
  return output


def read_sentences(prepared_folder, split):
  """Returns the words of each sentence of a split, and the split's corpus."""
  opened = reader.open_prepared(prepared_folder)
  corpus = opened.splits[split]
  other_words = pathlib.Path(prepared_folder, "others.txt").read_text(
    encoding="utf-8"
  )
  spellings = [*opened.vocab, *other_words.split("\n")[:-1]]
  sentences = []
  for begin, end in itertools.pairwise(corpus.sentences):
    sentences.append([spellings[i] for i in corpus.tokens[begin:end]])
  return sentences, corpus


def split_words(vocabulary, text):
  pairs = vocabulary.plain_text_tokenizer.pre_tokenizer.pre_tokenize_str(text)
  return [word for word, _ in pairs]


def test_text_is_split_by_the_rules_of_the_vocabulary():
  vocabulary_of_words = words.build(VOCABULARY)
  text = "The cat's naïve e\u0301t 1,000.5 U.S. (x-ray) don't--stop _a_ …"
  expected = (
    "The cat's naïve e\u0301t 1,000.5 U.S . ( x-ray ) don't - - stop _a_ …"
  )
  assert " ".join(split_words(vocabulary_of_words, text)) == expected
  vocabulary_of_spaces = words.build(VOCABULARY, rules="spaces")
  assert split_words(vocabulary_of_spaces, text) == text.split()
  ids = vocabulary_of_words.encode_batch(["the mat.", "No <S> </S> on"])
  assert ids[0] == [VOCABULARY.index(word) for word in ("the", "mat", ".")]
  # A text cannot contain special words.
  unk = words.UNKNOWN_ID
  assert vocabulary_of_spaces.encode_batch(["<S> on </S> <UNK>"])[0] == [
    unk,
    7,
    unk,
    unk,
  ]
  assert (
    vocabulary_of_words.find_word_starts(ids[0]).all()
    and vocabulary_of_words.vocab_size == 12
  )
  with pytest.raises(ValueError, match="rules 'letters'"):
    words.build(VOCABULARY, rules="letters")


def test_a_trained_vocabulary_has_the_words_that_occur_twice(tmp_path, capsys):
  text_path = write_text(tmp_path / "t.txt")
  output = tmp_path / "w.txt"
  pieces = train_vocab.train_vocab(
    text_path, size=100, output=str(output), algorithm="words", rules="spaces"
  )
  counts = {}
  for document in DOCUMENTS:
    for sentence in document:
      for word in sentence.split():
        counts[word] = counts.get(word, 0) + 1
  frequent_words = [
    word
    for word in counts
    if counts[word] > 1 and word not in words.SPECIAL_WORDS
  ]
  expected = [
    *words.SPECIAL_WORDS,
    *sorted(frequent_words, key=lambda w: (-counts[w], w)),
  ]
  assert list(pieces) == expected
  assert output.read_text(encoding="utf-8").split() == expected
  loaded = open_vocabulary.load(str(output), rules="spaces")
  assert loaded.algorithm == "words" and list(loaded.pieces) == expected
  message = "--rules=spaces is only for --tokenizer=words"
  with pytest.raises(ValueError, match=message):
    train_vocab.train_vocab(
      text_path, size=100, output=str(output) + "2", rules="spaces"
    )


def test_the_folder_keeps_words_that_the_vocabulary_lacks(prepared_folder):
  """The sentences that are read from the folder equal the input."""
  opened = reader.open_prepared(prepared_folder)
  assert opened.vocab == VOCABULARY and opened.vocab_size == 12
  all_sentences = []
  for split in reader.SPLITS:
    sentences, corpus = read_sentences(prepared_folder, split)
    assert all(
      sentence[0] == "<S>" and sentence[-1] == "</S>" for sentence in sentences
    )
    all_sentences += [" ".join(sentence[1:-1]) for sentence in sentences]
    assert corpus.spellings is not None
  input_sentences = [
    sentence for document in DOCUMENTS for sentence in document
  ]
  assert sorted(all_sentences) == sorted(input_sentences)
  train_sentences, _ = read_sentences(prepared_folder, "train")
  flat_words = [word for sentence in train_sentences for word in sentence]
  counts = [flat_words.count(word) for word in VOCABULARY]
  # A literal `<S>` in a text is a word that is not in the vocabulary.
  num_literal_begins = sum(
    "<S>" in sentence[1:] for sentence in train_sentences
  )
  # <S> is piece 0, and <UNK> is piece 2.
  counts[0] -= num_literal_begins
  counts[2] = (
    sum(word not in VOCABULARY for word in flat_words) + num_literal_begins
  )
  assert opened.unigrams.tolist() == counts
  assert opened.special == SpecialIds(pad=None, unk=2, cls=0, sep=1, mask=None)
  # The files for a run leave out the words that the vocabulary lacks.
  assert sorted(opened.tokenizer_files()) == [
    "pieces.json",
    "tokenizer_config.json",
    "vocab.txt",
  ]
  tokenizer = opened.tokenizer
  assert tokenizer.options == {"rules": "spaces"}


class Word(NamedTuple):
  """Describes how ELMo reads and predicts a word of a text.

  Attributes:
    chars: the ids of the word's characters, padded to 50.
    target: the id that ELMo predicts for the word.
    begins_sentence: True for the first word of a sentence.
    ends_sentence: True for the last word of a sentence.
  """

  chars: list[int]
  target: int
  begins_sentence: bool
  ends_sentence: bool


def read_words(prepared_folder, split):
  """Returns all words of a split, with <S> and </S> of each sentence."""
  sentences, _ = read_sentences(prepared_folder, split)
  all_words = []
  for sentence in sentences:
    last_index = len(sentence) - 1
    for i, word in enumerate(sentence):
      is_special = i in (0, last_index)
      target = words.UNKNOWN_ID
      if word in VOCABULARY and (is_special or word not in words.SPECIAL_WORDS):
        target = VOCABULARY.index(word)
      chars = characters.word_ids(
        characters.SENTENCE_SYMBOLS[word] if is_special else word
      )
      all_words.append(Word(chars, target, i == 0, i == last_index))
  return all_words


def test_rows_have_the_words_and_their_neighbours(prepared_folder):
  """Each row must have words that follow each other in the text.

  Its targets must be the neighbours of its words. An epoch must have at least
  as many words as the text.
  """
  data = loader.open_data(prepared_folder, "elmo", seed=3, length=LENGTH)
  text = read_words(prepared_folder, "train")
  num_words = 0
  batch = data.read(0, len(text) // LENGTH + 2)
  for row in range(len(batch["char_ids"])):
    is_real = batch["sequence_ids"][row] == 1
    row_length = int(is_real.sum())
    assert (
      is_real[:row_length].all()
      and not batch["char_ids"][row, row_length:].any()
    )
    chars = batch["char_ids"][row, :row_length].tolist()
    possible_begins = [
      i
      for i in range(len(text) - row_length + 1)
      if [word.chars for word in text[i : i + row_length]] == chars
    ]
    assert possible_begins
    candidates = []
    for begin in possible_begins:
      word_indices = range(begin, begin + row_length)
      following = [
        0 if text[i].ends_sentence else text[i + 1].target for i in word_indices
      ]
      preceding = [
        0 if text[i].begins_sentence else text[i - 1].target
        for i in word_indices
      ]
      candidates.append((following, preceding))
    targets = tuple(
      batch[f"{name}_ids"][row, :row_length].tolist()
      for name in ("next", "previous")
    )
    assert targets in candidates
    is_last = [
      word.ends_sentence
      for word in text[possible_begins[0] : possible_begins[0] + row_length]
    ]
    is_first = [
      word.begins_sentence
      for word in text[possible_begins[0] : possible_begins[0] + row_length]
    ]
    weights = np.zeros((2, LENGTH))
    weights[0, :row_length] = np.logical_not(is_last)
    weights[1, :row_length] = np.logical_not(is_first)
    assert batch["next_weights"][row].tolist() == weights[0].tolist()
    assert batch["previous_weights"][row].tolist() == weights[1].tolist()
    num_words += row_length
  assert num_words >= len(text)


def test_streams_continue_from_batch_to_batch(prepared_folder):
  """Row i of each batch continues where row i of the batch before it ended.

  Each row reads its own part of the text. The forward words start at the
  beginning of the part, and the backward words at its end, as published.
  """
  num_rows = 3
  data = loader.open_data(
    prepared_folder, "elmo", length=LENGTH, streams=num_rows
  )
  text = read_words(prepared_folder, "train")
  # A link is a pair of neighbouring words of one sentence.
  links = [
    (word, next_word)
    for word, next_word in itertools.pairwise(text)
    if not word.ends_sentence
  ]
  num_batches = len(links) // (num_rows * LENGTH)
  batches = [
    data.read(batch_number * num_rows, num_rows)
    for batch_number in range(num_batches)
  ]
  for row in range(num_rows):
    next_ids = np.concatenate([batch["next_ids"][row] for batch in batches])
    forward_chars = np.concatenate(
      [batch["char_ids"][row] for batch in batches]
    ).tolist()
    previous_ids = np.concatenate(
      [batch["previous_ids"][row] for batch in batches[::-1]]
    )
    backward_chars = np.concatenate(
      [batch["back_char_ids"][row] for batch in batches[::-1]]
    )
    num_links_per_row = num_batches * LENGTH
    begins = [
      begin
      for begin in range(len(links) - num_links_per_row + 1)
      if [word.chars for word, _ in links[begin : begin + num_links_per_row]]
      == forward_chars
    ]
    (begin,) = [
      possible_begin
      for possible_begin in begins
      if possible_begin // num_links_per_row == row
    ]
    row_links = links[begin : begin + num_links_per_row]
    assert [next_word.target for _, next_word in row_links] == next_ids.tolist()
    assert [word.target for word, _ in row_links] == previous_ids.tolist()
    assert [
      next_word.chars for _, next_word in row_links
    ] == backward_chars.tolist()
  assert all(batch["next_weights"].all() for batch in batches)
  # The forward direction never reads `</S>`, since nothing follows it.
  end_chars = characters.word_ids(characters.END_SENTENCE)
  assert not (batches[0]["char_ids"] == end_chars).all(-1).any()


@pytest.mark.parametrize("num_streams", [0, 4])
def test_rows_depend_only_on_their_number(prepared_folder, num_streams):
  """A row is the same on every host, in every batch and after a restart."""
  options = dict(seed=1, length=LENGTH, streams=num_streams)
  expected = loader.open_data(prepared_folder, "elmo", **options).read(0, 48)
  batches = [
    loader.open_data(prepared_folder, "elmo", **options).read(first, 2)
    for first in range(46, -1, -2)
  ][::-1]
  for key, array in expected.items():
    joined = np.concatenate([batch[key] for batch in batches])
    np.testing.assert_array_equal(array, joined)
  data = loader.open_data(prepared_folder, "elmo", **options)
  with loader.batches_from_step(
    data, start_step=2, batch_size=4, host_index=1, host_count=2
  ) as batches:
    batch = next(batches).batch
  np.testing.assert_array_equal(batch["next_ids"], expected["next_ids"][10:12])
  heldout = loader.open_heldout(
    prepared_folder, "elmo", length=LENGTH, streams=num_streams
  )
  batch = heldout.read(0, len(heldout) + 2)
  assert not batch["next_weights"][-2:].any()


def test_special_words_in_the_wrong_order_are_refused(tmp_path):
  path = tmp_path / "words.txt"
  path.write_text("</S>\n<S>\n<UNK>\nthe\n")
  with pytest.raises(ValueError, match="begins with <S>, </S>, <UNK>; put"):
    open_vocabulary.load(str(path))


def test_bad_options_are_refused(prepared_folder, tmp_path):
  with pytest.raises(ValueError, match="length is 1"):
    loader.open_data(prepared_folder, "elmo", length=1)
  with pytest.raises(ValueError, match="streams is -1"):
    loader.open_data(prepared_folder, "elmo", streams=-1)
  with pytest.raises(ValueError, match="too few for data.streams=900"):
    loader.open_data(prepared_folder, "elmo", streams=900)
  other_folder = shutil.copytree(prepared_folder, tmp_path / "other")
  with pytest.raises(ValueError, match="one folder only"):
    loader.open_data(
      f"{prepared_folder}=0.5,{other_folder}=0.5",
      "elmo",
      length=LENGTH,
      streams=2,
    )
  with pytest.raises(ValueError, match="no token for pad, mask"):
    loader.open_data(prepared_folder, "doc_sentences", length=16)
  file_of_words = tmp_path / "others.txt"
  file_of_words.write_text("a\nb\n")
  with pytest.raises(ValueError, match="others.txt has 2 words.*says 3"):
    reader._read_other_words(file_of_words, 3)


def test_the_commands_make_a_vocabulary_and_a_folder(tmp_path):
  """`vocab` makes a vocabulary of words, and `prepare` a folder with it."""
  text_path, vocab_path = (
    write_text(tmp_path / "t.txt"),
    str(tmp_path / "w.txt"),
  )

  def run(*arguments):
    command = [sys.executable, "-m", "bert_jax", *arguments]
    return subprocess.run(command, capture_output=True, text=True)

  process = run(
    *("vocab", "--input", text_path, "--tokenizer", "words"),
    *("--size", "100", "--output", vocab_path),
  )
  assert process.returncode == 0, process.stderr
  folder = str(tmp_path / "p")
  process = run(
    *("prepare", "--input", text_path, "--vocab", vocab_path),
    *("--output", folder, "--processes", "1", "--heldout", "0.2"),
  )
  assert process.returncode == 0, process.stderr
  assert "--config elmo:original" in process.stdout
  assert "--config.data.cased=True" in process.stdout
  process = run(
    *("prepare", "--input", text_path, "--vocab", vocab_path, "--rules"),
    *("original", "--output", folder + "2", "--processes", "1"),
  )
  assert process.returncode == 1 and "Traceback" not in process.stderr
  assert "rules 'original'" in process.stderr
