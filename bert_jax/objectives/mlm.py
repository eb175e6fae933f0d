"""Masked language model of BERT, RoBERTa, ALBERT, SpanBERT and the small ones.

With it, as the model has them: the label of a pair of segments (BERT's next
sentence prediction, ALBERT's sentence order), SpanBERT's boundary objective.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.models import heads
from bert_jax.objectives.base import (
  MASKED_KEYS,
  Batch,
  Objective,
  build_encoder,
  check_batch,
  check_choice,
  check_segments,
  classification_sums,
  dropout_rngs,
)

# Metric of pairs -> the meaning of label 1.
PAIRS = {"nsp": "the second is random", "sop": "the two are swapped"}
PAIR_KEYS = ("cls_positions", "pair_labels", "pair_weights")


def span_weights(batch: Batch, span_edges: bool = False) -> Float[Array, "b m"]:
  """`mlm_weights`, but 0 for tokens that the boundary head does not predict.

  It predicts neither places beyond its table of positions nor spans at an edge
  of a sequence, which have a special token on one side (facebookresearch/
  SpanBERT pretraining/fairseq/data/masking.py, pad_to_len and span_masking).

  Args:
    batch: a batch with `span_positions`.
    span_edges: predict spans at the edges as well.
  """
  left, right = jnp.moveaxis(batch["span_positions"], -1, 0)
  offsets = batch["mlm_positions"] - left
  weights = batch["mlm_weights"] * (offsets <= heads.SPAN_TARGETS)
  if span_edges:
    return weights
  # In a packed row each sequence has its own edges.
  rows = jnp.pad(batch["sequence_ids"], ((0, 0), (1, 1)))
  ends = rows[:, 1:] != rows[:, :-1]  # [b, L + 1], between columns
  for columns in (left, right + 1):
    weights *= ~jnp.take_along_axis(ends, columns, 1)
  return weights


def targets(
  batch: Batch,
  pair_name: str | None,
  span_boundary: bool,
  span_edges: bool = False,
) -> dict[str, tuple[Array, Array]]:
  """{metric's prefix: (labels, weights)} of each head that is trained."""
  _, ids, weights = (batch[key] for key in MASKED_KEYS)
  result = {"mlm": (ids, weights)}
  if pair_name:
    result[pair_name] = (batch["pair_labels"], batch["pair_weights"])
  if span_boundary:
    result["span"] = (ids, span_weights(batch, span_edges))
  return result


def build(
  model: dict[str, Any],
  pairs: bool = True,
  pair_name: str = "nsp",
  span_boundary: bool = False,
  span_edges: bool = False,
) -> Objective:
  """Masked LM; optionally pairs of segments and span boundaries.

  The loss is the sum of the means, each over its own targets of the global
  batch (Devlin et al. 2019, A.2: "the sum of the mean masked LM likelihood and
  the mean next sentence prediction likelihood"; SpanBERT's
  pretraining/fairseq/criterions/spanbert_loss.py).

  Args:
    model: keyword arguments of the family's `build`, with `family`.
    pairs: train the pooler and the pair head as well.
    pair_name: name of the pair label's metrics, see `PAIRS`; the data's
      recipe decides what the label means.
    span_boundary: train SpanBERT's boundary head as well.
    span_edges: also on spans beside the first or last special token, which the
      released program leaves out.

  Raises:
    ValueError: another family, or another name.
  """
  family, encoder = build_encoder("mlm", model)
  check_choice("pair_name", pair_name, PAIRS)
  module = family.ForPreTraining(
    encoder, pairs=pairs, span_boundary=span_boundary
  )
  trained = (pair_name if pairs else None, span_boundary, span_edges)
  keys = ("sequence_ids", *MASKED_KEYS)
  keys += PAIR_KEYS if pairs else ()
  keys += ("span_positions",) if span_boundary else ()

  def init(rng, batch):
    check_batch("mlm", batch, keys)
    check_segments(batch, encoder.num_segments)
    return module.init(rng, batch)["params"]

  def weights(batch):
    return {
      f"{prefix}_{metric}": weights.sum(dtype=jnp.float32)
      for prefix, (_, weights) in targets(batch, *trained).items()
      for metric in ("loss", "accuracy")
    }

  def loss(params, frozen, carry, batch, rng, train):
    del frozen
    rngs = dropout_rngs(rng, train)
    out = module.apply({"params": params}, batch, train=train, rngs=rngs)
    sums = {}
    for prefix, (labels, weights) in targets(batch, *trained).items():
      head = "pair" if prefix == pair_name else prefix
      logits = out[f"{head}_logits"]
      sums |= classification_sums(prefix, logits, labels, weights)
    return sums, carry

  def flops(batch):
    rows, length = batch["input_ids"].shape
    predictions = batch["mlm_positions"].shape[1]
    total = family.flops(encoder, rows, length, predictions)
    if span_boundary:
      total += heads.span_flops(
        encoder.hidden, encoder.vocab_size, rows * predictions
      )
    return 3 * total

  coefficients = {"mlm_loss": 1.0}
  coefficients |= {f"{pair_name}_loss": 1.0} if pairs else {}
  coefficients |= {"span_loss": 1.0} if span_boundary else {}
  return Objective(
    init=init,
    weights=weights,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
  )
