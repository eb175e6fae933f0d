"""Reads the arrays of a Hugging Face folder, in one file or in shards.

The files are safetensors, or pickles of torch.
"""

import pickle
import zipfile
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from etils import epath

from bert_jax.messages import DamagedFile, UserError, note
from bert_jax.weights import generator_discriminator, model_folder

SAFETENSORS_FILE = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
TORCH_FILE, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Prefixes that torch's wrappers put before every name, for models on several
# devices and for compiled models.
WRAPPER_PREFIXES = ("module.", "_orig_mod.")
# The dtypes that a parameter may have; float32 can hold each of their values.
FLOAT_DTYPES = {
  "float32": np.dtype(np.float32),
  "float16": np.dtype(np.float16),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def read(path: str) -> tuple[dict[str, np.ndarray], str]:
  """Reads the arrays of a folder.

  LayerNorm's arrays get their new names, `weight` and `bias`, if the file has
  the old ones, `gamma` and `beta`. The names lose the `WRAPPER_PREFIXES`.

  Args:
    path: the folder.

  Returns:
    Name -> array, and the path of the file, or of the shards' index.

  Raises:
    UserError: the folder has no weights, a file is damaged, or a pickle is not
      a plain dictionary of arrays.
  """
  folder = epath.Path(path)
  for name, read_file in (
    (SAFETENSORS_FILE, model_folder.read_tensors),
    (TORCH_FILE, read_torch),
  ):
    file = folder / name
    if file.is_file():
      return _clean_names(read_file(str(file)), str(file)), str(file)
    index_file = folder / f"{name}.index.json"
    if index_file.is_file():
      arrays: dict[str, np.ndarray] = {}
      for shard in _shard_names(str(index_file)):
        arrays |= read_file(str(folder / shard))
      return _clean_names(arrays, str(index_file)), str(index_file)
  raise UserError(
    f"{path} holds no weights: none of {SAFETENSORS_FILE}, {SAFETENSORS_INDEX},"
    f" {TORCH_FILE}, {TORCH_INDEX}."
  )


def has_weights(path: str) -> bool:
  """Returns True if a folder, or each of its ELECTRA towers, has weights."""

  def has_file(folder: epath.Path) -> bool:
    file_names = (SAFETENSORS_FILE, SAFETENSORS_INDEX, TORCH_FILE, TORCH_INDEX)
    return any((folder / name).is_file() for name in file_names)

  folder = epath.Path(path)
  towers = generator_discriminator.TOWERS
  return has_file(folder) or all(has_file(folder / tower) for tower in towers)


def _shard_names(index: str) -> list[str]:
  """Returns the names of the files that an index lists."""
  shard_by_array = model_folder.read_json(index).get("weight_map")
  if not isinstance(shard_by_array, dict) or not shard_by_array:
    raise DamagedFile(f"{index} is damaged: it has no weight_map.")
  if not all(isinstance(shard, str) for shard in shard_by_array.values()):
    raise DamagedFile(f"{index} is damaged: its weight_map names no files.")
  shards = sorted(set(shard_by_array.values()))
  for shard in shards:
    # The index may come from a stranger, so its names must stay in the folder.
    if not model_folder.is_file_name(shard):
      raise UserError(
        f"{index}: {shard!r} must be the name of a file in this folder."
      )
  return shards


def read_torch(path: str) -> dict[str, np.ndarray]:
  """Reads a dictionary of tensors that torch saved.

  Code in the file is never run.

  Raises:
    UserError: torch is not installed, the file is damaged, or it holds more
      than tensors.
  """
  try:
    import torch
  except ImportError as e:
    raise UserError(
      f"{path} needs torch to be read: pip install torch (or get the model's"
      f" {SAFETENSORS_FILE})."
    ) from e
  try:
    # A memory map leaves the arrays on the disk. Files of old versions of torch
    # are not zip files and cannot be mapped.
    is_zip = zipfile.is_zipfile(path)
    tensors = torch.load(
      path, map_location="cpu", weights_only=True, mmap=is_zip
    )
  except pickle.UnpicklingError as e:
    raise UserError(
      f"{path} holds more than tensors and is not opened: loading it could run"
      f" its code; get the model's {SAFETENSORS_FILE}."
    ) from e
  except Exception as e:
    # torch raises errors of many types for a damaged file.
    reason = str(e).strip().split("\n")[0][:200] or type(e).__name__
    raise DamagedFile(f"{path} is damaged ({reason}); get it again.") from e
  if not isinstance(tensors, Mapping) or not all(
    isinstance(tensor, torch.Tensor) for tensor in tensors.values()
  ):
    raise UserError(
      f"{path} is not a dictionary of tensors; get the model's"
      f" {SAFETENSORS_FILE}."
    )
  return {
    name: _to_numpy(tensor, name, path) for name, tensor in tensors.items()
  }


def _to_numpy(tensor: Any, name: str, path: str) -> np.ndarray:
  """Returns a torch tensor as an array."""
  import torch

  tensor = tensor.detach()
  if tensor.dtype == torch.bfloat16:
    return (
      tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    )
  try:
    return tensor.numpy()
  except (TypeError, RuntimeError) as e:
    type_text = f"{tensor.dtype} ({tensor.layout})"
    raise UserError(
      f"{path}: {name} is {type_text}, a type that is not supported."
    ) from e


def _clean_names(
  arrays: Mapping[str, np.ndarray], source: str
) -> dict[str, np.ndarray]:
  """Removes wrappers' prefixes, and replaces the old names of LayerNorm."""
  removed_prefix, arrays = "", dict(arrays)
  while arrays:
    wrapper_prefix = next(
      (
        candidate
        for candidate in WRAPPER_PREFIXES
        if all(name.startswith(candidate) for name in arrays)
      ),
      None,
    )
    if wrapper_prefix is None:
      break
    arrays = {
      name.removeprefix(wrapper_prefix): array for name, array in arrays.items()
    }
    removed_prefix += wrapper_prefix
  if removed_prefix:
    note(
      f"note: {source}: the names of all arrays begin with {removed_prefix!r};"
      " this prefix is left out."
    )
  return _rename_norms(arrays, source)


def _rename_norms(
  arrays: Mapping[str, np.ndarray], source: str
) -> dict[str, np.ndarray]:
  """Renames `gamma` to `weight`, and `beta` to `bias`."""
  new_arrays = {}
  for name, array in arrays.items():
    new_name = name
    for old_ending, new_ending in ((".gamma", ".weight"), (".beta", ".bias")):
      if name.endswith(old_ending):
        new_name = name.removesuffix(old_ending) + new_ending
    if new_name in new_arrays:
      raise UserError(
        f"{source}: {new_name} is there twice, once under its old name (with"
        " gamma or beta); remove that copy."
      )
    new_arrays[new_name] = array
  return new_arrays


def common_dtype(arrays: Mapping[str, np.ndarray], source: str) -> str:
  """Returns the name of a model's dtype; "float32" if it has several dtypes.

  Args:
    arrays: name -> array.
    source: the file, for messages.

  Raises:
    UserError: an array's dtype is not a key of `FLOAT_DTYPES`.
  """
  name_by_dtype = {dtype: name for name, dtype in FLOAT_DTYPES.items()}
  for array_name, array in arrays.items():
    if array.dtype not in name_by_dtype:
      raise UserError(
        f"{source}: {array_name} is {array.dtype}, not one of"
        f" {', '.join(FLOAT_DTYPES)}."
      )
  dtype_names = {name_by_dtype[array.dtype] for array in arrays.values()}
  return dtype_names.pop() if len(dtype_names) == 1 else "float32"
