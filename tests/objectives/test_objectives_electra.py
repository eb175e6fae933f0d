"""Tests replaced token detection: samples, labels, losses and gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax import objectives
from bert_jax.models import electra
from bert_jax.objectives import electra as objective_lib

MODEL_OPTIONS = dict(
  variant="small",
  vocab_size=30,
  embedding_size=16,
  hidden=32,
  num_layers=2,
  heads=2,
  mlp=64,
  generator_hidden=16,
  max_positions=16,
  dropout=0.1,
  # With this wide range, the generator's samples differ, and gradients are
  # large enough to be compared.
  initializer_range=0.3,
)
NUM_ROWS, LENGTH, NUM_SLOTS = 6, 12, 4


def make_batch(seed=0):
  """Returns a batch and its ids before masking; the last row is all padding."""
  rng = np.random.default_rng(seed)
  lengths = np.array([12, 9, 5, 12, 7, 0])
  is_real = np.arange(LENGTH) < lengths[:, None]
  original_ids = rng.integers(5, 30, (NUM_ROWS, LENGTH)) * is_real
  num_used = np.array([4, 2, 1, 3, 2, 0])
  weights = (np.arange(NUM_SLOTS) < num_used[:, None]).astype(np.float32)
  positions = np.zeros((NUM_ROWS, NUM_SLOTS), np.int32)
  for row in range(NUM_ROWS):
    masked_positions = (
      1 + rng.permutation(max(lengths[row] - 1, 0))[: num_used[row]]
    )
    positions[row, : num_used[row]] = masked_positions
  ids = np.take_along_axis(original_ids, positions, 1) * (weights > 0)
  masked_ids = original_ids.copy()
  for row in range(NUM_ROWS):
    masked_ids[row, positions[row, : num_used[row]]] = 4
  batch = dict(
    input_ids=masked_ids,
    sequence_ids=is_real,
    segment_ids=np.zeros_like(masked_ids),
    mlm_positions=positions,
    mlm_ids=ids,
  )
  batch = {key: jnp.asarray(x, jnp.int32) for key, x in batch.items()}
  return batch | {"mlm_weights": jnp.asarray(weights)}, original_ids


def build_objective(**options):
  return objectives.build(
    "electra", MODEL_OPTIONS | {"family": "electra"}, options
  )


@pytest.fixture(scope="module")
def params():
  batch, _ = make_batch()
  return nn.unbox(fast_jit(build_objective().init)(jax.random.key(3), batch))


def test_only_a_wrong_sample_is_labelled_as_replaced():
  """The slots have a right sample, a wrong sample, and no target."""
  ids = jnp.array([[5, 4, 4, 8]])
  positions = jnp.array([[1, 2, 0]])
  weights = jnp.array([[1.0, 1.0, 0.0]])
  samples = jnp.array([[6, 3, 9]])
  labels = jnp.array([[6, 7, 0]])
  sampled_input = objective_lib.write_ids(ids, positions, samples, weights)
  original_input = objective_lib.write_ids(ids, positions, labels, weights)
  np.testing.assert_array_equal(sampled_input, [[5, 6, 3, 8]])
  np.testing.assert_array_equal(original_input, [[5, 6, 7, 8]])
  np.testing.assert_array_equal(sampled_input != original_input, [[0, 0, 1, 0]])


def test_the_first_of_two_slots_at_one_position_counts():
  """In the released program, two slots may have the same position."""
  sampled_input = objective_lib.write_ids(
    jnp.array([[1, 4, 2]]),
    jnp.array([[1, 1]]),
    jnp.array([[7, 8]]),
    jnp.array([[1.0, 1.0]]),
  )
  np.testing.assert_array_equal(sampled_input, [[1, 7, 2]])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_follow_the_softmax(temperature):
  logits = jnp.array([2.0, 1.0, 0.0, -1.0, -3.0, jnp.finfo(jnp.float32).min])
  num_samples = 40_000
  ids = objective_lib.sample(
    jnp.broadcast_to(logits, (num_samples // 8, 8, 6)),
    jax.random.key(0),
    temperature,
  )
  shares = np.bincount(np.asarray(ids).ravel(), minlength=6) / num_samples
  expected_shares = np.exp(np.asarray(logits[:5], np.float64) / temperature)
  expected_shares = np.append(expected_shares / expected_shares.sum(), 0.0)
  standard_error = np.sqrt(
    expected_shares * (1 - expected_shares) / num_samples
  )
  assert (np.abs(shares - expected_shares) <= 4 * standard_error + 1e-9).all()
  # Different rows and slots have independent samples.
  ids = np.asarray(ids)
  assert 0.2 < (ids[:, 0] != ids[:, 1]).mean() < 0.8
  assert 0.2 < (ids[0::2] != ids[1::2]).mean() < 0.8


def test_vectors_added_to_the_word_table_change_no_sample():
  """The word table may have vectors without a piece, which are never drawn."""
  logits = jax.random.normal(jax.random.key(1), (50, 4, 30))
  added_logits = jnp.full((50, 4, 2), jnp.finfo(jnp.float32).min)
  padded_logits = jnp.concatenate([logits, added_logits], axis=-1)
  for key in map(jax.random.key, range(3)):
    np.testing.assert_array_equal(
      objective_lib.sample(logits, key, temperature=1.0),
      objective_lib.sample(padded_logits, key, temperature=1.0),
    )


def test_sums_agree_with_numpy(params):
  batch, original_ids = make_batch()
  objective = build_objective()
  key = jax.random.key(7)
  # A loss takes: parameters, a teacher's parameters, the carry, a batch, a
  # random key, and whether the model trains.
  sums, _ = fast_jit(objective.loss, static_argnums=5)(
    params, {}, {}, batch, key, False
  )
  divisors = objective.divisors(batch)
  assert sums.keys() == divisors.keys()
  module = electra.ForPreTraining(electra.build(**MODEL_OPTIONS))
  apply = fast_jit(module.apply, static_argnames="method")
  logits = apply({"params": params}, batch, method="generate")
  _, _, sample_key = jax.random.split(key, 3)
  samples = np.asarray(
    objective_lib.sample(logits, sample_key, temperature=1.0)
  )

  sampled_input, is_replaced = (
    original_ids.copy(),
    np.zeros(original_ids.shape, bool),
  )
  for row, slot in np.argwhere(np.asarray(batch["mlm_weights"]) > 0):
    position = batch["mlm_positions"][row, slot]
    sampled_input[row, position] = samples[row, slot]
    is_replaced[row, position] = (
      samples[row, slot] != original_ids[row, position]
    )
  rtd_logits = apply(
    {"params": params},
    batch | {"input_ids": jnp.asarray(sampled_input)},
    method="discriminate",
  )
  is_real = np.asarray(batch["sequence_ids"]) > 0
  rtd_logits, is_replaced = (
    np.asarray(rtd_logits, np.float64)[is_real],
    is_replaced[is_real],
  )
  replaced_probabilities = 1 / (1 + np.exp(-rtd_logits))
  rtd_loss = -np.where(
    is_replaced,
    np.log(replaced_probabilities),
    np.log(1 - replaced_probabilities),
  ).sum()
  assert sums["rtd_loss"] == pytest.approx(rtd_loss, rel=1e-5)
  assert divisors["rtd_loss"] == 12 + 9 + 5 + 12 + 7
  assert 3 <= is_replaced.sum() <= 12
  counts = dict(
    accuracy=((rtd_logits > 0) == is_replaced).sum(),
    replaced=is_replaced.sum(),
    flagged=(rtd_logits > 0).sum(),
    found=((rtd_logits > 0) & is_replaced).sum(),
  )
  for name, count in counts.items():
    assert sums[f"rtd_{name}"] == count, name
  assert divisors["mlm_loss"] == 12
  assert objective.coefficients == {"mlm_loss": 1.0, "rtd_loss": 50.0}


def test_discriminator_gives_the_generator_no_gradient(params):
  """`rtd_loss` gives a gradient to the discriminator and the shared tables.

  The gradient of the tables is the one that constant samples give.
  """
  batch, _ = make_batch()
  objective, key = build_objective(), jax.random.key(7)

  module = electra.ForPreTraining(electra.build(**MODEL_OPTIONS))
  apply = fast_jit(module.apply, static_argnames="method")
  _, _, sample_key = jax.random.split(key, 3)
  logits = apply({"params": params}, batch, method="generate")
  ids, positions, original_ids, slot_weights = (
    batch[key]
    for key in ("input_ids", "mlm_positions", "mlm_ids", "mlm_weights")
  )
  samples = objective_lib.sample(logits, sample_key, temperature=1.0)
  sampled_input = objective_lib.write_ids(ids, positions, samples, slot_weights)
  is_replaced = sampled_input != objective_lib.write_ids(
    ids, positions, original_ids, slot_weights
  )

  def loss(params, name):
    return objective.loss(params, {}, {}, batch, key, False)[0][name]

  def loss_of_fixed_samples(params):
    """Returns the discriminator's loss with the sampled ids as constants."""
    rtd_logits = module.apply(
      {"params": params},
      batch | {"input_ids": sampled_input},
      method="discriminate",
    )
    token_losses = jnp.logaddexp(
      0.0, jnp.where(is_replaced, -rtd_logits, rtd_logits)
    )
    return (token_losses * (batch["sequence_ids"] > 0)).sum()

  def grads(params):
    grads_of_losses = {
      name: jax.grad(loss)(params, name) for name in ("rtd_loss", "mlm_loss")
    }
    return grads_of_losses, jax.grad(loss_of_fixed_samples)(params)[
      "embeddings"
    ]

  gradients, expected = fast_jit(grads)(params)
  gradient_sizes = jax.tree.map(lambda g: float(jnp.abs(g).sum()), gradients)
  for name in ("generator", "mlm"):
    assert all(
      x == 0 for x in jax.tree.leaves(gradient_sizes["rtd_loss"][name])
    )
    assert any(x > 0 for x in jax.tree.leaves(gradient_sizes["mlm_loss"][name]))
  for name in ("discriminator", "rtd", "embeddings"):
    assert any(
      x > 0 for x in jax.tree.leaves(gradient_sizes["rtd_loss"][name])
    ), name
  for name in ("discriminator", "rtd"):
    assert all(
      x == 0 for x in jax.tree.leaves(gradient_sizes["mlm_loss"][name])
    )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4),
    gradients["rtd_loss"]["embeddings"],
    expected,
  )


def test_samples_and_dropout_depend_on_the_key(params):
  batch, _ = make_batch()
  objective = build_objective()
  jitted_loss = fast_jit(objective.loss, static_argnums=5)

  def losses_of_seed(seed, train):
    sums, _ = jitted_loss(params, {}, {}, batch, jax.random.key(seed), train)
    return {loss_name: float(loss_sum) for loss_name, loss_sum in sums.items()}

  assert losses_of_seed(0, False) == losses_of_seed(0, False)
  assert (
    losses_of_seed(0, False)["rtd_loss"] != losses_of_seed(1, False)["rtd_loss"]
  )
  assert (
    losses_of_seed(0, False)["mlm_loss"] == losses_of_seed(1, False)["mlm_loss"]
  )
  assert (
    losses_of_seed(0, True)["mlm_loss"] != losses_of_seed(1, True)["mlm_loss"]
  )


def test_bad_models_and_batches_are_refused():
  with pytest.raises(ValueError, match="family='bert'.*electra"):
    objectives.build("electra", MODEL_OPTIONS | {"family": "bert"}, {})
  with pytest.raises(ValueError, match="temperature=0.0"):
    build_objective(temperature=0.0)
  batch, _ = make_batch()
  odd_model = MODEL_OPTIONS | {"family": "electra", "generator_hidden": 129}
  with pytest.raises(
    ValueError, match="generator_hidden=129 must be a multiple of its 2 heads"
  ):
    objectives.build("electra", odd_model, {}).init(jax.random.key(0), batch)
  del batch["mlm_ids"]
  with pytest.raises(ValueError, match="needs mlm_ids.*makes input_ids"):
    build_objective().init(jax.random.key(0), batch)
