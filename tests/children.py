"""Defines functions that run in child processes, or that clean their output.

This module imports little, so that the processes start fast.
"""

import os
import re
import signal

# A line of `messages.Progress` or `messages.Watch`.
_PROGRESS_LINE_PATTERN = re.compile(
  r".* \.\.\.|.*: (.*, )?\d+ s|.*: done in [\d.]+ s"
)


def without_progress(stderr_text):
  """Returns a command's output on stderr without its lines about progress.

  How many lines about progress there are depends on the speed of the machine.
  """
  return "".join(
    line
    for line in stderr_text.splitlines(keepends=True)
    if not _PROGRESS_LINE_PATTERN.fullmatch(line.rstrip("\n"))
  )


def yield_two_values():
  yield 1
  yield 2


def raise_value_error():
  yield 1
  raise ValueError("a sentence")


def end_by_signal():
  yield 1
  os.kill(os.getpid(), signal.SIGSEGV)


def end_by_exit():
  yield 1
  os._exit(3)
