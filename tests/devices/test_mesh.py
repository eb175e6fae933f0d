"""Tests that all meshes give the same numbers and split arrays by the rules."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from bert_jax.devices import sharding, update_sharding

ROOT = str(pathlib.Path(__file__).parents[2])


# A mark on a fixture does not reach the tests that use the fixture, but a mark
# on the fixture's parameter does.
@pytest.fixture(
  scope="module", params=[pytest.param("meshes", marks=pytest.mark.slow)]
)
def folder_and_report(tmp_path_factory):
  """Runs `mesh_worker.py` on 8 CPU devices; returns its folder and report."""
  folder = tmp_path_factory.mktemp("mesh")
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
  }
  command = [sys.executable, "-m", "tests.mesh_worker", folder]
  subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=900)
  report = json.loads((folder / "results.json").read_text("utf-8"))
  assert len(report["shards"]) == 7
  return folder, report


def read_arrays(folder, name):
  with np.load(folder / f"{name}.npz") as file:
    return {key: file[key] for key in file}


def assert_same_runs(folder, report, expected_run, actual_run, tolerance=1e-5):
  """Asserts that the losses and last states of two runs agree."""
  losses = report["losses"]
  np.testing.assert_allclose(
    losses[actual_run], losses[expected_run], rtol=0, atol=tolerance
  )
  expected_arrays, actual_arrays = (
    read_arrays(folder, expected_run),
    read_arrays(folder, actual_run),
  )
  assert (
    expected_arrays.keys() == actual_arrays.keys() and len(expected_arrays) > 60
  )
  for key, array in expected_arrays.items():
    np.testing.assert_allclose(
      actual_arrays[key],
      array,
      rtol=0,
      atol=tolerance,
      err_msg=f"{actual_run} {key}",
    )


def test_losses_and_parameters_are_equal_on_any_mesh(folder_and_report):
  """Each mesh is compared with one device; the runs use dropout."""
  folder, report = folder_and_report
  for mesh_name in report["shards"]:
    assert_same_runs(folder, report, "1x1x1", mesh_name)


def test_micro_batches_on_a_mesh_change_no_result(folder_and_report):
  """The batch is split into 1 to 8 micro-batches.

  The gradients were wrong before the hidden states that the masked-LM decoder
  reads got a sharding constraint.
  """
  folder, report = folder_and_report
  # The run "parts2" has two micro-batches.
  run_names = {f"parts{count}" for count in (1, 2, 4, 8)}
  for run_name in run_names:
    assert_same_runs(folder, report, "parts1", run_name)


def test_arrays_are_split_as_the_rules_say(folder_and_report):
  """Parameters and moments are split, after init and after three steps."""
  _, report = folder_and_report
  layer_path = ".params['encoder']['layers']['layer']"
  for mesh_name, shards_by_time in report["shards"].items():
    _, fsdp, tensor = map(int, mesh_name.split("x"))
    for num_shards in shards_by_time.values():
      word_table = ".params['encoder']['embeddings']['word']['embedding']"
      assert num_shards[word_table] == fsdp * tensor
      assert num_shards[".params['mlm']['bias']"] == tensor
      assert num_shards[f"{layer_path}['mlp_in']['kernel']"] == fsdp * tensor
      assert (
        num_shards[f"{layer_path}['attention']['query']['kernel']"]
        == fsdp * tensor
      )
      assert num_shards[f"{layer_path}['attention']['query']['bias']"] == tensor
      moment_names = [
        name for name in num_shards if ".mu[" in name or ".nu[" in name
      ]
      assert len(moment_names) > 40
      for name in moment_names:
        parameter = ".params" + name.split(".mu")[-1].split(".nu")[-1]
        assert num_shards[name] == num_shards[parameter], name


def test_the_program_has_every_sharding_constraint(folder_and_report):
  """On a mesh, the model's program has all 10 sharding constraints.

  The constraints are for the tables of words and segments, the embeddings, the
  projection, the two norms (3 constraints), the MLP, the head's input and the
  logits.
  """
  _, report = folder_and_report
  assert report["constraints"] == {"with": 10, "without": 0}


def test_vectors_added_to_the_word_table_stay_zero(folder_and_report):
  """Vectors of zeros are added to the word table, so that it can be split.

  Checkpoints have only the 61 vectors of the pieces.
  """
  folder, report = folder_and_report
  for mesh_name, num_vectors in report["rows"].items():
    tensor = int(mesh_name.split("x")[2])
    assert num_vectors == {1: 61, 2: 62, 4: 64}[tensor]
    saved_arrays = read_arrays(folder, mesh_name)
    assert [
      len(array) for name, array in saved_arrays.items() if "['word']" in name
    ] == [61] * 3
  assert report["padded_rows_are_zero"]
  assert report["padded_probability"] == 0.0
  # The program masks logits only if vectors were added to the table.
  assert report["masks_in_graph"] == {"60": False, "61": True}


def test_a_checkpoint_can_be_restored_on_any_mesh(folder_and_report):
  _, report = folder_and_report
  assert report["restored"] == dict.fromkeys(
    [*report["shards"], *report["split_shards"]], True
  )


def test_a_split_update_changes_no_result(folder_and_report):
  """Three runs agree within 1e-6 with runs that do not split the update.

  After init and after training, the devices of the axis "data" hold parts of
  each matrix and of its moments.
  """
  folder, report = folder_and_report
  assert len(report["split_shards"]) == 3
  layer_path = ".params['encoder']['layers']['layer']"
  for name, shards_by_time in report["split_shards"].items():
    assert_same_runs(folder, report, name.removesuffix(" split"), name, 1e-6)
    for num_shards in shards_by_time.values():
      for path_in_layer in (
        "['mlp_in']['kernel']",
        "['attention']['output']['kernel']",
      ):
        assert num_shards[layer_path + path_in_layer] == 8, name
      for moment_name in (
        array_name
        for array_name in num_shards
        if ".mu[" in array_name or ".nu[" in array_name
      ):
        parameter = ".params" + moment_name.split(".mu")[-1].split(".nu")[-1]
        assert num_shards[moment_name] == num_shards[parameter], name


def test_dropout_does_not_depend_on_the_number_of_devices(folder_and_report):
  """The shards of a mask differ, but every mesh has the same mask."""
  _, report = folder_and_report
  assert report["dropout"] == {
    str(num_devices): {"distinct": num_devices, "same": True}
    for num_devices in (1, 2, 4)
  }


def test_evaluation_counts_every_example_once(folder_and_report):
  """With all batch sizes and numbers of devices, the accuracy is 8 of 10."""
  _, report = folder_and_report
  assert len(report["evaluation"]) == 14
  for name, accuracy in report["evaluation"].items():
    assert accuracy == pytest.approx(0.8, abs=1e-6), name


def test_sizes_that_do_not_divide_are_refused(folder_and_report):
  _, report = folder_and_report
  assert report["refused"] == {
    "heads": "model.heads=2 (of encoder/layers/layer/attention/key/bias) is not"
    " a multiple of mesh.tensor=4; choose a mesh.tensor that divides it, for"
    " example 2.",
    "mlp": "model.mlp=62 (of encoder/layers/layer/mlp_in/bias) is not a"
    " multiple of mesh.tensor=4; choose a mesh.tensor that divides it, for"
    " example 2.",
    "hidden": "model.hidden=36 (of encoder/embeddings/position/embedding) is"
    " not a multiple of mesh.fsdp=8; choose a mesh.fsdp that divides it, for"
    " example 4.",
    "batch": "batch_size=12 is not a multiple of micro_batches=1 times the 8"
    " devices that split the batch; change batch_size, micro_batches or the"
    " mesh.",
    "devices": "mesh data=3 x fsdp=1 x tensor=2 does not make up the 8"
    " devices; the product must be 8 (data=-1 takes all remaining devices).",
  }


class FakeDevice:
  """Has the attribute of a device that `batch_share_of_process` reads."""

  def __init__(self, process_index):
    self.process_index = process_index


class FakeMesh:
  def __init__(self, process_by_device, tensor):
    devices = [FakeDevice(process_index) for process_index in process_by_device]
    self.devices = np.array(devices).reshape(-1, 1, tensor)
    self.shape = {"tensor": tensor}


@pytest.mark.parametrize(
  "process_by_device, tensor, shares",
  [
    ([0, 0, 1, 1], 1, [(0, 2), (1, 2)]),
    # In the next three cases, a tensor axis lies in one process, in both
    # processes, or in two of four processes.
    ([0, 0, 1, 1], 2, [(0, 2), (1, 2)]),
    ([0, 0, 1, 1], 4, [(0, 1), (0, 1)]),
    ([0, 1, 2, 3], 2, [(0, 2), (0, 2), (1, 2), (1, 2)]),
    # The devices of a torus of TPUs may have this order.
    ([0, 0, 1, 1, 0, 0, 1, 1], 1, [(0, 2), (1, 2)]),
  ],
)
def test_each_host_has_its_share_of_a_batch(
  monkeypatch, process_by_device, tensor, shares
):
  mesh = FakeMesh(process_by_device, tensor)
  for process, share in enumerate(shares):
    monkeypatch.setattr(jax, "process_index", lambda p=process: p)
    assert sharding.batch_share_of_process(mesh) == share


def test_a_tensor_axis_that_splits_hosts_unevenly_is_refused():
  with pytest.raises(ValueError, match="mesh.tensor=2 does not fit"):
    sharding.batch_share_of_process(FakeMesh([0, 0, 0, 1, 1, 1], tensor=2))


NO_DOT_DOT_FUSION = {"xla_tpu_dot_dot_fusion": "false"}
NO_WINDOWED_EINSUM = {
  "xla_tpu_enable_windowed_einsum_for_all_gather": "false",
  "xla_tpu_enable_windowed_einsum_for_reduce_scatter": "false",
}


@pytest.mark.parametrize(
  "kind, remat, splits_update, expected_options",
  [
    ("TPU v6 lite", True, False, NO_DOT_DOT_FUSION),
    ("TPU v6 lite", False, False, {}),
    ("TPU v5 lite", True, False, {}),
    ("TPU v5 lite", False, True, NO_WINDOWED_EINSUM),
    ("TPU v4", True, True, NO_DOT_DOT_FUSION | NO_WINDOWED_EINSUM),
    ("cpu", True, True, {}),
  ],
)
def test_compiler_options_depend_on_device_and_step(
  kind, remat, splits_update, expected_options
):
  device = FakeDevice(0)
  device.device_kind, device.platform = kind, kind.split()[0].lower()
  assert (
    sharding.compiler_options(device, remat, splits_update) == expected_options
  )


@pytest.mark.parametrize(
  "setting, platform, data, is_split",
  [
    ("auto", "tpu", 8, True),
    ("auto", "tpu", 1, False),
    ("auto", "gpu", 8, False),
    ("auto", "cpu", 8, False),
    ("on", "gpu", 8, True),
    ("on", "gpu", 1, False),
    ("off", "tpu", 8, False),
  ],
)
def test_the_update_is_split_on_tpus_or_if_asked(
  setting, platform, data, is_split
):
  mesh = FakeMesh([0] * 8, tensor=1)
  mesh.shape["data"] = data
  mesh.devices.flat[0].platform = platform
  assert update_sharding.splits_update(mesh, setting) is is_split
