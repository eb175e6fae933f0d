"""One Checkpointer: train state, data position, metadata; strict restore."""

import contextlib
import glob
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from bert_jax import hosts, integrity

FORMAT_VERSION = 1
METRIC = "heldout_loss"


class Mismatch(ValueError):
  """A whole checkpoint that is not for this model or program."""


class Damaged(ValueError):
  """A checkpoint that cannot be read, or reads otherwise than it was saved."""


def _describe(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
  """{path: (shape, dtype)} of a tree of arrays, shapes or orbax metadata."""
  return {
    path: (tuple(leaf.shape), str(leaf.dtype))
    for path, leaf in integrity.paths(tree).items()
  }


def check_same(saved: Any, wanted: Any, source: str) -> None:
  """Raises Mismatch unless both trees have the same paths, shapes, dtypes.

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
    raise Mismatch(
      f"{source} does not fit this model: {'; '.join(problems[:3])}{more}."
    )


class Checkpointer:
  """Checkpoints of one run, newest and best both kept, saved in background.

  A checkpoint is written beside and renamed when whole: a kill at any moment
  leaves the ones before it.
  """

  def __init__(
    self,
    workdir: str,
    keep: int = 2,
    keep_best: int = 1,
    read_only: bool = False,
  ):
    """Opens `WORKDIR/checkpoints`.

    Args:
      workdir: the run's folder.
      keep: how many of the newest stay.
      keep_best: how many of those with the lowest held-out loss stay.
      read_only: change nothing in the folder; its run may be going on.
    """
    if keep < 1:
      raise ValueError(f"checkpoint.keep={keep}: must be at least 1.")
    self.path = os.path.join(os.path.abspath(workdir), "checkpoints")
    self._read_only = read_only
    # Process 0 moves what is damaged before any other looks.
    if jax.process_index() == 0 or read_only:
      self._check_metrics()
    if not read_only:
      hosts.wait_for_all("checkpoints")
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
        cleanup_tmp_directories=not read_only,
        read_only=read_only,
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
    checkpointer = cls(workdir, read_only=True)
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
    meta = {
      "format_version": FORMAT_VERSION,
      "checksums": integrity.checksums(vars(state)),
      **meta,
    }
    with self._saving():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state),
          meta=ocp.args.JsonSave(integrity.seal(meta)),
        ),
        metrics=None if heldout is None else {METRIC: float(heldout)},
        force=True,
      )

  @contextlib.contextmanager
  def _saving(self) -> Iterator[None]:
    """Gives whatever stopped a save, this one or the one before, a name.

    Raises:
      OSError: the disk is full, or not to be written.
    """
    try:
      yield
    except Exception as e:
      text = str(e)
      reason = text.strip().split("\n")[0]
      if "No space left" in text or "RESOURCE_EXHAUSTED" in text:
        reason = "no space left on the disk"
      raise OSError(
        f"{self.path}: a checkpoint could not be saved ({reason}); those before"
        " it are kept. Free the disk and give the same command again."
      ) from e

  def _read(self, step: int, read: Callable[[], Any]) -> Any:
    """Calls `read`; what it raises but a Mismatch means a damaged checkpoint.

    Orbax, tensorstore and the JSON reader raise errors of many types.
    """
    try:
      return read()
    except (Mismatch, Damaged):
      raise
    except Exception as e:
      reason = str(e).strip().split("\n")[0][:200] or type(e).__name__
      raise Damaged(f"{self.path}/{step} is damaged: {reason}") from e

  def _meta(self, step: int) -> dict[str, Any]:
    restored = self._manager.restore(
      step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
    )
    meta = restored["meta"]
    if not integrity.is_sealed(meta):
      raise Damaged(f"{self.path}/{step}: its metadata are damaged.")
    if meta["format_version"] != FORMAT_VERSION:
      raise Mismatch(
        f"{self.path}/{step} has format version {meta['format_version']}, this"
        f" program reads {FORMAT_VERSION}; use the program that wrote it."
      )
    return meta

  def _check(self, step: int, meta: dict[str, Any], tree: Any) -> None:
    """Raises Damaged if an array differs from what was saved."""
    changed = integrity.changed(meta["checksums"], tree)
    if changed:
      raise Damaged(f"{self.path}/{step}: {changed[0]} is damaged.")

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
      Mismatch: any path, shape or dtype differs, or another format.
      Damaged: not what was saved.
    """

    def read():
      meta = self._meta(step)
      source = os.path.join(self.path, str(step))
      check_same(self._saved_state(step), vars(state), source)
      abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
      restored = self._manager.restore(
        step,
        args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)),
      )["state"]
      self._check(step, meta, vars(restored))
      return restored, meta

    return self._read(step, read)

  def restore_newest(self, state: Any) -> tuple[Any, dict[str, Any], int]:
    """Restores the newest whole checkpoint; damaged ones are moved aside.

    Returns:
      The state, the metadata, the step.

    Raises:
      ValueError: none is whole, or they are of another model or format.
    """
    return self._newest(lambda step: self.restore(step, state))

  def _newest(self, restore: Callable[[int], tuple]) -> tuple:
    errors: dict[int, ValueError] = {}
    for step in sorted(self._manager.all_steps(), reverse=True):
      try:
        result = restore(step)
      except (Mismatch, Damaged) as e:
        errors[step] = e
        continue
      for newer, error in errors.items():
        print(f"{error} Using step {step}.", flush=True)
        self._move_aside(newer)
      if errors:
        self._manager.reload()
      return (*result, step)
    # Damage can look like another model; then an older checkpoint fitted.
    for error in errors.values():
      if isinstance(error, Mismatch):
        raise error
    raise ValueError(
      f"no checkpoint in {self.path} is whole"
      f" ({'; '.join(map(str, errors.values()))}). Start in a new --workdir."
    )

  def _move_aside(self, step: int) -> None:
    """Moves a damaged checkpoint out of the way of a new one."""
    if jax.process_index() == 0 and not self._read_only:
      aside = os.path.join(os.path.dirname(self.path), "damaged")
      os.makedirs(aside, exist_ok=True)
      target = os.path.join(aside, f"{step}-{time.time_ns()}")
      os.rename(os.path.join(self.path, str(step)), target)
      print(f"It is kept in {target}.", flush=True)

  def _check_metrics(self) -> None:
    """Moves checkpoints aside whose metrics are damaged.

    Orbax reads those of all checkpoints when it opens the folder, and stops at
    one that is no JSON.
    """
    for path in sorted(
      glob.glob(os.path.join(self.path, "*", "metrics", "metrics"))
    ):
      step = os.path.relpath(path, self.path).split(os.sep)[0]
      try:
        with open(path, encoding="utf-8") as f:
          whole = math.isfinite(json.load(f)[METRIC])
      except (ValueError, KeyError, TypeError):
        whole = False
      if not whole and step.isdigit():
        message = f"{self.path}/{step} is damaged: its metrics."
        if self._read_only:
          raise Damaged(message)
        print(message, flush=True)
        self._move_aside(int(step))

  def restore_params(self, step: int | None, params: Any) -> tuple[Any, int]:
    """Restores the parameters alone, as strictly as `restore`.

    Args:
      step: one of the checkpoints, None for the newest whole one.
      params: the wanted tree: shapes, dtypes, shardings.

    Returns:
      The parameters and their step.
    """

    def read(step):
      meta = self._meta(step)
      source = os.path.join(self.path, str(step))
      check_same(self._saved_state(step)["params"], params, source)
      restored = self._restore_params(step, params)
      self._check(step, meta, {"params": restored})
      return (restored,)

    def restore(step):
      return self._read(step, lambda: read(step))

    if step is None:
      return self._newest(restore)
    if step not in self._manager.all_steps():
      raise ValueError(
        f"{self.path} has no step {step}, only"
        f" {', '.join(map(str, self._manager.all_steps()))}."
      )
    return (*restore(step), step)

  def _restore_params(self, step: int, params: Any) -> Any:
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
    with self._saving():
      self._manager.wait_until_finished()

  def close(self) -> None:
    self._manager.close()

  def __enter__(self) -> "Checkpointer":
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()
