"""An activation of a dense layer with its bias, for GPUs."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from bert_jax.kernels import fused

# (float32 array, True if the interpreter runs it) -> array.
Function = Callable[[Array, bool], Array]
HIDDEN = ("batch", "length", "mlp")

# Rows of a block, columns of a block, warps.
FORWARD = (32, 128, 8)
BACKWARD = (32, 128, 8)
# Programs of the backward kernel that share the blocks of a column.
PROGRAMS = 64


def _forward_kernel(x, bias, y, *, function, count, width, interpret):
  height, breadth, _ = FORWARD
  columns = pl.ds(pl.program_id(1) * breadth, breadth)
  seen = pl.program_id(1) * breadth + jnp.arange(breadth) < width
  bias_row = triton.load(bias.at[columns], mask=seen, other=0.0)
  first = pl.program_id(0) * height
  rows = pl.ds(first, height)
  mask = (first + jnp.arange(height) < count)[:, None] & seen[None]
  block = triton.load(x.at[rows, columns], mask=mask, other=0.0)
  out = function(block.astype(jnp.float32) + bias_row[None], interpret)
  triton.store(y.at[rows, columns], out.astype(block.dtype), mask=mask)


def _backward_kernel(
  x, bias, g, dx, sums, *, derivative, count, width, interpret
):
  height, breadth, _ = BACKWARD
  columns = pl.ds(pl.program_id(0) * breadth, breadth)
  seen = pl.program_id(0) * breadth + jnp.arange(breadth) < width
  bias_row = triton.load(bias.at[columns], mask=seen, other=0.0)
  program, programs = pl.program_id(1), pl.num_programs(1)

  def one_block(i, total):
    first = (program + i * programs) * height
    rows = pl.ds(first, height)
    mask = (first + jnp.arange(height) < count)[:, None] & seen[None]
    block = triton.load(x.at[rows, columns], mask=mask, other=0.0)
    gradient = triton.load(g.at[rows, columns], mask=mask, other=0.0)
    block_32 = block.astype(jnp.float32) + bias_row[None]
    d = derivative(block_32, interpret) * gradient.astype(jnp.float32)
    triton.store(dx.at[rows, columns], d.astype(block.dtype), mask=mask)
    return total + d

  blocks = pl.cdiv(count, height)
  zero = jnp.zeros((height, breadth), jnp.float32)
  count_of_program = (blocks - program + programs - 1) // programs
  total = jax.lax.fori_loop(0, count_of_program, one_block, zero)
  triton.store(sums.at[program, columns], total.sum(0), mask=seen)


def _tail(x, plain):
  """The normal distribution below -|x|, within 1e-7, and exp(-x**2 / 2).

  Abramowitz & Stegun 1964, 7.1.26, whose exponential is also that of the
  density; kernels have no error function. Powers of 2 and fused multiply-adds
  need the fewest instructions.
  """
  bell = fused.exp2((-0.5 * math.log2(math.e)) * (x * x), plain)
  t = 0.3275911 * math.sqrt(0.5) * jnp.abs(x) + 1.0
  t = fused.reciprocal(t, plain)
  tail = 0.5 * 1.061405429
  for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
    tail = tail * t + 0.5 * factor
  return tail * (t * bell), bell


def gelu(x: Float[Array, "..."], plain: bool = True) -> Float[Array, "..."]:
  """The exact gelu, within 2e-7 of `x`."""
  return jnp.maximum(x, 0.0) - jnp.abs(x) * _tail(x, plain)[0]


def gelu_derivative(
  x: Float[Array, "..."], plain: bool = True
) -> Float[Array, "..."]:
  """The derivative of the exact gelu, within 2e-7."""
  tail, bell = _tail(x, plain)
  below = jnp.where(x > 0, 1.0 - tail, tail)
  return below + x * bell * (1.0 / math.sqrt(2.0 * math.pi))


def _gate(x, plain):
  """The factor of x in `gelu_new`, and exp(-2 u).

  0.5 (1 + tanh u) is 1 / (1 + exp(-2 u)); the power is kept finite.
  """
  u = math.sqrt(2.0 / math.pi) * x * (0.044715 * (x * x) + 1.0)
  powers = jnp.minimum((-2.0 * math.log2(math.e)) * u, 60.0)
  powers = fused.exp2(powers, plain)
  return fused.reciprocal(1.0 + powers, plain), powers


def gelu_new(x: Float[Array, "..."], plain: bool = True) -> Float[Array, "..."]:
  """The tanh form of gelu, within 2e-7 of `x`."""
  return x * _gate(x, plain)[0]


def gelu_new_derivative(
  x: Float[Array, "..."], plain: bool = True
) -> Float[Array, "..."]:
  """The derivative of the tanh form, within 4e-7."""
  gate, powers = _gate(x, plain)
  slope = math.sqrt(8.0 / math.pi) * (3.0 * 0.044715 * (x * x) + 1.0)
  return gate * (1.0 + x * slope * (powers * gate))


# Activation -> the function and its derivative.
WRITTEN = {
  "gelu": (gelu, gelu_derivative),
  "gelu_new": (gelu_new, gelu_new_derivative),
}


@functools.cache
def functions(name: str, function: Callable) -> tuple[Function, Function]:
  """Returns an activation and its derivative, for `bias_activation`."""
  if name in WRITTEN:
    return WRITTEN[name]
  return (
    lambda x, _: function(x),
    lambda x, _: jax.jvp(function, (x,), (jnp.ones_like(x),))[1],
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def bias_activation(
  x: Float[Array, "b l f"],
  bias: Float[Array, "f"],
  function: Function,
  derivative: Function,
  interpret: bool = False,
) -> Float[Array, "b l f"]:
  """function(x + bias), in float32 inside.

  The compiler makes several passes for the gradients; the kernel reads `x` and
  the gradient once and also adds up the bias's gradient.

  Args:
    x: the output of a dense layer without its bias.
    bias: the bias, float32.
    function: an elementwise function.
    derivative: its derivative.
    interpret: run without a GPU, slowly.
  """

  def on_device(x, bias):
    width = x.shape[-1]
    count = x.size // width
    height, breadth, warps = FORWARD
    y = pl.pallas_call(
      functools.partial(
        _forward_kernel,
        function=function,
        count=count,
        width=width,
        interpret=interpret,
      ),
      grid=(pl.cdiv(count, height), pl.cdiv(width, breadth)),
      out_shape=jax.ShapeDtypeStruct((count, width), x.dtype),
      compiler_params=triton.CompilerParams(num_warps=warps),
      interpret=interpret,
      name="bias_activation_forward",
    )(x.reshape(count, width), bias)
    return (y.reshape(x.shape),)

  (y,) = fused.over_shards(on_device, [HIDDEN, ("mlp",)], [HIDDEN], x, bias)
  return y


def _forward(x, bias, function, derivative, interpret):
  y = bias_activation(x, bias, function, derivative, interpret)
  return y, (x, bias)


def _backward(function, derivative, interpret, saved, gradient):
  del function
  x, bias = saved

  def on_device(x, bias, gradient):
    width = x.shape[-1]
    count = x.size // width
    height, breadth, warps = BACKWARD
    programs = min(PROGRAMS, pl.cdiv(count, height))
    dx, sums = pl.pallas_call(
      functools.partial(
        _backward_kernel,
        derivative=derivative,
        count=count,
        width=width,
        interpret=interpret,
      ),
      grid=(pl.cdiv(width, breadth), programs),
      out_shape=(
        jax.ShapeDtypeStruct((count, width), x.dtype),
        jax.ShapeDtypeStruct((programs, width), jnp.float32),
      ),
      compiler_params=triton.CompilerParams(num_warps=warps),
      interpret=interpret,
      name="bias_activation_backward",
    )(x.reshape(count, width), bias, gradient.reshape(count, width))
    return dx.reshape(x.shape), sums

  dx, sums = fused.over_shards(
    on_device,
    [HIDDEN, ("mlp",), HIDDEN],
    [HIDDEN, ("batch", "mlp")],
    x,
    bias,
    gradient,
  )
  return dx, sums.sum(0)


bias_activation.defvjp(_forward, _backward)
