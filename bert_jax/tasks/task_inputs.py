"""Reads the files of a task's splits, for published and custom tasks."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bert_jax.messages import UserError, by_caller, did_you_mean
from bert_jax.tasks.encoded_rows import Examples, Task
from bert_jax.tasks.files import conll, custom, label_fields, tags, tfds
from bert_jax.tasks.files.tables import Record
from bert_jax.tasks.published import TASKS, TaskFormat

_SPLIT_NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Kinds whose examples have several labels -> the field with these labels.
_LIST_FIELDS = {"multi_label": "label", "tagging": "tags"}


class Input(NamedTuple):
  """Names an input to read.

  Attributes:
    split: the split to which its examples belong.
    path: a file, a folder (RACE), or `tfds:NAME:SPLIT`.
  """

  split: str
  path: str


class Contents(NamedTuple):
  """Holds the contents of a task's inputs.

  Attributes:
    task: the task. If it is a custom task, its labels may come from the inputs.
    splits: split -> examples.
    skipped_lines: FILE:LINE of each line that was left out (QQP).
    notes: sentences that say how the labels were read.
  """

  task: Task
  splits: dict[str, Examples]
  skipped_lines: list[str]
  notes: list[str]


def find_task(
  name: str,
  kind: str | None = None,
  columns: str | None = None,
  labels: Sequence[str] = (),
) -> TaskFormat:
  """Finds a published task, or describes a custom task.

  The task is custom if `columns` or `kind` is not None.

  Args:
    name: the name of the task.
    kind: the kind of a custom task, one of `custom.KINDS`; None means
      classification.
    columns: see `custom.parse_columns`.
    labels: the names of the labels in the order of their ids; () means the
      sorted labels of the training examples.

  Raises:
    ValueError: the name is unknown, a custom task has the name of a published
      task, or the task cannot have these labels.
  """
  if kind is None and columns is None:
    if name in TASKS:
      if labels:
        raise UserError(
          f"--labels: the labels of {name} are published; give your task"
          " another name, and --columns."
        )
      return TASKS[name]
    raise UserError(
      f"--task={name} names no task{did_you_mean(name, TASKS)} For a custom"
      " task, say its columns: --columns text=...,label=..."
    )
  if name in TASKS:
    raise UserError(
      f"--task={name} is a published task; give your task another name."
    )
  kind = kind or "classification"
  if columns is None and kind != "tagging":
    raise UserError("--columns is missing; for example text=...,label=...")
  if labels:
    custom.check_labels(kind, labels)
  custom_columns = custom.parse_columns(columns, kind) if columns else {}
  labels = _label_names(custom_columns, labels)
  task = Task(
    name,
    kind,
    tuple(labels),
    num_choices=1,
    metrics=custom.metrics_of(kind, labels),
  )
  return _custom_task(task, custom_columns)


def _label_names(
  custom_columns: custom.Columns, labels: Sequence[str]
) -> tuple[str, ...]:
  """Returns the labels of a task.

  If each label has a column, the names of the columns are the labels.
  """
  columns = custom_columns.get(custom.LABEL_COLUMNS, ())
  if columns and labels and sorted(labels) != sorted(columns):
    raise UserError(
      f"--labels: each label has a column of its name ({', '.join(columns)});"
      " leave --labels out, or give exactly these names in any order."
    )
  return tuple(labels or columns)


def _custom_task(task: Task, custom_columns: custom.Columns) -> TaskFormat:
  """Returns a custom task with the functions that read its files."""
  parse = functools.partial(custom.parse, task, custom_columns)
  return TaskFormat(
    task,
    lambda path, skipped_lines: custom.records(path, task.kind, custom_columns),
    lambda record, needs_label: [parse(record, needs_label)],
    tfds_name="",
    columns=dict(custom_columns),
  )


def parse_inputs(task_format: TaskFormat, texts: Iterable[str]) -> list[Input]:
  """Parses the values of --input.

  Args:
    task_format: the task.
    texts: each is `SPLIT=PATH`. For a published task, a text may also be
      `tfds`, which means all splits of its data set.

  Raises:
    ValueError: a text has neither form.
  """
  inputs = []
  for text in texts:
    split, equals_sign, path = text.partition("=")
    if text == tfds.TFDS and task_format.tfds_name:
      split_names = tfds.splits(task_format.tfds_name)
      inputs += [
        Input(name, f"{tfds.PREFIX}{task_format.tfds_name}:{name}")
        for name in split_names
      ]
    elif (
      not equals_sign or not _SPLIT_NAME_PATTERN.fullmatch(split) or not path
    ):
      raise UserError(
        f"--input={text}: write SPLIT=FILE, as in train=train.tsv"
        + (", or tfds." if task_format.tfds_name else ".")
      )
    else:
      inputs.append(Input(split, path))
  return inputs


def needs_labels(split: str) -> bool:
  """Returns True if each line of a split with this name must have a label."""
  return split.startswith(("train", "validation", "dev"))


def read(task_format: TaskFormat, inputs: Sequence[Input]) -> Contents:
  """Reads all inputs. The examples of a split are in the order of its inputs.

  Raises:
    ValueError: an input is wrong; the message names the file and line.
  """
  splits: dict[str, Examples] = {}
  skipped_lines: list[str] = []
  # Split -> the record of each example, without fields.
  records: dict[str, list[Record]] = {}
  task = task_format.task
  for split, path in inputs:
    num_before = len(splits.setdefault(split, []))
    needs_label = needs_labels(split)
    # No line of a test set may be skipped, because its predictions are matched
    # to lines by their order.
    for record in _read_records(
      task_format, path, skipped_lines if needs_label else None
    ):
      for example in task_format.parse_record(record, needs_label):
        splits[split].append(example)
        # Do not keep the fields, because the example has the texts already.
        records.setdefault(split, []).append(record._replace(fields={}))
    if len(splits[split]) == num_before:
      raise UserError(f"{path} has no examples.")
  notes: list[str] = []
  if task.kind == "multi_label":
    task = _name_labels(task_format, splits, records, notes)
  if not task.labels and task.kind in ("classification", *_LIST_FIELDS):
    labels = _training_labels(task, splits, records)
    metrics = custom.metrics_of(task.kind, labels)
    task = task._replace(labels=labels, metrics=metrics)
  if task.kind == "tagging" and (warning := tags.spelling_warning(task.labels)):
    notes.append(warning)
  for split, examples in splits.items():
    _set_ids(task, split, examples)
  return Contents(task, splits, skipped_lines, notes)


def _read_records(
  task_format: TaskFormat, path: str, skipped_lines: list[str] | None
) -> Iterable[Record]:
  """Reads the records of an input; see `TaskFormat.read_records`."""
  if path.startswith(tfds.PREFIX):
    return tfds.records(path, task_format.task.labels)
  return task_format.read_records(path, skipped_lines)


def _name_labels(
  task_format: TaskFormat,
  splits: Mapping[str, Examples],
  records: Mapping[str, list[Record]],
  notes: list[str],
) -> Task:
  """Replaces the lists of labels in examples by lists of names, in place.

  Args:
    task_format: the task and its columns.
    splits: split -> examples.
    records: split -> the record of each example, for messages.
    notes: a list, to which sentences about the labels are appended.

  Returns:
    The task, which has labels if the lists are numbers.

  Raises:
    ValueError: a list has neither names nor one number for each label.
  """
  task = task_format.task
  if custom.LABEL_COLUMNS in (task_format.columns or {}):
    return task
  labelled_examples = [
    (example, needs_labels(split), record.location)
    for split, examples in splits.items()
    for example, record in zip(examples, records[split], strict=True)
    if example["label"] is not None
  ]
  marked_labels = label_fields.labels_if_marks(
    [
      (example["label"], needs_label)
      for example, needs_label, _ in labelled_examples
    ],
    task.labels,
  )
  if marked_labels and not task.labels:
    notes.append(
      f"each list of labels has a number for each of {len(marked_labels)}"
      f" labels; name them by {by_caller('--labels', 'lists of names')}."
    )
  elif not marked_labels:
    lists = [example["label"] for example, *_ in labelled_examples]
    sentence = label_fields.list_warning(lists, task.labels)
    notes += [sentence] if sentence else []
  for example, needs_label, location in labelled_examples:
    values = example["label"]
    if not marked_labels:
      label_fields.check_not_marks(values, task.labels, location)
      example["label"] = label_fields.label_names(values, task.labels, location)
    elif values or needs_label:
      marks = zip(marked_labels, values, strict=True)
      example["label"] = [
        label for label, mark in marks if label_fields.is_one_mark(mark)
      ]
    else:
      example["label"] = None
  if not marked_labels:
    _hide_empty_labels(splits)
  return task._replace(labels=marked_labels) if marked_labels else task


def _hide_empty_labels(splits: Mapping[str, Examples]) -> None:
  """Sets the labels of a test set to None if no example names a label."""
  for split, examples in splits.items():
    if not needs_labels(split) and not any(
      example["label"] for example in examples
    ):
      for example in examples:
        example["label"] = None


def _training_labels(
  task: Task,
  splits: Mapping[str, Examples],
  records: Mapping[str, list[Record]],
) -> tuple[str, ...]:
  """Returns the labels of the split "train", or else of the first split.

  Raises:
    ValueError: there are fewer than two labels, or an example of any split has
      a label that is not among them.
  """
  label_split = "train" if "train" in splits else next(iter(splits))
  if task.kind == "tagging":
    _check_tags(splits, records)
  labels = custom.collect_labels(task.kind, splits[label_split])
  if len(labels) < 2:
    raise UserError(
      f"split {label_split} has {len(labels)} labels ({', '.join(labels)}); a"
      f" task of kind {task.kind} needs two or more."
    )
  for split, examples in splits.items():
    for example, record in zip(examples, records[split], strict=True):
      value = example[_LIST_FIELDS.get(task.kind, "label")]
      has_label_list = task.kind in _LIST_FIELDS
      for i, label in enumerate((value or ()) if has_label_list else [value]):
        if label is not None and label not in labels:
          location = conll.location_of(record, i)
          raise UserError(
            f"{location}: label {label!r:.60} is not in split {label_split}"
            f" ({', '.join(labels)}); correct it"
            f"{by_caller(', or give all with --labels', '')}."
          )
  return labels


def _check_tags(
  splits: Mapping[str, Examples], records: Mapping[str, list[Record]]
) -> None:
  """Raises ValueError if some tags have a prefix and some have none."""
  tag_names = {
    tag
    for examples in splits.values()
    for example in examples
    for tag in example["tags"] or ()
  }
  unprefixed_tag = tags.find_unprefixed(tag_names)
  if unprefixed_tag is None:
    return
  for split, examples in splits.items():
    for example, record in zip(examples, records[split], strict=True):
      if unprefixed_tag in (example["tags"] or ()):
        index = example["tags"].index(unprefixed_tag)
        location = conll.location_of(record, index)
        raise UserError(
          f"{location}: {tags.unprefixed_message(unprefixed_tag)}"
        )


def _set_ids(task: Task, split: str, examples: Examples) -> None:
  """Sets the `id` of each example to a text.

  Raises:
    ValueError: two questions of a span task have the same id.
  """
  earlier_ids = set()
  for i, example in enumerate(examples):
    raw_id = example.get("id")
    example["id"] = str(i if raw_id is None else raw_id)
    if task.kind == "span" and example["id"] in earlier_ids:
      raise UserError(
        f"split {split}: two questions have the id {example['id']!r}; each"
        " question needs its own id, which names its answer."
      )
    earlier_ids.add(example["id"])
