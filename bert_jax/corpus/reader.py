"""Opens a tokenised corpus: flat arrays, in memory or in a prepared folder.

`bert_jax prepare` writes a prepared folder once. The folder has these files:

  meta.json             format version, sizes, fingerprint; written last
  vocab.txt             a WordPiece vocabulary, with a piece on each line
  pieces.json           a list of the pieces, if the tokenizer is not WordPiece.
                        The tokenizer's published files are in the folder, too.
  others.txt            for ELMo, the words outside the vocabulary. The ids of
                        these words follow the vocabulary's ids.
  SPLIT.tokens          [T] token ids, uint16, or uint32 if there are more than
                        65,536 ids
  SPLIT.sentences       [S + 1] int64, the position in tokens where each
                        sentence begins, and at the end T
  SPLIT.documents       [D + 1] int64, the position in sentences where each
                        document begins, and at the end S
  SPLIT.word_starts     a bit for each token, 1 if it starts a word; the lowest
                        bit of a byte is for the first of its 8 tokens
  train.unigrams        int64, how often each id occurs in the training split,
                        also for the words in others.txt

SPLIT is `train`, or `validation` for the held-out documents. All arrays are
read through memory maps, so a corpus may be larger than the host's memory.

The fingerprint covers every byte of the data. Every process that opens a folder
checks the fingerprint once, before the first step, because each host may have
its own copy. Files are read in parallel. One file is read at 1.8 GB/s if the
processor has instructions for SHA-256 (measured), else at about 0.4 GB/s. In a
folder over `MAX_CHECKED_BYTES`, only sizes and metadata are checked, and a note
says so. If the command that made a folder is given again, `prepare` checks the
folder, whatever its size.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.files import (
  FileWatch,
  PathLike,
  folder_digests,
  has_valid_checksum,
  read_json,
)
from bert_jax.messages import DamagedFile, UserError, by_caller, note_once
from bert_jax.text import open_vocabulary
from bert_jax.text.characters import Spellings, spell
from bert_jax.text.open_vocabulary import OTHER_WORDS_FILE, PIECES_FILE
from bert_jax.text.vocabulary import SpecialIds, Vocabulary, bert_special_ids

FORMAT_VERSION = 1
# The largest folder that is checked at every start. The check takes 20 seconds
# at 1.8 GB/s. BERT's 3.3 billion words make about 10 GB.
MAX_CHECKED_BYTES = 2**35
SPLITS = ("train", "validation")
_ARRAY_NAMES = ("tokens", "sentences", "documents", "word_starts")
_DATA_FILES = (
  *(f"{split}.{array}" for split in SPLITS for array in _ARRAY_NAMES),
  "train.unigrams",
)


class Corpus(NamedTuple):
  """Holds the flat arrays of one split.

  Attributes:
    tokens: [T] uint16 or uint32, the token ids. The only special tokens are
      those in `never_masked_ids`, and for ELMo <S> and </S> of each sentence.
    sentences: [S + 1] int64, offsets into `tokens`; no sentence is empty.
    documents: [D + 1] int64, offsets into `sentences`; no document is empty.
    word_starts: [ceil(T / 8)] uint8, a bit for each token, 1 if it starts a
      word: `np.packbits(..., bitorder="little")`.
    spellings: the spelling of every id; None unless pieces are whole words.
    unigrams: [V] int64, the count of each id in the training split; None if
      the counts are not known.
    never_masked_ids: the ids of special tokens that were added to the
      vocabulary; they are never masked.
  """

  tokens: np.ndarray
  sentences: np.ndarray
  documents: np.ndarray
  word_starts: np.ndarray
  spellings: Spellings | None = None
  unigrams: np.ndarray | None = None
  never_masked_ids: tuple[int, ...] = ()

  @property
  def num_documents(self) -> int:
    """D, the number of documents."""
    return len(self.documents) - 1

  @property
  def num_tokens(self) -> int:
    """T, the number of tokens."""
    return len(self.tokens)


class PreparedFolder(NamedTuple):
  """Gives access to a prepared folder.

  Attributes:
    path: the folder.
    meta: the content of `meta.json`.
    splits: a `Corpus` for each split that has at least one document.
    vocab: the pieces in the order of their ids.
    special: the ids of the special tokens.
    unigrams: [V] int64, the count of each piece in the training split. Words
      outside the vocabulary are counted as the unknown token.
    watch: notices if a file is changed while it is read.
  """

  path: str
  meta: dict[str, Any]
  splits: dict[str, Corpus]
  vocab: list[str]
  special: SpecialIds
  unigrams: np.ndarray
  watch: FileWatch

  @property
  def vocab_size(self) -> int:
    """V, the number of pieces."""
    return len(self.vocab)

  @property
  def tokenizer(self) -> Vocabulary:
    """The tokenizer of the folder; each access reads the tokenizer's files."""
    return open_vocabulary.load_prepared(self.path, self.meta["lower_case"])

  def tokenizer_files(self) -> dict[str, bytes]:
    """Returns name -> content of the tokenizer's files."""
    return open_vocabulary.read_prepared_files(
      self.path, self.meta["lower_case"]
    )


def token_dtype(vocab_size: int) -> np.dtype:
  """Returns uint16 if it holds all ids below `vocab_size`, else uint32."""
  return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def corpus_from_documents(
  documents: Sequence[Sequence[Sequence[int]]],
  word_starts: Sequence[Sequence[Sequence[bool]]] | None = None,
  dtype: Any = np.uint16,
) -> Corpus:
  """Builds a corpus in memory; drops empty sentences and documents.

  Args:
    documents: the token ids of each sentence of each document.
    word_starts: True for each token that starts a word, nested like
      `documents`; None means that every token starts a word.
    dtype: the dtype of the token ids.
  """
  tokens: list[int] = []
  starts_word: list[bool] = []
  sentence_offsets, document_offsets = [0], [0]
  for document_index, document in enumerate(documents):
    for sentence_index, sentence in enumerate(document):
      if not len(sentence):
        continue
      tokens.extend(sentence)
      flags = (
        word_starts[document_index][sentence_index]
        if word_starts
        else [True] * len(sentence)
      )
      starts_word.extend(flags)
      sentence_offsets.append(len(tokens))
    if len(sentence_offsets) - 1 > document_offsets[-1]:
      document_offsets.append(len(sentence_offsets) - 1)
  return Corpus(
    np.asarray(tokens, dtype),
    np.asarray(sentence_offsets, np.int64),
    np.asarray(document_offsets, np.int64),
    np.packbits(np.asarray(starts_word, np.bool_), bitorder="little"),
  )


def mark_sentence_starts(
  starts_word: np.ndarray, sentences: np.ndarray
) -> np.ndarray:
  """Marks the first token of each sentence, which always starts a word.

  Args:
    starts_word: [T] bool, True for a token that starts a word. This array is
      changed in place.
    sentences: the offset of each sentence; an offset that is not in [0, T) is
      ignored.

  Returns:
    `starts_word`.
  """
  starts_word[sentences[(sentences >= 0) & (sentences < len(starts_word))]] = (
    True
  )
  return starts_word


def _prepare_again() -> str:
  """Returns how the caller makes a prepared folder again."""
  return by_caller("run `bert_jax prepare` again", "make the same call again")


def _check_exists(path: pathlib.Path) -> None:
  """Raises DamagedFile if a file is missing."""
  if not path.exists():
    raise DamagedFile(
      f"{path} is missing; delete the folder and {_prepare_again()}."
    )


def _map_file(path: pathlib.Path, dtype: Any, count: int) -> np.ndarray:
  """Memory-maps a file that must hold exactly `count` numbers."""
  _check_exists(path)
  expected_size = count * np.dtype(dtype).itemsize
  size = path.stat().st_size
  if size != expected_size:
    raise DamagedFile(
      f"{path} has {size} bytes where meta.json says {expected_size}; the"
      f" folder is damaged, delete it and {_prepare_again()}."
    )
  if not count:
    return np.zeros(0, dtype)
  return np.memmap(path, dtype, mode="r", shape=(count,))


def open_split(
  folder: PathLike, split: str, sizes: dict[str, int], dtype: Any
) -> Corpus:
  """Memory-maps the four files of one split.

  Args:
    folder: the prepared folder.
    split: one of `SPLITS`.
    sizes: the split's entry of "splits" in `meta.json`.
    dtype: the dtype of the token ids.

  Raises:
    DamagedFile: a file is missing, or has not the size that `sizes` needs.
  """
  num_tokens, num_sentences, num_documents = (
    sizes["tokens"],
    sizes["sentences"],
    sizes["documents"],
  )
  tokens_path, sentences_path, documents_path, word_starts_path = (
    pathlib.Path(folder, f"{split}.{array}") for array in _ARRAY_NAMES
  )
  return Corpus(
    tokens=_map_file(tokens_path, dtype, num_tokens),
    sentences=_map_file(sentences_path, np.int64, num_sentences + 1),
    documents=_map_file(documents_path, np.int64, num_documents + 1),
    word_starts=_map_file(word_starts_path, np.uint8, (num_tokens + 7) // 8),
  )


def file_digests(path: PathLike) -> dict[str, str]:
  """Returns name -> SHA-256 of the files of the tokenizer and of the data."""
  file_names = [*open_vocabulary.tokenizer_files(path), *_DATA_FILES]
  file_names += (
    [OTHER_WORDS_FILE] if pathlib.Path(path, OTHER_WORDS_FILE).exists() else []
  )
  return folder_digests(path, file_names)


def compute_fingerprint(path: PathLike, options: dict[str, Any]) -> str:
  """Returns a SHA-256 of the options and of the result of `file_digests`."""
  hasher = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
  for name, file_digest in file_digests(path).items():
    hasher.update(f"{name} {file_digest}\n".encode())
  return hasher.hexdigest()


def check_fingerprint(prepared: PreparedFolder) -> None:
  """Reads the whole folder; raises DamagedFile if a byte has changed."""
  meta = prepared.meta
  options = meta["options"]
  if (
    compute_fingerprint(prepared.path, options) != meta["fingerprint"]
    or options.get("lower_case") != meta["lower_case"]
  ):
    saved_digests, current_digests = (
      meta.get("files", {}),
      file_digests(prepared.path),
    )
    changed_files = [
      name
      for name in saved_digests.keys() | current_digests.keys()
      if saved_digests.get(name) != current_digests.get(name)
    ]
    file_list = (
      f" ({', '.join(sorted(changed_files))})"
      if saved_digests and changed_files
      else ""
    )
    raise DamagedFile(
      f"{prepared.path} is damaged: its content{file_list} does not agree with"
      f" its fingerprint. Delete it and {_prepare_again()}."
    )


def open_prepared(path: PathLike) -> PreparedFolder:
  """Opens a prepared folder.

  A folder of up to `MAX_CHECKED_BYTES` is read as a whole, to check its
  fingerprint.

  Raises:
    UserError: there is no such folder, or it is unfinished or damaged, is a
      task folder, or has a format version that is not `FORMAT_VERSION`.
  """
  folder = pathlib.Path(path)
  meta_path = folder / "meta.json"
  if not folder.is_dir():
    raise UserError(f"there is no prepared folder {path}.")
  if not meta_path.exists():
    raise UserError(
      f"{path} has no meta.json; it is no prepared folder, or is unfinished."
      " Make one with `bert_jax prepare`."
    )
  try:
    meta = read_json(meta_path)
    version = meta["format_version"]
  except (ValueError, KeyError, TypeError, IsADirectoryError) as e:
    raise _damaged_meta_error(meta_path, e) from e
  if "task" in meta:
    raise UserError(
      f"{path} holds the rows of a task, which `bert_jax train` reads"
      " with a recipe of a task, such as glue:sst2; to pre-train, make a folder"
      " of text with `bert_jax prepare` without --task."
    )
  if version != FORMAT_VERSION:
    raise UserError(
      f"{path} has format version {version}, but this program reads"
      f" {FORMAT_VERSION}; prepare the text again."
    )
  try:
    prepared = _map_folder(folder, meta)._replace(path=os.fspath(path))
    if not isinstance(meta["options"], dict):
      raise TypeError("its options are no JSON object")
    # Earlier versions wrote neither key. If only one key is missing, the file
    # is damaged.
    if "files" not in meta and "checksum" not in meta:
      note_once(
        f"note: {path} was prepared by an earlier version: its meta.json has no"
        " checksum and is not checked."
      )
    elif not has_valid_checksum(meta):
      raise TypeError("its checksum differs")
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size <= MAX_CHECKED_BYTES:
      check_fingerprint(prepared)
    else:
      note_once(
        f"{path}: {size / 1e9:.0f} GB are not checked at every start; to check"
        " them, repeat the command `bert_jax prepare` that made them."
      )
  except (KeyError, TypeError) as e:
    raise _damaged_meta_error(meta_path, e) from e
  return prepared


def _read_other_words(path: pathlib.Path, count: int) -> list[str]:
  """Reads the words outside a folder's vocabulary, one on each line.

  Args:
    path: the file; it may be missing if `count` is 0.
    count: the number of words.

  Raises:
    DamagedFile: the file does not have `count` words.
  """
  if not count:
    return []
  words = []
  if path.exists():
    words = path.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
  if len(words) != count:
    raise DamagedFile(
      f"{path} has {len(words)} words where meta.json says {count}; the folder"
      f" is damaged, delete it and {_prepare_again()}."
    )
  return words


def _damaged_meta_error(path: pathlib.Path, error: Exception) -> DamagedFile:
  fault = f"it has no {error}" if isinstance(error, KeyError) else str(error)
  return DamagedFile(
    f"{path} is damaged: {fault}. Delete its folder and {_prepare_again()}."
  )


def _map_folder(path: pathlib.Path, meta: dict[str, Any]) -> PreparedFolder:
  """Memory-maps the files of a folder.

  Raises:
    KeyError, TypeError: `meta` is damaged.
    UserError: another file of the folder is missing or damaged.
  """
  vocab_path = path / (PIECES_FILE if "special" in meta else "vocab.txt")
  _check_exists(vocab_path)
  vocab = open_vocabulary.read_pieces(path)
  if len(vocab) != meta["vocab_size"]:
    raise DamagedFile(
      f"{vocab_path} has {len(vocab)} pieces where meta.json says"
      f" {meta['vocab_size']}; it is not the vocabulary of this folder."
    )
  other_words = _read_other_words(
    path / OTHER_WORDS_FILE, meta.get("others", 0)
  )
  spellings = spell([*vocab, *other_words]) if "others" in meta else None
  dtype = token_dtype(len(vocab) + len(other_words))
  splits = {
    split: open_split(path, split, meta["splits"][split], dtype)
    for split in SPLITS
    if meta["splits"][split]["documents"]
  }
  never_masked_ids = tuple(meta.get("unmasked", ()))
  splits = {
    split: corpus._replace(
      spellings=spellings, never_masked_ids=never_masked_ids
    )
    for split, corpus in splits.items()
  }
  unigrams = _map_file(
    path / "train.unigrams", np.int64, len(vocab) + len(other_words)
  )
  if "special" in meta:
    special = SpecialIds(**meta["special"])
  else:
    special = bert_special_ids(vocab, str(vocab_path))
  if other_words:
    unigrams, other_counts = np.split(unigrams, [len(vocab)])
    unigrams = np.array(unigrams)
    unigrams[special.unk] += other_counts.sum()
  watch = FileWatch(path / name for name in _DATA_FILES)
  return PreparedFolder(
    path=str(path),
    meta=meta,
    splits=splits,
    vocab=vocab,
    special=special,
    unigrams=unigrams,
    watch=watch,
  )
