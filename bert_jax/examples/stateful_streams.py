"""Streams of text side by side that go on from batch to batch, for ELMo."""

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.batch_keys import Batch
from bert_jax.examples.elmo_windows import num_links
from bert_jax.examples.recipes_builder import Builder


class Lanes:
  """The endless sequence of a corpus's windows, a stream a row of the batch.

  Example n is window n // B of stream n % B, so that a row of a batch goes on
  where the same row of the batch before ended. An epoch is B streams of equal
  length, one after the other in the text; where the first one begins is new in
  every epoch, and up to a window a stream is left out.
  """

  def __init__(self, corpus: Corpus, builder: Builder, seed: int):
    """Opens the streams.

    Args:
      corpus: the documents.
      builder: with `lanes`.
      seed: of where the epochs begin.

    Raises:
      ValueError: the corpus cannot serve the builder, or is too short.
    """
    builder.check(corpus)
    self.features = builder.features
    self._corpus, self._builder = corpus, builder
    self._length = builder.features["char_ids"][0][0]
    self._links = num_links(corpus)
    self._key = hashing.make_key("lanes", seed)
    # Of each stream in an epoch.
    self._windows = self._links // (builder.lanes * self._length)
    if not self._windows:
      raise ValueError(
        f"the text has {self._links} words, too few for data.streams="
        f"{builder.lanes} of data.length={self._length}; lower one of them."
      )

  def read(self, first: int, count: int) -> Batch:
    """Returns examples [first, first + count), first >= 0, count >= 1."""
    window, lane = np.divmod(
      np.arange(first, first + count), self._builder.lanes
    )
    epoch, window = np.divmod(window, self._windows)
    size = self._windows * self._length
    spare = self._links - self._builder.lanes * size
    begin = lane * size + hashing.randint(self._key, epoch, 0, spare + 1)
    ahead = begin + window * self._length
    back = begin + (self._windows - 1 - window) * self._length
    rows = np.stack([ahead, back], -1)
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return self._builder.build(self._corpus, rows, numbers, self._key)

  def position(self) -> dict[str, int]:
    """Nothing: where an example is follows from its number."""
    return {}

  def restore(self, position: dict[str, int]) -> None:
    """Nothing to do, see `position`."""
