"""Compares products of 8-bit floats with numpy's products of rounded arrays."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax.kernels import fp8, fused
from bert_jax.models import bert


def round_to_8_bits(x, dtype):
  largest_value = np.float32(ml_dtypes.finfo(dtype).max)
  scale = np.float32(np.abs(x).max()) / largest_value
  return (x / scale).astype(dtype).astype(np.float32) * scale


def test_products_and_gradients_use_rounded_operands():
  rng = np.random.default_rng(0)
  x, kernel, gradient = (
    rng.normal(size=shape).astype(np.float32)
    for shape in ((3, 5, 8), (8, 2, 6), (3, 5, 2, 6))
  )
  y, vjp_function = jax.vjp(
    lambda x, k: fp8.product(x, k, num_summed_axes=1), x, kernel
  )
  forward_dtype, backward_dtype = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
  rounded_x, rounded_kernel, rounded_gradient = (
    round_to_8_bits(x, forward_dtype),
    round_to_8_bits(kernel, forward_dtype),
    round_to_8_bits(gradient, backward_dtype),
  )
  np.testing.assert_allclose(
    y, np.tensordot(rounded_x, rounded_kernel, 1), atol=1e-5
  )
  x_gradient, kernel_gradient = vjp_function(gradient)
  np.testing.assert_allclose(
    x_gradient,
    np.tensordot(rounded_gradient, rounded_kernel, ((2, 3), (1, 2))),
    atol=1e-5,
  )
  np.testing.assert_allclose(
    kernel_gradient,
    np.tensordot(rounded_x, rounded_gradient, ((0, 1), (0, 1))),
    atol=1e-5,
  )
  # Without rounding, the largest error would be about 0. A factor with 3 bits
  # of mantissa is off by up to 1/16.
  rounding_error = np.abs(y - np.tensordot(x, kernel, 1))
  largest_allowed_error = np.tensordot(np.abs(x), np.abs(kernel), 1) * (
    2 / 16 + 1 / 256
  )
  assert (
    rounding_error <= largest_allowed_error + 1e-2
  ).all() and rounding_error.max() > 1e-3


def test_zeros_and_large_values_stay_finite():
  x = jnp.array([[0.0, 3e38], [1.0, -3e38]])
  quantised, scale = fp8.quantise(x, fp8.FORWARD_DTYPE)
  assert np.isfinite(quantised.astype(jnp.float32)).all() and np.isfinite(scale)
  zeros, scale = fp8.quantise(jnp.zeros((2, 2)), fp8.BACKWARD_DTYPE)
  assert not zeros.astype(jnp.float32).any() and scale == 1.0


def test_fp8_is_used_only_if_it_is_named():
  ids = jnp.arange(12).reshape(1, 12)
  default_model, fp8_model = (
    bert.build(
      "tiny", vocab_size=50, hidden=32, heads=2, mlp=64, products=products
    )
    for products in ("auto", "fp8")
  )
  params = fast_jit(default_model.init)(jax.random.key(0), ids)
  hidden, fp8_hidden = (
    fast_jit(model.apply)(params, ids)[0]
    for model in (default_model, fp8_model)
  )
  assert hidden.dtype == fp8_hidden.dtype
  assert 1e-3 < jnp.abs(hidden - fp8_hidden).max() < 0.5
  with pytest.raises(ValueError, match="model.products='fp4' is not one of"):
    fused.choose_implementation("products", "fp4", jnp.bfloat16)
