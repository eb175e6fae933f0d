"""TinyBERT's task stages (Jiao et al. 2020, sections 3.1, 3.2 and 4.2).

A teacher that was fine-tuned for a task shows a student first its inner states
on the task's rows ("layers"), then its predictions ("prediction").
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax import models
from bert_jax.models import task_heads
from bert_jax.objectives import finetune, teaching, tinybert
from bert_jax.objectives.base import (
  Batch,
  Objective,
  check_batch,
  check_choice,
  check_temperature,
  dropout_rngs,
)

KINDS = ("classification", "regression")
STAGES = ("layers", "prediction")
TARGETS = ("teacher", "labels")


def soft_losses(
  student: Float[Array, "b n"],
  teacher: Float[Array, "b n"],
  temperature: float = 1.0,
) -> Float[Array, "b"]:
  """Soft cross-entropy of each row, less the teacher's own entropy, in nats.

  Equation 10 has the cross-entropy. The entropy that is subtracted does not
  depend on the student: the gradient is the same, and a student equal to its
  teacher has 0. The released program also divides by the number of classes
  (task_distill.py, soft_cross_entropy).
  """
  learnt, wanted = (
    jax.nn.log_softmax(x.astype(jnp.float32) / temperature)
    for x in (student, teacher)
  )
  return (jnp.exp(wanted) * (wanted - learnt)).sum(-1)


def prediction_sum(
  kind: str,
  student: Float[Array, "b n"],
  teacher: Float[Array, "b n"],
  batch: Batch,
  targets: str = "teacher",
  temperature: float = 1.0,
) -> Float[Array, ""]:
  """The distance of a student's predictions from its teacher's, over all rows.

  Args:
    kind: the kind of the task, one of `KINDS`.
    student: the student's logits; for a regression its numbers, n = 1.
    teacher: the same for the teacher.
    batch: the batch; its padded rows do not count.
    targets: see `build`.
    temperature: temperature of both softmaxes.
  """
  if kind == "classification":
    losses = soft_losses(student, teacher, temperature)
  else:
    wanted = batch["labels"] if targets == "labels" else teacher[:, 0]
    losses = jnp.square(student[:, 0] - wanted)
  return jnp.where(_counted(batch, targets) > 0, losses, 0.0).sum()


def _counted(batch: Batch, targets: str) -> Float[Array, "b"]:
  """1 for the rows that count; a teacher's targets need no label.

  The rows that fill up the last batch of an epoch have no token and no label.
  """
  if targets == "labels":
    return (batch["label_weights"] > 0).astype(jnp.float32)
  return (batch["sequence_ids"] > 0).any(-1).astype(jnp.float32)


def _check(kind: str, stage: str, targets: str, temperature: float) -> None:
  check_choice("kind", kind, KINDS)
  check_choice("stage", stage, STAGES)
  check_choice("targets", targets, TARGETS)
  if targets == "labels" and kind != "regression":
    raise ValueError(
      "objective.targets='labels' is for a regression; of classes that is"
      " objective 'finetune'. Set objective.targets=teacher."
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
  """One of the two stages; each is a separate run.

  "layers": the losses of `objectives/tinybert.py`; only encoder and map learn,
  and there is no head to predict with. "prediction": only `prediction_loss`, a
  mean over rows; `task_loss` and `task_accuracy` of the labels are reported
  too.

  Args:
    model: keyword arguments of the student's `build`, with `family`.
    teacher: the same for the teacher.
    kind: the kind of the task, one of `KINDS`.
    labels: the names of the task's classes.
    stage: one of `STAGES`.
    maps: see `tinybert.build`; this option and the three weights are for stage
      "layers".
    attention_weight: see `tinybert.build`.
    hidden_weight: see `tinybert.build`.
    embedding_weight: see `tinybert.build`.
    head_dropout: see `task_heads.head_of`; this option and the following ones
      are for stage "prediction".
    targets: for a regression, the "teacher"'s numbers, or the gold "labels" as
      released (task_distill.py, cls_loss).
    temperature: temperature of the softmaxes (section 4.2: 1).

  Raises:
    ValueError: teacher and student do not fit, or an option is out of range.
  """
  _check(kind, stage, targets, temperature)
  encoders = teaching.make_encoders("tinybert_task", model, teacher)
  if stage == "layers":
    coefficients = {
      "attention_loss": attention_weight,
      "hidden_loss": hidden_weight,
      "embedding_loss": embedding_weight,
    }
    return _layers(*encoders, maps, coefficients)
  tinybert.check_vocabulary(*encoders)
  student, master = (
    _classifier(encoder, options["family"], kind, len(labels), rate)
    for encoder, options, rate in (
      (encoders[0], model, head_dropout),
      (encoders[1], teacher, None),
    )
  )
  return _prediction(student, master, kind, targets, temperature)


def _classifier(
  encoder: Any, family: str, kind: str, count: int, dropout: float | None
) -> Any:
  head = task_heads.head_of(kind, models.family(family).POOLING, count, dropout)
  return task_heads.build(task_heads.NAMES[kind], encoder, head)


def _layers(
  student: Any, teacher: Any, maps: str, coefficients: dict[str, float]
) -> Objective:
  module = tinybert.make_module(student, teacher, maps)

  def init(rng, batch):
    check_batch("tinybert_task", batch, finetune.KEYS)
    return module.init(rng, batch)["params"]

  def loss(params, frozen, carry, batch, rng, train):
    other = teacher, frozen["encoder"]
    sums = tinybert.layer_sums((module, params), other, batch, rng, train)
    return sums, carry

  return Objective(
    init=init,
    weights=tinybert.count_targets,
    loss=loss,
    coefficients=coefficients,
    flops=functools.partial(tinybert.count_flops, student, teacher),
    init_frozen=functools.partial(tinybert.init_encoder, teacher),
    takes=lambda path: path.startswith("encoder/"),
  )


def _prediction(
  student: Any, teacher: Any, kind: str, targets: str, temperature: float
) -> Objective:
  def init(rng, batch):
    check_batch("tinybert_task", batch, finetune.KEYS)
    return student.init(rng, batch)["params"]

  def init_frozen(rng, batch):
    return teacher.init(rng, batch)["params"]

  def weights(batch):
    labelled = batch["label_weights"].sum(dtype=jnp.float32)
    result = {
      "prediction_loss": _counted(batch, targets).sum(),
      "task_loss": labelled,
    }
    if kind != "regression":
      result["task_accuracy"] = labelled
    return result

  def loss(params, frozen, carry, batch, rng, train):
    rngs = dropout_rngs(rng, train)
    logits = student.apply({"params": params}, batch, train=train, rngs=rngs)
    frozen = jax.lax.stop_gradient(frozen)
    wanted = teacher.apply({"params": frozen}, batch)
    sums = finetune.task_sums(
      kind, logits, batch["labels"], batch["label_weights"]
    )
    total = prediction_sum(kind, logits, wanted, batch, targets, temperature)
    return sums | {"prediction_loss": total}, carry

  def predict(params, batch):
    return student.apply({"params": params}, batch)

  def flops(batch):
    shape = batch["input_ids"].shape
    trained, read = (
      finetune.training_flops(m.encoder, shape, False)
      for m in (student, teacher)
    )
    return trained + read / 3  # The teacher has no backward pass.

  def takes(path):
    return path.startswith(("encoder/", "pooler/"))

  return Objective(
    init=init,
    weights=weights,
    loss=loss,
    coefficients={"prediction_loss": 1.0},
    flops=flops,
    init_frozen=init_frozen,
    predict=predict,
    takes=takes,
  )
