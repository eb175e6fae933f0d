"""Files of features: JSONL, npz, HDF5.

The last two hold `ids`, `vectors` and, where a text has a vector a token,
`tokens` and `starts`: text i has rows starts[i] to starts[i + 1].
"""

import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from bert_jax import files
from bert_jax.messages import UserError, note
from bert_jax.use import features, text_batches
from bert_jax.use.features import Features
from bert_jax.weights.load import load

# Texts that a write to an HDF5 file holds.
_CHUNK = 256
# Bytes of the names in an .npz.
_MOST = 1 << 33


def write(path: str, features: Iterable[Features]) -> int:
  """Writes a file in one piece or not at all, by its extension.

  Args:
    path: .jsonl, .npz, .h5 or .hdf5.
    features: the features of texts; all have one vector, or all have several.

  Returns:
    The number of texts.

  Raises:
    ValueError: another extension, or no h5py.
  """
  writer = check(path)
  with files.atomic_file(path) as partial:
    return writer(partial, features)


def check(path: str) -> Callable[[str, Iterable[Features]], int]:
  """The writer for a file's extension.

  Raises:
    ValueError: see `write`.
  """
  extension = os.path.splitext(path)[1]
  if extension not in _WRITERS:
    raise UserError(
      f"--output {path}: its name ends in none of {', '.join(_WRITERS)}."
    )
  if extension in (".h5", ".hdf5"):
    try:
      import h5py  # noqa: F401
    except ImportError as e:
      raise UserError(
        f"--output {path}: HDF5 needs the package h5py: pip install"
        " 'bert_jax[convert]'."
      ) from e
  return _WRITERS[extension]


def _numbers(x: np.ndarray) -> list:
  """The shortest decimals that are the same float32."""
  return x.astype(str).astype(np.float64).tolist()


def _jsonl(path: str, features: Iterable[Features]) -> int:
  """An object a text: id, and tokens with vectors or one vector."""
  count = 0
  with open(path, "w", encoding="utf-8") as f:
    for text_features in features:
      row = {"id": text_features.id}
      if text_features.tokens is None:
        row["vector"] = _numbers(text_features.vectors)
      else:
        row |= {
          "tokens": text_features.tokens,
          "vectors": _numbers(text_features.vectors),
        }
      f.write(json.dumps(row, ensure_ascii=False) + "\n")
      count += 1
  return count


def _npz(path: str, features: Iterable[Features]) -> int:
  """Arrays; they are in memory until all are there.

  Raises:
    ValueError: words so long that an array of them fits nowhere.
  """
  arrays = _arrays(list(features))
  for name in ("ids", "tokens"):
    names = arrays.get(name, [])
    longest = max(map(len, names), default=0)
    if 4 * longest * len(names) > _MOST:
      raise UserError(
        f"{name}: {len(names):,} texts, the longest of {longest:,} characters,"
        " have no room in an .npz, which keeps as much for each; write a .jsonl"
        " or .h5."
      )
    if name in arrays:
      arrays[name] = np.array(names, str)
  with open(path, "wb") as f:
    np.savez(f, **arrays)
  return len(arrays["ids"])


def _arrays(features: list[Features]) -> dict[str, Any]:
  """Numbers are arrays, names lists: an array is as wide as its longest."""
  ids = [_named(str(text_features.id)) for text_features in features]
  if not features or features[0].tokens is None:
    vectors = [text_features.vectors for text_features in features]
    return {"ids": ids, "vectors": np.array(vectors, np.float32)}
  counts = [len(text_features.tokens) for text_features in features]
  tokens = [
    _named(token)
    for text_features in features
    for token in text_features.tokens
  ]
  return {
    "ids": ids,
    "starts": np.cumsum([0, *counts], dtype=np.int64),
    "tokens": tokens,
    "vectors": np.concatenate(
      [text_features.vectors for text_features in features]
    ),
  }


def _named(text: str) -> str:
  """A name without NUL, which HDF5 has not, and numpy not at the end."""
  return text.replace("\0", "\ufffd")


def _hdf5(path: str, features: Iterable[Features]) -> int:
  """The same arrays, some texts at a time."""
  import h5py

  with _Disk(path, "w+b") as disk:
    try:
      with h5py.File(disk, "w") as f:
        return _write_parts(f, disk, iter(features))
    finally:
      # Closing the HDF5 file has written to the disk, too.
      disk.check()


def _write_parts(f: Any, disk: "_Disk", features: Iterator[Features]) -> int:
  rows = count = 0
  for chunk in _parts(features):
    arrays = _arrays(chunk)
    if "starts" in arrays:
      # The starts of each part begin at 0. The file keeps only the first 0.
      starts = arrays["starts"] + rows
      rows = int(starts[-1])
      arrays["starts"] = starts[1:] if count else starts
    for name, array in arrays.items():
      _append(f, name, array)
    disk.check()
    count += len(chunk)
  return count


class _Disk(io.FileIO):
  """A file for h5py that hides errors of a full disk from the HDF5 library.

  The library crashes if a write fails. So after the first error this class
  writes nothing more, but reports success, so that HDF5 can close its file.
  """

  error: OSError | None = None

  def write(self, data: Any) -> int:
    unwritten = memoryview(data).cast("B")
    try:
      while self.error is None and len(unwritten):
        unwritten = unwritten[super().write(unwritten) :]
    except OSError as e:
      self.error = e
    return len(memoryview(data).cast("B"))

  def truncate(self, size: int | None = None) -> int:
    try:
      return super().truncate(size)
    except OSError as e:
      self.error = self.error or e
      return size or 0

  def readinto(self, buffer: Any) -> int:
    """Reads bytes; returns zeros for bytes that could not be written."""
    count = super().readinto(buffer)
    if self.error is not None:
      memoryview(buffer).cast("B")[count:] = bytes(len(buffer) - count)
      return len(buffer)
    return count

  def check(self) -> None:
    """Raises the first error, if there was one."""
    if self.error is not None:
      raise self.error


def _parts(features: Iterator[Features]) -> Iterator[list[Features]]:
  """Some texts at a time; one empty part if there are none."""
  chunk = list(itertools.islice(features, _CHUNK))
  yield chunk
  while chunk := list(itertools.islice(features, _CHUNK)):
    yield chunk


def _append(file: Any, name: str, array: np.ndarray | list[str]) -> None:
  """Adds rows to a dataset of an HDF5 file, which is made if need be."""
  if name not in file:
    import h5py

    text = isinstance(array, list)
    shape = () if text else array.shape[1:]
    file.create_dataset(
      name,
      (0, *shape),
      h5py.string_dtype() if text else array.dtype,
      maxshape=(None, *shape),
      chunks=True,
    )
  dataset, before = file[name], len(file[name])
  dataset.resize(before + len(array), axis=0)
  dataset[before:] = array


_WRITERS = {".jsonl": _jsonl, ".npz": _npz, ".h5": _hdf5, ".hdf5": _hdf5}


def extract_file(
  model: str,
  source: str,
  target: str,
  spec: features.Spec,
  tokens: int = 8192,
  dtype: str = "float32",
  family: str | None = None,
  tower: str | None = None,
) -> int:
  """Writes the vectors of a file's texts, in the order of the file.

  Args:
    model: a path that `bert_jax.load` opens.
    source: a file with a text on each line, or .jsonl with "text" or "words".
    target: a .jsonl, .npz, .h5 or .hdf5 file, written whole or not at all.
    spec: which vectors. `layers` is None for all layers; `unit` is None for
      the model's own pooling, or pieces if it has none.
    tokens: tokens of a batch, with padding.
    dtype: the dtype of the computation.
    family: the family of a transformers folder whose config.json names none.
    tower: "discriminator" or "generator" of an ELECTRA.

  Returns:
    The number of texts.

  Raises:
    ValueError: bad input, or the model cannot give these vectors.
  """
  check(target)
  if os.path.realpath(target) == os.path.realpath(source):
    raise UserError(f"--output {target} is the input; choose another.")
  loaded = load(
    model,
    family=family,
    tower=tower,
    default_tower="discriminator",
    dtype=dtype,
  )
  if spec.layers is None:
    spec = spec._replace(layers=tuple(range(features.num_layers(loaded))))
  unit, normalize, notes = features.own_pooling(loaded, spec.unit)
  for line in notes:
    note(f"note: {line}.")
  spec = spec._replace(unit=unit, normalize=spec.normalize or normalize)
  vectors = features.extract_texts(
    loaded, text_batches.read_texts(source), spec, tokens
  )
  return write(target, vectors)
