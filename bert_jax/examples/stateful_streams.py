"""ELMo's text streams: each row of a batch continues in the next batch."""

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.batch_keys import Batch
from bert_jax.examples.elmo_windows import num_links
from bert_jax.examples.recipes import Recipe
from bert_jax.messages import UserError


class StatefulStreams:
  """Gives the windows of a corpus endlessly, with one stream for each row.

  With B streams, example n is window n // B of stream n % B. So a row of a
  batch continues where the same row of the last batch ended. In an epoch, the B
  streams have equal lengths and follow each other in the text. The first stream
  begins at another word in every epoch. Up to one window of words for each
  stream is left out.
  """

  def __init__(self, corpus: Corpus, recipe: Recipe, seed: int):
    """Opens the streams.

    Args:
      corpus: the documents.
      recipe: a recipe whose `streams` is not 0.
      seed: decides at which word each epoch begins.

    Raises:
      ValueError: the corpus cannot be used for the recipe, or is too short.
    """
    recipe.check(corpus)
    self.features = recipe.features
    self._corpus, self._recipe = corpus, recipe
    self._length = recipe.features["char_ids"][0][0]
    self._links = num_links(corpus)
    self._key = hashing.make_key("lanes", seed)
    # The number of windows of a stream in an epoch.
    self._windows = self._links // (recipe.streams * self._length)
    if not self._windows:
      raise UserError(
        f"the text has {self._links} words, too few for data.streams="
        f"{recipe.streams} of data.length={self._length}; lower one of them."
      )

  def read(self, first: int, count: int) -> Batch:
    """Returns examples [first, first + count); first >= 0 and count >= 1."""
    window, stream = np.divmod(
      np.arange(first, first + count), self._recipe.streams
    )
    epoch, window = np.divmod(window, self._windows)
    size = self._windows * self._length
    num_spare = self._links - self._recipe.streams * size
    begin = stream * size + hashing.randint(self._key, epoch, 0, num_spare + 1)
    forward = begin + window * self._length
    backward = begin + (self._windows - 1 - window) * self._length
    rows = np.stack([forward, backward], -1)
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return self._recipe.build(self._corpus, rows, numbers, self._key)

  def position(self) -> dict[str, int]:
    """Returns an empty dict: an example depends only on its number."""
    return {}

  def restore(self, position: dict[str, int]) -> None:
    """Does nothing, see `position`."""
