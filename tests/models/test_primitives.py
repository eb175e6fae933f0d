"""Tests derivatives and `vmap` of dropout and of the float32 product."""

import functools
import io
from contextlib import redirect_stdout

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_families
from jax.ad_checkpoint import print_saved_residuals

from bert_jax.models import bert, primitives

pytestmark = pytest.mark.usefixtures("fast_compilation")
SEED = jnp.array([7, 9], jnp.uint32)
EINSUM_SPEC = "bqhk,bshk->bhqs"


def random_array(*shape, dtype="float32", seed=0):
  return jax.random.normal(jax.random.key(seed), shape, dtype)


def saved_shapes(function, *arguments):
  """Returns the dtypes and shapes that the forward pass saves.

  The arguments of the function are left out.
  """
  with redirect_stdout(io.StringIO()) as text:
    print_saved_residuals(function, *arguments)
  lines = text.getvalue().splitlines()
  return [line.split()[0] for line in lines if "argument" not in line]


def apply_dropout(x):
  return primitives.dropout(x, SEED, rate=0.25)


def multiply(a, b):
  return primitives.float32_einsum(EINSUM_SPEC, a, b)


def test_derivatives_of_dropout_are_dropout():
  x, input_tangent = random_array(4, 3, 8), random_array(4, 3, 8, seed=1)
  y, output_tangent = jax.jvp(apply_dropout, (x,), (input_tangent,))
  np.testing.assert_array_equal(y, apply_dropout(x))
  np.testing.assert_array_equal(output_tangent, apply_dropout(input_tangent))
  _, vjp_function = jax.vjp(apply_dropout, x)
  np.testing.assert_array_equal(
    vjp_function(input_tangent)[0], apply_dropout(input_tangent)
  )
  hessian = jax.hessian(lambda x: (apply_dropout(x) ** 2).sum())(x[:1, :1, :4])
  factors = np.asarray(apply_dropout(jnp.ones((1, 1, 4)))).ravel()
  np.testing.assert_allclose(hessian.reshape(4, 4), np.diag(2 * factors**2))


@pytest.mark.parametrize("x_axis, seed_axis", [(1, 0), (1, None), (None, 0)])
def test_vmap_of_dropout_equals_single_calls(x_axis, seed_axis):
  x = random_array(4, 3, 8)
  if seed_axis is None:
    seeds, seed_of_index = SEED, lambda i: SEED
  else:
    seeds = jnp.arange(6, dtype=jnp.uint32).reshape(3, 2)
    seed_of_index = seeds.__getitem__

  def apply_with_seed(x, seed):
    return primitives.dropout(x, seed, rate=0.25)

  def sum_of_squares(x, seeds):
    return (jax.vmap(apply_with_seed, (x_axis, seed_axis))(x, seeds) ** 2).sum()

  y = jax.vmap(apply_with_seed, (x_axis, seed_axis))(x, seeds)
  rows = [x[:, i] if x_axis else x for i in range(3)]
  expected = [
    apply_with_seed(row, seed_of_index(i)) for i, row in enumerate(rows)
  ]
  np.testing.assert_array_equal(y, jnp.stack(expected))
  gradient = jax.grad(sum_of_squares)(x, seeds)
  gradients = [
    jax.grad(
      lambda row, i=i: (apply_with_seed(row, seed_of_index(i)) ** 2).sum()
    )(row)
    for i, row in enumerate(rows)
  ]
  expected = jnp.stack(gradients, 1) if x_axis else sum(gradients)
  np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_dropout_saves_only_its_seed():
  """The backward pass computes the mask again, also in a scan or a `remat`."""

  def apply_dropout_in_a_scan(x):
    return jax.lax.scan(lambda x, _: (apply_dropout(x), None), x, length=3)[
      0
    ].sum()

  for function in (apply_dropout, jax.checkpoint(apply_dropout)):
    shapes = saved_shapes(
      lambda x, f=function: f(x).sum(), random_array(4, 3, 8)
    )
    assert {*shapes} <= {"u32[2]"}, shapes
  shapes = saved_shapes(apply_dropout_in_a_scan, random_array(4, 3, 8))
  assert not [shape for shape in shapes if "4,3,8" in shape], shapes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_the_product_has_the_dtype_of_its_inputs(dtype):
  a, b = (
    random_array(2, 3, 2, 4, dtype=dtype),
    random_array(2, 5, 2, 4, dtype=dtype, seed=1),
  )
  cotangent = random_array(2, 2, 3, 5, seed=2)
  y, vjp_function = jax.vjp(multiply, a, b)
  assert y.dtype == jnp.float32
  _, expected_vjp_function = jax.vjp(
    functools.partial(jnp.einsum, EINSUM_SPEC), a, b
  )
  for actual, expected in zip(
    vjp_function(cotangent),
    expected_vjp_function(cotangent.astype(dtype)),
    strict=True,
  ):
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, expected)
  assert not saved_shapes(lambda a, b: multiply(a, b).sum(), a, b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jvp_and_vmap_of_the_product_equal_single_products(dtype):
  a, b = (
    random_array(2, 3, 2, 4, dtype=dtype),
    random_array(2, 5, 2, 4, dtype=dtype, seed=1),
  )
  a_tangent, b_tangent = a[::-1], b[:, ::-1]
  y, tangent = jax.jvp(multiply, (a, b), (a_tangent, b_tangent))
  np.testing.assert_array_equal(y, multiply(a, b))
  expected = multiply(a_tangent, b) + multiply(a, b_tangent)
  np.testing.assert_allclose(tangent, expected, rtol=1e-6)
  for axes in ((0, 0), (1, None), (None, 2)):
    operands = [
      x if axis is None else jnp.stack([x, 2 * x, 3 * x], axis)
      for x, axis in zip((a, b), axes, strict=True)
    ]
    batched_output = jax.vmap(multiply, axes)(*operands)
    num_scaled_operands = 2 - axes.count(None)
    for i, batch_row in enumerate(batched_output):
      # Multiplication by 2 is exact. `3 * x` is rounded.
      rtol = 1e-6 if dtype == "float32" else 0.03
      np.testing.assert_allclose(
        batch_row, y * (i + 1) ** num_scaled_operands, rtol, 1e-2
      )


TINY_SIZES = dict(tiny_families.SIZES, num_layers=1, hidden=8, heads=2, mlp=16)
IDS = tiny_families.token_ids(2, 5)


def encode(params, ids, key, dtype="float32"):
  module = bert.Bert(**TINY_SIZES | {"dtype": jnp.dtype(dtype)})
  inputs = {"params": params}, ids
  return module.apply(*inputs, train=True, rngs={"dropout": key})[0]


@pytest.fixture(scope="module")
def params():
  return tiny_families.random_params(bert.Bert(**TINY_SIZES), IDS)


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-4), ("bfloat16", 3e-2)])
def test_forward_and_reverse_derivatives_of_an_encoder_agree(
  params, dtype, rtol
):
  """`jvp` agrees with `grad`, and a Hessian product with that of `jacfwd`."""
  tangents = jax.tree.map(
    lambda x: np.cos(np.arange(x.size, dtype="f")).reshape(x.shape), params
  )

  def loss(params):
    hidden = encode(params, IDS, jax.random.key(3), dtype)
    return jnp.sin(hidden).mean(dtype="float32")

  def loss_of_scale(scale):
    norm = params["embeddings"]["norm"] | {"scale": scale}
    embeddings = params["embeddings"] | {"norm": norm}
    return loss(params | {"embeddings": embeddings})

  @tiny_families.fast_jit
  def first_derivatives(params):
    return jax.jvp(loss, (params,), (tangents,))[1], jax.grad(loss)(params)

  @tiny_families.fast_jit
  def second_derivatives(scale):
    tangent = jnp.cos(jnp.arange(8.0))
    gradient = jax.grad(loss_of_scale)
    hessian_product = jax.jvp(gradient, (scale,), (tangent,))[1]
    return hessian_product, jax.jacfwd(gradient)(scale) @ tangent

  slope, gradient = first_derivatives(params)
  products = jax.tree.map(lambda g, t: (g * t).sum(), gradient, tangents)
  expected = sum(jax.tree.leaves(products))
  assert abs(float(expected)) > 1e-3
  np.testing.assert_allclose(slope, expected, rtol=rtol)
  if dtype == "float32":
    hessian_product, expected = second_derivatives(
      params["embeddings"]["norm"]["scale"]
    )
    assert float(jnp.abs(expected).max()) > 1e-4
    np.testing.assert_allclose(hessian_product, expected, rtol=1e-4, atol=1e-7)


def test_vmap_over_batches_keys_and_models_equals_single_calls(params):
  """Each index of the mapped axis gives the result of a single call."""
  ids = np.stack([IDS, IDS[::-1]])
  keys = jax.random.split(jax.random.key(1), 2)
  stacked_params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params)
  batched_outputs = tiny_families.fast_jit(jax.vmap(encode))(
    stacked_params, ids, keys
  )
  encode_one = tiny_families.fast_jit(encode)
  for i, actual in enumerate(batched_outputs):
    single_params = jax.tree.map(lambda x, i=i: x[i], stacked_params)
    expected = encode_one(single_params, ids[i], keys[i])
    np.testing.assert_allclose(actual, expected, atol=1e-5)
