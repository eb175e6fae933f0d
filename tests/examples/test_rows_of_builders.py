"""Tests the rows of recipes from prepared folders, seqio tasks and text."""

import numpy as np
import pytest
from prepared import random_documents, write_prepared

from bert_jax.corpus import reader, sources
from bert_jax.examples import loader, recipes
from bert_jax.examples.plain_text import Text
from bert_jax.examples.streams import Mixture, Stream
from bert_jax.text import wordpiece
from bert_jax.text.vocabulary import SPECIAL_TOKENS, SpecialIds

OPTIONS_BY_BUILDER = {
  "albert_pairs": dict(max_predictions=5),
  "electra_segments": dict(max_predictions=5, max_sequences=3),
  "full_sentences": dict(max_predictions=5),
  "doc_sentences": dict(max_predictions=8, masking="span", max_sequences=4),
  "lm": dict(max_sequences=3),
}
LENGTH_OPTION = dict(length=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("builders") / "prepared"
  return write_prepared(
    path, random_documents(90, seed=0), random_documents(20, seed=1)
  )


def assert_equal_batches(a, b):
  assert a.keys() == b.keys()
  for key in a:
    np.testing.assert_array_equal(a[key], b[key], key)
    assert a[key].dtype == b[key].dtype


@pytest.mark.parametrize("name", OPTIONS_BY_BUILDER)
def test_a_seqio_task_gives_the_rows_of_its_folder(folder, name):
  seqio = pytest.importorskip("seqio", reason="the extra [data] is not there")
  from bert_jax.seqio_tasks import pretraining

  options = OPTIONS_BY_BUILDER[name] | LENGTH_OPTION
  data = loader.open_data(folder, name, seed=2, **options)
  heldout = loader.open_heldout(folder, name, **options)
  try:
    pretraining.register_prepared("p", folder, name, **options)
    converter = pretraining.PretrainFeatureConverter("p")
    for split, expected_batch in (
      ("train", data.read(0, 300)),
      ("validation", heldout.read(0, len(heldout))),
    ):
      dataset = seqio.get_dataset(
        "p", converter.lengths, converter, split, seed=2, num_epochs=None
      )
      num_rows = len(expected_batch["input_ids"])
      rows = list(dataset.take(num_rows).as_numpy_iterator())
      assert_equal_batches(
        {key: np.stack([row[key] for row in rows]) for key in expected_batch},
        expected_batch,
      )
  finally:
    seqio.TaskRegistry.reset()


def make_text():
  pieces = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(40))]
  rng = np.random.default_rng(0)

  def read():
    for _ in range(80):
      sentences = [
        " ".join(
          f"w{word_number}"
          for word_number in rng.integers(40, size=rng.integers(2, 9))
        )
        for _ in range(rng.integers(1, 6))
      ]
      yield sources.Record("\n".join(sentences), layout="lines", share=0.0)

  records = list(read())
  return Text(
    "text",
    lambda: iter(records),
    None,
    wordpiece.build(pieces, lower_case=True, source="v"),
    heldout=0.0,
    language="en",
    group_size=16,
    version=1,
  )


def make_text_stream(name, options, **stream_options):
  text = make_text()
  options = options | LENGTH_OPTION
  recipe = recipes.make_recipe(name, text.special, text.vocab_size, options)
  return Stream(text, recipe, seed=0, **stream_options)


@pytest.mark.parametrize("name", OPTIONS_BY_BUILDER)
def test_a_restarted_stream_of_text_continues(name):
  full_batch = make_text_stream(name, OPTIONS_BY_BUILDER[name]).read(0, 200)
  old_stream = make_text_stream(name, OPTIONS_BY_BUILDER[name])
  old_stream.read(0, 150)
  new_stream = make_text_stream(name, OPTIONS_BY_BUILDER[name])
  new_stream.restore(old_stream.position())
  expected_batch = {key: value[150:] for key, value in full_batch.items()}
  assert_equal_batches(new_stream.read(150, 50), expected_batch)


def test_static_masks_of_text_repeat():
  """Epoch 2 has the rows of epoch 0 in another order; epoch 1 has new masks."""
  options = dict(max_predictions=5, static_masks=2)
  epoch_ends = [
    len(
      make_text_stream("albert_pairs", options, epochs=num_epochs).read(
        0, 10_000
      )[key]
    )
    for key in ("input_ids",)
    for num_epochs in range(1, 4)
  ]
  full_batch = make_text_stream("albert_pairs", options).read(0, epoch_ends[-1])
  flat_rows = np.concatenate(
    [
      array.reshape(epoch_ends[-1], -1).astype(float)
      for array in full_batch.values()
    ],
    1,
  )
  rows_by_epoch = [
    list(map(tuple, rows.tolist()))
    for rows in np.split(flat_rows, epoch_ends[:-1])
  ]
  assert (
    sorted(rows_by_epoch[0]) == sorted(rows_by_epoch[2])
    and rows_by_epoch[0] != rows_by_epoch[2]
  )
  assert len(set(rows_by_epoch[0]) & set(rows_by_epoch[1])) < 0.1 * len(
    rows_by_epoch[0]
  )


def test_missing_special_tokens_are_named(folder):
  ids_of_special_tokens = SpecialIds(
    pad=None, unk=3, cls=None, sep=None, mask=None
  )
  recipe = recipes.make_recipe("lm", ids_of_special_tokens, 64, LENGTH_OPTION)
  assert set(recipe.features) == {
    "input_ids",
    "sequence_ids",
    "lm_ids",
    "lm_weights",
  }
  prepared_folder = reader.open_prepared(folder)
  rows = Stream(prepared_folder.splits["train"], recipe, seed=0).read(0, 50)
  assert rows["lm_weights"].any()
  message = "no token for pad, cls, sep, mask"
  for name in ("bert_pairs", "doc_sentences"):
    with pytest.raises(ValueError, match=f"{name}: .* {message}"):
      recipes.make_recipe(name, ids_of_special_tokens, 64, LENGTH_OPTION)


def test_streams_with_different_rows_are_not_mixed(folder):
  unpacked_data, packed_data = (
    loader.open_data(
      folder, "doc_sentences", max_sequences=max_sequences, **LENGTH_OPTION
    )
    for max_sequences in (1, 4)
  )
  with pytest.raises(ValueError, match="different batches"):
    Mixture([unpacked_data.source, packed_data.source], [1, 1], seed=0)
