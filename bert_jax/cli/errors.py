"""Turns errors into sentences and exit statuses; no other file does this.

The class of an error decides what happens to it, never its text. An error whose
class is not in `REPORTED_ERRORS` is a fault of the program, and is printed with
its traceback.
"""

import argparse
import contextlib
import os
import sys
import threading
import types
from typing import Any, NoReturn

from bert_jax.messages import OutOfMemory, note_once

# UserError and DamagedFile are ValueErrors, OutOfMemory is a MemoryError. A
# loss that is not a finite number ends a run with a FloatingPointError.
REPORTED_ERRORS = (
  ValueError,
  FloatingPointError,
  OSError,
  MemoryError,
  KeyboardInterrupt,
)
_EVENT_LOOP = "asyncio.base_events"
_CONTINUE_WORDS = "the same command continues where it stopped"


class CommandStopped(SystemExit):
  """Raised when the user or the system stops the command."""


def end_command(
  error: BaseException, args: argparse.Namespace | None, continues: bool
) -> NoReturn:
  """Ends the command with a sentence about an error.

  Args:
    error: an error whose class is in `REPORTED_ERRORS`.
    args: the flags, or None if they could not be parsed.
    continues: True if the verb continues where it stopped when the user gives
      the same command again.

  Raises:
    SystemExit: always. Python prints the sentence that this exception holds,
      and exits with status 1.
    CommandStopped: the error is a KeyboardInterrupt.
  """
  output = getattr(args, "output", None)
  if isinstance(error, KeyboardInterrupt):
    ending = f"; {_CONTINUE_WORDS}." if continues else "; nothing was written."
    if output == "-":
      ending = "."
    raise CommandStopped(f"stopped{ending}") from error
  if isinstance(error, OSError) and error.strerror is not None:
    path = error.filename or (None if output == "-" else output)
    if path is None:
      _discard_output()
      sentence = f"standard output cannot be written: {error.strerror}."
    else:
      sentence = f"{path}: {error.strerror}"
      sentence += _message_end("Once this is corrected", continues)
  elif isinstance(error, MemoryError) and not isinstance(error, OutOfMemory):
    sentence = str(error) or "too little memory"
    sentence += _message_end("With fewer --processes", continues)
  else:  # This package raised the error. Its message is a whole sentence.
    sentence = str(error)
  raise SystemExit(f"error: {sentence}") from error


def _message_end(remedy: str, continues: bool) -> str:
  """Returns the end of a message: how to continue, or "nothing was written".

  Args:
    remedy: what the user must do first.
    continues: see `end_command`.
  """
  if continues:
    return f". {remedy}, {_CONTINUE_WORDS}."
  return "; nothing was written."


def _discard_output() -> None:
  """Redirects standard output to the null device.

  Otherwise Python would try to write the buffered text again when it exits.
  """
  # These errors mean that standard output is closed, or is no file. Then there
  # is nothing to redirect.
  with contextlib.suppress(OSError, ValueError, AttributeError):
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_thread(args: threading.ExceptHookArgs) -> None:
  """Reports the exception of a thread (`threading.excepthook`).

  For example, a full disk stops the thread that saves a checkpoint. The
  training loop raises this error too, and ends the command with a sentence. So
  one line is enough here. An exception that is no OSError is a fault of the
  program, and is printed with its traceback.
  """
  if isinstance(args.exc_value, OSError):
    name = args.thread.name if args.thread else "unknown"
    _note(f"note: thread {name}: {args.exc_value}")
  else:
    threading.__excepthook__(args)


def report_unraisable(args: Any) -> None:
  """Reports the exception of a callback (`sys.unraisablehook`)."""
  if isinstance(args.exc_value, OSError):
    _note(f"note: {args.err_msg or 'in a callback'}: {args.exc_value}")
  elif _is_late_callback(args.exc_value):
    _note(f"note: in a callback: {args.exc_value}")
  elif _is_later_failed_read(args.object, args.exc_value):
    _note("note: orbax could not read other arrays of the checkpoint either.")
  else:
    sys.__unraisablehook__(args)


def report_uncaught(
  cls: type[BaseException],
  error: BaseException,
  trace: types.TracebackType | None,
) -> None:
  """Reports an exception that nothing caught (`sys.excepthook`)."""
  if _is_late_callback(error):
    _note(f"note: in a callback: {error}")
  else:
    sys.__excepthook__(cls, error, trace)


def _is_late_callback(error: BaseException | None) -> bool:
  """Returns True if asyncio refused a callback because its loop is closed.

  If a process cannot read an array of a checkpoint, orbax closes the event
  loop, while it is still reading further arrays. tensorstore and Python's
  garbage collector report the callback of each unfinished read. The training
  loop has raised the error that matters by then, so one line is enough.
  """
  if not isinstance(error, RuntimeError):
    return False
  return _module_that_raised(error.__traceback__) == _EVENT_LOOP


def _is_later_failed_read(source: Any, error: BaseException | None) -> bool:
  """Returns True if orbax failed to read an array after a first failure.

  After the first failure nothing waits for the coroutines of the remaining
  reads, so the garbage collector reports their failures, with some 60 lines for
  each array.
  """
  if not isinstance(source, types.CoroutineType) or error is None:
    return False
  return (_module_that_raised(error.__traceback__) or "").startswith("orbax.")


def _module_that_raised(trace: types.TracebackType | None) -> str | None:
  """Returns the name of the module that raised an exception."""
  while trace is not None and trace.tb_next is not None:
    trace = trace.tb_next
  return trace.tb_frame.f_globals.get("__name__") if trace else None


def _note(line: str) -> None:
  """Prints a line only once, because many reads fail for one reason."""
  note_once(line.replace("\n", " "))
