"""Makes examples directly from text, which is tokenised in memory.

Use this module for a small text, or to look at a model's input. The documents
are read in groups. Each group becomes a small corpus in memory, and the recipes
of prepared folders make its examples. Examples are shuffled only within their
group, and every epoch reads and tokenises the text again. Prepare a folder if
the text is used often.
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

ReadRecords = Callable[[], Iterator[sources.Record]]


class Text:
  """Reads and tokenises a text, in place of a prepared folder.

  Attributes:
    path: the text's name, for messages.
    meta: a dict with `lower_case`, and with `fingerprint`, a hash of everything
      that the examples depend on.
    vocab: the vocabulary's pieces in the order of their ids.
    special: the ids of the special tokens.
    tokenizer: the vocabulary, which turns text into ids.
  """

  def __init__(
    self,
    name: str,
    train: ReadRecords,
    validation: ReadRecords | None,
    tokenizer: Vocabulary,
    *,
    heldout: float,
    language: str,
    group_size: int,
    version: Any,
  ):
    """Describes a text. The text is read later.

    Args:
      name: the text's name, for messages.
      train: a function that yields all raw documents. Every call yields the
        same documents in the same order.
      validation: a function that yields the held-out documents; if None, the
        held-out documents are taken from `train`.
      tokenizer: the vocabulary, which turns text into ids.
      heldout: the share of the documents of `train` to hold out. As in
        `prepare`, a hash of a document's content decides. The share has no
        effect if `validation` is given.
      language: one of `sources.LANGUAGES`; its rules split sentences.
      group_size: the number of documents that are tokenised, paired and
        shuffled together.
      version: any value; the caller changes it when the text changes.

    Raises:
      UserError: `heldout` is not a share, `group_size` is below 2, or the
        language is unknown.
    """
    if not 0 <= heldout < 1:
      raise UserError(f"heldout={heldout} is not a share between 0 and 1.")
    sources.check_language(language)
    if group_size < 2:
      raise UserError(
        f"group_size={group_size} must be at least 2, to pair documents."
      )
    self.path = name
    self.vocab, self.special = tokenizer.pieces, tokenizer.special
    self._train, self._validation = train, validation
    self.tokenizer, self._group_size, self._language = (
      tokenizer,
      group_size,
      language,
    )
    self._heldout_below_hash = 0 if validation else int(heldout * 2**64)
    lower_case = tokenizer.lower_case
    options = sorted(tokenizer.options.items())
    identity_text = repr(
      (
        self.vocab,
        options,
        self._heldout_below_hash,
        language,
        group_size,
        version,
      )
    )
    identity_text += (
      repr(tokenizer.added_tokens) if tokenizer.added_tokens else ""
    )
    self.meta = {
      "lower_case": lower_case,
      "fingerprint": _digest(identity_text),
    }

  @property
  def vocab_size(self) -> int:
    """The number of pieces."""
    return len(self.vocab)

  def tokenizer_files(self) -> dict[str, bytes]:
    """Returns name -> content of the tokenizer's files."""
    return open_vocabulary.to_files(self.tokenizer)

  def _encode(
    self, records: Iterator[sources.Record], split: str, heldout_below_hash: int
  ) -> Iterator[writer.EncodedDocuments]:
    """Yields the tokenised documents of a split, one group at a time.

    Documents whose hash is below `heldout_below_hash` have split "validation".
    """
    encode_group = tokenize.make_tokenizer(
      self.tokenizer, self._language, heldout_below_hash
    )
    while group := list(itertools.islice(records, self._group_size)):
      yield encode_group(group).documents[split]

  def _corpus(self, groups: Sequence[writer.EncodedDocuments]) -> reader.Corpus:
    """Joins groups into a corpus in memory."""
    tokens, sentence_lengths, document_lengths = (
      np.concatenate(arrays) for arrays in zip(*groups, strict=True)
    )
    sentence_offsets = np.append(0, np.cumsum(sentence_lengths))
    word_starts = reader.mark_sentence_starts(
      self.tokenizer.find_word_starts(tokens), sentence_offsets
    )
    return reader.Corpus(
      tokens,
      sentence_offsets,
      np.append(0, np.cumsum(document_lengths)),
      np.packbits(word_starts, bitorder="little"),
      never_masked_ids=tuple(self.tokenizer.never_masked_ids),
    )

  def groups(self, first_index: int) -> Iterator[tuple[int, reader.Corpus]]:
    """Yields (index of the first raw document, corpus) of each training group.

    A group of fewer than 2 documents is joined to a neighbour, because a random
    next sentence must come from another document of the group.

    Args:
      first_index: the index of the raw document to begin with; it must be the
        first one of a group.
    """
    records = itertools.islice(self._train(), first_index, None)
    first_of_group, num_documents = first_index, 0
    pending_groups: list[writer.EncodedDocuments] = []
    for group in self._encode(records, "train", self._heldout_below_hash):
      if num_documents >= 2 and len(group.document_lengths) >= 2:
        yield first_of_group, self._corpus(pending_groups)
        first_of_group, pending_groups, num_documents = (
          first_of_group + len(pending_groups) * self._group_size,
          [],
          0,
        )
      pending_groups.append(group)
      num_documents += len(group.document_lengths)
    if num_documents:
      yield first_of_group, self._corpus(pending_groups)

  @functools.cached_property
  def unigrams(self) -> np.ndarray:
    """The counts of the pieces in the training text, [V] int64.

    The first use reads the whole training text.
    """
    counts = np.zeros(self.vocab_size, np.int64)
    for group in self._encode(self._train(), "train", self._heldout_below_hash):
      counts += np.bincount(group.tokens, minlength=self.vocab_size)
    return counts

  @functools.cached_property
  def validation(self) -> reader.Corpus:
    """The held-out documents; the first use reads the whole text.

    Raises:
      UserError: no document is held out.
    """
    if self._validation:
      # The bound 0 holds out nothing, so all documents get split "train".
      groups = list(self._encode(self._validation(), "train", 0))
    else:
      records = self._train()
      groups = list(
        self._encode(records, "validation", self._heldout_below_hash)
      )
    if not any(len(group.document_lengths) for group in groups):
      raise UserError(
        f"{self.path}: no document is held out; register the text with a larger"
        " heldout=, or pass other text as validation=."
      )
    return self._corpus(groups)


def _digest(text: str) -> str:
  return f"{tokenize.document_hash([text]):016x}"
