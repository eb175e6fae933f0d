"""ELMo's objective: the words after and before (Peters et al. 2018).

The softmax over words is sampled in training as TensorFlow samples it
(`draw`, `sampled_losses`), or full and made in parts (`full_sum`).
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bert_jax.models import elmo, heads
from bert_jax.objectives.base import (
  Batch,
  Objective,
  build_encoder,
  check_batch,
  cross_entropy,
  sum_by_parts,
)

# Direction -> the words that it predicts.
TARGETS = {"forward": "next", "backward": "previous"}
KEYS = ("char_ids", "sequence_ids")
KEYS += tuple(f"{t}_{k}" for t in TARGETS.values() for k in ("ids", "weights"))
# Number of logits that are made at once on all devices: float32, 1 GiB. The
# logits of a published batch, 384 rows of 20 words, would be 23 GiB, and as
# much again for their gradient.
LOGITS = 2**28


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
  slots = jnp.where(new, place, count)
  chosen = jnp.zeros(count, jnp.int32).at[slots].set(ids, mode="drop")
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
    hidden: the hidden states to decode.
    labels: the right classes.
    rows: the labels' rows of the table and biases.
    sampled: the candidates' rows of the table and biases.
    ids: the candidates.
    tries: the number of draws that the candidates took, see `draw`.
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


def first_states(encoder: elmo.Elmo, batch: Batch) -> elmo.States:
  """States of zeros for the rows of a batch, boxed with logical axes."""
  rows = batch["char_ids"].shape[0]

  def zeros(width):
    states = jnp.zeros((rows, width), jnp.float32)
    return nn.LogicallyPartitioned(states, ("batch", None))

  def direction():
    layers = range(encoder.num_layers)
    return tuple((zeros(encoder.cell), zeros(encoder.hidden)) for _ in layers)

  return tuple(direction() for _ in TARGETS)


def check_rows(batch: Batch, states: elmo.States) -> None:
  """Raises ValueError unless a batch has a row for every state."""
  rows, expected = batch["char_ids"].shape[0], states[0][0][0].shape[0]
  if rows != expected:
    raise ValueError(
      f"objective.stateful goes on with {expected} rows, and a micro-batch has"
      f" {rows}; set micro_batches=1."
    )


def check_streams(batch: Batch, stateful: bool) -> None:
  """Raises ValueError if the data are not of the kind that states need."""
  if ("back_char_ids" in batch) != stateful:
    remedy = "=batch_size" if stateful else "=0"
    raise ValueError(
      f"objective.stateful={stateful} needs data.streams{remedy}: a text goes"
      " on from batch to batch where states do."
    )


def build(
  model: dict[str, Any], negatives: int = 0, stateful: bool = False
) -> Objective:
  """Bidirectional language model: the average of both directions' means.

  Evaluation is without states, and always with the full softmax.

  Args:
    model: keyword arguments of the family's `build`, with `family`.
    negatives: words that each direction's softmax is sampled from in training,
      besides the right one (8,192 as published); 0 for the full softmax.
    stateful: go on from batch to batch with the states that a row left (as
      published); else every row begins with zeros.

  Raises:
    ValueError: another family, or more negatives than words.
  """
  _, encoder = build_encoder("elmo", model)
  module = elmo.ForPreTraining(encoder)
  size = encoder.vocab_size
  if negatives:
    draws_for(negatives, size)

  def init(rng, batch):
    check_batch("elmo", batch, KEYS)
    check_streams(batch, stateful)
    return module.init(rng, batch)["params"]

  def carry(batch):
    return first_states(encoder, batch) if stateful else {}

  def weights(batch):
    return {
      f"{way}_loss": batch[f"{target}_weights"].sum(dtype=jnp.float32)
      for way, target in TARGETS.items()
    }

  def loss(params, frozen, states, batch, rng, train):
    del frozen
    before = None
    if stateful and train:
      check_rows(batch, states)
      before = states

    def run(module):
      hidden, after = module.encode(batch, before, train=train)
      if train and negatives:
        losses = _sampled(module, hidden, batch, rng, negatives)
        return {
          f"{way}_loss": (some * batch[f"{target}_weights"]).sum()
          for (way, target), some in zip(TARGETS.items(), losses, strict=True)
        }, after
      return {
        f"{way}_loss": full_sum(
          x,
          batch[f"{target}_ids"],
          batch[f"{target}_weights"],
          *module.table(),
          size,
        )
        for (way, target), x in zip(TARGETS.items(), hidden, strict=True)
      }, after

    rngs = {"dropout": jax.random.fold_in(rng, 2)} if train else None
    sums, after = nn.apply(run, module)({"params": params}, rngs=rngs)
    return sums, jax.lax.stop_gradient(after) if before else states

  def flops(batch):
    rows, length = batch["char_ids"].shape[:2]
    predictions = negatives + 1 if negatives else size
    return 3 * elmo.flops(encoder, rows, length, predictions)

  coefficients = {f"{way}_loss": 0.5 for way in TARGETS}
  return Objective(
    init=init,
    weights=weights,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
    carry=carry,
  )


def _sampled(
  module: elmo.ForPreTraining,
  hidden: Sequence[Array],
  batch: Batch,
  rng: Array,
  negatives: int,
) -> list[Array]:
  """Losses of both directions, with candidates of each, as published."""
  size = module.encoder.vocab_size
  labels = [batch[f"{target}_ids"] for target in TARGETS.values()]
  drawn = [
    draw(jax.random.fold_in(rng, way), negatives, size)
    for way in range(len(labels))
  ]
  # All at once: the gradient of each look-up is as large as the table.
  wanted = [*labels, *(ids for ids, _ in drawn)]
  rows, biases = module.rows(jnp.concatenate([ids.ravel() for ids in wanted]))
  ends = list(itertools.accumulate(ids.size for ids in wanted))[:-1]
  decoders = [
    (row.reshape(*ids.shape, -1), bias.reshape(ids.shape))
    for ids, row, bias in zip(
      wanted, jnp.split(rows, ends), jnp.split(biases, ends), strict=True
    )
  ]
  ways = len(labels)
  return [
    sampled_losses(
      hidden[way],
      labels[way],
      decoders[way],
      decoders[ways + way],
      *drawn[way],
      size,
    )
    for way in range(ways)
  ]
