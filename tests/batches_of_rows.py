"""Compares and joins batches, which are dicts of batch key -> array."""

import numpy as np


def equal_batches(a, b):
  return a.keys() == b.keys() and all(
    a[key].dtype == b[key].dtype and np.array_equal(a[key], b[key]) for key in a
  )


def join_batches(batches):
  return {
    key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]
  }
