"""Reads ELMo as allenai/bilm-tf publishes it: options.json and an HDF5 file."""

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from etils import epath

from bert_jax.messages import UserError
from bert_jax.models import from_config
from bert_jax.models.elmo import MAX_CHARS, NUM_CHARS
from bert_jax.weights import mapping, model_folder
from bert_jax.weights.mapping import Rule
from bert_jax.weights.model_folder import Weights

OPTIONS_FILE = "options.json"
# Only training uses the softmax, so the encoder does not need its variables.
SKIPPED_VARIABLES = ("softmax/*",)
# The value in bin/train_elmo.py. Files for prediction do not state a dropout.
DEFAULT_DROPOUT = 0.1
_LSTM_NAME = "RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"


def read(path: str, family: str, tower: str | None = None) -> Weights:
  """Reads a folder with `options.json` and one HDF5 file of weights.

  Args:
    path: the folder, or the HDF5 file with the options beside it.
    family: must be "elmo".
    tower: must be None, because only ELECTRA has towers.

  Raises:
    UserError: the files are missing, damaged or not ELMo's.
  """
  if family != "elmo":
    raise UserError(
      f"family={family}: bilm's files hold ELMo; pass family=elmo."
    )
  if tower is not None:
    raise UserError(
      f"tower={tower}: only ELECTRA has towers; leave out the tower."
    )
  weights_path, options_path = _find_files(path)
  model = read_options(model_folder.read_json(options_path), options_path)
  config = model_folder.make_config(
    "elmo", "encoder", model, source={"format": "bilm"}
  )
  try:
    shapes = from_config.param_shapes(config)
  except ValueError as e:
    raise UserError(f"{options_path}: {e}") from e
  arrays = _read_hdf5(weights_path)
  skipped_names = sorted(
    name for name in arrays if mapping.matches_pattern(name, SKIPPED_VARIABLES)
  )
  config["source"] |= {"dtype": "float32", "skipped": skipped_names}
  params = mapping.to_params(
    rules(model),
    _to_parameter_shapes(arrays),
    shapes,
    SKIPPED_VARIABLES,
    weights_path,
  )
  return Weights(config, params, {})


def _find_files(path: str) -> tuple[str, str]:
  """Returns the paths of the HDF5 file and of the options."""
  folder = epath.Path(path)
  if folder.is_file():
    folder, weights_files = folder.parent, [folder]
  elif folder.is_dir():
    weights_files = [*folder.glob("*weights*.hdf5")]
    weights_files = weights_files or [*folder.glob("*.hdf5")]
  else:
    raise UserError(f"there is no folder or file {path}.")
  if len(weights_files) != 1:
    raise UserError(
      f"{folder} has {len(weights_files)} files of weights (*weights*.hdf5),"
      " not one; pass the path of the right file."
    )
  options_files = [*folder.glob(f"*{OPTIONS_FILE}")]
  if len(options_files) != 1:
    raise UserError(
      f"{folder} has {len(options_files)} files *{OPTIONS_FILE}, not one;"
      " keep the right one."
    )
  return str(weights_files[0]), str(options_files[0])


def _is_number(x: Any) -> bool:
  return isinstance(x, numbers.Real) and not isinstance(x, bool)


def _is_filter_list(filters: Any) -> bool:
  """Returns True for a list of pairs [width in characters, filter count]."""
  return (
    isinstance(filters, list)
    and len(filters) > 0
    and all(isinstance(pair, list) and len(pair) == 2 for pair in filters)
    and all(
      type(number) is int and number > 0 for pair in filters for number in pair
    )
    and max(width for width, _ in filters) <= MAX_CHARS
  )


def read_options(options: Mapping[str, Any], source: str) -> dict[str, Any]:
  """Translates options.json into attributes of `Elmo`, field by field.

  Args:
    options: the content of options.json.
    source: the file, for messages.

  Raises:
    UserError: a field is missing, or has a value that is not implemented.
  """

  def field(name: str, accepts: Callable[[Any], bool], allowed: str) -> Any:
    """Returns a field; the text `allowed` says which values it may have."""
    entry: Any = options
    for section in name.split("."):
      if not isinstance(entry, Mapping) or section not in entry:
        raise UserError(f"{source} has no {name}; it must be {allowed}.")
      entry = entry[section]
    if not accepts(entry):
      raise UserError(f"{source}: {name} is {entry!r}; it must be {allowed}.")
    return entry

  def size(name: str, minimum: int = 1) -> int:
    return field(
      name,
      lambda v: type(v) is int and v >= minimum,
      f"a whole number from {minimum}",
    )

  clip = field(
    "lstm.cell_clip", lambda v: _is_number(v) and v > 0, "a number above 0"
  )
  field("lstm.proj_clip", lambda v: v == clip, f"{clip!r}, as cell_clip is")
  field(
    "char_cnn.max_characters_per_token",
    lambda v: v == MAX_CHARS,
    f"{MAX_CHARS}",
  )
  # Options for training do not count the id for "no character". Options for
  # prediction count it.
  supported_counts = NUM_CHARS - 1, NUM_CHARS
  field(
    "char_cnn.n_characters",
    lambda v: v in supported_counts,
    f"one of {supported_counts}",
  )
  filters = field(
    "char_cnn.filters",
    _is_filter_list,
    f"a list of [width up to {MAX_CHARS}, number of filters]",
  )
  dropout = DEFAULT_DROPOUT
  if "dropout" in options:
    dropout = field(
      "dropout",
      lambda v: _is_number(v) and 0 <= v < 1,
      "a number from 0 to below 1",
    )
  return dict(
    num_chars=NUM_CHARS,
    char_dim=size("char_cnn.embedding.dim"),
    filters=[list(pair) for pair in filters],
    highways=size("char_cnn.n_highway", minimum=0),
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

  def visit(name: str, node: Any) -> None:
    if isinstance(node, h5py.Dataset):
      arrays[name] = node[...]

  try:
    with h5py.File(path, "r") as file:
      file.visititems(visit)
  except OSError as e:
    raise UserError(f"{path} is not an HDF5 file, or is damaged ({e}).") from e
  for name, array in arrays.items():
    if array.dtype.kind != "f":
      raise UserError(f"{path}: {name} is {array.dtype}, not a float dtype.")
  return arrays


def _to_parameter_shapes(
  arrays: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns arrays with the shapes of the parameters.

  The table of characters gets a first row, which is zero, for "no character".
  The kernels of convolutions lose their first axis, of size 1.
  """
  prepared_arrays = dict(arrays)
  for name, array in arrays.items():
    if name == "char_embed" and array.ndim == 2:
      prepared_arrays[name] = np.pad(array, ((1, 0), (0, 0)))
    elif name.startswith("CNN/W_cnn_") and array.shape[:1] == (1,):
      prepared_arrays[name] = array[0]
  return prepared_arrays


def rules(model: Mapping[str, Any]) -> list[Rule]:
  """Returns the rules for an encoder; `model` has the attributes of `Elmo`."""
  words_path = "encoder/words/"
  mapping_rules = [
    Rule(f"{words_path}chars/embedding", "char_embed"),
    Rule(f"{words_path}project/kernel", "CNN_proj/W_proj"),
    Rule(f"{words_path}project/bias", "CNN_proj/b_proj"),
  ]
  for i in range(len(model["filters"])):
    mapping_rules.append(
      Rule(f"{words_path}convolution_{i}/kernel", f"CNN/W_cnn_{i}")
    )
    mapping_rules.append(
      Rule(f"{words_path}convolution_{i}/bias", f"CNN/b_cnn_{i}")
    )
  for i in range(model["highways"]):
    # bilm-tf calls the gate "carry"; see `elmo.Highway`.
    for dense_layer, name_in_file in (("gate", "carry"), ("new", "transform")):
      path = f"{words_path}highway_{i}/{dense_layer}"
      mapping_rules.append(
        Rule(f"{path}/kernel", f"CNN_high_{i}/W_{name_in_file}")
      )
      mapping_rules.append(
        Rule(f"{path}/bias", f"CNN_high_{i}/b_{name_in_file}")
      )
  for side, direction in enumerate(("forward", "backward")):
    for i in range(model["num_layers"]):
      name_in_file = _LSTM_NAME.format(side=side, layer=i)
      path = f"encoder/lstm_{direction}_{i}"
      mapping_rules.append(Rule(f"{path}/kernel", f"{name_in_file}W_0"))
      mapping_rules.append(Rule(f"{path}/bias", f"{name_in_file}B"))
      mapping_rules.append(Rule(f"{path}/projection", f"{name_in_file}W_P_0"))
  return mapping_rules
