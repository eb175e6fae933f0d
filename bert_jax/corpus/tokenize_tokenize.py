"""Raw documents to token ids: what a worker process of `prepare` does."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.corpus import reader as corpus
from bert_jax.corpus import sources
from bert_jax.corpus import writer as folder
from bert_jax.text.vocabulary import Vocabulary

# About 0.2 seconds of work, and a few MB of the tokenizer's memory.
_BATCH_CHARS = 2**18
_SENTENCES = 1024
_SENTENCE_CHARS = 2**20


class Tokenized(NamedTuple):
  """What became of a batch of records.

  Attributes:
    parts: the documents of each split, in order.
    records: how many records the batch had.
    share: share of the inputs read up to its end.
    smallest: of the documents' hashes, up to four.
    largest: of the documents' hashes; None without documents.
  """

  parts: dict[str, folder.Part]
  records: int
  share: float
  smallest: list[int]
  largest: int | None


def batches(
  records: Iterable[sources.Record],
) -> Iterator[list[sources.Record]]:
  """Groups records to a useful amount of work."""
  batch: list[sources.Record] = []
  size = 0
  for record in records:
    batch.append(record)
    size += len(record.text)
    if size >= _BATCH_CHARS:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def document_hash(document: sources.Document) -> int:
  """Returns a hash in [0, 2**64) of the content, alike for exact copies."""
  text = "\n".join(document).encode("utf-8")
  return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def make_tokenizer(
  tokenizer: Vocabulary, language: str, threshold: int
) -> Callable[[list[sources.Record]], Tokenized]:
  """Returns the function from a batch of records to `Tokenized`.

  Args:
    tokenizer: text to ids.
    language: see `sources.split_sentences`.
    threshold: documents whose hash is below it are held out.
  """
  dtype = corpus.token_dtype(tokenizer.num_ids)

  def run(batch: list[sources.Record]) -> Tokenized:
    kept: dict[str, list] = {split: [] for split in corpus.SPLITS}
    hashes = []
    for record in batch:
      document = sources.split_sentences(record, language)
      tokens, lengths = encode(tokenizer, document, dtype)
      if len(tokens):
        hashes.append(document_hash(document))
        split = "validation" if hashes[-1] < threshold else "train"
        kept[split].append((tokens, lengths))
    return Tokenized(
      {split: _part(documents, dtype) for split, documents in kept.items()},
      len(batch),
      batch[-1].share,
      sorted(set(hashes))[:4],
      max(hashes, default=None),
    )

  return run


def encode(
  tokenizer: Vocabulary, document: sources.Document, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
  """Returns [T] ids and [S] lengths; sentences without a token are dropped."""
  tokens, lengths = [np.zeros(0, dtype)], []
  # A long document at once would take a hundred times its size in memory.
  for sentences in _some(document):
    encoded = tokenizer.encode_batch(sentences)
    if any(around := tokenizer.around):
      encoded = [[*around[0], *x, *around[1]] for x in encoded if x]
    lengths += [len(ids) for ids in encoded if ids]
    tokens.append(np.array([x for ids in encoded for x in ids], dtype))
  return np.concatenate(tokens), np.array(lengths, np.int64)


def _some(document: sources.Document) -> Iterator[list[str]]:
  """Groups sentences by their number and their characters."""
  group: list[str] = []
  size = 0
  for sentence in document:
    if group and (
      len(group) == _SENTENCES or size + len(sentence) > _SENTENCE_CHARS
    ):
      yield group
      group, size = [], 0
    group.append(sentence)
    size += len(sentence)
  if group:
    yield group


def _part(documents: list, dtype: np.dtype) -> folder.Part:
  return folder.Part(
    np.concatenate([np.zeros(0, dtype), *(t for t, _ in documents)]),
    np.concatenate([np.zeros(0, np.int64), *(s for _, s in documents)]),
    np.array([len(s) for _, s in documents], np.int64),
  )
