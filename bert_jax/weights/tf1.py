"""Google's TF1 releases of BERT, ALBERT and ELECTRA into our folders."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_jax import models
from bert_jax.messages import UserError, note
from bert_jax.weights import (
  generator_discriminator,
  hf_config,
  hf_files,
  mapping,
  model_folder,
  tf1_names,
)
from bert_jax.weights.hf_config import LIMITS, Fields
from bert_jax.weights.mapping import Shape
from bert_jax.weights.model_folder import Weights

_INDEX = ".index"
# Beside the weights in ALBERT's releases, under the name it has elsewhere.
_SENTENCEPIECE = {"30k-clean.model": "spiece.model"}
# In a vocabulary that was lower-cased, at most this share of the pieces can
# have capitals by some accident.
_CASED_SHARE = 0.01
# The one name that TensorFlow 2 writes in place of a name for each variable.
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"


def find_checkpoint(path: str) -> str:
  """The prefix of the checkpoint that a path means.

  Args:
    path: a folder with one checkpoint, or with several of which its file
      `checkpoint` names one; or a prefix; or an `.index` file.

  Raises:
    ValueError: there is none, or it is not clear which.
  """
  if path.endswith(_INDEX) and os.path.isfile(path):
    return path.removesuffix(_INDEX)
  if os.path.isfile(path + _INDEX):
    return path
  if not os.path.isdir(path):
    raise UserError(
      f"{path}: no such checkpoint; name its folder, its prefix (the files'"
      f" names up to {_INDEX} and .data) or its {_INDEX} file."
    )
  there = sorted(n for n in os.listdir(path) if n.endswith(_INDEX))
  names = [name.removesuffix(_INDEX) for name in there]
  if not names:
    raise UserError(f"{path}: no TF1 checkpoint in it, no {_INDEX} file.")
  if len(names) > 1:
    latest = _latest(path)
    if latest not in names:
      raise UserError(
        f"{path} holds several checkpoints, {', '.join(names)}; name one by"
        f" its prefix, as in {os.path.join(path, names[0])}."
      )
    names = [latest]
  return os.path.join(path, names[0])


def _latest(path: str) -> str | None:
  """The name in a folder's `checkpoint`, whatever folder it was written in."""
  try:
    with open(os.path.join(path, "checkpoint"), encoding="utf-8") as f:
      match = re.search(r'^model_checkpoint_path: "(.*)"', f.read(), re.M)
  except (FileNotFoundError, UnicodeDecodeError):
    return None
  return os.path.basename(match[1]) if match else None


def read_checkpoint(prefix: str) -> tuple[dict[str, np.ndarray], list[str]]:
  """Reads the variables of a checkpoint.

  Args:
    prefix: see `find_checkpoint`.

  Returns:
    Name -> array in order, and the names left out (`tf1_names.SKIPPED`).

  Raises:
    ValueError: TensorFlow is not installed, or the files are damaged.
  """
  try:
    import tensorflow as tf
  except ImportError as e:
    raise UserError(
      "reading a TF1 checkpoint needs TensorFlow; run `pip install"
      " 'bert_jax[data]'`."
    ) from e
  arrays, left_out = {}, []
  try:
    reader = tf.train.load_checkpoint(prefix)
    for name in sorted(reader.get_variable_to_shape_map()):
      if mapping.is_skipped(name, tf1_names.SKIPPED):
        left_out.append(name)
      else:
        arrays[name] = np.asarray(reader.get_tensor(name))
  # The reader's own errors are Python's, by the kind of TensorFlow's status.
  except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as e:
    reason = str(e).splitlines()[0] if str(e) else type(e).__name__
    raise UserError(
      f"{prefix}: cannot be read ({reason}); get it again."
    ) from e
  if _OBJECTS in arrays:
    raise UserError(
      f"{prefix}: a checkpoint of TensorFlow 2's objects; a TF1 checkpoint has"
      " a name for each variable."
    )
  return arrays, left_out


def _tower_of(
  family: str, tower: str | None, names: Iterable[str], source: str
) -> str | None:
  """The tower to read: the asked one, or what there is; None if not ELECTRA.

  Raises:
    ValueError: the checkpoint is another family's, or lacks the tower.
  """
  names = tuple(names)

  def has(begin: str) -> bool:
    return any(name.startswith(begin) for name in names)

  towers = [f for f, begin in tf1_names.LAYERS.items() if has(begin)]
  if family != "electra" or not has("electra/"):
    if family not in towers:
      what = f"those of {towers[0]}" if towers else "of no family known here"
      raise UserError(
        f"{source}: its variables are {what}, not of {family}, whose layers are"
        f" called {tf1_names.LAYERS[family]}0 and so on."
      )
    return None
  layers = {
    "discriminator": tf1_names.LAYERS[family],
    "generator": tf1_names.GENERATOR_LAYERS,
  }
  there = [name for name, begin in layers.items() if has(begin)]
  if tower is None and len(there) == 1:
    return there[0]
  for name in layers if tower in (None, "both") else (tower,):
    if name not in there:
      remedy = f"; pass --tower={there[0]}" if there else ""
      raise UserError(f"{source} holds no {name}, no {layers[name]}0{remedy}.")
  return tower or "both"


def _read_config(path: str, family: str) -> tuple[dict[str, Any], str]:
  """The release's config, and its path; without one, ELECTRA's is empty."""
  files = [os.path.join(path, name) for name in FILES[family]]
  for file in files:
    if family != "electra" or os.path.isfile(file):
      return model_folder.read_json(file), file
  return {}, files[0]


def _read_tokenizer(path: str) -> dict[str, bytes]:
  """The tokenizer's files, and whether it lower-cases.

  A release says that in its name alone; without the setting, a cased model
  would read lower-cased text.
  """
  files = model_folder.read_tokenizer(path)
  for their_file, our_file in _SENTENCEPIECE.items():
    file = os.path.join(path, their_file)
    if our_file not in files and os.path.isfile(file):
      with open(file, "rb") as f:
        files[our_file] = f.read()
  settings = "tokenizer_config.json"
  if "vocab.txt" in files and settings not in files:
    try:
      pieces = files["vocab.txt"].decode("utf-8").splitlines()
    except UnicodeDecodeError as e:
      raise UserError(f"{os.path.join(path, 'vocab.txt')}: {e}.") from e
    words = [p for p in pieces if not (p.startswith("[") and p.endswith("]"))]
    cased = sum(p != p.lower() for p in words) > _CASED_SHARE * len(words)
    text = json.dumps({"do_lower_case": not cased}) + "\n"
    files[settings] = text.encode("utf-8")
  return files


def _make_config(
  family: str,
  task: str,
  model: dict[str, Any],
  arrays: dict[str, np.ndarray],
) -> dict[str, Any]:
  """The folder's config for what a checkpoint holds.

  A classifier with one label is a regression (google-research/albert
  classifier_utils.py, create_model): nothing tells it from multiple choice.
  """

  def has(begin: str) -> bool:
    return any(name.startswith(begin) for name in arrays)

  head, entries = {}, {}
  pairs = task == "pretraining" and has("cls/seq_relationship/")
  if task == "pretraining" and family != "electra":
    head = {"pairs": pairs}
  elif task == "span":
    head = {"dropout": 0.0}
  elif task == "sequence_classification":
    bias = arrays.get("output_bias", arrays.get("output_weights"))
    count = len(np.atleast_1d(bias))
    # Dropout of 0.1 whatever the encoder's (run_classifier.py, create_model).
    pooling = models.family(family).POOLING._asdict()
    head = {"pooling": pooling, "num_labels": count}
    entries = {
      "labels": hf_config.default_labels(count),
      "problem": "regression" if count == 1 else "classification",
    }
  read = pairs or task == "sequence_classification"
  pooler = has("bert/pooler/") and not read
  return model_folder.make_config(
    family, task, model, head=head, pooler=pooler, **entries
  )


def read(path: str, family: str, tower: str | None = None) -> Weights:
  """Reads a TF1 checkpoint with its config and tokenizer.

  Args:
    path: see `find_checkpoint`; the other files are beside the checkpoint:
      `bert_config.json` or `albert_config.json`, `vocab.txt` or
      `30k-clean.model`. ELECTRA's releases have no config, see
      `ELECTRA`; an `electra_config.json` is read if it is there.
    family: "bert", "albert", "electra".
    tower: the part of an ELECTRA: "generator", "discriminator" or "both"; None
      takes what the checkpoint has.

  Raises:
    ValueError: with one sentence, whatever is wrong.
  """
  if family not in FILES:
    raise UserError(
      f"--family={family}: of TF1 checkpoints, known are {', '.join(FILES)}."
    )
  generator_discriminator.check_name(family, tower)
  prefix = find_checkpoint(path)
  arrays, skipped = read_checkpoint(prefix)
  tower = _tower_of(family, tower, arrays, prefix)
  other = tf1_names.OTHER_TOWER.get(tower, ())
  for name in [n for n in arrays if mapping.is_skipped(n, other)]:
    skipped.append(name)
    del arrays[name]
  task = tf1_names.task_of(tower, arrays)
  beside = os.path.dirname(prefix)
  fields, file = _read_config(beside, family)
  shapes = {name: array.shape for name, array in arrays.items()}
  model = read_model(family, task, fields, shapes, (file, prefix))
  config = _make_config(family, task, model, arrays)
  try:
    wanted = model_folder.shapes_of(model_folder.module_of(config), config)
  except ValueError as e:
    raise UserError(f"{file if fields else prefix}: {e}") from e
  sized = file if fields else "electra/embeddings/* and the layers 0 in it"
  source = f"{prefix}, with the sizes of {sized}"
  params = mapping.to_ours(tf1_names.rules(config), arrays, wanted, (), source)
  config["source"] = {
    "format": "tf1",
    "dtype": hf_files.dtype_of(arrays, prefix),
    "skipped": sorted(skipped),
    "config": unused(family, fields),
  }
  if not fields:
    note(
      f"note: {beside or '.'} has no {os.path.basename(file)}: sizes are those"
      f" of the arrays, with heads {ELECTRA_HEAD_SIZE} wide, and the"
      " rest is what Google's code fixes:"
      f" {json.dumps(ELECTRA)}."
    )
  return Weights(config, params, _read_tokenizer(beside))


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
# The values of ELECTRA's code, since its releases have no config
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
  matches = (re.match(re.escape(begin) + r"(\d+)/", name) for name in names)
  return max((int(m[1]) + 1 for m in matches if m), default=0)


def stored_sizes(
  family: str, shapes: Mapping[str, Shape], source: str, generator: bool = False
) -> dict[str, int]:
  """The sizes that the shapes of a checkpoint tell.

  Args:
    family: a key of `FILES`.
    shapes: name -> shape.
    source: the checkpoint, for messages.
    generator: True for ELECTRA's generator, False for the discriminator.

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
  mapping.complain(problems, source)
  layers = "groups" if family == "albert" else "num_layers"
  sizes = {size: shapes[name][0] for size, name in tells.items()}
  return sizes | {layers: _count(shapes, begin)}


def read_model(
  family: str,
  task: str,
  config: Mapping[str, Any],
  shapes: Mapping[str, Shape],
  sources: tuple[str, str],
) -> Config:
  """Attributes of the encoder.

  Args:
    family: a key of `FILES`.
    task: for ELECTRA "pretraining", "discriminator", "generator".
    config: the fields of the release's file; of ELECTRA it is the
      discriminator's, and may be empty.
    shapes: name -> shape in the checkpoint.
    sources: the config and the checkpoint, for messages.

  Raises:
    ValueError: names the field that is missing or wrong.
  """
  if family == "electra":
    config = ELECTRA | dict(config)
  fields = Fields(config, sources[0])
  for field, value in _ONLY.items():
    if field in config and config[field] != value:
      raise fields.refuse(field, f"only {value!r} is known here")
  stored = stored_sizes(family, shapes, sources[1], task == "generator")
  model = {}
  for attribute, field in SIZES[family].items():
    told = task == "generator" and attribute in ("hidden", "num_layers", "mlp")
    if attribute in stored and (told or field not in config):
      model[attribute] = stored[attribute]
    else:
      model[attribute] = fields.size(field)
  if family == "electra" and (task == "generator" or HEADS not in config):
    model["heads"] = electra_heads(model["hidden"])
  else:
    model["heads"] = fields.size(HEADS)
  if task == "pretraining" and family == "electra":
    generator = stored_sizes(family, shapes, sources[1], generator=True)
    model["generator_hidden"] = generator["hidden"]
  for attribute, field in NUMBERS.items():
    model[attribute] = fields.number(field, LIMITS.get(attribute, 1.0))
  # Google's code lowers the name (modeling.py, get_activation).
  name, activations = str(fields.value(ACTIVATION)).lower(), ACTIVATIONS[family]
  if name not in activations:
    raise fields.refuse(ACTIVATION, f"known are {sorted(activations)}")
  return model | {"activation": activations[name], "norm_epsilon": NORM_EPSILON}


def unused(family: str, config: Mapping[str, Any]) -> Config:
  """The fields that `read_model` does not read: Google's code has no use
  for them either."""
  used = {HEADS, ACTIVATION, *SIZES[family].values(), *NUMBERS.values()}
  return {field: v for field, v in config.items() if field not in used}
