"""Random numbers for data: each draw is a hash of (key, index, column).

A draw depends only on the key (seed, epoch, purpose), on the index (the global
number of an example) and on the column (the number of the draw for this
example). No state changes from draw to draw. So the draw is the same for any
number of hosts, for any batch size, after any restart and with any numpy
version. Numpy's generators promise none of this.
"""

import hashlib
import zlib

import numpy as np
from numpy.typing import ArrayLike

# The fractional part of the golden ratio in 64 bits: SplitMix64's step.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# The multipliers of SplitMix64.
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
# The same fraction in 32 bits.
_GOLDEN32 = np.uint32(0x9E3779B9)


def _mix(x: np.ndarray) -> np.ndarray:
  """Mixes bits by SplitMix64's finaliser, a bijection on 64 bits.

  See Steele et al. 2014. Overwrites and returns `x`, a uint64 array that the
  caller has just made.
  """
  x ^= x >> np.uint64(30)
  x *= _MULTIPLIER_1
  x ^= x >> np.uint64(27)
  x *= _MULTIPLIER_2
  x ^= x >> np.uint64(31)
  return x


def make_key(*labels: int | str) -> int:
  """Hashes integers and names to one 64-bit key; their order matters."""
  key = np.zeros(1, np.uint64)
  for label in labels:
    if isinstance(label, str):
      label = zlib.crc32(label.encode("utf-8"))
    number = np.array([int(label) & 0xFFFFFFFFFFFFFFFF], np.uint64)
    key = _mix(_mix(key + _GOLDEN) ^ _mix(number * _MULTIPLIER_1 + _GOLDEN))
  return int(key[0])


def text_hash(text: str) -> int:
  """Returns a hash of a text, an integer in [0, 2**64)."""
  content = text.encode("utf-8")
  return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def _index_bits(key: int, index: ArrayLike) -> np.ndarray:
  """Returns 64 random bits for each index, in an array with at least one axis.

  The products overflow on purpose. Numpy warns of an overflow of scalars, but
  not of arrays.
  """
  indices = np.atleast_1d(index).astype(np.uint64)
  return _mix(indices * _GOLDEN + np.uint64(key))


def _shape(index: ArrayLike, column: ArrayLike) -> tuple[int, ...]:
  """Returns the shape to which `index` and `column` broadcast."""
  return np.broadcast_shapes(np.shape(index), np.shape(column))


def bits(key: int, index: ArrayLike, column: ArrayLike = 0) -> np.ndarray:
  """Returns 64 random bits for each (index, column), broadcast together.

  Args:
    key: from `make_key`.
    index: integers of any shape, for example the global numbers of examples.
    column: integers that broadcast against `index`, for example the numbers of
      an example's draws.

  Returns:
    An array of uint64 with the broadcast shape.
  """
  offset = (np.atleast_1d(column).astype(np.uint64) + np.uint64(1)) * _GOLDEN
  return _mix(_index_bits(key, index) + offset).reshape(_shape(index, column))


def bits32(key: int, index: ArrayLike, column: ArrayLike = 0) -> np.ndarray:
  """Returns 32 random bits for each (index, column), broadcast together.

  This is three times faster than `bits` if there are many columns for each
  index, because only the index is mixed in 64 bits. The columns are mixed by a
  32-bit hash (multipliers: Wellons, "Prospecting for hash functions", 2018).
  The low half of the index's bits enters the 32-bit hash at the start, and the
  high half between two rounds. So two indices give the same bits in all columns
  by chance with a probability of only 2**-64.

  Args:
    key: from `make_key`.
    index: integers of any shape, for example the global numbers of examples
      [B, 1].
    column: integers below 2**32 that broadcast against `index`.

  Returns:
    An array of uint32 with the broadcast shape.
  """
  index_bits = _index_bits(key, index)
  x = np.atleast_1d(column).astype(np.uint32) * _GOLDEN32
  x = x + index_bits.astype(np.uint32)
  x ^= x >> np.uint32(16)
  x *= np.uint32(0x21F0AAAD)
  x ^= x >> np.uint32(15)
  x += (index_bits >> np.uint64(32)).astype(np.uint32)
  x *= np.uint32(0x735A2D97)
  x ^= x >> np.uint32(15)
  x *= np.uint32(0x21F0AAAD)
  x ^= x >> np.uint32(16)
  return x.reshape(_shape(index, column))


def uniform(key: int, index: ArrayLike, column: ArrayLike = 0) -> np.ndarray:
  """Returns float64 draws in [0, 1) with 53 random bits each; see `bits`."""
  return (bits(key, index, column) >> np.uint64(11)) * 2.0**-53


def randint(
  key: int, index: ArrayLike, column: ArrayLike, high: ArrayLike
) -> np.ndarray:
  """Returns int64 draws in [0, high).

  A draw is the floor of `high` times a uniform draw, which has a bias below
  2**-20 for `high` < 2**32.

  Args:
    key: from `make_key`.
    index: see `bits`.
    column: see `bits`.
    high: positive integers, which broadcast against the draws.
  """
  uniform_draws = uniform(key, index, column)
  high = np.asarray(high)
  return np.minimum((uniform_draws * high).astype(np.int64), high - 1)


def half_binomial(
  key: int, index: np.ndarray, num_coins: np.ndarray
) -> np.ndarray:
  """Counts the heads among `num_coins` fair coins; each coin is a random bit.

  Args:
    key: from `make_key`.
    index: [B] integers, a different number for each row.
    num_coins: [B] integers >= 0, the number of coins.

  Returns:
    [B] int64, each in [0, num_coins].
  """
  # The number of 64-bit words that hold the coins of each row.
  words_per_row = (num_coins + 63) // 64
  row_of_word = np.repeat(np.arange(len(num_coins)), words_per_row)
  word_in_row = np.arange(len(row_of_word)) - np.repeat(
    np.cumsum(words_per_row) - words_per_row, words_per_row
  )
  words_of_coins = bits(key, np.asarray(index)[row_of_word], word_in_row)
  # Shift out the bits of a row's last word that stand for no coin.
  num_spare_bits = np.maximum(
    64 - (num_coins[row_of_word] - 64 * word_in_row), 0
  )
  heads_in_word = np.bitwise_count(
    words_of_coins << num_spare_bits.astype(np.uint64)
  )
  return np.bincount(row_of_word, heads_in_word, len(num_coins)).astype(
    np.int64
  )
