"""The one table of batch keys, their shapes and dtypes.

Every task's batch is a dict with a subset of these keys; each array has the
batch as its first axis. L is the row length, M the number of prediction slots,
C the characters of a word, S the places for sequences in a row (1 unless rows
are packed). A padded row has weight 0 in every `*_weights` and 0 in
`sequence_ids`, so the share of padding is that of zeros in `sequence_ids`.
"""

from collections.abc import Iterable, Mapping

import numpy as np

Features = dict[str, tuple[tuple[int, ...], np.dtype]]
Batch = dict[str, np.ndarray]

# key: (axes after the batch's, dtype)
FEATURES = {
  "input_ids": ("L", np.int32),
  # 0 or 1, of pairs only.
  "segment_ids": ("L", np.int32),
  # 0, 1, ... in each sequence, of packed rows only.
  "position_ids": ("L", np.int32),
  # 1, 2, ... for the packed sequences of a row, 0 for padding: the only source
  # of the attention mask.
  "sequence_ids": ("L", np.int32),
  # Unused slots: position 0, id 0, weight 0.
  "mlm_positions": ("M", np.int32),
  "mlm_ids": ("M", np.int32),
  "mlm_weights": ("M", np.float32),
  # For each prediction the columns before and after its span ("2" is the length
  # of an axis). A target's place in its span, from 1 on, is its position less
  # the first of the two.
  "span_positions": ("M2", np.int32),
  # The token after each token; weight 0 and id 0 at padding.
  "lm_ids": ("L", np.int32),
  "lm_weights": ("L", np.float32),
  # Characters of words, 0 at padding; of the backward direction, where it reads
  # other words.
  "char_ids": ("LC", np.int32),
  "back_char_ids": ("LC", np.int32),
  # The words after and before each; weight 0 and id 0 where there are none.
  "next_ids": ("L", np.int32),
  "next_weights": ("L", np.float32),
  "previous_ids": ("L", np.int32),
  "previous_weights": ("L", np.float32),
  # 0 = is next, 1 = random, as in google-research/bert; 0 = in order, 1 =
  # swapped, as in google-research/albert. Unused places: 0, weight 0.
  "pair_labels": ("S", np.int32),
  "cls_positions": ("S", np.int32),
  "pair_weights": ("S", np.float32),
}


def select(keys: Iterable[str], sizes: Mapping[str, int]) -> Features:
  """Returns {key: (shape of one row, dtype)} for `keys`.

  Args:
    keys: keys of `FEATURES`.
    sizes: the length of every axis that occurs, for example {"L": 128}.
  """
  sizes = {"2": 2, **sizes}
  return {
    key: (tuple(sizes[axis] for axis in axes), np.dtype(dtype))
    for key in keys
    for axes, dtype in [FEATURES[key]]
  }


def padding(features: Features, count: int) -> Batch:
  """Returns `count` padded rows: zeros everywhere."""
  return {
    key: np.zeros((count, *shape), dtype)
    for key, (shape, dtype) in features.items()
  }
