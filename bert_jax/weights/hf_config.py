"""Fields of Hugging Face's config.json, one by one, both ways.

Their names, and what an absent one means, from transformers
(configuration_bert.py and its like).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax import models
from bert_jax.models import electra
from bert_jax.weights.hf_config_fields import LIMITS, Fields

Config = dict[str, Any]

_SIZES = {
  "vocab_size": "vocab_size",
  "hidden": "hidden_size",
  "num_layers": "num_hidden_layers",
  "heads": "num_attention_heads",
  "mlp": "intermediate_size",
  "max_positions": "max_position_embeddings",
  "num_segments": "type_vocab_size",
}
# Attribute of the encoder -> field. Without a size no model can be built.
SIZES: dict[str, dict[str, str]] = {
  "bert": _SIZES,
  "tinybert": _SIZES,
  "roberta": _SIZES,
  "albert": _SIZES
  | {"embedding_size": "embedding_size", "groups": "num_hidden_groups"},
  "electra": _SIZES | {"embedding_size": "embedding_size"},
  "distilbert": {
    "vocab_size": "vocab_size",
    "hidden": "dim",
    "num_layers": "n_layers",
    "heads": "n_heads",
    "mlp": "hidden_dim",
    "max_positions": "max_position_embeddings",
  },
  "gpt": {
    "vocab_size": "vocab_size",
    "hidden": "n_embd",
    "num_layers": "n_layer",
    "heads": "n_head",
    "max_positions": "n_positions",
  },
}
PADDING = "pad_token_id"
_NUMBERS = {
  "dropout": "hidden_dropout_prob",
  "attention_dropout": "attention_probs_dropout_prob",
  "norm_epsilon": "layer_norm_eps",
  "initializer_range": "initializer_range",
}
NUMBERS: dict[str, dict[str, str]] = {
  "bert": _NUMBERS,
  "tinybert": _NUMBERS,
  "roberta": _NUMBERS | {"padding_id": PADDING},
  "albert": _NUMBERS,
  "electra": _NUMBERS,
  "distilbert": {
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "initializer_range": "initializer_range",
  },
  "gpt": {
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "norm_epsilon": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
  },
}
# What transformers reads for an absent field.
_ABSENT = {
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "attention_probs_dropout_prob": 0.1,
  "layer_norm_eps": 1e-12,
  "initializer_range": 0.02,
  "classifier_dropout": None,
}
ABSENT: dict[str, Config] = {
  "bert": _ABSENT,
  "tinybert": _ABSENT,
  "roberta": {
    field: value
    for field, value in (_ABSENT | {"pad_token_id": 1}).items()
    if field != "layer_norm_eps"
  },
  "albert": _ABSENT
  | {
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.1,
  },
  "electra": _ABSENT
  | {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
  },
  "distilbert": {
    "activation": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "initializer_range": 0.02,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
  },
  "gpt": {
    "afn": "gelu",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "summary_activation": None,
    "summary_proj_to_labels": True,
    "summary_first_dropout": 0.1,
  },
}
# Values other than these mean a model that is not built here.
_ONLY = {
  "position_embedding_type": ("absolute",),
  "is_decoder": (False, None),
  "add_cross_attention": (False, None),
  "inner_group_num": (1,),
  "pruned_heads": ({}, None),
}
_ELECTRA_SUMMARY = {
  "summary_type": "first",
  "summary_use_proj": True,
  "summary_activation": "gelu",
}
_GPT_SUMMARY = {
  "summary_type": "cls_index",
  "summary_use_proj": True,
  "summary_activation": None,
  "summary_proj_to_labels": True,
}
# GPT-1's "gelu" is the tanh form (modeling_openai.py, ACT_FNS).
_ACTIVATIONS = {
  "gelu": "gelu",
  "gelu_python": "gelu",
  "gelu_new": "gelu_new",
  "gelu_pytorch_tanh": "gelu_new",
  "relu": "relu",
}
_GPT_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu"}
PROBLEMS = {
  "single_label_classification": "classification",
  "multi_label_classification": "multi_label",
  "regression": "regression",
}
# The classes have it as a number, not as a field (modeling_distilbert.py).
DISTILBERT_EPSILON = 1e-12
WITH_LABELS = ("sequence_classification", "token_classification")


class HfFields(Fields):
  """Fields of one config of transformers; remembers which were absent."""

  def __init__(self, config: Mapping[str, Any], family: str, where: str):
    super().__init__(config, where)
    self.family = family
    self.absent: Config = {}

  def notes(self) -> list[str]:
    """What was read for absent fields."""
    if not self.absent:
      return []
    values = ", ".join(f"{f}={v!r}" for f, v in self.absent.items())
    return [f"{self.where} lacks what transformers reads as {values}"]

  def size(self, field: str) -> int:
    """A whole number from 1; ValueError if it is absent or another."""
    if self.config.get(field) is None:
      raise ValueError(
        f"{self.where} has no {field}, without which the model's shape is not"
        " known; write it in."
      )
    return super().size(field)

  def value(self, field: str) -> Any:
    """A field, or what its absence means; ValueError if that is not known."""
    if field in self.config:
      return self.config[field]
    if field not in ABSENT[self.family]:
      # RoBERTa's: fairseq trains with the one, the class's default is the
      # other.
      raise ValueError(
        f"{self.where} has no {field}: models trained by fairseq have 1e-05,"
        " transformers reads 1e-12; write in the right one."
      )
    self.absent[field] = ABSENT[self.family][field]
    return self.absent[field]

  def only(self, field: str, allowed: Iterable[Any]) -> None:
    """Raises ValueError if a field is there with a value not allowed."""
    if field in self.config and self.config[field] not in allowed:
      raise self.refuse(field, f"only {next(iter(allowed))!r} is known here")


def activation_field(family: str) -> str:
  """The field with the activation of the layers."""
  return {"gpt": "afn", "distilbert": "activation"}.get(family, "hidden_act")


def activation_names(family: str) -> dict[str, str]:
  return _GPT_ACTIVATIONS if family == "gpt" else _ACTIVATIONS


def exact_gelu(family: str, task: str) -> bool:
  """Whether the head has the exact gelu whatever the layers have."""
  roberta = family == "roberta" and task == "pretraining"
  return roberta or task == "generator"


def read_model(fields: HfFields, task: str) -> Config:
  """Attributes of the encoder; ValueError names the field that is wrong."""
  family = fields.family
  for field, allowed in _ONLY.items():
    fields.only(field, allowed)
  model = {ours: fields.size(f) for ours, f in SIZES[family].items()}
  model |= {
    ours: fields.number(f, LIMITS.get(ours, 1.0))
    for ours, f in NUMBERS[family].items()
  }
  _check_padding(fields, model)
  field, names = activation_field(family), activation_names(family)
  activation = fields.value(field)
  if not isinstance(activation, str) or activation not in names:
    raise fields.refuse(field, f"known are {sorted(names)}")
  model["activation"] = names[activation]
  if exact_gelu(family, task) and model["activation"] != "gelu":
    raise fields.refuse(field, "with 'gelu' in the head, only 'gelu' is known")
  if family == "distilbert":
    model["norm_epsilon"] = DISTILBERT_EPSILON
  if family == "gpt":
    model["mlp"] = 4 * model["hidden"]
    if fields.number("embd_pdrop") != model["dropout"]:
      raise fields.refuse("embd_pdrop", "it must be resid_pdrop")
  return model


def _check_padding(fields: HfFields, model: Config) -> None:
  """Raises ValueError if the padding's id is no row of the tables."""
  value, limit = fields.config.get(PADDING), model["vocab_size"]
  if fields.family == "roberta":
    # Positions count from the padding's id on; one row is left at least.
    value = fields.value(PADDING)
    limit = min(limit, model["max_positions"] - 1)
  elif value is None or fields.family == "gpt":
    return  # A GPT-1 has no padding, and its config may say anything.
  if type(value) is not int or not 0 <= value < limit:
    raise fields.refuse(
      PADDING, f"it must be a whole number from 0 to below {limit}"
    )


def dropout_field(family: str, task: str) -> str | None:
  """The field that holds the dropout before a task's classifier."""
  if family == "albert" and task != "span":
    return "classifier_dropout_prob"
  if family == "distilbert":
    return {"span": "qa_dropout", "token_classification": None}.get(
      task, "seq_classif_dropout"
    )
  if family == "gpt":
    return "summary_first_dropout" if task == "multiple_choice" else None
  if task == "multiple_choice" and family in ("roberta", "electra"):
    return "summary_last_dropout" if family == "electra" else None
  return None if task == "span" else "classifier_dropout"


def dropout_before(fields: HfFields, task: str, model: Config) -> float:
  """The dropout before a task's classifier; 0 where the class has none."""
  field = dropout_field(fields.family, task)
  if field is None:
    none = task == "span" or fields.family == "gpt"
    return 0.0 if none else model["dropout"]
  value = fields.value(field)
  return model["dropout"] if value is None else fields.number(field)


def problem_of(config: Mapping[str, Any], num_labels: int, where: str) -> str:
  """What a classifier is for; one label and nothing said is a regression.

  Raises:
    ValueError: an unknown problem_type.
  """
  value = config.get("problem_type")
  if value is None:
    return "regression" if num_labels == 1 else "classification"
  if value not in [*PROBLEMS]:
    raise ValueError(
      f"{where}: problem_type is {value!r}, not one of {list(PROBLEMS)}."
    )
  return PROBLEMS[value]


def pooling(family: str, task: str, dropout: float) -> Config:
  """Fields of `heads.Pooling` for the class of transformers."""
  result = models.family(family).POOLING
  if family == "electra":
    result = electra.DENSE_POOLING
  if task == "multiple_choice":
    result = result._replace(input_dropout=False)
  return result._replace(dropout=dropout)._asdict()


def read_head(
  fields: HfFields, task: str, model: Config, num_labels: int, pairs: bool
) -> Config:
  """Keyword arguments of the task's module; see `folder.module_of`."""
  family, choice = fields.family, task == "multiple_choice"
  if task == "pretraining":
    return {} if family in ("gpt", "electra") else {"pairs": pairs}
  if task in ("encoder", "generator", "discriminator"):
    return {}
  dropout = dropout_before(fields, task, model)
  if task == "span":
    return {"dropout": dropout}
  if task == "token_classification":
    return {"num_labels": num_labels, "dropout": dropout}
  if choice and family == "electra":
    for field, value in _ELECTRA_SUMMARY.items():
      fields.only(field, (value,))
    fields.only("summary_first_dropout", (0, None))
  if choice and family == "gpt":
    for field, value in _GPT_SUMMARY.items():
      fields.only(field, (value,))
  return {
    "pooling": pooling(family, task, dropout),
    "num_labels": 1 if choice else num_labels,
  }
