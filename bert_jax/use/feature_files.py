"""Writes features to files: JSONL, npz, HDF5.

An npz or HDF5 file has the arrays `ids` and `vectors`. If each token has a
vector, the file also has `tokens` and `starts`: text i has the entries
starts[i] to starts[i + 1] - 1 of `tokens` and `vectors`.
"""

import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.messages import Progress, UserError, note
from bert_jax.use import features, text_inputs
from bert_jax.use.features import TextVectors
from bert_jax.weights.load import open_model

# The number of texts that are written to an HDF5 file at once.
_CHUNK_SIZE = 256
# The largest size in bytes of an array of ids or tokens in an .npz file.
_MAX_STRING_BYTES = 1 << 33


def write(path: str, features: Iterable[TextVectors]) -> int:
  """Writes a file completely or not at all.

  Args:
    path: the file, whose extension is .jsonl, .npz, .h5 or .hdf5.
    features: the features of texts. Either each text has one vector, or each
      text has a vector for each token.

  Returns:
    The number of texts.

  Raises:
    UserError: the file has none of these extensions, or h5py is missing.
  """
  writer = writer_of(path)
  with files.atomic_file(path) as partial_path:
    return writer(partial_path, features)


def writer_of(path: str) -> Callable[[str, Iterable[TextVectors]], int]:
  """Returns the function that writes files with a path's extension.

  Raises:
    UserError: see `write`.
  """
  extension = epath.Path(path).suffix
  if extension not in _WRITERS:
    raise UserError(
      f"{path}: the name of the output must end in {' or '.join(_WRITERS)}."
    )
  if extension in (".h5", ".hdf5"):
    try:
      import h5py  # noqa: F401
    except ImportError as e:
      raise UserError(
        f"{path}: an HDF5 file needs the package h5py: pip install"
        " 'bert_jax[convert]'."
      ) from e
  return _WRITERS[extension]


def _shortest_decimals(x: np.ndarray) -> list[Any]:
  """Returns the shortest decimals from which float32 reads equal numbers."""
  return x.astype(str).astype(np.float64).tolist()


def _write_jsonl(path: str, features: Iterable[TextVectors]) -> int:
  """Writes a JSON object for each text, with its id and its vectors."""
  num_texts = 0
  with epath.Path(path).open("w", encoding="utf-8") as f:
    for text in features:
      json_object: dict[str, Any] = {"id": text.id}
      if text.tokens is None:
        json_object["vector"] = _shortest_decimals(text.vectors)
      else:
        json_object["tokens"] = text.tokens
        json_object["vectors"] = _shortest_decimals(text.vectors)
      f.write(json.dumps(json_object, ensure_ascii=False) + "\n")
      num_texts += 1
  return num_texts


def _write_npz(path: str, features: Iterable[TextVectors]) -> int:
  """Collects the features of all texts in memory, and writes their arrays.

  Raises:
    UserError: the ids or the tokens are too long for an array.
  """
  arrays = _arrays(list(features))
  for name in ("ids", "tokens"):
    strings = arrays.get(name, [])
    max_size = max(map(len, strings), default=0)
    if 4 * max_size * len(strings) > _MAX_STRING_BYTES:
      raise UserError(
        f"{name}: {len(strings):,} strings are too large for an .npz, because"
        f" each takes as much space as the longest, of {max_size:,} characters;"
        " write a .jsonl or .h5."
      )
    if name in arrays:
      arrays[name] = np.array(strings, str)
  with epath.Path(path).open("wb") as f:
    np.savez(f, **arrays)
  return len(arrays["ids"])


def _arrays(features: list[TextVectors]) -> dict[str, Any]:
  """Returns name -> array of numbers or list of strings.

  Strings are not put into an array here, because each element of an array
  takes as much memory as the longest string of the array.
  """
  ids = [_without_nul(str(text.id)) for text in features]
  if not features or features[0].tokens is None:
    vectors = [text.vectors for text in features]
    return {"ids": ids, "vectors": np.array(vectors, np.float32)}
  tokens_of_texts = [text.tokens or () for text in features]
  return {
    "ids": ids,
    "starts": np.cumsum([0, *map(len, tokens_of_texts)], dtype=np.int64),
    "tokens": [
      _without_nul(token) for tokens in tokens_of_texts for token in tokens
    ],
    "vectors": np.concatenate([text.vectors for text in features]),
  }


def _without_nul(text: str) -> str:
  """Replaces NUL, which HDF5 cannot store and NumPy drops at a string's end."""
  return text.replace("\0", "\ufffd")


def _write_hdf5(path: str, features: Iterable[TextVectors]) -> int:
  """Writes the arrays of an npz file to HDF5, a chunk of texts at a time."""
  import h5py

  with _ErrorKeepingFile(path, "w+b") as file_for_h5py:
    try:
      with h5py.File(file_for_h5py, "w") as f:
        return _write_chunks(f, file_for_h5py, iter(features))
    finally:
      # HDF5 may also have written to the disk when it closed the file.
      file_for_h5py.raise_error()


def _write_chunks(
  f: Any, file_for_h5py: "_ErrorKeepingFile", features: Iterator[TextVectors]
) -> int:
  num_tokens = num_texts = 0
  for chunk in _chunks(features):
    arrays = _arrays(chunk)
    if "starts" in arrays:
      # The starts of each chunk begin at 0. The file keeps only the first 0.
      starts = arrays["starts"] + num_tokens
      num_tokens = int(starts[-1])
      arrays["starts"] = starts[1:] if num_texts else starts
    for name, array in arrays.items():
      _append(f, name, array)
    file_for_h5py.raise_error()
    num_texts += len(chunk)
  return num_texts


class _ErrorKeepingFile(io.FileIO):
  """A file for h5py that keeps the first error instead of raising it.

  The HDF5 library crashes if a write fails, for example on a full disk. So
  after the first error this class writes nothing more, but reports success, so
  that HDF5 can close its file.
  """

  first_error: OSError | None = None

  def write(self, content: Any) -> int:
    """Writes bytes; after an error it only pretends to write them."""
    unwritten_bytes = memoryview(content).cast("B")
    try:
      while self.first_error is None and len(unwritten_bytes):
        unwritten_bytes = unwritten_bytes[super().write(unwritten_bytes) :]
    except OSError as e:
      self.first_error = e
    return len(memoryview(content).cast("B"))

  def truncate(self, size: int | None = None) -> int:
    """Sets the file's size; keeps an error instead of raising it."""
    try:
      return super().truncate(size)
    except OSError as e:
      self.first_error = self.first_error or e
      return size or 0

  def readinto(self, buffer: Any) -> int:
    """Reads bytes; after an error, zeros replace the bytes that are missing."""
    num_read = super().readinto(buffer)
    if self.first_error is not None:
      memoryview(buffer).cast("B")[num_read:] = bytes(len(buffer) - num_read)
      return len(buffer)
    return num_read

  def raise_error(self) -> None:
    """Raises the first error, if there was one."""
    if self.first_error is not None:
      raise self.first_error


def _chunks(features: Iterator[TextVectors]) -> Iterator[list[TextVectors]]:
  """Yields chunks of texts; without any text, yields one empty chunk."""
  chunk = list(itertools.islice(features, _CHUNK_SIZE))
  yield chunk
  while chunk := list(itertools.islice(features, _CHUNK_SIZE)):
    yield chunk


def _append(file: Any, name: str, array: np.ndarray | list[str]) -> None:
  """Appends to a dataset of an HDF5 file, which is made if it is missing."""
  if name not in file:
    import h5py

    shape: tuple[int, ...] = ()
    dtype = h5py.string_dtype()
    if not isinstance(array, list):
      shape, dtype = array.shape[1:], array.dtype
    file.create_dataset(
      name,
      (0, *shape),
      dtype,
      maxshape=(None, *shape),
      chunks=True,
    )
  dataset, old_length = file[name], len(file[name])
  dataset.resize(old_length + len(array), axis=0)
  dataset[old_length:] = array


_WRITERS = {
  ".jsonl": _write_jsonl,
  ".npz": _write_npz,
  ".h5": _write_hdf5,
  ".hdf5": _write_hdf5,
}


def extract_file(
  model_path: str,
  source: str,
  target: str,
  spec: features.Spec,
  batch_tokens: int = 8192,
  dtype: str = "float32",
  family: str | None = None,
  tower: str | None = None,
) -> int:
  """Writes the vectors of a file's texts, in the order of the file.

  Args:
    model_path: a path that `open_model` opens.
    source: a file with a text on each line, or .jsonl with "text" or "words".
    target: the .jsonl, .npz, .h5 or .hdf5 file to write, completely or not at
      all.
    spec: which vectors to compute. If its `unit` is None, the model's pooling
      is taken, or pieces for a model without a pooling.
    batch_tokens: the largest number of tokens in a batch, with padding.
    dtype: the dtype of the computation.
    family: the family of a transformers folder; needed if its config.json does
      not name a family.
    tower: "discriminator" or "generator" of an ELECTRA; None means the
      discriminator.

  Returns:
    The number of texts.

  Raises:
    UserError: the input cannot be read, or the model cannot compute the
      vectors of the spec.
  """
  writer_of(target)  # Refuse a bad extension before the model is opened.
  text_inputs.check_not_same_file(source, target)
  with Progress(f"opening {model_path}"):
    opened_model = open_model(
      model_path,
      family=family,
      tower=tower,
      default_tower="discriminator",
      dtype=dtype,
    )
  spec, notes = features.complete_spec(opened_model, spec)
  for line in notes:
    note(f"note: {line}.")
  with Progress(f"writing {target}") as progress:
    progress.describe("compiling")
    features_of_texts = features.extract_texts(
      opened_model,
      text_inputs.read_texts(source),
      spec,
      batch_tokens,
      lambda num_done: progress.describe(f"{num_done:,} texts done"),
    )
    return write(target, features_of_texts)
