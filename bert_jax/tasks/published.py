"""Lists the published tasks with their labels, metrics and files."""

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

# (path, skipped_lines) -> the records of a file. FILE:LINE of each skipped line
# is appended to `skipped_lines`; None means that no line may be skipped.
Reader = Callable[[str, list[str] | None], Iterator[Record]]
# (record, True if the record must have a label) -> the record's examples.
Parser = Callable[[Record, bool], Iterable[dict[str, Any]]]


class TaskFormat(NamedTuple):
  """Holds a task and the functions that read its files.

  Attributes:
    task: the task, with labels in their published order.
    read_records: reads the records of a file.
    parse_record: makes the examples from a record.
    tfds_name: the task's name in TensorFlow Datasets; "" if the task is not
      there.
    length: the largest number of tokens in a row, as published.
    with_context: True if a row with a sentence also has the text around it,
      from its document.
    columns: role -> column, for a custom task; None for a published task.
  """

  task: Task
  read_records: Reader
  parse_record: Parser
  tfds_name: str
  length: int = 128
  with_context: bool = False
  columns: dict[str, str] | None = None


_ZERO_ONE, _FALSE_TRUE = ("0", "1"), ("false", "true")
_ENTAILMENT = ("entailment", "not_entailment")
# Task -> labels, metrics, name in TensorFlow Datasets. The labels come from
# `get_labels` in google-research/bert run_classifier.py. For the tasks that
# run_classifier.py lacks, the labels come from google-research/electra
# finetune/classification/classification_tasks.py.
_GLUE: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
  "cola": (_ZERO_ONE, ("matthews",), "glue/cola"),
  "sst2": (_ZERO_ONE, ("accuracy",), "glue/sst2"),
  "mrpc": (_ZERO_ONE, ("f1", "accuracy"), "glue/mrpc"),
  "stsb": ((), ("pearson_spearman",), "glue/stsb"),
  "qqp": (_ZERO_ONE, ("f1", "accuracy"), "glue/qqp"),
  "mnli": (
    ("contradiction", "entailment", "neutral"),
    ("accuracy",),
    "glue/mnli",
  ),
  "qnli": (_ENTAILMENT, ("accuracy",), "glue/qnli"),
  "rte": (_ENTAILMENT, ("accuracy",), "glue/rte"),
  "wnli": (_ZERO_ONE, ("accuracy",), "glue/wnli"),
}
# Task -> labels, metrics, largest number of tokens in a row. The metrics come
# from Wang et al. 2019, table 1. CB's labels are in the order of TensorFlow
# Datasets.
_SUPERGLUE: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
  "boolq": (_FALSE_TRUE, ("accuracy",), 256),
  "cb": (
    ("entailment", "contradiction", "neutral"),
    ("accuracy_f1_macro",),
    256,
  ),
  "copa": (_ZERO_ONE, ("accuracy",), 128),
  "multirc": (_ZERO_ONE, ("multirc",), 512),
  "record": (_FALSE_TRUE, ("record",), 512),
  "wic": (_FALSE_TRUE, ("accuracy",), 128),
  "wsc": (_FALSE_TRUE, ("accuracy",), 128),
}
# Task -> types of entities.
_ENTITY_TYPES = {
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


def _iob2_tags(types: Iterable[str]) -> tuple[str, ...]:
  """Returns the tags of IOB2 for types of entities."""
  return (
    "O",
    *(f"{prefix}-{entity_type}" for entity_type in types for prefix in "BI"),
  )


def _one_example(parse: Callable[..., dict[str, Any]], task: Task) -> Parser:
  """Returns a parser that gives one example for each record."""
  return lambda record, needs_label: [parse(task, record, needs_label)]


def _without_skipping(read: Callable[[str], Iterator[Record]]) -> Reader:
  """Returns a reader that never skips a line."""
  return lambda path, skipped_lines: read(path)


def _glue_task(name: str) -> TaskFormat:
  labels, metrics, tfds_name = _GLUE[name]
  kind = "classification" if labels else "regression"
  task = Task(name, kind, labels, num_choices=1, metrics=metrics)
  read = functools.partial(glue.records, name)
  return TaskFormat(task, read, _one_example(glue.parse, task), tfds_name)


def _superglue_task(name: str) -> TaskFormat:
  labels, metrics, length = _SUPERGLUE[name]
  kind, num_choices = "classification", 1
  if name == "copa":
    kind, num_choices = "choice", 2
  task = Task(name, kind, labels, num_choices, metrics)
  return TaskFormat(
    task,
    _without_skipping(functools.partial(superglue.records, name)),
    functools.partial(superglue.parse, task),
    tfds_name=f"super_glue/{name}",
    length=length,
  )


def _choice_task(name: str) -> TaskFormat:
  if name == "swag":
    task = Task(
      name,
      "choice",
      ("0", "1", "2", "3"),
      num_choices=4,
      metrics=("accuracy",),
    )
    parser = _one_example(choices.parse_swag, task)
    return TaskFormat(
      task, _without_skipping(tables.records), parser, tfds_name="", length=128
    )
  task = Task(
    name, "choice", choices.LETTERS, num_choices=4, metrics=("accuracy",)
  )
  parser = _one_example(choices.parse_race, task)
  return TaskFormat(
    task,
    _without_skipping(choices.race_records),
    parser,
    tfds_name="race/high",
    length=512,
  )


def _tagging_task(name: str) -> TaskFormat:
  labels = _iob2_tags(_ENTITY_TYPES[name])
  task = Task(name, "tagging", labels, num_choices=1, metrics=("tagging_f1",))
  # Rows of CoNLL 2003 have context, as in Devlin et al. 2018, section 5.3.
  is_conll2003 = name == "conll2003"
  return TaskFormat(
    task,
    _without_skipping(conll.published_records),
    _one_example(conll.parse, task),
    tfds_name="conll2003" if is_conll2003 else "",
    length=512 if is_conll2003 else 128,
    with_context=is_conll2003,
  )


def _squad_task(name: str) -> TaskFormat:
  task = Task(name, "span", labels=(), num_choices=1, metrics=(name,))
  tfds_name = "squad/v2.0" if name == "squad2" else "squad/v1.1"
  parser = _one_example(squad.parse, task)
  return TaskFormat(
    task, _without_skipping(squad.records), parser, tfds_name, length=384
  )


TASKS: dict[str, TaskFormat] = {
  **{name: _glue_task(name) for name in _GLUE},
  **{name: _superglue_task(name) for name in _SUPERGLUE},
  **{name: _choice_task(name) for name in ("swag", "race")},
  **{name: _tagging_task(name) for name in _ENTITY_TYPES},
  **{name: _squad_task(name) for name in ("squad", "squad2")},
}
