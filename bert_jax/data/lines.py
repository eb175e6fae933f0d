"""Lines of text files in blocks: decompressed, decoded, bounded in memory.

Neither the size of a file, nor that of a line in it, nor what a small
compressed file unpacks to decides how much memory is needed.
"""

import codecs
import contextlib
import functools
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

# A longer document or line is cut into several, which bounds the memory of
# reading and of a worker; "War and Peace" has 3.2 million characters.
MAX_CHARS = 4 * 2**20
# A record can be parsed only as a whole: a longer one is an error.
MAX_RECORD = 64 * 2**20
# Bytes that are decompressed and decoded at a time.
_BLOCK = 2**17
# More than `xz -9` needs (65 MB); a hostile file can ask for 4 GB.
_XZ_MEMORY = 2**28
# A line that must be cut is cut at a space if one is this near to the end.
_NEAR = 1000

COMPRESSED = (".gz", ".xz", ".zst")
# How files begin that are no text, and what to do with each.
_MAGIC = {
  b"PAR1": "a Parquet file; leave --format out, or say parquet",
  b"\x1f\x8b": "compressed by gzip; let its name end with .gz",
  b"\xfd7zXZ\0": "compressed by xz; let its name end with .xz",
  b"\x28\xb5\x2f\xfd": "compressed by zstd; let its name end with .zst",
  b"BZh": "compressed by bzip2; decompress it first",
  b"PK\x03\x04": "a zip archive; unpack it first",
  b"%PDF-": "a PDF; extract its text first",
  b"\xff\xfe": "UTF-16; convert it to UTF-8",
  b"\xfe\xff": "UTF-16; convert it to UTF-8",
}
# The end of a line; programs on Windows can double the first character.
_LINE_END = re.compile(r"\r{0,2}\n|\r")
_NEWLINE = re.compile(r"\n")


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
  """Opens a file; yields the uncompressed stream and `tell` of the file."""
  with open(path, "rb") as raw:
    name = path.lower()
    stream: Any = raw
    if name.endswith(".gz"):
      stream = gzip.GzipFile(fileobj=raw)
    elif name.endswith(".xz"):
      stream = io.BufferedReader(_XzReader(raw), _BLOCK)
    elif name.endswith(".zst"):
      stream = _zstd(path, raw)
    yield stream, raw.tell


def _read_block(path: str, stream: IO[bytes], offset: int) -> bytes:
  """The next `_BLOCK` bytes of an uncompressed stream; b"" at its end.

  Args:
    path: the file, for messages.
    stream: of `open_stream`.
    offset: the bytes that were read before, for messages.

  Raises:
    ValueError: the compressed file is damaged, or cut.
    OSError: the disk cannot be read.
  """
  try:
    return stream.read(_BLOCK)
  except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as e:
    error = e
  except OSError as e:
    # pyarrow has errors of its own for damage: without a number.
    if e.errno is not None:
      raise
    error = e
  raise ValueError(
    f"{path}: damaged compressed file, after {offset:,} bytes of its text"
    f" ({str(error).strip('.')}). Get the file again."
  ) from error


def _zstd(path: str, raw: IO[bytes]) -> IO[bytes]:
  """Zstandard frames as a stream; a truncated file is an error.

  pyarrow's reader unpacks a block at a time and notices where a file is cut
  off. Of the package zstandard, `stream_reader` ends there without a word, and
  `decompressobj` unpacks all of a block of input at once.
  """
  try:
    import pyarrow as pa
  except ImportError as e:
    raise ValueError(
      f"{path}: reading .zst needs the package pyarrow; run `pip install"
      " pyarrow`, or decompress the file."
    ) from e
  return pa.CompressedInputStream(raw, "zstd")


class _XzReader(io.RawIOBase):
  """Streams of xz, one after the other, with a limit of memory."""

  def __init__(self, raw: IO[bytes]):
    self._raw = raw
    self._decompressor: lzma.LZMADecompressor | None = None
    self._input = b""

  def readable(self) -> bool:
    return True

  def readinto(self, buffer) -> int:
    while True:
      if self._decompressor is None:
        # Between streams there may be zeros.
        self._input = self._input.lstrip(b"\0") or self._raw.read(_BLOCK)
        if not self._input:
          return 0
        if not self._input.strip(b"\0"):
          continue
        self._decompressor = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
      elif self._decompressor.needs_input and not self._input:
        self._input = self._raw.read(_BLOCK)
        if not self._input:
          raise EOFError("it ends in the middle")
      data = self._decompressor.decompress(self._input, len(buffer))
      self._input = b""
      if self._decompressor.eof:
        self._input = self._decompressor.unused_data
        self._decompressor = None
      if data:
        buffer[: len(data)] = data
        return len(data)


def read_lines(
  path: str, stream: IO[bytes], errors: str, cuts: bool
) -> Iterator[str]:
  """Decodes line by line, without line ends and byte-order mark.

  Args:
    path: the file, for messages.
    stream: its bytes.
    errors: `strict` or `replace`.
    cuts: whether a line of more than `MAX_CHARS` is given in pieces; if not,
      one of more than `MAX_RECORD` is an error.

  Raises:
    ValueError: no UTF-8, too long a line, or damaged.
  """
  decoder = codecs.getincrementaldecoder("utf-8")(errors)
  number, offset, held, begun = 1, 0, "", False
  parts: list[str] = []  # of the line that has not ended yet
  size, limit = 0, MAX_CHARS if cuts else MAX_RECORD
  while True:
    block = _read_block(path, stream, offset)
    if not offset:
      _check_magic(path, block)
    try:
      text = held + decoder.decode(block, final=not block)
    except UnicodeDecodeError as e:
      start = offset + len(block) - len(e.object) + e.start
      before = _LINE_END.findall(held + e.object[: e.start].decode("utf-8"))
      raise ValueError(
        f"{path}: not UTF-8 in line {number + len(before)}, at byte {start};"
        " convert the file, or pass --errors=replace to put U+FFFD for such"
        " bytes."
      ) from e
    if text and not begun:
      text, begun = text.removeprefix("\ufeff"), True
    offset += len(block)
    # These may be the beginning of a longer line end.
    held = text[len(text.rstrip("\r")) :][-2:] if block else ""
    text = text[: len(text) - len(held)]
    # The expression is slow, and most files have no need of it.
    first, *others = _LINE_END.split(text) if "\r" in text else text.split("\n")
    parts.append(first)
    size += len(first)
    if others:
      *others, last = ["".join(parts), *others]
      for line in others:
        if len(line) > limit:
          yield from _whole(path, number, line, cuts)
        else:
          yield line
        number += 1
      parts, size = [last], len(last)
    if size > limit:
      *pieces, last = _whole(path, number, "".join(parts), cuts)
      yield from pieces
      parts, size = [last], len(last)
    if not block:
      break
  yield from _whole(path, number, "".join(parts), cuts)


def _whole(path: str, number: int, line: str, cuts: bool) -> Iterator[str]:
  """A line, in pieces if it is longer than `MAX_CHARS`; see `read_lines`."""
  if not cuts:
    if len(line) > MAX_RECORD:
      raise ValueError(
        f"{path}:{number}: a line of more than {MAX_RECORD:,} characters; put"
        " a JSON object on each line, and split so long a text into several."
      )
    yield line
    return
  start = 0
  while len(line) - start > MAX_CHARS:
    end = start + MAX_CHARS
    space = line.rfind(" ", max(end - _NEAR, start + 1), end) + 1
    end = space or end
    yield line[start:end]
    start = end
  yield line[start:] if start else line


def _check_magic(path: str, block: bytes) -> None:
  """Raises ValueError if a file begins as no text does."""
  for magic, remedy in _MAGIC.items():
    if block.startswith(magic):
      raise ValueError(f"{path} is {remedy}.")


def join(
  lines: Iterator[str], ends_document: Callable[[str], bool]
) -> Iterator[str]:
  """Joins lines to documents of at most about `MAX_CHARS` characters."""
  document: list[str] = []
  size, blank = 0, True
  for line in lines:
    # Blank lines count too: a file may have nothing else.
    if ends_document(line) or size > MAX_CHARS:
      if not blank:
        yield "\n".join(document)
      document, size, blank = [], 0, True
    document.append(line)
    size += len(line) + 1
    blank = blank and not line.strip()
  if not blank:
    yield "\n".join(document)


def cut(text: str) -> Iterator[tuple[str, str]]:
  """Yields a text and its layout, in documents of about `MAX_CHARS`."""
  if len(text) <= MAX_CHARS:
    yield text, "paragraphs"
    return
  for part in join(_split_lines(text), lambda line: False):
    yield part, "paragraphs"


def _split_lines(text: str) -> Iterator[str]:
  """Lines of a text, and pieces of those that are too long."""
  start = 0
  for end in (_LINE_END if "\r" in text else _NEWLINE).finditer(text):
    yield from _whole("", 0, text[start : end.start()], cuts=True)
    start = end.end()
  yield from _whole("", 0, text[start:], cuts=True)


@functools.cache
def say_nulls(path: str, nulls: int, rows: int) -> None:
  """Says once how many rows were left out."""
  if nulls:
    print(
      f"{path}: {nulls:,} of {rows:,} rows have no text (null); they are left"
      " out.",
      file=sys.stderr,
      flush=True,
    )
