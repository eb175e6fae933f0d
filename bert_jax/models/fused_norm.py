"""Bias, dropout, residual and LayerNorm in one pass, for GPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, UInt32

from bert_jax.models import fused

FORWARD_WARPS = 1
# Of the backward kernel: warps, and programs, each of which adds up the
# gradients of bias and scale over its rows; 8 or 4 for each of the 132
# processors of an H100. Of 1,024 columns a warp keeps more than its registers
# hold: 121 us by four warps, 158 by one (16,384 rows, H200, with the sum over
# programs). Of 768 they are 178 by one, 192 by four (32,768 rows).
NARROW, WIDE = (1, 1056), (4, 528)
WIDE_FROM = 1024


class _Shape:
  """Sizes of a part, and where it lies in the whole array."""

  def __init__(self, x: Array, rate: float, epsilon: float):
    self.rows, self.length, self.width = x.shape
    self.count = self.rows * self.length
    self.columns = fused.power_of_2(self.width)
    self.rate, self.epsilon = rate, epsilon


def _raw(ref, t, shape):
  seen = jnp.arange(shape.columns) < shape.width
  at = ref.at[t, pl.ds(0, shape.columns)]
  return triton.load(at, mask=seen, other=0.0)


def _row(ref, t, shape):
  return _raw(ref, t, shape).astype(jnp.float32)


def _vector(ref, shape):
  seen = jnp.arange(shape.columns) < shape.width
  return triton.load(ref.at[pl.ds(0, shape.columns)], mask=seen, other=0)


def _kept(hashes, columns, t, shape):
  """What dropout multiplies row `t` with: 0 or 1 / (1 - rate)."""
  row = triton.load(hashes.at[t])
  kept = fused.bits(row, _vector(columns, shape)) >= fused.threshold(shape.rate)
  return jnp.where(kept, np.float32(1.0 / (1.0 - shape.rate)), 0.0)


def _normalised(x, shape):
  """Returns the row at mean 0 and variance 1, and 1 / deviation."""
  seen = jnp.arange(shape.columns) < shape.width
  x = jnp.where(seen, x - jnp.sum(x) / shape.width, 0.0)
  inverse = jax.lax.rsqrt(jnp.sum(x * x) / shape.width + shape.epsilon)
  return x * inverse, inverse


def _forward_kernel(
  hashes, columns, x, y, bias, scale, shift, out, *, shape, dtype
):
  t = pl.program_id(0)
  y_row = _row(y, t, shape) + _vector(bias, shape)
  if shape.rate:
    y_row = y_row * _kept(hashes, columns, t, shape)
  row, _ = _normalised(_row(x, t, shape) + y_row, shape)
  row = row * _vector(scale, shape) + _vector(shift, shape)
  seen = jnp.arange(shape.columns) < shape.width
  at = out.at[t, pl.ds(0, shape.columns)]
  triton.store(at, row.astype(dtype), mask=seen)


def _backward_kernel(
  hashes, columns, x, y, bias, scale, g1, g2, dx, dy, sums, *, shape, dtype
):
  program, programs = pl.program_id(0), pl.num_programs(0)
  seen = jnp.arange(shape.columns) < shape.width
  bias_row, scale_row = _vector(bias, shape), _vector(scale, shape)

  def read(t):
    return tuple(_raw(ref, t, shape) for ref in (x, y, g1, g2))

  def one_row(i, carry):
    (d_bias, d_scale, d_shift), rows = carry
    t = program + i * programs
    # Of the next row, while this one's sums are made.
    ahead = read(jnp.minimum(t + programs, shape.count - 1))
    x_row, y_row, g, more = (row.astype(jnp.float32) for row in rows)
    y_row, g = y_row + bias_row, g + more
    if shape.rate:
      kept = _kept(hashes, columns, t, shape)
      y_row = y_row * kept
    row, inverse = _normalised(x_row + y_row, shape)
    d_scale, d_shift = d_scale + g * row, d_shift + g
    g = g * scale_row
    mean = jnp.sum(g) / shape.width
    along = jnp.sum(g * row) / shape.width
    g = inverse * (g - mean - row * along)
    whole_row = pl.ds(0, shape.columns)
    triton.store(dx.at[t, whole_row], g.astype(dtype), mask=seen)
    if shape.rate:
      g = g * kept
      triton.store(dy.at[t, whole_row], g.astype(dtype), mask=seen)
    return (d_bias + g, d_scale, d_shift), ahead

  zero = jnp.zeros(shape.columns, jnp.float32)
  # Rows program, program + programs, ...
  count = (shape.count - program + programs - 1) // programs
  start = ((zero, zero, zero), read(program))
  totals, _ = jax.lax.fori_loop(0, count, one_row, start)
  for number, total in enumerate(totals):
    at = sums.at[program, program * 0 + number, pl.ds(0, shape.columns)]
    triton.store(at, total, mask=seen)


def _call(kernel, shape, grid, warps, outputs, interpret, *arrays):
  flat = [
    a.reshape(shape.count, shape.width) if a.ndim == 3 else a for a in arrays
  ]
  return pl.pallas_call(
    functools.partial(kernel, shape=shape, dtype=flat[2].dtype),
    grid=(grid,),
    out_shape=outputs,
    compiler_params=triton.CompilerParams(num_warps=warps),
    interpret=interpret,
    name=kernel.__name__.strip("_"),
  )(*flat)


HIDDEN = ("batch", "length", "embed_activation")
ROW = ("embed_activation",)
HASHES = [("batch", "length"), ROW]


def _hashes(words, x):
  place = np.arange(x.shape[1], dtype=np.uint32)
  rows = fused.row_hashes(fused.first_hashes(words, len(x))[:, None], place)
  columns = np.arange(x.shape[2], dtype=np.uint32)
  return rows, jnp.asarray(fused.column_hashes(columns))


def _forward(x, y, bias, scale, shift, words, rate, epsilon, interpret):
  def on_device(hashes, columns, x, *rest):
    shape = _Shape(x, rate, epsilon)
    out = jax.ShapeDtypeStruct((shape.count, shape.width), x.dtype)
    arrays = (hashes.reshape(-1), columns, x, *rest)
    grid = shape.count, FORWARD_WARPS
    out = _call(_forward_kernel, shape, *grid, out, interpret, *arrays)
    return (out.reshape(x.shape),)

  (out,) = fused.over_shards(
    on_device,
    [*HASHES, HIDDEN, HIDDEN, ROW, ROW, ROW],
    [HIDDEN],
    *_hashes(words, x),
    x,
    y,
    bias,
    scale,
    shift,
  )
  return out


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def add_norm(
  x: Float[Array, "b l d"],
  y: Float[Array, "b l d"],
  bias: Float[Array, "d"],
  scale: Float[Array, "d"],
  shift: Float[Array, "d"],
  words: UInt32[Array, "2"],
  rate: float,
  epsilon: float,
  interpret: bool = False,
) -> tuple[Float[Array, "b l d"], Float[Array, "b l d"]]:
  """LayerNorm(x + dropout(y + bias)), twice.

  What follows a layer reads it in two places; as two results their gradients
  arrive apart and are added in the kernel, not in a pass of its own. All sums
  are in float32. The backward pass keeps x and y alone and makes the rest
  again.

  Args:
    x: the residual.
    y: what a layer made, without its bias.
    bias: float32, of that layer.
    scale: float32, of the LayerNorm; and `shift`.
    words: of the dropout's key; see `layers.dropout_bits`.
    rate: of the dropout, in [0, 1).
    epsilon: of the LayerNorm.
    interpret: run without a GPU, slowly.
  """
  out = _forward(x, y, bias, scale, shift, words, rate, epsilon, interpret)
  return out, out


def _add_norm_forward(
  x, y, bias, scale, shift, words, rate, epsilon, interpret
):
  out = _forward(x, y, bias, scale, shift, words, rate, epsilon, interpret)
  return (out, out), (x, y, bias, scale, words)


def _add_norm_backward(rate, epsilon, interpret, saved, gradients):
  x, y, bias, scale, words = saved

  def on_device(hashes, columns, x, *rest):
    shape = _Shape(x, rate, epsilon)
    whole = jax.ShapeDtypeStruct((shape.count, shape.width), x.dtype)
    warps, programs = WIDE if shape.width >= WIDE_FROM else NARROW
    programs = min(programs, shape.count)
    sums = (programs, 3, shape.width)
    outputs = (whole, whole, jax.ShapeDtypeStruct(sums, jnp.float32))
    arrays = (hashes.reshape(-1), columns, x, *rest)
    dx, dy, sums = _call(
      _backward_kernel, shape, programs, warps, outputs, interpret, *arrays
    )
    dx = dx.reshape(x.shape)
    return dx, dy.reshape(x.shape) if rate else dx, fused.fewer_rows(sums)

  dx, dy, sums = fused.over_shards(
    on_device,
    [*HASHES, HIDDEN, HIDDEN, ROW, ROW, HIDDEN, HIDDEN],
    [HIDDEN, HIDDEN, ("batch", None, "embed_activation")],
    *_hashes(words, x),
    x,
    y,
    bias,
    scale,
    *gradients,
  )
  # One pass over them; the compiler would make one for each of the three.
  d_bias, d_scale, d_shift = jax.lax.optimization_barrier(sums.sum(0))
  return dx, dy, d_bias, d_scale, d_shift, fused.no_gradient(words)


add_norm.defvjp(_add_norm_forward, _add_norm_backward)
