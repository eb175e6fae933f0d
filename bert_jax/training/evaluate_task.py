"""Evaluates on the splits of a task: logits, predictions, official metrics.

A unit is a row, or all rows of an example of multiple choice. A model predicts
something for each unit; see `tasks/batches.py`.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.devices import compile_ahead, sharding
from bert_jax.messages import divergence_remedy, note
from bert_jax.objectives.base import Batch, Sums
from bert_jax.tasks import metrics
from bert_jax.tasks.batches import Batches, Split, Splits, features_by_length
from bert_jax.tasks.predictions import make_predictions
from bert_jax.training.evaluate import mean_losses
from bert_jax.training.state import TrainState


def run_batches(
  step: Callable[[Any, Batch], Any],
  params: Any,
  batches: Batches,
  mesh: Mesh,
  make_extra_arrays: Callable[[np.ndarray], dict[str, np.ndarray]]
  | None = None,
) -> Iterator[tuple[np.ndarray, Any]]:
  """Calls a step with each batch of a split.

  Args:
    step: a jitted function: (parameters, global batch) -> replicated arrays.
    params: the model's parameters.
    batches: the batches of a split. Each process makes all rows of a batch, but
      puts only its share of these rows on its devices.
    mesh: the mesh of the arrays.
    make_extra_arrays: indices of units -> arrays to add to the batch.

  Yields:
    The indices of a batch's units, and the result of `step`.
  """
  host, num_hosts = sharding.batch_share_of_process(mesh)
  host_size = batches.batch_size // num_hosts
  host_slice = slice(host * host_size, (host + 1) * host_size)
  for batch_number in range(batches.steps_per_epoch):
    batch = batches.batch(batch_number)
    unit_indices = batch.pop("row")
    batch |= make_extra_arrays(unit_indices) if make_extra_arrays else {}
    global_batch = sharding.to_global_batch(
      mesh, {key: x[host_slice] for key, x in batch.items()}
    )
    yield unit_indices, step(params, global_batch)


def jit_replicated(
  function: Callable[..., Any], mesh: Mesh
) -> Callable[..., Any]:
  """Jits a function so that every process gets all results of the function."""
  replicated_sharding = NamedSharding(mesh, PartitionSpec())
  return sharding.jit(function, out_shardings=replicated_sharding)


def logits_by_unit(
  outputs: list[tuple[np.ndarray, np.ndarray]], num_units: int
) -> list[np.ndarray]:
  """Puts the logits of all units in order.

  Args:
    outputs: the indices and the logits of the units of each batch. A unit that
      only fills a batch has the index -1.
    num_units: the number of units.

  Returns:
    The logits by the index of the unit; None for an index without a unit.
  """
  logits: list[Any] = [None] * num_units
  for unit_indices, batch_logits in outputs:
    for unit_index, unit_logits in zip(
      unit_indices, np.asarray(batch_logits), strict=True
    ):
      if unit_index >= 0:
        logits[unit_index] = unit_logits
  return logits


class SplitEvaluator:
  """Computes the logits of all units of a split, and the mean losses."""

  def __init__(
    self,
    eval_step: Callable[..., tuple[Sums, Sums]],
    predict: Callable[[Any, Batch], jax.Array] | None,
    mesh: Mesh,
  ):
    """Stores the functions, without compiling them.

    Args:
      eval_step: (params, teacher_params, carry, batch) -> (sums, divisors).
      predict: (params, batch) -> logits; None if the objective predicts
        nothing.
      mesh: the mesh of the arrays.
    """

    def step(
      both_params: tuple[Any, Any], batch: Batch
    ) -> tuple[tuple[Sums, Sums], Any]:
      params, teacher_params = both_params
      logits = predict(params, batch) if predict else ()
      # {}: the objectives of tasks have no carry.
      return eval_step(params, teacher_params, {}, batch), logits

    self._mesh, self._has_predictions = mesh, predict is not None
    self._step = compile_ahead.CompiledAhead(
      jit_replicated(step, mesh), batch_index=1, mesh=mesh
    )

  def begin_compilation(
    self,
    pool: Executor,
    state: TrainState,
    teacher_params: Any,
    splits: Splits,
    batch_size: int,
  ) -> None:
    """Begins to compile for the batches of the splits.

    Args:
      pool: the threads that compile, from `compile_ahead.compile_threads`.
      state: the train state.
      teacher_params: the teacher's parameters; {} without a teacher.
      splits: the splits to be evaluated.
      batch_size: the number of units of a batch, over all hosts.
    """
    for split in splits:
      batches = split.batches(batch_size)
      for row_features in features_by_length(split.task, split.rows, batches):
        batch_shapes = sharding.batch_shapes(row_features, batch_size)
        self._step.begin_compilation(
          pool, (state.params, teacher_params), batch_shapes
        )

  def __call__(
    self, state: TrainState, teacher_params: Any, batches: Batches
  ) -> tuple[list[np.ndarray], dict[str, float]]:
    """Returns the logits of each unit, and the mean losses of the split.

    The list of logits is empty if the objective predicts nothing.
    """
    outputs = list(
      run_batches(
        self._step, (state.params, teacher_params), batches, self._mesh
      )
    )
    outputs = jax.device_get(outputs)
    means = mean_losses([totals for _, (totals, _) in outputs])
    if not self._has_predictions:
      return [], means
    num_units = 1 + max(int(unit_indices.max()) for unit_indices, _ in outputs)
    batch_logits = [
      (unit_indices, logits) for unit_indices, (_, logits) in outputs
    ]
    return logits_by_unit(batch_logits, num_units), means


def split_predictions(split: Split, logits: list[np.ndarray]) -> list[Any]:
  """Makes the predictions for a split's examples from the logits of all units.

  In multiple choice the index of a unit is the index of its first row, so the
  list of logits has None for every other row. These entries are left out.
  """
  if split.task.kind == "choice":
    logits = [x for x in logits if x is not None]
  return make_predictions(split.task, split.rows, logits, split.examples)


def evaluate_splits(
  evaluator: SplitEvaluator,
  state: TrainState,
  teacher_params: Any,
  splits: Splits,
  batch_size: int,
  coefficients: Mapping[str, float],
) -> dict[str, float]:
  """Computes the official metrics and the losses of every split.

  For the first split, the results have the names of the metrics. For each later
  split, "SPLIT/" stands before these names. There are no official metrics if a
  split has no labels or the objective predicts nothing.

  Args:
    evaluator: evaluates one split.
    state: the train state.
    teacher_params: the teacher's parameters; {} without a teacher.
    splits: the splits.
    batch_size: the number of units of a batch, over all hosts.
    coefficients: the coefficients of the losses.

  Returns:
    The metrics and mean losses by name, and `loss`: the loss of the task, or
    the training loss if the objective has no loss of the task.

  Raises:
    FloatingPointError: the loss of a split is not finite.
  """
  results: dict[str, float] = {}
  for index, split in enumerate(splits):
    logits, means = evaluator(state, teacher_params, split.batches(batch_size))
    training_loss = sum(
      factor * means[name] for name, factor in coefficients.items()
    )
    loss = means.get("task_loss", training_loss)
    check_loss(int(state.step), split.name, loss)
    official_scores, counts = (
      _prediction_scores(split, logits) if logits else ({}, {})
    )
    split_results = official_scores | means | {"loss": loss} | counts
    prefix = f"{split.name}/" if index else ""
    results |= {prefix + name: result for name, result in split_results.items()}
  return results


def _prediction_scores(
  split: Split, logits: list[np.ndarray]
) -> tuple[dict[str, float], dict[str, float]]:
  """Returns the official metrics, and the number of distinct predicted labels.

  The second dict is {"predicted_labels": number}, or {} for a kind without
  labels.
  """
  predictions = split_predictions(split, logits)
  official_scores = metrics.evaluate(split.task, predictions, split.examples)
  note_score_warnings(split, predictions)
  if split.task.kind in ("regression", "span"):
    return official_scores, {}
  labels = _distinct_labels(split.task.kind, predictions)
  return official_scores, {"predicted_labels": float(len(labels))}


def note_score_warnings(split: Split, predictions: list[Any]) -> None:
  """On process 0, prints a note if a split's metrics mean little."""
  if jax.process_index():
    return
  for line in metrics.score_warnings(split.task, predictions, split.examples):
    note(f"note: split {split.name}: {line}")


def _distinct_labels(kind: str, predictions: list[Any]) -> set[Hashable]:
  """Returns the distinct labels, tags or (for multi_label) tuples of labels."""
  if kind == "tagging":
    return {tag for tags in predictions for tag in tags if tag is not None}
  return set(map(tuple, predictions) if kind == "multi_label" else predictions)


def check_loss(step: int, split: str, loss: float) -> None:
  """Raises FloatingPointError if the loss of a split is not finite."""
  if not math.isfinite(loss):
    raise FloatingPointError(
      f"step {step}: the loss of split {split} is {loss}. Earlier"
      f" checkpoints are kept; {divergence_remedy()}."
    )
