"""A function over a stream in several processes, results in order.

`concurrent.futures` would do, but its workers outlive a parent that is
killed with SIGKILL. These end when their pipe does.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# A worker always has the next item at hand when it finishes one.
_IN_FLIGHT = 2


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
    arguments: of `setup`.
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
      ours, theirs = context.Pipe()
      child = context.Process(
        target=_work, args=(theirs, setup, arguments), daemon=True
      )
      child.start()
      theirs.close()
      pipes.append(ours)
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
