"""Examples in order: endless streams, mixtures of them, the held-out set.

Each has `read(first, count)`, which returns rows [first, first + count) as a
batch and depends on nothing but its arguments: what a host reads, in what
steps, and after how many restarts, changes nothing. `position()` is a cache
that saves a restart the counting.
"""

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.batch_keys import Batch, Features, padding
from bert_jax.examples.recipes_builder import Builder, draws_key, fixed_numbers

# The unit of indexing: small enough for a window of shards (about 100 MB of
# index at length 128) to stay in memory, large enough to be shuffled well.
SHARD_TOKENS = 2**24
WINDOW_SHARDS = 16
# Slots in which a mixture's shares are exact up to rounding.
MIXTURE_BLOCK = 4096


class Source(Protocol):
  """What the loader reads from."""

  features: Features

  def read(self, first: int, count: int) -> Batch: ...
  def position(self) -> dict[str, int]: ...
  def restore(self, position: dict[str, int]) -> None: ...


def shard_bounds(corpus: Corpus, shard_tokens: int) -> np.ndarray:
  """Returns [shards + 1] document numbers, about `shard_tokens` apart.

  Documents stay whole, so one giant document is one shard.
  """
  marks = np.arange(0, corpus.num_tokens, shard_tokens)
  marks = np.searchsorted(corpus.sentences, marks)
  marks = np.searchsorted(corpus.documents, marks)
  return np.unique(np.append(marks, corpus.num_documents))


class Stream:
  """The endless sequence of a corpus's examples, shuffled in every epoch.

  Epoch e visits all shards in an order permuted by (seed, e). The chunks of a
  window of 16 consecutive shards are permuted together: a corpus below 2**28
  tokens is shuffled as a whole, a larger one in bounded memory. An epoch is all
  chunks of all shards; their number differs by epoch. With `Builder.copies`
  only the order is new in every epoch.
  """

  def __init__(
    self,
    corpus: Corpus,
    builder: Builder,
    seed: int,
    name: str = "",
    shard_tokens: int = SHARD_TOKENS,
    window_shards: int = WINDOW_SHARDS,
  ):
    """Opens a stream.

    Args:
      corpus: the documents.
      builder: the objective.
      seed: another seed gives other chunks, order, pairs and masks.
      name: tells the streams of one seed apart.
      shard_tokens: tokens in a shard.
      window_shards: shards that are shuffled together.

    Raises:
      ValueError: the corpus cannot serve the builder.
    """
    builder.check(corpus)
    self.features = builder.features
    self._corpus, self._builder = corpus, builder
    self._bounds = shard_bounds(corpus, shard_tokens)
    self._window_shards = window_shards
    self._key = hashing.make_key("stream", name, seed)
    # What a position of this stream can be used for; below 2**53 for JSON.
    layout = f"{builder.features} {shard_tokens} {window_shards}"
    layout += f" copies {builder.copies}" if builder.copies else ""
    self._identity = (
      hashing.make_key(self._key, layout, corpus.num_tokens) >> 11
    )
    self._go_to(0, 0, 0)

  def _go_to(self, epoch: int, window: int, first: int) -> None:
    self._epoch, self._window, self._first = epoch, window, first
    self._rows: np.ndarray | None = None
    # Of the rows, where a builder has copies; else they are the global ones.
    self._numbers: np.ndarray | None = None

  def _load(self) -> np.ndarray:
    """Returns the current window's chunks in their order."""
    if self._rows is None:
      key = hashing.make_key(self._key, "epoch", self._epoch)
      draws = draws_key(self._builder, self._key, self._epoch)
      shards = np.arange(len(self._bounds) - 1)
      order = np.argsort(hashing.bits(hashing.make_key(key, "shards"), shards))
      begin = self._window * self._window_shards
      parts, numbers = [], []
      for shard in order[begin : begin + self._window_shards]:
        first, last = self._bounds[shard : shard + 2].tolist()
        parts.append(
          self._builder.index(
            self._corpus, first, last, hashing.make_key(draws, "index")
          )
        )
        if self._builder.copies:
          own = hashing.make_key(draws, "shard", first)
          numbers.append(fixed_numbers(own, len(parts[-1])))
      rows = np.concatenate(parts)
      key = hashing.make_key(key, "chunks", self._window)
      order = np.argsort(hashing.bits(key, np.arange(len(rows))))
      self._rows = rows[order]
      if numbers:
        self._numbers = np.concatenate(numbers)[order]
    return self._rows

  def _advance(self) -> None:
    """Moves to the next window."""
    first = self._first + len(self._load())
    windows = -(-(len(self._bounds) - 1) // self._window_shards)
    epoch, window = divmod(self._epoch * windows + self._window + 1, windows)
    if epoch and not first:
      raise ValueError(
        "a whole epoch gave no example; the documents are too short for this"
        " objective."
      )
    self._go_to(epoch, window, first)

  def _slice(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index rows [first, first + count) and their numbers."""
    if first < self._first:
      self._go_to(0, 0, 0)
    parts, have = [], 0
    # The global number of an example enters its draws, so that every epoch has
    # its own pairs and masks.
    positions = np.arange(first, first + count, dtype=np.uint64)
    while have < count:
      begin = first + have - self._first
      part = self._load()[begin : begin + count - have]
      parts.append(part)
      if self._numbers is not None:
        fixed = self._numbers[begin : begin + len(part)]
        positions[have : have + len(part)] = fixed
      have += len(part)
      if have < count:
        self._advance()
    return np.concatenate(parts), positions

  def read(self, first: int, count: int) -> Batch:
    """Returns examples [first, first + count), first >= 0, count >= 1."""
    rows, positions = self._slice(first, count)
    key = hashing.make_key(self._key, "build")
    return self._builder.build(self._corpus, rows, positions, key)

  def position(self) -> dict[str, int]:
    """Returns where the last `read` ended, for `restore`."""
    return {
      "stream": self._identity,
      "epoch": self._epoch,
      "window": self._window,
      "first": self._first,
    }

  def restore(self, position: dict[str, int]) -> None:
    """Continues from a `position()` without counting up to it.

    The position of another stream (seed, corpus, row length) is ignored: it
    saves time only, the examples are the same without it.
    """
    if position.get("stream") == self._identity:
      self._go_to(position["epoch"], position["window"], position["first"])


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
      streams: of equal features.
      weights: positive, in any unit.
      seed: of the order within blocks.

    Raises:
      ValueError: features differ, or a weight is too small or not positive.
    """
    self.features = streams[0].features
    for stream in streams:
      if stream.features != self.features:
        raise ValueError(
          "the components of a mixture make different batches:"
          f" {stream.features} and {self.features}; give them equal options."
        )
    self._streams = streams
    ends = np.cumsum(weights, dtype=np.float64)
    small = min(weights) * MIXTURE_BLOCK < ends[-1]
    if small or min(weights) <= 0 or not np.isfinite(ends[-1]):
      raise ValueError(
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
    self, corpora: Sequence[Corpus], builder: Builder, limit: int | None
  ):
    """Indexes the held-out documents.

    Args:
      corpora: held-out documents, of each component of a mixture.
      builder: the objective.
      limit: take a subset of this size, chosen by hash, in corpus order; None
        takes all.

    Raises:
      ValueError: a corpus cannot serve the builder, or `limit` is below 1.
    """
    if limit is not None and limit < 1:
      raise ValueError(
        f"the limit of held-out examples is {limit}; at least 1."
      )
    self.features = builder.features
    self._corpora, self._builder = corpora, builder
    self._key = hashing.make_key("held-out")
    self._rows, offsets = [], [0]
    for corpus in corpora:
      builder.check(corpus)
      bounds = shard_bounds(corpus, SHARD_TOKENS).tolist()
      rows = np.concatenate(
        [
          builder.index(corpus, first, last, self._key)
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
      part = self._builder.build(
        corpus,
        self._rows[i][chosen - begin],
        chosen.astype(np.uint64),
        self._key,
      )
      for key, value in part.items():
        batch[key][rows] = value
    return batch


def heldout(
  corpus: Corpus, builder: Builder, limit: int | None = None
) -> Heldout:
  """Returns the evaluation set of one corpus; see `Heldout`."""
  return Heldout([corpus], builder, limit)
