"""Encoders and heads as pure Flax linen modules; one file for each family.

  from bert_jax.models import bert
  encoder = bert.build("base")

The room imports the room `kernels/`, the file `messages.py`, and the packages
jax, flax, jaxtyping and numpy. Start with `encoder.py`, the base class, and
`bert.py`, the simplest family.

Parts of every Transformer:
  encoder.py: `Encoder`, the base of the families; embeddings; `build_variant`.
  stack.py: the Transformer layer, and the one loop over layers.
  attention.py: attention, one function with several implementations.
  layers.py: dense layers, LayerNorm, dropout, tables, activations.
  explicit_axes.py: calls on a mesh with explicit axes.
  primitives.py: dropout and the float32 product, with their derivatives.
Families (each has an encoder, and its published sizes with their sources):
  bert.py: BERT.
  roberta.py: RoBERTa, whose positions count from the padding's id plus 1.
  albert.py: ALBERT, with narrow tables and one layer that is applied often.
  electra.py: ELECTRA, a generator and a discriminator that share tables.
  distilbert.py: DistilBERT, without segments.
  tinybert.py: TinyBERT, BERT in two sizes, with maps to a teacher's width.
  gpt.py: GPT-1, in which a token sees only itself and the tokens before it.
  elmo.py: ELMo, which reads words as characters, with LSTMs.
  lstm.py: ELMo's LSTM layers.
Heads:
  heads.py: heads for masked tokens, span boundaries and pairs; pooling.
  task_heads.py: an encoder with a head for classes, tags, spans or choices.
  question_head.py: ELECTRA's head for questions.
From a converted folder:
  from_config.py: the folder's module, and the shapes of its parameters.
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

# The modules of the families that read pieces. Each module has these names:
#   VARIANTS           the published sizes: name -> fields of the encoder
#   build              (variant, **overrides) -> encoder
#   ForPreTraining     the encoder with its heads
#   OBJECTIVE          the name of the objective that trains `ForPreTraining`
#   POOLING            how a classifier reads the encoder
#   PRETRAINED_POOLER  True if pre-training trains the pooling's dense layer
#   flops              (encoder, num_rows, length, num_predictions) -> the
#                      number of floating-point operations in a forward pass
FAMILIES: dict[str, ModuleType] = {
  "bert": bert,
  "roberta": roberta,
  "albert": albert,
  "electra": electra,
  "distilbert": distilbert,
  "tinybert": tinybert,
  "gpt": gpt,
}
# The families that read words as characters. They have no POOLING and no
# PRETRAINED_POOLER.
WORD_FAMILIES: dict[str, ModuleType] = {"elmo": elmo}


def family(name: str) -> ModuleType:
  """Returns a family's module; ValueError if the name is unknown."""
  families = FAMILIES | WORD_FAMILIES
  if name not in families:
    raise ValueError(f"model.family={name!r} is not one of {sorted(families)}.")
  return families[name]
