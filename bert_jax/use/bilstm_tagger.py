"""A tagger on frozen features: BERT's feature-based experiment.

Devlin et al. 2019, section 5.3 and Table 7: "a randomly initialized two-layer
768-dimensional BiLSTM before the classification layer", and no parameter of
BERT is trained. The paper gives neither rate, batch, epochs nor dropout; those
here are ours.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bert_jax.tasks.bucket_lengths import FEATURE_BUCKETS


class ScalarMix(nn.Module):
  """Layers times a softmax of weights, times a factor, both learnt.

  Peters et al. 2018, equation 1. At the start it is the layers' mean.
  """

  @nn.compact
  def __call__(self, layers: Float[Array, "b l k d"]) -> Float[Array, "b l d"]:
    weights = self.param("weights", nn.initializers.zeros, layers.shape[2:3])
    gamma = self.param("gamma", nn.initializers.ones, ())
    return gamma * jnp.einsum("blkd,k->bld", layers, jax.nn.softmax(weights))


class BiLstmTagger(nn.Module):
  """LSTM layers of both directions and a linear map to tags.

  Attributes:
    num_labels: tags.
    hidden: cells of a layer and direction.
    num_layers: the number of LSTM layers.
    dropout: on the input of each layer and of the classifier.
  """

  num_labels: int
  hidden: int = 768
  num_layers: int = 2
  dropout: float = 0.5

  @nn.compact
  def __call__(
    self,
    features: Float[Array, "b l *k d"],
    lengths: Int[Array, "b"],
    *,
    train: bool = False,
  ) -> Float[Array, "b l n"]:
    """Returns float32 logits.

    Args:
      features: of words, anything after the last of each row; of several
        layers, [b, l, k, d], a learnt mix is taken.
      lengths: words of each row.
      train: apply dropout; needs a "dropout" rng.
    """
    drop = nn.Dropout(self.dropout, deterministic=not train)
    x = features if features.ndim == 3 else ScalarMix(name="mix")(features)
    for _ in range(self.num_layers):
      ways = (nn.RNN(nn.OptimizedLSTMCell(self.hidden)) for _ in range(2))
      x = nn.Bidirectional(*ways)(drop(x), seq_lengths=lengths)
    return nn.Dense(self.num_labels)(drop(x))


class Recipe(NamedTuple):
  """How a tagger is trained.

  Attributes:
    epochs: over the sentences.
    batch_size: sentences.
    rate: Adam's, constant.
    clip: the largest norm of the gradient.
    seed: the seed of parameters, order and dropout.
  """

  epochs: int = 10
  batch_size: int = 32
  rate: float = 1e-3
  clip: float = 1.0
  seed: int = 0


class Sentences(NamedTuple):
  """For each sentence features float32 [words, (k,) d], tags int32 [words]."""

  features: Sequence[np.ndarray]
  tags: Sequence[np.ndarray]


Batch = dict[str, np.ndarray]


def batches(
  data: Sentences, size: int, rng: np.random.Generator | None = None
) -> Iterator[tuple[np.ndarray, Batch]]:
  """Yields numbers of sentences and their batch, sentences of like length.

  Args:
    data: the sentences; those without words are left out.
    size: rows of a batch; the last one is filled up.
    rng: for the order of batches and of sentences as long; None for none.
  """
  lengths = np.array([len(x) for x in data.features])
  order = (
    np.arange(len(lengths)) if rng is None else rng.permutation(len(lengths))
  )
  order = order[np.argsort(lengths[order], kind="stable")]
  order = order[lengths[order] > 0]
  starts = np.arange(0, len(order), size)
  for start in starts if rng is None else rng.permutation(starts):
    batch_numbers = order[start : start + size]
    longest = int(lengths[batch_numbers].max())
    length = next((n for n in FEATURE_BUCKETS if n >= longest), longest)
    shape = data.features[batch_numbers[0]].shape[1:]
    features = np.zeros((size, length, *shape), np.float32)
    tags = np.zeros((size, length), np.int32)
    for row, number in enumerate(batch_numbers):
      count = lengths[number]
      features[row, :count] = data.features[number]
      tags[row, :count] = data.tags[number]
    counts = np.zeros(size, np.int32)
    counts[: len(batch_numbers)] = lengths[batch_numbers]
    yield batch_numbers, dict(features=features, tags=tags, lengths=counts)


def fit(
  module: BiLstmTagger, data: Sentences, recipe: Recipe
) -> Iterator[tuple[Any, float]]:
  """Trains a tagger; yields its parameters and mean loss after each epoch."""
  key = jax.random.key(recipe.seed)
  _, first = next(batches(data, recipe.batch_size))
  params = jax.jit(module.init)(key, first["features"], first["lengths"])
  optimizer = optax.chain(
    optax.clip_by_global_norm(recipe.clip), optax.adam(recipe.rate)
  )

  @jax.jit
  def step(params, state, batch, number):
    rngs = {"dropout": jax.random.fold_in(key, number)}

    def loss(params):
      inputs = batch["features"], batch["lengths"]
      logits = module.apply(params, *inputs, train=True, rngs=rngs)
      index = jnp.arange(logits.shape[1])[None]
      real = index < batch["lengths"][:, None]
      each = optax.softmax_cross_entropy_with_integer_labels(
        logits, batch["tags"]
      )
      return jnp.where(real, each, 0).sum() / real.sum()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, value

  state, number = optimizer.init(params), 0
  for epoch in range(recipe.epochs):
    rng = np.random.default_rng([recipe.seed, epoch])
    losses = []
    for _, batch in batches(data, recipe.batch_size, rng):
      params, state, value = step(params, state, batch, number)
      losses.append(value)
      number += 1
    yield params, float(np.mean(jax.device_get(losses)))


def predict(
  module: BiLstmTagger, params: Any, data: Sentences, size: int = 32
) -> list[np.ndarray]:
  """The likeliest tag of each word, int32 [words] of each sentence."""
  result = [np.zeros(0, np.int32)] * len(data.features)
  run = jax.jit(module.apply)
  for numbers, batch in batches(data, size):
    logits = run(params, batch["features"], batch["lengths"])
    best = np.asarray(logits.argmax(-1), np.int32)
    for row, number in enumerate(numbers):
      result[number] = best[row, : batch["lengths"][row]]
  return result
