"""ALBERT (Lan et al. 2020): factorised embeddings, one layer many times."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import encoder_base as base
from bert_jax.models import heads, layers, stack
from bert_jax.models import heads_pretraining as pretraining
from bert_jax.models.encoder import Embeddings

# Paper, Table 1; heads as in the released configurations (tfhub.dev
# google/albert_*).
_BASE = dict(hidden=768, num_layers=12, heads=12, mlp=3072)
_LARGE = dict(hidden=1024, num_layers=24, heads=16, mlp=4096)
_XLARGE = dict(hidden=2048, num_layers=24, heads=16, mlp=8192)
_XXLARGE = dict(hidden=4096, num_layers=12, heads=64, mlp=16384)
# No dropout in version 2 nor in version 1 of xxlarge; 0.1 in the others
# (google-research/albert README; its author on configurations with 0.1).
_NO_DROPOUT = dict(dropout=0.0, attention_dropout=0.0)
VARIANTS: dict[str, dict[str, Any]] = {
  "base_v1": _BASE,
  "large_v1": _LARGE,
  "xlarge_v1": _XLARGE,
  "xxlarge_v1": _XXLARGE | _NO_DROPOUT,
  "base_v2": _BASE | _NO_DROPOUT,
  "large_v2": _LARGE | _NO_DROPOUT,
  "xlarge_v2": _XLARGE | _NO_DROPOUT,
  "xxlarge_v2": _XXLARGE | _NO_DROPOUT,
}
# The pooler, then dropout of its own whatever the encoder's
# (albert_config: classifier_dropout_prob).
POOLING = heads.Pooling(activation="tanh")


class Albert(nn.Module):
  """The encoder: embeddings and a stack of layers; no head.

  Attributes:
    vocab_size: pieces, the rows of the word table.
    embedding_size: width of the tables (E); LayerNorm and dropout act there,
      then a linear map with a bias goes to `hidden`.
    hidden: width (H), a multiple of `heads`.
    num_layers: how often layers are applied, not part of the tree: a model of
      one group may run deeper or shallower than it was trained, as a
      Universal Transformer does.
    groups: sets of parameters; 1 shares one layer throughout.
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

  vocab_size: int = 30000
  embedding_size: int = 128
  hidden: int = 768
  num_layers: int = 12
  groups: int = 1
  heads: int = 12
  mlp: int = 3072
  max_positions: int = 512
  num_segments: int = 2
  dropout: float = 0.1
  attention_dropout: float = 0.1
  activation: str = "gelu_new"
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
  def word_embedding(self) -> Float[Array, "v e"]:
    """The word table, for a head that is tied to it."""
    return self.embeddings.word.embedding

  def setup(self):
    base.check_heads(self.hidden, self.heads)
    self.embeddings = Embeddings(
      self.vocab_size,
      self.embedding_size,
      self.max_positions,
      self.num_segments,
      self.dropout,
      self.norm_epsilon,
      self.dtype,
      self.kernel_init,
      self.vocab_multiple,
    )
    self.project = layers.Dense(
      (self.hidden,), (None, "embed"), self.dtype, self.kernel_init
    )
    self.layers = stack.build(self, self.groups)

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
    x = self.project(x)
    x = nn.with_logical_constraint(x, layers.ACTIVATION_AXES)
    embedded = x
    x, seen = self.layers(x, sequence_ids, train, collect)
    return x, dict(embeddings=embedded, **seen) if collect else {}


ForPreTraining = pretraining.ForPreTraining


def build(variant: str, **overrides: Any) -> Albert:
  """Builds a published size, see `base.build`."""
  return base.build(Albert, VARIANTS, variant, overrides)


def flops(encoder: Albert, rows: int, length: int, predictions: int) -> float:
  """Operations of a forward pass of encoder and pre-training heads."""
  e = encoder
  projection = 2.0 * rows * length * e.embedding_size * e.hidden
  layers_ = projection + base.stack_flops(
    e.num_layers, e.hidden, e.mlp, rows, length
  )
  return layers_ + pretraining.flops(
    e.hidden, e.embedding_size, e.vocab_size, rows, predictions
  )
