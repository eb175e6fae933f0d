"""Tests that a killed and restarted run equals an uninterrupted run."""

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
from tiny_runs import untimed_rows

from bert_jax.training import logging

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")
ROOT = str(pathlib.Path(__file__).parents[2])
CONFIG_VALUES = {
  "model.variant": "tiny",
  "model.dtype": "float32",
  "model.hidden": 32,
  "model.mlp": 64,
  "batch_size": 8,
  "micro_batches": 2,
  "phases.phase1.length": 32,
  "phases.phase1.max_predictions": 5,
  # Phase 1 ends after step 108. The batches of phase 2 have twice as many rows.
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
def data_folder(tmp_path_factory):
  """Returns a prepared folder with few examples: a run has many epochs."""
  path = tmp_path_factory.mktemp("data") / "prepared"
  return write_prepared(path, random_documents(60, 0), random_documents(9, 1))


def start_process(data_folder, workdir, **overrides):
  """Starts `bert_jax train` in a child process."""
  settings = CONFIG_VALUES | {"data.path": data_folder} | overrides
  return subprocess.Popen(
    [
      sys.executable,
      "-m",
      "bert_jax",
      "train",
      "--config=configs/bert.py:base",
      f"--workdir={workdir}",
      *(f"--config.{key}={setting}" for key, setting in settings.items()),
    ],
    cwd=ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def wait_for_output(process):
  """Waits until a process has ended with status 0; returns its output."""
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  return output


@pytest.fixture(scope="module")
def uninterrupted_run(data_folder, tmp_path_factory):
  """Returns the folder of a run that is not interrupted."""
  workdir = tmp_path_factory.mktemp("runs") / "uninterrupted"
  wait_for_output(start_process(data_folder, workdir))
  return workdir


def arrays_of_checkpoint(workdir, step):
  """Returns {path: array} for the train state of a checkpoint."""
  import orbax.checkpoint as ocp

  path = workdir / "checkpoints" / str(step) / "state"
  tree = ocp.StandardCheckpointer().restore(path)
  return {
    jax.tree_util.keystr(key_path): np.asarray(array)
    for key_path, array in jax.tree_util.tree_leaves_with_path(tree)
  }


def assert_equal_runs(a, b):
  assert untimed_rows(a) == untimed_rows(b)
  total_steps = CONFIG_VALUES["total_steps"]
  arrays_a, arrays_b = (
    arrays_of_checkpoint(a, total_steps),
    arrays_of_checkpoint(b, total_steps),
  )
  assert arrays_a.keys() == arrays_b.keys() and len(arrays_a) > 60
  for name, array in arrays_a.items():
    np.testing.assert_array_equal(array, arrays_b[name], err_msg=name)


def wait_for_step(process, workdir, step):
  """Waits until a running process has logged this step or a later one."""
  path = workdir / "metrics.jsonl"
  while process.poll() is None:
    if any(row["step"] >= step for row in logging.read_rows(path)):
      return
    time.sleep(0.01)
  raise AssertionError(process.communicate()[0])


def kill_and_finish(data_folder, workdir, steps, seed):
  """Starts a run, kills it once after each of `steps`, and lets it finish."""
  rng = random.Random(seed)
  for step in steps:
    process = start_process(data_folder, workdir)
    wait_for_step(process, workdir, step)
    time.sleep(rng.uniform(0, 0.4))
    process.kill()
    process.communicate()
  wait_for_output(start_process(data_folder, workdir))


def checkpoint_steps(workdir):
  return {int(path.name) for path in (workdir / "checkpoints").iterdir()}


def test_every_logged_step_has_one_row(uninterrupted_run):
  """Reads the rows of metrics.jsonl.

  The row of a step must have the learning rate of this step's update.
  """
  train_rows = [
    row for row in untimed_rows(uninterrupted_run) if row["split"] == "train"
  ]
  assert [row["step"] for row in train_rows] == [*range(7, 120, 7), 120]
  # Rows count steps from 1, and the schedule counts from 0, so the row of step
  # s has the rate schedule(s - 1). The warm-up is 1% of 120 steps, so all rows
  # are in the decay.
  for row in train_rows:
    expected_rate = 1e-3 * (1 - (row["step"] - 1) / 120)
    assert row["learning_rate"] == pytest.approx(expected_rate, rel=1e-5)
  arrays = arrays_of_checkpoint(uninterrupted_run, 120)
  step_counts = [
    array for name, array in arrays.items() if "count" in name or "step" in name
  ]
  assert step_counts and all(count == 120 for count in step_counts)


def test_a_killed_run_equals_an_uninterrupted_one(
  data_folder, uninterrupted_run, tmp_path
):
  # Kill the run once in each phase.
  kill_and_finish(data_folder, tmp_path / "run", [35, 112], seed=0)
  assert_equal_runs(tmp_path / "run", uninterrupted_run)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_run_killed_three_times_equals_an_uninterrupted_one(
  data_folder, uninterrupted_run, tmp_path, seed
):
  steps = sorted(random.Random(seed).sample(range(1, 110), 3))
  kill_and_finish(data_folder, tmp_path / "run", steps, seed)
  assert_equal_runs(tmp_path / "run", uninterrupted_run)


@pytest.mark.slow
def test_a_run_stopped_by_sigterm_continues(
  data_folder, uninterrupted_run, tmp_path
):
  process = start_process(data_folder, tmp_path / "run")
  wait_for_step(process, tmp_path / "run", 28)
  process.send_signal(signal.SIGTERM)
  output = wait_for_output(process)
  assert "the same command continues" in output
  last_step = max(checkpoint_steps(tmp_path / "run"))
  assert 28 <= last_step < 120
  assert f"continuing from step {last_step}" in wait_for_output(
    start_process(data_folder, tmp_path / "run")
  )
  assert_equal_runs(tmp_path / "run", uninterrupted_run)


def test_the_newest_and_the_best_checkpoints_are_kept(uninterrupted_run):
  """A run keeps its two newest checkpoints, and the best one of phase 2."""
  heldout_rows = [
    row for row in untimed_rows(uninterrupted_run) if row["split"] == "heldout"
  ]
  assert [row["step"] for row in heldout_rows] == [25, 50, 75, 100, 120]
  # In phase 2, only step 120 is evaluated, so its checkpoint is the best.
  rows_of_phase2 = [row for row in heldout_rows if row["step"] > 108]
  best_step = min(rows_of_phase2, key=lambda r: r["loss"])["step"]
  assert checkpoint_steps(uninterrupted_run) == {110, 120, best_step}


def test_a_finished_run_prints_its_last_lines_again(
  data_folder, uninterrupted_run
):
  rows_before = untimed_rows(uninterrupted_run)
  output = wait_for_output(start_process(data_folder, uninterrupted_run))
  assert "continuing from step 120" in output
  assert "held-out MLM loss" in output
  assert untimed_rows(uninterrupted_run) == rows_before


def test_a_restart_with_a_different_config_is_refused(
  data_folder, uninterrupted_run
):
  process = start_process(
    data_folder, uninterrupted_run, **{"schedule.peak": 5e-4}
  )
  output, _ = process.communicate()
  assert process.returncode == 1
  assert "config.schedule.peak: 0.001 -> 0.0005" in output
  assert "Traceback" not in output
  config = json.loads((uninterrupted_run / "config.json").read_text())
  assert config["schedule"]["peak"] == 1e-3


@pytest.mark.slow
def test_init_from_takes_only_the_parameters(
  data_folder, uninterrupted_run, tmp_path
):
  output = wait_for_output(
    start_process(
      data_folder,
      tmp_path / "run",
      init_from=uninterrupted_run,
      total_steps=1,
      # This rate is too small to change any float32 parameter.
      **{"schedule.peak": 1e-30},
    )
  )
  assert f"parameters from {uninterrupted_run}\n" in output
  assert "from step 120 of its run; this run begins at step 0" in output
  old_arrays, new_arrays = (
    arrays_of_checkpoint(uninterrupted_run, 120),
    arrays_of_checkpoint(tmp_path / "run", 1),
  )
  assert new_arrays["['step']"] == 1
  for name in old_arrays:
    if name.startswith("['params']"):
      np.testing.assert_array_equal(old_arrays[name], new_arrays[name])
