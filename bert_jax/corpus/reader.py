"""A tokenised corpus as flat arrays, in memory or as a prepared folder.

A prepared folder is self-contained and written once by `bert_jax prepare`:

  meta.json             format version, sizes, fingerprint; written last
  vocab.txt             a WordPiece vocabulary, a piece a line; of another kind
                        pieces.json, a list, and the tokenizer's own files
  others.txt            of words: those with ids beyond the vocabulary
  SPLIT.tokens          flat token ids, uint16 (uint32 from 65,537 pieces on)
  SPLIT.sentences       int64 [S + 1], sentence s is tokens[s]:tokens[s + 1]
  SPLIT.documents       int64 [D + 1], the same, in sentences
  SPLIT.word_starts     a bit a token, 1 where a word starts (little-endian)
  train.unigrams        int64 [V], how often each id occurs in training

with SPLIT `train` and `validation` (the held-out documents). All arrays are
read through memory maps, so a corpus may be larger than RAM.

The fingerprint covers every byte of the data. Every process that opens a folder
checks it, since hosts may have copies of their own: once, before the first
step, files in parallel, each at 1.8 GB/s on a processor with instructions for
SHA-256 (measured), about 0.4 GB/s on one without. Of a folder over
`VERIFY_BYTES` only sizes and metadata are checked, and that is said; `prepare`,
asked again for a folder that is there, checks one of any size.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.files import Watch, digests, is_sealed, read_json
from bert_jax.messages import Damaged, UserError, note_once
from bert_jax.text import open_vocabulary
from bert_jax.text.characters import Spellings, spell
from bert_jax.text.open_vocabulary import OTHERS, PIECES
from bert_jax.text.vocabulary import SpecialIds, Vocabulary, special_ids

FORMAT_VERSION = 1
# 20 seconds at 1.8 GB/s; BERT's 3.3 billion words make about 10 GB.
VERIFY_BYTES = 2**35
SPLITS = ("train", "validation")
_ARRAYS = ("tokens", "sentences", "documents", "word_starts")
_DATA_FILES = (
  *(f"{split}.{array}" for split in SPLITS for array in _ARRAYS),
  "train.unigrams",
)


class Corpus(NamedTuple):
  """Flat arrays of one split.

  Attributes:
    tokens: [T] uint16 or uint32 token ids, no special tokens in it but those
      around sentences of words and those of `unmasked`.
    sentences: [S + 1] int64 offsets into `tokens`; no sentence is empty.
    documents: [D + 1] int64 offsets into `sentences`; none is empty.
    word_starts: [ceil(T / 8)] uint8, `np.packbits(..., bitorder="little")`.
    spellings: the spelling of every id, where pieces are whole words.
    unigrams: [V] int64 counts of the training split; None if nobody counted.
    unmasked: ids of special tokens that were added to the vocabulary and that
      the text may hold; they are never masked.
  """

  tokens: np.ndarray
  sentences: np.ndarray
  documents: np.ndarray
  word_starts: np.ndarray
  spellings: Spellings | None = None
  unigrams: np.ndarray | None = None
  unmasked: tuple[int, ...] = ()

  @property
  def num_documents(self) -> int:
    return len(self.documents) - 1

  @property
  def num_tokens(self) -> int:
    return len(self.tokens)


class Prepared(NamedTuple):
  """An opened prepared folder.

  Attributes:
    path: the folder.
    meta: the content of `meta.json`.
    splits: a `Corpus` for each split that has at least one document.
    vocab: the pieces in the order of their ids.
    special: ids of the special tokens.
    unigrams: [V] int64 counts of the training split; words beyond the
      vocabulary count as its unknown one.
    watch: notices if a file is changed while it is read.
  """

  path: str
  meta: dict[str, Any]
  splits: dict[str, Corpus]
  vocab: list[str]
  special: SpecialIds
  unigrams: np.ndarray
  watch: Watch

  @property
  def vocab_size(self) -> int:
    return len(self.vocab)

  @property
  def tokenizer(self) -> Vocabulary:
    """The tokenizer that made the folder; its files are read at each call."""
    return open_vocabulary.load_from(self.path, self.meta["lower_case"])

  def tokenizer_files(self) -> dict[str, bytes]:
    """Returns name -> content of the tokenizer's files."""
    return open_vocabulary.files_of(self.path, self.meta["lower_case"])


def token_dtype(vocab_size: int) -> np.dtype:
  return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def corpus_from_documents(
  documents: Sequence[Sequence[Sequence[int]]],
  word_starts: Sequence[Sequence[Sequence[bool]]] | None = None,
  dtype: Any = np.uint16,
) -> Corpus:
  """Builds an in-memory corpus; empty sentences and documents are dropped.

  Args:
    documents: documents of sentences of token ids.
    word_starts: the same nesting, True where a word starts; all True if None.
    dtype: the type of the token ids.
  """
  tokens, starts, sentences, offsets = [], [], [0], [0]
  for d, document in enumerate(documents):
    for s, sentence in enumerate(document):
      if not len(sentence):
        continue
      tokens.extend(sentence)
      flags = word_starts[d][s] if word_starts else [True] * len(sentence)
      starts.extend(flags)
      sentences.append(len(tokens))
    if len(sentences) - 1 > offsets[-1]:
      offsets.append(len(sentences) - 1)
  return Corpus(
    np.asarray(tokens, dtype),
    np.asarray(sentences, np.int64),
    np.asarray(offsets, np.int64),
    np.packbits(np.asarray(starts, bool), bitorder="little"),
  )


def mark_starts(flags: np.ndarray, sentences: np.ndarray) -> np.ndarray:
  """Marks the first token of each sentence, which starts a word anyhow.

  Args:
    flags: [T] bool, True where a piece starts a word; changed in place.
    sentences: offsets of sentences into them.
  """
  flags[sentences[(sentences >= 0) & (sentences < len(flags))]] = True
  return flags


def _check_exists(path: str) -> None:
  if not os.path.exists(path):
    raise Damaged(
      f"{path} is missing; delete the folder and run `bert_jax prepare` again."
    )


def _map_file(path: str, dtype: Any, count: int) -> np.ndarray:
  """Memory-maps a file that must hold exactly `count` items."""
  _check_exists(path)
  want = count * np.dtype(dtype).itemsize
  have = os.path.getsize(path)
  if have != want:
    raise Damaged(
      f"{path} has {have} bytes where meta.json says {want}; the folder is"
      " damaged, delete it and run `bert_jax prepare` again."
    )
  if not count:
    return np.zeros(0, dtype)
  return np.memmap(path, dtype, mode="r", shape=(count,))


def open_split(
  folder: str, split: str, sizes: dict[str, int], dtype: Any
) -> Corpus:
  """Maps the four files of one split; `sizes` is its entry in `meta.json`."""
  base = os.path.join(folder, split)
  t, s, d = sizes["tokens"], sizes["sentences"], sizes["documents"]
  return Corpus(
    _map_file(base + ".tokens", dtype, t),
    _map_file(base + ".sentences", np.int64, s + 1),
    _map_file(base + ".documents", np.int64, d + 1),
    _map_file(base + ".word_starts", np.uint8, (t + 7) // 8),
  )


def file_digests(path: str) -> dict[str, str]:
  """Returns {name: SHA-256} of the tokenizer's files and of all data files."""
  names = [*open_vocabulary.tokenizer_files(path), *_DATA_FILES]
  names += [OTHERS] if os.path.exists(os.path.join(path, OTHERS)) else []
  return digests(path, names)


def fingerprint(path: str, options: dict[str, Any]) -> str:
  """Returns the SHA-256 over options, vocabulary and every data file."""
  digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
  for name, content in file_digests(path).items():
    digest.update(f"{name} {content}\n".encode())
  return digest.hexdigest()


def verify(prepared: Prepared) -> None:
  """Reads the whole folder; UserError if a byte is not what was written."""
  meta = prepared.meta
  options = meta["options"]
  if (
    fingerprint(prepared.path, options) != meta["fingerprint"]
    or options.get("lower_case") != meta["lower_case"]
  ):
    saved, current = meta.get("files", {}), file_digests(prepared.path)
    names = [
      name
      for name in saved.keys() | current.keys()
      if saved.get(name) != current.get(name)
    ]
    changed = f" ({', '.join(sorted(names))})" if saved and names else ""
    raise Damaged(
      f"{prepared.path} is damaged: its content{changed} is not that of its"
      " fingerprint. Delete it and run `bert_jax prepare` again."
    )


def _size(path: str) -> int:
  return sum(entry.stat().st_size for entry in os.scandir(path))


def open_prepared(path: str) -> Prepared:
  """Opens a prepared folder; one of up to `VERIFY_BYTES` is read as a whole.

  Raises:
    UserError: no such folder, an unfinished one, another format version, or
      a damaged one.
  """
  meta_path = os.path.join(path, "meta.json")
  if not os.path.isdir(path):
    raise UserError(f"{path}: no such prepared folder.")
  if not os.path.exists(meta_path):
    raise UserError(
      f"{path} has no meta.json: not a prepared folder, or not finished. Make"
      " one with `bert_jax prepare`."
    )
  try:
    meta = read_json(meta_path)
    version = meta["format_version"]
  except (ValueError, KeyError, TypeError, IsADirectoryError) as e:
    raise _damaged(meta_path, e) from e
  if "task" in meta:
    raise UserError(
      f"{path} holds the rows of a task, which `bert_jax train` reads"
      " with a recipe of a task, such as glue:sst2; to pre-train, make a folder"
      " of text with `bert_jax prepare` without --task."
    )
  if version != FORMAT_VERSION:
    raise UserError(
      f"{path} has format version {version}, this program reads"
      f" {FORMAT_VERSION}; prepare the text again."
    )
  try:
    prepared = _open(path, meta)
    if not isinstance(meta["options"], dict):
      raise TypeError("its options are no JSON object")
    # Skip the check only if both keys are missing: one may be damaged.
    if "files" not in meta and "checksum" not in meta:
      note_once(
        f"note: {path} was prepared by an earlier version: its meta.json has no"
        " checksum and is not checked."
      )
    elif not is_sealed(meta):
      raise TypeError("its checksum differs")
    if (size := _size(path)) <= VERIFY_BYTES:
      verify(prepared)
    else:
      note_once(
        f"{path}: {size / 1e9:.0f} GB are not checked at every start;"
        " `bert_jax prepare` with the arguments that made them does it."
      )
  except (KeyError, TypeError) as e:
    raise _damaged(meta_path, e) from e
  return prepared


def _read_others(path: str, count: int) -> list[str]:
  """Reads the words beyond a folder's vocabulary, one a line.

  Args:
    path: the file; there is none if there are no such words.
    count: how many there are.

  Raises:
    UserError: there are not as many.
  """
  if not count:
    return []
  words = []
  if os.path.exists(path):
    with open(path, encoding="utf-8", errors="replace", newline="\n") as f:
      words = f.read().split("\n")[:-1]
  if len(words) != count:
    raise Damaged(
      f"{path} has {len(words)} words where meta.json says {count}; the folder"
      " is damaged, delete it and run `bert_jax prepare` again."
    )
  return words


def _damaged(path: str, error: Exception) -> Damaged:
  fault = f"it has no {error}" if isinstance(error, KeyError) else str(error)
  return Damaged(
    f"{path} is damaged: {fault}. Delete its folder and run `bert_jax prepare`"
    " again."
  )


def _open(path: str, meta: dict[str, Any]) -> Prepared:
  """Maps the files of a folder; KeyError or TypeError if `meta` is damaged."""
  vocab_path = os.path.join(path, "vocab.txt")
  if "special" in meta:
    vocab_path = os.path.join(path, PIECES)
  _check_exists(vocab_path)
  vocab = open_vocabulary.read_pieces(path)
  if len(vocab) != meta["vocab_size"]:
    raise Damaged(
      f"{vocab_path} has {len(vocab)} pieces where meta.json says"
      f" {meta['vocab_size']}; it is not the vocabulary of this folder."
    )
  others = _read_others(os.path.join(path, OTHERS), meta.get("others", 0))
  words = spell([*vocab, *others]) if "others" in meta else None
  dtype = token_dtype(len(vocab) + len(others))
  splits = {
    split: open_split(path, split, meta["splits"][split], dtype)
    for split in SPLITS
    if meta["splits"][split]["documents"]
  }
  unmasked = tuple(meta.get("unmasked", ()))
  splits = {
    name: split._replace(spellings=words, unmasked=unmasked)
    for name, split in splits.items()
  }
  counts_path = os.path.join(path, "train.unigrams")
  unigrams = _map_file(counts_path, np.int64, len(vocab) + len(others))
  if "special" in meta:
    special = SpecialIds(**meta["special"])
  else:
    special = special_ids(vocab, vocab_path)
  if others:
    unigrams, beyond = np.split(unigrams, [len(vocab)])
    unigrams = np.array(unigrams)
    unigrams[special.unk] += beyond.sum()
  watch = Watch(os.path.join(path, name) for name in _DATA_FILES)
  return Prepared(path, meta, splits, vocab, special, unigrams, watch)
