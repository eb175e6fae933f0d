"""Reads the labels of files as names.

A file may have several labels for each text, written in one of three ways:

| content | in JSON | in a table |
|---|---|---|
| names | `["joy", "hope"]` | `joy, hope`; `["joy"]`; `['joy']` |
| a number for each label | `[0, 1, 0]` | `[0, 1, 0]`; `0, 1, 0`; `0 1 0` |
| a column for each label | `"toxic": 1` | 0 or 1 in each column |

The lists of a task are read as numbers if each list has one value for each
label and holds only 0 and 1. Otherwise the lists are read as names.
"""

import ast
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.messages import UserError, by_caller
from bert_jax.tasks.files import tables
from bert_jax.tasks.files.tables import Record, get_cell

# The cells that mean "no label". In published tasks, -1 also means "no label",
# because TensorFlow Datasets writes -1 for a hidden label. In a custom task's
# file, -1 is the name of a class.
EMPTY_CELLS = ("", None)
HIDDEN_CELLS = (*EMPTY_CELLS, "-1", -1)
# The largest label of a regression. Labels are stored as float32.
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
# A mark is 0 or 1, and says whether a label applies. Marks are compared in
# lower case, because spreadsheets write TRUE and FALSE.
_ZERO_MARKS = (0, "0", "0.0", "false")
_ONE_MARKS = (1, "1", "1.0", "true")
# The argument of `finetune` that chooses this kind of task.
_MULTI_LABEL = "kind='multi_label'"
_CLASSIFICATION = "kind='classification', with labels in place of lists"
# Separators that some people write between two marks in place of a comma.
_BETWEEN_MARKS_PATTERN = re.compile(r"\s*[|;]\s*|\s+")
# Cells that may hold several names without a comma between them.
_NAMES_WITHOUT_COMMA_PATTERN = re.compile(r".*[|;].*|\d+(?:\s+\d+)+", re.DOTALL)


def read_name(
  record: Record,
  column: str,
  labels: tuple[str, ...],
  needs_label: bool,
  hidden_cells: Sequence[Any] = HIDDEN_CELLS,
) -> str | None:
  """Returns the name of a record's label.

  Args:
    record: a line of a file.
    column: the name of the column with the label.
    labels: the names of the task's labels; () allows any label.
    needs_label: True if a line without a label is an error.
    hidden_cells: cells that mean "no label", `HIDDEN_CELLS` or `EMPTY_CELLS`.

  Returns:
    The name; None if the line has no label.

  Raises:
    ValueError: a needed column or label is missing, or the name is not in
      `labels`.
  """
  cell = _label_cell(record, column, needs_label, hidden_cells)
  if cell is None:
    return None
  if isinstance(cell, str) and cell not in labels:
    _check_not_list(cell, record.location)
  return _label_name(record.location, cell, labels)


def _check_not_list(text: str, location: str) -> None:
  """Raises ValueError if the text of a table's field spells a list."""
  has_bracket = text[:1] in ("[", "(", "{")
  if has_bracket and read_list_literal(text) is not None:
    raise UserError(
      f"{location}: label {text!r:.60} is a list; several labels of a text are"
      f" read by {by_caller('--kind multi_label', _MULTI_LABEL)}."
    )


def label_names(
  values: Sequence[Any], labels: tuple[str, ...], location: str
) -> list[str]:
  """Returns the names of all labels of one example, in the order of `values`.

  Args:
    values: the list from `read_list`.
    labels: the names of the task's labels; () allows any name.
    location: the line, for messages.

  Raises:
    ValueError: a value is no name, is not in `labels`, or is repeated.
  """
  names = [_label_name(location, cell, labels) for cell in values]
  for i, name in enumerate(names):
    if name in names[:i]:
      raise UserError(
        f"{location}: label {name!r:.60} is repeated; write each label that"
        " applies once."
      )
  return names


def _label_name(location: str, cell: Any, labels: tuple[str, ...]) -> str:
  """Returns the name of the label that a cell gives.

  Args:
    location: the line, for messages.
    cell: the cell of a table, or the value of a JSON field.
    labels: the names of the task's labels; () allows any name.

  Raises:
    ValueError: the cell is not a name or a number, or is not in `labels`.
  """
  is_not_finite = isinstance(cell, float) and not math.isfinite(cell)
  is_name = not isinstance(cell, list | dict | bytes | set | frozenset)
  # An object without its own `__repr__` and `__str__` has its address as text,
  # and the next process has another address.
  lacks_text = type(cell).__repr__ is object.__repr__
  lacks_text &= type(cell).__str__ is object.__str__
  if is_not_finite or not is_name or lacks_text or cell in EMPTY_CELLS:
    raise UserError(
      f"{location}: label {cell!r:.60} is neither a name nor a number."
    )
  if isinstance(cell, bool):
    cell = str(cell).lower()
  label = str(cell)
  # pandas writes 1 as 1.0 if some line of the file has no label.
  is_whole = isinstance(cell, float) and cell.is_integer()
  if is_whole and label not in labels:
    label = str(int(cell))
  # TensorFlow Datasets has True and False. SuperGLUE's files have true and
  # false.
  if label not in labels and label.lower() in labels:
    label = label.lower()
  if labels and label not in labels:
    raise UserError(
      f"{location}: label {label!r:.60} is not one of {', '.join(labels)}."
    )
  return label


def read_number(record: Record, column: str, needs_label: bool) -> float | None:
  """Returns the label of a regression's record; None for no label.

  Raises:
    ValueError: a needed column or label is missing, or the cell is not a finite
      number.
  """
  # -1 may be the label of a regression, so only an empty cell means "no label".
  if column not in record.fields and not needs_label:
    return None
  cell = _label_cell(record, column, needs_label, EMPTY_CELLS)
  if cell is None:
    return None
  # `float` accepts 1_000 and True, but in a file neither is a number.
  is_python_spelling = isinstance(cell, bool) or "_" in str(cell)
  try:
    number = math.nan if is_python_spelling else float(cell)
  except (TypeError, ValueError, OverflowError):
    number = math.nan
  if not math.isfinite(number):
    raise UserError(
      f"{record.location}: {column} {cell!r:.60} is not a number."
    )
  if abs(number) > _MAX_FLOAT32:
    raise UserError(
      f"{record.location}: {column} {cell!r:.60} is beyond what float32 holds;"
      " write the numbers in another unit."
    )
  return number


def _label_cell(
  record: Record, column: str, needs_label: bool, hidden_cells: Sequence[Any]
) -> Any:
  """Returns the cell with a label; None for no label. See `read_name`."""
  if column not in record.fields and not needs_label:
    return None
  cell = get_cell(record, column)
  if isinstance(cell, str):
    cell = cell.strip()
  if cell not in hidden_cells:
    return cell
  if needs_label:
    raise UserError(
      f"{record.location} has no label in column {column!r}; training and"
      " validation need a label in every line."
    )
  return None


def read_list_literal(text: str) -> list[Any] | None:
  """Returns the list that a text spells, in JSON or in Python; else None."""
  try:
    literal = tables.parse_json(text)
  except (ValueError, RecursionError):
    try:
      literal = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
      return None
  if isinstance(literal, set):
    return sorted(literal, key=str)
  return list(literal) if isinstance(literal, list | tuple) else None


def read_list(
  record: Record, column: str, needs_label: bool
) -> list[Any] | None:
  """Reads the list of one column: names, or a number for each label.

  Args:
    record: a line of the file.
    column: the name of the column with the labels.
    needs_label: True if a line without labels is an error.

  Returns:
    The elements, without spaces around strings; None if the line has no labels.

  Raises:
    ValueError: a needed column is missing, or its cell is not a list.
  """
  if column not in record.fields and not needs_label:
    return None
  cell = get_cell(record, column)
  if cell is None and not needs_label:
    return None
  if isinstance(cell, str):
    cell = _split_cell(cell.strip(), record, column)
  if not isinstance(cell, list):
    raise UserError(
      f"{record.location}: {column} is {cell!r:.60}, not a list of labels; an"
      " empty one says that none applies."
    )
  return [
    element.strip() if isinstance(element, str) else element for element in cell
  ]


def _split_cell(text: str, record: Record, column: str) -> list[Any]:
  """Splits the text of a table's cell into names or marks."""
  if text[:1] in ("[", "(", "{"):
    values = read_list_literal(text)
    if values is not None:
      return values
  if text[:1] == "[":
    raise UserError(
      f"{record.location}: {column} is {text!r:.60}, which begins as a list"
      ' but is none; write it as JSON, ["a", "b"] or [0, 1], or as names with'
      " commas."
    )
  marks = _BETWEEN_MARKS_PATTERN.split(text)
  if len(marks) > 1 and are_marks(marks):
    return marks
  names = tables.split_commas(text, f"{record.location}: {column}")
  return [name for name in names if name]


def read_columns(
  record: Record, columns: Sequence[str], needs_label: bool
) -> list[str] | None:
  """Reads the labels of a record with a column of 0 or 1 for each label.

  Args:
    record: a line of the file.
    columns: the names of the columns, which are also the labels.
    needs_label: True if a line without labels is an error.

  Returns:
    The names of the columns that have 1; None if labels are optional and all
    columns are missing, empty or -1.

  Raises:
    ValueError: a column is missing, or its value is not 0 or 1.
  """
  cells = [record.fields.get(column) for column in columns]
  cells = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
  if not needs_label and all(cell in HIDDEN_CELLS for cell in cells):
    return None
  names = []
  for column, cell in zip(columns, cells, strict=True):
    get_cell(record, column)
    if not are_marks([cell]):
      raise UserError(
        f"{record.location}: {column} is {cell!r:.60}, not 0 or 1; each column"
        " of a label says by 1 that the label applies."
      )
    if is_one_mark(cell):
      names.append(column)
  return names


def is_one_mark(mark: Any) -> bool:
  """Returns True if a mark says that its label applies."""
  return _lower_case(mark) in _ONE_MARKS


def _lower_case(mark: Any) -> Any:
  return mark.lower() if isinstance(mark, str) else mark


def are_marks(values: Iterable[Any]) -> bool:
  """Returns True if all values are 0 or 1, in any spelling."""
  return all(
    not isinstance(mark, list | dict)
    and _lower_case(mark) in (*_ZERO_MARKS, *_ONE_MARKS)
    for mark in values
  )


def labels_if_marks(
  lists_and_needs: Sequence[tuple[list[Any] | None, bool]],
  labels: Sequence[str],
) -> tuple[str, ...] | None:
  """Returns the labels if all lists are numbers; None if the lists are names.

  Args:
    lists_and_needs: every list of the task, and True if its line must have
      labels. An empty list is ignored where labels are optional.
    labels: the labels that the user gave, or () if they come from the data.

  Returns:
    `labels`, or "0", "1", ... if `labels` is empty.
  """
  filled_lists = [
    values
    for values, needs_label in lists_and_needs
    if values or (needs_label and values == [])
  ]
  list_lengths = {len(values) for values in filled_lists}
  if len(list_lengths) != 1 or not all(map(are_marks, filled_lists)):
    return None
  (list_length,) = list_lengths
  if list_length < 2 or (labels and list_length != len(labels)):
    return None
  return tuple(labels) or tuple(map(str, range(list_length)))


def check_not_marks(
  values: Sequence[Any], labels: Sequence[str], location: str
) -> None:
  """Raises ValueError if a list of 0 and 1 has too many or too few numbers.

  Args:
    values: the list of one line, in a task whose lists are names.
    labels: the labels that the user gave, or () if they come from the data.
    location: the file and line, for messages.
  """
  if not values or not are_marks(values):
    return
  names = {str(mark) for mark in values}
  if labels and not names & {*labels}:
    raise UserError(
      f"{location} has {len(values)} numbers for {len(labels)} labels"
      f" ({', '.join(labels)}); a list of 0 and 1 has a number for each label."
    )
  if len(values) > len(names):
    raise UserError(
      f"{location}: the list {list(values)!s:.60} of 0 and 1 is not as long as"
      " other lists; such a list has a number for each label in every line."
    )


def list_warning(
  lists: Iterable[Sequence[Any]], labels: Sequence[str]
) -> str | None:
  """Returns a warning if the lists may not be lists of names; else None.

  Args:
    lists: every list of a task whose lists are read as names.
    labels: the labels that the user gave, or () if they come from the data.
  """
  filled_lists = [values for values in lists if values]
  if labels or not filled_lists:
    return None
  if all(len(values) == 1 and are_marks(values) for values in filled_lists):
    return (
      "warning: each list of labels has only 0 or 1, which is read as the name"
      " of a label; if it says whether one label applies, use"
      f" {by_caller('--kind classification', _CLASSIFICATION)}."
    )
  joined_names = sorted(
    {
      name
      for values in filled_lists
      for name in values
      if isinstance(name, str) and _NAMES_WITHOUT_COMMA_PATTERN.fullmatch(name)
    }
  )
  if not joined_names:
    return None
  return (
    f"warning: {joined_names[0]!r:.60}"
    + (f" and {len(joined_names) - 1} more" if joined_names[1:] else "")
    + " with |, ; or spaces between numbers are each read as one name; write"
    ' commas between the names of labels, or a list in JSON, ["a", "b"].'
  )
