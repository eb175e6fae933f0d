"""Raw documents to token ids, in several processes.

`make_tokenizer` returns what a worker process of `prepare` does;
`ordered_map` runs such functions over a stream, with the results in order.
`concurrent.futures` would do, but its workers outlive a parent that is killed
with SIGKILL. These end when their pipe does.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus import reader, sources, writer
from bert_jax.text.vocabulary import Vocabulary

# About 0.2 seconds of work, and a few MB of the tokenizer's memory.
_BATCH_CHARS = 2**18
_SENTENCES = 1024
_SENTENCE_CHARS = 2**20
# A worker always has the next item at hand when it finishes one.
_IN_FLIGHT = 2


class Tokenized(NamedTuple):
  """The token ids of a batch of records.

  Attributes:
    parts: the documents of each split, in order.
    records: how many records the batch had.
    share: share of the inputs read up to its end.
    smallest: the smallest hashes of documents, up to four.
    largest: the largest hash of a document; None without documents.
  """

  parts: dict[str, writer.Part]
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
  return hashing.text_hash("\n".join(document))


def make_tokenizer(
  tokenizer: Vocabulary, language: str, threshold: int
) -> Callable[[list[sources.Record]], Tokenized]:
  """Returns the function from a batch of records to `Tokenized`.

  Args:
    tokenizer: text to ids.
    language: see `sources.split_sentences`.
    threshold: documents whose hash is below it are held out.
  """
  dtype = reader.token_dtype(tokenizer.num_ids)

  def run(batch: list[sources.Record]) -> Tokenized:
    documents_by_split: dict[str, list] = {split: [] for split in reader.SPLITS}
    hashes = []
    for record in batch:
      document = sources.split_sentences(record, language)
      tokens, lengths = encode(tokenizer, document, dtype)
      if len(tokens):
        hashes.append(document_hash(document))
        split = "validation" if hashes[-1] < threshold else "train"
        documents_by_split[split].append((tokens, lengths))
    return Tokenized(
      {
        split: _part(documents, dtype)
        for split, documents in documents_by_split.items()
      },
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


def _part(documents: list, dtype: np.dtype) -> writer.Part:
  return writer.Part(
    np.concatenate([np.zeros(0, dtype), *(t for t, _ in documents)]),
    np.concatenate([np.zeros(0, np.int64), *(s for _, s in documents)]),
    np.array([len(s) for _, s in documents], np.int64),
  )


def ordered_map(
  setup: Callable[..., Callable[[Any], Any]],
  arguments: tuple,
  items: Iterable[Any],
  processes: int,
) -> Iterator[Any]:
  """Yields `setup(*arguments)(item)` for every item, in order.

  Item k goes to process k modulo `processes`; at most two items and results
  a process are held, so memory does not grow with the stream.

  Args:
    setup: called once in each process; it and its function's arguments and
      results are pickled.
    arguments: the arguments of `setup`.
    items: the stream, read in the calling process.
    processes: how many to start.

  Raises:
    ChildProcessError: a process was killed, or could not begin.
    Exception: whatever the stream or the function raises.
  """
  context = multiprocessing.get_context("spawn")
  pipes, children = [], []
  try:
    for _ in range(processes):
      parent_end, child_end = context.Pipe()
      child = context.Process(
        target=_work, args=(child_end, setup, arguments), daemon=True
      )
      child.start()
      child_end.close()
      pipes.append(parent_end)
      children.append(child)
    begun: set[int] = set()
    pending: deque[int] = deque()
    for k, item in enumerate(items):
      if len(pending) == processes * _IN_FLIGHT:
        yield _receive(pipes, children, begun, pending.popleft())
      worker = k % processes
      with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        pipes[worker].send(item)  # Receiving tells what became of it.
      pending.append(worker)
    while pending:
      yield _receive(pipes, children, begun, pending.popleft())
  finally:
    for pipe in pipes:
      pipe.close()
    for child in children:
      child.join(5)
      if child.is_alive():
        child.kill()
        child.join()


def _receive(pipes, children, begun: set[int], worker: int) -> Any:
  try:
    if worker not in begun:
      pipes[worker].recv()  # Its first word, before any result.
      begun.add(worker)
    ok, value = pipes[worker].recv()
  except (EOFError, ConnectionResetError):
    children[worker].join(5)
    code = children[worker].exitcode
    # One that a signal ended has a negative number.
    if worker not in begun and code is not None and code > 0:
      raise ChildProcessError(
        f"a worker process could not begin (exit code {code}): it imports the"
        " script that started it, which must do its work under `if __name__ =="
        ' "__main__":`.'
      ) from None
    raise ChildProcessError(
      f"a worker process ended early (exit code {code});"
      " if the machine is short of memory, use fewer --processes."
    ) from None
  if not ok:
    raise value
  return value


def _work(pipe, setup, arguments) -> None:
  # The parent decides when to stop; a signal to the whole group is its own.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  # One process is one core: the tokenizer's own threads would be too many.
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  items: queue.SimpleQueue = queue.SimpleQueue()
  # Receiving in a thread keeps the parent from ever waiting to send while
  # this process waits to send a result.
  threading.Thread(target=_feed, args=(pipe, items), daemon=True).start()
  try:
    pipe.send("begun")
    function = setup(*arguments)
    while (item := items.get()) is not None:
      pipe.send((True, function(item)))
  except (BrokenPipeError, ConnectionResetError):
    pass
  except Exception as e:
    with contextlib.suppress(OSError):
      pipe.send((False, e))


def _feed(pipe, items: queue.SimpleQueue) -> None:
  with contextlib.suppress(EOFError, OSError):
    while True:
      items.put(pipe.recv())
  items.put(None)
