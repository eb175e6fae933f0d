"""One Checkpointer: train state, data position, metadata; strict restore."""

import os
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

FORMAT_VERSION = 1
METRIC = "heldout_loss"


def _describe(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
  """{path: (shape, dtype)} of a tree of arrays, shapes or orbax metadata."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    "/".join(str(getattr(k, "key", getattr(k, "name", k))) for k in path): (
      tuple(leaf.shape),
      str(leaf.dtype),
    )
    for path, leaf in leaves
  }


def check_same(saved: Any, wanted: Any, source: str) -> None:
  """Raises ValueError unless both trees have the same paths, shapes, dtypes.

  Orbax's partial restore and `strict=False` would silently keep, pad or cut
  what does not match.
  """
  saved, wanted = _describe(saved), _describe(wanted)
  problems = (
    [f"{path} is missing" for path in wanted if path not in saved]
    + [f"{path} is not in the model" for path in saved if path not in wanted]
    + [
      f"{path} is {saved[path]}, the model's {wanted[path]}"
      for path in wanted
      if path in saved and saved[path] != wanted[path]
    ]
  )
  if problems:
    # The optimizer's moments only repeat what is wrong with the parameters.
    problems.sort(key=lambda problem: problem.startswith("opt_state"))
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    raise ValueError(
      f"{source} does not fit this model: {'; '.join(problems[:3])}{more}."
    )


class Checkpointer:
  """Checkpoints of one run, newest and best both kept, saved in background.

  A checkpoint is written beside and renamed when whole: a kill at any moment
  leaves the ones before it.
  """

  def __init__(self, workdir: str, keep: int = 2, keep_best: int = 1):
    """Opens `WORKDIR/checkpoints`.

    Args:
      workdir: the run's folder.
      keep: how many of the newest stay.
      keep_best: how many of those with the lowest held-out loss stay.
    """
    if keep < 1:
      raise ValueError(f"checkpoint.keep={keep}: must be at least 1.")
    self.path = os.path.join(os.path.abspath(workdir), "checkpoints")
    policies = checkpoint_managers
    best = policies.BestN(
      get_metric_fn=lambda metrics: metrics[METRIC],
      reverse=True,
      n=keep_best,
      keep_checkpoints_without_metrics=False,
    )
    self._manager = ocp.CheckpointManager(
      self.path,
      options=ocp.CheckpointManagerOptions(
        preservation_policy=policies.AnyPreservationPolicy(
          [policies.LatestN(keep), best]
        ),
        best_fn=lambda metrics: metrics[METRIC],
        best_mode="min",
        enable_async_checkpointing=True,
        cleanup_tmp_directories=True,
      ),
      item_handlers={
        "state": ocp.StandardCheckpointHandler(),
        "meta": ocp.JsonCheckpointHandler(),
      },
    )

  @classmethod
  def of_run(cls, workdir: str) -> "Checkpointer":
    """Opens the checkpoints of a run to read them.

    Raises:
      ValueError: there are none.
    """
    if not os.path.isdir(os.path.join(workdir, "checkpoints")):
      raise ValueError(f"{workdir}: not the --workdir of a run.")
    checkpointer = cls(workdir)
    if checkpointer.latest_step() is None:
      raise ValueError(f"{workdir}: the run has saved no checkpoint yet.")
    return checkpointer

  def latest_step(self) -> int | None:
    return self._manager.latest_step()

  def best_step(self) -> int | None:
    return self._manager.best_step()

  def save(
    self, step: int, state: Any, meta: dict[str, Any], heldout: float | None
  ) -> None:
    """Starts a save; waits first for the one before it.

    Args:
      step: optimizer steps done.
      state: the train state.
      meta: JSON values: data position, log window, fingerprint, ...
      heldout: held-out loss at this step if it was measured.
    """
    self._manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        meta=ocp.args.JsonSave({"format_version": FORMAT_VERSION, **meta}),
      ),
      metrics=None if heldout is None else {METRIC: float(heldout)},
      force=True,
    )

  def _meta(self, step: int) -> dict[str, Any]:
    restored = self._manager.restore(
      step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
    )
    meta = restored["meta"]
    if meta["format_version"] != FORMAT_VERSION:
      raise ValueError(
        f"{self.path}/{step} has format version {meta['format_version']}, this"
        f" program reads {FORMAT_VERSION}; use the program that wrote it."
      )
    return meta

  def _saved_state(self, step: int) -> Any:
    return self._manager.item_metadata(step)["state"]

  def restore(self, step: int, state: Any) -> tuple[Any, dict[str, Any]]:
    """Restores a train state in full.

    Args:
      step: one of the checkpoints.
      state: the wanted tree: shapes, dtypes, shardings (its values are unused).

    Returns:
      The state and the metadata.

    Raises:
      ValueError: any path, shape or dtype differs, or a newer format.
    """
    meta = self._meta(step)
    source = os.path.join(self.path, str(step))
    check_same(self._saved_state(step), vars(state), source)
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    restored = self._manager.restore(
      step,
      args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)),
    )
    return restored["state"], meta

  def restore_params(self, step: int | None, params: Any) -> Any:
    """Restores the parameters alone, as strictly as `restore`.

    Args:
      step: one of the checkpoints, None for the newest.
      params: the wanted tree: shapes, dtypes, shardings.
    """
    step = self.latest_step() if step is None else step
    if step not in self._manager.all_steps():
      raise ValueError(
        f"{self.path} has no step {step}, only"
        f" {', '.join(map(str, self._manager.all_steps()))}."
      )
    self._meta(step)
    source = os.path.join(self.path, str(step))
    check_same(self._saved_state(step)["params"], params, source)
    item = {"params": jax.tree.map(ocp.utils.to_shape_dtype_struct, params)}
    args = ocp.args.PyTreeRestore(
      item,
      restore_args=ocp.checkpoint_utils.construct_restore_args(item),
      partial_restore=True,
    )
    with ocp.CheckpointManager(
      self.path, item_handlers={"state": ocp.PyTreeCheckpointHandler()}
    ) as manager:
      restored = manager.restore(step, args=ocp.args.Composite(state=args))
    return restored["state"]["params"]

  def wait(self) -> None:
    """Blocks until the last save is whole; raises what it raised."""
    self._manager.wait_until_finished()

  def close(self) -> None:
    self._manager.close()

  def __enter__(self) -> "Checkpointer":
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()
