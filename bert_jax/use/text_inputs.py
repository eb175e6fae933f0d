"""Reads texts, and encodes them for a model."""

import bisect
import codecs
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.messages import UserError
from bert_jax.tasks.files import tables
from bert_jax.text import characters
from bert_jax.text.vocabulary import (
  extend_offsets,
  joining_cleaner,
  replace_surrogates,
)
from bert_jax.weights.load import OpenedModel


class Text(NamedTuple):
  """Holds a text to encode.

  Attributes:
    id: the text's id in the input, or its index in the input.
    text: the text, or the separate words joined with spaces; surrogates are
      replaced.
    word_spans: (begin, end) in `text` of each word.
    has_separate_words: True if the input has separate words, not only a text.
  """

  id: Any
  text: str
  word_spans: list[tuple[int, int]]
  has_separate_words: bool = False


class Tokens(NamedTuple):
  """Holds an encoded text, with special tokens around it.

  Attributes:
    ids: int32 [T]; for ELMo [T, 50], the ids of characters.
    pieces: T pieces, as the vocabulary spells them; for ELMo the words.
    offsets: (begin, end) of each piece in the text, in characters.
    word_indices: int32 [T], the index in `Text.word_spans` of each piece's
      word; -1 if the piece has no word.
    tokenizer_word_indices: int32 [T], the index of each piece's word among the
      words into which the tokenizer splits the text, where punctuation is a
      separate word. Special tokens have -1.
    begin: the position of the text's first token.
    end: the position after the text's last token.
  """

  ids: np.ndarray
  pieces: list[str]
  offsets: list[tuple[int, int]]
  word_indices: np.ndarray
  tokenizer_word_indices: np.ndarray
  begin: int
  end: int


def find_word_spans(text: str) -> list[tuple[int, int]]:
  """Returns (begin, end) of each word; white space separates the words."""
  spans, begin = [], 0
  for word in text.split():
    begin = text.index(word, begin)
    spans.append((begin, begin + len(word)))
    begin += len(word)
  return spans


def text_of_string(id: Any, text: str) -> Text:
  """Makes a text whose words are separated by white space."""
  text = replace_surrogates(text)
  return Text(id, text, find_word_spans(text))


def text_of_words(id: Any, words: Sequence[str]) -> Text:
  """Makes a text from separate words."""
  words = [replace_surrogates(word) for word in words]
  ends = np.cumsum([len(word) + 1 for word in words]).tolist()
  words_with_ends = zip(words, ends, strict=True)
  spans = [(end - 1 - len(word), end - 1) for word, end in words_with_ends]
  return Text(id, " ".join(words), spans, has_separate_words=True)


def read_texts(path: str) -> Iterator[Text]:
  """Reads the texts of a file.

  Args:
    path: a file with a text on each line, or a .jsonl (.json, .ndjson) file
      with an object on each line. An object has "text" or "words" (a list), and
      may have an "id".

  Raises:
    UserError: a line is wrong (the message names the line), or the file has no
      lines.
  """
  line_index = -1
  for line_index, line in enumerate(read_lines(path)):
    if not tables.is_jsonl(path):
      yield text_of_string(line_index, line)
      continue
    place = f"{path}:{line_index + 1}"
    json_object = parse_json_object(line, place)
    words = json_object.get("words")
    text_id = json_object.get("id", line_index)
    if isinstance(words, list) and all(isinstance(w, str) for w in words):
      yield text_of_words(text_id, words)
    elif isinstance(json_object.get("text"), str) and words is None:
      yield text_of_string(text_id, json_object["text"])
    else:
      raise UserError(
        f'{place}: the object has neither "text" (a string) nor "words" (a list'
        " of strings)."
      )
  if line_index < 0:
    raise UserError(f"{path} has no lines.")


def read_lines(path: str) -> Iterator[str]:
  """Yields the lines of a UTF-8 file without line ends and byte-order mark.

  Raises:
    UserError: the file cannot be read, or is not UTF-8.
  """
  try:
    with epath.Path(path).open("rb") as f:
      yield from decode_lines(f, path)
  except OSError as e:
    raise UserError(f"{path}: {e.strerror}.") from e


def decode_lines(lines: Iterable[bytes], source: str) -> Iterator[str]:
  """Decodes lines of UTF-8 without line ends and byte-order mark.

  Args:
    lines: the lines as bytes.
    source: where the lines are from, for messages.

  Raises:
    UserError: a line is not UTF-8; the message names it.
  """
  for number, line in enumerate(lines, 1):
    line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    try:
      yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as e:
      raise UserError(
        f"{source}:{number}: the line is not UTF-8; convert the text to UTF-8."
      ) from e


def parse_json_object(line: str, place: str) -> dict[str, Any]:
  """Parses a line with a JSON object.

  Args:
    line: the text of the line.
    place: the file and the number of the line, for messages.

  Raises:
    UserError: the line is not a JSON object.
  """
  try:
    parsed = tables.parse_json(line)
  except ValueError as e:
    raise UserError(f"{place}: the line is not JSON ({e}).") from e
  if not isinstance(parsed, dict):
    raise UserError(f"{place}: the line is not a JSON object.")
  return parsed


def check_not_same_file(source: str, target: str) -> None:
  """Raises a UserError if the output is the file of the input."""
  # Unlike epath's, pathlib's `resolve` follows links.
  if pathlib.Path(target).resolve() == pathlib.Path(source).resolve():
    raise UserError(
      f"the output {target} is the input; choose another file for the output."
    )


def encode(model: OpenedModel, texts: Sequence[Text]) -> list[Tokens]:
  """Encodes texts with the model's tokenizer and its special tokens.

  A piece belongs to the word in which it begins. A piece between words, such as
  a single mark for a space, belongs to the next word. A piece after the last
  word belongs to the last word. A word may have no piece.

  Raises:
    UserError: the model has no tokenizer, or its tokenizer does not fit.
  """
  if model.config["family"] == "elmo":
    return [_tokens_of_characters(model, text) for text in texts]
  if model.tokenizer is None:
    raise UserError(
      "the model's folder has no tokenizer; put its vocab.txt, vocab.json with"
      " merges.txt, spiece.model or tokenizer.json there."
    )
  encodings = model.tokenizer.encode_batch([text.text for text in texts])
  clean = joining_cleaner(model.tokenizer)
  encoded = [
    _tokens_of_encoding(text, encoding, clean)
    for text, encoding in zip(texts, encodings, strict=True)
  ]
  table_size = model.config["model"]["vocab_size"]
  max_id = max(
    (int(tokens.ids.max()) for tokens in encoded if len(tokens.ids)), default=0
  )
  if max_id >= table_size:
    raise UserError(
      f"the tokenizer gives id {max_id}, but the model has only {table_size}"
      " pieces; put the model's own tokenizer into its folder."
    )
  return encoded


def _tokens_of_encoding(
  text: Text, encoding: Any, clean: Callable[[str], str] | None
) -> Tokens:
  """Turns an encoding of the tokenizers library into `Tokens`."""
  is_special = np.array(encoding.special_tokens_mask, bool)
  num_pieces = len(is_special)
  inner_positions = np.flatnonzero(~is_special)
  # In an empty text, the last special token is the end, and the special tokens
  # before it are the beginning.
  begin, end = (
    (inner_positions[0], inner_positions[-1] + 1)
    if len(inner_positions)
    else (num_pieces, num_pieces)
  )
  if not len(inner_positions) and num_pieces > 1:
    begin = end = num_pieces - 1
  word_indices = np.full(num_pieces, -1, np.int32)
  word_ends = [word_end for _, word_end in text.word_spans]
  # Each access to this attribute copies the offsets of the whole text.
  offsets = encoding.offsets
  for i in range(begin, end):
    start, stop = offsets[i]
    # A space before the word may be the piece's first character.
    while start < stop - 1 and text.text[start].isspace():
      start += 1
    word_index = bisect.bisect_right(word_ends, start)
    word_indices[i] = min(word_index, len(word_ends) - 1)
  ids = np.array(encoding.ids, np.int32)
  tokenizer_word_indices = np.array(
    [-1 if index is None else index for index in encoding.word_ids], np.int32
  )
  return Tokens(
    ids=ids,
    pieces=encoding.tokens,
    offsets=extend_offsets(text.text, offsets, clean),
    word_indices=word_indices,
    tokenizer_word_indices=tokenizer_word_indices,
    begin=int(begin),
    end=int(end),
  )


def _tokens_of_characters(model: OpenedModel, text: Text) -> Tokens:
  """Encodes a text for ELMo, whose tokens are words.

  If the model has a tokenizer, the tokenizer splits a text whose words are not
  separate.
  """
  spans = text.word_spans
  if model.tokenizer is not None and not text.has_separate_words:
    words_with_spans = model.tokenizer.pre_tokenizer.pre_tokenize_str(text.text)
    spans = [span for _, span in words_with_spans]
  words = [text.text[begin:end] for begin, end in spans]
  num_characters = len(text.text)
  word_indices = np.array([-1, *range(len(words)), -1], np.int32)
  return Tokens(
    ids=characters.sentence_ids(words),
    pieces=["<S>", *words, "</S>"],
    offsets=[(0, 0), *spans, (num_characters, num_characters)],
    word_indices=word_indices,
    tokenizer_word_indices=word_indices,
    begin=1,
    end=len(words) + 1,
  )
