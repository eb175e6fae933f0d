"""A model's logits of all rows of a split, and the official metrics of them."""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.devices import compile_ahead, sharding
from bert_jax.messages import note
from bert_jax.tasks import metrics
from bert_jax.tasks.batches import Batches, Split, Splits, shapes
from bert_jax.tasks.predictions import make_predictions
from bert_jax.training.evaluate import mean_losses


def run(
  step: Callable[[Any, dict[str, jax.Array]], Any],
  params: Any,
  batches: Batches,
  mesh: Mesh,
  extra: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None,
) -> Iterator[tuple[np.ndarray, Any]]:
  """Yields (numbers of a batch's units, what `step` makes of the batch).

  Args:
    step: (parameters, global batch) -> arrays, replicated; jitted.
    params: the model's parameters.
    batches: the batches of a split; every process makes all of them and puts
      its part on its devices.
    mesh: for the global arrays.
    extra: numbers of units -> more arrays of their batch.
  """
  host, hosts = sharding.host_share(mesh)
  host_size = batches.batch_size // hosts
  mine = slice(host * host_size, (host + 1) * host_size)
  for number in range(batches.steps_per_epoch):
    batch = batches.batch(number)
    units = batch.pop("row")
    batch |= extra(units) if extra else {}
    global_batch = sharding.to_global(
      mesh, {k: v[mine] for k, v in batch.items()}
    )
    yield units, step(params, global_batch)


def jit(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
  """Compiles a function whose results every process needs."""
  whole = NamedSharding(mesh, PartitionSpec())
  return sharding.jit(function, out_shardings=whole)


def logits_of_units(
  results: list[tuple[np.ndarray, np.ndarray]], count: int
) -> list[np.ndarray]:
  """Logits of each unit in order, from (numbers, logits) of the batches."""
  logits: list[Any] = [None] * count
  for units, values in results:
    for unit, value in zip(units, np.asarray(values), strict=True):
      if unit >= 0:
        logits[unit] = value
  return logits


class Scorer:
  """Logits and losses of all rows of a split."""

  def __init__(
    self,
    eval_step: Callable[..., Any],
    predict: Callable[..., Any] | None,
    mesh: Mesh,
  ):
    """Compiles nothing yet.

    Args:
      eval_step: (params, frozen, carry, batch) -> (sums, weights).
      predict: (params, batch) -> logits; None where there are none: the logits
        are [].
      mesh: for the global arrays.
    """

    def both(params, batch):
      params, frozen = params
      logits = predict(params, batch) if predict else ()
      return eval_step(params, frozen, {}, batch), logits

    self._mesh, self._predicts = mesh, predict is not None
    self._step = compile_ahead.Ahead(jit(both, mesh), 1, mesh)

  def prepare(
    self,
    pool: Executor,
    state: Any,
    frozen: Any,
    splits: Splits,
    batch_size: int,
  ) -> None:
    """Begins to compile for the batches of the splits."""
    for split in splits:
      batches = split.batches(batch_size)
      for row in shapes(split.task, split.rows, batches):
        batch = sharding.batch_shapes(row, batch_size)
        self._step.prepare(pool, (state.params, frozen), batch)

  def __call__(
    self, state: Any, frozen: Any, batches: Batches
  ) -> tuple[list[np.ndarray], dict[str, float]]:
    """Returns logits of the units and mean losses."""
    unit_logits, totals = [], []
    for units, ((sums, weights), logits) in run(
      self._step, (state.params, frozen), batches, self._mesh
    ):
      unit_logits.append((units, logits))
      totals.append((sums, weights))
    unit_logits, totals = jax.device_get((unit_logits, totals))
    means = mean_losses(totals)
    if not self._predicts:
      return [], means
    count = 1 + max(int(units.max()) for units, _ in unit_logits)
    return logits_of_units(unit_logits, count), means


def predictions(split: Split, logits: list[np.ndarray]) -> list[Any]:
  """Predictions of a split's examples from its units' logits.

  A unit of choices is an example, its number that of its first row.
  """
  task, rows = split.task, split.rows
  if task.kind == "choice":
    logits = [x for x in logits if x is not None]
  return make_predictions(task, rows, logits, split.examples)


def score(
  scorer: Scorer,
  state: Any,
  frozen: Any,
  splits: Splits,
  batch_size: int,
  coefficients: Mapping[str, float],
) -> dict[str, float]:
  """The official metrics over every split, `loss` and the mean losses.

  Names of all splits but the first begin with the split's. A split without
  labels has none, nor has a model without predictions. `loss` is the task's;
  of such a model that of training.

  Args:
    scorer: the model's scorer.
    state: the train state.
    frozen: the teacher's parameters, {} without one.
    splits: what is scored.
    batch_size: over all hosts.
    coefficients: the coefficients of the losses.

  Raises:
    FloatingPointError: the loss of a split is not finite.
  """
  result: dict[str, float] = {}
  for number, split in enumerate(splits):
    logits, means = scorer(state, frozen, split.batches(batch_size))
    total = sum(c * means[name] for name, c in coefficients.items())
    loss = means.get("task_loss", total)
    check_loss(int(state.step), split.name, loss)
    predicted = predictions(split, logits) if logits else []
    values = (
      metrics.evaluate(split.task, predicted, split.examples)
      if predicted
      else {}
    )
    if predicted:
      say_doubts(split, predicted)
    values |= means | {"loss": loss}
    if predicted and split.task.kind not in ("regression", "span"):
      values["predicted_labels"] = float(
        len(_distinct(split.task.kind, predicted))
      )
    prefix = f"{split.name}/" if number else ""
    result |= {prefix + name: value for name, value in values.items()}
  return result


def say_doubts(split: Split, predictions: list[Any]) -> None:
  """Says on stderr where a split's metrics say little; process 0 alone does."""
  if jax.process_index():
    return
  for line in metrics.doubts(split.task, predictions, split.examples):
    note(f"note: split {split.name}: {line}")


def _distinct(kind: str, predicted: list[Any]) -> set[Any]:
  """The labels that are predicted; of several at once the sets of them."""
  if kind == "tagging":
    return {tag for tags in predicted for tag in tags if tag is not None}
  return set(map(tuple, predicted) if kind == "multi_label" else predicted)


def check_loss(step: int, split: str, loss: float) -> None:
  """Raises FloatingPointError for a loss that is not finite."""
  if not math.isfinite(loss):
    raise FloatingPointError(
      f"step {step}: the loss of split {split} is {loss}. The checkpoints"
      " before it are kept; lower schedule.peak or lengthen schedule.warmup in"
      " a new --workdir."
    )
