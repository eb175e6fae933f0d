"""How the words of a corpus are spelt, for models that read characters."""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np

# Bytes of a word that count (allenai/bilm-tf bilm/data.py: 50 characters, of
# which two are its begin and end).
MAX_BYTES = 48


@dataclasses.dataclass(frozen=True, eq=False)
class Spellings:
  """Of every id the bytes of its word, as many as count.

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


def read_others(path: str, count: int) -> list[str]:
  """Reads the words beyond a folder's vocabulary, one a line.

  Args:
    path: the file; there is none if there are no such words.
    count: how many there are.

  Raises:
    ValueError: there are not as many.
  """
  if not count:
    return []
  words = []
  if os.path.exists(path):
    with open(path, encoding="utf-8", errors="replace", newline="\n") as f:
      words = f.read().split("\n")[:-1]
  if len(words) != count:
    raise ValueError(
      f"{path} has {len(words)} words where meta.json says {count}; the folder"
      " is damaged, delete it and run `python -m bert_jax.cli.prepare` again."
    )
  return words
