"""The loss of ELECTRA's head for questions."""

import jax
import jax.numpy as jnp

from bert_jax.models.question_head import Given
from bert_jax.objectives.base import Batch, Sums, cross_entropy

# google-research/electra configure_finetuning.py, answerable_weight.
NULL_WEIGHT = 0.5


def joint_sums(given: Given, batch: Batch) -> Sums:
  """Weighted sums `task_loss` and `task_accuracy`.

  In nats: the mean of the cross-entropies of the start and of the end given the
  right start, and half the binary one of no answer (google-research/electra
  finetune/qa/qa_tasks.py, get_prediction_module). A window without the answer
  has start and end at [CLS], but has no answer only if its question has none.
  Right is a row whose start is, and the end given it.

  Args:
    given: logits, with the starts of `labels`.
    batch: `labels` int32 [b, 2], `label_weights` [b], `unanswerable` float32
      [b], 1 for a question without an answer.
  """
  (start, end), weights = batch["labels"].T, batch["label_weights"]
  loss = (cross_entropy(given.start, start) + cross_entropy(given.end, end)) / 2
  null = jax.nn.softplus(given.null) - given.null * batch["unanswerable"]
  right = given.start.argmax(-1) == start
  right &= given.end.argmax(-1) == end
  return {
    "task_loss": ((loss + NULL_WEIGHT * null) * weights).sum(),
    "task_accuracy": (right.astype(jnp.float32) * weights).sum(),
  }
