"""Encodes tagged words as rows: a word's first piece has the word's tag.

A sentence that is too long is cut into windows that overlap by half. A word has
its label only in the window where its first piece has the most context. The
published recipe (Devlin et al. 2018, section 5.3) labels first pieces, and
fills a row with the text around its sentence (`with_context`).
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.tasks import layouts
from bert_jax.tasks.encode import EncodedExamples, label_ids
from bert_jax.tasks.encoded_rows import Examples, Rows, Task
from bert_jax.tasks.windows import best_window_of_tokens, window_bounds
from bert_jax.text.vocabulary import Vocabulary


def word_pieces(
  vocabulary: Vocabulary, words: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
  """Encodes each word separately, as if it stood in the middle of a text.

  Returns:
    int32 [T], the ids of the pieces of all words, and int64 [W], the number of
    pieces of each word. A word of control characters has 0 pieces.
  """
  return vocabulary.encode_words(words)


def encode_sentences(
  task: Task,
  examples: Examples,
  vocabulary: Vocabulary,
  length: int,
  with_context: bool = False,
) -> EncodedExamples:
  """Encodes sentences.

  Args:
    task: a task of kind tagging.
    examples: examples with `words` and `tags`, see `encoded_rows`.
    vocabulary: turns text into ids.
    length: the largest number of tokens in a row.
    with_context: True to fill the row of a sentence with pieces of its
      `document`, about equally many before and after the sentence.

  Raises:
    ValueError: `length` has no space for text, or a tag is unknown.
  """
  layout = layouts.layout_of(vocabulary)
  layouts.check_length(layout, length)
  capacity = length - len(layout.begin) - len(layout.end)
  words = [word for example in examples for word in example["words"]]
  ids, piece_counts = word_pieces(vocabulary, words)
  tags = [
    tag
    for example in examples
    for tag in example["tags"] or [None] * len(example["words"])
  ]
  word_counts = [len(example["words"]) for example in examples]
  first_words = np.cumsum([0, *word_counts], dtype=np.int64)
  sentence_indices = np.repeat(np.arange(len(examples)), word_counts)
  flat_words = _FlatWords(
    ids, label_ids(task, tags), piece_counts, first_words, sentence_indices
  )
  # Example i has the pieces [piece_bounds[i], piece_bounds[i + 1]).
  piece_bounds = flat_words.word_bounds[first_words].tolist()
  document_bounds = (
    _document_bounds(examples, piece_bounds) if with_context else None
  )
  row_windows, long_sentence_ids = [], []
  for example_index, (begin, end) in enumerate(
    itertools.pairwise(piece_bounds)
  ):
    sentence_windows = window_bounds(
      end - begin, capacity, max(capacity // 2, 1)
    )
    if document_bounds is not None and len(sentence_windows) == 1:
      widened_window = _widen(
        begin, end, *document_bounds[example_index], capacity
      )
      row_windows.append(_Window(example_index, *widened_window, begin, end))
      continue
    window_of_piece = best_window_of_tokens(end - begin, sentence_windows)
    if len(sentence_windows) > 1:
      long_sentence_ids.append(str(examples[example_index]["id"]))
    for window_index, (window_begin, window_end) in enumerate(sentence_windows):
      # `window_of_piece` ascends, so a window's labelled pieces are adjacent.
      label_bounds = (
        begin
        + np.searchsorted(window_of_piece, [window_index, window_index + 1])
      ).tolist()
      row_windows.append(
        _Window(
          example_index, begin + window_begin, begin + window_end, *label_bounds
        )
      )
  words_without_piece = [
    ascii(words[i]) for i in np.flatnonzero(piece_counts == 0)
  ]
  notes = {
    "words without a piece": words_without_piece,
    "sentences in windows": long_sentence_ids,
  }
  notes = {event: names for event, names in notes.items() if names}
  return EncodedExamples(_build_rows(layout, row_windows, flat_words), notes)


class _FlatWords:
  """Holds the W words of all sentences of a split, with T pieces in all.

  Attributes:
    ids: int32 [T], the ids of the pieces.
    word_of_first_piece: int64 [T], the word's index for the first piece of a
      word, -1 for every other piece.
    word_bounds: int64 [W + 1]. Word w has the pieces [word_bounds[w],
      word_bounds[w + 1]).
    tags: int32 [W], the ids of the tags.
    index_in_example: int64 [W], the index of each word in its example.
  """

  def __init__(
    self,
    ids: np.ndarray,
    tags: np.ndarray,
    piece_counts: np.ndarray,
    first_words: np.ndarray,
    sentence_indices: np.ndarray,
  ):
    """Computes where the pieces of each word are.

    Args:
      ids: int32 [T], the ids of the pieces.
      tags: int32 [W], the ids of the tags.
      piece_counts: int64 [W], the number of pieces of each word.
      first_words: int64 [E + 1], the index of each example's first word, then
        W.
      sentence_indices: int64 [W], the index of each word's example.
    """
    self.ids, self.tags = ids, tags
    self.word_bounds = np.cumsum(
      np.concatenate([[0], piece_counts]), dtype=np.int64
    )
    self.word_of_first_piece = np.full(len(ids), -1, np.int64)
    words_with_pieces = np.flatnonzero(piece_counts)
    self.word_of_first_piece[self.word_bounds[words_with_pieces]] = (
      words_with_pieces
    )
    self.index_in_example = np.arange(len(tags)) - first_words[sentence_indices]


class _Window(NamedTuple):
  """Says which pieces a row has, and which pieces may have labels.

  Attributes:
    example_index: the index of the example.
    begin: the index of the row's first piece.
    end: the index of the piece after the row's last piece.
    label_begin: the index of the first piece that may have a label.
    label_end: the index of the piece after the last piece that may have a
      label.
  """

  example_index: int
  begin: int
  end: int
  label_begin: int
  label_end: int


def _document_bounds(
  examples: Examples, bounds: Sequence[int]
) -> list[tuple[int, int]]:
  """Returns the pieces [begin, end) of each example's document.

  An example whose `document` is None is a document by itself.

  Args:
    examples: E examples.
    bounds: the first piece of each example, then the number of pieces.
  """
  document_names = [example["document"] for example in examples]
  # A tuple with the example's index is equal to no other name.
  document_names = [
    (i,) if name is None else name for i, name in enumerate(document_names)
  ]
  bounds_by_name: dict[Any, tuple[int, int]] = {}
  for i, name in enumerate(document_names):
    bounds_by_name[name] = (
      bounds_by_name.get(name, (bounds[i], 0))[0],
      bounds[i + 1],
    )
  return [bounds_by_name[name] for name in document_names]


def _widen(
  begin: int, end: int, document_begin: int, document_end: int, capacity: int
) -> tuple[int, int]:
  """Widens [begin, end) to at most `capacity` pieces, equally on both sides.

  The result has only pieces of the document. If one side has too few pieces,
  the opposite side gets more than half.
  """
  num_spare = capacity - (end - begin)
  num_before = min(
    begin - document_begin,
    max(num_spare // 2, num_spare - (document_end - end)),
  )
  return begin - num_before, min(document_end, end + num_spare - num_before)


def _build_rows(
  layout: layouts.Layout, windows: list[_Window], flat_words: _FlatWords
) -> Rows:
  """Makes a row from each window."""
  prefix, suffix = (
    np.array(special_ids, np.int32)
    for special_ids in (layout.begin, layout.end)
  )
  id_arrays, word_arrays, row_lengths = (
    [np.zeros(0, np.int32)],
    [np.zeros(0, np.int64)],
    [0],
  )
  for window in windows:
    begin, end = window.begin, window.end
    id_arrays += [prefix, flat_words.ids[begin:end], suffix]
    # For each token of the row, the index of the word whose first piece it is,
    # or -1.
    word_of_token = np.full(
      len(prefix) + end - begin + len(suffix), -1, np.int64
    )
    pieces = slice(window.label_begin, window.label_end)
    column_shift = len(prefix) - begin
    columns = slice(column_shift + pieces.start, column_shift + pieces.stop)
    word_of_token[columns] = flat_words.word_of_first_piece[pieces]
    word_arrays.append(word_of_token)
    row_lengths.append(len(word_of_token))
  word_of_all_tokens = np.concatenate(word_arrays)
  labels = np.full(len(word_of_all_tokens), -1, np.int32)
  offsets = np.full((len(word_of_all_tokens), 2), -1, np.int32)
  is_labelled = word_of_all_tokens >= 0
  labels[is_labelled] = flat_words.tags[word_of_all_tokens[is_labelled]]
  offsets[is_labelled] = flat_words.index_in_example[
    word_of_all_tokens[is_labelled]
  ][:, None]
  return Rows(
    ids=np.concatenate(id_arrays),
    starts=np.cumsum(row_lengths, dtype=np.int64),
    # A row has one segment.
    second_begins=np.array(row_lengths[1:], np.int32),
    example_indices=np.array(
      [window.example_index for window in windows], np.int64
    ),
    labels=labels,
    offsets=offsets,
  )
