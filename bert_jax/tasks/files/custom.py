"""Reads custom tasks: the user names the columns of a TSV, CSV or JSONL file.

Examples of flags:

--task spam --columns text=message,label=verdict
--task same --columns text=a,pair=b,label=same
--task price --kind regression --columns text=review,label=euros
--task moods --kind multi_label --columns text=post,label=moods
--task rude --kind multi_label --columns text=post,label=toxic,label=insult
--task names --kind tagging --columns words=tokens,tags=ner
--task names --kind tagging --columns words=2,tags=1

Words and tags are lists in JSONL. In a table, both are texts with spaces
between the words or tags. In a file with a word on each line (CoNLL), columns
have numbers: 1 is the first column, and -1 is the last column. If --columns is
not given, the first column has the words, and the last column has the tags.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import conll, label_fields, tables, tags
from bert_jax.tasks.files.tables import Record, get_cell, get_text

KINDS = ("classification", "multi_label", "regression", "tagging")
# Kind -> metrics. The first metric decides which checkpoint is the best. For
# tagging, `metrics_of` may choose a different metric.
_METRICS_OF_KIND: dict[str, tuple[str, ...]] = {
  "classification": ("accuracy", "f1_macro"),
  "multi_label": ("f1_micro",),
  "regression": ("pearson_spearman",),
  "tagging": ("tagging_f1",),
}
# The key of `Columns` whose value is a list of columns, one for each label.
LABEL_COLUMNS = "labels"
# Role -> column; LABEL_COLUMNS -> list of columns.
Columns = Mapping[str, Any]
# Kind -> the role of the labels, which a line may lack.
_LABEL_ROLES = {
  kind: "tags" if kind == "tagging" else "label" for kind in KINDS
}
# Kind -> roles; the user must give the first role.
_ROLES_OF_KIND: dict[str, tuple[str, ...]] = {
  kind: ("text", "pair", "label", "id") for kind in KINDS
}
_ROLES_OF_KIND["tagging"] = ("words", "tags", "id")
_COLUMN_NUMBER_PATTERN = re.compile(r"-?[1-9][0-9]*")
# Space between two words in a table; any other space is part of a word.
_SPACE_BETWEEN_WORDS_PATTERN = re.compile(r"[ \t\r\n]+")


def metrics_of(kind: str, names: Sequence[str]) -> tuple[str, ...]:
  """Returns the metrics of a task.

  Tags without prefixes mark no entities, and are scored by accuracy.

  Args:
    kind: one of `KINDS`.
    names: the task's labels; () if the files are not read yet.
  """
  if kind == "tagging" and names and tags.scheme_letters(names) is None:
    return ("accuracy",)
  return _METRICS_OF_KIND[kind]


def parse_columns(text: str, kind: str) -> dict[str, Any]:
  """Parses `ROLE=COLUMN,...`.

  Args:
    text: the value of --columns.
    kind: the kind of the task. Tagging has the roles words, tags and id; every
      other kind has text, pair, label and id.

  Returns:
    Role -> column. If each label has its own column, the key `LABEL_COLUMNS`
    replaces the role "label", and has a list of these columns.

  Raises:
    ValueError: a role is unknown or repeated, or text (for tagging: words) is
      missing.
  """
  roles = _ROLES_OF_KIND[kind]
  columns_by_role: dict[str, Any] = {}
  label_columns: list[str] = []
  for assignment in tables.split_commas(text, "--columns"):
    role, equals_sign, column = map(str.strip, assignment.partition("="))
    is_multi_label = kind == "multi_label" and role == "label"
    is_repeated = (
      column in label_columns if is_multi_label else role in columns_by_role
    )
    if not equals_sign or role not in roles or is_repeated or not column:
      raise UserError(
        f"--columns={text}: {assignment!r} is not ROLE=COLUMN, or is there"
        f" twice; the roles of kind {kind} are {', '.join(roles)}."
      )
    if is_multi_label:
      label_columns.append(column)
    else:
      columns_by_role[role] = column
  if len(label_columns) > 1:
    columns_by_role[LABEL_COLUMNS] = label_columns
  elif label_columns:
    columns_by_role["label"] = label_columns[0]
  if roles[0] not in columns_by_role:
    raise UserError(
      f"--columns={text}: it does not say {roles[0]}=COLUMN; add this."
    )
  return columns_by_role


def check_labels(kind: str, names: Sequence[str]) -> None:
  """Raises ValueError if a task cannot have labels with these names."""
  if kind == "regression":
    raise UserError(
      "--labels: labels of kind regression are numbers, without names; leave"
      " the flag out."
    )
  repeated_names = [name for i, name in enumerate(names) if name in names[:i]]
  if repeated_names:
    raise UserError(
      f"--labels: {repeated_names[0]!r} is there twice; name it once."
    )
  if len(names) < 2:
    raise UserError(
      f"--labels: a task of kind {kind} needs two or more labels; name all"
      " of them."
    )
  unprefixed_tag = tags.find_unprefixed(names) if kind == "tagging" else None
  if unprefixed_tag:
    raise UserError(f"--labels: {tags.unprefixed_message(unprefixed_tag)}")


def records(path: str, kind: str, columns_by_role: Columns) -> Iterator[Record]:
  """Reads the records of a file.

  Args:
    path: a .jsonl file, or a table whose first line names the columns. If the
      kind is tagging and the columns have numbers or are not given, the file
      has a word on each line.
    kind: the kind of the task.
    columns_by_role: role -> column.

  Raises:
    ValueError: a line is wrong; the message names the file and line.
  """
  if tables.is_jsonl(path):
    return tables.jsonl_records(path)
  if kind != "tagging":
    return _table_records(path, kind, columns_by_role)
  columns = [
    columns_by_role[role]
    for role in ("words", "tags")
    if role in columns_by_role
  ]
  if not all(map(_COLUMN_NUMBER_PATTERN.fullmatch, columns)):
    return map(
      _make_splitter(columns_by_role),
      _table_records(path, kind, columns_by_role),
    )
  if "id" in columns_by_role:
    raise UserError(
      f"{path}: --columns says id={columns_by_role['id']}, but a file with"
      " a word on each line has no ids of sentences; leave the id out."
    )
  return _conll_records(path, columns_by_role)


def _table_records(
  path: str, kind: str, columns_by_role: Columns
) -> Iterator[Record]:
  """Yields the records of a table, and checks that it has the columns.

  Columns of labels are not checked here. `parse` checks them if an example
  needs a label.
  """
  needed_columns = [
    columns_by_role[role]
    for role in _ROLES_OF_KIND[kind]
    if role in columns_by_role
  ]
  needed_columns = [
    column
    for column in needed_columns
    if column != columns_by_role.get(_LABEL_ROLES[kind])
  ]
  number_hint = (
    ", or give the numbers of columns, for a file with a word on each line"
    " (words=1,tags=2)"
  )
  for record in tables.table_records(path):
    for column in needed_columns:
      if column not in record.fields:
        raise UserError(
          f"{path}:1 has no column {column!r}; the columns are"
          f" {', '.join(record.fields)}. The first line of a table names its"
          " columns: write one, or correct --columns"
          f"{number_hint if kind == 'tagging' else ''}."
        )
    yield record


def _make_splitter(columns_by_role: Columns) -> Callable[[Record], Record]:
  """Returns a function that splits the words and tags of a record.

  If the field of the tags is empty, the tags become None.
  """
  column_names = [columns_by_role.get(role, role) for role in ("words", "tags")]

  def split(record: Record) -> Record:
    lists: dict[str, list[Any] | None] = {
      name: _split_words(record.fields[name])
      for name in column_names
      if name in record.fields
    }
    words_column, tags_column = column_names
    # True stands for a column of tags that is missing, not empty.
    if lists[words_column] and not lists.get(tags_column, True):
      lists[tags_column] = None
    return record._replace(fields=record.fields | lists)

  return split


def _split_words(text: str) -> list[Any]:
  """Splits a text at white space, or reads a list of JSON or Python."""
  if text.strip()[:1] == "[":
    words = label_fields.read_list_literal(text.strip())
    # A list must hold only texts, because "[1]" may be a word.
    if words and all(isinstance(word, str) for word in words):
      return words
  return [word for word in _SPACE_BETWEEN_WORDS_PATTERN.split(text) if word]


def _conll_records(path: str, columns_by_role: Columns) -> Iterator[Record]:
  """Yields the sentences of a file with a word on each line.

  The fields of a sentence have the names that the user gave to columns.
  """
  tags_column = int(columns_by_role.get("tags", -1))
  words_column = int(columns_by_role.get("words", 1))
  for sentence in conll.records(path, tags_column, words_column):
    fields = {
      columns_by_role.get(name, name): field
      for name, field in sentence.fields.items()
    }
    yield sentence._replace(fields=fields)


def parse(
  task: Task, columns_by_role: Columns, record: Record, needs_label: bool
) -> dict[str, Any]:
  """Makes an example from a record.

  Args:
    task: the task; if its labels are (), any label is allowed.
    columns_by_role: role -> column.
    record: the record.
    needs_label: True if a record without a label is an error.

  Raises:
    ValueError: the record is wrong; the message names the file and line.
  """
  example_id = (
    get_cell(record, columns_by_role["id"]) if "id" in columns_by_role else None
  )
  if task.kind == "tagging":
    fields = dict(words=get_cell(record, columns_by_role.get("words", "words")))
    tags_column = columns_by_role.get("tags", "tags")
    if tags_column in record.fields or needs_label:
      fields["tags"] = get_cell(record, tags_column)
    example = conll.parse(task, record._replace(fields=fields), needs_label)
    return example | {"id": example_id}
  texts = [
    get_text(record, columns_by_role[role])
    for role in ("text", "pair")
    if role in columns_by_role
  ]
  column = columns_by_role.get("label", "label")
  if task.kind == "regression":
    label: Any = label_fields.read_number(record, column, needs_label)
  elif LABEL_COLUMNS in columns_by_role:
    label = label_fields.read_columns(
      record, columns_by_role[LABEL_COLUMNS], needs_label
    )
  elif task.kind == "multi_label":
    # Later `task_inputs.read` turns the values of all lines into names.
    label = label_fields.read_list(record, column, needs_label)
  else:
    label = label_fields.read_name(
      record, column, task.labels, needs_label, label_fields.EMPTY_CELLS
    )
  return dict(id=example_id, texts=texts, label=label)


def collect_labels(
  kind: str, examples: list[dict[str, Any]]
) -> tuple[str, ...]:
  """Returns the sorted labels of examples; for tags see `tags.all_labels`."""
  if kind == "regression":
    return ()
  if kind == "classification":
    names = {
      example["label"] for example in examples if example["label"] is not None
    }
    return tuple(sorted(names))
  if kind == "multi_label":
    return tuple(
      sorted({name for example in examples for name in example["label"] or ()})
    )
  return tags.all_labels(
    {tag for example in examples for tag in example["tags"] or ()}
  )
