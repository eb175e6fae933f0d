"""Tests streams, mixtures and loaders: order, restarts, hosts and errors."""

import json
import threading
import time

import numpy as np
import pytest
from batches_of_rows import equal_batches, join_batches

from bert_jax.corpus import reader
from bert_jax.corpus.reader import corpus_from_documents
from bert_jax.examples import loader, streams
from bert_jax.examples.recipes import bert_pairs
from bert_jax.text.vocabulary import SPECIAL_TOKENS, SpecialIds

SPECIAL_IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
VOCAB_SIZE = 500


def random_corpus(num_documents=40, seed=0):
  rng = np.random.default_rng(seed)
  return corpus_from_documents(
    [
      [
        rng.integers(5, VOCAB_SIZE, rng.integers(1, 12))
        for _ in range(num_sentences)
      ]
      for num_sentences in rng.integers(1, 15, num_documents)
    ]
  )


def make_recipe(**options):
  return bert_pairs(SPECIAL_IDS, VOCAB_SIZE, **{"length": 24} | options)


def make_stream(seed=0, **options):
  # The shards are so small that an epoch has several portions.
  options = {"shard_tokens": 100, "shards_per_portion": 3} | options
  return streams.Stream(random_corpus(), make_recipe(), seed, **options)


def unmasked_rows(batch):
  """Returns the rows before masking, as tuples."""
  ids = batch["input_ids"].copy()
  for row, positions, labels, weight in zip(
    ids,
    batch["mlm_positions"],
    batch["mlm_ids"],
    batch["mlm_weights"],
    strict=True,
  ):
    row[positions[weight > 0]] = labels[weight > 0]
  return [tuple(row) for row in ids.tolist()]


def portions_of_an_epoch(source):
  """Yields the portions of an epoch; then the source is in the next epoch."""
  portion = source._current_portion()
  epoch = source.position()["epoch"]
  while source.position()["epoch"] == epoch:
    yield portion
    source._advance(portion)
    portion = source._current_portion()


def epoch_sizes(source, num_epochs):
  """Returns the number of examples in each of the next `num_epochs` epochs."""
  return [
    sum(len(portion.elements) for portion in portions_of_an_epoch(source))
    for _ in range(num_epochs)
  ]


def test_rows_do_not_depend_on_how_many_are_read_at_once():
  num_rows = 2 * sum(epoch_sizes(make_stream(), num_epochs=2))
  full_batch = make_stream().read(0, num_rows)
  for batch_size in (1, 7, 64):
    stream = make_stream()
    batches = [
      stream.read(i, min(batch_size, num_rows - i))
      for i in range(0, num_rows, batch_size)
    ]
    assert equal_batches(join_batches(batches), full_batch)
  stream = make_stream()
  # One stream may read its rows in any order.
  for first_row in (num_rows - 9, 3, num_rows // 2, 0):
    batch = stream.read(first_row, 9)
    assert equal_batches(
      batch,
      {
        key: array[first_row : first_row + 9]
        for key, array in full_batch.items()
      },
    )
  assert not equal_batches(make_stream(seed=1).read(0, num_rows), full_batch)
  assert not equal_batches(
    make_stream(name="other").read(0, num_rows), full_batch
  )


def test_a_restart_gives_the_same_rows_with_and_without_a_position():
  uninterrupted_stream, batch_size = make_stream(), 16
  batches_and_positions = []
  for step in range(60):
    batches_and_positions.append(
      (
        uninterrupted_stream.read(step * batch_size, batch_size),
        uninterrupted_stream.position(),
      )
    )
  assert batches_and_positions[-1][1]["epoch"] >= 2
  for step in (1, 7, 31, 59):
    position = json.loads(json.dumps(batches_and_positions[step - 1][1]))
    resumed_stream = make_stream()
    resumed_stream.restore(position)
    # The stream begins at the position, and does not count the rows before it.
    assert resumed_stream._first == position["first"] <= step * batch_size
    assert equal_batches(
      resumed_stream.read(step * batch_size, batch_size),
      batches_and_positions[step][0],
    )
    assert equal_batches(
      make_stream().read(step * batch_size, batch_size),
      batches_and_positions[step][0],
    )
    # A stream with another seed ignores the position.
    other_stream = make_stream(seed=5)
    other_stream.restore(position)
    assert other_stream.position()["first"] == 0


def test_a_restart_at_the_end_of_an_epoch_repeats_no_row():
  """Reads 3 epochs of 10 examples, 2 in each batch.

  A loader stops after 5, 7 or 10 batches, and a second loader continues.
  """
  corpus = corpus_from_documents([[[i] * 3] for i in range(10, 20)])

  def make_short_stream():
    return streams.Stream(corpus, make_recipe(length=16), seed=0)

  expected_ids = [
    make_short_stream().read(2 * step, 2)["input_ids"].tolist()
    for step in range(15)
  ]
  for num_hosts in (1, 2):
    for last_step in (5, 7, 10):
      ids_by_host = []
      for host in range(num_hosts):
        with loader.batches_from_step(
          make_short_stream(),
          start_step=0,
          batch_size=2,
          host_index=host,
          host_count=num_hosts,
        ) as first_loader:
          batches_before = [next(first_loader) for _ in range(last_step)]
        restored_stream = make_short_stream()
        restored_stream.restore(batches_before[-1].position)
        with loader.batches_from_step(
          restored_stream,
          start_step=last_step,
          batch_size=2,
          host_index=host,
          host_count=num_hosts,
        ) as second_loader:
          batches_after = [next(second_loader) for _ in range(15 - last_step)]
        ids_by_host.append(
          [
            host_batch.batch["input_ids"]
            for host_batch in batches_before + batches_after
          ]
        )
      joined_rows = [
        np.concatenate(host_shares).tolist()
        for host_shares in zip(*ids_by_host, strict=True)
      ]
      assert joined_rows == expected_ids
  # In each epoch, every document begins one row. The order of the rows differs
  # between the epochs.
  rows = [
    unmasked_rows(make_short_stream().read(10 * epoch_index, 10))
    for epoch_index in range(3)
  ]
  first_tokens = [[row[1] for row in epoch] for epoch in rows]
  assert all(sorted(epoch) == list(range(10, 20)) for epoch in first_tokens)
  assert first_tokens[0] != first_tokens[1] != first_tokens[2]


def test_masks_differ_in_every_epoch_but_not_in_a_second_run():
  corpus = corpus_from_documents([[[7] * 100] for _ in range(5)])

  def masks(seed):
    stream = streams.Stream(corpus, make_recipe(length=128), seed)
    return stream.read(0, 15)["mlm_positions"].reshape(3, 5, -1)

  first_masks = masks(0)
  np.testing.assert_array_equal(first_masks, masks(0))
  # All 15 rows have the same text, but no two have the same masks.
  assert len(np.unique(first_masks.reshape(15, -1), axis=0)) == 15
  masks_of_both_seeds = np.concatenate([first_masks, masks(1)]).reshape(30, -1)
  assert len(np.unique(masks_of_both_seeds, axis=0)) == 30


def test_an_epoch_reads_every_chunk_once():
  corpus = random_corpus()
  bounds = streams.shard_bounds(corpus, shard_tokens=100)
  assert bounds[0] == 0 and bounds[-1] == 40 and len(bounds) > 10
  stream = make_stream()
  for _ in range(2):
    portions = list(portions_of_an_epoch(stream))
    chunks = np.concatenate([portion.elements for portion in portions])
    order = np.argsort(chunks["sentence"])
    sentences_used = np.where(
      chunks["random"], chunks["a_count"], chunks["count"]
    )
    starts = np.append(chunks["sentence"][order], len(corpus.sentences) - 1)
    np.testing.assert_array_equal(np.cumsum(sentences_used[order]), starts[1:])
    # All chunks of a portion are shuffled, not only the chunks of a shard.
    assert (np.diff(chunks["sentence"]) > 0).mean() < 0.7


def test_one_giant_document_is_one_shard():
  corpus = corpus_from_documents([[[9] * 5] * 1000, [[8] * 5]])
  assert streams.shard_bounds(corpus, shard_tokens=100).tolist() == [0, 1, 2]
  assert streams.shard_bounds(corpus, shard_tokens=2**24).tolist() == [0, 2]


def test_a_mixture_has_exact_shares_and_restarts():
  names = "abc"
  components = [make_stream(name=name) for name in names]
  mixture = streams.Mixture(components, [5, 3, 2], seed=1)
  num_rows = 2 * streams.MIXTURE_BLOCK
  component_indices = np.concatenate([mixture._components(i) for i in range(2)])
  for block in component_indices.reshape(2, -1):
    shares = np.bincount(block) / streams.MIXTURE_BLOCK
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=1 / 4096)
  assert not np.array_equal(*component_indices.reshape(2, -1))
  full_batch = mixture.read(0, num_rows)
  for i, name in enumerate(names):
    component_batch = make_stream(name=name).read(
      0, int((component_indices == i).sum())
    )
    assert equal_batches(
      component_batch,
      {key: array[component_indices == i] for key, array in full_batch.items()},
    )
  for first_row in (4090, 17, 0):
    new_mixture = streams.Mixture(
      [make_stream(name=name) for name in names], [5, 3, 2], seed=1
    )
    expected_batch = {
      key: array[first_row : first_row + 30]
      for key, array in full_batch.items()
    }
    assert equal_batches(new_mixture.read(first_row, 30), expected_batch)
  restarted_mixture = streams.Mixture(
    [make_stream(name=name) for name in names], [5, 3, 2], seed=1
  )
  mixture.read(4000, 96)
  restarted_mixture.restore(mixture.position())
  assert restarted_mixture._streams[0]._first == components[0]._first > 0
  expected_batch = {key: array[4096:4200] for key, array in full_batch.items()}
  assert equal_batches(restarted_mixture.read(4096, 104), expected_batch)


@pytest.mark.parametrize("weights", [[1, 0], [1, -1], [1, 1e-5]])
def test_bad_mixture_weights_are_refused(weights):
  with pytest.raises(ValueError, match="mixture weights"):
    streams.Mixture([make_stream(), make_stream()], weights, seed=0)


def test_a_mixture_of_different_batches_is_refused():
  longer_stream = streams.Stream(
    random_corpus(), make_recipe(length=32), seed=0
  )
  with pytest.raises(ValueError, match="different batches"):
    streams.Mixture([make_stream(), longer_stream], [1, 1], seed=0)


def test_a_held_out_subset_has_rows_of_the_full_set():
  corpus = random_corpus()
  full_set = loader.make_heldout(corpus, make_recipe(), limit=None)
  full_batch = full_set.read(0, len(full_set))
  subset = loader.make_heldout(corpus, make_recipe(), limit=20)
  assert len(subset) == 20 < len(full_set)
  batch = subset.read(0, 20)
  # The rows and their masks are equal to those of the full set.
  numbers = subset._numbers
  assert (np.diff(numbers) > 0).all()
  assert equal_batches(
    batch, {key: array[numbers] for key, array in full_batch.items()}
  )
  last_batch = subset.read(16, 8)
  assert equal_batches(
    {key: array[:4] for key, array in last_batch.items()},
    {key: array[16:] for key, array in batch.items()},
  )
  assert all(
    (array[4:] == 0).all() and len(array) == 8 for array in last_batch.values()
  )
  rows_after_end = subset.read(24, 8)
  assert not any(array.any() for array in rows_after_end.values())
  assert rows_after_end.keys() == batch.keys()
  with pytest.raises(ValueError, match="limit .* is 0"):
    loader.make_heldout(corpus, make_recipe(), limit=0)


def test_the_shares_of_hosts_join_to_the_full_batch():
  full_batches = [
    make_stream().read(24 * step_index, 24) for step_index in range(5)
  ]
  for num_hosts in (1, 2, 4):
    batches_by_host = []
    for host in range(num_hosts):
      with loader.batches_from_step(
        make_stream(),
        start_step=0,
        batch_size=24,
        host_index=host,
        host_count=num_hosts,
      ) as host_batches:
        batches_by_host.append([next(host_batches).batch for _ in range(5)])
    for step, shares in enumerate(zip(*batches_by_host, strict=True)):
      assert equal_batches(join_batches(shares), full_batches[step])
  with pytest.raises(ValueError, match="batch size 24 .* 5 hosts"):
    loader.batches_from_step(
      make_stream(), start_step=0, batch_size=24, host_index=0, host_count=5
    )
  with pytest.raises(ValueError, match="host 2 of 2"):
    loader.batches_from_step(
      make_stream(), start_step=0, batch_size=24, host_index=2, host_count=2
    )


def test_batches_end_after_the_last_range():
  ranges = [(0, 8), (8, 16), (100, 4)]
  with loader.Batches(make_stream(), ranges) as host_batches:
    batches = [host_batch.batch for host_batch in host_batches]
    assert next(host_batches, None) is None
  for batch, (first, count) in zip(batches, ranges, strict=True):
    assert equal_batches(batch, make_stream().read(first, count))


class FailingSource:
  """Gives rows, but raises an error from row 16 on."""

  def __init__(self):
    self.features = {}

  def read(self, first, count):
    if first >= 16:
      raise ValueError("row 16 is broken")
    return {"x": np.arange(first, first + count)}

  def position(self):
    return {"first": 0}


def test_an_error_of_the_source_is_raised_by_next():
  host_batches = loader.batches_from_step(
    FailingSource(), start_step=0, batch_size=8
  )
  assert next(host_batches).batch["x"][0] == 0
  assert next(host_batches).batch["x"][0] == 8
  with pytest.raises(ValueError, match="row 16 is broken"):
    next(host_batches)
  with pytest.raises(StopIteration):
    next(host_batches)
  host_batches.close()


def test_close_stops_the_thread():
  host_batches = loader.batches_from_step(
    make_stream(), start_step=0, batch_size=8, prefetch=1
  )
  next(host_batches)
  start_time = time.monotonic()
  host_batches.close()
  assert time.monotonic() - start_time < 5
  assert not host_batches._thread.is_alive()
  assert host_batches._thread not in threading.enumerate()
  with pytest.raises(StopIteration):
    next(host_batches)


def write_folder(
  path, num_pieces=VOCAB_SIZE, splits=("train", "validation"), lower_case=True
):
  """Writes a prepared folder of random documents."""
  path.mkdir()
  vocabulary = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(num_pieces - 5))]
  (path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
  sizes = {}
  for seed, split in enumerate(reader.SPLITS):
    corpus = random_corpus(30 if split in splits else 0, seed)
    for field, file in zip(
      corpus[:4],
      ("tokens", "sentences", "documents", "word_starts"),
      strict=True,
    ):
      field.tofile(path / f"{split}.{file}")
    sizes[split] = {
      "tokens": corpus.num_tokens,
      "sentences": len(corpus.sentences) - 1,
      "documents": corpus.num_documents,
    }
  np.zeros(num_pieces, np.int64).tofile(path / "train.unigrams")
  options = {"lower_case": lower_case}
  meta = {
    "format_version": 1,
    "vocab_size": num_pieces,
    "splits": sizes,
    "lower_case": lower_case,
    "options": options,
    "fingerprint": reader.compute_fingerprint(str(path), options),
  }
  (path / "meta.json").write_text(json.dumps(meta))
  return str(path)


def test_opened_data_have_the_rows_of_a_stream(tmp_path):
  first_folder, second_folder = (
    write_folder(tmp_path / "a"),
    write_folder(tmp_path / "b"),
  )
  data = loader.open_data(first_folder, "bert_pairs", seed=3, length=24)
  assert data.vocab_size == VOCAB_SIZE and data.special == SpecialIds(
    pad=0, unk=1, cls=2, sep=3, mask=4
  )
  assert data.features["input_ids"] == ((24,), np.dtype(np.int32))
  stream_in_memory = streams.Stream(
    random_corpus(30), make_recipe(), seed=3, name="0"
  )
  assert equal_batches(data.read(0, 50), stream_in_memory.read(0, 50))
  position = data.position()
  data.restore(position)
  assert data.position() == position

  mixture = loader.open_data(
    f"{first_folder}=0.7,{second_folder}=0.3", "bert_pairs", length=24
  )
  assert isinstance(mixture.source, streams.Mixture)
  assert mixture.read(0, 10)["input_ids"].shape == (10, 24)
  validation = loader.open_data(
    first_folder, "bert_pairs", "validation", length=24
  )
  assert not equal_batches(validation.read(0, 50), data.read(0, 50))

  heldout = loader.open_heldout(first_folder, "bert_pairs", limit=5, length=24)
  assert len(heldout) == 5
  single_heldout = loader.open_heldout(first_folder, "bert_pairs", length=24)
  mixed_heldout = loader.open_heldout(
    f"{first_folder}=0.7,{second_folder}=0.3", "bert_pairs", length=24
  )
  assert len(mixed_heldout) == 2 * len(single_heldout)
  assert equal_batches(
    mixed_heldout.read(0, len(single_heldout)),
    single_heldout.read(0, len(single_heldout)),
  )


def test_errors_of_open_data_name_the_wrong_argument(tmp_path):
  folder = write_folder(tmp_path / "a", splits=("train",))
  folder_with_more_pieces = write_folder(
    tmp_path / "small", num_pieces=VOCAB_SIZE + 1
  )
  for arguments, message in (
    (dict(lenght=24), "no option 'lenght'; did you mean length"),
    (dict(length=3), "length is 3"),
    (dict(split="validation"), "no documents in split 'validation'"),
    (
      dict(builder="bert_pair"),
      "there is no builder 'bert_pair'; did you mean bert_p",
    ),
    (
      dict(path=f"{folder}=0.5,{folder_with_more_pieces}=0.5"),
      "different vocabularies",
    ),
    (
      dict(path=f"{folder}=0.5,{folder_with_more_pieces}"),
      "not a component of a mixture",
    ),
    (dict(path=f"{folder}=nan"), "weight nan is not a positive number"),
    (
      dict(path=f"{folder}=0,{folder_with_more_pieces}=1"),
      "weight 0 is not a positive number",
    ),
    (dict(path=f"{folder}=0.5,{folder}/=0.5"), "is there twice"),
    (dict(path=str(tmp_path / "none")), "there is no prepared folder"),
  ):
    with pytest.raises(ValueError, match=message):
      loader.open_data(**{"path": folder, "builder": "bert_pairs"} | arguments)


@pytest.mark.parametrize("cased", [False, True])
def test_text_with_the_wrong_case_is_refused(tmp_path, cased):
  path = str(tmp_path / "a")
  write_folder(tmp_path / "a", lower_case=not cased)
  message = (
    f"{path} was {'not ' if cased else ''}lower-cased.*"
    f"--config.data.cased={cased}, or prepare the text"
    f" {'without' if cased else 'with'} --no-lower-case"
  )
  for opener in (loader.open_data, loader.open_heldout):
    opener(path, "bert_pairs", length=24, cased=cased)
    opener(path, "bert_pairs", length=24)
    with pytest.raises(ValueError, match=message):
      opener(path, "bert_pairs", length=24, cased=not cased)


def test_a_module_without_an_opener_is_named(monkeypatch):
  pytest.importorskip("seqio", reason="the extra [data] is not there")
  monkeypatch.setattr(loader, "OPENERS", [])
  with pytest.raises(ValueError, match="json does not import bert_jax.seqio_"):
    loader.open_data("json:my_task", "bert_pairs")
