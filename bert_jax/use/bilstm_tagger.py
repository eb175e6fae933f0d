"""Trains a tagger on frozen features, as in BERT's feature-based experiment.

Devlin et al. 2019, section 5.3 and Table 7, train only "a randomly initialized
two-layer 768-dimensional BiLSTM before the classification layer", and do not
change the parameters of BERT. The paper does not give the learning rate, batch
size, epochs and dropout, so we chose the values here.
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
  """Computes a weighted mean of layers times a factor.

  Weights and factor are learnt. The weights come from a softmax (Peters et al.
  2018, equation 1). Initially the output is the mean of the layers.
  """

  @nn.compact
  def __call__(self, layers: Float[Array, "b l k d"]) -> Float[Array, "b l d"]:
    """Mixes the layers, which are on axis `k`."""
    weights = self.param("weights", nn.initializers.zeros, layers.shape[2:3])
    gamma = self.param("gamma", nn.initializers.ones, ())
    return gamma * jnp.einsum("blkd,k->bld", layers, jax.nn.softmax(weights))


class BiLstmTagger(nn.Module):
  """Applies bidirectional LSTM layers and a linear map to the tags' logits.

  Attributes:
    num_labels: the number of tags.
    hidden: the number of cells in a layer, for each direction.
    num_layers: the number of LSTM layers.
    dropout: the dropout rate on the input of each layer and of the classifier.
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
      features: the vectors of words. Several layers, [b, l, k, d], are mixed
        with learnt weights. Vectors after the last word of a row are ignored.
      lengths: the number of words in each row.
      train: True applies dropout, which needs a "dropout" rng.
    """
    drop = nn.Dropout(self.dropout, deterministic=not train)
    x: Any = features
    if features.ndim == 4:
      x = ScalarMix(name="mix")(features)
    for _ in range(self.num_layers):
      forward = nn.RNN(nn.OptimizedLSTMCell(self.hidden))
      backward = nn.RNN(nn.OptimizedLSTMCell(self.hidden))
      layer: Any = nn.Bidirectional(forward, backward)
      x = layer(drop(x), seq_lengths=lengths)
    return nn.Dense(self.num_labels)(drop(x))


class TrainingOptions(NamedTuple):
  """Says how a tagger is trained.

  Attributes:
    epochs: the number of passes over the sentences.
    batch_size: the number of sentences in a batch.
    rate: Adam's learning rate, which is constant.
    clip: the largest norm of the gradient.
    seed: the seed of parameters, order and dropout.
  """

  epochs: int = 10
  batch_size: int = 32
  rate: float = 1e-3
  clip: float = 1.0
  seed: int = 0


class TaggedSentences(NamedTuple):
  """Holds sentences with their tags.

  Attributes:
    features: float32 [words, d] or [words, layers, d] for each sentence.
    tags: int32 [words] for each sentence.
  """

  features: Sequence[np.ndarray]
  tags: Sequence[np.ndarray]


Batch = dict[str, np.ndarray]


def batches(
  sentences: TaggedSentences,
  batch_size: int,
  rng: np.random.Generator | None = None,
) -> Iterator[tuple[np.ndarray, Batch]]:
  """Yields batches of sentences with similar lengths.

  Args:
    sentences: the sentences. A sentence without words is left out.
    batch_size: the number of rows in a batch. Empty rows fill up a batch that
      has fewer sentences.
    rng: shuffles the batches, and sentences of equal length. If None, nothing
      is shuffled.

  Yields:
    The indices of the sentences, int64 [n], and their batch.
  """
  lengths = np.array([len(vectors) for vectors in sentences.features])
  sentence_order = (
    np.arange(len(lengths)) if rng is None else rng.permutation(len(lengths))
  )
  sentence_order = sentence_order[
    np.argsort(lengths[sentence_order], kind="stable")
  ]
  sentence_order = sentence_order[lengths[sentence_order] > 0]
  starts = np.arange(0, len(sentence_order), batch_size)
  for start in starts if rng is None else rng.permutation(starts):
    indices = sentence_order[start : start + batch_size]
    max_length = int(lengths[indices].max())
    length = next(
      (bucket for bucket in FEATURE_BUCKETS if bucket >= max_length), max_length
    )
    shape = sentences.features[indices[0]].shape[1:]
    features = np.zeros((batch_size, length, *shape), np.float32)
    tags = np.zeros((batch_size, length), np.int32)
    for row_index, index in enumerate(indices):
      num_words = lengths[index]
      features[row_index, :num_words] = sentences.features[index]
      tags[row_index, :num_words] = sentences.tags[index]
    word_counts = np.zeros(batch_size, np.int32)
    word_counts[: len(indices)] = lengths[indices]
    yield indices, dict(features=features, tags=tags, lengths=word_counts)


def fit(
  module: BiLstmTagger, sentences: TaggedSentences, options: TrainingOptions
) -> Iterator[tuple[Any, float]]:
  """Trains a tagger; yields its parameters and mean loss after each epoch."""
  key = jax.random.key(options.seed)
  _, first_batch = next(batches(sentences, options.batch_size))
  params = jax.jit(module.init)(
    key, first_batch["features"], first_batch["lengths"]
  )
  optimizer = optax.chain(
    optax.clip_by_global_norm(options.clip), optax.adam(options.rate)
  )

  @jax.jit
  def step(
    params: Any, state: Any, batch: dict[str, Array], step_number: int
  ) -> tuple[Any, Any, Float[Array, ""]]:
    rngs = {"dropout": jax.random.fold_in(key, step_number)}

    def mean_loss(params: Any) -> Float[Array, ""]:
      logits: Any = module.apply(
        params, batch["features"], batch["lengths"], train=True, rngs=rngs
      )
      positions = jnp.arange(logits.shape[1])[None]
      is_word = positions < batch["lengths"][:, None]
      losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, batch["tags"]
      )
      return jnp.where(is_word, losses, 0).sum() / is_word.sum()

    loss, gradients = jax.value_and_grad(mean_loss)(params)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, loss

  state, step_number = optimizer.init(params), 0
  for epoch in range(options.epochs):
    rng = np.random.default_rng([options.seed, epoch])
    losses = []
    for _, batch in batches(sentences, options.batch_size, rng):
      params, state, loss = step(params, state, batch, step_number)
      losses.append(loss)
      step_number += 1
    yield params, float(np.mean(jax.device_get(losses)))


def predict(
  module: BiLstmTagger,
  params: Any,
  sentences: TaggedSentences,
  batch_size: int = 32,
) -> list[np.ndarray]:
  """Returns the most likely tags of each sentence's words, int32 [words].

  Args:
    module: the tagger.
    params: the tagger's parameters, from `fit`.
    sentences: the sentences. Their tags are not used.
    batch_size: the number of rows in a batch.
  """
  tags = [np.zeros(0, np.int32)] * len(sentences.features)
  apply_module = jax.jit(module.apply)
  for indices, batch in batches(sentences, batch_size):
    logits = apply_module(params, batch["features"], batch["lengths"])
    best_tags = np.asarray(logits.argmax(-1), np.int32)
    for row_index, index in enumerate(indices):
      tags[index] = best_tags[row_index, : batch["lengths"][row_index]]
  return tags
