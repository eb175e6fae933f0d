"""The masked language model of BERT, RoBERTa, ALBERT, SpanBERT, DistilBERT.

Two more losses are optional. One is for the label of a pair of segments (BERT's
next sentence prediction, ALBERT's sentence order). The other is for SpanBERT's
boundary objective.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.models import heads
from bert_jax.objectives.base import (
  MASKED_KEYS,
  Batch,
  Carry,
  Objective,
  Params,
  Sums,
  build_encoder,
  check_batch,
  check_choice,
  check_segments,
  classification_sums,
  dropout_rngs,
)

# The prefix of the pairs' metrics -> the meaning of the pairs' label 1.
LABEL_1_MEANINGS = {
  "nsp": "the second segment is random",
  "sop": "the two segments are swapped",
}
PAIR_KEYS = ("cls_positions", "pair_labels", "pair_weights")


def span_weights(batch: Batch, span_edges: bool = False) -> Float[Array, "b m"]:
  """Returns `mlm_weights`, but 0 where the boundary head does not predict.

  The head has vectors for the offsets 1 to `NUM_SPAN_OFFSETS` in a span, and
  does not predict the later tokens of a long span. If `span_edges` is False,
  the head also does not predict a span that touches the special token at the
  start or the end of its sequence (facebookresearch/SpanBERT
  pretraining/fairseq/data/masking.py, pad_to_len and span_masking).

  Args:
    batch: a batch with `span_positions`.
    span_edges: see `build`.
  """
  left_neighbours, right_neighbours = jnp.moveaxis(
    batch["span_positions"], -1, 0
  )
  offsets = batch["mlm_positions"] - left_neighbours
  weights = batch["mlm_weights"] * (offsets <= heads.NUM_SPAN_OFFSETS)
  if span_edges:
    return weights
  # An edge is the start or the end of a sequence. A packed row has the edges of
  # all its sequences.
  padded_ids = jnp.pad(batch["sequence_ids"], ((0, 0), (1, 1)))
  # [b, l + 1]: is_edge[:, i] is True if an edge is just before column i.
  is_edge = padded_ids[:, 1:] != padded_ids[:, :-1]
  # Drop a span if the token to its left is the first of the sequence, or the
  # token to its right is the last.
  for columns in (left_neighbours, right_neighbours + 1):
    weights *= ~jnp.take_along_axis(is_edge, columns, 1)
  return weights


def targets_by_prefix(
  batch: Batch,
  pair_name: str | None,
  span_boundary: bool,
  span_edges: bool = False,
) -> dict[str, tuple[Array, Array]]:
  """Returns {prefix of the metrics: (labels, weights)} for every head.

  Args:
    batch: the batch.
    pair_name: the prefix of the pairs' metrics; None means no pair head.
    span_boundary: True if there is a boundary head.
    span_edges: see `build`.
  """
  _, ids, weights = (batch[key] for key in MASKED_KEYS)
  targets = {"mlm": (ids, weights)}
  if pair_name:
    targets[pair_name] = (batch["pair_labels"], batch["pair_weights"])
  if span_boundary:
    targets["span"] = (ids, span_weights(batch, span_edges))
  return targets


def build(
  model: dict[str, Any],
  pairs: bool = True,
  pair_name: str = "nsp",
  span_boundary: bool = False,
  span_edges: bool = False,
) -> Objective:
  """Builds the masked LM, optionally with pairs and span boundaries.

  The loss is the sum of the heads' mean losses, each over the head's targets in
  the global batch (Devlin et al. 2019, A.2: "the sum of the mean masked LM
  likelihood and the mean next sentence prediction likelihood"; SpanBERT's
  pretraining/fairseq/criterions/spanbert_loss.py).

  Args:
    model: keyword arguments of the family's `build`, and `family`.
    pairs: True also trains the pooler and the pair head.
    pair_name: the prefix of the pairs' metrics, a key of `LABEL_1_MEANINGS`.
      The recipe of the data must make labels with this meaning.
    span_boundary: True also trains SpanBERT's boundary head.
    span_edges: True also trains the boundary head on spans next to the special
      token at the start or the end of a sequence. False leaves these spans
      out, as SpanBERT's released program does.

  Raises:
    ValueError: the objective does not train this family, or `pair_name` is
      unknown.
  """
  family, encoder = build_encoder("mlm", model)
  check_choice("pair_name", pair_name, LABEL_1_MEANINGS)
  module = family.ForPreTraining(
    encoder, pairs=pairs, span_boundary=span_boundary
  )
  keys = ["sequence_ids", *MASKED_KEYS]
  keys += PAIR_KEYS if pairs else ()
  keys += ["span_positions"] if span_boundary else []

  def head_targets(batch: Batch) -> dict[str, tuple[Array, Array]]:
    name = pair_name if pairs else None
    return targets_by_prefix(batch, name, span_boundary, span_edges)

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("mlm", batch, keys)
    check_segments(batch, encoder.num_segments)
    return module.init(rng, batch)["params"]

  def divisors(batch: Batch) -> Sums:
    return {
      f"{prefix}_{metric}": target_weights.sum(dtype=jnp.float32)
      for prefix, (_, target_weights) in head_targets(batch).items()
      for metric in ("loss", "accuracy")
    }

  def loss(
    params: Params,
    teacher_params: Params,
    carry: Carry,
    batch: Batch,
    rng: Array,
    train: bool,
  ) -> tuple[Sums, Carry]:
    del teacher_params
    rngs = dropout_rngs(rng, train)
    logits = module.apply({"params": params}, batch, train=train, rngs=rngs)
    sums: Sums = {}
    for prefix, (labels, target_weights) in head_targets(batch).items():
      head = "pair" if prefix == pair_name else prefix
      head_logits = logits[f"{head}_logits"]
      sums |= classification_sums(prefix, head_logits, labels, target_weights)
    return sums, carry

  def flops(batch: Batch) -> float:
    num_rows, length = batch["input_ids"].shape
    num_slots = batch["mlm_positions"].shape[1]
    forward_flops = family.flops(encoder, num_rows, length, num_slots)
    if span_boundary:
      forward_flops += heads.span_flops(
        encoder.hidden, encoder.vocab_size, num_rows * num_slots
      )
    return 3 * forward_flops

  coefficients = {"mlm_loss": 1.0}
  coefficients |= {f"{pair_name}_loss": 1.0} if pairs else {}
  coefficients |= {"span_loss": 1.0} if span_boundary else {}
  return Objective(
    init=init,
    divisors=divisors,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
  )
