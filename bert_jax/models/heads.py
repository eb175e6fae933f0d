"""Heads on an encoder's hidden states."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import layers

# Of SpanBERT's boundary head: positions in a span that have a vector, and its
# width (facebookresearch/SpanBERT pretraining/README.md, --max-pair-targets and
# --pair-positional-embedding-size; Joshi et al. 2020, section 4.2).
SPAN_TARGETS, SPAN_WIDTH = 15, 200


class MaskedLanguageModel(nn.Module):
  """Dense, activation, LayerNorm, the tied decoder and its own output bias.

  Looks at the masked positions only; logits of all positions, [b, l, v], are
  never made (google-research/bert run_pretraining.py, get_masked_lm_output).

  Attributes:
    vocab_size: pieces. Rows of the table beyond it get the lowest float32 as
      logits: probability 0, no gradient, never the argmax.
    activation: between the dense layer and the LayerNorm.
    norm_epsilon: of the LayerNorm.
    dtype: of the computation.
    kernel_init: of the dense layer.
  """

  vocab_size: int
  activation: str
  norm_epsilon: float
  dtype: jnp.dtype
  kernel_init: layers.Init

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "b l d"],
    positions: Int[Array, "b m"],
    embedding: Float[Array, "v e"],
  ) -> Float[Array, "b m v"]:
    """Returns float32 logits; `embedding` is the table of word embeddings."""
    x = layers.gather_positions(hidden, positions)
    x = layers.Dense(
      (embedding.shape[1],),
      ("embed", "embed_out"),
      self.dtype,
      self.kernel_init,
      name="dense",
    )(x)
    x = layers.activation(self.activation)(x)
    x = layers.layer_norm(self.norm_epsilon, self.dtype, "norm")(x)
    return decode(x, embedding, self.vocab_size, output_bias(self, embedding))


class SpanBoundary(nn.Module):
  """SpanBERT's head: a token from what stands on both sides of its span.

  Of the two hidden states and a vector for the token's place in the span: twice
  dense, activation, LayerNorm; the tied decoder and its own output bias (Joshi
  et al. 2020, section 3.2; facebookresearch/SpanBERT
  pretraining/fairseq/models/pair_bert.py, BertPairTargetPredictionHead).

  Attributes:
    vocab_size: and the others: see `MaskedLanguageModel`.
  """

  vocab_size: int
  activation: str
  norm_epsilon: float
  dtype: jnp.dtype
  kernel_init: layers.Init

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "b l d"],
    positions: Int[Array, "b m"],
    spans: Int[Array, "b m 2"],
    embedding: Float[Array, "v e"],
  ) -> Float[Array, "b m v"]:
    """Returns float32 logits.

    Args:
      hidden: of the encoder.
      positions: of the tokens. One that stands further from the left side than
        `SPAN_TARGETS` gets the last one's vector; give it weight 0.
      spans: positions just outside of each token's span, left and right.
      embedding: the table of word embeddings.
    """
    rows, count = positions.shape
    ends = layers.gather_positions(hidden, spans.reshape(rows, 2 * count))
    place = jnp.clip(positions - spans[..., 0] - 1, 0, SPAN_TARGETS - 1)
    table = layers.Embedding(
      SPAN_TARGETS,
      SPAN_WIDTH,
      self.kernel_init,
      (None, None),
      one_hot=True,
      name="position",
    )
    x = jnp.concatenate(
      [ends.reshape(rows, count, -1), table(place).astype(ends.dtype)], axis=-1
    )
    for number in (1, 2):
      x = layers.Dense(
        (embedding.shape[1],),
        (None, "embed") if number == 1 else ("embed", "embed_out"),
        self.dtype,
        self.kernel_init,
        name=f"dense_{number}",
      )(x)
      x = layers.activation(self.activation)(x)
      norm = layers.layer_norm(self.norm_epsilon, self.dtype, f"norm_{number}")
      x = norm(x)
    return decode(x, embedding, self.vocab_size, output_bias(self, embedding))


def output_bias(
  module: nn.Module, embedding: Float[Array, "v e"]
) -> Float[Array, "v"]:
  """A bias for each row of the table, which the decoder adds to its logits."""
  return module.param(
    "bias",
    nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",)),
    (embedding.shape[0],),
    jnp.float32,
  )


def decode(
  x: Float[Array, "b m e"],
  embedding: Float[Array, "v e"],
  vocab_size: int,
  bias: Float[Array, "v"] | None = None,
) -> Float[Array, "b m v"]:
  """Float32 logits of the pieces, by the table of word embeddings.

  Rows of the table beyond `vocab_size` get the lowest float32.
  """
  # Without it the partitioner (jax 0.10) permutes rows of the gradient on a
  # mesh of three axes with one row a device.
  x = nn.with_logical_constraint(x, ("batch", None, "embed_activation"))
  logits = layers.float32_einsum("bme,ve->bmv", x, embedding.astype(x.dtype))
  logits = nn.with_logical_constraint(logits, ("batch", None, "vocab"))
  if bias is not None:
    logits = logits + bias
  if embedding.shape[0] == vocab_size:
    return logits
  ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  return jnp.where(ids < vocab_size, logits, jnp.finfo(jnp.float32).min)


class Pooling(NamedTuple):
  """How a family makes one vector of a sequence for a classifier.

  Attributes:
    activation: of a dense layer on the picked vector; None for no such layer.
    last: pick the last real position, not the first.
    input_dropout: drop before the dense layer as well.
    dropout: before the classifier.
  """

  activation: str | None
  last: bool = False
  input_dropout: bool = False
  dropout: float = 0.1


class Pooler(nn.Module):
  """Dense and activation on the vectors at some positions, [CLS] mostly."""

  dtype: jnp.dtype
  kernel_init: layers.Init
  activation: str = "tanh"
  dropout: float = 0.0

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "b l d"],
    positions: Int[Array, "b s"],
    train: bool = False,
  ) -> Float[Array, "b s d"]:
    x = layers.gather_positions(hidden, positions)
    x = layers.Dropout(self.dropout)(x, train)
    dense = layers.Dense(
      (hidden.shape[-1],),
      ("embed", "embed_out"),
      self.dtype,
      self.kernel_init,
      name="dense",
    )
    return layers.activation(self.activation)(dense(x))


class Classifier(nn.Module):
  """Dropout and a linear map to float32 logits."""

  num_labels: int
  dropout: float
  kernel_init: layers.Init

  @nn.compact
  def __call__(
    self, x: Float[Array, "*b d"], train: bool = False
  ) -> Float[Array, "*b n"]:
    x = layers.Dropout(self.dropout)(x, train)
    return layers.Dense(
      (self.num_labels,),
      ("embed", None),
      jnp.dtype(jnp.float32),
      self.kernel_init,
      name="dense",
    )(x)
