"""GPT-1's objective: the next token (Radford et al. 2018, section 3.1)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import gpt, heads
from bert_jax.objectives.base import (
  Objective,
  Sums,
  build_encoder,
  check_batch,
  classification_sums,
  dropout_rngs,
  sum_by_parts,
)

# Number of positions of a row whose logits are made at once. The logits of a
# whole batch, float32 [64, 512, 40478], would be 5 GiB, and as much again for
# their gradient.
POSITIONS = 64


def language_model_sums(
  hidden: Float[Array, "b l d"],
  table: Float[Array, "v d"],
  vocab_size: int,
  ids: Int[Array, "b l"],
  weights: Float[Array, "b l"],
) -> Sums:
  """Weighted sums `lm_loss` (nats) and `lm_accuracy`, made part by part.

  The backward pass makes a part's logits again.
  """
  size = min(POSITIONS, ids.shape[1])

  def sum_of(x, ids, weights):
    logits = heads.decode(x, table, vocab_size)
    return classification_sums("lm", logits, ids, weights)

  return sum_by_parts(sum_of, size, hidden, ids, weights)


def build(model: dict[str, Any]) -> Objective:
  """Causal language model: the mean over the targets of the global batch.

  The softmax runs over the pieces. The released code keeps the positions'
  vectors in the same matrix, and its softmax runs over those rows too (openai/
  finetune-transformer-lm train.py); they are never targets.

  Args:
    model: keyword arguments of the family's `build`, with `family`.

  Raises:
    ValueError: another family.
  """
  _, encoder = build_encoder("lm", model)
  module = gpt.ForPreTraining(encoder)

  def init(rng, batch):
    check_batch("lm", batch, ("sequence_ids", "lm_ids", "lm_weights"))
    return module.init(rng, batch)["params"]

  def weights(batch):
    targets = batch["lm_weights"].sum(dtype=jnp.float32)
    return {"lm_loss": targets, "lm_accuracy": targets}

  def loss(params, frozen, carry, batch, rng, train):
    del frozen
    rngs = dropout_rngs(rng, train)
    hidden, table = module.apply(
      {"params": params}, batch, train=train, rngs=rngs, method="encode"
    )
    sums = language_model_sums(
      hidden, table, encoder.vocab_size, batch["lm_ids"], batch["lm_weights"]
    )
    return sums, carry

  def flops(batch):
    rows, length = batch["input_ids"].shape
    return 3 * gpt.flops(encoder, rows, length, length)

  return Objective(
    init=init,
    weights=weights,
    loss=loss,
    coefficients={"lm_loss": 1.0},
    flops=flops,
  )
