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
# A tree of parameters: nested dicts of arrays.
Params = Any
# For stateful ELMo: the LSTM states that go from step to step. Otherwise: {}.
Carry = Any
# The keys of a batch with masked tokens: their positions, ids and weights.
MASKED_KEYS = ("mlm_positions", "mlm_ids", "mlm_weights")


class Objective(NamedTuple):
  """Holds pure functions: all that the train loop knows about a model.

  Attributes:
    init: (rng, batch) -> parameters, in flax's boxes with logical axis names.
    divisors: batch -> {name: float32 divisor of the sum with this name}. The
      batch is the whole global batch, before the split into micro-batches.
    loss: (parameters, teacher's parameters, carry, batch, rng, train) ->
      ({name: float32 sum}, carry). The loop adds the sums of all micro-batches
      and devices, and then divides each total by its divisor.
    coefficients: {name of a sum: its factor in the loss}. A sum without a
      factor is only reported.
    flops: batch (arrays or shapes) -> the floating-point operations of a
      training step with this batch. Only matrix products count; forward and
      backward pass together count as 3 forward passes.
    init_teacher: like `init`, for a teacher's parameters; None if the objective
      has no teacher.
    inherit: (parameters, teacher's parameters) -> the parameters with which a
      student begins; None if the student begins with the result of `init`.
    init_carry: batch (arrays or shapes) -> the `carry` of the first step, in
      flax's boxes, as for `init`.
    predict: (parameters, batch) -> a task's logits of every row; None if the
      objective makes no predictions.
    is_pretrained: path of a parameter, joined by "/" -> True if a run that
      starts from a pre-trained model takes the parameter from that model. None
      means that the run takes all parameters that the model has.
  """

  init: Callable[[Array, Batch], Params]
  divisors: Callable[[Batch], Sums]
  loss: Callable[
    [Params, Params, Carry, Batch, Array, bool], tuple[Sums, Carry]
  ]
  coefficients: dict[str, float]
  flops: Callable[[Batch], float]
  init_teacher: Callable[[Array, Batch], Params] | None = None
  inherit: Callable[[Params, Params], Params] | None = None
  init_carry: Callable[[Batch], Carry] = lambda batch: {}
  predict: Callable[[Params, Batch], Array] | None = None
  is_pretrained: Callable[[str], bool] | None = None


def build_encoder(
  objective: str, model: Mapping[str, Any]
) -> tuple[ModuleType, Any]:
  """Builds the encoder that an objective pre-trains.

  Args:
    objective: the name of the objective. The objective trains the families
      whose `OBJECTIVE` is this name.
    model: keyword arguments of the family's `build`, and `family`.

  Returns:
    The family's module and the encoder.

  Raises:
    ValueError: the objective does not train the model's family.
  """
  options = dict(model)
  family_name = options.pop("family")
  families = models.FAMILIES | models.WORD_FAMILIES
  trained_families = [
    candidate
    for candidate in families
    if objective == families[candidate].OBJECTIVE
  ]
  if not trained_families:
    raise ValueError(
      f"no family has OBJECTIVE={objective!r}; to train the heads that families"
      " have, call build_encoder with their OBJECTIVE, such as 'mlm'."
    )
  check_family(objective, family_name, trained_families)
  family = models.family(family_name)
  return family, family.build(**options)


def dropout_rngs(rng: Array, train: bool) -> dict[str, Array] | None:
  """Returns the argument `rngs` of a module's `apply`: None without dropout."""
  return {"dropout": rng} if train else None


def check_family(objective: str, name: str, families: Iterable[str]) -> None:
  """Raises ValueError unless an objective trains a family.

  Args:
    objective: the name of the objective.
    name: the name of the family.
    families: the names of the families that the objective trains.
  """
  if name not in families:
    raise ValueError(
      f"model.family={name!r}: objective {objective!r} trains"
      f" {', '.join(families)}."
    )


def check_choice(key: str, value: str, choices: Collection[str]) -> None:
  """Raises ValueError unless an option of an objective is one of `choices`."""
  if value not in choices:
    raise ValueError(
      f"objective.{key}={value!r} is not one of {', '.join(choices)}."
    )


def check_temperature(temperature: float) -> None:
  """Raises ValueError unless a softmax's temperature is above 0."""
  if temperature <= 0:
    raise ValueError(f"objective.temperature={temperature} must be above 0.")


def check_batch(objective: str, batch: Batch, keys: Iterable[str]) -> None:
  """Raises ValueError if a batch lacks one of the keys.

  Args:
    objective: the name of the objective.
    batch: the batch, arrays or shapes.
    keys: the keys that the objective reads.
  """
  missing_keys = [key for key in keys if key not in batch]
  if missing_keys == ["span_positions"]:
    raise ValueError(
      f"objective {objective!r} with span_boundary=True predicts spans from"
      " their ends, but the masks of these rows are not spans; set"
      " data.masking=span, or objective.span_boundary=False."
    )
  if missing_keys:
    raise ValueError(
      f"objective {objective!r} needs {', '.join(missing_keys)}, which"
      f" data.builder does not make (it makes {', '.join(batch)}); choose"
      " another data.builder."
    )


def check_segments(batch: Batch, num_segments: int) -> None:
  """Raises ValueError if a batch has segments and the model has only one.

  A model with one segment has no embedding for the second segment, so the
  outputs would be NaN.

  Args:
    batch: the batch, arrays or shapes.
    num_segments: the number of rows of the model's segment table.
  """
  if "segment_ids" in batch and num_segments == 1:
    raise ValueError(
      "the model has only one segment, as RoBERTa has, but data.builder makes"
      " rows with two; choose data.builder=full_sentences or doc_sentences."
    )


def cross_entropy(
  logits: Float[Array, "*n v"], labels: Int[Array, "*n"]
) -> Float[Array, "*n"]:
  """Returns cross-entropies in nats, float32.

  The label's logit is picked by a comparison of the label with all classes. The
  compiler fuses the gradient of this step with that of the softmax. The
  gradient of a gather would be a scatter into an array as large as the logits.

  Args:
    logits: the logits.
    labels: the true classes. For a label outside of [0, v) the output is the
      log-sum-exp of the logits; the caller must give this output the weight 0.
  """
  logits = logits.astype(jnp.float32)
  classes = jax.lax.broadcasted_iota(
    labels.dtype, logits.shape, logits.ndim - 1
  )
  label_logits = jnp.where(classes == labels[..., None], logits, 0.0).sum(-1)
  return jax.nn.logsumexp(logits, axis=-1) - label_logits


def sum_by_chunks(
  sum_chunk: Callable[..., Any], chunk_size: int, *arrays: Array
) -> Any:
  """Sums over a batch in chunks of `chunk_size` positions of every row.

  The backward pass computes each chunk again, so that the logits of only one
  chunk are in memory.

  Args:
    sum_chunk: (*chunks [b, chunk_size, ...]) -> a tree of scalars. The last
      chunk of each array is padded with zeros, which must add 0 to each sum.
    chunk_size: the number of positions in a chunk.
    *arrays: arrays [b, l, ...].

  Returns:
    A tree with the sum of each scalar over all chunks.
  """
  num_rows, length = arrays[0].shape[:2]
  num_chunks = -(-length // chunk_size)

  def split(x: Array) -> Array:
    padding = [(0, 0), (0, num_chunks * chunk_size - length)] + [(0, 0)] * (
      x.ndim - 2
    )
    x = jnp.pad(x, padding).reshape(
      num_rows, num_chunks, chunk_size, *x.shape[2:]
    )
    return x.swapaxes(0, 1)

  def add(sums: Any, chunks: tuple[Array, ...]) -> tuple[Any, None]:
    return jax.tree.map(jnp.add, sums, sum_chunk(*chunks)), None

  split_arrays = tuple(split(x) for x in arrays)
  shapes = jax.eval_shape(sum_chunk, *(x[0] for x in split_arrays))
  zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  # In a scan the compiler cannot merge the operations that are repeated in the
  # backward pass with those of the forward pass, so prevent_cse is not needed.
  body = jax.checkpoint(add, prevent_cse=False)
  return jax.lax.scan(body, zeros, split_arrays)[0]


def classification_sums(
  prefix: str,
  logits: Float[Array, "*n v"],
  labels: Int[Array, "*n"],
  weights: Float[Array, "*n"],
) -> Sums:
  """Returns the weighted sums `{prefix}_loss` (nats) and `{prefix}_accuracy`.

  Args:
    prefix: the prefix of both names.
    logits: the logits.
    labels: the true classes.
    weights: the weight of each label.
  """
  is_correct = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
  return {
    f"{prefix}_loss": (cross_entropy(logits, labels) * weights).sum(),
    f"{prefix}_accuracy": (is_correct * weights).sum(),
  }
