"""Bias, dropout, residual and LayerNorm in one pass, for GPUs."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, UInt32

from bert_jax.kernels import fused

FORWARD_WARPS = 1
# The backward kernel's warps, programs and rows at a time. A program adds up
# the gradients of bias and scale over its rows; there are 8 or 4 programs for
# each of the 132 processors of an H100. Times on an H200 by warps:
#   columns  rows    8 warps  4 warps  1 warp
#   1,024    16,384  47 us    48 us    67 us (more than a warp's registers hold)
#   768      32,768  82 us    78 us    70 us
NARROW, WIDE = (1, 1056, 1), (8, 528, 1)
WIDE_FROM = 1024


class _Shape:
  """Sizes of a part, and where it lies in the whole array."""

  def __init__(self, x: Array, rate: float, epsilon: float, tile: int = 1):
    rows, length, self.width = x.shape
    self.count = rows * length
    self.columns = fused.power_of_2(self.width)
    self.rate, self.epsilon = rate, epsilon
    self.tile = math.gcd(tile, self.count)  # Rows at a time.


class _Program:
  """One program of a kernel: which it is, and how it reads whole rows."""

  def __init__(self, shape: _Shape):
    self.shape, self.number = shape, pl.program_id(0)
    # A constant start would have the end checked, without regard to the mask.
    self.columns = pl.ds(self.number * 0, shape.columns)
    self.real = jnp.arange(shape.columns) < shape.width

  def _mask(self, rows):
    if isinstance(rows, jax.Array):
      return self.real
    return jnp.broadcast_to(self.real, (rows.size, self.shape.columns))

  def rows(self, ref, rows):
    """Loads a row by its number or some by a slice; 0 beyond the width."""
    at = ref.at[rows, self.columns]
    return triton.load(at, mask=self._mask(rows), other=0.0)

  def vector(self, ref):
    return triton.load(ref.at[self.columns], mask=self.real, other=0)

  def store(self, ref, *index, value):
    at = ref.at[*index, self.columns]
    mask = self._mask(index[-1])
    triton.store(at, value.astype(ref.dtype), mask=mask)

  def kept(self, hashes, columns):
    """Dropout's factors for rows of these hashes: 0 or 1 / (1 - rate)."""
    rate = self.shape.rate
    kept = fused.keep_mask(hashes, columns, rate)
    return jnp.where(kept, np.float32(1.0 / (1.0 - rate)), 0.0)


def _forward_kernel(
  hashes, columns, x, y, bias, scale, shift, out, *stats, shape
):
  p = _Program(shape)
  t = p.number
  y_row = p.rows(y, t).astype(jnp.float32) + p.vector(bias)
  if shape.rate:
    y_row = y_row * p.kept(triton.load(hashes.at[t]), p.vector(columns))
  row = p.rows(x, t).astype(jnp.float32) + y_row
  mean = jnp.sum(row) / shape.width  # Beyond the width are zeros.
  row = jnp.where(p.real, row - mean, 0.0)
  inverse = jax.lax.rsqrt(jnp.sum(row * row) / shape.width + shape.epsilon)
  for ref, value in zip(stats, (mean, inverse), strict=False):
    triton.store(ref.at[t], value)
  row = row * inverse * p.vector(scale) + p.vector(shift)
  p.store(out, t, value=row)


def _backward_kernel(
  hashes, columns, x, y, bias, scale, means, inverses, g1, g2, *outputs, shape
):
  dx, dy, sums = outputs
  p, programs, tile = _Program(shape), pl.num_programs(0), shape.tile
  bias_row, scale_row = p.vector(bias)[None], p.vector(scale)[None]
  column_hashes = p.vector(columns)[None]

  def rows_of(i):
    return pl.ds(jnp.minimum(i * tile, shape.count - tile), tile)

  def read(i):
    rows = rows_of(i)
    wide = [p.rows(ref, rows) for ref in (x, y, g1, g2)]
    return *wide, *(triton.load(r.at[rows]) for r in (means, inverses, hashes))

  def some_rows(number, carry):
    (d_bias, d_scale, d_shift), now = carry
    i = p.number + number * programs
    # Read the next rows while the sums of the current ones are made.
    ahead = read(i + programs)
    wide, (mean, inverse, hashed) = now[:4], now[4:]
    x_row, y_row, g, more = (part.astype(jnp.float32) for part in wide)
    y_row, g = y_row + bias_row, g + more
    if shape.rate:
      kept = p.kept(hashed[:, None], column_hashes)
      y_row = y_row * kept
    inverse = inverse[:, None]
    row = (x_row + y_row - mean[:, None]) * inverse
    d_scale, d_shift = d_scale + (g * row).sum(0), d_shift + g.sum(0)
    g = g * scale_row
    level = jnp.sum(g, 1, keepdims=True) / shape.width
    along = jnp.sum(g * row, 1, keepdims=True) / shape.width
    g = inverse * (g - level - row * along)
    p.store(dx, rows_of(i), value=g)
    if shape.rate:
      g = g * kept
      p.store(dy, rows_of(i), value=g)
    return (d_bias + g.sum(0), d_scale, d_shift), ahead

  zero = jnp.zeros(shape.columns, jnp.float32)
  # Tiles number, number + programs, ...
  count = (shape.count // tile - p.number + programs - 1) // programs
  start = ((zero, zero, zero), read(p.number))
  totals, _ = jax.lax.fori_loop(0, count, some_rows, start)
  for number, total in enumerate(totals):
    p.store(sums, p.number, p.number * 0 + number, value=total)


def _call(kernel, shape, grid, warps, outputs, interpret, *arrays):
  flat = [
    a.reshape(shape.count, shape.width) if a.ndim == 3 else a for a in arrays
  ]
  return pl.pallas_call(
    functools.partial(kernel, shape=shape),
    grid=(grid,),
    out_shape=outputs,
    compiler_params=triton.CompilerParams(num_warps=warps),
    interpret=interpret,
    name=kernel.__name__.strip("_"),
  )(*flat)


HIDDEN = ("batch", "length", "embed_activation")
ROW = ("embed_activation",)
NUMBERS = ("batch", "length")  # One for each of the rows.
HASHES = [NUMBERS, ROW]


def _hashes(words, x):
  place = np.arange(x.shape[1], dtype=np.uint32)
  rows = fused.first_hashes(words, len(x))[:, None]
  rows = fused.row_hashes(rows, place[None])
  columns = np.arange(x.shape[2], dtype=np.uint32)
  return rows, jnp.asarray(fused.column_hashes(columns))


def _forward(x, y, bias, scale, shift, words, rate, epsilon, interpret, stats):
  """Returns a tuple: the result, and with `stats` means and 1 / deviations."""
  keeps = 2 if stats else 0

  def on_device(hashes, columns, x, *rest):
    shape = _Shape(x, rate, epsilon)
    number = jax.ShapeDtypeStruct((shape.count,), jnp.float32)
    whole = jax.ShapeDtypeStruct((shape.count, shape.width), x.dtype)
    arrays = (hashes.reshape(-1), columns, x, *rest)
    grid = shape.count, FORWARD_WARPS
    outputs = (whole, *[number] * keeps)
    out, *numbers = _call(
      _forward_kernel, shape, *grid, outputs, interpret, *arrays
    )
    return out.reshape(x.shape), *(a.reshape(x.shape[:2]) for a in numbers)

  return fused.over_shards(
    on_device,
    [*HASHES, HIDDEN, HIDDEN, ROW, ROW, ROW],
    [HIDDEN, *[NUMBERS] * keeps],
    *_hashes(words, x),
    x,
    y,
    bias,
    scale,
    shift,
  )


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

  The result is read in two places. Returned twice, its two gradients arrive
  separately and are added in the kernel, not in another pass. All sums are in
  float32. The backward pass keeps only x and y and makes the rest again.

  Args:
    x: the residual.
    y: a layer's output without its bias.
    bias: that layer's bias, float32.
    scale: scale of the LayerNorm, float32.
    shift: bias of the LayerNorm, float32.
    words: the dropout's key words, see `layers.dropout_bits`.
    rate: rate of the dropout, in [0, 1).
    epsilon: epsilon of the LayerNorm.
    interpret: run without a GPU, slowly.
  """
  (out,) = _forward(
    x, y, bias, scale, shift, words, rate, epsilon, interpret, False
  )
  return out, out


def _add_norm_forward(
  x, y, bias, scale, shift, words, rate, epsilon, interpret
):
  out, *stats = _forward(
    x, y, bias, scale, shift, words, rate, epsilon, interpret, True
  )
  return (out, out), (x, y, bias, scale, *stats, words)


def _add_norm_backward(rate, epsilon, interpret, saved, gradients):
  *saved, words = saved

  def on_device(hashes, columns, x, *rest):
    warps, programs, tile = WIDE if x.shape[-1] >= WIDE_FROM else NARROW
    shape = _Shape(x, rate, epsilon, tile)
    whole = jax.ShapeDtypeStruct((shape.count, shape.width), x.dtype)
    programs = min(programs, shape.count // shape.tile)
    sums = (programs, 3, shape.width)
    outputs = (whole, whole, jax.ShapeDtypeStruct(sums, jnp.float32))
    arrays = (hashes, columns, x, *rest)
    arrays = [a.reshape(-1) if a.ndim == 2 else a for a in arrays]
    grid = programs, warps
    dx, dy, sums = _call(
      _backward_kernel, shape, *grid, outputs, interpret, *arrays
    )
    dx = dx.reshape(x.shape)
    return dx, dy.reshape(x.shape) if rate else dx, fused.fewer_rows(sums)

  dx, dy, sums = fused.over_shards(
    on_device,
    [*HASHES, HIDDEN, HIDDEN, ROW, ROW, NUMBERS, NUMBERS, HIDDEN, HIDDEN],
    [HIDDEN, HIDDEN, ("batch", None, "embed_activation")],
    *_hashes(words, saved[0]),
    *saved,
    *gradients,
  )
  # One pass over them; the compiler would make one for each of the three.
  d_bias, d_scale, d_shift = jax.lax.optimization_barrier(sums.sum(0))
  return dx, dy, d_bias, d_scale, d_shift, fused.no_gradient(words)


add_norm.defvjp(_add_norm_forward, _add_norm_backward)
