"""Runs a function in a process of its own, which may crash."""

import multiprocessing
import multiprocessing.connection
import signal
from collections.abc import Callable, Iterator
from typing import Any


class Crash(Exception):
  """A child process ended without a result; the message says how."""


def run(function: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
  """Yields what `function(*args)` yields in a process of its own.

  Raises:
    ValueError: as raised there.
    Crash: the process ended otherwise.
  """
  context = multiprocessing.get_context("spawn")
  receiver, sender = context.Pipe(duplex=False)
  child = context.Process(
    target=_send, args=(sender, function, args), daemon=True
  )
  child.start()
  sender.close()
  try:
    while (message := receiver.recv()) is not None:
      if isinstance(message, ValueError):
        raise message
      yield message
  except EOFError:
    child.join()
    code = child.exitcode
    how = signal.strsignal(-code) if code < 0 else f"exit code {code}"
    raise Crash(f"{how}".lower()) from None
  finally:
    child.join()


def _send(
  connection: multiprocessing.connection.Connection,
  function: Callable[..., Iterator[Any]],
  args: tuple[Any, ...],
) -> None:
  try:
    for value in function(*args):
      connection.send(value)
    connection.send(None)
  except ValueError as e:
    connection.send(e)
