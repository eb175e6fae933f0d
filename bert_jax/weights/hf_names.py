"""Names of arrays in Hugging Face's files: rules by family and task.

From the state dictionaries of transformers' classes (modeling_bert.py and its
like, version 5; older names where files still have them).
"""

from typing import Any, NamedTuple

from bert_jax.weights.mapping import Rule


class Naming(NamedTuple):
  """The names that transformers gives a family and its arrays.

  Attributes:
    classes: the prefix of the names of its classes.
    model_type: the value of `model_type` in config.json.
    prefix: the prefix of the encoder's arrays in a file with a head.
    tied: copies of other arrays: name -> (whether the original has the prefix,
      its name).
    skipped: patterns of names that hold no parameter.
    others: (what names of classes begin with, model_type) of models that have
      the same parameters under the same names.
  """

  classes: str
  model_type: str
  prefix: str
  tied: dict[str, tuple[bool, str]]
  skipped: tuple[str, ...] = ()
  others: tuple[tuple[str, str], ...] = ()


_WORDS = "embeddings.word_embeddings.weight"
# Buffers that some versions save: what they hold is made from the sizes.
_BUFFERS = ("*embeddings.position_ids", "*embeddings.token_type_ids")
_BERT = Naming(
  "Bert",
  "bert",
  "bert.",
  {
    "cls.predictions.decoder.weight": (True, _WORDS),
    "cls.predictions.decoder.bias": (False, "cls.predictions.bias"),
  },
  _BUFFERS,
)
NAMINGS: dict[str, Naming] = {
  "bert": _BERT,
  # Its maps to a teacher's width are of its distillation, not of the model.
  "tinybert": _BERT._replace(skipped=(*_BUFFERS, "fit_dense*")),
  "roberta": Naming(
    "Roberta",
    "roberta",
    "roberta.",
    {
      "lm_head.decoder.weight": (True, _WORDS),
      "lm_head.decoder.bias": (False, "lm_head.bias"),
    },
    _BUFFERS,
    (("XLMRoberta", "xlm-roberta"), ("Camembert", "camembert")),
  ),
  "albert": Naming(
    "Albert",
    "albert",
    "albert.",
    {
      "predictions.decoder.weight": (True, _WORDS),
      "predictions.decoder.bias": (False, "predictions.bias"),
    },
    _BUFFERS,
  ),
  "electra": Naming(
    "Electra",
    "electra",
    "electra.",
    {"generator_lm_head.weight": (True, _WORDS)},
    _BUFFERS,
  ),
  "distilbert": Naming(
    "DistilBert",
    "distilbert",
    "distilbert.",
    {"vocab_projector.weight": (True, _WORDS)},
    _BUFFERS,
  ),
  "gpt": Naming(
    "OpenAIGPT",
    "openai-gpt",
    "transformer.",
    {"lm_head.weight": (True, "tokens_embed.weight")},
    ("*position_ids", "*attn.bias", "*attn.masked_bias"),
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


def _dense(ours: str, theirs: str) -> list[Rule]:
  return [
    Rule(f"{ours}/kernel", f"{theirs}.weight", "transpose"),
    Rule(f"{ours}/bias", f"{theirs}.bias"),
  ]


def _norm(ours: str, theirs: str) -> list[Rule]:
  return [
    Rule(f"{ours}/scale", f"{theirs}.weight"),
    Rule(f"{ours}/bias", f"{theirs}.bias"),
  ]


def _layer(ours: str, theirs: str, names: dict[str, str]) -> list[Rule]:
  rules = []
  for part, name in names.items():
    to, name = f"{ours}/{part}", f"{theirs}.{name}"
    if part.endswith("norm"):
      rules += _norm(to, name)
    elif part == "attention/output":
      rules.append(Rule(f"{to}/kernel", f"{name}.weight", "output"))
      rules.append(Rule(f"{to}/bias", f"{name}.bias"))
    elif part.startswith("attention/"):
      rules.append(Rule(f"{to}/kernel", f"{name}.weight", "heads"))
      rules.append(Rule(f"{to}/bias", f"{name}.bias", "heads_bias"))
    else:
      rules += _dense(to, name)
  return rules


def _gpt(prefix: str) -> list[Rule]:
  """GPT-1's kernels are [inputs, outputs]; query, key, value are one array."""
  ours, theirs = "encoder/layers/layer", f"{prefix}h.{{i}}"
  rules = [
    Rule("encoder/embeddings/word/embedding", f"{prefix}tokens_embed.weight"),
    Rule(
      "encoder/embeddings/position/embedding", f"{prefix}positions_embed.weight"
    ),
  ]
  for n, part in enumerate(("query", "key", "value")):
    to, name = f"{ours}/attention/{part}", f"{theirs}.attn.c_attn"
    rules += [
      Rule(f"{to}/kernel", f"{name}.weight", "split_outputs", (n, 3)),
      Rule(f"{to}/bias", f"{name}.bias", "heads_bias", (n, 3)),
    ]
  for part, name, move in (
    ("attention/output", "attn.c_proj", "split_inputs"),
    ("mlp_in", "mlp.c_fc", "copy"),
    ("mlp_out", "mlp.c_proj", "copy"),
  ):
    rules += [
      Rule(f"{ours}/{part}/kernel", f"{theirs}.{name}.weight", move),
      Rule(f"{ours}/{part}/bias", f"{theirs}.{name}.bias"),
    ]
  rules += _norm(f"{ours}/attention_norm", f"{theirs}.ln_1")
  return rules + _norm(f"{ours}/mlp_norm", f"{theirs}.ln_2")


def encoder_rules(
  family: str, model: dict[str, Any], prefix: str
) -> list[Rule]:
  """Rules of an encoder's parameters.

  Args:
    family: a key of `NAMINGS`.
    model: the encoder's attributes.
    prefix: the naming's, or "" for a file of an encoder alone.
  """
  if family == "gpt":
    return _gpt(prefix)
  tables, theirs = "encoder/embeddings", f"{prefix}embeddings"
  rules = [
    Rule(f"{tables}/word/embedding", f"{theirs}.word_embeddings.weight"),
    Rule(
      f"{tables}/position/embedding", f"{theirs}.position_embeddings.weight"
    ),
    *_norm(f"{tables}/norm", f"{theirs}.LayerNorm"),
  ]
  if family == "distilbert":
    ours, layer = "encoder/layers/layer", f"{prefix}transformer.layer.{{i}}"
    return rules + _layer(ours, layer, _DISTILBERT_LAYER)
  rules.append(
    Rule(
      f"{tables}/segment/embedding", f"{theirs}.token_type_embeddings.weight"
    )
  )
  if family == "albert":
    rules += _dense(
      "encoder/project", f"{prefix}encoder.embedding_hidden_mapping_in"
    )
    layer = f"{prefix}encoder.albert_layer_groups.{{i}}.albert_layers.0"
    return rules + _layer("encoder/layers/layer", layer, _ALBERT_LAYER)
  ours = "encoder"
  if family == "electra":
    ours = "encoder/tower"
    if model["embedding_size"] != model["hidden"]:
      rules += _dense(f"{ours}/project", f"{prefix}embeddings_project")
  layer = f"{prefix}encoder.layer.{{i}}"
  return rules + _layer(f"{ours}/layers/layer", layer, _BERT_LAYER)


def pooler_rules(family: str, prefix: str) -> list[Rule]:
  """Rules of the encoder's pooler; none where a family has none."""
  if family in ("bert", "tinybert", "roberta"):
    return _dense("pooler/dense", f"{prefix}pooler.dense")
  return _dense("pooler/dense", f"{prefix}pooler") if family == "albert" else []


def _mlm(dense: str, norm: str, bias: str) -> list[Rule]:
  rules = _dense("mlm/dense", dense) + _norm("mlm/norm", norm)
  return [*rules, Rule("mlm/bias", bias)]


def _next_sentence_rules(family: str, prefix: str) -> list[Rule]:
  head = _dense("pair/dense", "cls.seq_relationship")
  return pooler_rules(family, prefix) + head


def _pretraining_rules(family: str, prefix: str, pairs: bool) -> list[Rule]:
  pair = pooler_rules(family, prefix) if pairs else []
  if family in ("bert", "tinybert"):
    at = "cls.predictions"
    rules = _mlm(
      f"{at}.transform.dense", f"{at}.transform.LayerNorm", f"{at}.bias"
    )
    pair = _next_sentence_rules(family, prefix)
  elif family == "albert":
    at = "predictions"
    rules = _mlm(f"{at}.dense", f"{at}.LayerNorm", f"{at}.bias")
    pair += _dense("pair/dense", "sop_classifier.classifier")
  elif family == "roberta":
    rules = _mlm("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
  elif family == "distilbert":
    rules = _mlm("vocab_transform", "vocab_layer_norm", "vocab_projector.bias")
  else:
    rules = []
  return rules + pair if pairs else rules


def head_rules(
  family: str, task: str, prefix: str, pairs: bool = False
) -> list[Rule]:
  """Returns the rules for the parameters outside of the encoder.

  Args:
    family: a key of `NAMINGS`.
    task: a task of `model_folder.module_of`. For "encoder" there are no rules,
      not even of the pooler.
    prefix: the prefix of the encoder's arrays.
    pairs: True if a model of "pretraining" has a pooler and a pair head.
  """
  if task == "encoder":
    return []
  if task == "pretraining":
    return _pretraining_rules(family, prefix, pairs)
  if task == "next_sentence":
    return _next_sentence_rules(family, prefix)
  if task == "generator":
    at = "generator_predictions"
    return _mlm(f"{at}.dense", f"{at}.LayerNorm", "generator_lm_head.bias")
  if task == "discriminator":
    at = "discriminator_predictions"
    return _dense("rtd/dense", f"{at}.dense") + _dense(
      "rtd/output/dense", f"{at}.dense_prediction"
    )
  ours, choice = "classifier/dense", task == "multiple_choice"
  if task == "span":
    return _dense(ours, "qa_outputs")
  if task == "token_classification":
    return _dense(ours, "classifier")
  if family == "gpt":
    if choice:
      return _dense(ours, "multiple_choice_head.summary")
    return [Rule(f"{ours}/kernel", "score.weight", "transpose")]
  if family == "distilbert":
    pooler = _dense("pooler/dense", "pre_classifier")
    return pooler + _dense(ours, "classifier")
  if family in ("roberta", "electra") and not choice:
    pooler = _dense("pooler/dense", "classifier.dense")
    return pooler + _dense(ours, "classifier.out_proj")
  if family == "electra":
    pooler = _dense("pooler/dense", "sequence_summary.summary")
  else:
    pooler = pooler_rules(family, prefix)
  return pooler + _dense(ours, "classifier")
