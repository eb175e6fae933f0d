"""Attention kernels for TPUs, which never write an array [b, h, l, l] to HBM.

There is one kernel for the forward pass and one for the backward pass. A
program works on one row of the batch and one head. Its scores [l, l] stay in
the core's local memory, and the backward pass computes them again.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, UInt32

from bert_jax.kernels import fused

# The length of the longest rows. Several arrays [l, l] of this length fit into
# the local memory.
MAX_LENGTH = 512
# The programs of a grid are independent. A chip of v4 and v5p has two cores. It
# runs half of the grid on each core only if it knows that they are independent.
_INDEPENDENT = pltpu.CompilerParams(
  dimension_semantics=("parallel", "parallel")
)
# The score of a key that a query does not see.
UNSEEN_SCORE = -1e30
HEAD_AXES = ("batch", "heads", "length", "head_dim")
Ref = Any  # A reference to an array, as Pallas passes it to a kernel.


def _probabilities(
  query: Ref, key: Ref, q_ids: Ref, k_ids: Ref, causal: bool
) -> tuple[Array, Array]:
  """Returns float32 probabilities [l, l], and True where a query sees a key."""
  scores = fused.dot(query[...], key[...], (1, 1))
  scores = scores * (1.0 / math.sqrt(query.shape[-1]))
  is_seen = jnp.maximum(q_ids[...], 1) == k_ids[...]
  if causal:
    row, column = (
      jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1)
    )
    is_seen &= row >= column
  scores = jnp.where(is_seen, scores, UNSEEN_SCORE)
  weights = jnp.exp(scores - scores.max(1, keepdims=True))
  return weights / weights.sum(1, keepdims=True), is_seen


def _dropout_factors(row: Ref, column: Ref, rate: float) -> Array:
  """Returns the factors by which dropout multiplies the probabilities."""
  row_hash, column_hash = (ref[...].astype(jnp.uint32) for ref in (row, column))
  keep_scale = np.float32(1.0 / (1.0 - rate))
  mask = fused.keep_mask(row_hash, column_hash, rate)
  return jnp.where(mask, keep_scale, np.float32(0.0))


def _forward_kernel(
  row: Ref,
  column: Ref,
  q_ids: Ref,
  k_ids: Ref,
  query: Ref,
  key: Ref,
  value: Ref,
  out: Ref,
  *,
  rate: float,
  causal: bool,
) -> None:
  """Computes `out`; `row` and `column` are the hashes for dropout."""
  weights, _ = _probabilities(query, key, q_ids, k_ids, causal)
  if rate:
    weights *= _dropout_factors(row, column, rate)
  mixed = fused.dot(weights.astype(value.dtype), value[...], (1, 0))
  out[...] = mixed.astype(out.dtype)


def _backward_kernel(
  row: Ref,
  column: Ref,
  q_ids: Ref,
  k_ids: Ref,
  query: Ref,
  key: Ref,
  value: Ref,
  gradient: Ref,
  d_query: Ref,
  d_key: Ref,
  d_value: Ref,
  *,
  rate: float,
  causal: bool,
) -> None:
  """Computes `d_query`, `d_key` and `d_value` from the output's gradient."""
  weights, is_seen = _probabilities(query, key, q_ids, k_ids, causal)
  d_out, dtype = gradient[...], query.dtype
  d_weights, dropped_weights = fused.dot(d_out, value[...], (1, 1)), weights
  if rate:
    factors = _dropout_factors(row, column, rate)
    d_weights, dropped_weights = d_weights * factors, weights * factors
  d_value[...] = fused.dot(dropped_weights.astype(dtype), d_out, (0, 0)).astype(
    dtype
  )
  delta = (weights * d_weights).sum(1, keepdims=True)
  d_scores = weights * (d_weights - delta) * (1.0 / math.sqrt(query.shape[-1]))
  d_scores = jnp.where(is_seen, d_scores, 0.0).astype(dtype)
  d_query[...] = fused.dot(d_scores, key[...], (1, 0)).astype(dtype)
  d_key[...] = fused.dot(d_scores, query[...], (0, 0)).astype(dtype)


# The arguments `rate`, `causal` and `interpret` of `attention`.
Options = tuple[float, bool, bool]


def _run_kernel(
  kernel: Callable[..., None],
  num_outputs: int,
  options: Options,
  seed: Array,
  ids: Array,
  *arrays: Array,
) -> Any:
  """Runs a kernel.

  Args:
    kernel: `_forward_kernel` or `_backward_kernel`.
    num_outputs: the number of outputs; each has the shape of one of `arrays`.
    options: the options of `attention`.
    seed: the seed of the dropout.
    ids: the `sequence_ids`.
    *arrays: the kernel's other arrays, [b, h, l, k].

  Returns:
    A tuple of arrays.
  """
  rate, causal, interpret = options

  def run_shard(
    hashes: Array, columns: Array, ids: Array, *arrays: Array
  ) -> Any:
    rows, heads, length, width = arrays[0].shape
    block_spec = pl.BlockSpec(
      (None, None, length, width), lambda b, h: (b, h, 0, 0)
    )
    row_spec = pl.BlockSpec((None, None, length, 1), lambda b, h: (b, h, 0, 0))
    column_spec = pl.BlockSpec((1, length), lambda b, h: (0, 0))
    query_ids_spec = pl.BlockSpec((None, length, 1), lambda b, h: (b, 0, 0))
    key_ids_spec = pl.BlockSpec((None, 1, length), lambda b, h: (b, 0, 0))
    output_shape = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    return pl.pallas_call(
      functools.partial(kernel, rate=rate, causal=causal),
      grid=(rows, heads),
      in_specs=[
        row_spec,
        column_spec,
        query_ids_spec,
        key_ids_spec,
        *[block_spec] * len(arrays),
      ],
      out_specs=[block_spec] * num_outputs,
      out_shape=[output_shape] * num_outputs,
      interpret=interpret,
      compiler_params=_INDEPENDENT,
      name="attention_" + kernel.__name__.split("_")[1],
    )(hashes[..., None], columns, ids[:, :, None], ids[:, None, :], *arrays)

  rows, heads, length = arrays[0].shape[:3]
  token_indices = np.arange(heads * length, dtype=np.uint32).reshape(
    heads, length
  )
  hashes = fused.first_hashes(seed, rows)[:, None, None]
  hashes = fused.row_hashes(hashes, token_indices[None]).astype(jnp.int32)
  columns = fused.column_hashes(np.arange(ids.shape[1], dtype=np.uint32))
  return fused.run_on_shards(
    run_shard,
    [
      HEAD_AXES[:3],
      (None, None),
      ("batch", "length"),
      *[HEAD_AXES] * len(arrays),
    ],
    [HEAD_AXES] * num_outputs,
    hashes,
    jnp.asarray(columns.astype(np.int32)[None]),
    ids,
    *arrays,
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def attention(
  query: Float[Array, "b h l k"],
  key: Float[Array, "b h l k"],
  value: Float[Array, "b h l k"],
  ids: Int[Array, "b l"],
  seed: UInt32[Array, "2"],
  rate: float,
  causal: bool = False,
  interpret: bool = False,
) -> Float[Array, "b h l k"]:
  """Computes attention over projected queries, keys and values.

  Args:
    query: the queries, with their bias.
    key: the keys, in the dtype of the queries.
    value: the values, in the dtype of the queries.
    ids: the `sequence_ids`; see `attention.attention_mask`.
    seed: the seed of dropout; see `layers.dropout_seed`.
    rate: the dropout rate on the probabilities, in [0, 1).
    causal: True lets no query see a key after it.
    interpret: True runs the kernels without a TPU, slowly.

  Raises:
    ValueError: the rows are longer than `MAX_LENGTH`.
  """
  return _attention_forward(
    query, key, value, ids, seed, rate, causal, interpret
  )[0]


def _attention_forward(
  query: Array,
  key: Array,
  value: Array,
  ids: Array,
  seed: Array,
  rate: float,
  causal: bool,
  interpret: bool,
) -> tuple[Array, tuple[Array, ...]]:
  options = rate, causal, interpret
  if query.shape[2] > MAX_LENGTH:
    raise ValueError(
      f"attention 'tpu' takes rows of up to {MAX_LENGTH} tokens, and this"
      f" row has {query.shape[2]}; set model.attention='xla'."
    )
  (out,) = _run_kernel(
    _forward_kernel, 1, options, seed, ids, query, key, value
  )
  return out, (query, key, value, ids, seed)


def _attention_backward(
  rate: float,
  causal: bool,
  interpret: bool,
  saved: tuple[Array, ...],
  gradient: Array,
) -> tuple[Any, ...]:
  query, key, value, ids, seed = saved
  options = rate, causal, interpret
  gradients = _run_kernel(
    _backward_kernel, 3, options, seed, ids, query, key, value, gradient
  )
  return (*gradients, fused.zero_cotangent(ids), fused.zero_cotangent(seed))


attention.defvjp(_attention_forward, _attention_backward)
