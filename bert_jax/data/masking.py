"""Masked-LM predictions, as published, a batch at a time.

Devlin et al. 2019, section 3.1, and `create_masked_lm_predictions` of
google-research/bert's create_pretraining_data.py.
"""

import numpy as np

from bert_jax.data import hashing

# Of the chosen tokens 80% become [MASK], 10% stay, 10% become a random id.
MASK_SHARE = 0.8
KEEP_SHARE = 0.1


def choose_positions(
  maskable: np.ndarray,
  counts: np.ndarray,
  positions: np.ndarray,
  key: int,
  slots: int,
) -> np.ndarray:
  """Draws distinct positions, each maskable one with equal chance.

  Args:
    maskable: [B, L] bool.
    counts: [B] integers, how many to draw; at most `slots`, and at most the
      number of maskable tokens of the row.
    positions: [B] uint64 global numbers of the examples.
    key: from `make_key`.
    slots: M, the width of the result.

  Returns:
    [B, M] int32, ascending; L in unused slots.
  """
  length = maskable.shape[1]
  columns = np.arange(length, dtype=np.uint32)
  low = np.uint32((1 << (length - 1).bit_length()) - 1)
  # The lowest random numbers win. Their low bits give way to the column: ties
  # are gone, and sorting the numbers also tells where they stood.
  scores = hashing.bits32(key, positions[:, None], columns)
  scores &= ~low
  scores |= columns
  np.copyto(scores, np.uint32(0xFFFFFFFF), where=~maskable)
  scores.sort(axis=1)
  chosen = np.full((len(maskable), slots), length, np.int32)
  width = min(slots, length)
  chosen[:, :width] = scores[:, :width] & low
  chosen[np.arange(slots) >= counts[:, None]] = length
  chosen.sort(axis=1)
  return chosen


def mask_tokens(
  ids: np.ndarray,
  maskable: np.ndarray,
  lengths: np.ndarray,
  positions: np.ndarray,
  key: int,
  *,
  mask_id: int,
  vocab_size: int,
  max_predictions: int = 20,
  mask_rate: float = 0.15,
) -> dict[str, np.ndarray]:
  """Hides tokens and says what they were.

  A row gets round(`mask_rate` * length) predictions, at least 1, at most
  `max_predictions`, and no more than it has maskable tokens. A random
  replacement comes from the whole vocabulary, special tokens included, and may
  equal the original.

  Args:
    ids: [B, L] int32.
    maskable: [B, L] bool, False at special tokens and padding.
    lengths: [B] integers, row lengths with special tokens, without padding.
    positions: [B] uint64 global numbers of the examples; with `key` and the
      column they determine every draw.
    key: from `make_key`.
    mask_id: id of [MASK].
    vocab_size: random replacements are below it.
    max_predictions: M (20 at length 128: flag default of
      create_pretraining_data.py).
    mask_rate: 0.15 in the paper.

  Returns:
    input_ids [B, L] int32, a copy with replacements; mlm_positions (ascending),
    mlm_ids [B, M] int32, mlm_weights [B, M] float32; unused slots are 0.

  Raises:
    ValueError: `maskable` has another shape than `ids`.
  """
  if maskable.shape != ids.shape:
    raise ValueError(
      f"maskable has shape {maskable.shape}, ids {ids.shape}; make it after"
      " padding, so that padding cannot be masked."
    )
  counts = np.maximum(np.rint(lengths * mask_rate), 1).astype(np.int64)
  counts = np.minimum(counts, np.count_nonzero(maskable, axis=1))
  counts = np.minimum(counts, max_predictions)
  chosen = choose_positions(
    maskable,
    counts,
    positions,
    hashing.make_key(key, "positions"),
    max_predictions,
  )
  used = np.arange(max_predictions) < counts[:, None]
  row, slot = np.nonzero(used)
  column = chosen[row, slot]
  labels = ids[row, column]

  draws = hashing.bits(
    hashing.make_key(key, "replacements"), positions[row], column
  )
  share = (draws >> np.uint64(32)) * 2.0**-32
  # 32 bits times a vocabulary below 2**32 stays within 64.
  other = (draws & np.uint64(0xFFFFFFFF)) * np.uint64(vocab_size)
  other = (other >> np.uint64(32)).astype(np.int32)
  other = np.where(share < MASK_SHARE + KEEP_SHARE, labels, other)
  input_ids = ids.copy()
  input_ids[row, column] = np.where(share < MASK_SHARE, mask_id, other)

  mlm_ids = np.zeros(used.shape, np.int32)
  mlm_ids[row, slot] = labels
  return {
    "input_ids": input_ids,
    "mlm_positions": np.where(used, chosen, 0).astype(np.int32),
    "mlm_ids": mlm_ids,
    "mlm_weights": used.astype(np.float32),
  }
