"""Examples in order: endless streams, mixtures of them, the held-out set.

Each has `read(first, count)`, which returns rows [first, first + count) as a
batch and depends on nothing but its arguments: what a host reads, in what
steps, and after how many restarts, changes nothing. `position()` is a cache
that saves a restart the counting.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.batch_keys import Batch, Features, padding
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

# Slots in which a mixture's shares are exact up to rounding.
MIXTURE_BLOCK = 4096


class Source(Protocol):
  """What the loader reads from."""

  features: Features

  def read(self, first: int, count: int) -> Batch: ...
  def position(self) -> dict[str, int]: ...
  def restore(self, position: dict[str, int]) -> None: ...


class Stream:
  """The endless sequence of the examples of a corpus or a text.

  Each epoch has chunks, pairs and masks of its own, shuffled portion by portion
  (see `portions`). An epoch is all chunks of all documents; their number
  differs by epoch. With `Recipe.copies` only the order is new in every epoch.

  A stream reads forward: an earlier row starts from the beginning again, unless
  `restore` tells where a later one is to be found.
  """

  def __init__(
    self,
    source: Corpus | GroupedText,
    recipe: Recipe,
    seed: int,
    name: str = "",
    *,
    epochs: int | None = None,
    **shards: int,
  ):
    """Opens a stream.

    Args:
      source: the documents.
      recipe: makes the rows.
      seed: another seed gives other chunks, order, pairs and masks.
      name: the name of the stream; streams with one seed need different names.
      epochs: the number of epochs; None for an endless sequence.
      **shards: of a corpus, `shard_tokens` and `window_shards`, see
        `portions.ShardPortions`.

    Raises:
      ValueError: the corpus cannot serve the recipe.
    """
    self.features = recipe.features
    self._recipe, self._epochs = recipe, epochs
    self._portions: Portions
    if isinstance(source, Corpus):
      self._portions = ShardPortions(source, recipe, seed, name, **shards)
    else:
      self._portions = TextPortions(source, recipe, seed, name)
    self._key = hashing.make_key(self._portions.key, "build")
    self._go_to(0, 0, 0)

  def _go_to(self, epoch: int, place: int, first: int) -> None:
    self._epoch, self._place, self._first = epoch, place, first
    self._iterator: Iterator[Portion] | None = None
    self._portion: Portion | None = None

  def _load(self) -> Portion | None:
    """Returns the current portion, None beyond the last epoch.

    Raises:
      ValueError: there are no examples.
    """
    while self._portion is None:
      if self._epoch == self._epochs:
        return None
      if self._iterator is None:
        self._iterator = self._portions.read(self._epoch, self._place)
      self._portion = next(self._iterator, None)
      if self._portion is not None:
        self._place = self._portion.place
      elif self._first:
        self._go_to(self._epoch + 1, 0, self._first)
      else:
        raise UserError(self._portions.empty)
    return self._portion

  def _advance(self) -> None:
    """Moves to the portion after the current one."""
    self._first += len(self._portion.rows)
    self._portion = None

  def count(self, epochs: int, epoch: int = 0, first: int = 0) -> int:
    """Returns the number of examples in the first `epochs` epochs.

    Args:
      epochs: how many.
      epoch: an epoch not after them, to count from; the stream goes on there.
      first: the number of its first example.
    """
    limit, self._epochs = self._epochs, epochs
    self._go_to(epoch, 0, first)
    while self._load() is not None:
      self._advance()
    end = self._first
    self._epochs = limit
    self._go_to(epoch, 0, first)
    return end

  def read(self, first: int, count: int) -> Batch:
    """Returns examples [first, first + count), fewer where `epochs` end."""
    if first < self._first:
      self._go_to(0, 0, 0)
    batches, size = [], 0
    while size < count and (portion := self._load()) is not None:
      begin = first + size - self._first
      rows = portion.rows[begin : begin + count - size]
      if len(rows):
        # The global number of an example enters its draws, so that every epoch
        # has its own pairs and masks.
        numbers = np.arange(first + size, first + size + len(rows))
        numbers = numbers.astype(np.uint64)
        if portion.numbers is not None:
          numbers = portion.numbers[begin : begin + len(rows)]
        batches.append(
          self._recipe.build(portion.corpus, rows, numbers, self._key)
        )
        size += len(rows)
      if size < count:
        self._advance()
    if len(batches) == 1:
      return batches[0]
    batches.append(padding(self.features, 0))
    return {
      key: np.concatenate([batch[key] for batch in batches])
      for key in self.features
    }

  def position(self) -> dict[str, int]:
    """Returns where the last `read` ended, for `restore`."""
    return {
      self._portions.kind: self._portions.identity,
      "epoch": self._epoch,
      self._portions.unit: self._place,
      "first": self._first,
    }

  def restore(self, position: dict[str, int]) -> None:
    """Continues from a `position()` without counting up to it.

    The position of another stream (seed, corpus, row length) is ignored: it
    saves time only, the examples are the same without it.
    """
    if position.get(self._portions.kind) == self._portions.identity:
      place = position[self._portions.unit]
      self._go_to(position["epoch"], place, position["first"])


class Mixture:
  """Examples of several streams in fixed shares.

  Every block of 4096 examples holds the same number from each stream, in an
  order permuted by (seed, block). Where an example comes from follows from its
  number alone.
  """

  def __init__(
    self, streams: Sequence[Source], weights: Sequence[float], seed: int
  ):
    """Mixes streams.

    Args:
      streams: streams with equal features.
      weights: positive, in any unit.
      seed: another seed gives another order within blocks.

    Raises:
      ValueError: features differ, or a weight is too small or not positive.
    """
    self.features = streams[0].features
    for stream in streams:
      if stream.features != self.features:
        raise UserError(
          "the components of a mixture make different batches:"
          f" {stream.features} and {self.features}; give them equal options."
        )
    self._streams = streams
    ends = np.cumsum(weights, dtype=np.float64)
    small = min(weights) * MIXTURE_BLOCK < ends[-1]
    if small or min(weights) <= 0 or not np.isfinite(ends[-1]):
      raise UserError(
        f"mixture weights {list(weights)}: each must be positive and at least"
        f" 1/{MIXTURE_BLOCK} of their sum; leave out the smallest."
      )
    ends = np.rint(ends / ends[-1] * MIXTURE_BLOCK).astype(np.int64)
    self._counts = np.diff(ends, prepend=0)
    self._key = hashing.make_key("mixture", seed)

  def _components(self, block: int) -> np.ndarray:
    """Returns which stream fills each slot of a block."""
    slots = np.arange(MIXTURE_BLOCK)
    order = np.argsort(hashing.bits(self._key, block, slots))
    return np.repeat(np.arange(len(self._counts)), self._counts)[order]

  def read(self, first: int, count: int) -> Batch:
    """Returns examples [first, first + count), first >= 0, count >= 1."""
    block, skip = divmod(first, MIXTURE_BLOCK)
    last = (first + count - 1) // MIXTURE_BLOCK
    slots = np.concatenate(
      [self._components(i) for i in range(block, last + 1)]
    )
    before, slots = slots[:skip], slots[skip : skip + count]
    batch = padding(self.features, count)
    for i, stream in enumerate(self._streams):
      rows = np.flatnonzero(slots == i)
      if not len(rows):
        continue
      begin = block * int(self._counts[i]) + np.count_nonzero(before == i)
      part = stream.read(begin, len(rows))
      for key, value in part.items():
        batch[key][rows] = value
    return batch

  def position(self) -> dict[str, int]:
    """Returns where the last `read` ended, for `restore`."""
    return {
      f"{i}.{key}": value
      for i, stream in enumerate(self._streams)
      for key, value in stream.position().items()
    }

  def restore(self, position: dict[str, int]) -> None:
    """Continues from a `position()` without counting up to it."""
    for i, stream in enumerate(self._streams):
      prefix = f"{i}."
      stream.restore(
        {
          key.removeprefix(prefix): value
          for key, value in position.items()
          if key.startswith(prefix)
        }
      )


class Heldout:
  """The fixed evaluation set: the same rows, pairs and masks in every run."""

  def __init__(
    self, corpora: Sequence[Corpus], recipe: Recipe, limit: int | None
  ):
    """Indexes the held-out documents.

    Args:
      corpora: held-out documents, of each component of a mixture.
      recipe: makes the rows.
      limit: take a subset of this size, chosen by hash, in corpus order; None
        takes all.

    Raises:
      ValueError: a corpus cannot serve the recipe, or `limit` is below 1.
    """
    if limit is not None and limit < 1:
      raise UserError(f"the limit of held-out examples is {limit}; at least 1.")
    self.features = recipe.features
    self._corpora, self._recipe = corpora, recipe
    self._key = hashing.make_key("held-out")
    self._rows, offsets = [], [0]
    for corpus in corpora:
      recipe.check(corpus)
      bounds = shard_bounds(corpus, SHARD_TOKENS).tolist()
      rows = np.concatenate(
        [
          recipe.index(corpus, first, last, self._key)
          for first, last in itertools.pairwise(bounds)
        ]
      )
      self._rows.append(rows)
      offsets.append(offsets[-1] + len(rows))
    self._offsets = np.array(offsets)
    numbers = np.arange(offsets[-1])
    order = np.argsort(hashing.bits(self._key, numbers))
    # An example keeps its number, hence its masks, whatever the limit.
    self._numbers = np.sort(order[:limit])

  def __len__(self) -> int:
    return len(self._numbers)

  def read(self, first: int, count: int) -> Batch:
    """Returns rows [first, first + count); those beyond the end are padding."""
    numbers = self._numbers[first : first + count]
    batch = padding(self.features, count)
    for i, corpus in enumerate(self._corpora):
      begin, end = self._offsets[i : i + 2]
      rows = np.flatnonzero((begin <= numbers) & (numbers < end))
      if not len(rows):
        continue
      chosen = numbers[rows]
      part = self._recipe.build(
        corpus,
        self._rows[i][chosen - begin],
        chosen.astype(np.uint64),
        self._key,
      )
      for key, value in part.items():
        batch[key][rows] = value
    return batch


def heldout(
  corpus: Corpus, recipe: Recipe, limit: int | None = None
) -> Heldout:
  """Returns the evaluation set of one corpus; see `Heldout`."""
  return Heldout([corpus], recipe, limit)
