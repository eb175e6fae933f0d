"""Lets several processes train as one run, which they begin and end together.

Jax's coordination service runs in process 0 and keeps a table of keys and
values that every process sees. In a run of one process, most functions of this
file do nothing.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

# The table of keys and values has no public name in jax. The library orbax also
# imports this private module.
from jax._src import distributed
from jax.experimental import multihost_utils

from bert_jax.devices import xla_errors
from bert_jax.messages import UserError, say

_FAILURE_KEY = "bert_jax/failure"
_ALIVE_KEY_PREFIX = "bert_jax/alive/"
_POLL_SECONDS = 0.5
# Once in this many polls, every process sends a sign that it is alive: a beat.
_POLLS_PER_BEAT = 2
# A process counts as gone after this many polls without a beat from it. Jax
# itself waits for 100 seconds, and then ends a process by a signal.
_POLLS_UNTIL_GONE = 90
# After a failed collective fewer polls suffice, because the usual cause of the
# failure is a process that is gone.
_POLLS_UNTIL_GONE_AFTER_FAILURE = 12
# How long a process tries to connect to process 0, to see if it is gone.
_CONNECT_SECONDS = 3.0
# How long a process waits by default for values or calls of other processes.
_WAIT_MILLISECONDS = 300_000

# Errors whose message is a sentence for the user; they need no traceback.
SENTENCE_ERRORS = (ValueError, FloatingPointError, OSError)


def check_flags(
  coordinator: str | None,
  num_processes: int | None,
  process_id: int | None,
  from_environment: bool,
) -> None:
  """Raises UserError if arguments of `join_run` are missing or out of range."""
  if coordinator is None and num_processes is None and process_id is None:
    return
  if (
    coordinator is None
    or num_processes is None
    or process_id is None
    or from_environment
  ):
    raise UserError(
      "give --coordinator=HOST:PORT, --num-processes=N and --process-id=I"
      " together, with the same HOST:PORT and N in every process; or give only"
      " --distributed on a TPU pod slice."
    )
  host, _, port = coordinator.rpartition(":")
  if not host or not port.isdigit():
    raise UserError(
      f"--coordinator={coordinator} must be HOST:PORT, where HOST is the host"
      " of process 0 and PORT a free port of this host."
    )
  if not 0 <= process_id < num_processes:
    raise UserError(
      f"--process-id={process_id} must be 0 to {num_processes - 1}, as"
      f" --num-processes={num_processes}."
    )


@contextlib.contextmanager
def join_run(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  from_environment: bool = False,
) -> Iterator[None]:
  """Makes this process a member of a run.

  Enter this context before any use of a device. Only process 0 writes to
  stdout. An error in one process ends all processes.

  Args:
    coordinator: HOST:PORT of process 0.
    num_processes: the number of processes of the run.
    process_id: the number of this process.
    from_environment: True takes the first three arguments from the environment
      of a TPU pod slice, Slurm or Open MPI.

  Raises:
    UserError: the flags are incomplete, or the processes do not connect.
  """
  check_flags(coordinator, num_processes, process_id, from_environment)
  if coordinator is None and not from_environment:
    yield
    return
  try:
    jax.distributed.initialize(coordinator, num_processes, process_id)
  except ValueError as e:
    raise UserError(
      "--distributed found no other hosts: this is no TPU pod slice; give"
      " --coordinator, --num-processes and --process-id."
    ) from e
  except RuntimeError as e:
    raise UserError(
      f"--coordinator={coordinator}: the processes did not connect"
      f" ({str(e).splitlines()[0]}); check that the port is free, that process"
      " 0 is on this host, and that all processes were started."
    ) from e
  with contextlib.ExitStack() as stack:
    native_output = stack.enter_context(_DelayedNativeOutput())
    stack.enter_context(_ProcessWatch(native_output))
    if distributed.global_state.process_id:
      null_file = stack.enter_context(pathlib.Path(os.devnull).open("w"))
      stack.enter_context(contextlib.redirect_stdout(null_file))
    stack.enter_context(end_all_on_error())
    yield


class _DelayedNativeOutput:
  """Writes the output of C++ libraries to stderr one second late.

  If process 0 is gone, jax's client prints a stack and ends this process by
  SIGABRT. With this class, the process drops the delayed output, prints one
  sentence instead, and ends with exit status 1.
  """

  def __enter__(self) -> "_DelayedNativeOutput":
    sys.stderr.flush()
    self._stderr, self._python_stderr = os.dup(2), sys.stderr
    # Use a file and not a pipe: a full pipe would block the writer.
    self._file = tempfile.TemporaryFile()
    self._num_written, self._lock = 0, threading.Lock()
    os.dup2(self._file.fileno(), 2)
    sys.stderr = os.fdopen(
      os.dup(self._stderr), "w", buffering=1, errors="backslashreplace"
    )
    handler_type = ctypes.CFUNCTYPE(None, ctypes.c_int)
    self._handler = handler_type(self._on_abort)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = ctypes.c_int, handler_type
    libc.signal(signal.SIGABRT, self._handler)
    return self

  def __exit__(self, *exception: object) -> None:
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    sys.stderr = self._python_stderr
    os.dup2(self._stderr, 2)
    self.write_collected()
    os.close(self._stderr)
    self._file.close()

  def num_collected_bytes(self) -> int:
    """Returns the number of bytes that the libraries have written."""
    return os.fstat(self._file.fileno()).st_size

  def write_collected(self, end: int | None = None) -> None:
    """Writes the collected output up to byte `end` to the real stderr."""
    with self._lock:
      end = self.num_collected_bytes() if end is None else end
      while self._num_written < end:
        num_bytes = min(end - self._num_written, 2**16)
        content = os.pread(self._file.fileno(), num_bytes, self._num_written)
        self._num_written += os.write(self._stderr, content)

  def _on_abort(self, number: int) -> None:
    """Handles SIGABRT; the process ends when this function returns."""
    if distributed.global_state.process_id and not _reaches_process_0():
      _write_error(self._stderr, _gone_message(process=0))
      os._exit(1)
    self.write_collected()


def _reaches_process_0() -> bool:
  """Returns True if a connection to the run's coordinator succeeds."""
  coordinator = distributed.global_state.coordinator_address
  assert coordinator is not None
  host, _, port = coordinator.rpartition(":")
  address = host.strip("[]"), int(port)
  try:
    socket.create_connection(address, _CONNECT_SECONDS).close()
  except OSError:
    return False
  return True


def _gone_message(process: int) -> str:
  return f"process {process} is gone; its own output, if any, says why."


def _write_error(descriptor: int, message: str) -> None:
  os.write(descriptor, f"error: {message}\n".encode())


class _ProcessWatch:
  """Ends this process when another process has failed.

  Two threads do this, because the main thread may be waiting for the failed
  process.

  Each process writes higher and higher numbers, its beats, to the shared table.
  If the beat of a process stays the same for `_POLLS_UNTIL_GONE` polls, the
  process is gone: it was killed or stopped, or the network failed. The limit is
  in polls and not in seconds, so that a pause of all processes does not count
  as the loss of a process.
  """

  current: "_ProcessWatch | None" = None

  def __init__(self, native_output: _DelayedNativeOutput):
    self._native_output, self._stop = native_output, threading.Event()
    self._state = distributed.global_state
    # Process -> (the last beat, the number of polls since that beat came).
    num_processes = self._state.num_processes or 0
    self._last_beats = {i: ("", 0) for i in range(num_processes)}
    self._threads = [
      threading.Thread(target=target, daemon=True)
      for target in (self._poll_processes, self._exchange_beats)
    ]

  def __enter__(self) -> "_ProcessWatch":
    type(self).current = self
    for thread in self._threads:
      thread.start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._stop.set()
    type(self).current = None
    self._threads[0].join()

  def find_gone_process(self, min_polls: int = _POLLS_UNTIL_GONE) -> int | None:
    """Returns a process that sent no beat for `min_polls` polls, or None."""
    silent_processes = [
      process
      for process, (_, num_polls) in self._last_beats.items()
      if num_polls >= min_polls
    ]
    silent_processes = [
      process
      for process in silent_processes
      if process != self._state.process_id
    ]
    # Without process 0 no beats arrive, so that all processes seem to be gone.
    # The lowest number is then 0, and process 0 is indeed gone.
    return min(silent_processes, default=None)

  def wait_for_gone_process(self) -> int | None:
    """Waits after a failed collective; returns a gone process, or None."""
    for _ in range(_POLLS_UNTIL_GONE_AFTER_FAILURE + 2 * _POLLS_PER_BEAT):
      gone_process = self.find_gone_process(_POLLS_UNTIL_GONE_AFTER_FAILURE)
      if gone_process is not None:
        return gone_process
      time.sleep(_POLL_SECONDS)
    return None

  def write_collected(self) -> None:
    """Writes all collected output of C++ libraries."""
    self._native_output.write_collected()

  def _poll_processes(self) -> None:
    """Counts polls, finds a gone process, writes output; never blocks."""
    # The output is written two polls (one second) after the library wrote it.
    sizes_at_polls = [0, 0]
    while not self._stop.wait(_POLL_SECONDS):
      for process, (beat, num_polls) in list(self._last_beats.items()):
        self._last_beats[process] = beat, num_polls + 1
      gone_process = self.find_gone_process()
      if gone_process is not None and not self._stop.is_set():
        seconds = _POLLS_UNTIL_GONE * _POLL_SECONDS
        _exit_with_error(
          f"process {gone_process} is gone: it sent no sign for"
          f" {seconds:.0f} s."
        )
      sizes_at_polls.append(self._native_output.num_collected_bytes())
      self._native_output.write_collected(sizes_at_polls.pop(0))

  def _exchange_beats(self) -> None:
    """Sends and reads beats; ends this process if another process failed."""
    poll_number = 0
    while not self._stop.wait(_POLL_SECONDS):
      try:
        failure = _read_failure()
        if poll_number % _POLLS_PER_BEAT == 0:
          self._send_and_read_beats(poll_number)
      except RuntimeError:
        failure = _gone_message(process=0)
      poll_number += 1
      # Do not end the process if it is ending by itself.
      if failure is not None and not self._stop.is_set():
        _exit_with_error(failure)

  def _send_and_read_beats(self, beat_number: int) -> None:
    """Sends a beat of this process; reads the beats of all processes."""
    client: Any = self._state.client
    key = f"{_ALIVE_KEY_PREFIX}{self._state.process_id}"
    client.key_value_set(key, str(beat_number), allow_overwrite=True)
    for key, beat in client.key_value_dir_get(_ALIVE_KEY_PREFIX):
      process = int(key.rpartition("/")[2])
      if self._last_beats[process][0] != beat:
        self._last_beats[process] = beat, 0


def _read_failure() -> str | None:
  """Returns the failure that a process reported, or None.

  Raises:
    RuntimeError: process 0 is gone.
  """
  client: Any = distributed.global_state.client
  try:
    return client.key_value_try_get(_FAILURE_KEY)
  except RuntimeError as e:
    if xla_errors.has_status(e, xla_errors.NOT_FOUND):
      return None
    raise


def _exit_with_error(message: str) -> None:
  """Ends this process at once, with `os._exit`.

  A normal exit would wait for the other processes. Process 0 ends 2 seconds
  later, because the other processes read the message from process 0.
  """
  print(f"error: {message}", file=sys.stderr, flush=True)
  if distributed.global_state.process_id == 0:
    time.sleep(4 * _POLL_SECONDS)
  os._exit(1)


@contextlib.contextmanager
def end_all_on_error() -> Iterator[None]:
  """Reports an error in its block to all processes, and ends all of them.

  Code that waits for other processes must be inside this block. A context whose
  end waits for other processes must be around the block: after an error, the
  process then ends before this wait.
  """
  client = distributed.global_state.client
  try:
    yield
  except (Exception, KeyboardInterrupt) as e:
    if client is None:
      raise
    process_id = distributed.global_state.process_id
    message = str(e)
    if not isinstance(e, SENTENCE_ERRORS):
      # The usual cause is a collective that failed since another process ended.
      with contextlib.suppress(RuntimeError):
        if failure := _read_failure():
          _exit_with_error(failure)
      if isinstance(e, jax.errors.JaxRuntimeError) and _ProcessWatch.current:
        gone_process = _ProcessWatch.current.wait_for_gone_process()
        if gone_process is not None:
          _exit_with_error(_gone_message(gone_process))
      if _ProcessWatch.current:
        _ProcessWatch.current.write_collected()
      traceback.print_exc()
      first_line = message.strip().partition("\n")[0]
      message = f"{type(e).__name__}: {first_line}"
    # The call fails if a process has already reported a failure.
    with contextlib.suppress(RuntimeError):
      client.key_value_set(_FAILURE_KEY, f"process {process_id}: {message}")
    _exit_with_error(message)


def check_same_as_process_0(name: str, values: dict[str, Any]) -> None:
  """Raises UserError if a value differs from the value in process 0.

  Args:
    name: a name of the values, for messages. Each process passes the same name,
      and passes it only once in a run.
    values: {key: JSON value}, which are compared key by key.
  """
  client = distributed.global_state.client
  if client is None:
    return
  if distributed.global_state.process_id == 0:
    client.key_value_set(f"bert_jax/{name}", json.dumps(values))
    return
  text = client.blocking_key_value_get(f"bert_jax/{name}", _WAIT_MILLISECONDS)
  values_of_process_0, values = json.loads(text), json.loads(json.dumps(values))
  differences = [
    f"{key}={values.get(key)!r}, not {values_of_process_0.get(key)!r}"
    for key in sorted(values_of_process_0.keys() | values.keys())
    if values_of_process_0.get(key) != values.get(key)
  ]
  if differences:
    raise UserError(
      f"{name} differs from that of process 0: {'; '.join(differences)}; start"
      " every process with the same command and the same data."
    )


def gather(json_value: Any) -> list[Any]:
  """Returns the values of all processes, in the order of the process numbers.

  All processes must call this function.
  """
  if jax.process_count() == 1:
    return [json_value]
  encoded_value = np.frombuffer(json.dumps(json_value).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(len(encoded_value)))
  padded_value = np.zeros(sizes.max(), np.uint8)
  padded_value[: len(encoded_value)] = encoded_value
  padded_values = multihost_utils.process_allgather(padded_value)
  return [
    json.loads(process_value[:size].tobytes())
    for process_value, size in zip(padded_values, sizes, strict=True)
  ]


def wait_for_all(name: str, seconds: int = _WAIT_MILLISECONDS // 1000) -> None:
  """Waits until every process calls this function.

  Args:
    name: the name of this wait, the same in all processes. Each process passes
      a name only once in a run.
    seconds: the longest time to wait.

  Raises:
    RuntimeError: a process did not call this function in time.
  """
  client = distributed.global_state.client
  if client is not None:
    client.wait_at_barrier(f"bert_jax/{name}", 1000 * seconds)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
  """Collects SIGTERM and SIGINT in a list.

  A SIGINT after one of these signals raises KeyboardInterrupt. Python handles
  signals in its main thread only. So outside of the main thread this function
  leaves signals alone, and the list stays empty.

  In a run of several processes, jax handles SIGTERM and notifies all processes.
  In such a run, this function turns SIGINT into SIGTERM.
  """
  signals: list[int] = []
  has_several_processes = jax.process_count() > 1

  def record_signal(number: int, frame: types.FrameType | None) -> None:
    if number == signal.SIGINT and signals:
      signal.default_int_handler(number, frame)
    signals.append(number)
    say(
      "stopping: saving a checkpoint after this step; Ctrl-C now stops without"
      " it ..."
    )
    if has_several_processes:
      os.kill(os.getpid(), signal.SIGTERM)

  signal_numbers = (
    [signal.SIGINT]
    if has_several_processes
    else [signal.SIGINT, signal.SIGTERM]
  )
  if threading.current_thread() is not threading.main_thread():
    signal_numbers = []
  old_handlers = {
    number: signal.signal(number, record_signal) for number in signal_numbers
  }
  try:
    yield signals
  finally:
    for number, handler in old_handlers.items():
      signal.signal(number, handler)


def stop_requested(step: int, signals: list[int]) -> bool:
  """Returns True if the run must save and stop after this step.

  All processes get True at the same step.

  Args:
    step: the number of steps done.
    signals: the signals that `stop_signals` collected in this process.
  """
  if jax.process_count() > 1:
    return multihost_utils.reached_preemption_sync_point(step)
  return bool(signals)
