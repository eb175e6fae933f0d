"""Masked-LM predictions, as published, a batch at a time.

Devlin et al. 2019, section 3.1, and `create_masked_lm_predictions` of
google-research/bert's create_pretraining_data.py; the rules of the other
families are those of their own programs, see `Masks` and `masked_units.KINDS`.
"""

import functools
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples import masked_units
from bert_jax.messages import UserError, nearest

# Shares of the chosen tokens that become [MASK], and that stay; the rest become
# a random id. ELECTRA: google-research/electra pretrain/pretrain_helpers.py.
REPLACEMENTS = {
  "bert": (0.8, 0.1),
  "roberta": (0.8, 0.1),
  "electra": (0.85, 0.15),
  "other": (0.8, 0.1),
  "unigram": (0.8, 0.1),
}
COUNTS = ("round", "round_single", "stochastic", "ceil", "ceil_all")


class Masks(NamedTuple):
  """What is hidden, and how.

  Attributes:
    max_predictions: M, prediction slots in a row (20 at length 128: flag
      default of create_pretraining_data.py).
    mask_rate: share of a sequence's tokens (0.15 in the papers).
    masking: a name in `masked_units.KINDS`.
    replacement: "bert": 80% [MASK], 10% a random id of the whole vocabulary,
      10% unchanged; "roberta": the same, but no special token (fairseq,
      mask_tokens_dataset.py); "electra": 85% [MASK], 15% unchanged. A random id
      may equal the original, except with "other": as "bert", but another id;
      "unigram": as "bert", but a random id is drawn as often as it occurs in
      the training text (SpanBERT, data/masking.py).
    count: of n tokens, special ones included, "round": round(rate * n), at
      least 1 (BERT, ALBERT); "round_single": the same with a product of single
      precision, which is one more at 190, 350 and 390 tokens with a rate of
      0.15 (ELECTRA, pretrain/pretrain_helpers.py); "stochastic": the integer
      part of rate * n + U(0, 1) (fairseq); "ceil": rate * n without special
      tokens, rounded up (SpanBERT, data/masking.py); "ceil_all": rate * n
      rounded up (DistilBERT, whose distiller.py counts over the batch that a
      device has). Rounded up is the product with the decimal as written:
      0.07 * 100 is 7.
    repeat_positions: draw positions with replacement, so that one may have
      several predictions (ELECTRA as released).
    smoothing: s: a token is chosen with a weight of count**-s, of how often its
      piece occurs in training, at least 1; 0 for equal chances (0.7 in
      DistilBERT's train.py, --mlm_smoothing).
  """

  max_predictions: int = 20
  mask_rate: float = 0.15
  masking: str = "token"
  replacement: str = "bert"
  count: str = "round"
  repeat_positions: bool = False
  smoothing: float = 0.0


def check_masks(masks: Masks) -> Masks:
  """Returns `masks`.

  Raises:
    ValueError: an option is out of its range, or two do not go together.
  """
  if masks.max_predictions < 1:
    raise UserError(f"max_predictions is {masks.max_predictions}; at least 1.")
  if masks.mask_rate == 0:
    raise UserError("mask_rate is 0; there would be nothing to predict.")
  for name, choices in (
    ("masking", masked_units.KINDS),
    ("replacement", REPLACEMENTS),
    ("count", COUNTS),
  ):
    value = getattr(masks, name)
    if value not in choices:
      raise UserError(f"{name} is {value!r}{nearest(str(value), choices)}")
  if not 0 <= masks.mask_rate <= 1:
    raise UserError(f"mask_rate is {masks.mask_rate}; it is a share, 0 to 1.")
  plain = masks.masking == "token" and masks.replacement == "electra"
  if masks.repeat_positions and not plain:
    raise UserError(
      "repeat_positions=True draws single tokens that are masked or kept: it"
      f" needs masking='token' and replacement='electra', not {masks.masking!r}"
      f" and {masks.replacement!r}."
    )
  if masks.smoothing < 0:
    raise UserError(f"smoothing is {masks.smoothing}; it must be at least 0.")
  if masks.smoothing and (masks.masking != "token" or masks.repeat_positions):
    raise UserError(
      f"smoothing={masks.smoothing} chooses single tokens by their frequency:"
      f" it needs masking='token', not {masks.masking!r}, and no"
      " repeat_positions; set smoothing=0 for equal chances."
    )
  return masks


def needs_words(masks: Masks) -> bool:
  return masked_units.KINDS[masks.masking] is not None


def check_corpus(corpus: Corpus, masks: Masks) -> None:
  """Raises ValueError if a corpus does not know what the masks go by."""
  if masks.smoothing and corpus.unigrams is None:
    raise UserError(
      f"smoothing={masks.smoothing} needs to know how often each piece occurs;"
      " prepare the text, or choose smoothing=0."
    )
  if masks.replacement == "unigram" and corpus.unigrams is None:
    raise UserError(
      "replacement='unigram' needs to know how often each piece occurs; prepare"
      " the text, or choose replacement='bert'."
    )
  # Beyond it 32-bit times overflow, and the first tokens of a row are chosen.
  most = corpus.unigrams.max() if masks.smoothing else 0
  if masks.smoothing * np.log10(most + 1.0) > 36.0:
    raise UserError(
      f"smoothing={masks.smoothing} is too large for pieces that occur"
      f" {most:,} times; lower it (0.7 in DistilBERT)."
    )
  if needs_words(masks) and 8 * len(corpus.word_starts) < corpus.num_tokens:
    raise UserError(
      f"masking={masks.masking!r} needs to know where words start, and the"
      " corpus does not say it; prepare the text again, or choose"
      " masking='token'."
    )


def count_masks(
  lengths: np.ndarray,
  text: np.ndarray,
  masks: Masks,
  draw: np.ndarray | None = None,
) -> np.ndarray:
  """Counts the tokens to hide in each sequence, before any cap.

  Args:
    lengths: integers of any shape, special tokens included; 0 for no sequence.
    text: the same without special tokens.
    masks: the rule.
    draw: uniform in [0, 1), for the stochastic rule; None for the most that it
      can give.
  """
  expected = lengths * masks.mask_rate
  if masks.count == "round":
    counts = np.maximum(np.rint(expected), 1)
  elif masks.count == "round_single":
    single = lengths.astype(np.float32) * np.float32(masks.mask_rate)
    counts = np.maximum(np.rint(single), 1)
  elif masks.count == "ceil":
    counts = _ceil(text, masks.mask_rate)
  elif masks.count == "ceil_all":
    counts = _ceil(lengths, masks.mask_rate)
  else:
    counts = np.ceil(expected) if draw is None else np.floor(expected + draw)
  return np.where(lengths > 0, counts, 0).astype(np.int64)


def _ceil(numbers: np.ndarray, rate: float) -> np.ndarray:
  """`rate * numbers` rounded up, without the error of a float product."""
  size = 1 << int(np.max(numbers, initial=0)).bit_length()
  return _ceilings(float(rate), size)[numbers]


@functools.cache
def _ceilings(rate: float, size: int) -> np.ndarray:
  over, under = Fraction(str(rate)).as_integer_ratio()
  return np.array([-(-number * over // under) for number in range(size)])


def weigh(
  ids: np.ndarray, unigrams: np.ndarray | None, masks: Masks
) -> np.ndarray | None:
  """How much each token is favoured, [B, L] positive; None if all equally.

  Args:
    ids: [B, L] int32.
    unigrams: [V] counts of the pieces in training, of a corpus that
      `check_corpus` passed.
    masks: the rule.
  """
  if not masks.smoothing:
    return None
  return np.maximum(unigrams[ids], 1.0) ** -masks.smoothing


def mask_tokens(
  ids: np.ndarray,
  maskable: np.ndarray,
  lengths: np.ndarray,
  positions: np.ndarray,
  key: int,
  masks: Masks,
  *,
  mask_id: int,
  vocab_size: int,
  reserved: tuple[int, ...] = (),
  word_starts: np.ndarray | None = None,
  weights: np.ndarray | None = None,
  unigrams: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
  """Hides tokens and says what they were.

  A sequence gets the predictions of `count_masks`, no more than it has maskable
  tokens, and a row no more than M; with words there may be fewer. Each token
  has a replacement of its own; in a span, which is hidden words that follow
  each other, all are masked, kept or random.

  Args:
    ids: [B, L] int32.
    maskable: [B, L] bool, False at special tokens and padding.
    lengths: [B] or [B, S] integers, tokens of each sequence with special tokens
      (0: none). Several in a row follow each other from its first column on.
    positions: [B] or [B, S] uint64 numbers of the examples; with `key` and the
      column in the sequence they determine every draw.
    key: from `make_key`.
    masks: from `check_masks`.
    mask_id: id of [MASK].
    vocab_size: random replacements are below it.
    reserved: ids that "roberta" never draws.
    word_starts: [B, L] bool; not used for single tokens.
    weights: [B, L], from `weigh`; None for equal chances of single tokens.
    unigrams: [V] counts of the pieces in training, for "unigram".

  Returns:
    input_ids (a copy), mlm_positions (ascending), mlm_ids and mlm_weights, and
    with masking="span" span_positions, all as `batch_keys.FEATURES` describes
    them.

  Raises:
    ValueError: `maskable` has another shape than `ids`.
  """
  if maskable.shape != ids.shape:
    raise ValueError(
      f"maskable has shape {maskable.shape}, ids {ids.shape}; make it after"
      " padding, so that padding cannot be masked."
    )
  width = ids.shape[1]
  slots = masked_units.make_slots(lengths, positions, width)
  flat, slot = _choose(maskable, slots, key, masks, word_starts, weights)
  row, column = np.divmod(flat, width)
  labels = ids.ravel()[flat]
  origin = column - slots.begin[slot]
  if masks.repeat_positions:
    # With repeated positions, give each prediction its own random draw even if
    # it hits the same token.
    origin = np.arange(len(slot)) - np.searchsorted(slot, slot)
  key = hashing.make_key(key, "replacements")
  draws = hashing.bits(key, slots.number[slot], origin)
  is_span = masks.masking == "span"
  starts, sizes = _runs(flat) if is_span else (np.arange(len(flat)), 1)
  first = np.repeat(starts, sizes)
  if masks.replacement == "unigram":
    drawn = _frequent_ids(draws, unigrams)
  else:
    drawn = _random_ids(draws, vocab_size, labels, masks.replacement, reserved)
  new = _replace(labels, drawn, draws[first], masks.replacement, mask_id)
  input_ids = ids.copy()
  # A place of several predictions is masked if one of them says so.
  change = new != labels
  input_ids.ravel()[flat[change]] = new[change]

  values = {
    "mlm_positions": column.astype(np.int32),
    "mlm_ids": labels,
    "mlm_weights": np.ones(len(flat), np.float32),
  }
  if is_span:
    # Special tokens are never hidden: both columns are in the sequence.
    ends = np.stack([column[starts] - 1, column[starts] + sizes], 1)
    values["span_positions"] = np.repeat(ends, sizes, axis=0).astype(np.int32)
  arranged = _arrange(values, row, len(ids), masks.max_predictions)
  return {"input_ids": input_ids} | arranged


def _runs(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Where runs of consecutive numbers begin, and how long they are."""
  starts = np.flatnonzero(np.diff(flat, prepend=-2) > 1)
  return starts, np.diff(starts, append=len(flat))


def _replace(
  labels: np.ndarray,
  drawn: np.ndarray,
  draws: np.ndarray,
  replacement: str,
  mask_id: int,
) -> np.ndarray:
  """Returns ids: masks, labels or drawn ones, by the high 32 bits of draws."""
  shares = (draws >> np.uint64(32)) * 2.0**-32
  hidden, kept = REPLACEMENTS[replacement]
  new = np.where(shares < hidden + kept, labels, drawn)
  new[shares < hidden] = mask_id
  return new


def _arrange(
  values: dict[str, np.ndarray], row: np.ndarray, rows: int, slots: int
) -> dict[str, np.ndarray]:
  """Lays values of predictions out in the slots of their rows, [B, M, ...]."""
  number = np.bincount(row, minlength=rows)
  place = np.arange(len(row)) - (np.cumsum(number) - number)[row]
  arranged = {}
  for key, value in values.items():
    arranged[key] = np.zeros((rows, slots, *value.shape[1:]), value.dtype)
    arranged[key][row, place] = value
  return arranged


def _choose(
  maskable: np.ndarray,
  slots: masked_units.Slots,
  key: int,
  masks: Masks,
  word_starts: np.ndarray | None,
  weights: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns places in the rows laid end to end, ascending, and their slots."""
  if slots.of_column is None:
    text = np.count_nonzero(maskable, axis=1)
  else:
    text = np.bincount(slots.of_column[maskable], minlength=len(slots.length))
  draw = None
  if masks.count == "stochastic":
    draw = hashing.uniform(hashing.make_key(key, "counts"), slots.number)
  counts = count_masks(slots.length, text, masks, draw)
  counts = np.minimum(counts, text).reshape(len(maskable), -1)
  ends = np.minimum(np.cumsum(counts, axis=1), masks.max_predictions)
  counts = np.diff(ends, prepend=0, axis=1).ravel()
  key = hashing.make_key(key, "positions")
  if masks.repeat_positions:
    return masked_units.choose_repeated(maskable, slots, counts, key)
  units = masked_units.KINDS[masks.masking]
  if units is None:
    return masked_units.choose_tokens(maskable, slots, counts, key, weights)
  return masked_units.choose_words(
    maskable, word_starts, slots, counts, key, units
  )


def _frequent_ids(draws: np.ndarray, unigrams: np.ndarray) -> np.ndarray:
  """Maps the low 32 bits of uint64 draws to int32 ids, by their counts."""
  ends = np.cumsum(unigrams, dtype=np.float64)
  shares = (draws & np.uint64(0xFFFFFFFF)) * 2.0**-32
  return np.searchsorted(ends, shares * ends[-1], "right").astype(np.int32)


def _random_ids(
  draws: np.ndarray,
  vocab_size: int,
  labels: np.ndarray,
  replacement: str,
  reserved: tuple[int, ...],
) -> np.ndarray:
  """Maps the low 32 bits of uint64 draws to int32 ids."""
  excluded: list[int | np.ndarray] = []
  if replacement == "roberta":
    excluded += sorted(reserved)
  elif replacement == "other":
    excluded.append(labels)
  size = vocab_size - len(excluded)
  # 32 bits times a vocabulary below 2**32 stays within 64.
  ids = (draws & np.uint64(0xFFFFFFFF)) * np.uint64(size)
  ids = (ids >> np.uint64(32)).astype(np.int32)
  for excluded_ids in excluded:
    ids += ids >= excluded_ids
  return ids
