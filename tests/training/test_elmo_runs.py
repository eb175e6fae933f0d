"""Tests runs of ELMo: restarts, evaluation, loading, published numbers."""

import copy
import pathlib
import shutil

import flax.linen as nn
import jax
import numpy as np
import pytest
from config_names import PRETRAINING_CONFIGS, config_file_text
from tiny_runs import set_values, untimed_rows

from bert_jax import models, objectives
from bert_jax.cli import configs
from bert_jax.corpus import prepare, reader
from bert_jax.devices import sharding
from bert_jax.examples import loader
from bert_jax.text import characters, words
from bert_jax.training import config as config_lib
from bert_jax.training import setup as building
from bert_jax.training import train
from bert_jax.weights import runs
from bert_jax.weights.load import open_model
from bert_jax.weights.run_config import flatten

ROOT = str(pathlib.Path(__file__).parents[2])
TOTAL_STEPS, HALF_STEPS = 6, 3
TINY_VALUES = {
  "total_steps": TOTAL_STEPS,
  "batch_size": 4,
  "data.streams": 4,
  "data.length": 6,
  "model.filters": [[1, 4], [2, 6]],
  "model.hidden": 8,
  "model.cell": 12,
  "model.highways": 1,
  "model.dtype": "float32",
  "objective.negatives": 10,
  "log.every": 1,
  "evaluate.every": HALF_STEPS,
  "evaluate.examples": 16,
  "checkpoint.every": HALF_STEPS,
}
# The sources are Peters et al. 2018, and two files of allenai/bilm-tf:
# bin/train_elmo.py and bilm/training.py.
PUBLISHED_VALUES = {
  "batch_size": 3 * 128,
  "data.length": 20,
  "data.streams": 3 * 128,
  "model.hidden": 512,
  "model.cell": 4096,
  "model.num_layers": 2,
  "model.highways": 2,
  "model.clip": 3.0,
  "model.dropout": 0.1,
  "objective.negatives": 8192,
  "objective.stateful": True,
  "optimizer.name": "adagrad",
  "optimizer.initial_accumulator": 1.0,
  "optimizer.gradient_scale": 20.0,
  "optimizer.clip_norm": 10.0,
  "schedule.name": "constant",
  "schedule.peak": 0.2,
}


def load_config(name, changes):
  config = configs.load_defaults(name)
  set_values(config, changes)
  config_lib.parse(config)
  return config


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
  """Returns a prepared folder; w20 and other0 to other29 are unknown words."""
  folder = tmp_path_factory.mktemp("elmo")
  vocabulary = [f"w{i}" for i in range(20)]
  documents = []
  for i in range(30):
    first_words = [(i * 7 + sentence) % 19 for sentence in range(5)]
    sentences = [
      " ".join(f"w{(first + offset) % 21}" for offset in range(8))
      for first in first_words
    ]
    documents.append("\n".join([*sentences, f"other{i} w3 ."]))
  (folder / "t.txt").write_text("\n\n".join(documents) + "\n")
  (folder / "w.txt").write_text(
    "\n".join([*words.SPECIAL_WORDS, *vocabulary]) + "\n"
  )
  output = str(folder / "prepared")
  prepare.prepare(
    str(folder / "t.txt"),
    str(folder / "w.txt"),
    output,
    heldout=0.2,
    processes=1,
    rules="spaces",
  )
  return output


@pytest.fixture(scope="module")
def finished_run(data_folder, tmp_path_factory, fast_compilation):
  """Returns the folder of a finished run, and the last state of the run."""
  workdir = tmp_path_factory.mktemp("run") / "run"
  config = load_config(
    "elmo:original", TINY_VALUES | {"data.path": data_folder}
  )
  return workdir, train.run(config, str(workdir))


def test_a_restarted_run_equals_an_uninterrupted_run(
  data_folder, finished_run, tmp_path
):
  """Restarts a run at step 3.

  The last state must be that of the uninterrupted run, with the states of the
  LSTMs.
  """
  workdir, state = finished_run
  run_copy = tmp_path / "run"
  shutil.copytree(workdir, run_copy)
  shutil.rmtree(run_copy / "checkpoints" / str(TOTAL_STEPS))
  config = load_config(
    "elmo:original", TINY_VALUES | {"data.path": data_folder}
  )
  new_state = train.run(config, str(run_copy))
  assert jax.tree.leaves(state.carry)
  jax.tree.map(np.testing.assert_array_equal, state, new_state)
  assert untimed_rows(workdir) == untimed_rows(run_copy)
  last_line = [
    row for row in untimed_rows(workdir) if row["split"] == "heldout"
  ][-1]
  for direction in ("forward", "backward"):
    assert last_line[f"{direction}_perplexity"] == pytest.approx(
      np.exp(last_line[f"{direction}_loss"]), rel=1e-5
    )
  train_rows = [row for row in untimed_rows(workdir) if row["split"] == "train"]
  metric_names = {"forward_loss", "backward_loss", "padding"}
  assert all(metric_names <= row.keys() for row in train_rows)
  # Rows of a stateful stream have no padding.
  assert {row["padding"] for row in train_rows} == {0.0}


def test_a_restart_in_the_second_phase_changes_nothing(data_folder, tmp_path):
  """Restarts a run at step 4, in phase 2.

  Rows have 5 words in phase 1 and 8 words in phase 2. The last state must be
  that of the run that was not restarted.
  """
  changes = TINY_VALUES | {"data.path": data_folder, "data.streams": 0}
  changes |= {"objective.negatives": 0, "checkpoint.every": 2}
  config = load_config("small:elmo_cpu", changes)
  del config["data"]["length"]
  scales = dict(batch_scale=1.0, micro_scale=1)
  config["phases"] = dict(
    phase1=dict(fraction=0.5, length=5, **scales),
    phase2=dict(fraction=0.5, length=8, **scales),
  )
  full_run_folder, run_copy = tmp_path / "whole", tmp_path / "again"
  state = train.run(copy.deepcopy(config), str(full_run_folder))
  shutil.copytree(full_run_folder, run_copy)
  shutil.rmtree(run_copy / "checkpoints" / str(TOTAL_STEPS))
  new_state = train.run(copy.deepcopy(config), str(run_copy))
  assert int(state.step) == TOTAL_STEPS
  jax.tree.map(np.testing.assert_array_equal, state, new_state)
  assert untimed_rows(full_run_folder) == untimed_rows(run_copy)
  setup = building.build(config_lib.parse(config))
  lengths = [
    feed.training_rows.read(0, 2)["char_ids"].shape[1] for feed in setup.feeds
  ]
  assert lengths == [5, 8]


def test_the_last_lines_compare_losses_with_guessing(
  data_folder, finished_run, capsys
):
  """The last lines must compare each loss with the unigram cross-entropy.

  It is the loss of guessing each word by its frequency.
  """
  workdir, _ = finished_run
  train.run(
    load_config("elmo:original", TINY_VALUES | {"data.path": data_folder}),
    str(workdir),
  )
  printed = capsys.readouterr().out
  counts = reader.open_prepared(data_folder).unigrams
  assert counts[words.BEGIN_ID] == counts[words.END_ID] > 0
  heldout = loader.open_heldout(
    data_folder, "elmo", length=6, streams=4, limit=16
  )
  batch = heldout.read(0, len(heldout))
  last_line = [
    row for row in untimed_rows(workdir) if row["split"] == "heldout"
  ][-1]
  for direction, targets, excluded_id in (
    ("forward", "next", words.BEGIN_ID),
    ("backward", "previous", words.END_ID),
  ):
    counts_plus_one = (
      np.where(np.arange(len(counts)) == excluded_id, 0, counts) + 1
    )
    unigram_loss = -np.log(counts_plus_one / counts_plus_one.sum())[
      batch[f"{targets}_ids"]
    ].mean()
    assert (
      f"held-out {direction} loss: {last_line[f'{direction}_loss']:.4f} nats,"
      f" perplexity {last_line[f'{direction}_perplexity']:.2f}; unigram"
      f" cross-entropy: {unigram_loss:.4f}"
    ) in printed


def test_a_run_is_opened_as_an_encoder(finished_run):
  """The opened model has no softmax, and gives the vectors of the run."""
  workdir, state = finished_run
  opened_model = open_model(str(workdir))
  assert set(opened_model.params) == {"encoder"}
  batch = characters.make_batch([["w1", "never", "seen"], ["w3"]])
  vectors = opened_model.module.apply({"params": opened_model.params}, batch)[
    "layers"
  ]
  assert vectors.shape == (2, 3, 5, 16)
  encoder = opened_model.module.encoder
  expected_vectors = encoder.apply({"params": state.params["encoder"]}, **batch)
  np.testing.assert_allclose(vectors, expected_vectors, atol=1e-5)
  encoder_weights = runs.read(str(workdir))
  assert encoder_weights.config["task"] == "encoder"
  assert all(name.startswith("encoder/") for name in encoder_weights.arrays)
  assert opened_model.tokenizer.encode("w1 w2").tokens == ["w1", "w2"]


def test_the_config_has_the_published_numbers():
  config = load_config("elmo:original", {})
  values = flatten(config)
  assert {key: values[key] for key in PUBLISHED_VALUES} == PUBLISHED_VALUES
  # The steps are 10 epochs of the training text of the 1B Word Benchmark.
  assert values["total_steps"] == 10 * (768_648_884 // (384 * 20))
  with pytest.raises(ValueError, match="streams=384 must be batch_size=8"):
    load_config("elmo:original", {"batch_size": 8})
  with pytest.raises(ValueError, match="micro_batches=1"):
    load_config("elmo:original", {"micro_batches": 2})


def test_every_config_of_elmo_builds(data_folder):
  names = [name for name in PRETRAINING_CONFIGS if "elmo" in name]
  assert len(names) == 3
  for name in names:
    for word in ("Paper:", "hardware:", "Command:"):
      assert word in config_file_text(name), f"{name}: its file has no {word!r}"
    changes = dict(TINY_VALUES, **{"data.path": data_folder})
    if name != "elmo:original":
      changes |= {"data.streams": 0, "objective.negatives": 0}
    config = load_config(name, changes)
    setup = building.build(config_lib.parse(config))
    assert setup.config.model.vocab_size == 23
    assert all(
      feed.training_rows.read(0, 8)["char_ids"].size for feed in setup.feeds
    )


def test_the_published_model_has_93_6_million_parameters():
  """Counts the parameters without the softmax.

  Every axis of every parameter must have a sharding rule.
  """
  model = load_config("elmo:original", {"model.vocab_size": 793_471})["model"]
  objective = objectives.build("elmo", model, options={})
  make_shape = jax.ShapeDtypeStruct
  batch = {"char_ids": make_shape((2, 4, 50), "int32")}
  batch["sequence_ids"] = make_shape((2, 4), "int32")
  for name in ("next", "previous"):
    batch[f"{name}_ids"] = make_shape((2, 4), "int32")
    batch[f"{name}_weights"] = make_shape((2, 4), "float32")
  boxed_params = jax.eval_shape(objective.init, jax.random.key(0), batch)
  leaves = jax.tree.leaves(boxed_params, is_leaf=lambda x: hasattr(x, "names"))
  axis_names = {name for leaf in leaves for name in leaf.names} - {None}
  assert axis_names <= dict(sharding.AXIS_RULES).keys()
  params = nn.unbox(boxed_params)
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(params["encoder"]))
  assert num_parameters / 1e6 == pytest.approx(93.6, abs=0.05)
  assert params["softmax"]["embedding"].shape == (793_471, 512)
  assert models.family("elmo").VARIANTS["original"]["cell"] == 4096
