"""Defines a batch that the tests of several objectives share."""

import jax.numpy as jnp
import numpy as np
import pytest

NUM_ROWS, LENGTH = 3, 11


@pytest.fixture(scope="module")
def batch():
  """Returns a batch of rows with 11, 6 and 0 tokens; 3, 2 and 0 are masked."""
  rng = np.random.default_rng(0)
  is_token = np.arange(LENGTH) < np.array([11, 6, 0])[:, None]
  is_used_slot = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]])
  arrays = dict(
    input_ids=rng.integers(0, 37, (NUM_ROWS, LENGTH)) * is_token,
    sequence_ids=is_token,
    mlm_positions=np.array([[1, 4, 8], [2, 3, 0], [0, 0, 0]]),
    mlm_ids=rng.integers(0, 37, (NUM_ROWS, 3)) * is_used_slot,
  )
  integers = {key: jnp.asarray(x, jnp.int32) for key, x in arrays.items()}
  return integers | {"mlm_weights": jnp.asarray(is_used_slot, jnp.float32)}
