"""Defines heads on an encoder's hidden states, and encoders with heads.

The heads are for pre-training. `task_heads.py` has the heads of downstream
tasks, which use `Pooler` and `Classifier` from this file.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import explicit_axes, layers, primitives
from bert_jax.models.encoder import Encoder, encode, stack_flops

# SpanBERT's boundary head has a table with a vector for each offset in a span.
# These are the numbers of its rows and columns (facebookresearch/SpanBERT
# pretraining/README.md, --max-pair-targets and
# --pair-positional-embedding-size; Joshi et al. 2020, section 4.2).
NUM_SPAN_OFFSETS, SPAN_OFFSET_WIDTH = 15, 200


class MaskedLanguageModel(nn.Module):
  """Predicts masked tokens.

  The head consists of a dense layer, the activation, LayerNorm, the tied
  decoder and an output bias. The head reads only the masked positions, so that
  logits of all positions, [b, l, v], never exist (google-research/bert
  run_pretraining.py, get_masked_lm_output).

  Attributes:
    vocab_size: the number of pieces. The word table's rows beyond this number
      get the lowest float32 as logits. So such a row gets probability 0 and no
      gradient, and is never the argmax.
    activation: the activation between the dense layer and the LayerNorm.
    norm_epsilon: the epsilon of the LayerNorm.
    dtype: the dtype of the computation.
    kernel_init: the initializer of the dense layer.
  """

  vocab_size: int
  activation: str
  norm_epsilon: float
  dtype: jnp.dtype
  kernel_init: layers.Initializer

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "b l d"],
    positions: Int[Array, "b m"],
    embedding: Float[Array, "v e"],
  ) -> Float[Array, "b m v"]:
    """Returns float32 logits.

    Args:
      hidden: the encoder's last hidden states.
      positions: the positions to predict.
      embedding: the word table.
    """
    x = layers.gather_positions(hidden, positions)
    x = layers.Dense(
      (embedding.shape[1],),
      ("embed", "embed_out"),
      self.dtype,
      self.kernel_init,
      name="dense",
    )(x)
    x = layers.activation(self.activation)(x)
    x = layers.layer_norm(self.norm_epsilon, self.dtype, "norm")(x)
    return word_logits(
      x, embedding, self.vocab_size, output_bias(self, embedding)
    )


class SpanBoundary(nn.Module):
  """SpanBERT's head, which predicts a token from both sides of its span.

  The inputs are the hidden states just left and just right of the span, and a
  vector for the token's offset in the span. The head applies a dense layer,
  activation and LayerNorm, all three twice, and then the tied decoder and an
  output bias (Joshi et al. 2020, section 3.2; facebookresearch/SpanBERT
  pretraining/fairseq/models/pair_bert.py, BertPairTargetPredictionHead). The
  attributes are those of `MaskedLanguageModel`.
  """

  vocab_size: int
  activation: str
  norm_epsilon: float
  dtype: jnp.dtype
  kernel_init: layers.Initializer

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "b l d"],
    positions: Int[Array, "b m"],
    spans: Int[Array, "b m 2"],
    embedding: Float[Array, "v e"],
  ) -> Float[Array, "b m v"]:
    """Returns float32 logits.

    Args:
      hidden: the encoder's last hidden states.
      positions: the positions of the tokens. Tokens whose offset in the span is
        not below `NUM_SPAN_OFFSETS` get the last offset's vector; such tokens
        must have weight 0 in the loss.
      spans: the positions just left and just right of each token's span.
      embedding: the word table.
    """
    num_rows, num_positions = positions.shape
    side_states = layers.gather_positions(
      hidden, spans.reshape(num_rows, 2 * num_positions)
    )
    offsets = jnp.clip(positions - spans[..., 0] - 1, 0, NUM_SPAN_OFFSETS - 1)
    table = layers.Embedding(
      NUM_SPAN_OFFSETS,
      SPAN_OFFSET_WIDTH,
      self.kernel_init,
      (None, None),
      one_hot=True,
      name="position",
    )
    x = jnp.concatenate(
      [
        side_states.reshape(num_rows, num_positions, -1),
        table(offsets).astype(side_states.dtype),
      ],
      axis=-1,
    )
    for number in (1, 2):
      x = layers.Dense(
        (embedding.shape[1],),
        (None, "embed") if number == 1 else ("embed", "embed_out"),
        self.dtype,
        self.kernel_init,
        name=f"dense_{number}",
      )(x)
      x = layers.activation(self.activation)(x)
      norm = layers.layer_norm(self.norm_epsilon, self.dtype, f"norm_{number}")
      x = norm(x)
    return word_logits(
      x, embedding, self.vocab_size, output_bias(self, embedding)
    )


def output_bias(
  module: nn.Module, embedding: Float[Array, "v e"]
) -> Float[Array, "v"]:
  """Makes the parameter "bias", which has a number for each row of a table.

  Args:
    module: the module that owns the parameter.
    embedding: the table.
  """
  return module.param(
    "bias",
    layers.with_axes(nn.initializers.zeros_init(), ("vocab",)),
    (embedding.shape[0],),
    jnp.float32,
  )


def word_logits(
  x: Float[Array, "b m e"],
  embedding: Float[Array, "v e"],
  vocab_size: int,
  bias: Float[Array, "v"] | None = None,
) -> Float[Array, "b m v"]:
  """Computes float32 logits, the products of vectors with the word table.

  Args:
    x: the vectors.
    embedding: the word table.
    vocab_size: the number of pieces. The table's rows beyond this number get
      the lowest float32 as logits.
    bias: the output bias; None means that there is no bias.
  """
  # Without this constraint the partitioner (jax 0.10) permutes rows of the
  # gradient, on a mesh of three axes with one row on each device.
  x = nn.with_logical_constraint(x, ("batch", None, "embed_activation"))
  logits = primitives.float32_einsum(
    "bme,ve->bmv", x, embedding.astype(x.dtype)
  )
  logits = nn.with_logical_constraint(logits, ("batch", None, "vocab"))
  if bias is not None:
    logits = logits + bias[None, None]
  if embedding.shape[0] == vocab_size:
    return logits
  ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  return jnp.where(ids < vocab_size, logits, jnp.finfo(jnp.float32).min)


class Pooling(NamedTuple):
  """Says how a family reduces a row to one vector for a classifier.

  Attributes:
    activation: the activation of a dense layer on the vector; None if there is
      no dense layer.
    last: True takes the vector of the last real position, False that of the
      first position.
    input_dropout: True also applies dropout before the dense layer.
    dropout: the rate of the dropout before the classifier.
  """

  activation: str | None
  last: bool = False
  input_dropout: bool = False
  dropout: float = 0.1


class Pooler(nn.Module):
  """Applies a dense layer and an activation to the vectors of some tokens."""

  dtype: jnp.dtype
  kernel_init: layers.Initializer
  activation: str = "tanh"
  dropout: float = 0.0

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "b l d"],
    positions: Int[Array, "b s"],
    train: bool = False,
  ) -> Float[Array, "b s d"]:
    """Returns a vector for each of `positions`; `train` applies dropout."""
    x = layers.gather_positions(hidden, positions)
    x = layers.Dropout(self.dropout)(x, train)
    dense = layers.Dense(
      (hidden.shape[-1],),
      ("embed", "embed_out"),
      self.dtype,
      self.kernel_init,
      name="dense",
    )
    return layers.activation(self.activation)(dense(x))


class Classifier(nn.Module):
  """Computes float32 logits by dropout and then a linear map."""

  num_labels: int
  dropout: float
  kernel_init: layers.Initializer

  @nn.compact
  def __call__(
    self, x: Float[Array, "*b d"], train: bool = False
  ) -> Float[Array, "*b n"]:
    """Returns float32 logits; `train` applies dropout."""
    x = layers.Dropout(self.dropout)(x, train)
    return layers.Dense(
      (self.num_labels,),
      ("embed", None),
      jnp.dtype(jnp.float32),
      self.kernel_init,
      name="dense",
    )(x)


def build_word_head(
  encoder: Encoder, head_class: Any = MaskedLanguageModel
) -> Any:
  """Builds a head that predicts pieces, with the encoder's settings.

  Args:
    encoder: the encoder.
    head_class: `MaskedLanguageModel` or `SpanBoundary`.
  """
  return head_class(
    vocab_size=encoder.vocab_size,
    activation=encoder.activation,
    norm_epsilon=encoder.norm_epsilon,
    dtype=encoder.dtype,
    kernel_init=encoder.kernel_init,
  )


class ForPreTraining(nn.Module):
  """Joins an encoder and the heads of its pre-training.

  The masked-LM head is always present; options add the other heads.

  Attributes:
    encoder: an encoder of BERT, RoBERTa, ALBERT or DistilBERT.
    pairs: True adds a pooler, and the head that classifies a pair of segments:
      BERT's next sentence prediction, ALBERT's sentence order.
    span_boundary: True adds SpanBERT's boundary head.
  """

  encoder: Encoder
  pairs: bool = True
  span_boundary: bool = False

  def setup(self) -> None:
    """Makes the heads."""
    encoder = self.encoder
    self.mlm = build_word_head(encoder)
    if self.span_boundary:
      self.span = build_word_head(encoder, SpanBoundary)
    if self.pairs:
      self.pooler = Pooler(encoder.dtype, encoder.kernel_init)
      self.pair = Classifier(
        num_labels=2, dropout=0.0, kernel_init=encoder.kernel_init
      )

  @explicit_axes.accepted()
  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns the float32 logits of every head.

    Args:
      batch: has `input_ids` and `mlm_positions`; `cls_positions` if `pairs`;
        and optionally `segment_ids`, `sequence_ids`, `position_ids` and
        `span_positions`. The boundary head runs only with `span_positions`.
      train: True applies dropout, which needs a "dropout" rng.

    Returns:
      "mlm_logits" [b m v], "pair_logits" [b s 2] and "span_logits" [b m v]. A
      head that does not run has no entry. v counts all rows of the word table,
      including the rows that `vocab_multiple` adds.
    """
    hidden, _ = encode(self.encoder, batch, train=train)
    table = self.encoder.word_embedding
    positions = batch["mlm_positions"]
    logits = {"mlm_logits": self.mlm(hidden, positions, table)}
    if self.pairs:
      pooled = self.pooler(hidden, batch["cls_positions"])
      logits["pair_logits"] = self.pair(pooled)
    if self.span_boundary and "span_positions" in batch:
      spans = batch["span_positions"]
      logits["span_logits"] = self.span(hidden, positions, spans, table)
    return logits


def span_shapes(encoder: Encoder) -> dict[str, Any]:
  """Returns the shapes of the boundary head's parameters.

  `weights/runs.py` needs them in order to read a run; no published file has a
  boundary head.
  """
  ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  spans = jax.ShapeDtypeStruct((1, 1, 2), jnp.int32)
  batch = dict(input_ids=ids, mlm_positions=ids, span_positions=spans)
  module = ForPreTraining(encoder, pairs=False, span_boundary=True)
  boxed_params = jax.eval_shape(module.init, jax.random.key(0), batch)
  return nn.unbox(boxed_params)["params"]["span"]


def flops(
  encoder: Encoder,
  num_rows: int,
  length: int,
  num_predictions: int,
  table_width: int | None = None,
) -> float:
  """Counts the floating-point operations of a forward pass with the heads.

  Args:
    encoder: the encoder, which has the sizes.
    num_rows: the number of rows.
    length: the number of tokens in a row.
    num_predictions: the number of masked positions in a row.
    table_width: the width of the word table; the encoder's width if None.
  """
  width = table_width or encoder.hidden
  return stack_flops(encoder, num_rows, length) + head_flops(
    encoder.hidden, width, encoder.vocab_size, num_rows, num_predictions
  )


def head_flops(
  hidden: int,
  table_width: int,
  vocab_size: int,
  num_rows: int,
  num_predictions: int,
) -> float:
  """Counts the floating-point operations of the heads' forward pass.

  Only matrix products count. With m predictions a row costs 2 m (d e + e v) for
  the masked-LM head and 2 d^2 for the pooler.

  Args:
    hidden: d, the width of the hidden states.
    table_width: e, the width of the word table.
    vocab_size: v, the number of pieces.
    num_rows: the number of rows.
    num_predictions: m, the number of masked positions in a row.
  """
  d, e, v = hidden, table_width, vocab_size
  return float(num_rows * (2 * num_predictions * (d * e + e * v) + 2 * d * d))


def span_flops(hidden: int, vocab_size: int, num_predictions: int) -> float:
  """Counts the floating-point operations of the boundary head's forward pass.

  Only matrix products count. A predicted token costs
  2 ((2 d + p) d + d^2 + d v), where p is `SPAN_OFFSET_WIDTH`.

  Args:
    hidden: d, the width of the hidden states, and of the word table.
    vocab_size: v, the number of pieces.
    num_predictions: the number of predicted tokens in all rows together.
  """
  d, p, v = hidden, SPAN_OFFSET_WIDTH, vocab_size
  return 2.0 * num_predictions * ((2 * d + p) * d + d * d + d * v)
