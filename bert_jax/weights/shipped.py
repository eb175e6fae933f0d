"""Reads the models that the package ships.

A shipped model is a folder `shipped_models/NAME` with these files:

* config.json: the keys of a converted folder's config.json (see
  `model_folder`), without `format_version` and digests.
* parameters.npz: for each kernel and table, two arrays: PATH.codes (int8, in
  the shape of the parameter) and PATH.steps (float16, in the shape of the
  parameter, but with a last axis of size 1). The parameter is the codes times
  the steps. Each parameter that is neither kernel nor table is one float16
  array with the name PATH. PATH is the parameter's path in the tree.
* the tokenizer's files, and README.md, the model's card.

experiments/mini/pack.py writes these files.
"""

import pathlib
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np

from bert_jax import files
from bert_jax.messages import DamagedFile
from bert_jax.models import from_config
from bert_jax.weights import mapping, model_folder
from bert_jax.weights.model_folder import Weights

MODELS_FOLDER = pathlib.Path(__file__).parent / "shipped_models"
PARAMETERS_FILE = "parameters.npz"
CODES_ENDING, STEPS_ENDING = ".codes", ".steps"
_REMEDY = "; install bert_jax again"


def model_names() -> list[str]:
  """Returns the names of the shipped models."""
  return sorted(
    path.parent.name for path in MODELS_FOLDER.glob(f"*/{PARAMETERS_FILE}")
  )


def read(name: str) -> Weights:
  """Reads a shipped model; its arrays are float32.

  Args:
    name: an entry of `model_names()`.

  Raises:
    UserError: a file of the package is missing or damaged.
  """
  import lzma

  folder = MODELS_FOLDER / name
  config = files.read_json_object(
    str(folder / model_folder.CONFIG_FILE),
    missing_advice=_REMEDY,
    damaged_advice=_REMEDY,
  )
  path = folder / PARAMETERS_FILE
  try:
    with (
      path.open("rb") as file,
      np.load(file, allow_pickle=False) as stored_arrays,
    ):
      arrays = dequantise(stored_arrays)
    shapes = {
      parameter_path: array.shape for parameter_path, array in arrays.items()
    }
    mapping.check_shapes(shapes, from_config.param_shapes(config), str(path))
  except (
    *(OSError, ValueError, KeyError, EOFError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
  ) as e:
    raise DamagedFile(f"{path} is damaged ({e}){_REMEDY}.") from e
  return Weights(
    config | {"format_version": model_folder.FORMAT_VERSION},
    arrays,
    model_folder.read_tokenizer_files(str(folder)),
  )


def dequantise(
  stored_arrays: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns path -> float32 array for the arrays of parameters.npz."""
  arrays: dict[str, np.ndarray] = {}
  for name in stored_arrays:
    if name.endswith(CODES_ENDING):
      path = name.removesuffix(CODES_ENDING)
      steps = stored_arrays[path + STEPS_ENDING].astype(np.float32)
      arrays[path] = stored_arrays[name].astype(np.float32) * steps
    elif not name.endswith(STEPS_ENDING):
      arrays[name] = stored_arrays[name].astype(np.float32)
  return arrays
