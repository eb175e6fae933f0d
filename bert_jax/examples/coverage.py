"""Measures the share of the text that a recipe's rows hold, before training.

A run prints this share, and the share of its pairs that are random. The two
shares reveal text that was read by mistake as if each line were a sentence (see
`corpus.sizes`).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.corpus.sizes import count_long_sentences, measure_lengths
from bert_jax.examples.recipes import Recipe
from bert_jax.messages import by_caller

# A run warns if rows hold a smaller share than this of the text's tokens.
# ELECTRA's rows of 128 tokens hold 0.86 of a text with ordinary sentences.
MIN_HELD_SHARE = 0.75
# A run warns if a larger share than this of the pairs is random. BERT's text
# has about 0.57.
MAX_RANDOM_SHARE = 0.75
# A corpus with more than SAMPLE_TOKENS tokens is measured by a sample of about
# SAMPLE_TOKENS tokens, from SAMPLE_RANGES ranges of the corpus.
SAMPLE_TOKENS, SAMPLE_RANGES = 2**22, 4
# The number of special tokens in a row with a pair.
_NUM_SPECIAL = 3


class Coverage(NamedTuple):
  """Says how much of a text the rows of an epoch hold.

  Attributes:
    held_share: the share of the text's tokens that are in at least one row.
    random_share: the share of the pairs whose texts are from different
      documents; None if the rows have no pairs.
  """

  held_share: float
  random_share: float | None


def measure_coverage(corpus: Corpus, recipe: Recipe) -> Coverage | None:
  """Measures rows of one epoch; of a large corpus, it measures a sample.

  Args:
    corpus: the documents.
    recipe: the recipe that makes rows of the documents.

  Returns:
    The measures; None if the recipe has no `find_texts` (ELMo).
  """
  if recipe.find_texts is None:
    return None
  key = hashing.make_key("reach")
  num_tokens = num_held = num_pairs = num_random = 0
  for first, end_document in _document_ranges(corpus):
    elements = recipe.index(corpus, first, end_document, key)
    numbers = np.arange(len(elements), dtype=np.uint64)
    sequences = recipe.find_texts(corpus, elements, numbers, key).reshape(-1)
    sequences = sequences[sequences["length"] > 0]
    offsets = np.asarray(corpus.documents[[first, end_document]])
    begin, end = np.asarray(corpus.sentences)[offsets].tolist()
    num_tokens += end - begin
    num_held += _count_held(sequences, begin, end)
    if recipe.has_pairs:
      num_pairs += len(sequences)
      num_random += _count_random(corpus, sequences)
  random_share = num_random / num_pairs if num_pairs else None
  return Coverage(num_held / max(num_tokens, 1), random_share)


def _document_ranges(corpus: Corpus) -> Iterator[tuple[int, int]]:
  """Yields (first, end) of ranges of documents; a small corpus is one range."""
  if corpus.num_tokens <= SAMPLE_TOKENS:
    yield 0, corpus.num_documents
    return
  for i in range(SAMPLE_RANGES):
    start = corpus.num_tokens * i // SAMPLE_RANGES
    token_bounds = [start, start + SAMPLE_TOKENS // SAMPLE_RANGES]
    sentence_bounds = np.searchsorted(corpus.sentences, token_bounds)
    first, end = np.searchsorted(corpus.documents, sentence_bounds).tolist()
    first = min(first, corpus.num_documents - 1)
    yield first, min(max(end, first + 1), corpus.num_documents)


def _count_held(sequences: np.ndarray, begin: int, end: int) -> int:
  """Counts tokens in [begin, end) that are in at least one sequence."""
  start, length = sequences["start"], sequences["length"].astype(np.int64)
  second = sequences["second_start"]
  second_length = sequences["second_length"].astype(np.int64)
  # ELECTRA's first segment may also take sentences that follow the beginning of
  # the second segment. Count such a pair as one text of its total length.
  is_inside = (second_length > 0) & (start < second) & (second < start + length)
  length = np.where(is_inside, length + second_length, length)
  second_length = np.where(is_inside, 0, second_length)
  count_change = np.zeros(end - begin + 1, np.int64)
  for text_start, text_length in ((start, length), (second, second_length)):
    np.add.at(count_change, np.clip(text_start, begin, end) - begin, 1)
    np.add.at(
      count_change, np.clip(text_start + text_length, begin, end) - begin, -1
    )
  return int(np.count_nonzero(np.cumsum(count_change[:-1]) > 0))


def _count_random(corpus: Corpus, sequences: np.ndarray) -> int:
  """Counts sequences whose two texts are from different documents."""
  documents = [
    np.searchsorted(
      corpus.documents,
      np.searchsorted(corpus.sentences, sequences[name], "right") - 1,
      "right",
    )
    for name in ("start", "second_start")
  ]
  return int(np.count_nonzero(documents[0] != documents[1]))


def coverage_lines(corpus: Corpus, recipe: Recipe) -> Iterator[str]:
  """Yields a line with the result of `measure_coverage`, then warnings."""
  coverage = measure_coverage(corpus, recipe)
  if coverage is None:
    return
  # Round down, so that 100% means all tokens.
  held_share = math.floor(coverage.held_share * 1000) / 1000
  line = f"an epoch's rows hold {held_share:.1%} of the text's tokens"
  if coverage.random_share is not None:
    line += (
      f"; {coverage.random_share:.1%} of the pairs have a random second text"
    )
  yield line
  statistics = measure_lengths(corpus.sentences, corpus.documents)
  if coverage.held_share < MIN_HELD_SHARE:
    format_advice = by_caller(
      "with --format for plain text", "raise length, which is tokens of a row"
    )
    yield (
      f"warning: an epoch does not train on the other {1 - held_share:.1%} of"
      f" the text: a sentence has {statistics.mean_tokens:.0f} tokens on"
      " average, and tokens that do not fit into a row are cut off. Prepare the"
      f" text with one sentence on each line, or {format_advice}."
    )
  if coverage.random_share is None or coverage.random_share <= MAX_RANDOM_SHARE:
    return
  length = recipe.features["input_ids"][0][0]
  num_filling = count_long_sentences(corpus, length - _NUM_SPECIAL)
  if num_filling > statistics.num_single:
    yield (
      f"warning: each of {num_filling:,} of the {len(corpus.sentences) - 1:,}"
      f" sentences fills a whole row of {length} tokens (and"
      f" {statistics.num_single:,} other sentences are a whole document), so"
      " the sentence after it is not in the row, and the model hardly learns"
      " next sentences. Train with longer rows (data.length), prepare the text"
      " with shorter sentences, or train without pairs."
    )
  else:
    yield (
      f"warning: {statistics.num_single:,} of {statistics.num_documents:,}"
      " documents are one sentence and have no next sentence, so the model"
      " hardly learns next sentences. Prepare the text with documents of"
      " several sentences, or train without pairs."
    )
