"""GPT-1's objective: the next token (Radford et al. 2018, section 3.1)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import gpt, heads
from bert_jax.objectives.base import (
  Batch,
  Carry,
  Objective,
  Params,
  Sums,
  build_encoder,
  check_batch,
  classification_sums,
  dropout_rngs,
  sum_by_chunks,
)

# The number of positions of a row whose logits are in memory at once. The
# logits of a whole batch, float32 [64, 512, 40478], would be 5 GiB, and their
# gradient 5 GiB more.
CHUNK_POSITIONS = 64


def language_model_sums(
  hidden: Float[Array, "b l d"],
  table: Float[Array, "v d"],
  vocab_size: int,
  ids: Int[Array, "b l"],
  weights: Float[Array, "b l"],
) -> Sums:
  """Returns the weighted sums `lm_loss` (nats) and `lm_accuracy`.

  The sums are computed in chunks; see `base.sum_by_chunks`.

  Args:
    hidden: the last hidden states.
    table: the word table.
    vocab_size: the number of pieces.
    ids: the id of the next token, for each position.
    weights: the weight of each position.
  """
  chunk_size = min(CHUNK_POSITIONS, ids.shape[1])

  def sum_chunk(x: Array, ids: Array, weights: Array) -> Sums:
    logits = heads.word_logits(x, table, vocab_size)
    return classification_sums("lm", logits, ids, weights)

  return sum_by_chunks(sum_chunk, chunk_size, hidden, ids, weights)


def build(model: dict[str, Any]) -> Objective:
  """Builds the causal language model.

  The loss is the mean over the targets of the global batch. The softmax runs
  over the pieces only. The released program has the pieces' and the positions'
  embeddings in one matrix, so its softmax also runs over the positions, which
  are never targets (openai/finetune-transformer-lm train.py).

  Args:
    model: keyword arguments of the family's `build`, and `family`.

  Raises:
    ValueError: the objective does not train this family.
  """
  _, encoder = build_encoder("lm", model)
  module = gpt.ForPreTraining(encoder)

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("lm", batch, ("sequence_ids", "lm_ids", "lm_weights"))
    return module.init(rng, batch)["params"]

  def divisors(batch: Batch) -> Sums:
    num_targets = batch["lm_weights"].sum(dtype=jnp.float32)
    return {"lm_loss": num_targets, "lm_accuracy": num_targets}

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
    outputs: Any = module.apply(
      {"params": params}, batch, train=train, rngs=rngs, method="encode"
    )
    hidden, table = outputs
    sums = language_model_sums(
      hidden, table, encoder.vocab_size, batch["lm_ids"], batch["lm_weights"]
    )
    return sums, carry

  def flops(batch: Batch) -> float:
    num_rows, length = batch["input_ids"].shape
    return 3 * gpt.flops(encoder, num_rows, length, length)

  return Objective(
    init=init,
    divisors=divisors,
    loss=loss,
    coefficients={"lm_loss": 1.0},
    flops=flops,
  )
