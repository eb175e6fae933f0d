"""Texts of any length to rows: windows instead of a cut."""

from collections.abc import Sequence

import numpy as np

from bert_jax.tasks import layout as layouts
from bert_jax.tasks.encoded_rows import Rows
from bert_jax.tasks.windows_windows import windows
from bert_jax.text.vocabulary import Vocabulary

Ids = np.ndarray


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
    texts: of each item.
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
    own = [next(ids) for _ in item]
    between = len(layout.between) if len(item) == 2 else 0
    for window in parts(own, length - around - between):
      made, place, _ = layouts.row(layout, window, length)
      tokens += made
      sizes.append(sum(map(len, made)))
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
    raise ValueError("the tokenizer has no mask token to fill.")
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
