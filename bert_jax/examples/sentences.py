"""Cuts text into rows: whole sentences, ELECTRA's segments, plain tokens.

Each public function is a function for `Recipe.index`: it cuts a range of
documents into the examples of an epoch. No function reads token ids.
"""

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.pairs import follow_links
from bert_jax.examples.rows import SEQUENCE_DTYPE


def _make_sequences(
  start: np.ndarray, length: np.ndarray, second_length: np.ndarray | int = 0
) -> np.ndarray:
  """Returns sequences whose second text directly follows the first."""
  sequences = np.zeros(len(start), SEQUENCE_DTYPE)
  sequences["start"], sequences["length"] = start, length
  sequences["second_start"] = start + length
  sequences["second_length"] = second_length
  return sequences


def index_sentences(
  corpus: Corpus,
  first_document: int,
  end_document: int,
  key: int,
  *,
  max_tokens: int,
  crosses_documents: bool,
) -> np.ndarray:
  """Fills each row with as many whole consecutive sentences as fit.

  The rows are RoBERTa's FULL-SENTENCES and DOC-SENTENCES (Liu et al. 2019,
  section 4.2; fairseq's sample-break-mode "complete" and "complete_doc"). Every
  epoch has the same rows. There is one deviation: here a sentence that is
  longer than a row is cut into rows; in fairseq it becomes a row that is too
  long.

  Args:
    corpus: the documents.
    first_document: the first document of the range.
    end_document: the first document after the range.
    key: not used.
    max_tokens: the row length without its first and last special token.
    crosses_documents: True if a row may continue in the next document, after a
      separator.

  Returns:
    `SEQUENCE_DTYPE` array in corpus order.
  """
  del key
  documents = np.asarray(corpus.documents[first_document : end_document + 1])
  first_sentence, end_sentence = int(documents[0]), int(documents[-1])
  sentence_offsets = np.asarray(
    corpus.sentences[first_sentence : end_sentence + 1]
  )
  document_of_sentence = np.repeat(
    np.arange(len(documents) - 1), np.diff(documents)
  )

  # A sentence that is longer than a row is cut into several stretches.
  num_stretches = -(-np.diff(sentence_offsets) // max_tokens)
  index_in_sentence = np.arange(num_stretches.sum()) - np.repeat(
    np.cumsum(num_stretches) - num_stretches, num_stretches
  )
  starts = (
    np.repeat(sentence_offsets[:-1], num_stretches)
    + max_tokens * index_in_sentence
  )
  stops = np.append(starts[1:], sentence_offsets[-1:])
  document_of_stretch = np.repeat(document_of_sentence, num_stretches)
  # For each stretch: which stretch follows a row that begins with it.
  if crosses_documents:
    # Each end of a document inside a row needs one more token, a separator.
    limits = starts + document_of_stretch + max_tokens
    row_ends = np.searchsorted(stops + document_of_stretch, limits, "right")
  else:
    row_ends = np.searchsorted(stops, starts + max_tokens, "right")
    document_ends = np.searchsorted(
      document_of_stretch, np.arange(len(documents) - 1), "right"
    )
    row_ends = np.minimum(row_ends, document_ends[document_of_stretch])
  row_starts = follow_links(row_ends)
  first_tokens = starts[row_starts]
  return _make_sequences(
    first_tokens, stops[row_ends[row_starts] - 1] - first_tokens
  )


def index_segments(
  corpus: Corpus,
  first_document: int,
  end_document: int,
  key: int,
  *,
  length: int,
  short_probability: float,
) -> np.ndarray:
  """Cuts documents into rows of one or two segments, as ELECTRA does.

  The source is `ExampleBuilder` of google-research/electra
  build_pretraining_dataset.py. A row takes sentences until its target length is
  reached or the document ends. With chance 0.1 a row has one segment, else two.
  The first segment takes sentences until the next one would reach half of the
  target length. With equal chance, this next sentence ends the first segment or
  begins the second. A later sentence also goes to the first segment if that
  segment stays shorter than half of the target, see
  `rows.parts_with_moved_sentences`. Each segment is cut at its end if the row
  has no space for all of it.

  Args:
    corpus: the documents.
    first_document: the first document of the range.
    end_document: the first document after the range.
    key: a key from `make_key`; each epoch has its own key, and so its own rows.
    length: L, the number of tokens of a row, with [CLS] and each [SEP].
    short_probability: the share of rows whose target length is uniform in
      [5, L]; other rows have the target length L. The program has 0.05.

  Returns:
    `SEQUENCE_DTYPE` array in corpus order.
  """
  documents = np.asarray(corpus.documents[first_document : end_document + 1])
  first_sentence, end_sentence = int(documents[0]), int(documents[-1])
  sentence_offsets = np.asarray(
    corpus.sentences[first_sentence : end_sentence + 1]
  )
  sentence_indices = np.arange(end_sentence - first_sentence)
  document_stops = np.repeat(documents[1:] - first_sentence, np.diff(documents))

  # The draws of a row belong to its first sentence, see `pairs.index_chunks`.
  sentence_numbers = np.arange(first_sentence, end_sentence)
  key = hashing.make_key(key, "segments")
  is_short = hashing.uniform(key, sentence_numbers, 0) < short_probability
  target_lengths = np.where(
    is_short, 5 + hashing.randint(key, sentence_numbers, 1, length - 4), length
  )
  # For each sentence: which sentence follows a row that begins with it.
  next_sentence = np.searchsorted(
    sentence_offsets, sentence_offsets[:-1] + target_lengths
  )
  row_starts = follow_links(np.minimum(next_sentence, document_stops))

  first_tokens = sentence_offsets[row_starts]
  next_sentence = np.minimum(next_sentence, document_stops)[row_starts]
  half_length = (target_lengths[row_starts] - 3) // 2
  # The first segment gets the sentences that end before the half, at least one.
  second_begin = (
    np.searchsorted(sentence_offsets, first_tokens + half_length) - 1
  )
  second_begin = np.maximum(second_begin, sentence_indices[row_starts] + 1)
  is_below_half = sentence_offsets[second_begin] - first_tokens < half_length
  goes_to_first = hashing.uniform(key, sentence_numbers[row_starts], 2) < 0.5
  second_begin = np.minimum(
    second_begin + (is_below_half & goes_to_first), next_sentence
  )
  has_one_segment = hashing.uniform(key, sentence_numbers[row_starts], 3) < 0.1
  second_begin = np.where(has_one_segment, next_sentence, second_begin)

  first_length = sentence_offsets[second_begin] - first_tokens
  remaining_lengths = np.where(
    has_one_segment, 0, half_length - 1 - first_length
  )
  first_length = first_length + _count_moved(
    sentence_offsets, second_begin + 1, next_sentence, remaining_lengths
  )
  num_second_tokens = (
    sentence_offsets[next_sentence] - first_tokens - first_length
  )
  first_length = np.minimum(first_length, length - 2)
  second_length = np.minimum(
    num_second_tokens, np.maximum(length - 3 - first_length, 0)
  )
  sequences = _make_sequences(first_tokens, first_length, second_length)
  sequences["second_start"] = sentence_offsets[second_begin]
  return sequences


def _count_moved(
  offsets: np.ndarray,
  starts: np.ndarray,
  ends: np.ndarray,
  remaining_lengths: np.ndarray,
) -> np.ndarray:
  """Counts the tokens that move from second segments to first segments.

  Args:
    offsets: the index of the first token of each sentence.
    starts: [N] the first sentence that may move, for each row.
    ends: [N] the sentence after the last one that may move, for each row.
    remaining_lengths: [N] how many tokens each first segment may still take.

  Returns:
    [N] integers.
  """
  num_moved = np.zeros_like(remaining_lengths)
  (open_rows,) = np.nonzero((remaining_lengths > 0) & (starts < ends))
  sentences, ends, remaining_lengths = (
    starts[open_rows],
    ends[open_rows],
    remaining_lengths[open_rows],
  )
  while len(open_rows):
    lengths = offsets[sentences + 1] - offsets[sentences]
    lengths = np.where(lengths <= remaining_lengths, lengths, 0)
    num_moved[open_rows] += lengths
    remaining_lengths, sentences = remaining_lengths - lengths, sentences + 1
    continues = (remaining_lengths > 0) & (sentences < ends)
    open_rows, sentences = open_rows[continues], sentences[continues]
    ends, remaining_lengths = ends[continues], remaining_lengths[continues]
  return num_moved


def index_tokens(
  corpus: Corpus,
  first_document: int,
  end_document: int,
  key: int,
  *,
  length: int,
) -> np.ndarray:
  """Cuts documents into rows of `length` tokens, also inside sentences.

  GPT-1 is trained on contiguous sequences (Radford et al. 2018, section 4.1).
  In a document that is longer than a row, the first row ends at a random token,
  which is drawn anew in every epoch. Each token except the first token of a
  document is predicted once in an epoch.

  Args:
    corpus: the documents.
    first_document: the first document of the range.
    end_document: the first document after the range.
    key: a key from `make_key`; each epoch has its own key, and so its own rows.
    length: L.

  Returns:
    `SEQUENCE_DTYPE` array in corpus order. The array describes the tokens that
    are read. The tokens to predict are the tokens after them.
  """
  documents = np.asarray(corpus.documents[first_document : end_document + 1])
  offsets = np.asarray(corpus.sentences)[documents]
  # The last token of a document is predicted, but not read.
  document_sizes = np.diff(offsets) - 1
  document_numbers = np.arange(first_document, end_document)
  # The number of tokens in a document's first row; 0 means a full row.
  first_row_length = hashing.randint(key, document_numbers, 0, length)
  first_row_length = np.where(document_sizes > length, first_row_length, 0)
  num_rows = (first_row_length > 0) + -(
    -(document_sizes - first_row_length) // length
  )
  index_in_document = np.arange(num_rows.sum()) - np.repeat(
    np.cumsum(num_rows) - num_rows, num_rows
  )
  first_row_length = np.repeat(first_row_length, num_rows)
  size_of_document = np.repeat(document_sizes, num_rows)
  # If the first row is not full, it would begin before the document. The part
  # before the document is cut off below.
  begins = index_in_document * length + np.where(
    first_row_length > 0, first_row_length - length, 0
  )
  stops = np.minimum(begins + length, size_of_document)
  begins = np.maximum(begins, 0)
  return _make_sequences(
    np.repeat(offsets[:-1], num_rows) + begins, stops - begins
  )
