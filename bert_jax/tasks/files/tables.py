"""Reads the lines of TSV, CSV and JSONL files as records."""

import csv
import io
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax import files
from bert_jax.messages import UserError
from bert_jax.text.vocabulary import replace_surrogates

_SURROGATE_ESCAPE_PATTERN = re.compile(r"\\u[dD]")


class Record(NamedTuple):
  """Holds one record of a file: a line, or for example a question.

  Attributes:
    fields: column -> cell, or key -> JSON value.
    location: "FILE:LINE", for messages.
  """

  fields: dict[str, Any]
  location: str


def read_text(path: str) -> str:
  """Returns the text of a UTF-8 file, without a byte-order mark.

  Raises:
    ValueError: there is no such file, or it is not UTF-8.
  """
  try:
    text = files.decode_utf8(epath.Path(path).read_bytes(), path)
    return text.removeprefix("\ufeff")
  except FileNotFoundError as e:
    raise UserError(f"there is no file {path}.") from e
  except IsADirectoryError as e:
    raise UserError(f"{path} is a folder; give a file.") from e


def read_lines(path: str) -> list[str]:
  """Returns the lines of a UTF-8 file, without line ends and byte-order mark.

  Only a newline ends a line, because texts hold other separators (U+2028, form
  feed). Empty lines at the end are left out.

  Raises:
    ValueError: the file cannot be read as text, or is empty.
  """
  file_lines = read_text(path).split("\n")
  file_lines = [line.removesuffix("\r") for line in file_lines]
  # A line of tabs is not empty: it is a row of empty fields.
  while file_lines and not file_lines[-1].strip(" "):
    file_lines.pop()
  if not any(line.strip() for line in file_lines):
    raise UserError(f"{path}: the file is empty.")
  return file_lines


def split_rows(path: str, delimiter: str) -> Iterator[tuple[list[str], int]]:
  """Yields the fields of each row of a table, and the row's first line number.

  In a file with tabs, every tab separates two fields, and quotes are part of
  the text (GLUE's files have unpaired quotes). In a file with commas, a field
  in quotes may contain commas and newlines.

  Args:
    path: the file.
    delimiter: a tab or a comma.

  Raises:
    ValueError: the file cannot be read as text, is empty, or has a quote that
      is not closed.
  """
  if delimiter == "\t":
    for line_number, line in enumerate(read_lines(path), 1):
      if line.strip() or "\t" in line:
        yield line.split("\t"), line_number
    return
  text = "\n".join(read_lines(path)) + "\n"
  # Some texts are longer than csv's default limit. The limit holds for the
  # whole process, so it is only raised.
  csv.field_size_limit(max(csv.field_size_limit(), len(text)))
  reader = csv.reader(
    io.StringIO(text, newline=""), delimiter=delimiter, strict=True
  )
  line_number = 1
  try:
    for row in reader:
      if row:
        yield row, line_number
      line_number = reader.line_num + 1
  except csv.Error as e:
    raise UserError(f"{path}:{line_number} is not CSV ({e}).") from e


def delimiter_of(path: str) -> str:
  """Returns a comma for a .csv whose first line has no tab, else a tab."""
  first_line = read_lines(path)[0]
  return (
    "," if path.lower().endswith(".csv") and "\t" not in first_line else "\t"
  )


def headless_records(
  path: str, names: Sequence[str], allow_extra: bool = False
) -> Iterator[Record]:
  """Yields the records of a table without a header.

  Args:
    path: the file.
    names: the names of the columns.
    allow_extra: True if a row may have more columns than names; they are left
      out.

  Raises:
    ValueError: see `split_rows`; or a row does not have these columns.
  """
  rows = split_rows(path, delimiter_of(path))
  if allow_extra:
    rows = ((cells[: len(names)], number) for cells, number in rows)
  remedy = (
    "a file without a header needs {} ({}); mend the line, or write the names"
    " of its columns into a first line"
  )
  yield from _records_of_rows(
    path, rows, list(names), skipped_lines=None, remedy=remedy
  )


def table_records(
  path: str, skipped_lines: list[str] | None = None
) -> Iterator[Record]:
  """Yields the records of a table whose first line names the columns.

  Args:
    path: the file, with tabs or (.csv) commas between columns.
    skipped_lines: a list, to which FILE:LINE of each skipped row is appended. A
      row is skipped if it does not have as many columns as the first line. If
      `skipped_lines` is None, such a row is an error.

  Raises:
    ValueError: see `split_rows`; or two columns have the same name; or a row is
      an error.
  """
  rows = split_rows(path, delimiter_of(path))
  names = [name.strip() for name in next(rows)[0]]
  if len(set(names)) < len(names):
    repeated_name = next(name for name in names if names.count(name) > 1)
    raise UserError(f"{path}:1: two columns have the name {repeated_name!r}.")
  yield from _records_of_rows(path, rows, names, skipped_lines)


def _records_of_rows(
  path: str,
  rows: Iterator[tuple[list[str], int]],
  names: list[str],
  skipped_lines: list[str] | None,
  remedy: str = "the first line has {} ({}); mend the line",
) -> Iterator[Record]:
  """Yields the records of rows.

  Args:
    path: the file, for messages.
    rows: the cells of each row and its line number, from `split_rows`.
    names: the names of the columns.
    skipped_lines: see `table_records`.
    remedy: the end of the message about a row with too many or too few columns.

  Raises:
    ValueError: a row has too many or too few columns, and `skipped_lines` is
      None.
  """
  for cells, line_number in rows:
    location = f"{path}:{line_number}"
    if len(cells) != len(names):
      if skipped_lines is None:
        raise UserError(
          f"{location} has {len(cells)} columns, but"
          f" {remedy.format(len(names), ', '.join(names))}."
        )
      skipped_lines.append(location)
      continue
    yield Record(dict(zip(names, cells, strict=True)), location)


def parse_json(text: str) -> Any:
  """Parses JSON. Half of a surrogate pair becomes U+FFFD.

  JSON can spell half of a pair, but a file in UTF-8 cannot hold half a pair.

  Raises:
    ValueError: the text is not JSON, or is nested too deeply.
  """
  json_value = files.parse_json(text)
  return (
    _without_surrogates(json_value)
    if _SURROGATE_ESCAPE_PATTERN.search(text)
    else json_value
  )


def _without_surrogates(json_value: Any) -> Any:
  """Replaces halves of surrogate pairs in all texts of a JSON value."""
  if isinstance(json_value, str):
    return replace_surrogates(json_value)
  if isinstance(json_value, list):
    return [_without_surrogates(element) for element in json_value]
  if isinstance(json_value, dict):
    return {
      replace_surrogates(key): _without_surrogates(field)
      for key, field in json_value.items()
    }
  return json_value


def jsonl_records(path: str) -> Iterator[Record]:
  """Yields the records of a file with a JSON object on each line.

  Raises:
    ValueError: see `read_lines`; or a line is not a JSON object.
  """
  for line_number, line in enumerate(read_lines(path), 1):
    if not line.strip():
      continue
    location = f"{path}:{line_number}"
    try:
      fields = parse_json(line)
    except ValueError as e:
      raise UserError(f"{location} is not a JSON object ({e}).") from e
    if not isinstance(fields, dict):
      raise UserError(f"{location} is not a JSON object.")
    yield Record(fields, location)


def split_commas(text: str, flag: str) -> list[str]:
  """Splits a text at commas. A name with commas must be in quotes.

  Args:
    text: the value of a flag.
    flag: the name of the flag, for messages.

  Raises:
    ValueError: a quote is not closed.
  """
  try:
    (names,) = csv.reader([text], skipinitialspace=True, strict=True)
  except csv.Error as e:
    raise UserError(f"{flag}={text}: {e}.") from e
  return [name.strip() for name in names]


def is_jsonl(path: str, json_is_one_value: bool = False) -> bool:
  """Returns True if the name of a file says that it has JSON lines.

  Args:
    path: the file.
    json_is_one_value: True if a .json file of the task is one JSON value
      (SQuAD, RACE); False if it has a JSON value on each line.
  """
  suffix = pathlib.PurePath(path.lower()).suffix
  return suffix in (".jsonl", ".ndjson") or (
    suffix == ".json" and not json_is_one_value
  )


def records(
  path: str, skipped_lines: list[str] | None = None
) -> Iterator[Record]:
  """Yields the records of JSON lines, or of a table with a header.

  Args:
    path: the file, whose name decides the format; see `is_jsonl`.
    skipped_lines: see `table_records`.

  Raises:
    ValueError: see `jsonl_records` and `table_records`.
  """
  if is_jsonl(path):
    return jsonl_records(path)
  return table_records(path, skipped_lines)


def get_cell(record: Record, name: str) -> Any:
  """Returns the cell of a column.

  Raises:
    ValueError: there is no such column; the message names the columns.
  """
  if name not in record.fields:
    raise UserError(
      f"{record.location} has no column {name!r}; the columns are"
      f" {', '.join(map(str, record.fields))}."
    )
  return record.fields[name]


def get_int(record: Record, name: str) -> int:
  """Returns the whole number in a column.

  Raises:
    ValueError: there is no such column, or its cell is not a whole number.
  """
  cell = get_cell(record, name)
  if isinstance(cell, bool) or not hasattr(cell, "__index__"):
    raise UserError(
      f"{record.location}: {name!r} is {cell!r:.60}, not a whole number."
    )
  return cell.__index__()


def get_text(record: Record, name: str) -> str:
  """Returns the text in a column.

  Raises:
    ValueError: there is no such column, or its cell is not a text.
  """
  cell = get_cell(record, name)
  if isinstance(cell, bytes):
    return cell.decode("utf-8", "replace")
  if not isinstance(cell, str):
    raise UserError(f"{record.location}: {name!r} is {cell!r:.60}, not a text.")
  return cell
