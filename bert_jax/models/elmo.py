"""ELMo (Peters et al. 2018): words from characters, two LSTMs each way."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import heads, layers, lstm
from bert_jax.models.encoder import build_variant

# The states of each layer of both directions, forward first.
States = tuple[tuple[lstm.State, ...], tuple[lstm.State, ...]]
# The number of character ids, and how many ids make a word. They are those of
# text/characters.py, which this room may not import; a test compares both.
NUM_CHARS, MAX_CHARS = 262, 50
# Words of the softmax; bin/train_elmo.py's vocabulary of the 1B Word Benchmark
# (README.md of allenai/bilm-tf).
VOCABULARY = 793_471
# (characters, filters); allenai/bilm-tf bin/train_elmo.py.
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# Paper, section 3.4, and bin/train_elmo.py; small and medium are AllenNLP's
# (allennlp.org/elmo: 13.6M and 28.0M parameters).
VARIANTS: dict[str, dict[str, int]] = {
  "original": dict(hidden=512, cell=4096, highways=2),
  "medium": dict(hidden=256, cell=2048, highways=1),
  "small": dict(hidden=128, cell=1024, highways=1),
}
OBJECTIVE = "elmo"


def symmetric(bound: float) -> layers.Init:
  """An initializer, uniform between -bound and bound."""

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init


def convolution_init(activation: str, width: int, char_dim: int) -> layers.Init:
  """How the filters of a width begin (allenai/bilm-tf bilm/training.py)."""
  if activation == "tanh":
    return nn.initializers.normal((width * char_dim) ** -0.5)
  return symmetric(0.05)


class Highway(nn.Module):
  """A gated layer: g relu(W x + b) + (1 - g) x, g = sigmoid(W' x + b').

  Srivastava et al. 2015; allenai/bilm-tf calls g the carry gate, though it
  lets the new values through, and starts its bias at -2.
  """

  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    def dense(name, bias):
      return nn.Dense(
        x.shape[-1],
        dtype=self.dtype,
        kernel_init=nn.with_logical_partitioning(
          nn.initializers.normal(x.shape[-1] ** -0.5), ("embed", "mlp")
        ),
        bias_init=nn.with_logical_partitioning(
          nn.initializers.constant(bias), ("mlp",)
        ),
        name=name,
      )

    gate = jax.nn.sigmoid(dense("gate", -2.0)(x))
    return gate * jax.nn.relu(dense("new", 0.0)(x)) + (1.0 - gate) * x


class CharCnn(nn.Module):
  """Vectors of words (Kim et al. 2016, as in allenai/bilm-tf bilm/model.py).

  Attributes:
    num_chars: rows of the character table; row 0 is none and stays 0.
    char_dim: width of the table.
    filters: (width in characters, number) of each convolution.
    highways: layers after the convolutions.
    features: width of the result.
    activation: after the maximum over positions.
    dtype: dtype of the computation; parameters are always float32.
  """

  num_chars: int
  char_dim: int
  filters: tuple[tuple[int, int], ...]
  highways: int
  features: int
  activation: str
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, char_ids: Int[Array, "b l c"]) -> Float[Array, "b l d"]:
    """Returns a vector for each word, padding included.

    Raises:
      ValueError: words of fewer characters than the widest filter.
    """
    widest = max(width for width, _ in self.filters)
    if char_ids.shape[-1] < widest:
      raise ValueError(
        f"char_ids of shape {char_ids.shape}: the widest filter needs words of"
        f" {widest} characters."
      )
    table = layers.Embedding(
      self.num_chars,
      self.char_dim,
      symmetric(1.0),
      axes=(None, None),
      one_hot=True,
      name="chars",
    )
    x = jnp.where((char_ids != 0)[..., None], table(char_ids), 0.0)
    # Sizes are given in full: there may be no word at all.
    batch, length = char_ids.shape[:2]
    x = x.reshape(batch * length, *x.shape[2:]).astype(self.dtype)
    outputs, axes = [], nn.with_logical_partitioning
    for i, (width, count) in enumerate(self.filters):
      convolution = nn.Conv(
        count,
        (width,),
        padding="VALID",
        dtype=self.dtype,
        kernel_init=axes(
          convolution_init(self.activation, width, self.char_dim),
          (None, None, None),
        ),
        bias_init=axes(nn.initializers.zeros_init(), (None,)),
        name=f"convolution_{i}",
      )
      outputs.append(convolution(x).max(-2))
    x = layers.activation(self.activation)(jnp.concatenate(outputs, -1))
    for i in range(self.highways):
      x = Highway(self.dtype, name=f"highway_{i}")(x)
    x = layers.Dense(
      (self.features,),
      (None, "embed"),
      self.dtype,
      nn.initializers.normal(x.shape[-1] ** -0.5),
      name="project",
    )(x)
    return x.reshape(batch, length, self.features)


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
    activation: activation after the convolutions.
    dropout: on the input of each layer.
    dtype: dtype of the products; states and parameters are always float32.
    unroll: steps of time in an iteration of the loop; 0 for all.
    remat: make the words' vectors again in the backward pass.
    vocab_size: words of the softmax that `ForPreTraining` adds.
    vocab_multiple: the softmax gets rows of zeros up to a multiple of it.
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
  remat: bool = False
  vocab_size: int = VOCABULARY
  vocab_multiple: int = 1

  def setup(self):
    words = nn.remat(CharCnn) if self.remat else CharCnn
    self.words = words(
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

  def _layer(self) -> lstm.Lstm:
    return lstm.Lstm(self.cell, self.hidden, self.clip, self.dtype)

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
      states: the states that the previous call returned; None at the first.
      train: see `__call__`.

    Returns:
      The layers, and the state of each layer and direction.
    """
    ways, after = self.ways((char_ids,), sequence_ids, states, train=train)
    return jnp.concatenate([way.swapaxes(0, 1) for way in ways], -1), after

  def ways(
    self,
    char_ids: tuple[Int[Array, "b l c"], ...],
    sequence_ids: Int[Array, "b l"] | None,
    states: States | None,
    *,
    train: bool = False,
  ) -> tuple[tuple[Float[Array, "n b l d"], ...], States]:
    """The layers of each direction; the directions' words may differ.

    Args:
      char_ids: one array for both directions, or one for each, forward first.
      sequence_ids: see `__call__`; those of both.
      states: see `run`.
      train: see `__call__`.

    Returns:
      The layers of the directions in the order of the text, d is `hidden`;
      the states.
    """
    if sequence_ids is None:
      sequence_ids = (char_ids[0] != 0).any(-1).astype(jnp.int32)
    real = (sequence_ids != 0)[..., None]
    words = [jnp.where(real, self.words(ids), 0) for ids in char_ids]
    # In the order in which they are read.
    read = sequence_ids, sequence_ids[:, ::-1]
    outputs = [jnp.stack([words[0], words[-1][:, ::-1]])]
    both = jnp.stack(read)
    after = []
    loop = lstm.Loop(clip=self.clip, dtype=self.dtype, unroll=self.unroll)
    pairs = zip(self.lstm_forward, self.lstm_backward, strict=True)
    for i, pair in enumerate(pairs):
      # Dropout is outside of the residual connection, as published
      # (bilm/training.py: DropoutWrapper around ResidualWrapper).
      x = jnp.stack([self.drop(way, train) for way in outputs[-1]])
      before = None
      if states is not None:
        before = tuple(
          jnp.stack(s) for s in zip(*(way[i] for way in states), strict=True)
        )
      weights = [layer.weights(self.hidden) for layer in pair]
      y, state = lstm.run(weights, x, both, before, loop)
      if self.residual and i:
        y = jnp.where((both != 0)[..., None], x + y, 0)
      outputs.append(y)
      after.append(state)
    stacked = jnp.stack(outputs)
    states = tuple(tuple((c[way], h[way]) for c, h in after) for way in (0, 1))
    return (stacked[:, 0], stacked[:, 1, :, ::-1]), states


class ForPreTraining(nn.Module):
  """The encoder and the softmax over words, which both directions share.

  allenai/bilm-tf bilm/training.py, `_build_loss`.
  """

  encoder: Elmo

  def setup(self):
    e = self.encoder
    init = nn.initializers.normal(e.hidden**-0.5)
    self.softmax = layers.vocabulary_table(
      e.vocab_size, e.vocab_multiple, e.hidden, init
    )
    self.bias = heads.output_bias(self, self.softmax.embedding)
    self.drop = layers.Dropout(e.dropout)

  def encode(
    self,
    batch: dict[str, Array],
    states: States | None = None,
    *,
    train: bool = False,
  ) -> tuple[tuple[Float[Array, "b l d"], ...], States]:
    """Last hidden states of both directions, and the states after them.

    Dropped out before the softmax as well, as published.

    Args:
      batch: `char_ids`, `sequence_ids`; `back_char_ids` if the backward
        direction reads other words.
      states: see `Elmo.run`.
      train: apply dropout; needs a "dropout" rng.
    """
    keys = [key for key in ("char_ids", "back_char_ids") if key in batch]
    ways, states = self.encoder.ways(
      tuple(batch[key] for key in keys),
      batch.get("sequence_ids"),
      states,
      train=train,
    )
    return tuple(self.drop(way[-1], train) for way in ways), states

  def table(self) -> tuple[Float[Array, "v d"], Float[Array, "v"]]:
    """The softmax's rows, those of `vocab_multiple` included, and biases."""
    return self.softmax.embedding, self.bias

  def rows(
    self, ids: Int[Array, "n"]
  ) -> tuple[Float[Array, "n d"], Float[Array, "n"]]:
    """Some rows and biases of the softmax; NaN for ids that it has not."""
    return self.softmax(ids), jnp.take(self.bias, ids)

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns {"next_logits", "previous_logits"}, float32 [b l v].

    Of the word after each, and of the word before. See `encode`.
    """
    hidden, _ = self.encode(batch, train=train)
    names = ("next_logits", "previous_logits")
    return {
      name: heads.decode(x, self.softmax.embedding, e.vocab_size, self.bias)
      for e in [self.encoder]
      for name, x in zip(names, hidden, strict=True)
    }


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
      size = jnp.maximum(real.sum(), 1) * x.shape[-1]
      mean = jnp.where(real, x, 0).sum((0, 2, 3), keepdims=True) / size
      squares = jnp.where(real, (x - mean) ** 2, 0)
      variance = squares.sum((0, 2, 3), keepdims=True) / size
      x = (x - mean) / jnp.sqrt(variance + 1e-12)
    weights = jax.nn.softmax(w + 1.0 / count)
    return gamma * jnp.einsum("n,bnld->bld", weights, x)


def softmax_shapes(encoder: Elmo) -> dict[str, Any]:
  """Shapes, as files hold them, of what `ForPreTraining` adds to an encoder."""
  table = encoder.vocab_size, encoder.hidden
  return {
    "softmax": {"embedding": jax.ShapeDtypeStruct(table, jnp.float32)},
    "bias": jax.ShapeDtypeStruct(table[:1], jnp.float32),
  }


def _pairs(filters: Any) -> tuple[tuple[int, int], ...]:
  """Filters as tuples.

  Raises:
    ValueError: they are no pairs, or one is out of its range.
  """
  try:
    pairs = tuple((width, count) for width, count in filters)
  except (TypeError, ValueError):
    pairs = ()
  whole = all(isinstance(n, int) and n > 0 for pair in pairs for n in pair)
  if not pairs or not whole or max(pairs)[0] > MAX_CHARS:
    raise ValueError(
      f"model.filters={filters!r}: must be pairs of characters, 1 to"
      f" {MAX_CHARS}, and a number of filters, as ((1, 32), (2, 64))."
    )
  return pairs


def build(variant: str, **overrides: Any) -> Elmo:
  """Builds a published size, see `encoder.build_variant`.

  `filters` may be lists.

  Raises:
    ValueError: see there, or filters that are none.
  """
  if "filters" in overrides:
    overrides["filters"] = _pairs(overrides["filters"])
  return build_variant(Elmo, VARIANTS, variant, overrides)


def flops(encoder: Elmo, rows: int, length: int, predictions: int) -> float:
  """Operations of a forward pass, matrix products only.

  Args:
    encoder: the sizes.
    rows: number of rows.
    length: words in a row.
    predictions: logits of a word and direction.
  """
  e = encoder
  filters = sum(count for _, count in e.filters)
  word = 2.0 * filters * (2 * e.highways * filters + e.hidden)
  for width, count in e.filters:
    word += 2.0 * (MAX_CHARS - width + 1) * width * e.char_dim * count
  layer = 2 * e.hidden * 4 * e.cell + e.cell * e.hidden
  word += 2 * 2.0 * (e.num_layers * layer + predictions * e.hidden)
  return rows * length * word
