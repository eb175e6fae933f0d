"""ELMo's rows: windows of a text of words, with the words around each.

A text is read as allenai/bilm-tf bilm/data.py does, sentence after sentence,
each between `<S>` and `</S>`. What is read forward predicts the word that
follows, what is read backward the word before.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.batch_keys import Batch
from bert_jax.messages import UserError
from bert_jax.text import words
from bert_jax.text.characters import (
  BEGIN_SENTENCE,
  BEGIN_WORD,
  END_SENTENCE,
  END_WORD,
  MAX_CHARS,
  PAD,
  Spellings,
)

KEYS = ("char_ids", "sequence_ids", "next_ids", "next_weights")
KEYS += ("previous_ids", "previous_weights")


def check(corpus: Corpus) -> None:
  """Raises ValueError unless a corpus is one of words."""
  if corpus.spellings is None:
    raise UserError(
      "this text is not prepared with a vocabulary of words; make one with"
      " `bert_jax vocab --tokenizer words`, and prepare the text."
    )


def char_ids(spellings: Spellings, ids: np.ndarray) -> np.ndarray:
  """Returns int32 [..., 50] characters of words; see `characters`."""
  # Words repeat within a batch.
  ids, where = np.unique(ids, return_inverse=True)
  begin = spellings.ends[ids]
  size = (spellings.ends[ids + 1] - begin)[:, None]
  column = np.arange(MAX_CHARS)
  rows = np.full((len(ids), MAX_CHARS), PAD, np.int32)
  inner = (column >= 1) & (column <= size)
  lengths = size[:, 0]
  first = np.repeat(begin - np.cumsum(lengths) + lengths, lengths)
  rows[inner] = spellings.letters[first + np.arange(len(first))]
  rows[:, 0] = BEGIN_WORD
  rows[np.arange(len(ids)), lengths + 1] = END_WORD
  for word, mark in ((words.BEGIN, BEGIN_SENTENCE), (words.END, END_SENTENCE)):
    special = np.full(MAX_CHARS, PAD)
    special[:3] = BEGIN_WORD, mark, END_WORD
    rows[ids == word] = special
  rows += 1
  return rows[where]


def _targets(
  ids: np.ndarray, predicted: np.ndarray, vocab_size: int
) -> Sequence:
  """Ids and weights of words to predict, 0 where there are none."""
  ids = np.where(ids < vocab_size, ids, words.UNKNOWN)
  return np.where(predicted, ids, 0).astype(np.int32), predicted.astype(
    np.float32
  )


def index_all(
  corpus: Corpus, first_document: int, last_document: int, key: int, length: int
) -> np.ndarray:
  """Cuts documents, one after the other, into windows.

  Args:
    corpus: the documents.
    first_document, last_document: the range.
    key: from `make_key`; another key (epoch) cuts at other places.
    length: L.

  Returns:
    [N, 2] int64, where each window begins and ends.
  """
  first, last = corpus.documents[[first_document, last_document]]
  begin, end = (int(corpus.sentences[s]) for s in (first, last))
  phase = int(hashing.randint(key, np.array(first_document), 0, length))
  cuts = np.arange(begin + phase, end, length)
  cuts = np.unique(np.concatenate([[begin], cuts, [end]]))
  return np.stack([cuts[:-1], cuts[1:]], -1)


def build_all(
  corpus: Corpus,
  rows: np.ndarray,
  numbers: np.ndarray,
  key: int,
  length: int,
  vocab_size: int,
) -> Batch:
  """Windows that both directions read.

  A direction predicts no word before a sentence's begin or after its end. The
  words next to a window are predicted too.

  Args:
    corpus: the documents.
    rows: rows from `index_all`.
    numbers: unused, because no random number is drawn.
    key: unused.
    length: L.
    vocab_size: words that are predicted.
  """
  del numbers, key
  place = rows[:, :1] + np.arange(length)
  real = place < rows[:, 1:]
  last = corpus.num_tokens - 1
  ids = corpus.tokens[np.minimum(place, last)].astype(np.int64)
  after = corpus.tokens[np.minimum(place + 1, last)].astype(np.int64)
  before = corpus.tokens[np.clip(place - 1, 0, last)].astype(np.int64)
  following = _targets(after, real & (ids != words.END), vocab_size)
  preceding = _targets(before, real & (ids != words.BEGIN), vocab_size)
  chars = char_ids(corpus.spellings, ids)
  chars[~real] = 0
  values = (chars, real.astype(np.int32))
  return dict(zip(KEYS, (*values, *following, *preceding), strict=True))


def num_links(corpus: Corpus) -> int:
  """Pairs of neighbours within sentences: what a direction predicts."""
  return corpus.num_tokens - (len(corpus.sentences) - 1)


def index_links(
  corpus: Corpus, first_document: int, last_document: int, key: int, length: int
) -> np.ndarray:
  """Cuts documents into whole windows of links, see `build_links`.

  For the held-out text, of which both directions read the same windows; what
  is left at the end is not read.

  Returns:
    [N, 2] int64, the first link of the forward and of the backward direction.
  """
  del key
  first, last = corpus.documents[[first_document, last_document]]
  begin, end = (int(corpus.sentences[s] - s) for s in (first, last))
  starts = np.arange(begin, end - length + 1, length)
  return np.stack([starts, starts], -1)


def _link_places(corpus: Corpus, links: np.ndarray, length: int) -> np.ndarray:
  """Places [B, L] of the left words of links, from the first of each row on.

  Link k of the text is in the last sentence that begins at or before it when
  every sentence counts one word less.
  """
  low = np.zeros_like(links)
  high = np.full_like(links, len(corpus.sentences) - 1)
  while (high - low > 1).any():
    middle = (low + high) // 2
    later = corpus.sentences[middle] - middle > links
    high = np.where(later, middle, high)
    low = np.where(later, low, middle)
  # A sentence of one word has two links in three places.
  place = (links + low)[:, None] + np.arange(2 * length)
  tokens = corpus.tokens[np.minimum(place, corpus.num_tokens - 1)]
  order = np.argsort(tokens == words.END, axis=1, kind="stable")[:, :length]
  return np.take_along_axis(place, order, 1)


def build_links(
  corpus: Corpus,
  rows: np.ndarray,
  numbers: np.ndarray,
  key: int,
  length: int,
  vocab_size: int,
) -> Batch:
  """Windows of L links for each direction; every word predicts one.

  Of a link, two neighbours in a sentence, the forward direction reads the left
  and predicts the right one, the backward direction the other way round. So
  the forward one never reads `</S>`, the backward one never `<S>`, as
  published. Rows are in the order of the text.

  Args:
    corpus: the documents.
    rows: [B, 2] int64, the first link of the forward and of the backward row.
    numbers: unused, because no random number is drawn.
    key: unused.
    length: L.
    vocab_size: words that are predicted.
  """
  del numbers, key
  ahead, back = (_link_places(corpus, rows[:, i], length) for i in (0, 1))
  left, right = (
    (corpus.tokens[p].astype(np.int64), corpus.tokens[p + 1].astype(np.int64))
    for p in (ahead, back)
  )
  predicted = np.ones(ahead.shape, bool)
  values = (char_ids(corpus.spellings, left[0]), predicted.astype(np.int32))
  following = _targets(left[1], predicted, vocab_size)
  preceding = _targets(right[0], predicted, vocab_size)
  batch = dict(zip(KEYS, (*values, *following, *preceding), strict=True))
  return batch | {"back_char_ids": char_ids(corpus.spellings, right[1])}
