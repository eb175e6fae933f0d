"""An encoder with the head of a task: classes, tags, spans, choices."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models import heads, layers, question_head
from bert_jax.models.encoder import INPUTS, encode

Batch = dict[str, Array]
# Kind of a task -> the name of its module in a converted model's config.
NAMES = {
  "classification": "sequence_classification",
  "regression": "sequence_classification",
  "multi_label": "sequence_classification",
  "choice": "multiple_choice",
  "tagging": "token_classification",
  "span": "span",
}
# Heads of spans: BERT's, or ELECTRA's.
SPAN_HEADS = ("apart", "joint")


def build(
  name: str, encoder: nn.Module, head: Mapping[str, Any]
) -> (
  "SequenceClassifier | TokenClassifier | SpanClassifier | JointSpanClassifier"
):
  """The module of a task.

  Args:
    name: a value of `NAMES`.
    encoder: an encoder of any family.
    head: keyword arguments of the module; `pooling` is a dict of the fields of
      `heads.Pooling`. A `beam` asks for ELECTRA's head for spans.
  """
  head = dict(head)
  if "pooling" in head:
    pooling = heads.Pooling(**head.pop("pooling"))
    return SequenceClassifier(encoder, pooling, **head)
  if name != "span":
    return TokenClassifier(encoder, **head)
  module = JointSpanClassifier if "beam" in head else SpanClassifier
  return module(encoder, **head)


def head_of(
  kind: str,
  pooling: heads.Pooling,
  num_labels: int,
  dropout: float | None,
  span_head: str = "apart",
) -> dict[str, Any]:
  """The `head` of a kind of task, a key of `NAMES`, for `build`.

  Args:
    kind: the kind of the task.
    pooling: the family's `POOLING`.
    num_labels: number of classes or tags; not read for the other kinds.
    dropout: rate before the classifier; None for the published rate, which is
      the pooling's, 0.1 for tags and 0 for spans.
    span_head: one of `SPAN_HEADS`; read for spans only.
  """
  rate = {} if dropout is None else {"dropout": dropout}
  if kind == "span":
    beam = {"beam": question_head.BEAM} if span_head == "joint" else {}
    return {"dropout": 0.0} | beam | rate
  if kind == "tagging":
    return {"num_labels": num_labels, "dropout": 0.1} | rate
  return {
    "pooling": pooling._asdict() | rate,
    "num_labels": 1 if kind in ("regression", "choice") else num_labels,
  }


def input_keys(module: Any) -> list[str]:
  """Returns the keys of a batch that a module with an encoder may take.

  An encoder of one segment takes no `segment_ids`; ELECTRA's head for questions
  finds the context by them, whatever its encoder.
  """
  segments = module.encoder.num_segments > 1
  segments |= isinstance(module, JointSpanClassifier)
  return [key for key in INPUTS if segments or key != "segment_ids"]


class SequenceClassifier(nn.Module):
  """One vector a row and a linear classifier, as the family publishes it.

  Classes, a regression (one label), or multiple choice: rows [b, c, l] of c
  choices get a score each; the softmax over them is the loss's.

  The dense layer of BERT and ALBERT is the pre-trained pooler and has its name
  in the tree; that of the others, of the same name, is new.

  Attributes:
    encoder: an encoder of any family.
    pooling: the family's `POOLING`, or another.
    num_labels: number of classes; 1 for a regression or multiple choice.
  """

  encoder: Any
  pooling: heads.Pooling
  num_labels: int

  def setup(self):
    e, p = self.encoder, self.pooling
    if p.activation is not None:
      self.pooler = heads.Pooler(
        e.dtype,
        e.kernel_init,
        p.activation,
        p.dropout if p.input_dropout else 0.0,
      )
    self.classifier = heads.Classifier(
      self.num_labels, p.dropout, e.kernel_init
    )

  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> Float[Array, "b n"]:
    """Returns float32 logits, [b, c] for choices.

    Args:
      batch: `input_ids`; optionally `segment_ids`, `sequence_ids` (0 at
        padding), `position_ids`: [b, l] or [b, c, l].
      train: apply dropout; needs a "dropout" rng.

    Raises:
      ValueError: choices for a classifier of several labels.
    """
    shape = batch["input_ids"].shape
    if len(shape) == 3:
      if self.num_labels != 1:
        raise ValueError(
          f"input_ids of shape {shape} are choices: num_labels must be 1, not"
          f" {self.num_labels}."
        )
      flat = {k: batch[k].reshape(-1, shape[2]) for k in INPUTS if k in batch}
      return self(flat, train=train).reshape(shape[:2])
    hidden, _ = encode(self.encoder, batch, train=train)
    return self.classify(hidden, batch, train)

  def classify(
    self, hidden: Float[Array, "b l d"], batch: Batch, train: bool
  ) -> Float[Array, "b n"]:
    """Float32 logits from the encoder's hidden states of rows [b, l]."""
    positions = jnp.zeros((hidden.shape[0], 1), jnp.int32)
    if self.pooling.last:
      positions = positions + hidden.shape[1] - 1
      if "sequence_ids" in batch:
        real = batch["sequence_ids"] != 0
        index = jnp.arange(hidden.shape[1], dtype=jnp.int32)
        positions = jnp.where(real, index, 0).max(-1, keepdims=True)
    if self.pooling.activation is None:
      x = layers.gather_positions(hidden, positions)
    else:
      x = self.pooler(hidden, positions, train)
    return self.classifier(x[:, 0], train)


class TokenClassifier(nn.Module):
  """Logits of tags at every position: float32 [b, l, n]."""

  encoder: Any
  num_labels: int
  dropout: float = 0.1

  def setup(self):
    self.classifier = heads.Classifier(
      self.num_labels, self.dropout, self.encoder.kernel_init
    )

  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> Float[Array, "b l n"]:
    """See `SequenceClassifier.__call__` for the batch."""
    hidden, _ = encode(self.encoder, batch, train=train)
    return self.classifier(hidden, train)


class SpanClassifier(TokenClassifier):
  """Logits of an answer's start and end: float32 [b, l, 2].

  SQuAD 1.1 and 2.0 (google-research/bert run_squad.py, create_model): no
  dropout before the linear map; no answer is the span at [CLS].
  """

  num_labels: int = 2
  dropout: float = 0.0


class JointSpanClassifier(nn.Module):
  """ELECTRA's head for questions on any encoder.

  The head itself is `question_head.JointAnswers`. An answer lies in segment
  1; the first position, which stands for no answer, counts as well
  (google-research/electra finetune/qa/qa_tasks.py, answer_mask).

  Attributes:
    encoder: an encoder of any family.
    dropout: rate on the hidden states; 0 as published.
    beam: see `question_head.JointAnswers`.
  """

  encoder: Any
  dropout: float = 0.0
  beam: int = question_head.BEAM

  def setup(self):
    self.drop = layers.Dropout(self.dropout)
    self.answers = question_head.JointAnswers(self.beam, self.encoder.dtype)

  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> Float[Array, "b s 4"]:
    """The spans of `question_head.JointAnswers.__call__`.

    Args:
      batch: see `SequenceClassifier.__call__`; with `segment_ids`, 1 in the
        context, also for families without segments.
      train: apply dropout; needs a "dropout" rng.

    Raises:
      ValueError: no `segment_ids`.
    """
    return self.answers(*self._inputs(batch, train))

  def logits_given_starts(
    self, batch: Batch, starts: Int[Array, "b"], *, train: bool = False
  ) -> question_head.AnswerLogits:
    """Logits for known right starts; other arguments as of `__call__`."""
    return self.answers.logits_given_starts(*self._inputs(batch, train), starts)

  def _inputs(
    self, batch: Batch, train: bool
  ) -> tuple[Float[Array, "b l d"], Bool[Array, "b l"]]:
    if "segment_ids" not in batch:
      raise ValueError(
        "the head that finds the end of an answer by its start needs"
        " segment_ids, 1 in the context; the batch has"
        f" {', '.join(batch)}."
      )
    mask = batch["segment_ids"] > 0
    if "sequence_ids" in batch:
      mask &= batch["sequence_ids"] > 0
    mask |= jnp.arange(mask.shape[1])[None] == 0
    if self.encoder.num_segments < 2:
      batch = {k: x for k, x in batch.items() if k != "segment_ids"}
    hidden, _ = encode(self.encoder, batch, train=train)
    return self.drop(hidden, train), mask
