"""Tests the program that makes the arrays and checksums of a checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.devices import compile_ahead, sharding
from bert_jax.training.snapshot import SnapshotMaker
from bert_jax.training.state import TrainState, resize_to_layout
from bert_jax.weights import checkpoint


def make_state(mesh, num_rows):
  """Returns a state with a table of `num_rows` rows, and a layout of 5 rows."""
  replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

  def build(count):
    table = np.zeros((count, 3), np.float32)
    table[: min(count, 5)] = np.arange(15).reshape(5, 3)[:count]
    params = {"table": table, "bias": np.ones(4, np.float32)}
    moments = {"mu": params, "count": np.int32(7)}
    return TrainState(np.int32(2), params, opt_state=moments, carry={})

  state = jax.device_put(build(num_rows), replicated)
  layout = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated),
    build(5),
  )
  return state, layout


@pytest.mark.parametrize("num_rows", [5, 8, 3])
def test_a_snapshot_equals_resize_and_checksums(num_rows):
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  state, layout = make_state(mesh, num_rows)
  with sharding.use_mesh(mesh), compile_ahead.compile_threads() as pool:
    file_state, checksums = SnapshotMaker(pool, state, layout, mesh)(2, state)
    expected = resize_to_layout(state, layout)
    jax.tree.map(np.testing.assert_array_equal, file_state, expected)
    assert checksums == checkpoint.checksums_of(vars(expected))
  assert file_state.params["table"].shape == (5, 3)
  assert file_state.params["bias"] is state.params["bias"]  # No copy.


@pytest.mark.parametrize("bad_value", [jnp.nan, jnp.inf])
def test_parameters_that_are_not_finite_are_never_saved(bad_value):
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  state, layout = make_state(mesh, 8)
  bad_params = state.params | {
    "bias": state.params["bias"].at[2].set(bad_value)
  }
  with sharding.use_mesh(mesh), compile_ahead.compile_threads() as pool:
    snapshots = SnapshotMaker(pool, state, layout, mesh)
    snapshots(step=3, state=state)
    with pytest.raises(FloatingPointError, match="step 3"):
      snapshots(step=3, state=state.replace(params=bad_params))
