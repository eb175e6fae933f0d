"""Compares results that are made of dicts, lists, numbers and arrays."""

import numpy as np


def assert_close(left, right):
  """Asserts that numbers or arrays are equal up to rounding."""
  np.testing.assert_allclose(left, right, rtol=2e-4, atol=2e-5)


def assert_same_results(left, right):
  """Asserts that two results are equal; floats may differ by rounding."""
  assert isinstance(left, type(right)) or isinstance(right, type(left))
  if isinstance(left, dict):
    assert left.keys() == right.keys()
    for key in left:
      assert_same_results(left[key], right[key])
  elif isinstance(left, list | tuple):
    assert len(left) == len(right)
    for x, y in zip(left, right, strict=True):
      assert_same_results(x, y)
  elif isinstance(left, float | np.ndarray):
    assert_close(left, right)
  else:
    assert left == right
