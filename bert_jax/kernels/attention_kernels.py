"""The kernels of fused attention; a function is one program of a kernel.

A local with the prefix `d_` is the gradient of the array with that name.
"""

import functools

import jax.numpy as jnp
from jaxtyping import Array

from bert_jax.kernels import fused
from bert_jax.kernels.attention_program import (
  UNSEEN_SCORE,
  Plan,
  Program,
  Ref,
  Tokens,
)

# The carry of the forward kernel's loop; see `add_block`.
Carry = tuple[Array, Array, Array]


def forward_kernel(*refs: Ref, plan: Plan) -> None:
  """Computes the mixed values of a block of queries.

  The module `fused_attention` says what the mixed values are. The kernel also
  writes log2 of each query's sum of exponentials. With dropout, it writes the
  queries' hashes too.
  """
  p = Program(plan, refs)
  exp2 = functools.partial(fused.exp2, plain=plan.interpret)
  q_first, hashes = p.block * plan.queries, None
  if plan.rate:
    first_hashes, head_numbers, out, log_sums, query_hashes = p.other_refs
    index = head_numbers[p.h] * plan.length + q_first + jnp.arange(plan.queries)
    hashes = fused.row_hashes(first_hashes[p.b], index.astype(jnp.uint32))
    p.store_vector(query_hashes, hashes, q_first, plan.queries)
  else:
    out, log_sums = p.other_refs
  query = p.projected(0, q_first, plan.queries)
  queries = p.tokens(q_first, hashes=hashes)

  def block_scores(j: Array | int) -> tuple[Array, Array, Tokens, Array]:
    """Returns (scores, each query's highest score, keys, first position)."""
    k_first = p.zero + j * plan.keys
    keys = p.tokens(k_first, keys=True)
    product = fused.dot(query, p.projected(1, k_first, plan.keys), (1, 1))
    scores = jnp.where(p.sees(queries, keys), product, UNSEEN_SCORE)
    scores = p.mask_end(scores, keys)
    return scores, scores.max(1) * plan.exp2_scale, keys, k_first

  def mix(
    scores: Array, keys: Tokens, k_first: Array, highest: Array
  ) -> tuple[Array, Array]:
    """Returns the sums of exponentials, and the block's mixed values."""
    weights = exp2(scores * plan.exp2_scale - highest[:, None])
    total = weights.sum(1)
    weights = p.drop(queries, keys, weights).astype(plan.dtype)
    value = p.projected(2, k_first, plan.keys)
    return total, fused.dot(weights, value, (1, 0))

  def add_block(j: Array, carry: Carry) -> Carry:
    """Updates (highest scores, sums, mixed values) with a block of keys."""
    highest, total, mixed = carry
    scores, new_highest, keys, k_first = block_scores(j)
    new_highest = jnp.maximum(highest, new_highest)
    shrink_factor = exp2(highest - new_highest)
    block_total, block_mixed = mix(scores, keys, k_first, new_highest)
    total = total * shrink_factor + block_total
    return new_highest, total, mixed * shrink_factor[:, None] + block_mixed

  if plan.other_blocks == 1:
    scores, highest, keys, k_first = block_scores(0)
    total, mixed = mix(scores, keys, k_first, highest)
  else:
    start = (
      jnp.full(plan.queries, 2 * UNSEEN_SCORE),
      jnp.zeros(plan.queries, jnp.float32),
      jnp.zeros((plan.queries, plan.features), jnp.float32),
    )
    highest, total, mixed = p.loop(add_block, start)
  scale = plan.keep_scale / total
  p.store(out, mixed * scale[:, None], q_first, plan.queries)
  p.store_vector(log_sums, highest + jnp.log2(total), q_first, plan.queries)


def queries_kernel(*refs: Ref, plan: Plan) -> None:
  """Computes the gradients of a block of queries.

  It also writes `deltas`: each query's output times the output's gradient.
  """
  p = Program(plan, refs)
  *hashes, log_sums, out, out_gradient, d_qkv, sums, deltas = p.other_refs
  size = plan.queries
  first = p.block * size
  query = p.projected(0, first, size)
  queries = p.tokens(first, hashes=p.optional_vector(hashes, first, size))
  d_out = p.load(out_gradient, first, size)
  mixed = p.load(out, first, size).astype(jnp.float32)
  delta = (d_out.astype(jnp.float32) * mixed).sum(1) * (1.0 / plan.keep_scale)
  p.store_vector(deltas, delta, first, size)
  log_sum = p.vector(log_sums, first, size)

  def add_block(j: Array, d_query: Array) -> Array:
    """Adds the gradient from a block of keys."""
    k_first = p.zero + j * plan.keys
    key, value = (p.projected(n, k_first, plan.keys) for n in (1, 2))
    keys = p.tokens(k_first, keys=True)
    product = fused.dot(query, key, (1, 1))
    d_weights = fused.dot(d_out, value, (1, 1))
    weights = p.weights(product, queries, keys, log_sum)
    d_weights = p.drop(queries, keys, d_weights)
    d_scores = weights * (d_weights - delta[:, None])
    return d_query + fused.dot(d_scores.astype(plan.dtype), key, (1, 0))

  zero = jnp.zeros((size, plan.features), jnp.float32)
  d_query = p.loop(add_block, zero)
  d_query = d_query * p.score_factor(log_sum)[:, None]
  p.store_gradient(d_qkv, sums, 0, d_query, first, size)


def keys_kernel(*refs: Ref, plan: Plan) -> None:
  """Computes the gradients of a block of keys and values."""
  p = Program(plan, refs)
  *hashes, log_sums, deltas, out_gradient, _, d_qkv, sums = p.other_refs
  size = plan.keys
  first = p.block * size
  key, value = (p.projected(n, first, size) for n in (1, 2))
  keys = p.tokens(first, keys=True, transposed=True)

  def add_block(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
    """Adds the gradients from a block of queries."""
    d_key, d_value = carry
    q_first = p.zero + i * plan.queries
    query = p.projected(0, q_first, plan.queries)
    d_out = p.load(out_gradient, q_first, plan.queries)
    log_sum, delta = (
      p.vector(v, q_first, plan.queries) for v in (log_sums, deltas)
    )
    query_hashes = p.optional_vector(hashes, q_first, plan.queries)
    queries = p.tokens(q_first, transposed=True, hashes=query_hashes)
    product = fused.dot(key, query, (1, 1))
    d_weights = fused.dot(value, d_out, (1, 1))
    weights = p.weights(product, queries, keys, log_sum)
    dropped = p.drop(queries, keys, weights)
    d_scores = p.d_scores(weights, dropped * d_weights, delta, log_sum)
    d_key += fused.dot(d_scores, query, (1, 0))
    dropped = dropped.astype(plan.dtype)
    return d_key, d_value + fused.dot(dropped, d_out, (1, 0))

  zero = jnp.zeros((size, plan.features), jnp.float32)
  d_key, d_value = p.loop(add_block, (zero, zero))
  for number, gradient in ((1, d_key), (2, d_value * plan.keep_scale)):
    p.store_gradient(d_qkv, sums, number, gradient, first, size)


def row_kernel(*refs: Ref, plan: Plan) -> None:
  """Computes all gradients of a row whose keys are one block.

  The program has all keys, so it computes the weights only once for the three
  gradients. It also needs no `deltas` from another kernel: it computes them as
  sums over the keys.
  """
  p = Program(plan, refs)
  *hashes, log_sums, out_gradient, d_qkv, sums = p.other_refs
  size = plan.keys
  key, value = (p.projected(n, p.zero, size) for n in (1, 2))
  keys = p.tokens(p.zero, keys=True, transposed=True)

  def add_block(i: Array, carry: Carry) -> Carry:
    """Adds the gradients from a block of queries."""
    d_key, d_value, d_queries = carry
    first = p.zero + i * plan.queries
    query = p.projected(0, first, plan.queries)
    d_out = p.load(out_gradient, first, plan.queries)
    log_sum = p.vector(log_sums, first, plan.queries)
    query_hashes = p.optional_vector(hashes, first, plan.queries)
    queries = p.tokens(first, transposed=True, hashes=query_hashes)
    product = fused.dot(key, query, (1, 1))
    d_weights = fused.dot(value, d_out, (1, 1))
    weights = p.weights(product, queries, keys, log_sum)
    dropped = p.drop(queries, keys, weights)
    products = dropped * d_weights
    d_scores = p.d_scores(weights, products, products.sum(0), log_sum)
    dropped = dropped.astype(plan.dtype)
    d_query = fused.dot(d_scores, key, (0, 0))
    p.store(d_qkv, d_query, first, plan.queries, p.zero)
    d_key += fused.dot(d_scores, query, (1, 0))
    d_value += fused.dot(dropped, d_out, (1, 0))
    return d_key, d_value, d_queries + d_query

  zero = jnp.zeros((size, plan.features), jnp.float32)
  start = zero, zero, jnp.zeros((plan.queries, plan.features), jnp.float32)
  d_key, d_value, d_queries = p.loop(add_block, start)
  p.store_sums(sums, 0, d_queries.sum(0))
  for number, gradient in ((1, d_key), (2, d_value * plan.keep_scale)):
    p.store_gradient(d_qkv, sums, number, gradient, p.zero, size)
