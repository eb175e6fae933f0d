"""Reads an epoch in portions; the examples of a portion are shuffled together.

A stream reads an epoch portion by portion. A portion of a prepared corpus has
several shards. A portion of text that is tokenised during training is a group
of documents.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.recipes import Recipe, draws_key, fixed_numbers

# A corpus is indexed by shards of about this size. The index of a portion must
# fit into memory (about 100 MB at length 128), but the portion must be large
# enough to be shuffled well.
SHARD_TOKENS = 2**24
SHARDS_PER_PORTION = 16


@dataclasses.dataclass(frozen=True)
class Portion:
  """Holds the shuffled examples of a portion.

  Attributes:
    start: for a prepared corpus, the number of the portion in the epoch, from
      0; for a text, the index of the first raw document of the portion, from 0.
      `Portions.read` can begin at any `start`.
    corpus: the documents.
    elements: [N, ...] entries of the index that `Recipe.index` returned; the
      recipe makes an example from each of them.
    numbers: [N] uint64 numbers of the examples if the recipe repeats fixed
      copies (static masks); otherwise None, and the global numbers are used.
  """

  start: int
  corpus: Corpus
  elements: np.ndarray
  numbers: np.ndarray | None


class GroupedText(Protocol):
  """Describes the type of text that is tokenised during training.

  `plain_text.Text` has this type.

  Attributes:
    path: the name of the text, for messages.
    meta: a dict; its key `fingerprint` has a hash of everything that the
      examples depend on.
  """

  path: str
  meta: dict[str, Any]

  def groups(self, first_index: int) -> Iterator[tuple[int, Corpus]]:
    """See `plain_text.Text.groups`."""


class Portions(Protocol):
  """Describes the type of a reader of the portions of every epoch.

  Attributes:
    key: the key of the stream.
    identity_key: the key of `identity` in the dict `Stream.position`.
    start_key: the key of a portion's `start` in the dict `Stream.position`.
    identity: a number below 2**53, for JSON. A stream can continue from any
      position that has the stream's `identity`.
    empty_message: the error message if a whole epoch gives no example.
  """

  key: int
  identity_key: str
  start_key: str
  identity: int
  empty_message: str

  def read(self, epoch: int, start: int) -> Iterator[Portion]:
    """Yields the portions of an epoch from the portion at `start` on."""
    ...


def shard_bounds(corpus: Corpus, shard_tokens: int) -> np.ndarray:
  """Returns the bounds of shards, as [shards + 1] indices of documents.

  Shard i begins at bound i and ends before bound i + 1. A shard has about
  `shard_tokens` tokens, or more if its last document is long.
  """
  first_tokens = np.arange(0, corpus.num_tokens, shard_tokens)
  first_sentences = np.searchsorted(corpus.sentences, first_tokens)
  first_documents = np.searchsorted(corpus.documents, first_sentences)
  return np.unique(np.append(first_documents, corpus.num_documents))


class ShardPortions:
  """Reads the portions of a prepared corpus; see `Portions`.

  Epoch e visits all shards in a random order that depends on (name, seed, e). A
  portion is 16 consecutive shards of this order. So a corpus below 2**28 tokens
  is one portion and is shuffled as a whole. A corpus with more tokens has
  several portions. Only the index of one portion is in memory.
  """

  # A saved position has the number of a portion under the key "window".
  identity_key, start_key = "stream", "window"
  empty_message = (
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
    shards_per_portion: int = SHARDS_PER_PORTION,
  ):
    """Divides a corpus into shards.

    Args:
      corpus: the documents.
      recipe: makes the rows.
      seed: see `streams.Stream`.
      name: see `streams.Stream`.
      shard_tokens: the approximate number of tokens in a shard.
      shards_per_portion: the number of shards in a portion.

    Raises:
      UserError: the corpus cannot be used for the recipe.
    """
    recipe.check(corpus)
    self._corpus, self._recipe = corpus, recipe
    self._bounds = shard_bounds(corpus, shard_tokens)
    self._shards_per_portion = shards_per_portion
    self.key = hashing.make_key("stream", name, seed)
    identity_text = f"{recipe.features} {shard_tokens} {shards_per_portion}"
    identity_text += f" copies {recipe.copies}" if recipe.copies else ""
    self.identity = (
      hashing.make_key(self.key, identity_text, corpus.num_tokens) >> 11
    )

  def read(self, epoch: int, start: int) -> Iterator[Portion]:
    """Returns the portions of an epoch, beginning with portion `start`."""
    num_portions = -(-(len(self._bounds) - 1) // self._shards_per_portion)
    return (
      self._portion(epoch, number) for number in range(start, num_portions)
    )

  def _portion(self, epoch: int, number: int) -> Portion:
    """Indexes the shards of a portion, and shuffles their examples."""
    key = hashing.make_key(self.key, "epoch", epoch)
    key_of_draws = draws_key(self._recipe, self.key, epoch)
    shards = np.arange(len(self._bounds) - 1)
    shard_order = np.argsort(
      hashing.bits(hashing.make_key(key, "shards"), shards)
    )
    first_shard_place = number * self._shards_per_portion
    elements_by_shard, numbers_by_shard = [], []
    for shard in shard_order[
      first_shard_place : first_shard_place + self._shards_per_portion
    ]:
      first_document, end_document = self._bounds[shard : shard + 2].tolist()
      index_key = hashing.make_key(key_of_draws, "index")
      shard_elements = self._recipe.index(
        self._corpus, first_document, end_document, index_key
      )
      elements_by_shard.append(shard_elements)
      if self._recipe.copies:
        shard_key = hashing.make_key(key_of_draws, "shard", first_document)
        numbers_by_shard.append(fixed_numbers(shard_key, len(shard_elements)))
    elements = np.concatenate(elements_by_shard)
    key = hashing.make_key(key, "chunks", number)
    order = np.argsort(hashing.bits(key, np.arange(len(elements))))
    portion_numbers = (
      np.concatenate(numbers_by_shard)[order] if numbers_by_shard else None
    )
    return Portion(number, self._corpus, elements[order], portion_numbers)


class TextPortions:
  """Reads the groups of documents of a text, in order; see `Portions`."""

  identity_key, start_key = "text", "record"

  def __init__(self, text: GroupedText, recipe: Recipe, seed: int, name: str):
    """Opens a text; for the arguments see `streams.Stream`."""
    self._text, self._recipe = text, recipe
    self.key = hashing.make_key("text", name, seed)
    identity_text = f"{recipe.features} {text.meta['fingerprint']}"
    identity_text += f" copies {recipe.copies}" if recipe.copies else ""
    self.identity = hashing.make_key(self.key, identity_text) >> 11
    self.empty_message = (
      f"{text.path}: a whole epoch gave no example; there is no text, or its"
      " documents are too short for this objective."
    )

  def read(self, epoch: int, start: int) -> Iterator[Portion]:
    """Yields the groups of an epoch, beginning at document `start`."""
    for first_index, corpus in self._text.groups(start):
      yield self._group(epoch, first_index, corpus)

  def _group(self, epoch: int, first_index: int, corpus: Corpus) -> Portion:
    """Indexes the documents of a group, and shuffles their examples."""
    self._recipe.check(corpus)
    key = hashing.make_key(self.key, "epoch", epoch, first_index)
    key_of_draws = draws_key(self._recipe, self.key, epoch, first_index)
    elements = self._recipe.index(
      corpus, 0, corpus.num_documents, hashing.make_key(key_of_draws, "rows")
    )
    order = np.argsort(hashing.bits(key, np.arange(len(elements))))
    numbers = None
    if self._recipe.copies:
      numbers = fixed_numbers(key_of_draws, len(elements))[order]
    return Portion(first_index, corpus, elements[order], numbers)
