"""The builders by name: each published way to make rows from documents."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from bert_jax.examples import assembly, pairs, sentences
from bert_jax.examples import recipes_builder as builder
from bert_jax.examples.elmo_windows import elmo
from bert_jax.examples.masking import Masks, check_masks
from bert_jax.examples.recipes_builder import Builder
from bert_jax.messages import nearest
from bert_jax.text.vocabulary import SpecialIds


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
  static_masks: int = 0,
  max_sequences: int = 1,
) -> Builder:
  """BERT's pre-training: masked tokens and next-sentence prediction.

  The defaults are those of google-research/bert's create_pretraining_data.py.

  Args:
    special: ids of the special tokens.
    vocab_size: number of pieces.
    length: L, tokens in a row, with [CLS] and two [SEP].
    max_predictions, mask_rate, masking, replacement, count, repeat_positions:
      see `masking.Masks`.
    short_probability: share of documents cut into short rows.
    random_share: share of pairs whose second segment is random. "published":
      half, and every chunk that is a single sentence, so more than half in
      total. 0.5: half; a chunk that is a single sentence then makes a "next"
      pair by a split inside it, at a uniform place (if it is a single token, at
      a document's end, it stays random).
    static_masks: the number of copies with fixed pairs and masks that the
      epochs go through (10 in the released program, dupe_factor); 0 for new
      ones in every epoch.
    max_sequences: S, the most pairs in a row; 1 for a pair a row, more packs.

  Raises:
    ValueError: an option is out of its range.
  """
  builder.check_shares(short_probability=short_probability)
  # On a command line it is a string.
  split_single = str(random_share) == "0.5"
  if random_share != "published" and not split_single:
    raise ValueError(
      f"random_share is {random_share!r}; choose 'published' or 0.5."
    )
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
  layout = assembly.Layout(
    special,
    vocab_size,
    length,
    masks,
    pairs=True,
    segments=True,
    max_sequences=max_sequences,
  )
  index = functools.partial(
    pairs.index_chunks,
    max_tokens=length - 3,
    short_probability=short_probability,
    split_single=split_single,
  )
  settle = functools.partial(pairs.resolve, max_tokens=length - 3)
  return builder.make(layout, index, static_masks, settle, needs_two=True)


def albert_pairs(
  special: SpecialIds,
  vocab_size: int,
  length: int = 512,
  max_predictions: int = 77,
  mask_rate: float = 0.15,
  short_probability: float = 0.1,
  single: str = "split",
  masking: str = "ngram",
  replacement: str = "bert",
  count: str = "round",
  static_masks: int = 0,
  max_sequences: int = 1,
) -> Builder:
  """ALBERT's pre-training: masked n-grams and sentence-order prediction.

  google-research/albert create_pretraining_data.py; its flag for
  `max_predictions` is 20, at length 512 too, which hides 4%: by default there
  is room for the 15% of the paper.

  Args:
    special, vocab_size, length: as in `bert_pairs`.
    max_predictions, mask_rate, masking, replacement, count: see
      `masking.Masks`.
    short_probability: share of documents cut into short rows.
    single: what a chunk of one sentence becomes. "split": the sentence in two,
      at a uniform place, so that both segments are of one document always (a
      single token makes no pair). "random_document": its second segment is
      random, with the label of swapped ones, as released.
    static_masks: as in `bert_pairs` (dupe_factor 40 as released).
    max_sequences: S, the most pairs in a row; 1 for a pair a row, more packs.

  Raises:
    ValueError: an option is out of its range.
  """
  builder.check_shares(short_probability=short_probability)
  singles = ("split", "random_document")
  if single not in singles:
    raise ValueError(f"single is {single!r}{nearest(str(single), singles)}")
  masks = check_masks(
    Masks(max_predictions, mask_rate, masking, replacement, count)
  )
  layout = assembly.Layout(
    special,
    vocab_size,
    length,
    masks,
    pairs=True,
    segments=True,
    max_sequences=max_sequences,
  )
  index = functools.partial(
    pairs.index_chunks,
    max_tokens=length - 3,
    short_probability=short_probability,
    split_single=single == "split",
    order=True,
  )
  settle = functools.partial(pairs.resolve, max_tokens=length - 3)
  two = single != "split"
  return builder.make(layout, index, static_masks, settle, needs_two=two)


def electra_segments(
  special: SpecialIds,
  vocab_size: int,
  length: int = 128,
  max_predictions: int = 19,
  mask_rate: float = 0.15,
  short_probability: float = 0.05,
  masking: str = "token",
  replacement: str = "electra",
  count: str = "round_single",
  repeat_positions: bool = False,
  static_masks: int = 0,
  max_sequences: int = 1,
) -> Builder:
  """ELECTRA's rows: one or two segments of one document, without a label.

  google-research/electra build_pretraining_dataset.py; `max_predictions` is
  (mask_rate + 0.005) * length in its configure_pretraining.py.

  Args:
    special, vocab_size, length: as in `bert_pairs`.
    max_predictions, mask_rate, masking, replacement, count, repeat_positions:
      see `masking.Masks`.
    short_probability: share of short rows.
    static_masks: as in `bert_pairs`.
    max_sequences: S, the most sequences in a row; 1 for one a row, more packs.

  Raises:
    ValueError: an option is out of its range.
  """
  builder.check_shares(short_probability=short_probability)
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
  layout = assembly.Layout(
    special,
    vocab_size,
    length,
    masks,
    segments=True,
    returning=True,
    max_sequences=max_sequences,
  )
  index = functools.partial(
    sentences.index_segments,
    length=length,
    short_probability=short_probability,
  )
  return builder.make(layout, index, static_masks)


def full_sentences(
  special: SpecialIds,
  vocab_size: int,
  length: int = 512,
  max_predictions: int = 80,
  mask_rate: float = 0.15,
  masking: str = "token",
  replacement: str = "roberta",
  count: str = "stochastic",
  smoothing: float = 0.0,
  static_masks: int = 0,
  max_sequences: int = 1,
) -> Builder:
  """RoBERTa's FULL-SENTENCES: <s> sentences </s>, across documents.

  Where a document ends within a row there is one </s> more, and tokens attend
  across it (Liu et al. 2019, section 4.2; fairseq "complete"). Special tokens
  are never hidden, where fairseq's masks take no notice of what a token is.

  Args:
    special, vocab_size: as in `bert_pairs`.
    length: L, tokens in a row, with <s> and </s>.
    max_predictions, mask_rate, masking, replacement, count, smoothing: see
      `masking.Masks`.
    static_masks: as in `bert_pairs` (10 in the paper, section 4.1).
    max_sequences: 1, one text a row: it is full already.

  Raises:
    ValueError: an option is out of its range.
  """
  if max_sequences > 1:
    raise ValueError(
      f"max_sequences is {max_sequences}, but full_sentences fills its rows"
      " already; choose builder doc_sentences, whose rows can be packed, or"
      " max_sequences=1."
    )
  masks = check_masks(
    Masks(
      max_predictions,
      mask_rate,
      masking,
      replacement,
      count,
      smoothing=smoothing,
    )
  )
  layout = assembly.Layout(
    special,
    vocab_size,
    length,
    masks,
    crossing=True,
    max_sequences=max_sequences,
  )
  index = functools.partial(
    sentences.index_sentences, room=length - 2, cross=True
  )
  return builder.make(layout, index, static_masks)


def doc_sentences(
  special: SpecialIds,
  vocab_size: int,
  length: int = 512,
  max_predictions: int = 80,
  mask_rate: float = 0.15,
  masking: str = "token",
  replacement: str = "roberta",
  count: str = "stochastic",
  smoothing: float = 0.0,
  static_masks: int = 0,
  max_sequences: int = 1,
) -> Builder:
  """RoBERTa's DOC-SENTENCES: <s> sentences </s>, of one document.

  With masking="span", replacement="unigram" and count="ceil" it makes
  SpanBERT's rows (Joshi et al. 2020; no_nsp_span_bert_dataset.py of
  facebookresearch/SpanBERT).

  Args:
    special, vocab_size, length: as in `full_sentences`.
    max_predictions, mask_rate, masking, replacement, count, smoothing: see
      `masking.Masks`.
    static_masks: as in `bert_pairs`.
    max_sequences: S, the most sequences in a row; 1 for one a row, more packs.

  Raises:
    ValueError: an option is out of its range.
  """
  masks = check_masks(
    Masks(
      max_predictions,
      mask_rate,
      masking,
      replacement,
      count,
      smoothing=smoothing,
    )
  )
  layout = assembly.Layout(
    special, vocab_size, length, masks, max_sequences=max_sequences
  )
  index = functools.partial(
    sentences.index_sentences, room=length - 2, cross=False
  )
  return builder.make(layout, index, static_masks)


def lm(
  special: SpecialIds,
  vocab_size: int,
  length: int = 512,
  max_sequences: int = 1,
) -> Builder:
  """GPT-1's rows: contiguous tokens of one document and what follows each.

  Args:
    special: not needed; padding has id 0 if there is no special one.
    vocab_size: number of pieces.
    length: L, tokens in a row.
    max_sequences: S, the most sequences in a row; 1 for one a row, more packs.

  Raises:
    ValueError: an option is out of its range.
  """
  layout = assembly.Layout(
    special, vocab_size, length, None, max_sequences=max_sequences
  )
  index = functools.partial(sentences.index_tokens, length=length)
  return builder.make(layout, index)


BUILDERS: dict[str, Callable[..., Builder]] = {
  "bert_pairs": bert_pairs,
  "albert_pairs": albert_pairs,
  "electra_segments": electra_segments,
  "full_sentences": full_sentences,
  "doc_sentences": doc_sentences,
  "lm": lm,
  "elmo": elmo,
}


def shortfall(name: str, options: dict[str, Any]) -> str | None:
  """Says that full rows have fewer prediction slots than `mask_rate` asks for.

  As ALBERT's released data have; None if there are enough.

  Args:
    name: a key of `BUILDERS`.
    options: of the builder, and others, which are not looked at.
  """
  known = inspect.signature(BUILDERS[name]).parameters
  if "max_predictions" not in known:
    return None
  length, slots, rate = (
    options.get(option, known[option].default)
    for option in ("length", "max_predictions", "mask_rate")
  )
  if slots >= round(length * rate):
    return None
  return (
    f"max_predictions {slots} hides at most {slots / length:.1%} of a full row"
    f" of {length}, not mask_rate's {100 * rate:g}%"
  )
