"""BERT (Devlin et al. 2019): the encoder."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import encoder_base as base
from bert_jax.models import heads, layers, stack
from bert_jax.models import heads_pretraining as pretraining
from bert_jax.models.encoder import Embeddings

# Google's sizes: the miniatures (google-research/bert README, "24 smaller
# models"), base and large (paper, section 3); xlarge is the one that Lan et al.
# 2020 train for comparison (Table 2). The MLP is 4 times the hidden size.
VARIANTS: dict[str, dict[str, int]] = {
  "tiny": dict(hidden=128, num_layers=2, heads=2, mlp=512),
  "mini": dict(hidden=256, num_layers=4, heads=4, mlp=1024),
  "small": dict(hidden=512, num_layers=4, heads=8, mlp=2048),
  "medium": dict(hidden=512, num_layers=8, heads=8, mlp=2048),
  "base": dict(hidden=768, num_layers=12, heads=12, mlp=3072),
  "large": dict(hidden=1024, num_layers=24, heads=16, mlp=4096),
  "xlarge": dict(hidden=2048, num_layers=24, heads=32, mlp=8192),
}
# Dense and tanh on [CLS], then dropout (run_classifier.py, create_model).
POOLING = heads.Pooling(activation="tanh")


class Bert(nn.Module):
  """The encoder: embeddings and a stack of layers; no head.

  Attributes:
    vocab_size: pieces, the rows of the word table.
    hidden: width, a multiple of `heads`.
    num_layers: Transformer layers.
    heads: attention heads.
    mlp: width of the MLP.
    max_positions: rows of the position table, the longest length.
    num_segments: rows of the segment table (2 in the released models).
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
  num_layers: int = 12
  heads: int = 12
  mlp: int = 3072
  max_positions: int = 512
  num_segments: int = 2
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
      self.num_segments,
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
      segment_ids: 0 for the first segment, 1 for the second; all 0 if None.
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
    x = self.embeddings(input_ids, segment_ids, position_ids, train=train)
    sequence_ids = base.default_sequence_ids(input_ids, sequence_ids)
    embedded = x
    x, seen = self.layers(x, sequence_ids, train, collect)
    return x, dict(embeddings=embedded, **seen) if collect else {}


ForPreTraining = pretraining.ForPreTraining


def build(variant: str, **overrides: Any) -> Bert:
  """Builds a published size, see `base.build`."""
  return base.build(Bert, VARIANTS, variant, overrides)


def flops(encoder: Bert, rows: int, length: int, predictions: int) -> float:
  """Operations of a forward pass of encoder and pre-training heads."""
  e = encoder
  layers_ = base.stack_flops(e.num_layers, e.hidden, e.mlp, rows, length)
  return layers_ + pretraining.flops(
    e.hidden, e.hidden, e.vocab_size, rows, predictions
  )
