"""The one place that turns an error into a sentence and an exit status.

It goes by the class of an error, never by its text. What is not in `REPORTED`
is a fault of the program, and keeps its trace.
"""

import argparse
import os
import sys
import threading
import types
from typing import Any, NoReturn

from bert_jax.messages import OutOfMemory

# UserError and Damaged are ValueErrors, OutOfMemory is a MemoryError. A loss
# that is not a finite number ends a run with a FloatingPointError.
REPORTED = (
  ValueError,
  FloatingPointError,
  OSError,
  MemoryError,
  KeyboardInterrupt,
)
_EVENT_LOOP = "asyncio.base_events"
_RESUME = "the same command continues where it stopped"


class Stopped(SystemExit):
  """The user or the system stopped the command."""


def end(
  error: BaseException, args: argparse.Namespace | None, resumes: bool
) -> NoReturn:
  """Ends the command with a sentence about an error.

  Args:
    error: one of `REPORTED`.
    args: the flags; None if they could not be parsed.
    resumes: True for a verb that continues where it stopped if the same command
      is given again.

  Raises:
    SystemExit: with the sentence, which Python prints, and status 1.
    Stopped: the error is a KeyboardInterrupt.
  """
  output = getattr(args, "output", None)
  if isinstance(error, KeyboardInterrupt):
    ending = f"; {_RESUME}." if resumes else "; nothing was written."
    if output == "-":
      ending = "."
    raise Stopped(f"stopped{ending}") from error
  if isinstance(error, OSError) and error.strerror is not None:
    path = error.filename or (None if output == "-" else output)
    if path is None:
      _discard_output()
      sentence = f"standard output: {error.strerror}."
    else:
      sentence = f"{path}: {error.strerror}"
      sentence += _ending("Once that is corrected", resumes)
  elif isinstance(error, MemoryError) and not isinstance(error, OutOfMemory):
    sentence = str(error) or "too little memory"
    sentence += _ending("With fewer --processes", resumes)
  else:  # It was raised in this package, with a whole sentence.
    sentence = str(error)
  raise SystemExit(f"error: {sentence}") from error


def _ending(remedy: str, resumes: bool) -> str:
  """Returns how a sentence ends that says what stopped a verb."""
  return f". {remedy}, {_RESUME}." if resumes else "; nothing was written."


def _discard_output() -> None:
  """Sends the rest of standard output to nowhere.

  Otherwise Python would try to write what is buffered again when it exits.
  """
  try:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except (OSError, ValueError, AttributeError):
    pass  # Standard output is closed, or not a file.


def report_thread(args: threading.ExceptHookArgs) -> None:
  """Reports the exception of a thread (`threading.excepthook`).

  A full disk stops a thread that saves a checkpoint. The loop raises its error
  too and ends the command with a sentence, so a line suffices here. Any other
  exception is a fault of the program, and is printed with its trace.
  """
  if isinstance(args.exc_value, OSError):
    name = args.thread.name if args.thread else "unknown"
    _note(f"note: thread {name}: {args.exc_value}")
  else:
    threading.__excepthook__(args)


def report_unraisable(args: Any) -> None:
  """The same for an exception in a callback (`sys.unraisablehook`)."""
  if isinstance(args.exc_value, OSError):
    _note(f"note: {args.err_msg or 'in a callback'}: {args.exc_value}")
  else:
    sys.__unraisablehook__(args)


def report_uncaught(
  cls: type[BaseException],
  error: BaseException,
  trace: types.TracebackType | None,
) -> None:
  """Reports an exception that nothing caught (`sys.excepthook`).

  tensorstore reports those of its own callbacks here too. When one process of
  several cannot read a checkpoint, callbacks of the other reads may come after
  orbax has closed the event loop, and asyncio refuses them. The loop of the run
  has raised the error that matters, so a line suffices.
  """
  if isinstance(error, RuntimeError) and _raised_in(trace) == _EVENT_LOOP:
    _note(f"note: in a callback: {error}")
  else:
    sys.__excepthook__(cls, error, trace)


def _raised_in(trace: types.TracebackType | None) -> str | None:
  """Returns the name of the module that raised an exception."""
  while trace is not None and trace.tb_next is not None:
    trace = trace.tb_next
  return trace.tb_frame.f_globals.get("__name__") if trace else None


def _note(line: str) -> None:
  print(line.replace("\n", " "), file=sys.stderr, flush=True)
