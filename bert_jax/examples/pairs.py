"""Sentence pairs for next-sentence and sentence-order prediction, vectorised.

`create_instances_from_document` and `truncate_seq_pair` of google-research's
bert/create_pretraining_data.py, with one deviation: the random document is
drawn from the *other* documents. (The program tries ten times and may end with
the document itself, so that a true continuation can be labelled random.)
ALBERT's pairs are cut in the same way (google-research/albert).

An epoch is first cut into chunks (`index_chunks`, cheap, no token is read);
which tokens a batch of chunks stands for is settled later (`resolve`).
"""

from typing import NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.rows import EXAMPLE
from bert_jax.messages import UserError

# Consecutive sentences of one document: `first` of them make segment A, the
# others segment B, unless B comes from a random other document.
CHUNK = np.dtype(
  [
    ("sentence", np.int64),  # number of the first sentence, in the corpus
    ("document", np.uint32),
    ("first", np.uint32),
    ("count", np.uint32),
    ("target", np.uint16),  # length in tokens that the pair aims at
    ("random", np.bool_),
    ("swapped", np.bool_),  # segment B comes first
  ],
  align=True,
)


class Spans(NamedTuple):
  """Where the segments of a batch lie in the corpus, [B] int64 each."""

  a_start: np.ndarray
  a_length: np.ndarray
  b_start: np.ndarray
  b_length: np.ndarray


def check_pairs(corpus: Corpus) -> None:
  """Raises ValueError if there is no other document to draw from."""
  if corpus.num_documents < 2:
    raise UserError(
      f"next-sentence pairs need at least 2 documents, the corpus has"
      f" {corpus.num_documents}; a random next sentence must come from another"
      " document. Separate documents by blank lines, or add text."
    )


def _below(draws: np.ndarray, high: np.ndarray | int) -> np.ndarray:
  """Maps the low 32 bits of uint64 `draws` to int64 in [0, high)."""
  low = draws & np.uint64(0xFFFFFFFF)
  return (low * np.asarray(high).astype(np.uint64) >> np.uint64(32)).astype(
    np.int64
  )


def walk(following: np.ndarray) -> np.ndarray:
  """Numbers of the elements that one passes from 0 on, going by the links."""
  links, passed, i = following.tolist(), [], 0
  while i < len(links):
    passed.append(i)
    i = links[i]
  return np.array(passed, np.int64)


def index_chunks(
  corpus: Corpus,
  first_document: int,
  last_document: int,
  key: int,
  *,
  max_tokens: int,
  short_probability: float = 0.1,
  split_single: bool = False,
  order: bool = False,
) -> np.ndarray:
  """Cuts the documents [first_document, last_document) into chunks.

  Per document, the target length is `max_tokens`, or with `short_probability`
  uniform in [2, max_tokens], drawn once, as in the program. Sentences
  accumulate until the target is reached or the document ends; A takes a uniform
  number of them, all but one at most; the next segment is random with
  probability 1/2, and always if there is one sentence only. The sentences that
  a random pair did not use start the next chunk.

  The draws belong to the sentence a chunk starts with. Each sentence starts one
  chunk at most, so they are as independent as draws in sequence, and what would
  follow each sentence can be computed for all of them at once. What remains is
  to walk from chunk to chunk: a list look-up each, whatever the documents'
  sizes.

  Args:
    corpus: the documents.
    first_document, last_document: the range.
    key: from `make_key`; another key (epoch) gives other chunks.
    max_tokens: row length without special tokens.
    short_probability: 0.1 in the program's flags.
    split_single: if a chunk of one sentence may be a pair from one document
      too, to be split inside; if not it is always random, as published.
    order: the second segment is the following one, and the two are swapped with
      probability 1/2 (ALBERT); a chunk that must be split and is a single token
      is left out.

  Returns:
    `CHUNK` array in corpus order.
  """
  documents = np.asarray(corpus.documents[first_document : last_document + 1])
  begin, end = int(documents[0]), int(documents[-1])
  offsets = np.asarray(corpus.sentences[begin : end + 1])
  sentence = np.arange(end - begin)
  # From here on, one value for each sentence.
  document = np.repeat(np.arange(len(documents) - 1), np.diff(documents))

  draws = hashing.bits(
    hashing.make_key(key, "documents"), np.arange(first_document, last_document)
  )
  short = (draws >> np.uint64(32)) * 2.0**-32 < short_probability
  target = np.where(short, 2 + _below(draws, max_tokens - 1), max_tokens)

  stop = np.searchsorted(offsets, offsets[:-1] + target[document])
  stop = np.minimum(stop, (documents[1:] - begin)[document])
  count = stop - sentence
  draws = hashing.bits(
    hashing.make_key(key, "sentences"), np.arange(begin, end)
  )
  single = count == 1
  if split_single:
    single &= np.diff(offsets) == 1
  coin = draws >> np.uint64(63) == 1
  is_random = single if order else coin | single
  first = 1 + _below(draws, np.maximum(count - 1, 1))

  starts = walk(sentence + np.where(is_random, first, count))
  chunks = np.empty(len(starts), CHUNK)
  chunks["sentence"] = starts + begin
  chunks["document"] = document[starts] + first_document
  chunks["first"] = first[starts]
  chunks["count"] = count[starts]
  chunks["target"] = target[document[starts]]
  chunks["random"] = is_random[starts]
  chunks["swapped"] = (order & coin & ~is_random)[starts]
  if order and split_single:
    return chunks[~chunks["random"]]
  return chunks


def locate(
  corpus: Corpus, chunks: np.ndarray, positions: np.ndarray, key: int
) -> Spans:
  """Finds segments A and B of each chunk, not yet truncated.

  Args:
    corpus: the documents, two at least.
    chunks: [B] of `CHUNK`.
    positions: [B] uint64 global numbers of the examples.
    key: from `make_key`, for the random documents and the splits.
  """
  sentences = np.asarray(corpus.sentences)
  documents = np.asarray(corpus.documents)
  sentence = chunks["sentence"]
  a_start = sentences[sentence]
  a_stop = sentences[sentence + chunks["first"]]
  b_stop = sentences[sentence + chunks["count"]]
  inside = (chunks["count"] == 1) & ~chunks["random"]
  if inside.any():
    cuts = np.maximum(b_stop - a_start - 1, 1)
    cut = a_start + 1 + hashing.randint(key, positions, 0, cuts)
    a_stop = np.where(inside, cut, a_stop)
  a_length = a_stop - a_start

  b_start, b_length = a_stop.copy(), b_stop - a_stop
  random = np.flatnonzero(chunks["random"])
  if len(random):
    others = corpus.num_documents - 1
    numbers = positions[random]
    other = hashing.randint(key, numbers, 1, others)
    other += other >= chunks["document"][random]
    first, last = documents[other], documents[other + 1]
    start = first + hashing.randint(key, numbers, 2, last - first)
    start_token = sentences[start]
    # One sentence at least, even if A alone reaches the target.
    wanted = np.maximum(chunks["target"] - a_length, 1)[random]
    stop = np.searchsorted(sentences, start_token + wanted)
    b_start[random] = start_token
    b_length[random] = sentences[np.minimum(stop, last)] - start_token
  swapped = chunks["swapped"]
  return Spans(
    np.where(swapped, b_start, a_start),
    np.where(swapped, b_length, a_length),
    np.where(swapped, a_start, b_start),
    np.where(swapped, a_length, b_length),
  )


def truncate(
  spans: Spans, positions: np.ndarray, key: int, max_tokens: int
) -> Spans:
  """Shortens pairs to `max_tokens`, from the longer, at front or back.

  The program removes tokens one by one from the longer segment (from B if they
  are equal), each from the front or the back with equal chance. Here the final
  lengths are in closed form, and a segment that loses t tokens loses
  Binomial(t, 1/2) of them at the front.
  """
  a_start, a, b_start, b = spans
  a_kept = np.minimum(a, np.maximum(max_tokens - b, (max_tokens + 1) // 2))
  b_kept = np.minimum(b, np.maximum(max_tokens - a, max_tokens // 2))
  fronts = hashing.half_binomial(
    key,
    np.concatenate([positions, positions]) * np.uint64(2)
    + np.repeat(np.arange(2, dtype=np.uint64), len(positions)),
    np.concatenate([a - a_kept, b - b_kept]),
  )
  a_front, b_front = np.split(fronts, 2)
  return Spans(a_start + a_front, a_kept, b_start + b_front, b_kept)


def resolve(
  corpus: Corpus,
  chunks: np.ndarray,
  positions: np.ndarray,
  key: int,
  *,
  max_tokens: int,
) -> np.ndarray:
  """Settles which tokens make each pair.

  Args:
    corpus: the documents.
    chunks: [N] of `CHUNK`.
    positions: [N] uint64 numbers of the examples.
    key: from `make_key`.
    max_tokens: row length without special tokens.

  Returns:
    [N] of `EXAMPLE`, with label 1 if the second segment is random or the order
    is swapped.
  """
  spans = locate(corpus, chunks, positions, hashing.make_key(key, "pairs"))
  spans = truncate(
    spans, positions, hashing.make_key(key, "truncation"), max_tokens
  )
  examples = np.zeros(len(chunks), EXAMPLE)
  for field, values in zip(
    ("start", "length", "second", "second_length"), spans, strict=True
  ):
    examples[field] = values
  examples["label"] = chunks["random"] | chunks["swapped"]
  return examples
