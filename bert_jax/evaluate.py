"""Evaluation on held-out text: sums over the whole set, divided once."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import metrics, sharding
from bert_jax.data.loader import host_rows
from bert_jax.data.streams import Heldout


def evaluate(
  eval_step: Callable[..., Any],
  coefficients: dict[str, float],
  state: Any,
  frozen: Any,
  heldout: Heldout,
  batch_size: int,
  mesh: Mesh,
) -> dict[str, float]:
  """Means over all held-out examples, and `loss`, their weighted sum.

  The last batch is filled with rows of weight 0, so any batch size gives the
  same means.

  Args:
    eval_step: (params, frozen, carry, batch) -> (sums, weights), jitted.
    coefficients: of the losses.
    state: the train state.
    frozen: parameters that are not trained.
    heldout: the examples.
    batch_size: rows of all hosts.
    mesh: for the global arrays.
  """
  rows = host_rows(0, batch_size, *sharding.host_share(mesh))
  totals = []
  for first in range(0, len(heldout), batch_size):
    batch = sharding.to_global(mesh, heldout.read(first + rows[0], rows[1]))
    totals.append(eval_step(state.params, frozen, state.carry, batch))
  totals = jax.device_get(totals)
  means = {}
  for name in totals[0][0]:
    value = sum(float(sums[name]) for sums, _ in totals)
    weight = sum(float(weights[name]) for _, weights in totals)
    means[name] = value / weight if weight else 0.0
  loss = sum(factor * means[name] for name, factor in coefficients.items())
  return {"loss": loss, **means}


def unigram_baseline(heldout: Heldout, counts: Any) -> float:
  """Cross-entropy in nats of the masked tokens under training frequencies.

  Args:
    heldout: the examples, with `mlm_ids` and `mlm_weights`.
    counts: [V] occurrences in the training text.
  """
  batch = heldout.read(0, len(heldout))
  return metrics.unigram_cross_entropy(
    counts, batch["mlm_ids"], batch["mlm_weights"]
  )
