"""Reads and writes a converted folder: config, weights and tokenizer.

config.json has these keys:

* `format_version`: the version of this format.
* `family`: the model's family, a key of `models.FAMILIES`.
* `task`: the task of the model's head; see `models.from_config.build`.
* `model`: the attributes of the encoder.
* `head`: the keyword arguments of the task's module.
* `labels`: the names of the labels in the order of their ids; null if the task
  has no labels.
* `problem`: what a sequence classifier predicts: "classification",
  "multi_label" or "regression"; null for other tasks.
* `pooler`: true if the folder has a pooler that the head does not read.
* `source`: the format from which the model was converted, the dtype of its
  arrays in this format, the names of dropped arrays, and the fields that a
  conversion back to this format writes again. For a model of a run, also the
  step of its checkpoint.
* `sha256`: a digest of each key above except `format_version`, and of each file
  except config.json.
* `checksum`: a checksum of the whole config.json.

The arrays in model.safetensors are float32. The name of an array is its path in
the parameter tree.
"""

import contextlib
import json
import pathlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from flax import traverse_util
from jaxtyping import Array

from bert_jax import files, messages
from bert_jax.messages import DamagedFile, UserError
from bert_jax.models import from_config
from bert_jax.weights import mapping

FORMAT_VERSION = 1
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
# The key of config.json that holds the digests.
DIGESTS_KEY = "sha256"
TOKENIZER_FILES = (
  "vocab.txt",
  "vocab.json",
  "merges.txt",
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "spiece.model",
  "sentencepiece.bpe.model",
)
CONFIG_KEYS = (
  *("family", "task", "model", "head"),
  *("labels", "problem", "pooler", "source"),
)


class Weights(NamedTuple):
  """Holds a model in memory.

  Attributes:
    config: the content of config.json, without digests and checksum.
    arrays: path in the parameter tree, joined by "/" -> float32 array.
    tokenizer_files: name -> bytes of each tokenizer file, unchanged.
    training_arrays: path -> float32 array, for parameters that only training
      uses: a run's head for span boundaries, ELMo's softmax, TinyBERT's maps. A
      converted folder does not hold them.
  """

  config: dict[str, Any]
  arrays: dict[str, np.ndarray]
  tokenizer_files: dict[str, bytes]
  training_arrays: Mapping[str, np.ndarray] = types.MappingProxyType({})


def without_keys(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
  """Returns a copy of a config without some keys."""
  return {key: config[key] for key in config if key not in names}


def make_config(
  family: str, task: str, model: dict[str, Any], **entries: Any
) -> dict[str, Any]:
  """Makes a folder's complete config.

  Args:
    family: a key of `models.FAMILIES`.
    task: a task of `models.from_config.build`.
    model: the attributes of the encoder.
    **entries: values for other keys of the config: `head`, `labels`, `problem`,
      `pooler`, `source`. Every other key gets an empty value.
  """
  config = {
    "format_version": FORMAT_VERSION,
    "family": family,
    "task": task,
    "model": model,
    "head": {},
    "labels": None,
    "problem": None,
    "pooler": False,
    "source": {},
  }
  assert entries.keys() <= config.keys(), entries.keys()
  return config | entries


def columns_in_task_order(
  labels: Sequence[str], model_labels: Sequence[str]
) -> list[int] | None:
  """Returns a classifier's columns in the order of a task's labels.

  Args:
    labels: the task's labels.
    model_labels: the model's labels, in the order of the classifier's columns.

  Returns:
    The index of each task label's column; None unless the task and the model
    have the same labels.
  """
  if sorted(labels) != sorted(model_labels):
    return None
  return [list(model_labels).index(name) for name in labels]


def unflatten(
  arrays: Mapping[str, np.ndarray | Array | jax.ShapeDtypeStruct],
) -> dict[str, Any]:
  """Returns the parameter tree of a folder's arrays.

  Args:
    arrays: path -> array, or the shape of an array.
  """
  return traverse_util.unflatten_dict(dict(arrays), sep="/")


def flatten(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Returns path -> float32 array of an unboxed parameter tree."""
  leaf_by_path = traverse_util.flatten_dict(params, sep="/")
  return {
    path: np.asarray(leaf, np.float32) for path, leaf in leaf_by_path.items()
  }


def is_file_name(name: str) -> bool:
  """Returns True if a name cannot lead out of the folder that it is in."""
  return "/" not in name and name != ".."


def read_json(path: str) -> dict[str, Any]:
  """Reads a JSON object; raises a UserError if it is missing or damaged."""
  return files.read_json_object(path, missing_advice="", damaged_advice="")


def read_tensors(path: str) -> dict[str, np.ndarray]:
  """Reads all arrays of a safetensors file.

  Raises:
    UserError: the file does not exist or is damaged, or it has a dtype that
      NumPy does not know.
  """
  from safetensors import SafetensorError, safe_open

  try:
    with safe_open(path, "numpy") as file:
      return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
  except FileNotFoundError as e:
    raise UserError(f"there is no file {path}.") from e
  # safetensors raises AttributeError for a dtype that NumPy does not know, and
  # OSError for a file that cannot be mapped into memory.
  except (SafetensorError, AttributeError, OSError) as e:
    raise DamagedFile(
      f"{path} is damaged, or has an unknown dtype ({e}); get it again."
    ) from e


def write_tensors(
  path: str,
  arrays: Mapping[str, np.ndarray],
  metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes arrays into a safetensors file.

  Args:
    path: the file to write.
    arrays: name -> array.
    metadata: name -> value, for the file's header; None adds nothing.
  """
  from safetensors.numpy import save

  contiguous_arrays = {
    name: np.asarray(array, order="C") for name, array in arrays.items()
  }
  content = save(contiguous_arrays, dict(metadata) if metadata else None)
  # Do not use `safetensors.numpy.save_file`, because only the owner can read
  # the files that it writes.
  epath.Path(path).write_bytes(content)


def read_tokenizer_files(path: str) -> dict[str, bytes]:
  """Returns name -> bytes of the tokenizer files that a folder has."""
  path_by_name = {name: epath.Path(path) / name for name in TOKENIZER_FILES}
  return {
    name: file_path.read_bytes()
    for name, file_path in path_by_name.items()
    if file_path.is_file()
  }


def is_converted_folder(path: str) -> bool:
  """Returns True if `path` is a folder that `write` wrote."""
  config_path = epath.Path(path) / CONFIG_FILE
  return config_path.is_file() and "format_version" in read_json(
    str(config_path)
  )


def read(path: str) -> Weights:
  """Reads a folder that `write` wrote; checks digests, names and shapes.

  Raises:
    UserError: a file or an array is missing or damaged, the format version is
      not `FORMAT_VERSION`, or an array is not float32, has the wrong shape or
      belongs to no parameter of the module.
  """
  config_path = str(epath.Path(path) / CONFIG_FILE)
  config = read_json(config_path)
  if "format_version" not in config:
    raise UserError(
      f"{config_path} is not from a converted model; convert the model first."
    )
  if config["format_version"] != FORMAT_VERSION:
    raise UserError(
      f"{config_path}: format_version is {config['format_version']!r}, but"
      f" this program reads {FORMAT_VERSION}; convert the model again."
    )
  missing_keys = [key for key in CONFIG_KEYS if key not in config]
  if missing_keys:
    raise DamagedFile(
      f"{config_path} is damaged: it has no {', '.join(missing_keys)}."
    )
  _check_digests(path, config)
  config = without_keys(config, DIGESTS_KEY, "checksum")
  try:
    needed_shapes = from_config.param_shapes(config)
  # A size of zero causes ArithmeticError or IndexError.
  except (KeyError, TypeError, ValueError, ArithmeticError, IndexError) as e:
    raise DamagedFile(f"{config_path} is damaged: {e}") from e
  weights_path = str(epath.Path(path) / WEIGHTS_FILE)
  arrays = read_tensors(weights_path)
  array_shapes = {name: array.shape for name, array in arrays.items()}
  mapping.check_shapes(array_shapes, needed_shapes, weights_path)
  for name, array in arrays.items():
    if array.dtype != np.float32:
      raise UserError(f"{weights_path}: {name} is {array.dtype}, not float32.")
  ordered_arrays = {name: arrays[name] for name in needed_shapes}
  return Weights(config, ordered_arrays, read_tokenizer_files(path))


def write(path: str, weights: Weights) -> None:
  """Writes a model's folder completely, or not at all.

  Raises:
    UserError: `path` exists and is not empty, or an array is missing, has the
      wrong shape or belongs to no parameter of the module.
  """
  shapes = from_config.param_shapes(weights.config)
  array_shapes = {name: array.shape for name, array in weights.arrays.items()}
  mapping.check_shapes(array_shapes, shapes, path)
  with new_folder(path) as folder:
    write_files(folder, weights.config, weights.arrays, weights.tokenizer_files)
    file_names = {file.name for file in epath.Path(folder).iterdir()}
    digests: dict[str, Any] = dict(
      files.folder_digests(folder, sorted(file_names - {CONFIG_FILE}))
    )
    digests[CONFIG_FILE] = _config_digests(weights.config)
    # Make the checksum of the values that a reader of the JSON gets: lists in
    # place of tuples.
    config = json.loads(json.dumps({**weights.config, DIGESTS_KEY: digests}))
    _write_config(folder, files.add_checksum(config))


def _config_digests(config: Mapping[str, Any]) -> dict[str, str]:
  """Returns key -> digest of the value, for `CONFIG_KEYS`."""
  json_by_key = {
    key: json.dumps(config[key], sort_keys=True) for key in CONFIG_KEYS
  }
  return {
    key: files.content_digest(value_json.encode())
    for key, value_json in json_by_key.items()
  }


def _check_digests(path: str, config: dict[str, Any]) -> None:
  """Raises a UserError if a file was changed since `write` wrote it."""
  # Older folders have neither digests nor a checksum. If only one of the two
  # keys is missing, the config was changed.
  if DIGESTS_KEY not in config and "checksum" not in config:
    messages.note_once(
      f"note: {path} has no digests, because an earlier version wrote it; its"
      " files are not checked."
    )
    return
  digests = config.get(DIGESTS_KEY)
  if not isinstance(digests, dict) or not isinstance(
    digests.get(CONFIG_FILE), dict
  ):
    digests = {CONFIG_FILE: {}}
  new_digests = _config_digests(config)
  old_digests = digests[CONFIG_FILE]
  changed_keys = [
    repr(key) for key in CONFIG_KEYS if old_digests.get(key) != new_digests[key]
  ]
  changes = (
    [f"{', '.join(changed_keys)} of {CONFIG_FILE}"]
    if old_digests and changed_keys
    else []
  )
  if not changes and not files.has_valid_checksum(config):
    changes = [CONFIG_FILE]
  changes += files.changed_files(without_keys(digests, CONFIG_FILE), path)
  # A tokenizer file that was added later would change the tokenizer.
  if any(name in digests for name in TOKENIZER_FILES):
    changes += [
      name
      for name in TOKENIZER_FILES
      if name not in digests and (epath.Path(path) / name).is_file()
    ]
  if changes:
    raise UserError(
      f"{path}: {' and '.join(changes)} changed since the folder was written."
      " Convert the model again; or, if you made the change yourself, delete"
      f" the keys {DIGESTS_KEY!r} and 'checksum' of"
      f" {epath.Path(path) / CONFIG_FILE}."
    )


def write_files(
  path: str,
  config: Mapping[str, Any],
  arrays: Mapping[str, np.ndarray],
  tokenizer_files: Mapping[str, bytes],
  metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes a model's files into an existing folder.

  Args:
    path: the folder.
    config: the content of config.json.
    arrays: name -> array.
    tokenizer_files: name -> bytes of each tokenizer file.
    metadata: see `write_tensors`.
  """
  _write_config(path, config)
  write_tensors(str(epath.Path(path) / WEIGHTS_FILE), arrays, metadata)
  for name, content in tokenizer_files.items():
    (epath.Path(path) / name).write_bytes(content)


def _write_config(path: str, config: Mapping[str, Any]) -> None:
  content = files.format_json(config).encode()
  files.write_durably(str(epath.Path(path) / CONFIG_FILE), content)


def check_new_folder(path: str) -> None:
  """Raises a UserError unless `path` is free or an empty folder."""
  if path == "-":
    raise UserError(
      "--output -: a folder cannot be written to stdout; name its path."
    )
  folder = epath.Path(path)
  if folder.is_dir() and not any(folder.iterdir()):
    return
  # A link to a missing target does not exist, but no folder can be made there.
  if folder.exists() or pathlib.Path(path).is_symlink():
    raise UserError(f"{path} exists and is not empty; name a new folder.")


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
  """Yields a temporary folder, and renames it to `path` once it is filled.

  Raises:
    UserError: `path` exists and is not empty, or cannot be written.
  """
  check_new_folder(path)
  try:
    with files.atomic_folder(path) as temporary:
      yield temporary
  except OSError as e:
    raise UserError(f"{path} could not be written: {e.strerror or e}.") from e
