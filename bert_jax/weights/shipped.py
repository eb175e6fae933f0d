"""Reads the models that the package ships: `read`.

A shipped model is a folder `shipped_models/NAME` with these files:

* config.json: the keys of a converted folder's config.json (see
  `model_folder`), without `format_version` and digests.
* parameters.npz: for each kernel and table, PATH.codes (int8, of its shape) and
  PATH.steps (float16, one for each row of the last axis). The weights are the
  codes times the steps. Other parameters are float16, under their own paths.
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

FOLDER = pathlib.Path(__file__).parent / "shipped_models"
PARAMETERS = "parameters.npz"
CODES, STEPS = ".codes", ".steps"
_REMEDY = "; install bert_jax again"


def names() -> list[str]:
  """Returns the names of the shipped models."""
  return sorted(path.parent.name for path in FOLDER.glob(f"*/{PARAMETERS}"))


def read(name: str) -> Weights:
  """Reads a shipped model; its arrays are float32.

  Args:
    name: an entry of `names()`.

  Raises:
    UserError: a file of the package is missing or damaged.
  """
  import lzma

  folder = FOLDER / name
  config = files.read_json_object(
    str(folder / model_folder.CONFIG_FILE), _REMEDY, _REMEDY
  )
  path = folder / PARAMETERS
  try:
    with path.open("rb") as f, np.load(f, allow_pickle=False) as stored:
      arrays = decode(stored)
    shapes = {array: values.shape for array, values in arrays.items()}
    mapping.check_shapes(shapes, from_config.param_shapes(config), str(path))
  except (
    *(OSError, ValueError, KeyError, EOFError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
  ) as e:
    raise DamagedFile(f"{path} is damaged ({e}){_REMEDY}.") from e
  return Weights(
    config | {"format_version": model_folder.FORMAT_VERSION},
    arrays,
    model_folder.read_tokenizer(str(folder)),
  )


def decode(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns path -> float32 array for the arrays of parameters.npz."""
  arrays: dict[str, np.ndarray] = {}
  for name in stored:
    if name.endswith(CODES):
      path = name.removesuffix(CODES)
      steps = stored[path + STEPS].astype(np.float32)
      arrays[path] = stored[name].astype(np.float32) * steps
    elif not name.endswith(STEPS):
      arrays[name] = stored[name].astype(np.float32)
  return arrays
