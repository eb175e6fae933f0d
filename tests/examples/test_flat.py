"""Tests flat rows, each of which holds a whole batch of sequences.

A sequence has equal vectors in a flat row and alone.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax.examples.rows import flat_row
from bert_jax.kernels import attention_blocks
from bert_jax.models import bert, roberta


def random_sequences(*lengths):
  rng = np.random.default_rng(0)
  # Id 1 is RoBERTa's padding, so the ids begin at 2.
  return [rng.integers(2, 50, length).astype(np.int32) for length in lengths]


def test_flat_row_holds_its_sequences():
  row = flat_row([np.array([5, 6, 7]), np.array([8])], multiple=6)
  assert row["input_ids"].tolist() == [[5, 6, 7, 8, 0, 0]]
  assert row["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1]]
  assert row["sequence_ids"].tolist() == [[1, 1, 1, 2, 3, 3]]
  assert all(values.dtype == np.int32 for values in row.values())
  with pytest.raises(ValueError, match="empty"):
    flat_row([np.array([5]), np.array([], int)])
  with pytest.raises(ValueError, match="multiple=0 must be at least 1"):
    flat_row([np.array([5])], multiple=0)
  for wrong_sequences in (
    [np.array([5]), np.array([1.5])],
    [np.ones((2, 2), int)],
  ):
    with pytest.raises(ValueError, match=r"sequence \d is .*; pass the ids"):
      flat_row(wrong_sequences)


@pytest.mark.parametrize("family", [bert, roberta])
def test_vectors_are_those_of_each_sequence_alone(family):
  sizes = dict(hidden=32, num_layers=2, heads=2, mlp=64, max_positions=14)
  model = family.build(next(iter(family.VARIANTS)), vocab_size=50, **sizes)
  sequences = random_sequences(12, 3, 7, 2)
  row = jax.tree.map(jnp.asarray, flat_row(sequences, multiple=16))
  assert row["input_ids"].shape == (1, 32)  # Longer than the position table.
  init, apply = fast_jit(model.init), fast_jit(model.apply)
  params = nn.unbox(init(jax.random.key(0), row["input_ids"][:, :12]))
  hidden, _ = apply(params, **row)
  assert np.isfinite(hidden).all()
  for sequence_number, ids in enumerate(sequences, 1):
    single_vectors, _ = apply(params, ids[None])
    vectors = hidden[0][row["sequence_ids"][0] == sequence_number]
    np.testing.assert_allclose(vectors, single_vectors[0], atol=2e-6, rtol=0)


def visible_pairs(sequence_ids, causal):
  """Returns bool [rows, queries, keys]: True if the query sees the key."""
  query_ids = np.maximum(sequence_ids, 1)
  is_visible = query_ids[:, :, None] == sequence_ids[:, None]
  if causal:
    is_visible &= np.tril(np.ones(is_visible.shape[1:], bool))
  # A query without keys gives all keys equal weights, so it sees all of them.
  is_visible[~is_visible.any(2)] = True
  return is_visible


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_size, other_size", [(4, 4), (8, 2), (16, 5)])
def test_block_ranges_hold_every_visible_pair(block_size, other_size, causal):
  """The range of a block of queries holds all blocks of keys that it sees.

  The range of a block of keys holds all blocks of queries that see it. In the
  first row, whose sequences are contiguous, a range holds no further blocks.
  """
  contiguous_ids = np.repeat([1, 2, 3, 4], [9, 2, 17, 8])
  rng = np.random.default_rng(1)
  rows = [
    contiguous_ids,
    np.where(contiguous_ids < 4, contiguous_ids, 0),
    np.zeros(36),
    np.full(36, 99),
  ]
  rows += [rng.integers(0, 5, 36), np.where(np.arange(36) < 5, 0, 1)]
  sequence_ids = np.array(rows, np.int32)
  is_visible = visible_pairs(sequence_ids, causal)
  ranges = attention_blocks.token_ranges(jnp.asarray(sequence_ids), causal)
  for side_ranges, visibility in zip(
    ranges, (is_visible, is_visible.swapaxes(1, 2)), strict=True
  ):
    ranges_of_blocks = np.asarray(
      attention_blocks.block_ranges(side_ranges, block_size, other_size)
    )
    for row_index, visibility_of_row in enumerate(visibility):
      for block_index in range(-(-36 // block_size)):
        needed_blocks = (
          np.flatnonzero(
            visibility_of_row[
              block_index * block_size : (block_index + 1) * block_size
            ].any(0)
          )
          // other_size
        )
        begin, end = ranges_of_blocks[row_index, block_index]
        if not needed_blocks.size:
          assert end <= begin or row_index > 1
          continue
        assert begin <= needed_blocks.min() and end > needed_blocks.max()
        if row_index == 0:
          assert (begin, end) == (needed_blocks.min(), needed_blocks.max() + 1)
