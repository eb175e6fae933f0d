"""The kernels of fused attention: the work of one program of each."""

import functools

import jax.numpy as jnp

from bert_jax.kernels import fused
from bert_jax.kernels.attention_program import UNSEEN, Plan, Program, Ref


def forward_kernel(*refs: Ref, plan: Plan) -> None:
  """Mixed values, log2 of each query's sum of exponentials, its hash."""
  p = Program(plan, refs)
  exp2 = functools.partial(fused.exp2, plain=plan.interpret)
  q_first, hashes = p.block * plan.queries, None
  if plan.rate:
    first, numbers, out, sums, hashed = p.others
    place = numbers[p.h] * plan.length + q_first + jnp.arange(plan.queries)
    hashes = fused.row_hashes(first[p.b], place.astype(jnp.uint32))
    p.store_vector(hashed, hashes, q_first, plan.queries)
  else:
    out, sums = p.others
  query = p.projected(0, q_first, plan.queries)
  queries = p.side(q_first, hashes=hashes)

  def scores_of(j):
    k_first = p.zero + j * plan.keys
    keys = p.side(k_first, keys=True)
    product = fused.dot(query, p.projected(1, k_first, plan.keys), (1, 1))
    scores = jnp.where(p.seen(queries, keys), product, UNSEEN)
    scores = p.real_keys(scores, keys)
    return scores, scores.max(1) * plan.scale_2, keys, k_first

  def mix(scores, keys, k_first, highest):
    weights = exp2(scores * plan.scale_2 - highest[:, None])
    total = weights.sum(1)
    weights = p.keep(queries, keys, weights).astype(plan.dtype)
    value = p.projected(2, k_first, plan.keys)
    return total, fused.dot(weights, value, (1, 0))

  def one_block(j, carry):
    highest, total, mixed = carry
    scores, new, *block = scores_of(j)
    new = jnp.maximum(highest, new)
    shrink = exp2(highest - new)
    more, mixed_more = mix(scores, *block, new)
    return new, total * shrink + more, mixed * shrink[:, None] + mixed_more

  if plan.looped == 1:
    scores, highest, *block = scores_of(0)
    total, mixed = mix(scores, *block, highest)
  else:
    start = (
      jnp.full(plan.queries, 2 * UNSEEN),
      jnp.zeros(plan.queries, jnp.float32),
      jnp.zeros((plan.queries, plan.features), jnp.float32),
    )
    highest, total, mixed = p.loop(one_block, start)
  p.store(out, mixed * (plan.grow / total)[:, None], q_first, plan.queries)
  p.store_vector(sums, highest + jnp.log2(total), q_first, plan.queries)


def queries_kernel(*refs: Ref, plan: Plan) -> None:
  """Gradients of a block of queries; each query's output times gradient."""
  p = Program(plan, refs)
  *hashes, log_sums, out, g, d_qkv, sums, deltas = p.others
  size = plan.queries
  first = p.block * size
  query = p.projected(0, first, size)
  queries = p.side(first, hashes=p.only_vector(hashes, first, size))
  d_out = p.load(g, first, size)
  mixed = p.load(out, first, size).astype(jnp.float32)
  delta = (d_out.astype(jnp.float32) * mixed).sum(1) * (1.0 / plan.grow)
  p.store_vector(deltas, delta, first, size)
  row = p.vector(log_sums, first, size)

  def one_block(j, d_query):
    k_first = p.zero + j * plan.keys
    key, value = (p.projected(n, k_first, plan.keys) for n in (1, 2))
    keys = p.side(k_first, keys=True)
    product = fused.dot(query, key, (1, 1))
    d_weights = fused.dot(d_out, value, (1, 1))
    weights = p.weights(product, queries, keys, row)
    d_weights = p.keep(queries, keys, d_weights)
    d_scores = weights * (d_weights - delta[:, None])
    return d_query + fused.dot(d_scores.astype(plan.dtype), key, (1, 0))

  zero = jnp.zeros((size, plan.features), jnp.float32)
  d_query = p.loop(one_block, zero)
  d_query = d_query * p.of_scores(row)[:, None]
  p.store_gradient(d_qkv, sums, 0, d_query, first, size)


def keys_kernel(*refs: Ref, plan: Plan) -> None:
  """Gradients of a block of keys and values."""
  p = Program(plan, refs)
  *hashes, log_sums, deltas, g, _, d_qkv, sums = p.others
  size = plan.keys
  first = p.block * size
  key, value = (p.projected(n, first, size) for n in (1, 2))
  keys = p.side(first, keys=True, turned=True)

  def one_block(i, carry):
    d_key, d_value = carry
    q_first = p.zero + i * plan.queries
    query = p.projected(0, q_first, plan.queries)
    d_out = p.load(g, q_first, plan.queries)
    row, delta = (
      p.vector(v, q_first, plan.queries) for v in (log_sums, deltas)
    )
    hashed = p.only_vector(hashes, q_first, plan.queries)
    queries = p.side(q_first, turned=True, hashes=hashed)
    product = fused.dot(key, query, (1, 1))
    d_weights = fused.dot(value, d_out, (1, 1))
    weights = p.weights(product, queries, keys, row)
    dropped = p.keep(queries, keys, weights)
    d_scores = p.d_scores(weights, dropped * d_weights, delta, row)
    d_key += fused.dot(d_scores, query, (1, 0))
    dropped = dropped.astype(plan.dtype)
    return d_key, d_value + fused.dot(dropped, d_out, (1, 0))

  zero = jnp.zeros((size, plan.features), jnp.float32)
  d_key, d_value = p.loop(one_block, (zero, zero))
  for number, value in ((1, d_key), (2, d_value * plan.grow)):
    p.store_gradient(d_qkv, sums, number, value, first, size)


def row_kernel(*refs: Ref, plan: Plan) -> None:
  """All gradients of a row whose keys are one block.

  With all keys at hand a query's output times gradient is a sum over them, and
  the weights are made once for the three gradients.
  """
  p = Program(plan, refs)
  *hashes, log_sums, g, d_qkv, sums = p.others
  size = plan.keys
  key, value = (p.projected(n, p.zero, size) for n in (1, 2))
  keys = p.side(p.zero, keys=True, turned=True)

  def one_block(i, carry):
    d_key, d_value, d_queries = carry
    first = p.zero + i * plan.queries
    query = p.projected(0, first, plan.queries)
    d_out = p.load(g, first, plan.queries)
    row = p.vector(log_sums, first, plan.queries)
    hashed = p.only_vector(hashes, first, plan.queries)
    queries = p.side(first, turned=True, hashes=hashed)
    product = fused.dot(key, query, (1, 1))
    d_weights = fused.dot(value, d_out, (1, 1))
    weights = p.weights(product, queries, keys, row)
    dropped = p.keep(queries, keys, weights)
    along = dropped * d_weights
    d_scores = p.d_scores(weights, along, along.sum(0), row)
    dropped = dropped.astype(plan.dtype)
    d_query = fused.dot(d_scores, key, (0, 0))
    p.store(d_qkv, d_query, first, plan.queries, p.zero)
    d_key += fused.dot(d_scores, query, (1, 0))
    d_value += fused.dot(dropped, d_out, (1, 0))
    return d_key, d_value, d_queries + d_query

  zero = jnp.zeros((size, plan.features), jnp.float32)
  start = zero, zero, jnp.zeros((plan.queries, plan.features), jnp.float32)
  d_key, d_value, d_queries = p.loop(one_block, start)
  p.store_sums(sums, 0, d_queries.sum(0))
  for number, value in ((1, d_key), (2, d_value * plan.grow)):
    p.store_gradient(d_qkv, sums, number, value, p.zero, size)
