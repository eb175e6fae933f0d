"""Defines the sizes of the train steps that are timed; makes random rows."""

import argparse
from typing import NamedTuple

import numpy as np

NUM_BATCHES = 4
# Family -> size -> (width, layers, heads); for ELECTRA also the generator's
# width. bert_jax.models has these numbers too, but importing that module would
# load jax into the peer's process.
BERT_SIZES = {"base": (768, 12, 12), "large": (1024, 24, 16)}
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
  "bert": BERT_SIZES,
  "roberta": BERT_SIZES,
  "albert": BERT_SIZES | {"xlarge": (2048, 24, 16), "xxlarge": (4096, 12, 64)},
  "electra": {
    "small": (256, 12, 4, 64),
    "base": (768, 12, 12, 256),
    "large": (1024, 24, 16, 256),
  },
}


class StepSizes(NamedTuple):
  """Holds the default sizes of a family's step; flags change them.

  Attributes:
    size: the name of a published size, without a version.
    rows: the number of rows in a batch. RoBERTa and ALBERT were trained with
      thousands of rows.
    length: the number of tokens in a row, as in the config of that size.
    predictions: the number of predictions in a row, as in that config.
    vocab: the number of pieces of the published vocabulary.
    has_pairs: True if rows are two segments with a label.
  """

  size: str
  rows: int
  length: int
  predictions: int
  vocab: int
  has_pairs: bool


DEFAULT_SIZES = {
  "bert": StepSizes("base", 256, 128, 20, 30522, True),
  "roberta": StepSizes("base", 64, 512, 80, 50265, False),
  "albert": StepSizes("base", 128, 512, 77, 30000, True),
  "electra": StepSizes("small", 128, 128, 19, 30522, False),
}


def set_missing_flags(args: argparse.Namespace) -> None:
  """Sets missing flags from `DEFAULT_SIZES`.

  A missing number of predictions is set in proportion to the length.

  Raises:
    ValueError: the family does not have this size; a row has several sequences,
      but the family is not RoBERTa; or a row has more sequences or predictions
      than tokens.
  """
  sizes = DEFAULT_SIZES[args.family]
  for name in ("size", "rows", "length", "vocab"):
    if getattr(args, name) is None:
      setattr(args, name, getattr(sizes, name))
  if args.predictions is None:
    num_predictions = sizes.predictions * args.length // sizes.length
    args.predictions = max(num_predictions, 1)
  if args.size not in SIZES[args.family]:
    raise ValueError(
      f"--size={args.size} is no size of {args.family}; choose"
      f" {' or '.join(SIZES[args.family])}."
    )
  if args.sequences > 1 and args.family != "roberta":
    raise ValueError(
      f"--sequences={args.sequences}: here only a row of RoBERTa can have"
      " several sequences; add --family roberta."
    )
  for name in ("sequences", "predictions"):
    if not 0 < getattr(args, name) <= args.length:
      raise ValueError(
        f"--{name}={getattr(args, name)} must be from 1 to"
        f" --length={args.length}."
      )


def make_batches(args: argparse.Namespace) -> list[dict[str, np.ndarray]]:
  """Returns `NUM_BATCHES` batches of random ids, with our batch keys.

  The rows have no padding. Rows of BERT, ALBERT and ELECTRA have two segments.
  Rows of RoBERTa have no segments, but may have several sequences (the flag
  `sequences`), each of which attends only to itself.
  """
  rng = np.random.default_rng(0)
  shape = (args.rows, args.length)
  columns = np.arange(args.length)
  # The index of the sequence to which each column belongs.
  sequence_indices = columns * args.sequences // args.length
  batches = []
  for _ in range(NUM_BATCHES):
    positions = rng.random(shape).argsort(1)[:, : args.predictions]
    # In BERT's vocabulary, ids below 1,000 are special or unused pieces, and
    # 103 is [MASK].
    ids = rng.integers(1000, args.vocab, shape, dtype=np.int32)
    positions = np.sort(positions, 1).astype(np.int32)
    labels = np.take_along_axis(ids, positions, 1)
    np.put_along_axis(ids, positions, 103, 1)

    def repeat_row(row):
      return np.broadcast_to(row, shape).astype(np.int32)

    batch = dict(
      input_ids=ids,
      sequence_ids=repeat_row(sequence_indices + 1),
      mlm_positions=positions,
      mlm_ids=labels,
      mlm_weights=np.ones(labels.shape, np.float32),
    )
    if args.family != "roberta":
      batch["segment_ids"] = repeat_row(columns >= args.length // 2)
    if args.sequences > 1:
      starts = np.searchsorted(sequence_indices, sequence_indices)
      batch["position_ids"] = repeat_row(columns - starts)
    if DEFAULT_SIZES[args.family].has_pairs:
      batch |= dict(
        pair_labels=rng.integers(0, 2, (args.rows, 1), dtype=np.int32),
        cls_positions=np.zeros((args.rows, 1), np.int32),
        pair_weights=np.ones((args.rows, 1), np.float32),
      )
    batches.append(batch)
  return batches
