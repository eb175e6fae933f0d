"""From examples to a batch: rows, packed or not, with masks and labels."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples import assembly_packing as packing
from bert_jax.examples import masking, rows
from bert_jax.examples.batch_keys import Batch
from bert_jax.text.vocabulary import SpecialIds

# (corpus, [N] units, [N] uint64 numbers, key) -> [N] of `rows.EXAMPLE`.
Settle = Callable[[Corpus, np.ndarray, np.ndarray, int], np.ndarray]


class Layout(NamedTuple):
  """What the rows of a builder look like.

  Attributes:
    special: ids of the special tokens.
    vocab_size: number of pieces.
    length: L, tokens in a row.
    masks: what is hidden; None for a language model, whose rows are bare text.
    pairs: of two texts, with a label.
    segments: the two texts are told apart.
    returning: sentences of the second text may return to the first.
    crossing: rows cross from document to document.
    max_sequences: S, sequences in a row; more than 1 packs.
  """

  special: SpecialIds
  vocab_size: int
  length: int
  masks: masking.Masks | None
  pairs: bool = False
  segments: bool = False
  returning: bool = False
  crossing: bool = False
  max_sequences: int = 1


def check_layout(layout: Layout) -> Layout:
  """Returns `layout`.

  Raises:
    ValueError: an option is out of its range; packed rows could not be filled,
      because their prediction slots end before their tokens.
  """
  shortest, row = 3, "<s> A </s>"
  if layout.masks is None:
    shortest, row = 2, "a language model"
  elif layout.segments:
    shortest, row = 5, "[CLS] A [SEP] B [SEP]"
  if not shortest <= layout.length <= 2**15:
    raise ValueError(
      f"length is {layout.length}; {row} needs {shortest} to 32,768."
    )
  if not 1 <= layout.max_sequences <= layout.length:
    raise ValueError(
      f"max_sequences is {layout.max_sequences}; 1 to length={layout.length}."
    )
  if layout.masks and layout.max_sequences > 1:
    full = round(layout.length * layout.masks.mask_rate)
    if layout.masks.max_predictions < full:
      raise ValueError(
        f"max_predictions is {layout.masks.max_predictions}, but packed rows of"
        f" length={layout.length} need {full}: sequences share them."
      )
  return layout


def keys(layout: Layout) -> list[str]:
  """Keys of the batch."""
  made = ["input_ids", "sequence_ids"]
  if layout.segments:
    made.append("segment_ids")
  if layout.max_sequences > 1:
    made.append("position_ids")
  if layout.masks is None:
    return [*made, "lm_ids", "lm_weights"]
  made += ["mlm_positions", "mlm_ids", "mlm_weights"]
  if layout.masks.masking == "span":
    made.append("span_positions")
  if layout.pairs:
    made += ["pair_labels", "cls_positions", "pair_weights"]
  return made


def sizes(layout: Layout) -> dict[str, int]:
  """Lengths of the axes of `features.FEATURES`."""
  slots = layout.masks.max_predictions if layout.masks else 0
  return {"L": layout.length, "M": slots, "S": layout.max_sequences}


def settled(
  corpus: Corpus, units: np.ndarray, numbers: np.ndarray, key: int
) -> np.ndarray:
  """Examples that are what they are already: a `Settle`."""
  return units


def index_packed(
  corpus: Corpus,
  first_document: int,
  last_document: int,
  key: int,
  *,
  layout: Layout,
  index: Callable[[Corpus, int, int, int], np.ndarray],
  settle: Settle,
) -> np.ndarray:
  """Plans the rows of a range of documents, as `Builder.index`.

  Args:
    corpus: the documents.
    first_document, last_document: the range.
    key: from `make_key`; another key (epoch) gives other rows.
    layout: of the rows.
    index: as `Builder.index`, of single examples.
    settle: what they are.

  Returns:
    [R, S] of `rows.EXAMPLE`.
  """
  units = index(corpus, first_document, last_document, key)
  # Of this range: the key alone would be that of any other.
  key = hashing.make_key(key, "range", first_document)
  numbers = np.arange(len(units), dtype=np.uint64)
  examples = settle(corpus, units, numbers, key)
  text = examples["length"].astype(np.int64) + examples["second_length"]
  lengths, demands = text, np.zeros_like(text)
  if layout.masks:
    lengths = text + 2 + (examples["second_length"] > 0)
    demands = masking.count_masks(lengths, text, layout.masks)
  return packing.pack(
    examples,
    lengths,
    demands,
    key,
    width=layout.length,
    slots=layout.masks.max_predictions if layout.masks else 0,
    places=layout.max_sequences,
  )


def build(
  corpus: Corpus,
  units: np.ndarray,
  positions: np.ndarray,
  key: int,
  *,
  layout: Layout,
  settle: Settle,
) -> Batch:
  """Makes a batch, as `Builder.build`.

  Args:
    corpus: the documents.
    units: [B] elements of the index; [B, S] packed examples.
    positions: [B] uint64 numbers of the rows.
    key: from `make_key`.
    layout: of the rows.
    settle: what the units are.

  Raises:
    ValueError: the corpus has ids beyond the vocabulary.
  """
  examples = settle(corpus, units, positions, key)
  examples = examples.reshape(len(units), -1)
  # A sequence of a row has a number of its own, a row alone that of the row.
  places = examples.shape[1]
  numbers = positions[:, None] * np.uint64(places)
  numbers = numbers + np.arange(places, dtype=np.uint64)
  return assemble(corpus, examples, numbers, key, layout)


def assemble(
  corpus: Corpus,
  examples: np.ndarray,
  numbers: np.ndarray,
  key: int,
  layout: Layout,
) -> Batch:
  """Makes a batch of rows with these sequences.

  Args:
    corpus: the documents.
    examples: [B, S] of `rows.EXAMPLE`.
    numbers: [B, S] uint64; with `key` they determine all draws of a sequence.
    key: from `make_key`.
    layout: of the rows.

  Raises:
    ValueError: the corpus has ids beyond the vocabulary.
  """
  special, tokens = layout.special, np.asarray(corpus.tokens)
  if layout.masks is None:
    parts = rows.bare_parts(examples)
  elif layout.crossing:
    parts = rows.separated_parts(corpus, examples, special)
  elif layout.returning:
    parts = rows.returning_parts(corpus, examples, special)
  else:
    parts = rows.pair_parts(examples, special)
  places = examples.shape[1]
  laid = rows.lay_out(tokens, parts, places, layout.length, special.pad or 0)
  _check_ids(laid.ids, layout.vocab_size)
  batch = {"input_ids": laid.ids, "sequence_ids": laid.sequences}
  if layout.segments:
    batch["segment_ids"] = laid.segments
  if places > 1:
    batch["position_ids"] = laid.positions
  if layout.masks is None:
    following = tokens.take(laid.index + 1, mode="clip").astype(np.int32)
    batch["lm_ids"] = np.where(laid.text, following, 0).astype(np.int32)
    _check_ids(batch["lm_ids"], layout.vocab_size)
    batch["lm_weights"] = laid.text.astype(np.float32)
    return batch
  batch |= _hide(corpus, laid, numbers, key, layout)
  if layout.pairs:
    used = laid.lengths > 0
    begin = np.cumsum(laid.lengths, axis=1) - laid.lengths
    batch["pair_labels"] = examples["label"].astype(np.int32)
    batch["cls_positions"] = np.where(used, begin, 0).astype(np.int32)
    batch["pair_weights"] = used.astype(np.float32)
  return batch


def _check_ids(ids: np.ndarray, vocab_size: int) -> None:
  highest = int(ids.max(initial=0))
  if highest >= vocab_size:
    raise ValueError(
      f"token id {highest} in the corpus, but the vocabulary has"
      f" {vocab_size} pieces; prepare the text with this vocabulary."
    )


def _hide(
  corpus: Corpus,
  laid: rows.Rows,
  numbers: np.ndarray,
  key: int,
  layout: Layout,
) -> Batch:
  starts, maskable = None, laid.text
  if masking.needs_words(layout.masks):
    starts = rows.word_starts(np.asarray(corpus.word_starts), laid.index)
  if corpus.unmasked:
    maskable = maskable & ~np.isin(laid.ids, corpus.unmasked)
  reserved = {i for i in layout.special if i is not None}
  return masking.mask_tokens(
    laid.ids,
    maskable,
    laid.lengths,
    numbers,
    hashing.make_key(key, "masks"),
    layout.masks,
    mask_id=layout.special.mask,
    vocab_size=layout.vocab_size,
    reserved=tuple(reserved.union(corpus.unmasked)),
    word_starts=starts,
    weights=masking.weigh(laid.ids, corpus.unigrams, layout.masks),
    unigrams=corpus.unigrams,
  )
