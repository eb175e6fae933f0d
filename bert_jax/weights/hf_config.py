"""Fields of Hugging Face's config.json, one by one, both ways.

Their names, and what an absent one means, from transformers
(configuration_bert.py and its like).
"""

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax import models
from bert_jax.messages import UserError, note
from bert_jax.models import electra
from bert_jax.text import model_tokenizer
from bert_jax.weights import hf_names, hf_tasks

Config = dict[str, Any]

# Attribute of the encoder -> the limit of its number; that of the others,
# dropout rates and epsilons, is 1. A padding's depends on the sizes.
LIMITS = {"initializer_range": 100.0, "padding_id": math.inf}

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
# The value that transformers takes for an absent field.
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


class Fields:
  """Fields of one config; a format may say what an absent one means."""

  def __init__(self, config: Mapping[str, Any], source: str):
    self.config, self.where = config, source

  def refuse(self, field: str, why: str) -> ValueError:
    """The error that a field's value is worth."""
    value = self.config.get(field)
    return UserError(f"{self.where}: {field} is {value!r}; {why}.")

  def value(self, field: str) -> Any:
    """A field; ValueError if it is absent."""
    if field not in self.config:
      raise UserError(f"{self.where} has no {field}; write it in.")
    return self.config[field]

  def size(self, field: str) -> int:
    """A whole number from 1; ValueError if it is another."""
    value = self.value(field)
    if type(value) is not int or value < 1:
      raise self.refuse(field, "it must be a whole number from 1")
    return value

  def number(self, field: str, limit: float = 1.0) -> float:
    """A number from 0 to below a limit; ValueError if it is another."""
    value = self.value(field)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 <= value < limit:
      raise self.refuse(field, f"it must be a number from 0 to below {limit:g}")
    return value


class HfFields(Fields):
  """Fields of one config of transformers; remembers which were absent."""

  def __init__(self, config: Mapping[str, Any], family: str, source: str):
    super().__init__(config, source)
    self.family = family
    self.absent: Config = {}

  def notes(self) -> list[str]:
    """Returns a line for each absent field with the value that was taken."""
    if not self.absent:
      return []
    values = ", ".join(f"{f}={v!r}" for f, v in self.absent.items())
    return [f"{self.where} lacks what transformers reads as {values}"]

  def size(self, field: str) -> int:
    """A whole number from 1; ValueError if it is absent or another."""
    if self.config.get(field) is None:
      raise UserError(
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
      raise UserError(
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
  """Returns True if the head has the exact gelu whatever the layers have."""
  roberta = family == "roberta" and task == "pretraining"
  return roberta or task == "generator"


def read_model(fields: HfFields, task: str) -> Config:
  """Attributes of the encoder; ValueError names the field that is wrong."""
  family = fields.family
  for field, allowed in _ONLY.items():
    fields.only(field, allowed)
  model = {attribute: fields.size(f) for attribute, f in SIZES[family].items()}
  model |= {
    attribute: fields.number(f, LIMITS.get(attribute, 1.0))
    for attribute, f in NUMBERS[family].items()
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


def problem_of(config: Mapping[str, Any], num_labels: int, source: str) -> str:
  """Returns the problem of a classifier; by default one label is a regression.

  Raises:
    ValueError: an unknown problem_type.
  """
  value = config.get("problem_type")
  if value is None:
    return "regression" if num_labels == 1 else "classification"
  if value not in [*PROBLEMS]:
    raise UserError(
      f"{source}: problem_type is {value!r}, not one of {list(PROBLEMS)}."
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
  """Keyword arguments of the task's module; see `model_folder.module_of`."""
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


# Each has a name in memory; classifiers of a whole vocabulary have 250,000.
MAX_LABELS = 10_000_000


def default_labels(count: int) -> list[str]:
  """The names that transformers gives to labels without any."""
  return [f"LABEL_{i}" for i in range(count)]


def read_labels(
  config: Mapping[str, Any], source: str
) -> tuple[list[str], list[str]]:
  """Label names in the order of their ids, and notes.

  Args:
    config: the config.json of a classifier.
    source: its file, for messages.

  Raises:
    ValueError: ids are not 0, 1, ..., a name stands twice, or the two maps or
      the count disagree.
  """
  names, count = config.get("id2label"), config.get("num_labels")
  if names is None:
    if count is None:
      labels = default_labels(2)
      return labels, [
        f"{source} has no labels: {labels}, as transformers reads"
      ]
    return default_labels(_counted(count, source)), []
  try:
    by_id = {int(key): str(name) for key, name in names.items()}
  except (AttributeError, ValueError) as e:
    raise UserError(f"{source}: id2label is no map from ids to names.") from e
  if sorted(by_id) != list(range(len(names))) or not by_id:
    raise UserError(
      f"{source}: the ids of id2label are {sorted(by_id)}, not 0, 1, ... ."
    )
  labels = [by_id[i] for i in range(len(by_id))]
  if len(set(labels)) != len(labels):
    twice = next(name for name in labels if labels.count(name) > 1)
    raise UserError(f"{source}: id2label names {twice!r} twice.")
  if not _agree(labels, config.get("label2id")):
    raise UserError(
      f"{source}: id2label and label2id disagree; take out the wrong one."
    )
  if count is None or count == len(labels):
    return labels, []
  # Files of 2019 have their own count beside the unchanged default.
  if labels == default_labels(2):
    return default_labels(_counted(count, source)), [
      f"{source}: id2label is the default, num_labels={count} counts"
    ]
  raise UserError(
    f"{source}: num_labels is {count}, id2label has {len(labels)} names."
  )


def _counted(count: Any, source: str) -> int:
  """`num_labels`, if it is a number of labels."""
  if type(count) is not int or not 1 <= count <= MAX_LABELS:
    raise UserError(
      f"{source}: num_labels is {count!r:.40}, not a whole number from 1 to"
      f" {MAX_LABELS:,}."
    )
  return count


def _agree(labels: list[str], backward: Any) -> bool:
  """Returns True if label2id is absent or agrees; its ids may be text."""
  if not backward:
    return True
  try:
    ids = {str(name): int(i) for name, i in backward.items()}
  except (AttributeError, TypeError, ValueError, OverflowError):
    return False
  return ids == {name: i for i, name in enumerate(labels)}


def write_labels(labels: list[str]) -> dict[str, Any]:
  """The fields for labels."""
  return {
    "id2label": {str(i): name for i, name in enumerate(labels)},
    "label2id": {name: i for i, name in enumerate(labels)},
  }


def source_fields(config: Mapping[str, Any], family: str, task: str) -> Config:
  """Fields to write back as they were: those that nothing else holds.

  The activation and dropouts of heads have several spellings each and stay.
  """
  tables = (SIZES[family], NUMBERS[family])
  used = {field for table in tables for field in table.values()}
  used |= {"architectures"}
  if config.get("model_type") == hf_names.NAMINGS[family].model_type:
    used |= {"model_type"}
  if task in WITH_LABELS:
    used |= {"id2label", "label2id", "num_labels"}
  return {field: v for field, v in config.items() if field not in used}


def make_config(
  config: Mapping[str, Any], files: Mapping[str, bytes], dtype: str
) -> Config:
  """The config of transformers for one model.

  Args:
    config: the config of a converted folder; for ELECTRA, of one tower.
    files: its tokenizer's.
    dtype: the dtype of the arrays that are written.

  Raises:
    ValueError: transformers has no such model; names what is in the way.
  """
  family, task, model = config["family"], config["task"], config["model"]
  source = config["source"]
  old = source.get("config", {}) if source.get("format") == "hf" else {}
  pairs = config["head"].get("pairs", False)
  naming = hf_names.NAMINGS[family]
  cls, kind = hf_tasks.class_of(family, task, pairs), naming.model_type
  for other, its_kind in naming.others:
    # XLM-R, say, whose tokenizer transformers finds by this name.
    if old.get("model_type") == its_kind:
      cls, kind = other + cls.removeprefix(naming.classes), its_kind
  result = {"architectures": [cls], "model_type": kind}
  _check(family, task, model)
  for table in (SIZES[family], NUMBERS[family]):
    result |= {field: model[attribute] for attribute, field in table.items()}
  if family == "gpt":
    result["embd_pdrop"] = model["dropout"]
  if family == "albert":
    result["inner_group_num"] = 1
  if old.get("tie_word_embeddings") is False:
    # Tied they are, and the copy is not written.
    result["tie_word_embeddings"] = True
  result["dtype"] = dtype
  if "torch_dtype" in old:
    result["torch_dtype"] = result.pop("dtype")
  result = {**old, **result}
  _set_activation(result, family, model["activation"])
  if "pad_token_id" not in result:
    number = _padding(files)
    result |= {} if number is None else {"pad_token_id": number}
  if task in WITH_LABELS:
    result |= write_labels(config["labels"])
  _set_problem(result, config)
  _set_head(result, config)
  return result


def _padding(files: Mapping[str, bytes]) -> int | None:
  """The id of padding; None where the tokenizer's files do not say it."""
  if "vocab.txt" in files:
    pieces = files["vocab.txt"].decode("utf-8").splitlines()
    return pieces.index("[PAD]") if "[PAD]" in pieces else None
  if model_tokenizer.JSON not in files:
    return None
  try:
    tokenizer = model_tokenizer.build(files, "the model")
  except ValueError:  # The files are copied as they are.
    return None
  numbers = [tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>")]
  return next((number for number in numbers if number is not None), None)


def _check(family: str, task: str, model: Config) -> None:
  """Raises ValueError if transformers has no field for an attribute."""
  epsilon = DISTILBERT_EPSILON
  if family == "distilbert" and model["norm_epsilon"] != epsilon:
    raise UserError(
      f"model.norm_epsilon={model['norm_epsilon']}: transformers' DistilBERT"
      f" has {epsilon} and no field for it."
    )
  if family == "gpt" and model["mlp"] != 4 * model["hidden"]:
    raise UserError(
      f"model.mlp={model['mlp']}: transformers' GPT-1 has 4 x {model['hidden']}"
      " and no field for it."
    )
  if exact_gelu(family, task) and model["activation"] != "gelu":
    raise UserError(
      f"model.activation={model['activation']!r}: the head of transformers'"
      f" {hf_tasks.class_of(family, task)} has 'gelu' and no field for it."
    )


def _set_activation(result: Config, family: str, activation: str) -> None:
  field = activation_field(family)
  names = activation_names(family)
  if names.get(result.get(field)) == activation:
    return
  fits = [
    name
    for name, our_activation in names.items()
    if our_activation == activation
  ]
  if not fits:
    raise UserError(
      f"model.activation={activation!r}: transformers' {family} has none but"
      f" {sorted(names.values())}."
    )
  result[field] = fits[0]


def _set_problem(result: Config, config: Mapping[str, Any]) -> None:
  if config["task"] != "sequence_classification":
    return
  count, source = len(config["labels"]), "config.json"
  if problem_of(result, count, source) == config["problem"]:
    return
  back = {problem: name for name, problem in PROBLEMS.items()}
  result["problem_type"] = back[config["problem"]]


def _set_head(result: Config, config: Mapping[str, Any]) -> None:
  """Writes the dropout of the head unless the fields already mean it."""
  family, task, head = config["family"], config["task"], config["head"]
  if "pooling" in head:
    dropout = head["pooling"]["dropout"]
    default_pooling = pooling(family, task, dropout)
    if head["pooling"] != default_pooling:
      name = result["architectures"][0]
      raise UserError(
        f"head.pooling={head['pooling']}: transformers' {name} has"
        f" {default_pooling}."
      )
  elif "dropout" in head:
    dropout = head["dropout"]
  else:
    return
  fields = HfFields(result, family, "config.json")
  if dropout_before(fields, task, config["model"]) == dropout:
    return
  field = dropout_field(family, task)
  if field is None:
    name = result["architectures"][0]
    note(f"note: {name} has no field for the dropout {dropout} of the head.")
  else:
    result[field] = dropout
