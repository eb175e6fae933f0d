"""Saves and restores the train states of a run, with their metadata."""

import contextlib
import errno
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from bert_jax import files, messages
from bert_jax.devices import hosts
from bert_jax.devices.xla_errors import RESOURCE_EXHAUSTED, has_status
from bert_jax.files import add_checksum, has_valid_checksum, write_atomically
from bert_jax.messages import DamagedFile, UserError, note, say
from bert_jax.text import open_vocabulary
from bert_jax.weights import run_config

FORMAT_VERSION = 1
METRIC_KEY = "heldout_loss"
PHASE_KEY = "phase"
# The type of the content that is read from a checkpoint: a state, parameters or
# metadata.
Content = TypeVar("Content")
# Parts of the paths RUN@best and RUN@STEP; see `split_path`.
STEP_SEPARATOR, BEST = "@", "best"


class Mismatch(UserError):
  """An error: an undamaged checkpoint does not fit this model or program."""


def split_path(path: str) -> tuple[str, str | None]:
  """Splits RUN@best or RUN@STEP into the run's folder and its checkpoint.

  Args:
    path: any path or name. A path that exists is not split, even if it has an
      @ in it.

  Returns:
    The folder, and the checkpoint's name: "best", the digits of a step, or None
    for the newest checkpoint.

  Raises:
    UserError: the text before the @ is a run's folder, but the text after the @
      is neither "best" nor digits.
  """
  run, separator, name = path.rpartition(STEP_SEPARATOR)
  if not separator or epath.Path(path).exists():
    return path, None
  if name == BEST or (name.isascii() and name.isdigit()):
    return run, name
  if (epath.Path(run) / "checkpoints").is_dir():
    raise UserError(
      f"there is no folder {path}; write {run}@best, or {run}@ and the step of"
      " a checkpoint in digits."
    )
  return path, None


def has_checkpoint(workdir: str) -> bool:
  """Returns True if a run's folder has a checkpoint, even a damaged one."""
  folder = epath.Path(workdir) / "checkpoints"
  return folder.is_dir() and any(
    file.name.isdigit() for file in folder.iterdir()
  )


def _rank_key(metrics: dict[str, float]) -> tuple[float, float]:
  """Returns a key that sorts the best checkpoint first.

  Checkpoints of a later phase are better. Within a phase, the checkpoint with
  the lowest held-out loss is best.
  """
  return -metrics.get(PHASE_KEY, 0), metrics[METRIC_KEY]


@contextlib.contextmanager
def _read_only_warning_hidden() -> Iterator[None]:
  """Hides orbax's warning that a folder is opened to be read only.

  A model is opened to be read only on purpose: its run may still be training,
  so nothing in the run's folder may change.
  """

  def is_shown(record: logging.LogRecord) -> bool:
    return record.msg != "Given directory is read only=%s"

  logger = logging.getLogger("absl")
  logger.addFilter(is_shown)
  try:
    yield
  finally:
    logger.removeFilter(is_shown)


class Checkpointer:
  """Saves the checkpoints of one run in the background, and restores them.

  The newest and the best checkpoints are kept. A checkpoint is written under a
  temporary name and renamed once it is complete, so a kill at any moment leaves
  the earlier checkpoints.
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
      keep: the number of newest checkpoints to keep.
      keep_best: the number of best checkpoints to keep, by held-out loss.
        Losses of different phases cannot be compared, since their rows have
        different lengths. So a checkpoint of a later phase always ranks before
        a checkpoint of an earlier phase.
      read_only: if True, nothing in the folder is changed, because the run may
        still be training.

    Raises:
      UserError: `keep` is below 1, or the path of the folder is a file.
      DamagedFile: `read_only` is True, and the metrics of a checkpoint are
        damaged.
    """
    if keep < 1:
      raise UserError(f"checkpoint.keep={keep} must be at least 1.")
    folder = epath.Path(workdir)
    folder = folder if folder.is_absolute() else folder.absolute()
    self.path = folder / "checkpoints"
    self._workdir, self._read_only = workdir, read_only
    self._keep, self._keep_best = keep, keep_best
    # `for_reading` sets this to True. Then config.json and the tokenizer's
    # files are compared with each checkpoint that is read.
    self._checks_run_files = False
    # The metadata of the run, which `set_run_metadata` sets. Every checkpoint
    # stores them.
    self._run_meta: dict[str, Any] = {}
    if self.path.exists() and not self.path.is_dir():
      raise UserError(
        f"{self.path} is a file where a run has a folder; move it away, or take"
        " another workdir."
      )
    # Process 0 moves damaged checkpoints away before other processes read the
    # folder.
    if jax.process_index() == 0 or read_only:
      self._check_metrics()
    if not read_only:
      hosts.wait_for_all("checkpoints")
    # Orbax sorts the checkpoints and keeps the last ones, so reverse the order:
    # the best must be last.
    policies = checkpoint_managers
    best_policy = policies.BestN(
      get_metric_fn=_rank_key,
      reverse=True,
      n=keep_best,
      keep_checkpoints_without_metrics=False,
    )
    # With `read_only`, orbax changes two options, and warns of each change. Set
    # both options here, so that no warning is printed.
    read_only_options: dict[str, Any] = (
      dict(save_interval_steps=0, create=False) if read_only else {}
    )
    options = ocp.CheckpointManagerOptions(
      preservation_policy=policies.AnyPreservationPolicy(
        [policies.LatestN(keep), best_policy]
      ),
      best_fn=_rank_key,
      best_mode="min",
      enable_async_checkpointing=True,
      cleanup_tmp_directories=not read_only,
      read_only=read_only,
      **read_only_options,
    )
    with _read_only_warning_hidden():
      self._manager = ocp.CheckpointManager(
        self.path,
        options=options,
        item_handlers={
          "state": ocp.StandardCheckpointHandler(),
          "meta": ocp.JsonCheckpointHandler(),
        },
      )

  @classmethod
  def for_reading(cls, workdir: str) -> "Checkpointer":
    """Opens the checkpoints of a run to read them.

    Raises:
      UserError: `workdir` is not a run's folder, or has no checkpoint.
    """
    if not (epath.Path(workdir) / "checkpoints").is_dir():
      raise UserError(f"{workdir} is not the folder of a run.")
    checkpointer = cls(workdir, read_only=True)
    if checkpointer.latest_step() is None:
      raise UserError(f"{workdir}: the run has saved no checkpoint yet.")
    checkpointer._checks_run_files = True
    return checkpointer

  def set_run_metadata(
    self, config: dict[str, Any], tokenizer_files: dict[str, bytes]
  ) -> None:
    """Sets what later checkpoints store about the run.

    A program that opens the run compares these data with the files in the run's
    folder.

    Args:
      config: the content of config.json.
      tokenizer_files: name -> content of each tokenizer file.
    """
    digests = {
      name: files.content_digest(content)
      for name, content in tokenizer_files.items()
    }
    self._run_meta = {"config": config, "tokenizer": digests}

  def newest_config(self) -> dict[str, Any] | None:
    """Returns the config that the newest checkpoint was saved with.

    Returns:
      The config. None if there is no checkpoint, or the newest checkpoint
      cannot be read, or an earlier version of this program saved it without a
      config.
    """
    step = self.latest_step()
    if step is None:
      return None
    try:
      return self.read_metadata(step).get("config")
    except (Mismatch, DamagedFile):
      return None

  def latest_step(self) -> int | None:
    """Returns the step of the newest checkpoint; None without a checkpoint."""
    return self._manager.latest_step()

  def best_step(self) -> int | None:
    """Returns the step of the best checkpoint; None if none was evaluated."""
    return self._manager.best_step()

  def find_step(self, name: str | None) -> int | None:
    """Finds the step of the checkpoint that `split_path` names.

    Args:
      name: "best", the digits of a step, or None.

    Returns:
      The step. None if `name` is None, which means the newest checkpoint that
      is not damaged.

    Raises:
      UserError: the checkpoint does not exist.
    """
    if name is None:
      return None
    steps = sorted(self._manager.all_steps())
    saved_steps = ", ".join(map(str, steps))
    if name != BEST:
      if int(name) not in steps:
        raise UserError(
          f"{self.path} has no step {int(name)}, only {saved_steps}."
        )
      return int(name)
    best_step = self.best_step()
    if best_step is None:
      raise UserError(
        f"{self.path} has no best checkpoint: none of its steps"
        f" ({saved_steps}) was evaluated with a defined metric. Name one of"
        " these steps, as in RUN@STEP."
      )
    return best_step

  def save(
    self,
    step: int,
    state: Any,
    meta: dict[str, Any],
    heldout_loss: float | None,
    phase: int = 0,
    checksums: dict[str, int] | None = None,
  ) -> None:
    """Starts a save in the background, after waiting for the previous save.

    Args:
      step: the number of optimizer steps done.
      state: the train state.
      meta: key -> JSON value, such as the position in the data, the sums of
        metrics and the fingerprint.
      heldout_loss: the held-out loss at this step; None if it is not measured.
      phase: the number of the phase to which the step belongs.
      checksums: the return value of `checksums_of` for the state. If None, the
        checksums are computed here.

    Raises:
      OSError: this save or the previous save failed.
    """
    metrics = None
    if heldout_loss is not None:
      metrics = {METRIC_KEY: float(heldout_loss), PHASE_KEY: phase}
    meta = {
      "format_version": FORMAT_VERSION,
      "checksums": checksums or checksums_of(vars(state)),
      "step": step,
      "measured": metrics,
      **self._run_meta,
      **meta,
    }
    with self._reports_save_errors():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state),
          meta=ocp.args.JsonSave(add_checksum(meta)),
        ),
        metrics=metrics,
        force=True,
      )

  def add_evaluation(
    self,
    step: int,
    meta: dict[str, Any],
    heldout_loss: float | None,
    phase: int,
  ) -> None:
    """Adds the result of an evaluation to a saved checkpoint.

    If the process is killed meanwhile, the metadata file has either its old or
    its new content, never a mixture.

    Args:
      step: the step of the checkpoint. If its save still runs, this method
        waits for the end of the save.
      meta: key -> JSON value. These values replace the values that the
        checkpoint has for the keys.
      heldout_loss: the held-out loss at this step; None if it is not measured.
      phase: the number of the phase to which the step belongs.

    Raises:
      OSError: the disk is full or cannot be written.
    """
    self.wait()
    metrics = None
    with self._reports_save_errors():
      if jax.process_index() == 0:
        folder = self.path / str(step)
        if heldout_loss is not None:
          metrics = {METRIC_KEY: float(heldout_loss), PHASE_KEY: phase}
          (folder / "metrics").mkdir(parents=True, exist_ok=True)
          metrics_path = folder / "metrics" / "metrics"
          write_atomically(str(metrics_path), json.dumps(metrics))
        # Write the metadata last, because the old metadata say that this
        # evaluation is pending.
        new_meta = add_checksum(
          self._read_metadata(step) | {"measured": metrics} | meta
        )
        metadata_path = folder / "meta" / "metadata"
        write_atomically(str(metadata_path), json.dumps(new_meta))
    hosts.wait_for_all(f"evaluated {step}")
    self._manager.reload()
    self._remove_old(f"ranked after {step}")

  def _remove_old(self, barrier: str) -> None:
    """Removes all checkpoints except the newest and best, as a save does.

    Args:
      barrier: a name that no other call has, for a point where all processes
        wait for each other. Process 0 removes folders only after this point,
        when no process reads them any more.
    """
    ranked_steps = []
    steps = sorted(self._manager.all_steps())
    for step in steps:
      metrics = self._manager.metrics(step)
      if metrics is not None:
        ranked_steps.append((_rank_key(metrics), -step, step))
    best_steps = {step for *_, step in sorted(ranked_steps)[: self._keep_best]}
    hosts.wait_for_all(barrier)
    for step in steps[: -self._keep]:
      if step not in best_steps:
        self.remove(step)

  def remove(self, step: int) -> None:
    """Removes a checkpoint, after waiting until its save is complete."""
    self.wait()
    self._manager.delete(step)

  @contextlib.contextmanager
  def _reports_save_errors(self) -> Iterator[None]:
    """Raises every error of this save or the previous save as an OSError.

    Raises:
      OSError: the save failed, for example because the disk is full.
    """
    try:
      yield
    except Exception as e:
      reason = str(e).strip().split("\n")[0]
      is_full = isinstance(e, OSError) and e.errno == errno.ENOSPC
      if is_full or has_status(e, RESOURCE_EXHAUSTED):
        reason = "no space left on the disk"
      raise OSError(
        f"{self.path}: a checkpoint could not be saved ({reason}); earlier"
        " checkpoints are kept. Free the disk and give"
        f" {messages.same_call()} again."
      ) from e

  def _read_in_all_processes(
    self, step: int, read: Callable[[], Content]
  ) -> Content:
    """Calls `read` in every process; if it fails in one, it fails in all.

    Args:
      step: the step of the checkpoint, for messages.
      read: a function that does not wait for other processes.

    Raises:
      Mismatch, DamagedFile: `read` failed in at least one process. All
        processes raise the error of the first process that failed. Every error
        except Mismatch becomes a DamagedFile, because orbax and its libraries
        raise errors of many types.
    """
    error: Mismatch | DamagedFile | None = None
    try:
      content = read()
    except (Mismatch, DamagedFile) as e:
      error = e
    except Exception as e:
      # Do not repeat the library's own message: it is long, and its terms (byte
      # ranges, drivers) do not help a user.
      reason = type(e).__name__
      if isinstance(e, OSError) and e.strerror:
        reason = e.strerror
      error = DamagedFile(
        f"{self.path}/{step} is damaged: a file in it cannot be read"
        f" ({reason})."
      )
      error.__cause__ = e
    error_types = {cls.__name__: cls for cls in (Mismatch, DamagedFile)}
    report = [type(error).__name__, str(error)] if error else None
    for failure in hosts.gather(report):
      if failure:
        type_name, message = failure
        raise error_types[type_name](message) from error
    return content

  def read_metadata(self, step: int) -> dict[str, Any]:
    """Reads the metadata that a checkpoint was saved with.

    Args:
      step: the step of the checkpoint.

    Raises:
      Mismatch: the checkpoint's format version is not `FORMAT_VERSION`, or the
        run's files changed since the checkpoint was saved.
      DamagedFile: the metadata differ from what was saved.
    """
    return self._read_in_all_processes(step, lambda: self._read_metadata(step))

  def _read_metadata(self, step: int) -> dict[str, Any]:
    meta = ocp.JsonCheckpointHandler().restore(self._item_path(step, "meta"))
    if not has_valid_checksum(meta):
      raise DamagedFile(f"{self.path}/{step}: its metadata are damaged.")
    if meta["format_version"] != FORMAT_VERSION:
      raise Mismatch(
        f"{self.path}/{step} has format version {meta['format_version']}, this"
        f" program reads {FORMAT_VERSION}; use the program that wrote it."
      )
    # Checkpoints of earlier versions do not store their step.
    if meta.get("step", step) != step:
      raise DamagedFile(
        f"{self.path}/{step} is a copy of the checkpoint of step"
        f" {meta['step']}."
      )
    if self._checks_run_files:
      check_run_files(self._workdir, step, meta)
    return meta

  def _check_checksums(
    self, step: int, meta: dict[str, Any], tree: Any
  ) -> None:
    """Raises DamagedFile if an array differs from what was saved."""
    damaged_paths = changed_paths(meta["checksums"], tree)
    if damaged_paths:
      raise DamagedFile(f"{self.path}/{step}: {damaged_paths[0]} is damaged.")

  def _item_path(self, step: int, name: str) -> Any:
    """Returns the path of a checkpoint's "state" or "meta".

    Orbax's handlers take this path. Unlike orbax's manager, the handlers do not
    wait for other processes when they read.
    """
    return self._manager.directory / str(step) / name

  def _saved_shapes(self, step: int) -> Any:
    return ocp.StandardCheckpointHandler().metadata(
      self._item_path(step, "state")
    )

  def restore(self, step: int, state: Any) -> tuple[Any, dict[str, Any]]:
    """Restores a whole train state.

    Args:
      step: the step of the checkpoint.
      state: a state with the tree, shapes and dtypes of the saved state. The
        returned state gets the shardings of this state. The values of this
        state are not used.

    Returns:
      The state and the metadata.

    Raises:
      Mismatch: a path, shape, dtype or format version differs.
      DamagedFile: an array or the metadata differ from what was saved.
    """

    def read() -> tuple[Any, dict[str, Any]]:
      meta = self._read_metadata(step)
      source = str(self.path / str(step))
      check_same_shapes(self._saved_shapes(step), vars(state), source)
      abstract_state = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
      restored_state = ocp.StandardCheckpointHandler().restore(
        self._item_path(step, "state"),
        args=ocp.args.StandardRestore(abstract_state),
      )
      return restored_state, meta

    restored_state, meta = self._read_in_all_processes(step, read)
    self._read_in_all_processes(
      step, lambda: self._check_checksums(step, meta, vars(restored_state))
    )
    return restored_state, meta

  def restore_newest(self, state: Any) -> tuple[Any, dict[str, Any], int]:
    """Restores the newest checkpoint that is undamaged in every process.

    The later checkpoints, which could not be restored, are moved aside and
    reported.

    Args:
      state: see `restore`.

    Returns:
      The state, the metadata, the step.

    Raises:
      UserError: all checkpoints are damaged, or do not fit the state.
    """
    (restored_state, meta), step = self._restore_newest(
      lambda s: self.restore(s, state)
    )
    # If the run was killed after a save, old checkpoints may be left that this
    # save would have removed.
    self._remove_old("ranked after the restart")
    return restored_state, meta, step

  def _restore_newest(
    self, restore: Callable[[int], Content]
  ) -> tuple[Content, int]:
    """Restores the newest undamaged checkpoint; returns its content and step.

    Newer checkpoints are moved aside.
    """
    errors: dict[int, ValueError] = {}
    # All processes use process 0's list, because a shared file system may show
    # them different files.
    for step in hosts.gather(sorted(self._manager.all_steps()))[0][::-1]:
      try:
        content = restore(step)
      except (Mismatch, DamagedFile) as e:
        errors[step] = e
        continue
      for newer_step, error in errors.items():
        self._report(f"{error} Using step {step}.")
        self._move_aside(newer_step)
      if errors:
        # Wait until process 0 has moved the checkpoints.
        hosts.gather("moved")
        self._manager.reload()
      return content, step
    # No checkpoint could be restored. A Mismatch is raised only here, after all
    # older checkpoints were tried, because damage can look like a Mismatch.
    for error in errors.values():
      if isinstance(error, Mismatch):
        raise error
    remedy = "Start in a new workdir."
    if self._read_only:
      remedy = "Put a copy of the run's folder back, or name another model."
    reasons = "; ".join(str(error).rstrip(".") for error in errors.values())
    raise UserError(
      f"no checkpoint in {self.path} is undamaged ({reasons}). {remedy}"
    )

  def _report(self, line: str) -> None:
    """Prints a line: on stdout in training, on stderr in other commands."""
    if self._read_only:
      note(line)
    else:
      say(line)

  def _move_aside(self, step: int) -> None:
    """Moves a checkpoint away, so that its step can be saved again."""
    if jax.process_index() == 0 and not self._read_only:
      target = self.path.parent / "damaged" / f"{step}-{time.time_ns()}"
      target.parent.mkdir(parents=True, exist_ok=True)
      (self.path / str(step)).rename(target)
      say(f"It is kept in {target}.")

  def _check_metrics(self) -> None:
    """Moves aside the checkpoints whose metrics are damaged.

    Orbax reads the metrics of all checkpoints when it opens the folder, and
    fails if one file is not JSON. The metrics decide which checkpoint is best.

    Raises:
      DamagedFile: metrics are damaged, and `read_only` is True.
    """
    for path in sorted(self.path.glob("*/metrics/metrics")):
      step_name = path.parent.parent.name
      try:
        metrics = files.read_json(str(path))
        is_intact = all(map(math.isfinite, _rank_key(metrics)))
        is_intact = is_intact and self._metrics_match(step_name, metrics)
      except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        is_intact = False
      if not is_intact and step_name.isdigit():
        message = f"{self.path}/{step_name} is damaged: its metrics are wrong."
        if self._read_only:
          raise DamagedFile(message)
        say(message)
        self._move_aside(int(step_name))

  def _metrics_match(self, step: str, metrics: dict[str, float]) -> bool:
    """Returns True unless a checkpoint's metadata contradict its metrics."""
    path = self.path / step / "meta" / "metadata"
    # Damaged metadata are reported when the checkpoint is restored, not here.
    try:
      meta = files.read_json(str(path))
      if not has_valid_checksum(meta):
        return True
    except (OSError, ValueError, AttributeError):
      return True
    # A killed evaluation may have written the metrics but not the metadata,
    # which then still have the key `pending`.
    return meta.get("pending") or meta.get("measured", metrics) == metrics

  def restore_params(self, step: int | None, params: Any) -> tuple[Any, int]:
    """Restores only the parameters, with the same checks as `restore`.

    Args:
      step: the step of the checkpoint; None for the newest undamaged
        checkpoint.
      params: a tree with the shapes, dtypes and shardings of the parameters.

    Returns:
      The parameters and their step.

    Raises:
      Mismatch: a path, shape, dtype or format version differs.
      DamagedFile: an array or the metadata differ from what was saved.
      UserError: there is no checkpoint of this step.
    """

    def read(step: int) -> tuple[Any, dict[str, Any]]:
      meta = self._read_metadata(step)
      source = str(self.path / str(step))
      check_same_shapes(self._saved_shapes(step)["params"], params, source)
      return self._restore_params(step, params), meta

    def restore(step: int) -> Any:
      restored_params, meta = self._read_in_all_processes(
        step, lambda: read(step)
      )
      restored_tree = {"params": restored_params}
      self._read_in_all_processes(
        step, lambda: self._check_checksums(step, meta, restored_tree)
      )
      return restored_params

    if step is None:
      return self._restore_newest(restore)
    if step not in self._manager.all_steps():
      raise UserError(
        f"{self.path} has no step {step}, only"
        f" {', '.join(map(str, self._manager.all_steps()))}."
      )
    return restore(step), step

  def _restore_params(self, step: int, params: Any) -> Any:
    abstract_params = {
      "params": jax.tree.map(ocp.utils.to_shape_dtype_struct, params)
    }
    restore_settings = ocp.args.PyTreeRestore(
      abstract_params,
      restore_args=ocp.checkpoint_utils.construct_restore_args(abstract_params),
      partial_restore=True,
    )
    handler = ocp.PyTreeCheckpointHandler()
    return handler.restore(
      self._item_path(step, "state"), args=restore_settings
    )["params"]

  def wait(self) -> None:
    """Waits until the last save is complete; raises OSError if it failed."""
    with self._reports_save_errors():
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits for the last save and frees orbax's resources."""
    self._manager.close()

  def __enter__(self) -> "Checkpointer":
    """Returns the checkpointer itself."""
    return self

  def __exit__(self, *exception: object) -> None:
    """Closes the checkpointer."""
    self.close()


def leaves_by_path(tree: Any) -> dict[str, Any]:
  """Returns path -> leaf of a tree, such as {"params/encoder/...": leaf}.

  Args:
    tree: a tree of arrays, shapes or orbax's metadata.
  """
  # A key of a path has its text in `key` (dicts), `name` (attributes) or `idx`
  # (lists).
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    "/".join(
      str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))
      for key in path
    ): leaf
    for path, leaf in leaves
  }


def _shapes_and_dtypes(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
  """Returns path -> (shape, dtype) of a tree; see `leaves_by_path`."""
  return {
    path: (tuple(leaf.shape), str(leaf.dtype))
    for path, leaf in leaves_by_path(tree).items()
  }


def check_same_shapes(saved: Any, model: Any, source: str) -> None:
  """Raises Mismatch unless two trees agree in paths, shapes and dtypes.

  Orbax's partial restore and `strict=False` would silently keep, pad or cut
  arrays that do not match.

  Args:
    saved: the tree in the checkpoint: shapes and dtypes.
    model: the tree of this model: arrays, or shapes and dtypes.
    source: the checkpoint, for the message.
  """
  saved_leaves, model_leaves = (
    _shapes_and_dtypes(saved),
    _shapes_and_dtypes(model),
  )
  problems = (
    [f"{path} is missing" for path in model_leaves if path not in saved_leaves]
    + [
      f"{path} is not in the model"
      for path in saved_leaves
      if path not in model_leaves
    ]
    + [
      f"{path} is {saved_leaves[path]}, the model's {model_leaves[path]}"
      for path in model_leaves
      if path in saved_leaves and saved_leaves[path] != model_leaves[path]
    ]
  )
  if problems:
    # Name the optimizer's moments last, since they only repeat the problems of
    # the parameters.
    problems.sort(key=lambda problem: problem.startswith("opt_state"))
    ending = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    raise Mismatch(
      f"{source} does not fit this model: {'; '.join(problems[:3])}{ending}."
    )


def checksum(x: jax.Array) -> jax.Array:
  """Returns a uint32 checksum of an array.

  The elements must have 32 bits, or be integers or bools of fewer bits.

  The bits of each element are multiplied by an odd number that depends on the
  position of the element. The checksum is the sum of these products. A change
  of a single element always changes the sum. The sum does not depend on the
  mesh.
  """
  if x.dtype.itemsize == 4:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  else:
    bits = x.astype(jnp.uint32)
  # Number the positions. The prime 0x9E3779B1 (of xxHash) mixes the indices of
  # several axes.
  position_numbers = jnp.zeros(x.shape, jnp.uint32)
  for axis in range(x.ndim):
    index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    position_numbers = position_numbers * np.uint32(0x9E3779B1) + index
  return (bits * (2 * position_numbers + 1)).sum(dtype=jnp.uint32)


@jax.jit
def _checksums(leaves: list[jax.Array]) -> list[jax.Array]:
  return [checksum(leaf) for leaf in leaves]


def checksums_of(tree: Any) -> dict[str, int]:
  """Returns path -> checksum of a tree of arrays; see `checksum`."""
  arrays = leaves_by_path(tree)
  sums = jax.device_get(_checksums(list(arrays.values())))
  return {
    path: int(array_sum) for path, array_sum in zip(arrays, sums, strict=True)
  }


def changed_paths(saved_checksums: dict[str, int], tree: Any) -> list[str]:
  """Returns the paths of `tree` whose checksums differ from the saved ones."""
  return [
    path
    for path, new_checksum in checksums_of(tree).items()
    if saved_checksums.get(path) != new_checksum
  ]


def check_run_files(workdir: str, step: int, meta: dict[str, Any]) -> None:
  """Raises Mismatch if config or tokenizer changed since a save.

  A changed activation or a changed order of the vocabulary would give wrong
  results without an error.

  Args:
    workdir: the run's folder, with config.json and the tokenizer's files.
    step: the step of the checkpoint.
    meta: the metadata of the checkpoint.
  """
  if "config" not in meta or "tokenizer" not in meta:
    messages.note_once(
      f"note: {workdir}: the checkpoint of step {step} was saved by an earlier"
      " version of this program, which stored no digests of config.json and of"
      " the tokenizer; so these files are not checked."
    )
    return
  folder = epath.Path(workdir)
  path = folder / "config.json"
  written_config = files.read_json_object(str(path))
  changes = run_config.list_changes(
    written_config, meta["config"], only_model_keys=True
  )
  if changes:
    raise Mismatch(
      f"{path} was changed since the checkpoint of step {step} was saved:"
      f" {'; '.join(changes)}. Put the old values back; for other values start"
      " a new run."
    )
  changed_files = files.changed_files(meta["tokenizer"], workdir)
  changed_files += [
    name
    for name in open_vocabulary.INPUT_FILES
    if name not in meta["tokenizer"] and (folder / name).exists()
  ]
  if changed_files:
    raise Mismatch(
      f"{folder / changed_files[0]} is not the file that the checkpoint of"
      f" step {step} was saved with: texts would get other ids."
      " Put the run's tokenizer back (its prepared folder has a copy), or start"
      " the run's command again, which writes these files anew."
    )
