"""Copies a state into the arrays of a checkpoint, and computes checksums."""

from concurrent.futures import Executor
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.devices import compile_ahead
from bert_jax.messages import divergence_remedy
from bert_jax.training.state import TrainState, cut_or_pad
from bert_jax.weights import checkpoint


class SnapshotMaker:
  """Makes the arrays that a checkpoint saves from a train state.

  One jitted program makes the arrays and their checksums, and checks that all
  parameters are finite. The program is compiled in the background while the run
  begins, so that the first checkpoint does not wait for the compiler.
  """

  def __init__(
    self, pool: Executor, state: TrainState, layout: TrainState, mesh: Mesh
  ):
    """Begins to compile in the background.

    In a run of several processes, nothing is compiled before the first
    `__call__`.

    Args:
      pool: the threads that compile, from `compile_ahead.compile_threads`.
      state: a state; all states that are saved must have the shapes, dtypes and
        shardings of this state.
      layout: the shapes and shardings of the arrays in a checkpoint, from
        `state.checkpoint_layout`.
      mesh: the mesh of the arrays.
    """
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(layout), strict=True)
    self._resized_leaf_layouts = {
      index: leaf_layout
      for index, (x, leaf_layout) in enumerate(pairs)
      if x.shape != leaf_layout.shape
    }
    shardings = {
      index: leaf_layout.sharding
      for index, leaf_layout in self._resized_leaf_layouts.items()
    }
    self._jitted = jax.jit(
      self._resize_and_checksum, out_shardings=(shardings, None, None)
    )
    shapes = jax.tree.map(compile_ahead.shape_of, state)
    self._program = compile_ahead.begin_compilation(
      pool, self._jitted, mesh, shapes
    )

  def _resize_and_checksum(
    self, state: TrainState
  ) -> tuple[dict[int, jax.Array], list[jax.Array], jax.Array]:
    """Makes the arrays with a different shape in a checkpoint, and checksums.

    Returns:
      {index of a leaf: its array} for the leaves whose shapes in the state and
      in a checkpoint differ; the checksum of each array of the checkpoint; and
      a boolean scalar, which is True if all parameters are finite.
    """
    leaves = jax.tree.leaves(state)
    resized_arrays = {
      index: cut_or_pad(leaves[index], leaf_layout.shape)
      for index, leaf_layout in self._resized_leaf_layouts.items()
    }
    arrays = checkpoint.leaves_by_path(
      vars(self._with_resized_arrays(state, resized_arrays))
    )
    checksums = [checkpoint.checksum(x) for x in arrays.values()]
    are_finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(state.params)]
    return resized_arrays, checksums, jnp.stack(are_finite).all()

  def _with_resized_arrays(
    self, state: TrainState, resized_arrays: dict[int, Any]
  ) -> TrainState:
    leaves, structure = jax.tree.flatten(state)
    leaves = [resized_arrays.get(index, x) for index, x in enumerate(leaves)]
    return jax.tree.unflatten(structure, leaves)

  def __call__(
    self, step: int, state: TrainState
  ) -> tuple[TrainState, dict[str, int]]:
    """Returns the state with the checkpoint's shapes, and {path: checksum}.

    Raises:
      FloatingPointError: a parameter is not finite. The loss of this step does
        not show it, because the loss is computed before the update.
    """
    program = self._program.result() if self._program else self._jitted
    resized_arrays, checksums, are_all_finite = program(state)
    if not are_all_finite:
      raise FloatingPointError(
        f"step {step}: the update gave parameters that are not finite. Earlier"
        f" checkpoints are kept; {divergence_remedy()}."
      )
    file_state = self._with_resized_arrays(state, resized_arrays)
    paths = checkpoint.leaves_by_path(vars(file_state))
    checksum_numbers = map(int, jax.device_get(checksums))
    return file_state, dict(zip(paths, checksum_numbers, strict=True))
