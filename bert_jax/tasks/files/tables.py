"""The one reader of tables: TSV, CSV and JSONL files as records.

A record knows where it stands, for messages.
"""

import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bert_jax import files
from bert_jax.messages import UserError
from bert_jax.text.vocabulary import replace_surrogates

_SURROGATE = re.compile(r"\\u[dD]")


class Record(NamedTuple):
  """One line of a table.

  Attributes:
    fields: column -> value.
    where: "FILE:LINE", for messages.
  """

  fields: dict[str, Any]
  where: str


def content(path: str) -> str:
  """The text of a UTF-8 file, without a byte-order mark.

  Raises:
    ValueError: no such file, or not UTF-8.
  """
  try:
    with open(path, "rb") as f:
      return files.decode(f.read(), path).removeprefix("\ufeff")
  except FileNotFoundError as e:
    raise UserError(f"{path}: no such file.") from e
  except IsADirectoryError as e:
    raise UserError(f"{path} is a folder; name a file.") from e


def lines(path: str) -> list[str]:
  """All lines of a UTF-8 file, without line ends and byte-order mark.

  Only a newline ends a line: texts hold other separators (U+2028, form feed).

  Raises:
    ValueError: from `content`, or an empty file.
  """
  file_lines = content(path).split("\n")
  file_lines = [line.removesuffix("\r") for line in file_lines]
  # One of tabs is a row of a table, all of whose fields are empty.
  while file_lines and not file_lines[-1].strip(" "):
    file_lines.pop()
  if not any(line.strip() for line in file_lines):
    raise UserError(f"{path}: the file is empty.")
  return file_lines


def split_rows(path: str, delimiter: str) -> Iterator[tuple[list[str], int]]:
  """Rows of a table and the lines they begin at.

  Tabs separate as they stand, and quotes are text (GLUE's files have single
  ones). Of commas the file has quoted fields, with newlines in them too.

  Raises:
    ValueError: from `lines`, or a quote that is never closed.
  """
  if delimiter == "\t":
    for number, line in enumerate(lines(path), 1):
      if line.strip() or "\t" in line:
        yield line.split("\t"), number
    return
  text = "\n".join(lines(path)) + "\n"
  # The limit is the process's, and smaller than some texts are.
  csv.field_size_limit(max(csv.field_size_limit(), len(text)))
  reader = csv.reader(
    io.StringIO(text, newline=""), delimiter=delimiter, strict=True
  )
  number = 1
  try:
    for row in reader:
      if row:
        yield row, number
      number = reader.line_num + 1
  except csv.Error as e:
    raise UserError(f"{path}:{number}: no CSV ({e}).") from e


def delimiter_of(path: str) -> str:
  """What separates columns: a comma in a .csv whose first line has no tab."""
  first = lines(path)[0]
  return "," if path.lower().endswith(".csv") and "\t" not in first else "\t"


def with_names(
  path: str, names: Sequence[str], longer: bool = False
) -> Iterator[Record]:
  """Records of a table without a header.

  Args:
    path: the file.
    names: the names of its columns.
    longer: True if a row may have more columns, which are left out.

  Raises:
    ValueError: from `split_rows`, or another number of columns.
  """
  rows = split_rows(path, delimiter_of(path))
  if longer:
    rows = ((values[: len(names)], number) for values, number in rows)
  remedy = (
    "are those of a file whose first line names none ({}); mend the"
    " line, or write the names of its columns into a first line"
  )
  yield from _records(path, rows, list(names), None, remedy)


def table(path: str, ragged: list[str] | None = None) -> Iterator[Record]:
  """Records of a table whose first line names the columns.

  Args:
    path: the file, tabs or (.csv) commas between columns.
    ragged: takes where rows with another number of columns stand, which are
      left out; None makes them an error.

  Raises:
    ValueError: from `split_rows`, a name that occurs twice, or a ragged row.
  """
  rows = split_rows(path, delimiter_of(path))
  names = [name.strip() for name in next(rows)[0]]
  if len(set(names)) < len(names):
    twice = next(n for n in names if names.count(n) > 1)
    raise UserError(f"{path}:1: two columns have the name {twice!r}.")
  yield from _records(path, rows, names, ragged)


def _records(
  path: str,
  rows: Iterator[tuple[list[str], int]],
  names: list[str],
  ragged: list[str] | None,
  remedy: str = "in the first line ({}); mend the line",
) -> Iterator[Record]:
  for values, number in rows:
    where = f"{path}:{number}"
    if len(values) != len(names):
      if ragged is None:
        raise UserError(
          f"{where}: {len(values)} columns, but {len(names)}"
          f" {remedy.format(', '.join(names))}."
        )
      ragged.append(where)
      continue
    yield Record(dict(zip(names, values, strict=True)), where)


def parse_json(text: str) -> Any:
  """A JSON value; half of a surrogate pair, which JSON can spell, is U+FFFD.

  No UTF-8 has one, so that it could not be written again.

  Raises:
    ValueError: no JSON, or nested too deeply.
  """
  value = files.parse_json(text)
  return _all_valid(value) if _SURROGATE.search(text) else value


def _all_valid(value: Any) -> Any:
  if isinstance(value, str):
    return replace_surrogates(value)
  if isinstance(value, list):
    return [_all_valid(item) for item in value]
  if isinstance(value, dict):
    return {
      replace_surrogates(key): _all_valid(item) for key, item in value.items()
    }
  return value


def jsonl(path: str) -> Iterator[Record]:
  """Records of a file with a JSON object a line.

  Raises:
    ValueError: from `lines`, or a line that is no object.
  """
  for number, line in enumerate(lines(path), 1):
    if not line.strip():
      continue
    where = f"{path}:{number}"
    try:
      fields = parse_json(line)
    except ValueError as e:
      raise UserError(f"{where}: not a JSON object ({e}).") from e
    if not isinstance(fields, dict):
      raise UserError(f"{where}: not a JSON object.")
    yield Record(fields, where)


def split_commas(text: str, flag: str) -> list[str]:
  """What stands between commas; quotes hold those of a name.

  Args:
    text: the value of a flag.
    flag: its name, for messages.

  Raises:
    ValueError: a quote that is never closed.
  """
  try:
    (parts,) = csv.reader([text], skipinitialspace=True, strict=True)
  except csv.Error as e:
    raise UserError(f"{flag}={text}: {e}.") from e
  return [part.strip() for part in parts]


def is_jsonl(path: str, whole: bool = False) -> bool:
  """Returns True if a file's name says that it has a JSON object a line.

  Args:
    path: the file.
    whole: a .json of this kind is one JSON value (SQuAD, RACE).
  """
  end = os.path.splitext(path.lower())[1]
  return end in (".jsonl", ".ndjson") or (end == ".json" and not whole)


def records(path: str, ragged: list[str] | None = None) -> Iterator[Record]:
  """Records of a file: a JSON object a line, or a table with a header.

  Args:
    path: the file; its name says which it is, see `is_jsonl`.
    ragged: see `table`.

  Raises:
    ValueError: from `jsonl` or `table`.
  """
  return jsonl(path) if is_jsonl(path) else table(path, ragged)


def get(record: Record, name: str) -> Any:
  """The value of a column.

  Raises:
    ValueError: there is no such column; names those there are.
  """
  if name not in record.fields:
    raise UserError(
      f"{record.where}: no column {name!r}; there are"
      f" {', '.join(map(str, record.fields))}."
    )
  return record.fields[name]


def get_int(record: Record, name: str) -> int:
  """The same, a whole number.

  Raises:
    ValueError: also if it is something else.
  """
  value = get(record, name)
  if isinstance(value, bool) or not hasattr(value, "__index__"):
    raise UserError(
      f"{record.where}: {name!r} is {value!r:.60}, not a whole number."
    )
  return value.__index__()


def get_text(record: Record, name: str) -> str:
  """The same, a text.

  Raises:
    ValueError: also if it is something else.
  """
  value = get(record, name)
  if isinstance(value, bytes):
    return value.decode("utf-8", "replace")
  if not isinstance(value, str):
    raise UserError(f"{record.where}: {name!r} is {value!r:.60}, not a text.")
  return value
