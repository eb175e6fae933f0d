"""Tests that programs are compiled in the background."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.devices import compile_ahead, sharding


def make_batch(length):
  return {"sequence_ids": np.ones((2, length), np.int32)}


def make_shapes(length):
  batch = make_batch(length)
  return {
    key: jax.ShapeDtypeStruct(array.shape, array.dtype)
    for key, array in batch.items()
  }


def test_each_length_is_compiled_once_in_the_background_or_at_its_first_call():
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  traced_shapes = []

  def step(weight, batch, key):
    traced_shapes.append(batch["sequence_ids"].shape)
    assert not jax.sharding.get_abstract_mesh().empty
    return weight * batch["sequence_ids"].sum() + jax.random.uniform(key)

  function = compile_ahead.CompiledAhead(
    sharding.jit(step), batch_index=1, mesh=mesh
  )
  key, weight = jax.random.key(0), jnp.float32(2.0)
  with sharding.use_mesh(mesh), compile_ahead.compile_threads() as pool:
    for length in (4, 8, 4):
      function.begin_compilation(pool, weight, make_shapes(length), key)
    for length in (8, 4, 8, 6, 6):
      batch = sharding.to_global_batch(mesh, make_batch(length))
      expected = 4.0 * length + jax.random.uniform(key)
      np.testing.assert_allclose(function(weight, batch, key), expected)
  assert sorted(traced_shapes) == [(2, 4), (2, 6), (2, 8)]


def test_an_error_in_the_background_is_raised_by_the_call():
  mesh = sharding.make_mesh(devices=jax.devices()[:1])

  def step(batch):
    raise ValueError("length 4 is over 2.")

  function = compile_ahead.CompiledAhead(
    sharding.jit(step), batch_index=0, mesh=mesh
  )
  with sharding.use_mesh(mesh), compile_ahead.compile_threads() as pool:
    function.begin_compilation(pool, make_shapes(4))
    with pytest.raises(ValueError, match="over 2"):
      function(sharding.to_global_batch(mesh, make_batch(4)))
