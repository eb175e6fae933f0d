"""Windows over a text that is longer than a row."""

from collections.abc import Sequence

import numpy as np


def windows(count: int, room: int, stride: int) -> list[tuple[int, int]]:
  """Windows [begin, end) over `count` tokens, without gaps.

  Each begins `stride` after the one before (`room` at most, since a longer
  step would leave tokens out), until one holds the last token. A text without
  tokens has one empty window.

  Args:
    count: tokens.
    room: tokens in a window at most.
    stride: tokens from one beginning to the next.

  Raises:
    ValueError: no room, or a stride below 1.
  """
  if room < 1 or stride < 1:
    raise ValueError(f"windows of {room} tokens every {stride} are none.")
  stride = min(stride, room)
  more = max(0, -(-(count - room) // stride))
  starts = [i * stride for i in range(more + 1)]
  return [(start, min(start + room, count)) for start in starts]


def best_windows(count: int, spans: Sequence[tuple[int, int]]) -> np.ndarray:
  """Number of the window in which each token has most around it, int64 [count].

  The lesser of what is left and right counts, as in google-research/bert
  run_squad.py, _check_is_max_context; the first of equals.
  """
  found = np.zeros(count, np.int64)
  score = np.full(count, -1, np.float64)
  for k, (begin, end) in enumerate(spans):
    inside = np.arange(end - begin)
    least = np.minimum(inside, inside[::-1]) + 0.01 * (end - begin)
    better = least > score[begin:end]
    found[begin:end][better] = k
    score[begin:end][better] = least[better]
  return found
