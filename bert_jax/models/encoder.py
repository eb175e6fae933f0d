"""The base of the Transformer encoders: shared fields, embeddings, layers.

A family's file (`bert.py`, `albert.py`, ...) subclasses `Encoder` and holds
only what differs. This file also builds a published size by its name, and
counts operations.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import explicit_axes, layers, stack

# The batch keys that an encoder reads, in the order of its arguments. Only the
# first key is required.
INPUT_KEYS = ("input_ids", "segment_ids", "sequence_ids", "position_ids")
Module = TypeVar("Module", bound=nn.Module)


class Embeddings(nn.Module):
  """Sums and normalises word, position and segment embeddings.

  LayerNorm and dropout follow the sum (Devlin et al. 2019, Figure 2).

  Attributes:
    vocab_size: the number of pieces; the word table has a row for each.
    features: the width of every table.
    max_positions: the number of rows of the position table.
    num_segments: the number of rows of the segment table; 0 means that there is
      no segment table (DistilBERT, GPT-1).
    dropout: the rate of the dropout after the LayerNorm.
    norm_epsilon: the epsilon of the LayerNorm; None means that there is no
      LayerNorm (GPT-1).
    dtype: the dtype of the output; the tables are always float32.
    kernel_init: the initializer of the tables.
    vocab_multiple: the number of rows of the word table is rounded up to a
      multiple of this number, so that devices can split the table evenly. The
      added rows are zeros, and no file holds them.
  """

  vocab_size: int
  features: int
  max_positions: int
  num_segments: int
  dropout: float
  norm_epsilon: float | None
  dtype: jnp.dtype
  kernel_init: layers.Initializer
  vocab_multiple: int = 1

  def setup(self) -> None:
    """Makes the tables, the LayerNorm and the dropout."""
    axes = (None, "embed")
    self.word = layers.vocabulary_table(
      self.vocab_size, self.vocab_multiple, self.features, self.kernel_init
    )
    self.position = layers.Embedding(
      self.max_positions, self.features, self.kernel_init, axes, one_hot=True
    )
    if self.num_segments:
      self.segment = layers.Embedding(
        self.num_segments, self.features, self.kernel_init, axes, one_hot=True
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
    """Embeds the tokens of a batch.

    With `position_ids`, a packed row may be longer than the position table,
    since each sequence counts positions from 0. Training refuses such a row,
    because nothing ensures that each sequence is short enough.

    Args:
      input_ids: token ids.
      segment_ids: the segment of each token; all 0 if None.
      position_ids: the position of each token; 0, 1, ... along the row if None.
      train: True applies dropout, which needs a "dropout" rng.

    Raises:
      ValueError: the rows are longer than the position table, and `train` is
        True or `position_ids` is None.
    """
    length = input_ids.shape[1]
    is_bounded = position_ids is None or train or self.is_initializing()
    if is_bounded and length > self.max_positions:
      raise ValueError(
        f"length {length} is over max_positions={self.max_positions}; make the"
        " rows shorter (in a run data.length, or the length of each phase, such"
        " as phases.phase1.length), or take a model with more positions."
      )
    if position_ids is None:
      x = self.word(input_ids) + self.position.embedding[None, :length]
    else:
      x = self.word(input_ids) + self.position(position_ids, train)
    if self.num_segments:
      if segment_ids is None:
        segment_ids = jnp.zeros_like(input_ids)
      x = x + self.segment(segment_ids, train)
    x = x.astype(self.dtype) if self.norm_epsilon is None else self.norm(x)
    x = nn.with_logical_constraint(x, layers.ACTIVATION_AXES)
    return self.drop(x, train)


class Encoder(nn.Module):
  """Embeddings and a stack of layers, without a head.

  A family adds fields and changes defaults. A family with other modules
  overrides `setup`, and a family with another input of the first layer
  overrides `embed`.

  Attributes:
    vocab_size: the number of pieces; the word table has a row for each.
    hidden: the width of the hidden states, a multiple of `heads`.
    num_layers: the number of Transformer layers.
    heads: the number of attention heads.
    mlp: the width of the MLP.
    max_positions: the number of rows of the position table.
    dropout: the dropout rate on the embeddings and on each sub-layer's output.
    attention_dropout: the dropout rate on the attention probabilities.
    activation: the activation of the MLP, a key of `layers.ACTIVATIONS`.
    norm_epsilon: the epsilon of every LayerNorm.
    initializer_range: the standard deviation of the initial weights.
    dtype: the dtype of the computation; parameters are always float32.
    attention: the implementation of attention; see
      `fused.choose_implementation`.
    elementwise: the implementation of bias, dropout, residual, LayerNorm and
      activation; see `fused.choose_implementation`.
    products: "auto" for products in `dtype`, or "fp8"; see kernels/fp8.py.
    unroll: see `stack.Stack`.
    remat: see `stack.Stack`.
    vocab_multiple: see `Embeddings`.
  """

  vocab_size: int = 30522
  hidden: int = 768
  num_layers: int = 12
  heads: int = 12
  mlp: int = 3072
  max_positions: int = 512
  dropout: float = 0.1
  attention_dropout: float = 0.1
  activation: str = "gelu"
  norm_epsilon: float = 1e-12
  initializer_range: float = 0.02
  dtype: jnp.dtype = jnp.dtype(jnp.float32)
  attention: str = "auto"
  elementwise: str = "auto"
  products: str = "auto"
  unroll: int = 0
  remat: bool = False
  vocab_multiple: int = 1

  # The number of rows of the segment table. A family with segments declares
  # `num_segments` as a field. Here it has no annotation and so is no field:
  # users of a family without segments cannot set it.
  num_segments = 0

  @property
  def kernel_init(self) -> layers.Initializer:
    """The initializer of the tables and kernels."""
    return nn.initializers.truncated_normal(self.initializer_range)

  @property
  def max_length(self) -> int:
    """The length of the longest row that the position table allows."""
    return self.max_positions

  @property
  def word_embedding(self) -> Float[Array, "v e"]:
    """The word table, for a head that is tied to it."""
    return self.embeddings.word.embedding

  @nn.nowrap
  def make_embeddings(self, **overrides: Any) -> Embeddings:
    """Builds the embeddings.

    Args:
      **overrides: the fields whose values differ in a family.
    """
    fields: dict[str, Any] = dict(
      vocab_size=self.vocab_size,
      features=self.hidden,
      max_positions=self.max_positions,
      num_segments=self.num_segments,
      dropout=self.dropout,
      norm_epsilon=self.norm_epsilon,
      dtype=self.dtype,
      kernel_init=self.kernel_init,
      vocab_multiple=self.vocab_multiple,
    )
    return Embeddings(**fields | overrides)

  def setup(self) -> None:
    """Makes the embeddings and the stack of layers."""
    self.embeddings = self.make_embeddings()
    self.layers = stack.build(self)

  def embed(
    self,
    input_ids: Int[Array, "b l"],
    segment_ids: Int[Array, "b l"] | None,
    position_ids: Int[Array, "b l"] | None,
    train: bool,
  ) -> Float[Array, "b l d"]:
    """Computes the input of the first layer; see `__call__` for arguments."""
    return self.embeddings(input_ids, segment_ids, position_ids, train=train)

  @explicit_axes.accepted(hidden=1, attention=1)
  def __call__(
    self,
    input_ids: Int[Array, "b l"],
    segment_ids: Int[Array, "b l"] | None = None,
    sequence_ids: Int[Array, "b l"] | None = None,
    position_ids: Int[Array, "b l"] | None = None,
    *,
    train: bool = False,
    collect: bool = False,
  ) -> tuple[Float[Array, "b l d"], dict[str, Array]]:
    """Encodes a batch.

    Args:
      input_ids: token ids.
      segment_ids: 0 for the first segment, 1 for the second; all 0 if None. A
        family without segments does not read them.
      sequence_ids: 0 at padding and 1 at real tokens; in a packed row 1, 2, ...
        are the numbers of the row's sequences. All 1 if None.
      position_ids: 0, 1, 2, ... in each sequence. If None, positions count
        along the whole row.
      train: True applies dropout, which needs a "dropout" rng.
      collect: True also returns the states and probabilities of all layers.

    Returns:
      The last hidden states in `dtype`, and a dict. The dict is empty unless
      `collect` is True; then it has "embeddings" [b l d], "hidden" [n b l d]
      and the attention probabilities "attention" [n b h l l], float32.

    Raises:
      ValueError: the rows are too long; see `Embeddings.__call__`.
    """
    embedded = self.embed(input_ids, segment_ids, position_ids, train)
    sequence_ids = default_sequence_ids(input_ids, sequence_ids)
    x, collected = self.layers(embedded, sequence_ids, train, collect)
    return x, dict(embeddings=embedded, **collected) if collect else {}


def field_values(encoder: nn.Module) -> dict[str, Any]:
  """Returns {field: value} of an encoder, without `parent` and `name`."""
  return {name: getattr(encoder, name) for name in _field_names(encoder)}


def _field_names(encoder: nn.Module | type[nn.Module]) -> list[str]:
  names = [field.name for field in dataclasses.fields(encoder)]
  return [name for name in names if name not in ("parent", "name")]


def encode(
  encoder: Callable[..., Any], batch: Mapping[str, Array], **options: Any
) -> Any:
  """Calls an encoder with the `INPUT_KEYS` that a batch has.

  Args:
    encoder: an encoder, or its `apply` bound to parameters, or its `init` bound
      to a key.
    batch: has `input_ids`, and any other keys.
    **options: `train` and `collect`, see `Encoder.__call__`.

  Returns:
    The output of the call.
  """
  return encoder(*map(batch.get, INPUT_KEYS), **options)


def build_variant(
  encoder_class: type[Module],
  variants: Mapping[str, Mapping[str, Any]],
  variant: str,
  overrides: Mapping[str, Any],
) -> Module:
  """Builds a published size of a family.

  Args:
    encoder_class: the class of the family's encoder.
    variants: the published sizes: name -> fields of the encoder.
    variant: a key of `variants`.
    overrides: fields that replace those of the variant. `dtype` may be the name
      of a dtype.

  Raises:
    ValueError: the variant or a field is unknown (the message suggests names),
      or `dtype` is not a floating-point dtype.
  """
  if variant not in variants:
    raise ValueError(
      f"model.variant={variant!r} is not one of {list(variants)}."
    )
  fields = _field_names(encoder_class)
  for name in overrides:
    if name not in fields:
      suggestions = difflib.get_close_matches(name, fields, n=1)
      hint = (
        f"did you mean {suggestions[0]!r}?"
        if suggestions
        else f"it has {fields}."
      )
      raise ValueError(
        f"model.{name}: {encoder_class.__name__} has no such attribute; {hint}"
      )
  values = {**variants[variant], **overrides}
  if "dtype" in values:
    values["dtype"] = _float_dtype(values["dtype"])
  return encoder_class(**values)


def _float_dtype(value: Any) -> jnp.dtype:
  """Converts a dtype or its name; raises ValueError if it is no float dtype."""
  try:
    dtype = jnp.dtype(value)
  except TypeError:
    dtype = None
  if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"model.dtype={value!r} is not one of float32, bfloat16.")
  return dtype


def default_sequence_ids(
  input_ids: Int[Array, "b l"], sequence_ids: Int[Array, "b l"] | None
) -> Int[Array, "b l"]:
  """Returns `sequence_ids`, or ones (one sequence, no padding) if None."""
  return jnp.ones_like(input_ids) if sequence_ids is None else sequence_ids


def stack_flops(encoder: Any, num_rows: int, length: int) -> float:
  """Counts the floating-point operations of a stack's forward pass.

  Only matrix products count. In each layer a row of length l costs
  2 l (4 d^2 + 2 d f) for the projections and the MLP, and 4 l^2 d for
  attention. A layer with shared parameters counts each time it is applied.

  Args:
    encoder: the encoder; d is its `hidden` and f its `mlp`.
    num_rows: the number of rows.
    length: the number of tokens in a row.
  """
  d, f = encoder.hidden, encoder.mlp
  layer_flops = 2 * length * (4 * d * d + 2 * d * f) + 4 * length * length * d
  return float(num_rows * encoder.num_layers * layer_flops)
