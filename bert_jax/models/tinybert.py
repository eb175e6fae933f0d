"""TinyBERT (Jiao et al. 2020): BERT's encoder in two sizes of its own."""

from typing import Any

from bert_jax.models import base
from bert_jax.models.bert import POOLING, Bert, ForPreTraining, flops

__all__ = ["POOLING", "VARIANTS", "Bert", "ForPreTraining", "build", "flops"]
# Paper, section 4.1 (4 layers, 14.5M parameters; 6 layers, 67M).
VARIANTS: dict[str, dict[str, int]] = {
  "4x312": dict(hidden=312, num_layers=4, heads=12, mlp=1200),
  "6x768": dict(hidden=768, num_layers=6, heads=12, mlp=3072),
}


def build(variant: str, **overrides: Any) -> Bert:
  """Builds a published size, see `base.build`."""
  return base.build(Bert, VARIANTS, variant, overrides)
