"""Which blocks of queries and keys an attention kernel must look at.

Packed rows and padding leave most blocks without a pair that sees each other;
a kernel goes from the first block with one to the last.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

Range = tuple[Int[Array, "b l"], Int[Array, "b l"]]


def token_ranges(ids: Int[Array, "b l"], causal: bool) -> tuple[Range, Range]:
  """First and last key that each query sees, and query that sees each key.

  A query that sees no key gets all of them, as its weights are equal. The range
  of a key that no query sees ends before it begins. A sequence whose number is
  above l, or that is in several pieces, gets a range that contains its tokens.

  Args:
    ids: `sequence_ids`, see `attention.attention_mask`.
    causal: a query sees no key after it.
  """
  length = ids.shape[1]
  index = jnp.arange(length)
  key_ids = jnp.clip(ids, 0, length)
  query_ids = jnp.maximum(key_ids, 1)

  def ends(groups, of):
    first, last = (
      jax.vmap(lambda g, f=f: f(index, g, length + 1))(groups)
      for f in (jax.ops.segment_min, jax.ops.segment_max)
    )
    return (jnp.take_along_axis(x, of, 1) for x in (first, last))

  first_key, last_key = ends(key_ids, query_ids)
  first_query, last_query = ends(query_ids, key_ids)
  if causal:
    last_key = jnp.minimum(last_key, index[None])
    first_query = jnp.maximum(first_query, index[None])
  blind = first_key > last_key
  blind_row = blind.any(1, keepdims=True)
  return (
    (jnp.where(blind, 0, first_key), jnp.where(blind, length - 1, last_key)),
    (
      jnp.where(blind_row, 0, first_query),
      jnp.where(blind_row, length - 1, last_query),
    ),
  )


def block_ranges(
  tokens: Range, size: int, other: int
) -> Int[Array, "b blocks 2"]:
  """First block of the other side, and the block after the last.

  Args:
    tokens: a range of `token_ranges`.
    size: size of a block of this side.
    other: size of a block of the other side.
  """
  first, last = tokens
  more = [(0, 0), (0, -first.shape[1] % size)]
  first = jnp.pad(first, more, constant_values=first.shape[1])
  last = jnp.pad(last, more, constant_values=-1)
  first, last = (x.reshape(len(x), -1, size) for x in (first, last))
  return jnp.stack([first.min(2) // other, last.max(2) // other + 1], -1)
