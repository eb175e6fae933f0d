"""Makes pairs for next-sentence and sentence-order prediction, vectorised.

The functions follow `create_instances_from_document` and `truncate_seq_pair` of
google-research's bert/create_pretraining_data.py, with one deviation: the
random document is never the document of the pair. (The program tries ten times,
and may end with the document of the pair, so that a true continuation can be
labelled random.) ALBERT's pairs are cut like BERT's (google-research/albert).

`index_chunks` first cuts an epoch into chunks. This is cheap, because it reads
no tokens. `find_texts` later finds the tokens of a batch of chunks.
"""

from typing import NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples.rows import SEQUENCE_DTYPE
from bert_jax.messages import UserError

# A chunk: consecutive sentences of one document, from which a pair is made.
CHUNK_DTYPE = np.dtype(
  [
    ("sentence", np.int64),  # the index in the corpus of the first sentence
    ("document", np.uint32),  # the index in the corpus of the document
    ("a_count", np.uint32),  # the number of sentences in segment A
    ("count", np.uint32),  # the number of sentences in the chunk
    ("target", np.uint16),  # the number of tokens that the chunk is to reach
    ("random", np.bool_),  # True if B is from a random document
    ("swapped", np.bool_),  # True if A and B are swapped: B comes first
  ],
  align=True,
)


class Segments(NamedTuple):
  """Holds the first tokens and the lengths of segments A and B, as int64."""

  a_start: np.ndarray
  a_length: np.ndarray
  b_start: np.ndarray
  b_length: np.ndarray


def check_pairs(corpus: Corpus) -> None:
  """Raises UserError if there is no second document to draw from."""
  if corpus.num_documents < 2:
    raise UserError(
      "next-sentence pairs need at least 2 documents, but the corpus has"
      f" {corpus.num_documents}; a random next sentence must come from another"
      " document. Separate documents by blank lines, or add text."
    )


def _draws_below(draws: np.ndarray, high: np.ndarray | int) -> np.ndarray:
  """Maps the low 32 bits of uint64 `draws` to int64 in [0, high)."""
  low = draws & np.uint64(0xFFFFFFFF)
  return (low * np.asarray(high).astype(np.uint64) >> np.uint64(32)).astype(
    np.int64
  )


def follow_links(following: np.ndarray) -> np.ndarray:
  """Follows links from element 0 until a link leads beyond the last element.

  Args:
    following: [N] integers: element i links to the element `following[i]`.

  Returns:
    int64, the indices of the elements that are passed, with element 0.
  """
  links, passed_indices, index = following.tolist(), [], 0
  while index < len(links):
    passed_indices.append(index)
    index = links[index]
  return np.array(passed_indices, np.int64)


def index_chunks(
  corpus: Corpus,
  first_document: int,
  end_document: int,
  key: int,
  *,
  max_tokens: int,
  short_probability: float = 0.1,
  splits_single_sentence: bool = False,
  predicts_order: bool = False,
) -> np.ndarray:
  """Cuts the documents [first_document, end_document) into chunks.

  Each document has a target length. As in the program, the target is drawn once
  for a document: with probability `short_probability` it is uniform in
  [2, max_tokens], else it is `max_tokens`. A chunk takes sentences until the
  target is reached or the document ends.
  Segment A takes a uniform number of the chunk's sentences, but leaves at least
  one for segment B if the chunk has several. Segment B is random with
  probability 1/2, and always if the chunk is one sentence; otherwise B is the
  rest of the chunk. If B is random, the sentences after A start the next chunk.
  `splits_single_sentence` and `predicts_order` change these rules.

  The draws belong to the first sentence of a chunk. Each sentence starts at
  most one chunk, so the draws of chunks are independent. The chunk that would
  start at each sentence can be computed for all sentences at once. Then
  `follow_links` goes from chunk to chunk, with one look-up for each chunk.

  Args:
    corpus: the documents.
    first_document: the first document of the range.
    end_document: the end of the range, which is not part of the range.
    key: a key from `make_key`; each epoch has its own key, and so its own
      chunks.
    max_tokens: the row length without special tokens.
    short_probability: the probability of a uniform target length; 0.1 in the
      program's flags.
    splits_single_sentence: True if a chunk of one sentence may be split inside
      the sentence, to make a pair from one document; False if B is then always
      random, as published.
    predicts_order: True if B is always the text after A, and the two are
      swapped with probability 1/2 (ALBERT). With `splits_single_sentence`, a
      chunk of a single token is then left out.

  Returns:
    `CHUNK_DTYPE` array in corpus order.
  """
  documents = np.asarray(corpus.documents[first_document : end_document + 1])
  first_sentence, end_sentence = int(documents[0]), int(documents[-1])
  sentence_offsets = np.asarray(
    corpus.sentences[first_sentence : end_sentence + 1]
  )
  sentence_indices = np.arange(end_sentence - first_sentence)
  # `chunk_stops` (the sentence after a chunk), `num_sentences` and
  # `num_a_sentences` have one value for each sentence: the value of the chunk
  # that would start with this sentence.
  document_of_sentence = np.repeat(
    np.arange(len(documents) - 1), np.diff(documents)
  )

  draws = hashing.bits(
    hashing.make_key(key, "documents"), np.arange(first_document, end_document)
  )
  is_short = (draws >> np.uint64(32)) * 2.0**-32 < short_probability
  target_lengths = np.where(
    is_short, 2 + _draws_below(draws, max_tokens - 1), max_tokens
  )

  chunk_stops = np.searchsorted(
    sentence_offsets,
    sentence_offsets[:-1] + target_lengths[document_of_sentence],
  )
  chunk_stops = np.minimum(
    chunk_stops, (documents[1:] - first_sentence)[document_of_sentence]
  )
  num_sentences = chunk_stops - sentence_indices
  draws = hashing.bits(
    hashing.make_key(key, "sentences"), np.arange(first_sentence, end_sentence)
  )
  # True if a chunk has no text for B, so that B must be random.
  lacks_b = num_sentences == 1
  if splits_single_sentence:
    lacks_b &= np.diff(sentence_offsets) == 1
  # A fair coin is tossed for each sentence.
  is_heads = draws >> np.uint64(63) == 1
  is_random = lacks_b if predicts_order else is_heads | lacks_b
  num_a_sentences = 1 + _draws_below(draws, np.maximum(num_sentences - 1, 1))

  starts = follow_links(
    sentence_indices + np.where(is_random, num_a_sentences, num_sentences)
  )
  chunks = np.empty(len(starts), CHUNK_DTYPE)
  chunks["sentence"] = starts + first_sentence
  chunks["document"] = document_of_sentence[starts] + first_document
  chunks["a_count"] = num_a_sentences[starts]
  chunks["count"] = num_sentences[starts]
  chunks["target"] = target_lengths[document_of_sentence[starts]]
  chunks["random"] = is_random[starts]
  chunks["swapped"] = (predicts_order & is_heads & ~is_random)[starts]
  if predicts_order and splits_single_sentence:
    return chunks[~chunks["random"]]
  return chunks


def find_segments(
  corpus: Corpus, chunks: np.ndarray, numbers: np.ndarray, key: int
) -> Segments:
  """Finds segments A and B of each chunk, before truncation.

  Args:
    corpus: the documents, at least two.
    chunks: [B] of `CHUNK_DTYPE`.
    numbers: [B] uint64 global numbers of the examples.
    key: a key from `make_key`, for the random documents and the splits.
  """
  sentences = np.asarray(corpus.sentences)
  documents = np.asarray(corpus.documents)
  sentence = chunks["sentence"]
  a_start = sentences[sentence]
  a_stop = sentences[sentence + chunks["a_count"]]
  b_stop = sentences[sentence + chunks["count"]]
  is_split = (chunks["count"] == 1) & ~chunks["random"]
  if is_split.any():
    num_cuts = np.maximum(b_stop - a_start - 1, 1)
    cut = a_start + 1 + hashing.randint(key, numbers, 0, num_cuts)
    a_stop = np.where(is_split, cut, a_stop)
  a_length = a_stop - a_start

  b_start, b_length = a_stop.copy(), b_stop - a_stop
  random_indices = np.flatnonzero(chunks["random"])
  if len(random_indices):
    num_other_documents = corpus.num_documents - 1
    example_numbers = numbers[random_indices]
    random_document = hashing.randint(
      key, example_numbers, 1, num_other_documents
    )
    random_document += random_document >= chunks["document"][random_indices]
    first_sentence, end_sentence = (
      documents[random_document],
      documents[random_document + 1],
    )
    start_sentence = first_sentence + hashing.randint(
      key, example_numbers, 2, end_sentence - first_sentence
    )
    start_token = sentences[start_sentence]
    # B has at least one sentence, even if A alone reaches the target.
    max_length = np.maximum(chunks["target"] - a_length, 1)[random_indices]
    stop_sentence = np.searchsorted(sentences, start_token + max_length)
    b_start[random_indices] = start_token
    b_length[random_indices] = (
      sentences[np.minimum(stop_sentence, end_sentence)] - start_token
    )
  is_swapped = chunks["swapped"]
  return Segments(
    np.where(is_swapped, b_start, a_start),
    np.where(is_swapped, b_length, a_length),
    np.where(is_swapped, a_start, b_start),
    np.where(is_swapped, a_length, b_length),
  )


def truncate_pairs(
  segments: Segments, numbers: np.ndarray, key: int, max_tokens: int
) -> Segments:
  """Shortens pairs to `max_tokens`: the longer segment loses tokens.

  The program removes tokens one by one from the longer segment (from B if both
  are equally long), each with equal chance from the front or the back. Here the
  final lengths are computed in closed form. A segment that loses t tokens loses
  Binomial(t, 1/2) of them at the front.

  Args:
    segments: the pairs that `find_segments` returned.
    numbers: [B] uint64 global numbers of the examples.
    key: a key from `make_key`.
    max_tokens: the largest number of tokens in a pair.
  """
  a_start, a_length, b_start, b_length = segments
  a_final = np.minimum(
    a_length, np.maximum(max_tokens - b_length, (max_tokens + 1) // 2)
  )
  b_final = np.minimum(
    b_length, np.maximum(max_tokens - a_length, max_tokens // 2)
  )
  num_cut_at_front = hashing.half_binomial(
    key,
    np.concatenate([numbers, numbers]) * np.uint64(2)
    + np.repeat(np.arange(2, dtype=np.uint64), len(numbers)),
    np.concatenate([a_length - a_final, b_length - b_final]),
  )
  a_cut, b_cut = np.split(num_cut_at_front, 2)
  return Segments(a_start + a_cut, a_final, b_start + b_cut, b_final)


def find_texts(
  corpus: Corpus,
  chunks: np.ndarray,
  numbers: np.ndarray,
  key: int,
  *,
  max_tokens: int,
) -> np.ndarray:
  """Finds the texts of each pair; the function is an `assembly.FindTexts`.

  Args:
    corpus: the documents.
    chunks: [N] of `CHUNK_DTYPE`.
    numbers: [N] uint64 numbers of the examples.
    key: a key from `make_key`.
    max_tokens: the row length without special tokens.

  Returns:
    [N] of `SEQUENCE_DTYPE`, with label 1 if the second segment is random or the
    order is swapped.
  """
  segments = find_segments(
    corpus, chunks, numbers, hashing.make_key(key, "pairs")
  )
  segments = truncate_pairs(
    segments, numbers, hashing.make_key(key, "truncation"), max_tokens
  )
  sequences = np.zeros(len(chunks), SEQUENCE_DTYPE)
  for field, values in zip(
    ("start", "length", "second_start", "second_length"), segments, strict=True
  ):
    sequences[field] = values
  sequences["label"] = chunks["random"] | chunks["swapped"]
  return sequences
