"""Evaluates on held-out text: computes means over all held-out rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from bert_jax.devices import sharding
from bert_jax.examples.loader import host_rows
from bert_jax.examples.streams import Heldout
from bert_jax.objectives.base import Sums
from bert_jax.training.state import TrainState

# Name of a student's loss -> its description in the last lines of a run.
DISTILLATION_LOSSES = {
  "kl_loss": "KL to the teacher, nats times the temperature squared",
  "cosine_loss": "1 - cosine to the teacher's hidden states",
  "attention_loss": "squared difference of attention scores, all layers",
  "hidden_loss": "squared difference of hidden states, all layers",
  "embedding_loss": "squared difference of embeddings",
}
# Direction of ELMo -> (the prefix of the batch keys of its targets, the id that
# is never a target: of <S> for the next words, of </S> for the previous words).
ELMO_DIRECTIONS = {"forward": ("next", 0), "backward": ("previous", 1)}


def evaluate(
  eval_step: Callable[..., tuple[Sums, Sums]],
  coefficients: Mapping[str, float],
  state: TrainState,
  teacher_params: Any,
  heldout: Heldout,
  batch_size: int,
  mesh: Mesh,
) -> dict[str, float]:
  """Computes the means over all held-out examples.

  The last batch is filled with rows of weight 0, so any batch size gives the
  same means.

  Args:
    eval_step: the jitted function of `steps.make_eval_step`.
    coefficients: the coefficients of the losses.
    state: the train state.
    teacher_params: the teacher's parameters; {} if there is no teacher.
    heldout: the held-out examples.
    batch_size: the number of rows of a batch, over all hosts.
    mesh: the mesh of the arrays.

  Returns:
    A dict with the means, ELMo's perplexities, and `loss`, the weighted sum of
    the mean losses.
  """
  host_start, num_host_rows = host_rows(
    0, batch_size, *sharding.batch_share_of_process(mesh)
  )
  totals = []
  for batch_start in range(0, len(heldout), batch_size):
    batch = sharding.to_global_batch(
      mesh, heldout.read(batch_start + host_start, num_host_rows)
    )
    totals.append(eval_step(state.params, teacher_params, state.carry, batch))
  means = mean_losses(jax.device_get(totals))
  loss = sum(factor * means[name] for name, factor in coefficients.items())
  return {"loss": loss, **means, **perplexities(means)}


def mean_losses(totals: Sequence[tuple[Sums, Sums]]) -> dict[str, float]:
  """Computes the means over all batches; a mean is 0 if its divisor is 0.

  Args:
    totals: the sums and the divisors of each batch, on the host.
  """
  means = {}
  for name in totals[0][0]:
    total = sum(float(sums[name]) for sums, _ in totals)
    divisor = sum(float(divisors[name]) for _, divisors in totals)
    means[name] = total / divisor if divisor else 0.0
  return means


def perplexities(means: Mapping[str, float]) -> dict[str, float]:
  """Returns ELMo's perplexities, exp(mean loss); {} for any other model."""
  # Without the limit of 700, `exp` could overflow.
  return {
    f"{direction}_perplexity": math.exp(min(means[f"{direction}_loss"], 700.0))
    for direction in ELMO_DIRECTIONS
    if f"{direction}_loss" in means
  }


def unigram_baseline(
  heldout: Heldout,
  weights_of_pieces: Float[np.ndarray, " v"],
  targets: str = "mlm",
) -> float:
  """Computes the cross-entropy of guessing the targets by their frequency.

  A model that ignores the context can reach this loss. The number 1 is added to
  every weight, so that a piece of weight 0 has a finite cost.

  Args:
    heldout: the examples; a batch of them has the keys `{targets}_ids` and
      `{targets}_weights`.
    weights_of_pieces: [v] the frequency of each piece, such as its count in the
      training text.
    targets: "mlm" for masked tokens, "lm" for next tokens; "next" or "previous"
      for ELMo.

  Returns:
    The cross-entropy in nats.
  """
  batch = heldout.read(0, len(heldout))
  ids, weights = batch[f"{targets}_ids"], batch[f"{targets}_weights"]
  frequencies = weights_of_pieces + 1.0
  log_p = np.log(frequencies) - np.log(frequencies.sum())
  return float(-(log_p[ids] * weights).sum() / weights.sum())


def binary_entropy(probability: float) -> float:
  """Returns the entropy in nats of an event with this probability."""
  return -sum(
    p * math.log(p) for p in (probability, 1.0 - probability) if p > 0.0
  )


def summary_lines(
  heldout: Heldout,
  counts: Float[np.ndarray, " v"],
  means: Mapping[str, float],
  smoothing: float = 0.0,
) -> list[str]:
  """Returns the last lines of a run on text, which describe each loss.

  For MLM, LM, ELMo and RTD, they also give the loss of a model that guesses
  without reading the context.

  Args:
    heldout: the held-out examples.
    counts: how often each piece occurs in the training text.
    means: the dict that `evaluate` returned.
    smoothing: the smoothing of the masks. A piece is masked in proportion to
      count ** (1 - smoothing).
  """
  lines = []
  masking_frequencies = counts * np.maximum(counts, 1.0) ** -smoothing
  for name, target_frequencies in (
    ("mlm", masking_frequencies),
    ("lm", counts),
  ):
    if f"{name}_loss" in means:
      baseline = unigram_baseline(heldout, target_frequencies, name)
      lines += [
        f"unigram cross-entropy: {baseline:.4f} nats",
        f"held-out {name.upper()} loss: {means[f'{name}_loss']:.4f} nats",
      ]
  lines += [
    f"held-out {description}: {means[name]:.4f}"
    for name, description in DISTILLATION_LOSSES.items()
    if name in means
  ]
  for name in ("span", "nsp", "sop"):
    if f"{name}_loss" in means:
      lines.append(
        f"held-out {name.upper()} loss: {means[f'{name}_loss']:.4f} nats,"
        f" accuracy {means[f'{name}_accuracy']:.4f}"
      )
  for direction, (targets, excluded_id) in ELMO_DIRECTIONS.items():
    if f"{direction}_loss" in means:
      is_excluded = np.arange(len(counts)) == excluded_id
      target_frequencies = np.where(is_excluded, 0, counts)
      baseline = unigram_baseline(heldout, target_frequencies, targets)
      lines.append(
        f"held-out {direction} loss: {means[f'{direction}_loss']:.4f} nats,"
        f" perplexity {means[f'{direction}_perplexity']:.2f}; unigram"
        f" cross-entropy: {baseline:.4f} nats"
      )
  if "rtd_loss" in means:
    lines += _replaced_token_lines(means)
  return lines


def _replaced_token_lines(means: Mapping[str, float]) -> list[str]:
  """Returns the lines about ELECTRA's replaced token detection (RTD)."""
  loss, replaced_share = means["rtd_loss"], means["rtd_replaced"]
  flagged_share, correctly_flagged_share = (
    means["rtd_flagged"],
    means["rtd_found"],
  )
  guessing_loss = binary_entropy(replaced_share)
  gain = 1.0 - loss / guessing_loss if guessing_loss else 0.0
  precision = correctly_flagged_share / max(flagged_share, 1e-30)
  recall = correctly_flagged_share / max(replaced_share, 1e-30)
  return [
    f"share of replaced tokens: {replaced_share:.4f}; its entropy, the loss of"
    f" guessing: {guessing_loss:.4f} nats",
    f"held-out RTD loss: {loss:.4f} nats, {gain:.1%} below this entropy",
    f"replaced tokens: precision {precision:.4f}, recall {recall:.4f}",
  ]
