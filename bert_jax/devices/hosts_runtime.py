"""A run and its machine: the folder's lock, stop signals, the profiler."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator

import jax
from jax.experimental import multihost_utils

from bert_jax import files
from bert_jax.devices import hosts


@contextlib.contextmanager
def lock(workdir: str) -> Iterator[None]:
  """Holds the folder for this run.

  Raises:
    ValueError: another run holds it, it cannot be written, or it holds data.
  """
  if os.path.exists(os.path.join(workdir, "meta.json")):
    raise ValueError(
      f"--workdir={workdir}: this is a prepared folder (it has a meta.json)"
      ", and a run would write over its vocab.txt; take another."
    )
  name = f"lock-{jax.process_index()}" if jax.process_index() else "lock"
  try:
    os.makedirs(workdir, exist_ok=True)
    file = os.fdopen(files.open_own(os.path.join(workdir, name)), "r+b")
  except OSError as e:
    raise ValueError(
      f"--workdir={workdir}: no such folder can be made or written"
      f" ({e.strerror})."
    ) from e
  with file as f:
    try:
      fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
      raise ValueError(
        f"{workdir}: another run is going on in this folder; stop it, or take"
        " another --workdir."
      ) from e
    if not jax.process_index():
      files.clear_temporary(workdir)
    hosts.wait_for_all("lock")
    if not os.path.exists(os.path.join(workdir, "lock")):
      raise ValueError(
        f"{workdir}: process 0 has another folder of this name; the --workdir"
        " must be on a file system that all hosts share."
      )
    yield


@contextlib.contextmanager
def named_errors(workdir: str) -> Iterator[None]:
  """Makes a sentence of what the system says of a file or the disk."""
  try:
    yield
  except OSError as e:
    if e.errno is None:
      raise
    raise OSError(
      f"{e.filename or workdir}: {e.strerror}. Once that is mended, the same"
      " command continues."
    ) from e


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
  """Collects SIGTERM and SIGINT in a list; a second SIGINT interrupts.

  With several processes SIGTERM is left to jax, whose notifier tells all of
  them, and SIGINT becomes SIGTERM.
  """
  seen: list[int] = []
  several = jax.process_count() > 1

  def note(number, frame):
    if number == signal.SIGINT and seen:
      signal.default_int_handler(number, frame)
    seen.append(number)
    print("stopping: saving a checkpoint ...", flush=True)
    if several:
      os.kill(os.getpid(), signal.SIGTERM)

  numbers = [signal.SIGINT] if several else [signal.SIGINT, signal.SIGTERM]
  old = {number: signal.signal(number, note) for number in numbers}
  try:
    yield seen
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)


def stop_requested(step: int, seen: list[int]) -> bool:
  """True at the step after which to save and stop; all hosts agree on it.

  Args:
    step: steps done.
    seen: what `stop_signals` collected on this host.
  """
  if jax.process_count() > 1:
    return multihost_utils.reached_preemption_sync_point(step)
  return bool(seen)


class Profiler:
  """Writes a trace of named steps into WORKDIR/profile."""

  def __init__(self, workdir: str, start: int, steps: int):
    """Traces steps `start` to `start + steps - 1` (1 is the first); 0 none."""
    self._path = os.path.join(workdir, "profile")
    self._start, self._end = start, start + steps
    self._on = False

  @contextlib.contextmanager
  def step(self, number: int) -> Iterator[None]:
    """Wraps the dispatch of one step."""
    if self._start <= number < self._end and not self._on:
      jax.profiler.start_trace(self._path)
      self._on = True
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
      yield

  def finish(self, number: int, wait_for: jax.Array) -> None:
    """Ends the trace once its last step is done."""
    if self._on and number + 1 >= self._end:
      wait_for.block_until_ready()
      self.close()

  def close(self) -> None:
    """Ends a trace that is going on."""
    if self._on:
      jax.profiler.stop_trace()
      self._on = False
      print(f"trace: {self._path}", flush=True)
