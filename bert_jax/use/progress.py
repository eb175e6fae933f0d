"""Says on stderr what a long call does, and how far it is."""

import threading
import time
import types

from bert_jax.messages import note

# Seconds until the first line, and between two lines.
FIRST_WAIT, INTERVAL = 1.0, 5.0


class Progress:
  """Prints lines about a call, in a thread, until the `with` block ends.

  A call that ends within a second prints nothing. For example:

  with Progress("predict", len(texts), "texts") as progress:
    for number, text in enumerate(texts):
      progress.report(number)
  """

  def __init__(self, action: str, total: int = 0, unit: str = ""):
    """Stores what the lines say.

    Args:
      action: what the call does.
      total: the number of things that the call works on; 0 if it does not
        count things.
      unit: the name of these things, in the plural.
    """
    self._action, self._total, self._unit = action, total, unit
    self._done_count = 0
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

  def __exit__(
    self,
    cls: type[BaseException] | None,
    error: BaseException | None,
    trace: types.TracebackType | None,
  ) -> None:
    """Ends the thread, and prints a last line if there was a first one."""
    self._stop_event.set()
    self._thread.join()
    if self._has_printed and error is None:
      note(f"{self._action}: done in {self._seconds():.1f} s")

  def _seconds(self) -> float:
    return time.monotonic() - self._begin

  def _print_lines(self) -> None:
    if self._stop_event.wait(FIRST_WAIT):
      return
    self._has_printed = True
    unit = self._unit if self._total > 1 else self._unit.removesuffix("s")
    total = f": {self._total:,} {unit}" if self._total else ""
    note(f"{self._action}{total} ...")
    while not self._stop_event.wait(INTERVAL):
      count = f"{self._done_count:,} of {self._total:,} {self._unit}, "
      if not self._total:
        count = ""
      elif not self._done_count:
        count = f"{count}compiling, "
      note(f"{self._action}: {count}{self._seconds():.0f} s")
