"""Raw documents of one file: formats, compression, encoding.

Everything streams, so that a file may be larger than memory. Sentences are
split elsewhere (`sources.split_sentences`), since that is the slow part and
belongs in worker processes.
"""

import contextlib
import gzip
import io
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

# A longer document is cut into several, which bounds the memory of reading
# and of a worker; "War and Peace" has 3.2 million characters.
MAX_CHARS = 4 * 2**20

FORMATS = ("bert", "text", "jsonl", "parquet")
_BY_EXTENSION = {
  ".jsonl": "jsonl",
  ".ndjson": "jsonl",
  ".json": "jsonl",
  ".parquet": "parquet",
}
# ISO 639-1. `sentencex` takes any word, and splits what it does not know as
# English.
LANGUAGES = (
  "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch"
  " co cr cs cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga"
  " gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja"
  " jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv"
  " mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or"
  " os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr"
  " ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi"
  " vo wa wo xh yi yo za zh zu"
).split()
_COMPRESSED = (".gz", ".xz", ".zst")


class Raw(NamedTuple):
  """The raw text of one document.

  Attributes:
    text: the text.
    layout: `lines`: a sentence a line. `wrapped`: paragraphs end at blank
      lines, a newline is a space. `paragraphs`: the same, but in a text
      without any blank line every newline ends a paragraph.
    position: how far the input has been read, in the units of its size.
  """

  text: str
  layout: str
  position: int


def check_language(code: str) -> None:
  """Raises ValueError unless it is a code of `LANGUAGES`."""
  if code not in LANGUAGES:
    raise ValueError(
      f"--language={code} is no two-letter ISO 639 code; choose one of"
      f" {', '.join(LANGUAGES)}; a language without one is split well by en."
    )


def format_of(path: str) -> str:
  """Returns the format that a file's name stands for."""
  base = path.lower()
  for extension in _COMPRESSED:
    base = base.removesuffix(extension)
  return _BY_EXTENSION.get(os.path.splitext(base)[1], "bert")


def read_file(path: str, format: str, errors: str) -> Iterator[Raw]:
  """Reads the documents of one file, in order.

  Args:
    path: the file; .gz, .xz and .zst are decompressed on the way.
    format: one of `FORMATS`.
    errors: `strict` or `replace`, for bytes that are not UTF-8.

  Raises:
    ValueError: the file cannot be read as what it should be; names the file
      and the byte or line.
  """
  if format == "parquet":
    yield from _parquet(path)
    return
  parse = {"bert": _bert, "text": _text, "jsonl": _jsonl}[format]
  with _open(path) as (stream, position):
    lines = _lines(path, stream, errors)
    for text, layout in parse(path, lines, errors):
      yield Raw(text, layout, position())


@contextlib.contextmanager
def _open(path: str) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
  """Opens a file; yields the uncompressed stream and `tell` of the file."""
  with open(path, "rb") as raw:
    name = path.lower()
    stream: Any = raw
    if name.endswith(".gz"):
      stream = gzip.GzipFile(fileobj=raw)
    elif name.endswith(".xz"):
      stream = lzma.LZMAFile(raw)
    elif name.endswith(".zst"):
      stream = io.BufferedReader(_ZstdReader(path, raw), 2**17)
    try:
      yield stream, raw.tell
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as e:
      raise ValueError(f"{path}: damaged compressed file ({e}).") from e


class _ZstdReader(io.RawIOBase):
  """Zstandard frames as a stream; a truncated file is an error.

  The library's own `stream_reader` ends silently where a file is cut off.
  """

  def __init__(self, path: str, raw: IO[bytes]):
    try:
      import zstandard
    except ImportError as e:
      raise ValueError(
        f"{path}: reading .zst needs the package zstandard; run"
        " `pip install zstandard`, or decompress the file."
      ) from e
    self._path, self._raw = path, raw
    self._library = zstandard
    self._frame = None
    self._pending = memoryview(b"")
    self._input = b""

  def readable(self) -> bool:
    return True

  def readinto(self, buffer) -> int:
    while not self._pending:
      self._input = self._input or self._raw.read(2**17)
      if not self._input:
        if self._frame:
          raise EOFError("it ends in the middle")
        return 0
      if not self._frame:
        self._frame = self._library.ZstdDecompressor().decompressobj()
      try:
        self._pending = memoryview(self._frame.decompress(self._input))
      except self._library.ZstdError as e:
        raise ValueError(f"{self._path}: damaged compressed file ({e}).") from e
      self._input = self._frame.unused_data
      if self._frame.eof:
        self._frame = None
    n = min(len(buffer), len(self._pending))
    buffer[:n], self._pending = self._pending[:n], self._pending[n:]
    return n


def _lines(path: str, stream: IO[bytes], errors: str) -> Iterator[str]:
  """Decodes line by line, without line ends and byte-order mark."""
  offset = 0
  for number, line in enumerate(stream, 1):
    if not offset and line.startswith(b"\xef\xbb\xbf"):
      offset, line = 3, line[3:]
    try:
      text = line.decode("utf-8", errors)
    except UnicodeDecodeError as e:
      raise ValueError(
        f"{path}: not UTF-8 in line {number}, at byte {offset + e.start};"
        " convert the file, or pass --errors=replace to put U+FFFD for such"
        " bytes."
      ) from e
    offset += len(line)
    yield text.rstrip("\r\n")


def _join(lines: Iterator[str], ends_document: Callable[[str], bool]):
  """Joins lines to documents of at most about `MAX_CHARS` characters."""
  kept: list[str] = []
  size = 0
  for line in lines:
    if ends_document(line) or size > MAX_CHARS:
      if size:
        yield "\n".join(kept)
      kept, size = [], 0
    kept.append(line)
    size += len(line.strip())
  if size:
    yield "\n".join(kept)


def _bert(path: str, lines: Iterator[str], errors: str):
  """BERT's `create_pretraining_data.py`: a blank line ends a document."""
  for text in _join(lines, lambda line: not line.strip()):
    yield text, "lines"


def _text(path: str, lines: Iterator[str], errors: str):
  for text in _join(lines, lambda line: False):
    yield text, "wrapped"


def _jsonl(path: str, lines: Iterator[str], errors: str):
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as e:
      raise ValueError(f"{path}:{number}: not a JSON object ({e}).") from e
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
      raise ValueError(
        f"{path}:{number}: no JSON object with a string `text`; every line"
        ' must be like {"text": "..."}.'
      )
    # JSON may spell half of a surrogate pair, which no encoding can write.
    if any(half in line for half in ("\\ud", "\\uD")):
      text = _repair(text, f"{path}:{number}", errors)
    yield from _cut(text)


def _repair(text: str, place: str, errors: str) -> str:
  try:
    text.encode("utf-8")
    return text
  except UnicodeEncodeError as e:
    if errors == "replace":
      return text.encode("utf-8", "replace").decode("utf-8")
    raise ValueError(
      f"{place}: `text` has half a surrogate pair at character {e.start};"
      " correct it, or pass --errors=replace."
    ) from e


def _cut(text: str) -> Iterator[tuple[str, str]]:
  if len(text) <= MAX_CHARS:
    yield text, "paragraphs"
    return
  for part in _join(iter(text.split("\n")), lambda line: False):
    yield part, "paragraphs"


def _parquet(path: str) -> Iterator[Raw]:
  try:
    import pyarrow as pa
    import pyarrow.parquet as pq
  except ImportError as e:
    raise ValueError(
      f"{path}: reading Parquet needs the package pyarrow; run"
      " `pip install pyarrow`."
    ) from e
  size = os.path.getsize(path)
  try:
    with pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
      schema = file.schema_arrow
      if "text" not in schema.names:
        raise ValueError(
          f"{path}: no column `text`; it has {', '.join(schema.names)}."
        )
      kind = schema.field("text").type
      if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"{path}: the column `text` holds {kind}, no strings.")
      row, rows = 0, file.metadata.num_rows
      for batch in file.iter_batches(batch_size=256, columns=["text"]):
        for text in batch.column(0).to_pylist():
          row += 1
          for part, layout in _cut(text or ""):
            yield Raw(part, layout, size * row // rows)
  except (pa.ArrowException, UnicodeDecodeError) as e:
    raise ValueError(f"{path}: not a readable Parquet file ({e}).") from e
