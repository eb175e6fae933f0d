"""Writes files atomically, locks them, reads JSON, and checks digests.

A new file is written in the folder of its target, under a random name, and then
renamed. So a reader sees either the whole old file or the whole new file. Only
a local file system can do this, so the functions that write or lock take local
paths.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, BinaryIO

import filelock
from etils import epath

from bert_jax.messages import DamagedFile, UserError, note_once, same_call

# The type of a path that a caller gives: a str or a path object.
PathLike = str | os.PathLike[str]
# The digest of a file with more bytes than this takes seconds, so a line is
# printed before it is computed.
_LARGE_BYTES = 2**32
# The largest number of levels of nested JSON. Python's own limit of about 1,000
# depends on the caller's depth, and the files that are read here need only a
# few levels.
_MAX_DEPTH = 100
_TEMPORARY_NAME_PATTERN = re.compile(r"\..+\.[0-9a-f]{16}\.(tmp|partial)")


class ChangedData(OSError):
  """A file of a run's data was changed while the run was reading it."""


class ChangedInput(UserError):
  """An input was changed while it was read, so its content cannot be used."""


def temporary_path(path: PathLike) -> str:
  """Returns a path in the folder of `path` at which no file exists yet.

  The file's name is random, so that nobody can put a link there in advance.
  """
  target = pathlib.Path(path)
  return str(target.parent / f".{target.name}.{secrets.token_hex(8)}.tmp")


def create_file(path: PathLike) -> BinaryIO:
  """Creates a file and opens it for bytes.

  Raises:
    FileExistsError: a file or link has this name already.
  """
  flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
  return os.fdopen(os.open(path, flags, 0o666), "w+b")


def open_unless_link(
  path: PathLike, flags: int = os.O_RDWR | os.O_CREAT
) -> BinaryIO:
  """Opens a file for reading and writing, unless its name is a symbolic link.

  Use it if other users can guess the name: they may have put a link there.

  Args:
    path: the file; by default it is made if it is missing.
    flags: the flags for `os.open`.

  Raises:
    OSError: the file cannot be opened, or the name is a symbolic link.
  """
  flags |= os.O_NOFOLLOW | os.O_CLOEXEC
  return os.fdopen(os.open(path, flags, 0o666), "r+b")


class LockHeld(UserError):
  """Another process holds a lock that this process needs."""


@contextlib.contextmanager
def hold_lock(path: PathLike) -> Iterator[None]:
  """Holds a lock until the end of the block, or of the process.

  Args:
    path: the lock's file, which is made if needed and never deleted.

  Raises:
    LockHeld: another process, or a block of this process, holds the lock.
    OSError: the file cannot be written, or it is a symbolic link.
  """
  lock = filelock.FileLock(path, timeout=0)
  try:
    lock.acquire()
  except filelock.Timeout as e:
    raise LockHeld(f"{path}: another process holds this lock.") from e
  try:
    yield
  finally:
    lock.release()


def delete_temporary_files(folder: PathLike) -> None:
  """Deletes the temporary files of killed writers.

  No writer may be active in the folder.
  """
  for path in pathlib.Path(folder).iterdir():
    if _TEMPORARY_NAME_PATTERN.fullmatch(path.name) and not path.is_dir():
      with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def atomic_file(path: PathLike) -> Iterator[str]:
  """Yields the path of a new file, which is renamed to `path` at the end.

  The content is on the disk before the file is renamed. So if the process is
  killed or the disk is full, `path` is either the old file or the whole new
  file. After an error the old file is unchanged, and the new file is deleted.

  Raises:
    OSError: the file cannot be written; the error names `path`.
  """
  new_path = temporary_path(path)
  try:
    create_file(new_path).close()
    yield new_path
    with pathlib.Path(new_path).open("rb") as f:
      os.fsync(f.fileno())
    pathlib.Path(new_path).replace(path)
  except OSError as e:
    if e.filename in (None, new_path):
      e.filename = os.fspath(path)
    e.filename2 = None
    raise
  finally:
    pathlib.Path(new_path).unlink(missing_ok=True)
  sync_folder(pathlib.Path(path).parent)


def write_atomically(path: PathLike, content: str | bytes) -> None:
  """Writes a file with `atomic_file`; a text is written as UTF-8."""
  with atomic_file(path) as new_path:
    pathlib.Path(new_path).write_bytes(
      content if isinstance(content, bytes) else content.encode()
    )


@contextlib.contextmanager
def open_text_output(path: PathLike) -> Iterator[IO[str]]:
  """Opens a command's output, a UTF-8 text file; "-" is stdout.

  A file gets its name only when it is complete. If the output is stdout,
  everything else that the command prints goes to stderr. A command opens its
  output before it loads anything, so that an output that cannot be written is
  reported at once.
  """
  if path == "-":
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
      yield stdout
      stdout.flush()
    return
  with (
    atomic_file(path) as new_path,
    pathlib.Path(new_path).open("w", encoding="utf-8") as f,
  ):
    yield f


@contextlib.contextmanager
def atomic_folder(path: PathLike) -> Iterator[str]:
  """Yields a new folder to fill, which is renamed to `path` at the end.

  After an error the new folder is deleted. Missing parent folders are made. An
  empty folder at `path` is replaced. The caller must write the files of the
  folder with `write_durably`, or call `sync_file` for each file.

  Raises:
    OSError: the folder cannot be written; the error names `path`.
  """
  # Do not use `resolve`: it follows links, and messages must show the path as
  # the user gave it.
  target = pathlib.Path(os.path.abspath(path))  # noqa: PTH100
  temporary_folder = temporary_path(target)
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(temporary_folder).mkdir()
    yield temporary_folder
    rename_durably(temporary_folder, target)
  except OSError as e:
    if e.filename is None or str(e.filename).startswith(temporary_folder):
      raise OSError(e.errno, e.strerror, str(target)) from e
    raise
  finally:
    shutil.rmtree(temporary_folder, ignore_errors=True)


def rename_durably(source: PathLike, target: PathLike) -> None:
  """Renames a file or folder, and waits until the new name is on the disk."""
  pathlib.Path(source).rename(target)
  sync_folder(pathlib.Path(target).parent)


def write_durably(path: PathLike, content: bytes) -> None:
  """Writes a file and waits until it is on the disk.

  Raises:
    OSError: the file cannot be written; the error names `path`.
  """
  try:
    with pathlib.Path(path).open("wb") as f:
      f.write(content)
      sync_file(f)
  except OSError as e:
    raise OSError(e.errno, e.strerror, os.fspath(path)) from e


def sync_file(file: IO[Any]) -> None:
  """Waits until all that was written to an open file is on the disk."""
  file.flush()
  os.fsync(file.fileno())


def write_json(path: PathLike, content: Any) -> None:
  """Writes a JSON value with `write_atomically`."""
  write_atomically(path, format_json(content))


def format_json(content: Any) -> str:
  """Returns a JSON value as indented text, for a file that people may read."""
  return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def parse_json(text: str | bytes) -> Any:
  """Parses JSON from a file that may be damaged or malicious.

  Raises:
    json.JSONDecodeError: the text is not JSON, is nested too deeply, or has a
      number with too many digits. This error is a ValueError.
    UnicodeDecodeError: the bytes are not UTF-8. This error is also a
      ValueError.
  """
  try:
    content = json.loads(text)
  except (json.JSONDecodeError, UnicodeDecodeError):
    raise
  except RecursionError as e:
    raise json.JSONDecodeError("nested too deeply", "", 0) from e
  except ValueError as e:
    raise json.JSONDecodeError("a number of too many digits", "", 0) from e
  if isinstance(text, bytes):
    num_brackets = text.count(b"[") + text.count(b"{")
  else:
    num_brackets = text.count("[") + text.count("{")
  # With fewer brackets, the text cannot have more levels than the limit.
  if num_brackets > _MAX_DEPTH:
    _check_depth(content)
  return content


def _check_depth(content: Any) -> None:
  """Raises JSONDecodeError if a value has more than `_MAX_DEPTH` levels."""
  containers = [content] if isinstance(content, dict | list) else []
  for _ in range(_MAX_DEPTH):
    containers = [
      child
      for parent in containers
      for child in (parent.values() if isinstance(parent, dict) else parent)
      if isinstance(child, dict | list)
    ]
  if containers:
    raise json.JSONDecodeError("nested too deeply", "", 0)


def decode_utf8(content: bytes, path: PathLike) -> str:
  """Decodes the content of a file.

  Args:
    content: the bytes of the file.
    path: the file, for messages.

  Raises:
    UserError: the bytes are not UTF-8.
  """
  try:
    return content.decode("utf-8")
  except UnicodeDecodeError as e:
    raise UserError(f"{path} is not UTF-8 (byte {e.start}).") from e


def parse_json_object(text: str, source: PathLike) -> dict[str, Any]:
  """Parses the content of a file that must hold a JSON object.

  Args:
    text: the content of the file.
    source: the name of the file, for messages.

  Raises:
    UserError: the text is not a JSON object; the message names the line.
  """
  try:
    content = parse_json(text)
  except json.JSONDecodeError as e:
    raise UserError(f"{source}:{e.lineno} is not JSON ({e.msg}).") from e
  except ValueError as e:
    raise UserError(f"{source} is not JSON ({e}).") from e
  if not isinstance(content, dict):
    raise UserError(f"{source} is not a JSON object.")
  return content


def read_json(path: PathLike) -> Any:
  """Reads a JSON file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is not valid JSON; see `parse_json`.
  """
  return parse_json(epath.Path(path).read_bytes())


def read_json_object(
  path: PathLike,
  missing_advice: str = "; put back the file of this run",
  damaged_advice: str = "; put it back",
) -> dict[str, Any]:
  """Reads a file that holds a JSON object.

  Args:
    path: the file.
    missing_advice: the end of the error message for a missing file. The default
      is for a file of a run's folder.
    damaged_advice: the end of the error message for a file that is not JSON.

  Raises:
    DamagedFile: the file is missing or damaged.
  """
  try:
    content = read_json(path)
  except FileNotFoundError as e:
    raise DamagedFile(f"{path} is missing{missing_advice}.") from e
  except ValueError as e:
    raise DamagedFile(f"{path} is damaged ({e}){damaged_advice}.") from e
  if not isinstance(content, dict):
    raise DamagedFile(f"{path} is damaged: it holds no JSON object.")
  return content


def without_nan(content: Any) -> Any:
  """Returns a JSON value in which NaN and infinity are replaced by null."""
  if isinstance(content, dict):
    return {key: without_nan(child) for key, child in content.items()}
  if isinstance(content, list | tuple):
    return [without_nan(child) for child in content]
  if isinstance(content, float) and not math.isfinite(content):
    return None
  return content


def sync_folder(path: PathLike) -> None:
  """Waits until the renames in a folder are on the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def add_checksum(content: dict[str, Any]) -> dict[str, Any]:
  """Adds a checksum to a JSON object, or replaces its old checksum."""
  return content | {"checksum": _checksum(content)}


def has_valid_checksum(content: dict[str, Any]) -> bool:
  """Returns True if a JSON object is unchanged since `add_checksum`."""
  return content.get("checksum") == _checksum(content)


def _checksum(content: dict[str, Any]) -> int:
  content = {key: content[key] for key in content if key != "checksum"}
  return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def content_digest(content: bytes) -> str:
  """Returns the SHA-256 of bytes as hexadecimal digits."""
  return hashlib.sha256(content).hexdigest()


def file_digest(path: PathLike) -> str:
  """Returns the SHA-256 of a file.

  The file is read again only if it has changed since the last call.

  Raises:
    OSError: the file is missing or cannot be read.
  """
  stat = pathlib.Path(path).stat()
  version = stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
  return _file_digest(os.fspath(path), stat.st_size, version)


@functools.lru_cache(maxsize=1024)
def _file_digest(path: str, size: int, version: tuple[int, ...]) -> str:
  """Returns the SHA-256 of a file.

  The result is cached by all arguments, so a changed file is read again.
  """
  del version
  if size > _LARGE_BYTES:
    note_once(f"checking the {size / 1e9:.1f} GB of {path} ...")
  with pathlib.Path(path).open("rb") as f:
    return hashlib.file_digest(f, "sha256").hexdigest()


def folder_digests(folder: PathLike, names: Iterable[str]) -> dict[str, str]:
  """Returns name -> SHA-256 of some files of a folder.

  The files are read in parallel.

  Raises:
    OSError: a file is missing or cannot be read.
  """
  names = list(names)
  paths = [pathlib.Path(folder, name) for name in names]
  with concurrent.futures.ThreadPoolExecutor() as pool:
    return dict(zip(names, pool.map(file_digest, paths), strict=True))


def changed_files(
  saved_digests: Mapping[str, str], folder: PathLike
) -> list[str]:
  """Returns the names of files that are missing or have changed.

  Args:
    saved_digests: name -> SHA-256 from the time when the files were written.
    folder: the folder of the files.
  """
  present_names = [
    name for name in saved_digests if pathlib.Path(folder, name).is_file()
  ]
  current_digests = folder_digests(folder, present_names)
  return [
    name
    for name in saved_digests
    if current_digests.get(name) != saved_digests[name]
  ]


class FileWatch:
  """Notices if files are changed while they are being read."""

  def __init__(self, paths: Iterable[PathLike]):
    """Remembers the state of the files.

    Make the watch before the content of the files is checked or read.

    Raises:
      OSError: a file is missing.
    """
    self._states = {path: _file_state(path) for path in paths}

  def _changes(self) -> Iterator[tuple[PathLike, str]]:
    """Yields (path, "deleted" or "changed") for each file that differs."""
    for path, old_state in self._states.items():
      try:
        new_state = _file_state(path)
      except FileNotFoundError:
        new_state = None
      if new_state != old_state:
        yield path, "deleted" if new_state is None else "changed"

  def check_run_data(self) -> None:
    """Raises ChangedData if a run's data were changed or deleted.

    The states of the files are compared; no content is read.
    """
    for path, change in self._changes():
      raise ChangedData(
        f"{path} was {change} while this run was reading it, so the steps since"
        " the last checkpoint may have used other data; no further checkpoint"
        f" is saved. Put the right folder back and give {same_call()} again: it"
        " continues from the last checkpoint."
      )

  def check_command_input(self) -> None:
    """Raises ChangedInput if a command's input was changed or deleted."""
    for path, change in self._changes():
      raise ChangedInput(
        f"{path} was {change} while it was read, so the text that was read is a"
        f" mix of two versions. Give {same_call()} again when no program writes"
        " the file."
      )


def _file_state(path: PathLike) -> tuple[int, int, int]:
  """Returns the size, the time of the last write and the inode of a file."""
  stat = pathlib.Path(path).stat()
  return stat.st_size, stat.st_mtime_ns, stat.st_ino
