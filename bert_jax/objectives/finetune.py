"""Defines fine-tuning: the loss of a task on an encoder with a head.

A task predicts classes, a number, choices, tags or spans (Devlin et al. 2019,
section 4 and appendix A.5). GPT-1 can add its language model as a second loss
(Radford et al. 2018, section 3.2).
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
from bert_jax.models.encoder import (
  INPUT_KEYS,
  Encoder,
  encode,
  field_values,
  stack_flops,
)
from bert_jax.objectives import lm
from bert_jax.objectives.base import (
  Batch,
  Carry,
  Objective,
  Params,
  Sums,
  check_batch,
  check_choice,
  check_family,
  classification_sums,
  cross_entropy,
  dropout_rngs,
)

# The keys of a batch that every task has.
KEYS = ("input_ids", "sequence_ids", "labels", "label_weights")
# The values of the options `span_positions` and `head`; see `build`.
SPAN_POSITIONS = ("all", "real")
HEAD_SOURCES = ("new", "taken")
# The weight of the loss of "no answer" (google-research/electra
# configure_finetuning.py, answerable_weight).
NO_ANSWER_WEIGHT = 0.5


def task_sums(
  kind: str, logits: Array, labels: Array, weights: Float[Array, "*n"]
) -> Sums:
  """Returns the weighted sums `task_loss` and `task_accuracy`.

    kind         loss of an example (of a word for tagging)  right if
    regression   squared error                               (no accuracy)
    multi_label  mean of the labels' binary cross-entropies  all labels right
    span         mean of the cross-entropies of start and    both right
                 end (google-research/bert run_squad.py,
                 model_fn)
    all others   cross-entropy                               label right

  Cross-entropies are in nats.

  Args:
    kind: the kind of the task, a key of `task_heads.TASK_BY_KIND`.
    logits: the head's logits; see models/task_heads.py for the shapes.
    labels: int32 or float32: [b, n] for multi_label, [b, l] for tagging, [b, 2]
      for spans, [b] for all others.
    weights: [b, l] for tagging, else [b]. A label with weight 0 does not count.
  """
  if kind == "regression":
    error = jnp.where(weights > 0, logits[..., 0] - labels, 0.0)
    return {"task_loss": (jnp.square(error) * weights).sum()}
  if kind == "multi_label":
    # This is torch's BCEWithLogitsLoss, with which transformers trains.
    logits, labels = logits.astype(jnp.float32), labels.astype(jnp.float32)
    losses = jax.nn.softplus(logits) - logits * labels
    is_right = ((logits > 0) == (labels > 0)).all(-1).astype(jnp.float32)
    return _weighted_sums(losses.mean(-1), is_right, weights)
  if kind == "span":
    span_logits = jnp.swapaxes(logits, 1, 2)
    losses = cross_entropy(span_logits, labels).mean(-1)
    is_right = (
      (jnp.argmax(span_logits, -1) == labels).all(-1).astype(jnp.float32)
    )
    return _weighted_sums(losses, is_right, weights)
  return classification_sums("task", logits, labels, weights)


def _weighted_sums(losses: Array, is_right: Array, weights: Array) -> Sums:
  return {
    "task_loss": (losses * weights).sum(),
    "task_accuracy": (is_right * weights).sum(),
  }


def joint_head_sums(logits: question_head.AnswerLogits, batch: Batch) -> Sums:
  """Returns the sums `task_loss` and `task_accuracy` of ELECTRA's head.

  The loss, in nats, is the mean of the cross-entropies of start and end, plus
  `NO_ANSWER_WEIGHT` times the binary cross-entropy of "no answer". To predict
  the end, the head reads the right start (google-research/electra
  finetune/qa/qa_tasks.py, get_prediction_module). A row counts as right if its
  start and its end are right. If a window does not contain the answer, the
  labels of start and end are the position of [CLS]. But `unanswerable` is 1
  only if the question has no answer at all.

  Args:
    logits: the head's logits; those of the end are for the right starts.
    batch: has `labels` int32 [b, 2], `label_weights` [b] and `unanswerable`
      float32 [b], which is 1 for a question without an answer.
  """
  (start, end), weights = batch["labels"].T, batch["label_weights"]
  span_loss = (
    cross_entropy(logits.start_logits, start)
    + cross_entropy(logits.end_logits, end)
  ) / 2
  no_answer_loss = (
    jax.nn.softplus(logits.no_answer_logits)
    - logits.no_answer_logits * batch["unanswerable"]
  )
  is_right = logits.start_logits.argmax(-1) == start
  is_right &= logits.end_logits.argmax(-1) == end
  losses = span_loss + NO_ANSWER_WEIGHT * no_answer_loss
  return _weighted_sums(losses, is_right.astype(jnp.float32), weights)


def language_model_sums(
  hidden: Float[Array, "n l d"], module: Any, batch: Batch
) -> Sums:
  """Returns `lm_loss` and `lm_accuracy`: sums over rows of each row's mean.

  All real tokens of a row except the first are targets (openai/
  finetune-transformer-lm train.py, model: lm_losses).

  Args:
    hidden: the last hidden states of the n rows, where n is b, or b * c for the
      c choices of each example.
    module: a module with an encoder.
    batch: has `input_ids` and `sequence_ids`, [b, l] or [b, c, l].
  """
  length = batch["input_ids"].shape[-1]
  next_ids = batch["input_ids"].reshape(-1, length)
  next_ids = jnp.pad(next_ids[:, 1:], [(0, 0), (0, 1)])
  is_target = next_token_weights(batch).reshape(-1, length)
  weights = is_target / jnp.maximum(is_target.sum(-1, keepdims=True), 1.0)
  encoder = module.encoder
  return lm.language_model_sums(
    hidden, encoder.word_embedding, encoder.vocab_size, next_ids, weights
  )


def next_token_weights(batch: Batch) -> Float[Array, "*b l"]:
  """Returns 1 where the next token is real, else 0."""
  is_real = (batch["sequence_ids"][..., 1:] > 0).astype(jnp.float32)
  return jnp.pad(is_real, [(0, 0)] * (is_real.ndim - 1) + [(0, 1)])


def _logits_and_lm_sums(
  module: Any, batch: Batch, train: bool
) -> tuple[Array, Sums]:
  """Returns the task's logits and the language model's sums.

  The task's head and the language model read the same hidden states.
  """
  length = batch["input_ids"].shape[-1]
  flat_batch = {
    key: batch[key].reshape(-1, length) for key in INPUT_KEYS if key in batch
  }
  hidden, _ = encode(module.encoder, flat_batch, train=train)
  logits = module.classify(hidden, flat_batch, train)
  sums = language_model_sums(hidden, module, batch)
  if batch["input_ids"].ndim == 3:
    logits = logits.reshape(batch["input_ids"].shape[:2])
  return logits, sums


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def freeze_row(table: Float[Array, "v d"], row: int) -> Float[Array, "v d"]:
  """Returns the table, and stops the gradient of the row at index `row`."""
  return table


def _freeze_row_backward(
  row: int, _: None, gradient: Float[Array, "v d"]
) -> tuple[Float[Array, "v d"]]:
  return (gradient.at[row].set(0.0),)


freeze_row.defvjp(lambda table, row: (table, None), _freeze_row_backward)


def freeze_padding(
  params: Params, padding_id: int, tables: Sequence[str] = ("word",)
) -> Params:
  """Returns the parameters, and stops the gradient of padding's embedding.

  This is torch's `padding_idx` (transformers modeling_bert.py,
  modeling_roberta.py).

  Args:
    params: the parameters.
    padding_id: the id of padding.
    tables: the names of the tables whose row `padding_id` embeds padding.
  """
  embeddings = dict(params["encoder"]["embeddings"])
  for name in tables:
    table = embeddings[name]["embedding"]
    embeddings[name] = {"embedding": freeze_row(table, padding_id)}
  encoder = {**params["encoder"], "embeddings": embeddings}
  return {**params, "encoder": encoder}


def _make_sums(
  module: Any, kind: str, lm_weight: float, span_positions: str
) -> Callable[..., Sums]:
  """Returns a function (params, batch, rngs, train) -> a batch's sums."""

  def sum_losses(
    params: Params, batch: Batch, rngs: dict[str, Array] | None, train: bool
  ) -> Sums:
    apply = functools.partial(
      module.apply, {"params": params}, _module_inputs(module, batch)
    )
    labels, weights = batch["labels"], batch["label_weights"]
    options: dict[str, Any] = dict(train=train, rngs=rngs)
    if isinstance(module, task_heads.JointSpanClassifier):
      joint_logits = apply(
        starts=labels[:, 0], method="logits_given_starts", **options
      )
      return joint_head_sums(joint_logits, batch)
    sums: Sums = {}
    if lm_weight:
      logits, sums = apply(method=_logits_and_lm_sums, **options)
    else:
      logits = apply(**options)
    if kind == "span" and span_positions == "real":
      is_real = batch["sequence_ids"][..., None] > 0
      logits = jnp.where(is_real, logits, jnp.finfo(jnp.float32).min)
    return sums | task_sums(kind, logits, labels, weights)

  return sum_losses


def _module_inputs(module: Any, batch: Batch) -> Batch:
  """Returns the arrays of a batch that the module reads."""
  return {
    key: batch[key] for key in task_heads.input_keys(module) if key in batch
  }


def _check_options(
  family: str,
  kind: str,
  head: str,
  lm_weight: float,
  span_positions: str,
  span_head: str,
) -> None:
  """Raises ValueError if an option of `build` is out of its range."""
  check_family("finetune", family, models.FAMILIES)
  check_choice("kind", kind, task_heads.TASK_BY_KIND)
  check_choice("head", head, HEAD_SOURCES)
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
      raise ValueError(
        f"objective.lm_weight={lm_weight} must be 0 for the kind {kind}."
      )


def _is_pretrained(path: str, family: str) -> bool:
  """Returns True for a parameter of the encoder or of a pre-trained pooler."""
  if path.startswith("pooler/"):
    return models.family(family).PRETRAINED_POOLER
  return path.startswith("encoder/")


def _sum_divisors(batch: Batch, kind: str, has_language_model: bool) -> Sums:
  """Returns the divisor of each sum; see `divisors` of `base.Objective`."""
  total_weight = batch["label_weights"].sum(dtype=jnp.float32)
  divisors = {"task_loss": total_weight}
  if kind != "regression":
    divisors["task_accuracy"] = total_weight
  if has_language_model:
    num_rows = (next_token_weights(batch).sum(-1) > 0).sum(dtype=jnp.float32)
    divisors |= {"lm_loss": num_rows, "lm_accuracy": num_rows}
  return divisors


def training_flops(
  encoder: Encoder, shape: tuple[int, ...], has_language_model: bool
) -> float:
  """Counts a training step's floating-point operations, except the task head's.

  Args:
    encoder: the encoder, which has the sizes.
    shape: the shape of `input_ids`, [b, l] or [b, c, l].
    has_language_model: True if there is a language-model loss.
  """
  *row_axes, length = shape
  num_rows = math.prod(row_axes)
  forward_flops = stack_flops(encoder, num_rows, length)
  if has_language_model:
    forward_flops += (
      2.0 * num_rows * length * encoder.hidden * encoder.vocab_size
    )
  return 3 * forward_flops


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
  """Builds the mean loss over labelled examples, words or windows of a batch.

  Args:
    model: keyword arguments of the family's `build`, and `family`.
    kind: the kind of the task, a key of `task_heads.TASK_BY_KIND`.
    labels: the names of the task's classes or tags.
    head: "new" takes from a pre-trained model the encoder, and also the pooler
      if the family's pre-training trains it. The other parameters are drawn at
      random. "taken" takes all parameters from the model.
    head_dropout: see `task_heads.head_options`.
    lm_weight: the weight of `lm_loss`, which is for GPT-1; 0.5 as published.
      `lm_loss` is the mean over rows of each row's mean.
    span_positions: "all" lets the softmaxes of start and end run over all
      positions of a row, also over padding (google-research/bert run_squad.py,
      transformers). "real" lets them run over real tokens only, so that no loss
      depends on the padding.
    train_padding: for spans only. True lets a softmax over padding also train
      the embedding of padding (run_squad.py). False stops the gradient of that
      embedding (transformers).
    padding_id: the id of padding in the data's vocabulary. With None, which is
      for use without data, no gradient is stopped.
    span_head: the head for questions. In BERT's head "apart", start and end are
      independent, and a span at the first position means that there is no
      answer. ELECTRA's head "joint" (see `question_head`) reads only the
      context, whatever `span_positions` is.

  Raises:
    ValueError: the objective does not train this family, or an option is out of
      its range.
  """
  model = dict(model)
  family_name = model.pop("family")
  _check_options(family_name, kind, head, lm_weight, span_positions, span_head)
  family = models.family(family_name)
  encoder = family.build(**model)
  head_arguments = task_heads.head_options(
    kind, family.POOLING, len(labels), head_dropout, span_head
  )
  module = task_heads.build(
    task_heads.TASK_BY_KIND[kind], encoder, head_arguments
  )
  sum_losses = _make_sums(module, kind, lm_weight, span_positions)
  # If an encoder has a `padding_id`, the position table has a row for padding,
  # at this index.
  has_padding_row = "padding_id" in field_values(encoder)
  tables = ("word", "position") if has_padding_row else ("word",)
  frozen_id = padding_id if kind == "span" and not train_padding else None
  keys = [*KEYS]
  if span_head == "joint":
    keys += ["segment_ids", "unanswerable"]

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("finetune", batch, keys)
    return module.init(rng, _module_inputs(module, batch))["params"]

  def loss(
    params: Params,
    teacher_params: Params,
    carry: Carry,
    batch: Batch,
    rng: Array,
    train: bool,
  ) -> tuple[Sums, Carry]:
    del teacher_params
    if frozen_id is not None:
      params = freeze_padding(params, frozen_id, tables)
    rngs = dropout_rngs(rng, train)
    return sum_losses(params, batch, rngs, train), carry

  def flops(batch: Batch) -> float:
    return training_flops(encoder, batch["input_ids"].shape, bool(lm_weight))

  def predict(params: Params, batch: Batch) -> Any:
    return module.apply({"params": params}, _module_inputs(module, batch))

  def is_pretrained(path: str) -> bool:
    return head == "taken" or _is_pretrained(path, family_name)

  lm_coefficients = {"lm_loss": lm_weight} if lm_weight else {}
  coefficients = {"task_loss": 1.0, **lm_coefficients}
  divisors = functools.partial(
    _sum_divisors, kind=kind, has_language_model=bool(lm_weight)
  )
  return Objective(
    init=init,
    divisors=divisors,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
    predict=predict,
    is_pretrained=is_pretrained,
  )
