"""Fine-tuning: the loss of a task on an encoder with the task's head.

Classes, a regression, choices, tags, spans (Devlin et al. 2019, section 4 and
appendix A.5); with GPT-1, its auxiliary language model (Radford et al. 2018,
section 3.2).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax import models
from bert_jax.models import question_head, task_heads
from bert_jax.models.encoder import INPUTS, attributes, encode, stack_flops
from bert_jax.objectives import lm
from bert_jax.objectives.base import (
  Batch,
  Objective,
  Sums,
  check_batch,
  check_choice,
  check_family,
  classification_sums,
  cross_entropy,
  dropout_rngs,
)

KEYS = ("input_ids", "sequence_ids", "labels", "label_weights")
SPAN_POSITIONS = ("all", "real")
HEADS = ("new", "taken")
# google-research/electra configure_finetuning.py, answerable_weight.
NULL_WEIGHT = 0.5


def task_sums(
  kind: str, logits: Array, labels: Array, weights: Float[Array, "*n"]
) -> Sums:
  """Weighted sums `task_loss`, and `task_accuracy` where there are labels.

  Cross-entropy in nats; the squared error of a regression; of several labels at
  once the mean over all of their binary cross-entropies, right if all are; of
  spans the mean of start and end (google-research/bert run_squad.py, model_fn),
  right if both are.

  Args:
    kind: the kind of the task, a key of `task_heads.NAMES`.
    logits: the head's logits, see models/task_heads.py.
    labels: int32 or float32 [b]; [b, n] of several at once; [b, l] of tags;
      [b, 2] of spans.
    weights: [b]; [b, l] of tags. Where it is 0 the label is not read.
  """
  if kind == "regression":
    error = jnp.where(weights > 0, logits[..., 0] - labels, 0.0)
    return {"task_loss": (jnp.square(error) * weights).sum()}
  if kind == "multi_label":
    # As torch's BCEWithLogitsLoss, with which transformers trains them.
    logits, labels = logits.astype(jnp.float32), labels.astype(jnp.float32)
    losses = jax.nn.softplus(logits) - logits * labels
    right = ((logits > 0) == (labels > 0)).all(-1).astype(jnp.float32)
    return _weighted(losses.mean(-1), right, weights)
  if kind == "span":
    ends = jnp.swapaxes(logits, 1, 2)
    loss = cross_entropy(ends, labels).mean(-1)
    right = (jnp.argmax(ends, -1) == labels).all(-1).astype(jnp.float32)
    return _weighted(loss, right, weights)
  return classification_sums("task", logits, labels, weights)


def _weighted(losses: Array, right: Array, weights: Array) -> Sums:
  return {
    "task_loss": (losses * weights).sum(),
    "task_accuracy": (right * weights).sum(),
  }


def joint_sums(logits: question_head.AnswerLogits, batch: Batch) -> Sums:
  """Weighted sums `task_loss` and `task_accuracy`.

  In nats: the mean of the cross-entropies of the start and of the end given the
  right start, and half the binary one of no answer (google-research/electra
  finetune/qa/qa_tasks.py, get_prediction_module). A window without the answer
  has start and end at [CLS], but has no answer only if its question has none.
  A row is right if its start is, and the end given the right start.

  Args:
    logits: the logits for the starts of `labels`.
    batch: `labels` int32 [b, 2], `label_weights` [b], `unanswerable` float32
      [b], 1 for a question without an answer.
  """
  (start, end), weights = batch["labels"].T, batch["label_weights"]
  loss = (
    cross_entropy(logits.start, start) + cross_entropy(logits.end, end)
  ) / 2
  null = jax.nn.softplus(logits.null) - logits.null * batch["unanswerable"]
  right = logits.start.argmax(-1) == start
  right &= logits.end.argmax(-1) == end
  right = right.astype(jnp.float32)
  return _weighted(loss + NULL_WEIGHT * null, right, weights)


def language_model_sums(
  hidden: Float[Array, "n l d"], module: Any, batch: Batch
) -> Sums:
  """Sums over rows of each row's mean `lm_loss` and `lm_accuracy`.

  Every token of a row is a target but the first (openai/
  finetune-transformer-lm train.py, model: lm_losses).
  """
  length = batch["input_ids"].shape[-1]
  ids = batch["input_ids"].reshape(-1, length)
  ids = jnp.pad(ids[:, 1:], [(0, 0), (0, 1)])
  targets = next_targets(batch).reshape(-1, length)
  weights = targets / jnp.maximum(targets.sum(-1, keepdims=True), 1.0)
  encoder = module.encoder
  return lm.language_model_sums(
    hidden, encoder.word_embedding, encoder.vocab_size, ids, weights
  )


def next_targets(batch: Batch) -> Float[Array, "*b l"]:
  """1 where the next token is real, else 0."""
  real = (batch["sequence_ids"][..., 1:] > 0).astype(jnp.float32)
  return jnp.pad(real, [(0, 0)] * (real.ndim - 1) + [(0, 1)])


def _both(module: Any, batch: Batch, train: bool) -> tuple[Array, Sums]:
  """Logits, and the sums of the language model on the same hidden states."""
  length = batch["input_ids"].shape[-1]
  flat = {key: batch[key].reshape(-1, length) for key in INPUTS if key in batch}
  hidden, _ = encode(module.encoder, flat, train=train)
  logits = module.classify(hidden, flat, train)
  sums = language_model_sums(hidden, module, batch)
  if batch["input_ids"].ndim == 3:
    logits = logits.reshape(batch["input_ids"].shape[:2])
  return logits, sums


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def fixed_row(table: Float[Array, "v d"], row: int) -> Float[Array, "v d"]:
  """The table, whose row of that number gets no gradient."""
  return table


def _fixed_row_backward(row, _, gradient):
  return (gradient.at[row].set(0.0),)


fixed_row.defvjp(lambda table, row: (table, None), _fixed_row_backward)


def fix_padding(
  params: Any, padding_id: int, tables: Sequence[str] = ("word",)
) -> Any:
  """Returns the parameters; no gradient reaches the embedding of padding.

  This is torch's `padding_idx` (transformers modeling_bert.py,
  modeling_roberta.py).

  Args:
    params: the parameters.
    padding_id: id of padding.
    tables: names of the tables whose row `padding_id` belongs to padding.
  """
  embeddings = dict(params["encoder"]["embeddings"])
  for name in tables:
    table = embeddings[name]["embedding"]
    embeddings[name] = {"embedding": fixed_row(table, padding_id)}
  encoder = {**params["encoder"], "embeddings": embeddings}
  return {**params, "encoder": encoder}


def _make_sums(
  module: Any, kind: str, lm_weight: float, span_positions: str
) -> Callable[..., Sums]:
  """Returns (params, batch, rngs, train) -> the sums of all losses."""
  joint = isinstance(module, task_heads.JointSpanClassifier)
  method = "logits_given_starts" if joint else _both if lm_weight else None

  def sums_of(params, batch, rngs, train):
    inputs = _inputs(module, batch)
    labels, weights = batch["labels"], batch["label_weights"]
    starts = [labels[:, 0]] if joint else []
    options = dict(train=train, rngs=rngs, method=method)
    outputs = module.apply({"params": params}, inputs, *starts, **options)
    if joint:
      return joint_sums(outputs, batch)
    logits, sums = outputs if lm_weight else (outputs, {})
    if kind == "span" and span_positions == "real":
      real = batch["sequence_ids"][..., None] > 0
      logits = jnp.where(real, logits, jnp.finfo(jnp.float32).min)
    return sums | task_sums(kind, logits, labels, weights)

  return sums_of


def _inputs(module: Any, batch: Batch) -> Batch:
  return {k: batch[k] for k in task_heads.input_keys(module) if k in batch}


def _check(
  family: str,
  kind: str,
  head: str,
  lm_weight: float,
  span_positions: str,
  span_head: str,
) -> None:
  check_family("finetune", family, models.FAMILIES)
  check_choice("kind", kind, task_heads.NAMES)
  check_choice("head", head, HEADS)
  check_choice("span_positions", span_positions, SPAN_POSITIONS)
  check_choice("span_head", span_head, task_heads.SPAN_HEADS)
  if span_head == "joint" and kind != "span":
    raise ValueError(
      f"objective.span_head='joint' is for questions, and the task is {kind};"
      " set objective.span_head=apart."
    )
  if lm_weight:
    check_family("finetune with lm_weight", family, ["gpt"])
    if kind in ("tagging", "span"):
      raise ValueError(f"objective.lm_weight={lm_weight}: must be 0 of {kind}.")


def _pretrained(path: str, family: str) -> bool:
  """Returns True for a parameter of the encoder or of a pre-trained pooler."""
  if path.startswith("pooler/"):
    return models.family(family).PRETRAINED_POOLER
  return path.startswith("encoder/")


def _weights(batch: Batch, kind: str, language_model: bool) -> Sums:
  count = batch["label_weights"].sum(dtype=jnp.float32)
  weights = {"task_loss": count}
  if kind != "regression":
    weights["task_accuracy"] = count
  if language_model:
    rows = (next_targets(batch).sum(-1) > 0).sum(dtype=jnp.float32)
    weights |= {"lm_loss": rows, "lm_accuracy": rows}
  return weights


def training_flops(
  encoder: Any, shape: tuple[int, ...], language_model: bool
) -> float:
  """Operations of a step on `input_ids` of a shape, [b, l] or [b, c, l]."""
  *rows, length = shape
  e, count = encoder, math.prod(rows)
  total = stack_flops(e, count, length)
  if language_model:
    total += 2.0 * count * length * e.hidden * e.vocab_size
  return 3 * total


def build(
  model: dict[str, Any],
  kind: str,
  labels: Sequence[str],
  head: str = "new",
  head_dropout: float | None = None,
  lm_weight: float = 0.0,
  span_positions: str = "all",
  train_padding: bool = False,
  padding_id: int | None = None,
  span_head: str = "apart",
) -> Objective:
  """The mean loss over the labelled examples, words or windows of a batch.

  Args:
    model: keyword arguments of the family's `build`, with `family`.
    kind: the kind of the task, a key of `task_heads.NAMES`.
    labels: the names of the task's classes or tags.
    head: "new" to take the encoder and the pooler of a pre-trained model and
      draw the other parameters; "taken" to take its classifier as well.
    head_dropout: see `task_heads.head_of`.
    lm_weight: weight of the loss of GPT-1's language model, the mean over rows
      of each row's mean; 0.5 as published.
    span_positions: the softmax of a span's ends runs over "all" positions of a
      row, padding too (google-research/bert run_squad.py, transformers), or
      over "real" tokens alone, so that no loss depends on the padding.
    train_padding: True if a softmax over "all" trains the embedding of padding
      too (run_squad.py); False to leave it as it is (transformers).
    padding_id: id of padding in the data's vocabulary; None without data.
    span_head: the head for questions: "apart" for BERT's, where start and end
      are independent and the score at the first position means no answer; or
      "joint", see `question_head` (ELECTRA's),
      which looks at the context alone, whatever `span_positions` says.

  Raises:
    ValueError: an unknown kind or name, another family.
  """
  model = dict(model)
  name = model.pop("family")
  _check(name, kind, head, lm_weight, span_positions, span_head)
  family = models.family(name)
  encoder = family.build(**model)
  options = task_heads.head_of(
    kind, family.POOLING, len(labels), head_dropout, span_head
  )
  module = task_heads.build(task_heads.NAMES[kind], encoder, options)
  sums_of = _make_sums(module, kind, lm_weight, span_positions)
  # An encoder with a padding id has a row of the position table for padding.
  has_row = "padding_id" in attributes(encoder)
  tables = ("word", "position") if has_row else ("word",)
  fixed = kind == "span" and not train_padding and padding_id is not None
  more = ("segment_ids", "unanswerable") if span_head == "joint" else ()

  def init(rng, batch):
    check_batch("finetune", batch, KEYS + more)
    return module.init(rng, _inputs(module, batch))["params"]

  def loss(params, frozen, carry, batch, rng, train):
    del frozen
    params = fix_padding(params, padding_id, tables) if fixed else params
    rngs = dropout_rngs(rng, train)
    return sums_of(params, batch, rngs, train), carry

  def flops(batch):
    return training_flops(encoder, batch["input_ids"].shape, bool(lm_weight))

  def predict(params, batch):
    return module.apply({"params": params}, _inputs(module, batch))

  def takes(path):
    return head == "taken" or _pretrained(path, name)

  language_model = {"lm_loss": lm_weight} if lm_weight else {}
  coefficients = {"task_loss": 1.0, **language_model}
  weights = functools.partial(
    _weights, kind=kind, language_model=bool(lm_weight)
  )
  return Objective(
    init=init,
    weights=weights,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
    predict=predict,
    takes=takes,
  )
