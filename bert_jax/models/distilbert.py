"""DistilBERT (Sanh et al. 2019): BERT with half the layers, no segments."""

import functools
from typing import Any

from bert_jax.models import heads
from bert_jax.models.encoder import Encoder, build_variant

# The paper (section 2) keeps every second layer of BERT-base.
VARIANTS: dict[str, dict[str, int]] = {
  "base": dict(hidden=768, num_layers=6, heads=12, mlp=3072),
}
# The pooling is a dense layer with relu on [CLS]. Pre-training does not train
# this layer (transformers modeling_distilbert.py). The dropout is
# seq_classif_dropout of the published configuration.
POOLING = heads.Pooling(activation="relu", dropout=0.2)
PRETRAINED_POOLER = False


class DistilBert(Encoder):
  """The encoder: embeddings without segments and a stack of layers."""

  num_layers: int = 6


# The published model has no head for pairs.
ForPreTraining = functools.partial(heads.ForPreTraining, pairs=False)
# `ForPreTraining` has the masked-LM head. The objective "mlm" trains it, and so
# does "distil", which is DistilBERT's own.
OBJECTIVE = "mlm"
flops = heads.flops


def build(variant: str, **overrides: Any) -> DistilBert:
  """Builds a published size; see `encoder.build_variant`."""
  return build_variant(DistilBert, VARIANTS, variant, overrides)
