"""The parts that the programs of the attention kernels share."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array

from bert_jax.kernels import fused

Ref = Any  # A reference to an array, as Pallas passes it to a kernel.

# The score of a key that is not seen; finite, so that a row without any gives
# equal weights and not 0/0; a power of 2, so that its product with a scale is
# exact, rounded or within a fused multiply-add.
UNSEEN = -(2.0**100)
# With more blocks of the other side than this, a kernel skips those without a
# pair.
SKIP_FROM = 8


@dataclasses.dataclass(frozen=True)
class Plan:
  """Static facts of a kernel: sizes of a device's part and of blocks.

  Attributes:
    rows: rows of the batch on a device.
    length: tokens of a row.
    heads: heads on a device.
    head_dim: width of a head.
    rate: rate of the dropout on the probabilities.
    causal: no query sees a key after it.
    dtype: dtype of queries, keys and values.
    queries: queries of a block.
    keys: keys of a block.
    by: "queries" or "keys": a program is started for each block of these.
    interpret: True if the interpreter runs the kernel.
  """

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
  interpret: bool

  @property
  def blocks(self) -> int:
    """Number of programs for a head."""
    return pl.cdiv(self.length, getattr(self, self.by))

  @property
  def looped(self) -> int:
    """Number of blocks of the other side, over which a program loops."""
    other = self.keys if self.by == "queries" else self.queries
    return pl.cdiv(self.length, other)

  @property
  def skips(self) -> bool:
    """True if a program is told which blocks of the other side count.

    A loop with static ends is faster: 262 against 307 us for the forward kernel
    at 512 tokens (H200), where there is less to skip.
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
    """The scale of scores whose exponentials are powers of 2."""
    return self.scale * math.log2(math.e)

  @property
  def grow(self) -> float:
    """The factor of the probabilities that dropout keeps."""
    return 1.0 / (1.0 - self.rate)


class _Side(NamedTuple):
  """Queries or keys of a block: places, sequences, hashes for dropout."""

  index: Array
  ids: Array
  hashed: Array | None


class Program:
  """One program of a kernel: a row of the batch, a head, and what it reads.

  Args:
    plan: the kernel's plan.
    refs: `ids` and `qkv`; the range of blocks of each block if the plan skips;
      then the kernel's other arrays.
  """

  def __init__(self, plan: Plan, refs: Sequence[Ref]):
    self.plan, remaining = plan, iter(refs)
    self.ids, self.qkv = next(remaining), next(remaining)
    program, self.block = pl.program_id(0), pl.program_id(1)
    self.b, self.h = program // plan.heads, program % plan.heads
    # The interpreter takes no constant index, and a slice that begins at one
    # has its end checked, without regard to the mask.
    self.zero = program * 0
    self.features = pl.ds(self.zero, plan.features)
    self.real_features = jnp.arange(plan.features) < plan.head_dim
    self.ranges = next(remaining) if plan.skips else None
    self.others = tuple(remaining)

  def real(self, first: Array, size: int) -> Array | None:
    """True for the tokens of a block that exist, or None if all do."""
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
    """Writes a block that `load` would read."""
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

  def only_vector(
    self, refs: Sequence[Ref], first: Array, size: int
  ) -> Array | None:
    """`vector` of the only array, or None if there is none."""
    return self.vector(refs[0], first, size) if refs else None

  def store_vector(
    self, ref: Ref, value: Array, first: Array, size: int
  ) -> None:
    """Writes a number for each token of a block."""
    at = ref.at[self.b, self.h, pl.ds(first, size)]
    triton.store(at, value, mask=self.real(first, size))

  def side(
    self,
    first: Array,
    keys: bool = False,
    turned: bool = False,
    hashes: Array | None = None,
  ) -> _Side:
    """The places, sequences and hashes of a block from token `first` on.

    Args:
      first: the first token.
      keys: True for keys, False for queries.
      turned: True if the scores are [keys, queries].
      hashes: the queries' hashes, if there is dropout.
    """
    size = self.plan.keys if keys else self.plan.queries
    index, ids = first + jnp.arange(size), self.vector(self.ids, first, size)
    if not keys:
      ids = jnp.maximum(ids, 1)
    elif self.plan.rate:
      hashes = fused.column_hashes(index.astype(jnp.uint32))
    axis = 1 if keys == turned else 0
    ids, index = (jnp.expand_dims(x, axis) for x in (ids, index))
    if hashes is not None:
      hashes = jnp.expand_dims(hashes, axis)
    return _Side(index, ids, hashes)

  def seen(self, queries: _Side, keys: _Side) -> Array:
    """True where a query sees a key.

    Both are [queries, keys], or [keys, queries] of sides that are `turned`:
    products with queries then read what comes of it as it stands.
    """
    seen = queries.ids == keys.ids
    if self.plan.causal:
      seen &= queries.index >= keys.index
    return seen

  def real_keys(self, scores: Array, keys: _Side) -> Array:
    """Scores, -inf where there is no key."""
    if not self.plan.length % self.plan.keys:
      return scores
    return jnp.where(keys.index < self.plan.length, scores, -jnp.inf)

  def weights(
    self, product: Array, queries: _Side, keys: _Side, log_sums: Array
  ) -> Array:
    """Probabilities from products and the sums that `forward_kernel` made.

    A query that sees no key has equal probabilities, as a softmax gives them.
    """
    axis = 0 if queries.ids.shape[0] == 1 else 1
    equal = jnp.where(
      self.seeing(log_sums), -jnp.inf, -math.log2(self.plan.length)
    )
    powers = product * self.plan.scale_2 - jnp.expand_dims(log_sums, axis)
    seen = self.seen(queries, keys)
    powers = jnp.where(seen, powers, jnp.expand_dims(equal, axis))
    return fused.exp2(self.real_keys(powers, keys), self.plan.interpret)

  def seeing(self, log_sums: Array) -> Array:
    """True for the queries that see a key."""
    return log_sums > 0.5 * UNSEEN * self.plan.scale_2

  def of_scores(self, log_sums: Array) -> Array:
    """A query's factor of its scores' gradients; 0 where it sees no key."""
    factor = self.plan.grow * self.plan.scale
    return jnp.where(self.seeing(log_sums), factor, 0.0)

  def d_scores(
    self, weights: Array, along: Array, delta: Array, log_sums: Array
  ) -> Array:
    """Gradients of the scores [keys, queries].

    Args:
      weights: probabilities before dropout.
      along: kept probabilities times their gradients.
      delta: sums of `along` over keys.
      log_sums: the queries' sums from `forward_kernel`.
    """
    factor = self.of_scores(log_sums)
    gradient = along * factor[None] - weights * (delta * factor)[None]
    return gradient.astype(self.plan.dtype)

  def keep(self, queries: _Side, keys: _Side, value: Array) -> Array:
    """Sets the values that dropout drops to 0."""
    rate = self.plan.rate
    if not rate:
      return value
    kept = fused.keep_mask(queries.hashed, keys.hashed, rate)
    return jnp.where(kept, value, 0.0)

  def loop(self, body: Callable[[Array, Any], Any], start: Any) -> Any:
    """Runs `body` over the blocks of the other side that count."""
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
