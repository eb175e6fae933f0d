"""Speed: known peak rates of chips, model FLOPs utilisation."""

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
  """Share of all devices' peak that `flops` in `seconds` is; None if unknown."""
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
