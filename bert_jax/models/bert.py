"""Defines BERT's encoder (Devlin et al. 2019)."""

from typing import Any

from bert_jax.models import heads
from bert_jax.models.encoder import Encoder, build_variant

# Google's sizes. The MLP is 4 times as wide as the hidden states.
#   tiny to medium  google-research/bert README, "24 smaller models"
#   base, large     paper, section 3
#   xlarge          Lan et al. 2020, Table 2, who trained it for comparison
VARIANTS: dict[str, dict[str, int]] = {
  "tiny": dict(hidden=128, num_layers=2, heads=2, mlp=512),
  "mini": dict(hidden=256, num_layers=4, heads=4, mlp=1024),
  "small": dict(hidden=512, num_layers=4, heads=8, mlp=2048),
  "medium": dict(hidden=512, num_layers=8, heads=8, mlp=2048),
  "base": dict(hidden=768, num_layers=12, heads=12, mlp=3072),
  "large": dict(hidden=1024, num_layers=24, heads=16, mlp=4096),
  "xlarge": dict(hidden=2048, num_layers=24, heads=32, mlp=8192),
}
# The pooling is a dense layer and tanh on [CLS], and then dropout
# (run_classifier.py, create_model).
POOLING = heads.Pooling(activation="tanh")
PRETRAINED_POOLER = True


class Bert(Encoder):
  """The encoder: embeddings and a stack of layers.

  Attributes (in addition to those of `Encoder`):
    num_segments: the number of rows of the segment table (2 in the released
      models).
  """

  num_segments: int = 2


ForPreTraining, OBJECTIVE = heads.ForPreTraining, "mlm"
flops = heads.flops


def build(variant: str, **overrides: Any) -> Bert:
  """Builds a published size; see `encoder.build_variant`."""
  return build_variant(Bert, VARIANTS, variant, overrides)
