"""ELMo's input: words as the bytes of their characters.

allenai/bilm-tf bilm/data.py, UnicodeCharsVocabulary. Ids 0 to 255 are bytes,
then come the begin and end of a sentence and of a word, and padding within a
word; 1 is added to all, so that 0 is no character at all.
"""

from collections.abc import Iterable, Sequence

import numpy as np

MAX_CHARS = 50
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD = range(256, 261)
NUM_CHARS = 262


def word_ids(word: str | int) -> list[int]:
  """Ids of a word, `MAX_CHARS` of them.

  Args:
    word: text, of which 48 bytes count; or `BEGIN_SENTENCE`, `END_SENTENCE`.
  """
  if isinstance(word, int):
    inner = [word]
  else:
    inner = list(word.encode("utf-8", "ignore")[: MAX_CHARS - 2])
  ids = [BEGIN_WORD, *inner, END_WORD]
  return [i + 1 for i in ids + [PAD] * (MAX_CHARS - len(ids))]


def sentence_ids(words: Sequence[str], boundaries: bool = True) -> np.ndarray:
  """Returns int32 [T, 50]; with `boundaries` a sentence's begin and end too."""
  tokens: list[str | int] = list(words)
  if boundaries:
    tokens = [BEGIN_SENTENCE, *tokens, END_SENTENCE]
  rows = [word_ids(token) for token in tokens]
  return np.array(rows, np.int32).reshape(-1, MAX_CHARS)


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
