"""Says on stderr what a long call does, and how far it is."""

import threading
import time
import types

from bert_jax.messages import note

# Seconds until the first line, and from one line to the next.
FIRST, INTERVAL = 1.0, 5.0


class Progress:
  """A context in which a thread prints lines about a call.

  A call that ends within a second prints nothing.

  with Progress("predict", len(texts), "texts") as progress:
    for number, text in enumerate(texts):
      progress.report(number)
  """

  def __init__(self, action: str, total: int = 0, unit: str = ""):
    """Prints nothing yet.

    Args:
      action: what the call does.
      total: the number of things that the call works on; 0 for an action
        without parts.
      unit: what these things are, in the plural.
    """
    self._action, self._total, self._unit = action, total, unit
    self._done = 0
    self._ended = threading.Event()
    self._printed = False
    self._thread = threading.Thread(target=self._print_lines, daemon=True)

  def __enter__(self) -> "Progress":
    """Starts the thread."""
    self._begin = time.monotonic()
    self._thread.start()
    return self

  def report(self, done: int) -> None:
    """Takes the number of things that are done."""
    self._done = done

  def __exit__(
    self,
    cls: type[BaseException] | None,
    error: BaseException | None,
    trace: types.TracebackType | None,
  ) -> None:
    """Ends the thread, and prints a last line if there was a first one."""
    self._ended.set()
    self._thread.join()
    if self._printed and error is None:
      note(f"{self._action}: done in {self._seconds():.1f} s")

  def _seconds(self) -> float:
    return time.monotonic() - self._begin

  def _print_lines(self) -> None:
    if self._ended.wait(FIRST):
      return
    self._printed = True
    unit = self._unit if self._total > 1 else self._unit.removesuffix("s")
    total = f": {self._total:,} {unit}" if self._total else ""
    note(f"{self._action}{total} ...")
    while not self._ended.wait(INTERVAL):
      count = f"{self._done:,} of {self._total:,} {self._unit}, "
      if not self._total:
        count = ""
      elif not self._done:
        count = f"{count}compiling, "
      note(f"{self._action}: {count}{self._seconds():.0f} s")
