"""Defines ELMo's objective: to predict the next and the previous word.

The source is Peters et al. 2018. In training, the softmax over words may be
sampled as in TensorFlow (`draw_classes`, `sampled_losses`). Otherwise the
softmax is full, and is computed in chunks (`full_softmax_sum`).
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
  Params,
  Sums,
  build_encoder,
  check_batch,
  cross_entropy,
  sum_by_chunks,
)

# Direction -> the word that it predicts.
TARGET_OF_DIRECTION = {"forward": "next", "backward": "previous"}
KEYS = (
  "char_ids",
  "sequence_ids",
  "next_ids",
  "next_weights",
  "previous_ids",
  "previous_weights",
)
# The largest number of logits that are in memory at once, on all devices
# together: 1 GiB in float32. The logits of a published batch, 384 rows of 20
# words, would be 23 GiB, and their gradient another 23 GiB.
MAX_LOGITS = 2**28


def log_uniform_probability(
  ids: Int[Array, "*n"], vocab_size: int
) -> Float[Array, "*n"]:
  """Returns the probability of drawing a class k as a candidate.

  The probability is log((k + 2) / (k + 1)) / log(V + 1). This is Zipf's law for
  words in the order of their counts (tf.random.log_uniform_candidate_sampler).

  Args:
    ids: the classes k.
    vocab_size: V.
  """
  return jnp.log1p(1.0 / (ids + 1.0)) / math.log(vocab_size + 1.0)


@functools.cache
def num_draws_for(count: int, vocab_size: int) -> int:
  """Returns a number of draws that almost surely gives enough classes.

  The expected number of different classes among these draws is at least
  `count` plus 8 standard deviations.

  Args:
    count: the number of different classes that are needed.
    vocab_size: the number of all classes.

  Raises:
    ValueError: `count` is not in [1, vocab_size).
  """
  if not 1 <= count < vocab_size:
    raise ValueError(
      f"objective.negatives={count} must be fewer than the vocabulary's"
      f" {vocab_size} words, or 0 for the full softmax."
    )
  ids = np.arange(vocab_size)
  p = np.log1p(1.0 / (ids + 1.0)) / math.log(vocab_size + 1.0)

  def is_enough(draws: int) -> bool:
    miss_chance = np.exp(draws * np.log1p(-p))
    deviation = math.sqrt((miss_chance * (1.0 - miss_chance)).sum())
    return (1.0 - miss_chance).sum() - 8.0 * deviation >= count

  high = count
  while not is_enough(high):
    high *= 2
  low = high // 2
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if is_enough(middle) else (middle, high)
  return high


def draw_classes(
  key: Array, count: int, vocab_size: int
) -> tuple[Int[Array, "k"], Float[Array, ""]]:
  """Draws different classes, log-uniformly, until there are `count` of them.

  Args:
    key: a jax PRNG key.
    count: k, the number of classes to draw.
    vocab_size: the number of all classes.

  Returns:
    The classes, and the number of draws until the last class was found.
  """
  num_draws = num_draws_for(count, vocab_size)
  scale = math.log(vocab_size + 1.0)
  coarse, fine = jax.random.uniform(key, (2, num_draws))
  # 23 random bits are too few to reach all of 793,471 classes. So a second
  # random number spreads the draws between the steps of the first number.
  x = jnp.exp(coarse * scale) * (1.0 + fine * (scale * 2.0**-23))
  ids = jnp.clip(x.astype(jnp.int32) - 1, 0, vocab_size - 1)
  order = jnp.argsort(ids, stable=True)
  sorted_ids = ids[order]
  is_first = jnp.append(True, sorted_ids[1:] != sorted_ids[:-1])
  is_new = jnp.zeros(num_draws, bool).at[order].set(is_first)
  # For each draw, the index of its last new class so far.
  class_index = jnp.cumsum(is_new) - 1
  num_tries = (class_index < count - 1).sum() + 1
  slots = jnp.where(is_new, class_index, count)
  classes = jnp.zeros(count, jnp.int32).at[slots].set(ids, mode="drop")
  return classes, num_tries.astype(jnp.float32)


def log_expected_count(
  ids: Int[Array, "*n"], num_tries: Float[Array, ""], vocab_size: int
) -> Float[Array, "*n"]:
  """Returns the log of the expected count of a class among the candidates.

  Args:
    ids: the classes.
    num_tries: the number of draws, see `draw_classes`.
    vocab_size: the number of all classes.
  """
  p = log_uniform_probability(ids, vocab_size)
  return jnp.log(-jnp.expm1(num_tries * jnp.log1p(-p)))


def sampled_losses(
  hidden: Float[Array, "*n d"],
  labels: Int[Array, "*n"],
  label_rows: tuple[Float[Array, "*n d"], Float[Array, "*n"]],
  candidate_rows: tuple[Float[Array, "k d"], Float[Array, "k"]],
  candidates: Int[Array, "k"],
  num_tries: Float[Array, ""],
  vocab_size: int,
) -> Float[Array, "*n"]:
  """Returns the losses of the softmax over the label and the candidates.

  This is tf.nn.sampled_softmax_loss. Each logit is reduced by the log of the
  expected count of its class. A candidate that is the label itself is left out.

  Args:
    hidden: the hidden states to decode.
    labels: the true classes.
    label_rows: the labels' rows of the table, and their biases.
    candidate_rows: the candidates' rows of the table, and their biases.
    candidates: the candidates' classes.
    num_tries: the number of draws, see `draw_classes`.
    vocab_size: the number of all classes.

  Returns:
    The losses in nats, float32.
  """
  vectors, biases = label_rows
  label_logits = (hidden.astype(jnp.float32) * vectors).sum(-1) + biases
  label_logits = label_logits - log_expected_count(
    labels, num_tries, vocab_size
  )
  table, bias = candidate_rows
  logits = heads.word_logits(
    hidden,
    table,
    len(candidates),
    bias - log_expected_count(candidates, num_tries, vocab_size),
  )
  is_label = labels[..., None] == jax.lax.broadcast_to_rank(
    candidates, labels.ndim + 1
  )
  logits = jnp.where(is_label, jnp.finfo(jnp.float32).min, logits)
  log_sums = jax.nn.logsumexp(logits, axis=-1)
  return jnp.logaddexp(label_logits, log_sums) - label_logits


def full_softmax_sum(
  hidden: Float[Array, "b l d"],
  labels: Int[Array, "b l"],
  weights: Float[Array, "b l"],
  table: Float[Array, "v d"],
  bias: Float[Array, "v"],
  vocab_size: int,
) -> Float[Array, ""]:
  """Returns the weighted sum of the full softmax's losses, in nats.

  The sum is computed in chunks, see `base.sum_by_chunks`, unless all logits may
  be in memory at once.

  Args:
    hidden: the hidden states to decode.
    labels: the true classes.
    weights: the weight of each position.
    table: the rows of the softmax.
    bias: the biases of the softmax.
    vocab_size: the number of all classes; the table may have more rows.
  """
  count, length = labels.shape
  size = max(1, min(length, MAX_LOGITS // (count * table.shape[0])))

  def sum_chunk(x: Array, labels: Array, weights: Array) -> Array:
    logits = heads.word_logits(x, table, vocab_size, bias)
    return (cross_entropy(logits, labels) * weights).sum()

  if size == length:
    return sum_chunk(hidden, labels, weights)
  return sum_by_chunks(sum_chunk, size, hidden, labels, weights)


def zero_states(encoder: elmo.Elmo, batch: Batch) -> Any:
  """Returns states of zeros for the rows of a batch.

  The structure is `elmo.States`; the arrays are boxed with logical axes.

  Args:
    encoder: the encoder, which has the sizes.
    batch: the batch, arrays or shapes.
  """
  rows = batch["char_ids"].shape[0]

  def zeros(width: int) -> nn.LogicallyPartitioned:
    states = jnp.zeros((rows, width), jnp.float32)
    return nn.LogicallyPartitioned(states, ("batch", None))

  return tuple(
    tuple(
      (zeros(encoder.cell), zeros(encoder.hidden))
      for _ in range(encoder.num_layers)
    )
    for _ in TARGET_OF_DIRECTION
  )


def check_num_rows(batch: Batch, states: elmo.States) -> None:
  """Raises ValueError unless batch and states have the same number of rows."""
  rows, expected = batch["char_ids"].shape[0], states[0][0][0].shape[0]
  if rows != expected:
    raise ValueError(
      f"objective.stateful has states for {expected} rows, but a micro-batch"
      f" has {rows}; set micro_batches=1."
    )


def check_streams(batch: Batch, stateful: bool) -> None:
  """Raises ValueError if the data do not fit the option `stateful`."""
  if ("back_char_ids" in batch) != stateful:
    remedy = "=batch_size" if stateful else "=0"
    raise ValueError(
      f"objective.stateful={stateful} needs data.streams{remedy}: states must"
      " continue from batch to batch exactly if the text does."
    )


def build(
  model: dict[str, Any], negatives: int = 0, stateful: bool = False
) -> Objective:
  """Builds the bidirectional language model.

  The loss is the average of the two directions' mean losses. An evaluation has
  no states, and always uses the full softmax.

  Args:
    model: keyword arguments of the family's `build`, and `family`.
    negatives: the number of words that are drawn for each direction's softmax
      in training, besides the true word (8,192 as published); 0 means the
      full softmax.
    stateful: True starts each row with the states at the end of the same row of
      the previous batch (as published). False starts each row with zeros.

  Raises:
    ValueError: the objective does not train this family, or the vocabulary does
      not have more words than `negatives`.
  """
  _, encoder = build_encoder("elmo", model)
  module = elmo.ForPreTraining(encoder)
  size = encoder.vocab_size
  if negatives:
    num_draws_for(negatives, size)

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("elmo", batch, KEYS)
    check_streams(batch, stateful)
    return module.init(rng, batch)["params"]

  def init_carry(batch: Batch) -> Any:
    return zero_states(encoder, batch) if stateful else {}

  def weights(batch: Batch) -> Sums:
    return {
      f"{direction}_loss": batch[f"{target}_weights"].sum(dtype=jnp.float32)
      for direction, target in TARGET_OF_DIRECTION.items()
    }

  def loss(
    params: Params,
    teacher_params: Params,
    states: Any,
    batch: Batch,
    rng: Array,
    train: bool,
  ) -> tuple[Sums, Any]:
    del teacher_params
    initial_states = None
    if stateful and train:
      check_num_rows(batch, states)
      initial_states = states

    def run(module: elmo.ForPreTraining) -> tuple[Sums, elmo.States]:
      hidden, last_states = module.encode(batch, initial_states, train=train)
      if train and negatives:
        losses = _direction_losses(module, hidden, batch, rng, negatives)
        sums = [
          (direction_losses * batch[f"{target}_weights"]).sum()
          for target, direction_losses in zip(
            TARGET_OF_DIRECTION.values(), losses, strict=True
          )
        ]
      else:
        sums = []
        for target, x in zip(TARGET_OF_DIRECTION.values(), hidden, strict=True):
          labels = batch[f"{target}_ids"]
          weights = batch[f"{target}_weights"]
          table, bias = module.softmax_table()
          sums.append(full_softmax_sum(x, labels, weights, table, bias, size))
      names = (f"{direction}_loss" for direction in TARGET_OF_DIRECTION)
      return dict(zip(names, sums, strict=True)), last_states

    rngs = {"dropout": jax.random.fold_in(rng, 2)} if train else None
    sums, last_states = nn.apply(run, module)({"params": params}, rngs=rngs)
    if initial_states is None:
      return sums, states
    return sums, jax.lax.stop_gradient(last_states)

  def flops(batch: Batch) -> float:
    rows, length = batch["char_ids"].shape[:2]
    predictions = negatives + 1 if negatives else size
    return 3 * elmo.flops(encoder, rows, length, predictions)

  coefficients = {f"{direction}_loss": 0.5 for direction in TARGET_OF_DIRECTION}
  return Objective(
    init=init,
    weights=weights,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
    init_carry=init_carry,
  )


def _direction_losses(
  module: elmo.ForPreTraining,
  hidden: Sequence[Array],
  batch: Batch,
  rng: Array,
  negatives: int,
) -> list[Array]:
  """Returns the sampled losses of both directions.

  As published, each direction draws its own candidates.

  Args:
    module: the module, bound to its parameters.
    hidden: the hidden states of each direction.
    batch: the batch.
    rng: the key for the candidates.
    negatives: the number of candidates.
  """
  size = module.encoder.vocab_size
  labels = [batch[f"{target}_ids"] for target in TARGET_OF_DIRECTION.values()]
  directions = range(len(labels))
  candidates = [
    draw_classes(jax.random.fold_in(rng, direction), negatives, size)
    for direction in directions
  ]
  # Look up all rows at once, because the gradient of each look-up is as large
  # as the table.
  needed_ids = [*labels, *(ids for ids, _ in candidates)]
  rows, biases = module.softmax_rows(
    jnp.concatenate([ids.ravel() for ids in needed_ids])
  )
  ends = list(itertools.accumulate(ids.size for ids in needed_ids))[:-1]
  decoders = [
    (row.reshape(*ids.shape, -1), bias.reshape(ids.shape))
    for ids, row, bias in zip(
      needed_ids, jnp.split(rows, ends), jnp.split(biases, ends), strict=True
    )
  ]
  return [
    sampled_losses(
      hidden[direction],
      labels[direction],
      decoders[direction],
      decoders[len(labels) + direction],
      *candidates[direction],
      size,
    )
    for direction in directions
  ]
