"""Logits of rows to predictions of examples, as many and in the same order."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.tasks import predictions as nbest
from bert_jax.tasks.encoded_rows import Examples, Rows, Task, lengths
from bert_jax.tasks.predictions import SpanRules

Logits = Sequence[np.ndarray] | np.ndarray
DEFAULT = SpanRules()


def predictions(
  task: Task,
  rows: Rows,
  logits: Logits,
  examples: Examples,
  spans: SpanRules = DEFAULT,
) -> list[Any]:
  """Makes one prediction of each example.

  Args:
    task: the task.
    rows: N rows of the examples.
    logits: of each row, in order: classification [classes]; regression and
      choice one number; tagging [length, tags]; span [length, 2], or a beam's
      spans. Positions from the row's length on are padding. Of choices [E,
      choices] will do.
    examples: the raw fields of E examples.
    spans: how answers of kind span are chosen; a task with the metric squad2
      may have none.

  Returns:
    Classification and choice: the label's name. Several at once: a list of
    those whose chance is above one half. Regression: a number. Tagging: a list
    of tags, one a word; a word without a piece has O, or None where the task
    has no tag O. Span: see `nbest.answers`.

  Raises:
    ValueError: logits of another number of rows or labels, or not finite.
  """
  if task.kind in ("tagging", "span"):
    _check_tokens(task, rows, logits)
    if task.kind == "tagging":
      return _tags(task, rows, logits, examples)
    null = "squad2" in task.metrics
    return nbest.answers(rows, logits, examples, null, spans)
  scores = example_logits(task, rows, logits)
  if task.kind == "regression":
    return scores[:, 0].tolist()
  if task.kind == "multi_label":
    names = np.array(task.labels, object)
    return [names[own > 0].tolist() for own in scores]
  if "record" in task.metrics:
    return _one_of_each_group(task, scores, examples)
  return [task.labels[i] for i in scores.argmax(1)]


def example_logits(task: Task, rows: Rows, logits: Logits) -> np.ndarray:
  """Logits of E examples, float64 [E, classes], [E, choices] or [E, 1].

  Those of an example of several rows (windows of a long text) are the mean of
  its rows'. The arguments, and what is raised, are those of `predictions`.
  """
  named = task.kind in ("classification", "multi_label")
  width = len(task.labels) if named else 1
  scores = np.asarray(logits, np.float64)
  if scores.size != len(rows.example) * width:
    raise ValueError(
      f"task {task.name}: logits of shape {list(scores.shape)} are not"
      f" {width} for each of {len(rows.example)} rows; has the model another"
      " number of labels?"
    )
  scores = scores.reshape(len(rows.example), width)
  check_finite(scores)
  if task.kind == "choice":
    return scores.reshape(-1, task.columns)
  count = np.bincount(rows.example)
  sums = np.zeros((len(count), width))
  np.add.at(sums, rows.example, scores)
  return sums / count[:, None]


def words_without_row(rows: Rows, examples: Examples) -> int:
  """Words of kind tagging that have no piece in any row; see `predictions`."""
  pairs = np.stack([rows.example.repeat(lengths(rows)), rows.offsets[:, 0]], 1)
  found = np.unique(pairs[pairs[:, 1] >= 0], axis=0)
  return sum(len(e["words"]) for e in examples) - len(found)


def _check_tokens(task: Task, rows: Rows, logits: Logits) -> None:
  """Raises ValueError unless every token of every row has its logits."""
  if len(logits) != len(rows.example):
    raise ValueError(
      f"task {task.name}: logits of {len(logits)} rows, not of"
      f" {len(rows.example)}."
    )
  if task.kind == "span" and all(map(nbest.is_beam, logits)):
    check_finite(*logits)
    return
  width = len(task.labels) if task.kind == "tagging" else 2
  for i, (row, length) in enumerate(zip(logits, lengths(rows), strict=True)):
    if len(row) < length or np.shape(row)[1:] != (width,):
      raise ValueError(
        f"task {task.name}: logits of row {i} are {list(np.shape(row))}, not"
        f" [{length}, {width}]; has the model another number of labels?"
      )
    check_finite(row[:length])


def check_finite(*logits: np.ndarray) -> None:
  """Raises ValueError unless all are numbers."""
  if not all(np.isfinite(x).all() for x in logits):
    raise ValueError("the model's logits are not finite; it is broken.")


def _tags(
  task: Task, rows: Rows, logits: Logits, examples: Examples
) -> list[list[str | None]]:
  """One tag a word: its first piece's, in the row with most context of it."""
  silent = "O" if "O" in task.labels else None
  tags = [[silent] * len(example["words"]) for example in examples]
  seen = [[-1.0] * len(example["words"]) for example in examples]
  for i, (example, length) in enumerate(
    zip(rows.example, lengths(rows), strict=True)
  ):
    words = rows.offsets[rows.starts[i] : rows.starts[i + 1], 0]
    places = np.flatnonzero(words >= 0)
    best = np.asarray(logits[i])[places].argmax(1)
    # As google-research/bert run_squad.py, _check_is_max_context.
    around = np.minimum(places, length - 1 - places) + 0.01 * length
    for word, tag, context in zip(words[places], best, around, strict=True):
      if context > seen[example][word]:
        tags[example][word] = task.labels[tag]
        seen[example][word] = context
  return tags


def _one_of_each_group(
  task: Task, scores: np.ndarray, examples: Examples
) -> list[str]:
  """The positive label for the likeliest example of each group alone."""
  margin = scores[:, 1] - scores[:, 0]
  best: dict[Any, int] = {}
  for i, example in enumerate(examples):
    group = example["group"]
    if group not in best or margin[i] > margin[best[group]]:
      best[group] = i
  chosen = set(best.values())
  return [task.labels[i in chosen] for i in range(len(examples))]
