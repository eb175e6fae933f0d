"""Tests masks by frequency: their counts, and the chances of each piece."""

import math
from fractions import Fraction

import numpy as np
import pytest
from prepared import random_documents, write_prepared

from bert_jax import hashing
from bert_jax.corpus import reader
from bert_jax.examples import loader, masked_units, masking, recipes
from bert_jax.text.vocabulary import SpecialIds
from bert_jax.training import evaluate

SMOOTHING_OPTIONS = dict(count="ceil_all", smoothing=0.7, max_predictions=12)


def choose_masks(num_rows, mask_options, piece_counts, ids, lengths=None):
  maskable = np.ones(ids.shape, bool)
  maskable[:, 0] = maskable[:, -1] = False
  lengths = np.full(num_rows, ids.shape[1]) if lengths is None else lengths
  return masking.mask_tokens(
    ids,
    maskable,
    lengths,
    np.arange(num_rows, dtype=np.uint64),
    hashing.make_key("test"),
    mask_options,
    mask_id=4,
    vocab_size=64,
    weights=masking.token_weights(ids, piece_counts, mask_options),
  )


def test_chances_of_a_draw_are_in_proportion_to_the_weights():
  """Each of 40,000 rows masks one of four pieces, seen 0 to 10,000 times."""
  num_rows, piece_counts = 40_000, np.zeros(64, np.int64)
  # A piece that was never seen counts as seen once.
  piece_counts[5:9] = (10_000, 100, 10, 0)
  ids = np.tile(np.array([2, 5, 6, 7, 8, 3], np.int32), (num_rows, 1))
  mask_options = masking.MaskOptions(mask_rate=0.1, **SMOOTHING_OPTIONS)
  batch = choose_masks(num_rows, mask_options, piece_counts, ids)
  assert (batch["mlm_weights"].sum(1) == 1).all()
  shares = np.bincount(batch["mlm_ids"][:, 0], minlength=64)[5:9] / num_rows
  weights = np.array([10_000, 100, 10, 1.0]) ** -0.7
  expected_shares = weights / weights.sum()
  standard_error = np.sqrt(expected_shares * (1 - expected_shares) / num_rows)
  assert (np.abs(shares - expected_shares) < 5 * standard_error + 1e-4).all(), (
    shares
  )


def test_the_second_draw_is_from_the_pieces_that_are_left():
  """Each row masks two of three pieces: the second is one of the two left."""
  num_rows, piece_counts = 40_000, np.zeros(64, np.int64)
  piece_counts[5:8] = (16, 4, 1)
  ids = np.tile(np.array([2, 5, 6, 7, 3], np.int32), (num_rows, 1))
  mask_options = masking.MaskOptions(mask_rate=0.4, **SMOOTHING_OPTIONS)
  batch = choose_masks(num_rows, mask_options, piece_counts, ids)
  assert (batch["mlm_weights"].sum(1) == 2).all()
  chances = np.array([16, 4, 1.0]) ** -0.7
  chances /= chances.sum()
  # The ids 5, 6 and 7 of the three pieces have the sum 18.
  unmasked_ids = 11 + 7 - batch["mlm_ids"][:, :2].sum(1)
  for unmasked_index in range(3):
    first_index, second_index = {0, 1, 2} - {unmasked_index}
    expected_share = (
      chances[first_index]
      * chances[second_index]
      * (1 / (1 - chances[first_index]) + 1 / (1 - chances[second_index]))
    )
    standard_error = np.sqrt(expected_share / num_rows)
    assert (
      abs((unmasked_ids == 5 + unmasked_index).mean() - expected_share)
      < 5 * standard_error
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.7])
def test_a_packed_sequence_has_the_masks_of_its_single_row(smoothing):
  rng = np.random.default_rng(0)
  piece_counts = rng.integers(0, 1000, 64)
  ids = rng.integers(5, 64, (1, 24)).astype(np.int32)
  weights = np.maximum(piece_counts[ids], 1.0) ** -smoothing
  key, mask_counts = hashing.make_key("k"), np.array([3, 4])
  numbers = np.array([7, 9], np.uint64)
  packed_columns, sequence_index = masked_units.choose_tokens(
    np.ones((1, 24), bool),
    masked_units.make_sequences(np.array([[10, 14]]), numbers[None], 24),
    mask_counts,
    key,
    weights,
  )
  assert np.bincount(sequence_index).tolist() == [3, 4]
  for i, (first_column, end_column) in enumerate(((0, 10), (10, 24))):
    single_columns, _ = masked_units.choose_tokens(
      np.ones((1, end_column - first_column), bool),
      masked_units.make_sequences(
        np.array([end_column - first_column]), numbers[i : i + 1], end_column
      ),
      mask_counts[i : i + 1],
      key,
      weights[:, first_column:end_column],
    )
    # In a packed row, fewer bits of the draws are compared. Here these bits all
    # differ, so the draws have the order that they have in a row of one
    # sequence.
    assert (
      packed_columns[sequence_index == i].tolist()
      == (single_columns + first_column).tolist()
    )


def test_counts_are_those_of_all_tokens_rounded_up():
  mask_options = masking.MaskOptions(count="ceil_all")
  lengths = np.array([0, 1, 20, 21, 40])
  counts = masking.count_masks(
    lengths, np.maximum(lengths - 2, 0), mask_options
  )
  assert counts.tolist() == [0, 1, 3, 4, 6]


@pytest.mark.parametrize("count", ["ceil", "ceil_all"])
def test_counts_are_rounded_up_from_the_decimal_as_written(count):
  """As a float, 0.07 * 100 is above 7 and would count as 8."""
  numbers = np.arange(513)
  for percent in range(1, 51):
    mask_options = masking.MaskOptions(count=count, mask_rate=percent / 100)
    rate = Fraction(str(mask_options.mask_rate))
    counts = masking.count_masks(numbers, numbers, mask_options)
    assert counts.tolist() == [
      math.ceil(rate * number) for number in range(513)
    ], rate
  mask_options = masking.MaskOptions(count=count, mask_rate=0.07)
  assert masking.count_masks(numbers, numbers, mask_options)[100] == 7


def test_a_stream_weighs_by_the_counts_of_training(tmp_path):
  """Both splits use the counts of training; reading again gives equal rows."""
  path = write_prepared(
    tmp_path / "p", random_documents(60, seed=0), random_documents(9, seed=1)
  )
  options = (
    dict(length=32, replacement="bert", mask_rate=0.15) | SMOOTHING_OPTIONS
  )
  data = loader.open_data(path, "doc_sentences", **options)
  batch = data.read(0, 64)
  second_batch = loader.open_data(path, "doc_sentences", **options).read(0, 64)
  for key, array in batch.items():
    np.testing.assert_array_equal(array, second_batch[key])
  lengths = (batch["sequence_ids"] > 0).sum(1)
  expected_counts = np.minimum(np.ceil(lengths * 0.15), lengths - 2)
  np.testing.assert_array_equal(batch["mlm_weights"].sum(1), expected_counts)
  counts = reader.open_prepared(path).unigrams
  heldout = loader.open_heldout(path, "doc_sentences", **options)
  assert heldout.read(0, len(heldout))["mlm_weights"].sum() > 0

  def mean_masked_count(smoothing):
    options["smoothing"] = smoothing
    rows = loader.open_data(path, "doc_sentences", **options).read(0, 512)
    return np.average(counts[rows["mlm_ids"]], weights=rows["mlm_weights"])

  assert (
    mean_masked_count(5.0) < mean_masked_count(0.7) < mean_masked_count(0.0)
  )


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(smoothing=-1.0), "smoothing is -1.0; it must be at least 0"),
    (dict(smoothing=0.7, masking="span"), "needs masking='token', not 'span'"),
  ],
)
def test_bad_options_are_refused(options, message):
  special_ids = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
  with pytest.raises(ValueError, match=message):
    recipes.doc_sentences(special_ids, 64, **options)


def test_a_weight_beyond_32_bits_is_refused(tmp_path):
  path = write_prepared(tmp_path / "p", random_documents(40, seed=1), [])
  with pytest.raises(ValueError, match="smoothing=100.0 is too large for piec"):
    loader.open_data(path, "doc_sentences", length=16, smoothing=100.0)


def test_a_corpus_without_counts_is_refused():
  special_ids = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
  recipe = recipes.doc_sentences(special_ids, 64, smoothing=0.7)
  corpus = reader.corpus_from_documents(random_documents(3, seed=0))
  with pytest.raises(ValueError, match="prepare the text, or choose smoothing"):
    recipe.check(corpus)


def test_the_unigram_cross_entropy_weighs_pieces_like_masks():
  """With smoothing=1, all pieces that were seen are masked equally often."""

  class Heldout(list):
    def read(self, first, count):
      return {"mlm_ids": np.array([[0, 1]]), "mlm_weights": np.ones((1, 2))}

  counts = np.array([1000, 3])
  means = {"mlm_loss": 0.5}
  lines = evaluate.summary_lines(Heldout(), counts, means, smoothing=1.0)
  assert lines[0] == f"unigram cross-entropy: {np.log(2):.4f} nats"
