"""RoBERTa (Liu et al. 2019): BERT's encoder with positions after padding."""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import heads
from bert_jax.models.encoder import Encoder, build_variant

# The paper (section 5) takes the architectures of BERT.
VARIANTS: dict[str, dict[str, int]] = {
  "base": dict(hidden=768, num_layers=12, heads=12, mlp=3072),
  "large": dict(hidden=1024, num_layers=24, heads=16, mlp=4096),
}
# The head on <s> is dropout, dense, tanh, dropout, linear; it is not
# pre-trained. Its dropout rate, fairseq's pooler_dropout, is 0 in every
# published recipe (models/roberta/model.py, RobertaClassificationHead), and 0.1
# in ported models.
POOLING = heads.Pooling(activation="tanh", input_dropout=True, dropout=0.0)
PRETRAINED_POOLER = False


def make_position_ids(
  input_ids: Int[Array, "b l"], padding_id: int
) -> Int[Array, "b l"]:
  """Returns the row of the position table for each token.

  The positions of real tokens count from `padding_id` + 1 on. Padding has the
  position `padding_id`, and may be anywhere (fairseq utils.py, make_positions).
  """
  is_token = (input_ids != padding_id).astype(jnp.int32)
  return jnp.cumsum(is_token, axis=1) * is_token + padding_id


class Roberta(Encoder):
  """The encoder: embeddings and a stack of layers.

  Attributes (in addition to those of `Encoder`):
    num_segments: the number of rows of the segment table. The published models
      have one segment, so segment id 1 gives NaN. Do not pass the segment ids
      of BERT's pairs.
    padding_id: the id of padding in the vocabulary. The position of the first
      token is this number plus 1.
  """

  vocab_size: int = 50265
  max_positions: int = 514
  norm_epsilon: float = 1e-5
  num_segments: int = 1
  padding_id: int = 1

  @property
  def max_length(self) -> int:
    """The length of the longest row: `max_positions` - `padding_id` - 1."""
    return self.max_positions - self.padding_id - 1

  def embed(
    self,
    input_ids: Int[Array, "b l"],
    segment_ids: Int[Array, "b l"] | None,
    position_ids: Int[Array, "b l"] | None,
    train: bool,
  ) -> Float[Array, "b l d"]:
    """See `Encoder.embed`; `make_position_ids` makes missing positions."""
    # Packed rows may be longer than `max_length`; see `Embeddings.__call__`.
    is_bounded = position_ids is None or train or self.is_initializing()
    if is_bounded and input_ids.shape[1] > self.max_length:
      raise ValueError(
        f"length {input_ids.shape[1]} is over {self.max_length}: positions of"
        f" real tokens begin at {self.padding_id + 1} in a table of"
        f" max_positions={self.max_positions} rows; make the rows shorter (in a"
        " run data.length, or the length of each phase, such as"
        " phases.phase1.length), or take a model with more positions."
      )
    if position_ids is None:
      position_ids = make_position_ids(input_ids, self.padding_id)
    else:
      position_ids = position_ids + self.padding_id + 1
    return self.embeddings(input_ids, segment_ids, position_ids, train=train)


# The published model has no head for pairs.
ForPreTraining = functools.partial(heads.ForPreTraining, pairs=False)
OBJECTIVE = "mlm"
flops = heads.flops


def build(variant: str, **overrides: Any) -> Roberta:
  """Builds a published size; see `encoder.build_variant`."""
  return build_variant(Roberta, VARIANTS, variant, overrides)
