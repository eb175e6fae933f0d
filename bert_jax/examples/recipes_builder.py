"""What a builder is: from a corpus to the batches of an objective.

A builder is a few pure numpy functions. `index` cuts an epoch of a range of
documents into examples; `build` turns any of them into a batch. Streams,
mixtures and seqio tasks know no more about an objective than this.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples import assembly, pairs
from bert_jax.examples.batch_keys import Batch, Features, select
from bert_jax.examples.masking import Masks, check_corpus

# The special tokens of a masked language model, of `SpecialIds`.
ROLES = ("pad", "cls", "sep", "mask")


class Builder(NamedTuple):
  """What a stream needs to know about an objective.

  Attributes:
    features: key -> (shape of one row, dtype).
    check: (corpus); raises ValueError if it cannot serve the objective.
    index: (corpus, first document, last document, key) -> array, one element
      along its first axis an example of this epoch.
    build: (corpus, [B] elements of the index, [B] uint64 numbers of the
      examples, key) -> batch. The numbers and the key determine every draw.
    roles: the special tokens that it needs, of `SpecialIds`.
    copies: 0 if every epoch has examples of its own; else epoch e repeats those
      of epoch e mod `copies`, masks and all, in another order.
    lanes: 0, or the streams of text that go on from batch to batch, one a row;
      see `lanes.Lanes`.
    settle: see `assembly.Settle`: which texts elements of the index stand for;
      None if they are no `rows.EXAMPLE`.
    pairs: True if a row has two texts and a label for how they belong together.
  """

  features: Features
  check: Callable[[Corpus], None]
  index: Callable[[Corpus, int, int, int], np.ndarray]
  build: Callable[[Corpus, np.ndarray, np.ndarray, int], Batch]
  roles: tuple[str, ...]
  copies: int
  lanes: int = 0
  settle: assembly.Settle | None = None
  pairs: bool = False


def draws_key(builder: Builder, key: int, *place: int) -> int:
  """The key of an epoch's examples: its own, or that of its copy.

  Args:
    builder: of a stream.
    key: of the stream.
    *place: the epoch, and what else tells keys apart.
  """
  epoch, *rest = place
  if not builder.copies:
    return hashing.make_key(key, "epoch", *place)
  return hashing.make_key(key, "copy", epoch % builder.copies, *rest)


def fixed_numbers(key: int, count: int) -> np.ndarray:
  """Numbers of examples that every epoch of a copy gives them, [count] uint64.

  Args:
    key: of the copy and of the part of the corpus.
    count: examples of the part.
  """
  return hashing.bits(hashing.make_key(key, "numbers"), np.arange(count))


def check_shares(**shares: float) -> None:
  """Raises ValueError, naming the option, its value and its range."""
  for name, share in shares.items():
    if not 0 <= share <= 1:
      raise ValueError(f"{name} is {share}; it is a share, 0 to 1.")


def _check(corpus: Corpus, masks: Masks | None, needs_two: bool) -> None:
  if needs_two:
    pairs.check_pairs(corpus)
  if masks is not None:
    check_corpus(corpus, masks)


def make(
  layout: assembly.Layout,
  index: Callable[..., np.ndarray],
  static_masks: int = 0,
  settle: assembly.Settle = assembly.settled,
  needs_two: bool = False,
) -> Builder:
  """Puts a builder together.

  Args:
    layout: of the rows.
    index: as `Builder.index`, of single examples.
    static_masks: as `Builder.copies`.
    settle: what these examples are.
    needs_two: a corpus must have two documents.
  """
  assembly.check_layout(layout)
  if static_masks < 0:
    raise ValueError(f"static_masks is {static_masks}; 0 for new ones always.")
  if layout.max_sequences > 1:
    index = functools.partial(
      assembly.index_packed, layout=layout, index=index, settle=settle
    )
    settle = assembly.settled
  return Builder(
    select(assembly.keys(layout), assembly.sizes(layout)),
    functools.partial(_check, masks=layout.masks, needs_two=needs_two),
    index,
    functools.partial(assembly.build, layout=layout, settle=settle),
    ROLES if layout.masks else (),
    static_masks,
    settle=settle,
    pairs=layout.pairs,
  )
