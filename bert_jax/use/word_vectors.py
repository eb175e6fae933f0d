"""Word vectors in GloVe's text format, and the nearest words of a word."""

import numpy as np

from bert_jax.messages import UserError

# The first words are the most frequent ones; huawei-noah/
# Pretrained-Language-Model TinyBERT data_augmentation.py,
# prepare_embedding_retrieval.
MOST = 100_000


class WordVectors:
  """Vectors of length 1 of the words of a file.

  Attributes:
    words: in the file's order.
    matrix: float32 [N, D].
  """

  def __init__(self, words: list[str], matrix: np.ndarray):
    self.words, self.matrix = words, matrix
    self._number = {word: i for i, word in enumerate(words)}
    # A word occurs many times in a file, and sorting all words takes 10 ms.
    self._known: dict[tuple[str, int], list[str]] = {}

  def nearest(self, word: str, count: int) -> list[str]:
    """The words whose vectors have the largest cosine with a word's.

    A capital at the beginning of the word is given to all of them, as released
    (data_augmentation.py, _word_distance).

    Args:
      word: looked up as it is written.
      count: how many; the word itself is none of them.

    Returns:
      The nearest first; [] for a word without a vector.
    """
    if word not in self._number:
      return []
    if (word, count) not in self._known:
      self._known[word, count] = self._find(word, count)
    return self._known[word, count]

  def _find(self, word: str, count: int) -> list[str]:
    number = self._number[word]
    cosine = self.matrix @ self.matrix[number]
    cosine[number] = -np.inf
    order = np.argsort(-cosine, kind="stable")[: min(count, len(cosine) - 1)]
    words = [self.words[i] for i in order]
    return [w.title() for w in words] if word.istitle() else words


def read(path: str, most: int = MOST) -> WordVectors:
  """Reads the first vectors of a file: a word and its numbers a line.

  Args:
    path: a file in UTF-8 with single spaces and without a header.
    most: words to read.

  Raises:
    ValueError: no such file, or a line that is no word with as many finite
      numbers as the first has; names it.
  """
  words, rows, seen = [], [], set()
  try:
    with open(path, "rb") as f:
      for number, line in enumerate(f, 1):
        if number > most:
          break
        word, row = _parse(line, len(rows[0]) if rows else None)
        if row is None:
          raise UserError(
            f"{path}:{number}: no word with"
            f" {len(rows[0]) if rows else 'two or more'} finite numbers after"
            " it; vectors are read from GloVe's text format, without a header."
          )
        # If a word is there twice, the first is the more frequent one.
        if word not in seen:
          seen.add(word)
          words.append(word)
          rows.append(row)
  except FileNotFoundError as e:
    raise UserError(f"{path}: no such file.") from e
  except IsADirectoryError as e:
    raise UserError(f"{path} is a folder; name a file of vectors.") from e
  if not words:
    raise UserError(f"{path}: the file is empty.")
  matrix = np.array(rows, np.float32)
  norms = np.linalg.norm(matrix, axis=1, keepdims=True)
  return WordVectors(words, matrix / np.maximum(norms, 1e-30))


def _parse(line: bytes, size: int | None) -> tuple[str, np.ndarray | None]:
  """A line's word and float32 [size] vector; None if it is no such line.

  A few words of the larger files have spaces in them.
  """
  try:
    text = line.decode("utf-8").rstrip("\r\n ")
    fields = text.split(" ") if size is None else text.rsplit(" ", size)
    row = np.array([float(x) for x in fields[1:]], np.float32)
  except ValueError:
    return "", None
  right = len(row) > 1 if size is None else len(row) == size
  return fields[0], row if right and np.isfinite(row).all() else None
