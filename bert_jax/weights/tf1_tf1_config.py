"""The model of a TF1 checkpoint: its config's fields, and what is stored.

A size that the config does not state is read off the stored shapes; a stated
one must be theirs, as any array of another shape is refused.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.weights import mapping, tf1_names
from bert_jax.weights.hf_config_fields import LIMITS, Fields
from bert_jax.weights.mapping import Shape

Config = dict[str, Any]
# The config's name in a release; ELECTRA's have none, one may be put there.
FILES: dict[str, tuple[str, ...]] = {
  "bert": ("bert_config.json",),
  "albert": ("albert_config.json",),
  "electra": ("electra_config.json", "config.json"),
}
# Attribute of the encoder -> field.
_SIZES = {
  "vocab_size": "vocab_size",
  "hidden": "hidden_size",
  "num_layers": "num_hidden_layers",
  "mlp": "intermediate_size",
  "max_positions": "max_position_embeddings",
  "num_segments": "type_vocab_size",
}
_OWN_TABLES = {"embedding_size": "embedding_size"}
SIZES: dict[str, dict[str, str]] = {
  "bert": _SIZES,
  "albert": _SIZES | _OWN_TABLES | {"groups": "num_hidden_groups"},
  "electra": _SIZES | _OWN_TABLES,
}
NUMBERS = {
  "dropout": "hidden_dropout_prob",
  "attention_dropout": "attention_probs_dropout_prob",
  "initializer_range": "initializer_range",
}
HEADS, ACTIVATION = "num_attention_heads", "hidden_act"
# No config has it: it is that of tf.contrib.layers.layer_norm, which all of
# these repositories call.
NORM_EPSILON = 1e-12
# Values other than these mean a model that is not built here.
_ONLY = {
  "inner_group_num": 1,
  "net_structure_type": 0,
  "layer_norm_eps": NORM_EPSILON,
}
# What ELECTRA's code has where a release has no config
# (util/training_utils.py, get_bert_config; model/modeling.py, BertConfig).
ELECTRA_HEAD_SIZE = 64
ELECTRA: Config = {
  ACTIVATION: "gelu",
  "hidden_dropout_prob": 0.1,
  "attention_probs_dropout_prob": 0.1,
  "initializer_range": 0.02,
}
# BERT's weights were released with the exact form, before its code had the
# other; ELECTRA's code has the exact one (model/modeling.py, gelu); what
# ALBERT's calls "gelu" is the tanh form (modeling.py, gelu).
_EXACT = {name: name for name in ("gelu", "gelu_new", "relu", "tanh")}
ACTIVATIONS: dict[str, dict[str, str]] = {
  "bert": _EXACT,
  "electra": _EXACT,
  "albert": _EXACT | {"gelu": "gelu_new"},
}


def electra_heads(hidden: int) -> int:
  """Attention heads of a tower, from its width (get_bert_config)."""
  return max(1, hidden // ELECTRA_HEAD_SIZE)


def _count(names: Iterable[str], begin: str) -> int:
  """How many layers, or groups, there are: the highest number plus one."""
  found = (re.match(re.escape(begin) + r"(\d+)/", name) for name in names)
  return max((int(m[1]) + 1 for m in found if m), default=0)


def stored_sizes(
  family: str, shapes: Mapping[str, Shape], where: str, generator: bool = False
) -> dict[str, int]:
  """The sizes that the shapes of a checkpoint tell.

  Args:
    family: a key of `FILES`.
    shapes: name -> shape.
    where: the checkpoint, for messages.
    generator: of ELECTRA's generator, not its discriminator.

  Returns:
    Attribute of the encoder -> size; `num_layers` is not among ALBERT's.

  Raises:
    ValueError: a variable that tells a size is missing.
  """
  tables = "electra/embeddings" if family == "electra" else "bert/embeddings"
  begin = tf1_names.GENERATOR_LAYERS if generator else tf1_names.LAYERS[family]
  attention, mlp = "attention/output/dense/bias", "intermediate/dense/bias"
  if family == "albert":
    attention = f"inner_group_0/{attention.replace('/', '_1/', 1)}"
    mlp = f"inner_group_0/ffn_1/{mlp}"
  tells = {
    "vocab_size": f"{tables}/word_embeddings",
    "max_positions": f"{tables}/position_embeddings",
    "num_segments": f"{tables}/token_type_embeddings",
    "embedding_size": f"{tables}/LayerNorm/beta",
    "hidden": f"{begin}0/{attention}",
    "mlp": f"{begin}0/{mlp}",
  }
  if family == "bert":
    del tells["embedding_size"]
  problems = [f"{n} is missing" for n in tells.values() if n not in shapes]
  problems += [
    f"{n} has shape []" for n in tells.values() if shapes.get(n) == ()
  ]
  mapping.complain(problems, where)
  layers = "groups" if family == "albert" else "num_layers"
  sizes = {size: shapes[name][0] for size, name in tells.items()}
  return sizes | {layers: _count(shapes, begin)}


def read_model(
  family: str,
  task: str,
  config: Mapping[str, Any],
  shapes: Mapping[str, Shape],
  where: tuple[str, str],
) -> Config:
  """Attributes of the encoder.

  Args:
    family: a key of `FILES`.
    task: of ELECTRA "pretraining", "discriminator", "generator".
    config: the fields of the release's file; of ELECTRA it is the
      discriminator's, and may be empty.
    shapes: name -> shape in the checkpoint.
    where: the config and the checkpoint, for messages.

  Raises:
    ValueError: names the field that is missing or wrong.
  """
  if family == "electra":
    config = ELECTRA | dict(config)
  fields = Fields(config, where[0])
  for field, value in _ONLY.items():
    if field in config and config[field] != value:
      raise fields.refuse(field, f"only {value!r} is known here")
  stored = stored_sizes(family, shapes, where[1], task == "generator")
  model = {}
  for ours, field in SIZES[family].items():
    told = task == "generator" and ours in ("hidden", "num_layers", "mlp")
    if ours in stored and (told or field not in config):
      model[ours] = stored[ours]
    else:
      model[ours] = fields.size(field)
  if family == "electra" and (task == "generator" or HEADS not in config):
    model["heads"] = electra_heads(model["hidden"])
  else:
    model["heads"] = fields.size(HEADS)
  if task == "pretraining" and family == "electra":
    generator = stored_sizes(family, shapes, where[1], generator=True)
    model["generator_hidden"] = generator["hidden"]
  for ours, field in NUMBERS.items():
    model[ours] = fields.number(field, LIMITS.get(ours, 1.0))
  # Google's code lowers the name (modeling.py, get_activation).
  name, known = str(fields.value(ACTIVATION)).lower(), ACTIVATIONS[family]
  if name not in known:
    raise fields.refuse(ACTIVATION, f"known are {sorted(known)}")
  return model | {"activation": known[name], "norm_epsilon": NORM_EPSILON}


def unused(family: str, config: Mapping[str, Any]) -> Config:
  """The fields that `read_model` does not read: Google's code has no use
  for them either."""
  used = {HEADS, ACTIVATION, *SIZES[family].values(), *NUMBERS.values()}
  return {field: v for field, v in config.items() if field not in used}
