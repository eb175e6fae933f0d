"""Splits the optimizer's update over the devices that split only the batch.

Without the split, all devices of the mesh's axis "data" hold the same
parameters and the same moments, and compute the same update. With the split,
each of these devices holds and updates a part. The devices gather the
parameters before they compute gradients, and then each device keeps its part of
the summed gradients. This is the method of Xu et al. 2020, "Automatic
Cross-Replica Sharding of Weight Update in Data-Parallel Training".
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.devices import sharding

# A parameter with fewer elements stays whole on each device, because a
# collective takes longer than the update. Biases and norms have fewer elements,
# and the smallest matrices of BERT-base have more.
MIN_ELEMENTS = 2**16


def splits_update(mesh: Mesh, setting: str) -> bool:
  """Returns True if the devices of a mesh split the update.

  Args:
    mesh: the mesh.
    setting: "on", "off"; or "auto", which is "on" for TPUs only. By the TPU
      compiler's estimate the update takes a third of a step of BERT-base if
      each chip computes all of it (docs/tpu.md).
  """
  if setting == "auto":
    setting = "on" if mesh.devices.flat[0].platform == "tpu" else "off"
  return setting == "on" and mesh.shape["data"] > 1


def split_over_data(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  """Returns an array's shape, with the sharding of the update.

  The mesh's axis "data" splits the array too, along the first axis of the array
  whose size allows an even split. An array without such an axis, or with fewer
  than `MIN_ELEMENTS` elements, keeps its sharding.

  Args:
    x: the shape of a parameter or of a moment, sharded as the model needs it.
  """
  mesh, partition_spec = x.sharding.mesh, list(x.sharding.spec)
  partition_spec += [None] * (x.ndim - len(partition_spec))
  if math.prod(x.shape) < MIN_ELEMENTS:
    return x
  for axis, size in enumerate(x.shape):
    mesh_axes = partition_spec[axis] or ()
    mesh_axes = (
      *((mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes),
      "data",
    )
    if size % math.prod(mesh.shape[mesh_axis] for mesh_axis in mesh_axes) == 0:
      partition_spec[axis] = mesh_axes
      new_sharding = NamedSharding(mesh, PartitionSpec(*partition_spec))
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=new_sharding)
  return x


@dataclasses.dataclass(frozen=True)
class _Parameter:
  """Says how one parameter is stored, and how the model gets it.

  Attributes:
    stored: the shape, the dtype and the sharding in the train state.
    gathered: the shape, the dtype and the sharding for the model. The dtype is
      that of the model's products.
    is_layered: True if the first axis counts layers that are gathered one by
      one. Then each gather can run while earlier layers compute.
  """

  stored: jax.ShapeDtypeStruct
  gathered: jax.ShapeDtypeStruct
  is_layered: bool

  def gather(self, x: jax.Array) -> jax.Array:
    if self.stored.sharding == self.gathered.sharding:
      return x
    # Cast before gathering, so that the devices send fewer bytes.
    return self._constrain(x.astype(self.gathered.dtype), self.gathered)

  def scatter(self, gradient: jax.Array) -> jax.Array:
    if self.stored.sharding != self.gathered.sharding:
      if not self.is_layered:
        # GPT-1's logits are made in a loop. Without this, the loop sums the
        # table's gradient over the devices in each iteration.
        gradient = self._constrain(gradient, self.gathered)
      gradient = self._constrain(gradient, self.stored)
    return gradient.astype(self.stored.dtype)

  def _constrain(self, x: jax.Array, layout: jax.ShapeDtypeStruct) -> jax.Array:
    """Asks for the sharding of `layout`, for all layers or one by one."""
    if not self.is_layered:
      return jax.lax.with_sharding_constraint(x, layout.sharding)
    layer_partition_spec = PartitionSpec(*layout.sharding.spec[1:])
    layer_sharding = NamedSharding(layout.sharding.mesh, layer_partition_spec)
    return jnp.stack(
      [jax.lax.with_sharding_constraint(layer, layer_sharding) for layer in x]
    )


@dataclasses.dataclass(frozen=True)
class UpdateSharding:
  """Gathers the parameters of a train state, and splits their gradients.

  Attributes:
    parameters: a `_Parameter` for each parameter of the train state.
  """

  parameters: Any

  def gather(self, params: Any) -> Any:
    """Returns the train state's parameters as the model uses them.

    A kernel that the model would cast gets the dtype of the model's products
    here, so its gradient has this dtype too.
    """
    return jax.tree.map(lambda x, p: p.gather(x), params, self.parameters)

  def scatter(self, gradients: Any) -> Any:
    """Returns gradients of gathered parameters in float32, split like `params`.

    Args:
      gradients: the gradients with respect to the result of `gather`.
    """
    return jax.tree.map(lambda g, p: p.scatter(g), gradients, self.parameters)


def plan(mesh: Mesh, boxed: Any, unroll: int) -> UpdateSharding:
  """Plans how the parameters of an objective are stored and gathered.

  Args:
    mesh: the mesh.
    boxed: the shapes of the parameters, boxed with logical axis names, as
      `jax.eval_shape` of a linen `init` gives.
    unroll: the option of `models.stack.Stack`; 0 means that the loop over
      layers is unrolled.
  """

  def plan_parameter(box: Any, gathered: jax.ShapeDtypeStruct) -> _Parameter:
    # Only a kernel with the axis "layers" is gathered in the dtype of products.
    # Such a kernel is used once in a step. The gradient of a kernel that
    # several layers share is a sum, which needs float32.
    has_layers = box.names[0] == "layers"
    compute_dtype = getattr(box, "compute_dtype", None) if has_layers else None
    return _Parameter(
      stored=split_over_data(gathered),
      gathered=jax.ShapeDtypeStruct(
        gathered.shape,
        compute_dtype or gathered.dtype,
        sharding=gathered.sharding,
      ),
      is_layered=has_layers and not 0 < unroll < gathered.shape[0],
    )

  shapes = sharding.with_shardings(mesh, boxed)
  return UpdateSharding(
    jax.tree.map(
      plan_parameter, boxed, shapes, is_leaf=lambda x: hasattr(x, "names")
    )
  )
