"""Files that are either the old ones or the new ones, never half of one."""

import contextlib
import json
import math
import os
import sys
import zlib
from collections.abc import Iterator
from typing import IO, Any


def write_atomically(path: str, content: str | bytes) -> None:
  """Writes beside, makes that durable, and renames.

  A kill or a full disk at any moment leaves the old file or the new.

  Raises:
    OSError: it cannot be written; the old file is as it was.
  """
  try:
    with open(path + ".tmp", "wb") as f:
      f.write(content if isinstance(content, bytes) else content.encode())
      f.flush()
      os.fsync(f.fileno())
  except OSError as e:
    with contextlib.suppress(OSError):
      os.remove(path + ".tmp")
    raise OSError(e.errno, e.strerror, path) from e
  os.replace(path + ".tmp", path)
  sync_folder(os.path.dirname(path))


@contextlib.contextmanager
def whole(path: str) -> Iterator[str]:
  """Gives a path beside, which is renamed to `path` if nothing is raised.

  For what is written bit by bit; on an error nothing is left.
  """
  partial = path + ".partial"
  try:
    yield partial
    os.replace(partial, path)
  except OSError as e:
    # Who reads it named the file without the ending.
    e.filename = path if e.filename == partial else e.filename
    raise
  finally:
    with contextlib.suppress(FileNotFoundError):
      os.remove(partial)


@contextlib.contextmanager
def text_output(path: str) -> Iterator[IO[str]]:
  """Opens a command's output, a UTF-8 text file; "-" is stdout.

  A file gets its name once it is whole. While stdout holds the data, whatever
  the program or a library prints goes to stderr, so that no other line stands
  among them. A command opens its output before it loads anything.
  """
  if path == "-":
    data = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
      yield data
      data.flush()
    return
  with whole(path) as partial:
    with open(partial, "w", encoding="utf-8") as f:
      yield f


def write_json(path: str, value: Any) -> None:
  """`write_atomically` of a JSON value."""
  text = json.dumps(value, indent=2, ensure_ascii=False)
  write_atomically(path, text + "\n")


def without_nan(value: Any) -> Any:
  """A JSON value with null for NaN and infinity, which JSON has not."""
  if isinstance(value, dict):
    return {key: without_nan(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [without_nan(item) for item in value]
  odd = isinstance(value, float) and not math.isfinite(value)
  return None if odd else value


def sync_folder(path: str) -> None:
  """Makes renames in a folder durable."""
  descriptor = os.open(path or ".", os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def seal(value: dict[str, Any]) -> dict[str, Any]:
  """Adds a checksum to JSON values, in place of an old one."""
  return value | {"checksum": _checksum(value)}


def is_sealed(value: dict[str, Any]) -> bool:
  """True if the values are those that were sealed."""
  return value.get("checksum") == _checksum(value)


def _checksum(value: dict[str, Any]) -> int:
  rest = {key: item for key, item in value.items() if key != "checksum"}
  return zlib.crc32(json.dumps(rest, sort_keys=True).encode())
