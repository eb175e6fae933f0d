"""Attention kernels for GPUs, which never write an array [b, h, l, l].

The arithmetic is that of FlashAttention (Dao et al. 2022). A program compares a
block of queries with one block of keys after another, and updates the
softmax's maximum and sum. There is one kernel for the forward pass. The
backward pass has one kernel for short rows, and two for long rows.

The "mixed values" are the output of attention: for each query, the mean of the
values, weighted with the query's probabilities.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int, UInt32

from bert_jax.kernels import (
  attention_blocks,
  attention_kernels,
  attention_program,
  fused,
)

# The tuning of each kernel: queries in a block, keys in a block, warps, stages
# of the pipeline. These tunings are the fastest on an H200, for heads of 64.
#   name           kernel           rows                  measured at
#   FORWARD        forward_kernel   over 128 tokens       512 tokens
#   FORWARD_SHORT  forward_kernel   up to 128 tokens      128 tokens
#   QUERIES        queries_kernel   longer than a block   512 tokens
#   KEYS           keys_kernel      longer than a block   512 tokens
#   ROW            row_kernel       up to a block         128 tokens
# In this table, a block has as many tokens as a block of keys in `ROW_TUNING`.
Tuning = tuple[int, int, int, int]
FORWARD_TUNING: Tuning = (128, 64, 4, 3)
FORWARD_SHORT_TUNING: Tuning = (128, 32, 4, 3)
QUERIES_TUNING: Tuning = (64, 64, 4, 3)
KEYS_TUNING: Tuning = (32, 128, 4, 4)
ROW_TUNING: Tuning = (16, 128, 4, 3)
# The logical axes of the arrays. `TOKEN_AXES` are for a number for each head
# and token, and `SUM_AXES` for sums of the gradients of `qkv` over tokens.
IDS_AXES = ("batch", "length")
PROJECTED_AXES = ("batch", "length", "heads", None, "head_dim")
MIXED_AXES = ("batch", "length", "heads", "head_dim")
TOKEN_AXES = ("batch", "heads", "length")
SUM_AXES = ("batch", "heads", None, "head_dim")


# The arguments `rate`, `causal` and `interpret` of `attention`.
Options = tuple[float, bool, bool]
OutputShapes = tuple[jax.ShapeDtypeStruct, ...]


def _shape(
  shape: tuple[int, ...], dtype: Any = jnp.float32
) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype)


def _block_sizes(
  tuning: Tuning, length: int, dtype: jnp.dtype
) -> tuple[int, int]:
  """Returns the numbers of queries and of keys in a block."""
  limit = fused.next_power_of_2(length, minimum=16)
  queries_per_block, keys_per_block = (min(size, limit) for size in tuning[:2])
  if dtype == jnp.float32:
    # Float32 blocks take twice the memory of 16-bit blocks, and must still fit.
    queries_per_block, keys_per_block = (
      min(queries_per_block, 64),
      min(keys_per_block, 32),
    )
  return queries_per_block, keys_per_block


def _run_kernel(
  kernel: Callable[..., None],
  tuning: Tuning,
  side: str,
  options: Options,
  output_shapes: Callable[[int], OutputShapes],
  arrays: Sequence[Array],
  aliases: Sequence[tuple[int, int]] = (),
) -> Any:
  """Runs a kernel with a program for each row, head and block.

  Args:
    kernel: a function of `attention_kernels`.
    tuning: the tuning of this kernel.
    side: see `attention_program.Plan`.
    options: the options of `attention`.
    output_shapes: (number of blocks) -> shapes of the outputs.
    arrays: `ids`, `qkv`, and the kernel's other arrays.
    aliases: pairs (index in the kernel's other arrays, index in the outputs).
      The output is written into the memory of the array.

  Returns:
    A tuple of arrays: the outputs.
  """
  rate, causal, interpret = options
  ids, qkv, *other_arrays = arrays
  num_rows, length, heads, _, head_dim = qkv.shape
  queries_per_block, keys_per_block = _block_sizes(tuning, length, qkv.dtype)
  plan = attention_program.Plan(
    num_rows=num_rows,
    length=length,
    num_heads=heads,
    head_dim=head_dim,
    rate=rate,
    causal=causal,
    dtype=qkv.dtype,
    queries_per_block=queries_per_block,
    keys_per_block=keys_per_block,
    side=side,
    interpret=interpret,
  )
  inputs = [ids, qkv]
  if plan.skips_blocks:
    ranges = attention_blocks.token_ranges(ids, causal)
    inputs.append(
      attention_blocks.block_ranges(
        ranges[0], queries_per_block, keys_per_block
      )
      if side == "queries"
      else attention_blocks.block_ranges(
        ranges[1], keys_per_block, queries_per_block
      )
    )
  return pl.pallas_call(
    functools.partial(kernel, plan=plan),
    grid=(num_rows * heads, plan.num_blocks),
    out_shape=output_shapes(plan.num_blocks),
    input_output_aliases={
      len(inputs) + array_index: output_index
      for array_index, output_index in aliases
    },
    compiler_params=triton.CompilerParams(
      num_warps=tuning[2], num_stages=tuning[3]
    ),
    interpret=interpret,
    name="attention_" + kernel.__name__.removesuffix("_kernel"),
  )(*inputs, *other_arrays)


def _forward(
  qkv: Array, ids: Array, seed: Array, options: Options
) -> tuple[Array, tuple[Array, ...]]:
  """Returns the mixed values, and a tuple of arrays for the backward pass."""
  has_dropout = options[0] > 0  # The first option is the dropout rate.

  def run_shard(*arrays: Array) -> tuple[Array, ...]:
    # `arrays` begins with `ids` and `qkv`.
    num_rows, length, heads, _, head_dim = arrays[1].shape

    def output_shapes(_: int) -> OutputShapes:
      out = _shape((num_rows, length, heads, head_dim), qkv.dtype)
      token_shape = (num_rows, heads, length)
      hash_shapes = (_shape(token_shape, jnp.uint32),) if has_dropout else ()
      return out, _shape(token_shape), *hash_shapes

    tuning = FORWARD_SHORT_TUNING if length <= 128 else FORWARD_TUNING
    return _run_kernel(
      attention_kernels.forward_kernel,
      tuning,
      "queries",
      options,
      output_shapes,
      arrays,
    )

  arrays: list[Array] = [ids, qkv]
  in_axes: list[fused.Axes] = [IDS_AXES, PROJECTED_AXES]
  if has_dropout:
    num_rows, _, heads = qkv.shape[:3]
    arrays += [fused.first_hashes(seed, num_rows), jnp.arange(heads)]
    in_axes += [("batch",), ("heads",)]
  out_axes = [MIXED_AXES, TOKEN_AXES, *([TOKEN_AXES] if has_dropout else [])]
  out, *saved = fused.run_on_shards(run_shard, in_axes, out_axes, *arrays)
  return out, tuple(saved)


def add_bias(
  qkv: Float[Array, "b l h 3 k"], bias: Float[Array, "h 3 k"]
) -> Float[Array, "b l h 3 k"]:
  """Adds the bias in the only form that the compiler fuses with a product."""
  flat_qkv = qkv.reshape(*qkv.shape[:2], -1)
  flat_qkv = flat_qkv + bias.reshape(1, 1, -1).astype(qkv.dtype)
  return flat_qkv.reshape(qkv.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def attention(
  qkv: Float[Array, "b l h 3 k"],
  bias: Float[Array, "h 3 k"],
  ids: Int[Array, "b l"],
  seed: UInt32[Array, "2"],
  rate: float,
  causal: bool = False,
  interpret: bool = False,
) -> Float[Array, "b l h k"]:
  """Computes attention over projected queries, keys and values.

  Args:
    qkv: queries, keys and values side by side, without their bias.
    bias: the bias, float32.
    ids: `sequence_ids`, see `attention.attention_mask`.
    seed: the seed of dropout; see `layers.dropout_seed`.
    rate: the dropout rate on the probabilities, in [0, 1).
    causal: True lets no query see a key after it.
    interpret: True runs the kernels without a GPU, slowly.
  """
  qkv = add_bias(qkv, bias)
  return _forward(qkv, ids, seed, (rate, causal, interpret))[0]


def _attention_forward(
  qkv: Array,
  bias: Array,
  ids: Array,
  seed: Array,
  rate: float,
  causal: bool,
  interpret: bool,
) -> tuple[Array, tuple[Array, ...]]:
  # The compiler adds the bias in the product that makes `qkv`. If the kernels
  # added it, they would have to wait for the sum in each block.
  qkv = add_bias(qkv, bias)
  out, (log_sums, *hashes) = _forward(qkv, ids, seed, (rate, causal, interpret))
  return out, (ids, qkv, *hashes, log_sums, out, seed)


def _gradient_shapes(qkv: Array, blocks: int) -> OutputShapes:
  """Returns the shapes of the gradient of `qkv` and of the blocks' sums."""
  sums_shape = (qkv.shape[0], blocks, *qkv.shape[2:])
  return _shape(qkv.shape, qkv.dtype), _shape(sums_shape)


def _row_backward(options: Options, *arrays: Array) -> tuple[Array, Array]:
  """Computes `_backward` for rows that fit into one block of keys."""
  *forward_arrays, _, gradient = arrays
  d_qkv, sums = _run_kernel(
    attention_kernels.row_kernel,
    ROW_TUNING,
    "keys",
    options,
    functools.partial(_gradient_shapes, arrays[1]),
    (*forward_arrays, gradient),
  )
  return d_qkv, jax.lax.optimization_barrier(sums.sum((0, 1)))[None]


def _backward(options: Options, *arrays: Array) -> tuple[Array, Array]:
  """Computes the gradient of `qkv`, and its sums over the tokens.

  Args:
    options: the options of `attention`.
    *arrays: `ids`; `qkv`; the queries' hashes, if there is dropout; the log
      sums of `forward_kernel`; the output of `forward_kernel`; the gradient of
      this output.

  Returns:
    The gradient, and sums [1, h, 3, k].
  """
  *forward_arrays, _, gradient = arrays
  qkv, log_sums = forward_arrays[1], forward_arrays[-1]
  if qkv.shape[1] <= _block_sizes(ROW_TUNING, qkv.shape[1], qkv.dtype)[1]:
    return _row_backward(options, *arrays)

  def output_shapes(blocks: int) -> OutputShapes:
    return *_gradient_shapes(qkv, blocks), _shape(log_sums.shape)

  d_qkv, query_sums, deltas = _run_kernel(
    attention_kernels.queries_kernel,
    QUERIES_TUNING,
    "queries",
    options,
    output_shapes,
    arrays,
  )
  d_qkv, key_sums = _run_kernel(
    attention_kernels.keys_kernel,
    KEYS_TUNING,
    "keys",
    options,
    functools.partial(_gradient_shapes, qkv),
    (*forward_arrays, deltas, gradient, d_qkv),
    aliases=[(len(forward_arrays), 0)],
  )
  # `queries_kernel` writes only the sums of the queries, and `keys_kernel` only
  # the sums of keys and values.
  query_sums, key_sums = (
    jax.lax.optimization_barrier(sums.sum((0, 1)))
    for sums in (query_sums[..., :1, :], key_sums[..., 1:, :])
  )
  return d_qkv, jnp.concatenate([query_sums, key_sums], -2)[None]


def _attention_backward(
  rate: float,
  causal: bool,
  interpret: bool,
  saved: tuple[Array, ...],
  gradient: Array,
) -> tuple[Array, Array, np.ndarray, np.ndarray]:
  ids, *arrays, seed = saved
  # The log sums, and the hashes if there is dropout, are arrays with a number
  # for each head and token.
  number_axes = [TOKEN_AXES] * (len(arrays) - 2)
  d_qkv, sums = fused.run_on_shards(
    functools.partial(_backward, (rate, causal, interpret)),
    [IDS_AXES, PROJECTED_AXES, *number_axes, MIXED_AXES, MIXED_AXES],
    [PROJECTED_AXES, SUM_AXES],
    ids,
    *arrays,
    gradient,
  )
  no_gradient = fused.zero_cotangent
  return d_qkv, sums.sum(0), no_gradient(ids), no_gradient(seed)


attention.defvjp(_attention_forward, _attention_backward)
