"""Masked-LM predictions, as published, a batch at a time.

Devlin et al. 2019, section 3.1, and `create_masked_lm_predictions` of
google-research/bert's create_pretraining_data.py.
"""

import numpy as np

from bert_jax.data import hashing

# Of the chosen tokens 80% become [MASK], 10% stay, 10% become a random id.
MASK_SHARE = 0.8
KEEP_SHARE = 0.1


def shuffle_columns(
  eligible: np.ndarray, positions: np.ndarray, key: int
) -> np.ndarray:
  """Puts the columns of each row into random order, the eligible ones first.

  Args:
    eligible: [B, L] bool.
    positions: [B] uint64 global numbers of the examples.
    key: from `make_key`.

  Returns:
    [B, L] uint32, of which as many are columns as are eligible in the row; what
    follows them means nothing.
  """
  length = eligible.shape[1]
  columns = np.arange(length, dtype=np.uint32)
  low = np.uint32((1 << (length - 1).bit_length()) - 1)
  # The lowest random numbers win. Their low bits give way to the column: ties
  # are gone, and sorting the numbers also tells where they stood.
  scores = hashing.bits32(key, positions[:, None], columns)
  scores &= ~low
  scores |= columns
  np.copyto(scores, np.uint32(0xFFFFFFFF), where=~eligible)
  scores.sort(axis=1)
  scores &= low
  return scores


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
  order = shuffle_columns(maskable, positions, key)
  chosen = np.full((len(maskable), slots), length, np.int32)
  width = min(slots, length)
  chosen[:, :width] = order[:, :width]
  chosen[np.arange(slots) >= counts[:, None]] = length
  chosen.sort(axis=1)
  return chosen


def choose_words(
  maskable: np.ndarray,
  word_starts: np.ndarray,
  counts: np.ndarray,
  positions: np.ndarray,
  key: int,
  slots: int,
) -> np.ndarray:
  """Draws whole words: all of a word's pieces or none.

  The published rule (`do_whole_word_mask`, google-research/bert, May 31st
  2019): words are taken in random order, and one that would exceed the row's
  count is skipped for the next. One deviation: pieces that truncation parted
  from their word's start are a word of their own at the front of the second
  segment too, where the program adds them to the last word of the first.

  Args:
    maskable: [B, L] bool.
    word_starts: [B, L] bool, True where a word starts. The first maskable token
      of a stretch starts one in any case.
    counts: [B] integers, how many tokens to draw at most; at most `slots`.
    positions: [B] uint64 global numbers of the examples.
    key: from `make_key`.
    slots: M, the width of the result.

  Returns:
    [B, M] int32, ascending; L in unused slots.
  """
  length = maskable.shape[1]
  heads = maskable & word_starts
  heads[:, :1] = maskable[:, :1]
  heads[:, 1:] |= maskable[:, 1:] & ~maskable[:, :-1]
  # Rows laid end to end and cut before every word and every other token.
  cuts = np.flatnonzero(heads | ~maskable)
  pieces = np.diff(cuts, append=maskable.size)
  sizes = np.zeros(maskable.shape, np.int64)
  sizes.ravel()[cuts] = pieces

  order = shuffle_columns(heads, positions, key)
  words = np.count_nonzero(heads, axis=1)
  room, picked = counts.copy(), np.zeros_like(heads)
  for rank in range(words.max(initial=0)):
    row = np.flatnonzero((room > 0) & (rank < words))
    if not len(row):
      break
    column = order[row, rank]
    size = sizes[row, column]
    fits = size <= room[row]
    picked[row[fits], column[fits]] = True
    room[row[fits]] -= size[fits]

  flat = np.flatnonzero(np.repeat(picked.ravel()[cuts], pieces))
  row, column = np.divmod(flat, length)
  drawn = counts - room
  slot = np.arange(len(row)) - (np.cumsum(drawn) - drawn)[row]
  chosen = np.full((len(maskable), slots), length, np.int32)
  chosen[row, slot] = column
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
  word_starts: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
  """Hides tokens and says what they were.

  A row gets round(`mask_rate` * length) predictions, at least 1, at most
  `max_predictions`, and no more than it has maskable tokens; with whole words
  there may be fewer. A random replacement comes from the whole vocabulary,
  special tokens included, may equal the original, and is each token's own.

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
    word_starts: [B, L] bool, to choose whole words; None for single tokens.

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
  draw = counts, positions, hashing.make_key(key, "positions"), max_predictions
  if word_starts is None:
    chosen = choose_positions(maskable, *draw)
  else:
    chosen = choose_words(maskable, word_starts, *draw)
  used = chosen < ids.shape[1]
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
