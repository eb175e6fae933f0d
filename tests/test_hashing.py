"""Tests hashing.py: draws are fixed, uniform and independent of neighbours."""

import warnings

import numpy as np
import pytest

from bert_jax import hashing


def chi_square(values: np.ndarray, num_cells: int) -> float:
  """Returns how many standard deviations chi-squared is above its mean."""
  counts = np.bincount(values.ravel().astype(np.int64), minlength=num_cells)
  expected_count = values.size / num_cells
  statistic = ((counts - expected_count) ** 2 / expected_count).sum()
  return (statistic - (num_cells - 1)) / np.sqrt(2 * (num_cells - 1))


def test_draws_never_change():
  # A run continues with the same examples only if these values never change.
  assert hashing.make_key("masks", 0) == 16625206765992953639
  assert hashing.bits(key=9, index=[0, 1], column=2).tolist() == [
    17496761902140886356,
    2028068707372879385,
  ]
  assert hashing.bits32(key=9, index=[0, 1], column=2).tolist() == [
    3105080620,
    69822690,
  ]


def test_keys_depend_on_all_labels_in_order():
  assert hashing.make_key(1, 2) != hashing.make_key(2, 1)
  assert hashing.make_key("a", 1) != hashing.make_key("b", 1)
  assert hashing.make_key(-1) == hashing.make_key(2**64 - 1)
  keys = {
    hashing.make_key(seed, epoch) for seed in range(99) for epoch in range(99)
  }
  assert len(keys) == 99 * 99


def test_draws_have_the_broadcast_shape():
  with warnings.catch_warnings():
    # numpy warns if a product of scalars overflows. A draw must not warn.
    warnings.simplefilter("error")
    for draw in (hashing.bits, hashing.bits32):
      single_draw = draw(7, 2**63, 3)
      assert single_draw.shape == ()
      draws = draw(7, np.array([[5], [2**63]]).astype(np.uint64), np.arange(4))
      assert draws.shape == (2, 4)
      assert draws[1, 3] == single_draw
      assert draw(7, np.arange(0), 0).shape == (0,)


@pytest.mark.parametrize("draw", [hashing.bits, hashing.bits32])
def test_every_byte_is_uniform(draw):
  draws = draw(3, np.arange(2000)[:, None], np.arange(128))
  for shift in range(0, 8 * draws.itemsize, 8):
    assert (
      abs(
        chi_square(
          draws >> draws.dtype.type(shift) & draws.dtype.type(255),
          num_cells=256,
        )
      )
      < 5
    )


@pytest.mark.parametrize("draw", [hashing.bits, hashing.bits32])
@pytest.mark.parametrize("shift", [0, 12, 26])
def test_neighbours_are_independent(draw, shift):
  """Pairs of neighbouring draws fill all cells of a 64x64 grid equally."""

  def six_bits(key):
    draws = draw(key, np.arange(1500)[:, None], np.arange(128))
    return (draws >> draws.dtype.type(shift) & draws.dtype.type(63)).astype(
      np.int64
    )

  values = six_bits(11)
  for first_values, second_values in (
    (values[1:], values[:-1]),
    (values[:, 1:], values[:, :-1]),
    (values[1:, 1:], values[:-1, :-1]),
    (values[1:, :-1], values[:-1, 1:]),
    (values, six_bits(12)),
  ):
    assert (
      abs(chi_square(first_values * 64 + second_values, num_cells=4096)) < 5
    )


@pytest.mark.parametrize("draw", [hashing.bits, hashing.bits32])
def test_one_input_bit_flips_half_the_output(draw):
  indices = np.arange(4000, dtype=np.uint64)
  draws = draw(5, indices, 1)
  num_output_bits = 8 * draws.itemsize
  for changed_draws in (
    [draw(5, indices ^ np.uint64(1 << i), 1) for i in (0, 1, 20, 40, 63)]
    + [draw(5, indices, 1 ^ (1 << i)) for i in range(9)]
    + [draw(5 ^ (1 << i), indices, 1) for i in (0, 31, 63)]
  ):
    num_flipped_bits = np.bitwise_count(draws ^ changed_draws)
    assert abs(num_flipped_bits.mean() / num_output_bits - 0.5) < 0.01
    assert abs(num_flipped_bits.var() / (num_output_bits / 4) - 1) < 0.15


def test_uniform_and_randint_stay_in_their_ranges():
  fractions = hashing.uniform(key=1, index=np.arange(100_000))
  assert fractions.min() >= 0 and fractions.max() < 1
  assert abs(fractions.mean() - 0.5) < 0.005
  upper_bounds = np.array([1, 2, 7, 1000])
  integers = hashing.randint(
    key=1,
    index=np.arange(50_000)[:, None],
    column=np.arange(4),
    high=upper_bounds,
  )
  assert integers.dtype == np.int64
  assert (integers.min(0) == 0).all() and (
    integers.max(0) == upper_bounds - 1
  ).all()
  assert abs(chi_square(integers[:, 2], num_cells=7)) < 5


def test_half_binomial_counts_fair_coins():
  coin_counts = np.array([0, 1, 5, 63, 64, 65, 1000, 100_000])
  num_repeats = 4000
  head_counts = hashing.half_binomial(
    key=1,
    index=np.arange(num_repeats * 7),
    num_coins=np.tile(coin_counts[:-1], num_repeats),
  ).reshape(num_repeats, 7)
  assert (head_counts >= 0).all() and (head_counts <= coin_counts[:-1]).all()
  assert (head_counts[:, 0] == 0).all()
  np.testing.assert_allclose(
    head_counts.mean(0), coin_counts[:-1] / 2, rtol=0.03
  )
  np.testing.assert_allclose(
    head_counts[:, 1:].var(0), coin_counts[1:-1] / 4, rtol=0.1
  )
  # Five coins have six outcomes, which occur in binomial proportions.
  shares = np.bincount(head_counts[:, 2], minlength=6) / num_repeats
  np.testing.assert_allclose(
    shares, np.array([1, 5, 10, 10, 5, 1]) / 32, atol=0.02
  )
  large_head_counts = hashing.half_binomial(
    key=1, index=np.arange(20), num_coins=np.full(20, 100_000)
  )
  assert (abs(large_head_counts - 50_000) < 1000).all() and len(
    set(large_head_counts.tolist())
  ) > 10


def test_the_hash_of_a_text_never_changes():
  """`prepare` chooses held-out documents by the hash.

  If the hash changed, `prepare` would hold out other documents than before.
  """
  assert hashing.text_hash("a b") == 13490496012286425384
  assert hashing.text_hash("é") == 14635220546840893743
