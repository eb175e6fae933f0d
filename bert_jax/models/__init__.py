"""Encoders and heads as pure Flax linen modules; one file a family.

Imports jax, flax and jaxtyping only:

  from bert_jax.models import bert
  encoder = bert.build("base")
"""

from types import ModuleType

from bert_jax.models import (
  albert,
  bert,
  distilbert,
  electra,
  elmo,
  gpt,
  roberta,
  tinybert,
)

# A family is a module with VARIANTS, build(variant, **overrides) -> encoder,
# POOLING (how a classifier reads it), ForPreTraining (encoder and heads), and
# flops(encoder, rows, length, predictions).
FAMILIES: dict[str, ModuleType] = {
  "bert": bert,
  "roberta": roberta,
  "albert": albert,
  "electra": electra,
  "distilbert": distilbert,
  "tinybert": tinybert,
  "gpt": gpt,
}
# The same for words made of characters; no classifier reads them.
WORD_FAMILIES: dict[str, ModuleType] = {"elmo": elmo}


def family(name: str) -> ModuleType:
  """Returns a family's module; ValueError names the known ones."""
  known = FAMILIES | WORD_FAMILIES
  if name not in known:
    raise ValueError(f"model.family={name!r}: not one of {sorted(known)}.")
  return known[name]
