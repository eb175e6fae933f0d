"""Attention kernels for TPUs, which never write an array [b, h, l, l] to HBM.

There is one kernel for the forward pass and one for the backward pass. A
program works on one row of the batch and on some of the heads. The scores of
these heads stay in the core's local memory, and the backward pass computes them
again.

The kernels read and write arrays [b, l, h * k]. The products before attention
write this form, and the product after attention reads it. An array [b, h, l, k]
would have to be reordered, and if a head has 64 columns, the last axis would be
padded to 128, because a register has 128 columns. So two heads of 64 columns
share a register. A product over all 128 columns gives the scores of one head if
the columns of the other head are 0 in one of the two operands. This costs
nothing: the unit for products works on 128 columns anyway.

The scores are transposed, with keys as rows and queries as columns. So sums and
maxima over keys add and compare whole registers. An array with a number for
each query is one row, [1, l]. An array with a number for each key has many
equal columns; see `columns_of_keys`.

The product `fused.dot(a, b, (i, j))` sums over axis i of `a` and axis j of `b`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, UInt32

from bert_jax.kernels import fused

# The length of the longest rows. For this l, several arrays [l, l] fit into the
# local memory.
MAX_LENGTH = 512
# A program computes at most this many scores, unless one group of heads has
# more. Each program waits for its first numbers, so few large programs wait
# less than many small ones.
MAX_SCORES_OF_PROGRAM = 512 * 512
# A program computes the scores of this many queries together: of the first
# number that divides the length. If no number divides it, a program computes
# all scores of a head together.
BLOCK_SIZES = (256, 128)
# The number of columns of a register.
REGISTER_COLUMNS = 128
# Says that the programs of a grid are independent. Only then does a chip with
# two cores (v4, v5p) run half of the grid on each core.
_INDEPENDENT_PROGRAMS = pltpu.CompilerParams(
  dimension_semantics=("parallel", "parallel")
)
# The score of a key that a query does not see.
UNSEEN_SCORE = -1e30
FEATURE_AXES = ("batch", "length", "heads")
HASH_AXES = ("batch", "heads", "length")
SUM_AXES = ("batch", None, None, "heads")
_SIGN_BIT = np.int32(-(2**31))
Ref = Any  # A reference to an array, as Pallas passes it to a kernel.


def group_size(heads: int, head_dim: int) -> int:
  """Returns how many heads share the columns of a register.

  It is 1 if heads do not fill the columns of a register exactly. Then a program
  moves each head to separate registers, which costs time.

  Args:
    heads: the number of heads on a device.
    head_dim: the width of a head.
  """
  size = max(REGISTER_COLUMNS // head_dim, 1)
  is_full = REGISTER_COLUMNS % head_dim == 0 and heads % size == 0
  return size if is_full else 1


def heads_of_program(heads: int, head_dim: int, length: int) -> int:
  """Returns the number of heads of a row that a program works on.

  It is a multiple of `group_size`, and divides the number of heads. The columns
  of these heads fill whole registers, or are all columns of the arrays.
  """
  head_counts = [
    num_heads
    for num_heads in range(group_size(heads, head_dim), heads + 1)
    if heads % num_heads == 0
    and num_heads % group_size(heads, head_dim) == 0
    and (num_heads * head_dim % REGISTER_COLUMNS == 0 or num_heads == heads)
  ]
  small_head_counts = [
    num_heads
    for num_heads in head_counts
    if num_heads * length * length <= MAX_SCORES_OF_PROGRAM
  ]
  return max(small_head_counts, default=head_counts[0])


def queries_of_block(length: int) -> int:
  """Returns the number of queries whose scores are computed together."""
  divisors = [size for size in BLOCK_SIZES if length % size == 0]
  return divisors[0] if divisors else length


def columns_of_keys(length: int) -> int:
  """Returns how many equal columns an array with a number for each key has."""
  num_queries = queries_of_block(length)
  return num_queries if num_queries % REGISTER_COLUMNS else REGISTER_COLUMNS


@dataclasses.dataclass(frozen=True)
class _HeadGroup:
  """Describes heads that share the columns of a register.

  Attributes:
    first: the index of the first head among the heads of the program.
    size: the number of heads.
    head_dim: the width of a head.
  """

  first: int
  size: int
  head_dim: int

  @property
  def columns(self) -> slice:
    """The group's columns of an array [l, heads * k]."""
    start = self.first * self.head_dim
    return slice(start, start + self.size * self.head_dim)

  def only(self, index: int, x: Array) -> Array:
    """Returns x with zeros in all columns but those of the head at `index`."""
    return self.merge(index, x, jnp.zeros_like(x))

  def merge(self, index: int, x: Array, others: Array | None) -> Array:
    """Returns `x` in the columns of one head, and `others` in other columns.

    Args:
      index: the head's index in the group.
      x: an array [n, columns of the group].
      others: an array like `x`. It is None for the first head of the group;
        then `x` is returned.
    """
    if self.size == 1 or others is None:
      return x
    column = jax.lax.broadcasted_iota(jnp.int32, (1, x.shape[1]), 1)
    start = index * self.head_dim
    is_of_head = (column >= start) & (column < start + self.head_dim)
    return jnp.where(is_of_head, x, others)

  def rows(self, index: int, x: Array) -> Array:
    """Returns the rows of one head of an array [columns of the group, n]."""
    return x[index * self.head_dim : (index + 1) * self.head_dim]


def keep_mask(row: Array, column: Array, rate: float) -> Array:
  """Computes `fused.keep_mask` from int32 hashes.

  The vector unit compares signed numbers only. If the sign bit is flipped, the
  comparison of signed numbers orders unsigned numbers rightly. The bit is
  flipped in the summand of a row, so that an element costs one product, one sum
  and one comparison.

  Args:
    row: the output of `fused.row_hashes`, as int32.
    column: the output of `fused.column_hashes`, as int32.
    rate: the dropout rate.
  """
  factor = row | 1
  flipped_bits = column * factor + (row * factor ^ _SIGN_BIT)
  threshold = np.int32(int(fused.drop_threshold(rate)) - 2**31)
  return flipped_bits >= threshold


@dataclasses.dataclass(frozen=True)
class _Program:
  """Holds what a program of a kernel reads for all of its heads.

  Attributes:
    query_hashes: the hashes of queries for dropout, [heads, 1, l].
    key_hashes: the hashes of keys for dropout, [l, columns], equal in all
      columns.
    q_ids: the `sequence_ids` of queries, [1, l].
    k_ids: the `sequence_ids` of keys, [l, columns], equal in all columns.
    head_dim: the width of a head.
    rate: the dropout rate.
    causal: True lets no query see a key after it.
  """

  query_hashes: Ref
  key_hashes: Ref
  q_ids: Ref
  k_ids: Ref
  head_dim: int
  rate: float
  causal: bool

  @property
  def scale(self) -> float:
    """The factor of the scores."""
    return 1.0 / math.sqrt(self.head_dim)

  @property
  def blocks(self) -> list[slice]:
    """The blocks of queries."""
    length = self.q_ids.shape[1]
    size = queries_of_block(length)
    return [slice(i, i + size) for i in range(0, length, size)]

  def groups(self, width: int) -> list[_HeadGroup]:
    """Returns the groups of heads in arrays of `width` columns."""
    heads = width // self.head_dim
    size = group_size(heads, self.head_dim)
    return [
      _HeadGroup(first=first_head, size=size, head_dim=self.head_dim)
      for first_head in range(0, heads, size)
    ]

  def _of_keys(self, numbers: Ref, block: slice) -> Array:
    """Returns the keys' numbers in a column for each query of the block."""
    equal_columns = numbers[...]
    return jnp.concatenate(
      [equal_columns] * ((block.stop - block.start) // equal_columns.shape[1]),
      1,
    )

  def exponentials(
    self, query: Array, key: Array, block: slice
  ) -> tuple[Array, Array, Array]:
    """Computes the probabilities before they are divided by their sums.

    Args:
      query: the queries of a block, [q, n].
      key: the keys of one head, [l, n], with zeros in other heads' columns.
      block: the block of queries.

    Returns:
      Three float32 arrays: the exponentials [l, q], 1 / their sums [1, q], and
      [1, q] with 1 for a query that sees a key, else 0.
    """
    scores = fused.dot(key, query, (1, 1)) * self.scale
    is_seen = jnp.maximum(self.q_ids[:, block], 1) == self._of_keys(
      self.k_ids, block
    )
    if self.causal:
      key_index, query_index = (
        jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis)
        for axis in (0, 1)
      )
      is_seen &= key_index <= query_index + block.start
    scores = jnp.where(is_seen, scores, UNSEEN_SCORE)
    largest = scores.max(0, keepdims=True)
    exponentials = jnp.exp(scores - largest)
    inverse_sums = 1.0 / exponentials.sum(0, keepdims=True)
    sees_a_key = jnp.where(largest > UNSEEN_SCORE, 1.0, 0.0)
    return exponentials, inverse_sums, sees_a_key

  def drop(self, weights: Array, head: int, block: slice) -> Array:
    """Sets the weights that dropout drops to 0; does not scale the kept ones.

    Args:
      weights: numbers of keys and queries, [l, q].
      head: the index of the head in the program.
      block: the block of queries.
    """
    if not self.rate:
      return weights
    is_kept = keep_mask(
      self.query_hashes[head, :, block],
      self._of_keys(self.key_hashes, block),
      self.rate,
    )
    return jnp.where(is_kept, weights, 0.0)


def _forward_kernel(
  query_hashes: Ref,
  key_hashes: Ref,
  q_ids: Ref,
  k_ids: Ref,
  query: Ref,
  key: Ref,
  value: Ref,
  out: Ref,
  **options: Any,
) -> None:
  """Computes `out`, the mixed values [l, columns].

  The first four arguments and `options` are fields of `_Program`.
  """
  program = _Program(query_hashes, key_hashes, q_ids, k_ids, **options)
  keep_scale = 1.0 / (1.0 - program.rate)
  for group in program.groups(query.shape[1]):
    keys_of_heads = [
      group.only(head_in_group, key[:, group.columns])
      for head_in_group in range(group.size)
    ]
    values = value[:, group.columns]
    for block in program.blocks:
      mixed_rows = []
      for head_in_group in range(group.size):
        weights, inverse_sums, _ = program.exponentials(
          query[block, group.columns], keys_of_heads[head_in_group], block
        )
        weights = program.drop(weights, group.first + head_in_group, block)
        # The product has a row for each column of the values.
        mixed_columns = fused.dot(values, weights.astype(value.dtype), (0, 0))
        mixed_rows.append(
          group.rows(head_in_group, mixed_columns) * (inverse_sums * keep_scale)
        )
      out[block, group.columns] = jnp.concatenate(mixed_rows, 0).T.astype(
        out.dtype
      )


def _backward_kernel(
  query_hashes: Ref,
  key_hashes: Ref,
  q_ids: Ref,
  k_ids: Ref,
  query: Ref,
  key: Ref,
  value: Ref,
  gradient: Ref,
  d_query: Ref,
  d_key: Ref,
  d_value: Ref,
  sums: Ref,
  kept_weights: Ref,
  d_scores: Ref,
  **options: Any,
) -> None:
  """Computes the gradients of queries, keys and values, and of the bias.

  Args:
    query_hashes: see `_Program`, also for `key_hashes`, `q_ids`, `k_ids` and
      `options`.
    key_hashes: see above.
    q_ids: see above.
    k_ids: see above.
    query: the queries, with their bias.
    key: the keys, with their bias.
    value: the values, with their bias.
    gradient: the gradient of the mixed values.
    d_query: the gradient of the queries.
    d_key: the gradient of the keys.
    d_value: the gradient of the values.
    sums: the sums over tokens of these three gradients, [3, 1, columns].
    kept_weights: local memory for a head's probabilities after dropout, [l, l].
    d_scores: local memory for the gradient of a head's scores, [l, l].
    **options: see above.
  """
  program = _Program(query_hashes, key_hashes, q_ids, k_ids, **options)
  dtype = query.dtype
  keep_scale = 1.0 / (1.0 - program.rate)
  for group in program.groups(query.shape[1]):
    columns = group.columns
    query_gradient_rows = []
    key_gradient: Array | None = None
    value_gradient: Array | None = None
    for head_in_group in range(group.size):
      key_of_head = group.only(head_in_group, key[:, columns])
      value_of_head = group.only(head_in_group, value[:, columns])
      for block in program.blocks:
        weights, inverse_sums, sees_a_key = program.exponentials(
          query[block, columns], key_of_head, block
        )
        weights *= inverse_sums
        d_weights = fused.dot(value_of_head, gradient[block, columns], (1, 1))
        # The products below are multiplied by `keep_scale`, the scale of
        # dropout.
        kept_weights[:, block] = program.drop(
          weights, group.first + head_in_group, block
        ).astype(dtype)
        weighted_gradients = program.drop(
          weights * d_weights, group.first + head_in_group, block
        )
        d_block = weighted_gradients - weights * weighted_gradients.sum(
          0, keepdims=True
        )
        d_scores[:, block] = (d_block * sees_a_key).astype(dtype)
      d_scores_of_head = d_scores[...]
      factor = keep_scale * program.scale
      value_gradient = group.merge(
        head_in_group,
        fused.dot(kept_weights[...], gradient[:, columns], (1, 0)) * keep_scale,
        value_gradient,
      )
      key_gradient = group.merge(
        head_in_group,
        fused.dot(d_scores_of_head, query[:, columns], (1, 0)) * factor,
        key_gradient,
      )
      # The product has a row for each column of the keys.
      products = fused.dot(key[:, columns], d_scores_of_head, (0, 0))
      query_gradient_rows.append(group.rows(head_in_group, products) * factor)
    assert key_gradient is not None and value_gradient is not None
    query_gradient = jnp.concatenate(query_gradient_rows, 0).T
    gradients_of_group = query_gradient, key_gradient, value_gradient
    for projection, (group_gradient, ref) in enumerate(
      zip(gradients_of_group, (d_query, d_key, d_value), strict=True)
    ):
      ref[:, columns] = group_gradient.astype(dtype)
      sums[projection, :, columns] = group_gradient.sum(0, keepdims=True)


# The arguments `heads`, `rate`, `causal` and `interpret` of `attention`.
Options = tuple[int, float, bool, bool]


def _run_kernel(
  kernel: Callable[..., None],
  options: Options,
  seed: Array,
  ids: Array,
  *arrays: Array,
) -> Any:
  """Runs a kernel.

  Args:
    kernel: `_forward_kernel` or `_backward_kernel`.
    options: the options of `attention`.
    seed: the seed of the dropout.
    ids: the `sequence_ids`.
    *arrays: the kernel's other arrays, [b, l, h * k].

  Returns:
    A tuple of arrays: the kernel's outputs.
  """
  heads, rate, causal, interpret = options
  num_rows, length, width = arrays[0].shape
  head_dim = width // heads
  is_backward = kernel is _backward_kernel

  def run_shard(
    query_hashes: Array, key_hashes: Array, ids: Array, *arrays: Array
  ) -> Any:
    num_rows, length, width = arrays[0].shape
    heads = width // head_dim
    heads_per_program = heads_of_program(heads, head_dim, length)
    num_key_columns = columns_of_keys(length)
    block_width = heads_per_program * head_dim
    block_spec = pl.BlockSpec(
      (None, length, block_width), lambda b, h: (b, 0, h)
    )
    # The blocks of the first four arguments of the kernel.
    in_specs = [
      pl.BlockSpec(
        (None, heads_per_program, 1, length), lambda b, h: (b, h, 0, 0)
      ),
      pl.BlockSpec((length, num_key_columns), lambda b, h: (0, 0)),
      pl.BlockSpec((None, 1, length), lambda b, h: (b, 0, 0)),
      pl.BlockSpec((None, length, num_key_columns), lambda b, h: (b, 0, 0)),
    ]
    output_shape = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    out_specs, out_shapes = [block_spec], [output_shape]
    scratch_shapes = []
    if is_backward:
      sum_spec = pl.BlockSpec(
        (None, 3, 1, block_width), lambda b, h: (b, 0, 0, h)
      )
      sum_shape = jax.ShapeDtypeStruct((num_rows, 3, 1, width), jnp.float32)
      out_specs = [*out_specs * 3, sum_spec]
      out_shapes = [*out_shapes * 3, sum_shape]
      scratch_shapes = [pltpu.VMEM((length, length), arrays[0].dtype)] * 2
    key_ids = jnp.broadcast_to(
      ids[:, :, None], (num_rows, length, num_key_columns)
    )
    return pl.pallas_call(
      functools.partial(kernel, head_dim=head_dim, rate=rate, causal=causal),
      grid=(num_rows, heads // heads_per_program),
      in_specs=[*in_specs, *[block_spec] * len(arrays)],
      out_specs=out_specs,
      out_shape=out_shapes,
      scratch_shapes=scratch_shapes,
      interpret=interpret,
      compiler_params=_INDEPENDENT_PROGRAMS,
      name="attention_" + kernel.__name__.split("_")[1],
    )(query_hashes[:, :, None], key_hashes, ids[:, None], key_ids, *arrays)

  token_indices = np.arange(heads * length, dtype=np.uint32).reshape(
    heads, length
  )
  query_hashes = fused.row_hashes(
    fused.first_hashes(seed, num_rows)[:, None, None], token_indices[None]
  ).astype(jnp.int32)
  key_hashes = fused.column_hashes(np.arange(length, dtype=np.uint32))
  key_hashes = np.repeat(
    key_hashes.astype(np.int32)[:, None], columns_of_keys(length), 1
  )
  out_axes: list[fused.Axes] = [FEATURE_AXES]
  if is_backward:
    out_axes = [*out_axes * 3, SUM_AXES]
  return fused.run_on_shards(
    run_shard,
    [
      HASH_AXES,
      (None, None),
      ("batch", "length"),
      *[FEATURE_AXES] * len(arrays),
    ],
    out_axes,
    query_hashes,
    jnp.asarray(key_hashes),
    ids,
    *arrays,
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8, 9))
def attention(
  query: Float[Array, "b l f"],
  key: Float[Array, "b l f"],
  value: Float[Array, "b l f"],
  bias: Float[Array, "3 f"],
  ids: Int[Array, "b l"],
  seed: UInt32[Array, "2"],
  heads: int,
  rate: float,
  causal: bool = False,
  interpret: bool = False,
) -> Float[Array, "b l f"]:
  """Computes attention over projected queries, keys and values.

  The last axis, of size f = h * k, holds the h heads one after the other.

  Args:
    query: the queries, without their bias.
    key: the keys, in the dtype of the queries.
    value: the values, in the dtype of the queries.
    bias: the float32 bias of queries, keys and values.
    ids: the `sequence_ids`; see `attention.attention_mask`.
    seed: the seed of dropout; see `layers.dropout_seed`.
    heads: the number of heads.
    rate: the dropout rate on the probabilities, in [0, 1).
    causal: True lets no query see a key after it.
    interpret: True runs the kernels without a TPU, slowly.

  Raises:
    ValueError: the rows are longer than `MAX_LENGTH`.
  """
  return _attention_forward(
    query, key, value, bias, ids, seed, heads, rate, causal, interpret
  )[0]


def _attention_forward(
  query: Array,
  key: Array,
  value: Array,
  bias: Array,
  ids: Array,
  seed: Array,
  heads: int,
  rate: float,
  causal: bool,
  interpret: bool,
) -> tuple[Array, tuple[Array, ...]]:
  options = heads, rate, causal, interpret
  if query.shape[1] > MAX_LENGTH:
    raise ValueError(
      f"attention 'tpu' takes rows of up to {MAX_LENGTH} tokens, and this"
      f" row has {query.shape[1]}; set model.attention='xla'."
    )
  query, key, value = (
    x + projection_bias.astype(x.dtype)[None, None]
    for x, projection_bias in zip((query, key, value), bias, strict=True)
  )
  (out,) = _run_kernel(_forward_kernel, options, seed, ids, query, key, value)
  return out, (query, key, value, ids, seed)


def _attention_backward(
  heads: int,
  rate: float,
  causal: bool,
  interpret: bool,
  saved: tuple[Array, ...],
  gradient: Array,
) -> tuple[Any, ...]:
  query, key, value, ids, seed = saved
  options = heads, rate, causal, interpret
  *gradients, sums = _run_kernel(
    _backward_kernel, options, seed, ids, query, key, value, gradient
  )
  d_bias = sums.sum(0)[:, 0]
  return (
    *gradients,
    d_bias,
    fused.zero_cotangent(ids),
    fused.zero_cotangent(seed),
  )


attention.defvjp(_attention_forward, _attention_backward)
