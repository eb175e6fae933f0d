"""Rows of running text: whole sentences, ELECTRA's segments, plain tokens.

Each public function is a `Recipe.index`: it cuts a range of documents into the
examples of an epoch. No function reads a token.
"""

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.pairs import follow_links
from bert_jax.examples.rows import EXAMPLE


def _make_examples(
  start: np.ndarray, length: np.ndarray, second_length: np.ndarray | int = 0
) -> np.ndarray:
  """Returns `EXAMPLE`s whose second text directly follows the first."""
  examples = np.zeros(len(start), EXAMPLE)
  examples["start"], examples["length"] = start, length
  examples["second_start"] = start + length
  examples["second_length"] = second_length
  return examples


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
  section 4.2; fairseq's sample-break-mode "complete" and "complete_doc"). They
  are the same in every epoch. There is one deviation: a sentence that is longer
  than a row is cut into rows here. In fairseq it becomes a row that is too
  long.

  Args:
    corpus: the documents.
    first_document: the first document of the range.
    end_document: the end of the range.
    key: not used.
    max_tokens: the row length without its first and last special token.
    crosses_documents: True if a row may continue in the next document, after a
      separator.

  Returns:
    `EXAMPLE` array in corpus order.
  """
  del key
  documents = np.asarray(corpus.documents[first_document : end_document + 1])
  begin, end = int(documents[0]), int(documents[-1])
  offsets = np.asarray(corpus.sentences[begin : end + 1])
  document = np.repeat(np.arange(len(documents) - 1), np.diff(documents))

  # A sentence that is longer than a row is cut into several stretches.
  stretches = -(-np.diff(offsets) // max_tokens)
  index_in_sentence = np.arange(stretches.sum()) - np.repeat(
    np.cumsum(stretches) - stretches, stretches
  )
  starts = np.repeat(offsets[:-1], stretches) + max_tokens * index_in_sentence
  stops = np.append(starts[1:], offsets[-1:])
  document = np.repeat(document, stretches)
  if crosses_documents:
    # Each end of a document inside a row needs one more token, a separator.
    limits = starts + document + max_tokens
    row_ends = np.searchsorted(stops + document, limits, "right")
  else:
    row_ends = np.searchsorted(stops, starts + max_tokens, "right")
    ends = np.searchsorted(document, np.arange(len(documents) - 1), "right")
    row_ends = np.minimum(row_ends, ends[document])
  row_starts = follow_links(row_ends)
  start = starts[row_starts]
  return _make_examples(start, stops[row_ends[row_starts] - 1] - start)


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
  reached or the document ends. One row in ten has one segment, the others have
  two. With one of the sentences, the first segment would reach half of the row.
  With equal chance, this sentence ends the first segment or begins the second.
  A later sentence also goes to the first segment if that segment remains
  shorter than half of the row, see `rows.parts_with_moved_sentences`. Each
  segment is cut at its end if the row has no space for all of it.

  Args:
    corpus: the documents.
    first_document: the first document of the range.
    end_document: the end of the range.
    key: a key from `make_key`; another key (epoch) gives other rows.
    length: L, the number of tokens of a row, with [CLS] and each [SEP].
    short_probability: the share of rows whose target length is uniform between
      5 and L, instead of L (0.05 in the program).

  Returns:
    `EXAMPLE` array in corpus order.
  """
  documents = np.asarray(corpus.documents[first_document : end_document + 1])
  begin, end = int(documents[0]), int(documents[-1])
  offsets = np.asarray(corpus.sentences[begin : end + 1])
  sentence = np.arange(end - begin)
  stops = np.repeat(documents[1:] - begin, np.diff(documents))

  # The draws belong to the sentence that a row starts with, see
  # `pairs.index_chunks`.
  numbers = np.arange(begin, end)
  key = hashing.make_key(key, "segments")
  is_short = hashing.uniform(key, numbers, 0) < short_probability
  target = np.where(
    is_short, 5 + hashing.randint(key, numbers, 1, length - 4), length
  )
  next_sentence = np.searchsorted(offsets, offsets[:-1] + target)
  row_starts = follow_links(np.minimum(next_sentence, stops))

  start = offsets[row_starts]
  next_sentence = np.minimum(next_sentence, stops)[row_starts]
  half_length = (target[row_starts] - 3) // 2
  # The first segment gets the sentences that end before the half, at least one.
  split = np.searchsorted(offsets, start + half_length) - 1
  split = np.maximum(split, sentence[row_starts] + 1)
  reaches_half = offsets[split] - start < half_length
  takes_it = hashing.uniform(key, numbers[row_starts], 2) < 0.5
  split = np.minimum(split + (reaches_half & takes_it), next_sentence)
  is_single = hashing.uniform(key, numbers[row_starts], 3) < 0.1
  split = np.where(is_single, next_sentence, split)

  first_length = offsets[split] - start
  num_spare = np.where(is_single, 0, half_length - 1 - first_length)
  first_length = first_length + _count_moved(
    offsets, split + 1, next_sentence, num_spare
  )
  num_remaining = offsets[next_sentence] - start - first_length
  first_length = np.minimum(first_length, length - 2)
  second_length = np.minimum(
    num_remaining, np.maximum(length - 3 - first_length, 0)
  )
  examples = _make_examples(start, first_length, second_length)
  examples["second_start"] = offsets[split]
  return examples


def _count_moved(
  offsets: np.ndarray, first: np.ndarray, stop: np.ndarray, spare: np.ndarray
) -> np.ndarray:
  """Counts the tokens that move from second segments to first segments.

  Args:
    offsets: the first token of each sentence.
    first: [N] the first sentence that may move, for each row.
    stop: [N] the end of the sentences that may move.
    spare: [N] how many tokens each first segment may still take.

  Returns:
    [N] integers.
  """
  num_moved = np.zeros_like(spare)
  (rows,) = np.nonzero((spare > 0) & (first < stop))
  sentence, stop, spare = first[rows], stop[rows], spare[rows]
  while len(rows):
    size = offsets[sentence + 1] - offsets[sentence]
    size = np.where(size <= spare, size, 0)
    num_moved[rows] += size
    spare, sentence = spare - size, sentence + 1
    continues = (spare > 0) & (sentence < stop)
    rows, sentence = rows[continues], sentence[continues]
    stop, spare = stop[continues], spare[continues]
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
  In a document that is longer than a row, the first row ends at a different
  token in every epoch. Each token is predicted once in an epoch, except the
  first token of a document.

  Args:
    corpus: the documents.
    first_document: the first document of the range.
    end_document: the end of the range.
    key: a key from `make_key`; another key (epoch) gives other rows.
    length: L.

  Returns:
    `EXAMPLE` array in corpus order. It describes the tokens that are read. The
    tokens to predict are one token further.
  """
  documents = np.asarray(corpus.documents[first_document : end_document + 1])
  offsets = np.asarray(corpus.sentences)[documents]
  # The last token of a document is predicted, but not read.
  sizes = np.diff(offsets) - 1
  numbers = np.arange(first_document, end_document)
  shift = hashing.randint(key, numbers, 0, length)
  shift = np.where(sizes > length, shift, 0)
  num_rows = (shift > 0) + -(-(sizes - shift) // length)
  index_in_document = np.arange(num_rows.sum()) - np.repeat(
    np.cumsum(num_rows) - num_rows, num_rows
  )
  shift = np.repeat(shift, num_rows)
  size = np.repeat(sizes, num_rows)
  # With a shift, row 0 begins before the document.
  begin = index_in_document * length + np.where(shift > 0, shift - length, 0)
  stop = np.minimum(begin + length, size)
  begin = np.maximum(begin, 0)
  return _make_examples(np.repeat(offsets[:-1], num_rows) + begin, stop - begin)
