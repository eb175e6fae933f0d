"""Names of arrays in Hugging Face's files: rules by family and task.

The names are those in the state dictionaries of transformers' classes
(modeling_bert.py and similar files, version 5). Older names are included if
published files still use them. The layouts of the rules, such as "heads", are
keys of `mapping.LAYOUTS`.
"""

from typing import Any, NamedTuple

from bert_jax.weights.mapping import Rule


class Naming(NamedTuple):
  """The names that transformers gives a family and its arrays.

  Attributes:
    class_prefix: the prefix of the names of the family's classes.
    model_type: the value of `model_type` in config.json.
    prefix: the prefix of the encoder's arrays in a file with a head.
    tied_arrays: arrays that are copies of an original array. A key is the name
      of a copy. Its value is a pair: whether `prefix` precedes the original's
      name, and the original's name without `prefix`.
    skipped_patterns: patterns of the names of arrays that are not read.
    models_with_same_names: models of different classes whose arrays have the
      names of this family; each is a pair: the prefix of its classes, and its
      `model_type`.
  """

  class_prefix: str
  model_type: str
  prefix: str
  tied_arrays: dict[str, tuple[bool, str]]
  skipped_patterns: tuple[str, ...] = ()
  models_with_same_names: tuple[tuple[str, str], ...] = ()


_WORD_TABLE = "embeddings.word_embeddings.weight"
# Buffers that some versions save. They follow from the model's sizes.
_BUFFER_PATTERNS = ("*embeddings.position_ids", "*embeddings.token_type_ids")
_BERT_NAMING = Naming(
  class_prefix="Bert",
  model_type="bert",
  prefix="bert.",
  tied_arrays={
    "cls.predictions.decoder.weight": (True, _WORD_TABLE),
    "cls.predictions.decoder.bias": (False, "cls.predictions.bias"),
  },
  skipped_patterns=_BUFFER_PATTERNS,
)
NAMINGS: dict[str, Naming] = {
  "bert": _BERT_NAMING,
  # `fit_dense` maps to the teacher's width. Only distillation uses it.
  "tinybert": _BERT_NAMING._replace(
    skipped_patterns=(*_BUFFER_PATTERNS, "fit_dense*")
  ),
  "roberta": Naming(
    class_prefix="Roberta",
    model_type="roberta",
    prefix="roberta.",
    tied_arrays={
      "lm_head.decoder.weight": (True, _WORD_TABLE),
      "lm_head.decoder.bias": (False, "lm_head.bias"),
    },
    skipped_patterns=_BUFFER_PATTERNS,
    models_with_same_names=(
      ("XLMRoberta", "xlm-roberta"),
      ("Camembert", "camembert"),
    ),
  ),
  "albert": Naming(
    class_prefix="Albert",
    model_type="albert",
    prefix="albert.",
    tied_arrays={
      "predictions.decoder.weight": (True, _WORD_TABLE),
      "predictions.decoder.bias": (False, "predictions.bias"),
    },
    skipped_patterns=_BUFFER_PATTERNS,
  ),
  "electra": Naming(
    class_prefix="Electra",
    model_type="electra",
    prefix="electra.",
    tied_arrays={"generator_lm_head.weight": (True, _WORD_TABLE)},
    skipped_patterns=_BUFFER_PATTERNS,
  ),
  "distilbert": Naming(
    class_prefix="DistilBert",
    model_type="distilbert",
    prefix="distilbert.",
    tied_arrays={"vocab_projector.weight": (True, _WORD_TABLE)},
    skipped_patterns=_BUFFER_PATTERNS,
  ),
  "gpt": Naming(
    class_prefix="OpenAIGPT",
    model_type="openai-gpt",
    prefix="transformer.",
    tied_arrays={"lm_head.weight": (True, "tokens_embed.weight")},
    skipped_patterns=("*position_ids", "*attn.bias", "*attn.masked_bias"),
  ),
}

_BERT_LAYER = {
  "attention/query": "attention.self.query",
  "attention/key": "attention.self.key",
  "attention/value": "attention.self.value",
  "attention/output": "attention.output.dense",
  "attention_norm": "attention.output.LayerNorm",
  "mlp_in": "intermediate.dense",
  "mlp_out": "output.dense",
  "mlp_norm": "output.LayerNorm",
}
_ALBERT_LAYER = {
  "attention/query": "attention.query",
  "attention/key": "attention.key",
  "attention/value": "attention.value",
  "attention/output": "attention.dense",
  "attention_norm": "attention.LayerNorm",
  "mlp_in": "ffn",
  "mlp_out": "ffn_output",
  "mlp_norm": "full_layer_layer_norm",
}
_DISTILBERT_LAYER = {
  "attention/query": "attention.q_lin",
  "attention/key": "attention.k_lin",
  "attention/value": "attention.v_lin",
  "attention/output": "attention.out_lin",
  "attention_norm": "sa_layer_norm",
  "mlp_in": "ffn.lin1",
  "mlp_out": "ffn.lin2",
  "mlp_norm": "output_layer_norm",
}


def _dense_rules(path: str, name: str) -> list[Rule]:
  """Returns the rules for the dense layer `path`, which files call `name`."""
  return [
    Rule(f"{path}/kernel", f"{name}.weight", layout="transpose"),
    Rule(f"{path}/bias", f"{name}.bias"),
  ]


def _norm_rules(path: str, name: str) -> list[Rule]:
  return [
    Rule(f"{path}/scale", f"{name}.weight"),
    Rule(f"{path}/bias", f"{name}.bias"),
  ]


def _layer_rules(
  path: str, layer_name: str, name_by_module: dict[str, str]
) -> list[Rule]:
  """Returns the rules for the layers of an encoder.

  Args:
    path: the path of the stacked layers.
    layer_name: the name of layer `{i}` in the file.
    name_by_module: path of a module in a layer -> its name in the file, after
      the name of the layer.
  """
  rules = []
  for module, module_name in name_by_module.items():
    module_path, name_in_file = (
      f"{path}/{module}",
      f"{layer_name}.{module_name}",
    )
    if module.endswith("norm"):
      rules += _norm_rules(module_path, name_in_file)
    elif module == "attention/output":
      rules.append(
        Rule(f"{module_path}/kernel", f"{name_in_file}.weight", layout="output")
      )
      rules.append(Rule(f"{module_path}/bias", f"{name_in_file}.bias"))
    elif module.startswith("attention/"):
      rules.append(
        Rule(f"{module_path}/kernel", f"{name_in_file}.weight", layout="heads")
      )
      rules.append(
        Rule(f"{module_path}/bias", f"{name_in_file}.bias", layout="heads_bias")
      )
    else:
      rules += _dense_rules(module_path, name_in_file)
  return rules


def _gpt_rules(prefix: str) -> list[Rule]:
  """Returns the rules for the encoder of GPT-1.

  The kernels in a file of GPT-1 are [inputs, outputs]. One array holds query,
  key and value side by side, as three sections.
  """
  layer_path, layer_name = "encoder/layers/layer", f"{prefix}h.{{i}}"
  rules = [
    Rule("encoder/embeddings/word/embedding", f"{prefix}tokens_embed.weight"),
    Rule(
      "encoder/embeddings/position/embedding", f"{prefix}positions_embed.weight"
    ),
  ]
  for i, projection in enumerate(("query", "key", "value")):
    projection_path, name_in_file = (
      f"{layer_path}/attention/{projection}",
      f"{layer_name}.attn.c_attn",
    )
    rules += [
      Rule(
        f"{projection_path}/kernel",
        f"{name_in_file}.weight",
        layout="split_outputs",
        section=(i, 3),
      ),
      Rule(
        f"{projection_path}/bias",
        f"{name_in_file}.bias",
        layout="heads_bias",
        section=(i, 3),
      ),
    ]
  for module, module_name, layout in (
    ("attention/output", "attn.c_proj", "split_inputs"),
    ("mlp_in", "mlp.c_fc", "same"),
    ("mlp_out", "mlp.c_proj", "same"),
  ):
    rules += [
      Rule(
        f"{layer_path}/{module}/kernel",
        f"{layer_name}.{module_name}.weight",
        layout=layout,
      ),
      Rule(f"{layer_path}/{module}/bias", f"{layer_name}.{module_name}.bias"),
    ]
  rules += _norm_rules(f"{layer_path}/attention_norm", f"{layer_name}.ln_1")
  return rules + _norm_rules(f"{layer_path}/mlp_norm", f"{layer_name}.ln_2")


def encoder_rules(
  family: str, model: dict[str, Any], prefix: str
) -> list[Rule]:
  """Returns the rules for an encoder's parameters.

  Args:
    family: a key of `NAMINGS`.
    model: the sizes of the encoder: the config's `model`.
    prefix: the prefix of the encoder's arrays; "" for a file without a head.
  """
  if family == "gpt":
    return _gpt_rules(prefix)
  embeddings_path, embeddings_name = "encoder/embeddings", f"{prefix}embeddings"
  rules = [
    Rule(
      f"{embeddings_path}/word/embedding",
      f"{embeddings_name}.word_embeddings.weight",
    ),
    Rule(
      f"{embeddings_path}/position/embedding",
      f"{embeddings_name}.position_embeddings.weight",
    ),
    *_norm_rules(f"{embeddings_path}/norm", f"{embeddings_name}.LayerNorm"),
  ]
  if family == "distilbert":
    layer_name = f"{prefix}transformer.layer.{{i}}"
    return rules + _layer_rules(
      "encoder/layers/layer", layer_name, _DISTILBERT_LAYER
    )
  rules.append(
    Rule(
      f"{embeddings_path}/segment/embedding",
      f"{embeddings_name}.token_type_embeddings.weight",
    )
  )
  if family == "albert":
    rules += _dense_rules(
      "encoder/project", f"{prefix}encoder.embedding_hidden_mapping_in"
    )
    layer_name = f"{prefix}encoder.albert_layer_groups.{{i}}.albert_layers.0"
    return rules + _layer_rules(
      "encoder/layers/layer", layer_name, _ALBERT_LAYER
    )
  encoder_path = "encoder"
  if family == "electra":
    encoder_path = "encoder/tower"
    if model["embedding_size"] != model["hidden"]:
      rules += _dense_rules(
        f"{encoder_path}/project", f"{prefix}embeddings_project"
      )
  layer_name = f"{prefix}encoder.layer.{{i}}"
  return rules + _layer_rules(
    f"{encoder_path}/layers/layer", layer_name, _BERT_LAYER
  )


def pooler_rules(family: str, prefix: str) -> list[Rule]:
  """Returns the rules for a pre-trained pooler; no rules if there is none."""
  if family in ("bert", "tinybert", "roberta"):
    return _dense_rules("pooler/dense", f"{prefix}pooler.dense")
  return (
    _dense_rules("pooler/dense", f"{prefix}pooler")
    if family == "albert"
    else []
  )


def _mlm_rules(dense: str, norm: str, bias: str) -> list[Rule]:
  rules = _dense_rules("mlm/dense", dense) + _norm_rules("mlm/norm", norm)
  return [*rules, Rule("mlm/bias", bias)]


def _next_sentence_rules(family: str, prefix: str) -> list[Rule]:
  pair_rules = _dense_rules("pair/dense", "cls.seq_relationship")
  return pooler_rules(family, prefix) + pair_rules


def _pretraining_rules(
  family: str, prefix: str, has_pair_head: bool
) -> list[Rule]:
  pair_rules = pooler_rules(family, prefix) if has_pair_head else []
  if family in ("bert", "tinybert"):
    head_name = "cls.predictions"
    rules = _mlm_rules(
      f"{head_name}.transform.dense",
      f"{head_name}.transform.LayerNorm",
      f"{head_name}.bias",
    )
    pair_rules = _next_sentence_rules(family, prefix)
  elif family == "albert":
    head_name = "predictions"
    rules = _mlm_rules(
      f"{head_name}.dense", f"{head_name}.LayerNorm", f"{head_name}.bias"
    )
    pair_rules += _dense_rules("pair/dense", "sop_classifier.classifier")
  elif family == "roberta":
    rules = _mlm_rules("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
  elif family == "distilbert":
    rules = _mlm_rules(
      "vocab_transform", "vocab_layer_norm", "vocab_projector.bias"
    )
  else:
    rules = []
  return rules + pair_rules if has_pair_head else rules


def head_rules(
  family: str, task: str, prefix: str, has_pair_head: bool = False
) -> list[Rule]:
  """Returns the rules for the parameters outside of the encoder.

  Args:
    family: a key of `NAMINGS`.
    task: a task of `models.from_config.build`. For "encoder" the list is empty;
      `pooler_rules` has the rules for its pooler.
    prefix: the prefix of the encoder's arrays.
    has_pair_head: True if a model of "pretraining" has a pooler and a pair
      head.
  """
  if task == "encoder":
    return []
  if task == "pretraining":
    return _pretraining_rules(family, prefix, has_pair_head)
  if task == "next_sentence":
    return _next_sentence_rules(family, prefix)
  if task == "generator":
    head_name = "generator_predictions"
    return _mlm_rules(
      f"{head_name}.dense", f"{head_name}.LayerNorm", "generator_lm_head.bias"
    )
  if task == "discriminator":
    head_name = "discriminator_predictions"
    return _dense_rules("rtd/dense", f"{head_name}.dense") + _dense_rules(
      "rtd/output/dense", f"{head_name}.dense_prediction"
    )
  classifier_path, is_choice = "classifier/dense", task == "multiple_choice"
  if task == "span":
    return _dense_rules(classifier_path, "qa_outputs")
  if task == "token_classification":
    return _dense_rules(classifier_path, "classifier")
  if family == "gpt":
    if is_choice:
      return _dense_rules(classifier_path, "multiple_choice_head.summary")
    return [
      Rule(f"{classifier_path}/kernel", "score.weight", layout="transpose")
    ]
  if family == "distilbert":
    rules_of_pooler = _dense_rules("pooler/dense", "pre_classifier")
    return rules_of_pooler + _dense_rules(classifier_path, "classifier")
  if family in ("roberta", "electra") and not is_choice:
    rules_of_pooler = _dense_rules("pooler/dense", "classifier.dense")
    return rules_of_pooler + _dense_rules(
      classifier_path, "classifier.out_proj"
    )
  if family == "electra":
    rules_of_pooler = _dense_rules("pooler/dense", "sequence_summary.summary")
  else:
    rules_of_pooler = pooler_rules(family, prefix)
  return rules_of_pooler + _dense_rules(classifier_path, "classifier")
