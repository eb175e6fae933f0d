"""The kernels of fused attention: what one program of each does."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array

from bert_jax.models import fused

Ref = Any  # Of an array, as Pallas gives it to a kernel.

# The score of a key that is not seen; finite, so that a row without any gives
# equal weights and not 0/0; a power of 2, so that its product with a scale is
# exact, rounded or within a fused multiply-add.
UNSEEN = -(2.0**100)


@dataclasses.dataclass(frozen=True)
class Plan:
  """Static facts of a kernel: sizes of a device's part and of blocks."""

  rows: int
  length: int
  heads: int
  head_dim: int
  rate: float
  causal: bool
  dtype: jnp.dtype
  queries: int
  keys: int

  @property
  def features(self) -> int:
    return fused.power_of_2(self.head_dim, 16)

  @property
  def scale(self) -> float:
    return 1.0 / math.sqrt(self.head_dim)

  @property
  def scale_2(self) -> float:
    """Of scores whose exponentials are powers of 2."""
    return self.scale * math.log2(math.e)

  @property
  def grow(self) -> float:
    """What dropout multiplies the kept with."""
    return 1.0 / (1.0 - self.rate)


class Program:
  """One program of a kernel: a row of the batch, a head, and what it reads."""

  def __init__(self, plan: Plan, which: Ref, words: Ref, ids: Ref, qkv: Ref):
    self.plan, self.ids, self.qkv = plan, ids, qkv
    program = pl.program_id(0)
    self.b, self.h = program // plan.heads, program % plan.heads
    self.zero = program * 0  # The interpreter takes no constant index.
    self.features = pl.ds(0, plan.features)
    self.real_features = jnp.arange(plan.features) < plan.head_dim
    if plan.rate:
      row = which[0] * plan.rows + self.b
      self.hashed = fused.first_hash((words[0], words[1]), row)
      self.first_place = (which[1] * plan.heads + self.h) * plan.length

  def real(self, first: Array, size: int) -> Array | None:
    """Which tokens of a block are there, or None if all are."""
    if not self.plan.length % size:
      return None
    return first + jnp.arange(size) < self.plan.length

  def _block(self, ref, first, size, index):
    rows, plan = self.real(first, size), self.plan
    mask = None
    if rows is not None or plan.features != plan.head_dim:
      mask = self.real_features[None] & jnp.full((size, 1), True)
      if rows is not None:
        mask &= rows[:, None]
    at = (self.b, pl.ds(first, size), self.h, *index, self.features)
    return ref.at[at], mask

  def load(self, ref: Ref, first: Array, size: int, *index: Array) -> Array:
    """A block [size, features] from token `first` on; 0 beyond the end."""
    at, mask = self._block(ref, first, size, index)
    return triton.load(at, mask=mask, other=None if mask is None else 0.0)

  def store(
    self, ref: Ref, value: Array, first: Array, size: int, *index: Array
  ) -> None:
    """Writes what `load` would read."""
    at, mask = self._block(ref, first, size, index)
    triton.store(at, value.astype(self.plan.dtype), mask=mask)

  def projected(self, number: int, first: Array, size: int) -> Array:
    """Queries (0), keys (1) or values (2) of a block."""
    return self.load(self.qkv, first, size, self.zero + number)

  def vector(self, ref: Ref, first: Array, size: int) -> Array:
    """A number for each token of a block, of this head if there are heads."""
    index = (self.b, self.h) if len(ref.shape) == 3 else (self.b,)
    mask = self.real(first, size)
    at = ref.at[(*index, pl.ds(first, size))]
    return triton.load(at, mask=mask, other=None if mask is None else 0)

  def store_vector(
    self, ref: Ref, value: Array, first: Array, size: int
  ) -> None:
    """Writes a number for each token of a block."""
    at = ref.at[self.b, self.h, pl.ds(first, size)]
    triton.store(at, value, mask=self.real(first, size))

  def scores(
    self,
    query: Array,
    key: Array,
    q_first: Array,
    k_first: Array,
    transposed: bool = False,
  ) -> Array:
    """Of queries and keys, before their scale.

    Transposed they are [keys, queries]: their products with queries then read
    them as they stand.
    """
    plan, turn = self.plan, _turned if transposed else _kept
    ab = (key, query) if transposed else (query, key)
    scores = fused.dot(*ab, (1, 1))
    q_ids = jnp.maximum(self.vector(self.ids, q_first, plan.queries), 1)
    k_ids = self.vector(self.ids, k_first, plan.keys)
    q_ids, k_ids = turn(q_ids, k_ids)
    seen = q_ids == k_ids
    row = q_first + jnp.arange(plan.queries)
    column = k_first + jnp.arange(plan.keys)
    row, column = turn(row, column)
    if plan.causal:
      seen &= row >= column
    scores = jnp.where(seen, scores, UNSEEN)
    if plan.length % plan.keys:
      scores = jnp.where(column < plan.length, scores, -jnp.inf)
    return scores

  def keep(
    self,
    q_first: Array,
    k_first: Array,
    *values: Array,
    transposed: bool = False,
  ) -> Sequence[Array]:
    """Zeroes what dropout drops."""
    plan = self.plan
    if not plan.rate:
      return values
    row = self.first_place + q_first + jnp.arange(plan.queries)
    row = fused.mix(self.hashed + fused.place_hash(row, 1))
    column = fused.place_hash(k_first + jnp.arange(plan.keys), 0)
    row, column = (_turned if transposed else _kept)(row, column)
    kept = fused.bits(row, column) >= fused.threshold(plan.rate)
    return [jnp.where(kept, value, 0.0) for value in values]

  def store_gradient(
    self,
    d_qkv: Ref,
    sums: Ref,
    block: Array,
    number: int,
    value: Array,
    first: Array,
    size: int,
  ) -> None:
    """A block's gradient, and its sum over the tokens."""
    number = self.zero + number
    self.store(d_qkv, value, first, size, number)
    at = sums.at[self.b, block, self.h, number, self.features]
    triton.store(at, value.sum(0), mask=self.real_features)


def _kept(rows, columns):
  return rows[:, None], columns[None]


def _turned(rows, columns):
  return rows[None], columns[:, None]


def _loop(count, body, start):
  """A loop, or one call where there is one block."""
  if count == 1:
    return body(0, start)
  return jax.lax.fori_loop(0, count, body, start)


def forward_kernel(
  which: Ref,
  words: Ref,
  ids: Ref,
  qkv: Ref,
  out: Ref,
  sums: Ref,
  *,
  plan: Plan,
) -> None:
  """Mixed values, and log2 of each query's sum of exponentials."""
  p = Program(plan, which, words, ids, qkv)
  q_first = pl.program_id(1) * plan.queries
  query = p.projected(0, q_first, plan.queries)

  def one_block(j, carry):
    highest, total, mixed = carry
    k_first = p.zero + j * plan.keys
    key = p.projected(1, k_first, plan.keys)
    value = p.projected(2, k_first, plan.keys)
    scores = p.scores(query, key, q_first, k_first)
    new = jnp.maximum(highest, scores.max(1) * plan.scale_2)
    weights = jnp.exp2(scores * plan.scale_2 - new[:, None])
    shrink = jnp.exp2(highest - new)
    total = total * shrink + weights.sum(1)
    (weights,) = p.keep(q_first, k_first, weights)
    more = fused.dot(weights.astype(plan.dtype), value, (1, 0))
    return new, total, mixed * shrink[:, None] + more

  start = (
    jnp.full(plan.queries, 2 * UNSEEN),
    jnp.zeros(plan.queries, jnp.float32),
    jnp.zeros((plan.queries, plan.features), jnp.float32),
  )
  blocks = pl.cdiv(plan.length, plan.keys)
  highest, total, mixed = _loop(blocks, one_block, start)
  p.store(out, mixed * (plan.grow / total)[:, None], q_first, plan.queries)
  p.store_vector(sums, highest + jnp.log2(total), q_first, plan.queries)


def _row_factors(plan, log_sums):
  """Factors of a query's gradients: of its scores, and of the values.

  A query that sees no key has equal weights whatever the scores are.
  """
  seeing = log_sums > 0.5 * UNSEEN * plan.scale_2
  scores = jnp.where(seeing, plan.grow * plan.scale, 0.0)
  return scores[:, None], jnp.where(seeing, 1.0, 1.0 / plan.length)[:, None]


def queries_kernel(
  which: Ref,
  words: Ref,
  ids: Ref,
  qkv: Ref,
  log_sums: Ref,
  out: Ref,
  g: Ref,
  d_qkv: Ref,
  sums: Ref,
  deltas: Ref,
  *,
  plan: Plan,
) -> None:
  """Gradients of a block of queries; each query's output times gradient."""
  p = Program(plan, which, words, ids, qkv)
  block, size = pl.program_id(1), plan.queries
  first = block * size
  query = p.projected(0, first, size)
  d_out = p.load(g, first, size)
  mixed = p.load(out, first, size).astype(jnp.float32)
  delta = (d_out.astype(jnp.float32) * mixed).sum(1) * (1.0 / plan.grow)
  p.store_vector(deltas, delta, first, size)
  row = p.vector(log_sums, first, size)

  def one_block(j, d_query):
    k_first = p.zero + j * plan.keys
    key, value = (p.projected(n, k_first, plan.keys) for n in (1, 2))
    scores = p.scores(query, key, first, k_first)
    weights = jnp.exp2(scores * plan.scale_2 - row[:, None])
    d_weights = fused.dot(d_out, value, (1, 1))
    (d_weights,) = p.keep(first, k_first, d_weights)
    d_scores = weights * (d_weights - delta[:, None])
    return d_query + fused.dot(d_scores.astype(plan.dtype), key, (1, 0))

  zero = jnp.zeros((size, plan.features), jnp.float32)
  d_query = _loop(pl.cdiv(plan.length, plan.keys), one_block, zero)
  d_query = d_query * _row_factors(plan, row)[0]
  p.store_gradient(d_qkv, sums, block, 0, d_query, first, size)


def keys_kernel(
  which: Ref,
  words: Ref,
  ids: Ref,
  qkv: Ref,
  log_sums: Ref,
  deltas: Ref,
  g: Ref,
  _: Ref,
  d_qkv: Ref,
  sums: Ref,
  *,
  plan: Plan,
) -> None:
  """Gradients of a block of keys and values."""
  p = Program(plan, which, words, ids, qkv)
  block, size = pl.program_id(1), plan.keys
  first = block * size
  key, value = (p.projected(n, first, size) for n in (1, 2))

  def one_block(i, carry):
    d_key, d_value = carry
    q_first = p.zero + i * plan.queries
    query = p.projected(0, q_first, plan.queries)
    d_out = p.load(g, q_first, plan.queries)
    row, delta = (
      p.vector(v, q_first, plan.queries) for v in (log_sums, deltas)
    )
    scores = p.scores(query, key, q_first, first, transposed=True)
    weights = jnp.exp2(scores * plan.scale_2 - row[None])
    d_weights = fused.dot(value, d_out, (1, 1))
    dropped, d_weights = p.keep(
      q_first, first, weights, d_weights, transposed=True
    )
    d_scores = (weights * (d_weights - delta[None])).astype(plan.dtype)
    of_scores, of_value = _row_factors(plan, row)
    query = (query.astype(jnp.float32) * of_scores).astype(plan.dtype)
    d_out = (d_out.astype(jnp.float32) * of_value).astype(plan.dtype)
    d_key += fused.dot(d_scores, query, (1, 0))
    more = fused.dot(dropped.astype(plan.dtype), d_out, (1, 0))
    return d_key, d_value + more

  zero = jnp.zeros((size, plan.features), jnp.float32)
  blocks = pl.cdiv(plan.length, plan.queries)
  d_key, d_value = _loop(blocks, one_block, (zero, zero))
  for number, value in ((1, d_key), (2, d_value * plan.grow)):
    p.store_gradient(d_qkv, sums, block, number, value, first, size)
