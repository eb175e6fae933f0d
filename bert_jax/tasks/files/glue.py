"""GLUE's files (gluebenchmark.com), and those GLUE was made from."""

from collections.abc import Iterator
from typing import Any

from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import label_fields, tables
from bert_jax.tasks.files.tables import Record

# Columns of the texts.
TEXTS = {
  "cola": ("sentence",),
  "sst2": ("sentence",),
  "mrpc": ("sentence1", "sentence2"),
  "stsb": ("sentence1", "sentence2"),
  "qqp": ("question1", "question2"),
  "mnli": ("sentence1", "sentence2"),
  "qnli": ("question", "sentence"),
  "rte": ("sentence1", "sentence2"),
  "wnli": ("sentence1", "sentence2"),
}
# Other names of columns: in MRPC, QQP, MNLI, STS-B, TensorFlow Datasets.
_NAMES = {
  "#1 String": "sentence1",
  "#2 String": "sentence2",
  "premise": "sentence1",
  "hypothesis": "sentence2",
  "Quality": "label",
  "is_duplicate": "label",
  "gold_label": "label",
  "score": "label",
  "index": "id",
  "idx": "id",
}
# CoLA has no header (nyu-mll.github.io/CoLA); nor has STSbenchmark, with or
# without its first columns (ixa2.si.ehu.eus/stswiki).
_COLA = ("source", "label", "star", "sentence")
_STSB = ("genre", "file", "year", "number", "label", "sentence1", "sentence2")
_STSB_SHORT = ("sentence1", "sentence2", "label")


def records(
  name: str, path: str, skipped: list[str] | None
) -> Iterator[Record]:
  """Reads a file of a task.

  Args:
    name: the name of the task.
    path: the file: .tsv, .txt or .csv, or .jsonl (SuperGLUE's RTE).
    skipped: takes where the lines stand that QQP's published file has with
      columns missing; None makes such a line an error.

  Raises:
    ValueError: names the file and line.
  """
  if tables.is_jsonl(path):
    return tables.jsonl(path)
  first = tables.lines(path)[0].split(tables.delimiter_of(path))
  if name == "cola" and _is_colas_own(first):
    return tables.with_names(path, _COLA)
  if name == "stsb" and not {"sentence1", "sentence"} & set(first):
    if len(first) < len(_STSB):
      return tables.with_names(path, _STSB_SHORT)
    return tables.with_names(path, _STSB, longer=True)
  return tables.table(path, skipped if name == "qqp" else None)


def _is_colas_own(first: list[str]) -> bool:
  """Whether a first line is a row of CoLA's own files, which name no columns.

  A row with a label may have the name of a column for its sentence.
  """
  if len(first) != len(_COLA):
    return False
  return "sentence" not in first or first[1] in ("0", "1")


def parse(task: Task, record: Record, needed: bool) -> dict[str, Any]:
  """Makes an example of a line.

  Args:
    task: a task of GLUE, or one whose files have the same form.
    record: the line.
    needed: True if a record without a label is an error.

  Raises:
    ValueError: names the file and line.
  """
  fields = {_NAMES.get(k, k): v for k, v in record.fields.items()}
  # A column that has the name already is the one.
  fields |= record.fields
  record = Record(fields, record.where)
  texts = [tables.get_text(record, column) for column in TEXTS[task.name]]
  if task.kind == "regression":
    # TensorFlow Datasets has -1 for what is kept back; the scale is 0 to 5.
    if fields.get("label") in (-1.0, "-1"):
      record = Record({**fields, "label": ""}, record.where)
    label: Any = label_fields.read_number(record, "label", needed)
  else:
    label = label_fields.read_name(record, "label", task.labels, needed)
  return dict(id=fields.get("id"), texts=texts, label=label)
