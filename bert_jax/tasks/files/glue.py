"""Reads files of GLUE (gluebenchmark.com), and of its original data sets."""

from collections.abc import Iterator
from typing import Any

from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import label_fields, tables
from bert_jax.tasks.files.tables import Record

# Task -> columns with the texts.
TEXT_COLUMNS = {
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
# The name of a column in a published file -> the column's name in this module.
# The published names are from MRPC, QQP, MNLI, STS-B and TensorFlow Datasets.
_COLUMN_NAMES = {
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
# The columns of files without a header: CoLA (nyu-mll.github.io/CoLA), and
# STSbenchmark with or without its first columns (ixa2.si.ehu.eus/stswiki).
_COLA_COLUMNS = ("source", "label", "star", "sentence")
_STSB_COLUMNS = (
  "genre",
  "file",
  "year",
  "number",
  "label",
  "sentence1",
  "sentence2",
)
_STSB_SHORT_COLUMNS = ("sentence1", "sentence2", "label")


def records(
  name: str, path: str, skipped_lines: list[str] | None
) -> Iterator[Record]:
  """Reads the records of a task's file.

  Args:
    name: the name of the task.
    path: the file: .tsv, .txt or .csv, or .jsonl (SuperGLUE's RTE).
    skipped_lines: a list, to which FILE:LINE of each skipped line is appended.
      Only lines of QQP's file that lack columns are skipped. If `skipped_lines`
      is None, such lines are an error.

  Raises:
    ValueError: a line is wrong; the message names the file and line.
  """
  if tables.is_jsonl(path):
    return tables.jsonl_records(path)
  first_cells = tables.read_lines(path)[0].split(tables.delimiter_of(path))
  if name == "cola" and _begins_with_record(first_cells):
    return tables.headless_records(path, _COLA_COLUMNS)
  if name == "stsb" and not {"sentence1", "sentence"} & set(first_cells):
    if len(first_cells) < len(_STSB_COLUMNS):
      return tables.headless_records(path, _STSB_SHORT_COLUMNS)
    return tables.headless_records(path, _STSB_COLUMNS, allow_extra=True)
  return tables.table_records(path, skipped_lines if name == "qqp" else None)


def _begins_with_record(first_line: list[str]) -> bool:
  """Returns True if the first line of a CoLA file is a record, not a header.

  The sentence of a record may be the word "sentence", so the label is checked
  too.
  """
  if len(first_line) != len(_COLA_COLUMNS):
    return False
  return "sentence" not in first_line or first_line[1] in ("0", "1")


def parse(task: Task, record: Record, needs_label: bool) -> dict[str, Any]:
  """Makes an example from a record.

  Args:
    task: a task of GLUE.
    record: the record of a line.
    needs_label: True if a record without a label is an error.

  Raises:
    ValueError: the record is wrong; the message names the file and line.
  """
  fields = {
    _COLUMN_NAMES.get(name, name): cell for name, cell in record.fields.items()
  }
  # If the record also has a column with this module's name, use that column.
  fields |= record.fields
  record = Record(fields, record.location)
  texts = [
    tables.get_text(record, column) for column in TEXT_COLUMNS[task.name]
  ]
  if task.kind == "regression":
    # TensorFlow Datasets writes -1 for a hidden score; the scale is 0 to 5.
    if fields.get("label") in (-1.0, "-1"):
      record = Record({**fields, "label": ""}, record.location)
    label: Any = label_fields.read_number(record, "label", needs_label)
  else:
    label = label_fields.read_name(record, "label", task.labels, needs_label)
  return dict(id=fields.get("id"), texts=texts, label=label)
