"""Defines encoders with a task's head: classes, tags, spans or choices."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models import explicit_axes, heads, layers, question_head
from bert_jax.models.encoder import INPUT_KEYS, Encoder, encode

Batch = dict[str, Array]
# The kind of a task -> its name, `task`, in a converted folder's config.
TASK_BY_KIND = {
  "classification": "sequence_classification",
  "regression": "sequence_classification",
  "multi_label": "sequence_classification",
  "choice": "multiple_choice",
  "tagging": "token_classification",
  "span": "span",
}
# The heads for spans. "apart" is BERT's: start and end are independent. "joint"
# is ELECTRA's: the end depends on the start.
SPAN_HEADS = ("apart", "joint")


def build(
  task: str, encoder: Encoder, head: Mapping[str, Any]
) -> (
  "SequenceClassifier | TokenClassifier | SpanClassifier | JointSpanClassifier"
):
  """Builds the module of a task.

  Args:
    task: a value of `TASK_BY_KIND`.
    encoder: an encoder of any family.
    head: the keyword arguments of the module. `pooling` is a dict of the fields
      of `heads.Pooling`. A `beam` selects ELECTRA's head for spans.
  """
  head = dict(head)
  if "pooling" in head:
    pooling = heads.Pooling(**head.pop("pooling"))
    return SequenceClassifier(encoder, pooling, **head)
  if task != "span":
    return TokenClassifier(encoder, **head)
  if "beam" in head:
    return JointSpanClassifier(encoder, **head)
  return SpanClassifier(encoder, **head)


def head_options(
  kind: str,
  pooling: heads.Pooling,
  num_labels: int,
  dropout: float | None,
  span_head: str = "apart",
) -> dict[str, Any]:
  """Returns the argument `head` of `build` for a kind of task.

  Args:
    kind: the kind of the task, a key of `TASK_BY_KIND`.
    pooling: the family's `POOLING`.
    num_labels: the number of classes or tags; only kinds with classes or tags
      read it.
    dropout: the dropout rate before the classifier. None means the published
      rate: 0.1 for tags, 0 for spans, else the rate of `pooling`.
    span_head: one of `SPAN_HEADS`; only spans read it.
  """
  dropout_option = {} if dropout is None else {"dropout": dropout}
  if kind == "span":
    beam = {"beam": question_head.BEAM_SIZE} if span_head == "joint" else {}
    return {"dropout": 0.0} | beam | dropout_option
  if kind == "tagging":
    return {"num_labels": num_labels, "dropout": 0.1} | dropout_option
  return {
    "pooling": pooling._asdict() | dropout_option,
    "num_labels": 1 if kind in ("regression", "choice") else num_labels,
  }


def input_keys(module: Any) -> list[str]:
  """Returns the keys of a batch that a task's module may read.

  An encoder with at most one segment does not read `segment_ids`. ELECTRA's
  head for questions always reads them, in order to find the context.
  """
  reads_segments = module.encoder.num_segments > 1
  reads_segments |= isinstance(module, JointSpanClassifier)
  return [key for key in INPUT_KEYS if reads_segments or key != "segment_ids"]


class SequenceClassifier(nn.Module):
  """A linear classifier on one vector for each row.

  It serves for classes, for a regression (one label) and for multiple choice.
  The rows of multiple choice are [b, c, l], and each of the c choices gets a
  score; the loss applies the softmax over the choices.

  The dense layer of the pooling is called "pooler" in the tree of parameters.
  This layer is the pre-trained pooler in families with `PRETRAINED_POOLER`,
  and a new layer in other families.

  Attributes:
    encoder: an encoder of any family.
    pooling: the family's `POOLING`, or a pooling that replaces it.
    num_labels: the number of classes; 1 for a regression or multiple choice.
  """

  encoder: Encoder
  pooling: heads.Pooling
  num_labels: int

  def setup(self) -> None:
    """Makes the pooler, if there is one, and the classifier."""
    encoder, pooling = self.encoder, self.pooling
    if pooling.activation is not None:
      self.pooler = heads.Pooler(
        encoder.dtype,
        encoder.kernel_init,
        pooling.activation,
        pooling.dropout if pooling.input_dropout else 0.0,
      )
    self.classifier = heads.Classifier(
      self.num_labels, pooling.dropout, encoder.kernel_init
    )

  @explicit_axes.accepted()
  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> Float[Array, "b n"]:
    """Returns float32 logits, [b, c] for choices.

    Args:
      batch: has `input_ids`, and optionally `segment_ids`, `sequence_ids` (0 at
        padding) and `position_ids`. Each is [b, l], or [b, c, l] for choices.
      train: True applies dropout, which needs a "dropout" rng.

    Raises:
      ValueError: the rows are choices, and `num_labels` is not 1.
    """
    shape = batch["input_ids"].shape
    if len(shape) == 3:
      if self.num_labels != 1:
        raise ValueError(
          f"input_ids of shape {shape} are choices: num_labels must be 1, not"
          f" {self.num_labels}."
        )
      flat_batch = {
        key: batch[key].reshape(-1, shape[2])
        for key in INPUT_KEYS
        if key in batch
      }
      return self(flat_batch, train=train).reshape(shape[:2])
    hidden, _ = encode(self.encoder, batch, train=train)
    return self.classify(hidden, batch, train)

  def classify(
    self, hidden: Float[Array, "b l d"], batch: Batch, train: bool
  ) -> Float[Array, "b n"]:
    """Returns float32 logits.

    Args:
      hidden: the encoder's last hidden states.
      batch: the batch of `__call__`, with arrays [b, l].
      train: True applies dropout.
    """
    positions = jnp.zeros((hidden.shape[0], 1), jnp.int32)
    if self.pooling.last:
      positions = positions + hidden.shape[1] - 1
      if "sequence_ids" in batch:
        is_real = batch["sequence_ids"] != 0
        indices = jnp.arange(hidden.shape[1], dtype=jnp.int32)
        positions = jnp.where(is_real, indices, 0).max(-1, keepdims=True)
    if self.pooling.activation is None:
      x = layers.gather_positions(hidden, positions)
    else:
      x = self.pooler(hidden, positions, train)
    return self.classifier(x[:, 0], train)


class TokenClassifier(nn.Module):
  """A linear classifier of every token.

  Attributes:
    encoder: an encoder of any family.
    num_labels: the number of tags.
    dropout: the rate of the dropout before the classifier.
  """

  encoder: Encoder
  num_labels: int
  dropout: float = 0.1

  def setup(self) -> None:
    """Makes the classifier."""
    self.classifier = heads.Classifier(
      self.num_labels, self.dropout, self.encoder.kernel_init
    )

  @explicit_axes.accepted()
  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> Float[Array, "b l n"]:
    """Returns float32 logits; see `SequenceClassifier.__call__`."""
    hidden, _ = encode(self.encoder, batch, train=train)
    return self.classifier(hidden, train)


class SpanClassifier(TokenClassifier):
  """BERT's head for questions: logits of an answer's start and of its end.

  This is the head for SQuAD 1.1 and 2.0 (google-research/bert run_squad.py,
  create_model). The head has no dropout before the linear map. A span at [CLS]
  means that there is no answer.
  """

  num_labels: int = 2
  dropout: float = 0.0


class JointSpanClassifier(nn.Module):
  """ELECTRA's head for questions on any encoder.

  The head itself is `question_head.JointAnswerHead`. An answer is in segment 1,
  or at the first position, which means that there is no answer
  (google-research/electra finetune/qa/qa_tasks.py, answer_mask).

  Attributes:
    encoder: an encoder of any family.
    dropout: the dropout rate on the hidden states; 0 as published.
    beam: see `question_head.JointAnswerHead`.
  """

  encoder: Encoder
  dropout: float = 0.0
  beam: int = question_head.BEAM_SIZE

  def setup(self) -> None:
    """Makes the dropout and the head."""
    self.drop = layers.Dropout(self.dropout)
    self.answers = question_head.JointAnswerHead(self.beam, self.encoder.dtype)

  @explicit_axes.accepted()
  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> Float[Array, "b s 4"]:
    """Returns the spans of `question_head.JointAnswerHead.__call__`.

    Args:
      batch: see `SequenceClassifier.__call__`. `segment_ids` are required, also
        for families without segments; they are 1 in the context.
      train: True applies dropout, which needs a "dropout" rng.

    Raises:
      ValueError: the batch has no `segment_ids`.
    """
    return self.answers(*self._inputs(batch, train))

  def logits_given_starts(
    self, batch: Batch, starts: Int[Array, "b"], *, train: bool = False
  ) -> question_head.AnswerLogits:
    """Returns the logits when the right starts are known.

    Args:
      batch: see `__call__`.
      starts: the positions of the right starts.
      train: see `__call__`.
    """
    return self.answers.logits_given_starts(*self._inputs(batch, train), starts)

  def _inputs(
    self, batch: Batch, train: bool
  ) -> tuple[Float[Array, "b l d"], Bool[Array, "b l"]]:
    """Returns hidden states, and True where an answer may begin and end."""
    if "segment_ids" not in batch:
      raise ValueError(
        "the head that finds the end of an answer by its start needs"
        " segment_ids, which are 1 in the context; the batch has"
        f" {', '.join(batch)}."
      )
    mask = batch["segment_ids"] > 0
    if "sequence_ids" in batch:
      mask &= batch["sequence_ids"] > 0
    mask |= jnp.arange(mask.shape[1])[None] == 0
    if self.encoder.num_segments < 2:
      batch = {
        key: array for key, array in batch.items() if key != "segment_ids"
      }
    hidden, _ = encode(self.encoder, batch, train=train)
    return self.drop(hidden, train), mask
