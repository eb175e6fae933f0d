"""Tests packed rows: a sequence in them is as in a row of its own."""

import json

import numpy as np
import pytest
from batches_of_rows import equal_batches, join_batches
from numbered_corpora import SPECIAL, numbered_documents

from bert_jax.corpus.reader import corpus_from_documents
from bert_jax.examples import assembly, loader, recipes, streams

OPTIONS_BY_NAME = {
  "bert_pairs": dict(max_predictions=12),
  "bert_words": dict(max_predictions=12, masking="whole_word"),
  "albert_pairs": dict(max_predictions=12),
  "electra_segments": dict(max_predictions=12),
  "electra_repeated": dict(max_predictions=12, repeat_positions=True),
  "doc_sentences": dict(max_predictions=12),
  "doc_spans": dict(max_predictions=12, masking="span", count="ceil"),
  "lm": {},
}
BUILDER_BY_NAME = {
  "bert_words": "bert_pairs",
  "electra_repeated": "electra_segments",
  "doc_spans": "doc_sentences",
}


@pytest.fixture(scope="module")
def corpus():
  rng = np.random.default_rng(0)
  sizes = [
    rng.integers(1, 16, num_sentences).tolist()
    for num_sentences in rng.integers(1, 7, 700).tolist()
  ]
  documents, _ = numbered_documents(sizes)
  word_starts = [
    [rng.random(len(sentence)) < 0.7 for sentence in document]
    for document in documents
  ]
  return corpus_from_documents(documents, word_starts, dtype=np.uint32)


def make_recipe(corpus, name, max_sequences, **options):
  factory = recipes.RECIPES[BUILDER_BY_NAME.get(name, name)]
  options = (
    dict(length=64, max_sequences=max_sequences)
    | OPTIONS_BY_NAME[name]
    | options
  )
  return factory(SPECIAL, corpus.num_tokens + 5, **options)


@pytest.mark.parametrize("name", OPTIONS_BY_NAME)
def test_a_packed_sequence_equals_its_single_row(corpus, name):
  recipe, single_recipe = (
    make_recipe(corpus, name, max_sequences=5),
    make_recipe(corpus, name, max_sequences=1),
  )
  # The keys 7 and 3 are those of the random draws.
  examples = recipe.index(corpus, 0, corpus.num_documents, 7)
  assert examples.shape[1] == 5
  numbers = np.arange(100, 100 + len(examples), dtype=np.uint64)
  batch = recipe.build(corpus, examples, numbers, 3)
  assert set(batch) == set(recipe.features)
  for key, (shape, dtype) in recipe.features.items():
    assert batch[key].shape == (len(examples), *shape)
    assert batch[key].dtype == dtype
  # Build the examples again, with one sequence in each row.
  row_indices, sequence_indices = np.nonzero(examples["length"])
  sequence_numbers = numbers[row_indices] * np.uint64(
    5
  ) + sequence_indices.astype(np.uint64)
  layout = single_recipe.build.keywords["layout"]
  single_rows = assembly.assemble(
    corpus,
    examples[row_indices, sequence_indices][:, None],
    sequence_numbers[:, None],
    3,
    layout,
  )
  num_sequences = np.bincount(row_indices)
  assert num_sequences.max() >= 4 and (num_sequences > 1).mean() > 0.5
  for i in range(len(row_indices)):
    (columns,) = np.nonzero(
      batch["sequence_ids"][row_indices[i]] == sequence_indices[i] + 1
    )
    length, begin = len(columns), columns[0]
    assert columns.tolist() == list(range(begin, begin + length))
    assert length == (single_rows["sequence_ids"][i] == 1).sum()
    for key in ("input_ids", "segment_ids", "lm_ids", "lm_weights"):
      if key in batch:
        np.testing.assert_array_equal(
          batch[key][row_indices[i], columns], single_rows[key][i, :length]
        )
    assert batch["position_ids"][row_indices[i], columns].tolist() == list(
      range(length)
    )
    if "mlm_ids" in batch:
      positions = batch["mlm_positions"][row_indices[i]]
      is_inside = (positions >= begin) & (positions < begin + length)
      is_inside &= batch["mlm_weights"][row_indices[i]] > 0
      is_used = single_rows["mlm_weights"][i] > 0
      np.testing.assert_array_equal(
        positions[is_inside] - begin, single_rows["mlm_positions"][i][is_used]
      )
      np.testing.assert_array_equal(
        batch["mlm_ids"][row_indices[i]][is_inside],
        single_rows["mlm_ids"][i][is_used],
      )
      if "span_positions" in batch:
        np.testing.assert_array_equal(
          batch["span_positions"][row_indices[i]][is_inside] - begin,
          single_rows["span_positions"][i][is_used],
        )
    if "pair_labels" in batch:
      assert batch["pair_weights"][row_indices[i], sequence_indices[i]] == 1
      assert (
        batch["cls_positions"][row_indices[i], sequence_indices[i]] == begin
      )
      label = batch["pair_labels"][row_indices[i], sequence_indices[i]]
      assert label == single_rows["pair_labels"][i, 0]
  is_padding = batch["sequence_ids"] == 0
  for key in ("position_ids", "segment_ids", "lm_weights", "input_ids"):
    if key in batch:
      assert not batch[key][is_padding].any()
  if "pair_weights" in batch:
    is_unused = examples["length"] == 0
    for key in ("pair_labels", "cls_positions", "pair_weights"):
      assert not batch[key][is_unused].any()


@pytest.mark.parametrize("name", ["doc_sentences", "lm", "electra_segments"])
def test_packing_loses_and_repeats_nothing(corpus, name):
  """Packed rows hold the examples of single rows, each exactly once."""
  single_rows, packed_rows = (
    make_recipe(corpus, name, max_sequences).index(corpus, 30, 200, 2)
    for max_sequences in (1, 5)
  )
  packed_rows = packed_rows[packed_rows["length"] > 0]
  order = np.argsort(packed_rows["start"])
  np.testing.assert_array_equal(packed_rows[order], single_rows)


def test_packed_rows_have_little_padding(corpus):
  """The documents are short, so over 50% of a row with one sequence is padding.

  In packed rows, padding is under 3%.
  """
  for name, options in (("bert_pairs", dict(max_predictions=20)), ("lm", {})):
    padding_shares = []
    for max_sequences in (1, 12):
      recipe = make_recipe(corpus, name, max_sequences, length=128, **options)
      examples = recipe.index(corpus, 0, corpus.num_documents, 0)
      numbers = np.arange(len(examples), dtype=np.uint64)
      batch = recipe.build(corpus, examples, numbers, 0)
      padding_shares.append((batch["sequence_ids"] == 0).mean())
    assert padding_shares[0] > 0.5 and padding_shares[1] < 0.03


def test_assign_rows_keeps_every_limit():
  rng = np.random.default_rng(1)
  for num_slots, max_sequences in ((20, 8), (9, 8), (20, 2), (9, 1)):
    lengths = np.sort(rng.integers(1, 65, 3000))[::-1]
    slots_needed = np.minimum(np.ceil(lengths * 0.15).astype(int), num_slots)
    row_indices, sequence_indices = assembly.assign_rows(
      lengths,
      slots_needed,
      width=64,
      slots_per_row=num_slots,
      max_sequences=max_sequences,
    )
    num_rows = max(row_indices) + 1
    assert (np.bincount(row_indices, lengths) <= 64).all()
    assert (np.bincount(row_indices, slots_needed) <= num_slots).all()
    assert np.bincount(row_indices).max() <= max_sequences
    assert len(set(zip(row_indices, sequence_indices, strict=True))) == 3000
    assert (
      max(sequence_indices) < max_sequences
      and min(np.bincount(row_indices)) > 0
    )
    if (num_slots, max_sequences) == (20, 8):
      assert lengths.sum() / (64 * num_rows) > 0.99


def make_stream(corpus, name, max_sequences=5, seed=0):
  recipe = make_recipe(corpus, name, max_sequences)
  # The shards are so small that an epoch has several portions of documents.
  return streams.Stream(
    corpus, recipe, seed, shard_tokens=2000, shards_per_portion=3
  )


@pytest.mark.parametrize("name", OPTIONS_BY_NAME)
def test_rows_do_not_depend_on_hosts_and_restarts(corpus, name):
  full_batch = make_stream(corpus, name).read(0, 24 * 60)
  for num_hosts in (1, 3):
    batches_by_host = []
    for host in range(num_hosts):
      with loader.batches_from_step(
        make_stream(corpus, name),
        start_step=0,
        batch_size=24,
        host_index=host,
        host_count=num_hosts,
      ) as host_batches:
        batches_by_host.append([next(host_batches).batch for _ in range(8)])
    for step, shares in enumerate(zip(*batches_by_host, strict=True)):
      expected_batch = {
        key: array[24 * step : 24 * step + 24]
        for key, array in full_batch.items()
      }
      assert equal_batches(join_batches(shares), expected_batch)
  first_stream = make_stream(corpus, name)
  first_stream.read(0, 24 * 41)
  position = json.loads(json.dumps(first_stream.position()))
  assert position["epoch"] >= 1
  resumed_stream = make_stream(corpus, name)
  resumed_stream.restore(position)
  expected_batch = {key: array[24 * 41 :] for key, array in full_batch.items()}
  assert equal_batches(resumed_stream.read(24 * 41, 24 * 19), expected_batch)
  assert not equal_batches(
    make_stream(corpus, name, seed=1).read(0, 24), first_stream.read(0, 24)
  )


def test_every_epoch_has_new_rows(corpus):
  recipe = make_recipe(corpus, "bert_pairs", max_sequences=5)
  first_index, second_index, first_index_again = (
    recipe.index(corpus, 0, corpus.num_documents, key) for key in (1, 2, 1)
  )
  np.testing.assert_array_equal(first_index, first_index_again)
  examples = [
    set(x[x["length"] > 0].tolist()) for x in (first_index, second_index)
  ]
  assert len(examples[0] & examples[1]) < 0.3 * len(examples[0])
  rows = [set(map(tuple, x.tolist())) for x in (first_index, second_index)]
  assert len(rows[0] & rows[1]) < 0.05 * len(rows[0])


def test_options_out_of_range_are_refused():
  with pytest.raises(ValueError, match="max_sequences is 0; it must be 1 to"):
    recipes.bert_pairs(SPECIAL, 9, max_sequences=0)
  with pytest.raises(ValueError, match="max_predictions is 20, but .* need 77"):
    recipes.bert_pairs(SPECIAL, 9, length=512, max_sequences=4)
  with pytest.raises(ValueError, match="static_masks is -1"):
    recipes.bert_pairs(SPECIAL, 9, static_masks=-1)


@pytest.mark.parametrize("max_sequences", [1, 5])
def test_static_masks_repeat_after_three_epochs(corpus, max_sequences):
  """Epoch e has the rows of epoch e - 3 in a different order."""
  factory = recipes.RECIPES["bert_pairs"]
  recipe = factory(
    SPECIAL,
    corpus.num_tokens + 5,
    length=64,
    max_predictions=12,
    max_sequences=max_sequences,
    static_masks=3,
  )
  stream = streams.Stream(
    corpus, recipe, seed=0, shard_tokens=2000, shards_per_portion=3
  )
  rows_by_epoch, next_begin = [], 0
  for epoch in range(7):
    begin = next_begin
    next_begin = stream.count_examples(epoch + 1, epoch, begin)
    batch = streams.Stream(
      corpus, recipe, seed=0, shard_tokens=2000, shards_per_portion=3
    ).read(begin, next_begin - begin)
    flat_arrays = [
      array.reshape(next_begin - begin, -1).astype(float)
      for array in batch.values()
    ]
    rows_by_epoch.append(
      [tuple(row) for row in np.concatenate(flat_arrays, 1).tolist()]
    )
  for epoch in range(3, 7):
    assert sorted(rows_by_epoch[epoch]) == sorted(rows_by_epoch[epoch - 3])
    assert rows_by_epoch[epoch] != rows_by_epoch[epoch - 3]
  assert len(set(rows_by_epoch[0]) & set(rows_by_epoch[1])) < 5
  assert len(set(rows_by_epoch[1]) & set(rows_by_epoch[2])) < 5
