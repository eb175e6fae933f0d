"""Batches rows of similar lengths, with few shapes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.tasks.bucket_lengths import FEATURE_BUCKETS


class Batch(NamedTuple):
  """Holds rows that are run together.

  Attributes:
    numbers: int64 [n], the index of each row.
    inputs: `input_ids` or `char_ids`, and `sequence_ids`, int32 [B, L, ...].
      The rows from n to B are padding.
  """

  numbers: np.ndarray
  inputs: dict[str, np.ndarray]


def batches(
  rows: Sequence[np.ndarray], longest: int | None, tokens: int
) -> Iterator[Batch]:
  """Batches rows of similar lengths, with few shapes.

  A row is padded to the next length in `FEATURE_BUCKETS`, or to a multiple of
  the last length. All batches of a padded length have the same number of rows.
  If a length has only one batch, this number is a power of two.

  Args:
    rows: the ids of each row, int32 [T, ...].
    longest: the largest number of tokens in a row; None for any number.
    tokens: the largest number of tokens in a batch, with padding. A batch with
      a single row may have more.

  Yields:
    Batches, in which each row occurs once.
  """
  lengths = np.fromiter(map(len, rows), np.int64, len(rows))
  last_bucket = FEATURE_BUCKETS[-1]
  bucket_numbers = np.searchsorted(FEATURE_BUCKETS, lengths)
  padded_lengths = np.where(
    lengths > last_bucket,
    -(-lengths // last_bucket) * last_bucket,
    np.array([*FEATURE_BUCKETS, 0])[bucket_numbers],
  )
  if longest is not None:
    padded_lengths = np.minimum(padded_lengths, longest)
  for length in np.unique(padded_lengths):
    row_numbers = np.flatnonzero(padded_lengths == length)
    size = max(tokens // int(length), 1)
    for start in range(0, len(row_numbers), size):
      numbers = row_numbers[start : start + size]
      count = size if start else min(_next_power(len(numbers)), size)
      yield Batch(numbers, _pad(rows, numbers, count, int(length)))


def _next_power(count: int) -> int:
  """Returns the smallest power of two that is at least `count`."""
  return 1 << (count - 1).bit_length()


def _pad(
  rows: Sequence[np.ndarray], numbers: np.ndarray, count: int, length: int
) -> dict[str, np.ndarray]:
  """Returns a batch's inputs, with zeros as padding."""
  inner_shape = rows[numbers[0]].shape[1:]
  ids = np.zeros((count, length, *inner_shape), np.int32)
  sequence_ids = np.zeros((count, length), np.int32)
  for i, number in enumerate(numbers):
    row = rows[number]
    ids[i, : len(row)], sequence_ids[i, : len(row)] = row, 1
  name = "char_ids" if inner_shape else "input_ids"
  return {name: ids, "sequence_ids": sequence_ids}
