"""Lays sequences out in rows: one in each, or several (packed).

What a row holds is described by places in the corpus (`EXAMPLE`); its tokens
are fetched here, with special tokens between and padding behind them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.corpus.reader import Corpus
from bert_jax.text.vocabulary import SpecialIds

# One sequence: a text, and a second one if it has any tokens.
EXAMPLE = np.dtype(
  [
    ("start", np.int64),  # first token, in the corpus
    ("second", np.int64),
    # Tokens; 0 for no sequence. Of a text that ends before the second begins,
    # and is longer than that, see `returning_parts`.
    ("length", np.uint16),
    ("second_length", np.uint16),
    ("label", np.uint8),  # of a pair
  ],
  align=True,
)


class Rows(NamedTuple):
  """A batch of rows before masks, [B, L] each.

  Attributes:
    ids: int32, with special tokens and padding.
    sequences: int32, 1, 2, ... for the sequences of a row, 0 for padding.
    segments: int32, 1 in the second text of a pair and its separator.
    positions: int32, 0, 1, ... in each sequence; 0 at padding.
    text: bool, False at special tokens and padding.
    index: int64, where in the corpus each token lies; meaningless elsewhere.
    lengths: [B, S] int64, tokens of each sequence with special tokens.
  """

  ids: np.ndarray
  sequences: np.ndarray
  segments: np.ndarray
  positions: np.ndarray
  text: np.ndarray
  index: np.ndarray
  lengths: np.ndarray


class Parts(NamedTuple):
  """What follows each other in rows, [B, P] or [P] each; a length may be 0.

  Attributes:
    start: first token in the corpus, of text.
    length: tokens.
    special: id of a special token; -1 for text.
    sequence: number of the sequence in its row, from 0 on.
    segment: 0 or 1.
  """

  start: np.ndarray
  length: np.ndarray
  special: np.ndarray
  sequence: np.ndarray
  segment: np.ndarray


def pair_parts(examples: np.ndarray, special: SpecialIds) -> Parts:
  """[CLS] A [SEP] B [SEP] for each sequence, without B and its [SEP] if empty.

  Args:
    examples: [B, S] of `EXAMPLE`.
    special: ids of [CLS] and [SEP].
  """
  rows, places = examples.shape
  first = examples["length"].astype(np.int64)
  second = examples["second_length"].astype(np.int64)
  some, both = (first > 0).astype(np.int64), (second > 0).astype(np.int64)
  none = np.zeros_like(first)
  length = np.stack([some, first, some, second, both], 2)
  start = np.stack([none, examples["start"], none, examples["second"], none], 2)
  specials = np.array([special.cls, -1, special.sep, -1, special.sep])
  return Parts(
    start.reshape(rows, -1),
    length.reshape(rows, -1),
    np.tile(specials, places),
    np.repeat(np.arange(places), 5),
    np.tile([0, 0, 0, 1, 1], places),
  )


def _returned(
  sentences: np.ndarray, second: np.ndarray, spare: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the sentences of second texts that belong to the first ones.

  Args:
    sentences: `Corpus.sentences`.
    second: [N] first token of each second text.
    spare: [N] tokens that the first one takes, sentence by sentence, of those
      that fit into what is left of it.

  Returns:
    [N, K] first tokens, and lengths, 0 behind the last.
  """
  place = np.searchsorted(sentences, second)
  (rows,) = np.nonzero(spare > 0)
  count, returned = np.zeros(len(second), np.int64), []
  spare = spare.copy()
  while len(rows):
    begin = np.asarray(sentences[place[rows]])
    size = np.asarray(sentences[place[rows] + 1]) - begin
    fits = size <= spare[rows]
    fitting = rows[fits]
    returned.append((fitting, count[fitting], begin[fits], size[fits]))
    count[fitting] += 1
    spare[fitting] -= size[fits]
    place[rows] += 1
    rows = rows[spare[rows] > 0]
  shape = len(second), int(count.max(initial=0))
  starts, lengths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
  for fitting, number, begin, size in returned:
    starts[fitting, number], lengths[fitting, number] = begin, size
  return starts, lengths


def returning_parts(
  corpus: Corpus, examples: np.ndarray, special: SpecialIds
) -> Parts:
  """As `pair_parts`, where later sentences may return to the first text.

  A is the tokens from its beginning to B's, and if it is longer than that, the
  sentences from there on that fit into what is left of its length, each in its
  turn; B is the others.

  Args:
    corpus: the documents.
    examples: [B, S] of `EXAMPLE`.
    special: ids of [CLS] and [SEP].
  """
  rows, places = examples.shape
  flat = examples.ravel()
  start, second = flat["start"], flat["second"]
  length = flat["length"].astype(np.int64)
  spare = length - (second - start)
  spare = np.where(length > 0, np.maximum(spare, 0), 0)
  starts, lengths = _returned(corpus.sentences, second, spare)
  if not starts.shape[1]:
    return pair_parts(examples, special)
  # B's parts lie before, between and behind those that return.
  none = np.zeros((len(flat), 1), np.int64)
  total = flat["second_length"].astype(np.int64)[:, None]
  begins = np.append(second[:, None], starts + lengths, 1)
  gaps = np.append(starts, none, 1) - begins
  gaps = np.where(np.append(lengths, none, 1) > 0, gaps, total)
  sizes = np.diff(np.minimum(np.cumsum(gaps, 1), total), axis=1, prepend=0)
  some, both = length[:, None] > 0, total > 0
  first_length = (length - spare)[:, None]
  split = 2 + lengths.shape[1]
  specials = np.full(split + sizes.shape[1] + 2, -1)
  specials[0], specials[split], specials[-1] = (
    special.cls,
    special.sep,
    special.sep,
  )
  return Parts(
    np.concatenate(
      [none, start[:, None], starts, none, begins, none], 1
    ).reshape(rows, -1),
    np.concatenate([some, first_length, lengths, some, sizes, both], 1).reshape(
      rows, -1
    ),
    np.tile(specials, places),
    np.repeat(np.arange(places), len(specials)),
    np.tile((np.arange(len(specials)) > split).astype(np.int64), places),
  )


def bare_parts(examples: np.ndarray) -> Parts:
  """The text alone, for each sequence of `examples`, [B, S] of `EXAMPLE`."""
  places = examples.shape[1]
  return Parts(
    examples["start"],
    examples["length"].astype(np.int64),
    np.full(places, -1),
    np.arange(places),
    np.zeros(places, np.int64),
  )


def separated_parts(
  corpus: Corpus, examples: np.ndarray, special: SpecialIds
) -> Parts:
  """[CLS] A [SEP], with a [SEP] too wherever a document ends within A.

  Args:
    corpus: the documents.
    examples: [B, 1] of `EXAMPLE`, one text each.
    special: ids of [CLS] and [SEP].
  """
  start = examples["start"][:, 0]
  stop = start + examples["length"][:, 0]
  sentences, documents = corpus.sentences, corpus.documents
  first, last = (
    np.searchsorted(
      documents, np.searchsorted(sentences, tokens, "right") - 1, "right"
    )
    for tokens in (start, stop - 1)
  )
  count = int((last - first).max(initial=0)) + 1
  number = np.minimum(first[:, None] + np.arange(count), last[:, None])
  ends = np.minimum(np.asarray(sentences)[documents[number]], stop[:, None])
  begins = np.concatenate([start[:, None], ends[:, :-1]], 1)
  lengths = ends - begins
  parts = 1 + 2 * count
  length = np.ones((len(examples), parts), np.int64)
  length[:, 1::2] = lengths
  length[:, 2::2] = lengths > 0
  starts = np.zeros_like(length)
  starts[:, 1::2] = begins
  specials = np.full(parts, special.sep)
  specials[0], specials[1::2] = special.cls, -1
  same = np.zeros(parts, np.int64)
  return Parts(starts, length, specials, same, same)


def lay_out(
  tokens: np.ndarray, parts: Parts, places: int, width: int, pad: int
) -> Rows:
  """Fetches the parts of rows and pads.

  Args:
    tokens: [T] flat token ids of the corpus.
    parts: the content of the rows, at most `width` tokens in each.
    places: S, the most sequences in a row.
    width: L.
    pad: id of padding.
  """
  rows = len(parts.length)
  shape = rows, width

  def spread(values, padding, dtype):
    """Repeats a value of each part over its columns."""
    full = np.empty((rows, parts.length.shape[1] + 1), dtype)
    full[:, :-1], full[:, -1] = values, padding
    return np.repeat(full.ravel(), repeats).reshape(shape)

  used = parts.length.sum(1)
  repeats = np.append(parts.length, width - used[:, None], axis=1).ravel()
  ends = np.cumsum(parts.length, axis=1)
  begin = ends - parts.length
  lengths = np.zeros((rows, places), np.int64)
  for place in range(places):
    in_place = parts.sequence == place
    lengths[:, place] = parts.length[:, in_place].sum(1)
  origin = np.cumsum(lengths, axis=1) - lengths

  index = spread(parts.start - begin, 0, np.int64) + np.arange(width)
  ids = tokens.take(index, mode="clip").astype(np.int32)
  sequences = spread(parts.sequence + 1, 0, np.int32)
  ids[sequences == 0] = pad
  # In place of what was read for special tokens.
  row, part = np.nonzero((parts.special >= 0) & (parts.length > 0))
  ids[row, begin[row, part]] = parts.special[part]
  positions = np.arange(width, dtype=np.int32)
  positions = positions - spread(origin[:, parts.sequence], 0, np.int32)
  positions[sequences == 0] = 0
  return Rows(
    ids,
    sequences,
    spread(parts.segment, 0, np.int32),
    positions,
    spread(parts.special < 0, False, bool),
    index,
    lengths,
  )


def word_starts(bits: np.ndarray, index: np.ndarray) -> np.ndarray:
  """Says where words start.

  Args:
    bits: `Corpus.word_starts`.
    index: `Rows.index`.

  Returns:
    [B, L] bool; at special tokens and padding it means nothing.
  """
  starts = bits.take(index >> 3, mode="clip")
  starts >>= (index & 7).astype(np.uint8)
  return (starts & 1).astype(bool)


def flat_row(
  sequences: Sequence[np.ndarray], multiple: int = 512
) -> dict[str, np.ndarray]:
  """Puts sequences of any lengths side by side in one long row.

  No place is padding but the last. With attention kernels that look at the
  blocks of each sequence alone (GPUs), such a row costs what its tokens cost.

  Args:
    sequences: ids [l] of each, with their special tokens.
    multiple: the row's length is the next multiple, so that few lengths are
      compiled for.

  Returns:
    `input_ids`, `position_ids` (from 0 in each sequence) and `sequence_ids`
    (1, 2, ...), int32 [1, t]. The places left at the end are a sequence of
    their own, with the number after the last, whose tokens are id 0.

  Raises:
    ValueError: no sequence, one without tokens, one that is not ids [l], or a
      multiple below 1.
  """
  if multiple < 1:
    raise ValueError(f"flat_row: multiple={multiple} must be at least 1.")
  for number, ids in enumerate(map(np.asarray, sequences)):
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
      raise ValueError(
        f"flat_row: sequence {number} is {ids.dtype} of shape {ids.shape}; pass"
        " the ids of one sequence, integers [l]."
      )
  lengths = np.array([len(ids) for ids in sequences], np.int64)
  if not lengths.size or not lengths.all():
    raise ValueError(
      "flat_row: no sequences, or an empty one; leave those out."
    )
  total = int(lengths.sum())
  size = -(-total // multiple) * multiple
  lengths = np.append(lengths, size - total)
  input_ids = np.zeros(size, np.int32)
  input_ids[:total] = np.concatenate(list(sequences))
  number = np.repeat(np.arange(1, len(lengths) + 1), lengths)
  first = np.repeat(np.cumsum(lengths) - lengths, lengths)
  # The rest counts its positions too, but not beyond those of the others.
  position = (np.arange(size) - first) % lengths[:-1].max()
  return {
    name: values.astype(np.int32)[None]
    for name, values in (
      ("input_ids", input_ids),
      ("position_ids", position),
      ("sequence_ids", number),
    )
  }
