"""Heads on an encoder's hidden states; an encoder with those of pre-training.

The heads of downstream tasks are in `task_heads.py`.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import layers
from bert_jax.models.encoder import encode, stack_flops

# The boundary head of SpanBERT: positions in a span that have a vector, and the
# width of the vector (facebookresearch/SpanBERT pretraining/README.md,
# --max-pair-targets and --pair-positional-embedding-size; Joshi et al. 2020,
# section 4.2).
SPAN_TARGETS, SPAN_WIDTH = 15, 200


class MaskedLanguageModel(nn.Module):
  """Dense, activation, LayerNorm, the tied decoder and its own output bias.

  Looks at the masked positions only; logits of all positions, [b, l, v], are
  never made (google-research/bert run_pretraining.py, get_masked_lm_output).

  Attributes:
    vocab_size: pieces. Rows of the table beyond it get the lowest float32 as
      logits: probability 0, no gradient, never the argmax.
    activation: between the dense layer and the LayerNorm.
    norm_epsilon: epsilon of the LayerNorm.
    dtype: dtype of the computation.
    kernel_init: initializer of the dense layer.
  """

  vocab_size: int
  activation: str
  norm_epsilon: float
  dtype: jnp.dtype
  kernel_init: layers.Init

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "b l d"],
    positions: Int[Array, "b m"],
    embedding: Float[Array, "v e"],
  ) -> Float[Array, "b m v"]:
    """Returns float32 logits; `embedding` is the table of word embeddings."""
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
    return decode(x, embedding, self.vocab_size, output_bias(self, embedding))


class SpanBoundary(nn.Module):
  """SpanBERT's head: a token from what stands on both sides of its span.

  The inputs are the two hidden states and a vector for the token's place in the
  span. Twice dense, activation, LayerNorm; then the tied decoder and its own
  output bias (Joshi
  et al. 2020, section 3.2; facebookresearch/SpanBERT
  pretraining/fairseq/models/pair_bert.py, BertPairTargetPredictionHead).

  Attributes:
    vocab_size: see `MaskedLanguageModel`, as for the other attributes.
  """

  vocab_size: int
  activation: str
  norm_epsilon: float
  dtype: jnp.dtype
  kernel_init: layers.Init

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
      positions: positions of the tokens. A token that stands further from the
        left side than `SPAN_TARGETS` gets the last place's vector; give it
        weight 0.
      spans: positions just outside of each token's span, left and right.
      embedding: the table of word embeddings.
    """
    rows, count = positions.shape
    ends = layers.gather_positions(hidden, spans.reshape(rows, 2 * count))
    place = jnp.clip(positions - spans[..., 0] - 1, 0, SPAN_TARGETS - 1)
    table = layers.Embedding(
      SPAN_TARGETS,
      SPAN_WIDTH,
      self.kernel_init,
      (None, None),
      one_hot=True,
      name="position",
    )
    x = jnp.concatenate(
      [ends.reshape(rows, count, -1), table(place).astype(ends.dtype)], axis=-1
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
    return decode(x, embedding, self.vocab_size, output_bias(self, embedding))


def output_bias(
  module: nn.Module, embedding: Float[Array, "v e"]
) -> Float[Array, "v"]:
  """A bias for each row of the table, which the decoder adds to its logits."""
  return module.param(
    "bias",
    nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",)),
    (embedding.shape[0],),
    jnp.float32,
  )


def decode(
  x: Float[Array, "b m e"],
  embedding: Float[Array, "v e"],
  vocab_size: int,
  bias: Float[Array, "v"] | None = None,
) -> Float[Array, "b m v"]:
  """Float32 logits of the pieces, by the table of word embeddings.

  Rows of the table beyond `vocab_size` get the lowest float32.
  """
  # Without this constraint the partitioner (jax 0.10) permutes rows of the
  # gradient on a mesh of three axes with one row a device.
  x = nn.with_logical_constraint(x, ("batch", None, "embed_activation"))
  logits = layers.float32_einsum("bme,ve->bmv", x, embedding.astype(x.dtype))
  logits = nn.with_logical_constraint(logits, ("batch", None, "vocab"))
  if bias is not None:
    logits = logits + bias[None, None]
  if embedding.shape[0] == vocab_size:
    return logits
  ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  return jnp.where(ids < vocab_size, logits, jnp.finfo(jnp.float32).min)


class Pooling(NamedTuple):
  """How a family makes one vector of a sequence for a classifier.

  Attributes:
    activation: activation of a dense layer on the picked vector; None for no
      such layer.
    last: pick the last real position, not the first.
    input_dropout: apply dropout before the dense layer as well.
    dropout: rate of the dropout before the classifier.
  """

  activation: str | None
  last: bool = False
  input_dropout: bool = False
  dropout: float = 0.1


class Pooler(nn.Module):
  """Dense and activation on the vectors at some positions, [CLS] mostly."""

  dtype: jnp.dtype
  kernel_init: layers.Init
  activation: str = "tanh"
  dropout: float = 0.0

  @nn.compact
  def __call__(
    self,
    hidden: Float[Array, "b l d"],
    positions: Int[Array, "b s"],
    train: bool = False,
  ) -> Float[Array, "b s d"]:
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
  """Dropout and a linear map to float32 logits."""

  num_labels: int
  dropout: float
  kernel_init: layers.Init

  @nn.compact
  def __call__(
    self, x: Float[Array, "*b d"], train: bool = False
  ) -> Float[Array, "*b n"]:
    x = layers.Dropout(self.dropout)(x, train)
    return layers.Dense(
      (self.num_labels,),
      ("embed", None),
      jnp.dtype(jnp.float32),
      self.kernel_init,
      name="dense",
    )(x)


def masked_language_model(
  encoder: Any, head: type[nn.Module] = MaskedLanguageModel
) -> Any:
  """Builds a head that predicts pieces, with the encoder's settings."""
  return head(
    vocab_size=encoder.vocab_size,
    activation=encoder.activation,
    norm_epsilon=encoder.norm_epsilon,
    dtype=encoder.dtype,
    kernel_init=encoder.kernel_init,
  )


class ForPreTraining(nn.Module):
  """The encoder, its masked-LM head and, if `pairs`, pooler and pair head.

  Attributes:
    encoder: an encoder of BERT, RoBERTa, ALBERT or DistilBERT.
    pairs: also tell which order or neighbourhood two segments have: BERT's
      next sentence, ALBERT's sentence order.
    span_boundary: also predict tokens from both sides of their span: SpanBERT.
  """

  encoder: Any
  pairs: bool = True
  span_boundary: bool = False

  def setup(self):
    e = self.encoder
    self.mlm = masked_language_model(e)
    if self.span_boundary:
      self.span = masked_language_model(e, SpanBoundary)
    if self.pairs:
      self.pooler = Pooler(e.dtype, e.kernel_init)
      self.pair = Classifier(2, 0.0, e.kernel_init)

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns float32 {"mlm_logits" [b m v]} and what the other heads give.

    "pair_logits" [b s 2], "span_logits" [b m v]. v is the word table's rows,
    those of `vocab_multiple` included.

    Args:
      batch: `input_ids` and `mlm_positions`; optionally `segment_ids`,
        `sequence_ids`, `position_ids`; `cls_positions` if `pairs`;
        `span_positions` for the boundary head, which is not used without them.
      train: apply dropout; needs a "dropout" rng.
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


def span_shapes(encoder: Any) -> dict[str, Any]:
  """Shapes of the boundary head's parameters, which no published file has."""
  ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  spans = jax.ShapeDtypeStruct((1, 1, 2), jnp.int32)
  batch = dict(input_ids=ids, mlm_positions=ids, span_positions=spans)
  module = ForPreTraining(encoder, pairs=False, span_boundary=True)
  boxed = jax.eval_shape(module.init, jax.random.key(0), batch)
  return nn.unbox(boxed)["params"]["span"]


def flops(
  encoder: Any,
  rows: int,
  length: int,
  predictions: int,
  table_width: int | None = None,
) -> float:
  """Counts the operations of a forward pass of encoder and `ForPreTraining`.

  Args:
    encoder: the encoder, for its sizes.
    rows: number of rows.
    length: tokens of a row.
    predictions: masked positions of a row.
    table_width: width of the word table; the encoder's width if None.
  """
  width = table_width or encoder.hidden
  return stack_flops(encoder, rows, length) + head_flops(
    encoder.hidden, width, encoder.vocab_size, rows, predictions
  )


def head_flops(
  hidden: int, table_width: int, vocab_size: int, rows: int, predictions: int
) -> float:
  """Counts the operations of the heads' forward pass, matrix products only.

  A row costs 2 m (d e + e v) for the masked-LM head at m predictions and 2 d^2
  for the pooler.
  """
  d, e, v = hidden, table_width, vocab_size
  return float(rows * (2 * predictions * (d * e + e * v) + 2 * d * d))


def span_flops(hidden: int, vocab_size: int, predictions: int) -> float:
  """Counts the operations of the boundary head's forward pass, as above."""
  d, p, v = hidden, SPAN_WIDTH, vocab_size
  return 2.0 * predictions * ((2 * d + p) * d + d * d + d * v)
