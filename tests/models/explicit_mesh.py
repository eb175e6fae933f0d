"""Compares encoders on a mesh with explicit axes with those on one device.

test_explicit_axes.py starts this program with 8 devices of the CPU.
"""

import functools

import flax.linen as nn
import jax
import numpy as np
import tiny_families
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.models import bert, heads

SIZES = tiny_families.SIZES | dict(num_layers=1, hidden=16, heads=2, mlp=16)
IDS = tiny_families.token_ids(8, 4)
BATCH = {
  "input_ids": IDS,
  "mlm_positions": IDS[:, :2] % 4,
  "cls_positions": IDS[:, :1] * 0,
}
KEY = jax.random.key(3)


def split_parameters(mesh, params):
  """Puts parameters on the mesh; splits last axes of even size over "model"."""

  def put(x):
    spec = PartitionSpec(*[None] * (x.ndim - 1), "model")
    is_even = x.shape[-1] % 2 == 0
    return jax.device_put(
      x, NamedSharding(mesh, spec if is_even else PartitionSpec())
    )

  return jax.tree.map(put, params)


def main():
  mesh = jax.make_mesh((4, 2), ("data", "model"))
  assert {*mesh.axis_types} == {AxisType.Explicit}, mesh
  module = heads.ForPreTraining(bert.Bert(**SIZES))
  params = tiny_families.random_params(module, BATCH)

  def loss(params, batch, key):
    variables, rngs = {"params": params}, {"dropout": key}
    output = module.apply(variables, batch, train=True, rngs=rngs)
    return sum((x**2).mean() for x in jax.tree.leaves(output)), output

  run = jax.jit(jax.value_and_grad(loss, has_aux=True))
  expected = run(params, BATCH, KEY)
  with jax.set_mesh(mesh):
    batch = jax.device_put(BATCH, NamedSharding(mesh, PartitionSpec("data")))
    key = jax.device_put(KEY, NamedSharding(mesh, PartitionSpec()))
    params = split_parameters(mesh, params)
    actual = run(params, batch, key)
    _, states = jax.eval_shape(
      functools.partial(module.encoder.apply, collect=True),
      {"params": params["encoder"]},
      batch["input_ids"],
    )
    variables = jax.eval_shape(module.init, KEY, batch)
  for actual_array, expected_array in zip(
    *map(jax.tree.leaves, (actual, expected)), strict=True
  ):
    np.testing.assert_allclose(
      actual_array, expected_array, rtol=1e-4, atol=1e-5
    )
  specs = {name: x.sharding.spec for name, x in states.items()}
  specs |= {name: x.sharding.spec for name, x in actual[0][1].items()}
  assert jax.tree.structure(nn.unbox(variables)) == jax.tree.structure(
    {"params": params}
  )
  print({name: spec.index("data") for name, spec in sorted(specs.items())})


if __name__ == "__main__":
  main()
