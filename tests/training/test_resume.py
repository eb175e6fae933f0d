"""A killed run, started again, equals one that was never interrupted."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from prepared import random_documents, write_prepared
from tiny_runs import rows

from bert_jax.training import logging

pytestmark = pytest.mark.usefixtures("compiled", "unoptimized")
ROOT = str(pathlib.Path(__file__).parents[2])
OVERRIDES = {
  "model.variant": "tiny",
  "model.dtype": "float32",
  "model.hidden": 32,
  "model.mlp": 64,
  "batch_size": 8,
  "micro_batches": 2,
  "phases.phase1.length": 32,
  "phases.phase1.max_predictions": 5,
  # From step 108 on, with two rows where there were one.
  "phases.phase2.length": 48,
  "phases.phase2.max_predictions": 7,
  "phases.phase2.batch_scale": 2.0,
  "total_steps": 120,
  "log.every": 7,
  "checkpoint.every": 10,
  "evaluate.every": 25,
  "evaluate.examples": 0,
  "schedule.peak": 1e-3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """About 45 examples an epoch: 120 steps of 8 cross many epochs."""
  path = tmp_path_factory.mktemp("data") / "prepared"
  return write_prepared(path, random_documents(60, 0), random_documents(9, 1))


def start(folder, workdir, **overrides):
  flags = OVERRIDES | {"data.path": folder} | overrides
  return subprocess.Popen(
    [
      sys.executable,
      "-m",
      "bert_jax",
      "train",
      "--config=configs/bert.py:base",
      f"--workdir={workdir}",
      *(f"--config.{key}={value}" for key, value in flags.items()),
    ],
    cwd=ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def finish(process):
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  return output


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "undisturbed"
  finish(start(folder, workdir))
  return workdir


def arrays(workdir, step):
  """Every array of the train state of a checkpoint."""
  import orbax.checkpoint as ocp

  path = os.path.join(workdir, "checkpoints", str(step), "state")
  tree = ocp.StandardCheckpointer().restore(path)
  return {
    jax.tree_util.keystr(k): np.asarray(v)
    for k, v in jax.tree_util.tree_leaves_with_path(tree)
  }


def assert_same_run(a, b):
  assert rows(a) == rows(b)
  total = OVERRIDES["total_steps"]
  one, two = arrays(a, total), arrays(b, total)
  assert one.keys() == two.keys() and len(one) > 60
  for name in one:
    np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def wait_for_step(process, workdir, step):
  """Waits until a row of at least this step is written."""
  path = os.path.join(workdir, "metrics.jsonl")
  while process.poll() is None:
    if any(row["step"] >= step for row in logging.read_rows(path)):
      return
    time.sleep(0.01)
  raise AssertionError(process.communicate()[0])


def kill_and_finish(folder, workdir, steps, seed):
  """SIGKILLs a run a moment after each of `steps`, then lets it finish."""
  rng = random.Random(seed)
  for step in steps:
    process = start(folder, workdir)
    wait_for_step(process, workdir, step)
    time.sleep(rng.uniform(0, 0.4))
    process.kill()
    process.communicate()
  finish(start(folder, workdir))


def test_rows_of_an_undisturbed_run(undisturbed):
  """A24, A25: every step once, the schedule by optimizer steps."""
  train = [r for r in rows(undisturbed) if r["split"] == "train"]
  assert [r["step"] for r in train] == [*range(7, 120, 7), 120]
  # The row of step s shows the rate of 0-based step s - 1: warm-up is 1% of
  # 120 steps, so the decay counts from step 0 throughout.
  for row in train:
    expected = 1e-3 * (1 - (row["step"] - 1) / 120)
    assert row["learning_rate"] == pytest.approx(expected, rel=1e-5)
  state = arrays(undisturbed, 120)
  counts = [v for k, v in state.items() if "count" in k or "step" in k]
  assert counts and all(c == 120 for c in counts)


def test_killed_run_equals_undisturbed(folder, undisturbed, tmp_path):
  # Once inside each phase.
  kill_and_finish(folder, tmp_path / "run", [35, 112], seed=0)
  assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_often_killed_run(folder, undisturbed, tmp_path, seed):
  steps = sorted(random.Random(seed).sample(range(1, 110), 3))
  kill_and_finish(folder, tmp_path / "run", steps, seed)
  assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_sigterm_saves_and_continues(folder, undisturbed, tmp_path):
  process = start(folder, tmp_path / "run")
  wait_for_step(process, tmp_path / "run", 28)
  process.send_signal(signal.SIGTERM)
  output = finish(process)
  assert "the same command continues" in output
  stopped = max(int(s) for s in os.listdir(tmp_path / "run" / "checkpoints"))
  assert 28 <= stopped < 120
  assert f"continuing from step {stopped}" in finish(
    start(folder, tmp_path / "run")
  )
  assert_same_run(tmp_path / "run", undisturbed)


def test_latest_and_best_are_kept(undisturbed):
  """A23 on a run: the newest two and the best of the last phase."""
  heldout = [r for r in rows(undisturbed) if r["split"] == "heldout"]
  assert [r["step"] for r in heldout] == [25, 50, 75, 100, 120]
  last = [row for row in heldout if row["step"] > 108]
  best = min(last, key=lambda r: r["loss"])["step"]
  steps = {int(s) for s in os.listdir(undisturbed / "checkpoints")}
  assert steps == {110, 120, best}


def test_finished_run_says_so_again(folder, undisturbed):
  before = rows(undisturbed)
  output = finish(start(folder, undisturbed))
  assert "continuing from step 120" in output
  assert "held-out MLM loss" in output
  assert rows(undisturbed) == before


def test_restart_with_another_config_is_refused(folder, undisturbed):
  process = start(folder, undisturbed, **{"schedule.peak": 5e-4})
  output, _ = process.communicate()
  assert process.returncode == 1
  assert "config.schedule.peak: 0.001 -> 0.0005" in output
  assert "Traceback" not in output
  config = json.loads((undisturbed / "config.json").read_text())
  assert config["schedule"]["peak"] == 1e-3


@pytest.mark.slow
def test_init_from_takes_the_parameters_only(folder, undisturbed, tmp_path):
  output = finish(
    start(
      folder,
      tmp_path / "run",
      init_from=undisturbed,
      total_steps=1,
      # Too small to change any float32 parameter.
      **{"schedule.peak": 1e-30},
    )
  )
  assert f"parameters from {undisturbed}\n" in output
  assert "from step 120 of that run; this run begins at step 0" in output
  old, new = arrays(undisturbed, 120), arrays(tmp_path / "run", 1)
  assert new["['step']"] == 1
  for name in old:
    if name.startswith("['params']"):
      np.testing.assert_array_equal(old[name], new[name])
