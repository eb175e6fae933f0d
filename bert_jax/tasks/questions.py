"""Encodes questions and contexts as rows, with the answer in each window.

The rows are as in google-research/bert run_squad.py (length 384, stride 128, 64
tokens of the question), with two differences. An answer is located by the
characters of the raw context, not by words. No stride leaves a gap between two
windows.
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
    ids: int32 [T], the ids of the pieces.
    offsets: int32 [T, 2], the characters (begin, end) of each piece in the
      context.
  """

  ids: np.ndarray
  offsets: np.ndarray


def has_misplaced_answer(example: dict[str, Any]) -> bool:
  """Returns True if an answer's text is not in the context at its offset."""
  return any(
    example["context"][answer["answer_start"] :][: len(answer["text"])]
    != answer["text"]
    or answer["answer_start"] < 0
    for answer in example["answers"] or ()
  )


def encode_context(vocabulary: Vocabulary, context: str) -> Context:
  """Returns a context's pieces; their offsets leave out spaces at the ends."""
  encoded = vocabulary.encode_offsets([context])[0]
  offsets = []
  for begin, end in encoded.offsets:
    start = begin
    while start < end - 1 and context[start].isspace():
      start += 1
    # An added token may include the space after the token.
    while start < end - 1 and context[end - 1].isspace():
      end -= 1
    offsets.append((start, end))
  return Context(
    np.array(encoded.ids, np.int32),
    np.array(offsets, np.int32).reshape(-1, 2),
  )


def pieces_of_characters(
  context: Context, begin: int, end: int
) -> tuple[int, int]:
  """Returns the indices of the first and last piece in characters [begin, end).

  A piece counts if it overlaps these characters. If no piece overlaps them, the
  result is (-1, -1).
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

  If an answer is not at its offset, or no piece holds the first answer, the
  rows of the example have labels -1 and are not trained on. A window with only
  a part of the answer counts as a window without the answer.

  Args:
    examples: examples of kind span, see `encoded_rows`.
    vocabulary: turns text into ids.
    length: the largest number of tokens in a row.
    stride: the number of tokens from the beginning of one window to the
      beginning of the next window. None means `STRIDE`, or half a window if
      this is less.
    max_question: the largest number of tokens of the question. The question
      also gets at most half of the row's tokens that are not special.

  Raises:
    ValueError: `length` has no space for text.
  """
  layout = layouts.layout_of(vocabulary)
  layouts.check_length(layout, length)
  num_special_tokens = sum(map(len, (layout.begin, layout.between, layout.end)))
  max_question_tokens = min(max_question, (length - num_special_tokens) // 2)
  ids_by_question = vocabulary.encode_batch(
    [example["question"] for example in examples]
  )
  id_arrays, row_lengths, second_begins, example_indices, labels, offsets = (
    [],
    [],
    [],
    [],
    [],
    [],
  )
  notes: dict[str, list[str]] = {}
  begin, between, end = (
    np.array(special_ids, np.int32)
    for special_ids in (layout.begin, layout.between, layout.end)
  )
  # The questions about one context are adjacent, so a cache of one context is
  # enough.
  encode_and_cache = functools.lru_cache(1)(
    functools.partial(encode_context, vocabulary)
  )
  for example_index, (example, question_ids) in enumerate(
    zip(examples, ids_by_question, strict=True)
  ):
    context = encode_and_cache(example["context"])
    if len(question_ids) > max_question_tokens:
      notes.setdefault("questions cut", []).append(example["id"])
    answer, fault = _find_answer(example, context)
    if fault:
      notes.setdefault(fault, []).append(example["id"])
    question = np.array(question_ids[:max_question_tokens], np.int32)
    first_context_column = len(begin) + len(question) + len(between)
    context_capacity = length - num_special_tokens - len(question)
    window_stride = (
      min(STRIDE, max(context_capacity // 2, 1)) if stride is None else stride
    )
    for window_begin, window_end in window_bounds(
      len(context.ids), context_capacity, window_stride
    ):
      row_arrays = [
        begin,
        question,
        between,
        context.ids[window_begin:window_end],
        end,
      ]
      row_length = sum(map(len, row_arrays))
      row_offsets = np.full((row_length, 2), -1, np.int32)
      row_offsets[
        first_context_column : first_context_column + window_end - window_begin
      ] = context.offsets[window_begin:window_end]
      id_arrays += row_arrays
      row_lengths.append(row_length)
      second_begins.append(first_context_column)
      example_indices.append(example_index)
      offsets.append(row_offsets)
      labels.append(
        _answer_columns(answer, window_begin, window_end, first_context_column)
      )
  rows = Rows(
    ids=np.concatenate([np.zeros(0, np.int32), *id_arrays]),
    starts=np.cumsum([0, *row_lengths], dtype=np.int64),
    second_begins=np.array(second_begins, np.int32),
    example_indices=np.array(example_indices, np.int64),
    labels=np.array(labels, np.int32).reshape(-1, 2),
    offsets=np.concatenate([np.zeros((0, 2), np.int32), *offsets]),
  )
  return EncodedExamples(rows, notes)


def _find_answer(
  example: dict[str, Any], context: Context
) -> tuple[tuple[int, ...] | None, str]:
  """Finds the answer of an example.

  Returns:
    A pair. Its first entry is the indices of the answer's first and last piece;
    () if there is no answer; None if the example has no label or a wrong label.
    Its second entry is a note about a wrong label; "" if no label is wrong.
  """
  if not example["answers"]:
    return None if example["answers"] is None else (), ""
  if has_misplaced_answer(example):
    return None, "answers that are not at their offset, not trained on"
  answer = example["answers"][0]
  begin = answer["answer_start"]
  piece_indices = pieces_of_characters(
    context, begin, begin + len(answer["text"])
  )
  if piece_indices[0] < 0:
    return None, "answers that no piece holds, not trained on"
  return piece_indices, ""


def _answer_columns(
  answer: tuple[int, ...] | None, begin: int, end: int, first_column: int
) -> tuple[int, int]:
  """Returns the columns of the answer's first and last piece in a row.

  The result is (-1, -1) if `answer` is None, and (0, 0) if the row does not
  hold the whole answer.

  Args:
    answer: see `_find_answer`.
    begin: the index of the row's first piece in the context.
    end: the index of the piece after the row's last piece in the context.
    first_column: the column of piece `begin`.
  """
  if answer is None:
    return -1, -1
  if not answer or answer[0] < begin or answer[1] >= end:
    return 0, 0
  return first_column + answer[0] - begin, first_column + answer[1] - begin
