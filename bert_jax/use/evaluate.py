"""Scores a model on a split of a task, and writes the official files."""

from collections.abc import Sequence

from etils import epath

from bert_jax.messages import Progress, UserError
from bert_jax.tasks import batches, encoded_rows, metrics, server_files
from bert_jax.training import evaluate_task
from bert_jax.use import predict


def evaluate(
  model_path: str,
  data_path: str,
  split: str = "validation",
  output: str | None = None,
  batch_size: int = 32,
  search_official_threshold: bool = False,
  dtype: str = "float32",
  family: str | None = None,
) -> tuple[dict[str, float], Sequence[str]]:
  """Scores a model on a split of a task.

  Args:
    model_path: a run's folder (RUN@best, RUN@STEP), a converted folder or a
      transformers folder.
    data_path: the task folder.
    split: the split's name.
    output: a folder for the predictions in the official format; None writes no
      files.
    batch_size: the number of rows in a batch.
    search_official_threshold: if True, searches for the best threshold of SQuAD
      2.0, as evaluate-v2.0.py does.
    dtype: the dtype of the computation.
    family: the family of a transformers folder whose config.json names no
      family.

  Returns:
    The scores by the names of the task's metrics, and the paths of the written
    files.

  Raises:
    UserError: the model or the data cannot be read, or do not fit together.
    OSError: the predictions cannot be written.
  """
  task_split = batches.open_split(batches.open_folder(data_path), split)
  task = task_split.task
  if search_official_threshold and "squad2" not in task.metrics:
    raise UserError(
      "the official threshold is only for a task whose questions may have no"
      f" answer, but {data_path} has the task {task.name}; leave out"
      " --official-threshold."
    )
  max_length = int(encoded_rows.lengths(task_split.rows).max())
  predictor = predict.open_predictor(
    model_path, batch_size, max_length=max_length, dtype=dtype, family=family
  )
  # Refuse a model whose labels differ from the task's.
  predict.match_labels(predictor, task_split, data_path)
  # Without gold labels, the metrics are not computed.
  if any(
    metrics.gold_label(task, example) is not None
    for example in task_split.examples
  ):
    metrics.check_packages(task)
  if predictor.max_length < max_length:
    raise UserError(
      f"{data_path} has rows of {max_length} tokens, but the model takes"
      f" {predictor.max_length}; prepare the task again with"
      f" --length={predictor.max_length}."
    )
  if output:
    # Make the folder before the model runs, so that a bad path fails early.
    epath.Path(output).mkdir(parents=True, exist_ok=True)
  with Progress(f"predicting split {split}"):
    predictions = predict.predict_split(predictor, task_split, data_path)
  scored_task = task
  if search_official_threshold:
    scored_task = task._replace(metrics=("squad2_official",))
  scores = metrics.evaluate(scored_task, predictions, task_split.examples)
  evaluate_task.note_score_warnings(task_split, predictions)
  paths: Sequence[str] = ()
  if output:
    paths = server_files.write(
      output, task, predictions, task_split.examples, task_split.name
    )
  return scores, paths
