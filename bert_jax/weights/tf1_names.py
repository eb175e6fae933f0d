"""Names of variables in Google's TF1 checkpoints: rules by family and task.

From the graphs that google-research/bert (modeling.py, run_pretraining.py,
run_classifier.py, run_squad.py), google-research/albert (files of the same
names) and google-research/electra (model/modeling.py, run_pretraining.py)
build. Kernels are [inputs, outputs] as here; `output_weights` alone are
[outputs, inputs].
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.weights.mapping import Rule

# The beginning of the names of a family's layers; no other family has it.
LAYERS: dict[str, str] = {
  "bert": "bert/encoder/layer_",
  "albert": "bert/encoder/transformer/group_",
  "electra": "electra/encoder/layer_",
}
GENERATOR_LAYERS = "generator/encoder/layer_"
# What training leaves beside the weights. Both optimizers of the releases, Adam
# and LAMB, call their slots adam_*; others' LAMB, lamb_*; a slot of
# TensorFlow's own has the optimizer's name.
SKIPPED: tuple[str, ...] = (
  "global_step",
  "beta1_power",
  "beta2_power",
  *(
    f"*/{slot}"
    for slot in (
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
  # ELECTRA's: of the sampling in training.
  "generator_predictions/temperature",
)
# The variables of a checkpoint of both towers that one tower does not need.
OTHER_TOWER: dict[str, tuple[str, ...]] = {
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


def _dense(ours: str, theirs: str) -> list[Rule]:
  return [
    Rule(f"{ours}/kernel", f"{theirs}/kernel"),
    Rule(f"{ours}/bias", f"{theirs}/bias"),
  ]


def _norm(ours: str, theirs: str) -> list[Rule]:
  return [
    Rule(f"{ours}/scale", f"{theirs}/gamma"),
    Rule(f"{ours}/bias", f"{theirs}/beta"),
  ]


def _output(ours: str, scope: str) -> list[Rule]:
  return [
    Rule(f"{ours}/kernel", f"{scope}output_weights", "transpose"),
    Rule(f"{ours}/bias", f"{scope}output_bias"),
  ]


def _tables(ours: str, theirs: str) -> list[Rule]:
  names = {
    "word": "word_embeddings",
    "position": "position_embeddings",
    "segment": "token_type_embeddings",
  }
  rules = [
    Rule(f"{ours}/{table}/embedding", f"{theirs}/{name}")
    for table, name in names.items()
  ]
  return rules + _norm(f"{ours}/norm", f"{theirs}/LayerNorm")


def _layer(ours: str, theirs: str, names: Mapping[str, str]) -> list[Rule]:
  rules = []
  for part, name in names.items():
    to, name = f"{ours}/layers/layer/{part}", f"{theirs}/{name}"
    if part.endswith("norm"):
      rules += _norm(to, name)
    elif part == "attention/output":
      rules.append(Rule(f"{to}/kernel", f"{name}/kernel", "split_inputs"))
      rules.append(Rule(f"{to}/bias", f"{name}/bias"))
    elif part.startswith("attention/"):
      rules.append(Rule(f"{to}/kernel", f"{name}/kernel", "split_outputs"))
      rules.append(Rule(f"{to}/bias", f"{name}/bias", "heads_bias"))
    else:
      rules += _dense(to, name)
  return rules


def _mlm(dense: str, norm: str, bias: str) -> list[Rule]:
  rules = _dense("mlm/dense", dense) + _norm("mlm/norm", norm)
  return [*rules, Rule("mlm/bias", bias)]


def task_of(tower: str | None, names: Iterable[str]) -> str:
  """The task whose head a checkpoint has; see `model_folder.module_of`.

  A head that is there in part counts as there.

  Args:
    tower: a tower of ELECTRA; None for other families.
    names: the names of the variables.
  """
  if tower is not None:
    return "pretraining" if tower == "both" else tower
  names = tuple(names)
  for task, begin in (
    ("pretraining", "cls/predictions/"),
    ("span", "cls/squad/"),
    ("sequence_classification", "output_"),
  ):
    if any(name.startswith(begin) for name in names):
      return task
  return "encoder"


def rules(config: Mapping[str, Any]) -> list[Rule]:
  """Rules of every parameter of a folder's config."""
  family, task = config["family"], config["task"]
  if family == "electra":
    return _electra(task, config["model"])
  result = _tables("encoder/embeddings", "bert/embeddings")
  if family == "albert":
    mapping_in = "bert/encoder/embedding_hidden_mapping_in"
    result += _dense("encoder/project", mapping_in)
    layer = f"{LAYERS[family]}{{i}}/inner_group_0"
    result += _layer("encoder", layer, _ALBERT_LAYER)
  else:
    result += _layer("encoder", f"{LAYERS[family]}{{i}}", _BERT_LAYER)
  pairs = config["head"].get("pairs", False)
  if config["pooler"] or pairs or task == "sequence_classification":
    result += _dense("pooler/dense", "bert/pooler/dense")
  if task == "pretraining":
    at = "cls/predictions"
    result += _mlm(
      f"{at}/transform/dense", f"{at}/transform/LayerNorm", f"{at}/output_bias"
    )
    if pairs:
      result += _output("pair/dense", "cls/seq_relationship/")
  elif task == "span":
    result += _output("classifier/dense", "cls/squad/")
  elif task == "sequence_classification":
    result += _output("classifier/dense", "")
  return result


def _electra(task: str, model: Mapping[str, Any]) -> list[Rule]:
  both = task == "pretraining"
  tables = "embeddings" if both else "encoder/embeddings"
  result = _tables(tables, "electra/embeddings")
  for tower, scope, hidden in (
    ("discriminator", "electra", "hidden"),
    ("generator", "generator", "generator_hidden" if both else "hidden"),
  ):
    if not both and task != tower:
      continue
    ours = tower if both else "encoder/tower"
    if model[hidden] != model["embedding_size"]:
      result += _dense(f"{ours}/project", f"{scope}/embeddings_project")
    result += _layer(ours, f"{scope}/encoder/layer_{{i}}", _BERT_LAYER)
    at = f"{tower}_predictions"
    if tower == "discriminator":
      result += _dense("rtd/dense", f"{at}/dense")
      result += _dense("rtd/output/dense", f"{at}/dense_1")
    else:
      result += _mlm(f"{at}/dense", f"{at}/LayerNorm", f"{at}/output_bias")
  return result
