"""Tests runs of several processes on one machine."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from concurrent import futures

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from prepared import random_documents, write_prepared
from tiny_runs import untimed_rows

from bert_jax.devices import hosts
from bert_jax.training import logging

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")
ROOT = str(pathlib.Path(__file__).parents[2])
TOTAL_STEPS = 12
CONFIG_CODE = """
from bert_jax.training.config_files import open_config

def get_config():
  config = open_config("bert:base")
  config.model.update(
    variant="tiny", dtype="float32", hidden=32, heads=4, mlp=64
  )
  config.batch_size = 8
  config.total_steps = STEPS
  config.phases = {}
  config.data.update(length=24, max_predictions=4)
  config.schedule.peak = 1e-3
  # With a larger epsilon, a rounding error in a gradient near zero changes the
  # parameters little.
  config.optimizer.epsilon = 1e-3
  config.log.every = 1
  config.checkpoint.every = 8
  config.evaluate.update(every=6, examples=0)
  return config
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Returns a folder with config.py and the prepared folder `prepared`.

  The vocabulary has 61 pieces, which no mesh splits evenly.
  """
  path = tmp_path_factory.mktemp("hosts")
  train, heldout = (
    random_documents(count, seed, vocab_size=61)
    for seed, count in enumerate((60, 9))
  )
  write_prepared(path / "prepared", train, heldout, vocab_size=61)
  (path / "config.py").write_text(
    CONFIG_CODE.replace("STEPS", str(TOTAL_STEPS))
  )
  return path


def free_port():
  with socket.socket() as open_socket:
    open_socket.bind(("127.0.0.1", 0))
    return open_socket.getsockname()[1]


def start_processes(
  folder,
  workdir,
  num_processes,
  flags=(),
  flags_by_process=None,
  devices_per_process=1,
  code=None,
):
  """Starts the processes of a run and returns them.

  Args:
    folder: the folder with config.py and the data.
    workdir: the run's folder.
    num_processes: the number of processes; 1 starts without `jax.distributed`.
    flags: the flags of all processes.
    flags_by_process: {index of a process: the flags that only it gets}.
    devices_per_process: the number of devices of each process.
    code: Python code that runs instead of `-m bert_jax`.
  """
  program_flags = ["-c", code, "train"] if code else ["-m", "bert_jax", "train"]
  command = [
    sys.executable,
    *program_flags,
    f"--config={folder / 'config.py'}",
    f"--workdir={workdir}",
    f"--config.data.path={folder / 'prepared'}",
    *flags,
  ]
  device_count_flag = (
    f"--xla_force_host_platform_device_count={devices_per_process}"
  )
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": device_count_flag,
  }
  port, processes = free_port(), []
  for i in range(num_processes):
    join_flags = [
      f"--coordinator=127.0.0.1:{port}",
      f"--num-processes={num_processes}",
      f"--process-id={i}",
    ]
    process_flags = join_flags if num_processes > 1 else []
    process_flags += (flags_by_process or {}).get(i, [])
    processes.append(
      subprocess.Popen(
        command + process_flags,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    )
  return processes


def wait_for_outputs(processes, code=0):
  """Waits until all processes end with exit code `code`.

  Returns (stdout, stderr) of each process.
  """
  # Read the outputs of all processes at the same time. Otherwise a process with
  # a full pipe would wait for its reader, and all processes would wait for it.
  with futures.ThreadPoolExecutor(len(processes)) as pool:
    output_futures = [
      pool.submit(process.communicate, timeout=240) for process in processes
    ]
    _, unfinished = futures.wait(
      output_futures, return_when=futures.FIRST_EXCEPTION
    )
    if unfinished:
      for process in processes:
        process.kill()
    outputs = [read.result() for read in output_futures]
  text = "\n".join(text for output in outputs for text in output)
  assert [process.returncode for process in processes] == [code] * len(
    outputs
  ), text
  return outputs


def wait_for_row(processes, workdir, step):
  path = f"{workdir}/metrics.jsonl"
  while not any(row["step"] >= step for row in logging.read_rows(path)):
    assert processes[0].poll() is None, processes[0].communicate()
    time.sleep(0.02)


def names_in(folder):
  """Returns the names of a folder's entries."""
  return {path.name for path in folder.iterdir()}


def read_arrays(workdir, step):
  """Returns all arrays of a checkpoint, whichever devices saved them."""
  path = f"{workdir}/checkpoints/{step}/state"
  with ocp.PyTreeCheckpointer() as reader:
    tree = reader.metadata(path).item_metadata.tree
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    restore_args = jax.tree.map(lambda _: as_numpy, tree)
    restored_tree = reader.restore(path, restore_args=restore_args)
  return {
    jax.tree_util.keystr(name): array
    for name, array in jax.tree_util.tree_leaves_with_path(restored_tree)
  }


def assert_close_runs(first_run, second_run):
  """Checks that two runs log equal numbers and have equal last checkpoints.

  Numbers may differ by 1e-5, and gradient norms by a factor of 1 + 1e-4.
  """
  assert (
    len(untimed_rows(first_run))
    == len(untimed_rows(second_run))
    == TOTAL_STEPS + 2
  )
  for first_line, second_line in zip(
    untimed_rows(first_run), untimed_rows(second_run), strict=True
  ):
    assert first_line.keys() == second_line.keys()
    for key, number in first_line.items():
      if key == "grad_norm":
        assert second_line[key] == pytest.approx(number, rel=1e-4), (
          first_line["step"],
          key,
        )
      elif isinstance(number, float):
        assert second_line[key] == pytest.approx(number, abs=1e-5), (
          first_line["step"],
          key,
        )
      else:
        assert second_line[key] == number
  first_arrays, second_arrays = (
    read_arrays(first_run, TOTAL_STEPS),
    read_arrays(second_run, TOTAL_STEPS),
  )
  assert first_arrays.keys() == second_arrays.keys() and len(first_arrays) > 60
  for name, array in first_arrays.items():
    np.testing.assert_allclose(
      second_arrays[name], array, atol=1e-5, err_msg=name
    )


def lines_without_gloo(output):
  """Returns the lines of stdout that are not from the library Gloo."""
  return [line for line in output.splitlines() if "[Gloo]" not in line]


@pytest.fixture(scope="module")
def one_process_run(folder, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("one") / "run"
  wait_for_outputs(start_processes(folder, workdir, num_processes=1))
  return workdir


@pytest.fixture(scope="module")
def two_process_run(folder, tmp_path_factory):
  """Returns the folder of a run of two processes.

  Its file stdout-1 has the output of process 1.
  """
  workdir = tmp_path_factory.mktemp("two") / "run"
  outputs = wait_for_outputs(start_processes(folder, workdir, num_processes=2))
  (workdir / "stdout-1").write_text(outputs[1][0])
  return workdir


def test_a_run_of_two_processes_equals_a_run_of_one(
  one_process_run, two_process_run
):
  assert_close_runs(one_process_run, two_process_run)
  # Only process 0 writes.
  assert lines_without_gloo((two_process_run / "stdout-1").read_text()) == []
  assert len(list(two_process_run.glob("events*"))) == 1
  step_folders = [
    names_in(run / "checkpoints") for run in (one_process_run, two_process_run)
  ]
  assert step_folders[0] == step_folders[1] == {"8", "12"}


@pytest.mark.slow
@pytest.mark.parametrize(
  "num_processes, devices_per_process, mesh",
  [
    (4, 1, {}),
    (2, 2, {}),
    (2, 2, {"tensor": 2}),
    # The tensor axis lies in both processes, so both read all rows.
    (2, 1, {"tensor": 2}),
    (2, 2, {"fsdp": 2, "tensor": 2}),
  ],
)
def test_a_run_of_several_processes_and_devices_equals_a_run_of_one(
  folder, one_process_run, tmp_path, num_processes, devices_per_process, mesh
):
  flags = [f"--config.mesh.{axis}={size}" for axis, size in mesh.items()]
  run = tmp_path / "run"
  wait_for_outputs(
    start_processes(
      folder, run, num_processes, flags, devices_per_process=devices_per_process
    )
  )
  assert_close_runs(one_process_run, run)


@pytest.fixture(scope="module")
def stopped_run(folder, tmp_path_factory):
  """Returns the folder of a stopped run, and its last step.

  The run has two processes, and SIGTERM is sent to one of them.
  """
  workdir = tmp_path_factory.mktemp("stopped") / "run"
  processes = start_processes(folder, workdir, num_processes=2)
  wait_for_row(processes, workdir, step=2)
  processes[1].send_signal(signal.SIGTERM)
  outputs = wait_for_outputs(processes)
  steps = [int(name) for name in names_in(workdir / "checkpoints")]
  assert f"stopped at step {max(steps)}; the same" in outputs[0][0]
  return workdir, max(steps)


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_sigterm_to_one_process_stops_all(
  folder, stopped_run, two_process_run, tmp_path, num_processes
):
  """The stopped run then continues with 1, 2 or 4 processes to the end."""
  workdir, step = stopped_run
  assert 2 <= step < TOTAL_STEPS
  run = tmp_path / "run"
  subprocess.run(["cp", "-r", str(workdir), str(run)], check=True)
  outputs = wait_for_outputs(start_processes(folder, run, num_processes))
  assert f"continuing from step {step}" in outputs[0][0]
  assert_close_runs(two_process_run, run)
  if num_processes == 2:
    assert untimed_rows(run) == untimed_rows(two_process_run)
    expected_arrays, actual_arrays = (
      read_arrays(two_process_run, TOTAL_STEPS),
      read_arrays(run, TOTAL_STEPS),
    )
    for name, array in expected_arrays.items():
      np.testing.assert_array_equal(actual_arrays[name], array, err_msg=name)


# In this program, process 1 of a run cannot read row 32 or a later row.
FAILING_PROGRAM = """
import runpy, sys
from bert_jax.examples import loader
read = loader.PretrainingData.read

def broken(self, first, count):
  if first >= 32 and "--process-id=1" in sys.argv:
    raise ValueError("row 33 is broken.")
  return read(self, first, count)

loader.PretrainingData.read = broken
runpy.run_module("bert_jax", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_an_error_in_one_process_ends_all(folder, tmp_path):
  outputs = wait_for_outputs(
    start_processes(
      folder, tmp_path / "run", num_processes=2, code=FAILING_PROGRAM
    ),
    code=1,
  )
  assert "error: process 1: row 33 is broken." in outputs[0][1]
  assert "error: row 33 is broken." in outputs[1][1]
  assert not any("Traceback" in text for pair in outputs for text in pair)


def damage_shards(workdir, step, process):
  """Damages a file of a checkpoint that only `process` wrote and reads."""
  state_folder = workdir / "checkpoints" / str(step) / "state"
  shard_files = (state_folder / f"ocdbt.process_{process}").rglob("*")
  os.truncate(max(filter(os.path.isfile, shard_files), key=os.path.getsize), 10)


@pytest.mark.slow
def test_a_checkpoint_that_one_process_cannot_read_is_used_by_none(
  folder, tmp_path
):
  """All processes continue from an older checkpoint; without one, all end."""
  run, flags = tmp_path / "run", ["--config.mesh.fsdp=2"]
  wait_for_outputs(start_processes(folder, run, num_processes=2, flags=flags))
  rows_before = untimed_rows(run)
  damage_shards(run, TOTAL_STEPS, process=1)
  outputs = wait_for_outputs(
    start_processes(folder, run, num_processes=2, flags=flags)
  )
  assert f"{run}/checkpoints/{TOTAL_STEPS} is damaged: " in outputs[0][0]
  assert "continuing from step 8" in outputs[0][0]
  assert untimed_rows(run) == rows_before
  assert list((run / "damaged").glob(f"{TOTAL_STEPS}-*"))
  for step in (8, TOTAL_STEPS):
    damage_shards(run, step, process=1)
  outputs = wait_for_outputs(
    start_processes(folder, run, num_processes=2, flags=flags), code=1
  )
  for _, err in outputs:
    assert f"no checkpoint in {run}/checkpoints is undamaged" in err
    assert "Traceback" not in err
  assert names_in(run / "checkpoints") == {str(TOTAL_STEPS), "8"}


@pytest.mark.slow
def test_a_config_that_differs_is_refused_by_all_processes(
  folder, two_process_run, tmp_path
):
  flags_of_process = {1: ["--config.seed=7"]}
  outputs = wait_for_outputs(
    start_processes(
      folder,
      tmp_path / "run",
      num_processes=2,
      flags_by_process=flags_of_process,
    ),
    code=1,
  )
  assert (
    "process 1: config differs from that of process 0: seed=7, not 0"
    in (outputs[0][1])
  )
  # Both processes restart a finished run with the same new seed.
  outputs = wait_for_outputs(
    start_processes(
      folder, two_process_run, num_processes=2, flags=["--config.seed=7"]
    ),
    code=1,
  )
  assert all("config.seed: 0 -> 7" in err for _, err in outputs)


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_is_refused(folder, tmp_path):
  run = tmp_path / "run"
  processes = start_processes(
    folder, run, num_processes=2, flags=["--config.total_steps=100000"]
  )
  wait_for_row(processes, run, step=2)
  outputs = wait_for_outputs(
    start_processes(
      folder, run, num_processes=2, flags=["--config.total_steps=100000"]
    ),
    code=1,
  )
  assert all("another run is going on" in err for _, err in outputs)
  assert [process.poll() for process in processes] == [None, None]
  processes[0].terminate()
  wait_for_outputs(processes)


# In this program, a process is gone if it has sent no sign for 10 seconds.
IMPATIENT_PROGRAM = """
import runpy
from bert_jax.devices import hosts

hosts._POLLS_UNTIL_GONE = 20
runpy.run_module("bert_jax", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  "lost_process, signal_number, message_end",
  [
    (0, signal.SIGKILL, "its own output, if any, says why."),
    (2, signal.SIGKILL, "its own output, if any, says why."),
    (0, signal.SIGSTOP, "it sent no sign for 10 s."),
    (1, signal.SIGSTOP, "it sent no sign for 10 s."),
  ],
)
def test_if_a_process_is_lost_the_others_end_with_a_message(
  folder, tmp_path, lost_process, signal_number, message_end
):
  """Each process that is not lost prints one line, and exits with code 1."""
  run, num_processes = tmp_path / "run", max(lost_process + 1, 2)
  flags = [
    "--config.total_steps=100000",
    f"--config.batch_size={4 * num_processes}",
  ]
  processes = start_processes(
    folder, run, num_processes, flags, code=IMPATIENT_PROGRAM
  )
  wait_for_row(processes, run, step=2)
  processes[lost_process].send_signal(signal_number)
  outputs = wait_for_outputs(
    [process for i, process in enumerate(processes) if i != lost_process],
    code=1,
  )
  processes[lost_process].kill()
  processes[lost_process].communicate()
  for _, err in outputs:
    assert err.startswith(f"error: process {lost_process} is gone")
    assert err.endswith(message_end + "\n") and err.count("\n") == 1


@pytest.mark.parametrize(
  "flags, message",
  [
    # Each case has: coordinator, number of processes, process id, whether the
    # environment gives them.
    (("h:1", 2, None, False), "give --coordinator=HOST:PORT, --num-processes"),
    ((None, 2, 0, False), "together"),
    (("h:1", 2, 0, True), "or give only --distributed on a TPU pod slice"),
    (("host", 2, 0, False), "--coordinator=host must be HOST:PORT"),
    (("h:1", 2, 2, False), "--process-id=2 must be 0 to 1"),
  ],
)
def test_incomplete_flags_are_refused(flags, message):
  with pytest.raises(ValueError, match=message):
    hosts.check_flags(*flags)


def test_a_second_interrupt_stops_at_once(capsys):
  with hosts.stop_signals() as signals:
    signal.raise_signal(signal.SIGINT)
    assert signals == [signal.SIGINT]
    assert capsys.readouterr().out == (
      "stopping: saving a checkpoint after this step; Ctrl-C now stops without"
      " it ...\n"
    )
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
