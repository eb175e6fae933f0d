"""From examples to a batch: rows, packed or not, with masks and labels.

Which sequences share a packed row is decided by best fit, the longest first.
The plan of a range of documents is its index: it depends on the range and the
epoch alone, so streams, restarts and hosts know nothing of it. A place in a row
takes 24 bytes of it, used or not.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples import masking, rows
from bert_jax.examples.batch_keys import Batch
from bert_jax.messages import UserError
from bert_jax.text.vocabulary import SpecialIds

# Rows that are looked at for one whose prediction slots suffice.
TRIES = 8


# (corpus, [N] units, [N] uint64 numbers, key) -> [N] of `rows.EXAMPLE`.
Settle = Callable[[Corpus, np.ndarray, np.ndarray, int], np.ndarray]


class Layout(NamedTuple):
  """What the rows of a recipe look like.

  Attributes:
    special: ids of the special tokens.
    vocab_size: number of pieces.
    length: L, tokens in a row.
    masks: how tokens are masked; None for a language model, whose rows have no
      masks.
    pairs: True if a row is a pair of texts with a label.
    segments: True if the two texts get different segment ids.
    returning: True if sentences of the second text may return to the first.
    crossing: True if a row may hold text of several documents.
    max_sequences: S, the most sequences in a row; more than 1 packs.
  """

  special: SpecialIds
  vocab_size: int
  length: int
  masks: masking.Masks | None
  pairs: bool = False
  segments: bool = False
  returning: bool = False
  crossing: bool = False
  max_sequences: int = 1


def check_layout(layout: Layout) -> Layout:
  """Returns `layout`.

  Raises:
    ValueError: an option is out of its range; packed rows could not be filled,
      because their prediction slots end before their tokens.
  """
  shortest, row = 3, "<s> A </s>"
  if layout.masks is None:
    shortest, row = 2, "a language model"
  elif layout.segments:
    shortest, row = 5, "[CLS] A [SEP] B [SEP]"
  if not shortest <= layout.length <= 2**15:
    raise UserError(
      f"length is {layout.length}; {row} needs {shortest} to 32,768."
    )
  if not 1 <= layout.max_sequences <= layout.length:
    raise UserError(
      f"max_sequences is {layout.max_sequences}; 1 to length={layout.length}."
    )
  if layout.masks and layout.max_sequences > 1:
    full = round(layout.length * layout.masks.mask_rate)
    if layout.masks.max_predictions < full:
      raise UserError(
        f"max_predictions is {layout.masks.max_predictions}, but packed rows of"
        f" length={layout.length} need {full}: sequences share them."
      )
  return layout


def keys(layout: Layout) -> list[str]:
  """Keys of the batch."""
  names = ["input_ids", "sequence_ids"]
  if layout.segments:
    names.append("segment_ids")
  if layout.max_sequences > 1:
    names.append("position_ids")
  if layout.masks is None:
    return [*names, "lm_ids", "lm_weights"]
  names += ["mlm_positions", "mlm_ids", "mlm_weights"]
  if layout.masks.masking == "span":
    names.append("span_positions")
  if layout.pairs:
    names += ["pair_labels", "cls_positions", "pair_weights"]
  return names


def sizes(layout: Layout) -> dict[str, int]:
  """Lengths of the axes of `batch_keys.FEATURES`."""
  slots = layout.masks.max_predictions if layout.masks else 0
  return {"L": layout.length, "M": slots, "S": layout.max_sequences}


def settled(
  corpus: Corpus, units: np.ndarray, numbers: np.ndarray, key: int
) -> np.ndarray:
  """Examples that are what they are already: a `Settle`."""
  return units


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
  row_numbers, ranks = [], []
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
    row_numbers.append(row)
    ranks.append(used[row])
    used[row] += 1
    slots_left[row] -= demand
    room -= length
    if used[row] < places:
      by_room[room].append(row)
      rooms |= 1 << room
  return row_numbers, ranks


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
    examples: [N] of `rows.EXAMPLE`.
    lengths: [N] tokens of each with special tokens, at most `width`.
    demands: [N] predictions of each at most; more than `slots` counts as
      `slots`.
    key: from `make_key`; decides between sequences of equal length.
    width: L.
    slots: M.
    places: S.

  Returns:
    [R, S] of `rows.EXAMPLE`; unused places are zeros.
  """
  # Most rows are full, or lack less than any sequence has.
  alone = lengths + lengths.min(initial=width) > width
  single = np.zeros((np.count_nonzero(alone), places), rows.EXAMPLE)
  single[:, 0] = examples[alone]
  examples, lengths = examples[~alone], lengths[~alone]
  demands = np.minimum(demands[~alone], slots)

  chance = hashing.bits(hashing.make_key(key, "pack"), np.arange(len(lengths)))
  order = np.lexsort((chance, -lengths))
  row_numbers, ranks = fill(
    lengths[order], demands[order], width, slots, places
  )
  packed = np.zeros((max(row_numbers, default=-1) + 1, places), rows.EXAMPLE)
  packed[row_numbers, ranks] = examples[order]
  return np.concatenate([single, packed])


def index_packed(
  corpus: Corpus,
  first_document: int,
  last_document: int,
  key: int,
  *,
  layout: Layout,
  index: Callable[[Corpus, int, int, int], np.ndarray],
  settle: Settle,
) -> np.ndarray:
  """Plans the rows of a range of documents, as `Recipe.index`.

  Args:
    corpus: the documents.
    first_document, last_document: the range.
    key: from `make_key`; another key (epoch) gives other rows.
    layout: how rows are laid out.
    index: as `Recipe.index`, of single examples.
    settle: what they are.

  Returns:
    [R, S] of `rows.EXAMPLE`.
  """
  units = index(corpus, first_document, last_document, key)
  # Ranges must not share draws, so the range enters the key.
  key = hashing.make_key(key, "range", first_document)
  numbers = np.arange(len(units), dtype=np.uint64)
  examples = settle(corpus, units, numbers, key)
  text = examples["length"].astype(np.int64) + examples["second_length"]
  lengths, demands = text, np.zeros_like(text)
  if layout.masks:
    lengths = text + 2 + (examples["second_length"] > 0)
    demands = masking.count_masks(lengths, text, layout.masks)
  return pack(
    examples,
    lengths,
    demands,
    key,
    width=layout.length,
    slots=layout.masks.max_predictions if layout.masks else 0,
    places=layout.max_sequences,
  )


def build(
  corpus: Corpus,
  units: np.ndarray,
  positions: np.ndarray,
  key: int,
  *,
  layout: Layout,
  settle: Settle,
) -> Batch:
  """Makes a batch, as `Recipe.build`.

  Args:
    corpus: the documents.
    units: [B] elements of the index; [B, S] packed examples.
    positions: [B] uint64 numbers of the rows.
    key: from `make_key`.
    layout: how rows are laid out.
    settle: what the units are.

  Raises:
    ValueError: the corpus has ids beyond the vocabulary.
  """
  examples = settle(corpus, units, positions, key)
  examples = examples.reshape(len(units), -1)
  # Number the sequences of a packed row separately; a row with one sequence
  # keeps the row's number, so packing does not change its masks.
  places = examples.shape[1]
  numbers = positions[:, None] * np.uint64(places)
  numbers = numbers + np.arange(places, dtype=np.uint64)
  return assemble(corpus, examples, numbers, key, layout)


def assemble(
  corpus: Corpus,
  examples: np.ndarray,
  numbers: np.ndarray,
  key: int,
  layout: Layout,
) -> Batch:
  """Makes a batch of rows with these sequences.

  Args:
    corpus: the documents.
    examples: [B, S] of `rows.EXAMPLE`.
    numbers: [B, S] uint64; with `key` they determine all draws of a sequence.
    key: from `make_key`.
    layout: how rows are laid out.

  Raises:
    ValueError: the corpus has ids beyond the vocabulary.
  """
  special, tokens = layout.special, np.asarray(corpus.tokens)
  if layout.masks is None:
    parts = rows.bare_parts(examples)
  elif layout.crossing:
    parts = rows.separated_parts(corpus, examples, special)
  elif layout.returning:
    parts = rows.returning_parts(corpus, examples, special)
  else:
    parts = rows.pair_parts(examples, special)
  places = examples.shape[1]
  laid = rows.lay_out(tokens, parts, places, layout.length, special.pad or 0)
  _check_ids(laid.ids, layout.vocab_size)
  batch = {"input_ids": laid.ids, "sequence_ids": laid.sequences}
  if layout.segments:
    batch["segment_ids"] = laid.segments
  if places > 1:
    batch["position_ids"] = laid.positions
  if layout.masks is None:
    following = tokens.take(laid.index + 1, mode="clip").astype(np.int32)
    batch["lm_ids"] = np.where(laid.text, following, 0).astype(np.int32)
    _check_ids(batch["lm_ids"], layout.vocab_size)
    batch["lm_weights"] = laid.text.astype(np.float32)
    return batch
  batch |= _hide(corpus, laid, numbers, key, layout)
  if layout.pairs:
    used = laid.lengths > 0
    begin = np.cumsum(laid.lengths, axis=1) - laid.lengths
    batch["pair_labels"] = examples["label"].astype(np.int32)
    batch["cls_positions"] = np.where(used, begin, 0).astype(np.int32)
    batch["pair_weights"] = used.astype(np.float32)
  return batch


def _check_ids(ids: np.ndarray, vocab_size: int) -> None:
  highest = int(ids.max(initial=0))
  if highest >= vocab_size:
    raise UserError(
      f"token id {highest} in the corpus, but the vocabulary has"
      f" {vocab_size} pieces; prepare the text with this vocabulary."
    )


def _hide(
  corpus: Corpus,
  laid: rows.Rows,
  numbers: np.ndarray,
  key: int,
  layout: Layout,
) -> Batch:
  starts, maskable = None, laid.text
  if masking.needs_words(layout.masks):
    starts = rows.word_starts(np.asarray(corpus.word_starts), laid.index)
  if corpus.unmasked:
    maskable = maskable & ~np.isin(laid.ids, corpus.unmasked)
  reserved = {i for i in layout.special if i is not None}
  return masking.mask_tokens(
    laid.ids,
    maskable,
    laid.lengths,
    numbers,
    hashing.make_key(key, "masks"),
    layout.masks,
    mask_id=layout.special.mask,
    vocab_size=layout.vocab_size,
    reserved=tuple(reserved.union(corpus.unmasked)),
    word_starts=starts,
    weights=masking.weigh(laid.ids, corpus.unigrams, layout.masks),
    unigrams=corpus.unigrams,
  )
