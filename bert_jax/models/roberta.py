"""RoBERTa (Liu et al. 2019): BERT's encoder with positions after padding."""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import encoder_base as base
from bert_jax.models import heads, layers, stack
from bert_jax.models import heads_pretraining as pretraining
from bert_jax.models.encoder import Embeddings

# Paper, section 5: the architectures of BERT.
VARIANTS: dict[str, dict[str, int]] = {
  "base": dict(hidden=768, num_layers=12, heads=12, mlp=3072),
  "large": dict(hidden=1024, num_layers=24, heads=16, mlp=4096),
}
# A head of its own on <s>: dropout, dense, tanh, dropout, linear; its rate,
# fairseq's pooler_dropout, is 0 in every published recipe (models/roberta/
# model.py, RobertaClassificationHead). Ported ones have 0.1.
POOLING = heads.Pooling(activation="tanh", input_dropout=True, dropout=0.0)


def make_position_ids(
  input_ids: Int[Array, "b l"], padding_id: int
) -> Int[Array, "b l"]:
  """Rows of the position table: real tokens count from `padding_id` + 1.

  Padding, wherever it stands, reads row `padding_id` (fairseq utils.py,
  make_positions).
  """
  real = (input_ids != padding_id).astype(jnp.int32)
  return jnp.cumsum(real, axis=1) * real + padding_id


class Roberta(nn.Module):
  """The encoder: embeddings and a stack of layers; no head.

  Attributes:
    vocab_size: pieces, the rows of the word table.
    hidden: width, a multiple of `heads`.
    num_layers: Transformer layers.
    heads: attention heads.
    mlp: width of the MLP.
    max_positions: rows of the position table; the longest length is
      `padding_id` + 1 less.
    num_segments: rows of the segment table: one, the same for all tokens.
    padding_id: of the vocabulary; positions begin after it.
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

  vocab_size: int = 50265
  hidden: int = 768
  num_layers: int = 12
  heads: int = 12
  mlp: int = 3072
  max_positions: int = 514
  num_segments: int = 1
  padding_id: int = 1
  dropout: float = 0.1
  attention_dropout: float = 0.1
  activation: str = "gelu"
  norm_epsilon: float = 1e-5
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
    return self.max_positions - self.padding_id - 1

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
      segment_ids: all 0 if None; the published models know no other, and a 1
        gives NaN: leave out what a pair's builder makes for BERT.
      sequence_ids: 1 at real tokens, 0 at padding (1, 2, ... for the sequences
        of a packed row); all 1 if None.
      position_ids: 0, 1, 2, ... in each sequence; made from `input_ids`, see
        `make_position_ids`, if None.
      train: apply dropout; needs a "dropout" rng.
      collect: return every layer's hidden states and probabilities.

    Returns:
      The last hidden states in `dtype`, and if `collect` {"embeddings" [b l d],
      "hidden" [n b l d], "attention" float32 [n b h l l]}, else {}.

    Raises:
      ValueError: longer than `max_length`, unless positions are given and
        `train` is not.
    """
    # As in the other families: of given positions a row may hold more.
    bound = position_ids is None or train or self.is_initializing()
    if bound and input_ids.shape[1] > self.max_length:
      raise ValueError(
        f"length {input_ids.shape[1]} is over {self.max_length}: positions of"
        f" real tokens begin at {self.padding_id + 1} in a table of"
        f" max_positions={self.max_positions} rows; make the rows shorter (in a"
        " run data.length, or phases.phase1.length and the others), or take a"
        " model with more positions."
      )
    if position_ids is None:
      position_ids = make_position_ids(input_ids, self.padding_id)
    else:
      position_ids = position_ids + self.padding_id + 1
    x = self.embeddings(input_ids, segment_ids, position_ids, train=train)
    sequence_ids = base.default_sequence_ids(input_ids, sequence_ids)
    embedded = x
    x, seen = self.layers(x, sequence_ids, train, collect)
    return x, dict(embeddings=embedded, **seen) if collect else {}


# Published without a head for pairs.
ForPreTraining = functools.partial(pretraining.ForPreTraining, pairs=False)


def build(variant: str, **overrides: Any) -> Roberta:
  """Builds a published size, see `base.build`."""
  return base.build(Roberta, VARIANTS, variant, overrides)


def flops(encoder: Roberta, rows: int, length: int, predictions: int) -> float:
  """Operations of a forward pass of encoder and pre-training heads."""
  e = encoder
  layers_ = base.stack_flops(e.num_layers, e.hidden, e.mlp, rows, length)
  return layers_ + pretraining.flops(
    e.hidden, e.hidden, e.vocab_size, rows, predictions
  )
