"""Cuts texts that are longer than a row into windows, and encodes them."""

from collections.abc import Sequence

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks import layouts
from bert_jax.tasks.encoded_rows import Rows
from bert_jax.text.vocabulary import Vocabulary

Ids = np.ndarray


def window_bounds(
  num_tokens: int, capacity: int, stride: int, last_is_full: bool = False
) -> list[tuple[int, int]]:
  """Returns windows [begin, end) over `num_tokens` tokens, without gaps.

  Each window begins `stride` tokens after the window before it (see
  `last_is_full` for the last window). The last window holds the last token. A
  text without tokens has one empty window.

  Args:
    num_tokens: the number of tokens.
    capacity: the largest number of tokens in a window.
    stride: the number of tokens from the beginning of a window to the beginning
      of the next window. A stride above `capacity` is lowered to `capacity`,
      because no token may be left out.
    last_is_full: True if the last window begins earlier, so that it has
      `capacity` tokens (or all tokens, if there are fewer).

  Raises:
    ValueError: `capacity` or `stride` is below 1.
  """
  if capacity < 1 or stride < 1:
    raise ValueError(
      f"windows of {capacity} tokens with stride {stride} are not possible;"
      " both numbers must be positive."
    )
  stride = min(stride, capacity)
  num_strides = max(0, -(-(num_tokens - capacity) // stride))
  starts = [i * stride for i in range(num_strides + 1)]
  if last_is_full:
    starts[-1] = max(num_tokens - capacity, 0)
  return [(start, min(start + capacity, num_tokens)) for start in starts]


def best_window_of_tokens(
  num_tokens: int, windows: Sequence[tuple[int, int]]
) -> np.ndarray:
  """Finds the window in which each token has the most context.

  The context of a token is the number of tokens on its left or on its right in
  the window, whichever is smaller, plus 0.01 times the window's length. If two
  windows give a token equal contexts, the first window is taken. This is
  `_check_is_max_context` of google-research/bert run_squad.py.

  Args:
    num_tokens: the number of tokens.
    windows: the windows [begin, end).

  Returns:
    int64 [num_tokens], the index of the window for each token.
  """
  best_window = np.zeros(num_tokens, np.int64)
  most_context = np.full(num_tokens, -1, np.float64)
  for window_index, (begin, end) in enumerate(windows):
    columns = np.arange(end - begin)
    context = np.minimum(columns, columns[::-1]) + 0.01 * (end - begin)
    is_better = context > most_context[begin:end]
    best_window[begin:end][is_better] = window_index
    most_context[begin:end][is_better] = context[is_better]
  return best_window


def cut_into_windows(texts: Sequence[Ids], capacity: int) -> list[list[Ids]]:
  """Cuts one or two texts into windows that fit into a row.

  Windows overlap by half. If a pair is too long, the longer text is cut into
  windows, and each row has one window and the whole shorter text. If the
  shorter text has more than half of the capacity, both texts are cut into
  windows of half of the capacity. Then each window of the first text is in a
  row with each window of the second text.

  Args:
    texts: the int32 ids of each text.
    capacity: the largest number of tokens in a row without special tokens.

  Returns:
    For each row, a list of one or two texts, or of windows of the texts.
  """
  if sum(map(len, texts)) <= capacity:
    return [list(texts)]
  if len(texts) == 1:
    return [[window] for window in _cut_text(texts[0], capacity)]
  first_text, second_text = texts
  capacities = [len(first_text), len(second_text)]
  longer_index = int(len(second_text) > len(first_text))
  capacities[longer_index] = capacity - capacities[1 - longer_index]
  if capacities[longer_index] < capacity // 2:
    capacities = [capacity // 2, capacity // 2]
  return [
    [first_window, second_window]
    for first_window in _cut_text(first_text, capacities[0])
    for second_window in _cut_text(second_text, capacities[1])
  ]


def _cut_text(ids: Ids, capacity: int) -> list[Ids]:
  """Cuts ids into windows that overlap by half."""
  bounds = window_bounds(len(ids), max(capacity, 1), max(capacity // 2, 1))
  return [ids[begin:end] for begin, end in bounds]


def encode_in_windows(
  texts: Sequence[Sequence[str]], vocabulary: Vocabulary, length: int
) -> Rows:
  """Encodes examples of one or two texts as rows without labels.

  Args:
    texts: the one or two texts of each example.
    vocabulary: turns text into ids.
    length: the largest number of tokens in a row.

  Raises:
    ValueError: `length` has no space for text.
  """
  layout = layouts.layout_of(vocabulary)
  layouts.check_length(layout, length)
  num_special_tokens = len(layout.begin) + len(layout.end)
  flat_ids, text_lengths = vocabulary.encode_flat(
    [text for example_texts in texts for text in example_texts]
  )
  ids_of_texts = iter(np.split(flat_ids, np.cumsum(text_lengths)[:-1]))
  id_arrays, row_lengths, second_begins, example_indices = (
    [np.zeros(0, np.int32)],
    [0],
    [],
    [],
  )
  for example_index, example_texts in enumerate(texts):
    text_ids = [next(ids_of_texts) for _ in example_texts]
    num_between = len(layout.between) if len(text_ids) == 2 else 0
    for window in cut_into_windows(
      text_ids, length - num_special_tokens - num_between
    ):
      row = layouts.lay_out(layout, window, length)
      id_arrays += row.id_arrays
      row_lengths.append(row.size)
      second_begins.append(row.second_begin)
      example_indices.append(example_index)
  return Rows(
    ids=np.concatenate(id_arrays),
    starts=np.cumsum(row_lengths, dtype=np.int64),
    second_begins=np.array(second_begins, np.int32),
    example_indices=np.array(example_indices, np.int64),
    labels=np.full(len(example_indices), -1, np.int32),
    offsets=np.zeros((0, 2), np.int32),
  )


def encode_masked_texts(
  texts: Sequence[str], vocabulary: Vocabulary, length: int
) -> tuple[Rows, np.ndarray]:
  """Encodes texts with mask tokens: there is a row for each mask token.

  A row has its mask and the tokens around it, which may include other masks.

  Args:
    texts: texts with the tokenizer's mask token.
    vocabulary: turns text into ids.
    length: the largest number of tokens in a row.

  Returns:
    N rows, and the column of each row's mask, int32 [N].

  Raises:
    ValueError: `length` has no space for text, or the tokenizer has no mask.
  """
  layout = layouts.layout_of(vocabulary)
  layouts.check_length(layout, length)
  mask = vocabulary.special.mask
  if mask is None:
    raise UserError("the tokenizer has no mask token to fill.")
  capacity = length - len(layout.begin) - len(layout.end)
  id_arrays, row_lengths, text_indices, mask_columns = (
    [np.zeros(0, np.int32)],
    [0],
    [],
    [],
  )
  for text_index, text in enumerate(texts):
    ids = np.array(vocabulary.encode_special(text), np.int32)
    for mask_index in np.flatnonzero(ids == mask):
      begin = max(0, min(int(mask_index) - capacity // 2, len(ids) - capacity))
      row_parts = [layout.begin, ids[begin : begin + capacity], layout.end]
      id_arrays += [
        np.array(ids_of_part, np.int32) for ids_of_part in row_parts
      ]
      row_lengths.append(sum(map(len, row_parts)))
      text_indices.append(text_index)
      mask_columns.append(len(layout.begin) + int(mask_index) - begin)
  return Rows(
    ids=np.concatenate(id_arrays),
    starts=np.cumsum(row_lengths, dtype=np.int64),
    second_begins=np.array(row_lengths[1:], np.int32),
    example_indices=np.array(text_indices, np.int64),
    labels=np.full(len(text_indices), -1, np.int32),
    offsets=np.zeros((0, 2), np.int32),
  ), np.array(mask_columns, np.int32)
