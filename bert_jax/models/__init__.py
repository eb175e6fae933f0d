"""Encoders and heads as pure Flax linen modules; one file a family.

  from bert_jax.models import bert
  encoder = bert.build("base")

The room imports `kernels/`, and otherwise only jax, flax, jaxtyping and numpy.
Start with `encoder.py`, the base class, and `bert.py`, the simplest family.

Parts of every Transformer:
  encoder.py: `Encoder`, the base of the families; embeddings; `build_variant`.
  stack.py: the Transformer layer, and the one loop over layers.
  attention.py: attention, one function with several implementations.
  layers.py: dense layers, LayerNorm, dropout, tables, activations.
Families (each has sizes with their source, and an encoder):
  bert.py: BERT.
  roberta.py: RoBERTa, whose positions count from after the padding's id.
  albert.py: ALBERT, with narrow tables and one layer that is applied often.
  electra.py: ELECTRA, a generator and a discriminator on the same tables.
  distilbert.py: DistilBERT, without segments.
  tinybert.py: TinyBERT's sizes of BERT, and maps to a teacher's width.
  gpt.py: GPT-1, which sees the tokens before a token only.
  elmo.py: ELMo, which makes words from characters and reads them with LSTMs.
  lstm.py: ELMo's LSTM layers.
Heads:
  heads.py: masked LM, span boundaries, pairs; `ForPreTraining`; pooling.
  task_heads.py: an encoder with a head for classes, tags, spans or choices.
  question_head.py: ELECTRA's head for questions.
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

# A family is a module with
#   VARIANTS: the published sizes, name -> attributes;
#   build(variant, **overrides): returns an encoder;
#   ForPreTraining: the encoder with its heads, and OBJECTIVE, the name of the
#     objective that trains them;
#   POOLING: how a classifier reads the encoder, and PRETRAINED_POOLER: whether
#     the dense layer of the pooling is trained in pre-training;
#   flops(encoder, rows, length, predictions): operations of a forward pass.
FAMILIES: dict[str, ModuleType] = {
  "bert": bert,
  "roberta": roberta,
  "albert": albert,
  "electra": electra,
  "distilbert": distilbert,
  "tinybert": tinybert,
  "gpt": gpt,
}
# Families that read words made of characters; they have no POOLING.
WORD_FAMILIES: dict[str, ModuleType] = {"elmo": elmo}


def family(name: str) -> ModuleType:
  """Returns a family's module; ValueError names all families."""
  families = FAMILIES | WORD_FAMILIES
  if name not in families:
    raise ValueError(f"model.family={name!r}: not one of {sorted(families)}.")
  return families[name]
