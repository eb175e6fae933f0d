"""Tests the strict restore of checkpoints, and which checkpoints are kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.state import TrainState
from bert_jax.weights.checkpoint import Checkpointer


def make_state(**layers):
  layers = layers or {"l0": 3, "l1": 3}
  params = {
    name: {"kernel": jnp.arange(size) * 1.0} for name, size in layers.items()
  }
  return TrainState(jnp.int32(4), params, opt_state={"mu": params}, carry={})


def test_newest_and_best_are_kept_and_survive_a_restart(tmp_path):
  """A run whose loss becomes worse resumes from its last step, not its best."""
  state = make_state()
  with Checkpointer(str(tmp_path), keep=1) as checkpoints:
    for step, loss in ((100, 0.6), (200, 0.7), (300, 0.8), (400, 0.9)):
      state = state.replace(step=jnp.int32(step))
      checkpoints.save(step, state, meta={"best": 0.6}, heldout_loss=loss)
    checkpoints.save(
      450,
      state.replace(step=jnp.int32(450)),
      meta={"best": 0.6},
      heldout_loss=None,
    )
  with Checkpointer(str(tmp_path), keep=1) as checkpoints:
    assert checkpoints.latest_step() == 450
    assert checkpoints.best_step() == 100
    for step in (100, 450):
      restored, meta = checkpoints.restore(step, state)
      assert int(restored.step) == step
      assert meta["best"] == 0.6


@pytest.mark.parametrize("keep", [1, 2])
def test_a_loss_added_after_the_save_keeps_the_same_checkpoints(tmp_path, keep):
  """Passes the loss of each step to `save`, or later to `add_evaluation`.

  Both must keep equal checkpoints.
  """
  losses = (0.6, 0.7, None, 0.6, 0.9, 0.6, 0.8, 0.5, 0.9)
  records_by_name: dict[str, list] = {"with": [], "after": []}
  for name, records in records_by_name.items():
    with Checkpointer(
      str(tmp_path / name), keep=keep, keep_best=2
    ) as checkpoints:
      for step, loss in enumerate(losses):
        state = make_state().replace(step=jnp.int32(step))
        meta = dict(best=loss, pending=False)
        if name == "with":
          checkpoints.save(step, state, meta=meta, heldout_loss=loss)
          checkpoints.wait()
        else:
          checkpoints.save(
            step, state, meta={"best": None, "pending": True}, heldout_loss=None
          )
          checkpoints.add_evaluation(step, meta, loss, phase=0)
        kept_steps = sorted(
          int(path.name) for path in tmp_path.glob(f"{name}/*/*")
        )
        metas = [checkpoints.read_metadata(step) for step in kept_steps]
        records.append((kept_steps, checkpoints.best_step(), metas))
    # A new Checkpointer finds the same best step.
    with Checkpointer(str(tmp_path / name), keep=keep) as checkpoints:
      assert checkpoints.best_step() == records[-1][1] == 7
  assert records_by_name["with"] == records_by_name["after"]
  with Checkpointer(
    str(tmp_path / "after"), keep=keep, keep_best=2
  ) as checkpoints:
    checkpoints.remove(8)
    assert checkpoints.latest_step() == 7


def test_the_best_step_is_of_the_latest_phase(tmp_path):
  """Losses of phases with different row lengths cannot be compared."""
  saves = ((100, 0.4, 0), (200, 0.9, 1), (300, 0.7, 1), (400, 0.8, 1))
  best_steps = []
  for step, loss, phase in saves:
    with Checkpointer(str(tmp_path), keep=1) as checkpoints:
      state = make_state().replace(step=jnp.int32(step))
      checkpoints.save(step, state, meta={}, heldout_loss=loss, phase=phase)
      checkpoints.wait()
      best_steps.append(checkpoints.best_step())
  assert best_steps == [100, 200, 300, 300]
  assert sorted(path.name for path in tmp_path.glob("checkpoints/*")) == [
    "300",
    "400",
  ]


@pytest.mark.parametrize(
  "layers, message",
  [
    (dict(l0=3, l1=3, l2=3), "params/l2/kernel is missing"),
    (dict(l0=3), "params/l1/kernel is not in the model"),
    (dict(l0=5, l1=3), r"params/l0/kernel is \(\(3,\).*\(\(5,\)"),
    (dict(l0=2, l1=3), r"params/l0/kernel is \(\(3,\).*\(\(2,\)"),
    (dict(l0=3, l9=3), "params/l9/kernel is missing"),
  ],
)
def test_parameters_that_do_not_fit_are_refused(tmp_path, layers, message):
  """The model has more, fewer, larger, smaller or renamed parameters."""
  with Checkpointer(str(tmp_path)) as checkpoints:
    checkpoints.save(1, make_state(), meta={}, heldout_loss=None)
    checkpoints.wait()
    other_state = make_state(**layers)
    with pytest.raises(ValueError, match=message):
      checkpoints.restore(1, other_state)
    with pytest.raises(ValueError, match=message.replace("params/", "")):
      checkpoints.restore_params(step=None, params=other_state.params)


def test_values_and_dtypes_are_restored(tmp_path):
  state = make_state()
  with Checkpointer(str(tmp_path)) as checkpoints:
    checkpoints.save(1, state, meta={"data": {"epoch": 3}}, heldout_loss=None)
    checkpoints.wait()
    zeros = jax.tree.map(jnp.zeros_like, state)
    restored, meta = checkpoints.restore(1, zeros)
    assert meta["data"] == {"epoch": 3}
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    params, step = checkpoints.restore_params(step=1, params=zeros.params)
    assert step == 1
    jax.tree.map(np.testing.assert_array_equal, params, state.params)
    with pytest.raises(ValueError, match="no step 7, only 1"):
      checkpoints.restore_params(step=7, params=zeros.params)


def test_a_donated_state_does_not_change_what_is_saved(tmp_path):
  """A save continues while later steps reuse the buffers of the state."""
  add = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
  state = {"kernel": jnp.zeros((512, 1024))}
  with Checkpointer(str(tmp_path), keep=50) as checkpoints:
    for step in range(1, 9):
      state = add(state)
      checkpoints.save(
        step,
        TrainState(jnp.int32(step), state, opt_state={}, carry={}),
        meta={},
        heldout_loss=None,
      )
      for _ in range(3):
        state = add(state)
    checkpoints.wait()
    template = TrainState(jnp.int32(0), state, opt_state={}, carry={})
    for step in range(1, 9):
      restored, _ = checkpoints.restore(step, template)
      kernel = np.asarray(restored.params["kernel"])
      assert (kernel == 4 * step - 3).all()


def test_a_folder_without_a_run_or_checkpoint_is_refused(tmp_path):
  with pytest.raises(ValueError, match="not the folder of a run"):
    Checkpointer.for_reading(str(tmp_path))
  (tmp_path / "checkpoints").mkdir()
  with pytest.raises(ValueError, match="no checkpoint yet"):
    Checkpointer.for_reading(str(tmp_path))
