"""Tests that a run ends with an error if memory or disk space runs out."""

import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from bert_jax.devices.xla_errors import is_out_of_memory
from bert_jax.training import logging

ROOT = str(pathlib.Path(__file__).parents[2])
# No machine has this address space, so an allocation fails at once.
TOO_MANY_BYTES = 2**50
# This is `bert_jax train` with {body} in place of the training.
TRAIN_PROGRAM = """
import jax.numpy as jnp
from bert_jax.cli.main import main
from bert_jax.training import train

def run(config, workdir):
  {body}

train.run = run
main()
"""


# The limit on file sizes stands for a full disk. The file of TensorBoard's
# events reaches it first.
LOGGING_PROGRAM = """
import resource, signal, sys
from bert_jax.training import logging as logs
log = logs.Logger(sys.argv[1], 0, 1000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
row = {"loss": 1.0, "padding": 0.0, "mlm_loss": 1.0, "flops_per_step": 1.0}
for step in range(1, 400):
  log.log_training(step, row, 1)
"""


def run_program(body):
  process = subprocess.run(
    [
      sys.executable,
      "-c",
      TRAIN_PROGRAM.format(body=body),
      "train",
      "--config=bert:base",
      "--workdir=unused",
    ],
    capture_output=True,
    text=True,
    check=False,
    cwd=ROOT,
  )
  return process.returncode, process.stderr.strip().splitlines()


@pytest.mark.parametrize("library", [jnp, np])
def test_memory_errors_of_jax_and_numpy_are_recognised(library):
  with pytest.raises((MemoryError, RuntimeError)) as error:
    library.ones(TOO_MANY_BYTES, np.uint8).sum()
  assert is_out_of_memory(error.value)


def test_other_errors_are_not_out_of_memory():
  assert not is_out_of_memory(RuntimeError("INTERNAL: no such kernel"))
  assert not is_out_of_memory(ValueError("RESOURCE_EXHAUSTED"))


def test_a_run_out_of_memory_says_what_to_change():
  exit_code, lines = run_program(
    f"jnp.ones({TOO_MANY_BYTES}, 'uint8').sum().block_until_ready()"
  )
  assert exit_code == 1
  assert lines[-1].startswith("error: out of memory (RESOURCE_EXHAUSTED")
  assert "config.micro_batches" in lines[-1] and "batch_size=256" in lines[-1]
  assert not any("Traceback" in line for line in lines)


def test_another_error_keeps_its_traceback():
  exit_code, lines = run_program(
    "raise RuntimeError('INTERNAL: no such kernel')"
  )
  assert exit_code == 1 and any("Traceback" in line for line in lines)


def test_logging_on_a_full_disk_raises_at_once(tmp_path):
  process = subprocess.run(
    [sys.executable, "-c", LOGGING_PROGRAM, str(tmp_path)],
    capture_output=True,
    text=True,
    check=False,
    cwd=ROOT,
    timeout=120,
  )
  assert process.returncode == 1
  assert "OSError: [Errno 27]" in process.stderr
  assert "record_writer" in process.stderr


def test_events_are_written_in_the_format_of_tensorboard(tmp_path):
  log = logging.Logger(str(tmp_path), start_step=4, total_steps=10)
  log.log_evaluation(5, {"loss": 1.5})
  log.close()
  (path,) = tmp_path.glob("events.out.tfevents.*")
  remaining_bytes, events = path.read_bytes(), []
  # A record has the length of its event (8 bytes), a checksum (4), the event,
  # and a checksum (4).
  while remaining_bytes:
    size = int.from_bytes(remaining_bytes[:8], "little")
    events.append(Event.FromString(remaining_bytes[12 : 12 + size]))
    remaining_bytes = remaining_bytes[16 + size :]
  assert [event.step for event in events[1:]] == [5, 5]
  assert events[1].session_log.status == SessionLog.START
  (summary,) = events[2].summary.value
  assert (summary.tag, summary.simple_value) == ("heldout/loss", 1.5)
