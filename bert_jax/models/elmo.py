"""ELMo (Peters et al. 2018): words from characters, LSTMs in two directions."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import heads, layers, lstm
from bert_jax.models.encoder import build_variant

# The states of the forward direction, then of the backward direction. Each
# direction has a state for each layer.
States = tuple[tuple[lstm.State, ...], tuple[lstm.State, ...]]
# The number of character ids, and the number of ids in a word. This folder may
# not import text/characters.py, so a test compares both numbers with that file.
NUM_CHARS, MAX_CHARS = 262, 50
# The number of words in the softmax. allenai/bilm-tf trains with the vocabulary
# of the 1B Word Benchmark, which has this size (bin/train_elmo.py, README.md).
NUM_WORDS = 793_471
# The convolutions: (width in characters, number of filters); allenai/bilm-tf
# bin/train_elmo.py.
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# The published sizes.
#   original  paper, section 3.4, and bin/train_elmo.py
#   medium    AllenNLP (allennlp.org/elmo: 28.0M parameters)
#   small     AllenNLP (allennlp.org/elmo: 13.6M parameters)
VARIANTS: dict[str, dict[str, int]] = {
  "original": dict(hidden=512, cell=4096, highways=2),
  "medium": dict(hidden=256, cell=2048, highways=1),
  "small": dict(hidden=128, cell=1024, highways=1),
}
OBJECTIVE = "elmo"


def uniform_init(bound: float) -> layers.Initializer:
  """Returns an initializer that is uniform between -bound and bound."""

  def init(
    key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32
  ) -> Array:
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init


def convolution_init(
  activation: str, width: int, char_dim: int
) -> layers.Initializer:
  """Returns the initializer of filters (allenai/bilm-tf bilm/training.py).

  Args:
    activation: the activation after the convolutions.
    width: the width of the filters, in characters.
    char_dim: the width of the character table.
  """
  if activation == "tanh":
    return nn.initializers.normal((width * char_dim) ** -0.5)
  return uniform_init(0.05)


class Highway(nn.Module):
  """Computes g relu(W x + b) + (1 - g) x with the gate g = sigmoid(W' x + b').

  Source: Srivastava et al. 2015. As in allenai/bilm-tf, the bias of the gate g
  starts at -2. That program calls g the carry gate, although g is the factor of
  the new values.
  """

  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    """Returns an array of the shape of `x`, in `dtype`."""

    def dense(name: str, bias: float) -> nn.Dense:
      return nn.Dense(
        x.shape[-1],
        dtype=self.dtype,
        kernel_init=layers.with_axes(
          nn.initializers.normal(x.shape[-1] ** -0.5), ("embed", "mlp")
        ),
        bias_init=layers.with_axes(nn.initializers.constant(bias), ("mlp",)),
        name=name,
      )

    gate = jax.nn.sigmoid(dense("gate", -2.0)(x))
    return gate * jax.nn.relu(dense("new", 0.0)(x)) + (1.0 - gate) * x


class CharCnn(nn.Module):
  """Makes a vector from a word's characters, by convolutions.

  Source: Kim et al. 2016, as in allenai/bilm-tf bilm/model.py.

  Attributes:
    num_chars: the number of rows of the character table. Id 0 means that there
      is no character; the vector of id 0 is always 0.
    char_dim: the width of the character table.
    filters: (width in characters, number of filters) of each convolution.
    highways: the number of highway layers after the convolutions.
    features: the width of the words' vectors.
    activation: the activation after the maximum over positions.
    dtype: the dtype of the computation; parameters are always float32.
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
    """Returns a vector for each word, also for padding.

    Args:
      char_ids: the character ids of each word.

    Raises:
      ValueError: the words have fewer characters than the widest filter.
    """
    widest_filter = max(width for width, _ in self.filters)
    if char_ids.shape[-1] < widest_filter:
      raise ValueError(
        f"char_ids of shape {char_ids.shape}: the widest filter needs words of"
        f" {widest_filter} characters."
      )
    table = layers.Embedding(
      self.num_chars,
      self.char_dim,
      uniform_init(1.0),
      axes=(None, None),
      one_hot=True,
      name="chars",
    )
    x = jnp.where((char_ids != 0)[..., None], table(char_ids), 0.0)
    # Write out all sizes instead of -1, since a batch may have no words.
    num_rows, length = char_ids.shape[:2]
    x = x.reshape(num_rows * length, *x.shape[2:]).astype(self.dtype)
    outputs = []
    for i, (width, num_filters) in enumerate(self.filters):
      convolution = nn.Conv(
        num_filters,
        (width,),
        padding="VALID",
        dtype=self.dtype,
        kernel_init=layers.with_axes(
          convolution_init(self.activation, width, self.char_dim),
          (None, None, None),
        ),
        bias_init=layers.with_axes(nn.initializers.zeros_init(), (None,)),
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
    return x.reshape(num_rows, length, self.features)


class Elmo(nn.Module):
  """Makes words' vectors from characters, and encodes them in two directions.

  No direction reads the states of the other direction. The module keeps no
  state between calls.

  Attributes:
    num_chars: see `CharCnn`.
    char_dim: see `CharCnn`.
    filters: see `CharCnn`.
    highways: see `CharCnn`.
    hidden: the width of the words' vectors and of each direction's output.
    cell: the number of LSTM cells in a layer of one direction.
    num_layers: the number of LSTM layers of each direction.
    clip: the largest absolute value of cells and of outputs.
    residual: True adds a layer's input to its output, from the second layer on.
    activation: see `CharCnn`.
    dropout: the dropout rate on the input of each layer.
    dtype: the dtype of the products; states and parameters are always float32.
    unroll: the `unroll` of `lstm.LoopSettings`.
    remat: True computes the words' vectors again in the backward pass.
    vocab_size: the number of words in the softmax of `ForPreTraining`.
    vocab_multiple: the softmax gets rows of zeros up to a multiple of this
      number; see `encoder.Embeddings`.
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
  vocab_size: int = NUM_WORDS
  vocab_multiple: int = 1

  def setup(self) -> None:
    """Makes the character network, the LSTM layers and the dropout."""
    char_cnn_class = nn.remat(CharCnn) if self.remat else CharCnn
    self.words = char_cnn_class(
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
      char_ids: the character ids of each word, 0 after the word's end.
      sequence_ids: 0 at padding and 1 at words. In a packed row 1, 2, ... are
        the numbers of the row's sentences, which do not see each other. If
        None, each position that has a character is a word.
      train: True applies dropout, which needs a "dropout" rng.

    Returns:
      n is num_layers + 1: first the words' vectors, then the output of each
      layer. d is 2 * hidden: first the forward, then the backward direction.
      Words' vectors have no direction, so both halves of d are equal there.
      Padding is 0.
    """
    return self.encode_with_states(char_ids, sequence_ids, None, train=train)[0]

  def encode_with_states(
    self,
    char_ids: Int[Array, "b l c"],
    sequence_ids: Int[Array, "b l"] | None,
    states: States | None,
    *,
    train: bool = False,
  ) -> tuple[Float[Array, "b n l d"], States]:
    """Encodes a batch that continues the text of the previous call.

    Args:
      char_ids: see `__call__`.
      sequence_ids: see `__call__`.
      states: the states that the previous call returned; None at the first
        call.
      train: see `__call__`.

    Returns:
      The output of `__call__`, and the states of both directions.
    """
    outputs, last_states = self.encode_directions(
      (char_ids,), sequence_ids, states, train=train
    )
    outputs_by_row = [output.swapaxes(0, 1) for output in outputs]
    return jnp.concatenate(outputs_by_row, -1), last_states

  def encode_directions(
    self,
    char_ids: tuple[Int[Array, "b l c"], ...],
    sequence_ids: Int[Array, "b l"] | None,
    states: States | None,
    *,
    train: bool = False,
  ) -> tuple[tuple[Float[Array, "n b l d"], ...], States]:
    """Encodes words; the two directions may read different words.

    Args:
      char_ids: one array for both directions, or two arrays, for forward and
        for backward.
      sequence_ids: see `__call__`; both directions share them.
      states: see `encode_with_states`.
      train: see `__call__`.

    Returns:
      First the layers of each direction: d is `hidden`, and the words are in
      the order of the text. Then the states of both directions.
    """
    if sequence_ids is None:
      sequence_ids = (char_ids[0] != 0).any(-1).astype(jnp.int32)
    is_word = (sequence_ids != 0)[..., None]
    vectors = [jnp.where(is_word, self.words(ids), 0) for ids in char_ids]
    # The first axis of the arrays below is the direction. Words are in the
    # order of reading, which is reversed in the backward direction.
    sequence_ids_by_direction = sequence_ids, sequence_ids[:, ::-1]
    outputs = [jnp.stack([vectors[0], vectors[-1][:, ::-1]])]
    sequence_ids_as_read = jnp.stack(sequence_ids_by_direction)
    layer_states = []
    loop_settings = lstm.LoopSettings(
      clip=self.clip, dtype=self.dtype, unroll=self.unroll
    )
    layer_pairs = zip(self.lstm_forward, self.lstm_backward, strict=True)
    for i, layer_pair in enumerate(layer_pairs):
      # Dropout is outside of the residual connection, as published
      # (bilm/training.py: DropoutWrapper around ResidualWrapper).
      layer_inputs = jnp.stack(
        [self.drop(output, train) for output in outputs[-1]]
      )
      first_states = None
      if states is not None:
        forward, backward = (direction[i] for direction in states)
        first_states = (
          jnp.stack([forward[0], backward[0]]),
          jnp.stack([forward[1], backward[1]]),
        )
      weights = [layer.weights(self.hidden) for layer in layer_pair]
      new_outputs, last_states = lstm.run_directions(
        weights, layer_inputs, sequence_ids_as_read, first_states, loop_settings
      )
      if self.residual and i:
        new_outputs = jnp.where(
          (sequence_ids_as_read != 0)[..., None], layer_inputs + new_outputs, 0
        )
      outputs.append(new_outputs)
      layer_states.append(last_states)
    layer_outputs = jnp.stack(outputs)
    forward_states, backward_states = (
      tuple((cells[i], output[i]) for cells, output in layer_states)
      for i in (0, 1)
    )
    directions = layer_outputs[:, 0], layer_outputs[:, 1, :, ::-1]
    return directions, (forward_states, backward_states)


class ForPreTraining(nn.Module):
  """Joins the encoder and a softmax over words that both directions share.

  Source: allenai/bilm-tf bilm/training.py, `_build_loss`.
  """

  encoder: Elmo

  def setup(self) -> None:
    """Makes the table and the bias of the softmax."""
    encoder = self.encoder
    init = nn.initializers.normal(encoder.hidden**-0.5)
    self.softmax = layers.vocabulary_table(
      encoder.vocab_size, encoder.vocab_multiple, encoder.hidden, init
    )
    self.bias = heads.output_bias(self, self.softmax.embedding)
    self.drop = layers.Dropout(encoder.dropout)

  def encode(
    self,
    batch: dict[str, Array],
    states: States | None = None,
    *,
    train: bool = False,
  ) -> tuple[tuple[Float[Array, "b l d"], ...], States]:
    """Returns the last layer of both directions, and their LSTM states.

    Dropout also applies before the softmax, as published.

    Args:
      batch: has `char_ids`; optionally `sequence_ids`; and `back_char_ids` if
        the backward direction reads other words than the forward direction.
      states: see `Elmo.encode_with_states`.
      train: True applies dropout, which needs a "dropout" rng.
    """
    keys = [key for key in ("char_ids", "back_char_ids") if key in batch]
    directions, states = self.encoder.encode_directions(
      tuple(batch[key] for key in keys),
      batch.get("sequence_ids"),
      states,
      train=train,
    )
    return tuple(self.drop(x[-1], train) for x in directions), states

  def softmax_table(self) -> tuple[Float[Array, "v d"], Float[Array, "v"]]:
    """Returns table and bias, with the rows that `vocab_multiple` adds."""
    return self.softmax.embedding, self.bias

  def softmax_rows(
    self, ids: Int[Array, "n"]
  ) -> tuple[Float[Array, "n d"], Float[Array, "n"]]:
    """Returns words' vectors and biases; the vector of an invalid id is NaN."""
    return self.softmax(ids), jnp.take(self.bias, ids)

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns {"next_logits", "previous_logits"}, float32 [b l v].

    At each word, "next_logits" predict the word after it, and
    "previous_logits" the word before it.

    Args:
      batch: see `encode`.
      train: see `encode`.
    """
    hidden, _ = self.encode(batch, train=train)
    table, vocab_size = self.softmax.embedding, self.encoder.vocab_size
    names = ("next_logits", "previous_logits")
    return {
      name: heads.word_logits(x, table, vocab_size, self.bias)
      for name, x in zip(names, hidden, strict=True)
    }


class ScalarMix(nn.Module):
  """Sums layers with learnt weights (paper, equation 1; bilm/elmo.py).

  Attributes:
    normalises_layers: True normalises each layer by the layer's mean and
      variance over the real words of the batch, as the published option does
      (epsilon 1e-12).
  """

  normalises_layers: bool = False

  @nn.compact
  def __call__(
    self,
    stacked: Float[Array, "b n l d"],
    sequence_ids: Int[Array, "b l"],
  ) -> Float[Array, "b l d"]:
    """Sums the layers, weighted by gamma * softmax(w + 1 / n).

    The parameters w and gamma start at 0 and 1.

    Args:
      stacked: the layers, as `Elmo.__call__` returns them.
      sequence_ids: see `Elmo.__call__`.
    """
    num_layers = stacked.shape[1]
    zeros, ones = nn.initializers.zeros_init(), nn.initializers.ones_init()
    w = self.param("layer_weights", zeros, (num_layers,), jnp.float32)
    gamma = self.param("gamma", ones, (), jnp.float32)
    x = stacked.astype(jnp.float32)
    if self.normalises_layers:
      is_word = (sequence_ids != 0)[:, None, :, None]
      num_values = jnp.maximum(is_word.sum(), 1) * x.shape[-1]
      mean = jnp.where(is_word, x, 0).sum((0, 2, 3), keepdims=True) / num_values
      squares = jnp.where(is_word, (x - mean) ** 2, 0)
      variance = squares.sum((0, 2, 3), keepdims=True) / num_values
      x = (x - mean) / jnp.sqrt(variance + 1e-12)
    weights = jax.nn.softmax(w + 1.0 / num_layers)
    return gamma * jnp.einsum("n,bnld->bld", weights, x)


def softmax_shapes(encoder: Elmo) -> dict[str, Any]:
  """Returns the shapes of the parameters that `ForPreTraining` adds.

  These are the shapes without the rows that `vocab_multiple` adds: those rows
  are not saved.
  """
  table = encoder.vocab_size, encoder.hidden
  return {
    "softmax": {"embedding": jax.ShapeDtypeStruct(table, jnp.float32)},
    "bias": jax.ShapeDtypeStruct(table[:1], jnp.float32),
  }


def _filter_pairs(filters: Any) -> tuple[tuple[int, int], ...]:
  """Converts the option `filters` to tuples.

  Raises:
    ValueError: `filters` are not pairs, or a number is out of its range.
  """
  try:
    pairs = tuple((width, num_filters) for width, num_filters in filters)
  except (TypeError, ValueError):
    pairs = ()
  are_positive = all(
    isinstance(number, int) and number > 0 for pair in pairs for number in pair
  )
  if not pairs or not are_positive or max(pairs)[0] > MAX_CHARS:
    raise ValueError(
      f"model.filters={filters!r} must be pairs of a width, 1 to {MAX_CHARS}"
      " characters, and a number of filters, as ((1, 32), (2, 64))."
    )
  return pairs


def build(variant: str, **overrides: Any) -> Elmo:
  """Builds a published size; see `encoder.build_variant`.

  Args:
    variant: a key of `VARIANTS`.
    **overrides: fields of `Elmo`; `filters` may consist of lists.

  Raises:
    ValueError: see `encoder.build_variant`; or the filters are invalid.
  """
  if "filters" in overrides:
    overrides["filters"] = _filter_pairs(overrides["filters"])
  return build_variant(Elmo, VARIANTS, variant, overrides)


def flops(
  encoder: Elmo, num_rows: int, length: int, num_predictions: int
) -> float:
  """Counts the floating-point operations of a forward pass.

  Only matrix products count.

  Args:
    encoder: the encoder, which has the sizes.
    num_rows: the number of rows.
    length: the number of words in a row.
    num_predictions: the number of logits for each word and direction.
  """
  highway_width = sum(num_filters for _, num_filters in encoder.filters)
  word_flops = (
    2.0
    * highway_width
    * (2 * encoder.highways * highway_width + encoder.hidden)
  )
  for width, num_filters in encoder.filters:
    word_flops += (
      2.0 * (MAX_CHARS - width + 1) * width * encoder.char_dim * num_filters
    )
  num_layer_weights = (
    2 * encoder.hidden * 4 * encoder.cell + encoder.cell * encoder.hidden
  )
  # There are two directions, and a weight costs two operations for each word.
  word_flops += (
    2
    * 2.0
    * (
      encoder.num_layers * num_layer_weights + num_predictions * encoder.hidden
    )
  )
  return num_rows * length * word_flops
