"""Sequences of any lengths in one long row: no place is padding but the last.

With attention kernels that look at the blocks of each sequence alone (GPUs),
such a row costs what its tokens cost.
"""

from collections.abc import Sequence

import numpy as np


def flat_row(
  sequences: Sequence[np.ndarray], multiple: int = 512
) -> dict[str, np.ndarray]:
  """Puts sequences side by side.

  Args:
    sequences: ids [l] of each, with their special tokens.
    multiple: the row's length is the next multiple, so that few lengths are
      compiled for.

  Returns:
    `input_ids`, `position_ids` (from 0 in each sequence) and `sequence_ids`
    (1, 2, ...), int32 [1, t]. The places left at the end are a sequence of
    their own, with the number after the last, whose tokens are id 0.

  Raises:
    ValueError: no sequence, one without tokens, one that is not ids [l], or a
      multiple below 1.
  """
  if multiple < 1:
    raise ValueError(f"flat_row: multiple={multiple} must be at least 1.")
  for number, ids in enumerate(map(np.asarray, sequences)):
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
      raise ValueError(
        f"flat_row: sequence {number} is {ids.dtype} of shape {ids.shape}; pass"
        " the ids of one sequence, integers [l]."
      )
  lengths = np.array([len(ids) for ids in sequences], np.int64)
  if not lengths.size or not lengths.all():
    raise ValueError(
      "flat_row: no sequences, or an empty one; leave those out."
    )
  total = int(lengths.sum())
  size = -(-total // multiple) * multiple
  lengths = np.append(lengths, size - total)
  input_ids = np.zeros(size, np.int32)
  input_ids[:total] = np.concatenate(list(sequences))
  number = np.repeat(np.arange(1, len(lengths) + 1), lengths)
  first = np.repeat(np.cumsum(lengths) - lengths, lengths)
  # The rest counts its positions too, but not beyond those of the others.
  position = (np.arange(size) - first) % lengths[:-1].max()
  return {
    name: values.astype(np.int32)[None]
    for name, values in (
      ("input_ids", input_ids),
      ("position_ids", position),
      ("sequence_ids", number),
    )
  }
