"""Labels of records by name, whatever the file writes for them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.tasks.files import label_sets
from bert_jax.tasks.files.tables import Record, get

# What stands where there is no label; in the published tasks -1 as well, which
# TensorFlow Datasets writes where the label is kept back. In one's own files -1
# is a class like any other.
EMPTY = ("", None)
PUBLISHED = (*EMPTY, "-1", -1)
# Labels of regressions are float32.
_LARGEST = float(np.finfo(np.float32).max)


def name(
  record: Record,
  column: str,
  labels: tuple[str, ...],
  needed: bool,
  hidden: Sequence[Any] = PUBLISHED,
) -> str | None:
  """The name of a record's label.

  Args:
    record: a line.
    column: where the label is.
    labels: names of the task; () takes any.
    needed: whether a line without a label is an error.
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
  if begins and label_sets.read_literal(text) is not None:
    raise ValueError(
      f"{where}: label {text!r:.60} is a list; several labels of a text are"
      " read by --kind multi_label."
    )


def names(
  values: Sequence[Any], labels: tuple[str, ...], where: str
) -> list[str]:
  """Returns the names of all labels of one example, in their order.

  Args:
    values: the list from `label_sets.read_list`.
    labels: the names of the task's labels; () allows any name.
    where: the line, for messages.

  Raises:
    ValueError: a value is no name, is not in `labels`, or is repeated.
  """
  named = [_name(where, value, labels) for value in values]
  for i, label in enumerate(named):
    if label in named[:i]:
      raise ValueError(
        f"{where}: label {label!r:.60} is repeated; write each label that"
        " applies once."
      )
  return named


def _name(where: str, value: Any, labels: tuple[str, ...]) -> str:
  odd = isinstance(value, float) and not math.isfinite(value)
  if odd or value in EMPTY or isinstance(value, list | dict):
    raise ValueError(
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
    raise ValueError(
      f"{where}: label {label!r:.60} is none of {', '.join(labels)}."
    )
  return label


def number(record: Record, column: str, needed: bool) -> float | None:
  """The same of a regression: a number.

  Raises:
    ValueError: see `name`, or no finite number.
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
    raise ValueError(f"{record.where}: {column} {value!r:.60} is no number.")
  if abs(value_or_nan) > _LARGEST:
    raise ValueError(
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
    raise ValueError(
      f"{record.where}: no label in column {column!r}; training and validation"
      " need one in every line."
    )
  return None
