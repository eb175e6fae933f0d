"""Tests the loop over layers: unrolling, remat, shared layers and dropout."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import (
  FAMILY_NAMES,
  HIDDEN,
  build_encoder,
  fast_jit,
  random_encoder_params,
  random_params,
  token_ids,
)

from bert_jax.models import albert, heads, layers, stack, task_heads

IDS = token_ids(2, 9)
NUM_LAYERS = 4


def dropout_rngs(seed=0):
  return {"dropout": jax.random.key(seed)}


def build_shared(num_groups, **overrides):
  return build_encoder(
    "albert", num_layers=NUM_LAYERS, groups=num_groups, **overrides
  )


@functools.cache
def shared_parameters(num_groups):
  return random_params(build_shared(num_groups), jnp.ones((1, 4), jnp.int32))


SLOW_CASES = [(name, 0) for name in FAMILY_NAMES if name != "albert"]
SLOW_CASES += [("albert", num_groups) for num_groups in (1, 2, 4)]


@pytest.mark.parametrize(
  "name,num_groups",
  [
    ("albert", 0),
    *(pytest.param(*c, marks=pytest.mark.slow) for c in SLOW_CASES),
  ],
)
def test_unrolled_layers_with_remat_equal_the_loop(name, num_groups):
  """With dropout, outputs and gradients are equal up to rounding."""
  if num_groups:
    build_module, params = (
      functools.partial(build_shared, num_groups),
      shared_parameters(num_groups),
    )
  else:
    build_module, params = (
      functools.partial(build_encoder, name),
      random_encoder_params(name),
    )
  # A layer adds up many gradients. Divided by 20, the sums are about 1.
  weights = np.random.default_rng(0).normal(size=(2, 9, HIDDEN)) / 20

  def run(module):
    def loss(params):
      # With some other seeds, rounding errors reach 1.4e-6, above the bound.
      options = dict(train=True, rngs=dropout_rngs(1))
      hidden, _ = module.apply({"params": params}, IDS, **options)
      return (hidden * weights).sum(), hidden

    (_, hidden), grads = fast_jit(jax.value_and_grad(loss, has_aux=True))(
      params
    )
    return [hidden, *jax.tree.leaves(grads)]

  num_layers = build_module().num_layers
  loop_arrays, unrolled_arrays = (
    run(build_module()),
    run(build_module(unroll=num_layers, remat=True)),
  )
  for expected, array in zip(loop_arrays, unrolled_arrays, strict=True):
    atol = 1e-6 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(array, expected, rtol=0, atol=atol)


def test_unrolled_layers_do_not_stack_their_saved_arrays():
  """Arrays that layers save for the gradient are not copied into one array."""
  stacked_arrays_by_unroll = {}
  for unroll in (1, NUM_LAYERS):
    module = build_shared(num_groups=1, unroll=unroll)

    def loss(params, module=module):
      return module.apply(
        {"params": params}, IDS, train=True, rngs=dropout_rngs()
      )[0]

    grad = fast_jit(jax.grad(lambda params, loss=loss: loss(params).sum()))
    program_text = grad.lower(shared_parameters(1)).compile().as_text()
    stacked_arrays_by_unroll[unroll] = re.findall(
      rf"f32\[{NUM_LAYERS},2,9,\S*", program_text
    )
  assert (
    stacked_arrays_by_unroll[1] and not stacked_arrays_by_unroll[NUM_LAYERS]
  )


def hidden_states(module, params, train=False, seed=0):
  """Returns the hidden states of all layers."""
  run = fast_jit(functools.partial(module.apply, train=train, collect=True))
  return run({"params": params}, IDS, rngs=dropout_rngs(seed))[1]["hidden"]


@pytest.mark.parametrize("num_groups", [1, 2, 4])
def test_a_group_equals_repeated_copies_of_its_layer(num_groups):
  """ALBERT's stack equals a stack with a copy of the layer for each use."""
  module = build_encoder("bert", num_layers=NUM_LAYERS)
  layer_stack = stack.build(module)
  inputs = jnp.ones((1, 4, HIDDEN)), jnp.ones((1, 4), jnp.int32)
  shared_params = random_params(
    layer_stack.copy(num_groups=num_groups), *inputs, train=False
  )
  repeated_params = jax.tree.map(
    lambda x: jnp.repeat(x, NUM_LAYERS // num_groups, 0), shared_params
  )
  x = np.random.default_rng(1).normal(size=(2, 4, HIDDEN)).astype(np.float32)
  ids = np.array([[1, 1, 2, 0], [1, 1, 1, 1]], np.int32)
  grouped_outputs, repeated_outputs = (
    fast_jit(
      functools.partial(compared_stack.apply, train=False, collect=True)
    )({"params": stack_params}, x, ids)
    for compared_stack, stack_params in (
      (layer_stack.copy(num_groups=num_groups), shared_params),
      (layer_stack, repeated_params),
    )
  )
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, atol=1e-6),
    grouped_outputs,
    repeated_outputs,
  )


def test_shared_layers_run_at_any_depth():
  """The parameters of one shared layer are used for 6, 4 and 1 layers.

  A Universal Transformer uses its layer in this way.
  """
  params = shared_parameters(1)
  deep_states = hidden_states(build_encoder("albert", num_layers=6), params)
  usual_states = hidden_states(build_shared(num_groups=1), params)
  shallow_states = hidden_states(
    build_encoder("albert", num_layers=1, unroll=NUM_LAYERS), params
  )
  np.testing.assert_allclose(deep_states[:NUM_LAYERS], usual_states, atol=1e-6)
  np.testing.assert_allclose(shallow_states, usual_states[:1], atol=1e-6)
  with pytest.raises(ValueError, match="num_layers=3 is not a multiple of 2"):
    hidden_states(build_encoder("albert", num_layers=3, groups=2), params)


def kept_by_dropout(module, params, train=True):
  """Returns True for each element that the MLP's dropout kept, for each layer.

  Kernels are 0, the MLP's bias is 1 and the first LayerNorm returns 0. So a
  layer's output is the normalised dropout of ones, which is positive where
  dropout kept an element.
  """
  zero_params = jax.tree.map(jnp.zeros_like, params["layers"])
  zero_params["layer"]["mlp_out"]["bias"] += 1.0
  zero_params["layer"]["mlp_norm"]["scale"] += 1.0
  return (
    np.asarray(hidden_states(module, params | {"layers": zero_params}, train))
    > 0
  )


@pytest.mark.parametrize("num_groups", [1, 2, 4])
def test_each_use_of_a_layer_has_independent_dropout(num_groups):
  """Two uses of a layer keep the same element in half of the cases."""
  masks = kept_by_dropout(
    build_shared(num_groups, dropout=0.5), shared_parameters(num_groups)
  )
  assert masks.shape[0] == NUM_LAYERS
  bound = 5 * 0.5 / np.sqrt(masks[0].size)
  for i, mask in enumerate(masks):
    assert abs(mask.mean() - 0.5) < bound
    for earlier_mask in masks[:i]:
      assert abs((mask == earlier_mask).mean() - 0.5) < bound


def test_dropout_comes_before_the_residual_sum():
  """`AddNorm` computes the LayerNorm of x + dropout(y + bias)."""
  rng = np.random.default_rng(2)
  x, y = rng.normal(size=(2, 3, 4, HIDDEN)).astype(np.float32)
  bias = rng.normal(size=HIDDEN).astype(np.float32)
  layer = layers.AddNorm(epsilon=1e-12, rate=0.5, dtype=jnp.dtype("float32"))
  params = random_params(layer, x, y, bias, train=False)
  variables = {"params": params}
  key = layer.apply(
    variables, method=lambda m: m.make_rng("dropout"), rngs=dropout_rngs(0)
  )
  output, output_copy = layer.apply(
    variables, x, y, bias, train=True, rngs=dropout_rngs(0)
  )
  dropout_output = np.asarray(layers.dropout(y + bias, rate=0.5, key=key))
  assert 0.3 < (dropout_output == 0).mean() < 0.7
  total = x + dropout_output
  total -= total.mean(-1, keepdims=True)
  total /= np.sqrt((total**2).mean(-1, keepdims=True))
  scale, shift = (np.asarray(params[name]) for name in ("scale", "bias"))
  np.testing.assert_allclose(output, total * scale + shift, atol=1e-5)
  np.testing.assert_array_equal(output, output_copy)


def test_an_albert_without_dropout_has_dropout_before_its_classifier():
  """The encoders xxlarge_v1 and *_v2 have no dropout, but the logits vary."""
  encoders_by_variant = {name: albert.build(name) for name in albert.VARIANTS}
  rates = {
    name: (encoder.dropout, encoder.attention_dropout)
    for name, encoder in encoders_by_variant.items()
  }
  names_with_dropout = [
    name for name, rate in rates.items() if rate == (0.1, 0.1)
  ]
  assert names_with_dropout == ["base_v1", "large_v1", "xlarge_v1"]
  other_rates = {
    rate for name, rate in rates.items() if name not in names_with_dropout
  }
  assert other_rates == {(0.0, 0.0)}
  assert heads.Pooling(activation="tanh", dropout=0.1) == albert.POOLING
  module = build_encoder("albert", dropout=0.0, attention_dropout=0.0)
  np.testing.assert_array_equal(
    *(
      hidden_states(module, random_encoder_params("albert"), True, seed)
      for seed in (0, 1)
    )
  )
  model = task_heads.SequenceClassifier(module, albert.POOLING, num_labels=3)
  params = random_params(model, {"input_ids": IDS})
  run = fast_jit(functools.partial(model.apply, train=True))
  logits, other_logits = (
    run({"params": params}, {"input_ids": IDS}, rngs=dropout_rngs(seed))
    for seed in (0, 1)
  )
  assert (np.asarray(logits) != np.asarray(other_logits)).all()
