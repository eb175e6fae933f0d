"""Tests BERT's pairs of segments; compares them with the published program."""

import numpy as np
import pytest
from numbered_corpora import (
  FIRST_ID,
  SPECIAL,
  document_of,
  numbered_documents,
  realistic_sizes,
)
from published_pairs import published_rows

from bert_jax import hashing
from bert_jax.corpus.reader import corpus_from_documents
from bert_jax.examples import pairs
from bert_jax.examples.recipes import bert_pairs


def batch_of(corpus, recipe, seed=0, count=None):
  """Builds one batch of an epoch's first `count` chunks; None means all."""
  chunks = recipe.index(corpus, 0, corpus.num_documents, seed)[:count]
  numbers = np.arange(len(chunks), dtype=np.uint64)
  return recipe.build(corpus, chunks, numbers, seed)


@pytest.fixture(scope="module")
def both_statistics():
  """Returns statistics of rows of the recipe and of the published program.

  Each is {name: an array with a number for each row}. "front" and "back" count
  the tokens that were removed at the starts and at the ends of the segments.
  """
  documents, vocab_size = numbered_documents(realistic_sizes(3000, seed=1))
  corpus = corpus_from_documents(documents, dtype=np.uint32)
  recipe_statistics = []
  epoch = 0
  while sum(len(x["total"]) for x in recipe_statistics) < 40_000:
    key = hashing.make_key(epoch)
    chunks = pairs.index_chunks(
      corpus,
      first_document=0,
      end_document=corpus.num_documents,
      key=key,
      max_tokens=125,
    )
    numbers = np.arange(len(chunks), dtype=np.uint64)
    full_segments = pairs.find_segments(corpus, chunks, numbers, key)
    cut_segments = pairs.truncate_pairs(
      full_segments, numbers, key=key, max_tokens=125
    )
    row_lengths = cut_segments.a_length + cut_segments.b_length + 3
    num_removed = (
      full_segments.a_length + full_segments.b_length + 3 - row_lengths
    )
    num_removed_front = (
      cut_segments.a_start
      - full_segments.a_start
      + cut_segments.b_start
      - full_segments.b_start
    )
    batch = bert_pairs(SPECIAL, vocab_size).build(corpus, chunks, numbers, key)
    recipe_statistics.append(
      {
        "total": row_lengths,
        "a": cut_segments.a_length,
        "random": chunks["random"],
        "front": num_removed_front,
        "back": num_removed - num_removed_front,
        "masks": batch["mlm_weights"].sum(1),
      }
    )
    epoch += 1
  recipe_statistics = {
    key: np.concatenate([x[key] for x in recipe_statistics])
    for key in recipe_statistics[0]
  }
  program_rows = published_rows(documents, length=128, count=40_000, seed=7)
  program_statistics = {
    "total": np.array([len(row.a) + len(row.b) + 3 for row in program_rows]),
    "a": np.array([len(row.a) for row in program_rows]),
    "random": np.array([row.is_random for row in program_rows]),
    "front": np.array([row.removed_front for row in program_rows]),
    "back": np.array([row.removed_back for row in program_rows]),
    "masks": np.array([row.num_masks for row in program_rows]),
  }
  return recipe_statistics, program_statistics


@pytest.mark.parametrize("key", ["total", "a", "masks", "front", "back"])
def test_distributions_match_the_published_program(both_statistics, key):
  recipe_values, program_values = (x[key] for x in both_statistics)
  for decile in np.quantile(program_values, np.arange(1, 10) / 10):
    share, expected_share = (
      (recipe_values <= decile).mean(),
      (program_values <= decile).mean(),
    )
    assert abs(share - expected_share) < 0.01, (decile, share, expected_share)


def test_shares_match_the_published_program(both_statistics):
  shares = [
    (
      x["random"].mean(),
      (x["front"] + x["back"] > 0).mean(),
      x["front"].sum() / (x["front"] + x["back"]).sum(),
      x["front"].sum() / x["total"].sum(),
      x["back"].sum() / x["total"].sum(),
    )
    for x in both_statistics
  ]
  np.testing.assert_allclose(*shares, atol=0.01)
  # More than half of the pairs are random, because a chunk of one sentence
  # always makes a random pair.
  assert shares[0][0] > 0.51


def test_pairs_are_cut_as_by_a_loop_over_tokens():
  """The loop of this test removes single tokens from the longer segment."""
  a, b = (x.ravel() for x in np.meshgrid(np.arange(1, 40), np.arange(1, 40)))
  for limit in (2, 3, 12, 13):
    segments = pairs.Segments(a * 0, a, b * 0, b)
    cut_segments = pairs.truncate_pairs(
      segments, np.arange(len(a), dtype=np.uint64), key=1, max_tokens=limit
    )
    for i in range(len(a)):
      a_length, b_length = int(a[i]), int(b[i])
      while a_length + b_length > limit:
        a_length, b_length = (
          (a_length - 1, b_length)
          if a_length > b_length
          else (a_length, b_length - 1)
        )
      assert (cut_segments.a_length[i], cut_segments.b_length[i]) == (
        a_length,
        b_length,
      )
    for full_length, final_length, start in (
      (a, cut_segments.a_length, cut_segments.a_start),
      (b, cut_segments.b_length, cut_segments.b_start),
    ):
      assert (start >= 0).all() and (start + final_length <= full_length).all()


def test_rows_are_cls_a_sep_b_sep():
  documents, vocab_size = numbered_documents(realistic_sizes(60, seed=2))
  corpus = corpus_from_documents(documents)
  recipe = bert_pairs(SPECIAL, vocab_size, length=64, mask_rate=0.15)
  batch = batch_of(corpus, recipe)
  for key, (shape, dtype) in recipe.features.items():
    assert batch[key].shape == (len(batch["input_ids"]), *shape)
    assert batch[key].dtype == dtype
  assert set(batch) == set(recipe.features)
  for i, row in enumerate(batch["input_ids"]):
    row = row.copy()
    is_used = batch["mlm_weights"][i] > 0
    row[batch["mlm_positions"][i][is_used]] = batch["mlm_ids"][i][is_used]
    row_length = batch["sequence_ids"][i].sum()
    sep_columns = np.flatnonzero(row == SPECIAL.sep)
    assert (
      row[0] == SPECIAL.cls
      and len(sep_columns) == 2
      and sep_columns[1] == row_length - 1
    )
    assert (
      not row[row_length:].any()
      and (batch["sequence_ids"][i, row_length:] == 0).all()
    )
    expected_segment_ids = (
      [0] * (sep_columns[0] + 1)
      + [1] * (row_length - sep_columns[0] - 1)
      + [0] * (64 - row_length)
    )
    assert batch["segment_ids"][i].tolist() == expected_segment_ids
    a, b = row[1 : sep_columns[0]], row[sep_columns[0] + 1 : sep_columns[1]]
    assert len(a) and len(b)
    # Each segment has consecutive tokens of the text. In a "next" pair, B
    # continues A, unless tokens between A and B were removed.
    assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all()
    documents_of_a, documents_of_b = (
      document_of(corpus, a),
      document_of(corpus, b),
    )
    assert len(set(documents_of_a)) == len(set(documents_of_b)) == 1
    if batch["pair_labels"][i, 0]:
      assert documents_of_a[0] != documents_of_b[0]
    else:
      assert documents_of_a[0] == documents_of_b[0] and b[0] > a[-1]
      if row_length < 64:
        assert b[0] == a[-1] + 1


def test_random_segments_come_from_another_document():
  documents, vocab_size = numbered_documents([[1, 2, 3], [2, 4]])
  corpus = corpus_from_documents([*documents, [[]]])
  for seed in range(1000):
    batch = batch_of(corpus, bert_pairs(SPECIAL, vocab_size, length=16), seed)
    for i, row in enumerate(batch["input_ids"]):
      row = row.copy()
      is_used = batch["mlm_weights"][i] > 0
      row[batch["mlm_positions"][i][is_used]] = batch["mlm_ids"][i][is_used]
      text_ids = row[row >= FIRST_ID]
      segment = batch["segment_ids"][i][row >= FIRST_ID]
      document_numbers = document_of(corpus, text_ids)
      is_same_document = (
        document_numbers[segment == 0][0] == document_numbers[segment == 1][0]
      )
      assert is_same_document == (batch["pair_labels"][i, 0] == 0)


@pytest.mark.parametrize("empty_documents", [[], [[[]]], [[[], []]]])
def test_a_corpus_of_one_document_is_refused(empty_documents):
  documents, vocab_size = numbered_documents([[1, 2, 3]])
  corpus = corpus_from_documents([*documents, *empty_documents])
  with pytest.raises(ValueError, match="at least 2 documents.*has 1"):
    bert_pairs(SPECIAL, vocab_size).check(corpus)


def test_random_segments_are_uniform_over_all_other_documents():
  documents, _ = numbered_documents([[3]] * 10)
  corpus = corpus_from_documents(documents)
  chunks = np.zeros(9000, pairs.CHUNK_DTYPE)
  chunks["document"], chunks["sentence"] = 4, 4
  chunks["a_count"] = chunks["count"] = 1
  chunks["target"], chunks["random"] = 20, True
  numbers = np.arange(9000, dtype=np.uint64)
  segments = pairs.find_segments(corpus, chunks, numbers, key=1)
  counts = np.bincount(segments.b_start // 3, minlength=10)
  assert counts[4] == 0
  assert (abs(np.delete(counts, 4) - 1000) < 150).all()


def test_an_epoch_has_every_sentence():
  corpus = corpus_from_documents(
    numbered_documents(realistic_sizes(300, seed=3))[0], dtype=np.uint32
  )
  for seed in range(5):
    chunks = pairs.index_chunks(
      corpus, first_document=0, end_document=300, key=seed, max_tokens=125
    )
    # A random pair uses only the first `a_count` sentences of its chunk. The
    # next chunk begins after these sentences.
    num_sentences_used = np.where(
      chunks["random"], chunks["a_count"], chunks["count"]
    )
    assert chunks["sentence"][0] == 0
    np.testing.assert_array_equal(
      chunks["sentence"] + num_sentences_used,
      np.append(chunks["sentence"][1:], len(corpus.sentences) - 1),
    )
    assert (chunks["a_count"] <= np.maximum(chunks["count"] - 1, 1)).all()
    ends = corpus.documents[chunks["document"].astype(int) + 1]
    assert (chunks["sentence"] + chunks["count"] <= ends).all()


def test_chunks_of_ranges_join_to_the_chunks_of_all_documents():
  corpus = corpus_from_documents(
    numbered_documents(realistic_sizes(100, seed=4))[0]
  )
  all_chunks = pairs.index_chunks(
    corpus, first_document=0, end_document=100, key=9, max_tokens=61
  )
  chunks_of_ranges = [
    pairs.index_chunks(
      corpus, first_document=first, end_document=last, key=9, max_tokens=61
    )
    for first, last in ((0, 1), (1, 40), (40, 100))
  ]
  np.testing.assert_array_equal(all_chunks, np.concatenate(chunks_of_ranges))


def test_a_random_share_of_one_half_makes_half_of_the_pairs_random():
  documents, vocab_size = numbered_documents([[200] * 40 for _ in range(100)])
  corpus = corpus_from_documents(documents, dtype=np.uint32)
  published_batch = batch_of(corpus, bert_pairs(SPECIAL, vocab_size))
  assert published_batch["pair_labels"].all()
  half_random_batch = batch_of(
    corpus, bert_pairs(SPECIAL, vocab_size, random_share=0.5)
  )
  assert abs(half_random_batch["pair_labels"].mean() - 0.5) < 0.03
  # A "next" pair is one sentence that was split, so its ids rise.
  for i in np.flatnonzero(half_random_batch["pair_labels"][:, 0] == 0)[:50]:
    row = half_random_batch["input_ids"][i]
    is_visible = (row >= FIRST_ID) & (half_random_batch["sequence_ids"][i] > 0)
    is_visible[half_random_batch["mlm_positions"][i]] = False
    assert (np.diff(row[is_visible]) > 0).all()
    assert len(set(document_of(corpus, row[is_visible]))) == 1


def test_rows_of_very_long_and_short_sentences_keep_their_limits():
  documents, vocab_size = numbered_documents(
    [[100_000, 1], [1], [1, 100_000, 3]]
  )
  corpus = corpus_from_documents(documents, dtype=np.uint32)
  for length in (5, 6, 128, 512):
    for seed in range(20):
      recipe = bert_pairs(SPECIAL, vocab_size, length=length)
      batch = batch_of(corpus, recipe, seed)
      row_lengths = batch["sequence_ids"].sum(1)
      assert (row_lengths <= length).all() and (row_lengths >= 5).all()


@pytest.mark.parametrize(
  "options",
  [
    {"length": 4},
    {"max_predictions": 0},
    {"mask_rate": 1.5},
    {"short_probability": -0.1},
    {"random_share": 0.7},
  ],
)
def test_options_out_of_range_are_refused(options):
  (name,) = options
  with pytest.raises(ValueError, match=f"^{name} is {options[name]}"):
    bert_pairs(SPECIAL, 100, **options)


def test_ids_beyond_the_vocabulary_are_refused():
  corpus = corpus_from_documents([[[7, 8]], [[9, 100]]])
  with pytest.raises(ValueError, match="token id 100 .* 50 pieces"):
    batch_of(corpus, bert_pairs(SPECIAL, 50))
