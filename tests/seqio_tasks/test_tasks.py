"""Tests the rows that seqio tasks make from prepared folders and text files."""

import gc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from prepared import random_documents, write_prepared
from tiny_runs import untimed_rows as logged_rows

from bert_jax.corpus import prepare
from bert_jax.examples import loader
from bert_jax.training import train
from bert_jax.training.config_files import open_config

seqio = pytest.importorskip("seqio", reason="the extra [data] is not there")
from bert_jax.seqio_tasks import pretraining  # noqa: E402

ROW_OPTIONS = {"length": 32, "max_predictions": 5}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "."]
# The vocabulary of `data_folder` also has 64 pieces.
PIECES += [f"w{i}" for i in range(56)]


@pytest.fixture(autouse=True)
def reset_registries():
  """Removes all registered names after each test."""
  yield
  seqio.TaskRegistry.reset()
  seqio.MixtureRegistry.reset()


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("tasks") / "prepared"
  return write_prepared(path, random_documents(90, 0), random_documents(20, 1))


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
  """Makes vocab.txt and two files of 150 documents each in BERT's format."""
  path = tmp_path_factory.mktemp("text")
  rng = np.random.default_rng(0)
  (path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
  for name in ("a.txt", "b.txt"):
    with (path / name).open("w") as file:
      for _ in range(150):
        for _ in range(int(rng.integers(2, 9))):
          word_numbers = rng.integers(40, size=int(rng.integers(3, 9)))
          file.write(
            " ".join(f"W{word_number}" for word_number in word_numbers)
            + " unable.\n"
          )
        file.write("\n")
  return path


def register_text(text_folder, name="mine", **options):
  options = {"heldout": 0.1, "group_size": 32, **ROW_OPTIONS} | options
  inputs = options.pop(
    "inputs", str(text_folder / "*.txt").replace("*", "[ab]")
  )
  return pretraining.register_text(
    name, inputs, str(text_folder / "vocab.txt"), **options
  )


def read_rows(name, split, count=None, **arguments):
  """Reads rows of a task or mixture through seqio; returns them as one batch.

  `count` is the number of rows; None means all rows.
  """
  converter = pretraining.PretrainFeatureConverter(name)
  dataset = seqio.get_dataset(
    name, converter.lengths, converter, split, **arguments
  )
  task_rows = list(dataset.take(count if count else -1).as_numpy_iterator())
  return {
    key: np.stack([row[key] for row in task_rows]) for key in converter.lengths
  }


def assert_equal_batches(a, b):
  assert a.keys() == b.keys()
  for key in a:
    np.testing.assert_array_equal(a[key], b[key], key)
    assert a[key].dtype == b[key].dtype


def sorted_batch_rows_as_bytes(batch):
  """Returns the rows of a batch as bytes, sorted to compare them as sets."""
  keys = sorted(batch)
  num_rows = len(batch[keys[0]])
  return sorted(
    b"".join(batch[key][row].tobytes() for key in keys)
    for row in range(num_rows)
  )


def test_prepared_task_equals_the_folder(data_folder):
  pretraining.register_prepared("p", data_folder, **ROW_OPTIONS)
  for seed in (0, 7):
    opened = loader.open_data(
      data_folder, "bert_pairs", seed=seed, **ROW_OPTIONS
    )
    task_rows = read_rows("p", "train", count=700, seed=seed, num_epochs=None)
    assert_equal_batches(task_rows, opened.read(0, 700))
  heldout = loader.open_heldout(data_folder, "bert_pairs", **ROW_OPTIONS)
  task_rows = read_rows("p", "validation", shuffle=True, seed=3)
  assert_equal_batches(task_rows, heldout.read(0, len(heldout)))


def rows_as_bytes(ds) -> list[bytes]:
  """Returns all arrays of each row of a dataset, joined as bytes."""
  return [
    b"".join(row[key].tobytes() for key in sorted(row))
    for row in ds.as_numpy_iterator()
  ]


@pytest.mark.parametrize("source_type", ["prepared", "text"])
def test_a_second_pass_over_a_dataset_has_new_masks(
  data_folder, text_folder, source_type
):
  if source_type == "prepared":
    task = pretraining.register_prepared("p", data_folder, **ROW_OPTIONS)
  else:
    task = register_text(text_folder)
  one_epoch = task.get_dataset(num_epochs=1, seed=3)
  first_pass, second_pass = rows_as_bytes(one_epoch), rows_as_bytes(one_epoch)
  assert len(set(first_pass) | set(second_pass)) == len(first_pass) + len(
    second_pass
  )
  # A new dataset of the task begins at the first epoch again: its two passes
  # equal `first_pass` and `second_pass`.
  two_passes = rows_as_bytes(task.get_dataset(num_epochs=1, seed=3).repeat(2))
  assert two_passes == first_pass + second_pass
  if source_type == "prepared":
    assert rows_as_bytes(task.get_dataset(num_epochs=2, seed=3)) == two_passes
  # Two iterators that are open at the same time do not disturb each other.
  dataset = task.get_dataset(num_epochs=1, seed=3)
  row_pairs = list(
    zip(*map(iterate_rows_as_bytes, (dataset, dataset)), strict=False)
  )
  assert [row for row, _ in row_pairs] == first_pass[: len(row_pairs)]
  assert [row for _, row in row_pairs] == second_pass[: len(row_pairs)]
  # Two passes over an endless dataset have no row in common. Held-out rows
  # never change.
  endless = task.get_dataset(num_epochs=None, seed=3).take(50)
  assert not set(rows_as_bytes(endless)) & set(rows_as_bytes(endless))
  heldout = task.get_dataset(split="validation", seed=3)
  assert rows_as_bytes(heldout) == rows_as_bytes(heldout)


@pytest.mark.parametrize(
  "epochs, source_type",
  [
    (1, "prepared"),
    (2, "prepared"),
    pytest.param(1, "text", marks=pytest.mark.slow),
  ],
)
def test_passes_that_stop_early_give_their_own_epochs(
  data_folder, text_folder, monkeypatch, epochs, source_type
):
  """Reads 2 rows in each of 6 passes.

  They must be the first 2 rows of 6 full passes. No pass may load the epochs of
  earlier passes again, and at most `MAX_READERS` readers may stay open.
  """
  from bert_jax.examples import streams

  monkeypatch.setattr(pretraining, "MAX_READERS", 2)
  if source_type == "prepared":
    task = pretraining.register_prepared("p", data_folder, **ROW_OPTIONS)
  else:
    task = register_text(text_folder)
  options = dict(num_epochs=epochs, seed=3, shuffle=False)
  dataset = task.get_dataset(**options)
  passes = [rows_as_bytes(dataset) for _ in range(6)]
  loaded_epochs, original_load = [], streams.Stream._current_portion

  def count_load(stream):
    loaded_epochs.append(stream._epoch)
    return original_load(stream)

  monkeypatch.setattr(streams.Stream, "_current_portion", count_load)
  gc.collect()
  num_readers_before = len(pretraining._readers)
  first_rows = rows_as_bytes(task.get_dataset(**options).take(2).repeat(6))
  assert first_rows == [row for one_pass in passes for row in one_pass[:2]]
  if source_type == "prepared":
    # A pass loads each of its epochs at most twice: once to count the rows, and
    # once to read the first block, which may hold the rows of all epochs of the
    # pass. The bound allows one more load for each pass.
    assert (
      len(loaded_epochs) <= 6 * (2 * epochs + 1)
      and max(loaded_epochs) < 6 * epochs
    )
  gc.collect()
  assert len(pretraining._readers) - num_readers_before <= 2
  # 4 iterators are open at the same time, but only 2 readers are kept.
  reopened_dataset = task.get_dataset(**options)
  iterators = [iterate_rows_as_bytes(reopened_dataset) for _ in range(4)]
  first_rows = [[next(iterator) for iterator in iterators] for _ in range(3)]
  assert first_rows == [
    [one_pass[i] for one_pass in passes[: len(iterators)]] for i in range(3)
  ]
  remaining_rows = [list(iterator) for iterator in iterators]
  assert remaining_rows == [
    one_pass[3:] for one_pass in passes[: len(iterators)]
  ]


def iterate_rows_as_bytes(ds):
  for row in ds.as_numpy_iterator():
    yield b"".join(row[key].tobytes() for key in sorted(row))


def test_two_tasks_of_a_folder_in_a_mixture_have_their_own_rows(data_folder):
  for name in "pq":
    pretraining.register_prepared(name, data_folder, **ROW_OPTIONS)
  first_task, second_task = (seqio.get_mixture_or_task(name) for name in "pq")
  rows_of_q = rows_as_bytes(second_task.get_dataset(seed=3))
  assert rows_of_q == rows_as_bytes(first_task.get_dataset(seed=3))
  # As parts of one mixture, the two tasks have no row in common.
  seqio.MixtureRegistry.add("both", [("p", 1.0), ("q", 1.0)])
  rows_of_p, new_rows_of_q = (
    rows_as_bytes(task.get_dataset(seed=3))
    for task in (first_task, second_task)
  )
  assert rows_of_p == rows_of_q and not set(rows_of_p) & set(new_rows_of_q)
  mixture_rows = rows_as_bytes(
    seqio.get_mixture_or_task("both").get_dataset(num_epochs=1, seed=3)
  )
  assert len(set(mixture_rows)) == len(mixture_rows)


def test_each_epoch_of_a_prepared_task_has_new_masks(data_folder):
  """Reads two epochs of each split.

  The training epochs must have no row in common. The held-out epochs must be
  equal.
  """
  task = pretraining.register_prepared("p", data_folder, **ROW_OPTIONS)
  one_epoch = read_rows("p", "train")
  num_rows = task.num_input_examples("train")
  assert len(one_epoch["input_ids"]) == num_rows
  # In the stream, row `num_rows` is the first row of epoch 1.
  opened = loader.open_data(data_folder, "bert_pairs", **ROW_OPTIONS)
  opened.read(num_rows - 1, 1)
  assert opened.position()["epoch"] == 0
  opened.read(num_rows, 1)
  assert (
    opened.position() | {"first": num_rows, "epoch": 1} == opened.position()
  )
  two_epochs = read_rows("p", "train", num_epochs=2)
  assert_equal_batches(
    {key: array[:num_rows] for key, array in two_epochs.items()}, one_epoch
  )
  assert not set(sorted_batch_rows_as_bytes(one_epoch)) & set(
    sorted_batch_rows_as_bytes(
      {key: array[num_rows:] for key, array in two_epochs.items()}
    )
  )
  heldout = read_rows("p", "validation")
  assert len(heldout["input_ids"]) == task.num_input_examples("validation")
  two_heldout_epochs = read_rows("p", "validation", num_epochs=2)
  for key, array in heldout.items():
    np.testing.assert_array_equal(
      two_heldout_epochs[key], np.concatenate([array, array])
    )


@pytest.mark.parametrize("source_type", ["prepared", "text"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_each_row_is_in_one_shard(data_folder, text_folder, source_type, split):
  if source_type == "prepared":
    pretraining.register_prepared("t", data_folder, **ROW_OPTIONS)
  else:
    register_text(text_folder, "t")
  all_rows = read_rows("t", split)
  shards = [
    read_rows("t", split, shard_info=seqio.ShardInfo(i, 3)) for i in range(3)
  ]
  sizes = [len(shard["input_ids"]) for shard in shards]
  assert max(sizes) - min(sizes) <= 1
  joined_shards = {
    key: np.concatenate([shard[key] for shard in shards]) for key in all_rows
  }
  assert sorted_batch_rows_as_bytes(
    joined_shards
  ) == sorted_batch_rows_as_bytes(all_rows)


def test_wrong_lengths_shapes_and_types_are_refused(data_folder):
  task = pretraining.register_prepared("p", data_folder, **ROW_OPTIONS)
  with pytest.raises(ValueError, match=r"sequence_length\['input_ids'\] is 16"):
    task.get_dataset({"input_ids": 16})
  converter = pretraining.PretrainFeatureConverter("p")
  dataset = task.get_dataset(split="validation")
  short_rows = dataset.map(
    lambda row: row | {"input_ids": row["input_ids"][:8]}
  )
  with pytest.raises(
    ValueError, match=r"input_ids of shape \(8,\), not \(32,\)"
  ):
    converter(short_rows, converter.lengths)
  float_rows = dataset.map(lambda row: row | {"mlm_ids": row["mlm_weights"]})
  with pytest.raises(ValueError, match="incorrect type for feature 'mlm_ids'"):
    converter(float_rows, converter.lengths)
  with pytest.raises(ValueError, match="did you mean length"):
    pretraining.register_prepared("q", data_folder, lenght=32)


def test_a_text_task_gives_the_rows_of_training(text_folder):
  register_text(text_folder)
  opened = loader.open_data("mine", "bert_pairs", seed=3, **ROW_OPTIONS)
  task_rows = read_rows("mine", "train", count=900, seed=3, num_epochs=None)
  assert_equal_batches(task_rows, opened.read(0, 900))
  epoch = read_rows("mine", "train", seed=3)
  num_rows = len(epoch["input_ids"])
  assert 300 < num_rows < 900
  # The two epochs have no row in common, because their masks differ.
  second_epoch = {
    key: array[num_rows : 2 * num_rows] for key, array in task_rows.items()
  }
  assert not set(sorted_batch_rows_as_bytes(epoch)) & set(
    sorted_batch_rows_as_bytes(second_epoch)
  )


def test_a_text_task_holds_out_the_same_documents_as_prepare(
  text_folder, tmp_path
):
  task = register_text(text_folder)
  folder = str(tmp_path / "prepared")
  inputs = [str(text_folder / "a.txt"), str(text_folder / "b.txt")]
  vocab_path = str(text_folder / "vocab.txt")
  prepare.prepare(inputs, vocab_path, folder, heldout=0.1, processes=1)
  expected = loader.open_heldout(folder, "bert_pairs", **ROW_OPTIONS)
  assert_equal_batches(
    read_rows("mine", "validation"), expected.read(0, len(expected))
  )
  opened = loader.open_data(
    folder, "bert_pairs", **ROW_OPTIONS
  ).prepared_folders[0]
  np.testing.assert_array_equal(task.source.documents.unigrams, opened.unigrams)
  groups = [corpus for _, corpus in task.source.documents.groups(0)]
  tokens = np.concatenate([corpus.tokens for corpus in groups])
  np.testing.assert_array_equal(tokens, opened.splits["train"].tokens)


def test_text_with_the_wrong_case_is_refused(text_folder):
  register_text(text_folder)
  for opener in (loader.open_data, loader.open_heldout):
    opener("mine", "bert_pairs", cased=False, **ROW_OPTIONS)
    with pytest.raises(ValueError, match="lower_case=False"):
      opener("mine", "bert_pairs", cased=True, **ROW_OPTIONS)


def test_a_text_task_continues_with_the_next_row(text_folder):
  register_text(text_folder)
  uninterrupted = loader.open_data("mine", "bert_pairs", **ROW_OPTIONS)
  batches = [uninterrupted.read(8 * i, 8) for i in range(120)]
  for start in (0, 1, 40, 119):
    opened = loader.open_data("mine", "bert_pairs", **ROW_OPTIONS)
    assert_equal_batches(opened.read(8 * start, 8), batches[start])
  # `uninterrupted` can also read earlier rows. Then a new `opened` continues at
  # the position of `uninterrupted`.
  assert_equal_batches(uninterrupted.read(16, 8), batches[2])
  uninterrupted.read(8 * 99, 8)
  position = uninterrupted.position()
  assert position["epoch"] == 1 and position["record"] > 0
  opened = loader.open_data("mine", "bert_pairs", **ROW_OPTIONS)
  opened.restore(position)
  assert_equal_batches(opened.read(8 * 100, 8), batches[100])
  opened_with_other_seed = loader.open_data(
    "mine", "bert_pairs", seed=1, **ROW_OPTIONS
  )
  opened_with_other_seed.restore(position)
  assert opened_with_other_seed.position()["first"] == 0


def test_a_small_group_joins_its_neighbour(text_folder):
  """With groups of 2, the last of 5 documents joins the second group."""
  path_of_five_documents = text_folder / "five.txt"
  path_of_five_documents.write_text("\n\n".join(["w1 w2 w3\nw4 w5"] * 5) + "\n")
  task = register_text(
    text_folder, inputs=str(path_of_five_documents), group_size=2, heldout=0.0
  )
  groups = list(task.source.documents.groups(0))
  assert [(begin, corpus.num_documents) for begin, corpus in groups] == [
    (0, 2),
    (2, 3),
  ]
  assert [group[0] for group in task.source.documents.groups(2)] == [2]


@pytest.mark.parametrize(
  "content, message",
  [("w1 w2\nw3\n", "at least 2 documents"), ("\n\n", "there is no text")],
)
def test_text_without_pairs_is_refused(text_folder, content, message):
  (text_folder / "bad.txt").write_text(content)
  register_text(text_folder, inputs=str(text_folder / "bad.txt"), heldout=0.0)
  opened = loader.open_data("mine", "bert_pairs", **ROW_OPTIONS)
  with pytest.raises(ValueError, match=message):
    opened.read(0, 1)
  with pytest.raises(ValueError, match="no document is held out"):
    loader.open_heldout("mine", "bert_pairs", **ROW_OPTIONS)


def test_a_seqio_source_of_text_gives_its_documents(text_folder):
  """Reads text files through a seqio source instead of their paths.

  In BERT's format the rows must equal those of the paths. Without `format`,
  each line that is not empty must be a document.
  """
  files = [str(text_folder / "a.txt"), str(text_folder / "b.txt")]
  source = seqio.TextLineDataSource({"train": files, "validation": files[:1]})
  register_text(text_folder)
  register_text(text_folder, "bert_format", inputs=source, format="bert")
  expected = read_rows("mine", "train", count=100)
  assert_equal_batches(read_rows("bert_format", "train", count=100), expected)
  task_of_line_documents = register_text(
    text_folder, "line_documents", inputs=source, validation=source
  )
  opened = task_of_line_documents.source.documents
  num_documents = sum(corpus.num_documents for _, corpus in opened.groups(0))
  lines = [
    line for path in files for line in Path(path).read_text().split("\n")
  ]
  nonempty_lines = [line for line in lines if line.strip()]
  assert num_documents == len(nonempty_lines)
  assert opened.validation.num_documents < num_documents

  def numbers(split, shuffle_files):
    import tensorflow as tf

    return tf.data.Dataset.range(3).map(lambda i: {"text": i})

  bad_source = seqio.FunctionDataSource(numbers, ["train"])
  register_text(text_folder, "bad", inputs=bad_source)
  with pytest.raises(ValueError, match="must yield strings"):
    loader.open_data("bad", "bert_pairs", **ROW_OPTIONS).read(0, 1)


def test_seqio_and_training_mix_the_same_rows(data_folder, tmp_path):
  """Mixes two folders with weights 3 and 1.

  A seqio mixture must give the rows of a `data.path` with these weights.
  """
  other_folder = write_prepared(
    tmp_path / "other", random_documents(50, 5), random_documents(9, 6)
  )
  pretraining.register_prepared("p", data_folder, **ROW_OPTIONS)
  pretraining.register_prepared("q", other_folder, **ROW_OPTIONS)
  seqio.MixtureRegistry.add("both", [("p", 3), ("q", 1)])
  mixture_rows = read_rows("both", "train", count=1000, seed=1, num_epochs=None)
  rows_of_p = set(
    sorted_batch_rows_as_bytes(
      read_rows("p", "train", count=1000, seed=1, num_epochs=None)
    )
  )
  rows_of_q = set(
    sorted_batch_rows_as_bytes(
      read_rows("q", "train", count=1000, seed=1, num_epochs=None)
    )
  )
  sorted_mixed = sorted_batch_rows_as_bytes(mixture_rows)
  assert all(row in rows_of_p or row in rows_of_q for row in sorted_mixed)
  assert 650 < sum(row in rows_of_p for row in sorted_mixed) < 850
  path = f"{data_folder}=3,{other_folder}=1"
  expected = loader.open_data(path, "bert_pairs", seed=1, **ROW_OPTIONS)
  opened = loader.open_data("both", "bert_pairs", seed=1, **ROW_OPTIONS)
  assert_equal_batches(opened.read(0, 300), expected.read(0, 300))
  heldout = loader.open_heldout("both", "bert_pairs", **ROW_OPTIONS)
  expected = loader.open_heldout(path, "bert_pairs", **ROW_OPTIONS)
  assert_equal_batches(
    heldout.read(0, len(heldout)), expected.read(0, len(expected))
  )


def test_the_vocabulary_encodes_and_decodes(text_folder):
  task = register_text(text_folder)
  vocabulary = task.output_features["input_ids"].vocabulary
  assert vocabulary.vocab_size == len(PIECES)
  sentence = "W3 unable W5. zebra [SEP]"
  expected = [
    PIECES.index(piece) for piece in ("w3", "un", "##able", "w5", ".", "[UNK]")
  ]
  ids = vocabulary.encode(sentence)
  assert ids[:6] == expected
  import tensorflow as tf

  encoded = vocabulary.encode_tf(tf.constant(sentence))
  assert encoded.dtype == tf.int32 and encoded.numpy().tolist() == ids
  # Decoding does not stop at the first [SEP].
  row = [2, 8, 3, 5, 6, 3, 0]
  assert vocabulary.decode(row) == "[CLS] w0 [SEP] unable [SEP] [PAD]"
  decoded_texts = vocabulary.decode_tf(tf.constant([row, row[::-1]])).numpy()
  assert decoded_texts[0].decode() == vocabulary.decode(row)
  assert decoded_texts[1].decode() == vocabulary.decode(row[::-1])
  other_task = register_text(text_folder, "again")
  assert vocabulary == other_task.output_features["mlm_ids"].vocabulary
  dataset = tf.data.Dataset.from_tensors("W1 W2").map(vocabulary.encode_tf)
  assert next(dataset.as_numpy_iterator()).tolist() == [9, 10]


@pytest.mark.parametrize(
  "path, message",
  [
    ("no_such_module_here:x", "there is no module no_such_module_here"),
    (
      "bert_jax.seqio_tasks.pretraining:nothing",
      "no seqio task or mixture 'nothing'",
    ),
    ("/no/such/folder", "there is no prepared folder /no/such/folder"),
  ],
)
def test_unknown_names_are_refused(path, message):
  with pytest.raises(ValueError, match=message):
    loader.open_data(path, "bert_pairs", **ROW_OPTIONS)


def test_without_seqio_the_extra_is_named():
  code = (
    "import sys; sys.modules['seqio'] = None\n"
    "from bert_jax.examples import loader\n"
    "loader.open_data('mine:task', 'bert_pairs')"
  )
  process = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True
  )
  assert re.search(
    r"UserError: mine:task: .*pip install 'bert_jax\[data\]'", process.stderr
  )


def run_three_steps(path, workdir):
  """Trains a tiny model for 3 steps; returns the lines of metrics.jsonl."""
  config = open_config("bert:base")
  config.total_steps, config.batch_size, config.micro_batches = 3, 8, 1
  config.model.update(variant="tiny", dtype="float32")
  config.data.update(path=path, **ROW_OPTIONS)
  config.log.every = 1
  config.evaluate.update(every=3, examples=16)
  train.run(config.to_dict() | {"phases": {}}, str(workdir))
  return logged_rows(workdir)


def test_a_run_trains_on_a_task(
  data_folder,
  text_folder,
  tmp_path,
  monkeypatch,
  capsys,
  compilation_cache,
  fast_compilation,
):
  module_path = tmp_path / "my_tasks.py"
  module_path.write_text(
    "from bert_jax.seqio_tasks import pretraining as tasks\n"
    f"tasks.register_prepared('wiki', {data_folder!r})\n"
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  expected = run_three_steps(data_folder, tmp_path / "folder")
  assert len(expected) == 4
  assert run_three_steps("my_tasks:wiki", tmp_path / "task") == expected
  capsys.readouterr()
  register_text(text_folder)
  lines_of_text_run = run_three_steps("mine", tmp_path / "text")
  assert [line["step"] for line in lines_of_text_run] == [1, 2, 3, 3]
  assert all(np.isfinite(line["mlm_loss"]) for line in lines_of_text_run)
  assert "unigram cross-entropy: " in capsys.readouterr().out


ENDLESS_PROGRAM = """
import sys
import seqio
from bert_jax.seqio_tasks import pretraining as tasks
name = sys.argv[1]
if name == "p":
  tasks.register_prepared("p", sys.argv[2], length=32)
else:
  tasks.register_text("t", sys.argv[2], sys.argv[3], length=32)
ds = seqio.get_mixture_or_task(name).get_dataset(num_epochs=None)
# The buffer is not full when the process ends. Without `_end_readers`, half of
# such processes never end.
iterator = iter(ds.batch(64).prefetch(500))
for _ in range(3):
  next(iterator)
"""


@pytest.mark.parametrize(
  "name", ["p", pytest.param("t", marks=pytest.mark.slow)]
)
def test_a_process_ends_while_an_endless_dataset_is_open(
  data_folder, text_folder, name
):
  inputs = data_folder if name == "p" else str(text_folder / "a.txt")
  arguments = [name, inputs, str(text_folder / "vocab.txt")]
  process = subprocess.run(
    [sys.executable, "-c", ENDLESS_PROGRAM, *arguments],
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert process.returncode == 0, process.stderr
