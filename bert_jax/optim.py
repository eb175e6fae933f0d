"""Optimizers and schedules as published and as corrected, by name."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Schedule = Callable[[Any], Any]


def decay_mask(params: Any) -> Any:
  """True where weight decay applies: kernels and embeddings.

  Decided by the leaf's role, its own name: never by rank (a scanned bias is of
  rank 2) nor by the module's name ("LayerNorm", "layer_norm", ...).

  Raises:
    ValueError: a leaf whose role is not known.
  """
  roles = {"kernel": True, "embedding": True, "bias": False, "scale": False}
  # Of ELMo: an LSTM's output; the weights of a mixture of layers.
  roles |= {"projection": True, "layer_weights": False, "gamma": False}

  def role(path, _):
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    if names[-1] not in roles:
      raise ValueError(f"parameter {'/'.join(names)}: no rule for its decay.")
    return roles[names[-1]]

  return jax.tree_util.tree_map_with_path(role, params)


class UncorrectedAdamState(NamedTuple):
  mu: Any
  nu: Any


def scale_by_uncorrected_adam(
  b1: float, b2: float, epsilon: float
) -> optax.GradientTransformation:
  """Adam without bias correction (google-research/bert optimization.py)."""

  def init(params):
    return UncorrectedAdamState(
      jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
    )

  def update(grads, state, params=None):
    del params
    mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.mu)
    nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.nu)
    updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
    return updates, UncorrectedAdamState(mu, nu)

  return optax.GradientTransformation(init, update)


def build_optimizer(
  schedule: Schedule,
  name: str,
  b1: float,
  b2: float,
  epsilon: float,
  weight_decay: float,
  clip_norm: float,
) -> optax.GradientTransformation:
  """Clip by the global norm, Adam, decoupled weight decay, learning rate.

  Args:
    schedule: step -> learning rate.
    name: "adamw_bert" as published, without bias correction; "adamw" with it
      (Loshchilov & Hutter 2019).
    b1: and `b2`, `epsilon`: of Adam.
    weight_decay: on kernels and embeddings, times the learning rate.
    clip_norm: largest global norm of the gradients, 0 for none. Applied after
      the reduction over devices (the paper's code: before, per device).

  Raises:
    ValueError: unknown name.
  """
  adams = {
    "adamw_bert": scale_by_uncorrected_adam(b1, b2, epsilon),
    "adamw": optax.scale_by_adam(b1, b2, epsilon),
  }
  if name not in adams:
    raise ValueError(f"optimizer.name={name!r}: not one of {list(adams)}.")
  clip = optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity()
  return optax.chain(
    clip,
    adams[name],
    optax.add_decayed_weights(weight_decay, mask=decay_mask),
    optax.scale_by_learning_rate(schedule),
  )


def build_schedule(
  total_steps: int, name: str, peak: float, warmup: float
) -> Schedule:
  """Linear warm-up and decay.

  Args:
    total_steps: optimizer steps of the run, whatever the micro-batches.
    name: "bert": decay runs from step 0, so the rate jumps down at the end of
      warm-up (google-research/bert optimization.py); "linear": from the peak
      at the end of warm-up to zero (fairseq, Hugging Face).
    peak: learning rate that warm-up aims at.
    warmup: share of `total_steps` spent in warm-up, in [0, 1).

  Returns:
    Step (0 is the first) -> learning rate, never below 0, 0 from `total_steps`.

  Raises:
    ValueError: unknown name or a share out of range.
  """
  if name not in ("bert", "linear"):
    raise ValueError(f"schedule.name={name!r}: not one of bert, linear.")
  if not 0.0 <= warmup < 1.0:
    raise ValueError(
      f"schedule.warmup={warmup}: a share of total_steps, in [0, 1)."
    )
  warm = round(warmup * total_steps)

  def schedule(step):
    step = jnp.asarray(step, jnp.float32)
    start = 0 if name == "bert" else warm
    left = (total_steps - step) / max(total_steps - start, 1)
    rising = step / max(warm, 1)
    rate = jnp.where(step < warm, rising, jnp.maximum(left, 0.0))
    return peak * rate

  return schedule
