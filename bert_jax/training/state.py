"""Defines the train state and its initial value."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct, traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.devices import sharding, update_sharding
from bert_jax.objectives.base import Batch, Objective

# A batch, or only the shapes of its arrays.
BatchOrShapes = Batch | sharding.BatchShapes


class TrainState(struct.PyTreeNode):
  """Holds everything that changes from step to step.

  Attributes:
    step: int32 scalar, the number of optimizer steps done.
    params: the parameters, float32.
    opt_state: the optimizer's state.
    carry: what the objective hands from step to step, such as ELMo's LSTM
      states; {} for most objectives.
  """

  step: jax.Array
  params: Any
  opt_state: Any
  carry: Any


def state_shapes(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  batch: BatchOrShapes,
  splits_update: bool = False,
) -> TrainState:
  """Returns the state as shapes and dtypes with shardings, without arrays.

  Args:
    objective: the objective; its parameters are a part of the state.
    optimizer: the optimizer; its moments are a part of the state.
    mesh: the mesh; its devices need not exist on this machine.
    batch: a batch, or its shapes.
    splits_update: True if the devices split the update; then the step needs
      `update_sharding.plan`.
  """
  return _with_shardings(
    mesh, _boxed_shapes(objective, optimizer, batch), splits_update
  )


def _with_shardings(
  mesh: Mesh, boxed_shapes: TrainState, splits_update: bool
) -> TrainState:
  """Returns the state's shapes with shardings; see `state_shapes`."""
  shapes = sharding.with_shardings(mesh, boxed_shapes)
  if not splits_update:
    return shapes
  params, opt_state = jax.tree.map(
    update_sharding.split_over_data, (shapes.params, shapes.opt_state)
  )
  return shapes.replace(params=params, opt_state=opt_state)


def teacher_shapes(
  objective: Objective, mesh: Mesh, batch: BatchOrShapes
) -> Any:
  """Returns the teacher's parameters as shapes and dtypes with shardings.

  Returns {} for an objective without a teacher. For the arguments see
  `state_shapes`.

  Raises:
    ValueError: the mesh does not divide the teacher's axes.
  """
  if objective.init_teacher is None:
    return {}
  init = objective.init_teacher
  boxed_shapes = jax.eval_shape(lambda x: init(jax.random.key(0), x), batch)
  try:
    sharding.check_parameter_sizes(mesh, boxed_shapes)
  except ValueError as e:
    raise ValueError(f"the teacher's {e}") from e
  return sharding.with_shardings(mesh, boxed_shapes)


def checkpoint_layout(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  batch: BatchOrShapes,
  vocab_size: int,
  splits_update: bool = False,
) -> TrainState:
  """Returns what `state_shapes` returns, but with a checkpoint's shapes.

  In memory, the "vocab" axes may be padded to a length that the mesh divides.
  In a checkpoint, these axes have `vocab_size` entries, and an axis that is
  padded in memory is not split over devices.
  """

  def without_padding(
    x: jax.ShapeDtypeStruct, names: tuple[str | None, ...]
  ) -> jax.ShapeDtypeStruct:
    shape, mesh_axes = list(x.shape), list(x.sharding.spec)
    for axis, name in enumerate(names):
      if name == "vocab" and shape[axis] != vocab_size:
        shape[axis], mesh_axes[axis] = vocab_size, None
    unpadded_sharding = NamedSharding(mesh, PartitionSpec(*mesh_axes))
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=unpadded_sharding)

  boxed_shapes = _boxed_shapes(objective, optimizer, batch)
  names = nn.get_partition_spec(boxed_shapes)
  return jax.tree.map(
    without_padding, _with_shardings(mesh, boxed_shapes, splits_update), names
  )


def vocabulary_axes(
  objective: Objective, batch: BatchOrShapes
) -> dict[str, int]:
  """Finds the parameters that have one entry for each vocabulary piece.

  Args:
    objective: the objective, whose parameters are searched.
    batch: a batch, or its shapes.

  Returns:
    {path of the parameter, joined by "/": its vocabulary axis}.
  """
  boxed_shapes = jax.eval_shape(
    lambda x: objective.init(jax.random.key(0), x), batch
  )
  names_by_path = traverse_util.flatten_dict(
    nn.get_partition_spec(boxed_shapes), sep="/"
  )
  return {
    path: list(names).index("vocab")
    for path, names in names_by_path.items()
    if "vocab" in names
  }


def resize_to_layout(tree: Any, layout: Any) -> Any:
  """Cuts arrays, or pads them with zeros, to the shapes of `layout`.

  Args:
    tree: arrays, with the shapes that they have in memory or in a checkpoint.
    layout: the same tree of arrays or shapes, with shardings. An array that
      already has the shape in `layout` is returned unchanged.
  """

  def resize(x: jax.Array, target: jax.ShapeDtypeStruct) -> jax.Array:
    if x.shape == target.shape:
      return x
    jitted_resize = jax.jit(
      cut_or_pad, static_argnums=1, out_shardings=target.sharding
    )
    return jitted_resize(x, target.shape)

  return jax.tree.map(resize, tree, layout)


def cut_or_pad(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Cuts an array at the end of each axis, or pads it there with zeros."""
  x = x[tuple(slice(size) for size in shape)]
  padding = [
    (0, new_size - old_size)
    for new_size, old_size in zip(shape, x.shape, strict=True)
  ]
  return jnp.pad(x, padding)


def init_state(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  seed: int,
  batch: BatchOrShapes,
  splits_update: bool = False,
) -> TrainState:
  """Draws the initial state; each array is made on the devices that hold it.

  Args:
    objective: the objective; its parameters are a part of the state.
    optimizer: the optimizer; its moments are a part of the state.
    mesh: the mesh; enter the mesh with `sharding.use_mesh` first.
    seed: the seed of the initial parameters.
    batch: a batch, or its shapes.
    splits_update: see `state_shapes`.
  """
  init = _make_init(objective, optimizer)
  shapes = state_shapes(objective, optimizer, mesh, batch, splits_update)
  jitted_init = jax.jit(
    lambda key: nn.unbox(init(key, jax.tree.map(_zeros_like, batch))),
    out_shardings=jax.tree.map(lambda x: x.sharding, shapes),
  )
  return jitted_init(jax.random.key(seed))


def _make_init(
  objective: Objective, optimizer: optax.GradientTransformation
) -> Callable[[jax.Array, Batch], TrainState]:
  """Returns (key, batch) -> the initial state, in boxes.

  A box of flax holds an array and the names of its logical axes.
  """

  def init(key: jax.Array, batch: Batch) -> TrainState:
    params = objective.init(key, batch)
    step = jnp.zeros((), jnp.int32)
    carry = objective.init_carry(batch)
    return TrainState(step, params, optimizer.init(params), carry)

  return init


def _boxed_shapes(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  batch: BatchOrShapes,
) -> TrainState:
  """Returns the shapes of the initial state, in boxes as in `_make_init`."""
  init = _make_init(objective, optimizer)
  # Make the key inside the function. There it is only traced, so it needs no
  # device: the devices of the mesh may not exist on this machine.
  return jax.eval_shape(lambda x: init(jax.random.key(0), x), batch)


def _zeros_like(x: Any) -> jax.Array:
  return jnp.zeros(x.shape, x.dtype)
