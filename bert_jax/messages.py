"""Errors that a user reads as one sentence, notes, and "did you mean".

The command `bert_jax` (cli/errors.py) prints each of these classes as one
sentence and ends with a status that is not zero. Code that reacts to an error
goes by its class, never by its text.
"""

import difflib
import functools
import sys
from collections.abc import Iterable

# A sentence lists all names if there are no more than this.
_MAX_LISTED = 12


class UserError(ValueError):
  """A bad input: a file, flag, key or shape that the user can correct.

  The message is one sentence, which names the bad input and the remedy.
  """


class Damaged(UserError):
  """A file or folder is incomplete, or its content was changed or damaged."""


class OutOfMemory(MemoryError):
  """The memory of the host or of a device is too small.

  The message says what would need less memory.
  """


def note(line: str) -> None:
  """Prints a line on stderr, because stdout may carry a command's output."""
  print(line, file=sys.stderr, flush=True)


@functools.cache
def note_once(line: str) -> None:
  """Does what `note` does, but prints a line only once in a process."""
  note(line)


def nearest(name: str, names: Iterable[str]) -> str:
  """Returns the end of a sentence about an unknown name.

  It is "; did you mean X?" if a known name is similar, else "; choose A, B, C."
  if there are few known names, else ".".

  Args:
    name: the unknown name.
    names: the known names.
  """
  names = sorted(names)
  if close := difflib.get_close_matches(name, names, 1):
    return f"; did you mean {close[0]}?"
  if 0 < len(names) <= _MAX_LISTED:
    return f"; choose {', '.join(names)}."
  return "."
