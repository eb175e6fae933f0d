"""GPT-1 (Radford et al. 2018): a causal language model.

GPT-1 is here for comparison: all other families read texts in both directions.
"""

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from bert_jax.models import heads, layers, stack
from bert_jax.models.encoder import (
  Encoder,
  build_variant,
  encode,
  stack_flops,
)

# Paper, section 4.1.
VARIANTS: dict[str, dict[str, int]] = {
  "base": dict(hidden=768, num_layers=12, heads=12, mlp=3072),
}
# A classifier reads the vector of the last token, `_classify_`, after dropout
# (function clf in train.py of openai/finetune-transformer-lm).
POOLING = heads.Pooling(activation=None, last=True)
PRETRAINED_POOLER = False
OBJECTIVE = "lm"


class Gpt(Encoder):
  """GPT-1's layers over embeddings that have no segments and no LayerNorm.

  A position sees itself and the positions before it. The published model's
  "gelu" is the tanh approximation, which is called "gelu_new" here.
  """

  # 40,000 merges make 40,478 pieces (openai/finetune-transformer-lm).
  vocab_size: int = 40478
  activation: str = "gelu_new"
  norm_epsilon: float = 1e-5

  @property
  def kernel_init(self) -> layers.Initializer:
    """The initializer of tables and kernels: a normal, without truncation."""
    return nn.initializers.normal(self.initializer_range)

  def setup(self) -> None:
    """Makes the embeddings without a LayerNorm, and the causal stack."""
    self.embeddings = self.make_embeddings(norm_epsilon=None)
    self.layers = stack.build(self, causal=True)


class ForPreTraining(nn.Module):
  """GPT-1 and its language-model head: the tied word table, without a bias."""

  encoder: Gpt

  def encode(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> tuple[Float[Array, "b l d"], Float[Array, "v d"]]:
    """Returns the last hidden states and the word table.

    The logits are the products of the two. A caller that computes the logits in
    parts needs both. The arguments are those of `__call__`.
    """
    hidden, _ = encode(self.encoder, batch, train=train)
    return hidden, self.encoder.word_embedding

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns {"lm_logits"}, float32 [b l v].

    The logits at a position predict the token after it.

    Args:
      batch: `input_ids`, and optionally `sequence_ids` and `position_ids`.
      train: True applies dropout, which needs a "dropout" rng.
    """
    hidden, table = self.encode(batch, train=train)
    return {
      "lm_logits": heads.word_logits(hidden, table, self.encoder.vocab_size)
    }


def build(variant: str, **overrides: Any) -> Gpt:
  """Builds a published size; see `encoder.build_variant`."""
  return build_variant(Gpt, VARIANTS, variant, overrides)


def flops(
  encoder: Gpt, num_rows: int, length: int, num_predictions: int
) -> float:
  """Counts the floating-point operations of a forward pass.

  Args:
    encoder: the encoder, which has the sizes.
    num_rows: the number of rows.
    length: the number of tokens in a row.
    num_predictions: the number of positions in a row that get logits.
  """
  logit_flops = (
    2.0 * num_rows * num_predictions * encoder.hidden * encoder.vocab_size
  )
  return stack_flops(encoder, num_rows, length) + logit_flops
