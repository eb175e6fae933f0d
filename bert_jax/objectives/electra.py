"""ELECTRA's objective: replaced token detection (Clark et al. 2020)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.kernels import fused
from bert_jax.models import electra, layers
from bert_jax.objectives.base import (
  MASKED_KEYS,
  Objective,
  Sums,
  build_encoder,
  check_batch,
  check_temperature,
  classification_sums,
  dropout_rngs,
)

KEYS = ("sequence_ids", *MASKED_KEYS)
METRICS = ("loss", "accuracy", "replaced", "flagged", "found")


def sample(
  logits: Float[Array, "b m v"], rng: Array, temperature: float
) -> Int[Array, "b m"]:
  """Draws an id from softmax(logits / temperature) at each position.

  The largest of logits with Gumbel noise. The noise is a hash of (rng, b, m,
  v), whatever the mesh and the rows that it adds to the vocabulary; those have
  the lowest logits and are never drawn. No gradient flows back.
  """
  logits = jax.lax.stop_gradient(logits)
  rows, predictions, vocabulary = logits.shape
  words = jax.random.bits(rng, (2,), jnp.uint32)
  bits = layers.dropout_bits(words, (rows * predictions, vocabulary))
  bits = fused.mix(bits)  # Here the lowest bits count too.
  # Gumbel noise is made from exponential noise near 0, where floats are dense:
  # the largest noise, which decides, is then as fine as 32 bits allow.
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

  The first of several slots at one position counts.
  """
  places = jnp.arange(input_ids.shape[1])[None, None]
  here = (positions[..., None] == places) & (weights > 0)[..., None]
  written = jnp.take_along_axis(ids, jnp.argmax(here, axis=1), axis=1)
  return jnp.where(here.any(axis=1), written, input_ids)


def detection_sums(
  logits: Float[Array, "b l"],
  replaced: Float[Array, "b l"],
  real: Float[Array, "b l"],
) -> Sums:
  """Sums over the real tokens; their names are `rtd_` and one of `METRICS`.

  `replaced` counts tokens that are not the original, `flagged` tokens that the
  discriminator takes for replaced, and `found` tokens that are both. Precision
  is found / flagged, recall found / replaced.
  """
  flagged = (logits > 0).astype(jnp.float32)
  values = dict(
    loss=jnp.logaddexp(0.0, logits) - replaced * logits,
    accuracy=(flagged == replaced).astype(jnp.float32),
    replaced=replaced,
    flagged=flagged,
    found=flagged * replaced,
  )
  return {f"rtd_{name}": (values[name] * real).sum() for name in METRICS}


def build(
  model: dict[str, Any],
  discriminator_weight: float = 50.0,
  temperature: float = 1.0,
) -> Objective:
  """The generator's masked LM, and telling its samples from original tokens.

  The discriminator sees a sample at each masked position; one that equals the
  original counts as original. Its loss is the mean over all tokens that are no
  padding, [CLS] and [SEP] among them, and reaches the generator through the
  shared embeddings only. In an evaluation, samples depend on the parameters and
  on a row's place in its batch alone.

  Args:
    model: keyword arguments of the family's `build`, with `family`.
    discriminator_weight: weight of the discriminator's loss; the generator's
      is 1 (google-research/electra configure_pretraining.py).
    temperature: temperature of the samples (the same file).

  Raises:
    ValueError: another family, or a temperature that is not above 0.
  """
  _, encoder = build_encoder("electra", model)
  check_temperature(temperature)
  module = electra.ForPreTraining(encoder)

  def init(rng, batch):
    check_batch("electra", batch, KEYS)
    return module.init(rng, batch)["params"]

  def weights(batch):
    masked = batch["mlm_weights"].sum(dtype=jnp.float32)
    real = (batch["sequence_ids"] > 0).sum(dtype=jnp.float32)
    result = {"mlm_loss": masked, "mlm_accuracy": masked}
    return result | {f"rtd_{name}": real for name in METRICS}

  def loss(params, frozen, carry, batch, rng, train):
    del frozen
    generator, discriminator, noise = jax.random.split(rng, 3)

    def run(method, batch, rng):
      rngs = dropout_rngs(rng, train)
      return module.apply(
        {"params": params}, batch, train=train, rngs=rngs, method=method
      )

    logits = run("generate", batch, generator)
    slots, ids, used = (batch[key] for key in MASKED_KEYS)
    drawn = sample(logits, noise, temperature)
    seen = write_ids(batch["input_ids"], slots, drawn, used)
    original = write_ids(batch["input_ids"], slots, ids, used)
    detected = run("discriminate", batch | {"input_ids": seen}, discriminator)
    sums = classification_sums("mlm", logits, ids, used)
    sums |= detection_sums(
      detected,
      (seen != original).astype(jnp.float32),
      (batch["sequence_ids"] > 0).astype(jnp.float32),
    )
    return sums, carry

  def flops(batch):
    rows, length = batch["input_ids"].shape
    predictions = batch["mlm_positions"].shape[1]
    return 3 * electra.flops(encoder, rows, length, predictions)

  coefficients = {"mlm_loss": 1.0, "rtd_loss": discriminator_weight}
  return Objective(
    init=init,
    weights=weights,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
  )
