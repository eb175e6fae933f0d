"""Softmax over many classes: sampled for training, in parts for the rest."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import heads
from bert_jax.objectives.base import cross_entropy, sum_by_parts
from bert_jax.objectives.elmo_candidates import log_expected

# Logits that are there at once, of all devices: float32, 1 GiB. Of a published
# batch, 384 rows of 20 words, they would be 23 GiB, and as much again for
# their gradient.
LOGITS = 2**28


def sampled_losses(
  hidden: Float[Array, "*n d"],
  labels: Int[Array, "*n"],
  rows: tuple[Float[Array, "*n d"], Float[Array, "*n"]],
  sampled: tuple[Float[Array, "k d"], Float[Array, "k"]],
  ids: Int[Array, "k"],
  tries: Float[Array, ""],
  vocab_size: int,
) -> Float[Array, "*n"]:
  """tf.nn.sampled_softmax_loss: the softmax over the label and candidates.

  The log of the expected count is taken off each logit; a candidate that is the
  label itself is left out.

  Args:
    hidden: what is decoded.
    labels: the right classes.
    rows: of the labels, table's row and bias.
    sampled: of the candidates, the same.
    ids: the candidates.
    tries: of `candidates.draw`.
    vocab_size: V.

  Returns:
    Nats, float32.
  """
  vectors, biases = rows
  true = (hidden.astype(jnp.float32) * vectors).sum(-1) + biases
  true = true - log_expected(labels, tries, vocab_size)
  table, bias = sampled
  negative = heads.decode(
    hidden, table, len(ids), bias - log_expected(ids, tries, vocab_size)
  )
  hits = labels[..., None] == ids
  negative = jnp.where(hits, jnp.finfo(jnp.float32).min, negative)
  return jnp.logaddexp(true, jax.nn.logsumexp(negative, axis=-1)) - true


def full_sum(
  hidden: Float[Array, "b l d"],
  labels: Int[Array, "b l"],
  weights: Float[Array, "b l"],
  table: Float[Array, "v d"],
  bias: Float[Array, "v"],
  vocab_size: int,
) -> Float[Array, ""]:
  """Weighted sum of the full softmax's losses, in nats, part by part.

  The backward pass makes a part's logits again.
  """
  count, length = labels.shape
  size = max(1, min(length, LOGITS // (count * table.shape[0])))

  def sum_of(x, labels, weights):
    logits = heads.decode(x, table, vocab_size, bias)
    return (cross_entropy(logits, labels) * weights).sum()

  if size == length:
    return sum_of(hidden, labels, weights)
  return sum_by_parts(sum_of, size, hidden, labels, weights)
