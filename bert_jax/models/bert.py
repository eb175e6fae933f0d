"""BERT (Devlin et al. 2019): the encoder and its pre-training heads."""

import difflib
import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import heads, layers, stack
from bert_jax.models.attention import attention_mask

# Google's sizes: the miniatures (google-research/bert README, "24 smaller
# models"), base and large (paper, section 3). A head is 64 wide and the MLP 4
# times the hidden size throughout.
VARIANTS: dict[str, dict[str, int]] = {
  "tiny": dict(hidden=128, num_layers=2, heads=2, mlp=512),
  "mini": dict(hidden=256, num_layers=4, heads=4, mlp=1024),
  "small": dict(hidden=512, num_layers=4, heads=8, mlp=2048),
  "medium": dict(hidden=512, num_layers=8, heads=8, mlp=2048),
  "base": dict(hidden=768, num_layers=12, heads=12, mlp=3072),
  "large": dict(hidden=1024, num_layers=24, heads=16, mlp=4096),
}


class Bert(nn.Module):
  """The encoder: embeddings and a stack of layers; no head.

  Attributes:
    vocab_size: pieces, the rows of the word table.
    hidden: width, a multiple of `heads`.
    num_layers: Transformer layers.
    heads: attention heads.
    mlp: width of the MLP.
    max_positions: rows of the position table, the longest length.
    num_segments: rows of the segment table (2 in the released models).
    dropout: on embeddings and on each sub-layer's output.
    attention_dropout: on attention probabilities.
    activation: of the MLP, a name of `layers.ACTIVATIONS`.
    norm_epsilon: of every LayerNorm.
    initializer_range: standard deviation of the truncated normal.
    dtype: of the computation; parameters are float32 always.
    attention: implementation, see `attention.attention`.
    unroll: see `stack.Stack`.
    remat: see `stack.Stack`.
    vocab_multiple: the word table gets rows of zeros up to a multiple of it:
      the devices that split the vocabulary. No file holds those rows.
  """

  vocab_size: int = 30522
  hidden: int = 768
  num_layers: int = 12
  heads: int = 12
  mlp: int = 3072
  max_positions: int = 512
  num_segments: int = 2
  dropout: float = 0.1
  attention_dropout: float = 0.1
  activation: str = "gelu"
  norm_epsilon: float = 1e-12
  initializer_range: float = 0.02
  dtype: jnp.dtype = jnp.dtype(jnp.float32)
  attention: str = "xla"
  unroll: int = 1
  remat: bool = False
  vocab_multiple: int = 1

  @property
  def kernel_init(self) -> layers.Init:
    return nn.initializers.truncated_normal(self.initializer_range)

  def setup(self):
    if self.hidden % self.heads:
      raise ValueError(
        f"hidden={self.hidden} is not a multiple of heads={self.heads}."
      )
    table = layers.Embedding
    small = (None, "embed")
    self.word = table(
      math.ceil(self.vocab_size / self.vocab_multiple) * self.vocab_multiple,
      self.hidden,
      layers.padded(self.kernel_init, self.vocab_size),
    )
    self.position = table(
      self.max_positions, self.hidden, self.kernel_init, small
    )
    self.segment = table(
      self.num_segments, self.hidden, self.kernel_init, small, one_hot=True
    )
    self.norm = layers.layer_norm(self.norm_epsilon, self.dtype)
    self.embedding_dropout = layers.Dropout(self.dropout)
    self.layers = stack.Stack(
      self.num_layers,
      dict(
        heads=self.heads,
        mlp=self.mlp,
        dropout=self.dropout,
        attention_dropout=self.attention_dropout,
        activation=self.activation,
        norm_epsilon=self.norm_epsilon,
        dtype=self.dtype,
        kernel_init=self.kernel_init,
        attention=self.attention,
      ),
      unroll=self.unroll,
      remat=self.remat,
    )

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
      segment_ids: 0 for the first segment, 1 for the second; all 0 if None.
      sequence_ids: 1 at real tokens, 0 at padding (1, 2, ... for the sequences
        of a packed row); all 1 if None.
      position_ids: rows of the position table; 0, 1, 2, ... if None.
      train: apply dropout; needs a "dropout" rng.
      collect: return every layer's hidden states and probabilities.

    Returns:
      The last hidden states in `dtype`, and if `collect` {"embeddings" [b l d],
      "hidden" [n b l d], "attention" float32 [n b h l l]}, else {}.

    Raises:
      ValueError: longer than the position table.
    """
    length = input_ids.shape[1]
    if length > self.max_positions:
      raise ValueError(
        f"length {length} is over max_positions={self.max_positions}; shorten"
        " the input or raise model.max_positions."
      )
    if segment_ids is None:
      segment_ids = jnp.zeros_like(input_ids)
    if sequence_ids is None:
      sequence_ids = jnp.ones_like(input_ids)
    if position_ids is None:
      positions = self.position.embedding[:length]
    else:
      positions = self.position(position_ids)
    x = self.word(input_ids) + self.segment(segment_ids) + positions
    x = nn.with_logical_constraint(self.norm(x), stack.ACTIVATION_AXES)
    x = self.embedding_dropout(x, train)
    embedded = x
    x, seen = self.layers(x, attention_mask(sequence_ids), train, collect)
    return x, dict(embeddings=embedded, **seen) if collect else {}


class BertForPreTraining(nn.Module):
  """The encoder, its masked-LM head and, if `pairs`, pooler and NSP head."""

  encoder: Bert
  pairs: bool = True

  def setup(self):
    e = self.encoder
    self.mlm = heads.MaskedLanguageModel(
      e.vocab_size, e.activation, e.norm_epsilon, e.dtype, e.kernel_init
    )
    if self.pairs:
      self.pooler = heads.Pooler(e.dtype, e.kernel_init)
      self.nsp = heads.PairClassifier(e.kernel_init)

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns float32 {"mlm_logits" [b m v], "pair_logits" [b s 2]}.

    v is the word table's rows, those of `vocab_multiple` included.

    Args:
      batch: `input_ids`, `mlm_positions`, and where they are there
        `segment_ids`, `sequence_ids`, `position_ids`; `cls_positions` if
        `pairs`.
      train: apply dropout; needs a "dropout" rng.
    """
    hidden, _ = self.encoder(
      batch["input_ids"],
      batch.get("segment_ids"),
      batch.get("sequence_ids"),
      batch.get("position_ids"),
      train=train,
    )
    table = self.encoder.word.embedding
    logits = self.mlm(hidden, batch["mlm_positions"], table)
    if not self.pairs:
      return {"mlm_logits": logits}
    pooled = self.pooler(hidden, batch["cls_positions"])
    return {"mlm_logits": logits, "pair_logits": self.nsp(pooled)}


ForPreTraining = BertForPreTraining


def build(variant: str, **overrides: Any) -> Bert:
  """Builds a published size.

  Args:
    variant: a key of `VARIANTS`.
    **overrides: attributes of `Bert`; `dtype` may be a name.

  Raises:
    ValueError: unknown variant or attribute; the known ones are named.
  """
  if variant not in VARIANTS:
    raise ValueError(f"model.variant={variant!r}: not one of {list(VARIANTS)}.")
  fields = Bert.__dataclass_fields__
  for name in overrides:
    if name not in fields or name in ("parent", "name"):
      near = difflib.get_close_matches(name, fields, 1)
      hint = f"; did you mean {near[0]!r}?" if near else "."
      raise ValueError(f"model.{name}: BERT has no such attribute{hint}")
  if "dtype" in overrides:
    overrides["dtype"] = jnp.dtype(overrides["dtype"])
  return Bert(**{**VARIANTS[variant], **overrides})


def flops(encoder: Bert, rows: int, length: int, predictions: int) -> float:
  """Floating-point operations of a forward pass, matrix products only.

  A row costs, in each layer, 2 l (4 d^2 + 2 d f) for the projections and the
  MLP and 4 l^2 d for attention; 2 m (d^2 + d v) for the masked-LM head at m
  predictions; 2 d^2 for the pooler.
  """
  d, f, v = encoder.hidden, encoder.mlp, encoder.vocab_size
  layer = 2 * length * (4 * d * d + 2 * d * f) + 4 * length * length * d
  head = 2 * predictions * (d * d + d * v) + 2 * d * d
  return float(rows * (encoder.num_layers * layer + head))
