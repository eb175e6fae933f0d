"""ALBERT (Lan et al. 2020): factorised embeddings, and a repeated layer."""

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float, Int

from bert_jax.models import heads, layers, stack
from bert_jax.models.encoder import Encoder, build_variant

# The sizes are those of Table 1 of the paper. The numbers of heads are those of
# the released configurations (tfhub.dev google/albert_*).
_BASE = dict(hidden=768, num_layers=12, heads=12, mlp=3072)
_LARGE = dict(hidden=1024, num_layers=24, heads=16, mlp=4096)
_XLARGE = dict(hidden=2048, num_layers=24, heads=16, mlp=8192)
_XXLARGE = dict(hidden=4096, num_layers=12, heads=64, mlp=16384)
# All sizes of version 2, and xxlarge of version 1, have no dropout. The other
# sizes have 0.1 (google-research/albert: its README, and a comment of its
# author).
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
# Dropout follows the pooler. The dropout rate is a field of the published
# configuration (albert_config: classifier_dropout_prob), separate from the
# encoder's rate.
POOLING = heads.Pooling(activation="tanh")
PRETRAINED_POOLER = True


class Albert(Encoder):
  """The encoder: narrow embeddings, a map to `hidden`, and a stack of layers.

  Attributes (in addition to those of `Encoder`):
    embedding_size: the width of the tables (E in the paper). LayerNorm and
      dropout act on this width; then a linear map with a bias leads to `hidden`
      (H).
    num_layers: the number of times that a layer is applied. The tree of
      parameters does not depend on this number. So a model of one group may run
      with more or fewer layers than in training, as a Universal Transformer
      does.
    groups: the number of sets of parameters; with 1, all layers share one set.
    num_segments: the number of rows of the segment table (2 in the released
      models).
  """

  vocab_size: int = 30000
  activation: str = "gelu_new"
  embedding_size: int = 128
  groups: int = 1
  num_segments: int = 2

  def setup(self) -> None:
    """Makes the embeddings, the map to `hidden` and the stack."""
    self.embeddings = self.make_embeddings(features=self.embedding_size)
    self.project = layers.Dense(
      (self.hidden,), (None, "embed"), self.dtype, self.kernel_init
    )
    self.layers = stack.build(self, self.groups)

  def embed(
    self,
    input_ids: Int[Array, "b l"],
    segment_ids: Int[Array, "b l"] | None,
    position_ids: Int[Array, "b l"] | None,
    train: bool,
  ) -> Float[Array, "b l d"]:
    """See `Encoder.embed`."""
    x = self.embeddings(input_ids, segment_ids, position_ids, train=train)
    return nn.with_logical_constraint(self.project(x), layers.ACTIVATION_AXES)


ForPreTraining, OBJECTIVE = heads.ForPreTraining, "mlm"


def build(variant: str, **overrides: Any) -> Albert:
  """Builds a published size; see `encoder.build_variant`."""
  return build_variant(Albert, VARIANTS, variant, overrides)


def flops(
  encoder: Albert, num_rows: int, length: int, num_predictions: int
) -> float:
  """Counts the operations of a forward pass; see `heads.flops`."""
  map_flops = 2.0 * num_rows * length * encoder.embedding_size * encoder.hidden
  return map_flops + heads.flops(
    encoder, num_rows, length, num_predictions, encoder.embedding_size
  )
