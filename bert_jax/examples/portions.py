"""The portions of an epoch, each of which is shuffled as a whole.

A prepared corpus has windows of shards, text that is tokenised on the way has
groups of documents. A stream reads either, portion by portion.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.recipes import Recipe, draws_key, fixed_numbers

# The unit of indexing: small enough for a window of shards (about 100 MB of
# index at length 128) to stay in memory, large enough to be shuffled well.
SHARD_TOKENS = 2**24
WINDOW_SHARDS = 16


@dataclasses.dataclass(frozen=True)
class Portion:
  """Examples in their order.

  Attributes:
    place: the argument with which `Portions.read` begins at this portion.
    corpus: the documents.
    rows: elements of the recipe's index.
    numbers: uint64 numbers of the examples when the recipe repeats fixed copies
      (static masks); otherwise None, and the global numbers are used.
  """

  place: int
  corpus: Corpus
  rows: np.ndarray
  numbers: np.ndarray | None


class GroupedText(Protocol):
  """Text that is tokenised on the way, such as `plain_text.Text`.

  Attributes:
    path: a name, for messages.
    meta: `fingerprint` of everything the examples depend on.
  """

  path: str
  meta: dict[str, Any]

  def groups(self, record: int) -> Iterator[tuple[int, Corpus]]:
    """Yields the number of each group's first record, and the group."""


class Portions(Protocol):
  """The portions of every epoch.

  Attributes:
    key: the key of the stream.
    kind: the key of a position under which `identity` stands.
    unit: the key of a position under which a portion's place stands.
    identity: equal for streams that can share positions; below 2**53 for JSON.
    empty: the message of the error if a whole epoch gives no example.
  """

  key: int
  kind: str
  unit: str
  identity: int
  empty: str

  def read(self, epoch: int, place: int) -> Iterator[Portion]:
    """Yields the portions of an epoch, from a place on."""
    ...


def shard_bounds(corpus: Corpus, shard_tokens: int) -> np.ndarray:
  """Returns [shards + 1] document numbers, about `shard_tokens` apart.

  Documents stay whole, so one giant document is one shard.
  """
  marks = np.arange(0, corpus.num_tokens, shard_tokens)
  marks = np.searchsorted(corpus.sentences, marks)
  marks = np.searchsorted(corpus.documents, marks)
  return np.unique(np.append(marks, corpus.num_documents))


class ShardPortions:
  """Windows of consecutive shards of a corpus; see `Portions`.

  Epoch e visits all shards in an order permuted by (seed, e). The chunks of a
  window of 16 consecutive shards are permuted together: a corpus below 2**28
  tokens is shuffled as a whole, a larger one in bounded memory.
  """

  kind, unit = "stream", "window"
  empty = (
    "a whole epoch gave no example; the documents are too short for this"
    " objective."
  )

  def __init__(
    self,
    corpus: Corpus,
    recipe: Recipe,
    seed: int,
    name: str,
    shard_tokens: int = SHARD_TOKENS,
    window_shards: int = WINDOW_SHARDS,
  ):
    """See `streams.Stream`."""
    recipe.check(corpus)
    self._corpus, self._recipe = corpus, recipe
    self._bounds = shard_bounds(corpus, shard_tokens)
    self._window_shards = window_shards
    self.key = hashing.make_key("stream", name, seed)
    layout = f"{recipe.features} {shard_tokens} {window_shards}"
    layout += f" copies {recipe.copies}" if recipe.copies else ""
    self.identity = hashing.make_key(self.key, layout, corpus.num_tokens) >> 11

  def read(self, epoch: int, place: int) -> Iterator[Portion]:
    """Returns the windows of an epoch, from the number `place` on."""
    count = -(-(len(self._bounds) - 1) // self._window_shards)
    return (self._window(epoch, window) for window in range(place, count))

  def _window(self, epoch: int, window: int) -> Portion:
    key = hashing.make_key(self.key, "epoch", epoch)
    draws = draws_key(self._recipe, self.key, epoch)
    shards = np.arange(len(self._bounds) - 1)
    order = np.argsort(hashing.bits(hashing.make_key(key, "shards"), shards))
    begin = window * self._window_shards
    parts, numbers = [], []
    for shard in order[begin : begin + self._window_shards]:
      first, last = self._bounds[shard : shard + 2].tolist()
      parts.append(
        self._recipe.index(
          self._corpus, first, last, hashing.make_key(draws, "index")
        )
      )
      if self._recipe.copies:
        shard_key = hashing.make_key(draws, "shard", first)
        numbers.append(fixed_numbers(shard_key, len(parts[-1])))
    rows = np.concatenate(parts)
    key = hashing.make_key(key, "chunks", window)
    order = np.argsort(hashing.bits(key, np.arange(len(rows))))
    fixed = np.concatenate(numbers)[order] if numbers else None
    return Portion(window, self._corpus, rows[order], fixed)


class TextPortions:
  """Groups of the documents of a text, in its order; see `Portions`."""

  kind, unit = "text", "record"

  def __init__(self, text: GroupedText, recipe: Recipe, seed: int, name: str):
    """See `streams.Stream`."""
    self._text, self._recipe = text, recipe
    self.key = hashing.make_key("text", name, seed)
    layout = f"{recipe.features} {text.meta['fingerprint']}"
    layout += f" copies {recipe.copies}" if recipe.copies else ""
    self.identity = hashing.make_key(self.key, layout) >> 11
    self.empty = (
      f"{text.path}: a whole epoch gave no example; there is no text, or its"
      " documents are too short for this objective."
    )

  def read(self, epoch: int, place: int) -> Iterator[Portion]:
    for record, corpus in self._text.groups(place):
      yield self._group(epoch, record, corpus)

  def _group(self, epoch: int, record: int, corpus: Corpus) -> Portion:
    self._recipe.check(corpus)
    key = hashing.make_key(self.key, "epoch", epoch, record)
    draws = draws_key(self._recipe, self.key, epoch, record)
    rows = self._recipe.index(
      corpus, 0, corpus.num_documents, hashing.make_key(draws, "rows")
    )
    order = np.argsort(hashing.bits(key, np.arange(len(rows))))
    numbers = None
    if self._recipe.copies:
      numbers = fixed_numbers(draws, len(rows))[order]
    return Portion(record, corpus, rows[order], numbers)
