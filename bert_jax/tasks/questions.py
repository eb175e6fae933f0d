"""Questions and contexts to rows: windows, and where the answer is in them.

As google-research/bert run_squad.py (length 384, stride 128, 64 tokens of the
question), but an answer is found by characters of the raw context, not by
words, and the stride cannot leave a gap.
"""

from typing import NamedTuple

import numpy as np

from bert_jax.tasks import layouts
from bert_jax.tasks.encode import Encoded
from bert_jax.tasks.encoded_rows import Examples, Rows
from bert_jax.tasks.windows import windows
from bert_jax.text.vocabulary import Vocabulary

STRIDE, MAX_QUESTION = 128, 64


class Context(NamedTuple):
  """Pieces of a context: int32 ids [T], int32 offsets [T, 2]."""

  ids: np.ndarray
  offsets: np.ndarray


def misplaced(example: dict) -> bool:
  """Whether an answer is not the text at its offset of the context."""
  return any(
    example["context"][a["answer_start"] :][: len(a["text"])] != a["text"]
    or a["answer_start"] < 0
    for a in example["answers"] or ()
  )


def encode_context(vocabulary: Vocabulary, context: str) -> Context:
  """Pieces and their characters, without the spaces around a word."""
  encoded = vocabulary.encode_offsets([context])[0]
  offsets = []
  for begin, end in encoded.offsets:
    start = begin
    while start < end - 1 and context[start].isspace():
      start += 1
    # An added token may take the space after it as well.
    while start < end - 1 and context[end - 1].isspace():
      end -= 1
    offsets.append((start, end))
  return Context(
    np.array(encoded.ids, np.int32),
    np.array(offsets, np.int32).reshape(-1, 2),
  )


def answer_tokens(context: Context, begin: int, end: int) -> tuple[int, int]:
  """First and last piece that hold characters [begin, end) of the context.

  (-1, -1) where no piece does.
  """
  starts, ends = context.offsets.T
  inside = np.flatnonzero((ends > begin) & (starts < end) & (ends > starts))
  if not len(inside):
    return -1, -1
  return int(inside[0]), int(inside[-1])


def rows(
  examples: Examples,
  vocabulary: Vocabulary,
  length: int,
  stride: int | None = STRIDE,
  max_question: int = MAX_QUESTION,
) -> Encoded:
  """Encodes questions, each with as many windows as its context needs.

  An answer that is not at its offset, or that no piece holds, is not trained
  on: the rows of its example have labels -1. One that a window has only in part
  is none there.

  Args:
    examples: examples of kind span, see `rows`.
    vocabulary: text to ids.
    length: tokens in a row at most.
    stride: tokens of the context from one window's beginning to the next; None
      for `STRIDE`, less where windows would not overlap by half.
    max_question: tokens of the question at most; half of the row at most.

  Raises:
    ValueError: no room.
  """
  layout = layouts.of_vocabulary(vocabulary)
  layouts.check_length(layout, length)
  around = sum(map(len, (layout.begin, layout.between, layout.end)))
  most = min(max_question, (length - around) // 2)
  questions = vocabulary.encode_batch([e["question"] for e in examples])
  parts, sizes, second, number, labels, offsets = [], [], [], [], [], []
  notes: dict[str, list[str]] = {}
  begin, between, end = (
    np.array(x, np.int32) for x in (layout.begin, layout.between, layout.end)
  )
  text, context = None, None
  for e, (example, ids) in enumerate(zip(examples, questions, strict=True)):
    if example["context"] != text:  # Questions of a text stand together.
      text = example["context"]
      context = encode_context(vocabulary, text)
    if len(ids) > most:
      notes.setdefault("questions cut", []).append(example["id"])
    answer, wrong = _answer(example, context)
    if wrong:
      notes.setdefault(wrong, []).append(example["id"])
    query = np.array(ids[:most], np.int32)
    place = len(begin) + len(query) + len(between)
    room = length - around - len(query)
    step = min(STRIDE, max(room // 2, 1)) if stride is None else stride
    for a, b in windows(len(context.ids), room, step):
      row = [begin, query, between, context.ids[a:b], end]
      size = sum(map(len, row))
      row_offsets = np.full((size, 2), -1, np.int32)
      row_offsets[place : place + b - a] = context.offsets[a:b]
      parts += row
      sizes.append(size)
      second.append(place)
      number.append(e)
      offsets.append(row_offsets)
      labels.append(_label(answer, a, b, place))
  encoded = Rows(
    np.concatenate([np.zeros(0, np.int32), *parts]),
    np.cumsum([0, *sizes], dtype=np.int64),
    np.array(second, np.int32),
    np.array(number, np.int64),
    np.array(labels, np.int32).reshape(-1, 2),
    np.concatenate([np.zeros((0, 2), np.int32), *offsets]),
  )
  return Encoded(encoded, notes)


def _answer(
  example: dict, context: Context
) -> tuple[tuple[int, ...] | None, str]:
  """The answer's pieces, and what is wrong with it.

  () if there is none; None if it is not known or not to be trained on.
  """
  if not example["answers"]:
    return None if example["answers"] is None else (), ""
  if misplaced(example):
    return None, "answers that are not at their offset, not trained on"
  answer = example["answers"][0]
  begin = answer["answer_start"]
  tokens = answer_tokens(context, begin, begin + len(answer["text"]))
  if tokens[0] < 0:
    return None, "answers that no piece holds, not trained on"
  return tokens, ""


def _label(
  answer: tuple[int, ...] | None, begin: int, end: int, place: int
) -> tuple[int, int]:
  """The answer's places in the row of context window [begin, end)."""
  if answer is None:
    return -1, -1
  if not answer or answer[0] < begin or answer[1] >= end:
    return 0, 0
  return place + answer[0] - begin, place + answer[1] - begin
