"""Gives examples in order: endless streams, their mixtures, held-out sets.

Each class has `read(first, count)`, which returns rows [first, first + count)
as a batch. The rows depend only on their numbers, and on the arguments with
which the object was made. The rows do not depend on the number of hosts, the
batch size or the number of restarts. `position()` only makes a restart faster:
with this position, `restore` need not count examples again.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.batch_keys import Batch, Features, empty_rows
from bert_jax.examples.elmo_windows import count_links
from bert_jax.examples.portions import (
  SHARD_TOKENS,
  GroupedText,
  Portion,
  Portions,
  ShardPortions,
  TextPortions,
  shard_bounds,
)
from bert_jax.examples.recipes import Recipe
from bert_jax.messages import UserError

# In each block of this many examples, a mixture's shares are exact up to
# rounding.
MIXTURE_BLOCK = 4096


class Source(Protocol):
  """Describes the type of a source of rows for the loader."""

  @property
  def features(self) -> Features:
    """The shape of one row and the dtype, for each key."""

  def read(self, first: int, count: int) -> Batch:
    """Returns rows [first, first + count)."""

  def position(self) -> dict[str, int]:
    """Returns what `restore` needs to continue after the last `read`."""

  def restore(self, position: dict[str, int]) -> None:
    """Continues from a `position()`, and counts no examples before it."""


class Stream:
  """Gives the examples of a corpus or a text as an endless sequence.

  Every epoch has new examples of all documents, with new pairs and masks. The
  examples are shuffled portion by portion (see `portions`). The number of
  examples differs from epoch to epoch. If `Recipe.copies` is not 0, epochs
  repeat the examples of earlier epochs in a new order.

  A stream reads forward from its position. To read an example before this
  position, the stream starts again from the beginning. `restore` sets the
  position without reading.
  """

  def __init__(
    self,
    source: Corpus | GroupedText,
    recipe: Recipe,
    seed: int,
    name: str = "",
    *,
    epochs: int | None = None,
    **shard_options: int,
  ):
    """Opens a stream.

    Args:
      source: the documents.
      recipe: makes the rows.
      seed: determines the order, the pairs and the masks.
      name: the name of the stream. Two streams with equal seeds need different
        names.
      epochs: the number of epochs; None for an endless sequence.
      **shard_options: `shard_tokens` and `shards_per_portion`, see
        `portions.ShardPortions`; only for a corpus.

    Raises:
      UserError: the corpus cannot be used for the recipe.
    """
    self.features = recipe.features
    self._recipe, self._epochs = recipe, epochs
    self._portions: Portions
    if isinstance(source, Corpus):
      self._portions = ShardPortions(
        source, recipe, seed, name, **shard_options
      )
    else:
      self._portions = TextPortions(source, recipe, seed, name)
    self._key = hashing.make_key(self._portions.key, "build")
    self._go_to(0, 0, 0)

  def _go_to(self, epoch: int, start: int, first: int) -> None:
    """Moves to the portion at `start`, before the portion is read.

    Args:
      epoch: the number of the epoch, from 0.
      start: the `Portion.start` of the portion.
      first: the global number of the first example of the portion.
    """
    self._epoch, self._start, self._first = epoch, start, first
    self._iterator: Iterator[Portion] | None = None
    self._portion: Portion | None = None

  def _current_portion(self) -> Portion | None:
    """Returns the current portion; None after the last epoch.

    Raises:
      UserError: no epoch so far has an example.
    """
    while self._portion is None:
      if self._epoch == self._epochs:
        return None
      if self._iterator is None:
        self._iterator = self._portions.read(self._epoch, self._start)
      self._portion = next(self._iterator, None)
      if self._portion is not None:
        self._start = self._portion.start
      elif self._first:
        self._go_to(self._epoch + 1, 0, self._first)
      else:
        raise UserError(self._portions.empty_message)
    return self._portion

  def _advance(self, portion: Portion) -> None:
    """Moves to the next portion; `portion` is the current portion."""
    self._first += len(portion.elements)
    self._portion = None

  def count_examples(self, epochs: int, epoch: int = 0, first: int = 0) -> int:
    """Returns the number of examples in the first `epochs` epochs.

    Args:
      epochs: the number of epochs.
      epoch: the epoch where counting begins, at most `epochs`. After the call
        the stream is at the beginning of this epoch.
      first: the global number of the first example of `epoch`.
    """
    stream_epochs, self._epochs = self._epochs, epochs
    self._go_to(epoch, 0, first)
    while portion := self._current_portion():
      self._advance(portion)
    end_number = self._first
    self._epochs = stream_epochs
    self._go_to(epoch, 0, first)
    return end_number

  def read(self, first: int, count: int) -> Batch:
    """Returns examples [first, first + count); fewer after the last epoch."""
    if first < self._first:
      self._go_to(0, 0, 0)
    batches, num_read = [], 0
    while num_read < count and (portion := self._current_portion()):
      begin_in_portion = first + num_read - self._first
      elements = portion.elements[
        begin_in_portion : begin_in_portion + count - num_read
      ]
      end_in_portion = begin_in_portion + len(elements)
      if len(elements):
        # Draws depend on the global number of an example, so that every epoch
        # has new pairs and masks.
        numbers = np.arange(first + num_read, first + num_read + len(elements))
        numbers = numbers.astype(np.uint64)
        if portion.numbers is not None:
          numbers = portion.numbers[begin_in_portion:end_in_portion]
        batches.append(
          self._recipe.build(portion.corpus, elements, numbers, self._key)
        )
        num_read += len(elements)
      if num_read < count:
        self._advance(portion)
    if len(batches) == 1:
      return batches[0]
    batches.append(empty_rows(self.features, 0))
    return {
      key: np.concatenate([batch[key] for batch in batches])
      for key in self.features
    }

  def position(self) -> dict[str, int]:
    """Returns what `restore` needs to continue after the last `read`."""
    return {
      self._portions.identity_key: self._portions.identity,
      "epoch": self._epoch,
      self._portions.start_key: self._start,
      "first": self._first,
    }

  def restore(self, position: dict[str, int]) -> None:
    """Continues from a `position()`, and counts no examples before it.

    A position of a stream with a different seed, corpus or row length is
    ignored. A position only saves time: with or without it, `read` returns the
    same examples.
    """
    if position.get(self._portions.identity_key) == self._portions.identity:
      start = position[self._portions.start_key]
      self._go_to(position["epoch"], start, position["first"])


class Mixture:
  """Mixes the examples of several streams in fixed shares.

  The number of examples of a stream is equal in all blocks of 4096 examples.
  The order in a block is random, and depends on (seed, block). So the seed and
  the number of an example determine the example's stream.
  """

  def __init__(
    self, streams: Sequence[Source], weights: Sequence[float], seed: int
  ):
    """Mixes streams.

    Args:
      streams: streams with equal features.
      weights: the positive weight of each stream; their sum may be any number.
      seed: determines the order within blocks.

    Raises:
      UserError: features differ, or a weight is not positive or not finite, or
        is below 1/4096 of the sum of all weights.
    """
    self.features = streams[0].features
    for stream in streams:
      if stream.features != self.features:
        raise UserError(
          "the components of a mixture make different batches:"
          f" {stream.features} and {self.features}; give them equal options."
        )
    self._streams = streams
    cumulative_weights = np.cumsum(weights, dtype=np.float64)
    has_small_weight = min(weights) * MIXTURE_BLOCK < cumulative_weights[-1]
    if (
      has_small_weight
      or min(weights) <= 0
      or not np.isfinite(cumulative_weights[-1])
    ):
      raise UserError(
        f"mixture weights {list(weights)}: each must be positive and at least"
        f" 1/{MIXTURE_BLOCK} of their sum; leave out the smallest."
      )
    cumulative_counts = np.rint(
      cumulative_weights / cumulative_weights[-1] * MIXTURE_BLOCK
    ).astype(np.int64)
    # The number of examples of each stream in a block.
    self._counts = np.diff(cumulative_counts, prepend=0)
    self._key = hashing.make_key("mixture", seed)

  def _components(self, block: int) -> np.ndarray:
    """Returns [4096], the index of the stream of each example of a block."""
    places = np.arange(MIXTURE_BLOCK)
    order = np.argsort(hashing.bits(self._key, np.array(block), places))
    return np.repeat(np.arange(len(self._counts)), self._counts)[order]

  def read(self, first: int, count: int) -> Batch:
    """Returns examples [first, first + count), first >= 0, count >= 1."""
    first_block, num_skipped = divmod(first, MIXTURE_BLOCK)
    last_block = (first + count - 1) // MIXTURE_BLOCK
    components = np.concatenate(
      [self._components(block) for block in range(first_block, last_block + 1)]
    )
    skipped_components, row_components = (
      components[:num_skipped],
      components[num_skipped : num_skipped + count],
    )
    batch = empty_rows(self.features, count)
    for stream_index, stream in enumerate(self._streams):
      row_indices = np.flatnonzero(row_components == stream_index)
      if not len(row_indices):
        continue
      # The first example to read, by its number in its stream.
      first_to_read = first_block * int(self._counts[stream_index]) + int(
        np.sum(skipped_components == stream_index)
      )
      for key, array in stream.read(first_to_read, len(row_indices)).items():
        batch[key][row_indices] = array
    return batch

  def position(self) -> dict[str, int]:
    """Returns what `restore` needs to continue after the last `read`."""
    return {
      f"{stream_index}.{key}": number
      for stream_index, stream in enumerate(self._streams)
      for key, number in stream.position().items()
    }

  def restore(self, position: dict[str, int]) -> None:
    """Continues from a `position()`, and counts no examples before it."""
    for stream_index, stream in enumerate(self._streams):
      prefix = f"{stream_index}."
      stream.restore(
        {
          key.removeprefix(prefix): number
          for key, number in position.items()
          if key.startswith(prefix)
        }
      )


class Heldout:
  """Gives the evaluation set, with equal rows, pairs and masks in every run."""

  def __init__(
    self, corpora: Sequence[Corpus], recipe: Recipe, limit: int | None
  ):
    """Indexes the held-out documents.

    Args:
      corpora: the held-out documents of each data set of a mixture.
      recipe: makes the rows.
      limit: the largest number of examples. A hash chooses which examples are
        used; they keep the order of the corpora. None means all examples.

    Raises:
      UserError: a corpus cannot be used for the recipe, or `limit` is below 1.
    """
    if limit is not None and limit < 1:
      raise UserError(
        f"the limit of held-out examples is {limit}; it must be at least 1."
      )
    self.features = recipe.features
    self._corpora, self._recipe = corpora, recipe
    self._key = hashing.make_key("held-out")
    self._elements, offsets = [], [0]
    for corpus in corpora:
      recipe.check(corpus)
      bounds = shard_bounds(corpus, SHARD_TOKENS).tolist()
      elements = np.concatenate(
        [
          recipe.index(corpus, first_document, end_document, self._key)
          for first_document, end_document in itertools.pairwise(bounds)
        ]
      )
      self._elements.append(elements)
      offsets.append(offsets[-1] + len(elements))
    # Corpus i has the examples from offsets[i] on, up to offsets[i + 1].
    self._offsets = np.array(offsets)
    numbers = np.arange(offsets[-1])
    order = np.argsort(hashing.bits(self._key, numbers))
    # `limit` only selects examples. It does not change the number of an
    # example, and so does not change its masks.
    self._numbers = np.sort(order[:limit])

  def __len__(self) -> int:
    """Returns the number of examples."""
    return len(self._numbers)

  def read(self, first: int, count: int) -> Batch:
    """Returns rows [first, first + count); rows after the end are empty."""
    numbers = self._numbers[first : first + count]
    batch = empty_rows(self.features, count)
    for corpus_index, corpus in enumerate(self._corpora):
      first_number, end_number = self._offsets[corpus_index : corpus_index + 2]
      row_indices = np.flatnonzero(
        (first_number <= numbers) & (numbers < end_number)
      )
      if not len(row_indices):
        continue
      row_numbers = numbers[row_indices]
      elements = self._elements[corpus_index][row_numbers - first_number]
      built_batch = self._recipe.build(
        corpus, elements, row_numbers.astype(np.uint64), self._key
      )
      for key, array in built_batch.items():
        batch[key][row_indices] = array
    return batch


def make_heldout(
  corpus: Corpus, recipe: Recipe, limit: int | None = None
) -> Heldout:
  """Returns the evaluation set of one corpus; see `Heldout`."""
  return Heldout([corpus], recipe, limit)


class StatefulStreams:
  """Gives the windows of a corpus endlessly, with one stream for each row.

  With B streams, example n is window n // B of stream n % B. So row i of a
  batch of B rows continues where row i of the batch before ended. In an epoch,
  the B streams have equal lengths and follow each other in the text. In every
  epoch, the first stream begins at a new random word, and fewer than B windows
  of words are left out.
  """

  def __init__(self, corpus: Corpus, recipe: Recipe, seed: int):
    """Opens the streams.

    Args:
      corpus: the documents.
      recipe: a recipe whose `num_streams` is not 0.
      seed: decides at which word each epoch begins.

    Raises:
      UserError: the corpus cannot be used for the recipe, or is too short.
    """
    recipe.check(corpus)
    self.features = recipe.features
    self._corpus, self._recipe = corpus, recipe
    self._length = recipe.features["char_ids"][0][0]
    # A link is two neighbouring words in one sentence; each direction predicts
    # one of the two words.
    self._num_links = count_links(corpus)
    self._key = hashing.make_key("lanes", seed)
    # The number of windows of a stream in an epoch.
    self._windows_per_stream = self._num_links // (
      recipe.num_streams * self._length
    )
    if not self._windows_per_stream:
      raise UserError(
        f"the text has {self._num_links} words to predict, too few for"
        f" data.streams={recipe.num_streams} of data.length={self._length};"
        " lower one of them."
      )

  def read(self, first: int, count: int) -> Batch:
    """Returns examples [first, first + count); first >= 0 and count >= 1."""
    window, stream = np.divmod(
      np.arange(first, first + count), self._recipe.num_streams
    )
    epoch, window = np.divmod(window, self._windows_per_stream)
    links_per_stream = self._windows_per_stream * self._length
    # In each epoch, the first stream begins after a random number of the links
    # that are left over.
    num_spare_links = (
      self._num_links - self._recipe.num_streams * links_per_stream
    )
    stream_begins = stream * links_per_stream + hashing.randint(
      self._key, epoch, 0, num_spare_links + 1
    )
    forward_links = stream_begins + window * self._length
    backward_links = (
      stream_begins + (self._windows_per_stream - 1 - window) * self._length
    )
    windows = np.stack([forward_links, backward_links], -1)
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return self._recipe.build(self._corpus, windows, numbers, self._key)

  def position(self) -> dict[str, int]:
    """Returns an empty dict: an example depends only on its number."""
    return {}

  def restore(self, position: dict[str, int]) -> None:
    """Does nothing, see `position`."""
