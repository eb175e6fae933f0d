"""Turns examples into a batch: rows, packed or not, with masks and labels.

A packed row holds several sequences. Best fit decides which sequences share a
row; the longest sequence is placed first. The recipe's index of a range of
documents lists the packed rows. The index depends only on the range and the
epoch, so streams, restarts and hosts need no knowledge of packing. The index
takes 24 bytes for each of the `max_sequences` places of a row, used or not.
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

# `assign_rows` looks for a row with enough free tokens and enough free
# prediction slots. It tries at most this many rows, each with more free tokens
# than the row before. Then it begins a new row.
MAX_TRIES = 8

# (corpus, [N] elements of an index, [N] uint64 example numbers, key) -> [N] of
# `rows.SEQUENCE_DTYPE`: where the tokens of each element are in the corpus.
FindTexts = Callable[[Corpus, np.ndarray, np.ndarray, int], np.ndarray]


class RowLayout(NamedTuple):
  """Describes the layout of the rows of a recipe.

  Attributes:
    special: the ids of the special tokens.
    vocab_size: the number of pieces.
    length: L, the number of tokens in a row.
    mask_options: how tokens are masked; None for a language model, whose rows
      have no masks.
    has_pairs: True if each sequence is a pair of texts with a label.
    has_segments: True if the two texts of a pair have different segment ids.
    moves_sentences: True if sentences of the second text may move to the first,
      see `rows.parts_with_moved_sentences`.
    crosses_documents: True if a row may hold text of several documents.
    max_sequences: S, the largest number of sequences in a row. A number above 1
      packs rows.
  """

  special: SpecialIds
  vocab_size: int
  length: int
  mask_options: masking.MaskOptions | None
  has_pairs: bool = False
  has_segments: bool = False
  moves_sentences: bool = False
  crosses_documents: bool = False
  max_sequences: int = 1


def check_layout(layout: RowLayout) -> RowLayout:
  """Checks a layout, and returns it.

  Raises:
    UserError: an option is out of range, or a packed row has fewer
      prediction slots than `length` tokens need.
  """
  min_length, description = 3, "<s> A </s>"
  if layout.mask_options is None:
    min_length, description = 2, "a language model"
  elif layout.has_segments:
    min_length, description = 5, "[CLS] A [SEP] B [SEP]"
  if not min_length <= layout.length <= 2**15:
    raise UserError(
      f"length is {layout.length}; {description} needs {min_length} to 32,768."
    )
  if not 1 <= layout.max_sequences <= layout.length:
    raise UserError(
      f"max_sequences is {layout.max_sequences}; it must be 1 to"
      f" length={layout.length}."
    )
  if layout.mask_options and layout.max_sequences > 1:
    min_slots = round(layout.length * layout.mask_options.mask_rate)
    if layout.mask_options.max_predictions < min_slots:
      raise UserError(
        f"max_predictions is {layout.mask_options.max_predictions}, but packed"
        f" rows of length={layout.length} need {min_slots}, since all sequences"
        " of a row share the predictions."
      )
  return layout


def batch_key_names(layout: RowLayout) -> list[str]:
  """Returns the keys of a batch, see `batch_keys.FEATURES`."""
  key_names = ["input_ids", "sequence_ids"]
  if layout.has_segments:
    key_names.append("segment_ids")
  if layout.max_sequences > 1:
    key_names.append("position_ids")
  if layout.mask_options is None:
    return [*key_names, "lm_ids", "lm_weights"]
  key_names += ["mlm_positions", "mlm_ids", "mlm_weights"]
  if layout.mask_options.masking == "span":
    key_names.append("span_positions")
  if layout.has_pairs:
    key_names += ["pair_labels", "cls_positions", "pair_weights"]
  return key_names


def axis_sizes(layout: RowLayout) -> dict[str, int]:
  """Returns the lengths of the axes of `batch_keys.FEATURES`."""
  num_slots = layout.mask_options.max_predictions if layout.mask_options else 0
  return {"L": layout.length, "M": num_slots, "S": layout.max_sequences}


def return_elements(
  corpus: Corpus, elements: np.ndarray, numbers: np.ndarray, key: int
) -> np.ndarray:
  """Returns `elements`; the `FindTexts` for elements of `SEQUENCE_DTYPE`."""
  return elements


def assign_rows(
  lengths: np.ndarray,
  slots_needed: np.ndarray,
  width: int,
  slots_per_row: int,
  max_sequences: int,
) -> tuple[list[int], list[int]]:
  """Puts each sequence into the fullest row with enough free tokens and slots.

  For each sequence, it tries only a few rows, see `MAX_TRIES`.

  Args:
    lengths: [N] the number of tokens of each sequence, at most `width`. The
      sequences are put into rows in this order.
    slots_needed: [N] the number of prediction slots that each sequence needs,
      at most `slots_per_row`.
    width: the number of tokens of a row.
    slots_per_row: the number of prediction slots of a row.
    max_sequences: the largest number of sequences in a row.

  Returns:
    For each sequence the index of its row, and its rank in that row.
  """
  # `rows_by_space[r]` has the rows with space for r more tokens. Bit r of
  # `space_bits` is 1 if there are such rows. So the smallest sufficient space
  # is found quickly.
  rows_by_space: list[list[int]] = [[] for _ in range(width + 1)]
  space_bits = 0
  num_free_slots_by_row: list[int] = []
  num_sequences_by_row: list[int] = []
  row_indices, ranks = [], []
  for length, num_slots in zip(
    lengths.tolist(), slots_needed.tolist(), strict=True
  ):
    # The row -1 means that no row is found.
    fitting_bits, row = space_bits >> length << length, -1
    for _ in range(MAX_TRIES):
      if not fitting_bits:
        break
      lowest_bit = fitting_bits & -fitting_bits
      space = lowest_bit.bit_length() - 1
      if num_free_slots_by_row[rows_by_space[space][-1]] >= num_slots:
        row = rows_by_space[space].pop()
        if not rows_by_space[space]:
          space_bits ^= lowest_bit
        break
      fitting_bits ^= lowest_bit
    if row < 0:
      row, space = len(num_sequences_by_row), width
      num_sequences_by_row.append(0)
      num_free_slots_by_row.append(slots_per_row)
    row_indices.append(row)
    ranks.append(num_sequences_by_row[row])
    num_sequences_by_row[row] += 1
    num_free_slots_by_row[row] -= num_slots
    space -= length
    if num_sequences_by_row[row] < max_sequences:
      rows_by_space[space].append(row)
      space_bits |= 1 << space
  return row_indices, ranks


def pack(
  sequences: np.ndarray,
  lengths: np.ndarray,
  slots_needed: np.ndarray,
  key: int,
  *,
  width: int,
  slots_per_row: int,
  max_sequences: int,
) -> np.ndarray:
  """Arranges sequences in rows.

  Args:
    sequences: [N] of `rows.SEQUENCE_DTYPE`.
    lengths: [N] the number of tokens of each sequence, special tokens included,
      at most `width`.
    slots_needed: [N] the largest number of predictions of each sequence. A
      number above `slots_per_row` counts as `slots_per_row`.
    key: a key from `make_key`; it orders sequences of equal length.
    width: L.
    slots_per_row: M.
    max_sequences: S.

  Returns:
    [R, S] of `rows.SEQUENCE_DTYPE`, with zeros where a row has fewer sequences.
  """
  # Most sequences leave no space even for the shortest sequence. Each of them
  # gets a whole row, without a search by `assign_rows`.
  is_alone = lengths + lengths.min(initial=width) > width
  num_alone = np.count_nonzero(is_alone)
  single_rows = np.zeros((num_alone, max_sequences), rows.SEQUENCE_DTYPE)
  single_rows[:, 0] = sequences[is_alone]
  sequences, lengths = sequences[~is_alone], lengths[~is_alone]
  slots_needed = np.minimum(slots_needed[~is_alone], slots_per_row)

  random_bits = hashing.bits(
    hashing.make_key(key, "pack"), np.arange(len(lengths))
  )
  order = np.lexsort((random_bits, -lengths))
  row_indices, ranks = assign_rows(
    lengths[order], slots_needed[order], width, slots_per_row, max_sequences
  )
  shape = max(row_indices, default=-1) + 1, max_sequences
  packed_rows = np.zeros(shape, rows.SEQUENCE_DTYPE)
  packed_rows[row_indices, ranks] = sequences[order]
  return np.concatenate([single_rows, packed_rows])


def index_packed(
  corpus: Corpus,
  first_document: int,
  end_document: int,
  key: int,
  *,
  layout: RowLayout,
  index_sequences: Callable[[Corpus, int, int, int], np.ndarray],
  find_texts: FindTexts,
) -> np.ndarray:
  """Plans the packed rows of a range of documents; see `Recipe.index`.

  Args:
    corpus: the documents.
    first_document: the first document of the range.
    end_document: the end of the range, which is not part of the range.
    key: a key from `make_key`; each epoch has its own key, and so its own rows.
    layout: the layout of the rows.
    index_sequences: a function like `Recipe.index`; each element of its array
      is one sequence of a row.
    find_texts: finds the texts of the elements of `index_sequences`.

  Returns:
    [R, S] of `rows.SEQUENCE_DTYPE`.
  """
  elements = index_sequences(corpus, first_document, end_document, key)
  # The range is part of the key, because ranges must not share draws.
  key = hashing.make_key(key, "range", first_document)
  sequence_numbers = np.arange(len(elements), dtype=np.uint64)
  sequences = find_texts(corpus, elements, sequence_numbers, key)
  text_lengths = (
    sequences["length"].astype(np.int64) + sequences["second_length"]
  )
  lengths, slots_needed = text_lengths, np.zeros_like(text_lengths)
  if layout.mask_options:
    lengths = text_lengths + 2 + (sequences["second_length"] > 0)
    slots_needed = masking.count_masks(
      lengths, text_lengths, layout.mask_options
    )
  return pack(
    sequences,
    lengths,
    slots_needed,
    key,
    width=layout.length,
    slots_per_row=layout.mask_options.max_predictions
    if layout.mask_options
    else 0,
    max_sequences=layout.max_sequences,
  )


def build(
  corpus: Corpus,
  elements: np.ndarray,
  row_numbers: np.ndarray,
  key: int,
  *,
  layout: RowLayout,
  find_texts: FindTexts,
) -> Batch:
  """Makes a batch; see `Recipe.build`.

  Args:
    corpus: the documents.
    elements: elements of the index: [B], or [B, S] if rows are packed.
    row_numbers: [B] uint64, the global number of each row.
    key: a key from `make_key`.
    layout: the layout of the rows.
    find_texts: finds the texts of the elements.

  Raises:
    UserError: the corpus has ids beyond the vocabulary.
  """
  sequences = find_texts(corpus, elements, row_numbers, key)
  sequences = sequences.reshape(len(elements), -1)
  # Give each sequence of a packed row a number. If S is 1, the number of a
  # sequence is the number of its row.
  max_sequences = sequences.shape[1]
  ranks = np.arange(max_sequences, dtype=np.uint64)
  sequence_numbers = row_numbers[:, None] * np.uint64(max_sequences) + ranks
  return assemble(corpus, sequences, sequence_numbers, key, layout)


def assemble(
  corpus: Corpus,
  sequences: np.ndarray,
  sequence_numbers: np.ndarray,
  key: int,
  layout: RowLayout,
) -> Batch:
  """Makes a batch of rows from sequences.

  Args:
    corpus: the documents.
    sequences: [B, S] of `rows.SEQUENCE_DTYPE`.
    sequence_numbers: [B, S] uint64. The number of a sequence and `key`
      determine all draws for the sequence.
    key: a key from `make_key`.
    layout: the layout of the rows.

  Raises:
    UserError: the corpus has ids beyond the vocabulary.
  """
  special, tokens = layout.special, np.asarray(corpus.tokens)
  if layout.mask_options is None:
    parts = rows.text_parts(sequences)
  elif layout.crosses_documents:
    parts = rows.parts_with_separators(corpus, sequences, special)
  elif layout.moves_sentences:
    parts = rows.parts_with_moved_sentences(corpus, sequences, special)
  else:
    parts = rows.pair_parts(sequences, special)
  max_sequences = sequences.shape[1]
  batch_rows = rows.lay_out(
    tokens, parts, max_sequences, layout.length, special.pad or 0
  )
  _check_ids(batch_rows.ids, layout.vocab_size)
  batch = {"input_ids": batch_rows.ids, "sequence_ids": batch_rows.sequence_ids}
  if layout.has_segments:
    batch["segment_ids"] = batch_rows.segment_ids
  if max_sequences > 1:
    batch["position_ids"] = batch_rows.position_ids
  if layout.mask_options is None:
    next_ids = tokens.take(batch_rows.token_index + 1, mode="clip")
    next_ids = next_ids.astype(np.int32)
    batch["lm_ids"] = np.where(batch_rows.is_text, next_ids, 0).astype(np.int32)
    _check_ids(batch["lm_ids"], layout.vocab_size)
    batch["lm_weights"] = batch_rows.is_text.astype(np.float32)
    return batch
  batch |= _mask(
    corpus, batch_rows, sequence_numbers, key, layout, layout.mask_options
  )
  if layout.has_pairs:
    has_sequence = batch_rows.lengths > 0
    first_columns = np.cumsum(batch_rows.lengths, axis=1) - batch_rows.lengths
    batch["pair_labels"] = sequences["label"].astype(np.int32)
    batch["cls_positions"] = np.where(has_sequence, first_columns, 0).astype(
      np.int32
    )
    batch["pair_weights"] = has_sequence.astype(np.float32)
  return batch


def _check_ids(ids: np.ndarray, vocab_size: int) -> None:
  """Raises UserError if an id is not in the vocabulary."""
  highest_id = int(ids.max(initial=0))
  if highest_id >= vocab_size:
    raise UserError(
      f"token id {highest_id} in the corpus, but the vocabulary has"
      f" {vocab_size} pieces; prepare the text with this vocabulary."
    )


def _mask(
  corpus: Corpus,
  batch_rows: rows.Rows,
  sequence_numbers: np.ndarray,
  key: int,
  layout: RowLayout,
  mask_options: masking.MaskOptions,
) -> Batch:
  """Returns the masked `input_ids` and the keys of the predictions."""
  word_starts, maskable = None, batch_rows.is_text
  if masking.hides_whole_words(mask_options):
    word_start_bits = np.asarray(corpus.word_starts)
    word_starts = rows.word_starts(word_start_bits, batch_rows.token_index)
  if corpus.never_masked_ids:
    maskable = maskable & ~np.isin(batch_rows.ids, corpus.never_masked_ids)
  special = layout.special
  assert special.mask is not None  # `recipes.make_recipe` has checked it.
  reserved_ids = {i for i in special if i is not None}
  return masking.mask_tokens(
    batch_rows.ids,
    maskable,
    batch_rows.lengths,
    sequence_numbers,
    hashing.make_key(key, "masks"),
    mask_options,
    mask_id=special.mask,
    vocab_size=layout.vocab_size,
    reserved_ids=tuple(reserved_ids.union(corpus.never_masked_ids)),
    word_starts=word_starts,
    weights=masking.token_weights(
      batch_rows.ids, corpus.unigrams, mask_options
    ),
    unigrams=corpus.unigrams,
  )
