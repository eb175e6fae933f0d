"""Defines ELMo's objective: to predict the next and the previous word.

The source is Peters et al. 2018. In training, the softmax over words may be
sampled as in TensorFlow (`draw_classes`, `sampled_losses`). Otherwise it is a
full softmax (`full_softmax_sum`).
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
# words, would be 23 GiB, and their gradient 23 GiB more.
MAX_LOGITS = 2**28


def log_uniform_probability(
  classes: Int[Array, "*n"], vocab_size: int
) -> Float[Array, "*n"]:
  """Returns the probability that one draw gives the class k.

  It is log((k + 2) / (k + 1)) / log(V + 1). If the classes are words, sorted by
  falling frequency, this is close to Zipf's law
  (tf.random.log_uniform_candidate_sampler).

  Args:
    classes: the classes k.
    vocab_size: V, the number of all classes.
  """
  return jnp.log1p(1.0 / (classes + 1.0)) / math.log(vocab_size + 1.0)


@functools.cache
def max_draws(count: int, vocab_size: int) -> int:
  """Returns a number of draws that almost surely gives `count` classes or more.

  It is the smallest number of draws for which the expected number of different
  classes is at least `count` plus 8 standard deviations.

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
  classes = np.arange(vocab_size)
  probabilities = np.log1p(1.0 / (classes + 1.0)) / math.log(vocab_size + 1.0)

  def is_enough(draws: int) -> bool:
    miss_probabilities = np.exp(draws * np.log1p(-probabilities))
    deviation = math.sqrt(
      (miss_probabilities * (1.0 - miss_probabilities)).sum()
    )
    return (1.0 - miss_probabilities).sum() - 8.0 * deviation >= count

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
    The classes in the order of their first draws, and the number of draws after
    which all of them were drawn.
  """
  max_num_draws = max_draws(count, vocab_size)
  scale = math.log(vocab_size + 1.0)
  uniform, fraction = jax.random.uniform(key, (2, max_num_draws))
  # The 23 random bits of `uniform` are too few to reach all of 793,471 classes.
  # So `fraction` spreads the draws between the possible values of `uniform`.
  values = jnp.exp(uniform * scale) * (1.0 + fraction * (scale * 2.0**-23))
  ids = jnp.clip(values.astype(jnp.int32) - 1, 0, vocab_size - 1)
  # Sort the ids, in order to find the first draw of each class.
  order = jnp.argsort(ids, stable=True)
  sorted_ids = ids[order]
  is_first = jnp.append(True, sorted_ids[1:] != sorted_ids[:-1])
  is_new = jnp.zeros(max_num_draws, bool).at[order].set(is_first)
  # For each draw, the index of the newest class up to this draw.
  class_index = jnp.cumsum(is_new) - 1
  num_tries = (class_index < count - 1).sum() + 1
  # A repeated draw gets the index `count`. Indices from `count` on are out of
  # range, and are dropped.
  indices = jnp.where(is_new, class_index, count)
  classes = jnp.zeros(count, jnp.int32).at[indices].set(ids, mode="drop")
  return classes, num_tries.astype(jnp.float32)


def log_expected_count(
  classes: Int[Array, "*n"], num_tries: Float[Array, ""], vocab_size: int
) -> Float[Array, "*n"]:
  """Returns the log of each class's expected count among the candidates.

  Args:
    classes: the classes.
    num_tries: the number of draws that `draw_classes` returns.
    vocab_size: the number of all classes.
  """
  probabilities = log_uniform_probability(classes, vocab_size)
  return jnp.log(-jnp.expm1(num_tries * jnp.log1p(-probabilities)))


def sampled_losses(
  hidden: Float[Array, "*n d"],
  labels: Int[Array, "*n"],
  label_vectors_and_biases: tuple[Float[Array, "*n d"], Float[Array, "*n"]],
  candidate_vectors_and_biases: tuple[Float[Array, "k d"], Float[Array, "k"]],
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
    label_vectors_and_biases: the softmax's vectors and biases of the labels.
    candidate_vectors_and_biases: the softmax's vectors and biases of the
      candidates.
    candidates: the candidates' classes.
    num_tries: the number of draws that `draw_classes` returns.
    vocab_size: the number of all classes.

  Returns:
    The losses in nats, float32.
  """
  label_vectors, label_biases = label_vectors_and_biases
  label_logits = (hidden.astype(jnp.float32) * label_vectors).sum(
    -1
  ) + label_biases
  label_logits = label_logits - log_expected_count(
    labels, num_tries, vocab_size
  )
  candidate_vectors, candidate_biases = candidate_vectors_and_biases
  logits = heads.word_logits(
    hidden,
    candidate_vectors,
    len(candidates),
    candidate_biases - log_expected_count(candidates, num_tries, vocab_size),
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

  If there are more than `MAX_LOGITS` logits, the sum is computed in chunks; see
  `base.sum_by_chunks`.

  Args:
    hidden: the hidden states to decode.
    labels: the true classes.
    weights: the weight of each position.
    table: the vector of each class.
    bias: the bias of each class.
    vocab_size: the number of all classes; the table may have more rows, which
      pad it.
  """
  num_rows, length = labels.shape
  chunk_size = max(1, min(length, MAX_LOGITS // (num_rows * table.shape[0])))

  def sum_chunk(x: Array, labels: Array, weights: Array) -> Array:
    logits = heads.word_logits(x, table, vocab_size, bias)
    return (cross_entropy(logits, labels) * weights).sum()

  if chunk_size == length:
    return sum_chunk(hidden, labels, weights)
  return sum_by_chunks(sum_chunk, chunk_size, hidden, labels, weights)


def zero_states(encoder: elmo.Elmo, batch: Batch) -> Any:
  """Returns states of zeros for the rows of a batch.

  The structure is `elmo.States`; the arrays are in flax's boxes with logical
  axis names.

  Args:
    encoder: the encoder, which has the sizes.
    batch: the batch, arrays or shapes.
  """
  num_rows = batch["char_ids"].shape[0]

  def zeros(width: int) -> nn.LogicallyPartitioned:
    states = jnp.zeros((num_rows, width), jnp.float32)
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
  num_rows, num_states = batch["char_ids"].shape[0], states[0][0][0].shape[0]
  if num_rows != num_states:
    raise ValueError(
      f"objective.stateful has states for {num_states} rows, but a micro-batch"
      f" has {num_rows}; set micro_batches=1."
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

  The loss is the average of the two directions' mean losses. In an evaluation
  each row starts with states of zeros, and the softmax is always full.

  Args:
    model: keyword arguments of the family's `build`, and `family`.
    negatives: the number of words that are drawn for each direction's softmax
      in training (8,192 as published). The softmax runs over these words and
      the true word. 0 means the full softmax.
    stateful: in training, True starts row i of a batch with the states at the
      end of row i of the batch before (as published). False starts each row
      with zeros.

  Raises:
    ValueError: the objective does not train this family, or the vocabulary does
      not have more words than `negatives`.
  """
  _, encoder = build_encoder("elmo", model)
  module = elmo.ForPreTraining(encoder)
  vocab_size = encoder.vocab_size
  if negatives:
    max_draws(negatives, vocab_size)

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("elmo", batch, KEYS)
    check_streams(batch, stateful)
    return module.init(rng, batch)["params"]

  def init_carry(batch: Batch) -> Any:
    return zero_states(encoder, batch) if stateful else {}

  def divisors(batch: Batch) -> Sums:
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
          sums.append(
            full_softmax_sum(x, labels, weights, table, bias, vocab_size)
          )
      names = (f"{direction}_loss" for direction in TARGET_OF_DIRECTION)
      return dict(zip(names, sums, strict=True)), last_states

    # `_direction_losses` folds 0 and 1 into `rng`, for the candidates.
    rngs = {"dropout": jax.random.fold_in(rng, 2)} if train else None
    sums, last_states = nn.apply(run, module)({"params": params}, rngs=rngs)
    if initial_states is None:
      return sums, states
    return sums, jax.lax.stop_gradient(last_states)

  def flops(batch: Batch) -> float:
    num_rows, length = batch["char_ids"].shape[:2]
    num_logits = negatives + 1 if negatives else vocab_size
    return 3 * elmo.flops(encoder, num_rows, length, num_logits)

  coefficients = {f"{direction}_loss": 0.5 for direction in TARGET_OF_DIRECTION}
  return Objective(
    init=init,
    divisors=divisors,
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
  vocab_size = module.encoder.vocab_size
  labels = [batch[f"{target}_ids"] for target in TARGET_OF_DIRECTION.values()]
  directions = range(len(labels))
  candidates = [
    draw_classes(jax.random.fold_in(rng, direction), negatives, vocab_size)
    for direction in directions
  ]
  # Look up all vectors at once, because the gradient of each look-up is as
  # large as the table.
  id_arrays = [*labels, *(ids for ids, _ in candidates)]
  vectors, biases = module.softmax_rows(
    jnp.concatenate([ids.ravel() for ids in id_arrays])
  )
  split_points = list(itertools.accumulate(ids.size for ids in id_arrays))[:-1]
  vectors_and_biases = [
    (id_vectors.reshape(*ids.shape, -1), id_biases.reshape(ids.shape))
    for ids, id_vectors, id_biases in zip(
      id_arrays,
      jnp.split(vectors, split_points),
      jnp.split(biases, split_points),
      strict=True,
    )
  ]
  # `vectors_and_biases` has the labels of each direction, and then the
  # candidates of each direction.
  return [
    sampled_losses(
      hidden[direction],
      labels[direction],
      vectors_and_biases[direction],
      vectors_and_biases[len(labels) + direction],
      *candidates[direction],
      vocab_size,
    )
    for direction in directions
  ]
