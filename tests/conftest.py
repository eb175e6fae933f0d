"""Fixtures that several files share."""

import contextlib
import os
import sys

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

# Triton, which torch imports where it is installed, ends a process that has
# loaded TensorFlow with a segmentation fault. Nothing here runs Triton's code.
sys.modules.setdefault("triton", None)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
  """Programs that runs have in common are compiled once, in children as well.

  All processes of the tests share one folder.
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
  compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def unoptimized():
  """For files whose tests wait for the compiler more than for its programs."""
  with changed_options({"jax_disable_most_optimizations": True}):
    yield


@contextlib.contextmanager
def changed_options(options):
  """Sets options of jax, here and in child processes, and puts them back."""
  before = {name: jax.config.values[name] for name in options}
  with pytest.MonkeyPatch.context() as patch:
    for name, value in options.items():
      jax.config.update(name, value)
      patch.setenv(name.upper(), str(value))
    yield
  for name, value in before.items():
    jax.config.update(name, value)
