"""Lines of JSON in, a line of JSON out for each, in order, as they come."""

import collections
import io
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from bert_jax import text_rows
from bert_jax.finetune import predicting, requests
from bert_jax.finetune.predicting import Predictor

# Seconds that a line of stdin waits for another one to be read with it, and
# that the first line of a group waits at most.
PATIENCE, LONGEST_WAIT = 0.05, 0.3
# A group of lines grows while it takes less than the first of these seconds,
# and shrinks when it takes more than the second.
_FAST, _SLOW = 0.25, 0.75

Example = dict[str, Any]


class ArrivingLines:
  """Lines of a pipe or terminal as they come.

  Nothing is read ahead by a thread, which could hold stdin while the program
  ends.
  """

  def __init__(self, stream: IO[bytes]):
    """Reads nothing yet.

    Args:
      stream: a file of bytes; one without a descriptor is read as a list of
        lines that are all there.
    """
    self._lines: collections.deque[bytes] = collections.deque()
    self._rest = bytearray()
    self._ended = False
    try:
      self._descriptor = stream.fileno()
    except io.UnsupportedOperation:
      self._lines.extend(stream)
      self._ended = True

  def __iter__(self) -> Iterator[bytes]:
    while self._lines or not self._ended:
      if self._lines:
        yield self._lines.popleft()
      else:
        self._read()

  def ready(self, seconds: float) -> bool:
    """Whether another line is there, or comes within so many seconds."""
    end = time.monotonic() + seconds
    while not self._lines and not self._ended:
      wait = max(end - time.monotonic(), 0.0)
      if not select.select([self._descriptor], [], [], wait)[0]:
        return False
      self._read()
    return bool(self._lines)

  def _read(self) -> None:
    content = os.read(self._descriptor, 1 << 16)
    if not content:
      self._ended = True
      if self._rest:
        self._lines.append(bytes(self._rest))
      return
    searched = len(self._rest)
    self._rest += content
    if self._rest.find(b"\n", searched) >= 0:
      *whole, last = bytes(self._rest).split(b"\n")
      self._lines.extend(whole)
      self._rest = bytearray(last)


class Groups:
  """Groups of the examples that are there, for a model to run together.

  How many stand in a group follows from how long the last one took: few while
  answers take long, many where the model is fast.
  """

  def __init__(self, least: int, most: int):
    """Begins with the smallest groups.

    Args:
      least: examples of a full group while the model is slow.
      most: examples of a group at most.
    """
    self._least, self._most = least, max(least, most)
    self._size = least

  def __call__(
    self, examples: Iterator[Example], ready: Callable[[float], bool]
  ) -> Iterator[list[Example]]:
    """Yields groups; the time until the next one is asked for is measured.

    Args:
      examples: in their order; when it raises, the examples before come first.
      ready: seconds -> whether another example comes within them.

    Raises:
      ValueError: what `examples` raises.
    """
    while True:
      group, error = self._collect(examples, ready)
      if group:
        begin = time.monotonic()
        yield group
        self._resize(len(group), time.monotonic() - begin)
      if error:
        raise error
      if not group:
        return

  def _collect(
    self, examples: Iterator[Example], ready: Callable[[float], bool]
  ) -> tuple[list[Example], ValueError | None]:
    group: list[Example] = []
    end = 0.0
    try:
      for example in examples:
        group.append(example)
        if len(group) == 1:
          end = time.monotonic() + LONGEST_WAIT
        wait = min(PATIENCE, max(end - time.monotonic(), 0.0))
        if len(group) >= self._size or not ready(wait):
          break
    except ValueError as e:
      return group, e
    return group, None

  def _resize(self, count: int, seconds: float) -> None:
    if seconds > _SLOW:
      self._size = max(self._size // 2, self._least)
    elif seconds < _FAST and count == self._size:
      self._size = min(self._size * 2, self._most)


def _answer_stdin(predictor: Predictor, out: IO[str]) -> int:
  lines = ArrivingLines(sys.stdin.buffer)
  examples = requests.read(
    text_rows.decode(lines, "stdin"),
    predictor.kind,
    "stdin",
    predicting.mask_token(predictor),
  )
  # A few lines do not wait for a whole batch of padding.
  few = predictor._replace(batch_size=predictor.mesh.shape["data"])
  groups = Groups(predictor.batch_size, predicting.CHUNK)
  count = 0
  for group in groups(examples, lines.ready):
    small = len(group) <= predictor.batch_size // 4
    write_group(few if small else predictor, group, out)
    count += len(group)
  return count


def _answer_file(predictor: Predictor, path: str, out: IO[str]) -> int:
  def examples() -> Iterator[Example]:
    mask = predicting.mask_token(predictor)
    return requests.read(text_rows.read_lines(path), predictor.kind, path, mask)

  # A bad line is named before the model runs.
  for _ in examples():
    pass
  count = 0
  for group in predicting.chunks(examples()):
    write_group(predictor, group, out)
    count += len(group)
  return count


def write_group(
  predictor: Predictor, examples: list[Example], out: IO[str]
) -> None:
  """Writes a line of JSON for each example, in order."""
  answers = predicting.predict(predictor, examples)
  for example, answer in zip(examples, answers, strict=True):
    row = {"id": example["id"]} | answer
    out.write(json.dumps(row, ensure_ascii=False) + "\n")
  out.flush()


def answer(predictor: Predictor, source: str, out: IO[str]) -> int:
  """Answers every line of a file, or of stdin as they come.

  Args:
    predictor: the model.
    source: a .jsonl file; "-" is stdin, whose lines are answered when they are
      there, while it is open.
    out: where the answers are written.

  Returns:
    The number of predictions.

  Raises:
    ValueError: a bad line, which is named, or no line. No line of a file has
      been answered then; those of stdin before the bad one have.
  """
  if source == "-":
    count = _answer_stdin(predictor, out)
  else:
    count = _answer_file(predictor, source, out)
  if not count:
    raise ValueError(f"{'stdin' if source == '-' else source} has no lines.")
  return count


def check_paths(source: str, target: str) -> None:
  """Raises ValueError if a command would write over what it reads."""
  if target != "-" and os.path.realpath(target) == os.path.realpath(source):
    raise ValueError(f"--output={target} is the input; choose another.")
