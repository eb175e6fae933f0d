"""ELMo (Peters et al. 2018): words from characters, two LSTMs each way."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import base, layers
from bert_jax.models.char_cnn import CharCnn
from bert_jax.models.lstm import Lstm, State

# Of the layers of each direction, forward first.
States = tuple[tuple[State, ...], tuple[State, ...]]
# Ids of characters, and how many make a word: those of bert_jax/data's
# characters.py, which a test compares (models import no data).
NUM_CHARS, MAX_CHARS = 262, 50
# (characters, filters); allenai/bilm-tf bin/train_elmo.py.
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# Paper, section 3.4, and bin/train_elmo.py; small and medium are AllenNLP's
# (allennlp.org/elmo: 13.6M and 28.0M parameters).
VARIANTS: dict[str, dict[str, int]] = {
  "original": dict(hidden=512, cell=4096, highways=2),
  "medium": dict(hidden=256, cell=2048, highways=1),
  "small": dict(hidden=128, cell=1024, highways=1),
}


class Elmo(nn.Module):
  """The encoder: words from characters, then LSTM layers of both directions.

  The directions see each other nowhere. Nothing is remembered between calls.

  Attributes:
    num_chars: rows of the character table; 0 is no character at all.
    char_dim: width of the character table.
    filters: (width in characters, number) of each convolution.
    highways: layers after the convolutions.
    hidden: width of words and of each direction's output.
    cell: LSTM cells of a layer and direction.
    num_layers: LSTM layers of a direction.
    clip: bound of cells and of outputs.
    residual: add a layer's input to its output, from the second layer on.
    activation: of the convolutions.
    dropout: on the input of each layer.
    dtype: of the products; states and parameters are float32 always.
    unroll: steps of time that a loop iteration holds.
  """

  num_chars: int = NUM_CHARS
  char_dim: int = 16
  filters: tuple[tuple[int, int], ...] = FILTERS
  highways: int = 2
  hidden: int = 512
  cell: int = 4096
  num_layers: int = 2
  clip: float = 3.0
  residual: bool = True
  activation: str = "relu"
  dropout: float = 0.1
  dtype: jnp.dtype = jnp.dtype(jnp.float32)
  unroll: int = 1

  def setup(self):
    self.words = CharCnn(
      self.num_chars,
      self.char_dim,
      self.filters,
      self.highways,
      self.hidden,
      self.activation,
      self.dtype,
    )
    self.lstm_forward = [self._layer() for _ in range(self.num_layers)]
    self.lstm_backward = [self._layer() for _ in range(self.num_layers)]
    self.drop = layers.Dropout(self.dropout)

  def _layer(self) -> Lstm:
    return Lstm(self.cell, self.hidden, self.clip, self.dtype, self.unroll)

  def __call__(
    self,
    char_ids: Int[Array, "b l c"],
    sequence_ids: Int[Array, "b l"] | None = None,
    *,
    train: bool = False,
  ) -> Float[Array, "b n l d"]:
    """Encodes a batch of words.

    Args:
      char_ids: characters of each word, 0 after its end.
      sequence_ids: 1 at words, 0 at padding (1, 2, ... for the sentences of a
        packed row, which do not see each other); where there are characters,
        if None.
      train: apply dropout; needs a "dropout" rng.

    Returns:
      num_layers + 1 layers, forward and backward side by side, so that d is
      2 `hidden`: first the words themselves, twice; 0 at padding.
    """
    return self.run(char_ids, sequence_ids, None, train=train)[0]

  def run(
    self,
    char_ids: Int[Array, "b l c"],
    sequence_ids: Int[Array, "b l"] | None,
    states: States | None,
    *,
    train: bool = False,
  ) -> tuple[Float[Array, "b n l d"], States]:
    """As `__call__`, for text that goes on from call to call.

    Args:
      char_ids: see `__call__`.
      sequence_ids: see `__call__`.
      states: what the call before returned; None to begin.
      train: see `__call__`.

    Returns:
      The layers, and the state of each layer and direction.
    """
    if sequence_ids is None:
      sequence_ids = (char_ids != 0).any(-1).astype(jnp.int32)
    real = (sequence_ids != 0)[..., None]
    words = jnp.where(real, self.words(char_ids), 0)
    ways, after = [], []
    for way, stack in enumerate((self.lstm_forward, self.lstm_backward)):
      outputs, left = [words], []
      for i, layer in enumerate(stack):
        # Dropout is outside of the residual connection, as published
        # (bilm/training.py: DropoutWrapper around ResidualWrapper).
        x = self.drop(outputs[-1], train)
        state = None if states is None else states[way][i]
        y, state = layer(x, sequence_ids, state, reverse=way == 1)
        if self.residual and i:
          y = jnp.where(real, x + y, 0)
        outputs.append(y)
        left.append(state)
      ways.append(jnp.stack(outputs, 1))
      after.append(tuple(left))
    return jnp.concatenate(ways, -1), tuple(after)


class ScalarMix(nn.Module):
  """A learnt weighted sum of layers (paper, equation 1; bilm/elmo.py).

  Attributes:
    norm: normalise each layer by its mean and variance over the real words of
      the batch, as the published option does (epsilon 1e-12).
  """

  norm: bool = False

  @nn.compact
  def __call__(
    self,
    stacked: Float[Array, "b n l d"],
    sequence_ids: Int[Array, "b l"],
  ) -> Float[Array, "b l d"]:
    """Mixes layers with softmax(w + 1 / n), times gamma; w begins at 0."""
    count = stacked.shape[1]
    zeros, ones = nn.initializers.zeros_init(), nn.initializers.ones_init()
    w = self.param("layer_weights", zeros, (count,), jnp.float32)
    gamma = self.param("gamma", ones, (), jnp.float32)
    x = stacked.astype(jnp.float32)
    if self.norm:
      real = (sequence_ids != 0)[:, None, :, None]
      size = real.sum() * x.shape[-1]
      mean = jnp.where(real, x, 0).sum((0, 2, 3), keepdims=True) / size
      squares = jnp.where(real, (x - mean) ** 2, 0)
      variance = squares.sum((0, 2, 3), keepdims=True) / size
      x = (x - mean) / jnp.sqrt(variance + 1e-12)
    weights = jax.nn.softmax(w + 1.0 / count)
    return gamma * jnp.einsum("n,bnld->bld", weights, x)


def build(variant: str, **overrides: Any) -> Elmo:
  """Builds a published size, see `base.build`; `filters` may be lists."""
  if "filters" in overrides:
    pairs = overrides["filters"]
    overrides["filters"] = tuple((width, count) for width, count in pairs)
  return base.build(Elmo, VARIANTS, variant, overrides)
