"""Scores a model on a split of a task, and writes the official files."""

import os
from collections.abc import Sequence

from bert_jax.messages import UserError
from bert_jax.tasks import batches, encoded_rows, metrics, server_files
from bert_jax.training import evaluate_task
from bert_jax.use import predict


def evaluate(
  model: str,
  data: str,
  split: str = "validation",
  output: str | None = None,
  batch_size: int = 32,
  official_threshold: bool = False,
  dtype: str = "float32",
  family: str | None = None,
) -> tuple[dict[str, float], Sequence[str]]:
  """Scores a model on a split of a task.

  Args:
    model: a run's folder (RUN@best, RUN@STEP), a converted folder or a
      transformers folder.
    data: the task's folder.
    split: the split's name.
    output: a folder for the predictions in the official format; None writes
      none.
    batch_size: rows computed at a time.
    official_threshold: True to search SQuAD 2.0's best threshold as
      evaluate-v2.0.py does.
    dtype: the dtype of the computation.
    family: the family of a transformers folder whose config.json names none.

  Returns:
    The scores by the names of the task's metrics, and the written files.

  Raises:
    ValueError: the model, the data or both together cannot be used.
    OSError: the predictions cannot be written.
  """
  task_split = batches.open_split(batches.open_part(data), split)
  task = task_split.task
  if official_threshold and "squad2" not in task.metrics:
    raise UserError(
      f"--official-threshold: {data} is task {task.name}, not one whose"
      " questions may have no answer."
    )
  longest = int(encoded_rows.lengths(task_split.rows).max())
  predictor = predict.open_predictor(
    model, batch_size, length=longest, dtype=dtype, family=family
  )
  predict.label_order(predictor, task_split, data)
  if any(metrics.gold(task, e) is not None for e in task_split.examples):
    metrics.check_packages(task)
  if predictor.length < longest:
    raise UserError(
      f"{data} has rows of {longest} tokens, the model takes"
      f" {predictor.length}; prepare it with --length={predictor.length}."
    )
  if output:
    # Make the folder before the model runs, which may take long.
    os.makedirs(output, exist_ok=True)
  predictions = predict.predict_split(predictor, task_split, data)
  scored = task
  if official_threshold:
    scored = task._replace(metrics=("squad2_official",))
  scores = metrics.evaluate(scored, predictions, task_split.examples)
  evaluate_task.note_doubts(task_split, predictions)
  paths: Sequence[str] = ()
  if output:
    paths = server_files.write(
      output, task, predictions, task_split.examples, task_split.name
    )
  return scores, paths
