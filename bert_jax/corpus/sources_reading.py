"""Reads the raw documents of one file: formats, compression, encoding.

Files are read block by block, so the memory depends neither on the size of the
file, nor on the length of its lines, nor on how much text a small compressed
file holds. Sentences are split elsewhere (`sources.split_sentences`), because
this is slow and so runs in worker processes.
"""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from bert_jax.corpus import lines, parquet
from bert_jax.files import parse_json

FORMATS = ("bert", "text", "text_blocks", "text_lines", "jsonl", "parquet")
_BY_EXTENSION = {
  "": "bert",
  ".txt": "bert",
  ".text": "bert",
  ".raw": "bert",
  ".tokens": "bert",
  ".md": "text",
  ".markdown": "text",
  ".rst": "text",
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
  """Returns the format of a file from its name.

  Raises:
    ValueError: the ending of the name is not known.
  """
  base = path.lower()
  for extension in lines.COMPRESSED:
    base = base.removesuffix(extension)
  extension = os.path.splitext(base)[1]
  if extension in _BY_EXTENSION:
    return _BY_EXTENSION[extension]
  # An ending with a number, as in part.0001 or news.en-00001-of-00100, tells no
  # format.
  if re.search(r"[.-]\d+$", extension):
    return "bert"
  raise ValueError(
    f"{path}: the name does not tell the format of the file ({extension} is"
    f" none of {', '.join(filter(None, _BY_EXTENSION))}); give --format, or"
    f" --input FORMAT:{path}, with one of {', '.join(FORMATS)}."
  )


def read_file(path: str, format: str, errors: str) -> Iterator[Raw]:
  """Reads the documents of one file, in order.

  Args:
    path: the file; .gz, .xz and .zst are decompressed on the way.
    format: one of `FORMATS`.
    errors: `strict` or `replace`, for bytes that are not UTF-8.

  Raises:
    ValueError: the file cannot be read in this format. The message names the
      file and the byte, line or row.
    MemoryError: there is too little memory. The message names the file.
  """
  try:
    if format == "parquet":
      for raw in parquet.read(path, errors):
        yield Raw(*raw)
      return
    parse = {
      "bert": _bert,
      "text": _text,
      "text_blocks": _text_blocks,
      "text_lines": _text_lines,
      "jsonl": _jsonl,
    }[format]
    with lines.open_stream(path) as (stream, position):
      cuts = format != "jsonl"
      text_lines = lines.read_lines(path, stream, errors, cuts)
      for text, layout in parse(path, text_lines, errors):
        yield Raw(text, layout, position())
  except MemoryError as e:
    raise MemoryError(f"{path}: there is too little memory to read it") from e


def _bert(path: str, text_lines: Iterator[str], errors: str):
  """Yields documents that end at blank lines, as BERT's program reads them."""
  for text in lines.join(text_lines, lambda line: not line.strip()):
    yield text, "lines"


def _text(path: str, text_lines: Iterator[str], errors: str):
  for text in lines.join(text_lines, lambda line: False):
    yield text, "wrapped"


def _text_blocks(path: str, text_lines: Iterator[str], errors: str):
  """Yields documents of prose that are separated by blank lines."""
  for text in lines.join(text_lines, lambda line: not line.strip()):
    yield text, "wrapped"


def _text_lines(path: str, text_lines: Iterator[str], errors: str):
  """Yields documents of prose, one for each line."""
  for line in text_lines:
    if line.strip():
      yield line, "wrapped"


def _jsonl(path: str, text_lines: Iterator[str], errors: str):
  rows = nulls = 0
  for number, line in enumerate(text_lines, 1):
    if not line.strip():
      continue
    place = f"{path}:{number}"
    try:
      record = parse_json(line)
    except ValueError as e:
      raise ValueError(f"{place}: not a JSON object ({e}).") from e
    if not isinstance(record, dict) or not isinstance(
      record.get("text", 0), str | None
    ):
      raise ValueError(
        f"{place}: not a JSON object with a string `text`; every line must be"
        ' like {"text": "..."}.'
      )
    rows += 1
    text = record["text"]
    if text is None:
      nulls += 1
      continue
    # JSON may spell half of a surrogate pair, which no encoding can write.
    if any(half in line for half in ("\\ud", "\\uD")):
      text = _repair(text, place, errors)
    yield from lines.cut(text)
  lines.say_nulls(path, nulls, rows)


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
