"""Examples straight from text: tokenised on the way, nothing written.

For small text, and to look at what a model gets. The documents are taken in
groups; each group becomes a small corpus in memory, and the same recipes make
its examples. Shuffling reaches no further than a group, and every epoch reads
and tokenises again; a prepared folder does better for text that is used often.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.corpus import reader, sources, tokenize, writer
from bert_jax.messages import UserError
from bert_jax.text import open_vocabulary
from bert_jax.text.vocabulary import Vocabulary

Records = Callable[[], Iterator[sources.Record]]


class Text:
  """Text with its vocabulary, as `reader.Prepared` is a folder with its own.

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
      language: of `sources.LANGUAGES`, for splitting sentences.
      group: documents that are tokenised, paired and shuffled together.
      version: changes when the text does.

    Raises:
      ValueError: `heldout` is no share, `group` is below 2, or there is no such
        language.
    """
    if not 0 <= heldout < 1:
      raise UserError(f"heldout={heldout} is not a share between 0 and 1.")
    sources.check_language(language)
    if group < 2:
      raise UserError(f"group={group}: documents are paired, at least 2.")
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
      raise UserError(
        f"{self.path}: no document is held out; register the text with a larger"
        " heldout=, or with validation=, text of its own."
      )
    return self._corpus(parts)


def _digest(text: str) -> str:
  return f"{tokenize.document_hash([text]):016x}"
