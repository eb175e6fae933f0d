"""Encodes words with tags as rows: the first piece of each word has its tag.

A sentence that is too long is cut into windows that overlap by half. A word has
its label only in the window where it has the most context. The published recipe
(Devlin et al. 2018, section 5.3) labels first pieces, and fills a row with the
text around a sentence.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.tasks import layouts
from bert_jax.tasks.encode import Encoded, label_ids
from bert_jax.tasks.encoded_rows import Examples, Rows, Task
from bert_jax.tasks.windows import best_windows, windows
from bert_jax.text.vocabulary import Vocabulary


def word_pieces(
  vocabulary: Vocabulary, words: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
  """Encodes each word separately, as in the middle of a text.

  Returns:
    int32 [T], the ids of the pieces of all words, and int64 [W], the number of
    pieces of each word. It may be 0, for example for control characters.
  """
  return vocabulary.encode_words(words)


def rows(
  task: Task,
  examples: Examples,
  vocabulary: Vocabulary,
  length: int,
  context: bool = False,
) -> Encoded:
  """Encodes sentences.

  Args:
    task: a task of kind tagging.
    examples: examples with `words` and `tags`, see `encoded_rows`.
    vocabulary: turns text into ids.
    length: the most tokens in a row.
    context: True to fill the row with the words before and after the sentence,
      about equally many of both, from examples with the same `document`.

  Raises:
    ValueError: `length` has no room for text, or a tag is unknown.
  """
  layout = layouts.of_vocabulary(vocabulary)
  layouts.check_length(layout, length)
  room = length - len(layout.begin) - len(layout.end)
  words = [word for e in examples for word in e["words"]]
  ids, pieces = word_pieces(vocabulary, words)
  tags = [t for e in examples for t in e["tags"] or [None] * len(e["words"])]
  counts = [len(e["words"]) for e in examples]
  number = np.cumsum([0, *counts], dtype=np.int64)
  sentence = np.repeat(np.arange(len(examples)), counts)
  flat = _Flat(ids, label_ids(task, tags), pieces, number, sentence)
  # Example e has the pieces [ends[e], ends[e + 1]).
  ends = flat.word_ends[number].tolist()
  documents = _documents(examples, ends) if context else None
  row_windows, long = [], []
  for e, (begin, end) in enumerate(itertools.pairwise(ends)):
    spans = windows(end - begin, room, max(room // 2, 1))
    if documents is not None and len(spans) == 1:
      widened = _spread(begin, end, *documents[e], room)
      row_windows.append(_Window(e, *widened, begin, end))
      continue
    best = best_windows(end - begin, spans)
    if len(spans) > 1:
      long.append(str(examples[e]["id"]))
    for k, (a, b) in enumerate(spans):
      # The numbers in `best` ascend, so that the labelled pieces are one run.
      first, last = (begin + np.searchsorted(best, [k, k + 1])).tolist()
      row_windows.append(_Window(e, begin + a, begin + b, first, last))
  silent = [ascii(words[i]) for i in np.flatnonzero(pieces == 0)]
  notes = {"words without a piece": silent, "sentences in windows": long}
  notes = {event: names for event, names in notes.items() if names}
  return Encoded(_build(layout, row_windows, flat), notes)


class _Flat:
  """The W words of a split, with T pieces in all.

  Attributes:
    ids: int32 [T], the ids of the pieces.
    first: int64 [T], at the first piece of a word its number; else -1.
    word_ends: int64 [W + 1], word w has the pieces [word_ends[w],
      word_ends[w + 1]).
    tags: int32 [W], the ids of the tags.
    index: int64 [W], the number of each word in its example.
  """

  def __init__(
    self,
    ids: np.ndarray,
    tags: np.ndarray,
    pieces: np.ndarray,
    number: np.ndarray,
    sentence: np.ndarray,
  ):
    """Lays the words out.

    Args:
      ids: int32 [T], the ids of the pieces.
      tags: int32 [W], the ids of the tags.
      pieces: int64 [W], the number of pieces of each word.
      number: int64 [E + 1], the number of each example's first word, then W.
      sentence: int64 [W], the example of each word.
    """
    self.ids, self.tags = ids, tags
    self.word_ends = np.cumsum(np.concatenate([[0], pieces]), dtype=np.int64)
    self.first = np.full(len(ids), -1, np.int64)
    encoded = np.flatnonzero(pieces)
    self.first[self.word_ends[encoded]] = encoded
    self.index = np.arange(len(tags)) - number[sentence]


class _Window(NamedTuple):
  """The pieces of a row.

  Attributes:
    example: the number of the example.
    begin: the first piece.
    end: the end of the pieces.
    start: the first piece that has a label.
    stop: the end of the pieces that have labels.
  """

  example: int
  begin: int
  end: int
  start: int
  stop: int


def _documents(
  examples: Examples, ends: Sequence[int]
) -> list[tuple[int, int]]:
  """Returns the pieces [begin, end) of each example's document.

  An example whose `document` is None is a document.

  Args:
    examples: E examples.
    ends: the first piece of each example, then the number of pieces.
  """
  names = [e["document"] for e in examples]
  names = [(i,) if name is None else name for i, name in enumerate(names)]
  bounds: dict[Any, tuple[int, int]] = {}
  for i, name in enumerate(names):
    bounds[name] = bounds.get(name, (ends[i], 0))[0], ends[i + 1]
  return [bounds[name] for name in names]


def _spread(
  begin: int, end: int, low: int, high: int, room: int
) -> tuple[int, int]:
  """Widens [begin, end) to `room` pieces, equally on both sides.

  If [low, high) ends on one side, the other side gets more.
  """
  spare = room - (end - begin)
  left = min(begin - low, max(spare // 2, spare - (high - end)))
  return begin - left, min(high, end + spare - left)


def _build(layout: layouts.Layout, windows: list[_Window], flat: _Flat) -> Rows:
  """Makes a row of each window."""
  before, after = (np.array(x, np.int32) for x in (layout.begin, layout.end))
  parts, words, sizes = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], [0]
  for window in windows:
    begin, end = window.begin, window.end
    parts += [before, flat.ids[begin:end], after]
    # For each token of the row: the word whose first piece it is, or -1.
    word = np.full(len(before) + end - begin + len(after), -1, np.int64)
    shift = len(before) - begin
    word[shift + window.start : shift + window.stop] = flat.first[
      window.start : window.stop
    ]
    words.append(word)
    sizes.append(len(word))
  word = np.concatenate(words)
  labels = np.full(len(word), -1, np.int32)
  offsets = np.full((len(word), 2), -1, np.int32)
  labelled = word >= 0
  labels[labelled] = flat.tags[word[labelled]]
  offsets[labelled] = flat.index[word[labelled]][:, None]
  return Rows(
    np.concatenate(parts),
    np.cumsum(sizes, dtype=np.int64),
    np.array(sizes[1:], np.int32),
    np.array([window.example for window in windows], np.int64),
    labels,
    offsets,
  )
