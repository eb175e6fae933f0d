"""The kernels of fused attention: what one program of each does."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
# Blocks of the other side above which a kernel skips those without a pair.
SKIP_FROM = 8


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
  by: str

  @property
  def blocks(self) -> int:
    """Programs of a head."""
    return pl.cdiv(self.length, getattr(self, self.by))

  @property
  def looped(self) -> int:
    """Blocks of the other side, over which a program goes."""
    other = self.keys if self.by == "queries" else self.queries
    return pl.cdiv(self.length, other)

  @property
  def skips(self) -> bool:
    """If it is told which of them count.

    A loop whose ends are known is faster: 262 against 307 us for the forward
    kernel at 512 tokens (H200), where there is less to skip.
    """
    return self.looped > SKIP_FROM

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


class _Side(NamedTuple):
  """Of queries or keys: places, sequences, hashes for dropout."""

  index: Array
  ids: Array
  hashed: Array | None


class Program:
  """One program of a kernel: a row of the batch, a head, and what it reads.

  Args:
    plan: of the kernel.
    refs: `ids` and `qkv`; the range of blocks of each block if the plan skips;
      `fused.first_hashes` and the number of each head if it drops; what is the
      kernel's own.
  """

  def __init__(self, plan: Plan, refs: Sequence[Ref]):
    self.plan, rest = plan, iter(refs)
    self.ids, self.qkv = next(rest), next(rest)
    program, self.block = pl.program_id(0), pl.program_id(1)
    self.b, self.h = program // plan.heads, program % plan.heads
    self.zero = program * 0  # The interpreter takes no constant index.
    self.features = pl.ds(0, plan.features)
    self.real_features = jnp.arange(plan.features) < plan.head_dim
    self.ranges = next(rest) if plan.skips else None
    if plan.rate:
      self.first, self.heads = next(rest), next(rest)
    self.own = tuple(rest)

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
    """A number for each token of a block, of this row and head if it has."""
    index = (self.b, self.h)[: len(ref.shape) - 1]
    mask = self.real(first, size)
    at = ref.at[(*index, pl.ds(first, size))]
    return triton.load(at, mask=mask, other=None if mask is None else 0)

  def store_vector(
    self, ref: Ref, value: Array, first: Array, size: int
  ) -> None:
    """Writes a number for each token of a block."""
    at = ref.at[self.b, self.h, pl.ds(first, size)]
    triton.store(at, value, mask=self.real(first, size))

  def hashes(self, index: Array) -> Array | None:
    """Of queries; None without dropout."""
    if not self.plan.rate:
      return None
    place = self.heads[self.h] * self.plan.length + index
    return fused.row_hashes(self.first[self.b], place.astype(jnp.uint32))

  def side(
    self,
    first: Array,
    keys: bool = False,
    turned: bool = False,
    hashes: Array | None = None,
  ) -> _Side:
    """What queries or keys from token `first` on bring to their scores.

    Args:
      first: the token.
      keys: of keys, not queries.
      turned: of scores that are [keys, queries].
      hashes: of queries, if there is dropout and they are already made.
    """
    size = self.plan.keys if keys else self.plan.queries
    index, ids = first + jnp.arange(size), self.vector(self.ids, first, size)
    if keys:
      if self.plan.rate:
        hashes = fused.column_hashes(index.astype(jnp.uint32))
    else:
      ids = jnp.maximum(ids, 1)
      hashes = self.hashes(index) if hashes is None else hashes
    axis = 1 if keys == turned else 0
    ids, index = (jnp.expand_dims(x, axis) for x in (ids, index))
    if hashes is not None:
      hashes = jnp.expand_dims(hashes, axis)
    return _Side(index, ids, hashes)

  def scores(self, product: Array, queries: "_Side", keys: "_Side") -> Array:
    """Of products of queries and keys, before their scale.

    Both are [queries, keys], or [keys, queries] of sides that are `turned`:
    products with queries then read the scores as they stand.
    """
    seen = queries.ids == keys.ids
    if self.plan.causal:
      seen &= queries.index >= keys.index
    scores = jnp.where(seen, product, UNSEEN)
    if self.plan.length % self.plan.keys:
      scores = jnp.where(keys.index < self.plan.length, scores, -jnp.inf)
    return scores

  def keep(
    self, queries: "_Side", keys: "_Side", *values: Array
  ) -> Sequence[Array]:
    """Zeroes what dropout drops."""
    rate = self.plan.rate
    if not rate:
      return values
    kept = fused.bits(queries.hashed, keys.hashed) >= fused.threshold(rate)
    return [jnp.where(kept, value, 0.0) for value in values]

  def loop(self, body: Callable[[Array, Any], Any], start: Any) -> Any:
    """Over the blocks of the other side that count."""
    if self.plan.looped == 1:
      return body(0, start)
    first, end = 0, self.plan.looped
    if self.ranges is not None:
      first, end = (self.ranges[self.b, self.block, i] for i in (0, 1))
    return jax.lax.fori_loop(first, end, body, start)

  def store_gradient(
    self,
    d_qkv: Ref,
    sums: Ref,
    number: int,
    value: Array,
    first: Array,
    size: int,
  ) -> None:
    """A block's gradient, and its sum over the tokens."""
    self.store(d_qkv, value, first, size, self.zero + number)
    self.store_sums(sums, number, value.sum(0))

  def store_sums(self, sums: Ref, number: int, value: Array) -> None:
    """Sums over the tokens of queries' (0), keys' or values' gradients."""
    at = (self.b, self.block, self.h, self.zero + number, self.features)
    triton.store(sums.at[at], value, mask=self.real_features)


def forward_kernel(*refs: Ref, plan: Plan) -> None:
  """Mixed values, and log2 of each query's sum of exponentials."""
  p = Program(plan, refs)
  out, sums = p.own
  q_first = p.block * plan.queries
  query = p.projected(0, q_first, plan.queries)
  queries = p.side(q_first)

  def one_block(j, carry):
    highest, total, mixed = carry
    k_first = p.zero + j * plan.keys
    key = p.projected(1, k_first, plan.keys)
    value = p.projected(2, k_first, plan.keys)
    keys = p.side(k_first, keys=True)
    scores = p.scores(fused.dot(query, key, (1, 1)), queries, keys)
    new = jnp.maximum(highest, scores.max(1) * plan.scale_2)
    weights = jnp.exp2(scores * plan.scale_2 - new[:, None])
    shrink = jnp.exp2(highest - new)
    total = total * shrink + weights.sum(1)
    (weights,) = p.keep(queries, keys, weights)
    more = fused.dot(weights.astype(plan.dtype), value, (1, 0))
    return new, total, mixed * shrink[:, None] + more

  start = (
    jnp.full(plan.queries, 2 * UNSEEN),
    jnp.zeros(plan.queries, jnp.float32),
    jnp.zeros((plan.queries, plan.features), jnp.float32),
  )
  highest, total, mixed = p.loop(one_block, start)
  p.store(out, mixed * (plan.grow / total)[:, None], q_first, plan.queries)
  p.store_vector(sums, highest + jnp.log2(total), q_first, plan.queries)


def _row_factors(plan, log_sums):
  """Factors of a query's gradients: of its scores, and of the values.

  A query that sees no key has equal weights whatever the scores are.
  """
  seeing = log_sums > 0.5 * UNSEEN * plan.scale_2
  scores = jnp.where(seeing, plan.grow * plan.scale, 0.0)
  return scores, jnp.where(seeing, 1.0, 1.0 / plan.length)


def queries_kernel(*refs: Ref, plan: Plan) -> None:
  """Gradients of a block of queries; each query's output times gradient."""
  p = Program(plan, refs)
  log_sums, out, g, d_qkv, sums, deltas, *hashes = p.own
  size = plan.queries
  first = p.block * size
  query, queries = p.projected(0, first, size), p.side(first)
  d_out = p.load(g, first, size)
  mixed = p.load(out, first, size).astype(jnp.float32)
  delta = (d_out.astype(jnp.float32) * mixed).sum(1) * (1.0 / plan.grow)
  p.store_vector(deltas, delta, first, size)
  if hashes:  # Making them takes longer than reading them.
    index = first + jnp.arange(size)
    p.store_vector(hashes[0], p.hashes(index), first, size)
  row = p.vector(log_sums, first, size)

  def one_block(j, d_query):
    k_first = p.zero + j * plan.keys
    key, value = (p.projected(n, k_first, plan.keys) for n in (1, 2))
    keys = p.side(k_first, keys=True)
    scores = p.scores(fused.dot(query, key, (1, 1)), queries, keys)
    weights = jnp.exp2(scores * plan.scale_2 - row[:, None])
    d_weights = fused.dot(d_out, value, (1, 1))
    (d_weights,) = p.keep(queries, keys, d_weights)
    d_scores = weights * (d_weights - delta[:, None])
    return d_query + fused.dot(d_scores.astype(plan.dtype), key, (1, 0))

  zero = jnp.zeros((size, plan.features), jnp.float32)
  d_query = p.loop(one_block, zero)
  d_query = d_query * _row_factors(plan, row)[0][:, None]
  p.store_gradient(d_qkv, sums, 0, d_query, first, size)


def keys_kernel(*refs: Ref, plan: Plan) -> None:
  """Gradients of a block of keys and values."""
  p = Program(plan, refs)
  *hashes, log_sums, deltas, g, _, d_qkv, sums = p.own
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
    hashed = [p.vector(x, q_first, plan.queries) for x in hashes]
    queries = p.side(q_first, turned=True, hashes=hashed[0] if hashed else None)
    scores = p.scores(fused.dot(key, query, (1, 1)), queries, keys)
    weights = jnp.exp2(scores * plan.scale_2 - row[None])
    d_weights = fused.dot(value, d_out, (1, 1))
    dropped, d_weights = p.keep(queries, keys, weights, d_weights)
    of_scores, of_value = _row_factors(plan, row)
    d_weights = d_weights * of_scores[None] - (delta * of_scores)[None]
    d_scores = (weights * d_weights).astype(plan.dtype)
    dropped = (dropped * of_value[None]).astype(plan.dtype)
    d_key += fused.dot(d_scores, query, (1, 0))
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
  log_sums, g, d_qkv, sums = p.own
  size = plan.keys
  key, value = (p.projected(n, p.zero, size) for n in (1, 2))
  keys = p.side(p.zero, keys=True, turned=True)

  def one_block(i, carry):
    d_key, d_value, d_queries = carry
    first = p.zero + i * plan.queries
    query = p.projected(0, first, plan.queries)
    d_out = p.load(g, first, plan.queries)
    row = p.vector(log_sums, first, plan.queries)
    queries = p.side(first, turned=True)
    scores = p.scores(fused.dot(key, query, (1, 1)), queries, keys)
    weights = jnp.exp2(scores * plan.scale_2 - row[None])
    d_weights = fused.dot(value, d_out, (1, 1))
    dropped, d_weights = p.keep(queries, keys, weights, d_weights)
    delta = (weights * d_weights).sum(0)
    of_scores, of_value = _row_factors(plan, row)
    d_scores = weights * ((d_weights - delta[None]) * of_scores[None])
    d_scores = d_scores.astype(plan.dtype)
    dropped = (dropped * of_value[None]).astype(plan.dtype)
    d_query = fused.dot(d_scores, key, (0, 0))
    p.store(d_qkv, d_query, first, plan.queries, p.zero)
    d_key += fused.dot(d_scores, query, (1, 0))
    d_value += fused.dot(dropped, d_out, (1, 0))
    return d_key, d_value, d_queries + d_query.sum(0)

  zero = jnp.zeros((size, plan.features), jnp.float32)
  start = zero, zero, jnp.zeros(plan.features, jnp.float32)
  d_key, d_value, d_queries = p.loop(one_block, start)
  p.store_sums(sums, 0, d_queries)
  for number, value in ((1, d_key), (2, d_value * plan.grow)):
    p.store_gradient(d_qkv, sums, number, value, p.zero, size)
