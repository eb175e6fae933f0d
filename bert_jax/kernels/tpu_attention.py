"""Attention in one kernel each way, for TPUs: no array of [b, h, l, l] in HBM.

A program has one row of the batch and one head; its scores, [l, l], stay in the
core's own memory, and the backward pass makes them again.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int, UInt32

from bert_jax.kernels import fused

# Scores of so many tokens fit, several times over.
LONGEST = 512
UNSEEN = -1e30
HEADS = ("batch", "heads", "length", "head_dim")


def _weights(query, key, q_ids, k_ids, causal):
  """Probabilities [l, l] in float32, and which keys are seen."""
  scores = fused.dot(query[...], key[...], (1, 1))
  scores = scores * (1.0 / math.sqrt(query.shape[-1]))
  seen = jnp.maximum(q_ids[...], 1) == k_ids[...]
  if causal:
    row, column = (
      jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1)
    )
    seen &= row >= column
  scores = jnp.where(seen, scores, UNSEEN)
  weights = jnp.exp(scores - scores.max(1, keepdims=True))
  return weights / weights.sum(1, keepdims=True), seen


def _kept(row, column, rate):
  """Dropout's factors of the probabilities."""
  hashes = (ref[...].astype(jnp.uint32) for ref in (row, column))
  grow = np.float32(1.0 / (1.0 - rate))
  kept = fused.keep_mask(*hashes, rate)
  return jnp.where(kept, grow, np.float32(0.0))


def _forward_kernel(
  row, column, q_ids, k_ids, query, key, value, out, *, rate, causal
):
  weights, _ = _weights(query, key, q_ids, k_ids, causal)
  if rate:
    weights *= _kept(row, column, rate)
  mixed = fused.dot(weights.astype(value.dtype), value[...], (1, 0))
  out[...] = mixed.astype(out.dtype)


def _backward_kernel(
  row,
  column,
  q_ids,
  k_ids,
  query,
  key,
  value,
  gradient,
  d_query,
  d_key,
  d_value,
  *,
  rate,
  causal,
):
  weights, seen = _weights(query, key, q_ids, k_ids, causal)
  d_out, dtype = gradient[...], query.dtype
  d_weights, dropped = fused.dot(d_out, value[...], (1, 1)), weights
  if rate:
    kept = _kept(row, column, rate)
    d_weights, dropped = d_weights * kept, weights * kept
  d_value[...] = fused.dot(dropped.astype(dtype), d_out, (0, 0)).astype(dtype)
  delta = (weights * d_weights).sum(1, keepdims=True)
  d_scores = weights * (d_weights - delta) * (1.0 / math.sqrt(query.shape[-1]))
  d_scores = jnp.where(seen, d_scores, 0.0).astype(dtype)
  d_query[...] = fused.dot(d_scores, key[...], (1, 0)).astype(dtype)
  d_key[...] = fused.dot(d_scores, query[...], (0, 0)).astype(dtype)


def _call(kernel, results, options, words, ids, *arrays):
  """Runs a kernel over [b, h, l, k] arrays; `results` come out alike."""
  rate, causal, interpret = options

  def on_device(hashes, columns, ids, *arrays):
    rows, heads, length, width = arrays[0].shape
    block = pl.BlockSpec((None, None, length, width), lambda b, h: (b, h, 0, 0))
    row = pl.BlockSpec((None, None, length, 1), lambda b, h: (b, h, 0, 0))
    column = pl.BlockSpec((1, length), lambda b, h: (0, 0))
    q_ids = pl.BlockSpec((None, length, 1), lambda b, h: (b, 0, 0))
    k_ids = pl.BlockSpec((None, 1, length), lambda b, h: (b, 0, 0))
    out = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    return pl.pallas_call(
      functools.partial(kernel, rate=rate, causal=causal),
      grid=(rows, heads),
      in_specs=[row, column, q_ids, k_ids, *[block] * len(arrays)],
      out_specs=[block] * results,
      out_shape=[out] * results,
      interpret=interpret,
      name="attention_" + kernel.__name__.split("_")[1],
    )(hashes[..., None], columns, ids[:, :, None], ids[:, None, :], *arrays)

  rows, heads, length = arrays[0].shape[:3]
  place = np.arange(heads * length, dtype=np.uint32).reshape(heads, length)
  hashes = fused.first_hashes(words, rows)[:, None, None]
  hashes = fused.row_hashes(hashes, place[None]).astype(jnp.int32)
  columns = fused.column_hashes(np.arange(ids.shape[1], dtype=np.uint32))
  return fused.over_shards(
    on_device,
    [HEADS[:3], (None, None), ("batch", "length"), *[HEADS] * len(arrays)],
    [HEADS] * results,
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
  words: UInt32[Array, "2"],
  rate: float,
  causal: bool = False,
  interpret: bool = False,
) -> Float[Array, "b h l k"]:
  """Attention of projected queries, keys and values, heads before tokens.

  Args:
    query: and `key`, `value`: of one dtype.
    ids: `sequence_ids`: see `attention.attention_mask`.
    words: the dropout's key words, see `layers.dropout_bits`.
    rate: rate of the dropout on the probabilities, in [0, 1).
    causal: a query sees no key after it.
    interpret: run without a TPU, slowly.

  Raises:
    ValueError: longer than `LONGEST`.
  """
  return _attention_forward(
    query, key, value, ids, words, rate, causal, interpret
  )[0]


def _attention_forward(query, key, value, ids, words, *options):
  if query.shape[2] > LONGEST:
    raise ValueError(
      f"attention 'tpu' takes rows of up to {LONGEST} tokens, this one has"
      f" {query.shape[2]}; set model.attention='xla'."
    )
  (out,) = _call(_forward_kernel, 1, options, words, ids, query, key, value)
  return out, (query, key, value, ids, words)


def _attention_backward(rate, causal, interpret, saved, gradient):
  query, key, value, ids, words = saved
  options = rate, causal, interpret
  gradients = _call(
    _backward_kernel, 3, options, words, ids, query, key, value, gradient
  )
  return (*gradients, fused.no_gradient(ids), fused.no_gradient(words))


attention.defvjp(_attention_forward, _attention_backward)
