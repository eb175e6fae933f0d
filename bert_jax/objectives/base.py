"""The interface between an objective and the train loop."""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax import models

Batch = dict[str, Array]
Sums = dict[str, Float[Array, ""]]
# Keys of a batch with masked tokens: their positions, ids and weights.
MASKED_KEYS = ("mlm_positions", "mlm_ids", "mlm_weights")


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
    init_frozen: like `init`, for the parameters of a teacher; None without one.
    inherit: (parameters, the teacher's) -> parameters that a student begins
      with; None if it begins with those of `init`.
    carry: batch (arrays or shapes) -> the `carry` of the first `loss`, boxed
      with logical axis names; {} unless states go from step to step.
    predict: (parameters, batch) -> a task's logits of every row; None for an
      objective without predictions.
    takes: path of a parameter, joined by "/" -> True if it is taken from a
      pre-trained model; None if such a model must have all parameters.
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


def build_encoder(
  objective: str, model: Mapping[str, Any]
) -> tuple[ModuleType, Any]:
  """Builds the encoder that an objective pre-trains.

  Args:
    objective: the name of the objective.
    model: keyword arguments of the family's `build`, with `family`.

  Returns:
    The family's module and the encoder.

  Raises:
    ValueError: another objective trains the family.
  """
  options = dict(model)
  name = options.pop("family")
  families = models.FAMILIES | models.WORD_FAMILIES
  trained = [n for n in families if families[n].OBJECTIVE == objective]
  check_family(objective, name, trained)
  family = models.family(name)
  return family, family.build(**options)


def dropout_rngs(rng: Array, train: bool) -> dict[str, Array] | None:
  """The `rngs` of a module's `apply`: for dropout in training, else None."""
  return {"dropout": rng} if train else None


def check_family(objective: str, name: str, families: Iterable[str]) -> None:
  """Raises ValueError if a model's family lacks the objective's heads."""
  if name not in families:
    raise ValueError(
      f"model.family={name!r}: objective {objective!r} trains"
      f" {', '.join(families)}."
    )


def check_choice(key: str, value: str, choices: Collection[str]) -> None:
  """Raises ValueError unless an option of an objective is one of `choices`."""
  if value not in choices:
    raise ValueError(
      f"objective.{key}={value!r}: not one of {', '.join(choices)}."
    )


def check_temperature(temperature: float) -> None:
  """Raises ValueError unless a softmax's temperature is above 0."""
  if temperature <= 0:
    raise ValueError(f"objective.temperature={temperature}: must be above 0.")


def check_batch(objective: str, batch: Batch, keys: Iterable[str]) -> None:
  """Raises ValueError if a batch lacks some of the keys."""
  lacking = [key for key in keys if key not in batch]
  if lacking == ["span_positions"]:
    raise ValueError(
      f"objective {objective!r} with span_boundary=True predicts spans from"
      " their ends, and these rows are hidden otherwise; set data.masking=span,"
      " or objective.span_boundary=False."
    )
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


def sum_by_parts(sum_of: Callable[..., Any], size: int, *arrays: Array) -> Any:
  """Sums of a batch, of `size` positions of each row at a time.

  The backward pass makes a part's logits again, so that only one part's logits
  are in memory.

  Args:
    sum_of: parts [b, size, ...] of the arrays -> a tree of scalars. It sees
      zeros beyond the rows' end: give those weight 0.
    size: number of positions in a part.
    *arrays: arrays [b, l, ...].
  """
  rows, length = arrays[0].shape[:2]
  parts = -(-length // size)

  def split(x):
    more = [(0, 0), (0, parts * size - length)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, more).reshape(rows, parts, size, *x.shape[2:])
    return x.swapaxes(0, 1)

  def add(sums, part):
    return jax.tree.map(jnp.add, sums, sum_of(*part)), None

  split_arrays = tuple(split(x) for x in arrays)
  shapes = jax.eval_shape(sum_of, *(x[0] for x in split_arrays))
  zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  # In a loop, what is made again is not merged with what was made first.
  body = jax.checkpoint(add, prevent_cse=False)
  return jax.lax.scan(body, zeros, split_arrays)[0]


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
