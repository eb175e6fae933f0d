"""Tokenizers as a `seqio.Vocabulary`: text tasks, and rows to look at."""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.text.characters import MAX_CHARS, NUM_CHARS, Characters
from bert_jax.text.vocabulary import Vocabulary


class TextVocabulary(seqio.Vocabulary):
  """A `vocabulary.Vocabulary` behind seqio's interface.

  Text is encoded as a corpus is, without special tokens. There is no end of
  sequence (`eos_id` is None): seqio's `decode` would stop at the first [SEP].
  Padding is decoded like any other piece.
  """

  def __init__(self, make: Callable[[], Vocabulary]):
    """Wraps a tokenizer.

    Args:
      make: returns it; called once, at the first use, so that registering a
        task reads no file.
    """
    super().__init__()
    self._make = make

  @functools.cached_property
  def tokenizer(self) -> Vocabulary:
    return self._make()

  @property
  def bos_id(self) -> int | None:
    return self.tokenizer.special.cls

  @property
  def eos_id(self) -> None:
    return None

  @property
  def pad_id(self) -> int:
    return self.tokenizer.special.pad or 0

  @property
  def unk_id(self) -> int | None:
    return self.tokenizer.special.unk

  @property
  def _base_vocab_size(self) -> int:
    return self.tokenizer.vocab_size

  def _encode(self, s: str) -> list[int]:
    return self.tokenizer.encode_batch([s])[0]

  def _decode(self, ids: Sequence[int]) -> str:
    return self.tokenizer.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    """Returns int32 ids: [T] of a string, ragged [N, T] of [N] strings.

    Strings by the thousand cost a tenth of what they cost one by one.
    """
    return _encode_tf(lambda t: self.tokenizer.encode_flat(t), s, [])

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    """Returns the strings of [..., T] ids, one for each row."""
    return _decode_tf(self._decode, ids, 1)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, TextVocabulary) and (
      self is other or self.tokenizer == other.tokenizer
    )


class CharacterVocabulary(seqio.Vocabulary):
  """ELMo's characters behind seqio's interface: a row of 50 ids a word."""

  def __init__(self, boundaries: bool = False):
    """Args: `boundaries`, whether rows of a sentence's ends are added."""
    super().__init__()
    self.tokenizer = Characters(boundaries)

  @property
  def eos_id(self) -> None:
    return None

  @property
  def unk_id(self) -> None:
    return None

  @property
  def _base_vocab_size(self) -> int:
    return NUM_CHARS

  def _encode(self, s: str) -> list[list[int]]:
    return self.tokenizer.encode_batch([s])[0].tolist()

  def _decode(self, ids: Sequence[Sequence[int]]) -> str:
    return self.tokenizer.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    """Returns int32: [T, 50] of a string, ragged [N, T, 50] of [N] strings."""
    return _encode_tf(self.tokenizer.encode_flat, s, [MAX_CHARS])

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    """Returns the strings of [..., T, 50] ids."""
    return _decode_tf(self._decode, ids, 2)

  def __eq__(self, other: object) -> bool:
    same = isinstance(other, CharacterVocabulary)
    return same and self.tokenizer == other.tokenizer


def _encode_tf(
  encode: Callable[[list[str]], tuple[np.ndarray, np.ndarray]],
  s: tf.Tensor,
  shape: list[int],
) -> tf.Tensor:
  """Encodes a string to [T, *shape], [N] strings to ragged [N, T, *shape]."""

  @tf.autograph.experimental.do_not_convert
  def decode_and_encode(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return encode([text.decode("utf-8", "replace") for text in texts])

  types, single = (tf.int32, tf.int64), s.shape.rank == 0
  ids, lengths = tf.numpy_function(
    decode_and_encode, [s[None] if single else s], types, stateful=False
  )
  ids.set_shape([None, *shape])
  if single:
    return ids
  lengths.set_shape(s.shape)
  return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)


def _decode_tf(
  decode: Callable[[np.ndarray], str], ids: tf.Tensor, rank: int
) -> tf.Tensor:
  """Decodes [..., *rest], where `rest` are the last `rank` axes, to [...]."""

  @tf.autograph.experimental.do_not_convert
  def decode_all(rows: np.ndarray) -> np.ndarray:
    outer, inner = rows.shape[:-rank], rows.shape[-rank:]
    # Rows may be empty, so that a -1 would stand for any number of them.
    flat = rows.reshape(math.prod(outer), *inner)
    texts = [decode(row).encode("utf-8") for row in flat]
    return np.array(texts, object).reshape(outer)

  text = tf.numpy_function(decode_all, [ids], tf.string, stateful=False)
  text.set_shape(ids.shape[:-rank])
  return text
