"""The train state and its initial value."""

from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.devices import sharding
from bert_jax.objectives.base import Batch, Objective


@flax.struct.dataclass
class TrainState:
  """All that changes from step to step.

  Attributes:
    step: int32, optimizer steps done.
    params: the parameters, float32.
    opt_state: the optimizer's state.
    carry: state of the objective, {} unless it has one.
  """

  step: jax.Array
  params: Any
  opt_state: Any
  carry: Any


def abstract_state(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  batch: Batch,
) -> TrainState:
  """The state's shapes and dtypes, each with its sharding; nothing is made.

  Args:
    objective: whose parameters.
    optimizer: whose state.
    mesh: of any devices, also of such as this machine lacks.
    batch: a batch, or its shapes.
  """
  return _placed(mesh, _boxed(objective, optimizer, batch))


def frozen_shapes(objective: Objective, mesh: Mesh, batch: Batch) -> Any:
  """The same of what an objective needs of a teacher; {} if it has none.

  Raises:
    ValueError: the mesh does not divide the teacher.
  """
  if objective.init_frozen is None:
    return {}
  init = objective.init_frozen
  boxed = jax.eval_shape(lambda x: init(jax.random.key(0), x), batch)
  try:
    sharding.check_sizes(mesh, boxed)
  except ValueError as e:
    raise ValueError(f"the teacher's {e}") from e
  return _placed(mesh, boxed)


def _placed(mesh: Mesh, boxed: Any) -> Any:
  """Shapes and dtypes with shardings, of a tree boxed with logical axes."""
  placed = sharding.shardings(mesh, boxed)
  # By leaves: unboxing inside a mesh would constrain what is only a shape.
  return jax.tree.unflatten(
    jax.tree.structure(placed),
    [
      jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
      for x, s in zip(
        jax.tree.leaves(boxed), jax.tree.leaves(placed), strict=True
      )
    ],
  )


def file_state(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  batch: Batch,
  vocab_size: int,
) -> TrainState:
  """`abstract_state` as files hold it: every "vocab" axis has `vocab_size`.

  Such an axis is not split where the mesh's layout pads it.
  """

  def exact(x, names):
    shape, spec = list(x.shape), list(x.sharding.spec)
    for axis, name in enumerate(names):
      if name == "vocab" and shape[axis] != vocab_size:
        shape[axis], spec[axis] = vocab_size, None
    place = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=place)

  names = nn.get_partition_spec(_boxed(objective, optimizer, batch))
  abstract = abstract_state(objective, optimizer, mesh, batch)
  return jax.tree.map(exact, abstract, names)


def vocabulary_axes(objective: Objective, batch: Batch) -> dict[str, int]:
  """Finds the parameters with an entry for each piece of the vocabulary.

  Args:
    objective: the objective that has the parameters.
    batch: a batch, or its shapes.

  Returns:
    Path, joined by "/", -> the axis of the vocabulary, for these parameters.
  """
  boxed = jax.eval_shape(lambda x: objective.init(jax.random.key(0), x), batch)
  flat = traverse_util.flatten_dict(nn.get_partition_spec(boxed), sep="/")
  return {
    p: [*names].index("vocab") for p, names in flat.items() if "vocab" in names
  }


def resize(tree: Any, layout: Any) -> Any:
  """Cuts arrays, or fills them up with zeros, to the shapes of `layout`.

  Args:
    tree: arrays, as in memory or as in a file.
    layout: arrays or their shapes, with shardings. Those of equal shape in
      `tree` are returned as they are.
  """

  def change(x, wanted):
    if x.shape == wanted.shape:
      return x
    make = jax.jit(cut_or_fill, static_argnums=1, out_shardings=wanted.sharding)
    return make(x, wanted.shape)

  return jax.tree.map(change, tree, layout)


def cut_or_fill(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """An array without its ends, or with zeros after them."""
  x = x[tuple(slice(size) for size in shape)]
  more = [(0, size - had) for size, had in zip(shape, x.shape, strict=True)]
  return jnp.pad(x, more)


def init_state(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  seed: int,
  batch: Batch,
) -> TrainState:
  """Draws the initial state, each array made on the devices that hold it.

  Args:
    objective: whose parameters.
    optimizer: whose state.
    mesh: where; enter it with `sharding.use_mesh` first.
    seed: of the parameters.
    batch: a batch, or its shapes.
  """
  init = _init(objective, optimizer)
  abstract = abstract_state(objective, optimizer, mesh, batch)
  make = jax.jit(
    lambda key: nn.unbox(init(key, jax.tree.map(_zeros, batch))),
    out_shardings=jax.tree.map(lambda x: x.sharding, abstract),
  )
  return make(jax.random.key(seed))


def _init(
  objective: Objective, optimizer: optax.GradientTransformation
) -> Callable[[jax.Array, Batch], TrainState]:
  """Returns (key, batch) -> the initial state, boxed with logical axes."""

  def init(key, batch):
    params = objective.init(key, batch)
    step = jnp.zeros((), jnp.int32)
    carry = objective.carry(batch)
    return TrainState(step, params, optimizer.init(params), carry)

  return init


def _boxed(
  objective: Objective, optimizer: optax.GradientTransformation, batch: Batch
) -> TrainState:
  """Shapes of the initial state, boxed with logical axes."""
  init = _init(objective, optimizer)
  # The key is made inside: the mesh's devices may be unable to make one.
  return jax.eval_shape(lambda x: init(jax.random.key(0), x), batch)


def _zeros(x: Any) -> jax.Array:
  return jnp.zeros(x.shape, x.dtype)
