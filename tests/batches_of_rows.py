"""Batches, {key: array}, put together and compared."""

import numpy as np


def same(a, b):
  return a.keys() == b.keys() and all(
    a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a
  )


def join(parts):
  return {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
