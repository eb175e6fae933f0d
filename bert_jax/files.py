"""Files: written atomically, locked, read as JSON, checked by digests.

A new file is written in the same folder under a random name and then renamed.
So a reader sees either the whole old file or the whole new one.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, BinaryIO

import filelock

from bert_jax.messages import Damaged, UserError, note_once

# The digest of a file with more bytes takes seconds, so a line announces it.
_LARGE = 2**32
# The most levels of nested JSON. Python's own limit of about 1,000 depends on
# the caller's depth, and the files that are read here need only a few levels.
_MAX_DEPTH = 100
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.(tmp|partial)")


class Changed(OSError):
  """A file of the data was changed while a run was reading it."""


class ChangedInput(UserError):
  """An input was changed while it was read, so its content cannot be used."""


def beside(path: str, ending: str = "tmp") -> str:
  """Returns a new random name in the same folder."""
  folder, name = os.path.split(path)
  return os.path.join(folder, f".{name}.{secrets.token_hex(8)}.{ending}")


def create(path: str) -> BinaryIO:
  """Creates and opens a file; an existing file or link is an error."""
  flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
  return os.fdopen(os.open(path, flags, 0o666), "w+b")


def open_own(path: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
  """Opens a file with a name that other users can guess.

  Returns:
    A file descriptor.

  Raises:
    OSError: the file cannot be opened, or the name is a symbolic link.
  """
  return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


class Locked(UserError):
  """Another process holds the lock of a path."""


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
  """Holds a lock until the end of the block; the end of a process frees it.

  Args:
    path: the lock's file, which is made and stays.

  Raises:
    Locked: another process, or another block of this one, holds the lock.
    OSError: the file cannot be written, or it is a symbolic link.
  """
  lock = filelock.FileLock(path, timeout=0)
  try:
    lock.acquire()
  except filelock.Timeout as e:
    raise Locked(f"{path}: another process holds this lock.") from e
  try:
    yield
  finally:
    lock.release()


def clear_temporary(folder: str) -> None:
  """Deletes the files that killed writers left; no writer may be active."""
  for name in os.listdir(folder):
    path = os.path.join(folder, name)
    if _TEMPORARY.fullmatch(name) and not os.path.isdir(path):
      with contextlib.suppress(OSError):
        os.remove(path)


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[str]:
  """Yields the path of a new file, which is renamed to `path` at the end.

  The content is durable before the renaming. So a kill or a full disk at any
  moment leaves the old file or the new one. After an error the old file is as
  it was, and nothing is left.

  Raises:
    OSError: the file cannot be written; the error names `path`.
  """
  temporary = beside(path)
  try:
    create(temporary).close()
    yield temporary
    with open(temporary, "rb") as f:
      os.fsync(f.fileno())
    os.replace(temporary, path)
  except OSError as e:
    e.filename = path if e.filename in (None, temporary) else e.filename
    e.filename2 = None
    raise
  finally:
    with contextlib.suppress(FileNotFoundError):
      os.remove(temporary)
  sync_folder(os.path.dirname(path))


def write_atomically(path: str, content: str | bytes) -> None:
  """Writes a file with `atomic_file`."""
  with atomic_file(path) as temporary:
    with open(temporary, "wb") as f:
      f.write(content if isinstance(content, bytes) else content.encode())


@contextlib.contextmanager
def text_output(path: str) -> Iterator[IO[str]]:
  """Opens a command's output, a UTF-8 text file; "-" is stdout.

  A file gets its name only when it is complete. If the output is stdout, all
  other text that the program or a library prints goes to stderr, so that it
  does not mix with the data. A command opens its output before it loads
  anything.
  """
  if path == "-":
    data = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
      yield data
      data.flush()
    return
  with atomic_file(path) as temporary:
    with open(temporary, "w", encoding="utf-8") as f:
      yield f


@contextlib.contextmanager
def atomic_folder(path: str) -> Iterator[str]:
  """Yields a new folder to fill, which is renamed to `path` at the end.

  After an error nothing is left. Missing parent folders are made. An empty
  folder at `path` is replaced. Write the files with `write_durably`, or make
  them durable with `sync_file`.

  Raises:
    OSError: the folder cannot be written; the error names `path`.
  """
  path = os.path.abspath(path)
  temporary = beside(path)
  try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mkdir(temporary)
    yield temporary
    rename(temporary, path)
  except OSError as e:
    if e.filename is None or str(e.filename).startswith(temporary):
      raise OSError(e.errno, e.strerror, path) from e
    raise
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def rename(source: str, target: str) -> None:
  """Gives a file or folder another name in the same folder, durably."""
  os.rename(source, target)
  sync_folder(os.path.dirname(target))


def write_durably(path: str, content: bytes) -> None:
  """Writes a file and waits until it is on the disk.

  Raises:
    OSError: the file cannot be written; the error names `path`.
  """
  try:
    with open(path, "wb") as f:
      f.write(content)
      sync_file(f)
  except OSError as e:
    raise OSError(e.errno, e.strerror, path) from e


def sync_file(file: Any) -> None:
  """Makes what was written to an open file durable."""
  file.flush()
  os.fsync(file.fileno())


def write_json(path: str, value: Any) -> None:
  """Writes a JSON value with `write_atomically`."""
  write_atomically(path, format_json(value))


def format_json(value: Any) -> str:
  """Returns a JSON value as the text of a file that people may read."""
  return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def parse_json(text: str | bytes) -> Any:
  """Parses JSON from a file that may be damaged or malicious.

  Raises:
    json.JSONDecodeError: the text is not JSON, is nested too deeply, or has a
      number with too many digits. This error is a ValueError.
    UnicodeDecodeError: the bytes are not UTF-8. This error is a ValueError too.
  """
  try:
    value = json.loads(text)
  except (json.JSONDecodeError, UnicodeDecodeError):
    raise
  except RecursionError as e:
    raise json.JSONDecodeError("nested too deeply", "", 0) from e
  except ValueError as e:
    raise json.JSONDecodeError("a number of too many digits", "", 0) from e
  openings = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
  if sum(map(text.count, openings)) > _MAX_DEPTH:
    _check_depth(value)
  return value


def _check_depth(value: Any) -> None:
  """Raises JSONDecodeError if a value is nested too deeply for recursion."""
  level = [value] if isinstance(value, dict | list) else []
  for _ in range(_MAX_DEPTH):
    level = [
      item
      for parent in level
      for item in (parent.values() if isinstance(parent, dict) else parent)
      if isinstance(item, dict | list)
    ]
  if level:
    raise json.JSONDecodeError("nested too deeply", "", 0)


def decode(content: bytes, path: str) -> str:
  """Decodes the content of a file; UserError names it if it is not UTF-8."""
  try:
    return content.decode("utf-8")
  except UnicodeDecodeError as e:
    raise UserError(f"{path}: not UTF-8 (byte {e.start}).") from e


def parse_object(text: str, source: str) -> dict[str, Any]:
  """Parses a file that holds a JSON object.

  Args:
    text: the content of the file.
    source: the name of the file, for messages.

  Raises:
    UserError: the text is no JSON object; the message names the line.
  """
  try:
    value = parse_json(text)
  except json.JSONDecodeError as e:
    raise UserError(f"{source}:{e.lineno}: not JSON ({e.msg}).") from e
  except ValueError as e:
    raise UserError(f"{source}: not JSON ({e}).") from e
  if not isinstance(value, dict):
    raise UserError(f"{source}: not a JSON object.")
  return value


def read_json(path: str) -> Any:
  """Reads a JSON file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is not valid JSON; see `parse_json`.
  """
  with open(path, "rb") as f:
    return parse_json(f.read())


def read_object(
  path: str,
  if_missing: str = "; put the run's own back",
  if_damaged: str = "; put it back",
) -> dict[str, Any]:
  """Reads a file that holds a JSON object.

  Args:
    path: the file.
    if_missing: the end of the error message for a missing file. The default is
      for a file of a run's folder.
    if_damaged: the end of the error message for a file that is not JSON.

  Raises:
    Damaged: the file is missing or damaged.
  """
  try:
    value = read_json(path)
  except FileNotFoundError as e:
    raise Damaged(f"{path} is missing{if_missing}.") from e
  except ValueError as e:
    raise Damaged(f"{path} is damaged ({e}){if_damaged}.") from e
  if not isinstance(value, dict):
    raise Damaged(f"{path} is damaged: it holds no JSON object.")
  return value


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
  values = {key: item for key, item in value.items() if key != "checksum"}
  return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def digest(content: bytes) -> str:
  """Returns the SHA-256 of bytes as hexadecimal digits."""
  return hashlib.sha256(content).hexdigest()


def file_digest(path: str) -> str:
  """Returns the SHA-256 of a file; a process reads an unchanged file once.

  Raises:
    OSError: the file is missing or cannot be read.
  """
  stat = os.stat(path)
  times = stat.st_mtime_ns, stat.st_ctime_ns
  return _file_digest(path, stat.st_size, *times, stat.st_ino)


@functools.lru_cache(maxsize=1024)
def _file_digest(path: str, size: int, *times: int) -> str:
  """Returns the SHA-256 of a file; the arguments are the key of the cache."""
  if size > _LARGE:
    note_once(f"checking the {size / 1e9:.1f} GB of {path} ...")
  with open(path, "rb") as f:
    return hashlib.file_digest(f, "sha256").hexdigest()


def digests(folder: str, names: Iterable[str]) -> dict[str, str]:
  """Returns {name: `file_digest`} of files, which are read in parallel.

  Raises:
    OSError: a file is missing or cannot be read.
  """
  names = list(names)
  paths = [os.path.join(folder, name) for name in names]
  with concurrent.futures.ThreadPoolExecutor() as pool:
    return dict(zip(names, pool.map(file_digest, paths), strict=True))


def different(saved: Mapping[str, str], folder: str) -> list[str]:
  """Returns the names of files that are missing or have changed.

  Args:
    saved: {name: SHA-256} from the time when the files were written.
    folder: the folder of the files.
  """
  present = [n for n in saved if os.path.isfile(os.path.join(folder, n))]
  current = digests(folder, present)
  return [name for name in saved if current.get(name) != saved[name]]


class Watch:
  """Notices if files are changed while they are being read."""

  def __init__(self, paths: Iterable[str]):
    """Remembers the state of the files; call it before they are checked.

    Raises:
      OSError: a file is missing.
    """
    self._states = {path: _state(path) for path in paths}

  def _changes(self) -> Iterator[tuple[str, str]]:
    """Yields (path, "deleted" or "changed") for each file that differs."""
    for path, remembered in self._states.items():
      try:
        current = _state(path)
      except FileNotFoundError:
        current = None
      if current != remembered:
        yield path, "deleted" if current is None else "changed"

  def check(self) -> None:
    """Raises Changed if a file was changed or deleted, without reading it."""
    for path, change in self._changes():
      raise Changed(
        f"{path} was {change} while this run was reading it, so the steps since"
        " the last checkpoint may have used other data; no further checkpoint"
        " is saved. Put the right folder back and give the same command again:"
        " it continues from the last checkpoint."
      )

  def check_input(self) -> None:
    """Raises ChangedInput if a file was changed or deleted."""
    for path, change in self._changes():
      raise ChangedInput(
        f"{path} was {change} while it was read, so the text that was read is a"
        " mix of two versions. Give the same command again when no program"
        " writes the file."
      )


def _state(path: str) -> tuple[int, int, int]:
  stat = os.stat(path)
  return stat.st_size, stat.st_mtime_ns, stat.st_ino
