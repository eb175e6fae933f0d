"""Labels of records by name, whatever the file writes for them.

Several labels of one text have one of these forms:

| form | in JSON | in a table |
|---|---|---|
| names | `["joy", "hope"]` | `joy, hope`; `["joy"]`; `['joy']` |
| a number for each label | `[0, 1, 0]` | `[0, 1, 0]`; `0, 1, 0`; `0 1 0` |
| a column for each label | `"toxic": 1` | 0 or 1 in each column |

The lists of a task are read as numbers if each of them has one value for each
label and holds 0 and 1 only. Otherwise they are read as names.
"""

import ast
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks.files import tables
from bert_jax.tasks.files.tables import Record, get

# These values stand where there is no label; in the published tasks -1 as well,
# which TensorFlow Datasets writes where the label is kept back. In a user's own
# files -1 is a class like any other.
EMPTY = ("", None)
PUBLISHED = (*EMPTY, "-1", -1)
# Labels of regressions are float32.
_LARGEST = float(np.finfo(np.float32).max)
# Texts in lower case; spreadsheets write TRUE and FALSE.
_ZERO = (0, "0", "0.0", "false")
_ONE = (1, "1", "1.0", "true")
# Separators between two marks that people write in place of a comma.
_BETWEEN_MARKS = re.compile(r"\s*[|;]\s*|\s+")
# Cells that may hold several names without a comma between them.
_NO_COMMA = re.compile(r".*[|;].*|\d+(?:\s+\d+)+", re.DOTALL)
# TensorFlow Datasets and published test sets write these for a hidden label.
_HIDDEN = ("", None, -1, "-1")


def read_name(
  record: Record,
  column: str,
  labels: tuple[str, ...],
  needed: bool,
  hidden: Sequence[Any] = PUBLISHED,
) -> str | None:
  """The name of a record's label.

  Args:
    record: a line.
    column: the name of the column with the label.
    labels: the names of the task's labels; () allows any label.
    needed: True if a line without a label is an error.
    hidden: values that stand for no label, `PUBLISHED` or `EMPTY`.

  Returns:
    None for a line without one.

  Raises:
    ValueError: no column or label where one is needed, or a name that is none
      of `labels`.
  """
  value = _value(record, column, needed, hidden)
  if value is None:
    return None
  if isinstance(value, str) and value not in labels:
    _check_no_list(value, record.where)
  return _name(record.where, value, labels)


def _check_no_list(text: str, where: str) -> None:
  """Raises ValueError if the text of a table's field is a list."""
  begins = text[:1] in ("[", "(", "{")
  if begins and read_literal(text) is not None:
    raise UserError(
      f"{where}: label {text!r:.60} is a list; several labels of a text are"
      " read by --kind multi_label."
    )


def names_of(
  values: Sequence[Any], labels: tuple[str, ...], where: str
) -> list[str]:
  """Returns the names of all labels of one example, in their order.

  Args:
    values: the list from `read_list`.
    labels: the names of the task's labels; () allows any name.
    where: the line, for messages.

  Raises:
    ValueError: a value is no name, is not in `labels`, or is repeated.
  """
  named = [_name(where, value, labels) for value in values]
  for i, label in enumerate(named):
    if label in named[:i]:
      raise UserError(
        f"{where}: label {label!r:.60} is repeated; write each label that"
        " applies once."
      )
  return named


def _name(where: str, value: Any, labels: tuple[str, ...]) -> str:
  odd = isinstance(value, float) and not math.isfinite(value)
  if odd or value in EMPTY or isinstance(value, list | dict):
    raise UserError(
      f"{where}: label {value!r:.60} is neither a name nor a number."
    )
  if isinstance(value, bool):
    value = str(value).lower()
  label = str(value)
  # pandas writes 1 as 1.0 where another line has no label.
  whole = isinstance(value, float) and value.is_integer()
  if whole and label not in labels:
    label = str(int(value))
  # TensorFlow Datasets has True and False, SuperGLUE's files true and false.
  if label not in labels and label.lower() in labels:
    label = label.lower()
  if labels and label not in labels:
    raise UserError(
      f"{where}: label {label!r:.60} is none of {', '.join(labels)}."
    )
  return label


def read_number(record: Record, column: str, needed: bool) -> float | None:
  """The same of a regression: a number.

  Raises:
    ValueError: see `read_name`, or no finite number.
  """
  # -1 may be a value of a regression: only an empty one is hidden.
  if column not in record.fields and not needed:
    return None
  value = _value(record, column, needed, EMPTY)
  if value is None:
    return None
  # `float` accepts 1_000 and True, but in a file neither is a number.
  is_no_number = isinstance(value, bool) or "_" in str(value)
  try:
    value_or_nan = math.nan if is_no_number else float(value)
  except (TypeError, ValueError, OverflowError):
    value_or_nan = math.nan
  if not math.isfinite(value_or_nan):
    raise UserError(f"{record.where}: {column} {value!r:.60} is no number.")
  if abs(value_or_nan) > _LARGEST:
    raise UserError(
      f"{record.where}: {column} {value!r:.60} is beyond what float32 holds;"
      " write the numbers in another unit."
    )
  return value_or_nan


def _value(
  record: Record, column: str, needed: bool, hidden: Sequence[Any]
) -> Any:
  if column not in record.fields and not needed:
    return None
  value = get(record, column)
  if isinstance(value, str):
    value = value.strip()
  if value not in hidden:
    return value
  if needed:
    raise UserError(
      f"{record.where}: no label in column {column!r}; training and validation"
      " need one in every line."
    )
  return None


def read_literal(text: str) -> list[Any] | None:
  """The list that a text spells, in JSON or as Python prints it, or None."""
  try:
    value = tables.parse_json(text)
  except (ValueError, RecursionError):
    try:
      value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
      return None
  if isinstance(value, set):
    return sorted(value, key=str)
  return list(value) if isinstance(value, list | tuple) else None


def read_list(record: Record, column: str, needed: bool) -> list[Any] | None:
  """Reads the list of one column: names, or a number for each label.

  Args:
    record: a line of the file.
    column: the name of the column with the labels.
    needed: True if a line without labels is an error.

  Returns:
    The values, without spaces around strings; None if the line has no labels.

  Raises:
    ValueError: no column where there must be one, or no list.
  """
  if column not in record.fields and not needed:
    return None
  value = get(record, column)
  if value is None and not needed:
    return None
  if isinstance(value, str):
    value = _split(value.strip(), record, column)
  if not isinstance(value, list):
    raise UserError(
      f"{record.where}: {column} is {value!r:.60}, not a list of labels; an"
      " empty one says that none applies."
    )
  return [item.strip() if isinstance(item, str) else item for item in value]


def _split(text: str, record: Record, column: str) -> list[Any]:
  if text[:1] in ("[", "(", "{"):
    values = read_literal(text)
    if values is not None:
      return values
  if text[:1] == "[":
    raise UserError(
      f"{record.where}: {column} is {text!r:.60}, which begins as a list and is"
      ' none; write it as JSON, ["a", "b"] or [0, 1], or names with commas.'
    )
  marks = _BETWEEN_MARKS.split(text)
  if len(marks) > 1 and is_marks(marks):
    return marks
  names = tables.split_commas(text, f"{record.where}: {column}")
  return [name for name in names if name]


def read_columns(
  record: Record, columns: Sequence[str], needed: bool
) -> list[str] | None:
  """Reads the labels of a record that has 0 or 1 in a column for each.

  Args:
    record: a line of the file.
    columns: the names of the columns, which are also the labels.
    needed: True if a line without labels is an error.

  Returns:
    The names of the columns that have 1; None if all are missing, empty or -1.

  Raises:
    ValueError: a column is missing, or has another value.
  """
  values = [record.fields.get(column) for column in columns]
  values = [v.strip() if isinstance(v, str) else v for v in values]
  if not needed and all(value in _HIDDEN for value in values):
    return None
  names = []
  for column, value in zip(columns, values, strict=True):
    get(record, column)
    if not is_marks([value]):
      raise UserError(
        f"{record.where}: {column} is {value!r:.60}, not 0 or 1; each column of"
        " a label says by 1 that the label applies."
      )
    if is_one(value):
      names.append(column)
  return names


def is_one(value: Any) -> bool:
  """Whether a mark says that its label applies."""
  return _lower(value) in _ONE


def _lower(value: Any) -> Any:
  return value.lower() if isinstance(value, str) else value


def is_marks(values: Iterable[Any]) -> bool:
  """Whether all values are 0 or 1."""
  return all(
    not isinstance(value, list | dict) and _lower(value) in (*_ZERO, *_ONE)
    for value in values
  )


def marked_labels(
  lists: Sequence[tuple[list[Any] | None, bool]], labels: Sequence[str]
) -> tuple[str, ...] | None:
  """Returns the labels of a task whose lists are numbers; None for names.

  Args:
    lists: every list of the task, each with True if its line must have labels.
      An empty list is ignored where labels are optional.
    labels: the labels that the user gave, or () if they come from the data.

  Returns:
    `labels`, or "0", "1", ... if `labels` is empty.
  """
  filled = [
    values for values, needed in lists if values or (needed and values == [])
  ]
  sizes = {len(values) for values in filled}
  if len(sizes) != 1 or not all(map(is_marks, filled)):
    return None
  (size,) = sizes
  if size < 2 or (labels and size != len(labels)):
    return None
  return tuple(labels) or tuple(map(str, range(size)))


def check_not_marks(
  values: Sequence[Any], labels: Sequence[str], where: str
) -> None:
  """Raises ValueError for numbers that were meant for labels of another count.

  Args:
    values: the list of one line, in a task whose lists are names.
    labels: the labels that the user gave, or () if they come from the data.
    where: the file and line, for messages.
  """
  if not values or not is_marks(values):
    return
  names = {str(value) for value in values}
  if labels and not names & {*labels}:
    raise UserError(
      f"{where}: {len(values)} numbers for {len(labels)} labels"
      f" ({', '.join(labels)}); a list of 0 and 1 has one for each label."
    )
  if len(values) > len(names):
    raise UserError(
      f"{where}: the list {str(list(values)):.60} of 0 and 1 is not as long as"
      " other lists; such a list has a number for each label in every line."
    )


def note(lists: Iterable[Sequence[Any]], labels: Sequence[str]) -> str | None:
  """Returns a warning if the lists may not be lists of names; else None.

  Args:
    lists: every list of a task whose lists are read as names.
    labels: the labels that the user gave, or () if they come from the data.
  """
  filled = [values for values in lists if values]
  if labels or not filled:
    return None
  if all(len(values) == 1 and is_marks(values) for values in filled):
    return (
      "warning: each list of labels is one of 0 and 1, and these are read as"
      " the names of labels; if they say whether one label applies, use --kind"
      " classification."
    )
  joined = sorted(
    {
      value
      for values in filled
      for value in values
      if isinstance(value, str) and _NO_COMMA.fullmatch(value)
    }
  )
  if not joined:
    return None
  return (
    f"warning: {joined[0]!r:.60}"
    + (f" and {len(joined) - 1} more" if joined[1:] else "")
    + " with |, ; or spaces between numbers are each the name of one label;"
    ' write commas between the names of several, or a list in JSON, ["a", "b"].'
  )
