"""Words with tags to rows: the first piece of each word has its tag.

Every word that has a piece has one first piece in all rows together: a sentence
that is too long is cut in windows that overlap by half, and a word counts in
the one where it has most around it. The published recipe (Devlin et al. 2018,
section 5.3) labels first pieces, and puts the document around a sentence.
"""

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
  """Pieces of words, each for itself, as in the middle of a text.

  Returns:
    int32 [T] ids, and int64 [W], how many each word has (0 for one of control
    characters, say).
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
    examples: with `words` and `tags`, see `rows`.
    vocabulary: text to ids.
    length: tokens in a row at most.
    context: fill the row with the words before and after the sentence, as many
      of either as there is room for, of the examples with the same `document`.

  Raises:
    ValueError: no room, or an unknown tag.
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
  ends = flat.word_ends[number]  # Where examples begin, in pieces.
  around = _documents(examples, ends) if context else None
  windows_of_rows, long = [], []
  for e, (begin, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
    spans = windows(end - begin, room, max(room // 2, 1))
    if around is not None and len(spans) == 1:
      windows_of_rows.append(
        _Window(e, *_spread(begin, end, *around[e], room), begin, end)
      )
      continue
    best = best_windows(end - begin, spans)
    if len(spans) > 1:
      long.append(str(examples[e]["id"]))
    for k, (a, b) in enumerate(spans):
      # Whole numbers of windows ascend, so that the part is contiguous.
      labelled = begin + np.searchsorted(best, [k, k + 1])
      windows_of_rows.append(_Window(e, begin + a, begin + b, *labelled))
  silent = [ascii(words[i]) for i in np.flatnonzero(pieces == 0)]
  notes = {"words without a piece": silent, "sentences in windows": long}
  notes = {what: found for what, found in notes.items() if found}
  return Encoded(_build(layout, windows_of_rows, flat), notes)


class _Flat:
  """All words of a split end to end.

  Attributes:
    ids: int32 [T] pieces.
    first: int64 [T], the word whose first piece it is; -1 elsewhere.
    word_ends: int64 [W + 1], where words begin and end in `ids`.
    tags: int32 [W].
    place: int64 [W], the word's number in its example.
  """

  def __init__(
    self,
    ids: np.ndarray,
    tags: np.ndarray,
    pieces: np.ndarray,
    number: np.ndarray,
    sentence: np.ndarray,
  ):
    self.ids, self.tags = ids, tags
    self.word_ends = np.cumsum(np.concatenate([[0], pieces]), dtype=np.int64)
    self.first = np.full(len(ids), -1, np.int64)
    some = np.flatnonzero(pieces)
    self.first[self.word_ends[some]] = some
    self.place = np.arange(len(tags)) - number[sentence]


class _Window(NamedTuple):
  """Pieces [begin, end) in a row of an example; labels in [start, stop)."""

  example: int
  begin: int
  end: int
  start: int
  stop: int


def _documents(examples: Examples, ends: np.ndarray) -> list[tuple[int, int]]:
  """First and last piece of each example's document; None: it is its own."""
  names = [e["document"] for e in examples]
  names = [(i,) if name is None else name for i, name in enumerate(names)]
  bounds: dict[Any, tuple[int, int]] = {}
  for i, name in enumerate(names):
    bounds[name] = bounds.get(name, (ends[i], 0))[0], ends[i + 1]
  return [bounds[name] for name in names]


def _spread(
  begin: int, end: int, low: int, high: int, room: int
) -> tuple[int, int]:
  """Widens [begin, end) within [low, high) to `room`, alike on both sides."""
  spare = room - (end - begin)
  left = min(begin - low, max(spare // 2, spare - (high - end)))
  return begin - left, min(high, end + spare - left)


def _build(layout: layouts.Layout, made: list[_Window], flat: _Flat) -> Rows:
  before, after = np.int32(layout.begin), np.int32(layout.end)
  parts, words, sizes = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], [0]
  for window in made:
    begin, end = window.begin, window.end
    parts += [before, flat.ids[begin:end], after]
    word = np.full(len(before) + end - begin + len(after), -1, np.int64)
    at = len(before) - begin
    word[at + window.start : at + window.stop] = flat.first[
      window.start : window.stop
    ]
    words.append(word)
    sizes.append(len(word))
  word = np.concatenate(words)
  labels = np.full(len(word), -1, np.int32)
  offsets = np.full((len(word), 2), -1, np.int32)
  some = word >= 0
  labels[some] = flat.tags[word[some]]
  offsets[some] = flat.place[word[some]][:, None]
  return Rows(
    np.concatenate(parts),
    np.cumsum(sizes, dtype=np.int64),
    np.array(sizes[1:], np.int32),
    np.array([window.example for window in made], np.int64),
    labels,
    offsets,
  )
