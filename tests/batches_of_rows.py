"""Compares and joins batches, which are dicts of batch key -> array."""

import numpy as np


def equal_batches(a, b):
  return a.keys() == b.keys() and all(
    a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a
  )


def join_batches(batches):
  return {k: np.concatenate([p[k] for p in batches]) for k in batches[0]}
