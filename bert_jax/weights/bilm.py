"""ELMo as published: options.json and an HDF5 file of allenai/bilm-tf."""

import glob
import numbers
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.messages import UserError
from bert_jax.models.elmo import MAX_CHARS, NUM_CHARS
from bert_jax.weights import mapping, model_folder
from bert_jax.weights.mapping import Rule
from bert_jax.weights.model_folder import Weights

OPTIONS = "options.json"
# Variables of training and of the softmax, which are no part of the encoder.
SKIPPED = ("softmax/*",)
# bin/train_elmo.py; files for prediction do not say it.
DROPOUT = 0.1
_LSTM = "RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"


def read(path: str, family: str, tower: str | None = None) -> Weights:
  """Reads a folder with `options.json` and one HDF5 file of weights.

  Args:
    path: the folder, or the HDF5 file with the options beside it.
    family: "elmo".
    tower: None; ELMo has none.

  Raises:
    ValueError: with one sentence, whatever is wrong.
  """
  if family != "elmo":
    raise UserError(f"--family={family}: bilm's files are elmo's.")
  if tower is not None:
    raise UserError(f"--tower={tower}: elmo has no towers.")
  weights, options = _find(path)
  model = read_options(model_folder.read_json(options), options)
  config = model_folder.make_config(
    "elmo", "encoder", model, source={"format": "bilm"}
  )
  try:
    shapes = model_folder.shapes_of(model_folder.module_of(config), config)
  except ValueError as e:
    raise UserError(f"{options}: {e}") from e
  arrays = _read_hdf5(weights)
  skipped = sorted(n for n in arrays if mapping.is_skipped(n, SKIPPED))
  config["source"] |= {"dtype": "float32", "skipped": skipped}
  made = mapping.to_ours(
    rules(model), _prepare(arrays), shapes, SKIPPED, weights
  )
  return Weights(config, made, {})


def _find(path: str) -> tuple[str, str]:
  """Paths of the weights and of the options."""
  if os.path.isfile(path):
    path, weights = os.path.dirname(path), [path]
  elif os.path.isdir(path):
    paths = glob.glob(os.path.join(glob.escape(path), "*weights*.hdf5"))
    weights = paths or glob.glob(os.path.join(glob.escape(path), "*.hdf5"))
  else:
    raise UserError(f"{path}: no such folder or file.")
  if len(weights) != 1:
    raise UserError(
      f"{path}: {len(weights)} files of weights (*weights*.hdf5) in it, not"
      " one; name the file."
    )
  paths = glob.glob(os.path.join(glob.escape(path), f"*{OPTIONS}"))
  if len(paths) != 1:
    raise UserError(f"{path}: {len(paths)} files *{OPTIONS} in it, not one.")
  return weights[0], paths[0]


def _is_number(value: Any) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _are_filters(value: Any) -> bool:
  """Returns True for a list of [width in characters, number]."""
  return (
    isinstance(value, list)
    and len(value) > 0
    and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    and all(type(n) is int and n > 0 for pair in value for n in pair)
    and max(width for width, _ in value) <= MAX_CHARS
  )


def read_options(options: Mapping[str, Any], source: str) -> dict[str, Any]:
  """Translates options.json to attributes of `Elmo`, field by field.

  Raises:
    ValueError: a field is missing, or has a value that is not implemented.
  """

  def field(name, right, what):
    value = options
    for section in name.split("."):
      if not isinstance(value, Mapping) or section not in value:
        raise UserError(f"{source} has no {name}; write it in: {what}.")
      value = value[section]
    if not right(value):
      raise UserError(f"{source}: {name} is {value!r}; it must be {what}.")
    return value

  def size(name, least=1):
    right = lambda v: type(v) is int and v >= least  # noqa: E731
    return field(name, right, f"a whole number from {least}")

  clip = field(
    "lstm.cell_clip", lambda v: _is_number(v) and v > 0, "a number above 0"
  )
  field("lstm.proj_clip", lambda v: v == clip, f"{clip!r}, as cell_clip is")
  length = MAX_CHARS
  name = "char_cnn.max_characters_per_token"
  field(name, lambda v: v == length, f"{length}")
  # One more with the id of no character, which training did not count.
  supported = NUM_CHARS - 1, NUM_CHARS
  field(
    "char_cnn.n_characters", lambda v: v in supported, f"one of {supported}"
  )
  what = f"a list of [width up to {length}, number]"
  filters = field("char_cnn.filters", _are_filters, what)
  dropout = DROPOUT
  if "dropout" in options:
    right = lambda v: _is_number(v) and 0 <= v < 1  # noqa: E731
    dropout = field("dropout", right, "a number from 0 to below 1")
  return dict(
    num_chars=NUM_CHARS,
    char_dim=size("char_cnn.embedding.dim"),
    filters=[list(pair) for pair in filters],
    highways=size("char_cnn.n_highway", least=0),
    hidden=size("lstm.projection_dim"),
    cell=size("lstm.dim"),
    num_layers=size("lstm.n_layers"),
    clip=float(clip),
    residual=field(
      "lstm.use_skip_connections",
      lambda v: isinstance(v, bool),
      "true or false",
    ),
    activation=field(
      "char_cnn.activation",
      lambda v: v in ("relu", "tanh"),
      "'relu' or 'tanh'",
    ),
    dropout=dropout,
  )


def _read_hdf5(path: str) -> dict[str, np.ndarray]:
  try:
    import h5py
  except ImportError as e:
    raise UserError(
      f"{path}: HDF5 needs the package h5py: pip install 'bert_jax[convert]'."
    ) from e
  arrays: dict[str, np.ndarray] = {}

  def visit(name, item):
    if isinstance(item, h5py.Dataset):
      arrays[name] = item[...]

  try:
    with h5py.File(path, "r") as file:
      file.visititems(visit)
  except OSError as e:
    raise UserError(f"{path}: not an HDF5 file, or damaged ({e}).") from e
  for name, array in arrays.items():
    if array.dtype.kind != "f":
      raise UserError(f"{path}: {name} is {array.dtype}, not of numbers.")
  return arrays


def _prepare(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The row for no character, and convolutions in one dimension."""
  result = dict(arrays)
  for name, array in arrays.items():
    if name == "char_embed" and array.ndim == 2:
      result[name] = np.pad(array, ((1, 0), (0, 0)))
    elif name.startswith("CNN/W_cnn_") and array.shape[:1] == (1,):
      result[name] = array[0]
  return result


def rules(model: Mapping[str, Any]) -> list[Rule]:
  """Parameter -> array, for attributes of `Elmo`."""
  words = "encoder/words/"
  mapping_rules = [
    Rule(f"{words}chars/embedding", "char_embed"),
    Rule(f"{words}project/kernel", "CNN_proj/W_proj"),
    Rule(f"{words}project/bias", "CNN_proj/b_proj"),
  ]
  for i in range(len(model["filters"])):
    mapping_rules.append(
      Rule(f"{words}convolution_{i}/kernel", f"CNN/W_cnn_{i}")
    )
    mapping_rules.append(Rule(f"{words}convolution_{i}/bias", f"CNN/b_cnn_{i}"))
  for i in range(model["highways"]):
    for ours, theirs in (("gate", "carry"), ("new", "transform")):
      path = f"{words}highway_{i}/{ours}"
      mapping_rules.append(Rule(f"{path}/kernel", f"CNN_high_{i}/W_{theirs}"))
      mapping_rules.append(Rule(f"{path}/bias", f"CNN_high_{i}/b_{theirs}"))
  for side, way in enumerate(("forward", "backward")):
    for i in range(model["num_layers"]):
      name = _LSTM.format(side=side, layer=i)
      path = f"encoder/lstm_{way}_{i}"
      mapping_rules.append(Rule(f"{path}/kernel", f"{name}W_0"))
      mapping_rules.append(Rule(f"{path}/bias", f"{name}B"))
      mapping_rules.append(Rule(f"{path}/projection", f"{name}W_P_0"))
  return mapping_rules
