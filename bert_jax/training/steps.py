"""Makes the train step and the eval step of an objective, as pure functions."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from bert_jax.devices.update_sharding import UpdateSharding
from bert_jax.objectives.base import Batch, Objective, Sums
from bert_jax.training.optim import Schedule
from bert_jax.training.state import TrainState

Metrics = dict[str, Float[Array, ""]]


def split_into_micro_batches(batch: Batch, num_micro_batches: int) -> Batch:
  """Splits a batch into micro-batches: [b, ...] -> [n, b / n, ...].

  With n micro-batches, micro-batch i has the rows i, i + n, i + 2 * n, ... So
  each micro-batch has rows of every device on which the batch is.
  """

  def split(x: Array) -> Array:
    return x.reshape((-1, num_micro_batches, *x.shape[1:])).swapaxes(0, 1)

  return jax.tree.map(split, batch)


def divide_sums(sums: Sums, divisors: Sums) -> Metrics:
  """Divides each sum by its divisor; the result is 0 if the divisor is 0."""
  return {
    name: jnp.where(divisors[name] > 0, total, 0.0)
    / jnp.maximum(divisors[name], 1e-30)
    for name, total in sums.items()
  }


def total_loss(
  coefficients: Mapping[str, float], means: Metrics
) -> Float[Array, ""]:
  """Returns the weighted sum of the mean losses."""
  losses = (factor * means[name] for name, factor in coefficients.items())
  return sum(losses, start=jnp.zeros(()))


def accumulate_gradients(
  objective: Objective,
  state: TrainState,
  teacher_params: Any,
  batch: Batch,
  rng: Array,
  num_micro_batches: int,
  update_sharding: UpdateSharding | None = None,
) -> tuple[Any, Metrics, Any]:
  """Computes the gradients of a batch, micro-batch by micro-batch.

  Each sum of losses is divided by its divisor for the whole batch. So the
  gradients of the micro-batches add up to the gradient of the batch, even if
  one micro-batch has more targets than another.

  Args:
    objective: the objective.
    state: the train state; its parameters are differentiated.
    teacher_params: the teacher's parameters; {} without a teacher.
    batch: the global batch, b rows.
    rng: the random key of the step.
    num_micro_batches: the number of micro-batches, which divides b.
    update_sharding: see `make_train_step`.

  Returns:
    The gradients of the total loss, the mean losses and metrics of the batch,
    and the objective's new carry.
  """
  divisors = objective.divisors(batch)

  def loss(
    params: Any, carry: Any, micro_batch: Batch, rng: Array
  ) -> tuple[Float[Array, ""], tuple[Sums, Any]]:
    # True: with dropout.
    sums, carry = objective.loss(
      params, teacher_params, carry, micro_batch, rng, True
    )
    means = divide_sums(sums, divisors)
    return total_loss(objective.coefficients, means), (sums, carry)

  params = state.params
  if update_sharding:
    params = update_sharding.gather(params)

  def compute_gradient(
    carry: Any, micro_batch: Batch, rng: Array
  ) -> tuple[Any, tuple[Sums, Any]]:
    grads, sums_and_carry = jax.grad(loss, has_aux=True)(
      params, carry, micro_batch, rng
    )
    if update_sharding:
      grads = update_sharding.scatter(grads)
    return grads, sums_and_carry

  if num_micro_batches == 1:
    grads, (sums, carry) = compute_gradient(state.carry, batch, rng)
    return grads, divide_sums(sums, divisors), carry

  def body(
    totals: tuple[Any, Sums, Any], inputs: tuple[Array, Batch]
  ) -> tuple[tuple[Any, Sums, Any], None]:
    grads, sums, carry = totals
    index, micro_batch = inputs
    new_rng = jax.random.fold_in(rng, index)
    new_grads, (new_sums, carry) = compute_gradient(carry, micro_batch, new_rng)
    grads, sums = jax.tree.map(jnp.add, (grads, sums), (new_grads, new_sums))
    return (grads, sums, carry), None

  initial_totals = (
    jax.tree.map(jnp.zeros_like, state.params),
    {name: jnp.zeros((), jnp.float32) for name in divisors},
    state.carry,
  )
  (grads, sums, carry), _ = jax.lax.scan(
    body,
    initial_totals,
    (
      jnp.arange(num_micro_batches),
      split_into_micro_batches(batch, num_micro_batches),
    ),
  )
  return grads, divide_sums(sums, divisors), carry


def make_train_step(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  schedule: Schedule,
  num_micro_batches: int,
  update_sharding: UpdateSharding | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
  """Returns the step (state, teacher_params, batch, key) -> (state, metrics).

  All randomness derives from (key, state.step). The metrics are float32
  scalars: the objective's means, and the metrics of this table.

  | metric | meaning |
  |---|---|
  | `loss` | the weighted sum of the mean losses |
  | `learning_rate` | the rate of this step |
  | `grad_norm` | the norm of the gradient before clipping |
  | `tokens` | the number of tokens in the global batch without padding |
  | `padding` | the share of the global batch that is padding |

  The train step may get a fifth argument, `limit`: the largest loss with which
  the parameters are updated. Then there is also a metric `skipped`. It is 1 if
  the loss is above the limit, or if the loss or the gradient is not finite;
  else it is 0. A step that is skipped changes no array of floating-point
  numbers, for example no parameter. The counters still increase, so that the
  schedule fits the number of steps.

  Args:
    objective: the objective.
    optimizer: the optimizer.
    schedule: step -> learning rate; for the metrics only.
    num_micro_batches: the number of micro-batches of a batch.
    update_sharding: gathers the parameters and splits the gradients. None if
      the devices do not split the update; see devices/update_sharding.py.
  """

  def train_step(
    state: TrainState,
    teacher_params: Any,
    batch: Batch,
    key: Array,
    limit: Float[Array, ""] | None = None,
  ) -> tuple[TrainState, Metrics]:
    rng = jax.random.fold_in(key, state.step)
    grads, means, carry = accumulate_gradients(
      objective,
      state,
      teacher_params,
      batch,
      rng,
      num_micro_batches,
      update_sharding,
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
      is_skipped = ~(metrics["loss"] <= limit)
      is_skipped |= ~jnp.isfinite(metrics["grad_norm"])
      metrics["skipped"] = is_skipped.astype(jnp.float32)
      new_state = _keep_if_skipped(is_skipped, state, new_state)
    return new_state, metrics

  return train_step


def _keep_if_skipped(
  is_skipped: Array, old_state: TrainState, new_state: TrainState
) -> TrainState:
  """Returns the new state, in which a skipped step changes only counters."""

  def choose(old: Array, new: Array) -> Array:
    is_counter = not jnp.issubdtype(new.dtype, jnp.inexact)
    return new if is_counter else jnp.where(is_skipped, old, new)

  return jax.tree.map(choose, old_state, new_state)


def gather_first(
  objective: Objective, update_sharding: UpdateSharding | None
) -> Objective:
  """Returns an objective whose `loss` and `predict` gather the parameters.

  Args:
    objective: the objective.
    update_sharding: gathers the parameters that the state stores in parts. If
      None, the parameters are whole, and the objective is returned unchanged.
  """
  if not update_sharding:
    return objective
  gather = update_sharding.gather
  loss, predict = objective.loss, objective.predict
  gathering_predict = predict and (
    lambda params, batch: predict(gather(params), batch)
  )
  return objective._replace(
    loss=lambda params, *arguments: loss(gather(params), *arguments),
    predict=gathering_predict,
  )


def make_eval_step(objective: Objective) -> Callable[..., tuple[Sums, Sums]]:
  """Returns the eval step, which has no dropout.

  The step is (params, teacher_params, carry, batch) -> (sums, divisors).
  """

  def eval_step(
    params: Any, teacher_params: Any, carry: Any, batch: Batch
  ) -> tuple[Sums, Sums]:
    unused_key = jax.random.key(0)
    # False: without dropout, so the key is not used.
    sums, _ = objective.loss(
      params, teacher_params, carry, batch, unused_key, False
    )
    return sums, objective.divisors(batch)

  return eval_step
