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


class Window:
  """Sums of the steps since the last logged row; they survive a restart."""

  def __init__(self, saved: dict[str, Any] | None = None):
    saved = saved or {"count": 0, "sums": {}}
    self._count, self._sums = saved["count"], dict(saved["sums"])
    self._pending: list[tuple[int, dict[str, jax.Array]]] = []

  def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
    """Notes a step's metrics without waiting for them."""
    self._pending.append((step, metrics))

  def saved(self) -> dict[str, Any]:
    """Waits for the steps so far and returns what `__init__` takes.

    Raises:
      FloatingPointError: the loss of a step is not finite.
    """
    for step, metrics in self._pending:
      values = {k: float(v) for k, v in jax.device_get(metrics).items()}
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
    return {"count": self._count, "sums": dict(self._sums)}

  def close(self) -> tuple[dict[str, float], float]:
    """Returns (means, tokens of a step) and starts anew."""
    saved = self.saved()
    means = {
      name: value if name == "learning_rate" else value / saved["count"]
      for name, value in saved["sums"].items()
    }
    means.pop("tokens")
    self._count, self._sums = 0, {}
    return means, saved["sums"]["tokens"] / saved["count"]
