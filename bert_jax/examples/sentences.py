"""Rows of running text: whole sentences, ELECTRA's segments, plain tokens.

Each function cuts an epoch of a range of documents, as `Recipe.index`; no
token is read.
"""

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.pairs import walk
from bert_jax.examples.rows import EXAMPLE


def _examples(
  start: np.ndarray, length: np.ndarray, second_length: np.ndarray | int = 0
) -> np.ndarray:
  """Runs of `length` and the `second_length` tokens that follow them."""
  examples = np.zeros(len(start), EXAMPLE)
  examples["start"], examples["length"] = start, length
  examples["second"] = start + length
  examples["second_length"] = second_length
  return examples


def index_sentences(
  corpus: Corpus,
  first_document: int,
  last_document: int,
  key: int,
  *,
  room: int,
  cross: bool,
) -> np.ndarray:
  """Fills rows with whole consecutive sentences, as many as fit.

  RoBERTa's FULL-SENTENCES and DOC-SENTENCES (Liu et al. 2019, section 4.2;
  fairseq's sample-break-mode "complete" and "complete_doc"). The rows are the
  same in every epoch. One deviation: a sentence longer than a row, which
  fairseq keeps as a row that is too long, is cut into rows' worth.

  Args:
    corpus: the documents.
    first_document, last_document: the range.
    key: not used.
    room: tokens of a row without its first and last special token.
    cross: rows go on in the next document, for a separator in between.

  Returns:
    `EXAMPLE` array in corpus order.
  """
  del key
  documents = np.asarray(corpus.documents[first_document : last_document + 1])
  begin, end = int(documents[0]), int(documents[-1])
  offsets = np.asarray(corpus.sentences[begin : end + 1])
  document = np.repeat(np.arange(len(documents) - 1), np.diff(documents))

  pieces = -(-np.diff(offsets) // room)
  within = np.arange(pieces.sum()) - np.repeat(
    np.cumsum(pieces) - pieces, pieces
  )
  starts = np.repeat(offsets[:-1], pieces) + room * within
  stops = np.append(starts[1:], offsets[-1:])
  document = np.repeat(document, pieces)
  if cross:
    # Every document before a token adds a separator to its distance.
    last = np.searchsorted(stops + document, starts + document + room, "right")
  else:
    last = np.searchsorted(stops, starts + room, "right")
    ends = np.searchsorted(document, np.arange(len(documents) - 1), "right")
    last = np.minimum(last, ends[document])
  passed = walk(last)
  start = starts[passed]
  return _examples(start, stops[last[passed] - 1] - start)


def index_segments(
  corpus: Corpus,
  first_document: int,
  last_document: int,
  key: int,
  *,
  length: int,
  short_probability: float,
) -> np.ndarray:
  """Cuts documents into one or two segments a row, as ELECTRA does.

  `ExampleBuilder` of google-research/electra build_pretraining_dataset.py:
  sentences accumulate until a row's target is reached or the document ends. One
  row in ten is a single segment. Of the others the sentence with which the
  first segment would reach half of the row begins the second one, or, with
  equal chance, ends the first. A later sentence with which the first segment
  still stays under the half goes there too, see `rows.returning_parts`. Each
  segment is cut at its end to what the row has room for.

  Args:
    corpus: the documents.
    first_document, last_document: the range.
    key: from `make_key`; another key (epoch) gives other rows.
    length: L, tokens of a row with [CLS] and one or two [SEP].
    short_probability: 0.05 in the program: share of rows that aim at a length
      uniform between 5 and L.

  Returns:
    `EXAMPLE` array in corpus order.
  """
  documents = np.asarray(corpus.documents[first_document : last_document + 1])
  begin, end = int(documents[0]), int(documents[-1])
  offsets = np.asarray(corpus.sentences[begin : end + 1])
  sentence = np.arange(end - begin)
  stops = np.repeat(documents[1:] - begin, np.diff(documents))

  # The draws belong to the sentence that a row starts with, see
  # `pairs.index_chunks`.
  numbers = np.arange(begin, end)
  key = hashing.make_key(key, "segments")
  short = hashing.uniform(key, numbers, 0) < short_probability
  target = np.where(
    short, 5 + hashing.randint(key, numbers, 1, length - 4), length
  )
  following = np.searchsorted(offsets, offsets[:-1] + target)
  passed = walk(np.minimum(following, stops))

  start = offsets[passed]
  following = np.minimum(following, stops)[passed]
  half = (target[passed] - 3) // 2
  # Sentences that end before the half; one at least.
  split = np.searchsorted(offsets, start + half) - 1
  split = np.maximum(split, sentence[passed] + 1)
  reaches = offsets[split] - start < half
  later = hashing.uniform(key, numbers[passed], 2) < 0.5
  split = np.minimum(split + (reaches & later), following)
  single = hashing.uniform(key, numbers[passed], 3) < 0.1
  split = np.where(single, following, split)

  first = offsets[split] - start
  spare = np.where(single, 0, half - 1 - first)
  first = first + _returning(offsets, split + 1, following, spare)
  left = offsets[following] - start - first
  first = np.minimum(first, length - 2)
  second = np.minimum(left, np.maximum(length - 3 - first, 0))
  examples = _examples(start, first, second)
  examples["second"] = offsets[split]
  return examples


def _returning(
  offsets: np.ndarray, place: np.ndarray, stop: np.ndarray, spare: np.ndarray
) -> np.ndarray:
  """Tokens that first segments take from behind the second's beginning.

  Args:
    offsets: first tokens of the sentences.
    place: [N] the first sentences that may return, and where these end, `stop`.
    stop: [N].
    spare: [N] how many tokens each first segment may still take.
  """
  taken = np.zeros_like(spare)
  (rows,) = np.nonzero((spare > 0) & (place < stop))
  place, stop, spare = place[rows], stop[rows], spare[rows]
  while len(rows):
    size = offsets[place + 1] - offsets[place]
    size = np.where(size <= spare, size, 0)
    taken[rows] += size
    spare, place = spare - size, place + 1
    on = (spare > 0) & (place < stop)
    rows, place, stop, spare = rows[on], place[on], stop[on], spare[on]
  return taken


def index_tokens(
  corpus: Corpus,
  first_document: int,
  last_document: int,
  key: int,
  *,
  length: int,
) -> np.ndarray:
  """Cuts documents into rows of `length` tokens, wherever that falls.

  GPT-1 (Radford et al. 2018, section 4.1): contiguous sequences. In a document
  longer than a row, the first row ends at a place that is new in every epoch.
  Each token but a document's first is predicted once an epoch.

  Args:
    corpus: the documents.
    first_document, last_document: the range.
    key: from `make_key`; another key (epoch) gives other rows.
    length: L.

  Returns:
    `EXAMPLE` array in corpus order: what is read; what is predicted lies one
    token further.
  """
  documents = np.asarray(corpus.documents[first_document : last_document + 1])
  offsets = np.asarray(corpus.sentences)[documents]
  # The last token is predicted only.
  sizes = np.diff(offsets) - 1
  numbers = np.arange(first_document, last_document)
  phase = hashing.randint(key, numbers, 0, length)
  phase = np.where(sizes > length, phase, 0)
  rows = (phase > 0) + -(-(sizes - phase) // length)
  within = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
  phase = np.repeat(phase, rows)
  size = np.repeat(sizes, rows)
  # With a phase, row 0 begins before the document.
  begin = within * length + np.where(phase > 0, phase - length, 0)
  stop = np.minimum(begin + length, size)
  begin = np.maximum(begin, 0)
  return _examples(np.repeat(offsets[:-1], rows) + begin, stop - begin)
