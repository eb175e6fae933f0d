"""DistilBERT (Sanh et al. 2019): BERT with half the layers, no segments."""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import encoder_base as base
from bert_jax.models import heads, layers, stack
from bert_jax.models import heads_pretraining as pretraining
from bert_jax.models.encoder import Embeddings

# Paper, section 2: BERT-base with every other layer.
VARIANTS: dict[str, dict[str, int]] = {
  "base": dict(hidden=768, num_layers=6, heads=12, mlp=3072),
}
# A dense layer of its own on [CLS], rectified (transformers
# modeling_distilbert.py; its configuration has seq_classif_dropout 0.2).
POOLING = heads.Pooling(activation="relu", dropout=0.2)


class DistilBert(nn.Module):
  """The encoder: embeddings and a stack of layers; no head.

  Attributes:
    vocab_size: pieces, the rows of the word table.
    hidden: width, a multiple of `heads`.
    num_layers: Transformer layers.
    heads: attention heads.
    mlp: width of the MLP.
    max_positions: rows of the position table, the longest length.
    dropout: on embeddings and on each sub-layer's output.
    attention_dropout: on attention probabilities.
    activation: of the MLP, a name of `layers.ACTIVATIONS`.
    norm_epsilon: of every LayerNorm.
    initializer_range: standard deviation of the truncated normal.
    dtype: of the computation; parameters are float32 always.
    attention: implementation, see `fused.implementation`.
    elementwise: the same of bias, dropout, residual, LayerNorm, activation.
    products: "auto" for products in `dtype`, or "fp8": see fp8.py.
    unroll: see `stack.Stack`.
    remat: see `stack.Stack`.
    vocab_multiple: see `embeddings.Embeddings`.
  """

  vocab_size: int = 30522
  hidden: int = 768
  num_layers: int = 6
  heads: int = 12
  mlp: int = 3072
  max_positions: int = 512
  dropout: float = 0.1
  attention_dropout: float = 0.1
  activation: str = "gelu"
  norm_epsilon: float = 1e-12
  initializer_range: float = 0.02
  dtype: jnp.dtype = jnp.dtype(jnp.float32)
  attention: str = "auto"
  elementwise: str = "auto"
  products: str = "auto"
  unroll: int = 0
  remat: bool = False
  vocab_multiple: int = 1

  @property
  def kernel_init(self) -> layers.Init:
    return nn.initializers.truncated_normal(self.initializer_range)

  @property
  def max_length(self) -> int:
    """The longest row."""
    return self.max_positions

  @property
  def word_embedding(self) -> Float[Array, "v d"]:
    """The word table, for a head that is tied to it."""
    return self.embeddings.word.embedding

  def setup(self):
    base.check_heads(self.hidden, self.heads)
    self.embeddings = Embeddings(
      self.vocab_size,
      self.hidden,
      self.max_positions,
      0,
      self.dropout,
      self.norm_epsilon,
      self.dtype,
      self.kernel_init,
      self.vocab_multiple,
    )
    self.layers = stack.build(self)

  def __call__(
    self,
    input_ids: Int[Array, "b l"],
    segment_ids: Int[Array, "b l"] | None = None,
    sequence_ids: Int[Array, "b l"] | None = None,
    position_ids: Int[Array, "b l"] | None = None,
    *,
    train: bool = False,
    collect: bool = False,
  ) -> tuple[Float[Array, "b l d"], dict[str, Array]]:
    """Encodes a batch.

    Args:
      input_ids: token ids.
      segment_ids: not read: the model has no segments.
      sequence_ids: 1 at real tokens, 0 at padding (1, 2, ... for the sequences
        of a packed row); all 1 if None.
      position_ids: 0, 1, 2, ... in each sequence; along the row if None.
      train: apply dropout; needs a "dropout" rng.
      collect: return every layer's hidden states and probabilities.

    Returns:
      The last hidden states in `dtype`, and if `collect` {"embeddings" [b l d],
      "hidden" [n b l d], "attention" float32 [n b h l l]}, else {}.

    Raises:
      ValueError: longer than the position table.
    """
    del segment_ids
    x = self.embeddings(input_ids, None, position_ids, train=train)
    sequence_ids = base.default_sequence_ids(input_ids, sequence_ids)
    embedded = x
    x, seen = self.layers(x, sequence_ids, train, collect)
    return x, dict(embeddings=embedded, **seen) if collect else {}


# Published without a head for pairs.
ForPreTraining = functools.partial(pretraining.ForPreTraining, pairs=False)


def build(variant: str, **overrides: Any) -> DistilBert:
  """Builds a published size, see `base.build`."""
  return base.build(DistilBert, VARIANTS, variant, overrides)


def flops(
  encoder: DistilBert, rows: int, length: int, predictions: int
) -> float:
  """Operations of a forward pass of encoder and pre-training heads."""
  e = encoder
  layers_ = base.stack_flops(e.num_layers, e.hidden, e.mlp, rows, length)
  return layers_ + pretraining.flops(
    e.hidden, e.hidden, e.vocab_size, rows, predictions
  )
