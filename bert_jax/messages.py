"""Errors and notes for a user, and "did you mean"; see `nearest`.

The command `bert_jax` (cli/errors.py) prints each of these classes as one
sentence and ends with a status that is not zero. Code that reacts to an error
goes by its class, never by its text.
"""

import contextlib
import contextvars
import difflib
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

# A message lists all known names if their count is at most this number.
_MAX_NAMES = 12


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


# The function that gets the lines of `say`; None for stdout. A new thread
# begins with None.
_listener: contextvars.ContextVar[Callable[[str], None] | None] = (
  contextvars.ContextVar("_listener", default=None)
)


def say(line: str) -> None:
  """Prints a line of a run on stdout, or passes it on; see `said_to`."""
  listener = _listener.get()
  if listener is None:
    print(line, flush=True)
  else:
    listener(line)


@contextlib.contextmanager
def said_to(listener: Callable[[str], None]) -> Iterator[None]:
  """Passes the lines that this thread says in the block to a function.

  Args:
    listener: gets each line in place of stdout.
  """
  token = _listener.set(listener)
  try:
    yield
  finally:
    _listener.reset(token)


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
  if 0 < len(names) <= _MAX_NAMES:
    return f"; choose {', '.join(names)}."
  return "."


def lazy_names(
  package: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
  """Returns a package's `__getattr__` and `__dir__`, which import names late.

  Args:
    package: the package's `globals()`.
    modules: the module of each name. The first use of a name imports its module
      and adds the name to the package.

  Returns:
    `__getattr__`, which raises AttributeError with the nearest names for an
    unknown name; and `__dir__`, which lists the names before their import.
  """

  def get(name: str) -> Any:
    if name not in modules:
      raise AttributeError(
        f"module {package['__name__']!r} has no attribute {name!r}"
        f"{nearest(name, modules)}"
      )
    package[name] = getattr(importlib.import_module(modules[name]), name)
    return package[name]

  return get, lambda: sorted({*package, *modules})


def refuse_module() -> None:
  """Ends `python -m bert_jax.MODULE` with an error.

  The only command is `bert_jax`. Without this check, Python would import the
  module, do nothing and exit with status 0. While Python looks for the module,
  `sys.argv[0]` is "-m".
  """
  if sys.argv[:1] != ["-m"] or "-m" not in sys.orig_argv:
    return
  name = sys.orig_argv[sys.orig_argv.index("-m") + 1]
  if name.startswith("bert_jax."):
    sys.exit(
      f"error: {name} is not a command; bert_jax --help shows the command's"
      " verbs (or python -m bert_jax --help)."
    )
