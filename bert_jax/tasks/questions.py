"""Encodes questions and contexts as rows, with the answer in each window.

The rows are as in google-research/bert run_squad.py (length 384, stride 128, 64
tokens of the question), with two differences. An answer is located by the
characters of the raw context, not by words. The stride cannot leave a gap.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from bert_jax.tasks import layouts
from bert_jax.tasks.encode import EncodedExamples
from bert_jax.tasks.encoded_rows import Examples, Rows
from bert_jax.tasks.windows import window_bounds
from bert_jax.text.vocabulary import Vocabulary

STRIDE, MAX_QUESTION = 128, 64


class Context(NamedTuple):
  """Holds the T pieces of a context.

  Attributes:
    ids: int32 [T].
    offsets: int32 [T, 2], the characters (begin, end) of each piece.
  """

  ids: np.ndarray
  offsets: np.ndarray


def has_misplaced_answer(example: dict[str, Any]) -> bool:
  """Returns True if the context has another text at an answer's offset."""
  return any(
    example["context"][a["answer_start"] :][: len(a["text"])] != a["text"]
    or a["answer_start"] < 0
    for a in example["answers"] or ()
  )


def encode_context(vocabulary: Vocabulary, context: str) -> Context:
  """Returns the pieces of a context; offsets leave out spaces at their ends."""
  encoded = vocabulary.encode_offsets([context])[0]
  offsets = []
  for begin, end in encoded.offsets:
    start = begin
    while start < end - 1 and context[start].isspace():
      start += 1
    # An added token may include the space after it.
    while start < end - 1 and context[end - 1].isspace():
      end -= 1
    offsets.append((start, end))
  return Context(
    np.array(encoded.ids, np.int32),
    np.array(offsets, np.int32).reshape(-1, 2),
  )


def answer_pieces(context: Context, begin: int, end: int) -> tuple[int, int]:
  """Returns the first and last piece that overlap characters [begin, end).

  If no piece overlaps them, the result is (-1, -1).
  """
  starts, ends = context.offsets.T
  pieces = np.flatnonzero((ends > begin) & (starts < end) & (ends > starts))
  if not len(pieces):
    return -1, -1
  return int(pieces[0]), int(pieces[-1])


def encode_questions(
  examples: Examples,
  vocabulary: Vocabulary,
  length: int,
  stride: int | None = STRIDE,
  max_question: int = MAX_QUESTION,
) -> EncodedExamples:
  """Encodes questions, with as many windows as each context needs.

  If an answer is not at its offset, or no piece holds it, the rows of its
  example have labels -1 and are not trained on. A window with only a part of
  the answer counts as a window without it.

  Args:
    examples: examples of kind span, see `encoded_rows`.
    vocabulary: turns text into ids.
    length: the most tokens in a row.
    stride: the number of tokens from the beginning of one window to the
      beginning of the next. None means `STRIDE`, or half a window if that is
      less.
    max_question: the most tokens of the question; at most half of the row.

  Raises:
    ValueError: `length` has no space for text.
  """
  layout = layouts.layout_of(vocabulary)
  layouts.check_length(layout, length)
  num_special = sum(map(len, (layout.begin, layout.between, layout.end)))
  max_tokens = min(max_question, (length - num_special) // 2)
  questions = vocabulary.encode_batch([e["question"] for e in examples])
  parts, sizes, starts, indices, labels, offsets = [], [], [], [], [], []
  notes: dict[str, list[str]] = {}
  begin, between, end = (
    np.array(x, np.int32) for x in (layout.begin, layout.between, layout.end)
  )
  # The questions about one context follow each other, so encode it once.
  encode = functools.lru_cache(1)(functools.partial(encode_context, vocabulary))
  for e, (example, ids) in enumerate(zip(examples, questions, strict=True)):
    context = encode(example["context"])
    if len(ids) > max_tokens:
      notes.setdefault("questions cut", []).append(example["id"])
    answer, fault = _find_answer(example, context)
    if fault:
      notes.setdefault(fault, []).append(example["id"])
    query = np.array(ids[:max_tokens], np.int32)
    column = len(begin) + len(query) + len(between)
    capacity = length - num_special - len(query)
    step = min(STRIDE, max(capacity // 2, 1)) if stride is None else stride
    for a, b in window_bounds(len(context.ids), capacity, step):
      row = [begin, query, between, context.ids[a:b], end]
      size = sum(map(len, row))
      row_offsets = np.full((size, 2), -1, np.int32)
      row_offsets[column : column + b - a] = context.offsets[a:b]
      parts += row
      sizes.append(size)
      starts.append(column)
      indices.append(e)
      offsets.append(row_offsets)
      labels.append(_answer_columns(answer, a, b, column))
  encoded = Rows(
    np.concatenate([np.zeros(0, np.int32), *parts]),
    np.cumsum([0, *sizes], dtype=np.int64),
    np.array(starts, np.int32),
    np.array(indices, np.int64),
    np.array(labels, np.int32).reshape(-1, 2),
    np.concatenate([np.zeros((0, 2), np.int32), *offsets]),
  )
  return EncodedExamples(encoded, notes)


def _find_answer(
  example: dict[str, Any], context: Context
) -> tuple[tuple[int, ...] | None, str]:
  """Finds the answer of an example.

  Returns:
    A pair. First the first and last piece of the answer; () if there is no
    answer; None if the example has no label or a wrong label. Then a note about
    a wrong label; "" if no label is wrong.
  """
  if not example["answers"]:
    return None if example["answers"] is None else (), ""
  if has_misplaced_answer(example):
    return None, "answers that are not at their offset, not trained on"
  answer = example["answers"][0]
  begin = answer["answer_start"]
  tokens = answer_pieces(context, begin, begin + len(answer["text"]))
  if tokens[0] < 0:
    return None, "answers that no piece holds, not trained on"
  return tokens, ""


def _answer_columns(
  answer: tuple[int, ...] | None, begin: int, end: int, column: int
) -> tuple[int, int]:
  """Returns the columns of the answer's first and last piece in a row.

  Args:
    answer: see `_find_answer`.
    begin: the first piece of the context in the row.
    end: the piece after the last one in the row.
    column: the column of piece `begin`.
  """
  if answer is None:
    return -1, -1
  if not answer or answer[0] < begin or answer[1] >= end:
    return 0, 0
  return column + answer[0] - begin, column + answer[1] - begin
