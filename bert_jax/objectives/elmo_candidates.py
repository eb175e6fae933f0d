"""Classes that a softmax is sampled from, as TensorFlow draws them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def log_uniform(ids: Int[Array, "*n"], vocab_size: int) -> Float[Array, "*n"]:
  """The probability of a class under the candidates' distribution.

  log((k + 2) / (k + 1)) / log(V + 1): Zipf's law for words by their count
  (tf.random.log_uniform_candidate_sampler).
  """
  return jnp.log1p(1.0 / (ids + 1.0)) / math.log(vocab_size + 1.0)


@functools.cache
def draws_for(count: int, vocab_size: int) -> int:
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


def draw(
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
  number = draws_for(count, vocab_size)
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
