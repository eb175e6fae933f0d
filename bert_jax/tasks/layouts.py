"""What stands around the texts of a row: each family's special tokens.

  BERT, ELECTRA, ALBERT  [CLS] a [SEP]            [CLS] a [SEP] b [SEP]
  RoBERTa                <s> a </s>               <s> a </s></s> b </s>
  GPT-1                  _start_ a _classify_     _start_ a _delimiter_ b
                                                  _classify_

(google-research/bert run_classifier.py; fairseq models/roberta/hub_interface
.py, encode; openai/finetune-transformer-lm train.py.) RoBERTa has no segments.
The three tokens of GPT-1 are new: ids V, V + 1, V + 2.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.messages import UserError
from bert_jax.text import bpe
from bert_jax.text.vocabulary import Vocabulary

GPT1_TOKENS = ("_start_", "_delimiter_", "_classify_")


class Layout(NamedTuple):
  """Special ids around texts.

  Attributes:
    begin: before the first text.
    between: between two texts.
    end: after the last one.
    pad: the id of padding.
    segments: True if a second text is segment 1.
    vocab_size: ids that a model needs, the new ones included.
    extra: names of the new ids, which begin at the size of the vocabulary.
  """

  begin: tuple[int, ...]
  between: tuple[int, ...]
  end: tuple[int, ...]
  pad: int
  segments: bool
  vocab_size: int
  extra: tuple[str, ...] = ()


def of_vocabulary(vocabulary: Vocabulary) -> Layout:
  """The layout of the family that a tokenizer is of.

  Raises:
    ValueError: a tokenizer of whole words (ELMo), which has no such rows.
  """
  special, size = vocabulary.special, vocabulary.vocab_size
  if vocabulary.kind == "words":
    raise UserError(
      "a vocabulary of whole words is ELMo's, which is not fine-tuned; extract"
      " its features instead, or give the vocabulary of a Transformer."
    )
  if special.mask is None:
    start, between, classify = size, size + 1, size + 2
    return Layout(
      (start,), (between,), (classify,), 0, False, size + 3, GPT1_TOKENS
    )
  first, end = (special.cls,), (special.sep,)
  # XLM-R and CamemBERT have unigram pieces, and RoBERTa's rows.
  roberta = vocabulary.kind == "bytelevel"
  roberta |= vocabulary.pieces[special.cls] == bpe.ROBERTA["cls"]
  between = end * 2 if roberta else end
  return Layout(first, between, end, special.pad, not roberta, size)


def cut_pair(first: int, second: int, room: int) -> tuple[int, int]:
  """Lengths of two texts after the longer one has lost its last tokens.

  That of google-research/bert run_classifier.py, _truncate_seq_pair, which
  takes a token at a time, of the second where both are as long.
  """
  if first + second <= room:
    return first, second
  half = room // 2
  if second <= half:
    return room - second, second
  if first <= room - half:
    return first, room - first
  return room - half, half


def row(
  layout: Layout, texts: Sequence[np.ndarray], length: int
) -> tuple[list[np.ndarray], int, bool]:
  """Lays one or two texts out.

  Args:
    layout: the layout of the family.
    texts: the int32 ids of each text.
    length: the most tokens in the row.

  Returns:
    The parts of the row, the place where segment 1 begins (the row's length
    without one), and whether something was cut off.
  """
  begin, between, end = (
    np.array(ids, np.int32)
    for ids in (layout.begin, layout.between, layout.end)
  )
  room = length - len(begin) - len(end)
  if len(texts) == 1:
    text = texts[0][:room]
    total = len(begin) + len(text) + len(end)
    return [begin, text, end], total, len(text) < len(texts[0])
  first, second = texts
  sizes = cut_pair(len(first), len(second), room - len(between))
  parts = [begin, first[: sizes[0]], between, second[: sizes[1]], end]
  total = sum(map(len, parts))
  place = len(begin) + sizes[0] + len(between)
  cut = sum(sizes) < len(first) + len(second)
  return parts, place if layout.segments else total, cut


def check_length(layout: Layout, length: int) -> None:
  """Raises ValueError for a length that has no room for texts."""
  least = len(layout.begin) + len(layout.between) + len(layout.end) + 4
  if length < least:
    raise UserError(
      f"--length={length} leaves no room for text; give {least} or more."
    )
