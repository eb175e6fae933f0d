"""Inputs (globs, TFDS names, `docstrings`) to documents of sentences.

Two steps, so that a program can do them in different processes:
`read_records` yields raw documents (fast, in order, streaming), and
`split_sentences` makes one into sentences (slow, a pure function).
"""

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bert_jax import files
from bert_jax.corpus import lines
from bert_jax.corpus import sources_reading as reading

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
  read: Callable[[], Iterator[reading.Raw]]


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
      `reading.format_of`) or one of `reading.FORMATS`.
    errors: `strict` or `replace`, for bytes that are not UTF-8.

  Raises:
    ValueError: an input stands for no file, or cannot be read.
  """
  names = [inputs] if isinstance(inputs, str) else inputs
  names = [n.strip() for name in names for n in name.split(",") if n.strip()]
  if not names:
    raise ValueError("no input; give a glob, tfds:NAME or docstrings.")
  sources: dict[str, Source] = {}
  for name in names:
    if name == "docstrings":
      new_sources = [_docstrings()]
    elif name.startswith("tfds:"):
      new_sources = [_tfds(name)]
    else:
      prefix, _, pattern = name.partition(":")
      if prefix not in reading.FORMATS:
        _check_prefix(name)
        prefix, pattern = format, name
      new_sources = [_file(path, prefix, errors) for path in _expand(pattern)]
    for source in new_sources:
      sources.setdefault(os.path.normpath(source.name), source)
  return list(sources.values())


def _check_prefix(name: str) -> None:
  """Raises ValueError if a name without a file begins as with a format."""
  word, colon, _ = name.partition(":")
  if not colon or not _PREFIX.fullmatch(word):
    return
  # A file's own name may have a colon in it.
  if os.path.lexists(name) or glob.glob(name, recursive=True):
    return
  raise ValueError(
    f"{name}: no such file, and {word!r} before the colon is no format; one of"
    f" {', '.join(reading.FORMATS)} may stand there, or tfds."
  )


def _expand(pattern: str) -> list[str]:
  pattern = os.path.expanduser(pattern)
  if os.path.isfile(pattern):
    return [pattern]
  if os.path.isdir(pattern):
    raise ValueError(
      f"{pattern} is a folder; name its files, as in"
      f" '{os.path.join(pattern, '*.txt')}'."
    )
  if os.path.exists(pattern):
    raise ValueError(f"{pattern} is no regular file; write the text to one.")
  if not _GLOB.search(pattern):
    raise ValueError(f"{pattern}: no such file.")
  paths = sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
  if not paths:
    raise ValueError(f"{pattern}: no file has a name like this.")
  return paths


def _file(path: str, format: str, errors: str) -> Source:
  kind = reading.format_of(path) if format == "auto" else format
  watch = files.Watch([path])
  stat = os.stat(path)

  def read() -> Iterator[reading.Raw]:
    try:
      yield from reading.read_file(path, kind, errors)
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

  def read() -> Iterator[reading.Raw]:
    position = 0
    for module, text in docstrings.read_modules(modules):
      position += module.size
      if text:
        yield reading.Raw(text, "wrapped", position)

  version = docstrings.versions(modules)
  return Source("docstrings", "docstrings", size, version, read)


def _tfds(name: str) -> Source:
  try:
    import tensorflow_datasets as tfds
  except ImportError as e:
    raise ValueError(
      f"{name}: reading a TFDS data set needs the packages tensorflow and"
      " tensorflow-datasets; run `pip install 'bert_jax[data]'`."
    ) from e
  # TFDS names hold ":" only before a version, which is never a word.
  match = re.fullmatch(r"tfds:([^:]+(?::\d[\d.*]*)?)(?::([^:]*))?", name)
  if not match:
    raise ValueError(f"{name}: write tfds:NAME or tfds:NAME:SPLIT.")
  dataset, split = match[1], match[2] or "train"
  try:
    builder = tfds.builder(dataset)
    builder.download_and_prepare()
    count = builder.info.splits[split].num_examples
    feature = dict(builder.info.features.items()).get("text")
  except Exception as e:  # TFDS raises errors of many kinds.
    message = " ".join(str(e).partition("Available")[0].split())[:200]
    raise ValueError(f"{name}: cannot be loaded by TFDS ({message}).") from e
  if not isinstance(feature, tfds.features.Text):
    raise ValueError(f"{name}: the data set has no feature `text`.")

  def read() -> Iterator[reading.Raw]:
    config = tfds.ReadConfig(interleave_cycle_length=1)
    rows = builder.as_dataset(
      split=split, shuffle_files=False, read_config=config
    )
    for i, row in enumerate(tfds.as_numpy(rows), 1):
      text = row["text"].decode("utf-8", "replace")
      for part, layout in lines.cut(text):
        yield reading.Raw(part, layout, i)

  return Source(name, "tfds", count, str(builder.info.full_name), read)


def read_records(sources: Sequence[Source]) -> Iterator[Record]:
  """Yields the raw documents of all sources, blank ones left out.

  Raises:
    ValueError: from `reading.read_file`.
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
  paragraphs (see `reading.Raw`), whose lines are joined; `sentencex` finds
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
