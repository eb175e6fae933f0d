"""Reads Google's TensorFlow 1 releases of BERT, ALBERT and ELECTRA."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from etils import epath

from bert_jax import models
from bert_jax.messages import UserError, note
from bert_jax.models import from_config
from bert_jax.weights import (
  generator_discriminator,
  hf_config,
  hf_files,
  mapping,
  model_folder,
  tf1_names,
)
from bert_jax.weights.hf_config import NUMBER_LIMITS, Fields
from bert_jax.weights.mapping import Shape
from bert_jax.weights.model_folder import Weights

Config = dict[str, Any]
_INDEX_ENDING = ".index"
# Name of a tokenizer's file in ALBERT's releases -> its name in a folder here.
_SENTENCEPIECE_NAMES = {"30k-clean.model": "spiece.model"}
# A vocabulary is cased if more than this share of its pieces has capitals.
# Lower-cased vocabularies may have a few pieces with capitals by accident.
_CASED_SHARE = 0.01
# A checkpoint with this variable holds Python objects of TensorFlow 2. Its
# other variables have no stable names.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def find_checkpoint(path: str) -> str:
  """Returns the prefix of the checkpoint that a path names.

  Args:
    path: a checkpoint's prefix, its `.index` file, or its folder. If the folder
      has several checkpoints, its file `checkpoint` must name one of them.

  Raises:
    UserError: there is no checkpoint, or there are several and the path does
      not say which one to read.
  """
  if path.endswith(_INDEX_ENDING) and epath.Path(path).is_file():
    return path.removesuffix(_INDEX_ENDING)
  if epath.Path(path + _INDEX_ENDING).is_file():
    return path
  folder = epath.Path(path)
  if not folder.is_dir():
    raise UserError(
      f"there is no checkpoint {path}; name its folder, its prefix (the files'"
      f" names up to {_INDEX_ENDING} and .data) or its {_INDEX_ENDING} file."
    )
  file_names = [file.name for file in folder.iterdir()]
  checkpoint_names = sorted(
    name.removesuffix(_INDEX_ENDING)
    for name in file_names
    if name.endswith(_INDEX_ENDING)
  )
  if not checkpoint_names:
    raise UserError(
      f"{path} holds no TF1 checkpoint, since no file in it ends with"
      f" {_INDEX_ENDING}."
    )
  if len(checkpoint_names) > 1:
    latest_name = _latest_name(folder)
    if latest_name not in checkpoint_names:
      raise UserError(
        f"{path} holds several checkpoints, {', '.join(checkpoint_names)};"
        f" name one by its prefix, as in {folder / checkpoint_names[0]}."
      )
    checkpoint_names = [latest_name]
  return str(folder / checkpoint_names[0])


def _latest_name(folder: epath.Path) -> str | None:
  """Returns the name in a folder's file `checkpoint`; None if there is no name.

  The file holds a path that may be absolute. Only the last component of the
  path counts, because the folder may have been moved.
  """
  try:
    content = (folder / "checkpoint").read_text("utf-8")
  except (FileNotFoundError, UnicodeDecodeError):
    return None
  match = re.search(r'^model_checkpoint_path: "(.*)"', content, re.M)
  return match[1].rpartition("/")[2] if match else None


def read_checkpoint(prefix: str) -> tuple[dict[str, np.ndarray], list[str]]:
  """Reads the variables of a checkpoint.

  Args:
    prefix: see `find_checkpoint`.

  Returns:
    Name -> array, sorted by name; and the names of the variables that
    `tf1_names.SKIPPED_VARIABLES` skips.

  Raises:
    UserError: TensorFlow is not installed, or the files are damaged.
  """
  try:
    import tensorflow as tf
  except ImportError as e:
    raise UserError(
      "reading a TF1 checkpoint needs TensorFlow; run `pip install"
      " 'bert_jax[data]'`."
    ) from e
  arrays, skipped_names = {}, []
  try:
    reader = tf.train.load_checkpoint(prefix)
    for name in sorted(reader.get_variable_to_shape_map()):
      if mapping.matches_pattern(name, tf1_names.SKIPPED_VARIABLES):
        skipped_names.append(name)
      else:
        arrays[name] = np.asarray(reader.get_tensor(name))
  # The reader turns some TensorFlow errors into Python's built-in errors.
  except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as e:
    reason = str(e).splitlines()[0] if str(e) else type(e).__name__
    raise UserError(
      f"{prefix}: cannot be read ({reason}); get it again."
    ) from e
  if _OBJECT_GRAPH in arrays:
    raise UserError(
      f"{prefix} is a checkpoint of TensorFlow 2's objects; pass a TF1"
      " checkpoint, which has a name for each variable."
    )
  return arrays, skipped_names


def _find_tower(
  family: str, tower: str | None, names: Iterable[str], source: str
) -> str | None:
  """Finds which tower of a checkpoint to read.

  Args:
    family: a key of `CONFIG_FILES`.
    tower: the tower that the user named, or None.
    names: the names of the variables.
    source: the checkpoint, for messages.

  Returns:
    "generator", "discriminator" or "both": the named tower, or all towers of
    the checkpoint if no tower is named. None if the family is not ELECTRA.

  Raises:
    UserError: the checkpoint is not of `family`, or lacks the tower.
  """
  names = tuple(names)

  def has_variable(prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)

  if family != "electra" or not has_variable("electra/"):
    matching_families = [
      candidate
      for candidate, prefix in tf1_names.LAYER_PREFIXES.items()
      if has_variable(prefix)
    ]
    if family not in matching_families:
      actual_family = (
        matching_families[0] if matching_families else "an unknown family"
      )
      raise UserError(
        f"{source}: its variables are those of {actual_family}, not of"
        f" {family}, whose"
        f" layers are called {tf1_names.LAYER_PREFIXES[family]}0 and so on."
      )
    return None
  prefixes = {
    "discriminator": tf1_names.LAYER_PREFIXES[family],
    "generator": tf1_names.GENERATOR_LAYER_PREFIX,
  }
  stored_towers = [
    name for name, prefix in prefixes.items() if has_variable(prefix)
  ]
  if tower is None and len(stored_towers) == 1:
    return stored_towers[0]
  for name in prefixes if tower in (None, "both") else (tower,):
    if name not in stored_towers:
      remedy = f"; pass tower={stored_towers[0]}" if stored_towers else ""
      raise UserError(
        f"{source} holds no {name}: there is no {prefixes[name]}0{remedy}."
      )
  return tower or "both"


def _read_config(folder: epath.Path, family: str) -> tuple[Config, str]:
  """Returns a release's config and the path of the config.

  The config of an ELECTRA is {} if the folder has no file with a config.
  """
  paths = [folder / name for name in CONFIG_FILES[family]]
  for path in paths:
    if family != "electra" or path.is_file():
      return model_folder.read_json(str(path)), str(path)
  return {}, str(paths[0])


def _read_tokenizer_files(folder: epath.Path) -> dict[str, bytes]:
  """Returns the tokenizer's files, with the setting `do_lower_case`.

  The files of a release do not say whether the model needs lower-cased text;
  only the name of the release does. So `vocab.txt` decides the setting. If the
  setting were missing, a cased model would get lower-cased text.
  """
  files = model_folder.read_tokenizer_files(str(folder))
  for published_name, name in _SENTENCEPIECE_NAMES.items():
    path = folder / published_name
    if name not in files and path.is_file():
      files[name] = path.read_bytes()
  settings_name = "tokenizer_config.json"
  if "vocab.txt" in files and settings_name not in files:
    try:
      pieces = files["vocab.txt"].decode("utf-8").splitlines()
    except UnicodeDecodeError as e:
      raise UserError(f"{folder / 'vocab.txt'}: {e}.") from e
    ordinary_pieces = [
      piece
      for piece in pieces
      if not (piece.startswith("[") and piece.endswith("]"))
    ]
    is_cased = sum(
      piece != piece.lower() for piece in ordinary_pieces
    ) > _CASED_SHARE * len(ordinary_pieces)
    settings_json = json.dumps({"do_lower_case": not is_cased}) + "\n"
    files[settings_name] = settings_json.encode("utf-8")
  return files


def _make_config(
  family: str,
  task: str,
  model: dict[str, Any],
  arrays: dict[str, np.ndarray],
) -> dict[str, Any]:
  """Returns the config of the converted folder.

  A classifier with one label is taken for a regression (google-research/albert
  classifier_utils.py, create_model). A model for multiple choice cannot be told
  apart from a regression, because both have the same variables.
  """

  def has_variable(prefix: str) -> bool:
    return any(name.startswith(prefix) for name in arrays)

  head: Config = {}
  entries: Config = {}
  has_pair_head = task == "pretraining" and has_variable(
    "cls/seq_relationship/"
  )
  if task == "pretraining" and family != "electra":
    head = {"pairs": has_pair_head}
  elif task == "span":
    head = {"dropout": 0.0}
  elif task == "sequence_classification":
    # There is one bias for each label. If the bias is missing, count the rows
    # of the weights here; `to_params` then reports the missing bias.
    output_name = "output_bias" if "output_bias" in arrays else "output_weights"
    num_labels = len(np.atleast_1d(arrays[output_name]))
    # This dropout is always 0.1 (run_classifier.py, create_model).
    pooling = models.family(family).POOLING._asdict()
    head = {"pooling": pooling, "num_labels": num_labels}
    entries = {
      "labels": hf_config.default_labels(num_labels),
      "problem": "regression" if num_labels == 1 else "classification",
    }
  head_reads_pooler = has_pair_head or task == "sequence_classification"
  has_unread_pooler = has_variable("bert/pooler/") and not head_reads_pooler
  return model_folder.make_config(
    family, task, model, head=head, pooler=has_unread_pooler, **entries
  )


def read(path: str, family: str, tower: str | None = None) -> Weights:
  """Reads a TF1 checkpoint with its config and tokenizer.

  Args:
    path: the checkpoint; see `find_checkpoint`. The config (see `CONFIG_FILES`)
      and the tokenizer, `vocab.txt` or `30k-clean.model`, are in the same
      folder. ELECTRA's releases have no config; see `ELECTRA_VALUES`.
    family: "bert", "albert" or "electra".
    tower: the tower of an ELECTRA: "generator", "discriminator" or "both";
      by default the towers that the checkpoint has.

  Raises:
    UserError: the checkpoint cannot be read as a model of this family.
  """
  if family not in CONFIG_FILES:
    raise UserError(
      f"family={family}: TF1 checkpoints can be read for these families:"
      f" {', '.join(CONFIG_FILES)}."
    )
  generator_discriminator.check_tower_name(family, tower)
  checkpoint = find_checkpoint(path)
  arrays, skipped_names = read_checkpoint(checkpoint)
  tower = _find_tower(family, tower, arrays, checkpoint)
  other_tower_patterns = tf1_names.OTHER_TOWER_VARIABLES.get(tower or "", ())
  for name in [
    candidate
    for candidate in arrays
    if mapping.matches_pattern(candidate, other_tower_patterns)
  ]:
    skipped_names.append(name)
    del arrays[name]
  task = tf1_names.find_task(tower, arrays)
  folder = epath.Path(checkpoint).parent
  release_config, config_path = _read_config(folder, family)
  array_shapes = {name: array.shape for name, array in arrays.items()}
  model = read_model(
    family,
    task,
    release_config,
    array_shapes,
    config_path=config_path,
    checkpoint=checkpoint,
  )
  config = _make_config(family, task, model, arrays)
  try:
    shapes = from_config.param_shapes(config)
  except ValueError as e:
    raise UserError(
      f"{config_path if release_config else checkpoint}: {e}"
    ) from e
  source_of_sizes = "its variables electra/embeddings/* and its layers 0"
  if release_config:
    source_of_sizes = config_path
  source = f"{checkpoint}, with the sizes of {source_of_sizes}"
  rules = tf1_names.rules(config)
  params = mapping.to_params(
    rules, arrays, shapes, skipped_patterns=(), source=source
  )
  config["source"] = {
    "format": "tf1",
    "dtype": hf_files.common_dtype(arrays, checkpoint),
    "skipped": sorted(skipped_names),
    "config": unused_fields(family, release_config),
  }
  if not release_config:
    note(
      f"note: {folder} has no {epath.Path(config_path).name}: sizes come from"
      f" the arrays, heads are {ELECTRA_HEAD_SIZE} wide, and other fields have"
      f" the values of Google's code: {json.dumps(ELECTRA_VALUES)}."
    )
  return Weights(config, params, _read_tokenizer_files(folder))


# Family -> the names that the file with the config may have. ELECTRA's releases
# have no config, but users may add one.
CONFIG_FILES: dict[str, tuple[str, ...]] = {
  "bert": ("bert_config.json",),
  "albert": ("albert_config.json",),
  "electra": ("electra_config.json", "config.json"),
}
# Attribute of the encoder -> field of the config.
_SIZE_FIELDS = {
  "vocab_size": "vocab_size",
  "hidden": "hidden_size",
  "num_layers": "num_hidden_layers",
  "mlp": "intermediate_size",
  "max_positions": "max_position_embeddings",
  "num_segments": "type_vocab_size",
}
_EMBEDDING_SIZE = {"embedding_size": "embedding_size"}
SIZE_FIELDS: dict[str, dict[str, str]] = {
  "bert": _SIZE_FIELDS,
  "albert": _SIZE_FIELDS | _EMBEDDING_SIZE | {"groups": "num_hidden_groups"},
  "electra": _SIZE_FIELDS | _EMBEDDING_SIZE,
}
NUMBER_FIELDS = {
  "dropout": "hidden_dropout_prob",
  "attention_dropout": "attention_probs_dropout_prob",
  "initializer_range": "initializer_range",
}
HEADS_FIELD, ACTIVATION_FIELD = "num_attention_heads", "hidden_act"
# The epsilon of tf.contrib.layers.layer_norm, which the repositories of BERT,
# ALBERT and ELECTRA call. No published config has it.
NORM_EPSILON = 1e-12
# Field -> its only supported value.
_SUPPORTED_VALUES: Config = {
  "inner_group_num": 1,
  "net_structure_type": 0,
  "layer_norm_eps": NORM_EPSILON,
}
# The values of ELECTRA's code, since its releases have no config
# (util/training_utils.py, get_bert_config; model/modeling.py, BertConfig).
ELECTRA_HEAD_SIZE = 64
ELECTRA_VALUES: Config = {
  ACTIVATION_FIELD: "gelu",
  "hidden_dropout_prob": 0.1,
  "attention_probs_dropout_prob": 0.1,
  "initializer_range": 0.02,
}
# The activations that have the same name in the config and here.
_SAME_NAMES = {name: name for name in ("gelu", "gelu_new", "relu", "tanh")}
# Family -> name of an activation in the config -> its name here. These are the
# meanings of "gelu":
#
# | repository | "gelu" | reason |
# | --- | --- | --- |
# | BERT | exact | its weights are older than the approximation in its code |
# | ELECTRA | exact | model/modeling.py, gelu |
# | ALBERT | approximation by tanh | modeling.py, gelu |
ACTIVATIONS: dict[str, dict[str, str]] = {
  "bert": _SAME_NAMES,
  "electra": _SAME_NAMES,
  "albert": _SAME_NAMES | {"gelu": "gelu_new"},
}


def electra_head_count(hidden: int) -> int:
  """Returns the number of a tower's attention heads (get_bert_config).

  Args:
    hidden: the width of the tower.
  """
  return max(1, hidden // ELECTRA_HEAD_SIZE)


def _count_layers(names: Iterable[str], prefix: str) -> int:
  """Returns the number of layers (or of groups): the highest index plus one."""
  matches = (re.match(re.escape(prefix) + r"(\d+)/", name) for name in names)
  return max((int(match[1]) + 1 for match in matches if match), default=0)


def sizes_in_checkpoint(
  family: str,
  shapes: Mapping[str, Shape],
  source: str,
  is_generator: bool = False,
) -> dict[str, int]:
  """Reads sizes of the encoder from the shapes in a checkpoint.

  Args:
    family: a key of `CONFIG_FILES`.
    shapes: name -> shape.
    source: the checkpoint, for messages.
    is_generator: True for ELECTRA's generator, False for the discriminator.

  Returns:
    Attribute of the encoder -> size. ALBERT has `groups` and no `num_layers`,
    because the layers of a group share their variables.

  Raises:
    UserError: a variable whose shape is needed is missing.
  """
  tables_scope = (
    "electra/embeddings" if family == "electra" else "bert/embeddings"
  )
  layer_prefix = (
    tf1_names.GENERATOR_LAYER_PREFIX
    if is_generator
    else tf1_names.LAYER_PREFIXES[family]
  )
  attention_bias, mlp_bias = (
    "attention/output/dense/bias",
    "intermediate/dense/bias",
  )
  if family == "albert":
    attention_bias = f"inner_group_0/{attention_bias.replace('/', '_1/', 1)}"
    mlp_bias = f"inner_group_0/ffn_1/{mlp_bias}"
  variable_by_size = {
    "vocab_size": f"{tables_scope}/word_embeddings",
    "max_positions": f"{tables_scope}/position_embeddings",
    "num_segments": f"{tables_scope}/token_type_embeddings",
    "embedding_size": f"{tables_scope}/LayerNorm/beta",
    "hidden": f"{layer_prefix}0/{attention_bias}",
    "mlp": f"{layer_prefix}0/{mlp_bias}",
  }
  if family == "bert":
    del variable_by_size["embedding_size"]
  needed_variables = variable_by_size.values()
  problems = [
    f"{name} is missing" for name in needed_variables if name not in shapes
  ]
  problems += [
    f"{name} has shape []"
    for name in needed_variables
    if shapes.get(name) == ()
  ]
  mapping.raise_if_problems(problems, source)
  sizes = {size: shapes[name][0] for size, name in variable_by_size.items()}
  count_name = "groups" if family == "albert" else "num_layers"
  return sizes | {count_name: _count_layers(shapes, layer_prefix)}


def read_model(
  family: str,
  task: str,
  config: Mapping[str, Any],
  shapes: Mapping[str, Shape],
  *,
  config_path: str,
  checkpoint: str,
) -> Config:
  """Returns the attributes of the encoder.

  Args:
    family: a key of `CONFIG_FILES`.
    task: the return value of `tf1_names.find_task`. For ELECTRA, it is
      "pretraining", "discriminator" or "generator".
    config: the content of the release's config. For ELECTRA it describes the
      discriminator, and may be empty.
    shapes: name -> shape in the checkpoint.
    config_path: the file of the config, for messages.
    checkpoint: the checkpoint, for messages.

  Raises:
    UserError: a field is missing or wrong; the message names the field.
  """
  if family == "electra":
    config = ELECTRA_VALUES | dict(config)
  fields = Fields(config, config_path)
  for field, supported in _SUPPORTED_VALUES.items():
    if field in config and config[field] != supported:
      raise fields.unsupported_value(field, f"only {supported!r} is supported")
  is_generator = task == "generator"
  checkpoint_sizes = sizes_in_checkpoint(
    family, shapes, checkpoint, is_generator
  )
  model: Config = {}
  for attribute, field in SIZE_FIELDS[family].items():
    # The config describes the discriminator. These three sizes of the generator
    # are read from the checkpoint.
    differs_from_config = is_generator and attribute in (
      "hidden",
      "num_layers",
      "mlp",
    )
    if attribute in checkpoint_sizes and (
      differs_from_config or field not in config
    ):
      model[attribute] = checkpoint_sizes[attribute]
    else:
      model[attribute] = fields.size(field)
  if family == "electra" and (is_generator or HEADS_FIELD not in config):
    model["heads"] = electra_head_count(model["hidden"])
  else:
    model["heads"] = fields.size(HEADS_FIELD)
  if task == "pretraining" and family == "electra":
    generator_sizes = sizes_in_checkpoint(
      family, shapes, checkpoint, is_generator=True
    )
    model["generator_hidden"] = generator_sizes["hidden"]
  for attribute, field in NUMBER_FIELDS.items():
    model[attribute] = fields.number(field, NUMBER_LIMITS.get(attribute, 1.0))
  # Google's code lower-cases the name (modeling.py, get_activation).
  name, activations = (
    str(fields.value(ACTIVATION_FIELD)).lower(),
    ACTIVATIONS[family],
  )
  if name not in activations:
    raise fields.unsupported_value(
      ACTIVATION_FIELD, f"it must be one of {sorted(activations)}"
    )
  return model | {"activation": activations[name], "norm_epsilon": NORM_EPSILON}


def unused_fields(family: str, config: Mapping[str, Any]) -> Config:
  """Returns the fields of a config that `read_model` does not read.

  Google's code does not use them either.
  """
  used_fields = {
    HEADS_FIELD,
    ACTIVATION_FIELD,
    *SIZE_FIELDS[family].values(),
    *NUMBER_FIELDS.values(),
  }
  return {
    field: field_value
    for field, field_value in config.items()
    if field not in used_fields
  }
