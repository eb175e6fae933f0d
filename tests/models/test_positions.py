"""Tests published positions and lengths, and that ids out of range give NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import (
  FAMILY_NAMES,
  build_encoder,
  fast_jit,
  jitted_encoder,
  token_ids,
)

from bert_jax.models import layers, roberta


@pytest.mark.parametrize(
  "padding_id,ids,positions",
  [
    (3, [[4, 5, 6], [4, 3, 3]], [[4, 5, 6], [4, 3, 3]]),
    (1, [[0, 100, 2, 1, 1]], [[2, 3, 4, 1, 1]]),
  ],
)
def test_positions_of_roberta_begin_after_the_padding_id(
  padding_id, ids, positions
):
  """The first token has the position `padding_id` + 1, padding `padding_id`."""
  position_ids = roberta.make_position_ids(jnp.array(ids), padding_id)
  assert position_ids.tolist() == positions and position_ids.dtype == jnp.int32


@pytest.mark.parametrize("padding_id,max_length", [(1, 512), (3, 510)])
def test_the_longest_row_of_roberta_is_as_published(padding_id, max_length):
  """There are 514 position embeddings; a row that needs more is refused."""
  module = build_encoder("roberta", max_positions=514, padding_id=padding_id)
  assert module.max_length == max_length

  def init(length):
    ids = jnp.full((1, length), 7)
    return jax.eval_shape(module.init, jax.random.key(0), ids)

  init(max_length)
  position_ids = roberta.make_position_ids(
    np.full((1, max_length), 7), padding_id
  )
  assert position_ids.max() == 513
  with pytest.raises(
    ValueError,
    match=f"length {max_length + 1} is over {max_length}.*{padding_id + 1} in a"
    " table of max_positions=514.*data.length",
  ):
    init(max_length + 1)


# The number of segments of each published model. A family that is not in this
# table has the number of its encoder.
NUM_SEGMENTS = dict(bert=2, roberta=1, albert=2, electra=2, distilbert=0, gpt=0)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_rows_over_the_longest_length_are_refused(name):
  module = build_encoder(name)
  assert module.max_length == (38 if name == "roberta" else 40)
  ids = jnp.ones((1, module.max_length + 1), jnp.int32)
  with pytest.raises(
    ValueError, match=f"length {module.max_length + 1} is over"
  ):
    jax.eval_shape(module.init, jax.random.key(0), ids)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_ids_out_of_range_give_nan(name):
  """An id out of range gives NaN, and not zeros or the vector of another id."""
  zero = np.zeros((1, 7), np.int32)
  inputs = dict(
    input_ids=token_ids(1, 7),
    segment_ids=zero,
    sequence_ids=zero + 1,
    position_ids=np.arange(7, dtype=np.int32)[None],
  )
  apply_encoder = jitted_encoder(name)
  assert np.isfinite(apply_encoder(*inputs.values())[0]).all()
  bad_ids_by_key = {"input_ids": (-100, -1, 50), "position_ids": (-100, 40)}
  num_segments = NUM_SEGMENTS.get(name, build_encoder(name).num_segments)
  if num_segments:
    bad_ids_by_key["segment_ids"] = (-1, num_segments)
  for key, bad_ids in bad_ids_by_key.items():
    for bad_id in bad_ids:
      changed_ids = inputs[key].copy()
      changed_ids[0, -1] = bad_id
      hidden = apply_encoder(*(inputs | {key: changed_ids}).values())[0]
      assert np.isnan(hidden[:, -1]).all(), (key, bad_id)


@pytest.mark.parametrize("one_hot", [False, True])
def test_gradient_of_a_table_is_a_sum_over_its_readers(one_hot):
  """The gradient of a vector is a sum over the tokens that have its id.

  Ids out of range add nothing to it.
  """
  table = layers.Embedding(
    size=5,
    features=3,
    kernel_init=jax.nn.initializers.ones,
    axes=(None, "embed"),
    one_hot=one_hot,
  )
  params = {"embedding": jnp.arange(15.0).reshape(5, 3)}
  ids = jnp.array([[4, 0, 4], [-1, 5, 2]])
  weights = jnp.arange(18.0).reshape(2, 3, 3)

  @fast_jit
  @jax.grad
  def gradient(params):
    vectors = table.apply({"params": params}, ids)
    is_valid = ((ids >= 0) & (ids < 5))[..., None]
    return (jnp.where(is_valid, vectors, 0) * weights).sum()

  expected = np.zeros((5, 3))
  for i, weight in zip(ids.ravel(), weights.reshape(-1, 3), strict=True):
    if 0 <= i < 5:
      expected[i] += weight
  np.testing.assert_array_equal(gradient(params)["embedding"], expected)
  vectors = table.apply({"params": params}, ids)
  np.testing.assert_array_equal(vectors[0], params["embedding"][ids[0]])
  np.testing.assert_array_equal(vectors[1, 2], params["embedding"][2])
  assert np.isnan(vectors[1, :2]).all()
