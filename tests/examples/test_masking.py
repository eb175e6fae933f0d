"""Tests masked tokens: their number, positions and replacements."""

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
from bert_jax.examples import masking, recipes
from bert_jax.examples.recipes import bert_pairs
from bert_jax.text.vocabulary import SpecialIds

WHOLE_WORD = "whole_word"


@pytest.mark.parametrize("pad_id", [0, 1])
@pytest.mark.parametrize("pad_left", [False, True])
def test_padding_and_special_tokens_are_never_masked(pad_id, pad_left):
  ids, maskable, lengths = make_rows(
    [5, 12], width=12, pad=pad_id, pad_left=pad_left
  )
  batch = mask_rows(ids, maskable, lengths, mask_rate=1.0, max_predictions=12)
  np.testing.assert_array_equal(batch["input_ids"][~maskable], ids[~maskable])
  assert batch["mlm_weights"].sum(1).tolist() == [3, 10]
  for i in range(2):
    is_used = batch["mlm_weights"][i] > 0
    assert batch["mlm_positions"][i][is_used].tolist() == (
      np.flatnonzero(maskable[i]).tolist()
    )
    assert batch["mlm_ids"][i][is_used].tolist() == ids[i][maskable[i]].tolist()
    assert not batch["mlm_positions"][i][~is_used].any()
    assert not batch["mlm_ids"][i][~is_used].any()


def test_maskable_of_another_shape_than_ids_is_refused():
  ids, maskable, lengths = make_rows([5, 12], width=12)
  with pytest.raises(ValueError, match=r"\(2, 11\).*\(2, 12\)"):
    mask_rows(ids, maskable[:, :11], lengths)


def test_positions_are_distinct():
  ids, maskable, lengths = make_rows([102] * 200, width=102)
  batch = mask_rows(ids, maskable, lengths)
  assert (batch["mlm_weights"].sum(1) == 15).all()
  positions = batch["mlm_positions"][:, :15]
  assert all(len(set(row)) == 15 for row in positions.tolist())
  assert (np.diff(positions) > 0).all()
  labels = np.take_along_axis(ids, positions, 1)
  np.testing.assert_array_equal(batch["mlm_ids"][:, :15], labels)


def test_the_number_of_masks_is_rounded():
  lengths = [2, 3, 4, 9, 10, 11, 16, 17, 23, 30, 128, 137]
  ids, maskable, lengths = make_rows(lengths, width=140)
  batch = mask_rows(ids, maskable, lengths)
  # A row of n tokens has round(0.15 n) masks, at least 1 and at most 20, but no
  # more than maskable tokens. Python rounds 1.5 (n = 10) to 2.
  expected_counts = [0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 19, 20]
  assert batch["mlm_weights"].sum(1).tolist() == expected_counts
  assert expected_counts[1:] == [
    min(20, max(1, round(length * 0.15))) for length in lengths[1:].tolist()
  ]


def test_electra_rounds_in_single_precision():
  """The expected numbers are from tf.round(tf.cast(n, tf.float32) * 0.15)."""
  lengths = np.arange(2, 513)
  mask_options = masking.MaskOptions(max_predictions=99, count="round_single")
  counts = masking.count_masks(lengths, lengths - 2, mask_options)
  bert_counts = masking.count_masks(
    lengths, lengths - 2, masking.MaskOptions(max_predictions=99)
  )
  is_different = counts != bert_counts
  assert lengths[is_different].tolist() == [190, 350, 390]
  assert counts[is_different].tolist() == [29, 53, 59]
  assert bert_counts[is_different].tolist() == [28, 52, 58]
  assert recipes.electra_segments.defaults["count"] == "round_single"


def test_random_pieces_are_drawn_as_often_as_in_the_corpus():
  """The test uses the replacement "unigram" of SpanBERT."""
  counts = np.zeros(VOCAB_SIZE, np.int64)
  counts[[7, 50, 999]] = 6, 3, 1
  ids, maskable, lengths = make_rows([400] * 400, width=400)
  batch = mask_rows(
    *(ids, maskable, lengths),
    replacement="unigram",
    mask_rate=1.0,
    max_predictions=400,
    unigrams=counts,
  )
  new_ids = batch["input_ids"][maskable]
  drawn_ids = new_ids[(new_ids != MASK) & (new_ids != ids[maskable])]
  assert set(drawn_ids.tolist()) == {7, 50, 999}
  # There are about 16,000 draws, so a share has a standard deviation of 0.004.
  shares = [np.mean(drawn_ids == piece) for piece in (7, 50, 999)]
  np.testing.assert_allclose(shares, [0.6, 0.3, 0.1], atol=0.015)
  assert abs(np.mean(new_ids == MASK) - 0.8) < 0.005
  corpus = reader.corpus_from_documents([[[10, 11]]] * 2)
  recipe = recipes.doc_sentences(
    SpecialIds(pad=0, unk=1, cls=CLS, sep=SEP, mask=MASK),
    VOCAB_SIZE,
    replacement="unigram",
  )
  with pytest.raises(ValueError, match="how often each piece occurs"):
    recipe.check(corpus)
  recipe.check(corpus._replace(unigrams=counts))


def test_a_row_without_text_has_no_masks():
  ids, maskable, lengths = make_rows([2, 3], width=8)
  batch = mask_rows(ids, maskable, lengths)
  assert batch["mlm_weights"].sum(1).tolist() == [0, 1]
  assert not batch["mlm_positions"][0].any() and not batch["mlm_ids"][0].any()
  np.testing.assert_array_equal(batch["input_ids"][0], ids[0])
  assert batch["mlm_positions"].shape == (2, 20)


def test_replacements_have_the_published_shares():
  ids, maskable, lengths = make_rows([128] * 4000, width=128)
  batch = mask_rows(ids, maskable, lengths)
  is_used = batch["mlm_weights"] > 0
  new_ids = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], 1)[
    is_used
  ]
  old_ids = batch["mlm_ids"][is_used]
  assert abs((new_ids == MASK).mean() - 0.8) < 0.005
  assert abs((new_ids == old_ids).mean() - 0.1) < 0.005
  drawn_ids = new_ids[(new_ids != MASK) & (new_ids != old_ids)]
  assert abs(len(drawn_ids) / len(new_ids) - 0.1) < 0.005
  # Random ids are uniform over the whole vocabulary, special tokens included.
  counts = np.bincount(drawn_ids, minlength=VOCAB_SIZE)
  assert len(counts) == VOCAB_SIZE
  assert counts[[0, 1, CLS, SEP]].min() > 0
  ordinary_counts = counts[200:]
  chi_square = (
    (ordinary_counts - ordinary_counts.mean()) ** 2 / ordinary_counts.mean()
  ).sum()
  assert abs(chi_square - len(ordinary_counts)) < 5 * np.sqrt(
    2 * len(ordinary_counts)
  )
  is_untouched = np.ones(ids.shape, bool)
  np.put_along_axis(is_untouched, batch["mlm_positions"], False, 1)
  np.testing.assert_array_equal(
    batch["input_ids"][is_untouched], ids[is_untouched]
  )


def test_every_position_is_equally_likely():
  ids, maskable, lengths = make_rows([128] * 8000, width=128)
  batch = mask_rows(ids, maskable, lengths)
  counts = np.bincount(
    batch["mlm_positions"][batch["mlm_weights"] > 0], minlength=128
  )
  assert counts[0] == counts[127] == 0
  expected = 8000 * 19 / 126
  assert (abs(counts[1:127] - expected) < 5 * np.sqrt(expected)).all()


def test_draws_depend_on_seed_and_number_only():
  ids, maskable, lengths = make_rows([128] * 8, width=128)
  full_batch = mask_rows(ids, maskable, lengths, first_number=40)
  second_half = mask_rows(ids[4:], maskable[4:], lengths[4:], first_number=44)
  for key, array in second_half.items():
    np.testing.assert_array_equal(array, full_batch[key][4:])
  # The masks of equal texts differ by example and by seed.
  batch_of_other_seed = mask_rows(
    ids, maskable, lengths, first_number=40, seed=1
  )
  positions_of_both_seeds = np.concatenate(
    [full_batch["mlm_positions"], batch_of_other_seed["mlm_positions"]]
  )
  assert len(np.unique(positions_of_both_seeds, axis=0)) == 16


def columns_hidden_by_bert(words, count, rng):
  """Returns the columns that BERT's program hides, one word after another."""
  words, hidden_columns = list(words), []
  rng.shuffle(words)
  for word in words:
    if len(hidden_columns) >= count:
      break
    if len(hidden_columns) + len(word) > count:
      continue
    hidden_columns += word
  return set(hidden_columns)


def test_all_pieces_of_a_word_are_hidden_or_none():
  """The test masks whole words such as ["test", "##ing"]."""
  ids, maskable, lengths = make_rows([4] * 500, width=4)
  word_starts = np.array([[False, True, False, False]] * 500)
  for rate, expected_count in ((0.15, 0), (0.5, 2)):
    # A count of 1 is too small for a word of two pieces, so nothing is masked.
    batch = mask_rows(
      ids,
      maskable,
      lengths,
      masking=WHOLE_WORD,
      word_starts=word_starts,
      mask_rate=rate,
    )
    assert (batch["mlm_weights"].sum(1) == expected_count).all()

  ids, maskable, lengths, word_starts = make_word_rows(500, width=128, seed=0)
  token_batch = mask_rows(ids, maskable, lengths)
  batch = mask_rows(
    ids, maskable, lengths, masking=WHOLE_WORD, word_starts=word_starts
  )
  counts = batch["mlm_weights"].sum(1)
  assert (counts <= token_batch["mlm_weights"].sum(1)).all()
  assert (counts >= token_batch["mlm_weights"].sum(1) - 1).mean() > 0.9
  for i, hidden_columns in enumerate(chosen_columns(batch)):
    for word in words_of(maskable[i], word_starts[i]):
      assert len(hidden_columns & set(word)) in (0, len(word))
  # As with single tokens, positions are in order, labels are the old ids,
  # unused slots are 0, and tokens that are not hidden keep their ids.
  rows, slots = np.nonzero(batch["mlm_weights"])
  columns = batch["mlm_positions"][rows, slots]
  np.testing.assert_array_equal(
    batch["mlm_ids"][rows, slots], ids[rows, columns]
  )
  assert (np.diff(rows * 128 + columns) > 0).all()
  assert (slots < counts[rows]).all()
  is_untouched = np.ones(ids.shape, bool)
  is_untouched[rows, columns] = False
  np.testing.assert_array_equal(
    batch["input_ids"][is_untouched], ids[is_untouched]
  )
  assert not batch["mlm_positions"][batch["mlm_weights"] == 0].any()


def test_words_of_one_piece_are_masked_like_single_tokens():
  ids, maskable, lengths = make_rows([128] * 100, width=128)
  token_batch = mask_rows(ids, maskable, lengths)
  word_batch = mask_rows(
    ids,
    maskable,
    lengths,
    masking=WHOLE_WORD,
    word_starts=np.ones(ids.shape, bool),
  )
  for key, array in token_batch.items():
    np.testing.assert_array_equal(word_batch[key], array)


def test_whole_words_are_chosen_as_published():
  """Over 20,000 rows, shares differ by at most 0.01 from BERT's program."""
  ids, maskable, lengths, word_starts = make_word_rows(
    20_000, width=128, seed=1
  )
  batch = mask_rows(
    ids, maskable, lengths, masking=WHOLE_WORD, word_starts=word_starts
  )
  rng = random.Random(2)
  statistics_of_both = []
  chosen_by_row = chosen_columns(batch)
  words = [words_of(*row) for row in zip(maskable, word_starts, strict=True)]
  published_by_row = [
    columns_hidden_by_bert(words[i], min(20, max(1, round(length * 0.15))), rng)
    for i, length in enumerate(lengths.tolist())
  ]
  for columns_by_row in (chosen_by_row, published_by_row):
    hidden_by_size, hidden_by_column, rows_by_count = (
      np.zeros(6),
      np.zeros(128),
      np.zeros(21),
    )
    for i, columns in enumerate(columns_by_row):
      rows_by_count[len(columns)] += 1
      hidden_by_column[list(columns)] += 1
      for word in words[i]:
        hidden_by_size[len(word)] += word[0] in columns
    statistics_of_both.append(
      (hidden_by_size, hidden_by_column.reshape(16, 8).sum(1), rows_by_count)
    )
  for package_statistic, published_statistic in zip(
    *statistics_of_both, strict=True
  ):
    assert package_statistic.sum() > 0
    np.testing.assert_allclose(
      package_statistic / package_statistic.sum(),
      published_statistic / published_statistic.sum(),
      rtol=0,
      atol=0.01,
    )
  assert (
    abs(statistics_of_both[0][1].sum() / statistics_of_both[1][1].sum() - 1)
    < 0.01
  )


def test_each_piece_has_its_own_replacement():
  ids, maskable, lengths = make_rows([128] * 4000, width=128)
  word_starts = np.zeros(ids.shape, bool)
  word_starts[:, 1::2] = True
  batch = mask_rows(
    ids, maskable, lengths, masking=WHOLE_WORD, word_starts=word_starts
  )
  new_ids = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], 1)[
    :, :18
  ]
  assert (batch["mlm_weights"].sum(1) == 18).all()
  is_mask = (new_ids == MASK).reshape(-1, 2)
  assert abs(is_mask.mean() - 0.8) < 0.005
  assert abs(is_mask.all(1).mean() - 0.64) < 0.01


def test_pieces_of_a_word_are_masked_together_in_pairs():
  """The test also has words whose first pieces were cut off."""
  rng = np.random.default_rng(3)
  documents = [
    [
      # Ids from 500 on continue a word; no sentence begins with one of them.
      [10, *rng.choice([*range(11, 20), *range(500, 510)], 12).tolist()]
      for _ in range(6)
    ]
    for _ in range(40)
  ]
  word_starts = [
    [[token < 500 for token in sentence] for sentence in document]
    for document in documents
  ]
  corpus = reader.corpus_from_documents(documents, word_starts)
  special_ids = SpecialIds(pad=0, unk=1, cls=CLS, sep=SEP, mask=MASK)
  recipe = bert_pairs(special_ids, VOCAB_SIZE, length=32, masking=WHOLE_WORD)
  chunks = recipe.index(corpus, 0, corpus.num_documents, 0)
  numbers = np.arange(len(chunks), dtype=np.uint64)
  batch = recipe.build(corpus, chunks, numbers, 0)
  ids, num_cut_words = batch["input_ids"].copy(), 0
  rows, slots = np.nonzero(batch["mlm_weights"])
  ids[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_ids"][rows, slots]
  num_masked_words = 0
  for tokens, hidden_columns in zip(ids, chosen_columns(batch), strict=True):
    words = words_of(tokens >= 10, tokens < 500)
    num_cut_words += sum(tokens[word[0]] >= 500 for word in words)
    num_masked_words += sum(
      len(word) > 1 and word[0] in hidden_columns for word in words
    )
    for word in words:
      assert len(hidden_columns & set(word)) in (0, len(word))
  assert num_cut_words > 20 and num_masked_words > 100
  # The masks of a row are equal in a batch with fewer rows.
  part_of_batch = recipe.build(corpus, chunks[7:20], numbers[7:20], 0)
  for key, array in part_of_batch.items():
    np.testing.assert_array_equal(array, batch[key][7:20])
