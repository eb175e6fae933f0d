"""Which tokens to hide: single ones, words, n-grams, spans of words.

A batch is rows of one or more sequences, each with a number of its own that
its draws depend on: a sequence gets the same choice alone and in a packed row.
"""

from typing import NamedTuple

import numpy as np

from bert_jax import hashing


class Units(NamedTuple):
  """How many consecutive words are hidden together.

  Attributes:
    ends: [N] cumulative chances of 1, 2, ... N words.
    merge: a unit that meets hidden words takes them in, and one too long for
      what is left to hide hides its first words. If not, it is shortened from N
      words on until it is short enough, and left out if it meets hidden words.
  """

  ends: np.ndarray
  merge: bool


def _ends(chances: np.ndarray) -> np.ndarray:
  return np.cumsum(chances) / chances.sum()


# "token" needs no words.
KINDS: dict[str, Units | None] = {
  "token": None,
  # Google-research/bert, May 31st 2019.
  "whole_word": Units(np.ones(1), False),
  # ALBERT (Lan et al. 2020, section 4.1): p(n) ~ 1/n, at most 3 words.
  "ngram": Units(_ends(1 / np.arange(1, 4)), False),
  # SpanBERT (Joshi et al. 2020, section 3.1): geometric, p = 0.2, between 1 and
  # 10 words: 3.8 on average.
  "span": Units(_ends(0.8 ** np.arange(10)), True),
}


class Slots(NamedTuple):
  """The places for sequences in a batch: S in each of B rows, [B * S] each.

  Attributes:
    length: tokens of the sequence, 0 if there is none.
    begin: column of its first token; a row's sequences follow each other.
    row: the number of the row that it is in.
    number: uint64, of the example; with a key and a column in the sequence it
      determines every draw.
    of_column: [B, L] the place that each column belongs to; None if S is 1.
  """

  length: np.ndarray
  begin: np.ndarray
  row: np.ndarray
  number: np.ndarray
  of_column: np.ndarray | None


def make_slots(lengths: np.ndarray, numbers: np.ndarray, width: int) -> Slots:
  """Describes the sequences of rows.

  Args:
    lengths: [B] or [B, S] integers; of one sequence alone it does not say
      where in the row it lies.
    numbers: [B] or [B, S] uint64.
    width: L, columns of a row.
  """
  rows = len(lengths)
  lengths = lengths.reshape(rows, -1).astype(np.int64)
  places = lengths.shape[1]
  of_column = None
  if places > 1:
    repeats = lengths.copy()
    repeats[:, -1] += width - lengths.sum(1)
    of_column = np.repeat(np.arange(lengths.size), repeats.ravel())
    of_column = of_column.reshape(rows, width)
  return Slots(
    lengths.ravel(),
    (np.cumsum(lengths, axis=1) - lengths).ravel(),
    np.repeat(np.arange(rows), places),
    numbers.ravel(),
    of_column,
  )


class Order(NamedTuple):
  """Columns of each sequence in random order.

  Attributes:
    columns: [B, L], counted in the sequence; those of a row's sequences follow
      one another. What comes after them means nothing.
    first: [B * S] where in its row a sequence's columns are.
    count: [B * S] how many there are.
  """

  columns: np.ndarray
  first: np.ndarray
  count: np.ndarray

  def take(
    self, slots: Slots, slot: np.ndarray, rank: np.ndarray | int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the columns at a rank: in the sequence, in rows end to end."""
    local = self.columns[slots.row[slot], self.first[slot] + rank]
    start = slots.row[slot] * self.columns.shape[1] + slots.begin[slot]
    return local.astype(np.int64), start + local


def _favour(bits: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Turns uint32 draws into others, of which the larger weight's is lower.

  Exponential times, at a rate of the weight each: the first of any is each with
  a chance in proportion to its weight (Efraimidis & Spirakis 2006). Positive
  floats are in the order of their bits.
  """
  times = -np.log((bits + 0.5) * 2.0**-32) / weights
  return times.astype(np.float32).view(np.uint32)


def shuffle(
  eligible: np.ndarray,
  slots: Slots,
  key: int,
  weights: np.ndarray | None = None,
) -> Order:
  """Puts the eligible columns of each sequence into random order.

  Args:
    eligible: [B, L] bool.
    slots: the sequences.
    key: from `make_key`.
    weights: [B, L] positive; of those left, each comes next with a chance in
      proportion to its own. None for equal ones.
  """
  rows, length = eligible.shape
  columns = np.arange(length, dtype=np.uint32)
  low = np.uint32((1 << (length - 1).bit_length()) - 1)
  # The lowest random numbers win. Their low bits give way to the column: ties
  # are gone, and sorting the numbers also tells where they stood.
  if slots.of_column is None:
    scores = hashing.bits32(key, slots.number[:, None], columns)
    scores = scores if weights is None else _favour(scores, weights)
    scores &= ~low
    scores |= columns
    np.copyto(scores, np.uint32(0xFFFFFFFF), where=~eligible)
    scores.sort(axis=1)
    scores &= low
    count = np.count_nonzero(eligible, axis=1)
    return Order(scores, np.zeros(rows, np.int64), count)
  place = slots.of_column
  local = (columns - slots.begin[place]).astype(np.uint32)
  scores = hashing.bits32(key, slots.number[place], local)
  scores = scores if weights is None else _favour(scores, weights)
  scores &= ~low
  scores |= local
  ranked = (place << 32).astype(np.uint64)
  ranked |= scores
  np.copyto(ranked, ~np.uint64(0), where=~eligible)
  ranked.sort(axis=1)
  count = np.bincount(place[eligible], minlength=len(slots.row))
  by_row = count.reshape(rows, -1)
  first = (np.cumsum(by_row, axis=1) - by_row).ravel()
  return Order(ranked.astype(np.uint32) & low, first, count)


def choose_tokens(
  maskable: np.ndarray,
  slots: Slots,
  counts: np.ndarray,
  key: int,
  weights: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws distinct tokens of the maskable ones of each sequence.

  Args:
    maskable: [B, L] bool.
    slots: the sequences.
    counts: [B * S] how many to draw; at most as many as there are.
    key: from `make_key`.
    weights: [B, L] positive, see `shuffle`; None for equal chances.

  Returns:
    [N] places in the rows laid end to end, ascending; [N] their slots.
  """
  order = shuffle(maskable, slots, key, weights)
  slot = np.repeat(np.arange(len(counts)), counts)
  rank = np.arange(len(slot)) - np.repeat(np.cumsum(counts) - counts, counts)
  _, flat = order.take(slots, slot, rank)
  # Sequences lie in the order of their slots.
  return np.sort(flat), slot


def choose_repeated(
  maskable: np.ndarray, slots: Slots, counts: np.ndarray, key: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws tokens that may be the same; otherwise as `choose_tokens`."""
  places = np.flatnonzero(maskable)
  starts = slots.row * maskable.shape[1] + slots.begin
  first = np.searchsorted(places, starts)
  number = np.diff(first, append=len(places))
  slot = np.repeat(np.arange(len(counts)), counts)
  rank = np.arange(len(slot)) - np.repeat(np.cumsum(counts) - counts, counts)
  draw = hashing.randint(key, slots.number[slot], rank, number[slot])
  return np.sort(places[first[slot] + draw]), slot


def choose_words(
  maskable: np.ndarray,
  word_starts: np.ndarray,
  slots: Slots,
  counts: np.ndarray,
  key: int,
  units: Units,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws units of whole words: all of a word's pieces or none.

  Every word of a sequence is tried in random order as the first of a unit,
  whose number of words is drawn; a unit ends where its stretch of text does.
  What would exceed the count is shortened (see `Units`), a first word that
  would is skipped for the next. So fewer than `counts` may be drawn.

  Deviations from the programs. Pieces that truncation parted from their word's
  start are a word of their own at the front of the second segment too, where
  BERT's adds them to the last word of the first. ALBERT's n-grams may go on
  beyond a [SEP]. SpanBERT's spans begin at the word of a uniform token, here at
  a uniform word, and the last word may be cut to make the count.

  Args:
    maskable: [B, L] bool; False where a sequence begins.
    word_starts: [B, L] bool, True where a word starts. The first maskable token
      of a stretch starts one in any case.
    slots: the sequences.
    counts: [B * S] how many tokens to draw at most.
    key: from `make_key`.
    units: one of `KINDS`.

  Returns:
    [N] places in the rows laid end to end, ascending; [N] their slots.
  """
  heads = maskable & word_starts
  heads[:, :1] = maskable[:, :1]
  heads[:, 1:] |= maskable[:, 1:] & ~maskable[:, :-1]
  # Rows laid end to end and cut before every word and every other token.
  cuts = np.flatnonzero(heads | ~maskable)
  pieces = np.diff(cuts, append=maskable.size)
  part_of = np.zeros(maskable.size, np.int64)
  part_of[cuts] = np.arange(len(cuts))

  widest = len(units.ends)
  step = np.arange(widest)
  # Beyond the last part there is no word.
  word = np.append(heads.ravel()[cuts], np.zeros(widest, bool))
  size = np.append(pieces, np.zeros(widest, np.int64))
  picked = np.zeros(len(word), bool)
  order = shuffle(heads, slots, key)
  lengths_key = hashing.make_key(key, "units")
  room = counts.copy()
  for rank in range(order.count.max(initial=0)):
    slot = np.flatnonzero((room > 0) & (rank < order.count))
    if not len(slot):
      break
    column, flat = order.take(slots, slot, rank)
    part = part_of[flat]
    free = ~picked[part]
    slot, column, part = slot[free], column[free], part[free]
    window = part[:, None] + step
    inside = np.logical_and.accumulate(word[window], axis=1)
    if widest > 1:
      draw = hashing.uniform(lengths_key, slots.number[slot], column)
      inside &= step <= np.searchsorted(units.ends, draw, "right")[:, None]
    occupied = picked[window]
    costs = size[window]
    if units.merge:
      costs = np.where(occupied, 0, costs)
    inside &= np.cumsum(costs, axis=1) <= room[slot][:, None]
    if not units.merge:
      inside &= ~(inside & occupied).any(1, keepdims=True)
    picked[window[inside]] = True
    room[slot] -= (costs * inside).sum(1)

  flat = np.flatnonzero(np.repeat(picked[: len(cuts)], pieces))
  return flat, np.repeat(np.arange(len(counts)), counts - room)
