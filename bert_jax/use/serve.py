"""Answers each line of JSON with a line of JSON, in order, as lines arrive."""

import collections
import io
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from bert_jax import files
from bert_jax.messages import Progress, UserError
from bert_jax.tasks.files import requests
from bert_jax.use import predict, text_inputs
from bert_jax.use.predict import Predictor

# Lines of stdin are collected into groups. The model gets a group if it is
# full, if no further line arrives within `MAX_SECONDS_BETWEEN_LINES`, or if the
# first line of the group has waited `MAX_SECONDS_OF_GROUP`.
MAX_SECONDS_BETWEEN_LINES, MAX_SECONDS_OF_GROUP = 0.05, 0.3
# The size of groups doubles if the model takes less than `_FAST_SECONDS` for a
# full group, and halves if it takes more than `_SLOW_SECONDS`.
_FAST_SECONDS, _SLOW_SECONDS = 0.25, 0.75

Example = dict[str, Any]


class ArrivingLines:
  """Yields lines of a pipe or terminal as they arrive.

  No thread reads the lines, because a thread could block on stdin while the
  program ends.
  """

  def __init__(self, stream: IO[bytes]):
    """Prepares to read lines.

    Args:
      stream: a file of bytes. If it has no file descriptor, all its lines are
        read at once.
    """
    self._lines: collections.deque[bytes] = collections.deque()
    self._incomplete_line = bytearray()
    self._has_ended = False
    try:
      self._descriptor = stream.fileno()
    except io.UnsupportedOperation:
      self._lines.extend(stream)
      self._has_ended = True

  def __iter__(self) -> Iterator[bytes]:
    """Yields each line, and waits for lines that have not arrived."""
    while self._lines or not self._has_ended:
      if self._lines:
        yield self._lines.popleft()
      else:
        self._read()

  def has_line_within(self, seconds: float) -> bool:
    """Returns True if a line has arrived or arrives within `seconds`."""
    deadline = time.monotonic() + seconds
    while not self._lines and not self._has_ended:
      seconds_left = max(deadline - time.monotonic(), 0.0)
      if not select.select([self._descriptor], [], [], seconds_left)[0]:
        return False
      self._read()
    return bool(self._lines)

  def _read(self) -> None:
    """Waits for bytes, and stores the lines that they complete."""
    content = os.read(self._descriptor, 1 << 16)
    if not content:
      self._has_ended = True
      if self._incomplete_line:
        self._lines.append(bytes(self._incomplete_line))
      return
    old_length = len(self._incomplete_line)
    self._incomplete_line += content
    if self._incomplete_line.find(b"\n", old_length) >= 0:
      *lines, unfinished_line = bytes(self._incomplete_line).split(b"\n")
      self._lines.extend(lines)
      self._incomplete_line = bytearray(unfinished_line)


class GroupMaker:
  """Collects the examples that have arrived into groups for the model.

  Groups are small while the model is slow, and large while the model is fast.
  The time of the previous group decides.
  """

  def __init__(self, min_size: int, max_size: int):
    """Begins with groups of the smallest size.

    Args:
      min_size: the size of a full group while the model is slow.
      max_size: the largest size of a group.
    """
    self._min_size, self._max_size = min_size, max(min_size, max_size)
    self._size = min_size

  def groups(
    self,
    examples: Iterator[Example],
    has_next_within: Callable[[float], bool],
  ) -> Iterator[list[Example]]:
    """Yields groups.

    The model's time for a group is measured until the caller asks for the next
    group.

    Args:
      examples: the examples in order. If this iterator raises an error, the
        examples before the error are yielded first.
      has_next_within: a function that takes seconds, and returns True if a
        further example arrives within this time.

    Raises:
      ValueError: the error that `examples` raises.
    """
    while True:
      group, error = self._collect(examples, has_next_within)
      if group:
        start = time.monotonic()
        yield group
        self._resize(len(group), time.monotonic() - start)
      if error:
        raise error
      if not group:
        return

  def _collect(
    self,
    examples: Iterator[Example],
    has_next_within: Callable[[float], bool],
  ) -> tuple[list[Example], ValueError | None]:
    """Returns the next group, and the error that ended it early, or None."""
    group: list[Example] = []
    deadline = 0.0
    try:
      for example in examples:
        group.append(example)
        if len(group) == 1:
          deadline = time.monotonic() + MAX_SECONDS_OF_GROUP
        max_wait = min(
          MAX_SECONDS_BETWEEN_LINES, max(deadline - time.monotonic(), 0.0)
        )
        if len(group) >= self._size or not has_next_within(max_wait):
          break
    except ValueError as e:
      return group, e
    return group, None

  def _resize(self, num_examples: int, seconds: float) -> None:
    """Changes the size of later groups after a group of `num_examples`."""
    if seconds > _SLOW_SECONDS:
      self._size = max(self._size // 2, self._min_size)
    elif seconds < _FAST_SECONDS and num_examples == self._size:
      self._size = min(self._size * 2, self._max_size)


def _answer_stdin(predictor: Predictor, output: IO[str]) -> int:
  """Answers lines of stdin as they arrive; returns the number of lines."""
  lines = ArrivingLines(sys.stdin.buffer)
  examples = requests.read(
    text_inputs.decode_lines(lines, "stdin"),
    predictor.kind,
    "stdin",
    predict.mask_token(predictor),
  )
  # Run a small group in the smallest batch, because most rows of a full batch
  # would be padding.
  small_predictor = predict.with_batch_size(predictor, batch_size=1)
  group_maker = GroupMaker(predictor.batch_size, predict.CHUNK_SIZE)
  num_answered = 0
  for group in group_maker.groups(examples, lines.has_line_within):
    is_small = len(group) <= predictor.batch_size // 4
    answer_group(small_predictor if is_small else predictor, group, output)
    num_answered += len(group)
  return num_answered


def _answer_file(predictor: Predictor, path: str, output: IO[str]) -> int:
  """Answers the lines of a file; returns the number of lines."""

  def read_examples() -> Iterator[Example]:
    mask = predict.mask_token(predictor)
    return requests.read(
      text_inputs.read_lines(path), predictor.kind, path, mask
    )

  # Read all lines once, to report a bad line before the model runs.
  num_examples = sum(1 for _ in read_examples())
  num_answered = 0
  with Progress("predicting", num_examples, "lines") as progress:

    def report(num_done: int) -> None:
      progress.report(num_answered + num_done)

    for group in predict.chunks(read_examples()):
      answer_group(predictor, group, output, report)
      num_answered += len(group)
  return num_answered


def answer_group(
  predictor: Predictor,
  examples: list[Example],
  output: IO[str],
  report: Callable[[int], None] | None = None,
) -> None:
  """Predicts examples, and writes a line of JSON for each, in order.

  Args:
    predictor: the model.
    examples: the examples.
    output: the file to which the lines are written.
    report: see `predict.predict`.
  """
  answers = predict.predict(predictor, examples, report)
  for example, answer in zip(examples, answers, strict=True):
    json_object = {"id": example["id"]} | answer
    output.write(json.dumps(json_object, ensure_ascii=False) + "\n")
  output.flush()


def answer_lines(predictor: Predictor, source: str, output: IO[str]) -> int:
  """Answers every line of a file or of stdin.

  Args:
    predictor: the model.
    source: a .jsonl file; or "-" for stdin, whose lines are answered as they
      arrive.
    output: the file to which the answers are written.

  Returns:
    The number of predictions.

  Raises:
    UserError: there is no line, or a line is bad; the message names the line.
      Lines of stdin before the bad line have been answered. A file is checked
      first, so none of its lines has been answered.
  """
  if source == "-":
    num_answered = _answer_stdin(predictor, output)
  else:
    num_answered = _answer_file(predictor, source, output)
  if not num_answered:
    raise UserError(f"{'stdin' if source == '-' else source} has no lines.")
  return num_answered


def answer_file(
  open_predictor: Callable[[], Predictor], source: str, target: str
) -> int:
  """Answers every line of a file.

  An output file is written completely or not at all.

  Args:
    open_predictor: opens the model. It is called after the output is opened, so
      that the lines that it prints do not mix with answers on stdout.
    source: a .jsonl file with an example on each line; or "-" for stdin.
    target: the file with a prediction on each line; or "-" for stdout.

  Returns:
    The number of predictions.

  Raises:
    UserError: there is no line, a line is bad, or `source` and `target` are the
      same file.
  """
  if target != "-":
    text_inputs.check_not_same_file(source, target)
  with files.open_text_output(target) as output:
    return answer_lines(open_predictor(), source, output)
