"""Defines the errors for users, prints notes and progress, suggests names.

The command `bert_jax` (cli/errors.py) prints an error of these classes as one
sentence, and ends with a status that is not zero. Code that reacts to an error
checks its class, never its text.
"""

import contextlib
import contextvars
import difflib
import functools
import importlib
import math
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# A message about an unknown name lists all known names if there are at most
# this many.
_MAX_NAMES = 12
# Seconds until the first line of `Progress`, and between two lines.
FIRST_WAIT, INTERVAL = 1.0, 5.0


class UserError(ValueError):
  """A bad input: a file, flag, key or shape that the user can correct.

  The message is one sentence, which names the bad input and the remedy.
  """


class DamagedFile(UserError):
  """A file or folder is incomplete, or its content was changed or damaged."""


class OutOfMemory(MemoryError):
  """The memory of the host or of a device is too small.

  The message says what would need less memory.
  """


class _Silence:
  """Holds what a `Watch` must know about the lines of this process.

  Attributes:
    last_line_time: when `note` or `say` last printed, in `time.monotonic()`.
    num_progresses: the number of open `Progress` blocks that print lines.
    watches: the open `Watch` blocks. Only the last one in the list prints.
    lock: held while a watch decides whether to print.
  """

  def __init__(self) -> None:
    """Begins as if no line was printed yet."""
    self.last_line_time = -math.inf
    self.num_progresses = 0
    self.watches: list[Watch] = []
    self.lock = threading.Lock()


_silence = _Silence()


def count_as_line() -> None:
  """Tells each `Watch` that the user has just seen a line or other output."""
  _silence.last_line_time = time.monotonic()


def note(line: str) -> None:
  """Prints a line on stderr, because stdout may carry a command's output."""
  print(line, file=sys.stderr, flush=True)
  count_as_line()


# The function that gets the lines of `say`; None for stdout. A new thread
# begins with None.
_listener: contextvars.ContextVar[Callable[[str], None] | None] = (
  contextvars.ContextVar("_listener", default=None)
)


def say(line: str) -> None:
  """Prints a line of a run on stdout, or passes it on; see `pass_lines_to`."""
  listener = _listener.get()
  if listener is None:
    print(line, flush=True)
  else:
    listener(line)
  count_as_line()


@contextlib.contextmanager
def pass_lines_to(listener: Callable[[str], None]) -> Iterator[None]:
  """Within the block, passes this thread's lines of `say` to a function.

  Args:
    listener: gets each line in place of stdout.
  """
  reset_token = _listener.set(listener)
  try:
    yield
  finally:
    _listener.reset(reset_token)


@functools.cache
def note_once(line: str) -> None:
  """Does what `note` does, but prints a line only once in a process."""
  note(line)


class _Parameters(NamedTuple):
  """Holds the parameters of the Python function that the user called.

  Attributes:
    by_key: key of a config -> the name of the parameter that sets it.
    passed_names: the names of the parameters that the user passed.
  """

  by_key: Mapping[str, str]
  passed_names: Collection[str]


# The parameters that messages name; None means that messages name flags.
_parameters: contextvars.ContextVar[_Parameters | None] = (
  contextvars.ContextVar("_parameters", default=None)
)
# True within `name_flags`, where messages never name parameters.
_is_command: contextvars.ContextVar[bool] = contextvars.ContextVar(
  "_is_command", default=False
)


@contextlib.contextmanager
def name_flags() -> Iterator[None]:
  """Within the block, messages name flags, even within `name_parameters`.

  Every command runs in such a block, because a command may call a Python
  function for users, which calls `name_parameters`.
  """
  reset_token = _is_command.set(True)
  try:
    yield
  finally:
    _is_command.reset(reset_token)


@contextlib.contextmanager
def name_parameters(
  by_key: Mapping[str, str] | None = None, passed_names: Collection[str] = ()
) -> Iterator[None]:
  """Within the block, messages name parameters of Python instead of flags.

  Within `name_flags` this block has no effect. It has no effect in threads that
  begin in the block, either.

  Args:
    by_key: key of a config -> the name of the parameter that sets this key. The
      parameter `config` sets all other keys. Both are parameters of the
      function that the user called.
    passed_names: the names of the parameters that the user passed.
  """
  if _is_command.get():
    yield
    return
  reset_token = _parameters.set(_Parameters(by_key or {}, passed_names))
  try:
    yield
  finally:
    _parameters.reset(reset_token)


def by_caller(command: str, python: str) -> str:
  """Returns one of two texts for a message: for the command or for Python.

  Args:
    command: the words for a user of the command, which name a flag.
    python: the words for a user of the Python functions, which name a
      parameter; see `name_parameters`.
  """
  return command if _parameters.get() is None else python


def key_name(key: str) -> str:
  """Returns how a message names a key of a config.

  The name is the parameter that sets the key if the user passed this parameter,
  else "config.KEY".

  Args:
    key: the key, with dots between its sections.
  """
  parameters = _parameters.get()
  if parameters is not None:
    name = parameters.by_key.get(key, "")
    if name in parameters.passed_names:
      return name
  return f"config.{key}"


def setting(key: str, value: Any) -> str:
  """Returns how the caller sets a key of a config, for a remedy.

  The result has a flag for a command, else the parameter that sets this key, or
  the parameter `config` if no other parameter sets it.

  Args:
    key: the key, with dots between its sections.
    value: the value to set.
  """
  parameters = _parameters.get()
  if parameters is None:
    return f"--config.{key}={value}"
  if name := parameters.by_key.get(key):
    return f"{name}={value!r}"
  return f"config={{{key!r}: {value!r}}}"


def key_in_remedy(key: str) -> str:
  """Returns how a remedy names a key of a config that the caller may change.

  Args:
    key: the key, with dots between its sections.
  """
  parameters = _parameters.get()
  if parameters is None:
    return key
  return parameters.by_key.get(key, f"{key} of config")


def divergence_remedy() -> str:
  """Returns what to do if a loss, gradient or parameter is not finite."""
  return (
    f"lower {key_in_remedy('schedule.peak')} or lengthen"
    f" {key_in_remedy('schedule.warmup')} in a new workdir"
  )


def same_call() -> str:
  """Returns the words for a repetition: of the command, or of the call."""
  return by_caller("the same command", "the same call")


class Progress:
  """Prints lines about a slow call, until the `with` block ends.

  A thread prints them, because the call itself does not return meanwhile. A
  call that ends within `FIRST_WAIT` seconds prints nothing. For example:

  with Progress("predict", len(texts), "texts") as progress:
    for number, text in enumerate(texts):
      progress.report(number)
  """

  def __init__(
    self,
    action: str,
    total: int = 0,
    unit: str = "",
    first_wait: float | None = None,
    write: Callable[[str], None] = note,
  ):
    """Stores what the lines say.

    Args:
      action: what the call does.
      total: the number of things that the call works on; 0 if it does not
        count things.
      unit: the name of the things, in the plural.
      first_wait: seconds until the first line; None means `FIRST_WAIT`.
      write: prints a line.
    """
    self._action, self._total, self._unit = action, total, unit
    self._write = write
    self._first_wait = FIRST_WAIT if first_wait is None else first_wait
    self._done_count = 0
    self._stage = ""
    self._stop_event = threading.Event()
    self._has_printed = False
    self._thread = threading.Thread(target=self._print_lines, daemon=True)

  def __enter__(self) -> "Progress":
    """Starts the thread."""
    self._begin = time.monotonic()
    self._thread.start()
    return self

  def report(self, done: int) -> None:
    """Stores the number of things that are done."""
    self._done_count = done

  def describe(self, stage: str) -> None:
    """Stores what the call does now; the next lines say it."""
    self._stage = f"{stage}, " if stage else ""

  def __exit__(
    self,
    cls: type[BaseException] | None,
    error: BaseException | None,
    trace: types.TracebackType | None,
  ) -> None:
    """Ends the thread.

    If the thread has printed lines, and the block raised no error, a last line
    says how long the block took.
    """
    self._stop_event.set()
    self._thread.join()
    if self._has_printed:
      with _silence.lock:
        _silence.num_progresses -= 1
    if self._has_printed and error is None:
      self._write(f"{self._action}: done in {self._seconds():.1f} s")

  def _seconds(self) -> float:
    return time.monotonic() - self._begin

  def _print_lines(self) -> None:
    if self._stop_event.wait(self._first_wait):
      return
    self._has_printed = True
    with _silence.lock:
      _silence.num_progresses += 1
    unit = self._unit if self._total > 1 else self._unit.removesuffix("s")
    total_text = f": {self._total:,} {unit}" if self._total else ""
    self._write(f"{self._action}{total_text} ...")
    while not self._stop_event.wait(INTERVAL):
      count_text = f"{self._done_count:,} of {self._total:,} {self._unit}, "
      if not self._total:
        count_text = ""
      elif not self._done_count:
        count_text = f"{count_text}compiling, "
      self._write(
        f"{self._action}: {count_text}{self._stage}{self._seconds():.0f} s"
      )


class Watch:
  """Prints a line whenever nothing was printed for `INTERVAL` seconds.

  If nothing was printed since the block began, the first line comes after
  `FIRST_WAIT` seconds. A line that `note`, `say` or `Progress` prints begins a
  new wait. If several `Watch` blocks are open, only the block that began last
  prints. For example:

  with Watch("setting up the run") as watch:
    watch.describe("reading the data")
  """

  def __init__(self, action: str, write: Callable[[str], None] = note):
    """Stores what the lines say.

    Args:
      action: what the block does.
      write: prints a line. The function runs in a copy of this thread's
        context.
    """
    self._action, self._stage, self._has_printed = action, "", False
    self._write, self._context = write, contextvars.copy_context()
    self._stop_event = threading.Event()
    self._thread = threading.Thread(target=self._print_lines, daemon=True)

  def __enter__(self) -> "Watch":
    """Starts the thread."""
    self._begin = time.monotonic()
    with _silence.lock:
      _silence.watches.append(self)
    self._thread.start()
    return self

  def describe(self, stage: str) -> None:
    """Stores what the block does now; the next lines say it."""
    self._stage = f"{stage}, " if stage else ""

  def __exit__(self, *error: object) -> None:
    """Ends the thread."""
    self._stop_event.set()
    self._thread.join()
    with _silence.lock:
      _silence.watches.remove(self)

  def _print_lines(self) -> None:
    while not self._stop_event.wait(self._seconds_left()):
      with _silence.lock:
        if self._seconds_left() > 0:
          continue
        line = f"{self._action}{self._line_end()}"
        self._context.run(self._write, line)
        self._has_printed = True

  def _line_end(self) -> str:
    if not self._has_printed:
      return " ..."
    return f": {self._stage}{time.monotonic() - self._begin:.0f} s"

  def _seconds_left(self) -> float:
    """Returns after how many seconds a line is due; 0 if it is due now."""
    last_line_time = _silence.last_line_time
    is_first_line = not self._has_printed and last_line_time < self._begin
    longest_silence = FIRST_WAIT if is_first_line else INTERVAL
    is_last_watch = _silence.watches[-1:] == [self]
    # If another block prints lines now, look again later.
    if _silence.num_progresses or not is_last_watch:
      return longest_silence
    silence_begin = max(self._begin, last_line_time)
    return max(silence_begin + longest_silence - time.monotonic(), 0.0)


def watched(function: Callable[P, R]) -> Callable[P, R]:
  """Returns `function` with a `Watch` that prints lines while it runs."""

  @functools.wraps(function)
  def watched_function(*args: P.args, **kwargs: P.kwargs) -> R:
    with Watch(function.__name__):
      return function(*args, **kwargs)

  return watched_function


def did_you_mean(name: str, names: Iterable[str]) -> str:
  """Returns the end of a sentence about an unknown name.

  The end is "; did you mean X?" if a known name is similar, else "; choose A,
  B, C." if there are few known names, else ".".

  Args:
    name: the unknown name.
    names: the known names.
  """
  names = sorted(names)
  if close_names := difflib.get_close_matches(name, names, 1):
    return f"; did you mean {close_names[0]}?"
  if 0 < len(names) <= _MAX_NAMES:
    return f"; choose {', '.join(names)}."
  return "."


def lazy_names(
  package: dict[str, Any],
  modules: Mapping[str, str],
  other_names: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
  """Returns a package's `__getattr__` and `__dir__`, which import names late.

  Args:
    package: the package's `globals()`.
    modules: the module of each name. The first use of a name imports its module
      and adds the name to the package.
    other_names: a name that users may know from another library -> the name to
      use instead; for messages.

  Returns:
    `__getattr__`, which raises AttributeError with the nearest names for an
    unknown name; and `__dir__`, which lists the names before their import.
  """

  def get(name: str) -> Any:
    if name not in modules:
      package_name = package["__name__"]
      remedy = did_you_mean(name, modules)
      if name in other_names:
        remedy = f"; use {package_name}.{other_names[name]}."
      raise AttributeError(
        f"module {package_name!r} has no attribute {name!r}{remedy}"
      )
    with Watch(f"importing {modules[name]}"):
      package[name] = getattr(importlib.import_module(modules[name]), name)
    return package[name]

  return get, lambda: sorted({*package, *modules})


def refuse_module_as_command() -> None:
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
