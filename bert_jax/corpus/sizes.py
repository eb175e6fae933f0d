"""Measures the sentences and documents of prepared text.

Plain text may be read by mistake as text with a sentence on each line. Training
then raises no error, but uses only a small part of the text, or makes only
random pairs. So `prepare` prints the lengths of sentences and the number of
documents with only one sentence.
"""

from collections.abc import Iterator, Set
from typing import NamedTuple

import numpy as np

from bert_jax.corpus.reader import Corpus
from bert_jax.messages import by_caller

# Warn if sentences have more than this many tokens on average. English
# sentences have about 25 tokens.
MAX_MEAN_TOKENS = 100
# Warn if more than this share of the documents has only one sentence.
MAX_SINGLE_SENTENCE_SHARE = 0.5
# A format of plain text -> what a document is in it.
_PLAIN_FORMATS = {
  "text": "each file is a document",
  "text_blocks": "a blank line between documents",
  "text_lines": "each line is a document",
}
# The number of offsets that are read at once.
_BLOCK_OFFSETS = 2**20


class LengthStatistics(NamedTuple):
  """Holds what `measure_lengths` computes from a corpus.

  Attributes:
    mean_tokens: the mean number of tokens in a sentence.
    longest_sentence: the number of tokens in the longest sentence.
    num_single_sentence_documents: the number of documents with only one
      sentence.
    num_documents: the number of documents.
  """

  mean_tokens: float
  longest_sentence: int
  num_single_sentence_documents: int
  num_documents: int


def measure_lengths(
  sentences: np.ndarray, documents: np.ndarray
) -> LengthStatistics:
  """Measures sentences and documents.

  Args:
    sentences: the array `sentences` of a `reader.Corpus`.
    documents: the array `documents` of the corpus.
  """
  longest_sentence = num_single_sentence_documents = 0
  for lengths in _lengths(sentences):
    longest_sentence = max(longest_sentence, int(lengths.max(initial=0)))
  for lengths in _lengths(documents):
    num_single_sentence_documents += int(np.count_nonzero(lengths == 1))
  num_sentences = len(sentences) - 1
  mean_tokens = int(sentences[-1]) / max(num_sentences, 1)
  return LengthStatistics(
    mean_tokens,
    longest_sentence,
    num_single_sentence_documents,
    len(documents) - 1,
  )


def _lengths(offsets: np.ndarray) -> Iterator[np.ndarray]:
  """Yields the differences between neighbouring offsets, block by block."""
  for start in range(0, len(offsets) - 1, _BLOCK_OFFSETS):
    yield np.diff(np.asarray(offsets[start : start + _BLOCK_OFFSETS + 1]))


def count_long_sentences(corpus: Corpus, min_tokens: int) -> int:
  """Counts sentences with at least `min_tokens` tokens.

  A sentence that is the only sentence of its document is not counted.
  """
  sentences, documents = corpus.sentences, corpus.documents
  num_long = 0
  for lengths in _lengths(sentences):
    num_long += int(np.count_nonzero(lengths >= min_tokens))
  for start in range(0, len(documents) - 1, _BLOCK_OFFSETS):
    offsets = np.asarray(documents[start : start + _BLOCK_OFFSETS + 1])
    single_sentence_indices = offsets[:-1][np.diff(offsets) == 1]
    lengths = (
      sentences[single_sentence_indices + 1]
      - sentences[single_sentence_indices]
    )
    num_long -= int(np.count_nonzero(lengths >= min_tokens))
  return num_long


def statistics_lines(
  split: str, statistics: LengthStatistics, formats: Set[str]
) -> Iterator[str]:
  """Yields a line with the statistics, then at most one warning.

  Args:
    split: the name of the split; only "train" gets warnings.
    statistics: the result of `measure_lengths`.
    formats: the formats in which the text was read.
  """
  num_single = statistics.num_single_sentence_documents
  single_sentence_share = num_single / max(statistics.num_documents, 1)
  yield (
    f"{split}: {statistics.mean_tokens:.1f} tokens a sentence,"
    f" {statistics.longest_sentence:,} in the longest;"
    f" {num_single:,} of {statistics.num_documents:,} documents"
    f" ({single_sentence_share:.1%}) are one sentence"
  )
  if split != "train":
    return
  if statistics.mean_tokens > MAX_MEAN_TOKENS:
    # Only "bert" takes each line for a sentence; text in the other formats is
    # split into sentences.
    advice = _format_advice(formats) if "bert" in formats else ""
    yield (
      f"warning: a sentence has {statistics.mean_tokens:.0f} tokens on average,"
      f" which is long{advice}."
    )
  elif (
    single_sentence_share > MAX_SINGLE_SENTENCE_SHARE
    and statistics.num_documents > 1
  ):
    yield (
      f"warning: {single_sentence_share:.0%} of the documents are one sentence,"
      f" so there is no next sentence in them{_format_advice(formats)}."
    )


def _format_advice(formats: Set[str]) -> str:
  """Returns the end of a warning: formats to try instead; "" for no advice."""
  other_formats = [
    f"{name} ({documents})"
    for name, documents in _PLAIN_FORMATS.items()
    if name not in formats
  ]
  if "bert" in formats and other_formats:
    return (
      "; if it is plain text, give"
      f" {_format_option()}: {_join_with_or(other_formats)}"
    )
  if other_formats and not formats.isdisjoint(_PLAIN_FORMATS):
    return (
      "; if several documents belong together, give another"
      f" {_format_option()}: {_join_with_or(other_formats)}"
    )
  return ""


def _format_option() -> str:
  """Returns how the caller says the format of the text."""
  return by_caller("--format", 'files="FORMAT:PATH", with a format')


def _join_with_or(names: list[str]) -> str:
  """Returns "a", "a or b" or "a, b or c"."""
  *first, last = names
  return f"{', '.join(first)} or {last}" if first else last
