"""Defines fixtures that several files share."""

import contextlib
import os
import sys

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

# If Triton is installed, torch imports it, and a process that has loaded
# TensorFlow ends with a segmentation fault. The tests do not need Triton.
sys.modules.setdefault("triton", None)

# It is an error if jax would have to add a first axis to an array, here and in
# child processes. The code must add the axis itself.
jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"


@pytest.fixture(scope="module")
def compilation_cache(tmp_path_factory):
  """Keeps compiled programs, so that each program is compiled only once.

  All processes of the tests and their child processes share the programs.
  """
  path = tmp_path_factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:
    path = path.parent
  options = {
    "jax_compilation_cache_dir": str(path / "compiled"),
    "jax_persistent_cache_min_compile_time_secs": 0.1,
  }
  with changed_options(options):
    yield
  reset_cache()


@pytest.fixture(scope="module")
def fast_compilation():
  """Compiles without optimizations, which is faster for tiny models."""
  with changed_options({"jax_disable_most_optimizations": True}):
    yield


@contextlib.contextmanager
def changed_options(options):
  """Sets options of jax, here and in child processes, and resets them."""
  old_options = {name: jax.config.values[name] for name in options}
  with pytest.MonkeyPatch.context() as patch:
    for name, setting in options.items():
      jax.config.update(name, setting)
      patch.setenv(name.upper(), str(setting))
    yield
  for name, setting in old_options.items():
    jax.config.update(name, setting)
