"""Tests runs of several objectives: restarts, exports and printed losses."""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from prepared import random_documents, write_prepared
from tiny_families import fast_jit
from tiny_runs import (
  EXTRA_VALUES,
  HALF_STEPS,
  TOTAL_STEPS,
  arrays_of_state,
  tiny_config,
  untimed_rows,
)

from bert_jax.examples import loader
from bert_jax.models import electra, from_config
from bert_jax.training import train
from bert_jax.weights import (
  checkpoint,
  generator_discriminator,
  model_folder,
  runs,
)

ROOT = str(pathlib.Path(__file__).parents[2])
QUICK_CONFIG_NAMES = ("gpt:gpt1",)
pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  path = tmp_path_factory.mktemp("data") / "prepared"
  return write_prepared(
    path, random_documents(20, seed=0), random_documents(6, seed=1)
  )


@pytest.fixture(scope="module")
def run_once(prepared, tmp_path_factory):
  """Returns a function: config's name -> (workdir, last state of its run)."""
  finished_runs = {}

  def run(name):
    if name not in finished_runs:
      workdir = str(tmp_path_factory.mktemp(name) / "run")
      finished_runs[name] = (
        workdir,
        train.run(tiny_config(name, prepared), workdir),
      )
    return finished_runs[name]

  return run


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(
      name, marks=[] if name in QUICK_CONFIG_NAMES else [pytest.mark.slow]
    )
    for name in EXTRA_VALUES
  ],
)
def test_restart_is_exact(name, prepared, run_once, tmp_path):
  """A run that restarts from its middle checkpoint equals the whole run.

  The last states and the lines of metrics.jsonl are compared.
  """
  workdir, state = run_once(name)
  restarted_run = str(tmp_path / "run")
  shutil.copytree(workdir, restarted_run)
  shutil.rmtree(f"{restarted_run}/checkpoints/{TOTAL_STEPS}")
  restarted_state = train.run(tiny_config(name, prepared), restarted_run)
  expected_arrays, restarted_arrays = (
    arrays_of_state(state),
    arrays_of_state(restarted_state),
  )
  assert expected_arrays.keys() == restarted_arrays.keys()
  for key, array in expected_arrays.items():
    np.testing.assert_array_equal(array, restarted_arrays[key], err_msg=key)
  assert untimed_rows(workdir) == untimed_rows(restarted_run)
  train_lines = [
    line for line in untimed_rows(restarted_run) if line["split"] == "train"
  ]
  assert [line["step"] for line in train_lines] == [*range(1, TOTAL_STEPS + 1)]
  stream = loader.open_data(seed=0, **tiny_config(name, prepared)["data"])
  sequence_ids = stream.read(0, 4 * TOTAL_STEPS)["sequence_ids"].reshape(
    TOTAL_STEPS, -1
  )
  np.testing.assert_allclose(
    [line["padding"] for line in train_lines],
    (sequence_ids == 0).mean(1),
    rtol=1e-6,
  )
  # The parameters changed after the checkpoint, so the restart had work to do.
  with checkpoint.Checkpointer.for_reading(workdir) as checkpointer:
    middle_params, _ = checkpointer.restore_params(
      HALF_STEPS, restarted_state.params
    )
  has_changed = jax.tree.map(
    lambda a, b: bool((a != b).any()), middle_params, state.params
  )
  assert any(jax.tree.leaves(has_changed))


def test_both_towers_are_exported(run_once):
  """Each exported tower has the outputs that it has in the run's model."""
  workdir, state = run_once("electra:small")
  both_towers = runs.read(workdir)
  ids = np.random.default_rng(0).integers(5, 60, (2, 9)).astype(np.int32)
  batch = dict(input_ids=ids, mlm_positions=np.array([[1, 2], [3, 8]]))
  config = tiny_config("electra:small", "")["model"]
  del config["family"]
  module = electra.ForPreTraining(electra.build(**config | {"vocab_size": 64}))
  outputs_of_both = fast_jit(module.apply)({"params": state.params}, batch)
  for tower, logits_name in (
    ("generator", "mlm_logits"),
    ("discriminator", "rtd"),
  ):
    tower_weights = generator_discriminator.extract_tower(both_towers, tower)
    tower_module = from_config.build(tower_weights.config)
    params = jax.tree.map(
      jnp.asarray, model_folder.unflatten(tower_weights.arrays)
    )
    outputs = fast_jit(tower_module.apply)({"params": params}, batch)
    name = logits_name if logits_name in outputs_of_both else "rtd_logits"
    outputs = outputs[name] if isinstance(outputs, dict) else outputs
    np.testing.assert_allclose(outputs, outputs_of_both[name], atol=1e-5)


def test_a_run_prints_its_held_out_losses(run_once, prepared, capsys):
  workdir, _ = run_once("electra:small")
  capsys.readouterr()
  train.run(tiny_config("electra:small", prepared), workdir)
  printed = capsys.readouterr().out
  last_heldout_line = [
    line for line in untimed_rows(workdir) if line["split"] == "heldout"
  ][-1]
  assert (
    f"held-out MLM loss: {last_heldout_line['mlm_loss']:.4f} nats" in printed
  )
  assert (
    f"held-out RTD loss: {last_heldout_line['rtd_loss']:.4f} nats" in printed
  )
  assert (
    f"share of replaced tokens: {last_heldout_line['rtd_replaced']:.4f}"
    in printed
  )
  assert last_heldout_line["loss"] == pytest.approx(
    last_heldout_line["mlm_loss"] + 50 * last_heldout_line["rtd_loss"], rel=1e-5
  )


@pytest.mark.slow
def test_a_run_with_a_boundary_head_is_exported_without_it(run_once):
  workdir, state = run_once("spanbert:base")
  weights = runs.read(workdir)
  assert not [path for path in weights.arrays if path.startswith("span/")]
  assert weights.config["head"] == {"pairs": False}
  word_table = state.params["encoder"]["embeddings"]["word"]["embedding"]
  np.testing.assert_array_equal(
    weights.arrays["encoder/embeddings/word/embedding"], word_table
  )
