"""Turns raw documents into token ids, in several processes.

`make_tokenizer` returns the function that a worker process runs. `ordered_map`
calls such a function for each input, and yields the outputs in order. It does
not use `concurrent.futures`, because workers of `concurrent.futures` continue
if their parent is killed by SIGKILL. The workers of `ordered_map` end when
their pipe is closed.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus import reader, sources, writer
from bert_jax.messages import by_caller
from bert_jax.text.vocabulary import Vocabulary

# The number of characters in a batch. For a batch, the tokenizer needs about
# 0.2 seconds, and a few MB of memory.
_BATCH_CHARS = 2**18
# The largest numbers of sentences, and of their characters, that are encoded at
# once. To encode a long document at once would take a hundred times the
# document's size in memory.
_MAX_SENTENCES = 1024
_MAX_SENTENCE_CHARS = 2**20
# The number of inputs that a worker has at once: the input on which it works,
# and the next input.
_INPUTS_PER_WORKER = 2


class TokenizedBatch(NamedTuple):
  """The token ids of a batch of records.

  Attributes:
    documents: split -> the documents of this split, in order.
    num_records: the number of records in the batch.
    share: the share of all inputs that has been read up to the batch's end.
    smallest_hashes: the four smallest different hashes of documents; all hashes
      if there are fewer.
    largest_hash: the largest hash of a document; None if there is no document.
  """

  documents: dict[str, writer.EncodedDocuments]
  num_records: int
  share: float
  smallest_hashes: list[int]
  largest_hash: int | None


def make_batches(
  records: Iterable[sources.Record],
) -> Iterator[list[sources.Record]]:
  """Yields batches of records with about `_BATCH_CHARS` characters."""
  batch: list[sources.Record] = []
  num_characters = 0
  for record in records:
    batch.append(record)
    num_characters += len(record.text)
    if num_characters >= _BATCH_CHARS:
      yield batch
      batch, num_characters = [], 0
  if batch:
    yield batch


def document_hash(document: sources.Document) -> int:
  """Returns a hash of a document's content, an integer in [0, 2**64)."""
  return hashing.text_hash("\n".join(document))


def make_tokenizer(
  tokenizer: Vocabulary, language: str, threshold: int
) -> Callable[[list[sources.Record]], TokenizedBatch]:
  """Returns a function from a batch of records to `TokenizedBatch`.

  Args:
    tokenizer: the tokenizer for the sentences.
    language: see `sources.split_sentences`.
    threshold: documents with a smaller hash are held out.
  """
  dtype = reader.token_dtype(tokenizer.num_ids)

  def tokenize_batch(batch: list[sources.Record]) -> TokenizedBatch:
    documents: dict[str, list] = {split: [] for split in reader.SPLITS}
    hashes = []
    for record in batch:
      document = sources.split_sentences(record, language)
      tokens, lengths = encode_document(tokenizer, document, dtype)
      if len(tokens):
        hashes.append(document_hash(document))
        split = "validation" if hashes[-1] < threshold else "train"
        documents[split].append((tokens, lengths))
    return TokenizedBatch(
      documents={
        split: _join_documents(encoded_documents, dtype)
        for split, encoded_documents in documents.items()
      },
      num_records=len(batch),
      share=batch[-1].share,
      smallest_hashes=sorted(set(hashes))[:4],
      largest_hash=max(hashes, default=None),
    )

  return tokenize_batch


def encode_document(
  tokenizer: Vocabulary, document: sources.Document, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
  """Encodes the sentences of a document; drops sentences without tokens.

  Args:
    tokenizer: the tokenizer for the sentences.
    document: the sentences.
    dtype: the type of the ids.

  Returns:
    The ids of all sentences [T], and the number of ids in each sentence, an
    array of int64 [S].
  """
  tokens, lengths = [np.zeros(0, dtype)], []
  ids_before, ids_after = tokenizer.ids_around_sentence
  for sentences in _sentence_groups(document):
    sentence_ids = [ids for ids in tokenizer.encode_batch(sentences) if ids]
    if ids_before or ids_after:
      sentence_ids = [[*ids_before, *ids, *ids_after] for ids in sentence_ids]
    lengths += [len(ids) for ids in sentence_ids]
    tokens.append(
      np.array([token_id for ids in sentence_ids for token_id in ids], dtype)
    )
  return np.concatenate(tokens), np.array(lengths, np.int64)


def _sentence_groups(document: sources.Document) -> Iterator[list[str]]:
  """Yields groups of sentences that may be encoded at once."""
  group: list[str] = []
  num_characters = 0
  for sentence in document:
    if group and (
      len(group) == _MAX_SENTENCES
      or num_characters + len(sentence) > _MAX_SENTENCE_CHARS
    ):
      yield group
      group, num_characters = [], 0
    group.append(sentence)
    num_characters += len(sentence)
  if group:
    yield group


def _join_documents(
  documents: Sequence[tuple[np.ndarray, np.ndarray]], dtype: np.dtype
) -> writer.EncodedDocuments:
  """Joins documents, each a pair from `encode_document`."""
  tokens = [ids for ids, _ in documents]
  lengths = [sentence_lengths for _, sentence_lengths in documents]
  return writer.EncodedDocuments(
    tokens=np.concatenate([np.zeros(0, dtype), *tokens]),
    sentence_lengths=np.concatenate([np.zeros(0, np.int64), *lengths]),
    document_lengths=np.array(list(map(len, lengths)), np.int64),
  )


def ordered_map(
  make_function: Callable[..., Callable[[Any], Any]],
  arguments: tuple,
  inputs: Iterable[Any],
  processes: int,
) -> Generator[Any, None, None]:
  """Yields `make_function(*arguments)(x)` for each input x, in order.

  Input k goes to process k modulo `processes`. A process holds at most two
  inputs and outputs, so memory does not grow with the number of inputs.

  Args:
    make_function: a function that each process calls once. This function, its
      arguments, the inputs and the outputs are pickled.
    arguments: the arguments of `make_function`.
    inputs: the inputs, which are read in the calling process.
    processes: the number of processes to start; if it is 0, the calling process
      does the work.

  Raises:
    ChildProcessError: a process was killed, or could not begin.
    Exception: any error that `inputs` or the function raises.
  """
  if not processes:
    yield from map(make_function(*arguments), inputs)
    return
  context = multiprocessing.get_context("spawn")
  workers = []
  try:
    for _ in range(processes):
      pipe, child_end = context.Pipe()
      process = context.Process(
        target=_run_worker,
        args=(child_end, make_function, arguments),
        daemon=True,
      )
      process.start()
      child_end.close()
      workers.append(_Worker(process, pipe))
    pending_workers: deque[_Worker] = deque()
    for input_number, item in enumerate(inputs):
      if len(pending_workers) == processes * _INPUTS_PER_WORKER:
        yield pending_workers.popleft().receive()
      worker = workers[input_number % processes]
      # If the worker has died, `receive` raises the error.
      with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        worker.pipe.send(item)
      pending_workers.append(worker)
    while pending_workers:
      yield pending_workers.popleft().receive()
  finally:
    for worker in workers:
      worker.pipe.close()
    for worker in workers:
      worker.process.join(5)
      if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


class _Worker:
  """A worker process, as its parent sees it.

  Attributes:
    process: the process.
    pipe: the parent's end of the pipe.
  """

  def __init__(self, process: BaseProcess, pipe: Connection):
    """Takes a process that has been started."""
    self.process, self.pipe = process, pipe
    self._has_begun = False

  def receive(self) -> Any:
    """Returns the next output; raises the errors of `ordered_map`."""
    try:
      if not self._has_begun:
        self.pipe.recv()  # This is "begun", which comes before all outputs.
        self._has_begun = True
      succeeded, output = self.pipe.recv()
    except (EOFError, ConnectionResetError):
      self.process.join(5)
      exit_code = self.process.exitcode
      # The exit code is negative if a signal ended the process.
      if not self._has_begun and exit_code is not None and exit_code > 0:
        raise ChildProcessError(
          f"a worker process could not begin (exit code {exit_code}): it"
          " imports the script that started it, which must do its work under"
          ' `if __name__ == "__main__":`.'
        ) from None
      raise ChildProcessError(
        f"a worker process ended early (exit code {exit_code});"
        " if the machine is short of memory, use fewer"
        f" {by_caller('--processes', 'processes=')}."
      ) from None
    if not succeeded:
      raise output
    return output


def _run_worker(
  pipe: Connection,
  make_function: Callable[..., Callable[[Any], Any]],
  arguments: tuple,
) -> None:
  """Runs a worker process: sends outputs until the pipe is closed."""
  # Ignore these signals: they go to the whole process group, but the parent
  # decides when to stop.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  # There is one process for each core, so the tokenizer needs no threads.
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  inputs: queue.SimpleQueue = queue.SimpleQueue()
  # Inputs are received in a thread. Otherwise the parent could wait to send an
  # input while this process waits to send an output.
  threading.Thread(
    target=_feed_inputs, args=(pipe, inputs), daemon=True
  ).start()
  try:
    pipe.send("begun")
    function = make_function(*arguments)
    while (item := inputs.get()) is not None:
      pipe.send((True, function(item)))
  except (BrokenPipeError, ConnectionResetError):
    pass
  except Exception as e:
    with contextlib.suppress(OSError):
      pipe.send((False, e))


def _feed_inputs(pipe: Connection, inputs: queue.SimpleQueue) -> None:
  """Puts the inputs that a pipe brings into a queue, and None at the end."""
  with contextlib.suppress(EOFError, OSError):
    while True:
      inputs.put(pipe.recv())
  inputs.put(None)
