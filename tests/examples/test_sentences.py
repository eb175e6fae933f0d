"""Compares rows of running text with simple versions of published programs."""

import random

import numpy as np
import pytest
from numbered_corpora import (
  FIRST_ID,
  SPECIAL,
  document_of,
  numbered_documents,
  realistic_sizes,
)

from bert_jax import hashing
from bert_jax.corpus.reader import corpus_from_documents
from bert_jax.examples import recipes
from bert_jax.text.vocabulary import SpecialIds

CLS, SEP = SPECIAL.cls, SPECIAL.sep


def epoch_batch(corpus, recipe, key=0):
  examples = recipe.index(corpus, 0, corpus.num_documents, key)
  numbers = np.arange(len(examples), dtype=np.uint64)
  batch = recipe.build(corpus, examples, numbers, key)
  assert set(batch) == set(recipe.features)
  for name, (shape, dtype) in recipe.features.items():
    assert batch[name].shape == (len(examples), *shape)
    assert batch[name].dtype == dtype
  return batch


def unmasked_rows(batch):
  """Returns the rows without padding, with the original ids."""
  rows = []
  for i, row in enumerate(batch["input_ids"]):
    row = row.copy()
    is_used = batch["mlm_weights"][i] > 0
    row[batch["mlm_positions"][i][is_used]] = batch["mlm_ids"][i][is_used]
    is_real = batch["sequence_ids"][i] > 0
    assert not row[~is_real].any() and (np.diff(is_real.astype(int)) <= 0).all()
    rows.append(row[is_real].tolist())
  return rows


def rows_of_the_paper(documents, length, crosses_documents):
  """Returns the rows of RoBERTa's paper, made one sentence at a time."""
  capacity, rows, row, needs_separator = length - 2, [], [], False

  def end_row():
    nonlocal row
    if row:
      rows.append([CLS, *row, SEP])
    row = []

  for document in documents:
    for sentence_index, sentence in enumerate(document):
      for begin in range(0, len(sentence), capacity):
        tokens = sentence[begin : begin + capacity]
        needs_separator = (
          crosses_documents and sentence_index == 0 and begin == 0 and bool(row)
        )
        if len(row) + needs_separator + len(tokens) > capacity:
          end_row()
          needs_separator = False
        row += [SEP] * needs_separator + tokens
    if not crosses_documents:
      end_row()
  end_row()
  return rows


@pytest.mark.parametrize("length", [16, 64])
@pytest.mark.parametrize("name", ["full_sentences", "doc_sentences"])
def test_rows_of_whole_sentences_are_those_of_the_paper(name, length):
  sizes = [*realistic_sizes(60, seed=2), [1], [100, 1], [14], [1, 1]]
  documents, vocab_size = numbered_documents(sizes)
  corpus = corpus_from_documents(documents)
  recipe = getattr(recipes, name)(
    SPECIAL, vocab_size, length=length, max_predictions=20
  )
  rows = unmasked_rows(epoch_batch(corpus, recipe))
  assert rows == rows_of_the_paper(documents, length, name == "full_sentences")
  assert max(map(len, rows)) == length
  num_separators = [row[1:-1].count(SEP) for row in rows]
  assert (max(num_separators) > 0) == (name == "full_sentences")
  # The rows of a range of documents do not depend on the documents outside it.
  examples = recipe.index(corpus, 20, 40, 0)
  numbers = np.arange(len(examples), dtype=np.uint64)
  rows = unmasked_rows(recipe.build(corpus, examples, numbers, 0))
  crosses_documents = name == "full_sentences"
  assert rows == rows_of_the_paper(documents[20:40], length, crosses_documents)


def test_a_row_may_hold_many_documents():
  """The first row holds many short documents; later rows hold few."""
  documents, vocab_size = numbered_documents(
    [[2]] * 40 + [[30] * 3] + [[1]] * 7
  )
  corpus = corpus_from_documents(documents)
  recipe = recipes.full_sentences(
    SPECIAL, vocab_size, length=64, max_predictions=12
  )
  rows = unmasked_rows(epoch_batch(corpus, recipe))
  assert rows == rows_of_the_paper(documents, length=64, crosses_documents=True)


def test_roberta_masks_have_the_published_statistics():
  """In 20,000 rows, the number of masks varies, and no random id is special."""
  documents, vocab_size = numbered_documents([[20] * 1500] * 10)
  corpus = corpus_from_documents(documents, dtype=np.uint32)
  recipe = recipes.doc_sentences(
    SPECIAL, vocab_size, length=42, max_predictions=10
  )
  examples = recipe.index(corpus, 0, 10, 0)
  examples = np.tile(examples, -(-20_000 // len(examples)))
  numbers = np.arange(len(examples), dtype=np.uint64)
  batch = recipe.build(corpus, examples, numbers, 3)
  counts = batch["mlm_weights"].sum(1)
  # With U uniform in [0, 1), int(0.15 * 42 + U) is 6 or 7, and 6.3 on average.
  assert set(counts.tolist()) == {6, 7}
  assert abs(counts.mean() - 6.3) < 0.02
  is_used = batch["mlm_weights"] > 0
  new_ids = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], 1)[
    is_used
  ]
  old_ids = batch["mlm_ids"][is_used]
  assert old_ids.min() >= FIRST_ID
  assert abs((new_ids == SPECIAL.mask).mean() - 0.8) < 0.005
  assert abs((new_ids == old_ids).mean() - 0.1) < 0.005
  assert set(new_ids[new_ids < FIRST_ID].tolist()) == {SPECIAL.mask}


def rows_of_the_electra_program(document, length, draw):
  """Returns the rows (A, B) of a document, as by ELECTRA's `ExampleBuilder`.

  Args:
    document: sentences of ids.
    length: the number of tokens of a row.
    draw: a function of the number of a row's first sentence. It returns the
      row's target length, whether the row has one segment, and whether the
      sentence that crosses half of the target belongs to the first segment.
  """
  rows, sentences, num_tokens, draws = [], [], 0, draw(0)

  def add_row():
    target_length, is_single, first_is_longer = draws
    first_segment_goal = 100_000 if is_single else (target_length - 3) // 2
    first_segment, second_segment = [], []
    for sentence in sentences:
      crosses_goal = len(first_segment) + len(sentence) >= first_segment_goal
      may_cross = (
        not second_segment
        and len(first_segment) < first_segment_goal
        and first_is_longer
      )
      if not first_segment or not crosses_goal or may_cross:
        first_segment += sentence
      else:
        second_segment += sentence
    first_segment = first_segment[: length - 2]
    rows.append(
      (first_segment, second_segment[: max(0, length - len(first_segment) - 3)])
    )

  for sentence_index, sentence in enumerate(document):
    if not sentences:
      draws = draw(sentence_index)
    sentences.append(sentence)
    num_tokens += len(sentence)
    # The first draw is the target length.
    if num_tokens >= draws[0]:
      add_row()
      sentences, num_tokens = [], 0
  if sentences:
    add_row()
  return rows


def segments_of_rows(batch):
  """Yields (A, B) of each row, with the original ids."""
  for i, row in enumerate(unmasked_rows(batch)):
    segments = batch["segment_ids"][i, : len(row)]
    ids = np.array(row)
    a, b = (
      ids[(segments == segment_id) & (ids >= FIRST_ID)].tolist()
      for segment_id in (0, 1)
    )
    assert row == [CLS, *a, SEP, *b, *[SEP] * bool(b)]
    assert segments.sum() == (len(b) + 1 if b else 0)
    yield a, b


@pytest.mark.parametrize(
  "length, least_share", [(32, 0), (128, 0.06), (512, 0.1)]
)
def test_electra_rows_equal_those_of_the_program(length, least_share):
  """With equal draws, the recipe and the program make equal rows.

  In at least `least_share` of them, A ends after the beginning of B.
  """
  documents, vocab_size = numbered_documents(realistic_sizes(1500, seed=8))
  corpus = corpus_from_documents(documents, dtype=np.uint32)
  recipe = recipes.electra_segments(
    SPECIAL, vocab_size, length=length, short_probability=0.3
  )
  num_rows, num_interleaved = 0, 0
  for key in range(3):
    segments_key = hashing.make_key(key, "segments")
    numbers = np.arange(len(corpus.sentences) - 1)
    short_draws, longer_draws, single_draws = (
      hashing.uniform(segments_key, numbers, column) for column in (0, 2, 3)
    )
    targets = 5 + hashing.randint(
      key=segments_key, index=numbers, column=1, high=length - 4
    )
    targets = np.where(short_draws < 0.3, targets, length)
    draws = list(
      zip(targets, single_draws < 0.1, longer_draws < 0.5, strict=True)
    )
    expected_rows = []
    for document, begin in zip(documents, corpus.documents, strict=False):
      draw = draws[begin : begin + len(document)].__getitem__
      expected_rows += rows_of_the_electra_program(document, length, draw)
    assert (
      list(segments_of_rows(epoch_batch(corpus, recipe, key))) == expected_rows
    )
    num_rows += len(expected_rows)
    num_interleaved += sum(bool(b) and a[-1] > b[0] for a, b in expected_rows)
  assert num_rows > 5000 and num_interleaved > least_share * num_rows


def test_electra_segments_have_the_published_statistics():
  """20,000 rows of the recipe and of the program have equal statistics."""
  documents, vocab_size = numbered_documents(realistic_sizes(1500, seed=8))
  corpus = corpus_from_documents(documents, dtype=np.uint32)
  recipe = recipes.electra_segments(SPECIAL, vocab_size, length=128)
  recipe_rows, program_rows, rng, key = [], [], random.Random(1), 0

  def draw(sentence_index):
    target = rng.randint(5, 128) if rng.random() < 0.05 else 128
    return target, rng.random() < 0.1, rng.random() < 0.5

  while len(program_rows) < 20_000:
    for document in documents:
      program_rows += rows_of_the_electra_program(document, 128, draw)
  while len(recipe_rows) < 20_000:
    batch = epoch_batch(corpus, recipe, key)
    for a, b in segments_of_rows(batch):
      assert (np.diff(a) > 0).all() and (np.diff(b) > 0).all()
      assert len(set(document_of(corpus, [*a, *b]))) == 1
      recipe_rows.append((a, b))
    key += 1
  assert len(program_rows) > 20_000
  statistics_of_both = [
    np.array([(len(a), len(b), bool(b) and a[-1] > b[0]) for a, b in rows])
    for rows in (recipe_rows, program_rows)
  ]
  recipe_share, program_share = (
    (x[:, 1] == 0).mean() for x in statistics_of_both
  )
  assert abs(recipe_share - program_share) < 0.01
  recipe_share, program_share = (x[:, 2].mean() for x in statistics_of_both)
  assert program_share > 0.05 and abs(recipe_share - program_share) < 0.01
  for recipe_lengths, program_lengths in zip(
    statistics_of_both[0].T[:2], statistics_of_both[1].T[:2], strict=True
  ):
    for decile in np.quantile(program_lengths, np.arange(1, 10) / 10):
      recipe_share = (recipe_lengths <= decile).mean()
      assert abs(recipe_share - (program_lengths <= decile).mean()) < 0.012


def test_a_language_model_predicts_each_token_once():
  documents, vocab_size = numbered_documents(
    [[5] * 30, [1], [2], [9], [10], [11], [3, 6, 40]]
  )
  corpus = corpus_from_documents(documents)
  # The vocabulary of this recipe has no special tokens.
  no_special_ids = SpecialIds(pad=None, unk=None, cls=None, sep=None, mask=None)
  recipe = recipes.lm(no_special_ids, vocab_size, length=9)
  assert recipe.required_tokens == ()
  first_column_by_epoch = []
  for key in range(20):
    batch = epoch_batch(corpus, recipe, key)
    is_real = batch["sequence_ids"] == 1
    np.testing.assert_array_equal(batch["lm_weights"], is_real)
    assert not batch["lm_ids"][~is_real].any()
    assert not batch["input_ids"][~is_real].any()
    # Each token that is not the first of a document is predicted once, from
    # the token before it.
    np.testing.assert_array_equal(
      batch["lm_ids"][is_real], batch["input_ids"][is_real] + 1
    )
    first_ids = [document[0][0] for document in documents]
    last_ids = [document[-1][-1] for document in documents]
    all_ids = set(range(FIRST_ID, vocab_size))
    assert sorted(batch["lm_ids"][is_real]) == sorted(all_ids - set(first_ids))
    assert sorted(batch["input_ids"][is_real]) == sorted(
      all_ids - set(last_ids)
    )
    # The ids of a row are consecutive. A row may be shorter only at the
    # beginning or the end of a document.
    for row, num_tokens in zip(batch["input_ids"], is_real.sum(1), strict=True):
      assert num_tokens and (np.diff(row[:num_tokens]) == 1).all()
      assert (
        num_tokens == 9
        or row[0] in first_ids
        or row[num_tokens - 1] + 1 in last_ids
      )
    first_column_by_epoch.append(tuple(batch["input_ids"][:, 0].tolist()))
  assert len(set(first_column_by_epoch)) > 15


def test_ids_beyond_the_vocabulary_are_refused():
  corpus = corpus_from_documents([[[7, 8], [9, 100]]])
  for name in ("full_sentences", "doc_sentences", "electra_segments", "lm"):
    recipe = recipes.RECIPES[name](SPECIAL, 50, length=16)
    with pytest.raises(ValueError, match="token id 100 .* 50 pieces"):
      epoch_batch(corpus, recipe)
