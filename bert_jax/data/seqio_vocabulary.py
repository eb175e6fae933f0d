"""Tokenizers as a `seqio.Vocabulary`: text tasks, and rows to look at."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.data.tokenizer import Vocabulary


class TextVocabulary(seqio.Vocabulary):
  """A `tokenizer.Vocabulary` behind seqio's interface.

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
    if s.shape.rank == 0:
      return self._encode_flat(s[None])[0]
    ids, lengths = self._encode_flat(s)
    return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)

  def _encode_flat(self, s: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids of [N] strings end to end, and how many each has."""

    def encode(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
      decoded = [text.decode("utf-8", "replace") for text in texts]
      return self.tokenizer.encode_flat(decoded)

    types = (tf.int32, tf.int64)
    ids, lengths = tf.numpy_function(encode, [s], types, stateful=False)
    ids.set_shape([None])
    lengths.set_shape(s.shape)
    return ids, lengths

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    """Returns the strings of [..., T] ids, one for each row."""

    def decode(rows: np.ndarray) -> np.ndarray:
      flat = rows.reshape(-1, rows.shape[-1])
      texts = [self._decode(row).encode("utf-8") for row in flat]
      return np.array(texts, object).reshape(rows.shape[:-1])

    text = tf.numpy_function(decode, [ids], tf.string, stateful=False)
    text.set_shape(ids.shape[:-1])
    return text

  def __eq__(self, other: object) -> bool:
    return isinstance(other, TextVocabulary) and (
      self is other or self.tokenizer == other.tokenizer
    )
