"""The interface between an objective and the train loop."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Batch = dict[str, Array]
Sums = dict[str, Float[Array, ""]]


class Objective(NamedTuple):
  """Pure functions; `train.py` knows nothing else of a model.

  Attributes:
    init: (rng, batch) -> parameters, boxed with logical axis names.
    weights: batch -> {name: float32 weight}, from the batch alone. Computed
      for the whole global batch before it is split into micro-batches.
    loss: (params, frozen, carry, batch, rng, train) -> ({name: float32 sum},
      carry). Sums over micro-batches and devices are added and divided by the
      weight of the same name once.
    coefficients: {name: factor} of the sums that are losses; the others are
      only reported.
    flops: batch (arrays or shapes) -> floating-point operations of a training
      step, matrix products of forward and backward pass (3 times forward).
    init_frozen: the same as `init` of what it needs of a teacher; None if it
      has none.
    inherit: (parameters, the teacher's) -> parameters that a student begins
      with; None if it begins with those of `init`.
    carry: batch (arrays or shapes) -> what the first `loss` is called with,
      boxed with logical axis names; {} unless states go from step to step.
    predict: (parameters, batch) -> a task's logits of every row; None unless
      the objective is one with predictions.
    takes: path of a parameter, joined by "/" -> whether it is taken from a
      pre-trained model; None where such a model must be all that is trained.
  """

  init: Callable[[Array, Batch], Any]
  weights: Callable[[Batch], Sums]
  loss: Callable[[Any, Any, Any, Batch, Array, bool], tuple[Sums, Any]]
  coefficients: dict[str, float]
  flops: Callable[[Batch], float]
  init_frozen: Callable[[Array, Batch], Any] | None = None
  inherit: Callable[[Any, Any], Any] | None = None
  carry: Callable[[Batch], Any] = lambda batch: {}
  predict: Callable[[Any, Batch], Array] | None = None
  takes: Callable[[str], bool] | None = None


def check_family(objective: str, name: str, families: Iterable[str]) -> None:
  """Raises ValueError if a model's family has not the objective's heads."""
  if name not in families:
    raise ValueError(
      f"model.family={name!r}: objective {objective!r} trains"
      f" {', '.join(families)}."
    )


def check_batch(objective: str, batch: Batch, keys: Iterable[str]) -> None:
  """Raises ValueError if a batch lacks some of the keys."""
  lacking = [key for key in keys if key not in batch]
  if lacking:
    raise ValueError(
      f"objective {objective!r} needs {', '.join(lacking)}, which data.builder"
      f" does not make; it makes {', '.join(batch)}."
    )


def check_segments(batch: Batch, num_segments: int) -> None:
  """Raises ValueError if rows of two segments meet a table of one.

  A row of a table that is not there is NaN.
  """
  if "segment_ids" in batch and num_segments == 1:
    raise ValueError(
      "the model knows one segment (RoBERTa), and data.builder makes rows of"
      " two; choose data.builder=full_sentences or doc_sentences."
    )


def cross_entropy(
  logits: Float[Array, "*n v"], labels: Int[Array, "*n"]
) -> Float[Array, "*n"]:
  """Cross-entropy in nats, in float32, without a gather.

  The label's logit is picked by comparison: its gradient fuses with the
  softmax, where a gather's is a scatter into an array of the logits' size.
  A label outside [0, v) gives the log-sum-exp; give it weight 0.
  """
  logits = logits.astype(jnp.float32)
  classes = jax.lax.broadcasted_iota(
    labels.dtype, logits.shape, logits.ndim - 1
  )
  picked = jnp.where(classes == labels[..., None], logits, 0.0).sum(-1)
  return jax.nn.logsumexp(logits, axis=-1) - picked


def classification_sums(
  prefix: str,
  logits: Float[Array, "*n v"],
  labels: Int[Array, "*n"],
  weights: Float[Array, "*n"],
) -> Sums:
  """Returns weighted sums `PREFIX_loss` (nats) and `PREFIX_accuracy`."""
  correct = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
  return {
    f"{prefix}_loss": (cross_entropy(logits, labels) * weights).sum(),
    f"{prefix}_accuracy": (correct * weights).sum(),
  }
