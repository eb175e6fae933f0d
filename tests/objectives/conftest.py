"""Defines a batch that the tests of several objectives share."""

import jax.numpy as jnp
import numpy as np
import pytest

ROWS, LENGTH = 3, 11


@pytest.fixture(scope="module")
def batch():
  """Returns rows of 11, 6 and 0 tokens, with 3, 2 and 0 masked positions."""
  rng = np.random.default_rng(0)
  is_token = np.arange(LENGTH) < np.array([11, 6, 0])[:, None]
  is_used = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]])
  arrays = dict(
    input_ids=rng.integers(0, 37, (ROWS, LENGTH)) * is_token,
    sequence_ids=is_token,
    mlm_positions=np.array([[1, 4, 8], [2, 3, 0], [0, 0, 0]]),
    mlm_ids=rng.integers(0, 37, (ROWS, 3)) * is_used,
  )
  integers = {key: jnp.asarray(x, jnp.int32) for key, x in arrays.items()}
  return integers | {"mlm_weights": jnp.asarray(is_used, jnp.float32)}
