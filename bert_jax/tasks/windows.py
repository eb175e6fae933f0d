"""Windows over texts that are longer than a row, and rows of them."""

from collections.abc import Sequence

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks import layouts
from bert_jax.tasks.encoded_rows import Rows
from bert_jax.text.vocabulary import Vocabulary

Ids = np.ndarray


def windows(
  count: int, room: int, stride: int, full: bool = False
) -> list[tuple[int, int]]:
  """Windows [begin, end) over `count` tokens, without gaps.

  Each begins `stride` after the one before (`room` at most, since a longer
  step would leave tokens out), until one holds the last token. A text without
  tokens has one empty window.

  Args:
    count: tokens.
    room: tokens in a window at most.
    stride: tokens from one beginning to the next.
    full: the last window begins earlier, so that it is as long as the others.

  Raises:
    ValueError: no room, or a stride below 1.
  """
  if room < 1 or stride < 1:
    raise ValueError(f"windows of {room} tokens every {stride} are none.")
  stride = min(stride, room)
  more = max(0, -(-(count - room) // stride))
  starts = [i * stride for i in range(more + 1)]
  if full:
    starts[-1] = max(count - room, 0)
  return [(start, min(start + room, count)) for start in starts]


def best_windows(count: int, spans: Sequence[tuple[int, int]]) -> np.ndarray:
  """Number of the window in which each token has most around it, int64 [count].

  The lesser of what is left and right counts, as in google-research/bert
  run_squad.py, _check_is_max_context; the first of equals.
  """
  best = np.zeros(count, np.int64)
  score = np.full(count, -1, np.float64)
  for k, (begin, end) in enumerate(spans):
    inside = np.arange(end - begin)
    least = np.minimum(inside, inside[::-1]) + 0.01 * (end - begin)
    better = least > score[begin:end]
    best[begin:end][better] = k
    score[begin:end][better] = least[better]
  return best


def parts(texts: Sequence[Ids], room: int) -> list[list[Ids]]:
  """What of one or two texts each window holds; one window if all fits.

  Windows overlap by half. Of a pair that is too long the longer text is cut in
  windows beside the whole of the other; where even the shorter one takes more
  than half, every window of one stands beside every one of the other.

  Args:
    texts: int32 ids of each.
    room: tokens of a row that are for texts.
  """
  if sum(map(len, texts)) <= room:
    return [list(texts)]
  if len(texts) == 1:
    return [[part] for part in _cut(texts[0], room)]
  first, second = texts
  sizes = [len(first), len(second)]
  longer = int(len(second) > len(first))
  sizes[longer] = room - sizes[1 - longer]
  if sizes[longer] < room // 2:
    sizes = [room // 2, room // 2]
  return [[a, b] for a in _cut(first, sizes[0]) for b in _cut(second, sizes[1])]


def _cut(ids: Ids, room: int) -> list[Ids]:
  spans = windows(len(ids), max(room, 1), max(room // 2, 1))
  return [ids[begin:end] for begin, end in spans]


def rows(
  texts: Sequence[Sequence[str]], vocabulary: Vocabulary, length: int
) -> Rows:
  """Encodes items of one or two texts; the rows have no labels.

  Args:
    texts: the one or two texts of each item.
    vocabulary: text to ids.
    length: tokens in a row at most.

  Raises:
    ValueError: no room for text.
  """
  layout = layouts.of_vocabulary(vocabulary)
  layouts.check_length(layout, length)
  around = len(layout.begin) + len(layout.end)
  flat, counts = vocabulary.encode_flat([t for item in texts for t in item])
  ids = iter(np.split(flat, np.cumsum(counts)[:-1]))
  tokens, sizes, second, number = [np.zeros(0, np.int32)], [0], [], []
  for i, item in enumerate(texts):
    item_ids = [next(ids) for _ in item]
    between = len(layout.between) if len(item) == 2 else 0
    for window in parts(item_ids, length - around - between):
      parts_of_row, place, _ = layouts.row(layout, window, length)
      tokens += parts_of_row
      sizes.append(sum(map(len, parts_of_row)))
      second.append(place)
      number.append(i)
  return Rows(
    np.concatenate(tokens),
    np.cumsum(sizes, dtype=np.int64),
    np.array(second, np.int32),
    np.array(number, np.int64),
    np.full(len(number), -1, np.int32),
    np.zeros((0, 2), np.int32),
  )


def masked_rows(
  texts: Sequence[str], vocabulary: Vocabulary, length: int
) -> tuple[Rows, np.ndarray]:
  """Encodes texts with mask tokens, a row for each mask, all of them masked.

  Returns:
    The rows, and the place of each row's mask, int32 [N].

  Raises:
    ValueError: no room, or the tokenizer has no mask.
  """
  layout = layouts.of_vocabulary(vocabulary)
  layouts.check_length(layout, length)
  mask = vocabulary.special.mask
  if mask is None:
    raise UserError("the tokenizer has no mask token to fill.")
  room = length - len(layout.begin) - len(layout.end)
  tokens, sizes, number, places = [np.zeros(0, np.int32)], [0], [], []
  for i, text in enumerate(texts):
    ids = np.array(vocabulary.encode_special(text), np.int32)
    for place in np.flatnonzero(ids == mask):
      begin = max(0, min(int(place) - room // 2, len(ids) - room))
      window = [layout.begin, ids[begin : begin + room], layout.end]
      tokens += [np.array(x, np.int32) for x in window]
      sizes.append(sum(map(len, window)))
      number.append(i)
      places.append(len(layout.begin) + int(place) - begin)
  return Rows(
    np.concatenate(tokens),
    np.cumsum(sizes, dtype=np.int64),
    np.array(sizes[1:], np.int32),
    np.array(number, np.int64),
    np.full(len(number), -1, np.int32),
    np.zeros((0, 2), np.int32),
  ), np.array(places, np.int32)
