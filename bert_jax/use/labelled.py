"""Reads tables of labelled examples, which users pass to `finetune`."""

import contextlib
import difflib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from bert_jax.messages import UserError, did_you_mean
from bert_jax.tasks import questions, task_inputs
from bert_jax.tasks.files import custom, label_fields, squad, tables, tags
from bert_jax.tasks.files.tables import Record
from bert_jax.tasks.published import TASKS, TaskFormat
from bert_jax.tasks.task_inputs import Input
from bert_jax.use import results

KINDS = (*custom.KINDS, "span")
# The columns of a table of questions.
QUESTION_COLUMNS = ("question", "context", "answers")
# The column of the second texts of pairs, if the user names no column.
_PAIR_COLUMN = "text_pair"
# Values of these types have a length, but are not accepted as a column.
_NO_COLUMN_TYPES = (str, bytes, Mapping, set, frozenset)
_EXTENSIONS = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json")


def read(
  data: Any, name: str, text: str | None = None, label: str | None = None
) -> list[Record]:
  """Returns the rows of a table.

  Args:
    data: the path of a file (.csv, .tsv, .jsonl, or SQuAD's .json); a
      DataFrame; a `datasets.Dataset`; a dict of columns; a list of dicts, or of
      tuples (text, label), where a text may be a pair of texts.
    name: the name of the argument, for messages.
    text: the name of the column that gets the texts of tuples; None means
      "text".
    label: the name of the column that gets the labels of tuples; None means
      "label". If `data` has this column as a `datasets.ClassLabel`, the names
      of the labels replace their numbers.

  Returns:
    The rows. Their fields have plain Python values; NaN becomes None.

  Raises:
    UserError: there are no rows, or the type of `data` cannot be read. A set
      cannot be read, because its rows have no order.
  """
  text, label = text or "text", label or "label"
  if isinstance(data, set | frozenset):
    raise UserError(
      f"{name} is a set, which has no order, so a repeated call could not give"
      " the same result; pass a list."
    )
  if isinstance(data, str | os.PathLike):
    rows = _read_file(os.fspath(data), name)
  else:
    rows = [
      Record(
        _fields_of_row(item, text, label, name, row_index),
        f"row {row_index} of {name}",
      )
      for row_index, item in enumerate(_rows_in_memory(data, name))
    ]
  if not rows:
    raise UserError(f"{name} has no rows.")
  label_names = _names_of_class_label(data, label)
  if label_names:
    rows = [
      row._replace(
        fields=row.fields
        | {label: _label_names_of_row(row, label, label_names)}
      )
      for row in rows
      if label in row.fields
    ]
  return rows


def _read_file(path: str, name: str) -> list[Record]:
  """Reads the rows of a file: a table, JSON lines, or SQuAD's JSON."""
  if not path.lower().endswith(_EXTENSIONS) or not pathlib.Path(path).is_file():
    raise UserError(
      f"{name}={path!r:.80}: a string is the path of a table, and there is no"
      f" such file with the extension {', '.join(_EXTENSIONS)}; pass a"
      " DataFrame, a list of (text, label), or a dict of columns for data in"
      " memory."
    )
  if path.lower().endswith(".json"):
    content = None
    # A file with a JSON object on each line is no JSON as a whole.
    with contextlib.suppress(ValueError):
      content = tables.parse_json(tables.read_text(path))
    if isinstance(content, dict) and isinstance(content.get("data"), list):
      return list(squad.article_records(path, content["data"]))
  return list(tables.records(path))


def _rows_in_memory(data: Any, name: str) -> list[Any]:
  """Returns the rows of a table in memory, as the user passes them."""
  if isinstance(data, Mapping):
    return _rows_of_columns(data, name)
  try:
    return results.items_of(data, ())[1]
  except results.NoCollection as e:
    raise UserError(
      f"{name} is of type {type(data).__name__}; pass a DataFrame, a"
      " datasets.Dataset, a list of (text, label) or of dicts, a dict of"
      " columns or the path of a file."
    ) from e


def _rows_of_columns(
  columns: Mapping[Any, Any], name: str
) -> list[dict[Any, Any]]:
  """Turns a dict of columns into a list of rows."""
  sizes = {}
  for column, values in columns.items():
    is_list = isinstance(values, Sized) and isinstance(values, Iterable)
    if isinstance(values, _NO_COLUMN_TYPES) or not is_list:
      raise UserError(
        f"{name}: column {column!r} is {values!r:.40}, not a list of values; a"
        " dict has a list for each column."
      )
    sizes[column] = len(values)
  if len(set(sizes.values())) > 1:
    counts = ", ".join(f"{column} {size}" for column, size in sizes.items())
    raise UserError(f"{name}: the columns have unequal lengths: {counts}.")
  column_values = [list(values) for values in columns.values()]
  return [
    dict(zip(columns, values, strict=True))
    for values in zip(*column_values, strict=True)
  ]


def _fields_of_row(
  item: Any, text: str, label: str, name: str, row_index: int
) -> dict[str, Any]:
  """Returns the fields of a row of a table in memory."""
  if isinstance(item, Mapping):
    return {
      str(column): results.to_python(cell) for column, cell in item.items()
    }
  if not isinstance(item, list | tuple) or len(item) != 2:
    raise UserError(
      f"row {row_index} of {name} is {item!r:.60}; pass (text, label),"
      " ((text, second text), label) for a pair, or a dict."
    )
  content, raw_label = item
  fields: dict[str, Any] = {label: results.to_python(raw_label)}
  if isinstance(content, tuple):
    if len(content) != 2:
      raise UserError(
        f"row {row_index} of {name}: a tuple of texts is a pair, and this one"
        f" has {len(content)} entries; words to tag are a list."
      )
    return fields | {text: content[0], _PAIR_COLUMN: content[1]}
  return fields | {text: results.to_python(content)}


def _names_of_class_label(data: Any, label: str) -> list[str] | None:
  """Returns the names of a column's `datasets.ClassLabel`; None without one."""
  features = getattr(data, "features", None)
  if not isinstance(features, Mapping) or label not in features:
    return None
  feature = features[label]
  # In a column of lists, the ClassLabel is the attribute `feature`.
  feature = getattr(feature, "feature", feature)
  names = getattr(feature, "names", None)
  return list(names) if names else None


def _label_names_of_row(row: Record, label: str, names: Sequence[str]) -> Any:
  """Returns a row's label, or its list of labels, as names."""
  value = row.fields[label]
  if isinstance(value, list):
    return [names[entry] if type(entry) is int else entry for entry in value]
  # `datasets` writes -1 for a label that is not known.
  if type(value) is not int:
    return value
  return names[value] if 0 <= value < len(names) else None


def hold_out(
  rows: Sequence[Record], share: float, seed: int
) -> tuple[list[Record], list[Record]]:
  """Splits rows at random into rows to train on and rows to evaluate on.

  Args:
    rows: the rows.
    share: the share of the rows to evaluate on. At least one row is held out.
    seed: the seed of the random choice of rows.

  Raises:
    UserError: the share is not between 0 and 1, or there are too few rows.
  """
  if not 0 < share < 1:
    raise UserError(f"validation={share}: a share must be between 0 and 1.")
  num_held_out = max(1, round(share * len(rows)))
  if num_held_out >= len(rows):
    raise UserError(
      f"data has {_count_text(len(rows), 'row')}, too few to hold some out;"
      " pass more rows, or validation=0 to train without an evaluation."
    )
  held_out_indices = {
    *np.random.default_rng(seed).permutation(len(rows))[:num_held_out]
  }
  train_rows = [row for i, row in enumerate(rows) if i not in held_out_indices]
  return train_rows, [
    row for i, row in enumerate(rows) if i in held_out_indices
  ]


def infer_kind(rows: Sequence[Record], text: str, label: str) -> str:
  """Infers the kind of a task from its first text and from all labels.

  If the first text is a list of words, the kind is tagging. If a label is a
  list, the kind is multi_label. If all labels are numbers, and at least one is
  not a whole number, the kind is regression. Otherwise it is classification.
  """
  fields = rows[0].fields
  if isinstance(fields.get(text), list):
    return "tagging"
  labels = [row.fields.get(label) for row in rows]
  if any(isinstance(label, list) for label in labels):
    return "multi_label"
  try:
    numbers = [float(label) for label in labels if label not in ("", None)]
  except (TypeError, ValueError, OverflowError):
    return "classification"
  return "classification" if all(map(_is_whole, numbers)) else "regression"


def _is_whole(number: float) -> bool:
  return number.is_integer()


class Columns:
  """Holds the columns of a table that a task reads.

  Attributes:
    kind: one of `KINDS`.
    name_by_role: role in `custom.Columns` -> name of the column; {} for kind
      span.
  """

  def __init__(
    self,
    rows: Sequence[Record],
    kind: str | None,
    text: str | None,
    pair: str | None,
    label: str | None,
  ):
    """Chooses the columns.

    Args:
      rows: the rows to train on.
      kind: one of `KINDS`; None means that the data decide.
      text: the column of texts; by default "text", or "words" if there is no
        column "text".
      pair: the column of second texts; by default "text_pair", if it exists.
      label: the column of labels; by default "label", or "tags" if there is no
        column "label".

    Raises:
      UserError: the kind is unknown, or a column is missing.
    """
    if kind is not None and kind not in KINDS:
      raise UserError(
        f"kind={kind!r} is not a kind of task{did_you_mean(kind, KINDS)}"
      )
    column_names = list(rows[0].fields)
    if kind is None and text is None and _has_questions(column_names):
      kind = "span"
    if kind == "span":
      _check_question_columns(column_names)
      self.kind, self.name_by_role = kind, {}
      self.may_lack_pairs = False
      return
    for option, name in (("text", text), ("pair", pair), ("label", label)):
      if name is not None:
        _check_named_column(option, name, column_names)
    text = text or (
      "words" if {"text", "words"} & {*column_names} == {"words"} else "text"
    )
    label = label or (
      "tags" if {"label", "tags"} & {*column_names} == {"tags"} else "label"
    )
    for option, name in (("text", text), ("label", label)):
      if name not in column_names:
        if any(name in row.fields for row in rows):
          tables.get_cell(rows[0], name)  # Raises an error that names the row.
        raise UserError(
          f"data has no column {name!r}, only {', '.join(column_names)}; pass"
          f" {option}= with the name of another column."
        )
    if pair is None and _PAIR_COLUMN in column_names:
      pair = _PAIR_COLUMN
    if len({text, pair, label}) < 3:
      raise UserError(
        f"text={text!r}, pair={pair!r}, label={label!r}: name a column only"
        " once."
      )
    self.kind = kind or infer_kind(rows, text, label)
    self.may_lack_pairs = pair is None and _PAIR_COLUMN not in (text, label)
    if self.kind == "tagging":
      self.name_by_role = {"words": text, "tags": label}
    else:
      self.name_by_role = {"text": text, "label": label}
      if pair is not None:
        self.name_by_role["pair"] = pair

  def rename_columns(self, row: Record) -> Record:
    """Returns a row whose columns are renamed to their roles.

    A question keeps its columns. It gets an `id` or a `title` if it has none.
    """
    if self.kind == "span":
      fields = {"id": row.location, "title": "", **row.fields}
      return row._replace(fields=fields | {"id": str(fields["id"])})
    return row._replace(
      fields={
        role: row.fields.get(name) for role, name in self.name_by_role.items()
      }
    )


def _count_text(number: int, unit: str) -> str:
  """Returns a number with its unit, whose plural ends with "s" or "es"."""
  plural = f"{unit}es" if unit.endswith("s") else f"{unit}s"
  return f"{number:,} {unit if number == 1 else plural}"


def _has_questions(names: Sequence[str]) -> bool:
  """Returns True if the columns are those of a table of questions.

  One of the three column names may be misspelt.
  """
  text_columns = {"text", "words", "label", "tags"} & {*names}
  return not text_columns and len({*QUESTION_COLUMNS} & {*names}) >= 2


def _check_question_columns(names: Sequence[str]) -> None:
  """Raises a UserError if a table of questions lacks a column."""
  for name in QUESTION_COLUMNS:
    if name in names:
      continue
    other_names = {*names} - {*QUESTION_COLUMNS}
    similar_names = difflib.get_close_matches(name, other_names, 1)
    remedy = f"; rename {similar_names[0]!r}" if similar_names else ""
    raise UserError(
      f"data has no column {name!r}, only {', '.join(names)}; a table of"
      f" questions has the columns {', '.join(QUESTION_COLUMNS)}{remedy}."
    )


def _check_named_column(option: str, name: str, names: Sequence[str]) -> None:
  """Raises a UserError if a table lacks a column that the user named."""
  if name not in names:
    raise UserError(
      f"{option}={name!r}: data has no column {name!r}, only"
      f" {', '.join(names)}; name one of these."
    )


def make_task(
  columns: Columns, splits: Mapping[str, Sequence[Record]]
) -> tuple[TaskFormat, list[Input]]:
  """Returns a task and its inputs for `prepare_task.prepare`.

  The inputs are in memory. The `path` of an input holds a digest of its rows,
  so that a task folder is used again only if no row has changed.

  Args:
    columns: the columns of the rows.
    splits: split -> rows; the first split is "train".

  Raises:
    UserError: there are fewer than two classes, or a label cannot be read.
  """
  for rows in splits.values():
    for row in rows:
      _check_texts(columns, row)
      _check_no_second_text(columns, row)
  rows_by_split = {
    split: [columns.rename_columns(row) for row in rows]
    for split, rows in splits.items()
  }
  inputs, records_by_path = [], {}
  for split, rows in rows_by_split.items():
    digest = hashlib.sha256()
    for row in rows:
      digest.update(json.dumps(row.fields, default=str).encode() + b"\n")
    path = f"{split} {digest.hexdigest()}"
    inputs.append(Input(split, path))
    records_by_path[path] = rows
  if columns.kind == "span":
    has_unanswered_question = any(
      not _has_answer(row.fields["answers"])
      for rows in rows_by_split.values()
      for row in rows
    )
    task_format = TASKS["squad2" if has_unanswered_question else "squad"]
    _check_answers(task_format, rows_by_split["train"])
  else:
    labels = _find_label_names(columns, splits)
    columns_text = ",".join(f"{role}={role}" for role in columns.name_by_role)
    task_format = task_inputs.find_task(
      "own", columns.kind, columns_text, labels
    )
  task_in_memory = task_format._replace(
    read_records=lambda path, skipped_lines: iter(records_by_path[path])
  )
  return task_in_memory, inputs


def _check_texts(columns: Columns, row: Record) -> None:
  """Raises a UserError if a row lacks a text, or a column that a task reads."""
  for role, name in columns.name_by_role.items():
    cell = tables.get_cell(row, name)
    if role in ("label", "tags"):
      continue
    if cell is None:
      raise UserError(
        f"{row.location} has no text in column {name!r}; leave such rows out,"
        " or fill them."
      )
    if role != "words":
      if not isinstance(cell, str):
        raise UserError(
          f"{row.location}: {name!r} is {cell!r:.60}, not a text."
        )
      continue
    if not isinstance(cell, list):
      raise UserError(
        f"{row.location}: {name!r} is {cell!r:.60}, not a list of words."
      )
    for word in cell:
      if not isinstance(word, str):
        raise UserError(
          f"{row.location}: the list {name!r} has {word!r:.60}, which is not a"
          " word."
        )


def _check_no_second_text(columns: Columns, row: Record) -> None:
  """Raises a UserError if a row has a second text that would be dropped.

  The first row to train on decides whether the texts are pairs.
  """
  if not columns.may_lack_pairs or row.fields.get(_PAIR_COLUMN) is None:
    return
  raise UserError(
    f"{row.location} has a second text, but row 0 of data has none; give all"
    " rows a second text, or none."
  )


def _check_answers(task_format: TaskFormat, rows: Sequence[Record]) -> None:
  """Raises a UserError if no answer to train on is at its offset."""
  examples = [
    example
    for row in rows
    # True: each row needs an answer.
    for example in task_format.parse_record(row, True)
  ]
  if all(map(questions.has_misplaced_answer, examples)):
    answer = examples[0]["answers"][0]
    raise UserError(
      f"{rows[0].location}: the answer {answer['text']!r:.60} does not begin at"
      f" character {answer['answer_start']} of its context, and no other row"
      " has an answer at its answer_start; count characters from 0."
    )


def _has_answer(answers: Any) -> bool:
  if isinstance(answers, Mapping):
    answers = answers.get("text")
  return bool(answers)


def _find_label_names(
  columns: Columns, splits: Mapping[str, Sequence[Record]]
) -> tuple[str, ...]:
  """Returns the names of the labels in all splits; () if they have no names.

  All splits are read, because a label may occur only in a held-out row.

  Args:
    columns: the columns of the rows.
    splits: split -> rows with the user's columns.

  Raises:
    UserError: a label cannot be read, or there are fewer than two labels.
  """
  kind = columns.kind
  rows = [row for rows in splits.values() for row in rows]
  if kind == "regression":
    for row in rows:
      label_fields.read_number(
        row, columns.name_by_role["label"], needs_label=True
      )
    return ()
  if kind == "tagging":
    return _find_tags(columns, rows)
  column = columns.name_by_role["label"]
  if kind == "classification":
    names = {
      label_fields.read_name(
        row,
        column,
        labels=(),
        needs_label=True,
        hidden_cells=label_fields.EMPTY_CELLS,
      )
      for row in rows
    }
    labels = tuple(sorted(filter(None, names)))
    _check_num_labels(labels, "class", "a classification")
    return labels
  label_lists = [
    (label_fields.read_list(row, column, needs_label=True), True)
    for row in rows
  ]
  if label_fields.labels_if_marks(label_lists, ()) is not None:
    return ()
  label_names = {
    name
    for (values, _), row in zip(label_lists, rows, strict=True)
    for name in label_fields.label_names(values or (), (), row.location)
  }
  labels = tuple(sorted(label_names))
  _check_num_labels(labels, "label", "a task with several labels of a text")
  return labels


def _find_tags(columns: Columns, rows: Sequence[Record]) -> tuple[str, ...]:
  """Returns the names of the tags of all rows; see `_find_label_names`."""
  column = columns.name_by_role["tags"]
  tags_by_row = []
  for row in rows:
    names = row.fields[column]
    if names is None:
      raise UserError(
        f"{row.location} has no tags in column {column!r}; training and"
        " validation need a tag for each word."
      )
    words = row.fields[columns.name_by_role["words"]]
    if not isinstance(names, list):
      raise UserError(
        f"{row.location}: {column!r} is {names!r:.60}, not a list of tags."
      )
    if len(names) != len(words):
      raise UserError(
        f"{row.location} has {_count_text(len(names), 'tag')} for"
        f" {_count_text(len(words), 'word')}; every word needs one tag."
      )
    tags_by_row.append(list(map(str, names)))
  labels = custom.collect_labels(
    "tagging", [{"tags": names} for names in tags_by_row]
  )
  _check_num_labels(labels, "tag", "a task of tags")
  unprefixed_tag = tags.find_unprefixed(labels)
  if unprefixed_tag is not None:
    for row, names in zip(rows, tags_by_row, strict=True):
      if unprefixed_tag in names:
        raise UserError(
          f"{row.location}: {tags.unprefixed_message(unprefixed_tag)}"
        )
  return labels


def _check_num_labels(labels: Sequence[str], unit: str, task: str) -> None:
  """Raises a UserError if a task has fewer than two labels."""
  if len(labels) < 2:
    names = f" ({labels[0]})" if labels else ""
    raise UserError(
      f"data has {_count_text(len(labels), unit)}{names}; {task} needs two or"
      " more."
    )
