"""Defines ELMo's input: each word as its UTF-8 bytes, here called characters.

The ids are those of allenai/bilm-tf bilm/data.py, UnicodeCharsVocabulary:

  symbol                                  id
  the 256 bytes                           0 to 255
  begin and end of a sentence             256, 257
  begin and end of a word                 258, 259
  padding within a word                   260

In arrays, 1 is added to every id of the table, so that 0 means no character.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.messages import UserError
from bert_jax.text.vocabulary import EncodedText

# The number of ids that each word has in arrays.
MAX_CHARS = 50
# A word has at most this many bytes: two of its ids mark its begin and its end.
MAX_BYTES = MAX_CHARS - 2
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD = range(256, 261)
# The number of different ids in arrays: the 261 ids of the table, and 0.
NUM_CHARS = 262
# The symbols for the begin and the end of a sentence, by their spelling in a
# text and in the published word list.
SENTENCE_SYMBOLS = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}
# Matches what `str.split` calls a word.
_WORD_PATTERN = re.compile(r"\S+")


@dataclasses.dataclass(frozen=True)
class Characters:
  """Turns text into ids of characters, and back.

  For ELMo, it takes the place of a `Vocabulary`. It needs no vocabulary file.

  Words are separated by white space. Only the first 48 UTF-8 bytes of a word
  are used. Lone surrogates have no bytes: they are left out, as published.

  Attributes:
    adds_sentence_ends: True if each text gets a token before it and a token
      after it, for the begin and the end of a sentence.
  """

  adds_sentence_ends: bool = False

  @property
  def vocab_size(self) -> int:
    """The number of ids in arrays: 261, and 0 for no character."""
    return NUM_CHARS

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns int32 ids [T, 50] of each text; a literal `<S>` is text."""
    ids, lengths = self.encode_flat(texts)
    return np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else []

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of `encode_batch` in one array.

    Args:
      texts: N texts.

    Returns:
      An int32 array [T, 50] with the ids of all texts, and an int64 array [N]
      with the number of tokens of each text.
    """
    tokens_by_text = [self._add_symbols(text.split()) for text in texts]
    lengths = np.fromiter(
      map(len, tokens_by_text), np.int64, len(tokens_by_text)
    )
    return _char_ids(
      [token for tokens in tokens_by_text for token in tokens]
    ), lengths

  def encode_special(self, text: str) -> np.ndarray:
    """Returns int32 ids [T, 50]; `<S>` and `</S>` are read as symbols."""
    return self.encode_offsets([text], special=True)[0].ids

  def encode_offsets(
    self, texts: Sequence[str], special: bool = False
  ) -> list[EncodedText]:
    """Returns ids and offsets into the raw texts.

    The tokens that `adds_sentence_ends` adds have empty offsets: begin and end
    are equal.

    Args:
      texts: raw texts.
      special: True if the words `<S>` and `</S>` of a text are read as the
        begin and the end of a sentence; False if they are read as words.
    """
    encoded_texts = []
    symbols: dict[str, int] = SENTENCE_SYMBOLS if special else {}
    for text in texts:
      matches = list(_WORD_PATTERN.finditer(text))
      words = [symbols.get(match[0], match[0]) for match in matches]
      offsets = [match.span() for match in matches]
      if self.adds_sentence_ends:
        offsets = [(0, 0), *offsets, (len(text), len(text))]
      encoded_texts.append(
        EncodedText(_char_ids(self._add_symbols(words)), offsets)
      )
    return encoded_texts

  def _add_symbols(self, words: Sequence[str | int]) -> Sequence[str | int]:
    return _with_symbols(words) if self.adds_sentence_ends else words

  def decode(self, ids: Iterable[Sequence[int]]) -> str:
    """Returns the words of ids [T, 50] with spaces between them.

    A word of up to 48 bytes comes back whole. A word with more bytes comes back
    without the letters whose bytes are not all among the first 48. The symbols
    of a sentence and padding are left out.
    """
    byte_ids = np.asarray(list(ids), np.int64).reshape(-1, MAX_CHARS) - 1
    words = [
      bytes(word_bytes[(word_bytes >= 0) & (word_bytes < 256)].tolist())
      for word_bytes in byte_ids
    ]
    return " ".join(word.decode("utf-8", "ignore") for word in words if word)


def word_ids(word: str | int) -> list[int]:
  """Returns the `MAX_CHARS` ids of a word.

  Args:
    word: a text, or one of `BEGIN_SENTENCE` and `END_SENTENCE`.
  """
  return _char_ids([word])[0].tolist()


def sentence_ids(
  words: Sequence[str | int], adds_sentence_ends: bool = True
) -> np.ndarray:
  """Returns the int32 ids [T, 50] of a sentence.

  Args:
    words: the words of the sentence.
    adds_sentence_ends: True if the sentence also gets tokens for its begin and
      end.

  Raises:
    UserError: `words` is one text.
  """
  if isinstance(words, str):
    raise UserError(
      f"sentence {words[:40]!r} is text; pass its words, as text.split() gives."
    )
  return _char_ids(_with_symbols(words) if adds_sentence_ends else words)


def _with_symbols(words: Sequence[str | int]) -> list[str | int]:
  return [BEGIN_SENTENCE, *words, END_SENTENCE]


def _char_ids(words: Sequence[str | int]) -> np.ndarray:
  """Returns int32 ids [T, 50]; `words` may hold values of SENTENCE_SYMBOLS."""
  indexed_symbols = [
    (i, word) for i, word in enumerate(words) if isinstance(word, int)
  ]
  # A symbol gets one byte here, which is replaced by the symbol below.
  encoded_words = [
    b"\0" if isinstance(word, int) else word.encode("utf-8", "ignore")
    for word in words
  ]
  encoded_words = [word[:MAX_BYTES] for word in encoded_words]
  lengths = np.fromiter(map(len, encoded_words), np.int64, len(encoded_words))
  column = np.arange(MAX_CHARS)
  is_byte = (column >= 1) & (column <= lengths[:, None])
  ids = np.full(is_byte.shape, PAD, np.int32)
  ids[:, 0] = BEGIN_WORD
  ids[is_byte] = np.frombuffer(b"".join(encoded_words), np.uint8)
  ids[np.arange(len(encoded_words)), lengths + 1] = END_WORD
  for index, symbol in indexed_symbols:
    ids[index, 1] = symbol
  return ids + 1


def make_batch(
  sentences: Iterable[Sequence[str]], adds_sentence_ends: bool = True
) -> dict[str, np.ndarray]:
  """Returns a batch of sentences, padded to the longest sentence.

  Args:
    sentences: the words of each sentence.
    adds_sentence_ends: True if a sentence also gets tokens for its begin and
      end.

  Returns:
    int32 arrays `char_ids` [b, l, 50], and `sequence_ids` [b, l], which is 1
    for words and 0 for padding.
  """
  ids_of_sentences = [
    sentence_ids(words, adds_sentence_ends) for words in sentences
  ]
  max_length = max((len(ids) for ids in ids_of_sentences), default=0)
  char_ids = np.zeros((len(ids_of_sentences), max_length, MAX_CHARS), np.int32)
  sequence_ids = np.zeros((len(ids_of_sentences), max_length), np.int32)
  for i, ids in enumerate(ids_of_sentences):
    char_ids[i, : len(ids)], sequence_ids[i, : len(ids)] = ids, 1
  return {"char_ids": char_ids, "sequence_ids": sequence_ids}


@dataclasses.dataclass(frozen=True, eq=False)
class Spellings:
  """Holds the bytes of words, at most `MAX_BYTES` of each word.

  Attributes:
    letter_bytes: [N] uint8, the bytes of all words one after another.
    bounds: [W + 1] int64; word w is letter_bytes[bounds[w]:bounds[w + 1]].
  """

  letter_bytes: np.ndarray
  bounds: np.ndarray


def spell(words: Sequence[str]) -> Spellings:
  """Returns the first `MAX_BYTES` bytes of each word."""
  encoded_words = [word.encode("utf-8", "ignore")[:MAX_BYTES] for word in words]
  lengths = np.fromiter(map(len, encoded_words), np.int64, len(encoded_words))
  letter_bytes = np.frombuffer(b"".join(encoded_words), np.uint8)
  return Spellings(letter_bytes, np.append(0, np.cumsum(lengths)))
