"""Metrics of steps over a window, of speed, and the unigram baseline."""

import math
from typing import Any

import jax
import numpy as np

# Dense bfloat16 FLOP/s of one JAX device, from the vendors' data sheets; on
# TPU v2 and v3 a device is a core, half a chip.
PEAK_FLOPS: dict[str, float] = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5e": 197e12,
  "TPU v5": 459e12,
  "TPU v5p": 459e12,
  "TPU v6 lite": 918e12,
  "TPU v6e": 918e12,
  "NVIDIA A100": 312e12,
  "NVIDIA H100": 989e12,
  "NVIDIA H200": 989e12,
  "NVIDIA L4": 121e12,
  "Tesla V100": 125e12,
}


def peak_flops(device: jax.Device) -> float | None:
  """Peak bfloat16 FLOP/s of a device, None where it is not known."""
  names = [n for n in PEAK_FLOPS if device.device_kind.startswith(n)]
  return PEAK_FLOPS[max(names, key=len)] if names else None


def utilisation(flops: float, seconds: float) -> float | None:
  """`flops` in `seconds` as a share of all devices' peak, if known."""
  peak = peak_flops(jax.devices()[0])
  if peak is None:
    return None
  return flops / seconds / (peak * jax.device_count())


def unigram_cross_entropy(
  counts: np.ndarray, ids: np.ndarray, weights: np.ndarray
) -> float:
  """Cross-entropy in nats of guessing `ids` by their training frequency.

  What a model that ignores context reaches; one is added to every count, so
  that a piece unseen in training has a finite cost.

  Args:
    counts: [V] occurrences in the training text.
    ids: any shape, the targets.
    weights: of the same shape, 0 where there is no target.
  """
  log_p = np.log(counts + 1.0) - np.log((counts + 1.0).sum())
  return float(-(log_p[ids] * weights).sum() / weights.sum())


ACTIONS = ("none", "stop", "skip")


class Spikes:
  """Finds spikes: losses that are high compared with the previous window.

  Attributes:
    action: "none": spikes are ignored. "stop": the run ends at a spike. "skip":
      a step with a spike is logged and changes nothing else.
    limit: the highest loss that is not a spike.
  """

  def __init__(
    self, action: str = "none", factor: float = 2.0, limit: float | None = None
  ):
    """Begins a run or continues one.

    Args:
      action: one of `ACTIONS`.
      factor: the limit is the mean loss of the last logged window times this.
      limit: the result of `saved`; None before the first window.

    Raises:
      ValueError: an unknown action, or a factor that is not above 1.
    """
    if action not in ACTIONS:
      raise ValueError(
        f"spike.action={action!r}: not one of {', '.join(ACTIONS)}."
      )
    if not factor > 1:
      raise ValueError(f"spike.factor={factor}: must be above 1.")
    self.action, self._factor = action, factor
    self.limit = math.inf if limit is None else limit

  def argument(self) -> tuple[np.float32, ...]:
    """Returns the additional arguments of the train step."""
    return () if self.action == "none" else (np.float32(self.limit),)

  def close(self, mean: float) -> None:
    """Sets the limit of the next window from the mean loss of the last one."""
    self.limit = self._factor * mean

  def saved(self) -> float | None:
    """Returns the value of `limit` to pass after a restart."""
    has_limit = self.action != "none" and math.isfinite(self.limit)
    return self.limit if has_limit else None


class Window:
  """Sums of the steps since the last logged row; they survive a restart."""

  def __init__(self, saved: dict[str, Any] | None = None, stops: bool = False):
    """Begins a window or continues one.

    Args:
      saved: the result of the method `saved`; None for a new window.
      stops: True if a skipped step is an error.
    """
    saved = saved or {"count": 0, "sums": {}}
    self._count, self._sums = saved["count"], dict(saved["sums"])
    self._skipped, self._stops = list(saved.get("skipped", [])), stops
    self._pending: list[tuple[int, dict[str, jax.Array]]] = []

  def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
    """Notes a step's metrics without waiting for them."""
    self._pending.append((step, metrics))

  def saved(self) -> dict[str, Any]:
    """Waits for the steps so far and returns what `__init__` takes.

    Raises:
      FloatingPointError: the loss of a step is not finite, or a step was
        skipped in a run that stops there.
    """
    for step, metrics in self._pending:
      values = {k: float(v) for k, v in jax.device_get(metrics).items()}
      if values.pop("skipped", 0.0):
        if self._stops:
          raise FloatingPointError(
            f"step {step}: the loss {values['loss']:.6g} is a spike by"
            " config.spike, and the run stops before it. Earlier checkpoints"
            " are kept; continue from one of them in a new --workdir with"
            " --config.init_from=RUN@STEP and a lower schedule.peak."
          )
        self._skipped.append([step, repr(values["loss"])])
        continue
      if not math.isfinite(values["loss"] + values["grad_norm"]):
        raise FloatingPointError(
          f"step {step}: the loss is {values['loss']} and the gradient's norm"
          f" {values['grad_norm']}. The checkpoints before it are kept; lower"
          " schedule.peak or lengthen schedule.warmup in a new --workdir."
        )
      for name, value in values.items():
        self._sums[name] = self._sums.get(name, 0.0) + value
      # A rate is not averaged: the row shows the last step's.
      self._sums["learning_rate"] = values["learning_rate"]
      self._count += 1
    self._pending = []
    saved = {"count": self._count, "sums": dict(self._sums)}
    # Without skipped steps, save the same keys as earlier versions did.
    return saved | ({"skipped": [*self._skipped]} if self._skipped else {})

  def close(self) -> tuple[dict[str, Any], float]:
    """Returns (means, tokens of a step) and starts anew.

    The means leave skipped steps out. The entry `skipped_steps` lists them.

    Raises:
      FloatingPointError: every step was skipped, or see `saved`.
    """
    saved = self.saved()
    steps = [step for step, _ in self._skipped]
    if not saved["count"]:
      raise FloatingPointError(
        f"steps {steps[0]} to {steps[-1]}: every loss is a spike by"
        f" config.spike (the last is {self._skipped[-1][1]}), so the model has"
        " diverged. Earlier checkpoints are kept; continue from one of them in"
        " a new --workdir with --config.init_from=RUN@STEP."
      )
    means = {
      name: value if name == "learning_rate" else value / saved["count"]
      for name, value in saved["sums"].items()
    }
    means.pop("tokens")
    if steps:
      means["skipped_steps"] = steps
      listed = ", ".join(f"{step} (loss {x})" for step, x in self._skipped)
      print(f"skipped: the updates of steps {listed}", flush=True)
    self._count, self._sums, self._skipped = 0, {}, []
    return means, saved["sums"]["tokens"] / saved["count"]
