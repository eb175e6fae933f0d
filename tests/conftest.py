"""Fixtures that several files share."""

import sys

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

# Triton, which torch imports where it is installed, ends a process that has
# loaded TensorFlow with a segmentation fault. Nothing here runs Triton's code.
sys.modules.setdefault("triton", None)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
  """Programs that a file's runs have in common are compiled once."""
  path = str(tmp_path_factory.mktemp("compiled"))
  old = jax.config.jax_persistent_cache_min_compile_time_secs
  jax.config.update("jax_compilation_cache_dir", path)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
  yield
  jax.config.update("jax_compilation_cache_dir", None)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", old)
  compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def unoptimized():
  """For files whose tests wait for the compiler more than for its programs."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)
