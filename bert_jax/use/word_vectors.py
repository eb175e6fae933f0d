"""Reads word vectors in GloVe's text format, and finds the nearest words."""

import numpy as np
from etils import epath

from bert_jax.messages import UserError

# The largest number of lines to read, each of which has a word. GloVe's files
# begin with the most frequent words. The number is from
# huawei-noah/Pretrained-Language-Model TinyBERT data_augmentation.py,
# prepare_embedding_retrieval.
MAX_LINES = 100_000


class WordVectors:
  """Holds the words of a file and their vectors, which have length 1.

  Attributes:
    words: the words in the file's order.
    matrix: float32 [N, D], the vector of each word.
  """

  def __init__(self, words: list[str], matrix: np.ndarray):
    """Stores words and their vectors; see the attributes."""
    self.words, self.matrix = words, matrix
    self._row_of_word = {word: i for i, word in enumerate(words)}
    # Cache the words that `nearest` returns: a text repeats its words, and each
    # search sorts all words, which takes 10 ms.
    self._nearest: dict[tuple[str, int], list[str]] = {}

  def nearest(self, word: str, count: int) -> list[str]:
    """Returns the words whose vectors are most similar to a word's vector.

    The similarity is the cosine. If the word has a capital only at its
    beginning, the returned words also begin with a capital, as in the released
    program (data_augmentation.py, _word_distance).

    Args:
      word: the word, whose case matters.
      count: the largest number of words to return. `word` is not returned.

    Returns:
      The words, the nearest first; an empty list if `word` has no vector.
    """
    if word not in self._row_of_word:
      return []
    if (word, count) not in self._nearest:
      self._nearest[word, count] = self._find_nearest(word, count)
    return self._nearest[word, count]

  def _find_nearest(self, word: str, count: int) -> list[str]:
    row_index = self._row_of_word[word]
    cosines = self.matrix @ self.matrix[row_index]
    cosines[row_index] = -np.inf
    # The word itself has the smallest cosine, so leave out the last index.
    nearest_indices = np.argsort(-cosines, kind="stable")[
      : min(count, len(cosines) - 1)
    ]
    nearest_words = [self.words[i] for i in nearest_indices]
    return (
      [nearest_word.title() for nearest_word in nearest_words]
      if word.istitle()
      else nearest_words
    )


def read(path: str, max_lines: int = MAX_LINES) -> WordVectors:
  """Reads the first vectors of a file in GloVe's text format.

  Each line has a word and the numbers of its vector.

  Args:
    path: a file in UTF-8 with single spaces and without a header.
    max_lines: the largest number of lines to read.

  Raises:
    UserError: the file does not exist, or a line is wrong. Each line needs a
      word and as many finite numbers as the first line. The message names the
      wrong line.
  """
  words: list[str] = []
  vectors: list[np.ndarray] = []
  words_read: set[str] = set()
  try:
    with epath.Path(path).open("rb") as f:
      for line_number, line in enumerate(f, 1):
        if line_number > max_lines:
          break
        word, vector = _parse_line(line, len(vectors[0]) if vectors else None)
        if vector is None:
          raise UserError(
            f"{path}:{line_number}: the line must have a word and"
            f" {len(vectors[0]) if vectors else 'two or more'} finite numbers;"
            " vectors are read from GloVe's text format, without a header."
          )
        # Keep the first vector of a repeated word, because words are ordered
        # by frequency.
        if word not in words_read:
          words_read.add(word)
          words.append(word)
          vectors.append(vector)
  except FileNotFoundError as e:
    raise UserError(f"there is no file {path}.") from e
  except IsADirectoryError as e:
    raise UserError(f"{path} is a folder; name a file of vectors.") from e
  if not words:
    raise UserError(f"{path}: the file is empty.")
  matrix = np.array(vectors, np.float32)
  norms = np.linalg.norm(matrix, axis=1, keepdims=True)
  return WordVectors(words, matrix / np.maximum(norms, 1e-30))


def _parse_line(
  line: bytes, num_numbers: int | None
) -> tuple[str, np.ndarray | None]:
  """Returns a line's word and its vector, float32 [num_numbers].

  The vector is None if the line does not have this format. If `num_numbers`
  is not None, the line is split from its end, because a few words of GloVe's
  files contain spaces.
  """
  try:
    text = line.decode("utf-8").rstrip("\r\n ")
    fields = (
      text.split(" ") if num_numbers is None else text.rsplit(" ", num_numbers)
    )
    vector = np.array([float(x) for x in fields[1:]], np.float32)
  except ValueError:
    return "", None
  has_size = (
    len(vector) > 1 if num_numbers is None else len(vector) == num_numbers
  )
  return fields[0], vector if has_size and np.isfinite(vector).all() else None
