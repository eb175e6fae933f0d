"""Kernels for bias, dropout, residual and LayerNorm in one pass, for GPUs.

In this file, a row is the vector of one token, and the columns are its
elements.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, UInt32

from bert_jax.kernels import fused

Ref = Any  # A reference to an array, as Pallas passes it to a kernel.
# The index of a row, or a slice of rows.
Rows = Any

FORWARD_WARPS = 1
# The tuning of the backward kernel: warps, programs, rows in a tile. A program
# adds up the gradients of bias and scale over its rows. An H100 has 132
# processors, and each gets 8 programs with NARROW, or 4 with WIDE.
#   tuning  columns     programs  measured on an H200, by warps
#   NARROW  below 1024  8 x 132   768 columns, 32,768 rows:
#                                   1: 70 us, 4: 78 us, 8: 82 us
#   WIDE    from 1024   4 x 132   1,024 columns, 16,384 rows:
#                                   1: 67 us (too few registers),
#                                   4: 48 us, 8: 47 us
NARROW_TUNING, WIDE_TUNING = (1, 1056, 1), (8, 528, 1)
MIN_WIDE_COLUMNS = 1024


@dataclasses.dataclass(frozen=True)
class _Plan:
  """Holds the static settings of a kernel on a device's shard.

  Attributes:
    num_rows: the number of rows, which are all tokens of the shard.
    num_columns: the width of a row.
    rate: the rate of the dropout.
    epsilon: the epsilon of the LayerNorm.
    rows_per_tile: the number of rows that a program reads at once, a divisor of
      `num_rows`.
  """

  num_rows: int
  num_columns: int
  rate: float
  epsilon: float
  rows_per_tile: int = 1

  @property
  def columns_per_block(self) -> int:
    """The smallest power of 2 that is at least `num_columns`."""
    return fused.next_power_of_2(self.num_columns)


class _Program:
  """Runs one program of a kernel, which works on whole rows.

  Attributes:
    plan: the kernel's plan.
    index: the index of the program.
    columns: the slice of a block's columns.
    is_column: True for the columns of a block that hold the row.
  """

  def __init__(self, plan: _Plan):
    self.plan, self.index = plan, pl.program_id(0)
    # The start must not be a constant 0: Pallas refuses a slice that begins at
    # a constant and goes beyond the array, even if a mask excludes that part.
    self.columns = pl.ds(self.index * 0, plan.columns_per_block)
    self.is_column = jnp.arange(plan.columns_per_block) < plan.num_columns

  def _mask(self, rows: Rows) -> Array:
    # An array is the index of a single row.
    if isinstance(rows, jax.Array):
      return self.is_column
    return jnp.broadcast_to(
      self.is_column, (rows.size, self.plan.columns_per_block)
    )

  def load_rows(self, ref: Ref, rows: Rows) -> Array:
    """Loads a row or a slice of rows; columns after the row's end are 0."""
    block_ref = ref.at[rows, self.columns]
    return triton.load(block_ref, mask=self._mask(rows), other=0.0)

  def load_vector(self, ref: Ref) -> Array:
    """Loads an array [width]; columns after the row's end are 0."""
    return triton.load(ref.at[self.columns], mask=self.is_column, other=0)

  def store(self, ref: Ref, *index: Rows, block: Array) -> None:
    """Writes a block; the last entry of `index` is its row or slice of rows."""
    block_ref = ref.at[*index, self.columns]
    mask = self._mask(index[-1])
    triton.store(block_ref, block.astype(ref.dtype), mask=mask)

  def dropout_factors(self, row_hashes: Array, column_hashes: Array) -> Array:
    """Returns the factors of dropout, which are 0 or 1 / (1 - rate)."""
    rate = self.plan.rate
    mask = fused.keep_mask(row_hashes, column_hashes, rate)
    return jnp.where(mask, np.float32(1.0 / (1.0 - rate)), 0.0)


def _forward_kernel(
  hashes: Ref,
  columns: Ref,
  x: Ref,
  y: Ref,
  bias: Ref,
  scale: Ref,
  shift: Ref,
  out: Ref,
  *stats: Ref,
  plan: _Plan,
) -> None:
  """Computes a row of `out`.

  `hashes` and `columns` are the hashes of rows and of columns for dropout. If
  there are `stats`, the program also writes the row's mean and 1 / standard
  deviation to them.
  """
  program = _Program(plan)
  row_index = program.index
  y_row = program.load_rows(y, row_index).astype(jnp.float32)
  y_row = y_row + program.load_vector(bias)
  if plan.rate:
    row_hash = triton.load(hashes.at[row_index])
    y_row = y_row * program.dropout_factors(
      row_hash, program.load_vector(columns)
    )
  row = program.load_rows(x, row_index).astype(jnp.float32) + y_row
  # The columns after the row's end are 0 and do not change the sum.
  mean = jnp.sum(row) / plan.num_columns
  row = jnp.where(program.is_column, row - mean, 0.0)
  inverse_deviation = jax.lax.rsqrt(
    jnp.sum(row * row) / plan.num_columns + plan.epsilon
  )
  for ref, number in zip(stats, (mean, inverse_deviation), strict=False):
    triton.store(ref.at[row_index], number)
  row = row * inverse_deviation * program.load_vector(
    scale
  ) + program.load_vector(shift)
  program.store(out, row_index, block=row)


def _backward_kernel(
  hashes: Ref,
  columns: Ref,
  x: Ref,
  y: Ref,
  bias: Ref,
  scale: Ref,
  means: Ref,
  inverses: Ref,
  first_gradient: Ref,
  second_gradient: Ref,
  d_x: Ref,
  d_y: Ref,
  sums: Ref,
  *,
  plan: _Plan,
) -> None:
  """Computes `d_x` and `d_y` from the gradients of the output's two copies.

  A program works on every n-th tile of rows, where n is `num_programs`. Over
  these rows the program adds up the gradients of bias, scale and shift, and
  writes the three totals into one entry of `sums`.
  """
  program, num_programs, rows_per_tile = (
    _Program(plan),
    pl.num_programs(0),
    plan.rows_per_tile,
  )
  bias_row = program.load_vector(bias)[None]
  scale_row = program.load_vector(scale)[None]
  column_hashes = program.load_vector(columns)[None]

  def tile_rows(i: Array) -> Rows:
    # `add_tile` also reads the tile after the last one. Stay within the rows.
    return pl.ds(
      jnp.minimum(i * rows_per_tile, plan.num_rows - rows_per_tile),
      rows_per_tile,
    )

  def read(i: Array) -> tuple[Array, ...]:
    rows = tile_rows(i)
    tiles = [
      program.load_rows(ref, rows)
      for ref in (x, y, first_gradient, second_gradient)
    ]
    return *tiles, *(
      triton.load(ref.at[rows]) for ref in (means, inverses, hashes)
    )

  def add_tile(step: Array, carry: Any) -> Any:
    (d_bias, d_scale, d_shift), tile_arrays = carry
    tile_index = program.index + step * num_programs
    # Read the next tile while this tile is summed up.
    next_arrays = read(tile_index + num_programs)
    tiles, (mean, inverse_deviation, row_hashes) = (
      tile_arrays[:4],
      tile_arrays[4:],
    )
    x_tile, y_tile, gradient, second_tile_gradient = (
      x.astype(jnp.float32) for x in tiles
    )
    y_tile, gradient = y_tile + bias_row, gradient + second_tile_gradient
    if plan.rate:
      factors = program.dropout_factors(row_hashes[:, None], column_hashes)
      y_tile = y_tile * factors
    inverse_deviation = inverse_deviation[:, None]
    normalised_tile = (x_tile + y_tile - mean[:, None]) * inverse_deviation
    d_scale, d_shift = (
      d_scale + (gradient * normalised_tile).sum(0),
      d_shift + gradient.sum(0),
    )
    d_normalised = gradient * scale_row
    mean_gradient = jnp.sum(d_normalised, 1, keepdims=True) / plan.num_columns
    mean_product = (
      jnp.sum(d_normalised * normalised_tile, 1, keepdims=True)
      / plan.num_columns
    )
    d_tile = inverse_deviation * (
      d_normalised - mean_gradient - normalised_tile * mean_product
    )
    program.store(d_x, tile_rows(tile_index), block=d_tile)
    if plan.rate:
      d_tile = d_tile * factors
      program.store(d_y, tile_rows(tile_index), block=d_tile)
    return (d_bias + d_tile.sum(0), d_scale, d_shift), next_arrays

  zeros = jnp.zeros(plan.columns_per_block, jnp.float32)
  # The program's tiles are index + i * num_programs, for i = 0, 1, 2, ...
  num_tiles = (
    plan.num_rows // rows_per_tile - program.index + num_programs - 1
  ) // num_programs
  start = ((zeros, zeros, zeros), read(program.index))
  totals, _ = jax.lax.fori_loop(0, num_tiles, add_tile, start)
  for i, total in enumerate(totals):
    program.store(sums, program.index, program.index * 0 + i, block=total)


def _run_kernel(
  kernel: Callable[..., None],
  plan: _Plan,
  num_programs: int,
  num_warps: int,
  outputs: tuple[jax.ShapeDtypeStruct, ...],
  interpret: bool,
  *arrays: Array,
) -> Any:
  """Runs a kernel; arrays [b, l, d] become [b l, d]."""
  flat_arrays = [
    array.reshape(plan.num_rows, plan.num_columns) if array.ndim == 3 else array
    for array in arrays
  ]
  return pl.pallas_call(
    functools.partial(kernel, plan=plan),
    grid=(num_programs,),
    out_shape=outputs,
    compiler_params=triton.CompilerParams(num_warps=num_warps),
    interpret=interpret,
    name=kernel.__name__.strip("_"),
  )(*flat_arrays)


# The logical axes of the arrays. An array with `ROW_SCALAR_AXES` has a number
# for each row.
HIDDEN_AXES = ("batch", "length", "embed_activation")
ROW_AXES = ("embed_activation",)
ROW_SCALAR_AXES = ("batch", "length")
HASH_AXES: list[fused.Axes] = [ROW_SCALAR_AXES, ROW_AXES]


def _dropout_hashes(seed: Array, x: Array) -> tuple[Array, Array]:
  """Returns the hashes of rows [b, l] and of columns [d] for dropout."""
  positions = np.arange(x.shape[1], dtype=np.uint32)
  row_hashes = fused.first_hashes(seed, len(x))[:, None]
  row_hashes = fused.row_hashes(row_hashes, positions[None])
  column_indices = np.arange(x.shape[2], dtype=np.uint32)
  return row_hashes, jnp.asarray(fused.column_hashes(column_indices))


def _forward(
  x: Array,
  y: Array,
  bias: Array,
  scale: Array,
  shift: Array,
  seed: Array,
  rate: float,
  epsilon: float,
  interpret: bool,
  returns_stats: bool,
) -> tuple[Array, ...]:
  """Computes the output.

  If `returns_stats`, also returns the mean and 1 / standard deviation of each
  row.
  """
  num_stats = 2 if returns_stats else 0

  def run_shard(
    hashes: Array, columns: Array, x: Array, *arrays: Array
  ) -> tuple[Array, ...]:
    batch_size, length, width = x.shape
    plan = _Plan(
      num_rows=batch_size * length,
      num_columns=width,
      rate=rate,
      epsilon=epsilon,
    )
    scalar_shape = jax.ShapeDtypeStruct((plan.num_rows,), jnp.float32)
    hidden_shape = jax.ShapeDtypeStruct(
      (plan.num_rows, plan.num_columns), x.dtype
    )
    out, *row_stats = _run_kernel(
      _forward_kernel,
      plan,
      plan.num_rows,
      FORWARD_WARPS,
      (hidden_shape, *[scalar_shape] * num_stats),
      interpret,
      hashes.reshape(-1),
      columns,
      x,
      *arrays,
    )
    return out.reshape(x.shape), *(
      stat.reshape(x.shape[:2]) for stat in row_stats
    )

  return fused.run_on_shards(
    run_shard,
    [*HASH_AXES, HIDDEN_AXES, HIDDEN_AXES, ROW_AXES, ROW_AXES, ROW_AXES],
    [HIDDEN_AXES, *[ROW_SCALAR_AXES] * num_stats],
    *_dropout_hashes(seed, x),
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
  seed: UInt32[Array, "2"],
  rate: float,
  epsilon: float,
  interpret: bool = False,
) -> tuple[Float[Array, "b l d"], Float[Array, "b l d"]]:
  """Returns LayerNorm(x + dropout(y + bias)), twice.

  The caller reads the output in two places. Since the output is returned twice,
  the two gradients arrive separately, and the kernel adds them without an extra
  pass. All sums are float32. The only large arrays that the forward pass saves
  are x and y. The backward pass computes the other arrays again.

  Args:
    x: the residual.
    y: a layer's output, to which no bias was added.
    bias: the bias of that layer, float32.
    scale: the scale of the LayerNorm, float32.
    shift: the bias of the LayerNorm, float32.
    seed: the seed of dropout; see `layers.dropout_seed`.
    rate: the rate of the dropout, in [0, 1).
    epsilon: the epsilon of the LayerNorm.
    interpret: True runs the kernels without a GPU, slowly.
  """
  (out,) = _forward(
    x,
    y,
    bias,
    scale,
    shift,
    seed,
    rate,
    epsilon,
    interpret,
    returns_stats=False,
  )
  return out, out


def _add_norm_forward(
  x: Array,
  y: Array,
  bias: Array,
  scale: Array,
  shift: Array,
  seed: Array,
  rate: float,
  epsilon: float,
  interpret: bool,
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
  out, *stats = _forward(
    x, y, bias, scale, shift, seed, rate, epsilon, interpret, returns_stats=True
  )
  return (out, out), (x, y, bias, scale, *stats, seed)


def _add_norm_backward(
  rate: float,
  epsilon: float,
  interpret: bool,
  saved: tuple[Array, ...],
  gradients: tuple[Array, Array],
) -> tuple[Array, Array, Array, Array, Array, np.ndarray]:
  *saved_arrays, seed = saved

  def run_shard(
    hashes: Array, columns: Array, x: Array, *other_arrays: Array
  ) -> tuple[Array, Array, Array]:
    batch_size, length, width = x.shape
    num_warps, num_programs, max_rows_per_tile = (
      WIDE_TUNING if width >= MIN_WIDE_COLUMNS else NARROW_TUNING
    )
    num_rows = batch_size * length
    plan = _Plan(
      num_rows=num_rows,
      num_columns=width,
      rate=rate,
      epsilon=epsilon,
      rows_per_tile=math.gcd(max_rows_per_tile, num_rows),
    )
    hidden_shape = jax.ShapeDtypeStruct((num_rows, width), x.dtype)
    num_programs = min(num_programs, num_rows // plan.rows_per_tile)
    sums_shape = jax.ShapeDtypeStruct((num_programs, 3, width), jnp.float32)
    arrays = [
      array.reshape(-1) if array.ndim == 2 else array
      for array in (hashes, columns, x, *other_arrays)
    ]
    d_x, d_y, sums = _run_kernel(
      _backward_kernel,
      plan,
      num_programs,
      num_warps,
      (hidden_shape, hidden_shape, sums_shape),
      interpret,
      *arrays,
    )
    d_x = d_x.reshape(x.shape)
    d_y = d_y.reshape(x.shape) if rate else d_x
    return d_x, d_y, fused.sum_groups_of_rows(sums)

  d_x, d_y, sums = fused.run_on_shards(
    run_shard,
    [
      *HASH_AXES,
      HIDDEN_AXES,
      HIDDEN_AXES,
      ROW_AXES,
      ROW_AXES,
      ROW_SCALAR_AXES,
      ROW_SCALAR_AXES,
      HIDDEN_AXES,
      HIDDEN_AXES,
    ],
    [HIDDEN_AXES, HIDDEN_AXES, ("batch", None, "embed_activation")],
    *_dropout_hashes(seed, saved_arrays[0]),
    *saved_arrays,
    *gradients,
  )
  # The compiler would make one pass over the sums for each of the three
  # gradients. With the barrier, it makes one pass for all of them.
  d_bias, d_scale, d_shift = jax.lax.optimization_barrier(sums.sum(0))
  return d_x, d_y, d_bias, d_scale, d_shift, fused.zero_cotangent(seed)


add_norm.defvjp(_add_norm_forward, _add_norm_backward)
