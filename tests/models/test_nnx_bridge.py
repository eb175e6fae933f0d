"""Tests an encoder as a module of flax.nnx, and the names of its axes."""

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny_families
from flax import nnx

from bert_jax.models import bert, layers

pytestmark = pytest.mark.usefixtures("fast_compilation")
IDS = tiny_families.token_ids(2, 4)


def test_an_encoder_in_nnx_has_the_same_tree_and_outputs():
  sizes = dict(num_layers=1, hidden=8, heads=2, mlp=8)
  encoder = bert.Bert(**tiny_families.SIZES | sizes)
  rngs = nnx.Rngs(params=0, dropout=1)
  model = nnx.bridge.ToNNX(encoder, rngs=rngs).lazy_init(IDS)
  kernel = model.layers["layer"]["mlp_in"]["kernel"]
  assert kernel.out_sharding == ("layers", "embed", "mlp")
  params = tiny_families.random_params(encoder, IDS)
  state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
  assert jax.tree.structure(state) == jax.tree.structure(params)
  nnx.update(model, params)

  def loss(model):
    return (model(IDS)[0] ** 3).mean()

  gradient = nnx.to_pure_dict(nnx.jit(nnx.grad(loss))(model))
  expected = tiny_families.fast_jit(
    jax.grad(lambda tree: (encoder.apply({"params": tree}, IDS)[0] ** 3).mean())
  )(params)
  for gradient_array, expected_array in zip(
    *map(jax.tree.leaves, (gradient, expected)), strict=True
  ):
    np.testing.assert_allclose(
      gradient_array, expected_array, rtol=1e-4, atol=1e-6
    )


# flax puts each parameter into a box, which also has the names of its axes.
def test_a_box_keeps_its_axis_names_in_nnx_and_back():
  init = layers.with_axes(nn.initializers.zeros_init(), ("embed", "mlp"))
  box = init(jax.random.key(0), (2, 3), "float32")
  box_from_nnx = type(box).from_nnx_metadata(box.to_nnx_metadata())
  assert box_from_nnx.names == box.names == ("embed", "mlp")
  assert box.add_axis(0, {nn.PARTITION_NAME: "layers"}).names[0] == "layers"
