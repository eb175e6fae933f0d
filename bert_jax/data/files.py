"""Files that are either the old ones or the new ones, never half of one."""

import json
import os
from typing import Any


def write_atomically(path: str, text: str) -> None:
  """Writes beside, makes that durable, and renames.

  A kill or a full disk at any moment leaves the old file or the new.

  Raises:
    OSError: it cannot be written; the old file is as it was.
  """
  with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as f:
    f.write(text)
    f.flush()
    os.fsync(f.fileno())
  os.replace(path + ".tmp", path)
  sync_folder(os.path.dirname(path))


def write_json(path: str, value: Any) -> None:
  """`write_atomically` of a JSON value."""
  text = json.dumps(value, indent=2, ensure_ascii=False)
  write_atomically(path, text + "\n")


def sync_folder(path: str) -> None:
  """Makes renames in a folder durable."""
  descriptor = os.open(path or ".", os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
