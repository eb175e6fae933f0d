"""The base of the Transformer encoders: shared fields, embeddings, layers.

A family's file (`bert.py`, `albert.py`, ...) subclasses `Encoder` and holds
only what differs. Also here: building a published size by its name, and
counting operations.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import layers, stack

# The inputs of an encoder, in this order; all but the first may be missing.
INPUTS = ("input_ids", "segment_ids", "sequence_ids", "position_ids")
Module = TypeVar("Module", bound=nn.Module)


class Embeddings(nn.Module):
  """Word, position and segment embeddings, summed and normalised.

  Tables, their sum, LayerNorm, dropout (Devlin et al. 2019, Figure 2).

  Attributes:
    vocab_size: number of pieces; the word table has a row for each.
    features: width of every table.
    max_positions: rows of the position table.
    num_segments: rows of the segment table; 0 for none (DistilBERT, GPT-1).
    dropout: rate of the dropout after the LayerNorm.
    norm_epsilon: epsilon of the LayerNorm; None for no LayerNorm (GPT-1).
    dtype: dtype of the result; the tables are always float32.
    kernel_init: initializer of the tables.
    vocab_multiple: the word table gets rows of zeros up to a multiple of this
      number, which is the number of devices that split the vocabulary. No file
      holds these rows.
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
    self.word = layers.vocabulary_table(
      self.vocab_size, self.vocab_multiple, self.features, self.kernel_init
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

    Rows with given positions may be longer than the position table, except in
    training, because then nothing bounds how far a sequence reaches.

    Raises:
      ValueError: the rows are longer than the position table.
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

  A family adds fields, gives other defaults, and overrides `setup` (its parts)
  or `embed` (what goes into the first layer) where it differs.

  Attributes:
    vocab_size: number of pieces; the word table has a row for each.
    hidden: width, a multiple of `heads`.
    num_layers: number of Transformer layers.
    heads: number of attention heads.
    mlp: width of the MLP.
    max_positions: rows of the position table.
    dropout: rate on the embeddings and on each sub-layer's output.
    attention_dropout: rate on the attention probabilities.
    activation: activation of the MLP, a name of `layers.ACTIVATIONS`.
    norm_epsilon: epsilon of every LayerNorm.
    initializer_range: standard deviation of the initial weights.
    dtype: dtype of the computation; parameters are always float32.
    attention: implementation of attention, see `fused.implementation`.
    elementwise: implementation of bias, dropout, residual, LayerNorm and
      activation, see `fused.implementation`.
    products: "auto" for products in `dtype`, or "fp8", see kernels/fp8.py.
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

  # Rows of the segment table. This is not a field: only the families that have
  # such a table make it one.
  num_segments = 0

  @property
  def kernel_init(self) -> layers.Init:
    """Initializer of the tables and kernels."""
    return nn.initializers.truncated_normal(self.initializer_range)

  @property
  def max_length(self) -> int:
    """The length of the longest row."""
    return self.max_positions

  @property
  def word_embedding(self) -> Float[Array, "v e"]:
    """The word table, for a head that is tied to it."""
    return self.embeddings.word.embedding

  @nn.nowrap
  def make_embeddings(self, **differences: Any) -> Embeddings:
    """Builds the tables; `differences` are fields that differ in a family."""
    fields = dict(
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
    return Embeddings(**fields | differences)

  def setup(self):
    self.embeddings = self.make_embeddings()
    self.layers = stack.build(self)

  def embed(
    self,
    input_ids: Int[Array, "b l"],
    segment_ids: Int[Array, "b l"] | None,
    position_ids: Int[Array, "b l"] | None,
    train: bool,
  ) -> Float[Array, "b l d"]:
    """Makes the input of the first layer; arguments as in `__call__`."""
    return self.embeddings(input_ids, segment_ids, position_ids, train=train)

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
      sequence_ids: 1 at real tokens, 0 at padding (1, 2, ... for the sequences
        of a packed row); all 1 if None.
      position_ids: 0, 1, 2, ... in each sequence; along the row if None.
      train: apply dropout; needs a "dropout" rng.
      collect: return every layer's hidden states and probabilities.

    Returns:
      The last hidden states in `dtype`, and if `collect` {"embeddings" [b l d],
      "hidden" [n b l d], "attention" float32 [n b h l l]}, else {}.

    Raises:
      ValueError: the rows are longer than `max_length`.
    """
    embedded = self.embed(input_ids, segment_ids, position_ids, train)
    sequence_ids = default_sequence_ids(input_ids, sequence_ids)
    x, collected = self.layers(embedded, sequence_ids, train, collect)
    return x, dict(embeddings=embedded, **collected) if collect else {}


def attributes(encoder: nn.Module) -> dict[str, Any]:
  """Returns all fields of an encoder except those of every Flax module."""
  return {name: getattr(encoder, name) for name in _names(encoder)}


def _names(encoder: nn.Module | type[nn.Module]) -> list[str]:
  names = [field.name for field in dataclasses.fields(encoder)]
  return [name for name in names if name not in ("parent", "name")]


def encode(
  encoder: Callable[..., Any], batch: Mapping[str, Array], **options: Any
) -> Any:
  """Calls an encoder with the inputs that a batch has.

  Args:
    encoder: an encoder, its `apply` with the parameters or its `init` with a
      key.
    batch: `input_ids`, and those of the other `INPUTS` that there are.
    **options: `train`, `collect`.
  """
  return encoder(*map(batch.get, INPUTS), **options)


def build_variant(
  encoder: type[Module],
  variants: Mapping[str, Mapping[str, Any]],
  variant: str,
  overrides: Mapping[str, Any],
) -> Module:
  """Builds a published size of a family.

  Args:
    encoder: the family's module.
    variants: its published sizes: name -> attributes.
    variant: a key of `variants`.
    overrides: other attributes; `dtype` may be a name.

  Raises:
    ValueError: the variant or an attribute is unknown (the message names the
      known ones), or `dtype` is not a dtype of floats.
  """
  if variant not in variants:
    raise ValueError(f"model.variant={variant!r}: not one of {list(variants)}.")
  fields = _names(encoder)
  for name in overrides:
    if name not in fields:
      near = difflib.get_close_matches(name, fields, 1)
      hint = f"did you mean {near[0]!r}?" if near else f"it has {fields}."
      raise ValueError(
        f"model.{name}: {encoder.__name__} has no such attribute; {hint}"
      )
  values = {**variants[variant], **overrides}
  if "dtype" in values:
    values["dtype"] = _dtype(values["dtype"])
  return encoder(**values)


def _dtype(value: Any) -> jnp.dtype:
  """A dtype or its name; ValueError unless it is a dtype of floats."""
  try:
    dtype = jnp.dtype(value)
  except TypeError:
    dtype = None
  if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"model.dtype={value!r}: not one of float32, bfloat16.")
  return dtype


def default_sequence_ids(
  input_ids: Int[Array, "b l"], sequence_ids: Int[Array, "b l"] | None
) -> Int[Array, "b l"]:
  """Returns `sequence_ids`, or one sequence without padding if None."""
  return jnp.ones_like(input_ids) if sequence_ids is None else sequence_ids


def stack_flops(encoder: Any, rows: int, length: int) -> float:
  """Counts the operations of a stack's forward pass, matrix products only.

  A row costs, in each layer, 2 l (4 d^2 + 2 d f) for the projections and the
  MLP and 4 l^2 d for attention. Shared layers cost as often as they are
  applied.
  """
  d, f = encoder.hidden, encoder.mlp
  layer = 2 * length * (4 * d * d + 2 * d * f) + 4 * length * length * d
  return float(rows * encoder.num_layers * layer)
