"""The train state and its initial value."""

from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from bert_jax import sharding
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
  init = _init(objective, optimizer)
  # The key is made inside: the mesh's devices may be unable to make one.
  boxed = jax.eval_shape(lambda x: init(jax.random.key(0), x), batch)
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
    return TrainState(step, params, optimizer.init(params), {})

  return init


def _zeros(x: Any) -> jax.Array:
  return jnp.zeros(x.shape, x.dtype)
