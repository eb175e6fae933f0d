"""An encoder with the heads of masked language models and sentence pairs."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from bert_jax.models import encoder_base as base
from bert_jax.models import heads


class ForPreTraining(nn.Module):
  """The encoder, its masked-LM head and, if `pairs`, pooler and pair head.

  Attributes:
    encoder: of BERT, RoBERTa, ALBERT, DistilBERT.
    pairs: also tell which order or neighbourhood two segments have: BERT's
      next sentence, ALBERT's sentence order.
    span_boundary: also predict tokens from both sides of their span: SpanBERT.
  """

  encoder: Any
  pairs: bool = True
  span_boundary: bool = False

  def setup(self):
    e = self.encoder
    options = (
      e.vocab_size,
      e.activation,
      e.norm_epsilon,
      e.dtype,
      e.kernel_init,
    )
    self.mlm = heads.MaskedLanguageModel(*options)
    if self.span_boundary:
      self.span = heads.SpanBoundary(*options)
    if self.pairs:
      self.pooler = heads.Pooler(e.dtype, e.kernel_init)
      self.pair = heads.Classifier(2, 0.0, e.kernel_init)

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns float32 {"mlm_logits" [b m v]} and what the other heads give.

    "pair_logits" [b s 2], "span_logits" [b m v]. v is the word table's rows,
    those of `vocab_multiple` included.

    Args:
      batch: `input_ids`, `mlm_positions`, and where they are there
        `segment_ids`, `sequence_ids`, `position_ids`; `cls_positions` if
        `pairs`; `span_positions` for the boundary head, which is not used
        without.
      train: apply dropout; needs a "dropout" rng.
    """
    inputs = (batch.get(key) for key in base.INPUTS)
    hidden, _ = self.encoder(*inputs, train=train)
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
  hidden: int, embedding: int, vocab_size: int, rows: int, predictions: int
) -> float:
  """Operations of the heads' forward pass, matrix products only.

  A row costs 2 m (d e + e v) for the masked-LM head at m predictions and 2 d^2
  for the pooler.
  """
  d, e, v = hidden, embedding, vocab_size
  return float(rows * (2 * predictions * (d * e + e * v) + 2 * d * d))


def span_flops(hidden: int, vocab_size: int, predictions: int) -> float:
  """Operations of the boundary head's forward pass, matrix products only."""
  d, p, v = hidden, heads.SPAN_WIDTH, vocab_size
  return 2.0 * predictions * ((2 * d + p) * d + d * d + d * v)
