"""Compares masked words, n-grams and spans with simple programs."""

import collections
import itertools
import math
import random

import numpy as np
import pytest
from masked_rows import (
  CLS,
  MASK,
  SEP,
  VOCAB_SIZE,
  chosen_columns,
  make_rows,
  make_word_rows,
  mask_rows,
  words_of,
)

from bert_jax.corpus import reader
from bert_jax.examples import masked_units, masking, recipes
from bert_jax.text.vocabulary import SpecialIds

SPECIAL_IDS = SpecialIds(pad=0, unk=1, cls=CLS, sep=SEP, mask=MASK)
SPAN_OPTIONS = dict(masking="span", count="ceil")


def albert_ngrams(words, max_columns, rng):
  """Returns the columns that ALBERT hides, chosen one n-gram at a time."""
  start_indices, hidden_columns = list(range(len(words))), set()
  rng.shuffle(start_indices)
  for start_index in start_indices:
    if len(hidden_columns) >= max_columns:
      break
    num_words = rng.choices([1, 2, 3], [1, 1 / 2, 1 / 3])[0]
    # The n-gram ends if the next word does not begin at the next column.
    for word_offset in range(1, num_words):
      next_index = start_index + word_offset
      if (
        next_index == len(words)
        or words[next_index][0] != words[next_index - 1][-1] + 1
      ):
        num_words = word_offset
        break
    while (
      num_words
      and len(hidden_columns)
      + sum(map(len, words[start_index : start_index + num_words]))
      > max_columns
    ):
      num_words -= 1
    columns = {
      column
      for word in words[start_index : start_index + num_words]
      for column in word
    }
    if not columns & hidden_columns:
      hidden_columns |= columns
  return hidden_columns


def spanbert_spans(words, max_columns, rng):
  """Returns the columns that SpanBERT hides, one span of words at a time."""
  start_indices, hidden_columns = list(range(len(words))), set()
  rng.shuffle(start_indices)
  for start_index in start_indices:
    if words[start_index][0] in hidden_columns:
      continue
    drawn_lengths = rng.choices(
      range(1, 11),
      [0.2 * 0.8 ** (span_length - 1) for span_length in range(1, 11)],
    )
    for word_index in range(
      start_index, min(start_index + drawn_lengths[0], len(words))
    ):
      if (
        word_index > start_index
        and words[word_index][0] != words[word_index - 1][-1] + 1
      ):
        break
      if len(hidden_columns | set(words[word_index])) > max_columns:
        break
      hidden_columns |= set(words[word_index])
  return hidden_columns


def stretch_lengths(words, hidden_columns):
  """Returns how many words each stretch of adjacent hidden words has."""
  lengths, last_column = [], -2
  for word in words:
    if word[0] in hidden_columns:
      if word[0] == last_column + 1:
        lengths[-1] += 1
      else:
        lengths.append(1)
      last_column = word[-1]
  return lengths


@pytest.mark.parametrize(
  "options, choose_columns",
  [(dict(masking="ngram"), albert_ngrams), (SPAN_OPTIONS, spanbert_spans)],
)
def test_ngrams_and_spans_are_chosen_as_published(options, choose_columns):
  """Statistics over 20,000 rows agree with `choose_columns` within 0.01."""
  ids, maskable, lengths, word_starts = make_word_rows(
    20_000, width=128, seed=1
  )
  # Column 40 is like a [SEP]: no n-gram or span crosses it.
  maskable[:, 40] = False
  batch = mask_rows(ids, maskable, lengths, word_starts=word_starts, **options)
  rng = random.Random(2)
  words = [words_of(*row) for row in zip(maskable, word_starts, strict=True)]
  num_maskable = maskable.sum(1).tolist()
  published_columns = []
  for i, row_length in enumerate(lengths.tolist()):
    count = max(1, round(row_length * 0.15))
    if options is SPAN_OPTIONS:
      count = math.ceil(num_maskable[i] * 0.15)
    published_columns.append(choose_columns(words[i], min(20, count), rng))
  statistics_of_both = []
  for columns_by_row in (chosen_columns(batch), published_columns):
    length_counts, hidden_by_size = collections.Counter(), np.zeros(6)
    hidden_by_column, rows_by_count = np.zeros(128), np.zeros(21)
    for i, columns in enumerate(columns_by_row):
      rows_by_count[len(columns)] += 1
      hidden_by_column[list(columns)] += 1
      length_counts.update(stretch_lengths(words[i], columns))
      for word in words[i]:
        assert len(columns & set(word)) in (0, len(word))
        hidden_by_size[len(word)] += word[0] in columns
    stretches_by_length = np.array(
      [length_counts[stretch_length] for stretch_length in range(1, 16)]
    )
    hidden_by_column = hidden_by_column.reshape(16, 8).sum(1)
    statistics_of_both.append(
      (stretches_by_length, hidden_by_size, hidden_by_column, rows_by_count)
    )
  for package_statistic, published_statistic in zip(
    *statistics_of_both, strict=True
  ):
    assert (
      package_statistic.sum() > 0
      and abs(package_statistic.sum() / published_statistic.sum() - 1) < 0.01
    )
    np.testing.assert_allclose(
      package_statistic / package_statistic.sum(),
      published_statistic / published_statistic.sum(),
      rtol=0,
      atol=0.01,
    )
  # Nearly every row has exactly the number of masks that it should have.
  wanted_counts = masking.count_masks(
    lengths, maskable.sum(1), masking.MaskOptions(**options)
  )
  assert (
    batch["mlm_weights"].sum(1) == np.minimum(wanted_counts, 20)
  ).mean() > 0.95


def test_ngram_lengths_have_the_published_chances():
  """Each row hides 3 words of one piece, as n-grams of 3, 2 + 1 or 1 + 1 + 1.

  The length n has the probability (1/n) / (1 + 1/2 + 1/3): 6/11, 3/11 or 2/11.
  """
  ids, maskable, lengths = make_rows([128] * 20_000, width=128)
  word_starts = np.ones(ids.shape, bool)
  batch = mask_rows(
    ids,
    maskable,
    lengths,
    masking="ngram",
    word_starts=word_starts,
    mask_rate=3 / 128,
  )
  assert (batch["mlm_weights"].sum(1) == 3).all()
  are_adjacent = np.diff(batch["mlm_positions"][:, :3], axis=1) == 1
  share_by_num_adjacent = np.bincount(are_adjacent.sum(1), minlength=3) / len(
    ids
  )
  # The tolerance covers n-grams that touch by chance: a row hides 3 of about
  # 126 columns.
  np.testing.assert_allclose(
    share_by_num_adjacent, [36 / 121, 3 / 11 + 30 / 121, 2 / 11], atol=0.03
  )


def test_span_lengths_are_geometric():
  """The lengths of spans are geometric with p = 0.2.

  A span has 1 to 10 words, and 3.8 on average: see section 3.1 of SpanBERT's
  paper.
  """
  cumulative_chances = masked_units.UNIT_RULES["span"].cumulative_chances
  chances = np.diff(cumulative_chances, prepend=0)
  assert len(chances) == 10 and cumulative_chances[-1] == 1
  np.testing.assert_allclose(chances[1:] / chances[:-1], 0.8)
  assert round((chances * np.arange(1, 11)).sum(), 1) == 3.8
  # Long rows with few spans are used, so that few spans are cut or touch.
  ids, maskable, lengths = make_rows([514] * 3000, width=514)
  word_starts = np.ones(ids.shape, bool)
  batch = mask_rows(
    ids,
    maskable,
    lengths,
    word_starts=word_starts,
    max_predictions=77,
    **SPAN_OPTIONS,
  )
  assert (batch["mlm_weights"].sum(1) == 77).all()
  columns_before, columns_after = np.moveaxis(batch["span_positions"], 2, 0)
  num_spans_by_length = np.bincount(
    (columns_after - columns_before - 1).ravel()
  )[1:]
  # A span was counted once for each of its words, so divide by their number.
  num_spans_by_length = num_spans_by_length / np.arange(
    1, len(num_spans_by_length) + 1
  )
  assert (
    3.4
    < (num_spans_by_length * np.arange(1, len(num_spans_by_length) + 1)).sum()
    / num_spans_by_length.sum()
    < 4.6
  )
  # Lengths above ten words, which come from spans that touch, are left out.
  ratios = num_spans_by_length[1:9] / num_spans_by_length[:8]
  assert (abs(ratios - 0.8) < 0.08).all()


def test_a_span_is_masked_kept_or_replaced_as_a_whole():
  ids, maskable, lengths, word_starts = make_word_rows(6000, width=128, seed=5)
  options = dict(replacement="roberta", reserved_ids=(MASK,))
  batch = mask_rows(
    ids, maskable, lengths, word_starts=word_starts, **SPAN_OPTIONS, **options
  )
  all_new_ids = batch["input_ids"]
  num_spans_by_replacement = collections.Counter()
  for i in range(len(ids)):
    num_masks = int(batch["mlm_weights"][i].sum())
    hidden_columns = set(batch["mlm_positions"][i, :num_masks].tolist())
    for position, (column_before, column_after) in zip(
      batch["mlm_positions"][i, :num_masks],
      batch["span_positions"][i, :num_masks],
      strict=True,
    ):
      assert column_before < position < column_after
      assert not {column_before, column_after} & hidden_columns
      assert hidden_columns >= set(range(column_before + 1, column_after))
      assert column_before >= 0 and column_after < lengths[i]
    assert not batch["span_positions"][i, num_masks:].any()
    for column_before, column_after in set(
      map(tuple, batch["span_positions"][i, :num_masks].tolist())
    ):
      new_ids, old_ids = (
        all_new_ids[i, column_before + 1 : column_after],
        ids[i, column_before + 1 : column_after],
      )
      if (new_ids == MASK).any():
        assert (new_ids == MASK).all()
        num_spans_by_replacement["mask"] += 1
      else:
        num_spans_by_replacement[
          "unchanged" if (new_ids == old_ids).all() else "random"
        ] += 1
        # The tokens of a random span are drawn one by one.
        assert (
          (new_ids == old_ids).all()
          or len(new_ids) < 3
          or len(set(new_ids.tolist())) > 1
        )
  num_spans = sum(num_spans_by_replacement.values())
  for replacement, share in (
    ("mask", 0.8),
    ("unchanged", 0.1),
    ("random", 0.1),
  ):
    assert abs(num_spans_by_replacement[replacement] / num_spans - share) < 0.01


# Algorithm of a tokenizer -> (some pieces, a function that returns True for a
# piece that starts a word). The byte-level pieces are from
# huggingface/transformers#9866.
PIECES_AND_STARTS = {
  "bytelevel": (
    ["Testing", "Ġmask", "ing", "Ġwhole", "Ġwords"],
    lambda piece: piece.startswith("Ġ"),
  ),
  "unigram": (
    ["▁Testing", "▁mask", "ing"],
    lambda piece: piece.startswith("▁"),
  ),
  "wordpiece": (["test", "##ing"], lambda piece: not piece.startswith("##")),
}


@pytest.mark.parametrize("algorithm", PIECES_AND_STARTS)
@pytest.mark.parametrize("unit", ["whole_word", "ngram", "span"])
def test_all_pieces_of_a_word_are_hidden_or_none(algorithm, unit):
  """In each of 500 rows, either all pieces of a word are hidden, or none."""
  pieces, begins_word = PIECES_AND_STARTS[algorithm]
  starts_word = np.array([begins_word(piece) for piece in pieces])
  starts_word = reader.mark_sentence_starts(starts_word, np.array([0]))
  tokens = list(range(10, 10 + len(pieces)))
  corpus = reader.corpus_from_documents([[tokens]], [[starts_word.tolist()]])
  recipe = recipes.doc_sentences(
    SPECIAL_IDS,
    64,
    length=16,
    max_predictions=8,
    mask_rate=0.5,
    masking=unit,
    count="round",
  )
  examples = recipe.index(corpus, 0, 1, 0)
  numbers = np.arange(500, dtype=np.uint64)
  batch = recipe.build(corpus, np.repeat(examples, 500), numbers, 0)
  hidden_columns = [
    {column - 1 for column in columns} for columns in chosen_columns(batch)
  ]
  word_of_piece = np.cumsum(starts_word) - 1
  word_counts = collections.Counter()
  for columns in hidden_columns:
    for word in range(word_of_piece[-1] + 1):
      word_columns = set(np.flatnonzero(word_of_piece == word).tolist())
      assert columns & word_columns in (set(), word_columns)
      word_counts[word] += word_columns <= columns
  assert all(word_counts[word] for word in range(word_of_piece[-1] + 1))


def test_a_corpus_without_word_starts_is_refused():
  corpus = reader.corpus_from_documents([[[10, 11]] * 9] * 2)
  corpus = corpus._replace(word_starts=corpus.word_starts[:1])
  for unit in ("whole_word", "ngram", "span"):
    recipe = recipes.bert_pairs(SPECIAL_IDS, 64, masking=unit)
    with pytest.raises(ValueError, match=f"masking='{unit}' needs to know wh"):
      recipe.check(corpus)
  recipes.bert_pairs(SPECIAL_IDS, 64).check(corpus)


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(masking="words"), "masking is 'words'"),
    (dict(masking="spans"), "masking is 'spans'; did you mean span"),
    (dict(replacement="albert"), "replacement is 'albert'; did you mean bert"),
    (dict(count="floor"), "count is 'floor'"),
    (dict(repeat_positions=True), "replacement='electra', not 'token' and 'b"),
    (
      dict(repeat_positions=True, masking="span", replacement="electra"),
      "needs masking='token' and replacement='electra', not 'span'",
    ),
  ],
)
def test_wrong_options_are_refused(options, message):
  with pytest.raises(ValueError, match=message) as error:
    recipes.bert_pairs(SPECIAL_IDS, 64, **options)
  assert "\n" not in str(error.value)


def test_stochastic_and_ceil_give_the_published_counts():
  """A stochastic count is the integer part of 0.15 n + U(0, 1)."""
  sizes = [5, 64, 100, 512]
  ids, maskable, lengths = make_rows(sizes * 5000, width=512)
  batch = mask_rows(
    ids, maskable, lengths, count="stochastic", max_predictions=80
  )
  counts = batch["mlm_weights"].sum(1).reshape(-1, len(sizes))
  for size, counts_of_size in zip(sizes, counts.T, strict=True):
    least_count = math.floor(0.15 * size)
    assert set(counts_of_size.tolist()) <= {least_count, least_count + 1}
    assert abs(counts_of_size.mean() - 0.15 * size) < 0.03
  mask_options = masking.MaskOptions(count="stochastic")
  largest_counts = masking.count_masks(
    np.array(sizes), np.array(sizes) - 2, mask_options
  )
  assert largest_counts.tolist() == [1, 10, 15, 77]
  batch = mask_rows(ids, maskable, lengths, count="ceil", max_predictions=80)
  expected_counts = [math.ceil((size - 2) * 0.15) for size in sizes]
  assert batch["mlm_weights"].sum(1)[:4].tolist() == expected_counts


def new_and_old_ids(batch):
  """Returns the new ids and the original ids of all predictions."""
  is_used = batch["mlm_weights"] > 0
  new_ids = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], 1)[
    is_used
  ]
  return new_ids, batch["mlm_ids"][is_used]


def test_roberta_draws_no_special_token():
  ids, maskable, lengths = make_rows([128] * 12_000, width=128)
  reserved_ids = (0, 1, CLS, SEP, MASK, VOCAB_SIZE - 1)
  batch = mask_rows(
    ids, maskable, lengths, replacement="roberta", reserved_ids=reserved_ids
  )
  new_ids, old_ids = new_and_old_ids(batch)
  assert abs((new_ids == MASK).mean() - 0.8) < 0.005
  assert abs((new_ids == old_ids).mean() - 0.1) < 0.005
  random_ids = new_ids[(new_ids != MASK) & (new_ids != old_ids)]
  counts = np.bincount(random_ids, minlength=VOCAB_SIZE)
  assert not counts[list(reserved_ids)].any()
  counts = counts[200 : VOCAB_SIZE - 1]
  chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
  assert abs(chi_square - len(counts)) < 5 * np.sqrt(2 * len(counts))


def test_the_replacement_other_never_draws_the_original_id():
  ids, maskable, lengths = make_rows([128] * 4000, width=128)
  ids[maskable] %= 5  # The text has ids 0 to 4 of a vocabulary of 7.
  options = dict(mask_id=6, vocab_size=7)
  for replacement, unchanged_share in (("bert", 0.1 + 0.1 / 7), ("other", 0.1)):
    batch = mask_rows(
      ids, maskable, lengths, replacement=replacement, **options
    )
    new_ids, old_ids = new_and_old_ids(batch)
    assert abs((new_ids == old_ids).mean() - unchanged_share) < 0.004
    # All ids that may be drawn are equally likely, even the mask's id.
    share = 0.1 / (7 if replacement == "bert" else 6)
    assert abs((new_ids == 5).mean() - share) < 0.002
    assert abs((new_ids == 6).mean() - 0.8 - share) < 0.005


def test_electra_masks_a_token_or_keeps_it():
  ids, maskable, lengths = make_rows([128] * 12_000, width=128)
  batch = mask_rows(ids, maskable, lengths, replacement="electra")
  new_ids, old_ids = new_and_old_ids(batch)
  assert ((new_ids == MASK) | (new_ids == old_ids)).all()
  assert abs((new_ids == MASK).mean() - 0.85) < 0.003
  assert all(
    len(set(row[:19])) == 19 for row in batch["mlm_positions"].tolist()
  )


def test_repeated_positions_have_separate_draws():
  """ELECTRA draws 19 times one of 126 tokens, and masks it in 85% of draws."""
  ids, maskable, lengths = make_rows([128] * 12_000, width=128)
  batch = mask_rows(
    ids, maskable, lengths, replacement="electra", repeat_positions=True
  )
  is_used = batch["mlm_weights"] > 0
  assert (is_used.sum(1) == 19).all()
  positions = batch["mlm_positions"][:, :19]
  counts = np.bincount(positions.ravel(), minlength=128)[1:127]
  assert (abs(counts - counts.mean()) < 5 * np.sqrt(counts.mean())).all()
  num_distinct = np.array([len(set(row)) for row in positions.tolist()])
  assert abs(num_distinct.mean() - 126 * (1 - (125 / 126) ** 19)) < 0.05
  is_hidden = np.take_along_axis(batch["input_ids"], positions, 1) == MASK
  is_repeated = np.zeros(positions.shape, bool)
  is_repeated[:, 1:] = np.diff(positions, axis=1) == 0
  is_repeated[:, :-1] |= np.diff(positions, axis=1) == 0
  assert abs(is_hidden[~is_repeated].mean() - 0.85) < 0.005
  # Nearly all repeated positions were drawn twice. A token is hidden if one of
  # its two draws masks it, so the share of hidden tokens is 1 - 0.15 ** 2.
  assert abs(is_hidden[is_repeated].mean() - 0.9775) < 0.01
  labels = np.take_along_axis(ids, positions, 1)
  np.testing.assert_array_equal(batch["mlm_ids"][:, :19], labels)


@pytest.mark.parametrize("unit", ["ngram", "span"])
def test_a_part_of_the_rows_is_masked_as_in_the_full_batch(unit):
  ids, maskable, lengths, word_starts = make_word_rows(64, width=128, seed=9)
  options = dict(masking=unit, count="stochastic")
  full_batch = mask_rows(
    ids, maskable, lengths, word_starts=word_starts, **options
  )
  for begin, end in itertools.pairwise((0, 1, 20, 64)):
    slice_batch = mask_rows(
      ids[begin:end],
      maskable[begin:end],
      lengths[begin:end],
      first_number=begin,
      word_starts=word_starts[begin:end],
      **options,
    )
    for key, array in slice_batch.items():
      np.testing.assert_array_equal(array, full_batch[key][begin:end])
