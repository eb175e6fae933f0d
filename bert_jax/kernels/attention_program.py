"""Defines operations that the programs of all attention kernels share."""

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

# The score of a key that a query does not see. It is finite, so that a query
# that sees no key gets equal weights and not 0/0. The score is a power of 2, so
# that its product with a scale is exact, also in a fused multiply-add.
UNSEEN_SCORE = -(2.0**100)
# A kernel that loops over more blocks than this skips the blocks in which no
# query sees a key.
MAX_BLOCKS_WITHOUT_SKIPS = 8


@dataclasses.dataclass(frozen=True)
class Plan:
  """Holds the static settings of a kernel: the sizes of a shard and of blocks.

  A program works on one block of queries or of keys, and loops over the blocks
  of the other side: of keys for queries, and of queries for keys.

  Attributes:
    num_rows: the number of rows of the batch on a device.
    length: the number of tokens in a row.
    num_heads: the number of heads on a device.
    head_dim: the width of a head.
    rate: the dropout rate on the probabilities.
    causal: True if no query sees a key after it.
    dtype: the dtype of queries, keys and values.
    queries_per_block: the number of queries in a block.
    keys_per_block: the number of keys in a block.
    side: the blocks on which programs work, "queries" or "keys".
    interpret: True if the interpreter runs the kernel.
  """

  num_rows: int
  length: int
  num_heads: int
  head_dim: int
  rate: float
  causal: bool
  dtype: jnp.dtype
  queries_per_block: int
  keys_per_block: int
  side: str
  interpret: bool

  @property
  def num_blocks(self) -> int:
    """The number of programs for each row and head."""
    return pl.cdiv(self.length, getattr(self, f"{self.side}_per_block"))

  @property
  def num_other_blocks(self) -> int:
    """The number of blocks of the other side."""
    other_side = "keys" if self.side == "queries" else "queries"
    return pl.cdiv(self.length, getattr(self, f"{other_side}_per_block"))

  @property
  def skips_blocks(self) -> bool:
    """True if a program reads the range of blocks for its loop from an array.

    If there is little to skip, a loop over a constant range is faster. At 512
    tokens on an H200, the forward kernel takes 262 us with a constant range,
    and 307 us with a range that it reads from an array.
    """
    return self.num_other_blocks > MAX_BLOCKS_WITHOUT_SKIPS

  @property
  def block_width(self) -> int:
    """The smallest power of 2 that is at least `head_dim` and at least 16."""
    return fused.next_power_of_2(self.head_dim, minimum=16)

  @property
  def scale(self) -> float:
    """The scale of the scores."""
    return 1.0 / math.sqrt(self.head_dim)

  @property
  def exp2_scale(self) -> float:
    """The scale of scores if the softmax computes 2**x in place of exp(x)."""
    return self.scale * math.log2(math.e)

  @property
  def keep_scale(self) -> float:
    """The factor of the probabilities that dropout keeps."""
    return 1.0 / (1.0 - self.rate)


class Tokens(NamedTuple):
  """Describes the queries or the keys of a block.

  Attributes:
    position: the position of each token in the row.
    ids: the id of each token's sequence.
    hashes: the hash of each token for dropout; None if there is no dropout.
  """

  position: Array
  ids: Array
  hashes: Array | None


class Program:
  """Runs one program of a kernel, on a row, a head and a block.

  Attributes:
    plan: the kernel's plan.
    ids: the kernel's array of sequence ids.
    qkv: the kernel's array of queries, keys and values.
    row: the index of the row in the batch.
    head: the index of the head.
    block: the index of the block.
    zero: an index 0 that is no constant; see `__init__`.
    features: the slice of a block's `block_width` features.
    is_feature: True for a feature whose index is below `head_dim`.
    block_ranges: the array of `attention_blocks.block_ranges`; None if the plan
      skips no blocks.
    other_refs: the kernel's arrays after `ids`, `qkv` and `block_ranges`.
  """

  def __init__(self, plan: Plan, refs: Sequence[Ref]):
    """Finds the row, the head and the block of this program.

    Args:
      plan: the kernel's plan.
      refs: `ids` and `qkv`, then the kernel's other arrays. If the plan skips
        blocks, `block_ranges` stands after `qkv`.
    """
    self.plan, remaining_refs = plan, iter(refs)
    self.ids, self.qkv = next(remaining_refs), next(remaining_refs)
    program_index, self.block = pl.program_id(0), pl.program_id(1)
    self.row, self.head = (
      program_index // plan.num_heads,
      program_index % plan.num_heads,
    )
    # A constant 0 does not work. The interpreter refuses it as an index. Pallas
    # refuses a slice that begins at a constant and goes beyond the array, even
    # if a mask excludes that part.
    self.zero = program_index * 0
    self.features = pl.ds(self.zero, plan.block_width)
    self.is_feature = jnp.arange(plan.block_width) < plan.head_dim
    self.block_ranges = next(remaining_refs) if plan.skips_blocks else None
    self.other_refs = tuple(remaining_refs)

  def inside_mask(self, first: Array, size: int) -> Array | None:
    """Returns True for the tokens of a block before the row's end.

    The result is None if no block reaches beyond the end.

    Args:
      first: the position of the block's first token.
      size: the number of tokens in the block.
    """
    if not self.plan.length % size:
      return None
    return first + jnp.arange(size) < self.plan.length

  def _block(
    self, ref: Ref, first: Array, size: int, index: tuple[Array, ...]
  ) -> tuple[Ref, Array | None]:
    """Returns a reference to a block [size, features], and the block's mask.

    The mask is True for elements inside the array. It is None if all elements
    are inside.
    """
    is_inside, plan = self.inside_mask(first, size), self.plan
    mask = None
    if is_inside is not None or plan.block_width != plan.head_dim:
      mask = self.is_feature[None] & jnp.full((size, 1), True)
      if is_inside is not None:
        mask &= is_inside[:, None]
    indices = (self.row, pl.ds(first, size), self.head, *index, self.features)
    return ref.at[indices], mask

  def load(self, ref: Ref, first: Array, size: int, *index: Array) -> Array:
    """Loads a block [size, features]; elements outside the array are 0.

    Args:
      ref: an array [b, l, h, ..., k].
      first: the position of the block's first token.
      size: the number of tokens in the block.
      *index: the indices on the axes between h and k.
    """
    block_ref, mask = self._block(ref, first, size, index)
    return triton.load(
      block_ref, mask=mask, other=None if mask is None else 0.0
    )

  def store(
    self, ref: Ref, block: Array, first: Array, size: int, *index: Array
  ) -> None:
    """Writes a block where `load` would read it."""
    block_ref, mask = self._block(ref, first, size, index)
    triton.store(block_ref, block.astype(self.plan.dtype), mask=mask)

  def load_projected(self, projection: int, first: Array, size: int) -> Array:
    """Loads a block of queries (projection 0), keys (1) or values (2)."""
    return self.load(self.qkv, first, size, self.zero + projection)

  def load_vector(self, ref: Ref, first: Array, size: int) -> Array:
    """Loads a number for each token of a block.

    Args:
      ref: an array [b, h, l] or [b, l].
      first: the position of the block's first token.
      size: the number of tokens in the block.
    """
    leading_indices = (self.row, self.head)[: len(ref.shape) - 1]
    mask = self.inside_mask(first, size)
    vector_ref = ref.at[(*leading_indices, pl.ds(first, size))]
    return triton.load(vector_ref, mask=mask, other=None if mask is None else 0)

  def load_optional_vector(
    self, refs: Sequence[Ref], first: Array, size: int
  ) -> Array | None:
    """Calls `load_vector` with the only entry of `refs`; None without one."""
    return self.load_vector(refs[0], first, size) if refs else None

  def store_vector(
    self, ref: Ref, numbers: Array, first: Array, size: int
  ) -> None:
    """Writes a number for each token of a block, in an array [b, h, l]."""
    vector_ref = ref.at[self.row, self.head, pl.ds(first, size)]
    triton.store(vector_ref, numbers, mask=self.inside_mask(first, size))

  def tokens(
    self,
    first: Array,
    are_keys: bool = False,
    is_transposed: bool = False,
    hashes: Array | None = None,
  ) -> Tokens:
    """Returns the queries or keys of a block, to be broadcast with the scores.

    Args:
      first: the position of the first token.
      are_keys: True for keys, False for queries.
      is_transposed: True if scores are [keys, queries]. Then the products of
        scores with queries need no transposition.
      hashes: the queries' hashes if there is dropout.
    """
    size = self.plan.keys_per_block if are_keys else self.plan.queries_per_block
    position, ids = (
      first + jnp.arange(size),
      self.load_vector(self.ids, first, size),
    )
    if not are_keys:
      # A query at padding sees sequence 1, as in `attention.attention_mask`.
      ids = jnp.maximum(ids, 1)
    elif self.plan.rate:
      hashes = fused.column_hashes(position.astype(jnp.uint32))
    axis = 1 if are_keys == is_transposed else 0
    ids, position = (jnp.expand_dims(x, axis) for x in (ids, position))
    if hashes is not None:
      hashes = jnp.expand_dims(hashes, axis)
    return Tokens(position, ids, hashes)

  def seen_mask(self, queries: Tokens, keys: Tokens) -> Array:
    """Returns True where a query sees a key."""
    mask = queries.ids == keys.ids
    if self.plan.causal:
      mask &= queries.position >= keys.position
    return mask

  def mask_end(self, scores: Array, keys: Tokens) -> Array:
    """Returns the scores, with -inf for keys after the row's end."""
    if not self.plan.length % self.plan.keys_per_block:
      return scores
    return jnp.where(keys.position < self.plan.length, scores, -jnp.inf)

  def probabilities(
    self, product: Array, queries: Tokens, keys: Tokens, log_sums: Array
  ) -> Array:
    """Computes the probabilities of a block of queries and a block of keys.

    A query that sees no key has equal probabilities, as by a softmax of equal
    scores.

    Args:
      product: the products of queries and keys.
      queries: the queries.
      keys: the keys.
      log_sums: the queries' log sums, which `forward_kernel` wrote.
    """
    axis = 0 if queries.ids.shape[0] == 1 else 1
    unseen_exponents = jnp.where(
      self.sees_any_key(log_sums), -jnp.inf, -math.log2(self.plan.length)
    )
    exponents = product * self.plan.exp2_scale - jnp.expand_dims(log_sums, axis)
    sees_key = self.seen_mask(queries, keys)
    exponents = jnp.where(
      sees_key, exponents, jnp.expand_dims(unseen_exponents, axis)
    )
    return fused.exp2(self.mask_end(exponents, keys), self.plan.interpret)

  def sees_any_key(self, log_sums: Array) -> Array:
    """Returns True for each query that sees a key.

    The log sum of every other query is about `UNSEEN_SCORE` times `exp2_scale`.
    """
    return log_sums > 0.5 * UNSEEN_SCORE * self.plan.exp2_scale

  def score_factor(self, log_sums: Array) -> Array:
    """Returns the factor that multiplies the gradients of a query's scores.

    The factor is 0 for a query that sees no key.
    """
    factor = self.plan.keep_scale * self.plan.scale
    return jnp.where(self.sees_any_key(log_sums), factor, 0.0)

  def score_gradients(
    self, weights: Array, products: Array, delta: Array, log_sums: Array
  ) -> Array:
    """Computes the gradients of the scores [keys, queries].

    Args:
      weights: the probabilities before dropout.
      products: the probabilities after dropout, times their gradients.
      delta: the sums of `products` over the keys.
      log_sums: the queries' log sums, which `forward_kernel` wrote.
    """
    factor = self.score_factor(log_sums)
    gradient = products * factor[None] - weights * (delta * factor)[None]
    return gradient.astype(self.plan.dtype)

  def apply_dropout(
    self, queries: Tokens, keys: Tokens, weights: Array
  ) -> Array:
    """Sets the weights that dropout drops to 0; does not scale the rest."""
    rate = self.plan.rate
    if not rate:
      return weights
    assert queries.hashes is not None and keys.hashes is not None
    mask = fused.keep_mask(queries.hashes, keys.hashes, rate)
    return jnp.where(mask, weights, 0.0)

  def run_loop(self, body: Callable[[Any, Any], Any], start: Any) -> Any:
    """Runs `body` over the blocks of the other side that are not skipped.

    Args:
      body: (index of the block, carry) -> carry.
      start: the first carry.

    Returns:
      The last carry.
    """
    if self.plan.num_other_blocks == 1:
      return body(0, start)
    first_block: Any = 0
    end_block: Any = self.plan.num_other_blocks
    if self.block_ranges is not None:
      first_block, end_block = (
        self.block_ranges[self.row, self.block, i] for i in (0, 1)
      )
    return jax.lax.fori_loop(first_block, end_block, body, start)

  def store_gradient(
    self,
    d_qkv: Ref,
    sums: Ref,
    number: int,
    gradient: Array,
    first: Array,
    size: int,
  ) -> None:
    """Writes the gradient of a block, and its sum over the tokens.

    Args:
      d_qkv: the gradient of `qkv`.
      sums: the array of `store_sums`.
      number: 0 for queries, 1 for keys, 2 for values.
      gradient: the gradient of the block.
      first: the position of the block's first token.
      size: the number of tokens in the block.
    """
    self.store(d_qkv, gradient, first, size, self.zero + number)
    self.store_sums(sums, number, gradient.sum(0))

  def store_sums(self, sums: Ref, number: int, block_sum: Array) -> None:
    """Writes the sum over a block's tokens, for the bias's gradient.

    Args:
      sums: an array [b, blocks, h, 3, k].
      number: 0 for queries, 1 for keys, 2 for values.
      block_sum: the sum of the gradient over the block's tokens.
    """
    indices = (
      self.row,
      self.block,
      self.head,
      self.zero + number,
      self.features,
    )
    triton.store(sums.at[indices], block_sum, mask=self.is_feature)
