"""Writes a prepared folder step by step, safe against any interruption.

Everything is written to the unfinished folder `DIR.partial`. The file
`progress.json` in it holds the length of every file at the last save. After an
interruption, `prepare` cuts the files to these lengths and continues. When the
folder is complete, it is renamed to `DIR`. `reader.py` describes the format.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from bert_jax import files
from bert_jax.corpus import reader, sources
from bert_jax.files import (
  add_checksum,
  delete_temporary_files,
  has_valid_checksum,
  open_unless_link,
  read_json,
  sync_file,
  write_json,
)
from bert_jax.messages import DamagedFile, UserError

PROGRESS_FILE = "progress.json"
# The file on which a process holds a lock while it writes the folder.
LOCK_FILE = "lock"
# The name of each array that `SplitWriter` writes -> its dtype. None means the
# dtype of token ids. The other arrays are offsets, and begin with an extra 0.
_ARRAY_DTYPES = {"tokens": None, "sentences": np.int64, "documents": np.int64}
# The number of tokens that `write_derived_files` reads at once. It writes a bit
# for each token, so this number is a multiple of 8, to fill whole bytes.
_BLOCK_TOKENS = 2**22


class EncodedDocuments(NamedTuple):
  """Holds consecutive documents of one split.

  Attributes:
    tokens: [T] token ids.
    sentence_lengths: [S] the number of tokens in each sentence.
    document_lengths: [D] the number of sentences in each document.
  """

  tokens: np.ndarray
  sentence_lengths: np.ndarray
  document_lengths: np.ndarray


@dataclasses.dataclass(frozen=True)
class Job:
  """Describes an unfinished folder, and how it is written.

  Attributes:
    partial_folder: the unfinished folder.
    sources: the inputs.
    progress: the content of `progress.json`; each step of the job changes it.
    processes: the number of worker processes; 0 to work in this process.
    save_seconds: the seconds between saves.
  """

  partial_folder: str
  sources: Sequence[sources.Source]
  progress: dict[str, Any]
  processes: int
  save_seconds: float


def read_progress(partial_folder: str) -> dict[str, Any] | None:
  """Returns the progress that `write_progress` wrote; None for a new folder.

  If there is no `progress.json`, this function deletes the temporary files that
  an interrupted `write_progress` left.

  Raises:
    UserError: the folder has files but no `progress.json`.
    DamagedFile: (a UserError) `progress.json` is damaged.
  """
  path = pathlib.Path(partial_folder, PROGRESS_FILE)
  if not path.parent.is_dir():
    return None
  if not path.exists():
    delete_temporary_files(partial_folder)
    file_names = {file.name for file in path.parent.iterdir()}
    # Earlier versions used the temporary file "progress.json.tmp".
    if file_names - {PROGRESS_FILE + ".tmp", LOCK_FILE}:
      raise UserError(
        f"{partial_folder} is in the way: it holds files but no"
        f" {PROGRESS_FILE}. Move it away, or delete it."
      )
    return None
  with contextlib.suppress(ValueError):
    progress = read_json(path)
    if isinstance(progress, dict) and has_valid_checksum(progress):
      return progress
  raise DamagedFile(f"{path} is damaged; delete {partial_folder}.")


def write_progress(partial_folder: str, progress: dict[str, Any]) -> None:
  """Writes `progress.json`, for `read_progress`."""
  write_json(
    pathlib.Path(partial_folder, PROGRESS_FILE), add_checksum(progress)
  )


@contextlib.contextmanager
def hold_folder_lock(partial_folder: str) -> Iterator[None]:
  """Makes the unfinished folder, and locks it until the end of the block.

  Raises:
    LockHeld: (a UserError) another process holds the lock.
    UserError: a file or a link has the folder's name.
  """
  folder = pathlib.Path(partial_folder)
  if folder.is_symlink():
    raise UserError(
      f"{partial_folder} is a link, and is in the way; move it away."
    )
  if folder.exists() and not folder.is_dir():
    raise UserError(
      f"{partial_folder} is a file, and is in the way; move it away."
    )
  folder.mkdir(parents=True, exist_ok=True)
  try:
    with files.hold_lock(folder / LOCK_FILE):
      yield
  except files.LockHeld as e:
    raise files.LockHeld(f"{partial_folder}: another run is writing it.") from e


class SplitWriter:
  """Appends documents to the splits of an unfinished folder."""

  def __init__(
    self, partial_folder: str, dtype: np.dtype, progress: dict[str, Any]
  ):
    """Opens the files, and cuts them to the lengths of the last save.

    Args:
      partial_folder: the unfinished folder.
      dtype: the dtype of token ids.
      progress: the content of `progress.json`; its "files" has the lengths.

    Raises:
      OSError: a file is too short, or cannot be written.
    """
    self.partial_folder = partial_folder
    self._dtype = dtype
    self._files: dict[str, BinaryIO] = {}
    # File -> the number of tokens, sentences or documents in it.
    self._counts: dict[str, int] = {}
    for split in reader.SPLITS:
      for array_name, array_dtype in _ARRAY_DTYPES.items():
        file_name = f"{split}.{array_name}"
        path = pathlib.Path(partial_folder, file_name)
        file = open_unless_link(path)
        saved_length = progress["files"].get(file_name, 0)
        if file.seek(0, os.SEEK_END) < saved_length:
          raise OSError(f"{path} is damaged; delete {partial_folder}.")
        file.seek(saved_length)
        file.truncate()
        self._files[file_name] = file
        # A file of offsets begins with a 0, which `_counts` does not count.
        if array_dtype and not file.tell():
          file.write(np.zeros(1, array_dtype).tobytes())
        itemsize = np.dtype(array_dtype or dtype).itemsize
        num_zeros = 1 if array_dtype else 0
        self._counts[file_name] = file.tell() // itemsize - num_zeros

  def append(self, split: str, documents: EncodedDocuments) -> None:
    """Appends documents to a split; `save` makes them durable."""
    self._write(split, "tokens", documents.tokens.astype(self._dtype))
    for array_name, lengths, counted_file in (
      ("sentences", documents.sentence_lengths, f"{split}.tokens"),
      ("documents", documents.document_lengths, f"{split}.sentences"),
    ):
      # The new tokens (or sentences) are counted already, so subtract them to
      # get the offset at which they begin.
      start = self._counts[counted_file] - int(lengths.sum())
      self._write(split, array_name, start + np.cumsum(lengths, dtype=np.int64))

  def _write(self, split: str, array_name: str, array: np.ndarray) -> None:
    """Appends numbers to the file of an array."""
    file_name = f"{split}.{array_name}"
    self._files[file_name].write(array.tobytes())
    self._counts[file_name] += len(array)

  def sizes(self) -> dict[str, dict[str, int]]:
    """Returns the numbers of tokens, sentences and documents of each split."""
    return {
      split: {
        array_name: self._counts[f"{split}.{array_name}"]
        for array_name in _ARRAY_DTYPES
      }
      for split in reader.SPLITS
    }

  def save(self, progress: dict[str, Any]) -> None:
    """Makes all appended documents durable, and writes the progress."""
    for file in self._files.values():
      sync_file(file)
    lengths = {name: file.tell() for name, file in self._files.items()}
    write_progress(self.partial_folder, {**progress, "files": lengths})

  def close(self) -> None:
    """Closes the files; documents that were not saved may be lost."""
    for file in self._files.values():
      # Closing fails if unsaved documents do not fit on the disk. There are
      # unsaved documents only after an earlier error, so ignore this one.
      with contextlib.suppress(OSError):
        file.close()


def write_derived_files(
  partial_folder: str,
  vocab_size: int,
  at_word_boundary: np.ndarray,
  marks_word_ends: bool = False,
  is_whole_word_piece: np.ndarray | None = None,
) -> np.ndarray:
  """Writes the files that are computed from the tokens.

  Args:
    partial_folder: the unfinished folder, with all tokens in it.
    vocab_size: V, the number of ids.
    at_word_boundary: [V] bool, True for a piece that begins a word; or, if
      `marks_word_ends`, for a piece that ends a word.
    marks_word_ends: see `Vocabulary.marks_word_ends`.
    is_whole_word_piece: [V] bool, True for an added token, which is always a
      whole word; None if the vocabulary has no added tokens.

  Returns:
    An array of int64 [V] with the number of times that each id occurs in the
    training split.
  """
  dtype = reader.token_dtype(vocab_size)
  unigrams = np.zeros(vocab_size, np.int64)
  for split in reader.SPLITS:
    sentence_offsets = np.fromfile(
      pathlib.Path(partial_folder, f"{split}.sentences"), np.int64
    )
    block_start = 0
    # True if the token before this block ends a word. If the vocabulary marks
    # word starts, only added tokens are known to end a word. At the start of a
    # split it is True, because the first token starts a word.
    previous_ends_word = np.True_
    with (
      pathlib.Path(partial_folder, f"{split}.tokens").open("rb") as tokens_file,
      _open_and_empty(
        pathlib.Path(partial_folder, f"{split}.word_starts")
      ) as bits_file,
    ):
      while block_bytes := tokens_file.read(_BLOCK_TOKENS * dtype.itemsize):
        ids = np.frombuffer(block_bytes, dtype)
        is_word_start = at_word_boundary[ids]
        if marks_word_ends:
          # So far the array says which tokens end a word. A token starts a word
          # if the token before it ends a word.
          is_word_start, previous_ends_word = (
            np.append(previous_ends_word, is_word_start[:-1]),
            is_word_start[-1],
          )
          if is_whole_word_piece is not None:
            is_word_start |= is_whole_word_piece[ids]
        elif is_whole_word_piece is not None:
          # An added token ends a word, so the token after it starts a word.
          is_added_token = is_whole_word_piece[ids]
          is_word_start |= np.append(previous_ends_word, is_added_token[:-1])
          previous_ends_word = is_added_token[-1]
        is_word_start = reader.mark_sentence_starts(
          is_word_start, sentence_offsets - block_start
        )
        bits_file.write(np.packbits(is_word_start, bitorder="little").tobytes())
        block_start += len(ids)
        if split == "train":
          unigrams += np.bincount(ids, minlength=vocab_size)
      sync_file(bits_file)
  with _open_and_empty(
    pathlib.Path(partial_folder, "train.unigrams")
  ) as unigrams_file:
    unigrams_file.write(unigrams.tobytes())
    sync_file(unigrams_file)
  return unigrams


def _open_and_empty(path: pathlib.Path) -> BinaryIO:
  """Opens a file of the unfinished folder and empties it; refuses a link."""
  flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
  return open_unless_link(path, flags)


def finish_folder(
  partial_folder: str, output: str, meta: dict[str, Any]
) -> dict[str, Any]:
  """Writes `meta.json` with digests, and renames the folder to `output`."""
  meta = add_checksum(meta | {"files": reader.file_digests(partial_folder)})
  write_json(pathlib.Path(partial_folder, "meta.json"), meta)
  delete_temporary_files(partial_folder)
  files.rename_durably(partial_folder, output)
  remove_leftovers(output)
  return meta


def remove_leftovers(output: str) -> None:
  """Deletes the files of a finished folder that only its writer needs."""
  for name in (PROGRESS_FILE, LOCK_FILE):
    pathlib.Path(output, name).unlink(missing_ok=True)
