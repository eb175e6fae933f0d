"""Products of 8-bit floats, by name: for GPUs that multiply them (H100 on).

Each operand is scaled by its own largest value of the step, no history: e4m3
for activations and weights, e5m2 for gradients (Micikevicius et al. 2022,
section 4). Sums are in float32, results in the computation's dtype; parameters,
statistics and everything else are as without.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

FORWARD, BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2
Scaled = tuple[Array, Array]


def quantise(x: Float[Array, "..."], dtype: jnp.dtype) -> Scaled:
  """Returns x / scale in 8 bits and the float32 scale; 1 for zeros."""
  largest = float(jnp.finfo(dtype).max)
  highest = jnp.abs(x).max().astype(jnp.float32)
  scale = jnp.where(highest > 0, highest / largest, 1.0)
  scaled = jnp.clip(x.astype(jnp.float32) / scale, -largest, largest)
  return scaled.astype(dtype), scale


def _dot(one: Scaled, two: Scaled, contract: tuple[int, int], dtype) -> Array:
  # The form in which XLA finds an 8-bit product.
  a, b = (x.astype(dtype) * scale.astype(dtype) for x, scale in (one, two))
  return jax.lax.dot_general(a, b, (((contract[0],), (contract[1],)), ((), ())))


@jax.custom_vjp
def _product(x: Float[Array, "m k"], kernel: Float[Array, "k n"]) -> Array:
  return _forward(x, kernel)[0]


def _forward(x, kernel):
  one, two = quantise(x, FORWARD), quantise(kernel, FORWARD)
  empty = jnp.zeros((0,), x.dtype)
  return _dot(one, two, (1, 0), x.dtype), (one, two, empty)


def _backward(saved, gradient):
  one, two, empty = saved
  g = quantise(gradient, BACKWARD)
  return _dot(g, two, (1, 1), empty.dtype), _dot(one, g, (0, 0), empty.dtype)


_product.defvjp(_forward, _backward)


def product(
  x: Float[Array, "..."], kernel: Float[Array, "..."], contracted: int
) -> Float[Array, "..."]:
  """Sums the last `contracted` axes of x with the first of the kernel.

  Both in the dtype of the result.
  """
  left, right = x.shape[: x.ndim - contracted], kernel.shape[contracted:]
  width = math.prod(kernel.shape[:contracted])
  y = _product(x.reshape(-1, width), kernel.reshape(width, -1))
  return y.reshape(*left, *right)
