"""Tests activations, dropout, attention masks and the stack of layers."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax.models import attention, bert, layers, primitives

TINY_SIZES = dict(vocab_size=50, hidden=32, num_layers=3, heads=4, mlp=64)


def test_both_gelus_have_known_values():
  """The exact GELU and its tanh form differ in the fourth decimal."""
  x = jnp.array([-1.0, 1.0, 2.0, 3.0])
  np.testing.assert_allclose(
    layers.activation("gelu")(x),
    [-0.158655, 0.841345, 1.954500, 2.995950],
    atol=1e-6,
  )
  np.testing.assert_allclose(
    layers.activation("gelu_new")(x),
    [-0.158808, 0.841192, 1.954598, 2.996363],
    atol=1e-6,
  )
  with pytest.raises(ValueError, match="swish.*gelu"):
    layers.activation("swish")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_attention_in_a_row_of_padding_is_finite(dtype):
  """Outputs and gradients of a row of padding are finite, in every dtype.

  In a row with tokens, a masked key gets a probability of exactly 0.
  """
  qkv = jax.random.normal(jax.random.key(0), (2, 3, 2, 3, 4), dtype)
  bias, ids = jnp.zeros((2, 3, 4)), jnp.array([[0, 0, 0], [1, 1, 0]])
  vectors, probabilities = fast_jit(attention.attention)(qkv, bias, ids)
  assert vectors.dtype == dtype and bool(jnp.isfinite(vectors).all())
  assert probabilities[1, :, :, 2].tolist() == [[0.0] * 3] * 2
  np.testing.assert_allclose(probabilities[0], 1 / 3, rtol=1e-6)

  def total(x):
    return attention.attention(x, bias, ids)[0].astype(jnp.float32).sum()

  grad = fast_jit(jax.grad(total))(qkv)
  assert bool(jnp.isfinite(grad).all())


def test_unknown_attention_is_refused():
  qkv, ids = jnp.zeros((1, 2, 1, 3, 4)), jnp.ones((1, 2), jnp.int32)
  for name, message_part in (
    ("flash", "flash.*xla"),
    ("triton", "'cpu'.*auto"),
  ):
    with pytest.raises(ValueError, match=message_part):
      attention.attention(qkv, jnp.zeros((1, 3, 4)), ids, implementation=name)


def test_sequences_of_a_row_do_not_see_each_other():
  """No token sees padding. A padding token sees the first sequence."""
  mask = attention.attention_mask(jnp.array([[1, 1, 2, 0]]))[0, 0]
  expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0]]
  assert mask.astype(int).tolist() == expected


def kept_by_dropout(shape, rate, seed=0):
  x = jnp.ones(shape)
  return np.asarray(layers.dropout(x, rate, jax.random.key(seed))) > 0


def test_dropout_bits_are_uniform_and_independent():
  shape = (64, 50, 128)
  is_kept = kept_by_dropout(shape, rate=0.1)
  num_elements = is_kept.size
  # The bound is five standard deviations of the mean of independent draws.
  bound = 5 * np.sqrt(0.09 / num_elements)
  assert abs(is_kept.mean() - 0.9) < bound
  for axis in range(3):
    mean_by_index = is_kept.mean(axis=tuple(a for a in range(3) if a != axis))
    assert abs(mean_by_index - 0.9).max() < 6 * np.sqrt(
      0.09 * shape[axis] / num_elements
    )
    # Two elements are both kept as often as with independent draws. The two are
    # half the axis apart, or neighbours.
    a, b = np.split(is_kept, [shape[axis] // 2], axis)
    for mask, other_mask in ((a, b), (is_kept, np.roll(is_kept, 1, axis))):
      share_of_both = (mask & other_mask).mean()
      assert abs(share_of_both - 0.81) < 6 * np.sqrt(0.81 * 0.19 / mask.size)
  other_is_kept = kept_by_dropout(shape, rate=0.1, seed=1)
  assert abs((is_kept & other_is_kept).mean() - 0.81) < 6 * np.sqrt(
    0.81 * 0.19 / num_elements
  )


@pytest.mark.parametrize(
  "rate,bound", [(0.02, 0.05), (0.1, 0.03), (0.5, 0.012)]
)
def test_dropout_of_rectangles_is_independent(rate, bound):
  """The products of the four corners of rectangles have a mean of 0.

  Only this test fails if the hash mixes too little: with an exclusive or in
  place of the hash's product, the mean squares would be 1.04 to 1.4. The bounds
  are four standard deviations of independent draws.
  """
  is_dropped = ~kept_by_dropout((8, 256, 512), rate, seed=5).reshape(-1, 512)
  x = (is_dropped - rate) / np.sqrt(rate * (1 - rate))
  for rows in (x, x.T):
    row_products = (rows @ rows.T) / np.sqrt(rows.shape[1])
    np.fill_diagonal(row_products, 0)
    mean_square = (row_products**2).sum() / (
      len(row_products) * (len(row_products) - 1)
    )
    assert abs(mean_square - 1) < bound


def test_each_high_dropout_bit_is_random():
  """Dropout compares the bits 8 to 31. Each is 1 in half of the draws."""
  bits = np.asarray(
    primitives.dropout_bits(jnp.array([1, 2], jnp.uint32), (256, 1024))
  )
  shares_of_ones = [
    ((bits >> bit_index) & 1).mean() for bit_index in range(8, 32)
  ]
  assert np.abs(np.array(shares_of_ones) - 0.5).max() < 5 * 0.5 / np.sqrt(
    bits.size
  )
  assert len(np.unique(bits)) > 0.9999 * bits.size


def test_dropout_scales_and_its_gradient_uses_the_same_bits():
  x = jax.random.normal(jax.random.key(3), (8, 16, 32))
  key = jax.random.key(4)
  y = layers.dropout(x, rate=0.25, key=key)
  is_kept = np.asarray(y) != 0
  np.testing.assert_allclose(y, np.where(is_kept, x / 0.75, 0), rtol=1e-6)
  gradient = jax.grad(
    lambda x: (layers.dropout(x, rate=0.25, key=key) * 3).sum()
  )(x)
  np.testing.assert_allclose(gradient, np.where(is_kept, 4.0, 0.0), rtol=1e-6)
  assert layers.dropout(x, rate=0.0, key=key) is x
  with pytest.raises(ValueError, match="1.0"):
    layers.dropout(x, rate=1.0, key=key)


def test_a_slice_has_the_dropout_bits_of_the_full_array():
  """The bits of an element depend only on its index in the full array."""
  seed = jnp.array([7, 9], jnp.uint32)
  all_bits = primitives.dropout_bits(seed, (8, 4, 6))
  np.testing.assert_array_equal(
    all_bits[:3], primitives.dropout_bits(seed, (3, 4, 6))
  )


def build_encoder(**changes):
  return bert.Bert(**TINY_SIZES | changes)


def run_module(module, params, seed=0, train=True, **inputs):
  rngs = {"dropout": jax.random.key(seed)}
  collect = inputs.pop("collect", False)
  run = fast_jit(functools.partial(module.apply, train=train, collect=collect))
  return run({"params": params}, rngs=rngs, **inputs)


@pytest.fixture(scope="module")
def params():
  ids = jnp.zeros((1, 4), jnp.int32)
  return nn.unbox(fast_jit(build_encoder().init)(jax.random.key(0), ids))[
    "params"
  ]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [dict(unroll=3), dict(remat=True)])
def test_unroll_and_remat_change_no_loss_and_no_gradient(params, overrides):
  """With dropout, the loss and its gradients are equal up to rounding.

  A Python loop over the layers would draw different dropout bits.
  """
  ids = jax.random.randint(jax.random.key(1), (2, 9), 0, 50)

  def loss(params, module):
    rngs = {"dropout": jax.random.key(0)}
    output = module.apply({"params": params}, ids, rngs=rngs, train=True)
    return (output[0] ** 2).mean()

  loss_and_gradients = fast_jit(jax.value_and_grad(loss), static_argnums=1)
  expected_loss, expected_gradients = loss_and_gradients(
    params, build_encoder()
  )
  actual_loss, actual_gradients = loss_and_gradients(
    params, build_encoder(**overrides)
  )
  # Only the order of float32 additions differs.
  np.testing.assert_allclose(expected_loss, actual_loss, rtol=1e-6)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
    expected_gradients,
    actual_gradients,
  )


def test_layers_draw_different_dropout(params):
  equal_layers = jax.tree.map(lambda x: x.at[:].set(x[:1]), params["layers"])
  ids = jax.random.randint(jax.random.key(1), (1, 9), 0, 50)
  zero_layers = jax.tree.map(jnp.zeros_like, equal_layers)
  # With kernels of zero, dropout would act on zeros. So the MLP gets a bias, on
  # which dropout acts.
  bias = zero_layers["layer"]["mlp_out"]["bias"] + 1.0
  zero_layers["layer"]["mlp_out"]["bias"] = bias
  zero_layers["layer"]["attention_norm"]["scale"] += 1.0
  zero_layers["layer"]["mlp_norm"]["bias"] += 0.0
  zero_layers["layer"]["mlp_norm"]["scale"] += 1.0
  module = build_encoder(dropout=0.5)
  _, collected = run_module(
    module, params | {"layers": zero_layers}, input_ids=ids, collect=True
  )
  first_states, second_states = collected["hidden"][0], collected["hidden"][1]
  assert not np.allclose(first_states, second_states, atol=1e-3)
  _, repeated_collection = run_module(
    module, params | {"layers": zero_layers}, input_ids=ids, collect=True
  )
  np.testing.assert_array_equal(
    collected["hidden"], repeated_collection["hidden"]
  )


def test_wrong_sizes_and_names_are_refused():
  ids = jnp.zeros((1, 9), jnp.int32)
  with pytest.raises(ValueError, match="length 9.*max_positions=8"):
    build_encoder(max_positions=8).init(jax.random.key(0), ids)
  with pytest.raises(ValueError, match="hidden=30.*heads=4"):
    build_encoder(hidden=30).init(jax.random.key(0), ids)
  with pytest.raises(ValueError, match="'tinny'.*tiny"):
    bert.build("tinny")
  with pytest.raises(ValueError, match="dropuot.*'dropout'"):
    bert.build("tiny", dropuot=0.1)


def test_a_bfloat16_model_has_float32_parameters():
  module = build_encoder(dtype=jnp.dtype("bfloat16"))
  ids = jnp.zeros((1, 4), jnp.int32)
  params = nn.unbox(fast_jit(module.init)(jax.random.key(0), ids))["params"]
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
  assert run_module(module, params, input_ids=ids)[0].dtype == jnp.bfloat16
