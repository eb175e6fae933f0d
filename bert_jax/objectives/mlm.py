"""BERT's objective: masked language model and next sentence prediction."""

from typing import Any

import jax.numpy as jnp

from bert_jax import models
from bert_jax.objectives.base import Objective, classification_sums


def build(model: dict[str, Any], pairs: bool = True) -> Objective:
  """Masked LM, plus a pair label (0 next, 1 random) if `pairs`.

  The loss is the sum of both means, each over its own targets of the global
  batch (paper, A.2: "the sum of the mean masked LM likelihood and the mean
  next sentence prediction likelihood").

  Args:
    model: keyword arguments of the family's `build`, with `family`.
    pairs: train the pooler and the pair head as well.
  """
  model = dict(model)
  family = models.family(model.pop("family"))
  encoder = family.build(**model)
  module = family.ForPreTraining(encoder, pairs=pairs)

  def init(rng, batch):
    return module.init(rng, batch)["params"]

  def weights(batch):
    masked = batch["mlm_weights"].sum(dtype=jnp.float32)
    result = {"mlm_loss": masked, "mlm_accuracy": masked}
    if pairs:
      pair = batch["pair_weights"].sum(dtype=jnp.float32)
      result |= {"nsp_loss": pair, "nsp_accuracy": pair}
    return result

  def loss(params, frozen, carry, batch, rng, train):
    del frozen
    rngs = {"dropout": rng} if train else None
    out = module.apply({"params": params}, batch, train=train, rngs=rngs)
    sums = classification_sums(
      "mlm", out["mlm_logits"], batch["mlm_ids"], batch["mlm_weights"]
    )
    if pairs:
      sums |= classification_sums(
        "nsp", out["pair_logits"], batch["pair_labels"], batch["pair_weights"]
      )
    return sums, carry

  def flops(batch):
    rows, length = batch["input_ids"].shape
    predictions = batch["mlm_positions"].shape[1]
    return 3 * family.flops(encoder, rows, length, predictions)

  coefficients = {"mlm_loss": 1.0} | ({"nsp_loss": 1.0} if pairs else {})
  return Objective(init, weights, loss, coefficients, flops)
