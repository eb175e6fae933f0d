"""Measures the sentences and documents of prepared text.

Plain text may be read by mistake as text with a sentence on each line. Training
on it raises no error, but it uses only a small part of the text, or all its
pairs are random. So `prepare` prints the length of sentences and the number of
documents with only one sentence.
"""

from collections.abc import Iterator, Set
from typing import NamedTuple

import numpy as np

from bert_jax.corpus.reader import Corpus

# Warn if a sentence has more tokens on average. In English it has about 25.
LONG_SENTENCE = 100
# Warn if a larger share of the documents has only one sentence.
MANY_SINGLE = 0.5
# A format of plain text -> what a document is in it.
_PLAIN_FORMATS = {
  "text": "each file is a document",
  "text_blocks": "a blank line between documents",
  "text_lines": "each line is a document",
}
# The number of offsets that are read at once.
_BLOCK = 2**20


class Sizes(NamedTuple):
  """Holds sizes of a corpus.

  Attributes:
    mean: the mean number of tokens in a sentence.
    longest: the number of tokens in the longest sentence.
    single: the number of documents with only one sentence.
    documents: the number of documents.
  """

  mean: float
  longest: int
  single: int
  documents: int


def sizes_of(sentences: np.ndarray, documents: np.ndarray) -> Sizes:
  """Computes the sizes from the offsets of `reader.Corpus`.

  Args:
    sentences: the offset of the first token of each sentence, and the end.
    documents: the offset of the first sentence of each document, and the end.
  """
  longest = num_single = 0
  for lengths in _lengths(sentences):
    longest = max(longest, int(lengths.max(initial=0)))
  for lengths in _lengths(documents):
    num_single += int(np.count_nonzero(lengths == 1))
  count = len(sentences) - 1
  mean = int(sentences[-1]) / max(count, 1)
  return Sizes(mean, longest, num_single, len(documents) - 1)


def _lengths(offsets: np.ndarray) -> Iterator[np.ndarray]:
  """Yields the differences between neighbouring offsets, block by block."""
  for start in range(0, len(offsets) - 1, _BLOCK):
    yield np.diff(np.asarray(offsets[start : start + _BLOCK + 1]))


def count_filling(corpus: Corpus, tokens: int) -> int:
  """Counts sentences with at least `tokens` tokens.

  A sentence that is the only one of its document is not counted.
  """
  sentences, documents = corpus.sentences, corpus.documents
  count = 0
  for lengths in _lengths(sentences):
    count += int(np.count_nonzero(lengths >= tokens))
  for start in range(0, len(documents) - 1, _BLOCK):
    offsets = np.asarray(documents[start : start + _BLOCK + 1])
    single_sentences = offsets[:-1][np.diff(offsets) == 1]
    lengths = sentences[single_sentences + 1] - sentences[single_sentences]
    count -= int(np.count_nonzero(lengths >= tokens))
  return count


def size_lines(split: str, sizes: Sizes, formats: Set[str]) -> Iterator[str]:
  """Yields a line that shows the result of `sizes_of`, then warnings.

  Args:
    split: the name of the split; only "train" gets warnings.
    sizes: the result of `sizes_of`.
    formats: the formats in which the text was read.
  """
  share = sizes.single / max(sizes.documents, 1)
  yield (
    f"{split}: {sizes.mean:.1f} tokens a sentence, {sizes.longest:,} in the"
    f" longest; {sizes.single:,} of {sizes.documents:,} documents ({share:.1%})"
    " are one sentence"
  )
  if split != "train":
    return
  if sizes.mean > LONG_SENTENCE:
    # Only "bert" takes a line for a sentence; other formats split their text.
    remedy = _remedy(formats) if "bert" in formats else ""
    yield (
      f"warning: a sentence has {sizes.mean:.0f} tokens on average, which is"
      f" long{remedy}."
    )
  elif share > MANY_SINGLE and sizes.documents > 1:
    yield (
      f"warning: {share:.0%} of the documents are one sentence, so there is no"
      f" next sentence in them{_remedy(formats)}."
    )


def _remedy(formats: Set[str]) -> str:
  """Returns the end of a warning, which names formats that were not used."""
  other_formats = [
    f"{name} ({documents})"
    for name, documents in _PLAIN_FORMATS.items()
    if name not in formats
  ]
  if "bert" in formats and other_formats:
    return f"; if it is plain text, give --format: {_either(other_formats)}"
  if other_formats and not formats.isdisjoint(_PLAIN_FORMATS):
    return (
      "; if several documents belong together, give another --format:"
      f" {_either(other_formats)}"
    )
  return ""


def _either(names: list[str]) -> str:
  """Returns "a", "a or b" or "a, b or c"."""
  *first, last = names
  return f"{', '.join(first)} or {last}" if first else last
