"""Softmax over many classes: sampled for training, in parts for the rest."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bert_jax.models import heads
from bert_jax.objectives.base import cross_entropy

# Logits that are there at once, of all devices: float32, 1 GiB. Of a published
# batch, 384 rows of 20 words, they would be 23 GiB, and as much again for
# their gradient.
LOGITS = 2**28


def log_uniform(ids: Int[Array, "*n"], vocab_size: int) -> Float[Array, "*n"]:
  """The probability of a class under the candidates' distribution.

  log((k + 2) / (k + 1)) / log(V + 1): Zipf's law for words by their count
  (tf.random.log_uniform_candidate_sampler).
  """
  return jnp.log1p(1.0 / (ids + 1.0)) / math.log(vocab_size + 1.0)


@functools.cache
def draws(count: int, vocab_size: int) -> int:
  """Draws that hold `count` different classes but by a miracle.

  Raises:
    ValueError: there are not as many classes.
  """
  if not 1 <= count < vocab_size:
    raise ValueError(
      f"objective.negatives={count}: 0 for the full softmax, or fewer than the"
      f" vocabulary's {vocab_size} words."
    )
  ids = np.arange(vocab_size)
  p = np.log1p(1.0 / (ids + 1.0)) / math.log(vocab_size + 1.0)

  def enough(number):
    missed = np.exp(number * np.log1p(-p))
    spread = math.sqrt((missed * (1.0 - missed)).sum())
    return (1.0 - missed).sum() - 8.0 * spread >= count

  high = count
  while not enough(high):
    high *= 2
  low = high // 2
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if enough(middle) else (middle, high)
  return high


def candidates(
  key: Array, count: int, vocab_size: int
) -> tuple[Int[Array, "k"], Float[Array, ""]]:
  """Draws different classes, log-uniformly, until there are `count` of them.

  Args:
    key: a jax PRNG key.
    count: k.
    vocab_size: V.

  Returns:
    The classes and the number of draws that it took.
  """
  number = draws(count, vocab_size)
  scale = math.log(vocab_size + 1.0)
  coarse, fine = jax.random.uniform(key, (2, number))
  # 23 random bits are too few to reach every one of 793,471 classes: the second
  # number spreads the draws between the steps of the first.
  x = jnp.exp(coarse * scale) * (1.0 + fine * (scale * 2.0**-23))
  ids = jnp.clip(x.astype(jnp.int32) - 1, 0, vocab_size - 1)
  order = jnp.argsort(ids, stable=True)
  ordered = ids[order]
  first = jnp.append(True, ordered[1:] != ordered[:-1])
  new = jnp.zeros(number, bool).at[order].set(first)
  place = jnp.cumsum(new) - 1
  tries = (place < count - 1).sum() + 1
  where = jnp.where(new, place, count)
  chosen = jnp.zeros(count, jnp.int32).at[where].set(ids, mode="drop")
  return chosen, tries.astype(jnp.float32)


def log_expected(
  ids: Int[Array, "*n"], tries: Float[Array, ""], vocab_size: int
) -> Float[Array, "*n"]:
  """Log of how often a class is expected among the candidates."""
  p = log_uniform(ids, vocab_size)
  return jnp.log(-jnp.expm1(tries * jnp.log1p(-p)))


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
    tries: of `candidates`.
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
  parts = -(-length // size)

  def split(x):
    more = [(0, 0), (0, parts * size - length)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, more).reshape(count, parts, size, *x.shape[2:])
    return x.swapaxes(0, 1)

  total, _ = jax.lax.scan(
    # In a loop, what is made again is not merged with what was made first.
    jax.checkpoint(
      lambda total, part: (total + sum_of(*part), None), prevent_cse=False
    ),
    jnp.zeros((), jnp.float32),
    tuple(split(x) for x in (hidden, labels, weights)),
  )
  return total
