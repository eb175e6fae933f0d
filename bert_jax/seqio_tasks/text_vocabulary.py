"""Presents tokenizers as a `seqio.Vocabulary`.

seqio uses these vocabularies to encode text and to decode rows.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import seqio
import tensorflow as tf

from bert_jax.text.characters import MAX_CHARS, NUM_CHARS, Characters
from bert_jax.text.vocabulary import Vocabulary


class TextVocabulary(seqio.Vocabulary):
  """Presents a `vocabulary.Vocabulary` through seqio's interface.

  Text is encoded without special tokens, as in a corpus. `eos_id` is None,
  because seqio's `decode` would otherwise stop at the first [SEP]. Padding is
  decoded like any other piece.
  """

  def __init__(self, make_tokenizer: Callable[[], Vocabulary]):
    """Wraps a tokenizer.

    Args:
      make_tokenizer: returns the tokenizer. It is called once, at the first
        use, so that registering a task reads no file.
    """
    super().__init__()
    self._make_tokenizer = make_tokenizer

  @functools.cached_property
  def tokenizer(self) -> Vocabulary:
    """The tokenizer."""
    return self._make_tokenizer()

  @property
  def bos_id(self) -> int | None:
    """The id of [CLS] or `<s>`; None if the vocabulary has neither."""
    return self.tokenizer.special.cls

  @property
  def eos_id(self) -> None:
    """None, so that seqio's `decode` does not stop early."""
    return None

  @property
  def pad_id(self) -> int:
    """The id of padding; 0 if the vocabulary has no padding."""
    return self.tokenizer.special.pad or 0

  @property
  def unk_id(self) -> int | None:
    """The id of unknown words; None if the vocabulary has no unknown words."""
    return self.tokenizer.special.unk

  @property
  def _base_vocab_size(self) -> int:
    return self.tokenizer.vocab_size

  def _encode(self, s: str) -> list[int]:
    return self.tokenizer.encode_batch([s])[0]

  def _decode(self, ids: Sequence[int] | np.ndarray) -> str:
    return self.tokenizer.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    """Encodes a string to int32 [T], and [N] strings to ragged int32 [N, T].

    If a thousand strings are encoded at once, a string takes a tenth of the
    time that it takes by itself.
    """
    return _encode_tf(lambda t: self.tokenizer.encode_flat(t), s, [])

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    """Decodes ids [..., T] to strings [...]."""
    return _decode_tf(self._decode, ids, rank=1)

  def __eq__(self, other: object) -> bool:
    """Compares the tokenizers, because seqio compares a mixture's tasks."""
    return isinstance(other, TextVocabulary) and (
      self is other or self.tokenizer == other.tokenizer
    )


class CharacterVocabulary(seqio.Vocabulary):
  """Presents ELMo's characters, 50 ids a word, through seqio's interface."""

  def __init__(self, adds_sentence_ends: bool = False):
    """Makes the vocabulary.

    Args:
      adds_sentence_ends: True adds the words that begin and end a sentence.
    """
    super().__init__()
    self.tokenizer = Characters(adds_sentence_ends)

  @property
  def eos_id(self) -> None:
    """None, so that seqio's `decode` does not stop early."""
    return None

  @property
  def unk_id(self) -> None:
    """None, because every word has characters."""
    return None

  @property
  def _base_vocab_size(self) -> int:
    return NUM_CHARS

  def _encode(self, s: str) -> list[list[int]]:
    return self.tokenizer.encode_batch([s])[0].tolist()

  def _decode(self, ids: np.ndarray) -> str:
    return self.tokenizer.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    """Encodes a string to int32 [T, 50], [N] strings to ragged [N, T, 50]."""
    return _encode_tf(self.tokenizer.encode_flat, s, [MAX_CHARS])

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    """Decodes ids [..., T, 50] to strings [...]."""
    return _decode_tf(self._decode, ids, rank=2)

  def __eq__(self, other: object) -> bool:
    """Compares the tokenizers, because seqio compares a mixture's tasks."""
    return (
      isinstance(other, CharacterVocabulary)
      and self.tokenizer == other.tokenizer
    )


def _encode_tf(
  encode: Callable[[list[str]], tuple[np.ndarray, np.ndarray]],
  s: tf.Tensor,
  shape: list[int],
) -> tf.Tensor:
  """Encodes a string to [T, *shape], [N] strings to ragged [N, T, *shape].

  Args:
    encode: returns for N texts the ids of all texts, int32, and the lengths of
      the texts, int64 [N].
    s: a string, or N strings.
    shape: the shape of a token's ids.
  """

  @tf.autograph.experimental.do_not_convert
  def decode_and_encode(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return encode([text.decode("utf-8", "replace") for text in texts])

  types, is_single = (tf.int32, tf.int64), s.shape.rank == 0
  ids, lengths = tf.numpy_function(
    decode_and_encode, [s[None] if is_single else s], types, stateful=False
  )
  ids.set_shape([None, *shape])
  if is_single:
    return ids
  lengths.set_shape(s.shape)
  return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)


def _decode_tf(
  decode: Callable[[np.ndarray], str], ids: tf.Tensor, rank: int
) -> tf.Tensor:
  """Decodes every array of the last `rank` axes of `ids` to a string."""

  @tf.autograph.experimental.do_not_convert
  def decode_all(rows: np.ndarray) -> np.ndarray:
    outer_shape, inner_shape = rows.shape[:-rank], rows.shape[-rank:]
    # Do not write -1 for the first size: it is ambiguous if rows are empty.
    flat = rows.reshape(math.prod(outer_shape), *inner_shape)
    texts = [decode(row).encode("utf-8") for row in flat]
    return np.array(texts, object).reshape(outer_shape)

  text = tf.numpy_function(decode_all, [ids], tf.string, stateful=False)
  text.set_shape(ids.shape[:-rank])
  return text
