"""Tests encoders and heads on a mesh with explicit axes, in a child process."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM_PATH = pathlib.Path(__file__).with_name("explicit_mesh.py")


@pytest.mark.usefixtures("fast_compilation")
def test_outputs_and_gradients_are_those_of_one_device():
  """The program compares them, with dropout.

  It prints which axis of each output counts the rows of the batch.
  """
  flags = "--xla_force_host_platform_device_count=8"
  paths = [str(PROGRAM_PATH.parents[1]), str(PROGRAM_PATH.parents[2])]
  environment = {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(paths)}
  process = subprocess.run(
    [sys.executable, PROGRAM_PATH],
    env=os.environ | environment | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
  )
  assert process.returncode == 0, process.stderr
  # In the outputs of layers, axis 0 counts layers, and axis 1 counts rows. In
  # all other outputs, axis 0 counts rows.
  row_axes = ast.literal_eval(process.stdout)
  assert row_axes.pop("hidden") == row_axes.pop("attention") == 1
  assert row_axes == dict(embeddings=0, mlm_logits=0, pair_logits=0)
