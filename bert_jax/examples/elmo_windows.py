"""ELMo's rows: windows of a text of words, and the words to predict.

The text is read sentence after sentence, as in allenai/bilm-tf bilm/data.py.
Each sentence stands between `<S>` and `</S>`. The forward direction predicts
the word after each word that it reads. The backward direction predicts the word
before each word that it reads.
"""

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
)

# The keys of a batch. `build_links` adds `back_char_ids`.
BATCH_KEYS = (
  *("char_ids", "sequence_ids"),
  *("next_ids", "next_weights"),
  *("previous_ids", "previous_weights"),
)


def check_words(corpus: Corpus) -> None:
  """Raises UserError unless the pieces of a corpus are words."""
  if corpus.spellings is None:
    raise UserError(
      "this text is not prepared with a vocabulary of words; make one with"
      " `bert_jax vocab --tokenizer words`, and prepare the text."
    )


def char_ids(corpus: Corpus, ids: np.ndarray) -> np.ndarray:
  """Returns the characters of words, see `text.characters`.

  Args:
    corpus: a corpus for which `check_words` raises no error.
    ids: the ids of words, integers of any shape [...].

  Returns:
    int32 [..., MAX_CHARS].
  """
  spellings = corpus.spellings
  assert spellings is not None
  # Look up each word once, because a batch often repeats a word.
  ids, inverse = np.unique(ids, return_inverse=True)
  begins = spellings.bounds[ids]
  num_letters = (spellings.bounds[ids + 1] - begins)[:, None]
  columns = np.arange(MAX_CHARS)
  chars_of_words = np.full((len(ids), MAX_CHARS), PAD, np.int32)
  is_letter = (columns >= 1) & (columns <= num_letters)
  lengths = num_letters[:, 0]
  # Number the letters of all words 0, 1, ... The index of a letter in
  # `spellings.letter_bytes` is its number plus its `offset_of_letter`, which is
  # the same for all letters of a word.
  offset_of_letter = np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
  letter_indices = offset_of_letter + np.arange(len(offset_of_letter))
  chars_of_words[is_letter] = spellings.letter_bytes[letter_indices]
  chars_of_words[:, 0] = BEGIN_WORD
  chars_of_words[np.arange(len(ids)), lengths + 1] = END_WORD
  for word_id, symbol in (
    (words.BEGIN_ID, BEGIN_SENTENCE),
    (words.END_ID, END_SENTENCE),
  ):
    special_chars = np.full(MAX_CHARS, PAD)
    special_chars[:3] = BEGIN_WORD, symbol, END_WORD
    chars_of_words[ids == word_id] = special_chars
  chars_of_words += 1
  return chars_of_words[inverse]


def _make_targets(
  ids: np.ndarray, is_predicted: np.ndarray, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns ids and weights of the words to predict; both are 0 elsewhere.

  Args:
    ids: integers [B, L], the ids of words.
    is_predicted: bool [B, L], True where a word is predicted.
    vocab_size: ids from this number on become the id of `<UNK>`.
  """
  ids = np.where(ids < vocab_size, ids, words.UNKNOWN_ID)
  ids = np.where(is_predicted, ids, 0).astype(np.int32)
  return ids, is_predicted.astype(np.float32)


def index_windows(
  corpus: Corpus, first_document: int, end_document: int, key: int, length: int
) -> np.ndarray:
  """Cuts the text of a range of documents into windows.

  This is a function for `Recipe.index`.

  Args:
    corpus: the documents.
    first_document: the first document of the range.
    end_document: the first document after the range.
    key: a key from `make_key`; each epoch has its own key, and cuts at other
      words.
    length: L.

  Returns:
    [N, 2] int64: the index in the corpus of each window's first word, and the
    index after its last word.
  """
  first_sentence, end_sentence = corpus.documents[
    [first_document, end_document]
  ]
  first_token, end_token = (
    int(corpus.sentences[sentence])
    for sentence in (first_sentence, end_sentence)
  )
  # The first window has a random number of words, so each epoch has other cuts.
  shift = int(hashing.randint(key, np.array(first_document), 0, length))
  cuts = np.arange(first_token + shift, end_token, length)
  cuts = np.unique(np.concatenate([[first_token], cuts, [end_token]]))
  return np.stack([cuts[:-1], cuts[1:]], -1)


def build_windows(
  corpus: Corpus,
  windows: np.ndarray,
  numbers: np.ndarray,
  key: int,
  length: int,
  vocab_size: int,
) -> Batch:
  """Makes a batch of windows that both directions read.

  This is a function for `Recipe.build`. The words directly before and after a
  window are also predicted. No word is predicted from a word of a different
  sentence.

  Args:
    corpus: the documents.
    windows: [B, 2] windows from `index_windows`.
    numbers: not used, because no random number is drawn.
    key: not used.
    length: L.
    vocab_size: the number of words that can be predicted.
  """
  del numbers, key
  positions = windows[:, :1] + np.arange(length)
  is_word = positions < windows[:, 1:]
  last_position = corpus.num_tokens - 1
  ids = corpus.tokens[np.minimum(positions, last_position)].astype(np.int64)
  next_words = corpus.tokens[np.minimum(positions + 1, last_position)].astype(
    np.int64
  )
  previous_words = corpus.tokens[
    np.clip(positions - 1, 0, last_position)
  ].astype(np.int64)
  next_targets = _make_targets(
    next_words, is_word & (ids != words.END_ID), vocab_size
  )
  previous_targets = _make_targets(
    previous_words, is_word & (ids != words.BEGIN_ID), vocab_size
  )
  chars = char_ids(corpus, ids)
  chars[~is_word] = 0
  arrays = (chars, is_word.astype(np.int32), *next_targets, *previous_targets)
  return dict(zip(BATCH_KEYS, arrays, strict=True))


def count_links(corpus: Corpus) -> int:
  """Counts links: a link is two neighbouring words in one sentence.

  Each direction predicts one word of each link.
  """
  return corpus.num_tokens - (len(corpus.sentences) - 1)


def index_links(
  corpus: Corpus, first_document: int, end_document: int, key: int, length: int
) -> np.ndarray:
  """Cuts a range of documents into whole windows of links.

  This is a function for `Recipe.index`. It is used for held-out documents: both
  directions read the same windows. Links at the end of the range that do not
  fill a window are left out. The arguments are those of `index_windows`, but
  `key` is not used.

  Returns:
    [N, 2] int64: for each window, the first link that the forward direction
    reads, and the first link that the backward direction reads. The two links
    are equal here, but not in stateful streams.
  """
  del key
  first_sentence, end_sentence = corpus.documents[
    [first_document, end_document]
  ]
  # A sentence of n words has n - 1 links, so the first link of sentence s is
  # `corpus.sentences[s]` - s.
  first_link, end_link = (
    int(corpus.sentences[sentence] - sentence)
    for sentence in (first_sentence, end_sentence)
  )
  starts = np.arange(first_link, end_link - length + 1, length)
  return np.stack([starts, starts], -1)


def _left_words(corpus: Corpus, links: np.ndarray, length: int) -> np.ndarray:
  """Finds the left word of each link in rows of L links.

  A sentence of n words has n - 1 links, so the first link of sentence s is
  `corpus.sentences[s]` - s. A binary search finds the sentence of a link.

  Args:
    corpus: the documents.
    links: [B] the first link of each row.
    length: L.

  Returns:
    [B, L] int64 positions in the corpus.
  """
  low = np.zeros_like(links)
  high = np.full_like(links, len(corpus.sentences) - 1)
  while (high - low > 1).any():
    middle = (low + high) // 2
    is_later = corpus.sentences[middle] - middle > links
    high = np.where(is_later, middle, high)
    low = np.where(is_later, low, middle)
  # Every token but `</S>` is the left word of a link. The shortest sentence has
  # three tokens, so at most every third token is `</S>`. So 2 L tokens hold at
  # least L links.
  positions = (links + low)[:, None] + np.arange(2 * length)
  tokens = corpus.tokens[np.minimum(positions, corpus.num_tokens - 1)]
  # A stable sort puts every `</S>` last and leaves the other words in order.
  places = np.argsort(tokens == words.END_ID, axis=1, kind="stable")
  places_without_end = places[:, :length]
  return np.take_along_axis(positions, places_without_end, 1)


def build_links(
  corpus: Corpus,
  windows: np.ndarray,
  numbers: np.ndarray,
  key: int,
  length: int,
  vocab_size: int,
) -> Batch:
  """Makes a batch of windows of L links for each direction.

  This is a function for `Recipe.build`. A link is two neighbouring words in a
  sentence, see `count_links`. The forward direction reads the left word and
  predicts the right word. The backward direction reads the right word and
  predicts the left word. So the forward direction never reads `</S>`, and the
  backward direction never reads `<S>`, as published. For both directions, a row
  has words in the order of the text.

  Args:
    corpus: the documents.
    windows: [B, 2] int64: the first link that the forward direction reads, and
      the first link that the backward direction reads.
    numbers: not used, because no random number is drawn.
    key: not used.
    length: L.
    vocab_size: the number of words that can be predicted.
  """
  del numbers, key
  forward_left, backward_left = (
    _left_words(corpus, windows[:, direction], length) for direction in (0, 1)
  )
  tokens = corpus.tokens
  is_predicted = np.ones(forward_left.shape, bool)
  arrays = (
    char_ids(corpus, tokens[forward_left].astype(np.int64)),
    is_predicted.astype(np.int32),
    *_make_targets(
      tokens[forward_left + 1].astype(np.int64), is_predicted, vocab_size
    ),
    *_make_targets(
      tokens[backward_left].astype(np.int64), is_predicted, vocab_size
    ),
  )
  batch = dict(zip(BATCH_KEYS, arrays, strict=True))
  back_char_ids = char_ids(corpus, tokens[backward_left + 1].astype(np.int64))
  return batch | {"back_char_ids": back_char_ids}
