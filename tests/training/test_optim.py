"""Tests schedules, Adam with or without bias correction, and weight decay."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from tiny_families import fast_jit

from bert_jax import models
from bert_jax.models import bert
from bert_jax.training import optim

OPTIMIZER_OPTIONS = dict(
  b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.01, clip_norm=0.0
)


def learning_rates(name, total, warmup, peak, steps):
  schedule = optim.build_schedule(total, name, peak, warmup)
  return [float(schedule(step)) for step in steps]


def test_linear_schedule_never_goes_below_zero():
  """The rate stays at zero after the last step."""
  computed_rates = learning_rates(
    "linear",
    total=40_000,
    warmup=0.25,
    peak=5e-3,
    steps=[0, 1, 10_000, 25_000, 40_000, 40_001, 10**6],
  )
  np.testing.assert_allclose(
    computed_rates, [0, 5e-7, 5e-3, 2.5e-3, 0, 0, 0], rtol=1e-6, atol=1e-12
  )


def test_bert_schedule_jumps_down_at_the_end_of_warm_up():
  """The decay counts from step 0, not from the end of the warm-up.

  So after a warm-up of w of the T steps, the rate is 1 - w / T of the peak.
  """
  computed_rates = learning_rates(
    "bert",
    total=1_000_000,
    warmup=0.01,
    peak=1e-4,
    steps=[0, 1, 9_999, 10_000, 500_000, 1_000_000],
  )
  np.testing.assert_allclose(
    computed_rates,
    [0, 1e-8, 0.9999e-4, 0.99e-4, 0.5e-4, 0],
    rtol=1e-5,
    atol=1e-12,
  )


def test_electra_schedule_multiplies_decay_and_warm_up():
  """The rate does not jump.

  The highest rate is at the end of the warm-up, 0.9 of the argument `peak`.
  """
  computed_rates = learning_rates(
    "electra",
    total=1000,
    warmup=0.1,
    peak=2e-4,
    steps=[0, 50, 99, 100, 500, 1000, 1001],
  )
  shares = [0, 0.5 * 0.95, 0.99 * 0.901, 0.9, 0.5, 0, 0]
  np.testing.assert_allclose(
    computed_rates, np.multiply(shares, 2e-4), rtol=1e-5, atol=1e-12
  )


def test_cosine_schedule_ends_at_zero():
  computed_rates = learning_rates(
    "cosine",
    total=1000,
    warmup=0.2,
    peak=2.5e-4,
    steps=[0, 100, 200, 400, 600, 1000, 2000],
  )
  shares = [0, 0.5, 1, 0.5 + 0.5 * 0.5**0.5, 0.5, 0, 0]
  np.testing.assert_allclose(
    computed_rates, np.multiply(shares, 2.5e-4), rtol=1e-5, atol=1e-10
  )


@pytest.mark.parametrize(
  "name, total, warmup, warmup_steps",
  [
    # Rounded down: the programs of BERT and ELECTRA compute
    # int(num_train_steps * warmup_proportion).
    ("bert", 345, 0.1, 34),
    ("bert", 36_815, 0.1, 3681),
    ("bert", 19, 0.1, 1),
    ("bert", 9, 0.1, 0),
    ("electra", 2299, 0.1, 229),
    # Rounded down by our choice: the program of GPT-1 does not round
    # (openai/finetune-transformer-lm opt.py).
    ("cosine", 1999, 0.2, 399),
    # Rounded up: transformers computes
    # math.ceil(num_training_steps * warmup_ratio).
    ("linear", 345, 0.1, 35),
    ("linear", 6150, 0.05, 308),
    ("linear", 500_000, 0.06, 30_000),
  ],
)
def test_warm_up_steps_are_rounded_as_published(
  name, total, warmup, warmup_steps
):
  rising_rates = learning_rates(
    name, total, warmup, peak=1.0, steps=range(warmup_steps)
  )
  factors = [step / warmup_steps for step in range(warmup_steps)]
  if name == "electra":
    factors = [
      factor * (1 - step / total) for step, factor in enumerate(factors)
    ]
  np.testing.assert_allclose(rising_rates, factors, rtol=1e-5)
  rate_after_warmup = 1.0
  if name in ("bert", "electra"):
    rate_after_warmup = 1 - warmup_steps / total
  computed_rates = learning_rates(
    name, total, warmup, peak=1.0, steps=[warmup_steps]
  )
  np.testing.assert_allclose(computed_rates, [rate_after_warmup], rtol=1e-5)


@pytest.mark.parametrize("name", ["bert", "electra", "linear"])
def test_without_a_warm_up_the_first_rate_is_the_peak(name):
  """From the first step on, the rate falls to 0."""
  computed_rates = learning_rates(
    name, total=10, warmup=0.0, peak=1.0, steps=range(11)
  )
  np.testing.assert_allclose(
    computed_rates, [1 - i / 10 for i in range(11)], atol=1e-6
  )


def test_bad_schedules_are_refused():
  with pytest.raises(ValueError, match="'cosines'.*bert, electra, linear"):
    optim.build_schedule(10, "cosines", peak=1.0, warmup=0.1)
  with pytest.raises(ValueError, match="warmup=1000"):
    optim.build_schedule(10, "bert", peak=1.0, warmup=1000)
  with pytest.raises(ValueError, match="'adam'.*adamw_bert"):
    optim.build_optimizer(lambda s: 1.0, "adam", **OPTIMIZER_OPTIONS)


def bert_params():
  module = bert.ForPreTraining(bert.build("tiny", vocab_size=11))
  ids = jnp.zeros((1, 3), jnp.int32)
  batch = dict(input_ids=ids, mlm_positions=ids, cls_positions=ids[:, :1])
  return nn.unbox(fast_jit(module.init)(jax.random.key(0), batch))["params"]


def test_only_kernels_and_embeddings_decay():
  """The name of a parameter decides, not its rank or its module's name."""
  params = bert_params()
  params["layer_norm"] = {"scale": jnp.ones((2, 3)), "bias": jnp.ones((2, 3))}
  params["ln_1"] = {"scale": jnp.ones(3)}
  params = fast_jit(lambda tree: jax.tree.map(lambda x: x + 1.0, tree))(params)
  optimizer = optim.build_optimizer(
    lambda step: 0.1, "adamw_bert", **OPTIMIZER_OPTIONS | {"weight_decay": 0.1}
  )

  @fast_jit
  def update(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return optimizer.update(zeros, optimizer.init(params), params)

  updates, _ = update(params)
  changed_names, unchanged_names = set(), set()
  for path, leaf in jax.tree_util.tree_leaves_with_path(updates):
    name = "/".join(key.key for key in path)
    (changed_names if np.asarray(leaf).all() else unchanged_names).add(name)
    assert np.asarray(leaf).all() or not np.asarray(leaf).any(), name
  layer = "encoder/layers/layer"
  assert changed_names == {
    "encoder/embeddings/word/embedding",
    "encoder/embeddings/position/embedding",
    "encoder/embeddings/segment/embedding",
    f"{layer}/attention/query/kernel",
    f"{layer}/attention/key/kernel",
    f"{layer}/attention/value/kernel",
    f"{layer}/attention/output/kernel",
    f"{layer}/mlp_in/kernel",
    f"{layer}/mlp_out/kernel",
    "mlm/dense/kernel",
    "pooler/dense/kernel",
    "pair/dense/kernel",
  }
  assert {"mlm/bias", "layer_norm/scale", "ln_1/scale"} < unchanged_names
  assert f"{layer}/mlp_norm/scale" in unchanged_names
  with pytest.raises(ValueError, match="mystery/omega"):
    optim.decay_mask({"mystery": {"omega": jnp.ones(3)}})


def adam_in_python(grads, weight, rate, decay, is_corrected):
  """Computes Adam for one number in plain Python."""
  mean = mean_of_squares = 0.0
  for step, grad in enumerate(grads, 1):
    mean = 0.9 * mean + 0.1 * grad
    mean_of_squares = 0.999 * mean_of_squares + 0.001 * grad * grad
    corrected_mean, corrected_mean_of_squares = (
      (mean / (1 - 0.9**step), mean_of_squares / (1 - 0.999**step))
      if is_corrected
      else (mean, mean_of_squares)
    )
    weight -= rate * (
      corrected_mean / (corrected_mean_of_squares**0.5 + 1e-6) + decay * weight
    )
  return weight


@pytest.mark.parametrize("name", ["adamw_bert", "adamw"])
def test_adam_equals_plain_python(name):
  grads = [0.3, -0.1, 0.7, 0.7]
  optimizer = optim.build_optimizer(
    lambda step: 0.01, name, **OPTIMIZER_OPTIONS
  )
  params = {"kernel": jnp.array([0.5])}
  state = optimizer.init(params)
  for grad in grads:
    updates, state = optimizer.update(
      {"kernel": jnp.array([grad])}, state, params
    )
    params = optax.apply_updates(params, updates)
  expected = adam_in_python(
    grads, weight=0.5, rate=0.01, decay=0.01, is_corrected=name == "adamw"
  )
  np.testing.assert_allclose(params["kernel"][0], expected, rtol=1e-6)


def test_gradients_are_clipped_by_the_global_norm():
  optimizer = optim.build_optimizer(
    lambda step: 1.0,
    "adamw_bert",
    **OPTIMIZER_OPTIONS
    | {"clip_norm": 1.0, "b1": 0.0, "b2": 0.0, "weight_decay": 0.0},
  )
  params = {"a": {"kernel": jnp.zeros(1)}, "b": {"kernel": jnp.zeros(1)}}
  grads = {"a": {"kernel": jnp.array([3.0])}, "b": {"kernel": jnp.array([4.0])}}
  _, state = optimizer.update(grads, optimizer.init(params), params)
  adam_state = state[1]
  np.testing.assert_allclose(adam_state.mu["a"]["kernel"], [0.6], rtol=1e-6)
  np.testing.assert_allclose(adam_state.mu["b"]["kernel"], [0.8], rtol=1e-6)


SMALL_SIZES = dict(hidden=8, heads=2, mlp=16, num_layers=2, vocab_size=11)
SIZES_BY_FAMILY = {
  "albert": dict(embedding_size=4),
  "electra": dict(embedding_size=4, generator_hidden=8),
}


@pytest.mark.parametrize("name", models.FAMILIES)
def test_every_family_has_a_rule_for_every_parameter(name):
  family = models.family(name)
  variant = next(iter(family.VARIANTS))
  encoder = family.build(variant, **SMALL_SIZES | SIZES_BY_FAMILY.get(name, {}))
  ids = jnp.zeros((1, 3), jnp.int32)
  batch = dict(input_ids=ids, mlm_positions=ids, cls_positions=ids[:, :1])
  module = family.ForPreTraining(encoder)
  shapes = jax.eval_shape(module.init, jax.random.key(0), batch)["params"]
  mask = optim.decay_mask(nn.unbox(shapes))
  for path, decays in jax.tree_util.tree_leaves_with_path(mask):
    names = [key.key for key in path]
    is_norm_or_bias = "norm" in names[-2] or names[-1] == "bias"
    assert decays == (not is_norm_or_bias), names


def test_a_decay_mask_can_be_given():
  """The function `optim.decay_mask` would refuse the names "w" and "b"."""
  params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
  optimizer = optim.build_optimizer(
    lambda step: 1.0,
    "adamw",
    b1=0.9,
    b2=0.999,
    epsilon=1e-6,
    weight_decay=0.5,
    clip_norm=0.0,
    decay_mask=lambda params: {"w": True, "b": False},
  )
  zeros = jax.tree.map(jnp.zeros_like, params)
  updates, _ = optimizer.update(zeros, optimizer.init(params), params)
  np.testing.assert_allclose(updates["w"], -0.5)
  np.testing.assert_allclose(updates["b"], 0.0)
