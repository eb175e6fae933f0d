"""The arrays of a Hugging Face folder: safetensors or torch, one or several."""

import os
import pickle
import zipfile
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from bert_jax.messages import Damaged, UserError, note
from bert_jax.weights import generator_discriminator, model_folder

SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
TORCH, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Prefixes that torch's wrappers put before every name, for models on several
# devices and for compiled models.
WRAPPERS = ("module.", "_orig_mod.")
# The dtypes that a parameter may have; float32 can hold each of their values.
FLOATS = {
  "float32": np.dtype(np.float32),
  "float16": np.dtype(np.float16),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def read(path: str) -> tuple[dict[str, np.ndarray], str]:
  """Reads the arrays of a folder, and says which file they are in.

  Old names of LayerNorm's arrays, `gamma` and `beta`, become the new ones.

  Raises:
    ValueError: no weights, a damaged file, or a pickle that is no plain
      dictionary of arrays.
  """
  for name, read_file in (
    (SAFE, model_folder.read_tensors),
    (TORCH, read_torch),
  ):
    file = os.path.join(path, name)
    if os.path.isfile(file):
      return _named(read_file(file), file), file
    index = os.path.join(path, name + ".index.json")
    if os.path.isfile(index):
      arrays = {}
      for shard in _parts(index):
        arrays |= read_file(os.path.join(path, shard))
      return _named(arrays, index), index
  raise UserError(
    f"{path} holds no weights: none of {SAFE}, {SAFE_INDEX}, {TORCH},"
    f" {TORCH_INDEX}."
  )


def has_weights(path: str) -> bool:
  """Returns True if a folder, or both of ELECTRA's towers have weights."""
  names = (SAFE, SAFE_INDEX, TORCH, TORCH_INDEX)
  places = [[""], list(generator_discriminator.TOWERS)]
  return any(
    all(
      any(os.path.isfile(os.path.join(path, place, name)) for name in names)
      for place in group
    )
    for group in places
  )


def _parts(index: str) -> list[str]:
  places = model_folder.read_json(index).get("weight_map")
  if not isinstance(places, dict) or not places:
    raise Damaged(f"{index} is damaged: it has no weight_map.")
  if not all(isinstance(shard, str) for shard in places.values()):
    raise Damaged(f"{index} is damaged: its weight_map names no files.")
  shards = sorted(set(places.values()))
  for shard in shards:
    # A name in somebody else's file must not lead out of the folder.
    if os.path.basename(shard) != shard:
      raise UserError(f"{index}: {shard!r} is no file of this folder.")
  return shards


def read_torch(path: str) -> dict[str, np.ndarray]:
  """Reads a dictionary of tensors that torch saved; no code in it is run.

  Raises:
    ValueError: torch is not there, or the file is damaged or holds more.
  """
  try:
    import torch
  except ImportError as e:
    raise UserError(
      f"{path} needs torch to be read: pip install torch (or get the model's"
      f" {SAFE})."
    ) from e
  try:
    # With mmap arrays stay on the disk; files of old versions are no zip.
    mapped = zipfile.is_zipfile(path)
    values = torch.load(path, "cpu", weights_only=True, mmap=mapped)
  except pickle.UnpicklingError as e:
    raise UserError(
      f"{path} holds more than tensors and is not opened: loading it could run"
      f" its code; get the model's {SAFE}."
    ) from e
  except Exception as e:
    # torch raises errors of many types for a damaged file.
    reason = str(e).strip().split("\n")[0][:200] or type(e).__name__
    raise Damaged(f"{path} is damaged ({reason}); get it again.") from e
  if not isinstance(values, Mapping) or not all(
    isinstance(value, torch.Tensor) for value in values.values()
  ):
    raise UserError(f"{path} is no dictionary of tensors.")
  return {name: _numpy(value, name, path) for name, value in values.items()}


def _numpy(tensor, name: str, path: str) -> np.ndarray:
  import torch

  tensor = tensor.detach()
  if tensor.dtype == torch.bfloat16:
    return (
      tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    )
  try:
    return tensor.numpy()
  except (TypeError, RuntimeError) as e:
    kind = f"{tensor.dtype} ({tensor.layout})"
    raise UserError(f"{path}: {name} is {kind}, unknown here.") from e


def _named(
  arrays: Mapping[str, np.ndarray], source: str
) -> dict[str, np.ndarray]:
  """Arrays without the prefix of a wrapper around the model, by new names."""
  prefix, arrays = "", dict(arrays)
  while arrays:
    first = next(
      (p for p in WRAPPERS if all(k.startswith(p) for k in arrays)), None
    )
    if first is None:
      break
    arrays = {k.removeprefix(first): a for k, a in arrays.items()}
    prefix += first
  if prefix:
    note(
      f"note: {source}: its names all begin with {prefix!r}, which is left out."
    )
  return _new_names(arrays, source)


def _new_names(
  arrays: Mapping[str, np.ndarray], source: str
) -> dict[str, np.ndarray]:
  result = {}
  for key, array in arrays.items():
    new = key
    for old, name in ((".gamma", ".weight"), (".beta", ".bias")):
      if key.endswith(old):
        new = key.removesuffix(old) + name
    if new in result:
      raise UserError(f"{source}: {new} is there under its old name as well.")
    result[new] = array
  return result


def dtype_of(arrays: Mapping[str, np.ndarray], source: str) -> str:
  """The one dtype of a model's parameters; "float32" if they have several.

  Raises:
    ValueError: a parameter is no float of 16 or 32 bits.
  """
  names = {dtype: name for name, dtype in FLOATS.items()}
  for key, array in arrays.items():
    if array.dtype not in names:
      raise UserError(
        f"{source}: {key} is {array.dtype}, not one of {', '.join(FLOATS)}."
      )
  dtypes = {names[array.dtype] for array in arrays.values()}
  return dtypes.pop() if len(dtypes) == 1 else "float32"
