"""Writes a prepared folder piece by piece, safe against any interruption.

Everything goes to `DIR.partial`. `progress.json` there holds the length of
every file at the last save; a later run cuts the files to these lengths and
goes on. The folder gets its name when it is complete. The format is described
in `reader.py`.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from bert_jax import files
from bert_jax.corpus import reader
from bert_jax.files import (
  clear_temporary,
  is_sealed,
  open_no_follow,
  read_json,
  seal,
  write_json,
)
from bert_jax.messages import Damaged, UserError

PROGRESS = "progress.json"
# The file that a run holds locked while it writes the folder.
LOCK = "lock"
_ARRAYS = {"tokens": None, "sentences": np.int64, "documents": np.int64}
# A multiple of 8, since word-start bits of a chunk fill whole bytes.
_CHUNK_TOKENS = 2**22


class Part(NamedTuple):
  """Consecutive documents of one split.

  Attributes:
    tokens: [T] token ids.
    sentences: [S] tokens in each sentence.
    documents: [D] sentences in each document.
  """

  tokens: np.ndarray
  sentences: np.ndarray
  documents: np.ndarray


def read_progress(partial: str) -> dict[str, Any] | None:
  """Returns what `write_progress` wrote last, None for an unused folder.

  Raises:
    UserError: the folder holds something else, or what is damaged.
  """
  path = os.path.join(partial, PROGRESS)
  if not os.path.isdir(partial):
    return None
  if not os.path.exists(path):
    clear_temporary(partial)
    if set(os.listdir(partial)) - {PROGRESS + ".tmp", LOCK}:
      raise UserError(
        f"{partial} is in the way: it holds files but no {PROGRESS}. Move it"
        " away, or delete it."
      )
    return None
  with contextlib.suppress(ValueError):
    progress = read_json(path)
    if isinstance(progress, dict) and is_sealed(progress):
      return progress
  raise Damaged(f"{path} is damaged; delete {partial}.")


def write_progress(partial: str, progress: dict[str, Any]) -> None:
  """Writes what `read_progress` returns."""
  path = os.path.join(partial, PROGRESS)
  write_json(path, seal(progress))


@contextlib.contextmanager
def locked(partial: str) -> Iterator[None]:
  """Makes the folder and holds it against a second run.

  Raises:
    UserError: another process writes it, or a file has its name.
  """
  if os.path.islink(partial):
    raise UserError(f"{partial} is a link and in the way; move it away.")
  if os.path.exists(partial) and not os.path.isdir(partial):
    raise UserError(f"{partial} is a file, in the way; move it away.")
  os.makedirs(partial, exist_ok=True)
  try:
    with files.locked(os.path.join(partial, LOCK)):
      yield
  except files.Locked as e:
    raise files.Locked(f"{partial}: another run is writing it.") from e


class Writer:
  """Appends documents to the splits of an unfinished folder."""

  def __init__(self, partial: str, dtype: np.dtype, progress: dict[str, Any]):
    """Opens the files, cut to the lengths that `progress["files"]` gives.

    Raises:
      OSError: a file is shorter than that, or cannot be written.
    """
    self.partial = partial
    self._dtype = dtype
    self._files = {}
    self._ends: dict[str, int] = {}
    for split in reader.SPLITS:
      for array, kind in _ARRAYS.items():
        name = f"{split}.{array}"
        path = os.path.join(partial, name)
        file = open_no_follow(path)
        length = progress["files"].get(name, 0)
        if file.seek(0, os.SEEK_END) < length:
          raise OSError(f"{path} is damaged; delete {partial}.")
        file.seek(length)
        file.truncate()
        self._files[name] = file
        if kind and not file.tell():
          file.write(np.zeros(1, kind).tobytes())
        item = np.dtype(kind or dtype).itemsize
        self._ends[name] = file.tell() // item - (1 if kind else 0)

  def append(self, split: str, part: Part) -> None:
    """Appends documents to a split; `save` makes them durable."""
    self._write(split, "tokens", part.tokens.astype(self._dtype))
    for array, lengths, unit in (
      ("sentences", part.sentences, f"{split}.tokens"),
      ("documents", part.documents, f"{split}.sentences"),
    ):
      # The unit's end has been moved already: count back from it.
      start = self._ends[unit] - int(lengths.sum())
      self._write(split, array, start + np.cumsum(lengths, dtype=np.int64))

  def _write(self, split: str, array: str, values: np.ndarray) -> None:
    name = f"{split}.{array}"
    self._files[name].write(values.tobytes())
    self._ends[name] += len(values)

  def sizes(self) -> dict[str, dict[str, int]]:
    """Returns tokens, sentences, documents of each split."""
    return {
      split: {array: self._ends[f"{split}.{array}"] for array in _ARRAYS}
      for split in reader.SPLITS
    }

  def save(self, progress: dict[str, Any]) -> None:
    """Makes all that was appended durable, together with `progress`."""
    for file in self._files.values():
      file.flush()
      os.fsync(file.fileno())
    files = {name: file.tell() for name, file in self._files.items()}
    write_progress(self.partial, {**progress, "files": files})

  def close(self) -> None:
    for file in self._files.values():
      # After a full disk, closing tries to write again what failed.
      with contextlib.suppress(OSError):
        file.close()


def derive(
  partial: str,
  vocab_size: int,
  boundary: np.ndarray,
  ends: bool = False,
  alone: np.ndarray | None = None,
) -> np.ndarray:
  """Writes the files that follow from the tokens.

  Args:
    partial: the folder, with all tokens in it.
    vocab_size: V.
    boundary: [V] bool, whether a piece starts a word.
    ends: it ends one instead.
    alone: [V] bool, True if a piece is always a whole word; None if none is.

  Returns:
    [V] int64, how often each piece occurs in training.
  """
  dtype = reader.token_dtype(vocab_size)
  unigrams = np.zeros(vocab_size, np.int64)
  for split in reader.SPLITS:
    base = os.path.join(partial, split)
    sentences = np.fromfile(base + ".sentences", np.int64)
    done, last = 0, np.True_
    with (
      open(base + ".tokens", "rb") as tokens,
      _rewrite(base + ".word_starts") as bits,
    ):
      while data := tokens.read(_CHUNK_TOKENS * dtype.itemsize):
        ids = np.frombuffer(data, dtype)
        flags = boundary[ids]
        if ends:
          flags, last = np.append(last, flags[:-1]), flags[-1]
          if alone is not None:
            flags |= alone[ids]
        elif alone is not None:
          words = alone[ids]
          flags |= np.append(last, words[:-1])
          last = words[-1]
        flags = reader.mark_starts(flags, sentences - done)
        bits.write(np.packbits(flags, bitorder="little").tobytes())
        done += len(ids)
        if split == "train":
          unigrams += np.bincount(ids, minlength=vocab_size)
      bits.flush()
      os.fsync(bits.fileno())
  with _rewrite(os.path.join(partial, "train.unigrams")) as f:
    f.write(unigrams.tobytes())
    f.flush()
    os.fsync(f.fileno())
  return unigrams


def _rewrite(path: str) -> BinaryIO:
  """Opens a file of the unfinished folder and empties it; refuses a link."""
  flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
  return open_no_follow(path, flags)


def finish(partial: str, output: str, meta: dict[str, Any]) -> dict[str, Any]:
  """Writes `meta.json` with digests, and renames the folder to `output`."""
  meta = seal(meta | {"files": reader.file_digests(partial)})
  write_json(os.path.join(partial, "meta.json"), meta)
  clear_temporary(partial)
  files.rename(partial, output)
  remove_leftovers(output)
  return meta


def remove_leftovers(output: str) -> None:
  """Removes from a finished folder the files that only its writing needs."""
  for name in (PROGRESS, LOCK):
    with contextlib.suppress(FileNotFoundError):
      os.remove(os.path.join(output, name))
