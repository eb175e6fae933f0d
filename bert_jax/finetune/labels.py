"""Labels of records by name, whatever the file writes for them."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.finetune import tables
from bert_jax.finetune.tables import Record, get

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
  return None if value is None else _name(record, value, labels)


def names(
  record: Record, column: str, labels: tuple[str, ...], needed: bool
) -> list[str] | None:
  """The names of all labels that a record has at once, [] for none.

  A list; or a text with commas between them, and quotes around one with a
  comma. Arguments, and what is raised, are those of `name`.
  """
  if column not in record.fields and not needed:
    return None
  value = get(record, column)
  if value is None and not needed:
    return None
  if isinstance(value, str):
    parts = tables.split_commas(value, f"{record.where}: {column}")
    value = [part for part in parts if part]
  if not isinstance(value, list):
    raise ValueError(
      f"{record.where}: {column} is {value!r:.60}, not a list of labels; an"
      " empty one says that none applies."
    )
  parts = [x.strip() if isinstance(x, str) else x for x in value]
  return [*dict.fromkeys(_name(record, part, labels) for part in parts)]


def _name(record: Record, value: Any, labels: tuple[str, ...]) -> str:
  odd = isinstance(value, float) and not math.isfinite(value)
  if odd or value in EMPTY or isinstance(value, list | dict):
    raise ValueError(
      f"{record.where}: label {value!r:.60} is neither a name nor a number."
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
      f"{record.where}: label {label!r:.60} is none of {', '.join(labels)}."
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
  try:
    found = float(value)
  except (TypeError, ValueError, OverflowError):
    found = math.nan
  if not math.isfinite(found):
    raise ValueError(f"{record.where}: {column} {value!r:.60} is no number.")
  if abs(found) > _LARGEST:
    raise ValueError(
      f"{record.where}: {column} {value!r:.60} is beyond what float32 holds;"
      " write the numbers in another unit."
    )
  return found


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


_TAG = re.compile(r"O|[BI]-.+")


def check_tags(tags: Sequence[str], where: str) -> None:
  """Raises ValueError unless every tag is O, B-TYPE or I-TYPE."""
  for tag in tags:
    if not _TAG.fullmatch(tag):
      raise ValueError(
        f"{where}: tag {tag!r:.60} is not O, B-TYPE or I-TYPE; entities are"
        " scored by these prefixes, write the tags with them."
      )


def to_iob2(tags: list[str]) -> list[str]:
  """IOB1, where B- stands only between neighbours of a type, as IOB2.

  The files of CoNLL-2003 are in IOB1; IOB2 stays as it is.
  """
  made, before = [], "O"
  for tag in tags:
    begins = tag[:2] == "I-" and before[2:] != tag[2:]
    made.append("B-" + tag[2:] if begins else tag)
    before = tag
  return made
