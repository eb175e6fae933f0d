"""Defines the rules for the variables in Google's TF1 checkpoints.

The names are those in the graphs of these programs:

* google-research/bert: modeling.py, run_pretraining.py, run_classifier.py,
  run_squad.py.
* google-research/albert: files of the same names.
* google-research/electra: model/modeling.py, run_pretraining.py.

Kernels are [inputs, outputs], as they are here. Only the variables called
`output_weights` are [outputs, inputs].
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.weights.mapping import Rule

# Family -> the prefix of its layers' names. Each prefix identifies its family.
LAYER_PREFIXES: dict[str, str] = {
  "bert": "bert/encoder/layer_",
  "albert": "bert/encoder/transformer/group_",
  "electra": "electra/encoder/layer_",
}
GENERATOR_LAYER_PREFIX = "generator/encoder/layer_"
# Patterns of the variables that training saves in addition to the weights, such
# as an optimizer's moments. Adam and LAMB of the releases call the moments
# adam_*; other versions of LAMB call them lamb_*. TensorFlow's optimizers name
# the moments after the optimizer.
SKIPPED_VARIABLES: tuple[str, ...] = (
  "global_step",
  "beta1_power",
  "beta2_power",
  *(
    f"*/{name}"
    for name in (
      "adam_m",
      "adam_v",
      "lamb_m",
      "lamb_v",
      "Adam",
      "Adam_1",
      "AdamWeightDecayOptimizer",
      "AdamWeightDecayOptimizer_1",
      "LAMBOptimizer",
      "LAMBOptimizer_1",
    )
  ),
  # ELECTRA's training samples with this temperature.
  "generator_predictions/temperature",
)
# Tower -> patterns of the variables that only the other tower needs.
OTHER_TOWER_VARIABLES: dict[str, tuple[str, ...]] = {
  "discriminator": ("generator/*", "generator_predictions/*"),
  "generator": (
    "electra/encoder/*",
    "electra/embeddings_project/*",
    "discriminator_predictions/*",
  ),
}
_BERT_LAYER = {
  "attention/query": "attention/self/query",
  "attention/key": "attention/self/key",
  "attention/value": "attention/self/value",
  "attention/output": "attention/output/dense",
  "attention_norm": "attention/output/LayerNorm",
  "mlp_in": "intermediate/dense",
  "mlp_out": "output/dense",
  "mlp_norm": "output/LayerNorm",
}
_ALBERT_LAYER = {
  "attention/query": "attention_1/self/query",
  "attention/key": "attention_1/self/key",
  "attention/value": "attention_1/self/value",
  "attention/output": "attention_1/output/dense",
  "attention_norm": "LayerNorm",
  "mlp_in": "ffn_1/intermediate/dense",
  "mlp_out": "ffn_1/intermediate/output/dense",
  "mlp_norm": "LayerNorm_1",
}


def _dense_rules(path: str, name: str) -> list[Rule]:
  """Returns the rules for the dense layer that the file calls `name`."""
  return [
    Rule(f"{path}/kernel", f"{name}/kernel"),
    Rule(f"{path}/bias", f"{name}/bias"),
  ]


def _norm_rules(path: str, name: str) -> list[Rule]:
  return [
    Rule(f"{path}/scale", f"{name}/gamma"),
    Rule(f"{path}/bias", f"{name}/beta"),
  ]


def _output_rules(path: str, scope: str) -> list[Rule]:
  return [
    Rule(f"{path}/kernel", f"{scope}output_weights", layout="transpose"),
    Rule(f"{path}/bias", f"{scope}output_bias"),
  ]


def _embedding_rules(path: str, scope: str) -> list[Rule]:
  name_by_table = {
    "word": "word_embeddings",
    "position": "position_embeddings",
    "segment": "token_type_embeddings",
  }
  rules = [
    Rule(f"{path}/{table}/embedding", f"{scope}/{name}")
    for table, name in name_by_table.items()
  ]
  return rules + _norm_rules(f"{path}/norm", f"{scope}/LayerNorm")


def _layer_rules(
  encoder_path: str, layer_name: str, name_by_module: Mapping[str, str]
) -> list[Rule]:
  """Returns the rules for the layers of an encoder.

  Args:
    encoder_path: the path of the encoder.
    layer_name: the name of layer `{i}` in the file.
    name_by_module: module in a layer -> its name in the file.
  """
  rules = []
  for module, scope in name_by_module.items():
    module_path, name_in_file = (
      f"{encoder_path}/layers/layer/{module}",
      f"{layer_name}/{scope}",
    )
    if module.endswith("norm"):
      rules += _norm_rules(module_path, name_in_file)
    elif module == "attention/output":
      rules.append(
        Rule(
          f"{module_path}/kernel",
          f"{name_in_file}/kernel",
          layout="split_inputs",
        )
      )
      rules.append(Rule(f"{module_path}/bias", f"{name_in_file}/bias"))
    elif module.startswith("attention/"):
      rules.append(
        Rule(
          f"{module_path}/kernel",
          f"{name_in_file}/kernel",
          layout="split_outputs",
        )
      )
      rules.append(
        Rule(f"{module_path}/bias", f"{name_in_file}/bias", layout="heads_bias")
      )
    else:
      rules += _dense_rules(module_path, name_in_file)
  return rules


def _mlm_rules(dense: str, norm: str, bias: str) -> list[Rule]:
  rules = _dense_rules("mlm/dense", dense) + _norm_rules("mlm/norm", norm)
  return [*rules, Rule("mlm/bias", bias)]


def find_task(tower: str | None, names: Iterable[str]) -> str:
  """Returns the task whose head a checkpoint has; "encoder" if it has none.

  `models.from_config.build` lists the tasks.

  A head counts even if some of its variables are missing: a later message then
  names the missing variables.

  Args:
    tower: a tower of ELECTRA; None for other families.
    names: the names of the variables.
  """
  if tower is not None:
    return "pretraining" if tower == "both" else tower
  names = tuple(names)
  for task, scope in (
    ("pretraining", "cls/predictions/"),
    ("span", "cls/squad/"),
    ("sequence_classification", "output_"),
  ):
    if any(name.startswith(scope) for name in names):
      return task
  return "encoder"


def rules(config: Mapping[str, Any]) -> list[Rule]:
  """Returns the rules for all parameters of a converted folder's config."""
  family, task = config["family"], config["task"]
  if family == "electra":
    return _electra_rules(task, config["model"])
  model_rules = _embedding_rules("encoder/embeddings", "bert/embeddings")
  if family == "albert":
    project_name = "bert/encoder/embedding_hidden_mapping_in"
    model_rules += _dense_rules("encoder/project", project_name)
    layer_name = f"{LAYER_PREFIXES[family]}{{i}}/inner_group_0"
    model_rules += _layer_rules("encoder", layer_name, _ALBERT_LAYER)
  else:
    model_rules += _layer_rules(
      "encoder", f"{LAYER_PREFIXES[family]}{{i}}", _BERT_LAYER
    )
  has_pair_head = config["head"].get("pairs", False)
  if config["pooler"] or has_pair_head or task == "sequence_classification":
    model_rules += _dense_rules("pooler/dense", "bert/pooler/dense")
  if task == "pretraining":
    head_scope = "cls/predictions"
    model_rules += _mlm_rules(
      f"{head_scope}/transform/dense",
      f"{head_scope}/transform/LayerNorm",
      f"{head_scope}/output_bias",
    )
    if has_pair_head:
      model_rules += _output_rules("pair/dense", "cls/seq_relationship/")
  elif task == "span":
    model_rules += _output_rules("classifier/dense", "cls/squad/")
  elif task == "sequence_classification":
    model_rules += _output_rules("classifier/dense", "")
  return model_rules


def _electra_rules(task: str, model: Mapping[str, Any]) -> list[Rule]:
  has_both_towers = task == "pretraining"
  embeddings_path = "embeddings" if has_both_towers else "encoder/embeddings"
  model_rules = _embedding_rules(embeddings_path, "electra/embeddings")
  for tower, tower_scope, width_key in (
    ("discriminator", "electra", "hidden"),
    (
      "generator",
      "generator",
      "generator_hidden" if has_both_towers else "hidden",
    ),
  ):
    if not has_both_towers and task != tower:
      continue
    tower_path = tower if has_both_towers else "encoder/tower"
    if model[width_key] != model["embedding_size"]:
      model_rules += _dense_rules(
        f"{tower_path}/project", f"{tower_scope}/embeddings_project"
      )
    model_rules += _layer_rules(
      tower_path, f"{tower_scope}/encoder/layer_{{i}}", _BERT_LAYER
    )
    head_scope = f"{tower}_predictions"
    if tower == "discriminator":
      model_rules += _dense_rules("rtd/dense", f"{head_scope}/dense")
      model_rules += _dense_rules("rtd/output/dense", f"{head_scope}/dense_1")
    else:
      model_rules += _mlm_rules(
        f"{head_scope}/dense",
        f"{head_scope}/LayerNorm",
        f"{head_scope}/output_bias",
      )
  return model_rules
