"""Tells errors of XLA and of its libraries apart by their status.

XLA and its libraries raise only a few classes of errors (RuntimeError,
ValueError).
The name of the status is only in the error's message, and only this file reads
the status there.
"""

import contextlib
from collections.abc import Iterator

from bert_jax.messages import OutOfMemory

INVALID_ARGUMENT = "INVALID_ARGUMENT"
NOT_FOUND = "NOT_FOUND"
RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"


def has_status(error: BaseException, status: str) -> bool:
  """Returns True if an error has a status, which is a constant of this file."""
  return status in str(error)


def is_out_of_memory(error: BaseException) -> bool:
  """Returns True if the host or a device ran out of memory."""
  return isinstance(error, MemoryError) or (
    isinstance(error, RuntimeError) and has_status(error, RESOURCE_EXHAUSTED)
  )


@contextlib.contextmanager
def reports_out_of_memory(remedy: str) -> Iterator[None]:
  """Raises `OutOfMemory` in place of an error that reports too little memory.

  Args:
    remedy: sentences for the user, which say how to need less memory.
  """
  try:
    yield
  except (MemoryError, RuntimeError) as e:
    if not is_out_of_memory(e):
      raise
    reason = str(e).partition("\n")[0]
    raise OutOfMemory(f"out of memory ({reason}). {remedy}") from e
