"""The train state and its initial value."""

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

  def init(key, batch):
    params = objective.init(key, batch)
    step = jnp.zeros((), jnp.int32)
    return TrainState(step, params, optimizer.init(params), {})

  key = jax.random.key(seed)
  boxed = jax.eval_shape(init, key, batch)
  make = jax.jit(
    lambda key: nn.unbox(init(key, jax.tree.map(_zeros, batch))),
    out_shardings=sharding.shardings(mesh, boxed),
  )
  return make(key)


def _zeros(x: Any) -> jax.Array:
  return jnp.zeros(x.shape, x.dtype)
