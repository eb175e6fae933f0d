"""Runs a function in a separate process, so a crash does not end this one."""

import multiprocessing
import multiprocessing.connection
import signal
from collections.abc import Callable, Iterator
from typing import Any


class Crash(Exception):
  """Raised if a process ends before its function; the message has the cause."""


def run_in_process(
  function: Callable[..., Iterator[Any]], *args: Any
) -> Iterator[Any]:
  """Runs `function(*args)` in a separate process, and yields its results.

  Args:
    function: a generator function. The function and the objects that it yields
      can be pickled.
    *args: the function's arguments, which can be pickled.

  Raises:
    ValueError: the function raised this error.
    Crash: the process ended before the function did.
  """
  context = multiprocessing.get_context("spawn")
  receiver, sender = context.Pipe(duplex=False)
  child = context.Process(
    target=_send_results, args=(sender, function, args), daemon=True
  )
  child.start()
  sender.close()
  try:
    while (result_or_error := receiver.recv()) is not None:
      if isinstance(result_or_error, ValueError):
        raise result_or_error
      yield result_or_error
  except EOFError:
    child.join()
    exit_code = child.exitcode or 0
    cause = (
      signal.strsignal(-exit_code)
      if exit_code < 0
      else f"exit code {exit_code}"
    )
    raise Crash(f"{cause}".lower()) from None
  finally:
    child.join()


def _send_results(
  connection: multiprocessing.connection.Connection,
  function: Callable[..., Iterator[Any]],
  args: tuple[Any, ...],
) -> None:
  try:
    for result in function(*args):
      connection.send(result)
    connection.send(None)  # This says that the function has ended.
  except ValueError as e:
    connection.send(e)
