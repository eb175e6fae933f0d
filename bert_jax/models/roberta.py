"""RoBERTa (Liu et al. 2019): BERT's encoder with positions after padding."""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import heads
from bert_jax.models.encoder import Encoder, build_variant

# Paper, section 5: the architectures of BERT.
VARIANTS: dict[str, dict[str, int]] = {
  "base": dict(hidden=768, num_layers=12, heads=12, mlp=3072),
  "large": dict(hidden=1024, num_layers=24, heads=16, mlp=4096),
}
# A head on <s> that is not pre-trained: dropout, dense, tanh, dropout, linear.
# Its rate, fairseq's pooler_dropout, is 0 in every published recipe (models/
# roberta/model.py, RobertaClassificationHead); 0.1 in ported models.
POOLING = heads.Pooling(activation="tanh", input_dropout=True, dropout=0.0)
PRETRAINED_POOLER = False


def make_position_ids(
  input_ids: Int[Array, "b l"], padding_id: int
) -> Int[Array, "b l"]:
  """Rows of the position table: real tokens count from `padding_id` + 1.

  Padding, wherever it stands, reads row `padding_id` (fairseq utils.py,
  make_positions).
  """
  real = (input_ids != padding_id).astype(jnp.int32)
  return jnp.cumsum(real, axis=1) * real + padding_id


class Roberta(Encoder):
  """The encoder: embeddings and a stack of layers.

  Attributes (besides those of `Encoder`):
    num_segments: rows of the segment table: one, the same for all tokens. The
      published models know no other segment, and a `segment_ids` of 1 gives
      NaN: leave out what the recipe of pairs makes for BERT.
    padding_id: id of padding in the vocabulary; positions begin after it.
  """

  vocab_size: int = 50265
  max_positions: int = 514
  norm_epsilon: float = 1e-5
  num_segments: int = 1
  padding_id: int = 1

  @property
  def max_length(self) -> int:
    """The length of the longest row: `padding_id` + 1 below the table's."""
    return self.max_positions - self.padding_id - 1

  def embed(
    self,
    input_ids: Int[Array, "b l"],
    segment_ids: Int[Array, "b l"] | None,
    position_ids: Int[Array, "b l"] | None,
    train: bool,
  ) -> Float[Array, "b l d"]:
    """See `Encoder.embed`; positions come from `make_position_ids` if None."""
    # As in the other families, rows with given positions may be longer.
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
    return self.embeddings(input_ids, segment_ids, position_ids, train=train)


# Published without a head for pairs.
ForPreTraining = functools.partial(heads.ForPreTraining, pairs=False)
OBJECTIVE = "mlm"
flops = heads.flops


def build(variant: str, **overrides: Any) -> Roberta:
  """Builds a published size, see `encoder.build_variant`."""
  return build_variant(Roberta, VARIANTS, variant, overrides)
