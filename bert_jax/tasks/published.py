"""The published tasks: their labels, metrics and files."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import (
  choices,
  conll,
  glue,
  squad,
  superglue,
  tables,
)
from bert_jax.tasks.files.tables import Record


class TaskFiles(NamedTuple):
  """A task and how its files are read.

  Attributes:
    task: labels in their published order.
    records: (path, where skipped lines stand, or None: none may be skipped) ->
      its lines.
    parse: (record, whether it must have a label) -> examples.
    tfds: the task's name in TensorFlow Datasets.
    length: tokens in a row, as published.
    context: True if rows have the text of the document around a sentence.
    columns: role -> column, for a custom task; None for a published one.
  """

  task: Task
  records: Callable[[str, list[str] | None], Iterator[Record]]
  parse: Callable[[Record, bool], Iterable[dict[str, Any]]]
  tfds: str
  length: int = 128
  context: bool = False
  columns: dict[str, str] | None = None


_BINARY, _TRUTH = ("0", "1"), ("false", "true")
_ENTAILED = ("entailment", "not_entailment")
# google-research/bert run_classifier.py, get_labels; the others are those of
# google-research/electra finetune/classification/classification_tasks.py.
_GLUE = {
  "cola": (_BINARY, ("matthews",), "glue/cola"),
  "sst2": (_BINARY, ("accuracy",), "glue/sst2"),
  "mrpc": (_BINARY, ("f1", "accuracy"), "glue/mrpc"),
  "stsb": ((), ("pearson_spearman",), "glue/stsb"),
  "qqp": (_BINARY, ("f1", "accuracy"), "glue/qqp"),
  "mnli": (
    ("contradiction", "entailment", "neutral"),
    ("accuracy",),
    "glue/mnli",
  ),
  "qnli": (_ENTAILED, ("accuracy",), "glue/qnli"),
  "rte": (_ENTAILED, ("accuracy",), "glue/rte"),
  "wnli": (_BINARY, ("accuracy",), "glue/wnli"),
}
# Wang et al. 2019, table 1; the classes of CB as TensorFlow Datasets has them.
_SUPERGLUE = {
  "boolq": (_TRUTH, ("accuracy",), 256),
  "cb": (
    ("entailment", "contradiction", "neutral"),
    ("accuracy_f1_macro",),
    256,
  ),
  "copa": (_BINARY, ("accuracy",), 128),
  "multirc": (_BINARY, ("multirc",), 512),
  "record": (_TRUTH, ("record",), 512),
  "wic": (_TRUTH, ("accuracy",), 128),
  "wsc": (_TRUTH, ("accuracy",), 128),
}
_TYPES = {
  "conll2003": ("PER", "ORG", "LOC", "MISC"),
  "wnut17": (
    "corporation",
    "creative-work",
    "group",
    "location",
    "person",
    "product",
  ),
}


def _tags(types: Iterable[str]) -> tuple[str, ...]:
  return ("O", *(f"{prefix}-{t}" for t in types for prefix in "BI"))


def _one(parse: Callable[..., dict[str, Any]], task: Task) -> Callable:
  return lambda record, needed: [parse(task, record, needed)]


def _glue(name: str) -> TaskFiles:
  names, metrics, tfds = _GLUE[name]
  kind = "classification" if names else "regression"
  task = Task(name, kind, names, 1, metrics)
  read = functools.partial(glue.records, name)
  return TaskFiles(task, read, _one(glue.parse, task), tfds)


def _superglue(name: str) -> TaskFiles:
  names, metrics, length = _SUPERGLUE[name]
  kind, columns = "classification", 1
  if name == "copa":
    kind, columns = "choice", 2
  task = Task(name, kind, names, columns, metrics)
  return TaskFiles(
    task,
    lambda path, skipped: superglue.records(name, path),
    functools.partial(superglue.parse, task),
    f"super_glue/{name}",
    length,
  )


def _choice(name: str) -> TaskFiles:
  if name == "swag":
    task = Task(name, "choice", ("0", "1", "2", "3"), 4, ("accuracy",))
    read, parse, tfds, length = (
      tables.records,
      choices.parse_swag,
      "",
      128,
    )
  else:
    task = Task(name, "choice", choices.LETTERS, 4, ("accuracy",))
    read, parse = choices.race_records, choices.parse_race
    tfds, length = "race/high", 512
  return TaskFiles(
    task, lambda path, skipped: read(path), _one(parse, task), tfds, length
  )


def _tagging(name: str) -> TaskFiles:
  labels = _tags(_TYPES[name])
  task = Task(name, "tagging", labels, 1, ("tagging_f1",))
  paper = name == "conll2003"  # Devlin et al. 2018, section 5.3.
  return TaskFiles(
    task,
    lambda path, skipped: conll.published_records(path),
    _one(conll.parse, task),
    "conll2003" if paper else "",
    512 if paper else 128,
    paper,
  )


def _squad(name: str) -> TaskFiles:
  task = Task(name, "span", (), 1, (name,))
  tfds = "squad/v2.0" if name == "squad2" else "squad/v1.1"
  return TaskFiles(
    task,
    lambda path, skipped: squad.records(path),
    _one(squad.parse, task),
    tfds,
    384,
  )


TASKS: dict[str, TaskFiles] = {
  **{name: _glue(name) for name in _GLUE},
  **{name: _superglue(name) for name in _SUPERGLUE},
  **{name: _choice(name) for name in ("swag", "race")},
  **{name: _tagging(name) for name in _TYPES},
  **{name: _squad(name) for name in ("squad", "squad2")},
}
