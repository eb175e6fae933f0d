"""Tests damaged checkpoints: files that are cut, changed or missing."""

import gc
import os
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.devices import hosts
from bert_jax.training.state import TrainState
from bert_jax.weights import checkpoint
from bert_jax.weights.checkpoint import Checkpointer

# If one array of a checkpoint is damaged, orbax abandons its reads of all other
# arrays. Python reports each of these reads as an exception that no code can
# catch.
pytestmark = pytest.mark.filterwarnings(
  "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module", autouse=True)
def delete_abandoned_reads():
  """Deletes the abandoned reads before tests of other files begin."""
  yield
  gc.collect()


def make_state(step):
  key = jax.random.key(step)
  params = {"a": {"kernel": jax.random.normal(key, (64, 33))}}
  return TrainState(jnp.int32(step), params, opt_state={"nu": params}, carry={})


def are_equal(state, other_state):
  return all(
    np.array_equal(array, other_array)
    for array, other_array in zip(
      jax.tree.leaves(state), jax.tree.leaves(other_state), strict=True
    )
  )


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
  path = tmp_path_factory.mktemp("saved")
  with Checkpointer(str(path)) as checkpoints:
    for step in (10, 20):
      checkpoints.save(
        step,
        make_state(step),
        meta={"data": {"x": step}},
        heldout_loss=1.0 / step,
      )
  return path


def files_in(folder):
  return sorted(path for path in folder.rglob("*") if path.is_file())


def names_in(folder):
  return sorted(path.name for path in folder.iterdir())


def restore(workdir):
  """Restores a state, which must be equal to a saved one; returns its step."""
  with Checkpointer(str(workdir)) as checkpoints:
    state, meta, step = checkpoints.restore_newest(make_state(0))
  assert are_equal(state, make_state(step)) and meta["data"] == {"x": step}
  return step


def flip_bit(path, rng):
  content = bytearray(path.read_bytes())
  offset = rng.randrange(len(content))
  content[offset] ^= 1 << rng.randrange(8)
  path.write_bytes(content)


def truncate(path, rng):
  os.truncate(path, rng.randrange(path.stat().st_size))


@pytest.mark.parametrize("damage", [flip_bit, truncate])
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_file_never_gives_a_wrong_state(
  saved_run, tmp_path, damage, seed, capfd
):
  rng = random.Random(seed)
  paths = files_in(saved_run / "checkpoints" / "20")
  assert len(paths) > 5
  steps = []
  for i, path in enumerate(paths):
    if not path.stat().st_size:
      continue
    workdir = tmp_path / str(i)
    shutil.copytree(saved_run, workdir)
    damage(workdir / path.relative_to(saved_run), rng)
    steps.append(restore(workdir))
    if steps[-1] == 10:
      assert names_in(workdir / "checkpoints") == ["10"]
      assert names_in(workdir / "damaged")[0].startswith("20-")
      printed = capfd.readouterr().out
      assert "damaged" in printed and "bound method" not in printed
  # Damage of the arrays and of the metadata is noticed. Damage of any other
  # file changes nothing.
  assert steps.count(10) >= 2


def test_a_checkpoint_without_its_state_is_not_used(saved_run, tmp_path):
  shutil.copytree(saved_run, tmp_path / "run")
  shutil.rmtree(tmp_path / "run" / "checkpoints" / "20" / "state")
  assert restore(tmp_path / "run") == 10


def test_a_run_with_only_damaged_checkpoints_is_refused(saved_run, tmp_path):
  shutil.copytree(saved_run, tmp_path / "run")
  for step in ("10", "20"):
    for path in files_in(tmp_path / "run" / "checkpoints" / step / "state"):
      os.truncate(path, 0)
  with pytest.raises(
    ValueError, match="no checkpoint .* is undamaged"
  ) as error:
    restore(tmp_path / "run")
  assert str(error.value).endswith("). Start in a new workdir.")


@pytest.mark.parametrize(
  "change",
  [
    lambda content: b"",
    lambda content: content[: len(content) // 2],
    lambda content: bytes(255 - byte for byte in content),
  ],
)
def test_messages_about_a_damaged_run_are_plain(
  saved_run, tmp_path, capfd, change
):
  """Messages name only the class of a library's error, and advise no new run.

  The path here is read as a model, so a new workdir would not help.
  """
  run_folder = tmp_path / "run"
  shutil.copytree(saved_run, run_folder)
  for path in files_in(run_folder / "checkpoints" / "20" / "state"):
    path.write_bytes(change(path.read_bytes()))
  params = make_state(0).params
  with Checkpointer.for_reading(str(run_folder)) as checkpoints:
    assert checkpoints.restore_params(step=None, params=params)[1] == 10
  folder = run_folder / "checkpoints"
  (note,) = [
    line for line in capfd.readouterr().err.splitlines() if "Using step" in line
  ]
  start, end = f"{folder}/20 is damaged: a file in it cannot be read (", ")."
  reason = note.removeprefix(start).removesuffix(f"{end} Using step 10.")
  assert reason.isidentifier(), note
  for path in files_in(run_folder / "checkpoints" / "10" / "state"):
    path.write_bytes(change(path.read_bytes()))
  with (
    Checkpointer.for_reading(str(run_folder)) as checkpoints,
    pytest.raises(ValueError, match="no checkpoint .* is undamaged") as error,
  ):
    checkpoints.restore_params(step=None, params=params)
  text = str(error.value)
  remedy = "Put a copy of the run's folder back, or name another model."
  assert text.endswith(f")). {remedy}") and "workdir" not in text
  assert text.count("a file in it cannot be read (") == 2 and ".)" not in text


@pytest.mark.parametrize("is_found_by_checksums", [False, True])
def test_a_checkpoint_that_is_damaged_in_one_process_is_not_used(
  saved_run, tmp_path, is_found_by_checksums, monkeypatch, capsys
):
  """Process 1 finds the damage before or after checksums are compared."""
  shutil.copytree(saved_run, tmp_path / "run")
  calls = []

  def gather(report):
    """Returns reports as if process 1 had found step 20 damaged."""
    calls.append(report)
    if isinstance(report, list):
      return [report, report]
    is_refused = len(calls) == (3 if is_found_by_checksums else 2)
    return [
      report,
      ["DamagedFile", "a shard of 20 is damaged."] if is_refused else None,
    ]

  monkeypatch.setattr(hosts, "gather", gather)
  assert restore(tmp_path / "run") == 10
  assert "a shard of 20 is damaged. Using step 10." in capsys.readouterr().out
  assert names_in(tmp_path / "run" / "checkpoints") == ["10"]


def test_checksums_notice_one_bit_anywhere():
  rng = np.random.default_rng(0)
  array = rng.normal(size=(7, 5, 3)).astype(np.float32)
  checksums = checkpoint.checksums_of({"x": jnp.array(array)})
  for i in range(array.size):
    bits = array.copy().view(np.uint32).reshape(-1)
    bits[i] ^= np.uint32(1) << np.uint32(rng.integers(32))
    changed_array = bits.view(np.float32).reshape(array.shape)
    assert checkpoint.checksums_of({"x": jnp.array(changed_array)}) != checksums
  swapped_rows = array.copy()
  swapped_rows[0, 0], swapped_rows[0, 1] = array[0, 1], array[0, 0]
  assert checkpoint.checksums_of({"x": jnp.array(swapped_rows)}) != checksums


def test_an_old_checkpoint_that_a_kill_left_is_removed(saved_run, tmp_path):
  """Opens a run that was killed before it removed its old checkpoint.

  Opening must keep as many checkpoints as `keep` says.
  """
  workdir = tmp_path / "run"
  shutil.copytree(saved_run, workdir)
  for keep, kept_steps in ((2, ["10", "20"]), (1, ["20"])):
    with Checkpointer(str(workdir), keep=keep) as checkpoints:
      assert checkpoints.restore_newest(make_state(0))[2] == 20
    assert names_in(workdir / "checkpoints") == kept_steps
