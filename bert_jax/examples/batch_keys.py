"""Defines the one table of batch keys, with their shapes and dtypes.

A batch is a dict with some of the keys of `FEATURES`. The first axis of each
array is the row. The other axes have these sizes:

| axis | size |
|---|---|
| L | tokens in a row |
| M | prediction slots in a row; a slot holds one masked-LM prediction |
| S | the largest number of sequences in a row: 1 unless rows are packed |
| C | characters of a word |

An empty row has weight 0 in every `*_weights`. Padding and empty rows have 0 in
`sequence_ids`, so the share of padding is the share of zeros in this array.
"""

from collections.abc import Iterable, Mapping

import numpy as np

Features = dict[str, tuple[tuple[int, ...], np.dtype]]
Batch = dict[str, np.ndarray]

# Key -> (the axes after the first, dtype).
FEATURES = {
  "input_ids": ("L", np.int32),
  # Only pairs of texts have this key: 1 in the second text and at the [SEP]
  # after it, else 0.
  "segment_ids": ("L", np.int32),
  # Only packed rows have this key: 0, 1, ... in each sequence, 0 at padding.
  "position_ids": ("L", np.int32),
  # 1 at the first sequence of a row, 2 at the second, ...; 0 at padding. The
  # attention mask is computed from this key only.
  "sequence_ids": ("L", np.int32),
  # An unused slot has position 0, id 0 and weight 0.
  "mlm_positions": ("M", np.int32),
  "mlm_ids": ("M", np.int32),
  "mlm_weights": ("M", np.float32),
  # The columns directly before and after the span of each prediction; the axis
  # "2" has length 2. The first token of a span has index 1 in the span, so the
  # index of a prediction is its position minus the column before the span.
  "span_positions": ("M2", np.int32),
  # The token after each token of the text; at padding, weight and id are 0.
  "lm_ids": ("L", np.int32),
  "lm_weights": ("L", np.float32),
  # The characters of words, 0 at padding. A batch has `back_char_ids` only if
  # the backward direction reads other words than the forward direction.
  "char_ids": ("LC", np.int32),
  "back_char_ids": ("LC", np.int32),
  # The word after and the word before each word. If there is no such word to
  # predict, weight and id are 0.
  "next_ids": ("L", np.int32),
  "next_weights": ("L", np.float32),
  "previous_ids": ("L", np.int32),
  "previous_weights": ("L", np.float32),
  # BERT's label is 0 for the next text and 1 for a random text
  # (google-research/bert). ALBERT's label is 0 for texts in order and 1 for
  # swapped texts (google-research/albert). A place without a sequence has
  # label, position and weight 0.
  "pair_labels": ("S", np.int32),
  "cls_positions": ("S", np.int32),
  "pair_weights": ("S", np.float32),
}


def features_of(keys: Iterable[str], sizes: Mapping[str, int]) -> Features:
  """Returns {key: (shape of one row, dtype)} for `keys`.

  Args:
    keys: the keys, from `FEATURES`.
    sizes: the length of every axis that the keys have, for example {"L": 128}.
  """
  sizes = {"2": 2, **sizes}
  return {
    key: (tuple(sizes[axis] for axis in axes), np.dtype(dtype))
    for key in keys
    for axes, dtype in [FEATURES[key]]
  }


def empty_rows(features: Features, count: int) -> Batch:
  """Returns `count` empty rows: zeros everywhere."""
  return {
    key: np.zeros((count, *shape), dtype)
    for key, (shape, dtype) in features.items()
  }
