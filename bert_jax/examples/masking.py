"""Makes masked-LM predictions as published, for one batch at a time.

The sources for BERT are Devlin et al. 2019, section 3.1, and
`create_masked_lm_predictions` of google-research/bert's
create_pretraining_data.py. `MaskOptions` and `masked_units.UNIT_RULES` name the
sources for families other than BERT.
"""

import dataclasses
import functools
from fractions import Fraction

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus
from bert_jax.examples import masked_units
from bert_jax.messages import UserError, did_you_mean

# Replacement -> the share of the chosen tokens that become [MASK], and the
# share that do not change. The rest of the chosen tokens become a random id.
# The source for ELECTRA is google-research/electra
# pretrain/pretrain_helpers.py.
REPLACEMENTS = {
  "bert": (0.8, 0.1),
  "roberta": (0.8, 0.1),
  "electra": (0.85, 0.15),
  "other": (0.8, 0.1),
  "unigram": (0.8, 0.1),
}
# The values of `MaskOptions.count`.
COUNT_RULES = ("round", "round_single", "stochastic", "ceil", "ceil_all")


@dataclasses.dataclass(frozen=True)
class MaskOptions:
  """Says which tokens are hidden, and what replaces them.

  `replacement` is one of these:

  | replacement | chosen tokens become |
  |---|---|
  | "bert" | 80% [MASK], 10% a random id of the vocabulary, 10% unchanged |
  | "roberta" | as "bert", but a random id is never a special token |
  | "electra" | 85% [MASK], 15% unchanged |
  | "other" | as "bert", but a random id never equals the original |
  | "unigram" | as "bert", but random ids are drawn by their frequency |

  `count` says how many tokens of a sequence are hidden. The sequence has n
  tokens. Special tokens count in n, except with "ceil".

  | count | hidden tokens | source |
  |---|---|---|
  | "round" | round(rate * n), at least 1 | BERT, ALBERT |
  | "round_single" | "round" of a product in single precision | ELECTRA |
  | "stochastic" | the integer part of rate * n + U(0, 1) | fairseq |
  | "ceil" | rate * n rounded up | SpanBERT |
  | "ceil_all" | rate * n rounded up | DistilBERT |

  "round_single" gives one token more than "round" at 190, 350 and 390 tokens
  with a rate of 0.15. "ceil" and "ceil_all" take the rate as an exact decimal
  number: 0.07 * 100 is 7. DistilBERT's distiller.py counts n over the batch of
  a device, but "ceil_all" counts each sequence. The other sources are
  fairseq's mask_tokens_dataset.py, ELECTRA's pretrain/pretrain_helpers.py and
  SpanBERT's data/masking.py.

  Attributes:
    max_predictions: M, the number of prediction slots in a row. A flag of
      create_pretraining_data.py has the default 20, at length 128.
    mask_rate: the share of a sequence's tokens to hide (0.15 in the papers).
    masking: a key of `masked_units.UNIT_RULES`.
    replacement: a name in the first table.
    count: a name in the second table.
    repeat_positions: True to draw positions with replacement, so that one
      position may have several predictions (ELECTRA as released).
    smoothing: s. A token whose piece occurs k times in the training text is
      chosen with the weight max(k, 1)**-s. With s = 0, all tokens have equal
      chances. DistilBERT's train.py has 0.7 (--mlm_smoothing).
  """

  max_predictions: int = 20
  mask_rate: float = 0.15
  masking: str = "token"
  replacement: str = "bert"
  count: str = "round"
  repeat_positions: bool = False
  smoothing: float = 0.0


def check_mask_options(mask_options: MaskOptions) -> MaskOptions:
  """Checks the options, and returns them.

  Raises:
    UserError: an option is out of range, or two options exclude each other.
  """
  if mask_options.max_predictions < 1:
    raise UserError(
      f"max_predictions is {mask_options.max_predictions}; it must be at least"
      " 1."
    )
  if mask_options.mask_rate == 0:
    raise UserError("mask_rate is 0; there would be nothing to predict.")
  for name, choices in (
    ("masking", masked_units.UNIT_RULES),
    ("replacement", REPLACEMENTS),
    ("count", COUNT_RULES),
  ):
    choice = getattr(mask_options, name)
    if choice not in choices:
      raise UserError(
        f"{name} is {choice!r}{did_you_mean(str(choice), choices)}"
      )
  if not 0 <= mask_options.mask_rate <= 1:
    raise UserError(
      f"mask_rate is {mask_options.mask_rate}; it is a share, 0 to 1."
    )
  can_repeat = (
    mask_options.masking == "token" and mask_options.replacement == "electra"
  )
  if mask_options.repeat_positions and not can_repeat:
    raise UserError(
      "repeat_positions=True draws single tokens that are masked or kept: it"
      f" needs masking='token' and replacement='electra', not"
      f" {mask_options.masking!r} and {mask_options.replacement!r}."
    )
  if mask_options.smoothing < 0:
    raise UserError(
      f"smoothing is {mask_options.smoothing}; it must be at least 0."
    )
  if mask_options.smoothing and (
    mask_options.masking != "token" or mask_options.repeat_positions
  ):
    raise UserError(
      f"smoothing={mask_options.smoothing} chooses single tokens by their"
      f" frequency: it needs masking='token', not {mask_options.masking!r}, and"
      " no repeat_positions; set smoothing=0 for equal chances."
    )
  return mask_options


def hides_whole_words(mask_options: MaskOptions) -> bool:
  """Returns True if only whole words are hidden."""
  return masked_units.UNIT_RULES[mask_options.masking] is not None


def check_corpus(corpus: Corpus, mask_options: MaskOptions) -> None:
  """Raises UserError if masks cannot be drawn for a corpus.

  The corpus may lack counts of pieces or starts of words, or its counts may be
  too large for `smoothing`.
  """
  if mask_options.smoothing and corpus.unigrams is None:
    raise UserError(
      f"smoothing={mask_options.smoothing} needs to know how often each piece"
      " occurs; prepare the text, or choose smoothing=0."
    )
  if mask_options.replacement == "unigram" and corpus.unigrams is None:
    raise UserError(
      "replacement='unigram' needs to know how often each piece occurs; prepare"
      " the text, or choose replacement='bert'."
    )
  if mask_options.smoothing and corpus.unigrams is not None:
    # Beyond this limit, the draws of `masked_units._weighted_draws` overflow
    # float32, and the first tokens of every row would be chosen.
    largest_count = corpus.unigrams.max()
    if mask_options.smoothing * np.log10(largest_count + 1.0) > 36.0:
      raise UserError(
        f"smoothing={mask_options.smoothing} is too large for pieces that occur"
        f" {largest_count:,} times; lower it (0.7 in DistilBERT)."
      )
  if (
    hides_whole_words(mask_options)
    and 8 * len(corpus.word_starts) < corpus.num_tokens
  ):
    raise UserError(
      f"masking={mask_options.masking!r} needs to know where words start, and"
      " the corpus does not say it; prepare the text again, or choose"
      " masking='token'."
    )


def count_masks(
  lengths: np.ndarray,
  text_lengths: np.ndarray,
  mask_options: MaskOptions,
  draw: np.ndarray | None = None,
) -> np.ndarray:
  """Counts the tokens to hide in each sequence, without any upper limit.

  Args:
    lengths: integers of any shape, the number of tokens of each sequence,
      special tokens included; 0 means that there is no sequence.
    text_lengths: integers of the same shape, without special tokens.
    mask_options: the options.
    draw: floats of the same shape, uniform in [0, 1), for the count
      "stochastic". None gives the largest count that a draw can give.

  Returns:
    int64 of the same shape.
  """
  expected_counts = lengths * mask_options.mask_rate
  if mask_options.count == "round":
    counts = np.maximum(np.rint(expected_counts), 1)
  elif mask_options.count == "round_single":
    product = lengths.astype(np.float32) * np.float32(mask_options.mask_rate)
    counts = np.maximum(np.rint(product), 1)
  elif mask_options.count == "ceil":
    counts = _round_up(text_lengths, mask_options.mask_rate)
  elif mask_options.count == "ceil_all":
    counts = _round_up(lengths, mask_options.mask_rate)
  else:
    counts = (
      np.ceil(expected_counts)
      if draw is None
      else np.floor(expected_counts + draw)
    )
  return np.where(lengths > 0, counts, 0).astype(np.int64)


def _round_up(lengths: np.ndarray, rate: float) -> np.ndarray:
  """Returns `rate * lengths` rounded up, without rounding errors."""
  table_size = 1 << int(np.max(lengths, initial=0)).bit_length()
  return _ceiling_table(float(rate), table_size)[lengths]


@functools.cache
def _ceiling_table(rate: float, size: int) -> np.ndarray:
  """Returns a table of `rate * n` rounded up, for n in [0, size)."""
  numerator, denominator = Fraction(str(rate)).as_integer_ratio()
  return np.array([-(-n * numerator // denominator) for n in range(size)])


def token_weights(
  ids: np.ndarray, unigrams: np.ndarray | None, mask_options: MaskOptions
) -> np.ndarray | None:
  """Returns the weight with which each token is drawn; None if all are equal.

  Args:
    ids: [B, L] int32.
    unigrams: [V] counts of the pieces in the training text. If `smoothing` is
      not 0, they are not None, see `check_corpus`.
    mask_options: the options.

  Returns:
    [B, L] positive floats.
  """
  if not mask_options.smoothing:
    return None
  assert unigrams is not None
  return np.maximum(unigrams[ids], 1.0) ** -mask_options.smoothing


def mask_tokens(
  ids: np.ndarray,
  maskable: np.ndarray,
  lengths: np.ndarray,
  numbers: np.ndarray,
  key: int,
  mask_options: MaskOptions,
  *,
  mask_id: int,
  vocab_size: int,
  reserved_ids: tuple[int, ...] = (),
  word_starts: np.ndarray | None = None,
  weights: np.ndarray | None = None,
  unigrams: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
  """Hides tokens, and returns the predictions of the original ids.

  A sequence gets `count_masks` predictions, but not more than it has maskable
  tokens. A row gets at most M. If whole words are hidden, there may be fewer.
  The kind of replacement is drawn for each token. With masking="span", one kind
  is drawn for each stretch of adjacent hidden tokens: all become [MASK], or
  all become random ids, or none is changed.

  Args:
    ids: [B, L] int32.
    maskable: [B, L] bool, False at special tokens and padding.
    lengths: [B] or [B, S] integers, the number of tokens of each sequence,
      special tokens included; 0 means that there is no sequence. The sequences
      of a row follow each other from its first column.
    numbers: [B] or [B, S] uint64, the number of each sequence. The number,
      `key` and a column in the sequence determine every draw.
    key: a key from `make_key`.
    mask_options: the options, from `check_mask_options`.
    mask_id: the id of [MASK].
    vocab_size: random ids are below this number.
    reserved_ids: the ids that "roberta" never draws.
    word_starts: [B, L] bool; not used for single tokens.
    weights: [B, L], from `token_weights`; None gives single tokens equal
      chances.
    unigrams: [V] counts of the pieces in the training text, for "unigram".

  Returns:
    `input_ids` (a changed copy of `ids`), `mlm_positions` (ascending),
    `mlm_ids` and `mlm_weights`; with masking="span" also `span_positions`. See
    `batch_keys.FEATURES`.

  Raises:
    ValueError: `maskable` and `ids` have different shapes.
  """
  if maskable.shape != ids.shape:
    raise ValueError(
      f"maskable has shape {maskable.shape}, but ids have {ids.shape}; compute"
      " maskable after padding, so that padding cannot be masked."
    )
  width = ids.shape[1]
  sequences = masked_units.make_sequences(lengths, numbers, width)
  flat_columns, sequence_indices = _choose_hidden(
    maskable, sequences, key, mask_options, word_starts, weights
  )
  row_indices, columns = np.divmod(flat_columns, width)
  labels = ids.ravel()[flat_columns]
  draw_indices = columns - sequences.begins[sequence_indices]
  if mask_options.repeat_positions:
    # Two predictions of one token must have different draws.
    draw_indices = np.arange(len(sequence_indices)) - np.searchsorted(
      sequence_indices, sequence_indices
    )
  key = hashing.make_key(key, "replacements")
  draws = hashing.bits(key, sequences.numbers[sequence_indices], draw_indices)
  hides_spans = mask_options.masking == "span"
  stretch_starts, stretch_sizes = (
    _find_stretches(flat_columns)
    if hides_spans
    else (np.arange(len(flat_columns)), 1)
  )
  # The tokens of a span share the draw of its first token.
  first_in_stretch = np.repeat(stretch_starts, stretch_sizes)
  if mask_options.replacement == "unigram":
    assert unigrams is not None
    drawn_ids = _ids_by_frequency(draws, unigrams)
  else:
    drawn_ids = _random_ids(
      draws, vocab_size, labels, mask_options.replacement, reserved_ids
    )
  new_ids = _replacement_ids(
    labels,
    drawn_ids,
    draws[first_in_stretch],
    mask_options.replacement,
    mask_id,
  )
  input_ids = ids.copy()
  # A token with several predictions is masked if one of them masks it.
  is_changed = new_ids != labels
  input_ids.ravel()[flat_columns[is_changed]] = new_ids[is_changed]

  predictions = {
    "mlm_positions": columns.astype(np.int32),
    "mlm_ids": labels,
    "mlm_weights": np.ones(len(flat_columns), np.float32),
  }
  if hides_spans:
    # Special tokens are never hidden, so both columns are in the sequence.
    columns_beside = np.stack(
      [columns[stretch_starts] - 1, columns[stretch_starts] + stretch_sizes], 1
    )
    spans = np.repeat(columns_beside, stretch_sizes, axis=0).astype(np.int32)
    predictions["span_positions"] = spans
  slots = _fill_slots(
    predictions, row_indices, len(ids), mask_options.max_predictions
  )
  return {"input_ids": input_ids} | slots


def _find_stretches(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Finds stretches of numbers that follow each other by 1.

  Args:
    indices: [N] ascending integers.

  Returns:
    [K] the place in `indices` where each stretch starts, and [K] the size of
    each stretch.
  """
  starts = np.flatnonzero(np.diff(indices, prepend=-2) > 1)
  return starts, np.diff(starts, append=len(indices))


def _replacement_ids(
  labels: np.ndarray,
  drawn_ids: np.ndarray,
  draws: np.ndarray,
  replacement: str,
  mask_id: int,
) -> np.ndarray:
  """Returns [MASK], labels or drawn ids; the high 32 bits of draws decide."""
  shares = (draws >> np.uint64(32)) * 2.0**-32
  mask_share, unchanged_share = REPLACEMENTS[replacement]
  new_ids = np.where(shares < mask_share + unchanged_share, labels, drawn_ids)
  new_ids[shares < mask_share] = mask_id
  return new_ids


def _fill_slots(
  predictions: dict[str, np.ndarray],
  row_of_prediction: np.ndarray,
  num_rows: int,
  slots_per_row: int,
) -> dict[str, np.ndarray]:
  """Puts predictions into the slots of their rows.

  Args:
    predictions: key -> [N, ...], an entry for each prediction.
    row_of_prediction: [N] the row of each prediction, ascending.
    num_rows: B.
    slots_per_row: M.

  Returns:
    key -> [B, M, ...].
  """
  num_predictions_by_row = np.bincount(row_of_prediction, minlength=num_rows)
  slot_of_prediction = (
    np.arange(len(row_of_prediction))
    - (np.cumsum(num_predictions_by_row) - num_predictions_by_row)[
      row_of_prediction
    ]
  )
  slots_by_key = {}
  for key, values in predictions.items():
    slots_by_key[key] = np.zeros(
      (num_rows, slots_per_row, *values.shape[1:]), values.dtype
    )
    slots_by_key[key][row_of_prediction, slot_of_prediction] = values
  return slots_by_key


def _choose_hidden(
  maskable: np.ndarray,
  sequences: masked_units.Sequences,
  key: int,
  mask_options: MaskOptions,
  word_starts: np.ndarray | None,
  weights: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
  """Chooses the tokens to hide; returns what `choose_tokens` returns."""
  if sequences.sequence_of_column is None:
    text_lengths = np.count_nonzero(maskable, axis=1)
  else:
    sequence_indices = sequences.sequence_of_column[maskable]
    text_lengths = np.bincount(
      sequence_indices, minlength=len(sequences.lengths)
    )
  count_draws = None
  if mask_options.count == "stochastic":
    count_draws = hashing.uniform(
      hashing.make_key(key, "counts"), sequences.numbers
    )
  counts = count_masks(
    sequences.lengths, text_lengths, mask_options, count_draws
  )
  counts = np.minimum(counts, text_lengths).reshape(len(maskable), -1)
  # The sequences of a row share its slots. If there are too few slots, the last
  # sequences get fewer predictions.
  cumulative_counts = np.minimum(
    np.cumsum(counts, axis=1), mask_options.max_predictions
  )
  counts = np.diff(cumulative_counts, prepend=0, axis=1).ravel()
  key = hashing.make_key(key, "positions")
  if mask_options.repeat_positions:
    return masked_units.choose_with_repeats(maskable, sequences, counts, key)
  unit_rule = masked_units.UNIT_RULES[mask_options.masking]
  if unit_rule is None:
    return masked_units.choose_tokens(maskable, sequences, counts, key, weights)
  assert word_starts is not None
  return masked_units.choose_words(
    maskable, word_starts, sequences, counts, key, unit_rule
  )


def _ids_by_frequency(draws: np.ndarray, unigrams: np.ndarray) -> np.ndarray:
  """Maps the low 32 bits of uint64 draws to int32 ids, by their frequency."""
  cumulative_counts = np.cumsum(unigrams, dtype=np.float64)
  shares = (draws & np.uint64(0xFFFFFFFF)) * 2.0**-32
  return np.searchsorted(
    cumulative_counts, shares * cumulative_counts[-1], "right"
  ).astype(np.int32)


def _random_ids(
  draws: np.ndarray,
  vocab_size: int,
  labels: np.ndarray,
  replacement: str,
  reserved_ids: tuple[int, ...],
) -> np.ndarray:
  """Maps the low 32 bits of uint64 draws to ids that `replacement` allows."""
  excluded: list[int | np.ndarray] = []
  if replacement == "roberta":
    excluded += sorted(reserved_ids)
  elif replacement == "other":
    excluded.append(labels)
  num_choices = vocab_size - len(excluded)
  # A product of 32 bits and a vocabulary below 2**32 fits into 64 bits.
  ids = (draws & np.uint64(0xFFFFFFFF)) * np.uint64(num_choices)
  ids = (ids >> np.uint64(32)).astype(np.int32)
  for excluded_ids in excluded:
    ids += ids >= excluded_ids
  return ids
