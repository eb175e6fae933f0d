"""The kernels of fused attention: functions that do the work of one program.

A variable `d_x` is the gradient of the array `x`. The array `qkv` has three
projections: 0 has the queries, 1 the keys and 2 the values. The product
`fused.dot(a, b, (i, j))` sums over axis i of `a` and axis j of `b`.
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

# The arrays that one step of a kernel's loop passes to the next step.
Carry = tuple[Array, Array, Array]


def forward_kernel(*refs: Ref, plan: Plan) -> None:
  """Computes the mixed values of a block of queries.

  The mixed values are, for each query, the mean of the values, weighted with
  the query's probabilities. The kernel also writes log2 of each query's sum of
  exponentials. With dropout, it writes the queries' hashes too.
  """
  program = Program(plan, refs)
  exp2 = functools.partial(fused.exp2, in_interpreter=plan.interpret)
  first_query, hashes = program.block * plan.queries_per_block, None
  if plan.rate:
    first_hashes, head_numbers, out, log_sums, query_hashes = program.other_refs
    token_indices = (
      head_numbers[program.head] * plan.length
      + first_query
      + jnp.arange(plan.queries_per_block)
    )
    hashes = fused.row_hashes(
      first_hashes[program.row], token_indices.astype(jnp.uint32)
    )
    program.store_vector(
      query_hashes, hashes, first_query, plan.queries_per_block
    )
  else:
    out, log_sums = program.other_refs
  query = program.load_projected(0, first_query, plan.queries_per_block)
  queries = program.tokens(first_query, hashes=hashes)

  def block_scores(j: Array | int) -> tuple[Array, Array, Tokens, Array]:
    """Returns (scores, highest scaled scores, keys, position of first key)."""
    first_key = program.zero + j * plan.keys_per_block
    keys = program.tokens(first_key, are_keys=True)
    product = fused.dot(
      query, program.load_projected(1, first_key, plan.keys_per_block), (1, 1)
    )
    scores = jnp.where(program.seen_mask(queries, keys), product, UNSEEN_SCORE)
    scores = program.mask_end(scores, keys)
    return scores, scores.max(1) * plan.exp2_scale, keys, first_key

  def mix(
    scores: Array, keys: Tokens, first_key: Array, highest_scores: Array
  ) -> tuple[Array, Array]:
    """Returns the sums of exponentials, and the block's mixed values."""
    weights = exp2(scores * plan.exp2_scale - highest_scores[:, None])
    exp_sums = weights.sum(1)
    weights = program.apply_dropout(queries, keys, weights).astype(plan.dtype)
    value = program.load_projected(2, first_key, plan.keys_per_block)
    return exp_sums, fused.dot(weights, value, (1, 0))

  def add_block(j: Array, carry: Carry) -> Carry:
    """Updates (highest scores, sums of exponentials, mixed values)."""
    highest_scores, exp_sums, mixed_values = carry
    scores, new_highest_scores, keys, first_key = block_scores(j)
    new_highest_scores = jnp.maximum(highest_scores, new_highest_scores)
    shrink_factor = exp2(highest_scores - new_highest_scores)
    block_exp_sums, block_mixed_values = mix(
      scores, keys, first_key, new_highest_scores
    )
    exp_sums = exp_sums * shrink_factor + block_exp_sums
    return (
      new_highest_scores,
      exp_sums,
      mixed_values * shrink_factor[:, None] + block_mixed_values,
    )

  if plan.num_other_blocks == 1:
    scores, highest_scores, keys, first_key = block_scores(0)
    exp_sums, mixed_values = mix(scores, keys, first_key, highest_scores)
  else:
    # The first scores are below every scaled score, also of a key that no query
    # sees.
    start = (
      jnp.full(plan.queries_per_block, 2 * UNSEEN_SCORE),
      jnp.zeros(plan.queries_per_block, jnp.float32),
      jnp.zeros((plan.queries_per_block, plan.block_width), jnp.float32),
    )
    highest_scores, exp_sums, mixed_values = program.run_loop(add_block, start)
  output_scale = plan.keep_scale / exp_sums
  program.store(
    out,
    mixed_values * output_scale[:, None],
    first_query,
    plan.queries_per_block,
  )
  program.store_vector(
    log_sums,
    highest_scores + jnp.log2(exp_sums),
    first_query,
    plan.queries_per_block,
  )


def queries_kernel(*refs: Ref, plan: Plan) -> None:
  """Computes the gradients of a block of queries.

  The kernel also writes `deltas`: for each query, the sum over features of the
  output times the output's gradient, without the scale of dropout.
  """
  program = Program(plan, refs)
  *hash_refs, log_sums, out, out_gradient, d_qkv, sums, deltas = (
    program.other_refs
  )
  num_queries = plan.queries_per_block
  first_query = program.block * num_queries
  query = program.load_projected(0, first_query, num_queries)
  queries = program.tokens(
    first_query,
    hashes=program.load_optional_vector(hash_refs, first_query, num_queries),
  )
  d_out = program.load(out_gradient, first_query, num_queries)
  mixed_values = program.load(out, first_query, num_queries).astype(jnp.float32)
  delta = (d_out.astype(jnp.float32) * mixed_values).sum(1) * (
    1.0 / plan.keep_scale
  )
  program.store_vector(deltas, delta, first_query, num_queries)
  log_sum = program.load_vector(log_sums, first_query, num_queries)

  def add_block(j: Array, d_query: Array) -> Array:
    """Adds the gradient from a block of keys."""
    first_key = program.zero + j * plan.keys_per_block
    key, value = (
      program.load_projected(projection, first_key, plan.keys_per_block)
      for projection in (1, 2)
    )
    keys = program.tokens(first_key, are_keys=True)
    product = fused.dot(query, key, (1, 1))
    d_weights = fused.dot(d_out, value, (1, 1))
    weights = program.probabilities(product, queries, keys, log_sum)
    d_weights = program.apply_dropout(queries, keys, d_weights)
    d_scores = weights * (d_weights - delta[:, None])
    return d_query + fused.dot(d_scores.astype(plan.dtype), key, (1, 0))

  zeros = jnp.zeros((num_queries, plan.block_width), jnp.float32)
  d_query = program.run_loop(add_block, zeros)
  d_query = d_query * program.score_factor(log_sum)[:, None]
  program.store_gradient(d_qkv, sums, 0, d_query, first_query, num_queries)


def keys_kernel(*refs: Ref, plan: Plan) -> None:
  """Computes the gradients of a block of keys and values."""
  program = Program(plan, refs)
  # The ignored array has the same memory as `d_qkv`. It holds the gradients
  # that `queries_kernel` wrote.
  *hash_refs, log_sums, deltas, out_gradient, _, d_qkv, sums = (
    program.other_refs
  )
  num_keys = plan.keys_per_block
  first_key = program.block * num_keys
  key, value = (
    program.load_projected(projection, first_key, num_keys)
    for projection in (1, 2)
  )
  keys = program.tokens(first_key, are_keys=True, is_transposed=True)

  def add_block(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
    """Adds the gradients from a block of queries."""
    d_key, d_value = carry
    first_query = program.zero + i * plan.queries_per_block
    query = program.load_projected(0, first_query, plan.queries_per_block)
    d_out = program.load(out_gradient, first_query, plan.queries_per_block)
    log_sum, delta = (
      program.load_vector(ref, first_query, plan.queries_per_block)
      for ref in (log_sums, deltas)
    )
    query_hashes = program.load_optional_vector(
      hash_refs, first_query, plan.queries_per_block
    )
    queries = program.tokens(
      first_query, is_transposed=True, hashes=query_hashes
    )
    product = fused.dot(key, query, (1, 1))
    d_weights = fused.dot(value, d_out, (1, 1))
    weights = program.probabilities(product, queries, keys, log_sum)
    kept_weights = program.apply_dropout(queries, keys, weights)
    d_scores = program.score_gradients(
      weights, kept_weights * d_weights, delta, log_sum
    )
    d_key += fused.dot(d_scores, query, (1, 0))
    kept_weights = kept_weights.astype(plan.dtype)
    return d_key, d_value + fused.dot(kept_weights, d_out, (1, 0))

  zeros = jnp.zeros((num_keys, plan.block_width), jnp.float32)
  d_key, d_value = program.run_loop(add_block, (zeros, zeros))
  for projection, gradient in ((1, d_key), (2, d_value * plan.keep_scale)):
    program.store_gradient(
      d_qkv, sums, projection, gradient, first_key, num_keys
    )


def row_kernel(*refs: Ref, plan: Plan) -> None:
  """Computes all gradients of a row whose keys are one block.

  The program has all keys, so it computes the weights only once for the three
  gradients. Unlike `keys_kernel`, this kernel needs no array of `deltas`: the
  program computes each delta as a sum over the keys.
  """
  program = Program(plan, refs)
  *hash_refs, log_sums, out_gradient, d_qkv, sums = program.other_refs
  num_keys = plan.keys_per_block
  key, value = (
    program.load_projected(projection, program.zero, num_keys)
    for projection in (1, 2)
  )
  keys = program.tokens(program.zero, are_keys=True, is_transposed=True)

  def add_block(i: Array, carry: Carry) -> Carry:
    """Adds the gradients from a block of queries."""
    d_key, d_value, d_query_total = carry
    first_query = program.zero + i * plan.queries_per_block
    query = program.load_projected(0, first_query, plan.queries_per_block)
    d_out = program.load(out_gradient, first_query, plan.queries_per_block)
    log_sum = program.load_vector(log_sums, first_query, plan.queries_per_block)
    query_hashes = program.load_optional_vector(
      hash_refs, first_query, plan.queries_per_block
    )
    queries = program.tokens(
      first_query, is_transposed=True, hashes=query_hashes
    )
    product = fused.dot(key, query, (1, 1))
    d_weights = fused.dot(value, d_out, (1, 1))
    weights = program.probabilities(product, queries, keys, log_sum)
    kept_weights = program.apply_dropout(queries, keys, weights)
    products = kept_weights * d_weights
    d_scores = program.score_gradients(
      weights, products, products.sum(0), log_sum
    )
    kept_weights = kept_weights.astype(plan.dtype)
    d_query = fused.dot(d_scores, key, (0, 0))
    program.store(
      d_qkv, d_query, first_query, plan.queries_per_block, program.zero
    )
    d_key += fused.dot(d_scores, query, (1, 0))
    d_value += fused.dot(kept_weights, d_out, (1, 0))
    return d_key, d_value, d_query_total + d_query

  zeros = jnp.zeros((num_keys, plan.block_width), jnp.float32)
  start = (
    zeros,
    zeros,
    jnp.zeros((plan.queries_per_block, plan.block_width), jnp.float32),
  )
  d_key, d_value, d_query_total = program.run_loop(add_block, start)
  program.store_sums(sums, 0, d_query_total.sum(0))
  for projection, gradient in ((1, d_key), (2, d_value * plan.keep_scale)):
    program.store_gradient(
      d_qkv, sums, projection, gradient, program.zero, num_keys
    )
