"""Builders: from a corpus to batches, one for each pre-training objective.

A builder is a few pure numpy functions. `index` cuts an epoch of a range of
documents into examples; `build` turns any of them into a batch. Streams,
mixtures and seqio tasks know no more about an objective than this.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bert_jax.data import hashing, pairs
from bert_jax.data.corpus import Corpus, SpecialIds
from bert_jax.data.features import Batch, Features, select
from bert_jax.data.masking import (
  Masks,
  check_masks,
  check_words,
  mask_tokens,
  needs_words,
)


class Builder(NamedTuple):
  """What a stream needs to know about an objective.

  Attributes:
    features: key -> (shape of one row, dtype).
    check: (corpus); raises ValueError if it cannot serve the objective.
    index: (corpus, first document, last document, key) -> structured array,
      one element an example of this epoch.
    build: (corpus, [B] elements of the index, [B] uint64 global numbers of the
      examples, key) -> batch. The numbers and the key determine every draw.
  """

  features: Features
  check: Callable[[Corpus], None]
  index: Callable[[Corpus, int, int, int], np.ndarray]
  build: Callable[[Corpus, np.ndarray, np.ndarray, int], Batch]


def _check_options(length: int, **shares: float) -> None:
  """Raises ValueError, naming the option, its value and its range."""
  if not 5 <= length <= 2**15:
    raise ValueError(
      f"length is {length}; [CLS] A [SEP] B [SEP] needs 5 to 32,768."
    )
  for name, share in shares.items():
    if not 0 <= share <= 1:
      raise ValueError(f"{name} is {share}; it is a share, 0 to 1.")


def check(corpus: Corpus, masks: Masks) -> None:
  """Raises ValueError if a corpus cannot serve sentence pairs with masks."""
  pairs.check_pairs(corpus)
  check_words(corpus, masks)


def build_pairs(
  corpus: Corpus,
  chunks: np.ndarray,
  positions: np.ndarray,
  key: int,
  *,
  special: SpecialIds,
  vocab_size: int,
  length: int,
  masks: Masks,
) -> Batch:
  """Makes a batch of sentence pairs with masks; see `Builder.build`.

  Raises:
    ValueError: the corpus has ids beyond the vocabulary.
  """
  spans = pairs.locate(
    corpus, chunks, positions, hashing.make_key(key, "pairs")
  )
  spans = pairs.truncate(
    spans, positions, hashing.make_key(key, "truncation"), length - 3
  )
  batch, maskable, lengths = pairs.assemble(
    np.asarray(corpus.tokens), spans, special, length
  )
  highest = int(batch["input_ids"].max(initial=0))
  if highest >= vocab_size:
    raise ValueError(
      f"token id {highest} in the corpus, but the vocabulary has"
      f" {vocab_size} pieces; prepare the text with this vocabulary."
    )
  starts = None
  if needs_words(masks):
    starts = pairs.word_starts(np.asarray(corpus.word_starts), spans, length)
  batch |= mask_tokens(
    batch["input_ids"],
    maskable,
    lengths,
    positions,
    hashing.make_key(key, "masks"),
    masks,
    mask_id=special.mask,
    vocab_size=vocab_size,
    reserved=tuple({i for i in special if i is not None}),
    word_starts=starts,
  )
  batch["pair_labels"] = chunks["random"].astype(np.int32)[:, None]
  batch["cls_positions"] = np.zeros((len(chunks), 1), np.int32)
  batch["pair_weights"] = np.ones((len(chunks), 1), np.float32)
  return batch


def bert_pairs(
  special: SpecialIds,
  vocab_size: int,
  length: int = 128,
  max_predictions: int = 20,
  mask_rate: float = 0.15,
  short_probability: float = 0.1,
  random_share: str | float = "published",
  masking: str = "token",
  replacement: str = "bert",
  count: str = "round",
  repeat_positions: bool = False,
) -> Builder:
  """BERT's pre-training: masked tokens and next-sentence prediction.

  The defaults are those of google-research/bert's create_pretraining_data.py.

  Args:
    special: ids of the special tokens.
    vocab_size: number of pieces.
    length: L, tokens in a row, with [CLS] and two [SEP].
    max_predictions, mask_rate, masking, replacement, count, repeat_positions:
      see `Masks`.
    short_probability: share of documents cut into short rows.
    random_share: share of pairs whose second segment is random. "published":
      half, and every chunk that is a single sentence, so more than half in
      total. 0.5: half; a chunk that is a single sentence then makes a "next"
      pair by a split inside it, at a uniform place (if it is a single token, at
      a document's end, it stays random).

  Raises:
    ValueError: an option is out of its range.
  """
  _check_options(length, short_probability=short_probability)
  masks = check_masks(
    Masks(
      max_predictions,
      mask_rate,
      masking,
      replacement,
      count,
      repeat_positions,
    )
  )
  # On a command line it is a string.
  split_single = str(random_share) == "0.5"
  if random_share != "published" and not split_single:
    raise ValueError(
      f"random_share is {random_share!r}; choose 'published' or 0.5."
    )
  keys = (
    "input_ids segment_ids sequence_ids mlm_positions mlm_ids mlm_weights"
    " pair_labels cls_positions pair_weights"
  )
  keys += " span_positions" if masking == "span" else ""
  return Builder(
    select(keys.split(), {"L": length, "M": max_predictions, "S": 1}),
    functools.partial(check, masks=masks),
    functools.partial(
      pairs.index_chunks,
      max_tokens=length - 3,
      short_probability=short_probability,
      split_single=split_single,
    ),
    functools.partial(
      build_pairs,
      special=special,
      vocab_size=vocab_size,
      length=length,
      masks=masks,
    ),
  )


BUILDERS = {"bert_pairs": bert_pairs}
