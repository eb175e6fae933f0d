"""Measures the share of the text that a recipe's rows hold, before training.

A run prints this share, and the share of its pairs that are random. If each
line of the text was taken for a sentence by mistake (see `corpus.sizes`), the
first share is too small or the second share is too large.
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

# A run warns if its rows hold less than this share of the text's tokens.
# ELECTRA's rows of 128 tokens hold 0.86 of a text with ordinary sentences.
MIN_HELD_SHARE = 0.75
# A run warns if more than this share of the pairs is random. The share is about
# 0.57 in BERT's text.
MAX_RANDOM_SHARE = 0.75
# A corpus with more than SAMPLE_TOKENS tokens is measured by a sample of about
# SAMPLE_TOKENS tokens, from SAMPLE_RANGES ranges of the corpus.
SAMPLE_TOKENS, SAMPLE_RANGES = 2**22, 4
# The number of special tokens in a row with a pair.
_SPECIAL_TOKENS_PER_PAIR = 3


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
  """Measures the rows of one epoch, or of a sample if the corpus is large.

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
  for first_document, end_document in _document_ranges(corpus):
    index = recipe.index(corpus, first_document, end_document, key)
    numbers = np.arange(len(index), dtype=np.uint64)
    # Each entry describes a text or a pair of texts by the fields `start`,
    # `length`, `second_start`, `second_length` and `label`, see
    # `rows.SEQUENCE_DTYPE`.
    texts = recipe.find_texts(corpus, index, numbers, key).reshape(-1)
    texts = texts[texts["length"] > 0]
    sentence_range = np.asarray(
      corpus.documents[[first_document, end_document]]
    )
    first_token, end_token = np.asarray(corpus.sentences)[
      sentence_range
    ].tolist()
    num_tokens += end_token - first_token
    num_held += _count_held(texts, first_token, end_token)
    if recipe.has_pairs:
      num_pairs += len(texts)
      num_random += _count_random(corpus, texts)
  random_share = num_random / num_pairs if num_pairs else None
  return Coverage(num_held / max(num_tokens, 1), random_share)


def _document_ranges(corpus: Corpus) -> Iterator[tuple[int, int]]:
  """Yields (first, end) of ranges of documents; a small corpus is one range."""
  if corpus.num_tokens <= SAMPLE_TOKENS:
    yield 0, corpus.num_documents
    return
  for range_index in range(SAMPLE_RANGES):
    start = corpus.num_tokens * range_index // SAMPLE_RANGES
    token_bounds = [start, start + SAMPLE_TOKENS // SAMPLE_RANGES]
    sentence_bounds = np.searchsorted(corpus.sentences, token_bounds)
    first_document, end_document = np.searchsorted(
      corpus.documents, sentence_bounds
    ).tolist()
    first_document = min(first_document, corpus.num_documents - 1)
    yield (
      first_document,
      min(max(end_document, first_document + 1), corpus.num_documents),
    )


def _count_held(texts: np.ndarray, begin: int, end: int) -> int:
  """Counts the tokens in [begin, end) that are in at least one text."""
  starts, lengths = texts["start"], texts["length"].astype(np.int64)
  second_starts = texts["second_start"]
  second_lengths = texts["second_length"].astype(np.int64)
  # In ELECTRA's pairs, sentences of the second text may move to the first text
  # (see `rows.parts_with_moved_sentences`). The second text then starts inside
  # the first. Count such a pair as one text of its total length.
  is_inside = (
    (second_lengths > 0)
    & (starts < second_starts)
    & (second_starts < starts + lengths)
  )
  lengths = np.where(is_inside, lengths + second_lengths, lengths)
  second_lengths = np.where(is_inside, 0, second_lengths)
  # For each token: how many texts begin at this token, minus how many texts end
  # directly before it.
  change_of_texts = np.zeros(end - begin + 1, np.int64)
  for text_start, text_length in (
    (starts, lengths),
    (second_starts, second_lengths),
  ):
    first_token = np.clip(text_start, begin, end) - begin
    end_token = np.clip(text_start + text_length, begin, end) - begin
    np.add.at(change_of_texts, first_token, 1)
    np.add.at(change_of_texts, end_token, -1)
  return int(np.count_nonzero(np.cumsum(change_of_texts[:-1]) > 0))


def _count_random(corpus: Corpus, texts: np.ndarray) -> int:
  """Counts the pairs whose two texts are from different documents."""
  documents = [
    np.searchsorted(
      corpus.documents,
      np.searchsorted(corpus.sentences, texts[field], "right") - 1,
      "right",
    )
    for field in ("start", "second_start")
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
    remedy = by_caller(
      command=(
        "Train with longer rows (data.length). If a line of your text has"
        " several sentences, prepare it with --format"
      ),
      python=(
        "Raise `length`, the number of tokens in a row. If a line of your text"
        " has several sentences, write each of them on its own line"
      ),
    )
    yield (
      f"warning: an epoch does not train on the other {1 - held_share:.1%} of"
      f" the text: a sentence has {statistics.mean_tokens:.0f} tokens on"
      f" average, and tokens that do not fit into a row are cut off. {remedy}."
    )
  if coverage.random_share is None or coverage.random_share <= MAX_RANDOM_SHARE:
    return
  length = recipe.features["input_ids"][0][0]
  num_long = count_long_sentences(corpus, length - _SPECIAL_TOKENS_PER_PAIR)
  num_single = statistics.num_single_sentence_documents
  if num_long > num_single:
    yield (
      f"warning: {num_long:,} of the {len(corpus.sentences) - 1:,} sentences"
      f" each fill a row of {length} tokens, so the next sentence does not fit."
      f" {num_single:,} other sentences are a whole document and have no next"
      " sentence. So the model hardly learns next sentences. Train with longer"
      " rows (data.length), prepare the text with shorter sentences, or train"
      " without pairs."
    )
  else:
    yield (
      f"warning: {num_single:,} of {statistics.num_documents:,} documents are"
      " one sentence and have no next sentence, so the model hardly learns next"
      " sentences. Prepare the text with documents of several sentences, or"
      " train without pairs."
    )
