"""Products of 8-bit floats, for GPUs that can multiply them (from H100 on).

Only the option `model.products="fp8"` selects them. In each step every operand
is divided by a scale, so that its largest absolute value in that step becomes
the largest 8-bit float. Activations and weights are e4m3, gradients are e5m2
(Micikevicius et al. 2022, section 4). Sums are float32, and the product has the
dtype of the computation.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

FORWARD_DTYPE, BACKWARD_DTYPE = jnp.float8_e4m3fn, jnp.float8_e5m2
# An array of 8-bit floats, and its float32 scale.
ScaledArray = tuple[Array, Array]
# The forward pass saves these arrays: both operands, and an empty array with
# the dtype of the computation.
_SavedArrays = tuple[ScaledArray, ScaledArray, Array]


def quantise(x: Float[Array, "..."], dtype: jnp.dtype) -> ScaledArray:
  """Returns x / scale in 8 bits, and the scale, which is 1 if x is all 0."""
  limit = float(jnp.finfo(dtype).max)
  largest = jnp.abs(x).max().astype(jnp.float32)
  scale = jnp.where(largest > 0, largest / limit, 1.0)
  scaled_x = jnp.clip(x.astype(jnp.float32) / scale, -limit, limit)
  return scaled_x.astype(dtype), scale


def _scaled_dot(
  left: ScaledArray,
  right: ScaledArray,
  summed_axes: tuple[int, int],
  dtype: jnp.dtype,
) -> Array:
  """Multiplies two scaled matrices; see `fused.dot` for `summed_axes`."""
  # XLA recognises an 8-bit product only in this form: each operand is converted
  # and multiplied by its scale before the product.
  left_values, right_values = (
    x.astype(dtype) * scale.astype(dtype) for x, scale in (left, right)
  )
  return jax.lax.dot_general(
    left_values,
    right_values,
    (((summed_axes[0],), (summed_axes[1],)), ((), ())),
  )


@jax.custom_vjp
def _product(x: Float[Array, "m k"], kernel: Float[Array, "k n"]) -> Array:
  return _forward(x, kernel)[0]


def _forward(x: Array, kernel: Array) -> tuple[Array, _SavedArrays]:
  scaled_x, scaled_kernel = (
    quantise(x, FORWARD_DTYPE),
    quantise(kernel, FORWARD_DTYPE),
  )
  empty = jnp.zeros((0,), x.dtype)
  y = _scaled_dot(scaled_x, scaled_kernel, (1, 0), x.dtype)
  return y, (scaled_x, scaled_kernel, empty)


def _backward(saved: _SavedArrays, gradient: Array) -> tuple[Array, Array]:
  scaled_x, scaled_kernel, empty = saved
  dtype = empty.dtype
  scaled_gradient = quantise(gradient, BACKWARD_DTYPE)
  return (
    _scaled_dot(scaled_gradient, scaled_kernel, (1, 1), dtype),
    _scaled_dot(scaled_x, scaled_gradient, (0, 0), dtype),
  )


_product.defvjp(_forward, _backward)


def product(
  x: Float[Array, "..."], kernel: Float[Array, "..."], num_summed_axes: int
) -> Float[Array, "..."]:
  """Multiplies an array and a kernel of one dtype; the product has this dtype.

  Args:
    x: the array.
    kernel: the kernel.
    num_summed_axes: the number of axes that the product sums over. These are
      the last axes of `x` and the first axes of the kernel.
  """
  batch_shape = x.shape[: x.ndim - num_summed_axes]
  feature_shape = kernel.shape[num_summed_axes:]
  num_summed = math.prod(kernel.shape[:num_summed_axes])
  y = _product(x.reshape(-1, num_summed), kernel.reshape(num_summed, -1))
  return y.reshape(*batch_shape, *feature_shape)
