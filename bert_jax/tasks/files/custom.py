"""One's own tasks: columns of a TSV, CSV or JSONL file by name.

--task spam --columns text=message,label=verdict
--task same --columns text=a,pair=b,label=same
--task price --kind regression --columns text=review,label=euros
--task moods --kind multi_label --columns text=post,label=moods
--task rude --kind multi_label --columns text=post,label=toxic,label=insult
--task names --kind tagging --columns words=tokens,tags=ner
--task names --kind tagging --columns words=2,tags=1

Words and tags are lists in JSONL, and in a table texts with spaces between
them. Numbers are columns of a file with a word a line (CoNLL), from 1, or from
the end by -1; without --columns the first is the word and the last the tag.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import conll, label_fields, tables, tags
from bert_jax.tasks.files.tables import Record, get, get_text

KINDS = ("classification", "multi_label", "regression", "tagging")
# Kind -> metrics. The first metric decides which checkpoint is best. For tags
# see `metrics_of`.
_METRICS = {
  "classification": ("accuracy", "f1_macro"),
  "multi_label": ("f1_micro",),
  "regression": ("pearson_spearman",),
  "tagging": ("tagging_f1",),
}
# The key of `Columns` whose value is a list of columns, one for each label.
LABEL_COLUMNS = "labels"
# Role -> column; LABEL_COLUMNS -> list of columns.
Columns = Mapping[str, Any]
# The role that a line without a label may lack.
_RIGHT = {kind: "tags" if kind == "tagging" else "label" for kind in KINDS}
_ROLES = {kind: ("text", "pair", "label", "id") for kind in KINDS}
_ROLES["tagging"] = ("words", "tags", "id")
_NUMBER = re.compile(r"-?[1-9][0-9]*")
# Space between two words in a table; any other space is part of a word.
_BETWEEN = re.compile(r"[ \t\r\n]+")


def metrics_of(kind: str, names: Sequence[str]) -> tuple[str, ...]:
  """Returns the metrics of a task.

  For tags without prefixes it is the share of words with the right tag.

  Args:
    kind: one of `KINDS`.
    names: the task's labels; () if they are not read yet.
  """
  if kind == "tagging" and names and tags.letters(names) is None:
    return ("accuracy",)
  return _METRICS[kind]


def columns(text: str, kind: str) -> dict[str, Any]:
  """Parses `ROLE=COLUMN,...`.

  Args:
    text: the value of --columns.
    kind: the kind of the task. Tagging has the roles words, tags and id; the
      other kinds have text, pair, label and id.

  Returns:
    Role -> column. If each label has its own column, `LABEL_COLUMNS` -> these
    columns, in place of the role "label".

  Raises:
    ValueError: another role, one given twice, or no text.
  """
  roles = _ROLES[kind]
  chosen: dict[str, Any] = {}
  label_columns: list[str] = []
  for part in tables.split_commas(text, "--columns"):
    role, equal, column = map(str.strip, part.partition("="))
    several = kind == "multi_label" and role == "label"
    twice = column in label_columns if several else role in chosen
    if not equal or role not in roles or twice or not column:
      raise UserError(
        f"--columns={text}: {part!r} is not ROLE=COLUMN, or is there twice; the"
        f" roles of a {kind} are {', '.join(roles)}."
      )
    if several:
      label_columns.append(column)
    else:
      chosen[role] = column
  if len(label_columns) > 1:
    chosen[LABEL_COLUMNS] = label_columns
  elif label_columns:
    chosen["label"] = label_columns[0]
  if roles[0] not in chosen:
    raise UserError(f"--columns={text}: it does not say {roles[0]}=COLUMN.")
  return chosen


def check_labels(kind: str, names: Sequence[str]) -> None:
  """Raises ValueError at names of labels that a task cannot have."""
  if kind == "regression":
    raise UserError("--labels: a regression has none, its labels are numbers.")
  twice = [name for i, name in enumerate(names) if name in names[:i]]
  if twice:
    raise UserError(f"--labels: {twice[0]!r} is there twice.")
  if len(names) < 2:
    raise UserError(f"--labels: a {kind} needs two or more.")
  unprefixed = tags.find_unprefixed(names) if kind == "tagging" else None
  if unprefixed:
    raise UserError(f"--labels: {tags.unprefixed_message(unprefixed)}")


def records(path: str, kind: str, chosen: Columns) -> Iterator[Record]:
  """Reads a file; ValueError names the file and line.

  Args:
    path: .jsonl; else a table with names in its first line; else, of tagging
      without columns or with their numbers, CoNLL columns.
    kind: the kind of the task.
    chosen: role -> column.
  """
  if tables.is_jsonl(path):
    return tables.jsonl(path)
  if kind != "tagging":
    return _table(path, kind, chosen)
  both = [chosen[role] for role in ("words", "tags") if role in chosen]
  if not all(map(_NUMBER.fullmatch, both)):
    return map(_split(chosen), _table(path, kind, chosen))
  if "id" in chosen:
    raise UserError(
      f"{path}: --columns says id={chosen['id']}, but a file with a word a line"
      " has no ids of sentences; leave it out."
    )
  return _conll(path, chosen)


def _table(path: str, kind: str, chosen: Columns) -> Iterator[Record]:
  """Records of a table that has all columns but those that may be missing."""
  # `parse` asks for the columns of labels, if the example needs a label.
  needed = [chosen[role] for role in _ROLES[kind] if role in chosen]
  needed = [c for c in needed if c != chosen.get(_RIGHT[kind])]
  other = ", or give the numbers of a file with a word a line (words=1,tags=2)"
  for record in tables.table(path):
    for column in needed:
      if column not in record.fields:
        raise UserError(
          f"{path}:1: no column {column!r}; there are"
          f" {', '.join(record.fields)}. The first line of a table names its"
          " columns: write one, or correct --columns"
          f"{other if kind == 'tagging' else ''}."
        )
    yield record


def _split(chosen: Columns) -> Callable[[Record], Record]:
  """Makes lists of a table's words and tags; an empty field is no tags."""
  names = [chosen.get(role, role) for role in ("words", "tags")]

  def split(record: Record) -> Record:
    lists = {
      name: _words(record.fields[name])
      for name in names
      if name in record.fields
    }
    words_column, tags_column = names
    if lists[words_column] and not lists.get(tags_column, True):
      lists[tags_column] = None
    return record._replace(fields=record.fields | lists)

  return split


def _words(text: str) -> list[Any]:
  """Splits a text at white space, or reads a list in JSON or Python's form."""
  if text.strip()[:1] == "[":
    items = label_fields.read_literal(text.strip())
    # A list must hold only texts, because "[1]" may be a word.
    if items and all(isinstance(item, str) for item in items):
      return items
  return [part for part in _BETWEEN.split(text) if part]


def _conll(path: str, chosen: Columns) -> Iterator[Record]:
  """Sentences of a file with a word a line, under the chosen names."""
  places = {
    role: int(chosen.get(role, default))
    for role, default in (("words", 1), ("tags", -1))
  }
  for sentence in conll.records(path, places["tags"], places["words"]):
    fields = {
      chosen.get(name, name): value for name, value in sentence.fields.items()
    }
    yield sentence._replace(fields=fields)


def parse(
  task: Task, chosen: Columns, record: Record, needed: bool
) -> dict[str, Any]:
  """Makes an example of a line.

  Args:
    task: its labels may be () for any.
    chosen: role -> column.
    record: the line.
    needed: True if a record without a label is an error.

  Raises:
    ValueError: names the file and line.
  """
  number = get(record, chosen["id"]) if "id" in chosen else None
  if task.kind == "tagging":
    fields = dict(words=get(record, chosen.get("words", "words")))
    tags_column = chosen.get("tags", "tags")
    if tags_column in record.fields or needed:
      fields["tags"] = get(record, tags_column)
    example = conll.parse(task, record._replace(fields=fields), needed)
    return example | {"id": number}
  texts = [
    get_text(record, chosen[role])
    for role in ("text", "pair")
    if role in chosen
  ]
  column = chosen.get("label", "label")
  if task.kind == "regression":
    label: Any = label_fields.read_number(record, column, needed)
  elif LABEL_COLUMNS in chosen:
    label = label_fields.read_columns(record, chosen[LABEL_COLUMNS], needed)
  elif task.kind == "multi_label":
    # `task_inputs.read` turns the values into names: this depends on all lines.
    label = label_fields.read_list(record, column, needed)
  else:
    label = label_fields.read_name(
      record, column, task.labels, needed, label_fields.EMPTY
    )
  return dict(id=number, texts=texts, label=label)


def found_labels(kind: str, examples: list[dict[str, Any]]) -> tuple[str, ...]:
  """Returns the sorted labels of examples; for tags see `tags.all_labels`."""
  if kind == "regression":
    return ()
  if kind == "classification":
    names = {e["label"] for e in examples if e["label"] is not None}
    return tuple(sorted(names))
  if kind == "multi_label":
    return tuple(sorted({name for e in examples for name in e["label"] or ()}))
  return tags.all_labels({tag for e in examples for tag in e["tags"] or ()})
