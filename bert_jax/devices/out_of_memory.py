"""Too little memory, of the host or of a device, as an error of one class."""

import contextlib
from collections.abc import Iterator

from bert_jax.messages import OutOfMemory


def is_out_of_memory(error: BaseException) -> bool:
  """Returns True if the memory of the host or of a device did not suffice.

  For a device, jax raises a RuntimeError whose only sign is the name of XLA's
  status at the beginning of its text. This is the one place that reads it.
  """
  return isinstance(error, MemoryError) or (
    isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
  )


@contextlib.contextmanager
def reported(remedy: str) -> Iterator[None]:
  """Turns every such error into `OutOfMemory`.

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
