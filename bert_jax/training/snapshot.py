"""The arrays of a state that a checkpoint holds, copied by one program."""

from concurrent.futures import Executor
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.devices import compile_ahead
from bert_jax.training.state import TrainState, cut_or_fill
from bert_jax.weights import checkpoint


class Snapshots:
  """Turns states into what files hold, with checksums.

  All is one program, compiled in the background while a run begins, so that
  its first checkpoint does not wait for the compiler.
  """

  def __init__(
    self, pool: Executor, state: TrainState, layout: TrainState, mesh: Mesh
  ):
    """Begins to compile; with several processes, at the first call.

    Args:
      pool: the threads that compile, `compile_ahead.threads`.
      state: as all states to come: shapes, dtypes, shardings.
      layout: the same as files have it; see `state.resize`.
      mesh: the mesh of the arrays.
    """
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(layout), strict=True)
    self._changed = {
      number: wanted
      for number, (x, wanted) in enumerate(pairs)
      if x.shape != wanted.shape
    }
    places = {number: x.sharding for number, x in self._changed.items()}
    self._jitted = jax.jit(self._make, out_shardings=(places, None, None))
    shapes = jax.tree.map(compile_ahead.shape_of, state)
    self._program = compile_ahead.begin(pool, self._jitted, mesh, shapes)

  def _make(self, state: TrainState) -> tuple[Any, list[Any], jax.Array]:
    """Arrays of another shape in files; checksums; whether all is finite."""
    leaves = jax.tree.leaves(state)
    changed = {
      number: cut_or_fill(leaves[number], wanted.shape)
      for number, wanted in self._changed.items()
    }
    named = checkpoint.paths(vars(self._in_file(state, changed)))
    sums = [checkpoint.checksum(x) for x in named.values()]
    finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(state.params)]
    return changed, sums, jnp.stack(finite).all()

  def _in_file(self, state: TrainState, changed: dict[int, Any]) -> TrainState:
    leaves, structure = jax.tree.flatten(state)
    leaves = [changed.get(number, x) for number, x in enumerate(leaves)]
    return jax.tree.unflatten(structure, leaves)

  def __call__(
    self, step: int, state: TrainState
  ) -> tuple[TrainState, dict[str, int]]:
    """The state as files hold it, and its checksums by path.

    Raises:
      FloatingPointError: parameters are not finite. A step's loss and gradient
        are those of the parameters before it.
    """
    program = self._program.result() if self._program else self._jitted
    changed, sums, finite = program(state)
    if not finite:
      raise FloatingPointError(
        f"step {step}: it gave parameters that are not finite. The checkpoints"
        " before it are kept; lower schedule.peak or lengthen schedule.warmup"
        " in a new --workdir."
      )
    in_file = self._in_file(state, changed)
    names = checkpoint.paths(vars(in_file))
    sums = map(int, jax.device_get(sums))
    return in_file, dict(zip(names, sums, strict=True))
