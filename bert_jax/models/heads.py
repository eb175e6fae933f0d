"""Heads on an encoder's hidden states: masked language model, pairs."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import layers


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
    # Without it the partitioner (jax 0.10) permutes rows of the gradient on a
    # mesh of three axes with one row a device.
    x = nn.with_logical_constraint(x, ("batch", None, "embed_activation"))
    bias = self.param(
      "bias",
      nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",)),
      (embedding.shape[0],),
      jnp.float32,
    )
    logits = jnp.einsum(
      "bme,ve->bmv",
      x,
      embedding.astype(self.dtype),
      preferred_element_type=jnp.float32,
    )
    logits = nn.with_logical_constraint(logits, ("batch", None, "vocab"))
    logits = logits + bias
    if embedding.shape[0] == self.vocab_size:
      return logits
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    lowest = jnp.finfo(jnp.float32).min
    return jnp.where(ids < self.vocab_size, logits, lowest)


class Pooler(nn.Module):
  """Dense and tanh on the vectors at the [CLS] positions."""

  dtype: jnp.dtype
  kernel_init: layers.Init

  @nn.compact
  def __call__(
    self, hidden: Float[Array, "b l d"], cls_positions: Int[Array, "b s"]
  ) -> Float[Array, "b s d"]:
    cls = layers.gather_positions(hidden, cls_positions)
    width = hidden.shape[-1]
    dense = layers.Dense(
      (width,),
      ("embed", "embed_out"),
      self.dtype,
      self.kernel_init,
      name="dense",
    )
    return jnp.tanh(dense(cls))


class PairClassifier(nn.Module):
  """Two float32 logits for each pooled vector: next sentence or order."""

  kernel_init: layers.Init

  @nn.compact
  def __call__(self, pooled: Float[Array, "b s d"]) -> Float[Array, "b s 2"]:
    return layers.Dense(
      (2,),
      ("embed", None),
      jnp.dtype(jnp.float32),
      self.kernel_init,
      name="dense",
    )(pooled)
