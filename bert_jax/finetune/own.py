"""One's own tasks: columns of a TSV, CSV or JSONL file by name.

--task spam --columns text=message,label=verdict
--task same --columns text=a,pair=b,label=same
--task price --kind regression --columns text=review,label=euros
--task names --kind tagging --columns words=tokens,tags=ner
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_jax.finetune import conll, labels, tables
from bert_jax.finetune.rows import Task
from bert_jax.finetune.tables import Record, get, get_text

KINDS = ("classification", "regression", "tagging")
# The first decides what is best.
METRICS = {
  "classification": ("accuracy", "f1_macro"),
  "regression": ("pearson_spearman",),
  "tagging": ("tagging_f1",),
}
_ROLES = {
  "classification": ("text", "pair", "label", "id"),
  "regression": ("text", "pair", "label", "id"),
  "tagging": ("words", "tags", "id"),
}


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
  for part in text.split(","):
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


def records(path: str, kind: str) -> Iterator[Record]:
  """Reads a file; ValueError names the file and line.

  Args:
    path: .jsonl; else a table with names in its first line; else, of tagging,
      CoNLL columns.
    kind: of the task.
  """
  if tables.is_jsonl(path):
    return tables.jsonl(path)
  if kind == "tagging":
    return conll.records(path)
  return tables.table(path)


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
    return conll.parse(task, Record(fields, record.where), needed) | {
      "id": number
    }
  texts = [
    get_text(record, chosen[role])
    for role in ("text", "pair")
    if role in chosen
  ]
  column = chosen.get("label", "label")
  if task.kind == "regression":
    label: Any = labels.number(record, column, needed)
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
  tags = {tag for e in examples for tag in e["tags"] or ()}
  types = sorted({tag[2:] for tag in tags if tag != "O"})
  return ("O", *(f"{p}-{t}" for t in types for p in "BI"))
