"""Looks at prepared text before it is used: sentences, documents, rows.

Plain text that was read as if it had a sentence a line trains without an
error, on a small part of the text or on pairs that are all random. So
`prepare` says how long sentences are and how many documents have only one, and
a run says how much of the text its rows hold and how many pairs are random.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.data import hashing
from bert_jax.data.builder import Builder
from bert_jax.data.corpus import Corpus

# A sentence of English has about 25 tokens.
LONG_SENTENCE = 100
MANY_SINGLE = 0.5
# Rows of ELECTRA with 128 tokens hold 0.86 of a text of ordinary sentences.
LITTLE = 0.75
# BERT's own text has about 0.57.
MANY_RANDOM = 0.75
# Tokens of the text that are looked at, in this many places.
SAMPLE, PLACES = 2**22, 4
# Special tokens of a row with a pair.
_SPECIAL = 3
_BLOCK = 2**20


class Sizes(NamedTuple):
  """Sentences and documents of a corpus.

  Attributes:
    mean: tokens of a sentence, on average.
    longest: tokens of the longest sentence.
    single: documents that are one sentence.
    documents: all documents.
  """

  mean: float
  longest: int
  single: int
  documents: int


class Reach(NamedTuple):
  """Rows of an epoch.

  Attributes:
    held: share of the text's tokens that are in a row.
    random: share of the pairs whose second text is from another document; None
      without pairs.
  """

  held: float
  random: float | None


def sizes_of(sentences: np.ndarray, documents: np.ndarray) -> Sizes:
  """Looks at the offsets of `corpus.Corpus`, a block at a time."""
  longest = single = 0
  for lengths in _lengths(sentences):
    longest = max(longest, int(lengths.max(initial=0)))
  for lengths in _lengths(documents):
    single += int(np.count_nonzero(lengths == 1))
  count = len(sentences) - 1
  mean = int(sentences[-1]) / max(count, 1)
  return Sizes(mean, longest, single, len(documents) - 1)


def _lengths(offsets: np.ndarray) -> Iterator[np.ndarray]:
  for start in range(0, len(offsets) - 1, _BLOCK):
    yield np.diff(np.asarray(offsets[start : start + _BLOCK + 1]))


def count_filling(corpus: Corpus, tokens: int) -> int:
  """Counts sentences of so many tokens or more that are no whole document."""
  sentences, documents = corpus.sentences, corpus.documents
  count = 0
  for lengths in _lengths(sentences):
    count += int(np.count_nonzero(lengths >= tokens))
  for start in range(0, len(documents) - 1, _BLOCK):
    offsets = np.asarray(documents[start : start + _BLOCK + 1])
    alone = offsets[:-1][np.diff(offsets) == 1]
    lengths = sentences[alone + 1] - sentences[alone]
    count -= int(np.count_nonzero(lengths >= tokens))
  return count


def size_lines(split: str, sizes: Sizes) -> Iterator[str]:
  """Yields what `sizes_of` returned, and warnings, for people."""
  share = sizes.single / max(sizes.documents, 1)
  yield (
    f"{split}: {sizes.mean:.1f} tokens a sentence, {sizes.longest:,} in the"
    f" longest; {sizes.single:,} of {sizes.documents:,} documents ({share:.1%})"
    " are one sentence"
  )
  if split != "train":
    return
  remedy = (
    "if it is plain text, give --format: text (a file is a document),"
    " text_blocks (a blank line between documents) or text_lines (a document a"
    " line)"
  )
  if sizes.mean > LONG_SENTENCE:
    yield (
      f"warning: {sizes.mean:.0f} tokens are long for a sentence; {remedy}."
    )
  elif share > MANY_SINGLE and sizes.documents > 1:
    yield (
      f"warning: {share:.0%} of the documents are one sentence, so that no"
      f" sentence follows another; {remedy}."
    )


def measure(corpus: Corpus, builder: Builder) -> Reach | None:
  """Looks at rows of the first epoch, of a sample of a large corpus.

  Args:
    corpus: the documents.
    builder: what makes rows of them.

  Returns:
    None if the builder's rows are no texts of documents (ELMo's).
  """
  if builder.settle is None:
    return None
  key = hashing.make_key("reach")
  tokens = held = pairs = random = 0
  for first, last in _ranges(corpus):
    units = builder.index(corpus, first, last, key)
    numbers = np.arange(len(units), dtype=np.uint64)
    examples = builder.settle(corpus, units, numbers, key).reshape(-1)
    examples = examples[examples["length"] > 0]
    offsets = np.asarray(corpus.documents[[first, last]])
    begin, end = np.asarray(corpus.sentences)[offsets].tolist()
    tokens += end - begin
    held += _count_held(examples, begin, end)
    if builder.pairs:
      pairs += len(examples)
      random += _count_random(corpus, examples)
  share = random / pairs if pairs else None
  return Reach(held / max(tokens, 1), share)


def _ranges(corpus: Corpus) -> Iterator[tuple[int, int]]:
  """Yields ranges of whole documents; all of a small corpus."""
  if corpus.num_tokens <= SAMPLE:
    yield 0, corpus.num_documents
    return
  for place in range(PLACES):
    start = corpus.num_tokens * place // PLACES
    marks = np.searchsorted(corpus.sentences, [start, start + SAMPLE // PLACES])
    first, last = np.searchsorted(corpus.documents, marks).tolist()
    first = min(first, corpus.num_documents - 1)
    yield first, min(max(last, first + 1), corpus.num_documents)


def _count_held(examples: np.ndarray, begin: int, end: int) -> int:
  """Tokens in [begin, end) that are in at least one example."""
  start, length = examples["start"], examples["length"].astype(np.int64)
  second = examples["second"]
  second_length = examples["second_length"].astype(np.int64)
  # ELECTRA's first segments may go on behind the beginning of the second.
  inside = (second_length > 0) & (start < second) & (second < start + length)
  length = np.where(inside, length + second_length, length)
  second_length = np.where(inside, 0, second_length)
  change = np.zeros(end - begin + 1, np.int64)
  for first, count in ((start, length), (second, second_length)):
    np.add.at(change, np.clip(first, begin, end) - begin, 1)
    np.add.at(change, np.clip(first + count, begin, end) - begin, -1)
  return int(np.count_nonzero(np.cumsum(change[:-1]) > 0))


def _count_random(corpus: Corpus, examples: np.ndarray) -> int:
  """Examples whose two texts are from different documents."""
  documents = [
    np.searchsorted(
      corpus.documents,
      np.searchsorted(corpus.sentences, examples[name], "right") - 1,
      "right",
    )
    for name in ("start", "second")
  ]
  return int(np.count_nonzero(documents[0] != documents[1]))


def reach_lines(corpus: Corpus, builder: Builder) -> Iterator[str]:
  """Yields what `measure` returns, and warnings, for people."""
  reach = measure(corpus, builder)
  if reach is None:
    return
  # Not 100% unless it is all.
  held = math.floor(reach.held * 1000) / 1000
  line = f"an epoch's rows hold {held:.1%} of the text's tokens"
  if reach.random is not None:
    line += f"; {reach.random:.1%} of the pairs have a random second text"
  yield line
  sizes = sizes_of(corpus.sentences, corpus.documents)
  if reach.held < LITTLE:
    yield (
      f"warning: the remaining {1 - held:.1%} of the text are not trained on in"
      f" an epoch: a sentence has {sizes.mean:.0f} tokens on average, and what"
      " does not fit into a row is cut off. Prepare the text with a sentence a"
      " line, or with a --format of plain text."
    )
  if reach.random is None or reach.random <= MANY_RANDOM:
    return
  length = builder.features["input_ids"][0][0]
  filling = count_filling(corpus, length - _SPECIAL)
  if filling > sizes.single:
    yield (
      f"warning: {filling:,} of {len(corpus.sentences) - 1:,} sentences fill a"
      f" row of {length} tokens alone ({sizes.single:,} others are a document"
      " alone), so that what follows them is in no row, and next sentences are"
      " hardly learnt. Train with longer rows (data.length), prepare the text"
      " with shorter sentences, or train without pairs."
    )
  else:
    yield (
      f"warning: {sizes.single:,} of {sizes.documents:,} documents are one"
      " sentence, to which nothing follows, so that next sentences are hardly"
      " learnt. Prepare the text with documents of several sentences, or train"
      " without pairs."
    )
