"""ELECTRA's objective: replaced token detection (Clark et al. 2020)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.kernels import fused
from bert_jax.models import electra, primitives
from bert_jax.objectives.base import (
  MASKED_KEYS,
  Batch,
  Carry,
  Objective,
  Params,
  Sums,
  build_encoder,
  check_batch,
  check_temperature,
  classification_sums,
  dropout_rngs,
)

KEYS = ("sequence_ids", *MASKED_KEYS)
# The names of the discriminator's sums, see `detection_sums`.
DETECTION_METRICS = ("loss", "accuracy", "replaced", "flagged", "found")


def sample(
  logits: Float[Array, "b m v"], rng: Array, temperature: float
) -> Int[Array, "b m"]:
  """Draws an id from softmax(logits / temperature) at each position.

  The id is the argmax of logits / temperature + Gumbel noise. The noise is a
  hash of the rng and of the indices in b, m and v, so that it does not depend
  on the mesh. The entries that pad the vocabulary for a mesh have the lowest
  logits and are never drawn. No gradient flows back to the logits.

  Args:
    logits: the generator's logits.
    rng: a jax PRNG key.
    temperature: the temperature of the softmax.
  """
  logits = jax.lax.stop_gradient(logits)
  num_rows, num_slots, vocab_size = logits.shape
  seed = jax.random.bits(rng, (2,), jnp.uint32)
  bits = primitives.dropout_bits(seed, (num_rows * num_slots, vocab_size))
  # Hash the bits once more: the lowest ones are the least random, and they
  # matter here too.
  bits = fused.hash_uint32(bits)
  # Large values of the noise decide the argmax. They come from values of
  # `uniform` near 0, where floats are dense, so that all 32 bits count.
  uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
  noise = -jnp.log(-jnp.log1p(-uniform)).reshape(logits.shape)
  return jnp.argmax(logits / temperature + noise, axis=-1).astype(jnp.int32)


def write_ids(
  input_ids: Int[Array, "b l"],
  positions: Int[Array, "b m"],
  ids: Int[Array, "b m"],
  weights: Float[Array, "b m"],
) -> Int[Array, "b l"]:
  """Writes `ids` at `positions`, except in unused slots (weight 0).

  If several used slots have the same position, the first slot's id is written.

  Args:
    input_ids: the ids to change.
    positions: the position of each slot.
    ids: the id of each slot.
    weights: 0 for an unused slot.
  """
  row_positions = jnp.arange(input_ids.shape[1])[None, None]
  is_written = (positions[..., None] == row_positions) & (weights > 0)[
    ..., None
  ]
  new_ids = jnp.take_along_axis(ids, jnp.argmax(is_written, axis=1), axis=1)
  return jnp.where(is_written.any(axis=1), new_ids, input_ids)


def detection_sums(
  logits: Float[Array, "b l"],
  is_replaced: Float[Array, "b l"],
  is_real: Float[Array, "b l"],
) -> Sums:
  """Returns `rtd_{name}` for each name in `DETECTION_METRICS`.

  Each value is a sum over the real tokens:

    loss      the binary cross-entropies, in nats
    accuracy  the number of tokens that the discriminator classifies rightly
    replaced  the number of tokens that are not the original ones
    flagged   the number of tokens that the discriminator classifies as replaced
    found     the number of tokens that are both replaced and flagged

  Precision is found / flagged, and recall is found / replaced.

  Args:
    logits: the discriminator's logits.
    is_replaced: 1 for a token that is not the original one.
    is_real: 0 for padding, else 1.
  """
  is_flagged = (logits > 0).astype(jnp.float32)
  values_by_name = dict(
    loss=jnp.logaddexp(0.0, logits) - is_replaced * logits,
    accuracy=(is_flagged == is_replaced).astype(jnp.float32),
    replaced=is_replaced,
    flagged=is_flagged,
    found=is_flagged * is_replaced,
  )
  return {
    f"rtd_{name}": (values_by_name[name] * is_real).sum()
    for name in DETECTION_METRICS
  }


def build(
  model: dict[str, Any],
  discriminator_weight: float = 50.0,
  temperature: float = 1.0,
) -> Objective:
  """Builds the generator's masked LM, and the detection of replaced tokens.

  The discriminator sees a sample of the generator at each masked position. A
  sample that equals the original token counts as original. The discriminator's
  loss is the mean over all real tokens, including [CLS] and [SEP]. The gradient
  of this loss reaches the generator only through the shared embeddings. In an
  evaluation the samples depend only on the parameters, the row and the row's
  index in the batch.

  Args:
    model: keyword arguments of the family's `build`, and `family`.
    discriminator_weight: the weight of the discriminator's loss; the weight of
      the generator's loss is 1 (google-research/electra
      configure_pretraining.py).
    temperature: the temperature of the softmax from which the samples are drawn
      (configure_pretraining.py).

  Raises:
    ValueError: the objective does not train this family, or the temperature is
      not above 0.
  """
  _, encoder = build_encoder("electra", model)
  check_temperature(temperature)
  module = electra.ForPreTraining(encoder)

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("electra", batch, KEYS)
    return module.init(rng, batch)["params"]

  def divisors(batch: Batch) -> Sums:
    num_masked = batch["mlm_weights"].sum(dtype=jnp.float32)
    num_real = (batch["sequence_ids"] > 0).sum(dtype=jnp.float32)
    detection_divisors = {f"rtd_{name}": num_real for name in DETECTION_METRICS}
    return {
      "mlm_loss": num_masked,
      "mlm_accuracy": num_masked,
    } | detection_divisors

  def loss(
    params: Params,
    teacher_params: Params,
    carry: Carry,
    batch: Batch,
    rng: Array,
    train: bool,
  ) -> tuple[Sums, Carry]:
    del teacher_params
    generator_rng, discriminator_rng, noise_rng = jax.random.split(rng, 3)

    def run(method: str, batch: Batch, rng: Array) -> Any:
      rngs = dropout_rngs(rng, train)
      return module.apply(
        {"params": params}, batch, train=train, rngs=rngs, method=method
      )

    logits = run("generate", batch, generator_rng)
    positions, ids, mask_weights = (batch[key] for key in MASKED_KEYS)
    samples = sample(logits, noise_rng, temperature)
    corrupted_ids = write_ids(
      batch["input_ids"], positions, samples, mask_weights
    )
    original_ids = write_ids(batch["input_ids"], positions, ids, mask_weights)
    detection_logits = run(
      "discriminate", batch | {"input_ids": corrupted_ids}, discriminator_rng
    )
    sums = classification_sums("mlm", logits, ids, mask_weights)
    sums |= detection_sums(
      detection_logits,
      (corrupted_ids != original_ids).astype(jnp.float32),
      (batch["sequence_ids"] > 0).astype(jnp.float32),
    )
    return sums, carry

  def flops(batch: Batch) -> float:
    num_rows, length = batch["input_ids"].shape
    num_slots = batch["mlm_positions"].shape[1]
    return 3 * electra.flops(encoder, num_rows, length, num_slots)

  coefficients = {"mlm_loss": 1.0, "rtd_loss": discriminator_weight}
  return Objective(
    init=init,
    divisors=divisors,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
  )
