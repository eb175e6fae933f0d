"""Reads inputs as documents of sentences.

An input is a glob of files, the name of a TFDS data set, or `docstrings` for
the docstrings of installed packages. There are two steps, which a program can
do in different processes.
`read_records` yields raw documents in order; this step is fast.
`split_sentences` is a pure function that cuts one raw document into sentences;
this step is slow.

Files are read block by block (see `lines.py`), so the memory depends neither on
the size of the file, nor on the length of its lines, nor on how much text a
small compressed file holds.
"""

import glob
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax import files
from bert_jax.corpus import lines, parquet
from bert_jax.files import parse_json
from bert_jax.messages import UserError, by_caller

# The formats of files; docs/corpus.md describes them.
FORMATS = ("bert", "text", "text_blocks", "text_lines", "jsonl", "parquet")
_FORMAT_BY_EXTENSION = {
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
# The codes of ISO 639-1. `sentencex` accepts any word as a code, and splits
# text in an unknown language as it splits English.
_LANGUAGE_CODES = (
  "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch"
  " co cr cs cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga"
  " gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja"
  " jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv"
  " mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or"
  " os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr"
  " ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi"
  " vo wa wo xh yi yo za zh zu"
)
LANGUAGES = tuple(_LANGUAGE_CODES.split())
# A document is a list of sentences that are not blank.
Document = list[str]

# A paragraph with more than this many characters is cut before it is split into
# sentences. `sentencex` keeps quotations whole, so one stray quotation mark
# would make a single sentence of all text after it.
MAX_PARAGRAPH_CHARS = 5000

_BLANK_LINE_PATTERN = re.compile(r"\n[ \t\r\f\v]*\n")
_GLOB_PATTERN = re.compile(r"[*?\[]")
_SPACE_PATTERN = re.compile(r"\s")
# The number of characters that are split into words at once.
_BLOCK_CHARS = 2**16
# Matches the word before a colon in an input, as in `text:books/*.txt`.
_PREFIX_PATTERN = re.compile(r"\w+")


class RawDocument(NamedTuple):
  """The raw text of one document.

  Attributes:
    text: the text.
    layout: what the text's newlines mean:
      `lines`: each line is a sentence.
      `wrapped`: a blank line ends a paragraph; a newline is a space.
      `paragraphs`: like `wrapped`, but if the text has no blank lines, each
        newline ends a paragraph.
    position: how far the source has been read, in the unit of `Source.size`.
  """

  text: str
  layout: str
  position: int


class Source(NamedTuple):
  """Describes a file or data set to read.

  Attributes:
    name: the path or TFDS name.
    format: one of `FORMATS`, "tfds" or "docstrings".
    size: the number of bytes of the files, or the number of texts of a TFDS
      data set. `RawDocument.position` counts up to this number.
    version: a JSON value that changes when the content changes.
    read: a function that yields the raw documents in a fixed order.
  """

  name: str
  format: str
  size: int
  version: Any
  read: Callable[[], Iterator[RawDocument]]


class Record(NamedTuple):
  """The raw text of one document, and how far reading has come.

  Attributes:
    text: the text.
    layout: see `RawDocument`.
    share: the share of all inputs that has been read so far.
  """

  text: str
  layout: str
  share: float


def find_sources(
  inputs: str | Sequence[str], format: str = "auto", errors: str = "strict"
) -> list[Source]:
  """Returns the sources that the inputs name; reads no text yet.

  Args:
    inputs: globs, which may hold `**`; `tfds:NAME[:SPLIT]`; `docstrings`.
      Several inputs are a list, or have commas between them. A glob may begin
      with a format, such as `text:books/*.txt`. Inputs are read in the order
      given, and the files of a glob in sorted order. No file is read twice.
    format: the format of globs that do not begin with a format: one of
      `FORMATS`, or `auto` for the format that the extension says (see
      `format_of`).
    errors: `strict` to raise an error for bytes that are not UTF-8, `replace`
      to replace them.

  Raises:
    UserError: no file matches an input, or an input cannot be read.
  """
  input_names = [inputs] if isinstance(inputs, str) else inputs
  input_names = [
    input_name.strip()
    for name in input_names
    for input_name in name.split(",")
    if input_name.strip()
  ]
  if not input_names:
    raise UserError("there is no input; give a glob, tfds:NAME or docstrings.")
  sources: dict[str, Source] = {}
  for name in input_names:
    if name == "docstrings":
      new_sources = [_docstrings_source()]
    elif name.startswith("tfds:"):
      new_sources = [_tfds_source(name)]
    else:
      glob_format, _, pattern = name.partition(":")
      if glob_format not in FORMATS:
        _check_prefix(name)
        glob_format, pattern = format, name
      new_sources = [
        _file_source(path, glob_format, errors)
        for path in _expand_glob(pattern)
      ]
    for source in new_sources:
      sources.setdefault(os.path.normpath(source.name), source)
  return list(sources.values())


def _check_prefix(name: str) -> None:
  """Raises UserError if an input begins with WORD:, where WORD is no format.

  An input that names or matches a file is not an error.
  """
  word, colon, _ = name.partition(":")
  if not colon or not _PREFIX_PATTERN.fullmatch(word):
    return
  # The name of a file may contain a colon.
  if os.path.lexists(name) or _matching_paths(name):
    return
  raise UserError(
    f"there is no file {name}, and {word!r} before the colon is no format; the"
    f" formats are {', '.join(FORMATS)}, and tfds."
  )


def _matching_paths(pattern: str) -> list[str]:
  """Returns the paths that match a pattern, which may hold `**`."""
  # `Path.glob` would also match hidden files, and epath's `glob` knows no `**`.
  return glob.glob(pattern, recursive=True)  # noqa: PTH207


def _expand_glob(pattern: str) -> list[str]:
  """Returns the sorted paths of the files that match a glob."""
  # A path object would drop "./" at the beginning, but the names of inputs must
  # be equal to those in the `meta.json` of old folders.
  pattern = os.path.expanduser(pattern)  # noqa: PTH111
  path = epath.Path(pattern)
  if path.is_file():
    return [pattern]
  if path.is_dir():
    raise UserError(
      f"{pattern} is a folder; name its files, as in '{path / '*.txt'}'."
    )
  if path.exists():
    raise UserError(f"{pattern} is no regular file; write the text to one.")
  if not _GLOB_PATTERN.search(pattern):
    raise UserError(f"there is no file {pattern}.")
  paths = sorted(
    matching_path
    for matching_path in _matching_paths(pattern)
    if epath.Path(matching_path).is_file()
  )
  if not paths:
    raise UserError(f"{pattern}: no file has a name like this.")
  return paths


def _file_source(path: str, format: str, errors: str) -> Source:
  """Returns the source of one file; see `find_sources`."""
  if format == "auto":
    format = format_of(path)
  watch = files.FileWatch([path])
  stat = pathlib.Path(path).stat()

  def read() -> Iterator[RawDocument]:
    try:
      yield from read_file(path, format, errors)
    except ValueError:
      # If the file was changed while it was read, `check_command_input` raises
      # an error that says so.
      watch.check_command_input()
      raise
    watch.check_command_input()

  version = [stat.st_size, stat.st_mtime_ns]
  return Source(path, format, stat.st_size, version, read)


def _docstrings_source() -> Source:
  """Returns the docstrings of installed packages as a source."""
  from bert_jax.corpus import docstrings

  modules = docstrings.find_modules()
  size = sum(module.size for module in modules)

  def read() -> Iterator[RawDocument]:
    position = 0
    for module, text in docstrings.read_modules(modules):
      position += module.size
      if text:
        yield RawDocument(text, "wrapped", position)

  version = docstrings.package_versions(modules)
  return Source("docstrings", "docstrings", size, version, read)


def _tfds_source(name: str) -> Source:
  """Returns a data set of TFDS as a source; see `find_sources`."""
  try:
    import tensorflow_datasets as tfds
  except ImportError as e:
    raise UserError(
      f"{name}: reading a TFDS data set needs the packages tensorflow and"
      " tensorflow-datasets; run `pip install 'bert_jax[data]'`."
    ) from e
  # In a TFDS name, a colon is followed by a version, which begins with a digit.
  match = re.fullmatch(r"tfds:([^:]+(?::\d[\d.*]*)?)(?::([^:]*))?", name)
  if not match:
    raise UserError(f"{name}: write tfds:NAME or tfds:NAME:SPLIT.")
  dataset, split = match[1], match[2] or "train"
  try:
    tfds_builder = tfds.builder(dataset)
    tfds_builder.download_and_prepare()
    num_texts = tfds_builder.info.splits[split].num_examples
    feature = dict(tfds_builder.info.features.items()).get("text")
  except Exception as e:  # TFDS raises errors of many kinds.
    message = " ".join(str(e).partition("Available")[0].split())[:200]
    raise UserError(f"{name}: cannot be loaded by TFDS ({message}).") from e
  if not isinstance(feature, tfds.features.Text):
    raise UserError(f"{name}: the data set has no feature `text`.")

  def read() -> Iterator[RawDocument]:
    # Read one file after another, so that the order of the texts is fixed.
    read_config = tfds.ReadConfig(interleave_cycle_length=1)
    entries = tfds_builder.as_dataset(
      split=split, shuffle_files=False, read_config=read_config
    )
    for entry_number, entry in enumerate(tfds.as_numpy(entries), 1):
      text = entry["text"].decode("utf-8", "replace")
      for document, layout in lines.cut_text(text):
        yield RawDocument(document, layout, entry_number)

  return Source(name, "tfds", num_texts, str(tfds_builder.info.full_name), read)


def read_records(sources: Sequence[Source]) -> Iterator[Record]:
  """Yields the raw documents of all sources; leaves out blank documents.

  Raises:
    UserError: see `read_file`.
  """
  total_size = sum(source.size for source in sources) or 1
  earlier_size = 0
  for source in sources:
    for text, layout, position in source.read():
      if not text.isspace() and text:
        share = min((earlier_size + position) / total_size, 1.0)
        yield Record(text, layout, share)
    earlier_size += source.size


def split_sentences(record: Record, language: str = "en") -> Document:
  """Splits one raw document into sentences.

  In BERT's format each line is a sentence already. Any other text is cut into
  paragraphs (see `RawDocument`). The lines of a paragraph are joined, and
  `sentencex` finds the sentences.

  Args:
    record: the raw document.
    language: an ISO 639 code for `sentencex`.
  """
  if record.layout == "lines":
    # Cut the lines again, because Unicode normalization may have made a line
    # longer than `lines.MAX_CHARS`.
    sentences = [
      sentence.strip()
      for line in record.text.split("\n")
      for sentence in lines.cut_line(line)
    ]
    return [sentence for sentence in sentences if sentence]
  from sentencex import segment

  text = record.text.replace("\r\n", "\n").strip()
  paragraphs = _BLANK_LINE_PATTERN.split(text)
  if record.layout == "paragraphs" and len(paragraphs) == 1:
    paragraphs = text.split("\n")
  sentences = []
  for paragraph in paragraphs:
    for block in _cut_paragraph(with_single_spaces(paragraph)):
      sentences += [s.strip() for s in segment(language, block)]
  return [sentence for sentence in sentences if sentence]


def with_single_spaces(text: str) -> str:
  """Returns `" ".join(text.split())`, without a list of all words."""
  blocks, start = [], 0
  while start < len(text):
    space = _SPACE_PATTERN.search(text, start + _BLOCK_CHARS)
    end = space.start() if space else len(text)
    if words := text[start:end].split():
      blocks.append(" ".join(words))
    start = end
  return " ".join(blocks)


def _cut_paragraph(paragraph: str) -> Iterator[str]:
  """Cuts a long paragraph at full stops, else at spaces, else anywhere."""
  start = 0
  while len(paragraph) - start > MAX_PARAGRAPH_CHARS:
    end = start + MAX_PARAGRAPH_CHARS
    cut_position = paragraph.rfind(". ", start, end) + 1
    cut_position = cut_position or paragraph.rfind(" ", start + 1, end)
    cut_position = cut_position if cut_position > start else end
    yield paragraph[start:cut_position]
    start = cut_position
  yield paragraph[start:]


def read_documents(
  inputs: str | Sequence[str],
  format: str = "auto",
  errors: str = "strict",
  language: str = "en",
) -> Iterator[Document]:
  """Yields documents, each a list of sentences, in a fixed order.

  Args:
    inputs: see `find_sources`.
    format: see `find_sources`.
    errors: see `find_sources`.
    language: see `split_sentences`.

  Raises:
    UserError: see `find_sources` and `read_file`.
  """
  for record in read_records(find_sources(inputs, format, errors)):
    document = split_sentences(record, language)
    if document:
      yield document


def check_language(code: str) -> None:
  """Raises UserError if a code is not one of `LANGUAGES`."""
  if code not in LANGUAGES:
    raise UserError(
      f"--language={code} is no two-letter ISO 639 code; choose one of"
      f" {', '.join(LANGUAGES)}; en splits a language without a code well."
    )


def format_of(path: str) -> str:
  """Returns the format of a file from its name.

  Raises:
    UserError: the extension is unknown.
  """
  uncompressed_path = path.lower()
  for compressed_extension in lines.COMPRESSED_EXTENSIONS:
    uncompressed_path = uncompressed_path.removesuffix(compressed_extension)
  extension = epath.Path(uncompressed_path).suffix
  if extension in _FORMAT_BY_EXTENSION:
    return _FORMAT_BY_EXTENSION[extension]
  # An extension that ends with a number, as in shard.0001 or
  # news.en-00001-of-00100, says nothing about the format.
  if re.search(r"[.-]\d+$", extension):
    return "bert"
  raise UserError(
    f"{path}: the name does not tell the format of the file ({extension} is"
    f" not {', '.join(filter(None, _FORMAT_BY_EXTENSION))}); give"
    f" {by_caller('--format, or --input FORMAT:', 'files=FORMAT:')}{path}, with"
    f" one of {', '.join(FORMATS)}."
  )


def read_file(path: str, format: str, errors: str) -> Iterator[RawDocument]:
  """Reads the documents of one file, in order.

  Args:
    path: the file; .gz, .xz and .zst are decompressed while they are read.
    format: one of `FORMATS`.
    errors: see `find_sources`.

  Raises:
    UserError: the file cannot be read in this format. The message names the
      file and the byte, line or row.
    MemoryError: there is too little memory. The message names the file.
  """
  try:
    if format == "parquet":
      for fields in parquet.read_texts(path, errors):
        yield RawDocument(*fields)
      return
    with lines.open_stream(path) as (stream, get_position):
      text_lines = lines.read_lines(path, stream, errors, format != "jsonl")
      if format == "jsonl":
        documents = _parse_jsonl(path, text_lines, errors)
      else:
        documents = _PARSERS[format](text_lines)
      for text, layout in documents:
        yield RawDocument(text, layout, get_position())
  except MemoryError as e:
    raise MemoryError(f"{path}: there is too little memory to read it") from e


# A parser yields (text, layout) of each document in the lines of a file.
_Documents = Iterator[tuple[str, str]]


def _parse_bert(text_lines: Iterator[str]) -> _Documents:
  """Yields documents that end at blank lines, as BERT's program reads them."""
  for text in lines.join_lines(text_lines, lambda line: not line.strip()):
    yield text, "lines"


def _parse_text(text_lines: Iterator[str]) -> _Documents:
  """Yields the whole file as one document of prose."""
  for text in lines.join_lines(text_lines, lambda line: False):
    yield text, "wrapped"


def _parse_text_blocks(text_lines: Iterator[str]) -> _Documents:
  """Yields documents of prose that are separated by blank lines."""
  for text in lines.join_lines(text_lines, lambda line: not line.strip()):
    yield text, "wrapped"


def _parse_text_lines(text_lines: Iterator[str]) -> _Documents:
  """Yields documents of prose, one for each line."""
  for line in text_lines:
    if line.strip():
      yield line, "wrapped"


_PARSERS = {
  "bert": _parse_bert,
  "text": _parse_text,
  "text_blocks": _parse_text_blocks,
  "text_lines": _parse_text_lines,
}


def _parse_jsonl(
  path: str, text_lines: Iterator[str], errors: str
) -> _Documents:
  """Yields the documents in the `text` of JSON objects, one object on a line.

  Args:
    path: the file, for messages.
    text_lines: the lines of the file.
    errors: `strict` to raise an error for text that UTF-8 cannot encode,
      `replace` to replace it.
  """
  num_records = num_nulls = 0
  for line_number, line in enumerate(text_lines, 1):
    if not line.strip():
      continue
    location = f"{path}:{line_number}"
    try:
      record = parse_json(line)
    except ValueError as e:
      raise UserError(f"{location}: not a JSON object ({e}).") from e
    # A missing `text` counts as 0, and so is an error.
    if not isinstance(record, dict) or not isinstance(
      record.get("text", 0), str | None
    ):
      raise UserError(
        f"{location}: not a JSON object with a string `text`; every line must"
        ' be like {"text": "..."}.'
      )
    num_records += 1
    text = record["text"]
    if text is None:
      num_nulls += 1
      continue
    # JSON may spell half of a surrogate pair, which UTF-8 cannot encode.
    if any(escape in line for escape in ("\\ud", "\\uD")):
      text = _without_surrogates(text, location, errors)
    yield from lines.cut_text(text)
  lines.note_null_rows(path, num_nulls, num_records)


def _without_surrogates(text: str, location: str, errors: str) -> str:
  """Replaces halves of surrogate pairs by "?", or raises UserError."""
  try:
    text.encode("utf-8")
    return text
  except UnicodeEncodeError as e:
    if errors == "replace":
      return text.encode("utf-8", "replace").decode("utf-8")
    raise UserError(
      f"{location}: `text` has half a surrogate pair at character {e.start};"
      f" {lines.remedy_for_bytes('correct it', '')}."
    ) from e
