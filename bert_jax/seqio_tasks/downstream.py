"""Registers downstream tasks as seqio tasks.

  downstream.register("sst2", "sst2", ["train=train.tsv"], "vocab.txt")
  downstream.register_folder("mine", "data/mine")

A row has the same arrays as a row of `bert_jax.tasks.batches`, but is always
padded to the task's length.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.seqio_tasks.text_vocabulary import TextVocabulary
from bert_jax.tasks import (
  batches,
  encoded_rows,
  layouts,
  prepare_task,
  task_inputs,
)
from bert_jax.tasks.encoded_rows import Rows, Task
from bert_jax.tasks.published import TaskFormat
from bert_jax.text import open_vocabulary
from bert_jax.text.vocabulary import Vocabulary


def register(
  name: str,
  task: str | TaskFormat,
  inputs: Sequence[str],
  vocab: str,
  length: int | None = None,
  **options: Any,
) -> seqio.Task:
  """Registers a task with its files, which are read at the first use.

  Args:
    name: the name of the seqio task.
    task: the name of a published task, or a task from `task_inputs.find_task`.
    inputs: `SPLIT=FILE` or `SPLIT=tfds:NAME:SPLIT` for each file.
    vocab: the path of a vocabulary (see `open_vocabulary.load`).
    length: the number of tokens in a row; None takes the task's default.
    **options: options of the tokenizer.

  Raises:
    ValueError: the task is unknown. The first use of the task also raises
      ValueError if an input is wrong.
  """
  task_format = task_inputs.find_task(task) if isinstance(task, str) else task
  split_inputs = task_inputs.parse_inputs(task_format, inputs)
  length = length or task_format.length
  make_tokenizer = functools.cache(
    lambda: open_vocabulary.load(vocab, **options)
  )

  # Read all splits together, because the labels are collected from all splits.
  read_contents = functools.cache(
    lambda: task_inputs.read(task_format, split_inputs)
  )

  @functools.cache
  def split_rows(split: str) -> tuple[Task, Rows]:
    contents = read_contents()
    encoded = prepare_task.encode_examples(
      contents.task,
      contents.splits[split],
      make_tokenizer(),
      length,
      with_context=task_format.with_context,
    )
    return contents.task, encoded.rows

  split_names = list(dict.fromkeys(source.split for source in split_inputs))
  return _register(
    name, task_format.task, split_rows, split_names, length, make_tokenizer
  )


def register_folder(name: str, folder: str) -> seqio.Task:
  """Registers a folder that `bert_jax prepare-task` wrote.

  Raises:
    UserError: `bert_jax prepare-task` did not write the folder.
  """
  meta = encoded_rows.read_meta(folder)
  task = encoded_rows.task_of(meta["task"])

  @functools.cache
  def split_rows(split: str) -> tuple[Task, Rows]:
    return encoded_rows.load(folder, split)[:2]

  make_tokenizer = functools.cache(lambda: open_vocabulary.load(folder))
  split_names = list(meta["splits"])
  return _register(
    name, task, split_rows, split_names, meta["length"], make_tokenizer
  )


def _register(
  name: str,
  task: Task,
  split_rows: Callable[[str], tuple[Task, Rows]],
  split_names: list[str],
  length: int,
  make_tokenizer: Callable[[], Vocabulary],
) -> seqio.Task:
  """Registers a task.

  Args:
    name: the name of the seqio task.
    task: the task, whose labels may not be read yet.
    split_rows: returns the task and the rows of a split.
    split_names: the names of all splits.
    length: the number of tokens in a row.
    make_tokenizer: returns the tokenizer.
  """

  def open_split(
    split: str, shuffle_files: bool, seed: int | None = None
  ) -> tf.data.Dataset:
    pad = layouts.layout_of(make_tokenizer()).pad
    return _padded_rows(*split_rows(split), length, pad)

  label_rank = int(task.kind in ("multi_label", "tagging", "span"))
  label_dtype = tf.float32 if task.kind == "regression" else tf.int32
  input_rank = 2 if task.kind == "choice" else 1
  no_vocabulary = seqio.PassThroughVocabulary(size=0)

  def make_feature(
    vocabulary: seqio.Vocabulary, dtype: Any, rank: int
  ) -> seqio.Feature:
    return seqio.Feature(vocabulary, add_eos=False, dtype=dtype, rank=rank)

  features = {
    "input_ids": make_feature(
      TextVocabulary(make_tokenizer), tf.int32, input_rank
    ),
    "segment_ids": make_feature(no_vocabulary, tf.int32, input_rank),
    "sequence_ids": make_feature(no_vocabulary, tf.int32, input_rank),
    "labels": make_feature(no_vocabulary, label_dtype, label_rank),
    "label_weights": make_feature(
      no_vocabulary, tf.float32, int(task.kind == "tagging")
    ),
    "row": make_feature(no_vocabulary, tf.int64, 0),
  }
  if task.kind == "span":
    features["unanswerable"] = make_feature(no_vocabulary, tf.float32, 0)
  return seqio.TaskRegistry.add(
    name,
    source=seqio.FunctionDataSource(open_split, split_names),
    preprocessors=[],
    output_features=features,
  )


def _padded_rows(
  task: Task, rows: Rows, length: int, pad: int
) -> tf.data.Dataset:
  """Returns a split as a dataset: rows in order, each padded to `length`.

  For multiple choice, an element of the dataset is an example with a row for
  each choice.
  """
  make_ragged = functools.partial(
    tf.RaggedTensor.from_row_splits, row_splits=rows.starts
  )
  labels = rows.labels
  columns = {
    "ids": make_ragged(rows.ids),
    "second": rows.second_begins,
    "labels": make_ragged(labels) if task.kind == "tagging" else labels,
    "row": np.arange(len(rows.example_indices)),
  }
  if task.kind == "span":
    columns["unanswerable"] = batches.mark_unanswerable(rows)

  def pad_to_length(x: tf.Tensor, filler: int) -> tf.Tensor:
    padding = [[0, length - tf.shape(x)[0]]]
    padded = tf.pad(x, padding, constant_values=filler)
    return tf.ensure_shape(padded, [length])

  def lay_out(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    num_tokens, positions = tf.shape(row["ids"])[0], tf.range(length)
    is_token, labels = positions < num_tokens, row["labels"]
    if task.kind == "tagging":
      labels = pad_to_length(labels, -1)
    has_label = (
      tf.math.is_finite(labels) if labels.dtype.is_floating else labels >= 0
    )
    has_label_list = task.kind in ("multi_label", "span")
    label_weight = tf.reduce_all(has_label) if has_label_list else has_label
    copied_columns = {
      key: row[key] for key in ("row", "unanswerable") if key in row
    }
    return copied_columns | {
      "input_ids": pad_to_length(row["ids"], pad),
      "segment_ids": tf.cast(is_token & (positions >= row["second"]), tf.int32),
      "sequence_ids": tf.cast(is_token, tf.int32),
      "labels": tf.where(has_label, labels, tf.zeros_like(labels)),
      "label_weights": tf.cast(label_weight, tf.float32),
    }

  dataset = tf.data.Dataset.from_tensor_slices(columns).map(lay_out)
  if task.kind != "choice":
    return dataset
  dataset = dataset.batch(task.num_choices, drop_remainder=True)
  # Each choice has its own inputs. Take all other arrays from the first choice.
  input_keys = ("input_ids", "segment_ids", "sequence_ids")
  return dataset.map(
    lambda e: {key: e[key] if key in input_keys else e[key][0] for key in e}
  )
