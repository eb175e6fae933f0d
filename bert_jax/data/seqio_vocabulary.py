"""WordPiece as a `seqio.Vocabulary`, so that seqio's tools can decode rows."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.data.vocabularies import WordPiece


class WordPieceVocabulary(seqio.Vocabulary):
  """`WordPiece` behind seqio's interface.

  Text is encoded as a corpus is, without special tokens. There is no end of
  sequence (`eos_id` is None): seqio's `decode` would stop at the first [SEP].
  Padding is decoded like any other piece.
  """

  def __init__(self, make: Callable[[], WordPiece]):
    """Wraps a tokenizer.

    Args:
      make: returns it; called once, at the first use, so that registering a
        task reads no file.
    """
    super().__init__()
    self._make = make

  @functools.cached_property
  def tokenizer(self) -> WordPiece:
    return self._make()

  @property
  def bos_id(self) -> int:
    return self.tokenizer.special.cls

  @property
  def eos_id(self) -> None:
    return None

  @property
  def pad_id(self) -> int:
    return self.tokenizer.special.pad

  @property
  def unk_id(self) -> int:
    return self.tokenizer.special.unk

  @property
  def _base_vocab_size(self) -> int:
    return self.tokenizer.vocab_size

  def _encode(self, s: str) -> list[int]:
    return self.tokenizer.encode_batch([s])[0]

  def _decode(self, ids: Sequence[int]) -> str:
    return self.tokenizer.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    """Returns [T] int32 ids of a string scalar."""

    def encode(text: bytes | np.ndarray) -> np.ndarray:
      text = np.asarray(text, object).item()  # Eager calls give an array.
      return np.array(self._encode(text.decode("utf-8", "replace")), np.int32)

    ids = tf.numpy_function(encode, [s], tf.int32, stateful=False)
    ids.set_shape([None])
    return ids

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
    return isinstance(other, WordPieceVocabulary) and (
      self is other
      or (
        self.tokenizer.pieces == other.tokenizer.pieces
        and self.tokenizer.lower_case == other.tokenizer.lower_case
      )
    )
