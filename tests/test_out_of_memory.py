"""A run that needs more memory than there is ends in one sentence."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.command_line import is_out_of_memory

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# More than any machine's addresses: it fails at once, whatever is free.
BYTES = 2**50
PROGRAM = """
import jax.numpy as jnp
from absl import app
from bert_jax import main, train
from bert_jax.command_line import parse

def run(config, workdir):
  {body}

train.run = run
app.run(main.main, flags_parser=parse)
"""


def end_of(body):
  config = os.path.join(ROOT, "configs", "bert_base.py")
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM.format(body=body)]
    + [f"--config={config}", "--workdir=unused"],
    capture_output=True,
    text=True,
    check=False,
    cwd=ROOT,
  )
  return done.returncode, done.stderr.strip().splitlines()


@pytest.mark.parametrize("library", [jnp, np])
def test_what_the_libraries_raise(library):
  with pytest.raises((MemoryError, RuntimeError)) as caught:
    library.ones(BYTES, np.uint8).sum()
  assert is_out_of_memory(caught.value)


def test_other_errors_are_not():
  assert not is_out_of_memory(RuntimeError("INTERNAL: no such kernel"))
  assert not is_out_of_memory(ValueError("RESOURCE_EXHAUSTED"))


def test_a_run_says_what_to_change():
  code, lines = end_of(f"jnp.ones({BYTES}, 'uint8').sum().block_until_ready()")
  assert code == 1
  assert lines[-1].startswith("error: out of memory (RESOURCE_EXHAUSTED")
  assert "config.micro_batches" in lines[-1] and "batch_size=256" in lines[-1]
  assert not any("Traceback" in line for line in lines)


def test_another_error_keeps_its_trace():
  code, lines = end_of("raise RuntimeError('INTERNAL: no such kernel')")
  assert code == 1 and any("Traceback" in line for line in lines)
