"""Evaluation on held-out text: sums over the whole set, divided once."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.devices import sharding
from bert_jax.examples.loader import host_rows
from bert_jax.examples.streams import Heldout
from bert_jax.objectives.base import Sums
from bert_jax.training import logging

# The measures of a student beside its teacher.
TAUGHT = {
  "kl_loss": "KL to the teacher, nats times the temperature squared",
  "cosine_loss": "1 - cosine to the teacher's hidden states",
  "attention_loss": "squared difference of attention scores, all layers",
  "hidden_loss": "squared difference of hidden states, all layers",
  "embedding_loss": "squared difference of embeddings",
}
# Of ELMo's directions: what each predicts; the id that it never does, <S> and
# </S>.
WAYS = {"forward": ("next", 0), "backward": ("previous", 1)}


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
    coefficients: the coefficients of the losses.
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
  means = mean_losses(jax.device_get(totals))
  loss = sum(factor * means[name] for name, factor in coefficients.items())
  return {"loss": loss, **means, **perplexities(means)}


def mean_losses(totals: Sequence[tuple[Sums, Sums]]) -> dict[str, float]:
  """Means over all batches; 0 where the weight is 0.

  Args:
    totals: the sums and the weights of each batch, on the host.
  """
  means = {}
  for name in totals[0][0]:
    value = sum(float(sums[name]) for sums, _ in totals)
    weight = sum(float(weights[name]) for _, weights in totals)
    means[name] = value / weight if weight else 0.0
  return means


def perplexities(means: dict[str, float]) -> dict[str, float]:
  """Returns e to the mean loss of ELMo's directions; {} for other models."""
  ways = [way for way in WAYS if f"{way}_loss" in means]
  return {
    f"{way}_perplexity": math.exp(min(means[f"{way}_loss"], 700.0))
    for way in ways
  }


def unigram_baseline(
  heldout: Heldout, counts: Any, targets: str = "mlm"
) -> float:
  """Cross-entropy in nats of the targets under training frequencies.

  Args:
    heldout: the examples, with `TARGETS_ids` and `TARGETS_weights`.
    counts: [V] occurrences in the training text.
    targets: "mlm" for masked tokens, "lm" for next ones; "next" and "previous"
      for ELMo's.
  """
  batch = heldout.read(0, len(heldout))
  return logging.unigram_cross_entropy(
    counts, batch[f"{targets}_ids"], batch[f"{targets}_weights"]
  )


def entropy(share: float) -> float:
  """Entropy in nats of a coin that shows heads with probability `share`."""
  return -sum(p * math.log(p) for p in (share, 1.0 - share) if p > 0.0)


def summary(
  heldout: Heldout, counts: Any, means: dict[str, float], smoothing: float = 0.0
) -> list[str]:
  """Lines that say what was reached, each loss beside what guessing costs.

  Args:
    heldout: the examples.
    counts: [V] occurrences in the training text.
    means: of `evaluate`.
    smoothing: of the masks: a piece is hidden as often as count**(1 - it) says.
  """
  lines = []
  hidden = counts * np.maximum(counts, 1.0) ** -smoothing
  for name, often in (("mlm", hidden), ("lm", counts)):
    if f"{name}_loss" in means:
      baseline = unigram_baseline(heldout, often, name)
      lines += [
        f"unigram cross-entropy: {baseline:.4f} nats",
        f"held-out {name.upper()} loss: {means[f'{name}_loss']:.4f} nats",
      ]
  lines += [
    f"held-out {what}: {means[name]:.4f}"
    for name, what in TAUGHT.items()
    if name in means
  ]
  for name in ("span", "nsp", "sop"):
    if f"{name}_loss" in means:
      lines.append(
        f"held-out {name.upper()} loss: {means[f'{name}_loss']:.4f} nats,"
        f" accuracy {means[f'{name}_accuracy']:.4f}"
      )
  for way, (target, never) in WAYS.items():
    if f"{way}_loss" in means:
      possible = np.where(np.arange(len(counts)) == never, 0, counts)
      baseline = unigram_baseline(heldout, possible, target)
      lines.append(
        f"held-out {way} loss: {means[f'{way}_loss']:.4f} nats, perplexity"
        f" {means[f'{way}_perplexity']:.2f}; unigram cross-entropy:"
        f" {baseline:.4f} nats"
      )
  if "rtd_loss" in means:
    replaced, flagged, found = (
      means[f"rtd_{name}"] for name in ("replaced", "flagged", "found")
    )
    loss, guessing = means["rtd_loss"], entropy(replaced)
    under = 1.0 - loss / guessing if guessing else 0.0
    lines += [
      f"entropy of the replaced share, {replaced:.4f}: {guessing:.4f} nats",
      f"held-out RTD loss: {loss:.4f} nats, {under:.1%} under it",
      f"replaced tokens: precision {found / max(flagged, 1e-30):.4f},"
      f" recall {found / max(replaced, 1e-30):.4f}",
    ]
  return lines
