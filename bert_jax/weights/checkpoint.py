"""One Checkpointer: train state, data position, metadata; strict restore."""

import contextlib
import errno
import glob
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from bert_jax import files, messages
from bert_jax.devices import hosts
from bert_jax.devices.xla_errors import RESOURCE_EXHAUSTED, has_status
from bert_jax.files import is_sealed, seal, write_atomically
from bert_jax.messages import Damaged, UserError, note
from bert_jax.text import open_vocabulary
from bert_jax.weights import run_config

FORMAT_VERSION = 1
METRIC = "heldout_loss"
PHASE = "phase"
# The parts of the paths RUN@best and RUN@STEP; see `split_path`.
AT, BEST = "@", "best"


class Mismatch(UserError):
  """A whole checkpoint that is not for this model or program."""


def split_path(path: str) -> tuple[str, str | None]:
  """Splits RUN@best or RUN@STEP into the run's folder and its checkpoint.

  Args:
    path: any path or name. If it exists as a whole, it is not split, even if
      it has an @ in it.

  Returns:
    The folder, and the checkpoint's name: "best", the digits of a step, or None
    for the newest checkpoint.

  Raises:
    ValueError: the part before the @ is a run's folder, but the part after it
      is neither "best" nor digits.
  """
  run, at, name = path.rpartition(AT)
  if not at or os.path.exists(path):
    return path, None
  if name == BEST or (name.isascii() and name.isdigit()):
    return run, name
  if os.path.isdir(os.path.join(run, "checkpoints")):
    raise UserError(
      f"{path}: no such folder; write {run}@best, or {run}@ and the step of a"
      " checkpoint in digits."
    )
  return path, None


def has_saved(workdir: str) -> bool:
  """Returns True if a run's folder has a checkpoint, even a damaged one."""
  path = os.path.join(workdir, "checkpoints")
  return os.path.isdir(path) and any(map(str.isdigit, os.listdir(path)))


def _rank(metrics: dict[str, float]) -> tuple[float, float]:
  """Lowest first: the latest phase, and in it the lowest held-out loss."""
  return -metrics.get(PHASE, 0), metrics[METRIC]


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
      keep_best: how many of those with the lowest held-out loss stay. Losses
        of phases of different lengths do not compare: a later phase's
        checkpoints come first, and in time push out those of the one before.
      read_only: change nothing in the folder; its run may be going on.
    """
    if keep < 1:
      raise UserError(f"checkpoint.keep={keep}: must be at least 1.")
    self.path = os.path.join(os.path.abspath(workdir), "checkpoints")
    self._workdir, self._read_only = workdir, read_only
    self._keep, self._keep_best = keep, keep_best
    # `of_run` sets this to True: then each checkpoint that is read is compared
    # with the run's config.json and tokenizer files.
    self._checks_run_files = False
    # `describe` sets this: metadata of the run that every checkpoint repeats.
    self._run_meta: dict[str, Any] = {}
    if os.path.exists(self.path) and not os.path.isdir(self.path):
      raise UserError(
        f"{self.path} is a file where a run has a folder; move it away, or take"
        " another --workdir."
      )
    # Process 0 moves what is damaged before any other looks.
    if jax.process_index() == 0 or read_only:
      self._check_metrics()
    if not read_only:
      hosts.wait_for_all("checkpoints")
    policies = checkpoint_managers
    best = policies.BestN(
      get_metric_fn=_rank,
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
        best_fn=_rank,
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
      raise UserError(f"{workdir}: not the --workdir of a run.")
    checkpointer = cls(workdir, read_only=True)
    if checkpointer.latest_step() is None:
      raise UserError(f"{workdir}: the run has saved no checkpoint yet.")
    checkpointer._checks_run_files = True
    return checkpointer

  def describe(
    self, config: dict[str, Any], tokenizer: dict[str, bytes]
  ) -> None:
    """Sets what later checkpoints store about their run.

    A program that opens the run compares it with the files in the run's folder.

    Args:
      config: the content of config.json.
      tokenizer: the tokenizer's files: name -> content.
    """
    digests = {name: files.digest(text) for name, text in tokenizer.items()}
    self._run_meta = {"config": config, "tokenizer": digests}

  def newest_config(self) -> dict[str, Any] | None:
    """Returns the config that the newest checkpoint was saved with.

    Returns:
      The config; None if the checkpoint cannot be read, or if it was saved by
      an earlier version of this program, which stored no config.
    """
    try:
      return self.meta(self.latest_step()).get("config")
    except (Mismatch, Damaged):
      return None

  def latest_step(self) -> int | None:
    return self._manager.latest_step()

  def best_step(self) -> int | None:
    return self._manager.best_step()

  def find_step(self, name: str | None) -> int | None:
    """Finds the step of the checkpoint that `split_path` names.

    Args:
      name: "best", the digits of a step, or None.

    Returns:
      The step; None for the newest checkpoint that is not damaged.

    Raises:
      ValueError: there is no such checkpoint.
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
    best = self.best_step()
    if best is None:
      raise UserError(
        f"{self.path} has no best checkpoint: at each step that it keeps"
        f" ({saved_steps}), the run has not evaluated, or its metric was not"
        " defined (nan); name one of these steps, RUN@STEP."
      )
    return best

  def save(
    self,
    step: int,
    state: Any,
    meta: dict[str, Any],
    heldout: float | None,
    phase: int = 0,
    checksums: dict[str, int] | None = None,
  ) -> None:
    """Starts a save; waits first for the one before it.

    Args:
      step: optimizer steps done.
      state: the train state.
      meta: JSON values: data position, log window, fingerprint, ...
      heldout: held-out loss at this step if it was measured.
      phase: number of the phase that the step is of.
      checksums: the result of `checksums_of`, if it is known already.
    """
    measured = None
    if heldout is not None:
      measured = {METRIC: float(heldout), PHASE: phase}
    meta = {
      "format_version": FORMAT_VERSION,
      "checksums": checksums or checksums_of(vars(state)),
      "step": step,
      "measured": measured,
      **self._run_meta,
      **meta,
    }
    with self._saving():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state),
          meta=ocp.args.JsonSave(seal(meta)),
        ),
        metrics=measured,
        force=True,
      )

  def add(
    self, step: int, meta: dict[str, Any], heldout: float | None, phase: int
  ) -> None:
    """Adds the result of an evaluation to a checkpoint that is saved already.

    If the process is killed meanwhile, the metadata file holds the whole old or
    the whole new content.

    Args:
      step: the step of the checkpoint; waits until its save is complete.
      meta: JSON values; they replace values of the same name.
      heldout: held-out loss at this step; None if it is not measured.
      phase: the number of the phase to which the step belongs.

    Raises:
      OSError: the disk is full or cannot be written.
    """
    self.wait()
    measured = None
    with self._saving():
      if jax.process_index() == 0:
        folder = os.path.join(self.path, str(step))
        if heldout is not None:
          measured = {METRIC: float(heldout), PHASE: phase}
          os.makedirs(os.path.join(folder, "metrics"), exist_ok=True)
          path = os.path.join(folder, "metrics", "metrics")
          write_atomically(path, json.dumps(measured))
        # Write the metadata last: until then they say that the evaluation is
        # still to be made.
        changed = seal(self._meta(step) | {"measured": measured} | meta)
        path = os.path.join(folder, "meta", "metadata")
        write_atomically(path, json.dumps(changed))
    hosts.wait_for_all(f"evaluated {step}")
    self._manager.reload()
    self._remove_old()

  def _remove_old(self) -> None:
    """Removes all checkpoints but the newest and the best, as a save does."""
    ranked = []
    steps = sorted(self._manager.all_steps())
    for step in steps:
      measured = self._manager.metrics(step)
      if measured is not None:
        ranked.append((_rank(measured), -step, step))
    preserved = {step for *_, step in sorted(ranked)[: self._keep_best]}
    for step in steps[: -self._keep]:
      if step not in preserved:
        self.remove(step)

  def remove(self, step: int) -> None:
    """Removes a checkpoint, after waiting until its save is complete."""
    self.wait()
    self._manager.delete(step)

  @contextlib.contextmanager
  def _saving(self) -> Iterator[None]:
    """Gives whatever stopped a save, this one or the one before, a name.

    Raises:
      OSError: the disk is full, or not to be written.
    """
    try:
      yield
    except Exception as e:
      reason = str(e).strip().split("\n")[0]
      is_full = isinstance(e, OSError) and e.errno == errno.ENOSPC
      if is_full or has_status(e, RESOURCE_EXHAUSTED):
        reason = "no space left on the disk"
      raise OSError(
        f"{self.path}: a checkpoint could not be saved ({reason}); those before"
        " it are kept. Free the disk and give the same command again."
      ) from e

  def _together(self, step: int, read: Callable[[], Any]) -> Any:
    """Calls `read` in every process, which must wait for no other in it.

    Raises:
      Mismatch, Damaged: in all processes, what the first that failed raised.
        Whatever it raises but a Mismatch means a damaged checkpoint: orbax and
        its libraries raise errors of many types.
    """
    result, error = None, None
    try:
      result = read()
    except (Mismatch, Damaged) as e:
      error = e
    except Exception as e:
      # Do not repeat the library's own message: it is long, and its terms (byte
      # ranges, drivers) do not help a user.
      reason = type(e).__name__
      if isinstance(e, OSError) and e.strerror:
        reason = e.strerror
      error = Damaged(
        f"{self.path}/{step} is damaged: a file in it cannot be read"
        f" ({reason})."
      )
      error.__cause__ = e
    kinds = {kind.__name__: kind for kind in (Mismatch, Damaged)}
    said = [type(error).__name__, str(error)] if error else None
    for other in hosts.gather(said):
      if other:
        raise kinds[other[0]](other[1]) from error
    return result

  def meta(self, step: int) -> dict[str, Any]:
    """The metadata that a checkpoint was saved with.

    Raises:
      Mismatch, Damaged: of another format, or not what was saved.
    """
    return self._together(step, lambda: self._meta(step))

  def _meta(self, step: int) -> dict[str, Any]:
    meta = ocp.JsonCheckpointHandler().restore(self._item(step, "meta"))
    if not is_sealed(meta):
      raise Damaged(f"{self.path}/{step}: its metadata are damaged.")
    if meta["format_version"] != FORMAT_VERSION:
      raise Mismatch(
        f"{self.path}/{step} has format version {meta['format_version']}, this"
        f" program reads {FORMAT_VERSION}; use the program that wrote it."
      )
    # Checkpoints of earlier versions do not store their step.
    if meta.get("step", step) != step:
      raise Damaged(
        f"{self.path}/{step} is a copy of the checkpoint of step"
        f" {meta['step']}."
      )
    if self._checks_run_files:
      check_beside(self._workdir, step, meta)
    return meta

  def _check(self, step: int, meta: dict[str, Any], tree: Any) -> None:
    """Raises Damaged if an array differs from what was saved."""
    damaged = differing(meta["checksums"], tree)
    if damaged:
      raise Damaged(f"{self.path}/{step}: {damaged[0]} is damaged.")

  def _item(self, step: int, name: str) -> Any:
    """Path of a part of a checkpoint, for orbax's handlers.

    They read without waiting for the other processes, as the manager does.
    """
    return self._manager.directory / str(step) / name

  def _saved_state(self, step: int) -> Any:
    return ocp.StandardCheckpointHandler().metadata(self._item(step, "state"))

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
      restored = ocp.StandardCheckpointHandler().restore(
        self._item(step, "state"), args=ocp.args.StandardRestore(abstract)
      )
      return restored, meta

    restored, meta = self._together(step, read)
    self._together(step, lambda: self._check(step, meta, vars(restored)))
    return restored, meta

  def restore_newest(self, state: Any) -> tuple[Any, dict[str, Any], int]:
    """Restores the newest checkpoint that every process finds whole.

    What is newer is moved aside, and said.

    Returns:
      The state, the metadata, the step.

    Raises:
      ValueError: none is whole, or they are of another model or format.
    """
    result = self._newest(lambda step: self.restore(step, state))
    # If the run was killed after a save, it may have left checkpoints that are
    # too old.
    self._remove_old()
    return result

  def _newest(self, restore: Callable[[int], tuple]) -> tuple:
    errors: dict[int, ValueError] = {}
    # Process 0's list: another may see the folder otherwise.
    for step in hosts.gather(sorted(self._manager.all_steps()))[0][::-1]:
      try:
        result = restore(step)
      except (Mismatch, Damaged) as e:
        errors[step] = e
        continue
      for newer, error in errors.items():
        self._say(f"{error} Using step {step}.")
        self._move_aside(newer)
      if errors:
        hosts.gather("moved")
        self._manager.reload()
      return (*result, step)
    # Damage can look like another model; then an older checkpoint fitted.
    for error in errors.values():
      if isinstance(error, Mismatch):
        raise error
    remedy = "Start in a new --workdir."
    if self._read_only:
      remedy = "Put a copy of the run's folder back, or name another model."
    reasons = "; ".join(str(error).rstrip(".") for error in errors.values())
    raise UserError(
      f"no checkpoint in {self.path} is whole ({reasons}). {remedy}"
    )

  def _say(self, line: str) -> None:
    """Prints a line: on stdout in training, on stderr in other commands."""
    if self._read_only:
      note(line)
    else:
      print(line, flush=True)

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

    Orbax reads the metrics of all checkpoints when it opens the folder, and
    fails if one file is not JSON. The metrics decide which checkpoint is best.
    """
    for path in sorted(
      glob.glob(os.path.join(self.path, "*", "metrics", "metrics"))
    ):
      step = os.path.relpath(path, self.path).split(os.sep)[0]
      try:
        metrics = files.read_json(path)
        whole = all(map(math.isfinite, _rank(metrics)))
        whole = whole and self._is_measured(step, metrics)
      except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        whole = False
      if not whole and step.isdigit():
        message = f"{self.path}/{step} is damaged: its metrics."
        if self._read_only:
          raise Damaged(message)
        print(message, flush=True)
        self._move_aside(int(step))

  def _is_measured(self, step: str, metrics: dict[str, float]) -> bool:
    """Returns True unless a checkpoint's metadata contradict its metrics."""
    path = os.path.join(self.path, step, "meta", "metadata")
    try:
      meta = files.read_json(path)
      if not is_sealed(meta):
        return True  # The damage is reported when the checkpoint is restored.
    except (OSError, ValueError, AttributeError):
      return True
    # If an evaluation was killed, it may have written the metrics and not yet
    # the metadata; these then still have `pending`.
    return meta.get("pending") or meta.get("measured", metrics) == metrics

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
      return self._restore_params(step, params), meta

    def restore(step):
      restored, meta = self._together(step, lambda: read(step))
      named = {"params": restored}
      self._together(step, lambda: self._check(step, meta, named))
      return (restored,)

    if step is None:
      return self._newest(restore)
    if step not in self._manager.all_steps():
      raise UserError(
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
    handler = ocp.PyTreeCheckpointHandler()
    return handler.restore(self._item(step, "state"), args=args)["params"]

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


def paths(tree: Any) -> dict[str, Any]:
  """{"params/encoder/...": leaf} of a tree of arrays, shapes or metadata."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    "/".join(
      str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k))))
      for k in path
    ): leaf
    for path, leaf in leaves
  }


def _describe(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
  """{path: (shape, dtype)} of a tree of arrays, shapes or orbax metadata."""
  return {
    path: (tuple(leaf.shape), str(leaf.dtype))
    for path, leaf in paths(tree).items()
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


def checksum(x: jax.Array) -> jax.Array:
  """A uint32 sum over all elements' bits, each times an odd number of its own.

  Any single changed element changes it; it is the same on every mesh.
  """
  if x.dtype.itemsize == 4:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  else:
    bits = x.astype(jnp.uint32)
  factor = jnp.zeros(x.shape, jnp.uint32)
  for axis in range(x.ndim):
    index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    factor = factor * np.uint32(0x9E3779B1) + index
  return (bits * (2 * factor + 1)).sum(dtype=jnp.uint32)


@jax.jit
def _checksums(leaves: list[jax.Array]) -> list[jax.Array]:
  return [checksum(x) for x in leaves]


def checksums_of(tree: Any) -> dict[str, int]:
  """{path: checksum} of a tree of arrays of 32 bits or less an element."""
  named = paths(tree)
  sums = jax.device_get(_checksums(list(named.values())))
  return {name: int(s) for name, s in zip(named, sums, strict=True)}


def differing(saved: dict[str, int], tree: Any) -> list[str]:
  """Paths of `tree` whose checksum is not the saved one."""
  return [p for p, s in checksums_of(tree).items() if saved.get(p) != s]


def check_beside(workdir: str, step: int, meta: dict[str, Any]) -> None:
  """Raises Mismatch if config or tokenizer are not those of a checkpoint.

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
  path = os.path.join(workdir, "config.json")
  written = files.read_object(path)
  lines = run_config.edits(written, meta["config"], of_model=True)
  if lines:
    raise Mismatch(
      f"{path} was changed since the checkpoint of step {step} was saved:"
      f" {'; '.join(lines)}. Put the old values back; for other values start a"
      " new run."
    )
  changed_files = files.changed_files(meta["tokenizer"], workdir)
  changed_files += [
    name
    for name in open_vocabulary.NAMES
    if name not in meta["tokenizer"]
    and os.path.exists(os.path.join(workdir, name))
  ]
  if changed_files:
    raise Mismatch(
      f"{os.path.join(workdir, changed_files[0])} is not the file that the"
      f" checkpoint of step {step} was saved with: texts would get other ids."
      " Put the run's own tokenizer back (its prepared folder has a copy), or"
      " start the run's command again: it writes these files anew."
    )
