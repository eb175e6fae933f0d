"""The layout of rows: each family's special tokens around the texts.

  BERT, ELECTRA, ALBERT  [CLS] a [SEP]            [CLS] a [SEP] b [SEP]
  RoBERTa                <s> a </s>               <s> a </s></s> b </s>
  GPT-1                  _start_ a _classify_     _start_ a _delimiter_ b
                                                  _classify_

The sources are google-research/bert run_classifier.py; fairseq's `encode` in
models/roberta/hub_interface.py; and openai/finetune-transformer-lm train.py.
RoBERTa and GPT-1 have no segments. GPT-1's vocabulary of V pieces lacks the
three special tokens, which get the new ids V, V + 1 and V + 2.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.messages import UserError, by_caller
from bert_jax.text import bpe
from bert_jax.text.vocabulary import Vocabulary

GPT1_TOKENS = ("_start_", "_delimiter_", "_classify_")


class Layout(NamedTuple):
  """Lists the special ids that a family puts around texts.

  Attributes:
    begin: the ids before the first text.
    between: the ids between two texts.
    end: the ids after the last text.
    pad: the id of padding.
    has_segments: True if a second text has segment id 1.
    vocab_size: the number of ids that a model needs, also for `new_tokens`.
    new_tokens: the special tokens whose ids follow the vocabulary's ids.
  """

  begin: tuple[int, ...]
  between: tuple[int, ...]
  end: tuple[int, ...]
  pad: int
  has_segments: bool
  vocab_size: int
  new_tokens: tuple[str, ...] = ()


class LaidOutRow(NamedTuple):
  """Holds a row: one or two texts with their special tokens.

  Attributes:
    id_arrays: int32 arrays in the order of the row. Arrays of special ids and
      arrays of a text's ids take turns.
    second_begin: the column where segment 1 begins; the row's size if it has
      no segment 1.
    is_cut: True if the texts were cut.
  """

  id_arrays: list[np.ndarray]
  second_begin: int
  is_cut: bool

  @property
  def size(self) -> int:
    """The number of tokens."""
    return sum(map(len, self.id_arrays))


def layout_of(vocabulary: Vocabulary) -> Layout:
  """Returns the layout of a vocabulary's family.

  Raises:
    ValueError: the vocabulary has whole words (ELMo), for which there is no
      layout.
  """
  special, vocab_size = vocabulary.special, vocabulary.vocab_size
  if vocabulary.algorithm == "words":
    raise UserError(
      "a vocabulary of whole words is ELMo's, which is not fine-tuned; extract"
      " its features instead, or give the vocabulary of a Transformer."
    )
  if special.mask is None:
    start, between, classify = vocab_size, vocab_size + 1, vocab_size + 2
    return Layout(
      begin=(start,),
      between=(between,),
      end=(classify,),
      pad=0,
      has_segments=False,
      vocab_size=vocab_size + 3,
      new_tokens=GPT1_TOKENS,
    )
  # A vocabulary with a mask also has these three special tokens.
  cls, sep, pad = special.cls, special.sep, special.pad
  assert cls is not None and sep is not None and pad is not None
  # XLM-R and CamemBERT have unigram pieces, but rows like RoBERTa's.
  has_roberta_rows = vocabulary.algorithm == "bytelevel"
  has_roberta_rows |= vocabulary.pieces[cls] == bpe.ROBERTA_TOKENS["cls"]
  separators = (sep, sep) if has_roberta_rows else (sep,)
  return Layout(
    begin=(cls,),
    between=separators,
    end=(sep,),
    pad=pad,
    has_segments=not has_roberta_rows,
    vocab_size=vocab_size,
  )


def cut_lengths(
  first_length: int, second_length: int, capacity: int
) -> tuple[int, int]:
  """Returns the lengths of two texts after they are cut to a capacity.

  The longer text is cut first. `_truncate_seq_pair` in google-research/bert
  run_classifier.py gives the same lengths: it removes one token at a time from
  the longer text, and from the second text if both texts are equally long.

  Args:
    first_length: the number of tokens of the first text.
    second_length: the number of tokens of the second text.
    capacity: the largest number of tokens of both texts together.
  """
  if first_length + second_length <= capacity:
    return first_length, second_length
  half = capacity // 2
  if second_length <= half:
    return capacity - second_length, second_length
  if first_length <= capacity - half:
    return first_length, capacity - first_length
  return capacity - half, half


def lay_out(
  layout: Layout, texts: Sequence[np.ndarray], length: int
) -> LaidOutRow:
  """Lays one or two texts out, and cuts them to the length.

  Args:
    layout: the layout of the family.
    texts: the int32 ids of each text.
    length: the largest number of tokens in the row.
  """
  begin, between, end = (
    np.array(ids, np.int32)
    for ids in (layout.begin, layout.between, layout.end)
  )
  capacity = length - len(begin) - len(end)
  if len(texts) == 1:
    text = texts[0][:capacity]
    row_length = len(begin) + len(text) + len(end)
    return LaidOutRow([begin, text, end], row_length, len(text) < len(texts[0]))
  first, second = texts
  cut_text_lengths = cut_lengths(
    len(first), len(second), capacity - len(between)
  )
  id_arrays = [
    begin,
    first[: cut_text_lengths[0]],
    between,
    second[: cut_text_lengths[1]],
    end,
  ]
  row_length = sum(map(len, id_arrays))
  second_begin = len(begin) + cut_text_lengths[0] + len(between)
  is_cut = sum(cut_text_lengths) < len(first) + len(second)
  return LaidOutRow(
    id_arrays, second_begin if layout.has_segments else row_length, is_cut
  )


def padded_batch(
  vocabulary: Vocabulary,
  texts: Sequence[str | tuple[str, str]],
  length: int,
) -> dict[str, np.ndarray]:
  """Encodes texts as the rows of a batch, each padded to one length.

  Args:
    vocabulary: turns text into ids, and decides the special tokens.
    texts: N texts; a tuple is a pair of texts in one row.
    length: the number of tokens of each row, L. A text that does not fit is
      cut; in a pair, the longer text is cut first.

  Returns:
    The encoder's arguments `input_ids`, `segment_ids` and `sequence_ids`, int32
    [N, L]. Segment ids are 1 at a second text, if the family has segments.
    Sequence ids are 1 at tokens and 0 at padding.

  Raises:
    UserError: `length` has no space for text, or the vocabulary is ELMo's.
  """
  layout = layout_of(vocabulary)
  check_length(layout, length)
  texts_of_rows = [(text,) if isinstance(text, str) else text for text in texts]
  ids_of_texts = iter(
    vocabulary.encode_batch([text for row in texts_of_rows for text in row])
  )
  batch = {
    "input_ids": np.full((len(texts), length), layout.pad, np.int32),
    "segment_ids": np.zeros((len(texts), length), np.int32),
    "sequence_ids": np.zeros((len(texts), length), np.int32),
  }
  for i, row_texts in enumerate(texts_of_rows):
    ids = [np.array(next(ids_of_texts), np.int32) for _ in row_texts]
    row = lay_out(layout, ids, length)
    batch["input_ids"][i, : row.size] = np.concatenate(row.id_arrays)
    batch["segment_ids"][i, row.second_begin : row.size] = 1
    batch["sequence_ids"][i, : row.size] = 1
  return batch


def check_length(layout: Layout, length: int) -> None:
  """Raises ValueError if a row has space for fewer than 4 tokens of text."""
  min_length = len(layout.begin) + len(layout.between) + len(layout.end) + 4
  if length < min_length:
    raise UserError(
      f"{by_caller('--length', 'length')}={length} leaves no space for text;"
      f" give {min_length} or more."
    )
