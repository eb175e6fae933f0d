"""Encodes examples of texts as rows: classification, regression, choice."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks import layouts
from bert_jax.tasks.encoded_rows import Examples, Rows, Task
from bert_jax.text.vocabulary import Vocabulary


class EncodedExamples(NamedTuple):
  """Holds the rows of examples, and notes for the user.

  Attributes:
    rows: the rows.
    notes: what happened, such as "texts cut to the length" -> the ids of the
      examples to which it happened. Only the note "words without a piece" has
      a list of words.
  """

  rows: Rows
  notes: dict[str, list[str]]


def label_ids(task: Task, labels: Sequence[Any]) -> np.ndarray:
  """Returns the ids of labels, int32 [N].

  The id of a label is its index in `task.labels`; None gives -1.

  Raises:
    ValueError: a label is not in `task.labels`.
  """
  id_of_label: dict[Any, int] = {name: i for i, name in enumerate(task.labels)}
  id_of_label[None] = -1
  try:
    return np.array([id_of_label[label] for label in labels], np.int32)
  except KeyError as e:
    raise UserError(
      f"label {e} is not one of task {task.name}'s labels:"
      f" {', '.join(task.labels)}."
    ) from e


def _label_marks(task: Task, labels: Sequence[list[str] | None]) -> np.ndarray:
  """Returns int32 [N, labels]: 1 if a label applies, else 0; -1 for None."""
  marks = np.zeros((len(labels), len(task.labels)), np.int32)
  for example_marks, names in zip(marks, labels, strict=True):
    if names is None:
      example_marks[:] = -1
    else:
      example_marks[label_ids(task, names)] = 1
  return marks


def encode_texts(
  task: Task, examples: Examples, vocabulary: Vocabulary, length: int
) -> EncodedExamples:
  """Encodes examples of one or two texts, or of choices.

  Args:
    task: a task of kind classification, regression, multi_label or choice.
    examples: examples with `texts` and `label`, see `encoded_rows`.
    vocabulary: turns text into ids.
    length: the largest number of tokens in a row. The longer text of a pair is
      cut first.

  Raises:
    ValueError: `length` has no space for text, or a label is unknown.
  """
  layout = layouts.layout_of(vocabulary)
  layouts.check_length(layout, length)
  is_choice = task.kind == "choice"
  texts_of_rows = [example["texts"] for example in examples]
  if is_choice:
    texts_of_rows = [
      texts for example in examples for texts in example["texts"]
    ]
  flat_texts = [text for texts in texts_of_rows for text in texts]
  encoded_texts = iter(_encode_each_once(vocabulary, flat_texts))
  laid_out_rows: list[layouts.LaidOutRow] = []
  last_texts = []  # The last text of each row, before it is cut.
  cut_examples = []
  for i, row_texts in enumerate(texts_of_rows):
    text_ids = list(itertools.islice(encoded_texts, len(row_texts)))
    laid_out_rows.append(layouts.lay_out(layout, text_ids, length))
    last_texts.append(text_ids[-1])
    if laid_out_rows[-1].is_cut:
      cut_examples.append(str(examples[i // task.num_choices]["id"]))
  notes = {"texts cut to the length": cut_examples}
  id_arrays = [row.id_arrays for row in laid_out_rows]
  if is_choice and cut_examples:
    notes |= _cut_choices(task, examples, last_texts, id_arrays)
  rows = Rows(
    ids=np.concatenate([np.zeros(0, np.int32), *itertools.chain(*id_arrays)]),
    starts=np.cumsum([0, *(row.size for row in laid_out_rows)], dtype=np.int64),
    second_begins=np.array(
      [row.second_begin for row in laid_out_rows], np.int32
    ),
    example_indices=np.repeat(np.arange(len(examples)), task.num_choices),
    labels=_label_array(task, [example["label"] for example in examples]),
    offsets=np.zeros((0, 2), np.int32),
  )
  return EncodedExamples(
    rows,
    {event: example_ids for event, example_ids in notes.items() if example_ids},
  )


def _label_array(task: Task, labels: Sequence[Any]) -> np.ndarray:
  """Returns `Rows.labels` for the labels of examples."""
  if task.kind == "regression":
    return np.array(
      [np.nan if label is None else label for label in labels], np.float32
    )
  if task.kind == "multi_label":
    return _label_marks(task, labels)
  return np.repeat(label_ids(task, labels), task.num_choices)


def _cut_choices(
  task: Task,
  examples: Examples,
  last_texts: Sequence[np.ndarray],
  id_arrays: Sequence[Sequence[np.ndarray]],
) -> dict[str, list[str]]:
  """Finds the examples whose choices lost tokens, or became equal, by cutting.

  Args:
    task: a task of kind choice.
    examples: the E examples.
    last_texts: for each row, the uncut ids of its last text, which has the
      choice.
    id_arrays: the arrays of each row, see `layouts.LaidOutRow`. The second last
      array of a row has the row's last text.

  Returns:
    What happened -> the ids of the examples. The choices of an example differ
    only in the middle, between their common beginning and their common end. A
    choice has lost tokens if its row lacks a token of the middle. Choices
    became equal if their rows are equal, but their uncut texts are not.
  """
  examples_with_lost_tokens, examples_with_equal_choices = [], []
  for i, example in enumerate(examples):
    example_rows = slice(i * task.num_choices, (i + 1) * task.num_choices)
    texts = [text.tolist() for text in last_texts[example_rows]]
    kept_lengths = [len(arrays[-2]) for arrays in id_arrays[example_rows]]
    prefix_length = _common_prefix_length(texts)
    suffix_length = _common_prefix_length(
      [text[prefix_length:][::-1] for text in texts]
    )
    texts_and_lengths = zip(texts, kept_lengths, strict=True)
    if any(
      kept_length < len(text) - suffix_length
      for text, kept_length in texts_and_lengths
    ):
      examples_with_lost_tokens.append(str(example["id"]))
    distinct_rows = {
      np.concatenate(arrays).tobytes() for arrays in id_arrays[example_rows]
    }
    if len(distinct_rows) < len({*map(tuple, texts)}):
      examples_with_equal_choices.append(str(example["id"]))
  return {
    "examples whose choices lost tokens": examples_with_lost_tokens,
    "examples with choices that became equal": examples_with_equal_choices,
  }


def _common_prefix_length(texts: Sequence[Sequence[int]]) -> int:
  """Returns the length of the longest beginning that all texts share."""
  columns = zip(*texts, strict=False)
  is_equal = (len({*column}) == 1 for column in columns)
  return sum(itertools.takewhile(bool, is_equal))


def _encode_each_once(
  vocabulary: Vocabulary, texts: list[str]
) -> list[np.ndarray]:
  """Returns the ids of each text. Equal texts are encoded only once."""
  index_of_text = {text: i for i, text in enumerate(dict.fromkeys(texts))}
  flat_ids, lengths = vocabulary.encode_flat(list(index_of_text))
  ends = np.cumsum(lengths)
  begins = ends - lengths
  return [
    flat_ids[begins[i] : ends[i]] for i in map(index_of_text.__getitem__, texts)
  ]
