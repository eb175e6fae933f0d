"""Several processes as one run: joining, agreeing, and ending together.

Jax's coordination service runs in process 0 and keeps a table of keys and
values that every process sees. Nothing here does anything in a run of one
process.
"""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

# The table of keys and values has no public name; orbax takes it from here too.
from jax._src import distributed
from jax.experimental import multihost_utils

from bert_jax import config as config_lib

_FAILURE = "bert_jax/failure"
_POLL_SECONDS = 0.5
_WAIT_MILLISECONDS = 300_000

# Errors that are one sentence for the user.
SENTENCES = (ValueError, FloatingPointError, OSError)


def check_flags(
  coordinator: str | None,
  num_processes: int | None,
  process_id: int | None,
  auto: bool,
) -> None:
  """Raises ValueError where the flags do not name one process of a run."""
  flags = (coordinator, num_processes, process_id)
  missing = flags.count(None)
  if missing == 3:
    return
  if missing or auto:
    raise ValueError(
      "give --coordinator=HOST:PORT, --num_processes=N and --process_id=I"
      " together, the same but for the last in every process; or --distributed"
      " alone on a TPU pod slice."
    )
  host, _, port = coordinator.rpartition(":")
  if not host or not port.isdigit():
    raise ValueError(
      f"--coordinator={coordinator}: must be HOST:PORT, where HOST is that of"
      " process 0 and PORT a free port of it."
    )
  if not 0 <= process_id < num_processes:
    raise ValueError(
      f"--process_id={process_id}: must be 0 to {num_processes - 1}, as"
      f" --num_processes={num_processes}."
    )


@contextlib.contextmanager
def joined(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  auto: bool = False,
) -> Iterator[None]:
  """Makes this process one of a run; enter it before any use of a device.

  Only process 0 writes to stdout. An error in one process ends all.

  Args:
    coordinator: HOST:PORT of process 0.
    num_processes: of the run.
    process_id: of this process.
    auto: find all three by the environment: a TPU pod slice, Slurm, Open MPI.

  Raises:
    ValueError: the flags are incomplete, or nobody answers.
  """
  check_flags(coordinator, num_processes, process_id, auto)
  if coordinator is None and not auto:
    yield
    return
  try:
    jax.distributed.initialize(coordinator, num_processes, process_id)
  except ValueError as e:
    raise ValueError(
      "--distributed found no other hosts here: this is no TPU pod slice; give"
      " --coordinator, --num_processes and --process_id."
    ) from e
  except RuntimeError as e:
    raise ValueError(
      f"--coordinator={coordinator}: the processes did not come together"
      f" ({str(e).splitlines()[0]}); check that the port is free, that process"
      " 0 is on this host, and that all were started."
    ) from e
  stop = threading.Event()
  watch = threading.Thread(target=_watch, args=(stop,), daemon=True)
  watch.start()
  quiet = contextlib.nullcontext()
  if distributed.global_state.process_id:
    quiet = contextlib.redirect_stdout(open(os.devnull, "w"))
  try:
    with quiet, ends_all():
      yield
  finally:
    stop.set()
    watch.join()


def _read_failure() -> str | None:
  """What a process has said; raises RuntimeError if process 0 is gone."""
  try:
    return distributed.global_state.client.key_value_try_get(_FAILURE)
  except RuntimeError as e:
    if "NOT_FOUND" in str(e):
      return None
    raise


def _watch(stop: threading.Event) -> None:
  """Ends this process, wherever it waits, once another one has failed."""
  while not stop.wait(_POLL_SECONDS):
    try:
      failure = _read_failure()
    except RuntimeError:
      failure = "process 0 is gone; its own output says why."
    # Not if this process is ending by itself.
    if failure is not None and not stop.is_set():
      _end(failure)


def _end(message: str) -> None:
  """Exits without Python's and jax's cleaning up, which waits for the others.

  Process 0 leaves last: the others learn from it why.
  """
  print(f"error: {message}", file=sys.stderr, flush=True)
  if distributed.global_state.process_id == 0:
    time.sleep(4 * _POLL_SECONDS)
  os._exit(1)


@contextlib.contextmanager
def ends_all() -> Iterator[None]:
  """On an error inside, tells the other processes why and ends all of them.

  Put it around what waits for other processes, inside of whatever would wait
  for them when it closes.
  """
  client = distributed.global_state.client
  try:
    yield
  except (Exception, KeyboardInterrupt) as e:
    if client is None:
      raise
    process = distributed.global_state.process_id
    message = str(e)
    if not isinstance(e, SENTENCES):
      # Most often the collective that broke because another process ended.
      with contextlib.suppress(RuntimeError):
        if failure := _read_failure():
          _end(failure)
      traceback.print_exc()
      message = f"{type(e).__name__}: {message.strip().splitlines()[:1]}"
    with contextlib.suppress(RuntimeError):  # Another process was first.
      client.key_value_set(_FAILURE, f"process {process}: {message}")
    _end(message)


def check_same(name: str, value: dict[str, Any]) -> None:
  """Raises ValueError where this process's value is not that of process 0.

  Args:
    name: used once in a run.
    value: of JSON values.
  """
  client = distributed.global_state.client
  if client is None:
    return
  if distributed.global_state.process_id == 0:
    client.key_value_set(f"bert_jax/{name}", json.dumps(value))
    return
  text = client.blocking_key_value_get(f"bert_jax/{name}", _WAIT_MILLISECONDS)
  first = config_lib.flatten(json.loads(text))
  mine = config_lib.flatten(json.loads(json.dumps(value)))
  different = [
    f"{key}={mine.get(key)!r}, not {first.get(key)!r}"
    for key in sorted(first.keys() | mine.keys())
    if first.get(key) != mine.get(key)
  ]
  if different:
    raise ValueError(
      f"{name} differs from that of process 0: {'; '.join(different)}; start"
      " every process by the same command on the same data."
    )


def gather(value: Any) -> list[Any]:
  """The JSON values of all processes, in their order; all must call it."""
  if jax.process_count() == 1:
    return [value]
  text = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(len(text)))
  padded = np.zeros(sizes.max(), np.uint8)
  padded[: len(text)] = text
  rows = multihost_utils.process_allgather(padded)
  return [
    json.loads(row[:size].tobytes())
    for row, size in zip(rows, sizes, strict=True)
  ]


def wait_for_all(name: str) -> None:
  """Returns once every process is here; `name` is used once in a run."""
  client = distributed.global_state.client
  if client is not None:
    client.wait_at_barrier(f"bert_jax/{name}", _WAIT_MILLISECONDS)
