"""Reads and writes Hugging Face's config.json, field by field.

The names and defaults of the fields are from transformers
(configuration_bert.py and similar files).
"""

import math
import numbers
from collections.abc import Collection, Mapping
from typing import Any

from bert_jax import models
from bert_jax.messages import UserError, note
from bert_jax.models import electra
from bert_jax.text import model_tokenizer
from bert_jax.weights import hf_names, hf_tasks

Config = dict[str, Any]

# Attribute of the encoder -> the bound that its number must be below. The
# numbers without an entry are dropout rates and epsilons, and must be below 1.
# `_check_padding` checks `padding_id`, whose bound depends on the sizes.
NUMBER_LIMITS = {"initializer_range": 100.0, "padding_id": math.inf}

_SIZE_FIELDS = {
  "vocab_size": "vocab_size",
  "hidden": "hidden_size",
  "num_layers": "num_hidden_layers",
  "heads": "num_attention_heads",
  "mlp": "intermediate_size",
  "max_positions": "max_position_embeddings",
  "num_segments": "type_vocab_size",
}
# Family -> attribute of the encoder -> field that holds a size. A config must
# have all of these fields.
SIZE_FIELDS: dict[str, dict[str, str]] = {
  "bert": _SIZE_FIELDS,
  "tinybert": _SIZE_FIELDS,
  "roberta": _SIZE_FIELDS,
  "albert": _SIZE_FIELDS
  | {"embedding_size": "embedding_size", "groups": "num_hidden_groups"},
  "electra": _SIZE_FIELDS | {"embedding_size": "embedding_size"},
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
PADDING_FIELD = "pad_token_id"
_NUMBER_FIELDS = {
  "dropout": "hidden_dropout_prob",
  "attention_dropout": "attention_probs_dropout_prob",
  "norm_epsilon": "layer_norm_eps",
  "initializer_range": "initializer_range",
}
# Family -> attribute of the encoder -> field that holds a number.
NUMBER_FIELDS: dict[str, dict[str, str]] = {
  "bert": _NUMBER_FIELDS,
  "tinybert": _NUMBER_FIELDS,
  "roberta": _NUMBER_FIELDS | {"padding_id": PADDING_FIELD},
  "albert": _NUMBER_FIELDS,
  "electra": _NUMBER_FIELDS,
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
# Field -> the value that transformers uses if the field is absent.
_BERT_DEFAULTS = {
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "attention_probs_dropout_prob": 0.1,
  "layer_norm_eps": 1e-12,
  "initializer_range": 0.02,
  "classifier_dropout": None,
}
# Family -> field -> the value that transformers uses if the field is absent.
FIELD_DEFAULTS: dict[str, Config] = {
  "bert": _BERT_DEFAULTS,
  "tinybert": _BERT_DEFAULTS,
  "roberta": {
    field: default
    for field, default in (_BERT_DEFAULTS | {"pad_token_id": 1}).items()
    if field != "layer_norm_eps"
  },
  "albert": _BERT_DEFAULTS
  | {
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.1,
  },
  "electra": _BERT_DEFAULTS
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
# Field -> its supported values.
_SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
  "position_embedding_type": ("absolute",),
  "is_decoder": (False, None),
  "add_cross_attention": (False, None),
  "inner_group_num": (1,),
  "pruned_heads": ({}, None),
}
# Field of the head for multiple choice -> its only supported value.
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
# Name of an activation in transformers -> its name here.
_ACTIVATIONS = {
  "gelu": "gelu",
  "gelu_python": "gelu",
  "gelu_new": "gelu_new",
  "gelu_pytorch_tanh": "gelu_new",
  "relu": "relu",
}
# GPT-1 calls the approximation by tanh "gelu" (modeling_openai.py, ACT_FNS).
_GPT_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu"}
# `problem_type` -> a converted folder's `problem`.
PROBLEMS = {
  "single_label_classification": "classification",
  "multi_label_classification": "multi_label",
  "regression": "regression",
}
# The epsilon of DistilBERT's layer norms, fixed in modeling_distilbert.py.
DISTILBERT_EPSILON = 1e-12
TASKS_WITH_LABELS = ("sequence_classification", "token_classification")


class Fields:
  """Reads the fields of a config.json and checks them."""

  def __init__(self, config: Mapping[str, Any], source: str):
    """Wraps a config.

    Args:
      config: the content of config.json.
      source: the file, for messages.
    """
    self.config, self.source = config, source

  def unsupported_value(self, field: str, reason: str) -> ValueError:
    """Returns the error for a field whose value is not supported."""
    return UserError(
      f"{self.source}: {field} is {self.config.get(field)!r}; {reason}."
    )

  def value(self, field: str) -> Any:
    """Returns a field's value; raises a UserError if it is absent."""
    if field not in self.config:
      raise UserError(f"{self.source} has no {field}; write it in.")
    return self.config[field]

  def size(self, field: str) -> int:
    """Returns a field's whole number; raises UserError if it is below 1."""
    size = self.value(field)
    if type(size) is not int or size < 1:
      raise self.unsupported_value(field, "it must be a whole number from 1")
    return size

  def number(self, field: str, limit: float = 1.0) -> float:
    """Returns a field's number; raises UserError if not in [0, `limit`)."""
    number = self.value(field)
    is_number = isinstance(number, numbers.Real)
    if not is_number or isinstance(number, bool) or not 0 <= number < limit:
      raise self.unsupported_value(
        field, f"it must be a number from 0 to below {limit:g}"
      )
    return number


class HfFields(Fields):
  """Reads the fields of transformers' config.json.

  An absent field has the default of transformers.

  Attributes:
    defaults_used: absent field that was read -> its default.
  """

  def __init__(self, config: Mapping[str, Any], family: str, source: str):
    """Wraps a config.

    Args:
      config: the content of config.json.
      family: a key of `hf_names.NAMINGS`.
      source: the file, for messages.
    """
    super().__init__(config, source)
    self.family = family
    self.defaults_used: Config = {}

  def notes(self) -> list[str]:
    """Returns one line about the absent fields; [] if no field is absent."""
    if not self.defaults_used:
      return []
    defaults = ", ".join(
      f"{field}={default!r}" for field, default in self.defaults_used.items()
    )
    return [f"{self.source} lacks fields; transformers uses {defaults}"]

  def size(self, field: str) -> int:
    """Returns a field's whole number; raises UserError if it is below 1."""
    if self.config.get(field) is None:
      raise UserError(
        f"{self.source} has no {field}, without which the model's shape is not"
        " known; write it in."
      )
    return super().size(field)

  def value(self, field: str) -> Any:
    """Returns a field's value; returns the default of an absent field.

    Raises:
      UserError: the field is absent and has no default.
    """
    if field in self.config:
      return self.config[field]
    if field not in FIELD_DEFAULTS[self.family]:
      # Only RoBERTa's `layer_norm_eps` has no entry in the table, because
      # fairseq and the class in transformers have different defaults.
      raise UserError(
        f"{self.source} has no {field}: models trained by fairseq have 1e-05,"
        " but transformers reads 1e-12; write in the right value."
      )
    self.defaults_used[field] = FIELD_DEFAULTS[self.family][field]
    return self.defaults_used[field]

  def check_value(self, field: str, allowed: Collection[Any]) -> None:
    """Raises a UserError if a field has a value that is not allowed."""
    if field in self.config and self.config[field] not in allowed:
      raise self.unsupported_value(
        field, f"only {next(iter(allowed))!r} is supported"
      )


def activation_field(family: str) -> str:
  """Returns the name of the field with the layers' activation."""
  return {"gpt": "afn", "distilbert": "activation"}.get(family, "hidden_act")


def activation_names(family: str) -> dict[str, str]:
  """Returns name of an activation in a family's config -> its name here."""
  return _GPT_ACTIVATIONS if family == "gpt" else _ACTIVATIONS


def head_has_exact_gelu(family: str, task: str) -> bool:
  """Returns True if the head always has the exact gelu.

  Then the head does not use the layers' activation.
  """
  is_roberta_head = family == "roberta" and task == "pretraining"
  return is_roberta_head or task == "generator"


def read_model(fields: HfFields, task: str) -> Config:
  """Returns the attributes of the encoder.

  Args:
    fields: the config.
    task: a task of `models.from_config.build`.

  Raises:
    UserError: a field is absent or has a value that is not supported; the
      message names the field.
  """
  family = fields.family
  for field, allowed in _SUPPORTED_VALUES.items():
    fields.check_value(field, allowed)
  model: Config = {
    attribute: fields.size(size_field)
    for attribute, size_field in SIZE_FIELDS[family].items()
  }
  model |= {
    attribute: fields.number(number_field, NUMBER_LIMITS.get(attribute, 1.0))
    for attribute, number_field in NUMBER_FIELDS[family].items()
  }
  _check_padding(fields, model)
  field, activations = activation_field(family), activation_names(family)
  activation = fields.value(field)
  if not isinstance(activation, str) or activation not in activations:
    raise fields.unsupported_value(
      field, f"it must be one of {sorted(activations)}"
    )
  model["activation"] = activations[activation]
  if head_has_exact_gelu(family, task) and model["activation"] != "gelu":
    raise fields.unsupported_value(
      field, "the head has 'gelu', so only 'gelu' is supported"
    )
  if family == "distilbert":
    model["norm_epsilon"] = DISTILBERT_EPSILON
  if family == "gpt":
    model["mlp"] = 4 * model["hidden"]
    if fields.number("embd_pdrop") != model["dropout"]:
      raise fields.unsupported_value("embd_pdrop", "it must equal resid_pdrop")
  return model


def _check_padding(fields: HfFields, model: Config) -> None:
  """Raises a UserError if the tables have no row for the padding's id."""
  padding_id, limit = fields.config.get(PADDING_FIELD), model["vocab_size"]
  if fields.family == "roberta":
    # RoBERTa's positions start after the padding's id. At least one row of the
    # table of positions must remain.
    padding_id = fields.value(PADDING_FIELD)
    limit = min(limit, model["max_positions"] - 1)
  elif padding_id is None or fields.family == "gpt":
    return  # GPT-1 has no padding, so its config may have any id.
  if type(padding_id) is not int or not 0 <= padding_id < limit:
    raise fields.unsupported_value(
      PADDING_FIELD, f"it must be a whole number from 0 to below {limit}"
    )


def dropout_field(family: str, task: str) -> str | None:
  """Returns the field with the dropout before a task's classifier.

  Returns:
    The field; None if the family's class has no field for this dropout.
  """
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


def classifier_dropout(fields: HfFields, task: str, model: Config) -> float:
  """Returns the dropout before a classifier; 0 if the class has no dropout.

  Args:
    fields: the config.
    task: a task with a classifier.
    model: the attributes of the encoder.
  """
  field = dropout_field(fields.family, task)
  if field is None:
    lacks_dropout = task == "span" or fields.family == "gpt"
    return 0.0 if lacks_dropout else model["dropout"]
  if fields.value(field) is None:
    return model["dropout"]
  return fields.number(field)


def problem_of(config: Mapping[str, Any], num_labels: int, source: str) -> str:
  """Returns a classifier's problem, a value of `PROBLEMS`.

  Without a field `problem_type`, a classifier with one label is a regression,
  as it is in transformers.

  Raises:
    UserError: the problem_type is unknown.
  """
  problem_type = config.get("problem_type")
  if problem_type is None:
    return "regression" if num_labels == 1 else "classification"
  # Search a list, because the value in a damaged config may not be hashable.
  if problem_type not in [*PROBLEMS]:
    raise UserError(
      f"{source}: problem_type is {problem_type!r}, not one of"
      f" {list(PROBLEMS)}."
    )
  return PROBLEMS[problem_type]


def class_pooling(family: str, task: str, dropout: float) -> Config:
  """Returns the fields of `heads.Pooling` for the class of transformers.

  Args:
    family: a key of `hf_names.NAMINGS`.
    task: "sequence_classification" or "multiple_choice".
    dropout: the rate before the classifier.
  """
  pooling = models.family(family).POOLING
  if family == "electra":
    pooling = electra.DENSE_POOLING
  if task == "multiple_choice":
    pooling = pooling._replace(input_dropout=False)
  return pooling._replace(dropout=dropout)._asdict()


def read_head(
  fields: HfFields,
  task: str,
  model: Config,
  num_labels: int,
  has_pair_head: bool,
) -> Config:
  """Returns the config's `head`: the arguments of the task's module.

  Args:
    fields: the config of transformers.
    task: a task of `models.from_config.build`.
    model: the attributes of the encoder.
    num_labels: the number of a classifier's labels.
    has_pair_head: True if a model of "pretraining" has a head for pairs.

  Raises:
    UserError: a field is absent or has a value that is not supported.
  """
  family, is_choice = fields.family, task == "multiple_choice"
  if task == "pretraining":
    return {} if family in ("gpt", "electra") else {"pairs": has_pair_head}
  if task in ("encoder", "generator", "discriminator"):
    return {}
  dropout = classifier_dropout(fields, task, model)
  if task == "span":
    return {"dropout": dropout}
  if task == "token_classification":
    return {"num_labels": num_labels, "dropout": dropout}
  if is_choice and family == "electra":
    for field, supported in _ELECTRA_SUMMARY.items():
      fields.check_value(field, (supported,))
    fields.check_value("summary_first_dropout", (0, None))
  if is_choice and family == "gpt":
    for field, supported in _GPT_SUMMARY.items():
      fields.check_value(field, (supported,))
  return {
    "pooling": class_pooling(family, task, dropout),
    "num_labels": 1 if is_choice else num_labels,
  }


# The limit protects the memory, which holds a name for each label. A classifier
# with a label for each piece of a large vocabulary has 250,000 labels.
MAX_LABELS = 10_000_000


def default_labels(count: int) -> list[str]:
  """Returns the names that transformers gives to labels without names."""
  return [f"LABEL_{i}" for i in range(count)]


def read_labels(
  config: Mapping[str, Any], source: str
) -> tuple[list[str], list[str]]:
  """Returns the label names in the order of their ids, and notes to print.

  Args:
    config: the config.json of a classifier.
    source: the file, for messages.

  Raises:
    UserError: the ids are not 0, 1, 2 and so on; two labels have the same name;
      or `id2label`, `label2id` and `num_labels` disagree.
  """
  id2label, num_labels = config.get("id2label"), config.get("num_labels")
  if id2label is None:
    if num_labels is None:
      labels = default_labels(2)
      return labels, [f"{source} has no labels; transformers reads {labels}"]
    return default_labels(_checked_label_count(num_labels, source)), []
  try:
    name_by_id = {int(key): str(name) for key, name in id2label.items()}
  except (AttributeError, ValueError) as e:
    raise UserError(f"{source}: id2label must map ids to names.") from e
  if sorted(name_by_id) != list(range(len(id2label))) or not name_by_id:
    raise UserError(
      f"{source}: the ids of id2label are {sorted(name_by_id)}, not 0, 1, ... ."
    )
  labels = [name_by_id[i] for i in range(len(name_by_id))]
  if len(set(labels)) != len(labels):
    repeated_label = next(name for name in labels if labels.count(name) > 1)
    raise UserError(f"{source}: id2label names {repeated_label!r} twice.")
  if not _labels_agree(labels, config.get("label2id")):
    raise UserError(
      f"{source}: id2label and label2id disagree; take out the wrong one."
    )
  if num_labels is None or num_labels == len(labels):
    return labels, []
  # In files of 2019, `num_labels` has the right count, and `id2label` is often
  # the unchanged default.
  if labels == default_labels(2):
    return default_labels(_checked_label_count(num_labels, source)), [
      f"{source}: id2label is the default, so num_labels={num_labels} is used"
    ]
  raise UserError(
    f"{source}: num_labels is {num_labels}, but id2label has {len(labels)}"
    " names."
  )


def _checked_label_count(count: Any, source: str) -> int:
  """Returns `num_labels`; raises a UserError unless it is a valid count."""
  if type(count) is not int or not 1 <= count <= MAX_LABELS:
    raise UserError(
      f"{source}: num_labels is {count!r:.40}, not a whole number from 1 to"
      f" {MAX_LABELS:,}."
    )
  return count


def _labels_agree(labels: list[str], label2id: Any) -> bool:
  """Returns True if `label2id` is absent or agrees with `labels`.

  The ids in `label2id` may be strings of digits.
  """
  if not label2id:
    return True
  try:
    id_by_label = {str(name): int(i) for name, i in label2id.items()}
  except (AttributeError, TypeError, ValueError, OverflowError):
    return False
  return id_by_label == {name: i for i, name in enumerate(labels)}


def label_fields(labels: list[str]) -> dict[str, Any]:
  """Returns the fields of transformers for labels."""
  return {
    "id2label": {str(i): name for i, name in enumerate(labels)},
    "label2id": {name: i for i, name in enumerate(labels)},
  }


def remaining_fields(
  config: Mapping[str, Any], family: str, task: str
) -> Config:
  """Returns the fields that no other key of a converted config holds.

  `make_config` writes these fields back unchanged. The fields of the activation
  and of the heads' dropouts are among them, because transformers has several
  spellings for one value.

  Args:
    config: the content of transformers' config.json.
    family: a key of `hf_names.NAMINGS`.
    task: a task of `models.from_config.build`.
  """
  tables = (SIZE_FIELDS[family], NUMBER_FIELDS[family])
  used_fields = {field for table in tables for field in table.values()}
  used_fields |= {"architectures"}
  if config.get("model_type") == hf_names.NAMINGS[family].model_type:
    used_fields |= {"model_type"}
  if task in TASKS_WITH_LABELS:
    used_fields |= {"id2label", "label2id", "num_labels"}
  return {
    field: field_value
    for field, field_value in config.items()
    if field not in used_fields
  }


def make_config(
  config: Mapping[str, Any], files: Mapping[str, bytes], dtype: str
) -> Config:
  """Returns the config.json of transformers for one model.

  Args:
    config: the config of a converted folder. An ELECTRA must have one tower.
    files: name -> content of the tokenizer's files.
    dtype: the dtype of the arrays that are written.

  Raises:
    UserError: transformers cannot hold the model; the message says why.
  """
  family, task, model = config["family"], config["task"], config["model"]
  source = config["source"]
  old_fields = source.get("config", {}) if source.get("format") == "hf" else {}
  has_pair_head = config["head"].get("pairs", False)
  naming = hf_names.NAMINGS[family]
  class_name = hf_tasks.class_of(family, task, has_pair_head)
  model_type = naming.model_type
  for class_prefix, model_type_with_same_names in naming.models_with_same_names:
    # Keep the model's type, because transformers chooses the tokenizer by it.
    # For example, the tokenizers of XLM-R and RoBERTa differ.
    if old_fields.get("model_type") == model_type_with_same_names:
      class_name = class_prefix + class_name.removeprefix(naming.class_prefix)
      model_type = model_type_with_same_names
  hf_config: Config = {"architectures": [class_name], "model_type": model_type}
  _check_storable(family, task, model)
  for table in (SIZE_FIELDS[family], NUMBER_FIELDS[family]):
    hf_config |= {field: model[attribute] for attribute, field in table.items()}
  if family == "gpt":
    hf_config["embd_pdrop"] = model["dropout"]
  if family == "albert":
    hf_config["inner_group_num"] = 1
  if old_fields.get("tie_word_embeddings") is False:
    # Our decoder is always tied to the word table, so set the field to True and
    # do not write a second copy of the table.
    hf_config["tie_word_embeddings"] = True
  hf_config["dtype"] = dtype
  if "torch_dtype" in old_fields:
    hf_config["torch_dtype"] = hf_config.pop("dtype")
  hf_config = {**old_fields, **hf_config}
  _set_activation(hf_config, family, model["activation"])
  if "pad_token_id" not in hf_config:
    padding_id = _padding_id(files)
    hf_config |= {} if padding_id is None else {"pad_token_id": padding_id}
  if task in TASKS_WITH_LABELS:
    hf_config |= label_fields(config["labels"])
  _set_problem(hf_config, config)
  _set_head(hf_config, config)
  return hf_config


def _padding_id(files: Mapping[str, bytes]) -> int | None:
  """Returns the padding's id; None if the tokenizer does not say it."""
  if "vocab.txt" in files:
    pieces = files["vocab.txt"].decode("utf-8").splitlines()
    return pieces.index("[PAD]") if "[PAD]" in pieces else None
  if model_tokenizer.TOKENIZER_JSON not in files:
    return None
  try:
    tokenizer = model_tokenizer.build(files, "the model")
  except ValueError:
    return None  # Damaged tokenizer files are copied as they are.
  if tokenizer is None:
    return None
  ids = [tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>")]
  return next((candidate for candidate in ids if candidate is not None), None)


def _check_storable(family: str, task: str, model: Config) -> None:
  """Raises a UserError if transformers cannot store an attribute's value."""
  epsilon = DISTILBERT_EPSILON
  if family == "distilbert" and model["norm_epsilon"] != epsilon:
    raise UserError(
      f"model.norm_epsilon={model['norm_epsilon']}: transformers' DistilBERT"
      f" has no such field, and always uses {epsilon}."
    )
  if family == "gpt" and model["mlp"] != 4 * model["hidden"]:
    raise UserError(
      f"model.mlp={model['mlp']}: transformers' GPT-1 has no such field,"
      f" and always uses 4 x {model['hidden']}."
    )
  if head_has_exact_gelu(family, task) and model["activation"] != "gelu":
    raise UserError(
      f"model.activation={model['activation']!r}: the head of transformers'"
      f" {hf_tasks.class_of(family, task)} has no such field, and always"
      " uses 'gelu'."
    )


def _set_activation(hf_config: Config, family: str, activation: str) -> None:
  """Writes the activation, unless the field already has a name for it."""
  field = activation_field(family)
  activations = activation_names(family)
  if activations.get(hf_config.get(field, "")) == activation:
    return
  spellings = [
    name for name, meaning in activations.items() if meaning == activation
  ]
  if not spellings:
    raise UserError(
      f"model.activation={activation!r}: transformers' {family} has only"
      f" {sorted(activations.values())}."
    )
  hf_config[field] = spellings[0]


def _set_problem(hf_config: Config, config: Mapping[str, Any]) -> None:
  """Writes a classifier's problem, unless it follows from the other fields."""
  if config["task"] != "sequence_classification":
    return
  num_labels, source = len(config["labels"]), "config.json"
  if problem_of(hf_config, num_labels, source) == config["problem"]:
    return
  problem_types = {problem: name for name, problem in PROBLEMS.items()}
  hf_config["problem_type"] = problem_types[config["problem"]]


def _set_head(hf_config: Config, config: Mapping[str, Any]) -> None:
  """Writes the head's dropout, unless it follows from the other fields."""
  family, task, head = config["family"], config["task"], config["head"]
  if "pooling" in head:
    dropout = head["pooling"]["dropout"]
    supported_pooling = class_pooling(family, task, dropout)
    if head["pooling"] != supported_pooling:
      class_name = hf_config["architectures"][0]
      raise UserError(
        f"head.pooling={head['pooling']}: transformers' {class_name} has"
        f" {supported_pooling}."
      )
  elif "dropout" in head:
    dropout = head["dropout"]
  else:
    return
  fields = HfFields(hf_config, family, "config.json")
  if classifier_dropout(fields, task, config["model"]) == dropout:
    return
  field = dropout_field(family, task)
  if field is None:
    class_name = hf_config["architectures"][0]
    note(
      f"note: {class_name} has no field for the dropout {dropout} of the head."
    )
  else:
    hf_config[field] = dropout
