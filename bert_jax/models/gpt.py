"""GPT-1 (Radford et al. 2018): a causal stack, the contrast to the encoders."""

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

# Paper, section 4.1; 40,000 merges make 40,478 pieces (openai/
# finetune-transformer-lm).
VARIANTS: dict[str, dict[str, int]] = {
  "base": dict(hidden=768, num_layers=12, heads=12, mlp=3072),
}
# The vector of the last token, `_classify_`, then dropout (train.py, clf).
POOLING = heads.Pooling(activation=None, last=True)
PRETRAINED_POOLER = False
OBJECTIVE = "lm"


class Gpt(Encoder):
  """The decoder stack: embeddings without segments or LayerNorm, and layers.

  Each position is encoded from itself and those before it. The published
  model's "gelu" is the tanh form, "gelu_new" here.
  """

  vocab_size: int = 40478
  activation: str = "gelu_new"
  norm_epsilon: float = 1e-5

  @property
  def kernel_init(self) -> layers.Init:
    """Initializer of the tables and kernels: a normal that is not truncated."""
    return nn.initializers.normal(self.initializer_range)

  def setup(self):
    self.embeddings = self.make_embeddings(norm_epsilon=None)
    self.layers = stack.build(self, causal=True)


class ForPreTraining(nn.Module):
  """The stack and a language-model head tied to the word table, no bias."""

  encoder: Gpt

  def encode(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> tuple[Float[Array, "b l d"], Float[Array, "v d"]]:
    """The last hidden states and the table that decodes them.

    A caller that makes the logits in parts needs both. The arguments are those
    of `__call__`.
    """
    hidden, _ = encode(self.encoder, batch, train=train)
    return hidden, self.encoder.word_embedding

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns {"lm_logits"}, float32 [b l v], for the token after each.

    Args:
      batch: `input_ids`; optionally `sequence_ids`, `position_ids`.
      train: apply dropout; needs a "dropout" rng.
    """
    hidden, table = self.encode(batch, train=train)
    return {"lm_logits": heads.decode(hidden, table, self.encoder.vocab_size)}


def build(variant: str, **overrides: Any) -> Gpt:
  """Builds a published size, see `encoder.build_variant`."""
  return build_variant(Gpt, VARIANTS, variant, overrides)


def flops(encoder: Gpt, rows: int, length: int, predictions: int) -> float:
  """Counts the operations of a forward pass with some logits.

  Args:
    encoder: the encoder, for its sizes.
    rows: number of rows.
    length: tokens of a row.
    predictions: positions of a row that get logits.
  """
  e = encoder
  decoded = 2.0 * rows * predictions * e.hidden * e.vocab_size
  return stack_flops(e, rows, length) + decoded
