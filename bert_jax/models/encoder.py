"""Word, position and segment embeddings, summed and normalised."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import layers


class Embeddings(nn.Module):
  """Tables, their sum, LayerNorm, dropout (Devlin et al. 2019, Figure 2).

  Attributes:
    vocab_size: pieces, the rows of the word table.
    features: width of every table.
    max_positions: rows of the position table.
    num_segments: rows of the segment table; 0 for none (DistilBERT, GPT-1).
    dropout: after the LayerNorm.
    norm_epsilon: of the LayerNorm; None for no LayerNorm (GPT-1).
    dtype: of the result; the tables are float32 always.
    kernel_init: of the tables.
    vocab_multiple: the word table gets rows of zeros up to a multiple of it:
      the devices that split the vocabulary. No file holds those rows.
  """

  vocab_size: int
  features: int
  max_positions: int
  num_segments: int
  dropout: float
  norm_epsilon: float | None
  dtype: jnp.dtype
  kernel_init: layers.Init
  vocab_multiple: int = 1

  def setup(self):
    small = (None, "embed")
    self.word = layers.Embedding(
      math.ceil(self.vocab_size / self.vocab_multiple) * self.vocab_multiple,
      self.features,
      layers.padded(self.kernel_init, self.vocab_size),
    )
    self.position = layers.Embedding(
      self.max_positions, self.features, self.kernel_init, small, one_hot=True
    )
    if self.num_segments:
      self.segment = layers.Embedding(
        self.num_segments, self.features, self.kernel_init, small, one_hot=True
      )
    if self.norm_epsilon is not None:
      self.norm = layers.layer_norm(self.norm_epsilon, self.dtype)
    self.drop = layers.Dropout(self.dropout)

  def __call__(
    self,
    input_ids: Int[Array, "b l"],
    segment_ids: Int[Array, "b l"] | None = None,
    position_ids: Int[Array, "b l"] | None = None,
    *,
    train: bool = False,
  ) -> Float[Array, "b l e"]:
    """Embeds a batch; segments are all 0 and positions 0, 1, ... if None.

    Rows with positions given may be longer than the position table, except in
    training: nothing there bounds how far a sequence reaches.

    Raises:
      ValueError: longer than the position table.
    """
    length = input_ids.shape[1]
    bound = position_ids is None or train or self.is_initializing()
    if bound and length > self.max_positions:
      raise ValueError(
        f"length {length} is over max_positions={self.max_positions}; make the"
        " rows shorter (in a run data.length, or phases.phase1.length and the"
        " others), or take a model with more positions."
      )
    if position_ids is None:
      x = self.word(input_ids) + self.position.embedding[:length]
    else:
      x = self.word(input_ids) + self.position(position_ids, train)
    if self.num_segments:
      if segment_ids is None:
        segment_ids = jnp.zeros_like(input_ids)
      x = x + self.segment(segment_ids, train)
    x = x.astype(self.dtype) if self.norm_epsilon is None else self.norm(x)
    x = nn.with_logical_constraint(x, layers.ACTIVATION_AXES)
    return self.drop(x, train)
