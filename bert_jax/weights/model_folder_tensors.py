"""Named arrays in one file: the safetensors format, in numpy alone.

A file is the length of a header (8 bytes, little-endian), the header (JSON:
name -> dtype, shape, begin and end of its bytes after the header), the bytes
(github.com/huggingface/safetensors, README, "Format"). The package of that
name reads no bfloat16 into numpy.
"""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from bert_jax.files import parse_json

DTYPES: dict[str, np.dtype] = {
  "F64": np.dtype("<f8"),
  "F32": np.dtype("<f4"),
  "F16": np.dtype("<f2"),
  "BF16": np.dtype(ml_dtypes.bfloat16),
  "I64": np.dtype("<i8"),
  "I32": np.dtype("<i4"),
  "I16": np.dtype("<i2"),
  "I8": np.dtype("i1"),
  "U8": np.dtype("u1"),
  "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8


def read(path: str) -> dict[str, np.ndarray]:
  """Reads all arrays of a file; they stay on the disk until they are used.

  Raises:
    ValueError: no such file, or it is no whole safetensors file.
  """
  try:
    size = os.path.getsize(path)
    with open(path, "rb") as f:
      length = int.from_bytes(f.read(8), "little")
      if length > size - 8:
        raise ValueError("the header is cut")
      header = parse_json(f.read(length))
    if not isinstance(header, dict):
      raise ValueError("the header is no JSON object")
    header.pop("__metadata__", None)
    # An empty file cannot be mapped.
    data = np.memmap(path, np.uint8, "r") if size > 8 + length else b""
    arrays, places = {}, []
    for name, entry in header.items():
      dtype, shape, start, stop = _entry(name, entry)
      if 8 + length + stop > size:
        raise ValueError(f"{name} ends beyond the file")
      part = np.frombuffer(data[8 + length + start : 8 + length + stop], dtype)
      arrays[name] = part.reshape(shape)
      places.append((start, stop, name))
    _check_places(places, size - 8 - length)
  except FileNotFoundError as e:
    raise ValueError(f"{path}: no such file.") from e
  except ValueError as e:
    raise ValueError(
      f"{path} is no whole safetensors file of known dtypes ({e}); get it"
      " again."
    ) from e
  return arrays


def _entry(name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
  """Returns dtype, shape, start and stop of an array; checks the entry."""
  if not isinstance(entry, dict):
    raise ValueError(f"{name} is no JSON object")
  shape, offsets = entry.get("shape"), entry.get("data_offsets")
  for numbers in (shape, offsets):
    if not isinstance(numbers, list) or not all(
      type(n) is int and 0 <= n < 2**63 for n in numbers
    ):
      raise ValueError(f"{name} has no whole numbers for shape and offsets")
  if entry.get("dtype") not in [*DTYPES]:
    raise ValueError(f"{name} is {entry.get('dtype')!r:.40}, unknown here")
  if len(offsets) != 2:
    raise ValueError(f"{name} has {len(offsets)} offsets, not 2")
  dtype, (start, stop) = DTYPES[entry["dtype"]], offsets
  if stop - start != math.prod(shape) * dtype.itemsize:
    raise ValueError(f"{name} has {stop - start} bytes for {shape}")
  return dtype, tuple(shape), start, stop


def _check_places(places: list[tuple[int, int, str]], size: int) -> None:
  """Raises ValueError unless the arrays fill the file without gaps."""
  end = 0
  for start, stop, name in sorted(places):
    if start < end:
      raise ValueError(f"{name} overlaps the array before it")
    if start > end:
      raise ValueError(f"there is a hole of {start - end} bytes before {name}")
    end = stop
  if end != size:
    raise ValueError("bytes are left over")


def write(
  path: str,
  arrays: Mapping[str, np.ndarray],
  metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes arrays by the order of their names.

  Args:
    path: of the new file.
    arrays: name -> array of a dtype of `DTYPES`.
    metadata: names and values for the header.
  """
  header, end = {}, 0
  if metadata:
    header["__metadata__"] = dict(metadata)
  for name in sorted(arrays):
    array = arrays[name]
    begin, end = end, end + array.nbytes
    header[name] = {
      "dtype": _NAMES[array.dtype],
      "shape": list(array.shape),
      "data_offsets": [begin, end],
    }
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % _ALIGNMENT)
  with open(path, "wb") as f:
    f.write(len(text).to_bytes(8, "little") + text)
    for name in sorted(arrays):
      # As bytes: bfloat16 has no buffer of its own.
      f.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8))
