"""Lays sequences out in rows: one in each row, or several (packed rows).

A sequence is described by positions in the corpus (`SEQUENCE_DTYPE`). The
functions here split each sequence into parts (`Parts`), fetch the tokens of the
parts, and pad the rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.corpus.reader import Corpus
from bert_jax.text.vocabulary import SpecialIds

# One sequence: a text, or a pair of texts if `second_length` is not 0.
SEQUENCE_DTYPE = np.dtype(
  [
    ("start", np.int64),  # the first token of the text, in the corpus
    ("second_start", np.int64),  # the first token of the second text
    # The number of tokens of the text; 0 means that there is no sequence. If
    # the second text begins inside the first (start < second_start < start +
    # length), sentences move: see `parts_with_moved_sentences`.
    ("length", np.uint16),
    ("second_length", np.uint16),
    ("label", np.uint8),  # the label of a pair
  ],
  align=True,
)


class Rows(NamedTuple):
  """Holds a batch of rows before masking.

  All arrays except `lengths` are [B, L].

  Attributes:
    ids: int32 token ids, with special tokens and padding.
    sequence_ids: int32; 1 in the first sequence of a row, 2 in the second, ...;
      0 at padding.
    segment_ids: int32; 1 in the second text of a pair and at the [SEP] after
      it, else 0.
    position_ids: int32; 0, 1, ... in each sequence, 0 at padding.
    is_text: bool, False at special tokens and padding.
    token_index: int64, the index of each text token in the corpus; it has no
      meaning at special tokens and padding.
    lengths: [B, S] int64, the number of tokens of each sequence, with special
      tokens.
  """

  ids: np.ndarray
  sequence_ids: np.ndarray
  segment_ids: np.ndarray
  position_ids: np.ndarray
  is_text: np.ndarray
  token_index: np.ndarray
  lengths: np.ndarray


class Parts(NamedTuple):
  """Holds the parts of rows, in their order in the row.

  P is the number of parts in a row. `start` and `length` are [B, P]. The other
  arrays are [P], because they are equal in all rows. A part is a stretch of
  text tokens, or one special token; its length may be 0.

  Attributes:
    start: if the part is text, the index of its first token in the corpus.
    length: the number of tokens.
    special: the id of the special token; -1 for text.
    sequence: the index of the part's sequence in its row.
    segment: the segment id of the part, 0 or 1.
  """

  start: np.ndarray
  length: np.ndarray
  special: np.ndarray
  sequence: np.ndarray
  segment: np.ndarray


def pair_parts(sequences: np.ndarray, special: SpecialIds) -> Parts:
  """Returns the parts [CLS] A [SEP] B [SEP] of each sequence.

  If B is empty, B and its [SEP] have length 0.

  Args:
    sequences: [B, S] of `SEQUENCE_DTYPE`.
    special: the ids of [CLS] and [SEP].
  """
  num_rows, max_sequences = sequences.shape
  a_lengths = sequences["length"].astype(np.int64)
  b_lengths = sequences["second_length"].astype(np.int64)
  has_a = (a_lengths > 0).astype(np.int64)
  has_b = (b_lengths > 0).astype(np.int64)
  zeros = np.zeros_like(a_lengths)
  part_lengths = np.stack([has_a, a_lengths, has_a, b_lengths, has_b], 2)
  part_starts = np.stack(
    [zeros, sequences["start"], zeros, sequences["second_start"], zeros], 2
  )
  specials = np.array([special.cls, -1, special.sep, -1, special.sep])
  return Parts(
    part_starts.reshape(num_rows, -1),
    part_lengths.reshape(num_rows, -1),
    np.tile(specials, max_sequences),
    np.repeat(np.arange(max_sequences), 5),
    np.tile([0, 0, 0, 1, 1], max_sequences),
  )


def _moved_sentences(
  sentences: np.ndarray, b_starts: np.ndarray, remaining_lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the sentences after B's beginning that belong to A.

  A and B are the first and the second text of a pair. The sentences from B's
  beginning on are tried in order, until A is full. A takes each sentence that
  is not longer than what remains of A's length.

  Args:
    sentences: `Corpus.sentences`.
    b_starts: [N] the index of the first token of each B.
    remaining_lengths: [N] how many tokens of moved sentences each A may have.

  Returns:
    [N, K] the index of the first token of each moved sentence, and [N, K] the
    lengths of these sentences. A pair with fewer than K moved sentences has
    length 0 in the columns after them.
  """
  next_sentences = np.searchsorted(sentences, b_starts)
  (open_pairs,) = np.nonzero(remaining_lengths > 0)
  num_moved, moves = np.zeros(len(b_starts), np.int64), []
  remaining_lengths = remaining_lengths.copy()
  while len(open_pairs):
    begins = np.asarray(sentences[next_sentences[open_pairs]])
    sentence_lengths = (
      np.asarray(sentences[next_sentences[open_pairs] + 1]) - begins
    )
    fits = sentence_lengths <= remaining_lengths[open_pairs]
    fitting_pairs = open_pairs[fits]
    moves.append(
      (
        fitting_pairs,
        num_moved[fitting_pairs],
        begins[fits],
        sentence_lengths[fits],
      )
    )
    num_moved[fitting_pairs] += 1
    remaining_lengths[fitting_pairs] -= sentence_lengths[fits]
    next_sentences[open_pairs] += 1
    open_pairs = open_pairs[remaining_lengths[open_pairs] > 0]
  shape = len(b_starts), int(num_moved.max(initial=0))
  moved_starts, moved_lengths = (
    np.zeros(shape, np.int64),
    np.zeros(shape, np.int64),
  )
  for fitting_pairs, columns, begins, sentence_lengths in moves:
    moved_starts[fitting_pairs, columns] = begins
    moved_lengths[fitting_pairs, columns] = sentence_lengths
  return moved_starts, moved_lengths


def parts_with_moved_sentences(
  corpus: Corpus, sequences: np.ndarray, special: SpecialIds
) -> Parts:
  """Returns what `pair_parts` returns, but sentences of B may move to A.

  A has the tokens from its beginning to B's beginning. If A's `length` is more
  than the number of these tokens, A also takes, in order, each later sentence
  that still fits into A, as in ELECTRA's recipe. B has all sentences that do
  not move.

  Args:
    corpus: the documents.
    sequences: [B, S] of `SEQUENCE_DTYPE`.
    special: the ids of [CLS] and [SEP].
  """
  num_rows, max_sequences = sequences.shape
  flat_sequences = sequences.ravel()
  a_starts, b_starts = flat_sequences["start"], flat_sequences["second_start"]
  a_lengths = flat_sequences["length"].astype(np.int64)
  remaining_lengths = a_lengths - (b_starts - a_starts)
  remaining_lengths = np.where(
    a_lengths > 0, np.maximum(remaining_lengths, 0), 0
  )
  moved_starts, moved_lengths = _moved_sentences(
    corpus.sentences, b_starts, remaining_lengths
  )
  if not moved_starts.shape[1]:
    return pair_parts(sequences, special)
  # B's stretches are before, between and after the moved sentences. A stretch
  # ends at the next moved sentence; the last stretch has the rest of
  # `second_length`.
  zeros = np.zeros((len(flat_sequences), 1), np.int64)
  b_lengths = flat_sequences["second_length"].astype(np.int64)[:, None]
  stretch_starts = np.append(b_starts[:, None], moved_starts + moved_lengths, 1)
  stretch_limits = np.append(moved_starts, zeros, 1) - stretch_starts
  stretch_limits = np.where(
    np.append(moved_lengths, zeros, 1) > 0, stretch_limits, b_lengths
  )
  stretch_lengths = np.diff(
    np.minimum(np.cumsum(stretch_limits, 1), b_lengths), axis=1, prepend=0
  )
  has_a, has_b = a_lengths[:, None] > 0, b_lengths > 0
  a_lengths_before_b = (a_lengths - remaining_lengths)[:, None]
  first_sep_part = 2 + moved_lengths.shape[1]
  specials = np.full(first_sep_part + stretch_lengths.shape[1] + 2, -1)
  specials[0], specials[first_sep_part], specials[-1] = (
    special.cls,
    special.sep,
    special.sep,
  )
  return Parts(
    np.concatenate(
      [zeros, a_starts[:, None], moved_starts, zeros, stretch_starts, zeros], 1
    ).reshape(num_rows, -1),
    np.concatenate(
      [
        has_a,
        a_lengths_before_b,
        moved_lengths,
        has_a,
        stretch_lengths,
        has_b,
      ],
      1,
    ).reshape(num_rows, -1),
    np.tile(specials, max_sequences),
    np.repeat(np.arange(max_sequences), len(specials)),
    np.tile(
      (np.arange(len(specials)) > first_sep_part).astype(np.int64),
      max_sequences,
    ),
  )


def text_parts(sequences: np.ndarray) -> Parts:
  """Returns the text of each sequence as one part, and no special tokens.

  Args:
    sequences: [B, S] of `SEQUENCE_DTYPE`; each is one text.
  """
  max_sequences = sequences.shape[1]
  return Parts(
    sequences["start"],
    sequences["length"].astype(np.int64),
    np.full(max_sequences, -1),
    np.arange(max_sequences),
    np.zeros(max_sequences, np.int64),
  )


def parts_with_separators(
  corpus: Corpus, sequences: np.ndarray, special: SpecialIds
) -> Parts:
  """Returns the parts [CLS] D1 [SEP] D2 [SEP] ...

  D1, D2, ... are the stretches of the sequence's text in each document. Rows
  with few documents have parts of length 0 at their ends.

  Args:
    corpus: the documents.
    sequences: [B, 1] of `SEQUENCE_DTYPE`; each is one text.
    special: the ids of [CLS] and [SEP].
  """
  text_starts = sequences["start"][:, 0]
  text_stops = text_starts + sequences["length"][:, 0]
  sentences, documents = corpus.sentences, corpus.documents
  # A sequence's text is in one or more documents. For the first and the last of
  # these documents: the index in `documents` of the document's end.
  first_end, last_end = (
    np.searchsorted(
      documents, np.searchsorted(sentences, token_index, "right") - 1, "right"
    )
    for token_index in (text_starts, text_stops - 1)
  )
  max_documents = int((last_end - first_end).max(initial=0)) + 1
  end_indices = np.minimum(
    first_end[:, None] + np.arange(max_documents), last_end[:, None]
  )
  ends = np.minimum(
    np.asarray(sentences)[documents[end_indices]], text_stops[:, None]
  )
  starts = np.concatenate([text_starts[:, None], ends[:, :-1]], 1)
  text_lengths = ends - starts
  num_parts = 1 + 2 * max_documents
  part_lengths = np.ones((len(sequences), num_parts), np.int64)
  part_lengths[:, 1::2] = text_lengths
  part_lengths[:, 2::2] = text_lengths > 0
  part_starts = np.zeros_like(part_lengths)
  part_starts[:, 1::2] = starts
  specials = np.full(num_parts, special.sep)
  specials[0], specials[1::2] = special.cls, -1
  zeros = np.zeros(num_parts, np.int64)
  return Parts(
    part_starts, part_lengths, specials, sequence=zeros, segment=zeros
  )


def lay_out(
  tokens: np.ndarray, parts: Parts, max_sequences: int, width: int, pad: int
) -> Rows:
  """Fetches the tokens of rows, and pads the rows.

  Args:
    tokens: [T] the token ids of the corpus.
    parts: the parts of the rows; a row has at most `width` tokens.
    max_sequences: S, the largest number of sequences in a row.
    width: L, the length of a row.
    pad: the id of padding.
  """
  num_rows = len(parts.length)
  shape = num_rows, width

  def spread(values: np.ndarray, padding: int, dtype: Any) -> np.ndarray:
    """Returns [B, L]: each column has the value of its part, or `padding`."""
    values_and_padding = np.empty((num_rows, parts.length.shape[1] + 1), dtype)
    values_and_padding[:, :-1], values_and_padding[:, -1] = values, padding
    return np.repeat(values_and_padding.ravel(), repeats).reshape(shape)

  num_tokens = parts.length.sum(1)
  repeats = np.append(parts.length, width - num_tokens[:, None], axis=1).ravel()
  ends = np.cumsum(parts.length, axis=1)
  part_begins = ends - parts.length
  lengths = np.zeros((num_rows, max_sequences), np.int64)
  for sequence in range(max_sequences):
    in_sequence = parts.sequence == sequence
    lengths[:, sequence] = parts.length[:, in_sequence].sum(1)
  sequence_begins = np.cumsum(lengths, axis=1) - lengths

  token_index = spread(parts.start - part_begins, 0, np.int64) + np.arange(
    width
  )
  ids = tokens.take(token_index, mode="clip").astype(np.int32)
  sequence_ids = spread(parts.sequence + 1, 0, np.int32)
  ids[sequence_ids == 0] = pad
  # Write the special tokens over the ids that were fetched at their columns.
  row_indices, part_indices = np.nonzero(
    (parts.special >= 0) & (parts.length > 0)
  )
  ids[row_indices, part_begins[row_indices, part_indices]] = parts.special[
    part_indices
  ]
  position_ids = np.arange(width, dtype=np.int32)
  position_ids = position_ids - spread(
    sequence_begins[:, parts.sequence], 0, np.int32
  )
  position_ids[sequence_ids == 0] = 0
  return Rows(
    ids,
    sequence_ids,
    spread(parts.segment, 0, np.int32),
    position_ids,
    spread(parts.special < 0, False, bool),
    token_index,
    lengths,
  )


def word_starts(bits: np.ndarray, token_index: np.ndarray) -> np.ndarray:
  """Looks up which tokens start a word.

  Args:
    bits: `Corpus.word_starts`, one bit for each token.
    token_index: `Rows.token_index`.

  Returns:
    [B, L] bool; it has no meaning at special tokens and padding.
  """
  shifted_bits = bits.take(token_index >> 3, mode="clip")
  shifted_bits >>= (token_index & 7).astype(np.uint8)
  return (shifted_bits & 1).astype(bool)


def flat_row(
  sequences: Sequence[np.ndarray], multiple: int = 512
) -> dict[str, np.ndarray]:
  """Puts sequences of any lengths side by side in one long row.

  Only the end of the row is padding. Attention kernels for GPUs skip the blocks
  between different sequences. So the cost of a longer row does not grow with
  the square of its length.

  Args:
    sequences: the ids [l] of each sequence, special tokens included.
    multiple: the row's length is rounded up to a multiple of this number, so
      that programs are compiled for few lengths.

  Returns:
    `input_ids`, `position_ids` (from 0 in each sequence) and `sequence_ids`
    (1, 2, ...), int32 [1, t]. The padding at the end has input id 0. It counts
    as one more sequence, and has the next number in `sequence_ids`.

  Raises:
    ValueError: there are no sequences, a sequence is empty or not an array of
      ids [l], or `multiple` is below 1.
  """
  if multiple < 1:
    raise ValueError(f"flat_row: multiple={multiple} must be at least 1.")
  for index, ids in enumerate(map(np.asarray, sequences)):
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
      raise ValueError(
        f"flat_row: sequence {index} is {ids.dtype} of shape {ids.shape}; pass"
        " the ids of one sequence, integers [l]."
      )
  lengths = np.array([len(ids) for ids in sequences], np.int64)
  if not lengths.size or not lengths.all():
    raise ValueError(
      "flat_row: there must be sequences, and none may be empty; leave empty"
      " sequences out."
    )
  num_tokens = int(lengths.sum())
  row_length = -(-num_tokens // multiple) * multiple
  lengths = np.append(lengths, row_length - num_tokens)
  input_ids = np.zeros(row_length, np.int32)
  input_ids[:num_tokens] = np.concatenate(list(sequences))
  sequence_ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
  starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
  # No position in the padding may be larger than all positions of sequences.
  positions = (np.arange(row_length) - starts) % lengths[:-1].max()
  return {
    "input_ids": input_ids[None],
    "position_ids": positions.astype(np.int32)[None],
    "sequence_ids": sequence_ids.astype(np.int32)[None],
  }
