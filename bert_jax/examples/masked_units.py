"""Chooses the tokens to hide: single tokens, words, n-grams or spans of words.

A row has one or more sequences. The draws of a sequence depend on its number
and on columns that are counted from its beginning. So they do not depend on the
place of the sequence in a packed row.
"""

from typing import NamedTuple

import numpy as np

from bert_jax import hashing


class UnitRule(NamedTuple):
  """Says how many consecutive words are hidden together, as a unit.

  Attributes:
    cumulative_chances: [N]; entry n - 1 is the chance that a unit has at most n
      words.
    may_overlap: True if a unit may contain words that are already hidden; False
      if a unit with hidden words is left out. In both cases, a unit with more
      tokens than may still be hidden loses words at its end.
  """

  cumulative_chances: np.ndarray
  may_overlap: bool


def _cumulative(chances: np.ndarray) -> np.ndarray:
  return np.cumsum(chances) / chances.sum()


# "token" hides single tokens, and needs no units of words.
UNIT_RULES: dict[str, UnitRule | None] = {
  "token": None,
  # As released in google-research/bert on May 31st 2019.
  "whole_word": UnitRule(np.ones(1), may_overlap=False),
  # ALBERT (Lan et al. 2020, section 4.1): p(n) ~ 1/n, at most 3 words.
  "ngram": UnitRule(_cumulative(1 / np.arange(1, 4)), may_overlap=False),
  # SpanBERT (Joshi et al. 2020, section 3.1): geometric, p = 0.2, between 1 and
  # 10 words: 3.8 on average.
  "span": UnitRule(_cumulative(0.8 ** np.arange(10)), may_overlap=True),
}


class Sequences(NamedTuple):
  """Describes the sequences of a batch: S in each of B rows.

  The arrays have the shape [B * S], except `sequence_of_column`.

  Attributes:
    lengths: the number of tokens of each sequence; 0 at an unused place of a
      row.
    begins: the column of each first token. The sequences of a row follow each
      other from column 0. If S is 1, all begins are 0, even if a row begins
      with padding.
    rows: the index of each sequence's row in the batch.
    numbers: uint64, the number of each sequence. This number, a key and a
      column in the sequence determine every draw.
    sequence_of_column: [B, L] the index, in [0, B * S), of the sequence of each
      column; None if S is 1.
  """

  lengths: np.ndarray
  begins: np.ndarray
  rows: np.ndarray
  numbers: np.ndarray
  sequence_of_column: np.ndarray | None


def make_sequences(
  lengths: np.ndarray, numbers: np.ndarray, width: int
) -> Sequences:
  """Describes the sequences of rows.

  Args:
    lengths: [B] or [B, S] integers, the number of tokens of each sequence.
    numbers: [B] or [B, S] uint64, the numbers of the sequences.
    width: L, the number of columns of a row.
  """
  num_rows = len(lengths)
  lengths = lengths.reshape(num_rows, -1).astype(np.int64)
  max_sequences = lengths.shape[1]
  sequence_of_column = None
  if max_sequences > 1:
    repeats = lengths.copy()
    repeats[:, -1] += width - lengths.sum(1)
    sequence_indices = np.repeat(np.arange(lengths.size), repeats.ravel())
    sequence_of_column = sequence_indices.reshape(num_rows, width)
  return Sequences(
    lengths.ravel(),
    (np.cumsum(lengths, axis=1) - lengths).ravel(),
    np.repeat(np.arange(num_rows), max_sequences),
    numbers.ravel(),
    sequence_of_column,
  )


class ColumnOrder(NamedTuple):
  """Holds the eligible columns of each sequence, in random order.

  Attributes:
    columns: [B, L] columns, counted from the beginning of their sequence. The
      entries of a row's sequences follow each other. Entries after those of
      the last sequence have no meaning.
    first_entries: [B * S] the index in a row of `columns` where the entries of
      each sequence begin.
    sizes: [B * S] the number of entries of each sequence.
  """

  columns: np.ndarray
  first_entries: np.ndarray
  sizes: np.ndarray

  def take(
    self,
    sequences: Sequences,
    sequence_indices: np.ndarray,
    rank: np.ndarray | int,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the columns at some ranks of the order.

    Args:
      sequences: the sequences of the batch.
      sequence_indices: [N] the indices of sequences, in [0, B * S).
      rank: [N] a rank in the order of each sequence, or one rank for all.

    Returns:
      [N] int64 columns in the sequence, and [N] int64 flat columns, which are
      indices into the raveled [B, L].
    """
    rows = sequences.rows[sequence_indices]
    local_columns = self.columns[
      rows, self.first_entries[sequence_indices] + rank
    ]
    sequence_starts = (
      rows * self.columns.shape[1] + sequences.begins[sequence_indices]
    )
    return local_columns.astype(np.int64), sequence_starts + local_columns


def _weighted_draws(bits: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Turns uint32 draws into new draws, lower on average for larger weights.

  The new draws are exponential times, whose rates are the weights. The chance
  that a draw is the lowest of all is proportional to its weight (Efraimidis &
  Spirakis 2006). The function returns the bits of the float32 times as
  integers, which have the order of the times, because times are positive.
  """
  times = -np.log((bits + 0.5) * 2.0**-32) / weights
  return times.astype(np.float32).view(np.uint32)


def shuffle_columns(
  eligible: np.ndarray,
  sequences: Sequences,
  key: int,
  weights: np.ndarray | None = None,
) -> ColumnOrder:
  """Puts the eligible columns of each sequence into random order.

  Args:
    eligible: [B, L] bool.
    sequences: the sequences of the batch.
    key: a key from `make_key`.
    weights: [B, L] positive. Of the columns that are left, each comes next with
      a chance in proportion to its weight. None gives equal chances.
  """
  num_rows, length = eligible.shape
  columns = np.arange(length, dtype=np.uint32)
  low_bits_mask = np.uint32((1 << (length - 1).bit_length()) - 1)
  # Sort by random scores. The column replaces the low bits of its score. So no
  # two scores are equal, and the column of a sorted score can be read from it.
  if sequences.sequence_of_column is None:
    scores = hashing.bits32(key, sequences.numbers[:, None], columns)
    scores = scores if weights is None else _weighted_draws(scores, weights)
    scores &= ~low_bits_mask
    scores |= columns
    np.copyto(scores, np.uint32(0xFFFFFFFF), where=~eligible)
    scores.sort(axis=1)
    scores &= low_bits_mask
    sizes = np.count_nonzero(eligible, axis=1)
    return ColumnOrder(scores, np.zeros(num_rows, np.int64), sizes)
  sequence_of_column = sequences.sequence_of_column
  local_columns = (columns - sequences.begins[sequence_of_column]).astype(
    np.uint32
  )
  scores = hashing.bits32(
    key, sequences.numbers[sequence_of_column], local_columns
  )
  scores = scores if weights is None else _weighted_draws(scores, weights)
  scores &= ~low_bits_mask
  scores |= local_columns
  sort_keys = (sequence_of_column << 32).astype(np.uint64)
  sort_keys |= scores
  np.copyto(sort_keys, ~np.uint64(0), where=~eligible)
  sort_keys.sort(axis=1)
  sizes = np.bincount(
    sequence_of_column[eligible], minlength=len(sequences.rows)
  )
  sizes_by_row = sizes.reshape(num_rows, -1)
  first_entries = (np.cumsum(sizes_by_row, axis=1) - sizes_by_row).ravel()
  return ColumnOrder(
    sort_keys.astype(np.uint32) & low_bits_mask, first_entries, sizes
  )


def choose_tokens(
  maskable: np.ndarray,
  sequences: Sequences,
  counts: np.ndarray,
  key: int,
  weights: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws distinct maskable tokens of each sequence.

  Args:
    maskable: [B, L] bool.
    sequences: the sequences of the batch.
    counts: [B * S] how many tokens to draw from each sequence; at most as many
      as are maskable.
    key: a key from `make_key`.
    weights: [B, L] positive, see `shuffle_columns`; None gives equal chances.

  Returns:
    [N] flat columns of the tokens, ascending, and [N] the indices of their
    sequences. A flat column is an index into the raveled [B, L].
  """
  order = shuffle_columns(maskable, sequences, key, weights)
  sequence_indices = np.repeat(np.arange(len(counts)), counts)
  ranks = np.arange(len(sequence_indices)) - np.repeat(
    np.cumsum(counts) - counts, counts
  )
  _, flat_columns = order.take(sequences, sequence_indices, ranks)
  # Flat columns ascend with the indices of their sequences. So after sorting,
  # each column still has its sequence beside it.
  return np.sort(flat_columns), sequence_indices


def choose_with_repeats(
  maskable: np.ndarray, sequences: Sequences, counts: np.ndarray, key: int
) -> tuple[np.ndarray, np.ndarray]:
  """Does what `choose_tokens` does, but may draw a token more than once."""
  maskable_columns = np.flatnonzero(maskable)
  starts = sequences.rows * maskable.shape[1] + sequences.begins
  first_entries = np.searchsorted(maskable_columns, starts)
  sizes = np.diff(first_entries, append=len(maskable_columns))
  sequence_indices = np.repeat(np.arange(len(counts)), counts)
  ranks = np.arange(len(sequence_indices)) - np.repeat(
    np.cumsum(counts) - counts, counts
  )
  draws = hashing.randint(
    key, sequences.numbers[sequence_indices], ranks, sizes[sequence_indices]
  )
  return np.sort(
    maskable_columns[first_entries[sequence_indices] + draws]
  ), sequence_indices


def choose_words(
  maskable: np.ndarray,
  word_starts: np.ndarray,
  sequences: Sequences,
  counts: np.ndarray,
  key: int,
  unit_rule: UnitRule,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws units of whole words: all pieces of a word, or none of them.

  The words of a sequence are tried in random order. Each one is tried as the
  first word of a unit, and the number of words in the unit is drawn. A unit
  ends at the first token that is not maskable. A unit with more tokens than may
  still be hidden is shortened (see `UnitRule`). If the unit's first word alone
  has too many tokens, no word is drawn. So fewer tokens than `counts` may be
  drawn.

  There are three deviations from the published programs:

  * Truncation may separate pieces from the start of their word. Here the
    separated pieces are a word. At the front of the second segment, BERT's
    program adds such pieces to the last word of the first segment.
  * Here no unit continues after a [SEP]. ALBERT's n-grams may continue there.
  * Here the first word of a span is drawn uniformly, and no word is cut. In
    SpanBERT a token is drawn uniformly, the span begins at the token's word,
    and the last word may be cut to reach the count.

  Args:
    maskable: [B, L] bool; False at the first column of each sequence.
    word_starts: [B, L] bool, True where a word starts. The first of
      adjacent maskable tokens always counts as the start of a word.
    sequences: the sequences of the batch.
    counts: [B * S] the largest number of tokens to draw from each sequence.
    key: a key from `make_key`.
    unit_rule: a value of `UNIT_RULES`.

  Returns:
    See `choose_tokens`.
  """
  is_word_start = maskable & word_starts
  is_word_start[:, :1] = maskable[:, :1]
  is_word_start[:, 1:] |= maskable[:, 1:] & ~maskable[:, :-1]
  # Cut the flat columns into blocks. A block is a word, or one token that is
  # not maskable.
  block_starts = np.flatnonzero(is_word_start | ~maskable)
  block_sizes = np.diff(block_starts, append=maskable.size)
  block_of_column = np.zeros(maskable.size, np.int64)
  block_of_column[block_starts] = np.arange(len(block_starts))

  max_words = len(unit_rule.cumulative_chances)
  word_offsets = np.arange(max_words)
  # There are no words after the last block.
  is_word = np.append(
    is_word_start.ravel()[block_starts], np.zeros(max_words, bool)
  )
  padded_sizes = np.append(block_sizes, np.zeros(max_words, np.int64))
  is_picked = np.zeros(len(is_word), bool)
  order = shuffle_columns(is_word_start, sequences, key)
  lengths_key = hashing.make_key(key, "units")
  num_remaining = counts.copy()
  # Each step tries the next word of every sequence.
  for rank in range(order.sizes.max(initial=0)):
    sequence_indices = np.flatnonzero(
      (num_remaining > 0) & (rank < order.sizes)
    )
    if not len(sequence_indices):
      break
    local_columns, flat_columns = order.take(sequences, sequence_indices, rank)
    blocks = block_of_column[flat_columns]
    is_free = ~is_picked[blocks]
    sequence_indices, local_columns, blocks = (
      sequence_indices[is_free],
      local_columns[is_free],
      blocks[is_free],
    )
    unit_blocks = blocks[:, None] + word_offsets
    is_in_unit = np.logical_and.accumulate(is_word[unit_blocks], axis=1)
    if max_words > 1:
      draws = hashing.uniform(
        lengths_key, sequences.numbers[sequence_indices], local_columns
      )
      is_in_unit &= (
        word_offsets
        <= np.searchsorted(unit_rule.cumulative_chances, draws, "right")[
          :, None
        ]
      )
    is_already_picked = is_picked[unit_blocks]
    # The cost of a word is the number of tokens that it would newly hide.
    costs = padded_sizes[unit_blocks]
    if unit_rule.may_overlap:
      costs = np.where(is_already_picked, 0, costs)
    is_in_unit &= (
      np.cumsum(costs, axis=1) <= num_remaining[sequence_indices][:, None]
    )
    if not unit_rule.may_overlap:
      is_in_unit &= ~(is_in_unit & is_already_picked).any(1, keepdims=True)
    is_picked[unit_blocks[is_in_unit]] = True
    num_remaining[sequence_indices] -= (costs * is_in_unit).sum(1)

  flat_columns = np.flatnonzero(
    np.repeat(is_picked[: len(block_starts)], block_sizes)
  )
  return flat_columns, np.repeat(np.arange(len(counts)), counts - num_remaining)
