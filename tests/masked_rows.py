"""Makes rows to mask, and reads which tokens were masked."""

import dataclasses

import numpy as np

from bert_jax.examples import masking

CLS, SEP, MASK, VOCAB_SIZE = 2, 3, 4, 1000


def make_rows(lengths, width, pad=0, pad_left=False):
  """Returns the ids, the maskable columns and the lengths of rows.

  A row is [CLS], 10, 11, ..., [SEP] and padding.
  """
  ids = np.full((len(lengths), width), pad, np.int32)
  maskable = np.zeros(ids.shape, bool)
  for row, length in enumerate(lengths):
    begin = width - length if pad_left else 0
    ids[row, begin : begin + length] = [CLS, *range(10, 8 + length), SEP]
    maskable[row, begin + 1 : begin + length - 1] = True
  return ids, maskable, np.array(lengths)


def mask_rows(ids, maskable, lengths, seed=0, first_number=0, **options):
  """Masks rows; the global number of the first row is `first_number`."""
  global_numbers = np.arange(
    first_number, first_number + len(ids), dtype=np.uint64
  )
  mask_fields = [
    field.name for field in dataclasses.fields(masking.MaskOptions)
  ]
  mask_options = masking.check_mask_options(
    masking.MaskOptions(
      **{name: options.pop(name) for name in mask_fields if name in options}
    )
  )
  options = {"mask_id": MASK, "vocab_size": VOCAB_SIZE} | options
  return masking.mask_tokens(
    ids, maskable, lengths, global_numbers, seed, mask_options, **options
  )


def make_word_rows(count, width, seed):
  """Returns the arrays of `make_rows`, and a bool array of word starts.

  A word has 1 to 5 pieces.
  """
  rng = np.random.default_rng(seed)
  lengths = rng.choice([width, width, width, 9, 30], count)
  ids, maskable, lengths = make_rows(lengths.tolist(), width)
  word_starts = np.zeros(ids.shape, bool)
  for row in word_starts:
    word_lengths = rng.choice([1, 1, 1, 1, 2, 2, 3, 5], width)
    word_begins = np.cumsum(word_lengths) - word_lengths + 1
    row[word_begins[word_begins < width]] = True
  return ids, maskable, lengths, word_starts


def words_of(is_maskable, starts_word):
  """Returns the words of a row as lists of columns."""
  words = []
  for column in np.flatnonzero(is_maskable).tolist():
    if words and words[-1][-1] == column - 1 and not starts_word[column]:
      words[-1].append(column)
    else:
      words.append([column])
  return words


def chosen_columns(batch):
  """Returns the set of masked columns of each row."""
  is_used = batch["mlm_weights"] > 0
  pairs = zip(batch["mlm_positions"], is_used, strict=True)
  return [set(row[is_used_in_row].tolist()) for row, is_used_in_row in pairs]
