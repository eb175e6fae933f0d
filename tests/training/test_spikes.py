"""Tests runs in which the loss of a step is suddenly high (a spike).

A run skips such a step or stops before it. If the model diverges, no later
checkpoint is the best one.
"""

import copy
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from prepared import random_documents, write_prepared
from tiny_runs import arrays_of_state, tiny_config, untimed_rows

from bert_jax.training import config as config_lib
from bert_jax.training import logging, optim, train
from bert_jax.training import setup as building
from bert_jax.weights import checkpoint

TOTAL_STEPS = 12
# The fixture `exploding_rate` makes the update of step 6 too large. The fixture
# `bad_batch` makes the loss of step 7 too high.
STEP_BEFORE_SPIKE = 6

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("data") / "prepared"
  return write_prepared(path, random_documents(20, 0), random_documents(6, 1))


def config_of(prepared, action="none", factor=1.5):
  """Returns the config of a run that logs and saves every two steps."""
  config = tiny_config("gpt:gpt1", prepared)
  config |= dict(
    total_steps=TOTAL_STEPS, spike=dict(action=action, factor=factor)
  )
  config["log"]["every"] = 2
  config["evaluate"] |= dict(every=4, examples=8)
  config["checkpoint"] |= dict(every=2, keep=2)
  config_lib.parse(config)
  return config


@pytest.fixture
def exploding_rate(monkeypatch):
  """Makes the learning rate of step 6 so high that the model diverges."""
  original_build_schedule = optim.build_schedule

  def build(total_steps, **options):
    schedule = original_build_schedule(total_steps, **options)
    return lambda step: jnp.where(
      step == STEP_BEFORE_SPIKE - 1, 100.0, schedule(step)
    )

  monkeypatch.setattr(optim, "build_schedule", build)


def best_and_kept_steps(workdir):
  with checkpoint.Checkpointer.for_reading(str(workdir)) as checkpoints:
    return checkpoints.best_step(), sorted(checkpoints._manager.all_steps())


def test_a_diverged_checkpoint_is_never_the_best(
  data_folder, tmp_path, exploding_rate, capsys
):
  """Evaluates steps 4, 8 and 12; the update of step 6 is too large.

  The best step must be 4, because the model has diverged at steps 8 and 12.
  """
  train.run(config_of(data_folder), str(tmp_path / "run"))
  assert best_and_kept_steps(tmp_path / "run") == (4, [4, 10, 12])
  printed = capsys.readouterr().out
  assert printed.count("never counts as the best") == 2
  # If only diverged steps were evaluated, there is no best checkpoint.
  config = config_of(data_folder)
  config["evaluate"]["every"] = 8
  train.run(config, str(tmp_path / "late"))
  assert best_and_kept_steps(tmp_path / "late") == (None, [10, 12])
  with (
    checkpoint.Checkpointer.for_reading(str(tmp_path / "late")) as checkpoints,
    pytest.raises(ValueError, match="no best checkpoint"),
  ):
    checkpoints.find_step("best")


def test_a_run_stops_before_a_spike(data_folder, tmp_path, exploding_rate):
  with pytest.raises(
    FloatingPointError, match="step 7: .*spike.*init_from=RUN@"
  ):
    train.run(config_of(data_folder, action="stop"), str(tmp_path / "run"))
  best_step, kept_steps = best_and_kept_steps(tmp_path / "run")
  assert best_step == 4 and max(kept_steps) == 6


def test_a_run_that_skips_ends_if_the_model_has_diverged(
  data_folder, tmp_path, exploding_rate
):
  with pytest.raises(FloatingPointError, match="steps 7 to 8: every loss is"):
    train.run(config_of(data_folder, action="skip"), str(tmp_path / "run"))


@pytest.fixture
def bad_batch(monkeypatch):
  """Multiplies the training loss of step 7 by 100."""
  from bert_jax.objectives import lm

  original_build_lm = lm.build

  def build(model):
    objective = original_build_lm(model)

    def loss(params, teacher_params, carry, batch, rng, train):
      sums, carry = objective.loss(
        params, teacher_params, carry, batch, rng, train
      )
      # The random key of a step is made from its number, counted from 0.
      key = jax.random.fold_in(jax.random.key(0), STEP_BEFORE_SPIKE)
      is_bad = (jax.random.key_data(rng) == jax.random.key_data(key)).all()
      factor = jnp.where(is_bad & train, 100.0, 1.0)
      return sums | {"lm_loss": sums["lm_loss"] * factor}, carry

    return objective._replace(loss=loss)

  from bert_jax import objectives

  monkeypatch.setitem(objectives.OBJECTIVES, "lm", build)


@pytest.mark.slow
def test_a_skipped_step_changes_nothing_and_is_logged(
  data_folder, tmp_path, bad_batch, capsys
):
  config = config_of(data_folder, action="skip")
  config["seed"] = 0
  config["checkpoint"] |= dict(every=1, keep=TOTAL_STEPS)
  run_folder = tmp_path / "run"
  train.run(copy.deepcopy(config), str(run_folder))
  assert f"skipped: the updates of steps {STEP_BEFORE_SPIKE + 1} (loss" in (
    capsys.readouterr().out
  )
  logged_rows = [
    row for row in untimed_rows(run_folder) if row["split"] == "train"
  ]
  skipped_by_step = {
    row["step"]: row.get("skipped_steps") for row in logged_rows
  }
  assert skipped_by_step == {
    step: [STEP_BEFORE_SPIKE + 1] if step == 8 else None
    for step in range(2, 13, 2)
  }
  # The logged means leave out the skipped step.
  assert all(row["loss"] < 10 for row in logged_rows)
  setup = building.build(config_lib.parse(copy.deepcopy(config)))
  with checkpoint.Checkpointer.for_reading(str(run_folder)) as checkpoints:
    params_at_6, params_at_7, params_at_8 = (
      checkpoints.restore_params(step, setup.checkpoint_layout.params)[0]
      for step in (
        STEP_BEFORE_SPIKE,
        STEP_BEFORE_SPIKE + 1,
        STEP_BEFORE_SPIKE + 2,
      )
    )
  jax.tree.map(np.testing.assert_array_equal, params_at_6, params_at_7)
  params_of_steps_7_and_8 = zip(
    jax.tree.leaves(params_at_7), jax.tree.leaves(params_at_8), strict=True
  )
  assert all(
    not np.array_equal(array_at_7, array_at_8)
    for array_at_7, array_at_8 in params_of_steps_7_and_8
  )
  # A run that restarts from step 6 or 7 gives equal rows and parameters.
  for step in (STEP_BEFORE_SPIKE, STEP_BEFORE_SPIKE + 1):
    run_copy = tmp_path / f"again{step}"
    shutil.copytree(run_folder, run_copy)
    for path in (run_copy / "checkpoints").iterdir():
      if path.name.isdigit() and int(path.name) > step:
        shutil.rmtree(path)
    train.run(copy.deepcopy(config), str(run_copy))
    assert untimed_rows(run_copy) == untimed_rows(run_folder)
    with checkpoint.Checkpointer.for_reading(str(run_copy)) as checkpoints:
      last_params = checkpoints.restore_params(
        TOTAL_STEPS, setup.checkpoint_layout.params
      )[0]
    with checkpoint.Checkpointer.for_reading(str(run_folder)) as checkpoints:
      expected_params = checkpoints.restore_params(
        TOTAL_STEPS, setup.checkpoint_layout.params
      )[0]
    jax.tree.map(np.testing.assert_array_equal, last_params, expected_params)


@pytest.mark.slow
def test_skipping_changes_nothing_without_a_spike(data_folder, tmp_path):
  states = [
    train.run(
      config_of(data_folder, action=action, factor=50.0), str(tmp_path / action)
    )
    for action in ("none", "skip")
  ]
  expected_arrays, new_arrays = map(arrays_of_state, states)
  for name, array in expected_arrays.items():
    np.testing.assert_array_equal(array, new_arrays[name], err_msg=name)
  assert untimed_rows(tmp_path / "none") == untimed_rows(tmp_path / "skip")


@pytest.mark.parametrize(
  "spike, pattern",
  [
    (dict(action="halt"), "spike.action='halt' is not one of none, stop, skip"),
    (dict(action="skip", factor=1.0), "spike.factor=1.0 must be above 1"),
    (dict(action="skip", factr=2.0), "config.spike.factr is not a key"),
  ],
)
def test_bad_options_are_refused(data_folder, spike, pattern):
  config = config_of(data_folder) | {"spike": spike}
  with pytest.raises(ValueError, match=pattern):
    building.build(config_lib.parse(config))
  with pytest.raises(ValueError, match="config.spike compares.*log.every"):
    config = config_of(data_folder, action="skip")
    config["log"]["every"] = 0
    building.build(config_lib.parse(config))


def test_the_limit_is_a_multiple_of_the_last_logged_loss():
  detector = logging.SpikeDetector("skip", factor=1.5)
  assert detector.value_to_save() is None and detector.step_arguments() == (
    np.inf,
  )
  detector.set_max_loss(4.0)
  assert detector.value_to_save() == 6.0 and detector.step_arguments() == (
    np.float32(6.0),
  )
  assert (
    logging.SpikeDetector(
      "skip", factor=1.5, max_loss=detector.value_to_save()
    ).max_loss
    == 6.0
  )
  assert logging.SpikeDetector().step_arguments() == ()
  assert json.dumps(detector.value_to_save()) == "6.0"
