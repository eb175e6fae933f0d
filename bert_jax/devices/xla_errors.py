"""Errors of XLA and of its libraries, told apart by their status.

These libraries raise errors of a few classes only (RuntimeError, ValueError).
The name of the status stands in the text alone, and this is the one place that
reads it there.
"""

import contextlib
from collections.abc import Iterator

from bert_jax.messages import OutOfMemory

INVALID_ARGUMENT = "INVALID_ARGUMENT"
NOT_FOUND = "NOT_FOUND"
RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"


def has_status(error: BaseException, status: str) -> bool:
  """Returns True if an error of such a library has a status.

  Args:
    error: the error as it was raised.
    status: one of the names above.
  """
  return status in str(error)


def is_out_of_memory(error: BaseException) -> bool:
  """Returns True if the memory of the host or of a device did not suffice."""
  return isinstance(error, MemoryError) or (
    isinstance(error, RuntimeError) and has_status(error, RESOURCE_EXHAUSTED)
  )


@contextlib.contextmanager
def reports_out_of_memory(remedy: str) -> Iterator[None]:
  """Turns an error of too little memory into `OutOfMemory`.

  Args:
    remedy: sentences that say what lowers the need.
  """
  try:
    yield
  except (MemoryError, RuntimeError) as e:
    if not is_out_of_memory(e):
      raise
    reason = str(e).partition("\n")[0]
    raise OutOfMemory(f"out of memory ({reason}). {remedy}") from e
