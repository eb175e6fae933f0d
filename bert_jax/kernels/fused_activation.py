"""Kernels for a dense layer's bias and activation, for GPUs."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from bert_jax.kernels import fused

# (float32 array, True if the interpreter runs the kernel) -> array.
Function = Callable[[Array, bool], Array]
# The logical axes of a hidden layer.
HIDDEN_AXES = ("batch", "length", "mlp")
Ref = Any  # A reference to an array, as Pallas passes it to a kernel.

# The tuning of each kernel: rows in a block, columns in a block, warps.
FORWARD_TUNING = (32, 128, 8)
BACKWARD_TUNING = (32, 128, 8)
# At most this many programs of the backward kernel share the rows of a block of
# columns.
MAX_PROGRAMS_PER_COLUMN_BLOCK = 64


def _forward_kernel(
  x: Ref,
  bias: Ref,
  y: Ref,
  *,
  function: Function,
  num_rows: int,
  num_columns: int,
  interpret: bool,
) -> None:
  """Computes a block of `y` [num_rows, num_columns] = function(x + bias)."""
  rows_per_block, columns_per_block, _ = FORWARD_TUNING
  columns = pl.ds(pl.program_id(1) * columns_per_block, columns_per_block)
  column_exists = (
    pl.program_id(1) * columns_per_block + jnp.arange(columns_per_block)
    < num_columns
  )
  bias_row = triton.load(bias.at[columns], mask=column_exists, other=0.0)
  first_row = pl.program_id(0) * rows_per_block
  rows = pl.ds(first_row, rows_per_block)
  mask = (first_row + jnp.arange(rows_per_block) < num_rows)[
    :, None
  ] & column_exists[None]
  block = triton.load(x.at[rows, columns], mask=mask, other=0.0)
  out = function(block.astype(jnp.float32) + bias_row[None], interpret)
  triton.store(y.at[rows, columns], out.astype(block.dtype), mask=mask)


def _backward_kernel(
  x: Ref,
  bias: Ref,
  d_y: Ref,
  d_x: Ref,
  sums: Ref,
  *,
  derivative: Function,
  num_rows: int,
  num_columns: int,
  interpret: bool,
) -> None:
  """Computes `d_x` from `d_y`, and sums of `d_x` over rows.

  The n programs of a block of columns share its rows. Each program works on
  every n-th block of rows, and writes its sums into one row of `sums`.
  """
  rows_per_block, columns_per_block, _ = BACKWARD_TUNING
  columns = pl.ds(pl.program_id(0) * columns_per_block, columns_per_block)
  column_exists = (
    pl.program_id(0) * columns_per_block + jnp.arange(columns_per_block)
    < num_columns
  )
  bias_row = triton.load(bias.at[columns], mask=column_exists, other=0.0)
  program_index, num_programs = pl.program_id(1), pl.num_programs(1)

  def add_block(i: Array, total: Array) -> Array:
    first_row = (program_index + i * num_programs) * rows_per_block
    rows = pl.ds(first_row, rows_per_block)
    mask = (first_row + jnp.arange(rows_per_block) < num_rows)[
      :, None
    ] & column_exists[None]
    block = triton.load(x.at[rows, columns], mask=mask, other=0.0)
    d_y_block = triton.load(d_y.at[rows, columns], mask=mask, other=0.0)
    biased_block = block.astype(jnp.float32) + bias_row[None]
    d_block = derivative(biased_block, interpret) * d_y_block.astype(
      jnp.float32
    )
    triton.store(d_x.at[rows, columns], d_block.astype(block.dtype), mask=mask)
    return total + d_block

  num_row_blocks = pl.cdiv(num_rows, rows_per_block)
  zeros = jnp.zeros((rows_per_block, columns_per_block), jnp.float32)
  num_blocks_of_program = (
    num_row_blocks - program_index + num_programs - 1
  ) // num_programs
  total = jax.lax.fori_loop(0, num_blocks_of_program, add_block, zeros)
  triton.store(
    sums.at[program_index, columns], total.sum(0), mask=column_exists
  )


def _normal_tail(x: Array, in_interpreter: bool) -> tuple[Array, Array]:
  """Returns a normal distribution's probability below -|x|, and exp(-x^2 / 2).

  The probability is exact to within 1e-7. Kernels have no erf, so this is the
  formula of Abramowitz & Stegun 1964, 7.1.26. The formula's exponential
  is returned too, because the distribution's density needs it. The code uses
  powers of 2 and fused multiply-adds, which need the fewest instructions.
  """
  bell = fused.exp2((-0.5 * math.log2(math.e)) * (x * x), in_interpreter)
  t = 0.3275911 * math.sqrt(0.5) * jnp.abs(x) + 1.0
  t = fused.reciprocal(t, in_interpreter)
  polynomial: Any = 0.5 * 1.061405429
  for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
    polynomial = polynomial * t + 0.5 * coefficient
  return polynomial * (t * bell), bell


def gelu(
  x: Float[Array, "..."], in_interpreter: bool = True
) -> Float[Array, "..."]:
  """Returns gelu in its erf form, to within 2e-7 times |x|."""
  return jnp.maximum(x, 0.0) - jnp.abs(x) * _normal_tail(x, in_interpreter)[0]


def gelu_derivative(
  x: Float[Array, "..."], in_interpreter: bool = True
) -> Float[Array, "..."]:
  """Returns the derivative of `gelu`, to within 2e-7."""
  tail, bell = _normal_tail(x, in_interpreter)
  probability = jnp.where(x > 0, 1.0 - tail, tail)
  return probability + x * bell * (1.0 / math.sqrt(2.0 * math.pi))


def _tanh_gate(x: Array, in_interpreter: bool) -> tuple[Array, Array]:
  """Returns the factor of x in `gelu_new`, and exp(-2 u).

  Here u is sqrt(2 / pi) (x + 0.044715 x^3). The factor 0.5 (1 + tanh u) equals
  1 / (1 + exp(-2 u)). The exponent is at most 60, so that the power is finite.
  """
  u = math.sqrt(2.0 / math.pi) * x * (0.044715 * (x * x) + 1.0)
  exponents = jnp.minimum((-2.0 * math.log2(math.e)) * u, 60.0)
  powers = fused.exp2(exponents, in_interpreter)
  return fused.reciprocal(1.0 + powers, in_interpreter), powers


def gelu_new(
  x: Float[Array, "..."], in_interpreter: bool = True
) -> Float[Array, "..."]:
  """Returns gelu in its tanh form, to within 2e-7 times |x|."""
  return x * _tanh_gate(x, in_interpreter)[0]


def gelu_new_derivative(
  x: Float[Array, "..."], in_interpreter: bool = True
) -> Float[Array, "..."]:
  """Returns the derivative of `gelu_new`, to within 4e-7."""
  gate, powers = _tanh_gate(x, in_interpreter)
  # This is twice the derivative of u; see `_tanh_gate`.
  twice_slope = math.sqrt(8.0 / math.pi) * (3.0 * 0.044715 * (x * x) + 1.0)
  return gate * (1.0 + x * twice_slope * (powers * gate))


# The activations that are written for kernels: name -> (function, derivative).
ACTIVATIONS = {
  "gelu": (gelu, gelu_derivative),
  "gelu_new": (gelu_new, gelu_new_derivative),
}


@functools.cache
def function_and_derivative(
  name: str, function: Callable
) -> tuple[Function, Function]:
  """Returns an activation and its derivative, for `bias_activation`.

  Args:
    name: the name of the activation.
    function: the plain function, for activations that are not in `ACTIVATIONS`.
  """
  if name in ACTIVATIONS:
    return ACTIVATIONS[name]
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
  """Computes function(x + bias); the arithmetic is float32.

  The backward kernel makes one pass, in which it also adds up the bias's
  gradient. The compiler would make several passes.

  Args:
    x: a dense layer's output, to which no bias was added.
    bias: the bias of the dense layer, float32.
    function: an elementwise function.
    derivative: the derivative of the function.
    interpret: True runs the kernels without a GPU, slowly.
  """

  def run_shard(x: Array, bias: Array) -> tuple[Array]:
    width = x.shape[-1]
    num_rows = x.size // width
    rows_per_block, columns_per_block, num_warps = FORWARD_TUNING
    y = pl.pallas_call(
      functools.partial(
        _forward_kernel,
        function=function,
        num_rows=num_rows,
        num_columns=width,
        interpret=interpret,
      ),
      grid=(
        pl.cdiv(num_rows, rows_per_block),
        pl.cdiv(width, columns_per_block),
      ),
      out_shape=jax.ShapeDtypeStruct((num_rows, width), x.dtype),
      compiler_params=triton.CompilerParams(num_warps=num_warps),
      interpret=interpret,
      name="bias_activation_forward",
    )(x.reshape(num_rows, width), bias)
    return (y.reshape(x.shape),)

  (y,) = fused.run_on_shards(
    run_shard, [HIDDEN_AXES, ("mlp",)], [HIDDEN_AXES], x, bias
  )
  return y


def _forward(
  x: Array,
  bias: Array,
  function: Function,
  derivative: Function,
  interpret: bool,
) -> tuple[Array, tuple[Array, Array]]:
  y = bias_activation(x, bias, function, derivative, interpret)
  return y, (x, bias)


def _backward(
  function: Function,
  derivative: Function,
  interpret: bool,
  saved: tuple[Array, Array],
  d_y: Array,
) -> tuple[Array, Array]:
  del function
  x, bias = saved

  def run_shard(x: Array, bias: Array, d_y: Array) -> tuple[Array, Array]:
    width = x.shape[-1]
    num_rows = x.size // width
    rows_per_block, columns_per_block, num_warps = BACKWARD_TUNING
    num_programs = min(
      MAX_PROGRAMS_PER_COLUMN_BLOCK, pl.cdiv(num_rows, rows_per_block)
    )
    d_x, sums = pl.pallas_call(
      functools.partial(
        _backward_kernel,
        derivative=derivative,
        num_rows=num_rows,
        num_columns=width,
        interpret=interpret,
      ),
      grid=(pl.cdiv(width, columns_per_block), num_programs),
      out_shape=(
        jax.ShapeDtypeStruct((num_rows, width), x.dtype),
        jax.ShapeDtypeStruct((num_programs, width), jnp.float32),
      ),
      compiler_params=triton.CompilerParams(num_warps=num_warps),
      interpret=interpret,
      name="bias_activation_backward",
    )(x.reshape(num_rows, width), bias, d_y.reshape(num_rows, width))
    return d_x.reshape(x.shape), sums

  d_x, sums = fused.run_on_shards(
    run_shard,
    [HIDDEN_AXES, ("mlp",), HIDDEN_AXES],
    [HIDDEN_AXES, ("batch", "mlp")],
    x,
    bias,
    d_y,
  )
  return d_x, sums.sum(0)


bias_activation.defvjp(_forward, _backward)
