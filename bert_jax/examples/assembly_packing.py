"""Which sequences share a row: best fit, the longest first.

The plan of a range of documents is its index: it depends on the range and the
epoch alone, so streams, restarts and hosts know nothing of it. A place in a row
takes 24 bytes of it, used or not.
"""

import numpy as np

from bert_jax import hashing
from bert_jax.examples.rows import EXAMPLE

# Rows that are looked at for one whose prediction slots suffice.
TRIES = 8


def fill(
  lengths: np.ndarray,
  demands: np.ndarray,
  width: int,
  slots: int,
  places: int,
) -> tuple[list[int], list[int]]:
  """Puts each sequence into the fullest row that has room for it.

  Args:
    lengths: [N] tokens, at most `width`, in the order to place them.
    demands: [N] prediction slots, at most `slots`.
    width: tokens of a row.
    slots: prediction slots of a row.
    places: sequences of a row.

  Returns:
    The row of each sequence, and its place there.
  """
  # Rows by the room they have left; a bit for each room that some row has, so
  # that the smallest sufficient one is found in a step or two.
  by_room: list[list[int]] = [[] for _ in range(width + 1)]
  rooms = 0
  slots_left: list[int] = []
  used: list[int] = []
  rows, ranks = [], []
  for length, demand in zip(lengths.tolist(), demands.tolist(), strict=True):
    fitting, row = rooms >> length << length, -1
    for _ in range(TRIES):
      if not fitting:
        break
      lowest = fitting & -fitting
      room = lowest.bit_length() - 1
      if slots_left[by_room[room][-1]] >= demand:
        row = by_room[room].pop()
        if not by_room[room]:
          rooms ^= lowest
        break
      fitting ^= lowest
    if row < 0:
      row, room = len(used), width
      used.append(0)
      slots_left.append(slots)
    rows.append(row)
    ranks.append(used[row])
    used[row] += 1
    slots_left[row] -= demand
    room -= length
    if used[row] < places:
      by_room[room].append(row)
      rooms |= 1 << room
  return rows, ranks


def pack(
  examples: np.ndarray,
  lengths: np.ndarray,
  demands: np.ndarray,
  key: int,
  *,
  width: int,
  slots: int,
  places: int,
) -> np.ndarray:
  """Arranges sequences in rows.

  Args:
    examples: [N] of `EXAMPLE`.
    lengths: [N] tokens of each with special tokens, at most `width`.
    demands: [N] predictions of each at most; more than `slots` counts as
      `slots`.
    key: from `make_key`; decides between sequences of equal length.
    width: L.
    slots: M.
    places: S.

  Returns:
    [R, S] of `EXAMPLE`; unused places are zeros.
  """
  # Most rows are full, or lack less than any sequence has.
  alone = lengths + lengths.min(initial=width) > width
  single = np.zeros((np.count_nonzero(alone), places), EXAMPLE)
  single[:, 0] = examples[alone]
  examples, lengths = examples[~alone], lengths[~alone]
  demands = np.minimum(demands[~alone], slots)

  chance = hashing.bits(hashing.make_key(key, "pack"), np.arange(len(lengths)))
  order = np.lexsort((chance, -lengths))
  rows, ranks = fill(lengths[order], demands[order], width, slots, places)
  packed = np.zeros((max(rows, default=-1) + 1, places), EXAMPLE)
  packed[rows, ranks] = examples[order]
  return np.concatenate([single, packed])
