"""Examples straight from text: tokenised on the way, nothing written.

For small text, and to look at what a model gets. The documents are taken in
groups; each group becomes a small corpus in memory, and the same builders make
its examples. Shuffling reaches no further than a group, and every epoch reads
and tokenises again; a prepared folder does better for text that is used often.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax import hashing
from bert_jax.corpus import reader, sources, tokenize, writer
from bert_jax.examples.batch_keys import Batch, padding
from bert_jax.examples.recipes_builder import Builder, draws_key, fixed_numbers
from bert_jax.text import open_vocabulary
from bert_jax.text.vocabulary import Vocabulary

Records = Callable[[], Iterator[sources.Record]]


class Text:
  """Text with its vocabulary, as `corpus.Prepared` is a folder with its own.

  Attributes:
    path: a name, for messages.
    meta: `lower_case`, and `fingerprint` of everything the examples depend on.
    vocab: the pieces in the order of their ids.
    special: ids of the special tokens.
    tokenizer: text to ids.
  """

  def __init__(
    self,
    path: str,
    train: Records,
    validation: Records | None,
    tokenizer: Vocabulary,
    *,
    heldout: float,
    language: str,
    group: int,
    version: Any,
  ):
    """Describes text; reads none yet.

    Args:
      path: a name, for messages.
      train: yields the raw documents, the same at every call.
      validation: yields the held-out documents; None takes them from `train`.
      tokenizer: text to ids.
      heldout: share of the documents of `train` to hold out, by a hash of their
        content, as `prepare` does; without effect if `validation` is given.
      language: of `reading.LANGUAGES`, for splitting sentences.
      group: documents that are tokenised, paired and shuffled together.
      version: changes when the text does.

    Raises:
      ValueError: `heldout` is no share, `group` is below 2, or there is no such
        language.
    """
    if not 0 <= heldout < 1:
      raise ValueError(f"heldout={heldout} is not a share between 0 and 1.")
    sources.check_language(language)
    if group < 2:
      raise ValueError(f"group={group}: documents are paired, at least 2.")
    self.path = path
    self.vocab, self.special = tokenizer.pieces, tokenizer.special
    self._train, self._validation = train, validation
    self.tokenizer, self._group, self._language = tokenizer, group, language
    self._threshold = 0 if validation else int(heldout * 2**64)
    lower = tokenizer.lower_case
    options = sorted(tokenizer.options.items())
    key = repr((self.vocab, options, self._threshold, language, group, version))
    key += repr(tokenizer.added) if tokenizer.added else ""
    self.meta = {"lower_case": lower, "fingerprint": _digest(key)}

  @property
  def vocab_size(self) -> int:
    return len(self.vocab)

  def tokenizer_files(self) -> dict[str, bytes]:
    """Returns name -> content of the tokenizer's files."""
    return open_vocabulary.contents(self.tokenizer)

  def _parts(
    self, records: Iterator[sources.Record], split: str, threshold: int
  ) -> Iterator[writer.Part]:
    """Yields the documents of a split, a part for each group of records."""
    run = tokenize.make_tokenizer(self.tokenizer, self._language, threshold)
    while batch := list(itertools.islice(records, self._group)):
      yield run(batch).parts[split]

  def _corpus(self, parts: Sequence[writer.Part]) -> reader.Corpus:
    tokens, sentences, documents = (
      np.concatenate(arrays) for arrays in zip(*parts, strict=True)
    )
    ends = np.append(0, np.cumsum(sentences))
    starts = reader.mark_starts(self.tokenizer.word_starts(tokens), ends)
    return reader.Corpus(
      tokens,
      ends,
      np.append(0, np.cumsum(documents)),
      np.packbits(starts, bitorder="little"),
      unmasked=tuple(self.tokenizer.unmasked_ids),
    )

  def groups(self, record: int) -> Iterator[tuple[int, reader.Corpus]]:
    """Yields (number of its first record, corpus) of each training group.

    Groups of fewer than 2 documents are joined to a neighbour: a random next
    sentence comes from another document of the group.

    Args:
      record: the number that a group began with.
    """
    records = itertools.islice(self._train(), record, None)
    begin, pending, count = record, [], 0
    for part in self._parts(records, "train", self._threshold):
      if count >= 2 and len(part.documents) >= 2:
        yield begin, self._corpus(pending)
        begin, pending, count = begin + len(pending) * self._group, [], 0
      pending.append(part)
      count += len(part.documents)
    if count:
      yield begin, self._corpus(pending)

  @functools.cached_property
  def unigrams(self) -> np.ndarray:
    """[V] int64, how often each piece occurs in training; reads everything."""
    counts = np.zeros(self.vocab_size, np.int64)
    for part in self._parts(self._train(), "train", self._threshold):
      counts += np.bincount(part.tokens, minlength=self.vocab_size)
    return counts

  @functools.cached_property
  def validation(self) -> reader.Corpus:
    """The held-out documents; reads everything.

    Raises:
      ValueError: there is none.
    """
    if self._validation:
      parts = list(self._parts(self._validation(), "train", 0))
    else:
      records = self._train()
      parts = list(self._parts(records, "validation", self._threshold))
    if not any(len(part.documents) for part in parts):
      raise ValueError(
        f"{self.path}: no document is held out; register the text with a larger"
        " heldout=, or with validation=, text of its own."
      )
    return self._corpus(parts)


def _digest(text: str) -> str:
  return f"{tokenize.document_hash([text]):016x}"


class TextStream:
  """The endless sequence of a text's examples; a `streams.Source`.

  It can only go forward: reading an earlier row starts from the beginning
  again, unless `restore` tells it where a later one is to be found.
  """

  def __init__(
    self,
    text: Text,
    builder: Builder,
    seed: int,
    name: str = "",
    epochs: int | None = None,
  ):
    """Opens a stream.

    Args:
      text: the documents.
      builder: the objective.
      seed: another seed gives other chunks, order, pairs and masks.
      name: tells the streams of one seed apart.
      epochs: where the sequence ends; None for never.
    """
    self.features = builder.features
    self._text, self._builder, self._epochs = text, builder, epochs
    self._key = hashing.make_key("text", name, seed)
    # A number for streams that can share positions; below 2**53 for JSON.
    layout = f"{builder.features} {text.meta['fingerprint']}"
    layout += f" copies {builder.copies}" if builder.copies else ""
    self._identity = hashing.make_key(self._key, layout) >> 11
    self._go_to(0, 0, 0)

  def _go_to(self, epoch: int, record: int, first: int) -> None:
    self._epoch, self._record, self._first = epoch, record, first
    self._groups: Iterator[tuple[int, reader.Corpus]] | None = None
    self._rows: np.ndarray | None = None
    # Example numbers of `_rows` when the builder repeats fixed copies (static
    # masks); otherwise None, and the global numbers are used.
    self._numbers: np.ndarray | None = None

  def _load(self) -> bool:
    """Makes the current group's index; returns False beyond the last epoch.

    Raises:
      ValueError: there are no examples, or a single document.
    """
    while self._rows is None:
      if self._epoch == self._epochs:
        return False
      if self._groups is None:
        self._groups = self._text.groups(self._record)
      group = next(self._groups, None)
      if group is not None:
        self._record, self._corpus = group
        self._rows = self._index()
      elif self._first:
        self._go_to(self._epoch + 1, 0, self._first)
      else:
        raise ValueError(
          f"{self._text.path}: a whole epoch gave no example; there is no text,"
          " or its documents are too short for this objective."
        )
    return True

  def _index(self) -> np.ndarray:
    """Returns the current group's chunks in their order."""
    self._builder.check(self._corpus)
    key = hashing.make_key(self._key, "epoch", self._epoch, self._record)
    draws = draws_key(self._builder, self._key, self._epoch, self._record)
    rows = self._builder.index(
      self._corpus,
      0,
      self._corpus.num_documents,
      hashing.make_key(draws, "rows"),
    )
    order = np.argsort(hashing.bits(key, np.arange(len(rows))))
    self._numbers = None
    if self._builder.copies:
      self._numbers = fixed_numbers(draws, len(rows))[order]
    return rows[order]

  def read(self, first: int, count: int) -> Batch:
    """Returns examples [first, first + count), fewer where `epochs` end."""
    if first < self._first:
      self._go_to(0, 0, 0)
    parts, have = [padding(self.features, 0)], 0
    key = hashing.make_key(self._key, "build")
    while have < count and self._load():
      begin = first + have - self._first
      rows = self._rows[begin : begin + count - have]
      if len(rows):
        positions = np.arange(first + have, first + have + len(rows))
        positions = positions.astype(np.uint64)
        if self._numbers is not None:
          positions = self._numbers[begin : begin + len(rows)]
        parts.append(self._builder.build(self._corpus, rows, positions, key))
        have += len(rows)
      if have < count:
        self._first += len(self._rows)
        self._rows = None
    return {
      key: np.concatenate([part[key] for part in parts])
      for key in self.features
    }

  def position(self) -> dict[str, int]:
    """Returns where the last `read` ended, for `restore`."""
    return {
      "text": self._identity,
      "epoch": self._epoch,
      "record": self._record,
      "first": self._first,
    }

  def restore(self, position: dict[str, int]) -> None:
    """Continues from a `position()`; that of another text is ignored."""
    if position.get("text") == self._identity:
      self._go_to(position["epoch"], position["record"], position["first"])
