"""The config.json of transformers for a converted model."""

from collections.abc import Mapping
from typing import Any

from bert_jax.messages import note
from bert_jax.text import model_tokenizer
from bert_jax.weights import hf_config, hf_names, hf_tasks
from bert_jax.weights import hf_config_hf_labels as hf_labels

Config = dict[str, Any]


def kept(config: Mapping[str, Any], family: str, task: str) -> Config:
  """Fields to write back as they were: those that nothing else holds.

  The activation and dropouts of heads have several spellings each and stay.
  """
  tables = (hf_config.SIZES[family], hf_config.NUMBERS[family])
  used = {field for table in tables for field in table.values()}
  used |= {"architectures"}
  if config.get("model_type") == hf_names.NAMINGS[family].model_type:
    used |= {"model_type"}
  if task in hf_config.WITH_LABELS:
    used |= {"id2label", "label2id", "num_labels"}
  return {field: v for field, v in config.items() if field not in used}


def make(
  config: Mapping[str, Any], files: Mapping[str, bytes], dtype: str
) -> Config:
  """The config of transformers for one model.

  Args:
    config: of a folder, of one tower if it is ELECTRA's.
    files: its tokenizer's.
    dtype: of the arrays that are written.

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
  for table in (hf_config.SIZES[family], hf_config.NUMBERS[family]):
    result |= {field: model[ours] for ours, field in table.items()}
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
  if task in hf_config.WITH_LABELS:
    result |= hf_labels.write(config["labels"])
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
  epsilon = hf_config.DISTILBERT_EPSILON
  if family == "distilbert" and model["norm_epsilon"] != epsilon:
    raise ValueError(
      f"model.norm_epsilon={model['norm_epsilon']}: transformers' DistilBERT"
      f" has {epsilon} and no field for it."
    )
  if family == "gpt" and model["mlp"] != 4 * model["hidden"]:
    raise ValueError(
      f"model.mlp={model['mlp']}: transformers' GPT-1 has 4 x {model['hidden']}"
      " and no field for it."
    )
  if hf_config.exact_gelu(family, task) and model["activation"] != "gelu":
    raise ValueError(
      f"model.activation={model['activation']!r}: the head of transformers'"
      f" {hf_tasks.class_of(family, task)} has 'gelu' and no field for it."
    )


def _set_activation(result: Config, family: str, activation: str) -> None:
  field = hf_config.activation_field(family)
  names = hf_config.activation_names(family)
  if names.get(result.get(field)) == activation:
    return
  fits = [name for name, ours in names.items() if ours == activation]
  if not fits:
    raise ValueError(
      f"model.activation={activation!r}: transformers' {family} has none but"
      f" {sorted(names.values())}."
    )
  result[field] = fits[0]


def _set_problem(result: Config, config: Mapping[str, Any]) -> None:
  if config["task"] != "sequence_classification":
    return
  count, where = len(config["labels"]), "config.json"
  if hf_config.problem_of(result, count, where) == config["problem"]:
    return
  back = {ours: name for name, ours in hf_config.PROBLEMS.items()}
  result["problem_type"] = back[config["problem"]]


def _set_head(result: Config, config: Mapping[str, Any]) -> None:
  """Writes the dropout of the head unless the fields already mean it."""
  family, task, head = config["family"], config["task"], config["head"]
  if "pooling" in head:
    dropout = head["pooling"]["dropout"]
    known = hf_config.pooling(family, task, dropout)
    if head["pooling"] != known:
      name = result["architectures"][0]
      raise ValueError(
        f"head.pooling={head['pooling']}: transformers' {name} has {known}."
      )
  elif "dropout" in head:
    dropout = head["dropout"]
  else:
    return
  fields = hf_config.HfFields(result, family, "config.json")
  if hf_config.dropout_before(fields, task, config["model"]) == dropout:
    return
  field = hf_config.dropout_field(family, task)
  if field is None:
    name = result["architectures"][0]
    note(f"note: {name} has no field for the dropout {dropout} of the head.")
  else:
    result[field] = dropout
