"""Attention in one kernel each way, for GPUs: no array of [b, h, l, l].

The arithmetic is that of FlashAttention (Dao et al. 2022): blocks of queries
against blocks of keys, the softmax's maximum and sum kept along.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int, UInt32

from bert_jax.kernels import (
  attention_blocks,
  attention_kernels,
  attention_program,
  fused,
)

# Queries of a block, keys of a block, warps, stages of the pipeline. These are
# the fastest on an H200 with heads of 64 at 512 tokens, for short rows at 128.
FORWARD = (128, 64, 4, 3)
FORWARD_SHORT = (128, 32, 4, 3)  # for rows of up to 128 tokens
QUERIES = (64, 64, 4, 3)
KEYS = (32, 128, 4, 4)
# Rows that are no longer than its keys get all gradients from one kernel.
ROW = (16, 128, 4, 3)
IDS = ("batch", "length")
PROJECTED = ("batch", "length", "heads", None, "head_dim")
MIXED = ("batch", "length", "heads", "head_dim")
TOKENS = ("batch", "heads", "length")
SUMS = ("batch", "heads", None, "head_dim")


def _shape(shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


def _blocks(tuning, length, dtype):
  """Queries and keys of a block."""
  limit = fused.power_of_2(length, 16)
  queries, keys = (min(size, limit) for size in tuning[:2])
  if dtype == jnp.float32:  # Blocks twice as large must fit as well.
    queries, keys = min(queries, 64), min(keys, 32)
  return queries, keys


def _call(kernel, tuning, by, options, outputs, arrays, aliases=()):
  """Runs a kernel with a program for each head and block.

  Args:
    kernel: a function of `attention_kernels`.
    tuning: sizes such as `FORWARD`.
    by: "queries" or "keys": a program is started for each block of these.
    options: rate, causal, interpret.
    outputs: (number of blocks) -> shapes.
    arrays: `ids`, `qkv`, and the kernel's other arrays.
    aliases: pairs (number of one of the other arrays, number of the output that
      is written over it).
  """
  rate, causal, interpret = options
  ids, qkv, *others = arrays
  count, length, heads, _, head_dim = qkv.shape
  queries, keys = _blocks(tuning, length, qkv.dtype)
  plan = attention_program.Plan(
    rows=count,
    length=length,
    heads=heads,
    head_dim=head_dim,
    rate=rate,
    causal=causal,
    dtype=qkv.dtype,
    queries=queries,
    keys=keys,
    by=by,
    interpret=interpret,
  )
  inputs = [ids, qkv]
  if plan.skips:
    ranges = attention_blocks.token_ranges(ids, causal)
    inputs.append(
      attention_blocks.block_ranges(ranges[0], queries, keys)
      if by == "queries"
      else attention_blocks.block_ranges(ranges[1], keys, queries)
    )
  return pl.pallas_call(
    functools.partial(kernel, plan=plan),
    grid=(count * heads, plan.blocks),
    out_shape=outputs(plan.blocks),
    input_output_aliases={len(inputs) + i: o for i, o in aliases},
    compiler_params=triton.CompilerParams(
      num_warps=tuning[2], num_stages=tuning[3]
    ),
    interpret=interpret,
    name="attention_" + kernel.__name__.removesuffix("_kernel"),
  )(*inputs, *others)


def _forward(qkv, ids, words, *options):
  """Returns the mixed values, and a tuple of arrays for the backward pass."""
  drops = options[0] > 0

  def on_device(*arrays):
    rows, length, heads, _, head_dim = arrays[1].shape

    def outputs(_):
      out = _shape((rows, length, heads, head_dim), qkv.dtype)
      tokens = (rows, heads, length)
      hashes = (_shape(tokens, jnp.uint32),) if drops else ()
      return out, _shape(tokens), *hashes

    tuning = FORWARD_SHORT if length <= 128 else FORWARD
    return _call(
      attention_kernels.forward_kernel,
      tuning,
      "queries",
      options,
      outputs,
      arrays,
    )

  arrays, axes = [ids, qkv], [IDS, PROJECTED]
  if drops:
    rows, _, heads = qkv.shape[:3]
    arrays += [fused.first_hashes(words, rows), jnp.arange(heads)]
    axes += [("batch",), ("heads",)]
  out_axes = [MIXED, TOKENS, *([TOKENS] if drops else [])]
  out, *saved = fused.over_shards(on_device, axes, out_axes, *arrays)
  return out, tuple(saved)


def with_bias(
  qkv: Float[Array, "b l h 3 k"], bias: Float[Array, "h 3 k"]
) -> Float[Array, "b l h 3 k"]:
  """Adds the bias in the one form that the compiler fuses with a product."""
  flat = qkv.reshape(*qkv.shape[:2], -1) + bias.reshape(1, 1, -1).astype(
    qkv.dtype
  )
  return flat.reshape(qkv.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def attention(
  qkv: Float[Array, "b l h 3 k"],
  bias: Float[Array, "h 3 k"],
  ids: Int[Array, "b l"],
  words: UInt32[Array, "2"],
  rate: float,
  causal: bool = False,
  interpret: bool = False,
) -> Float[Array, "b l h k"]:
  """Attention over projected queries, keys and values.

  Args:
    qkv: queries, keys and values side by side, without their bias.
    bias: the bias, float32.
    ids: `sequence_ids`, see `attention.attention_mask`.
    words: the dropout's key words, see `layers.dropout_bits`.
    rate: rate of the dropout on the probabilities, in [0, 1).
    causal: a query sees no key after it.
    interpret: run without a GPU, slowly.
  """
  qkv = with_bias(qkv, bias)
  return _forward(qkv, ids, words, rate, causal, interpret)[0]


def _attention_forward(qkv, bias, ids, words, *options):
  # The compiler adds the bias in the product; a kernel would have to wait
  # for each block to add it.
  qkv = with_bias(qkv, bias)
  out, (log_sums, *hashes) = _forward(qkv, ids, words, *options)
  return out, (ids, qkv, *hashes, log_sums, out, words)


def _gradients(qkv, blocks):
  """Shapes of the projections' gradient and of its sums over blocks."""
  sums = (qkv.shape[0], blocks, *qkv.shape[2:])
  return _shape(qkv.shape, qkv.dtype), _shape(sums)


def _row_backward(options, *arrays):
  """`_backward` for rows that are one block of keys."""
  *before, _, gradient = arrays
  d_qkv, sums = _call(
    attention_kernels.row_kernel,
    ROW,
    "keys",
    options,
    functools.partial(_gradients, arrays[1]),
    (*before, gradient),
  )
  return d_qkv, jax.lax.optimization_barrier(sums.sum((0, 1)))[None]


def _backward(options, *arrays):
  *before, _, gradient = arrays
  qkv, log_sums = before[1], before[-1]
  if qkv.shape[1] <= _blocks(ROW, qkv.shape[1], qkv.dtype)[1]:
    return _row_backward(options, *arrays)

  def outputs(blocks):
    return *_gradients(qkv, blocks), _shape(log_sums.shape)

  d_qkv, of_queries, deltas = _call(
    attention_kernels.queries_kernel,
    QUERIES,
    "queries",
    options,
    outputs,
    arrays,
  )
  d_qkv, of_keys = _call(
    attention_kernels.keys_kernel,
    KEYS,
    "keys",
    options,
    functools.partial(_gradients, qkv),
    (*before, deltas, gradient, d_qkv),
    aliases=[(len(before), 0)],
  )
  # Each kernel leaves the others' part unwritten.
  of_queries, of_keys = (
    jax.lax.optimization_barrier(part.sum((0, 1)))
    for part in (of_queries[..., :1, :], of_keys[..., 1:, :])
  )
  return d_qkv, jnp.concatenate([of_queries, of_keys], -2)[None]


def _attention_backward(rate, causal, interpret, saved, gradient):
  ids, *arrays, words = saved
  numbers = [TOKENS] * (len(arrays) - 2)  # Sums, with dropout hashes.
  d_qkv, sums = fused.over_shards(
    functools.partial(_backward, (rate, causal, interpret)),
    [IDS, PROJECTED, *numbers, MIXED, MIXED],
    [PROJECTED, SUMS],
    ids,
    *arrays,
    gradient,
  )
  no = fused.no_gradient
  return d_qkv, sums.sum(0), no(ids), no(words)


attention.defvjp(_attention_forward, _attention_backward)
