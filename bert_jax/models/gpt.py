"""GPT-1 (Radford et al. 2018): a causal stack, the contrast to the encoders."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import encoder_base as base
from bert_jax.models import heads, layers, stack
from bert_jax.models.encoder import Embeddings

# Paper, section 4.1; 40,000 merges make 40,478 pieces (openai/
# finetune-transformer-lm).
VARIANTS: dict[str, dict[str, int]] = {
  "base": dict(hidden=768, num_layers=12, heads=12, mlp=3072),
}
# The vector of the last token, `_classify_`, then dropout (train.py, clf).
POOLING = heads.Pooling(activation=None, last=True)


class Gpt(nn.Module):
  """The decoder stack: embeddings and layers; no head.

  Attributes:
    vocab_size: pieces, the rows of the word table.
    hidden: width, a multiple of `heads`.
    num_layers: Transformer layers.
    heads: attention heads.
    mlp: width of the MLP.
    max_positions: rows of the position table, the longest length.
    dropout: on embeddings and on each sub-layer's output.
    attention_dropout: on attention probabilities.
    activation: of the MLP; the published model's "gelu" is the tanh form.
    norm_epsilon: of every LayerNorm.
    initializer_range: standard deviation of the normal.
    dtype: of the computation; parameters are float32 always.
    attention: implementation, see `fused.implementation`.
    elementwise: the same of bias, dropout, residual, LayerNorm, activation.
    products: "auto" for products in `dtype`, or "fp8": see fp8.py.
    unroll: see `stack.Stack`.
    remat: see `stack.Stack`.
    vocab_multiple: see `embeddings.Embeddings`.
  """

  vocab_size: int = 40478
  hidden: int = 768
  num_layers: int = 12
  heads: int = 12
  mlp: int = 3072
  max_positions: int = 512
  dropout: float = 0.1
  attention_dropout: float = 0.1
  activation: str = "gelu_new"
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
    return nn.initializers.normal(self.initializer_range)

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
      None,
      self.dtype,
      self.kernel_init,
      self.vocab_multiple,
    )
    self.layers = stack.build(self, causal=True)

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
    """Encodes a batch, each position from itself and those before it.

    Arguments and results are those of `bert.Bert`; `segment_ids` are not read,
    as the model has no segments.
    """
    del segment_ids
    x = self.embeddings(input_ids, None, position_ids, train=train)
    sequence_ids = base.default_sequence_ids(input_ids, sequence_ids)
    embedded = x
    x, seen = self.layers(x, sequence_ids, train, collect)
    return x, dict(embeddings=embedded, **seen) if collect else {}


class ForPreTraining(nn.Module):
  """The stack and a language-model head tied to the word table, no bias."""

  encoder: Gpt

  def encode(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> tuple[Float[Array, "b l d"], Float[Array, "v d"]]:
    """The last hidden states and the table that decodes them.

    For whoever makes logits in parts; arguments are those of `__call__`.
    """
    hidden, _ = self.encoder(*map(batch.get, base.INPUTS), train=train)
    return hidden, self.encoder.word_embedding

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns {"lm_logits"}, float32 [b l v]: of the token after each.

    Args:
      batch: `input_ids`, and where they are there `sequence_ids`,
        `position_ids`.
      train: apply dropout; needs a "dropout" rng.
    """
    hidden, table = self.encode(batch, train=train)
    return {"lm_logits": heads.decode(hidden, table, self.encoder.vocab_size)}


def build(variant: str, **overrides: Any) -> Gpt:
  """Builds a published size, see `base.build`."""
  return base.build(Gpt, VARIANTS, variant, overrides)


def flops(encoder: Gpt, rows: int, length: int, predictions: int) -> float:
  """Operations of a forward pass with logits at `predictions` positions."""
  e = encoder
  run = base.stack_flops(e.num_layers, e.hidden, e.mlp, rows, length)
  return run + 2.0 * rows * predictions * e.hidden * e.vocab_size
