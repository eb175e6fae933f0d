"""Inputs (globs, TFDS names, `docstrings`) to documents of sentences.

Two steps, so that a program can do them in different processes:
`read_records` yields raw documents (fast, in order, streaming), and
`split_sentences` makes one into sentences (slow, a pure function).

Files are read block by block (see `lines.py`), so the memory depends neither on
the size of the file, nor on the length of its lines, nor on how much text a
small compressed file holds.
"""

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bert_jax import files
from bert_jax.corpus import lines, parquet
from bert_jax.files import parse_json
from bert_jax.messages import UserError

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
# A document is a list of sentences, none of them blank.
Document = list[str]

# `sentencex` keeps quotations whole, so that one stray quotation mark makes a
# single sentence of all that follows: a longer paragraph is cut first.
MAX_PARAGRAPH = 5000

_BLANK_LINE = re.compile(r"\n[ \t\r\f\v]*\n")
_GLOB = re.compile(r"[*?\[]")
_SPACE = re.compile(r"\s")
# Characters that are split into words at once.
_BLOCK = 2**16
_PREFIX = re.compile(r"\w+")


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


class Source(NamedTuple):
  """One thing to read.

  Attributes:
    name: path or TFDS name.
    kind: its format, for messages.
    size: bytes on disk, or an estimate; what positions are measured against.
    version: changes when the content does.
    read: yields its raw documents in a fixed order.
  """

  name: str
  kind: str
  size: int
  version: Any
  read: Callable[[], Iterator[Raw]]


class Record(NamedTuple):
  """The raw text of one document, `share` of all inputs read so far."""

  text: str
  layout: str
  share: float


def find_sources(
  inputs: str | Sequence[str], format: str = "auto", errors: str = "strict"
) -> list[Source]:
  """Expands inputs; reads no text yet.

  Args:
    inputs: globs (`**` too; several with commas between them or as a list),
      `tfds:NAME[:SPLIT]`, or `docstrings`. A glob may have a format of its own
      before it: `text:books/*.txt`. Files are read in sorted order, globs in
      the given order, no file twice.
    format: the format for globs that name none: `auto` (by extension, see
      `format_of`) or one of `FORMATS`.
    errors: `strict` or `replace`, for bytes that are not UTF-8.

  Raises:
    UserError: an input stands for no file, or cannot be read.
  """
  names = [inputs] if isinstance(inputs, str) else inputs
  names = [n.strip() for name in names for n in name.split(",") if n.strip()]
  if not names:
    raise UserError("no input; give a glob, tfds:NAME or docstrings.")
  sources: dict[str, Source] = {}
  for name in names:
    if name == "docstrings":
      new_sources = [_docstrings()]
    elif name.startswith("tfds:"):
      new_sources = [_tfds(name)]
    else:
      prefix, _, pattern = name.partition(":")
      if prefix not in FORMATS:
        _check_prefix(name)
        prefix, pattern = format, name
      new_sources = [_file(path, prefix, errors) for path in _expand(pattern)]
    for source in new_sources:
      sources.setdefault(os.path.normpath(source.name), source)
  return list(sources.values())


def _check_prefix(name: str) -> None:
  """Raises UserError if a name without a file begins as with a format."""
  word, colon, _ = name.partition(":")
  if not colon or not _PREFIX.fullmatch(word):
    return
  # A file's own name may have a colon in it.
  if os.path.lexists(name) or glob.glob(name, recursive=True):
    return
  raise UserError(
    f"{name}: no such file, and {word!r} before the colon is no format; one of"
    f" {', '.join(FORMATS)} may stand there, or tfds."
  )


def _expand(pattern: str) -> list[str]:
  pattern = os.path.expanduser(pattern)
  if os.path.isfile(pattern):
    return [pattern]
  if os.path.isdir(pattern):
    raise UserError(
      f"{pattern} is a folder; name its files, as in"
      f" '{os.path.join(pattern, '*.txt')}'."
    )
  if os.path.exists(pattern):
    raise UserError(f"{pattern} is no regular file; write the text to one.")
  if not _GLOB.search(pattern):
    raise UserError(f"{pattern}: no such file.")
  paths = sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
  if not paths:
    raise UserError(f"{pattern}: no file has a name like this.")
  return paths


def _file(path: str, format: str, errors: str) -> Source:
  kind = format_of(path) if format == "auto" else format
  watch = files.Watch([path])
  stat = os.stat(path)

  def read() -> Iterator[Raw]:
    try:
      yield from read_file(path, kind, errors)
    except ValueError:
      # Half of a new text may be no text at all.
      watch.check_input()
      raise
    watch.check_input()

  version = [stat.st_size, stat.st_mtime_ns]
  return Source(path, kind, stat.st_size, version, read)


def _docstrings() -> Source:
  from bert_jax.corpus import docstrings

  modules = docstrings.find_modules()
  size = sum(module.size for module in modules)

  def read() -> Iterator[Raw]:
    position = 0
    for module, text in docstrings.read_modules(modules):
      position += module.size
      if text:
        yield Raw(text, "wrapped", position)

  version = docstrings.versions(modules)
  return Source("docstrings", "docstrings", size, version, read)


def _tfds(name: str) -> Source:
  try:
    import tensorflow_datasets as tfds
  except ImportError as e:
    raise UserError(
      f"{name}: reading a TFDS data set needs the packages tensorflow and"
      " tensorflow-datasets; run `pip install 'bert_jax[data]'`."
    ) from e
  # TFDS names hold ":" only before a version, which is never a word.
  match = re.fullmatch(r"tfds:([^:]+(?::\d[\d.*]*)?)(?::([^:]*))?", name)
  if not match:
    raise UserError(f"{name}: write tfds:NAME or tfds:NAME:SPLIT.")
  dataset, split = match[1], match[2] or "train"
  try:
    builder = tfds.builder(dataset)
    builder.download_and_prepare()
    count = builder.info.splits[split].num_examples
    feature = dict(builder.info.features.items()).get("text")
  except Exception as e:  # TFDS raises errors of many kinds.
    message = " ".join(str(e).partition("Available")[0].split())[:200]
    raise UserError(f"{name}: cannot be loaded by TFDS ({message}).") from e
  if not isinstance(feature, tfds.features.Text):
    raise UserError(f"{name}: the data set has no feature `text`.")

  def read() -> Iterator[Raw]:
    config = tfds.ReadConfig(interleave_cycle_length=1)
    rows = builder.as_dataset(
      split=split, shuffle_files=False, read_config=config
    )
    for i, row in enumerate(tfds.as_numpy(rows), 1):
      text = row["text"].decode("utf-8", "replace")
      for part, layout in lines.cut(text):
        yield Raw(part, layout, i)

  return Source(name, "tfds", count, str(builder.info.full_name), read)


def read_records(sources: Sequence[Source]) -> Iterator[Record]:
  """Yields the raw documents of all sources, blank ones left out.

  Raises:
    UserError: from `read_file`.
  """
  total = sum(source.size for source in sources) or 1
  before = 0
  for source in sources:
    for text, layout, position in source.read():
      if not text.isspace() and text:
        share = min((before + position) / total, 1.0)
        yield Record(text, layout, share)
    before += source.size


def split_sentences(record: Record, language: str = "en") -> Document:
  """Splits one raw document into sentences.

  Lines of BERT's format are sentences already. Other text is cut into
  paragraphs (see `Raw`), whose lines are joined; `sentencex` finds
  the sentences in them.
  """
  if record.layout == "lines":
    # Normalisation may have made a line longer than any that is read.
    pieces = (
      piece.strip()
      for line in record.text.split("\n")
      for piece in lines.pieces(line)
    )
    return [piece for piece in pieces if piece]
  from sentencex import segment

  text = record.text.replace("\r\n", "\n").strip()
  paragraphs = _BLANK_LINE.split(text)
  if record.layout == "paragraphs" and len(paragraphs) == 1:
    paragraphs = text.split("\n")
  sentences = []
  for paragraph in paragraphs:
    for part in _parts(single_spaces(paragraph)):
      sentences += [s.strip() for s in segment(language, part)]
  return [sentence for sentence in sentences if sentence]


def single_spaces(text: str) -> str:
  """Returns `" ".join(text.split())` without a list of all the words."""
  parts, start = [], 0
  while start < len(text):
    space = _SPACE.search(text, start + _BLOCK)
    end = space.start() if space else len(text)
    if words := text[start:end].split():
      parts.append(" ".join(words))
    start = end
  return " ".join(parts)


def _parts(paragraph: str) -> Iterator[str]:
  """Cuts at a full stop, else at a space, else anywhere."""
  start = 0
  while len(paragraph) - start > MAX_PARAGRAPH:
    end = start + MAX_PARAGRAPH
    stop = paragraph.rfind(". ", start, end) + 1
    stop = stop or paragraph.rfind(" ", start + 1, end)
    stop = stop if stop > start else end
    yield paragraph[start:stop]
    start = stop
  yield paragraph[start:]


def read_documents(
  inputs: str | Sequence[str],
  format: str = "auto",
  errors: str = "strict",
  language: str = "en",
) -> Iterator[Document]:
  """Yields documents, each a list of sentences, in a fixed order.

  Arguments and errors as in `find_sources`; `language` is an ISO 639 code.
  """
  for record in read_records(find_sources(inputs, format, errors)):
    document = split_sentences(record, language)
    if document:
      yield document


def check_language(code: str) -> None:
  """Raises UserError unless it is a code of `LANGUAGES`."""
  if code not in LANGUAGES:
    raise UserError(
      f"--language={code} is no two-letter ISO 639 code; choose one of"
      f" {', '.join(LANGUAGES)}; a language without one is split well by en."
    )


def format_of(path: str) -> str:
  """Returns the format of a file from its name.

  Raises:
    UserError: the ending of the name is not known.
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
  raise UserError(
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
    UserError: the file cannot be read in this format. The message names the
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
      raise UserError(f"{place}: not a JSON object ({e}).") from e
    if not isinstance(record, dict) or not isinstance(
      record.get("text", 0), str | None
    ):
      raise UserError(
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
    raise UserError(
      f"{place}: `text` has half a surrogate pair at character {e.start};"
      " correct it, or pass --errors=replace."
    ) from e
