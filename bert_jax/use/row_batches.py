"""Puts rows of similar lengths into batches with few different shapes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.tasks.bucket_lengths import FEATURE_BUCKETS


class Batch(NamedTuple):
  """Holds rows that are run together.

  Attributes:
    row_indices: int64 [n], the index of each row in the list of all rows.
    inputs: `input_ids` or `char_ids`, and `sequence_ids`, int32 [B, L, ...].
      The last B - n rows are padding.
  """

  row_indices: np.ndarray
  inputs: dict[str, np.ndarray]


def batches(
  rows: Sequence[np.ndarray], max_length: int | None, batch_tokens: int
) -> Iterator[Batch]:
  """Puts rows of similar lengths into batches with few different shapes.

  A row is padded to the smallest length in `FEATURE_BUCKETS` that holds the
  row. A row that is longer than all these lengths is padded to a multiple of
  the last length. No row is padded beyond `max_length`. All batches of a padded
  length have the same number of rows: the largest number that `batch_tokens`
  allows. If one batch holds all rows of a length, it has the smallest power of
  two of rows that is enough, but no more than `batch_tokens` allows.

  Args:
    rows: the ids of each row, int32 [T, ...].
    max_length: the largest number of tokens in a row; None for any number.
    batch_tokens: the largest number of tokens in a batch, with padding. A batch
      with a single row may have more.

  Yields:
    Batches, in which each row occurs once.
  """
  lengths = np.fromiter(map(len, rows), np.int64, len(rows))
  last_bucket = FEATURE_BUCKETS[-1]
  bucket_indices = np.searchsorted(FEATURE_BUCKETS, lengths)
  padded_lengths = np.where(
    lengths > last_bucket,
    -(-lengths // last_bucket) * last_bucket,
    np.array([*FEATURE_BUCKETS, 0])[bucket_indices],
  )
  if max_length is not None:
    padded_lengths = np.minimum(padded_lengths, max_length)
  for length in np.unique(padded_lengths):
    rows_of_length = np.flatnonzero(padded_lengths == length)
    max_rows = max(batch_tokens // int(length), 1)
    for start in range(0, len(rows_of_length), max_rows):
      row_indices = rows_of_length[start : start + max_rows]
      num_rows = max_rows
      if not start:
        num_rows = min(_next_power_of_two(len(row_indices)), max_rows)
      inputs = _pad_rows(rows, row_indices, num_rows, int(length))
      yield Batch(row_indices, inputs)


def _next_power_of_two(count: int) -> int:
  """Returns the smallest power of two that is at least `count`."""
  return 1 << (count - 1).bit_length()


def _pad_rows(
  rows: Sequence[np.ndarray],
  row_indices: np.ndarray,
  num_rows: int,
  length: int,
) -> dict[str, np.ndarray]:
  """Returns the inputs of a batch with `num_rows` rows; padding is zeros."""
  inner_shape = rows[row_indices[0]].shape[1:]
  ids = np.zeros((num_rows, length, *inner_shape), np.int32)
  sequence_ids = np.zeros((num_rows, length), np.int32)
  for i, row_index in enumerate(row_indices):
    row = rows[row_index]
    ids[i, : len(row)], sequence_ids[i, : len(row)] = row, 1
  name = "char_ids" if inner_shape else "input_ids"
  return {name: ids, "sequence_ids": sequence_ids}
