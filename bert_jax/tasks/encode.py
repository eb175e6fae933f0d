"""Examples of texts (classification, regression, choice) to rows."""

import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks import layouts
from bert_jax.tasks.encoded_rows import Examples, Rows, Task
from bert_jax.text.vocabulary import Vocabulary


class Encoded(NamedTuple):
  """Rows, and what is worth a line to whoever made them.

  Attributes:
    rows: the rows.
    notes: an event -> the ids of the examples, or the words, that it concerns.
  """

  rows: Rows
  notes: dict[str, list[str]]


def label_ids(task: Task, labels: Sequence[Any]) -> np.ndarray:
  """Ids of names, by their place in `task.labels`; -1 for None: int32 [N].

  Raises:
    ValueError: a name that the task has not.
  """
  ids: dict[Any, int] = {name: i for i, name in enumerate(task.labels)}
  ids[None] = -1
  try:
    return np.array([ids[label] for label in labels], np.int32)
  except KeyError as e:
    raise UserError(
      f"label {e} is none of task {task.name}'s: {', '.join(task.labels)}."
    ) from e


def _marks(task: Task, labels: Sequence[list[str] | None]) -> np.ndarray:
  """1 for the labels that apply, 0 for others, -1 if unlabelled: int32."""
  marks = np.zeros((len(labels), len(task.labels)), np.int32)
  for mark, names in zip(marks, labels, strict=True):
    if names is None:
      mark[:] = -1
    else:
      mark[label_ids(task, names)] = 1
  return marks


def texts(
  task: Task, examples: Examples, vocabulary: Vocabulary, length: int
) -> Encoded:
  """Encodes examples of one or two texts, or of choices of such.

  Args:
    task: the task: classification, regression, multi_label or choice.
    examples: with `texts` and `label`, see `rows`.
    vocabulary: text to ids.
    length: tokens in a row at most; the longer text of a pair is cut first.

  Raises:
    ValueError: no room, or an unknown label.
  """
  layout = layouts.of_vocabulary(vocabulary)
  layouts.check_length(layout, length)
  choice = task.kind == "choice"
  rows = [e["texts"] for e in examples]
  if choice:
    rows = [row for choices in rows for row in choices]
  ids = _encode(vocabulary, [text for row in rows for text in row])
  laid_out, second, cut, at = [], [], [], 0
  last_texts = []  # The last text of each row, before it is cut.
  for i, row in enumerate(rows):
    parts, place, short = layouts.row(layout, ids[at : at + len(row)], length)
    at += len(row)
    last_texts.append(ids[at - 1])
    laid_out.append(parts)
    second.append(place)
    if short:
      cut.append(str(examples[i // task.columns]["id"]))
  notes = {"texts cut to the length": cut}
  if choice and cut:
    notes |= _cut_choices(task, examples, last_texts, laid_out)
  sizes = [sum(map(len, parts)) for parts in laid_out]
  labels = [e["label"] for e in examples]
  if task.kind == "regression":
    numbers = [np.nan if x is None else x for x in labels]
    labels = np.array(numbers, np.float32)
  elif task.kind == "multi_label":
    labels = _marks(task, labels)
  else:
    labels = np.repeat(label_ids(task, labels), task.columns)
  return Encoded(
    Rows(
      np.concatenate([np.zeros(0, np.int32), *itertools.chain(*laid_out)]),
      np.cumsum([0, *sizes], dtype=np.int64),
      np.array(second, np.int32),
      np.repeat(np.arange(len(examples)), task.columns),
      labels,
      np.zeros((0, 2), np.int32),
    ),
    {what: names for what, names in notes.items() if names},
  )


def _cut_choices(
  task: Task,
  examples: Examples,
  last_texts: Sequence[np.ndarray],
  laid_out: Sequence[Sequence[np.ndarray]],
) -> dict[str, list[str]]:
  """Finds the examples that cutting rows has made harder or impossible.

  Args:
    task: a task of kind choice.
    examples: the E examples.
    last_texts: for each row, the uncut ids of its last text, which has the
      choice.
    laid_out: the parts of each row; the last text is the last part but one.

  Returns:
    Description -> ids of the examples. The choices of an example differ only
    between their common beginning and their common end. A choice has lost
    tokens if some of the tokens between these two are missing.
  """
  lost, equal = [], []
  for i, example in enumerate(examples):
    example_rows = slice(i * task.columns, (i + 1) * task.columns)
    texts = [text.tolist() for text in last_texts[example_rows]]
    lengths = [len(parts[-2]) for parts in laid_out[example_rows]]
    prefix = len(os.path.commonprefix(texts))
    reversed_ends = [text[prefix:][::-1] for text in texts]
    suffix = len(os.path.commonprefix(reversed_ends))
    pairs = zip(texts, lengths, strict=True)
    if any(length < len(text) - suffix for text, length in pairs):
      lost.append(str(example["id"]))
    rows = [np.concatenate(parts).tobytes() for parts in laid_out[example_rows]]
    if len({*rows}) < len({*map(tuple, texts)}):
      equal.append(str(example["id"]))
  return {
    "examples whose choices lost tokens": lost,
    "examples with choices that became equal": equal,
  }


def _encode(vocabulary: Vocabulary, texts: list[str]) -> list[np.ndarray]:
  """Ids of each text; a text that occurs again is encoded once."""
  distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
  flat, lengths = vocabulary.encode_flat(list(distinct))
  ends = np.cumsum(lengths)
  begins = ends - lengths
  return [flat[begins[i] : ends[i]] for i in map(distinct.__getitem__, texts)]
