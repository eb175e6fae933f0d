"""ELMo's objective: the words after and before (Peters et al. 2018)."""

import itertools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from bert_jax.models import elmo
from bert_jax.objectives import elmo_candidates as candidates
from bert_jax.objectives import elmo_sampling as sampling
from bert_jax.objectives.base import Batch, Objective, check_batch, check_family

# Of a direction: what it predicts in the batch.
TARGETS = {"forward": "next", "backward": "previous"}
KEYS = ("char_ids", "sequence_ids")
KEYS += tuple(f"{t}_{k}" for t in TARGETS.values() for k in ("ids", "weights"))


def first_states(encoder: elmo.Elmo, batch: Batch) -> elmo.States:
  """States of zeros for the rows of a batch, boxed with logical axes."""
  rows = batch["char_ids"].shape[0]

  def zeros(width):
    made = jnp.zeros((rows, width), jnp.float32)
    return nn.LogicallyPartitioned(made, ("batch", None))

  layer = lambda: (zeros(encoder.cell), zeros(encoder.hidden))  # noqa: E731
  layers = range(encoder.num_layers)
  return tuple(tuple(layer() for _ in layers) for _ in TARGETS)


def check_rows(batch: Batch, states: elmo.States) -> None:
  """Raises ValueError unless a batch has a row for every state."""
  rows, known = batch["char_ids"].shape[0], states[0][0][0].shape[0]
  if rows != known:
    raise ValueError(
      f"objective.stateful goes on with {known} rows, and a micro-batch has"
      f" {rows}; set micro_batches=1."
    )


def check_streams(batch: Batch, stateful: bool) -> None:
  """Raises ValueError if the data are not of the kind that states need."""
  if ("back_char_ids" in batch) != stateful:
    remedy = "=batch_size" if stateful else "=0"
    raise ValueError(
      f"objective.stateful={stateful} needs data.streams{remedy}: a text goes"
      " on from batch to batch where states do."
    )


def build(
  model: dict[str, Any], negatives: int = 0, stateful: bool = False
) -> Objective:
  """Bidirectional language model: the average of both directions' means.

  Evaluation is without states, and always with the full softmax.

  Args:
    model: keyword arguments of the family's `build`, with `family`.
    negatives: words that each direction's softmax is sampled from in training,
      besides the right one (8,192 as published); 0 for the full softmax.
    stateful: go on from batch to batch with the states that a row left (as
      published); else every row begins with zeros.

  Raises:
    ValueError: another family, or more negatives than words.
  """
  model = dict(model)
  check_family("elmo", model.pop("family"), ["elmo"])
  encoder = elmo.build(**model)
  module = elmo.ForPreTraining(encoder)
  size = encoder.vocab_size
  if negatives:
    candidates.draws_for(negatives, size)

  def init(rng, batch):
    check_batch("elmo", batch, KEYS)
    check_streams(batch, stateful)
    return module.init(rng, batch)["params"]

  def carry(batch):
    return first_states(encoder, batch) if stateful else {}

  def weights(batch):
    return {
      f"{way}_loss": batch[f"{target}_weights"].sum(dtype=jnp.float32)
      for way, target in TARGETS.items()
    }

  def loss(params, frozen, states, batch, rng, train):
    del frozen
    before = None
    if stateful and train:
      check_rows(batch, states)
      before = states

    def run(module):
      hidden, after = module.encode(batch, before, train=train)
      if train and negatives:
        losses = _sampled(module, hidden, batch, rng, negatives)
        return {
          f"{way}_loss": (some * batch[f"{target}_weights"]).sum()
          for (way, target), some in zip(TARGETS.items(), losses, strict=True)
        }, after
      return {
        f"{way}_loss": sampling.full_sum(
          x,
          batch[f"{target}_ids"],
          batch[f"{target}_weights"],
          *module.table(),
          size,
        )
        for (way, target), x in zip(TARGETS.items(), hidden, strict=True)
      }, after

    rngs = {"dropout": jax.random.fold_in(rng, 2)} if train else None
    sums, after = nn.apply(run, module)({"params": params}, rngs=rngs)
    return sums, jax.lax.stop_gradient(after) if before else states

  def flops(batch):
    rows, length = batch["char_ids"].shape[:2]
    predictions = negatives + 1 if negatives else size
    return 3 * elmo.flops(encoder, rows, length, predictions)

  coefficients = {f"{way}_loss": 0.5 for way in TARGETS}
  return Objective(init, weights, loss, coefficients, flops, carry=carry)


def _sampled(
  module: elmo.ForPreTraining,
  hidden: Sequence[Array],
  batch: Batch,
  rng: Array,
  negatives: int,
) -> list[Array]:
  """Losses of both directions, with candidates of each, as published."""
  size = module.encoder.vocab_size
  labels = [batch[f"{target}_ids"] for target in TARGETS.values()]
  drawn = [
    candidates.draw(jax.random.fold_in(rng, way), negatives, size)
    for way in range(len(labels))
  ]
  # All at once: the gradient of each look-up is as large as the table.
  wanted = [*labels, *(ids for ids, _ in drawn)]
  rows, biases = module.rows(jnp.concatenate([ids.ravel() for ids in wanted]))
  ends = list(itertools.accumulate(ids.size for ids in wanted))[:-1]
  found = [
    (row.reshape(*ids.shape, -1), bias.reshape(ids.shape))
    for ids, row, bias in zip(
      wanted, jnp.split(rows, ends), jnp.split(biases, ends), strict=True
    )
  ]
  ways = len(labels)
  return [
    sampling.sampled_losses(
      hidden[way], labels[way], found[way], found[ways + way], *drawn[way], size
    )
    for way in range(ways)
  ]
