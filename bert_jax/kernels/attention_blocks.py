"""Finds the blocks of queries and keys that an attention kernel must read.

In packed rows, most pairs of blocks have no query and key that see each other.
A program of a kernel loops only from the first to the last block that it needs.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

# The positions of the first and of the last token in each token's range.
TokenRange = tuple[Int[Array, "b l"], Int[Array, "b l"]]


def token_ranges(
  ids: Int[Array, "b l"], causal: bool
) -> tuple[TokenRange, TokenRange]:
  """Returns the range of keys for each query, and of queries for each key.

  A range goes from the first to the last key that a query sees, or from the
  first to the last query that sees a key. There are these exceptions:

    a query sees no key               The range of the query is all keys, since
                                      their weights are equal. The range of each
                                      key of the row is all queries.
    no query sees a key               The range ends before it begins.
    a sequence's number is above l    The range contains the sequence's tokens,
                                      and may contain others.
    a sequence is not contiguous      The range goes from the sequence's first
                                      to its last token.

  Args:
    ids: the number of each token's sequence in the row: 1, 2, ...; 0 at
      padding.
    causal: True lets no query see a key after it.
  """
  length = ids.shape[1]
  positions = jnp.arange(length)
  key_ids = jnp.clip(ids, 0, length)
  # A query at padding sees sequence 1, as in `attention.attention_mask`.
  query_ids = jnp.maximum(key_ids, 1)

  def group_ends(
    groups: Int[Array, "b l"], group_numbers: Int[Array, "b l"]
  ) -> Iterator[Int[Array, "b l"]]:
    """Returns the first and the last position of the group with each number."""
    first, last = (
      jax.vmap(lambda g, f=f: f(positions, g, length + 1))(groups)
      for f in (jax.ops.segment_min, jax.ops.segment_max)
    )
    return (
      jnp.take_along_axis(ends, group_numbers, 1) for ends in (first, last)
    )

  first_key, last_key = group_ends(key_ids, query_ids)
  first_query, last_query = group_ends(query_ids, key_ids)
  if causal:
    last_key = jnp.minimum(last_key, positions[None])
    first_query = jnp.maximum(first_query, positions[None])
  sees_no_key = first_key > last_key
  row_has_query_without_key = sees_no_key.any(1, keepdims=True)
  return (
    (
      jnp.where(sees_no_key, 0, first_key),
      jnp.where(sees_no_key, length - 1, last_key),
    ),
    (
      jnp.where(row_has_query_without_key, 0, first_query),
      jnp.where(row_has_query_without_key, length - 1, last_query),
    ),
  )


def block_ranges(
  ranges: TokenRange, block_size: int, other_block_size: int
) -> Int[Array, "b blocks 2"]:
  """Returns the range of blocks of the other side for each block of this side.

  The other side of queries is keys, and the other side of keys is queries. A
  range is the index of the first block, and 1 + the index of the last block.

  Args:
    ranges: one of the two results of `token_ranges`.
    block_size: the number of tokens in a block of this side.
    other_block_size: the number of tokens in a block of the other side.
  """
  first, last = ranges
  # The padding has empty ranges, which do not widen the range of a block.
  padding = [(0, 0), (0, -first.shape[1] % block_size)]
  first = jnp.pad(first, padding, constant_values=first.shape[1])
  last = jnp.pad(last, padding, constant_values=-1)
  first, last = (
    positions.reshape(len(positions), -1, block_size)
    for positions in (first, last)
  )
  return jnp.stack(
    [first.min(2) // other_block_size, last.max(2) // other_block_size + 1], -1
  )
