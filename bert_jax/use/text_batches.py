"""Texts as rows of a loaded model: read, encoded, batched by length."""

import bisect
import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks.bucket_lengths import FEATURE_BUCKETS
from bert_jax.tasks.files import tables
from bert_jax.text import characters
from bert_jax.text.vocabulary import (
  cover_marks,
  joining_cleaner,
  replace_surrogates,
)
from bert_jax.weights.load import OpenedModel


class Text(NamedTuple):
  """A text to encode.

  Attributes:
    id: its id in the input, or its number from 0.
    text: the unchanged text; separate words are joined with spaces.
    words: (begin, end) in `text` of each word.
    given: True if the input has separate words.
  """

  id: Any
  text: str
  words: list[tuple[int, int]]
  given: bool = False


class Tokens(NamedTuple):
  """An encoded text, special tokens around it.

  Attributes:
    ids: int32 [T], of ELMo [T, 50].
    pieces: [T], as the vocabulary spells them; of ELMo the words.
    offsets: [T] characters (begin, end) of the text.
    words: int32 [T], number of the word that a piece is of; -1 for none.
    splits: int32 [T], number of the word as the tokenizer splits them,
      punctuation apart; -1 for special tokens.
    begin: the number of special tokens at the beginning.
    end: the position of the first special token at the end.
  """

  ids: np.ndarray
  pieces: list[str]
  offsets: list[tuple[int, int]]
  words: np.ndarray
  splits: np.ndarray
  begin: int
  end: int


class Batch(NamedTuple):
  """Rows that are run together.

  Attributes:
    numbers: int64 [n] of the rows.
    inputs: `input_ids` or `char_ids`, and `sequence_ids`: int32 [B, L, ...];
      B may be more than n, those rows are padding.
  """

  numbers: np.ndarray
  inputs: dict[str, np.ndarray]


def spaced(text: str) -> list[tuple[int, int]]:
  """(begin, end) of what stands between white space."""
  offsets, begin = [], 0
  for word in text.split():
    begin = text.index(word, begin)
    offsets.append((begin, begin + len(word)))
    begin += len(word)
  return offsets


def of_text(id: Any, text: str) -> Text:
  """A text whose words are what stands between white space."""
  text = replace_surrogates(text)
  return Text(id, text, spaced(text))


def of_words(id: Any, words: Sequence[str]) -> Text:
  """A text of given words."""
  words = [replace_surrogates(word) for word in words]
  ends = np.cumsum([len(word) + 1 for word in words]).tolist()
  pairs = zip(words, ends, strict=True)
  spans = [(end - 1 - len(word), end - 1) for word, end in pairs]
  return Text(id, " ".join(words), spans, given=True)


def read_texts(path: str) -> Iterator[Text]:
  """Reads a text a line, or of .jsonl (.json, .ndjson) an object a line.

  An object has "text" or "words" (a list), and may have an "id".

  Raises:
    ValueError: a line that is not so; file and line are named. No lines.
  """
  number = -1
  for number, line in enumerate(read_lines(path)):
    if not tables.is_jsonl(path):
      yield of_text(number, line)
      continue
    place = f"{path}:{number + 1}"
    item = parse_object(line, place)
    words = item.get("words")
    name = item.get("id", number)
    if isinstance(words, list) and all(isinstance(w, str) for w in words):
      yield of_words(name, words)
    elif isinstance(item.get("text"), str) and words is None:
      yield of_text(name, item["text"])
    else:
      raise UserError(
        f'{place}: neither "text" (a string) nor "words" (a list of strings).'
      )
  if number < 0:
    raise UserError(f"{path} has no lines.")


def read_lines(path: str) -> Iterator[str]:
  """Lines of a UTF-8 file without their ends and a byte-order mark.

  Raises:
    ValueError: no such file, or not UTF-8.
  """
  try:
    with open(path, "rb") as f:
      yield from decode(f, path)
  except OSError as e:
    raise UserError(f"{path}: {e.strerror}.") from e


def decode(lines: Iterable[bytes], source: str) -> Iterator[str]:
  """The same of lines that are open; ValueError names where they stand."""
  for number, line in enumerate(lines, 1):
    line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    try:
      yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as e:
      raise UserError(f"{source}:{number}: not UTF-8.") from e


def parse_object(line: str, place: str) -> dict[str, Any]:
  """A JSON object; ValueError names where it stands if it is none."""
  try:
    item = tables.parse_json(line)
  except ValueError as e:
    raise UserError(f"{place}: no JSON ({e}).") from e
  if not isinstance(item, dict):
    raise UserError(f"{place}: no JSON object.")
  return item


def encode(model: OpenedModel, texts: Sequence[Text]) -> list[Tokens]:
  """Encodes texts with the model's tokenizer and its special tokens.

  A piece is of the word in which it begins; one that stands before a word, as
  a lone mark of a space, is of that word. A word may have no piece.

  Raises:
    ValueError: the model came without a tokenizer, or with another's.
  """
  if model.config["family"] == "elmo":
    return [_characters(model, text) for text in texts]
  if model.tokenizer is None:
    raise UserError(
      "the model came without a tokenizer; put its vocab.txt, vocab.json with"
      " merges.txt, spiece.model or tokenizer.json into its folder."
    )
  rows = model.tokenizer.encode_batch([text.text for text in texts])
  clean = joining_cleaner(model.tokenizer)
  encoded = [_tokens(t, row, clean) for t, row in zip(texts, rows, strict=True)]
  size = model.config["model"]["vocab_size"]
  highest = max((int(t.ids.max()) for t in encoded if len(t.ids)), default=0)
  if highest >= size:
    raise UserError(
      f"the tokenizer gives id {highest}, the model has {size} pieces: they do"
      " not belong together."
    )
  return encoded


def _tokens(text: Text, row: Any, clean: Callable[[str], str] | None) -> Tokens:
  special = np.array(row.special_tokens_mask, bool)
  count = len(special)
  inner = np.flatnonzero(~special)
  # The tokens that a tokenizer adds to an empty text stand at the begin.
  begin, end = (inner[0], inner[-1] + 1) if len(inner) else (count, count)
  if not len(inner) and count > 1:
    begin = end = count - 1
  words = np.full(count, -1, np.int32)
  ends = [e for _, e in text.words]
  for i in range(begin, end):
    start, stop = row.offsets[i]
    # A space before the word may be the piece's first character.
    while start < stop - 1 and text.text[start].isspace():
      start += 1
    word = bisect.bisect_right(ends, start)
    words[i] = min(word, len(ends) - 1)
  ids = np.array(row.ids, np.int32)
  splits = np.array([-1 if n is None else n for n in row.word_ids], np.int32)
  ends = int(begin), int(end)
  offsets = cover_marks(text.text, row.offsets, clean)
  return Tokens(ids, row.tokens, offsets, words, splits, *ends)


def _characters(model: OpenedModel, text: Text) -> Tokens:
  """Words of ELMo; a text's are split as its tokenizer does, if it has one."""
  spans = text.words
  if model.tokenizer is not None and not text.given:
    split = model.tokenizer.pre_tokenizer.pre_tokenize_str(text.text)
    spans = [span for _, span in split]
  words = [text.text[b:e] for b, e in spans]
  count = len(text.text)
  numbers = np.array([-1, *range(len(words)), -1], np.int32)
  return Tokens(
    characters.sentence_ids(words),
    ["<S>", *words, "</S>"],
    [(0, 0), *spans, (count, count)],
    numbers,
    numbers,
    1,
    len(words) + 1,
  )


def batches(
  rows: Sequence[np.ndarray], longest: int | None, tokens: int
) -> Iterator[Batch]:
  """Batches rows of like lengths, in few shapes.

  Args:
    rows: ids, int32 [T, ...].
    longest: the most tokens that the model takes; None for any number.
    tokens: tokens of a batch, with padding; one row may have more.

  Yields:
    Every row once, padded to the next of `FEATURE_BUCKETS`; a longer one to a
    multiple of the last. A length's last batch is
    as large as the others; if it is the only one, a power of two.
  """
  lengths = np.fromiter(map(len, rows), np.int64, len(rows))
  last = FEATURE_BUCKETS[-1]
  index = np.searchsorted(FEATURE_BUCKETS, lengths)
  padded = np.where(
    lengths > last,
    -(-lengths // last) * last,
    np.array([*FEATURE_BUCKETS, 0])[index],
  )
  if longest is not None:
    padded = np.minimum(padded, longest)
  for length in np.unique(padded):
    numbers = np.flatnonzero(padded == length)
    size = max(tokens // int(length), 1)
    for start in range(0, len(numbers), size):
      batch_numbers = numbers[start : start + size]
      count = size if start else _power(len(batch_numbers))
      yield Batch(
        batch_numbers, _pad(rows, batch_numbers, min(count, size), int(length))
      )


def _power(count: int) -> int:
  return 1 << (count - 1).bit_length()


def _pad(
  rows: Sequence[np.ndarray], batch_numbers: np.ndarray, count: int, length: int
) -> dict[str, np.ndarray]:
  inner = rows[batch_numbers[0]].shape[1:]
  ids = np.zeros((count, length, *inner), np.int32)
  sequence_ids = np.zeros((count, length), np.int32)
  for i, number in enumerate(batch_numbers):
    row = rows[number]
    ids[i, : len(row)], sequence_ids[i, : len(row)] = row, 1
  name = "char_ids" if inner else "input_ids"
  return {name: ids, "sequence_ids": sequence_ids}
