"""Encoders and heads as pure Flax linen modules; one file a family.

Imports jax, flax and jaxtyping only:

  from bert_jax.models import bert
  encoder = bert.build("base")
"""

from types import ModuleType

from bert_jax.models import bert

# A family is a module with VARIANTS, build(variant, **overrides) -> encoder,
# ForPreTraining (encoder and heads), and flops(encoder, rows, length, preds).
FAMILIES: dict[str, ModuleType] = {"bert": bert}


def family(name: str) -> ModuleType:
  """Returns a family's module; ValueError names the known ones."""
  if name not in FAMILIES:
    raise ValueError(f"model.family={name!r}: not one of {sorted(FAMILIES)}.")
  return FAMILIES[name]
