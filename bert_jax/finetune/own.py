"""One's own tasks: columns of a TSV, CSV or JSONL file by name.

--task spam --columns text=message,label=verdict
--task same --columns text=a,pair=b,label=same
--task price --kind regression --columns text=review,label=euros
--task moods --kind multi_label --columns text=post,label=moods
--task names --kind tagging --columns words=tokens,tags=ner
--task names --kind tagging --columns words=2,tags=1

Words and tags are lists in JSONL, and in a table texts with spaces between
them. Numbers are columns of a file with a word a line (CoNLL), from 1, or from
the end by -1; without --columns the first is the word and the last the tag.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_jax.finetune import conll, labels, tables
from bert_jax.finetune.rows import Task
from bert_jax.finetune.tables import Record, get, get_text

KINDS = ("classification", "multi_label", "regression", "tagging")
# The first decides what is best.
METRICS = {
  "classification": ("accuracy", "f1_macro"),
  "multi_label": ("f1_micro",),
  "regression": ("pearson_spearman",),
  "tagging": ("tagging_f1",),
}
# The role that a line without a label may lack.
_RIGHT = {kind: "tags" if kind == "tagging" else "label" for kind in KINDS}
_ROLES = {kind: ("text", "pair", "label", "id") for kind in KINDS}
_ROLES["tagging"] = ("words", "tags", "id")
_NUMBER = re.compile(r"-?[1-9][0-9]*")
# What stands between two words in a table; any other space is part of a word.
_BETWEEN = re.compile(r"[ \t\r\n]+")


def columns(text: str, kind: str) -> dict[str, str]:
  """Parses `ROLE=COLUMN,...`.

  Args:
    text: the value of --columns.
    kind: of the task; its roles are text, pair, label, id, or words, tags, id.

  Raises:
    ValueError: another role, one given twice, or no text.
  """
  roles = _ROLES[kind]
  made: dict[str, str] = {}
  for part in tables.split_commas(text, "--columns"):
    role, equal, column = map(str.strip, part.partition("="))
    if not equal or role not in roles or role in made or not column:
      raise ValueError(
        f"--columns={text}: {part!r} is not ROLE=COLUMN, or is there twice; the"
        f" roles of a {kind} are {', '.join(roles)}."
      )
    made[role] = column
  if roles[0] not in made:
    raise ValueError(f"--columns={text}: it does not say {roles[0]}=COLUMN.")
  return made


def check_labels(kind: str, names: Sequence[str]) -> None:
  """Raises ValueError at names of labels that a task cannot have."""
  if kind == "regression":
    raise ValueError("--labels: a regression has none, its labels are numbers.")
  twice = [name for i, name in enumerate(names) if name in names[:i]]
  if twice:
    raise ValueError(f"--labels: {twice[0]!r} is there twice.")
  if len(names) < 2:
    raise ValueError(f"--labels: a {kind} needs two or more.")
  if kind == "tagging":
    labels.check_tags(names, "--labels")


def records(
  path: str, kind: str, chosen: Mapping[str, str]
) -> Iterator[Record]:
  """Reads a file; ValueError names the file and line.

  Args:
    path: .jsonl; else a table with names in its first line; else, of tagging
      without columns or with their numbers, CoNLL columns.
    kind: of the task.
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
    raise ValueError(
      f"{path}: --columns says id={chosen['id']}, but a file with a word a line"
      " has no ids of sentences; leave it out."
    )
  return _conll(path, chosen)


def _table(path: str, kind: str, chosen: Mapping[str, str]) -> Iterator[Record]:
  """Records of a table that has all columns but those that may be missing."""
  needed = [chosen[role] for role in _ROLES[kind] if role in chosen]
  needed = [c for c in needed if c != chosen.get(_RIGHT[kind])]
  other = ", or give the numbers of a file with a word a line (words=1,tags=2)"
  for record in tables.table(path):
    for column in needed:
      if column not in record.fields:
        raise ValueError(
          f"{path}:1: no column {column!r}; there are"
          f" {', '.join(record.fields)}. The first line of a table names its"
          " columns: write one, or correct --columns"
          f"{other if kind == 'tagging' else ''}."
        )
    yield record


def _split(chosen: Mapping[str, str]) -> Callable[[Record], Record]:
  """Makes lists of a table's words and tags; an empty field is no tags."""
  names = [chosen.get(role, role) for role in ("words", "tags")]

  def split(record: Record) -> Record:
    lists = {
      name: [part for part in _BETWEEN.split(record.fields[name]) if part]
      for name in names
      if name in record.fields
    }
    words, tags = names
    if lists[words] and not lists.get(tags, True):
      lists[tags] = None
    return record._replace(fields=record.fields | lists)

  return split


def _conll(path: str, chosen: Mapping[str, str]) -> Iterator[Record]:
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
  task: Task, chosen: Mapping[str, str], record: Record, needed: bool
) -> dict[str, Any]:
  """Makes an example of a line.

  Args:
    task: its labels may be () for any.
    chosen: role -> column.
    record: the line.
    needed: whether it must have a label.

  Raises:
    ValueError: names the file and line.
  """
  number = get(record, chosen["id"]) if "id" in chosen else None
  if task.kind == "tagging":
    fields = dict(words=get(record, chosen.get("words", "words")))
    tags = chosen.get("tags", "tags")
    if tags in record.fields or needed:
      fields["tags"] = get(record, tags)
    made = conll.parse(task, record._replace(fields=fields), needed)
    return made | {"id": number}
  texts = [
    get_text(record, chosen[role])
    for role in ("text", "pair")
    if role in chosen
  ]
  column = chosen.get("label", "label")
  if task.kind == "regression":
    label: Any = labels.number(record, column, needed)
  elif task.kind == "multi_label":
    label = labels.names(record, column, task.labels, needed)
  else:
    label = labels.name(record, column, task.labels, needed, labels.EMPTY)
  return dict(id=number, texts=texts, label=label)


def found_labels(kind: str, examples: list[dict[str, Any]]) -> tuple[str, ...]:
  """The names that examples have, sorted; O first, of tags.

  Every type of entity gets both of its tags, found or not.
  """
  if kind == "regression":
    return ()
  if kind == "classification":
    found = {e["label"] for e in examples if e["label"] is not None}
    return tuple(sorted(found))
  if kind == "multi_label":
    return tuple(sorted({name for e in examples for name in e["label"] or ()}))
  tags = {tag for e in examples for tag in e["tags"] or ()}
  types = sorted({tag[2:] for tag in tags if tag != "O"})
  return ("O", *(f"{p}-{t}" for t in types for p in "BI"))
