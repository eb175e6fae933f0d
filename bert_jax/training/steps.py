"""Pure train and eval steps for any objective."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bert_jax.objectives.base import Batch, Objective, Sums
from bert_jax.training.state import TrainState

Metrics = dict[str, Array]


def split_rows(batch: Batch, parts: int) -> Batch:
  """[b, ...] -> [parts, b / parts, ...]; part i has rows i, i + parts, ...

  Strided, so that each part stays spread over the devices as the batch is.
  """

  def split(x):
    return x.reshape((-1, parts) + x.shape[1:]).swapaxes(0, 1)

  return jax.tree.map(split, batch)


def divide(sums: Sums, weights: Sums) -> Metrics:
  """Sum over weight by name; 0 where the weight is 0, never 0/0."""
  return {
    name: jnp.where(weights[name] > 0, value, 0.0)
    / jnp.maximum(weights[name], 1e-30)
    for name, value in sums.items()
  }


def total_loss(coefficients: dict[str, float], means: Metrics) -> Array:
  """The weighted sum of the mean losses."""
  return sum(factor * means[name] for name, factor in coefficients.items())


def accumulate(
  objective: Objective,
  state: TrainState,
  frozen: Any,
  batch: Batch,
  rng: Array,
  micro_batches: int,
) -> tuple[Any, Sums, Any]:
  """Gradient and sums of a batch, micro-batch by micro-batch.

  Each loss's weight is that of the whole batch, so the gradients of the
  micro-batches add up to the batch's whatever their shares of targets.

  Returns:
    Gradients of the total mean loss, the sums, the objective's carry.
  """
  weights = objective.weights(batch)

  def loss(params, carry, part, rng):
    sums, carry = objective.loss(params, frozen, carry, part, rng, True)
    means = divide(sums, weights)
    return total_loss(objective.coefficients, means), (sums, carry)

  grad = jax.grad(loss, has_aux=True)
  if micro_batches == 1:
    grads, (sums, carry) = grad(state.params, state.carry, batch, rng)
    return grads, divide(sums, weights), carry

  def body(total, inputs):
    grads, sums, carry = total
    index, part = inputs
    part_rng = jax.random.fold_in(rng, index)
    new_grads, (new_sums, carry) = grad(state.params, carry, part, part_rng)
    add = jax.tree.map(jnp.add, (grads, sums), (new_grads, new_sums))
    return (*add, carry), None

  parts = split_rows(batch, micro_batches)
  zeros = (
    jax.tree.map(jnp.zeros_like, state.params),
    {name: jnp.zeros((), jnp.float32) for name in weights},
    state.carry,
  )
  (grads, sums, carry), _ = jax.lax.scan(
    body, zeros, (jnp.arange(micro_batches), parts)
  )
  return grads, divide(sums, weights), carry


def make_train_step(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  schedule: Callable[[Any], Any],
  micro_batches: int,
) -> Callable[..., tuple[TrainState, Metrics]]:
  """Returns the step (state, frozen, batch, key) -> (state, metrics).

  Metrics are float32 scalars of the step: the objective's means, `loss`,
  `learning_rate`, `grad_norm` (before clipping), `tokens` (real ones) and
  `padding` (its share of the global batch's slots). All randomness derives from
  (key, state.step).

  The train step may get a fifth argument, `limit`. If the loss is above it or
  not finite, the step changes neither the parameters nor the optimizer's
  averages, and its metric `skipped` is 1. Its counters still increase, so that
  the schedule fits the number of steps.
  """

  def train_step(state, frozen, batch, key, limit=None):
    rng = jax.random.fold_in(key, state.step)
    grads, means, carry = accumulate(
      objective, state, frozen, batch, rng, micro_batches
    )
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    sequences = batch["sequence_ids"]
    tokens = (sequences > 0).sum(dtype=jnp.float32)
    metrics = means | {
      "loss": total_loss(objective.coefficients, means),
      "learning_rate": schedule(state.step),
      "grad_norm": optax.tree.norm(grads),
      "tokens": tokens,
      "padding": 1 - tokens / sequences.size,
    }
    new_state = TrainState(state.step + 1, params, opt_state, carry)
    if limit is not None:
      skipped = ~(metrics["loss"] <= limit)
      skipped |= ~jnp.isfinite(metrics["grad_norm"])
      metrics["skipped"] = skipped.astype(jnp.float32)
      new_state = _unless(skipped, state, new_state)
    return new_state, metrics

  return train_step


def _unless(
  skipped: Array, before: TrainState, after: TrainState
) -> TrainState:
  """Returns `after`, or, if skipped, `before` with the counters of `after`."""

  def choose(old, new):
    is_counter = not jnp.issubdtype(new.dtype, jnp.inexact)
    return new if is_counter else jnp.where(skipped, old, new)

  return jax.tree.map(choose, before, after)


def make_eval_step(objective: Objective) -> Callable[..., tuple[Sums, Sums]]:
  """Returns (params, frozen, carry, batch) -> (sums, weights), no dropout."""

  def eval_step(params, frozen, carry, batch):
    unused = jax.random.key(0)
    sums, _ = objective.loss(params, frozen, carry, batch, unused, False)
    return sums, objective.weights(batch)

  return eval_step
