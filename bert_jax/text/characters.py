"""ELMo's input: words as the bytes of their characters.

allenai/bilm-tf bilm/data.py, UnicodeCharsVocabulary. Ids 0 to 255 are bytes,
then come the begin and end of a sentence and of a word, and padding within a
word; 1 is added to all, so that 0 is no character at all.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.messages import UserError
from bert_jax.text.vocabulary import Encoded

MAX_CHARS = 50
# Bytes of a word that count: all but its begin and end.
MAX_BYTES = MAX_CHARS - 2
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD = range(256, 261)
NUM_CHARS = 262
# Their names in a text, and in the published list of words.
SPECIAL = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}
# Matches what `str.split` calls a word.
_WORD = re.compile(r"\S+")


@dataclasses.dataclass(frozen=True)
class Characters:
  """Text to ids of characters and back, with the methods of `Vocabulary`.

  A word is what stands between white space. 48 of its UTF-8 bytes count; lone
  surrogates, which have no bytes, are left out, as published.

  Attributes:
    boundaries: True if each text gets rows for the beginning and end of a
      sentence.
  """

  boundaries: bool = False

  @property
  def vocab_size(self) -> int:
    return NUM_CHARS

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns int32 [T, 50] of each text; a literal `<S>` is text."""
    ids, lengths = self.encode_flat(texts)
    return np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else []

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns int32 [T, 50] of all texts, and [N] int64, rows of each one."""
    rows = [self._tokens(text.split()) for text in texts]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return _ids([token for row in rows for token in row]), lengths

  def encode_special(self, text: str) -> np.ndarray:
    """Returns int32 [T, 50]; `<S>` and `</S>` between white space are marks."""
    return self.encode_offsets([text], special=True)[0].ids

  def encode_offsets(
    self, texts: Sequence[str], special: bool = False
  ) -> list[Encoded]:
    """Returns ids and offsets into the raw texts; empty ones of boundaries.

    Args:
      texts: raw texts.
      special: True if `<S>` and `</S>` between white space are marks.
    """
    result = []
    marks = SPECIAL if special else {}
    for text in texts:
      matches = list(_WORD.finditer(text))
      words = [marks.get(match[0], match[0]) for match in matches]
      offsets = [match.span() for match in matches]
      if self.boundaries:
        offsets = [(0, 0), *offsets, (len(text), len(text))]
      result.append(Encoded(_ids(self._tokens(words)), offsets))
    return result

  def _tokens(self, words: Sequence[str | int]) -> Sequence[str | int]:
    return _bounded(words) if self.boundaries else words

  def decode(self, ids: Iterable[Sequence[int]]) -> str:
    """Returns the words of [T, 50] ids with spaces between them.

    Words of up to 48 bytes come back whole. Of a longer one a character that
    was cut is left out. Boundaries and padding are no words.
    """
    rows = np.asarray(list(ids), np.int64).reshape(-1, MAX_CHARS) - 1
    words = [bytes(row[(row >= 0) & (row < 256)].tolist()) for row in rows]
    return " ".join(word.decode("utf-8", "ignore") for word in words if word)


def word_ids(word: str | int) -> list[int]:
  """Ids of a word, `MAX_CHARS` of them.

  Args:
    word: text, of which 48 bytes count; or `BEGIN_SENTENCE`, `END_SENTENCE`.
  """
  return _ids([word])[0].tolist()


def sentence_ids(
  words: Sequence[str | int], boundaries: bool = True
) -> np.ndarray:
  """Returns int32 [T, 50]; with `boundaries` a sentence's begin and end too.

  Raises:
    UserError: text, not words.
  """
  if isinstance(words, str):
    raise UserError(
      f"sentence {words[:40]!r} is text; pass its words, as text.split() gives."
    )
  return _ids(_bounded(words) if boundaries else words)


def _bounded(words: Sequence[str | int]) -> list[str | int]:
  return [BEGIN_SENTENCE, *words, END_SENTENCE]


def _ids(words: Sequence[str | int]) -> np.ndarray:
  """Returns int32 [T, 50], a row a word."""
  marks = [(i, word) for i, word in enumerate(words) if isinstance(word, int)]
  raw = [
    b"\0" if isinstance(word, int) else word.encode("utf-8", "ignore")
    for word in words
  ]
  raw = [word[:MAX_BYTES] for word in raw]
  lengths = np.fromiter(map(len, raw), np.int64, len(raw))
  column = np.arange(MAX_CHARS)
  inner = (column >= 1) & (column <= lengths[:, None])
  rows = np.full(inner.shape, PAD, np.int32)
  rows[:, 0] = BEGIN_WORD
  rows[inner] = np.frombuffer(b"".join(raw), np.uint8)
  rows[np.arange(len(raw)), lengths + 1] = END_WORD
  for row, mark in marks:
    rows[row, 1] = mark
  return rows + 1


def batch(
  sentences: Iterable[Sequence[str]], boundaries: bool = True
) -> dict[str, np.ndarray]:
  """Pads sentences to `char_ids` [b, l, 50] and `sequence_ids` [b, l]."""
  rows = [sentence_ids(words, boundaries) for words in sentences]
  length = max((len(row) for row in rows), default=0)
  char_ids = np.zeros((len(rows), length, MAX_CHARS), np.int32)
  sequence_ids = np.zeros((len(rows), length), np.int32)
  for i, row in enumerate(rows):
    char_ids[i, : len(row)], sequence_ids[i, : len(row)] = row, 1
  return {"char_ids": char_ids, "sequence_ids": sequence_ids}


@dataclasses.dataclass(frozen=True, eq=False)
class Spellings:
  """The bytes of the word of every id, at most `MAX_BYTES` of each.

  Attributes:
    letters: [N] uint8, UTF-8 of all words end to end.
    ends: [W + 1] int64, word w is letters[ends[w]:ends[w + 1]].
  """

  letters: np.ndarray
  ends: np.ndarray


def spell(words: Sequence[str]) -> Spellings:
  """Spells words, `MAX_BYTES` of each at most."""
  spelt = [word.encode("utf-8", "ignore")[:MAX_BYTES] for word in words]
  lengths = np.fromiter(map(len, spelt), np.int64, len(spelt))
  letters = np.frombuffer(b"".join(spelt), np.uint8)
  return Spellings(letters, np.append(0, np.cumsum(lengths)))
