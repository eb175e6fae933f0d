"""Runs of every objective: exact restarts, both exports, their last lines."""

import os
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from prepared import random_documents, write_prepared
from tiny_families import jit
from tiny_runs import EXTRA, HALF, TOTAL, arrays, rows, tiny

from bert_jax.examples import loader
from bert_jax.models import electra
from bert_jax.training import train
from bert_jax.weights import (
  checkpoint,
  generator_discriminator,
  model_folder,
  runs,
)

ROOT = str(pathlib.Path(__file__).parents[2])
QUICK = ("gpt:gpt1",)
pytestmark = pytest.mark.usefixtures("compiled", "unoptimized")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  path = tmp_path_factory.mktemp("data") / "prepared"
  return write_prepared(path, random_documents(20, 0), random_documents(6, 1))


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
  """Runs a config once: name -> (workdir, last state)."""
  done = {}

  def run(name):
    if name not in done:
      workdir = str(tmp_path_factory.mktemp(name) / "run")
      done[name] = workdir, train.run(tiny(name, prepared), workdir)
    return done[name]

  return run


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
    for name in EXTRA
  ],
)
def test_restart_is_exact(name, prepared, finished, tmp_path):
  """From the checkpoint of the middle: rows, parameters, optimizer, samples."""
  workdir, state = finished(name)
  again = str(tmp_path / "run")
  shutil.copytree(workdir, again)
  shutil.rmtree(os.path.join(again, "checkpoints", str(TOTAL)))
  restarted = train.run(tiny(name, prepared), again)
  expected, got = arrays(state), arrays(restarted)
  assert expected.keys() == got.keys()
  for key, x in expected.items():
    np.testing.assert_array_equal(x, got[key], err_msg=key)
  assert rows(workdir) == rows(again)
  logged = [row for row in rows(again) if row["split"] == "train"]
  assert [row["step"] for row in logged] == [*range(1, TOTAL + 1)]
  data = loader.open_data(seed=0, **tiny(name, prepared)["data"])
  read = data.read(0, 4 * TOTAL)["sequence_ids"].reshape(TOTAL, -1)
  np.testing.assert_allclose(
    [row["padding"] for row in logged], (read == 0).mean(1), rtol=1e-6
  )
  # Something was learnt after the checkpoint.
  with checkpoint.Checkpointer.of_run(workdir) as saver:
    middle, _ = saver.restore_params(HALF, restarted.params)
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), middle, state.params)
  assert any(jax.tree.leaves(moved))


def test_both_towers_are_exported(finished):
  """Each tower by itself gives what the run's model gives."""
  workdir, state = finished("electra:small")
  both = runs.read(workdir)
  ids = np.random.default_rng(0).integers(5, 60, (2, 9)).astype(np.int32)
  batch = dict(input_ids=ids, mlm_positions=np.array([[1, 2], [3, 8]]))
  config = tiny("electra:small", "")["model"]
  del config["family"]
  module = electra.ForPreTraining(electra.build(**config | {"vocab_size": 64}))
  whole = jit(module.apply)({"params": state.params}, batch)
  for tower, logits in (("generator", "mlm_logits"), ("discriminator", "rtd")):
    part = generator_discriminator.split(both, tower)
    alone = model_folder.module_of(part.config)
    params = jax.tree.map(jnp.asarray, model_folder.unflatten(part.arrays))
    found = jit(alone.apply)({"params": params}, batch)
    name = logits if logits in whole else "rtd_logits"
    found = found[name] if isinstance(found, dict) else found
    np.testing.assert_allclose(found, whole[name], atol=1e-5)


def test_last_lines_of_a_run(finished, prepared, capsys):
  workdir, _ = finished("electra:small")
  capsys.readouterr()
  train.run(tiny("electra:small", prepared), workdir)
  printed = capsys.readouterr().out
  last = [row for row in rows(workdir) if row["split"] == "heldout"][-1]
  assert f"held-out MLM loss: {last['mlm_loss']:.4f} nats" in printed
  assert f"held-out RTD loss: {last['rtd_loss']:.4f} nats" in printed
  assert f"replaced share, {last['rtd_replaced']:.4f}" in printed
  assert last["loss"] == pytest.approx(
    last["mlm_loss"] + 50 * last["rtd_loss"], rel=1e-5
  )


@pytest.mark.slow
def test_a_run_with_a_boundary_head_is_exported_without(finished):
  workdir, state = finished("spanbert:base")
  weights = runs.read(workdir)
  assert not [path for path in weights.arrays if path.startswith("span/")]
  assert weights.config["head"] == {"pairs": False}
  table = state.params["encoder"]["embeddings"]["word"]["embedding"]
  np.testing.assert_array_equal(
    weights.arrays["encoder/embeddings/word/embedding"], table
  )
