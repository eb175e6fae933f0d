"""Trains TinyBERT on a task (Jiao et al. 2020, sections 3.1, 3.2 and 4.2).

The teacher was fine-tuned for a task. On the task's rows the student first
learns the teacher's inner states (stage "layers"), and then the teacher's
predictions (stage "prediction").
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax import models
from bert_jax.models import task_heads
from bert_jax.models.encoder import Encoder
from bert_jax.objectives import finetune, teaching, tinybert
from bert_jax.objectives.base import (
  Batch,
  Carry,
  Objective,
  Params,
  Sums,
  check_batch,
  check_choice,
  check_temperature,
  dropout_rngs,
)

# The values of the options `kind`, `stage` and `targets`; see `build`.
KINDS = ("classification", "regression")
STAGES = ("layers", "prediction")
TARGETS = ("teacher", "labels")


def soft_losses(
  student_logits: Float[Array, "b n"],
  teacher_logits: Float[Array, "b n"],
  temperature: float = 1.0,
) -> Float[Array, "b"]:
  """Returns each row's soft cross-entropy minus the teacher's entropy, in nats.

  Equation 10 is the cross-entropy alone. The entropy does not depend on the
  student, so it does not change the gradient. A student that equals its teacher
  has loss 0, because the entropy is subtracted. The released program divides
  the cross-entropy by the number of classes, and this function does not
  (task_distill.py, soft_cross_entropy).

  Args:
    student_logits: the logits of the student.
    teacher_logits: the logits of the teacher.
    temperature: the temperature of both softmaxes.
  """
  student_log_probabilities, teacher_log_probabilities = (
    jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
    for logits in (student_logits, teacher_logits)
  )
  return (
    jnp.exp(teacher_log_probabilities)
    * (teacher_log_probabilities - student_log_probabilities)
  ).sum(-1)


def prediction_sum(
  kind: str,
  student_logits: Float[Array, "b n"],
  teacher_logits: Float[Array, "b n"],
  batch: Batch,
  targets: str = "teacher",
  temperature: float = 1.0,
) -> Float[Array, ""]:
  """Sums the losses of a student's predictions over the rows.

  Args:
    kind: the kind of the task, one of `KINDS`.
    student_logits: the student's logits; for a regression, n = 1.
    teacher_logits: the teacher's logits.
    batch: the batch; rows of padding do not count.
    targets: see `build`.
    temperature: the temperature of both softmaxes.
  """
  if kind == "classification":
    losses = soft_losses(student_logits, teacher_logits, temperature)
  else:
    target_values = (
      batch["labels"] if targets == "labels" else teacher_logits[:, 0]
    )
    losses = jnp.square(student_logits[:, 0] - target_values)
  return jnp.where(_row_weights(batch, targets) > 0, losses, 0.0).sum()


def _row_weights(batch: Batch, targets: str) -> Float[Array, "b"]:
  """Returns 1 for the rows that count, else 0.

  If the targets are the teacher's predictions, a row counts even without a
  label. A row that fills up the last batch of an epoch has neither tokens nor a
  label, so it never counts.
  """
  if targets == "labels":
    return (batch["label_weights"] > 0).astype(jnp.float32)
  return (batch["sequence_ids"] > 0).any(-1).astype(jnp.float32)


def _check_options(
  kind: str, stage: str, targets: str, temperature: float
) -> None:
  """Raises ValueError if an option of `build` is out of its range."""
  check_choice("kind", kind, KINDS)
  check_choice("stage", stage, STAGES)
  check_choice("targets", targets, TARGETS)
  if targets == "labels" and kind != "regression":
    raise ValueError(
      "objective.targets='labels' is only for a regression. Set"
      " objective.targets=teacher, or train on the labels of classes with"
      " objective 'finetune'."
    )
  check_temperature(temperature)


def build(
  model: dict[str, Any],
  teacher: dict[str, Any],
  kind: str,
  labels: Sequence[str],
  stage: str = "layers",
  maps: str = "shared",
  attention_weight: float = 1.0,
  hidden_weight: float = 1.0,
  embedding_weight: float = 1.0,
  head_dropout: float | None = None,
  targets: str = "teacher",
  temperature: float = 1.0,
) -> Objective:
  """Builds the objective of one of the two stages, which are separate runs.

  Stage "layers" has the losses of `objectives/tinybert.py`. This stage trains
  only the encoder and the maps (linear layers from the student's width to the
  teacher's), so the student has no head, and cannot predict.

  Stage "prediction" trains on `prediction_loss`, a mean over rows. This stage
  also reports `task_loss` and `task_accuracy` for the gold labels (only
  `task_loss` for a regression).

  Args:
    model: keyword arguments of the student's `build`, and `family`.
    teacher: keyword arguments of the teacher's `build`, and `family`.
    kind: the kind of the task, one of `KINDS`.
    labels: the names of the task's classes.
    stage: one of `STAGES`.
    maps: "shared" or "two" (see `models.tinybert.ForDistillation`). This option
      and the following three are for stage "layers".
    attention_weight: see `tinybert.build`.
    hidden_weight: see `tinybert.build`.
    embedding_weight: see `tinybert.build`.
    head_dropout: see `task_heads.head_options`; this option and the following
      ones are for stage "prediction".
    targets: the targets of a regression. "teacher" takes the teacher's
      predictions; "labels" takes the gold labels, as the released program does
      (task_distill.py, cls_loss). For classes, only "teacher" is possible.
    temperature: the temperature of the softmaxes (section 4.2: 1).

  Raises:
    ValueError: teacher and student do not fit, or an option is out of range.
  """
  _check_options(kind, stage, targets, temperature)
  student_encoder, teacher_encoder = teaching.make_encoders(
    "tinybert_task", model, teacher
  )
  if stage == "layers":
    coefficients = {
      "attention_loss": attention_weight,
      "hidden_loss": hidden_weight,
      "embedding_loss": embedding_weight,
    }
    return _build_layer_stage(
      student_encoder, teacher_encoder, maps, coefficients
    )
  tinybert.check_vocabulary(student_encoder, teacher_encoder)
  student_model = _build_task_model(
    student_encoder, model["family"], kind, len(labels), head_dropout
  )
  teacher_model = _build_task_model(
    teacher_encoder, teacher["family"], kind, len(labels), None
  )
  return _build_prediction_stage(
    student_model, teacher_model, kind, targets, temperature
  )


def _build_task_model(
  encoder: Encoder,
  family: str,
  kind: str,
  num_labels: int,
  dropout: float | None,
) -> Any:
  """Builds an encoder with a task head, for classes or for a regression."""
  pooling = models.family(family).POOLING
  head = task_heads.head_options(kind, pooling, num_labels, dropout)
  return task_heads.build(task_heads.TASK_BY_KIND[kind], encoder, head)


def _build_layer_stage(
  student_encoder: Encoder,
  teacher_encoder: Encoder,
  maps: str,
  coefficients: dict[str, float],
) -> Objective:
  module = tinybert.make_module(student_encoder, teacher_encoder, maps)

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("tinybert_task", batch, finetune.KEYS)
    return module.init(rng, batch)["params"]

  def loss(
    params: Params,
    teacher_params: Params,
    carry: Carry,
    batch: Batch,
    rng: Array,
    train: bool,
  ) -> tuple[Sums, Carry]:
    teacher_and_params = teacher_encoder, teacher_params["encoder"]
    sums = tinybert.layer_sums(
      (module, params), teacher_and_params, batch, rng, train
    )
    return sums, carry

  return Objective(
    init=init,
    divisors=tinybert.sum_divisors,
    loss=loss,
    coefficients=coefficients,
    flops=functools.partial(
      tinybert.count_flops, student_encoder, teacher_encoder
    ),
    init_teacher=functools.partial(
      tinybert.init_teacher_encoder, teacher_encoder
    ),
    is_pretrained=lambda path: path.startswith("encoder/"),
  )


def _build_prediction_stage(
  student_model: Any,
  teacher_model: Any,
  kind: str,
  targets: str,
  temperature: float,
) -> Objective:

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("tinybert_task", batch, finetune.KEYS)
    return student_model.init(rng, batch)["params"]

  def init_teacher(rng: Array, batch: Batch) -> Params:
    return teacher_model.init(rng, batch)["params"]

  def divisors(batch: Batch) -> Sums:
    label_weight = batch["label_weights"].sum(dtype=jnp.float32)
    divisor_by_name = {
      "prediction_loss": _row_weights(batch, targets).sum(),
      "task_loss": label_weight,
    }
    if kind != "regression":
      divisor_by_name["task_accuracy"] = label_weight
    return divisor_by_name

  def loss(
    params: Params,
    teacher_params: Params,
    carry: Carry,
    batch: Batch,
    rng: Array,
    train: bool,
  ) -> tuple[Sums, Carry]:
    rngs = dropout_rngs(rng, train)
    logits = student_model.apply(
      {"params": params}, batch, train=train, rngs=rngs
    )
    teacher_params = jax.lax.stop_gradient(teacher_params)
    teacher_logits = teacher_model.apply({"params": teacher_params}, batch)
    sums = finetune.task_sums(
      kind, logits, batch["labels"], batch["label_weights"]
    )
    prediction_loss = prediction_sum(
      kind, logits, teacher_logits, batch, targets, temperature
    )
    return sums | {"prediction_loss": prediction_loss}, carry

  def predict(params: Params, batch: Batch) -> Array:
    return student_model.apply({"params": params}, batch)

  def flops(batch: Batch) -> float:
    shape = batch["input_ids"].shape
    student_flops = finetune.training_flops(
      student_model.encoder, shape, has_language_model=False
    )
    teacher_flops = finetune.training_flops(
      teacher_model.encoder, shape, has_language_model=False
    )
    # `training_flops` counts 3 forward passes; the teacher does only 1.
    return student_flops + teacher_flops / 3

  def is_pretrained(path: str) -> bool:
    return path.startswith(("encoder/", "pooler/"))

  return Objective(
    init=init,
    divisors=divisors,
    loss=loss,
    coefficients={"prediction_loss": 1.0},
    flops=flops,
    init_teacher=init_teacher,
    predict=predict,
    is_pretrained=is_pretrained,
  )
