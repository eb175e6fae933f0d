"""Stateless randomness for data: a counter hash of (key, index, column).

A draw depends on nothing but the key (seed, epoch, purpose), the global index
of the example and the column in it. It is therefore the same for any number of
hosts, for any batch size, after any restart and on any numpy version (numpy's
generators promise none of that).
"""

import hashlib
import zlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_GOLDEN32 = np.uint32(0x9E3779B9)


def _mix(x: np.ndarray) -> np.ndarray:
  """SplitMix64's finaliser (Steele et al. 2014), a bijection on 64 bits.

  Overwrites and returns `x`, an array that the caller has just made.
  """
  x ^= x >> np.uint64(30)
  x *= _M1
  x ^= x >> np.uint64(27)
  x *= _M2
  x ^= x >> np.uint64(31)
  return x


def make_key(*parts: int | str) -> int:
  """Folds integers and names into one 64-bit key; the order matters."""
  key = np.zeros(1, np.uint64)
  for part in parts:
    if isinstance(part, str):
      part = zlib.crc32(part.encode("utf-8"))
    value = np.array([int(part) & 0xFFFFFFFFFFFFFFFF], np.uint64)
    key = _mix(_mix(key + _GOLDEN) ^ _mix(value * _M1 + _GOLDEN))
  return int(key[0])


def text_hash(text: str) -> int:
  """Returns a hash of a text in [0, 2**64)."""
  content = text.encode("utf-8")
  return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def _rows(key: int, index: np.ndarray) -> np.ndarray:
  """Returns 64 random bits for each index, an array of at least one axis."""
  # At least one axis, since numpy warns of the wanted overflow of scalars.
  index = np.atleast_1d(index).astype(np.uint64)
  return _mix(index * _GOLDEN + np.uint64(key))


def _shape(index: np.ndarray, column: np.ndarray) -> tuple[int, ...]:
  return np.broadcast_shapes(np.shape(index), np.shape(column))


def bits(
  key: int, index: np.ndarray, column: np.ndarray | int = 0
) -> np.ndarray:
  """Returns 64 random bits for each (index, column), broadcast together.

  Args:
    key: from `make_key`.
    index: integers of any shape, for example global example positions.
    column: integers that broadcast against `index`.

  Returns:
    uint64 array of the broadcast shape.
  """
  step = (np.atleast_1d(column).astype(np.uint64) + np.uint64(1)) * _GOLDEN
  return _mix(_rows(key, index) + step).reshape(_shape(index, column))


def bits32(
  key: int, index: np.ndarray, column: np.ndarray | int = 0
) -> np.ndarray:
  """Returns 32 random bits for each (index, column), broadcast together.

  Three times faster than `bits` where there are many columns to an index: only
  the index is mixed in 64 bits. Both halves of the result enter the 32-bit
  hash (multipliers: Wellons, "Prospecting for hash functions", 2018), the
  second between its rounds, so that two rows agree by chance in 2**-64 only.

  Args:
    key: from `make_key`.
    index: integers of any shape, for example global example positions [B, 1].
    column: integers below 2**32 that broadcast against `index`.

  Returns:
    uint32 array of the broadcast shape.
  """
  row = _rows(key, index)
  x = np.atleast_1d(column).astype(np.uint32) * _GOLDEN32
  x = x + row.astype(np.uint32)
  x ^= x >> np.uint32(16)
  x *= np.uint32(0x21F0AAAD)
  x ^= x >> np.uint32(15)
  x += (row >> np.uint64(32)).astype(np.uint32)
  x *= np.uint32(0x735A2D97)
  x ^= x >> np.uint32(15)
  x *= np.uint32(0x21F0AAAD)
  x ^= x >> np.uint32(16)
  return x.reshape(_shape(index, column))


def uniform(
  key: int, index: np.ndarray, column: np.ndarray | int = 0
) -> np.ndarray:
  """Returns float64 draws in [0, 1), 53 random bits each."""
  return (bits(key, index, column) >> np.uint64(11)) * 2.0**-53


def randint(
  key: int, index: np.ndarray, column: np.ndarray | int, high: np.ndarray | int
) -> np.ndarray:
  """Returns int64 draws in [0, high); `high` broadcasts and is positive.

  The multiply-and-floor rule has a bias below 2**-20 for `high` < 2**32.
  """
  draw = uniform(key, index, column)
  return np.minimum((draw * high).astype(np.int64), np.asarray(high) - 1)


def half_binomial(
  key: int, index: np.ndarray, trials: np.ndarray
) -> np.ndarray:
  """Counts the heads in `trials` fair coins, exactly: a random bit a coin.

  Args:
    key: from `make_key`.
    index: [B] integers, one a row.
    trials: [B] non-negative integers.

  Returns:
    [B] int64, each in [0, trials].
  """
  words = (trials + 63) // 64
  row = np.repeat(np.arange(len(trials)), words)
  word = np.arange(len(row)) - np.repeat(np.cumsum(words) - words, words)
  coins = bits(key, np.asarray(index)[row], word)
  # Coins beyond the last trial of a row fall off at the top.
  spare = np.maximum(64 - (trials[row] - 64 * word), 0)
  heads = np.bitwise_count(coins << spare.astype(np.uint64))
  return np.bincount(row, heads, len(trials)).astype(np.int64)
