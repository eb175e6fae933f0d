"""Reads lines of text files, compressed or not, with bounded memory.

Files are decompressed and decoded block by block. So the memory depends neither
on the size of the file, nor on the length of its lines, nor on how much text a
small compressed file holds.
"""

import codecs
import contextlib
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from etils import epath

from bert_jax.messages import DamagedFile, UserError, by_caller, note_once

# A document or line with more than this many characters is cut into parts. The
# limit bounds the memory of the reader and of a worker. "War and Peace" has 3.2
# million characters.
MAX_CHARS = 4 * 2**20
# A record (a JSON object on a line) is parsed as a whole. So a record with more
# than this many characters is an error.
MAX_RECORD_CHARS = 64 * 2**20
# The number of bytes that are decompressed and decoded at a time.
_BLOCK_BYTES = 2**17
# The memory limit for xz: `xz -9` needs 65 MB, but a hostile file can ask for
# 4 GB.
_MAX_XZ_MEMORY = 2**28
# Describes --errors=replace in messages.
REPLACEMENT = " to put U+FFFD for such bytes"
# A long line is cut at the last space among this many characters before the
# limit, or at the limit if they have no space.
_SPACE_RANGE = 1000

COMPRESSED_EXTENSIONS = (".gz", ".xz", ".zst")
_PARQUET_MAGIC = b"PAR1"
# The first bytes of a file that is not text -> what the message says about it.
_MESSAGE_BY_MAGIC = {
  _PARQUET_MAGIC: "a Parquet file",
  b"\x1f\x8b": "compressed by gzip; let its name end with .gz",
  b"\xfd7zXZ\0": "compressed by xz; let its name end with .xz",
  b"\x28\xb5\x2f\xfd": "compressed by zstd; let its name end with .zst",
  b"BZh": "compressed by bzip2; decompress it first",
  b"PK\x03\x04": "a zip archive; unpack it first",
  b"%PDF-": "a PDF; extract its text first",
  b"\xff\xfe": "UTF-16; convert it to UTF-8",
  b"\xfe\xff": "UTF-16; convert it to UTF-8",
}
# A line end: "\n", "\r\n" or "\r". Programs on Windows may write "\r\r\n".
_LINE_END_PATTERN = re.compile(r"\r{0,2}\n|\r")
_NEWLINE_PATTERN = re.compile(r"\n")


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
  """Opens a file that may be compressed.

  Yields:
    The uncompressed stream, and a function that returns the number of bytes of
    the file that were read so far.
  """
  with cast(IO[bytes], epath.Path(path).open("rb")) as file:
    lower_case_path = path.lower()
    stream: Any = file
    if lower_case_path.endswith(".gz"):
      stream = gzip.GzipFile(fileobj=file)
    elif lower_case_path.endswith(".xz"):
      stream = io.BufferedReader(_XzReader(file), _BLOCK_BYTES)
    elif lower_case_path.endswith(".zst"):
      stream = _open_zstd(path, file)
    yield stream, file.tell


def _read_block(path: str, stream: IO[bytes], offset: int) -> bytes:
  """Returns the next bytes of a stream, at most `_BLOCK_BYTES`; b"" at its end.

  Args:
    path: the file, for messages.
    stream: the uncompressed stream from `open_stream`.
    offset: the number of bytes that were read so far, for messages.

  Raises:
    UserError: the compressed file is damaged or incomplete.
    OSError: the disk cannot be read.
  """
  error: Exception
  try:
    return stream.read(_BLOCK_BYTES)
  except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as e:
    error = e
  except OSError as e:
    # pyarrow raises an OSError without an errno if the file is damaged.
    if e.errno is not None:
      raise
    error = e
  raise DamagedFile(
    f"{path}: the compressed file is damaged after {offset:,} bytes of its text"
    f" ({str(error).strip('.')}). Get the file again."
  ) from error


def _open_zstd(path: str, raw: IO[bytes]) -> IO[bytes]:
  """Opens a stream of Zstandard frames; a truncated file is an error.

  pyarrow's reader decompresses one block at a time and reports a truncated
  file. The package zstandard cannot be used: its `stream_reader` ends at the
  truncation without an error, and its `decompressobj` decompresses a whole
  block of input at once, which may give any amount of text.
  """
  try:
    import pyarrow as pa
  except ImportError as e:
    raise UserError(
      f"{path}: reading .zst needs the package pyarrow; run `pip install"
      " pyarrow`, or decompress the file."
    ) from e
  return pa.CompressedInputStream(raw, "zstd")


class _XzReader(io.RawIOBase):
  """Reads concatenated xz streams as one stream, with a memory limit."""

  def __init__(self, raw: IO[bytes]):
    """Wraps a file of xz streams."""
    self._raw = raw
    self._decompressor: lzma.LZMADecompressor | None = None
    self._input = b""

  def readable(self) -> bool:
    """Returns True, as `io.BufferedReader` needs."""
    return True

  def readinto(self, buffer: Any) -> int:
    """Puts uncompressed bytes into a buffer; returns their number.

    The number is 0 at the end of the file.

    Raises:
      EOFError: the file is truncated.
      lzma.LZMAError: the file is damaged.
    """
    while True:
      if self._decompressor is None:
        # There may be zero bytes between two xz streams.
        self._input = self._input.lstrip(b"\0") or self._raw.read(_BLOCK_BYTES)
        if not self._input:
          return 0
        if not self._input.strip(b"\0"):
          continue
        self._decompressor = lzma.LZMADecompressor(memlimit=_MAX_XZ_MEMORY)
      elif self._decompressor.needs_input and not self._input:
        self._input = self._raw.read(_BLOCK_BYTES)
        if not self._input:
          raise EOFError("it ends in the middle")
      uncompressed = self._decompressor.decompress(self._input, len(buffer))
      self._input = b""
      if self._decompressor.eof:
        self._input = self._decompressor.unused_data
        self._decompressor = None
      if uncompressed:
        buffer[: len(uncompressed)] = uncompressed
        return len(uncompressed)


def read_lines(
  path: str, stream: IO[bytes], errors: str, cuts_lines: bool
) -> Iterator[str]:
  """Yields the decoded lines, without line ends and byte-order mark.

  Args:
    path: the file, for messages.
    stream: the uncompressed stream of the file.
    errors: see `sources.find_sources`.
    cuts_lines: True if a line of more than `MAX_CHARS` characters is cut into
      several lines; False if a line of more than `MAX_RECORD_CHARS` characters
      is an error.

  Raises:
    UserError: the file is not UTF-8, a line is too long, or the file is
      damaged.
  """
  decoder = codecs.getincrementaldecoder("utf-8")(errors)
  line_number, offset, held_back_text, has_begun = 1, 0, "", False
  # The parts of the line that has not ended yet, and the number of characters
  # in all parts.
  line_parts: list[str] = []
  line_size, limit = 0, MAX_CHARS if cuts_lines else MAX_RECORD_CHARS
  while True:
    block = _read_block(path, stream, offset)
    if not offset:
      _check_is_text(path, block)
    try:
      text = held_back_text + decoder.decode(block, final=not block)
    except UnicodeDecodeError as e:
      bad_byte = offset + len(block) - len(e.object) + e.start
      valid_text = held_back_text + e.object[: e.start].decode("utf-8")
      bad_line = line_number + len(_LINE_END_PATTERN.findall(valid_text))
      raise UserError(
        f"{path}: the text is not UTF-8 in line {bad_line}, at byte {bad_byte};"
        f" {remedy_for_bytes('convert the file', REPLACEMENT)}."
      ) from e
    if text and not has_begun:
      text, has_begun = text.removeprefix("\ufeff"), True
    offset += len(block)
    # Hold back "\r" at the end: its line end may continue in the next block.
    held_back_text = text[len(text.rstrip("\r")) :][-2:] if block else ""
    text = text[: len(text) - len(held_back_text)]
    # The regular expression is slow, and most files have no "\r".
    first_line, *other_lines = (
      _LINE_END_PATTERN.split(text) if "\r" in text else text.split("\n")
    )
    line_parts.append(first_line)
    line_size += len(first_line)
    if other_lines:
      for line in ("".join(line_parts), *other_lines[:-1]):
        if len(line) > limit:
          yield from _cut_line(path, line_number, line, cuts_lines)
        else:
          yield line
        line_number += 1
      line_parts, line_size = [other_lines[-1]], len(other_lines[-1])
    if line_size > limit:
      *finished_parts, last_part = _cut_line(
        path, line_number, "".join(line_parts), cuts_lines
      )
      yield from finished_parts
      line_parts, line_size = [last_part], len(last_part)
    if not block:
      break
  yield from _cut_line(path, line_number, "".join(line_parts), cuts_lines)


def _cut_line(
  path: str, number: int, line: str, cuts_lines: bool
) -> Iterator[str]:
  """Yields a line, or several lines if it is too long; see `read_lines`."""
  if not cuts_lines:
    if len(line) > MAX_RECORD_CHARS:
      raise UserError(
        f"{path}:{number}: the line has more than {MAX_RECORD_CHARS:,}"
        " characters; put a JSON object on each line, and split a text that is"
        " so long."
      )
    yield line
    return
  start = 0
  while len(line) - start > MAX_CHARS:
    end = start + MAX_CHARS
    after_space = line.rfind(" ", max(end - _SPACE_RANGE, start + 1), end) + 1
    end = after_space or end
    yield line[start:end]
    start = end
  yield line[start:] if start else line


def cut_line(line: str) -> Iterator[str]:
  """Yields a line, or several lines if it is longer than `MAX_CHARS`."""
  return _cut_line("", 0, line, cuts_lines=True)


def _check_is_text(path: str, block: bytes) -> None:
  """Raises UserError if a file begins like a known format that is not text."""
  for magic, message in _MESSAGE_BY_MAGIC.items():
    if block.startswith(magic):
      remedy = ""
      if magic == _PARQUET_MAGIC:
        remedy = by_caller(
          "; leave --format out, or give --format=parquet",
          f"; pass files=parquet:{path}",
        )
      raise UserError(f"{path} is {message}{remedy}.")


def remedy_for_bytes(remedy: str, replacement: str) -> str:
  """Returns the end of a message about text that is not UTF-8.

  Args:
    remedy: what the user can do to the text.
    replacement: what --errors=replace does, with a space before it; or "".
  """
  flag_text = f", or pass --errors=replace{replacement}"
  return remedy + by_caller(flag_text, "")


def join_lines(
  lines: Iterator[str], ends_document: Callable[[str], bool]
) -> Iterator[str]:
  """Joins lines into documents; leaves out documents of blank lines.

  A document also ends when it has more than `MAX_CHARS` characters.

  Args:
    lines: the lines.
    ends_document: a function that returns True for a line that ends a document.
  """
  document_lines: list[str] = []
  num_characters, is_blank = 0, True
  for line in lines:
    # Blank lines count for the limit too, as a file may have only blank lines.
    if ends_document(line) or num_characters > MAX_CHARS:
      if not is_blank:
        yield "\n".join(document_lines)
      document_lines, num_characters, is_blank = [], 0, True
    document_lines.append(line)
    num_characters += len(line) + 1
    is_blank = is_blank and not line.strip()
  if not is_blank:
    yield "\n".join(document_lines)


def cut_text(text: str) -> Iterator[tuple[str, str]]:
  """Cuts a text that is longer than `MAX_CHARS` into several documents.

  Yields:
    (document, layout); see `sources.RawDocument`.
  """
  if len(text) <= MAX_CHARS:
    yield text, "paragraphs"
    return
  for document in join_lines(_split_lines(text), lambda line: False):
    yield document, "paragraphs"


def _split_lines(text: str) -> Iterator[str]:
  """Yields the lines of a text; a line that is too long is cut."""
  start = 0
  for line_end in (
    _LINE_END_PATTERN if "\r" in text else _NEWLINE_PATTERN
  ).finditer(text):
    yield from _cut_line("", 0, text[start : line_end.start()], cuts_lines=True)
    start = line_end.end()
  yield from _cut_line("", 0, text[start:], cuts_lines=True)


def note_null_rows(path: str, num_nulls: int, num_rows: int) -> None:
  """Prints how many rows of a file are left out because their text is null.

  A row is a row of a Parquet file, or a line of a file in the format `jsonl`.
  """
  if num_nulls:
    note_once(
      f"{path}: {num_nulls:,} of {num_rows:,} rows have no text (null); they"
      " are left out."
    )
