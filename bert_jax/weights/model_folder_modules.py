"""What a converted file may hold beside the modules of `bert_jax.models`."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.models import electra, elmo, heads
from bert_jax.models.encoder import encode

Batch = dict[str, Array]


class Headless(nn.Module):
  """An encoder, with its pooler if it has one.

  Attributes:
    encoder: of any family.
    pooler: whether dense and tanh on the first position follow.
  """

  encoder: Any
  pooler: bool = False

  def setup(self):
    if self.pooler:
      self.pool = heads.Pooler(
        self.encoder.dtype, self.encoder.kernel_init, name="pooler"
      )

  def __call__(
    self, batch: Batch, *, train: bool = False, collect: bool = False
  ) -> dict[str, Array]:
    """Returns {"hidden_states" [b l d]}, with a pooler "pooled" [b d] as well.

    Args:
      batch: `input_ids`, and where they are there `segment_ids`,
        `sequence_ids` (0 at padding), `position_ids`: [b, l].
      train: apply dropout; needs a "dropout" rng.
      collect: add what the encoder collects.
    """
    hidden, seen = encode(self.encoder, batch, train=train, collect=collect)
    result = {"hidden_states": hidden, **seen}
    if self.pooler:
      first = jnp.zeros((hidden.shape[0], 1), jnp.int32)
      result["pooled"] = self.pool(hidden, first)[:, 0]
    return result


class Discriminator(nn.Module):
  """ELECTRA's encoder alone with its head: which tokens are replaced."""

  encoder: electra.Electra

  def setup(self):
    e = self.encoder
    self.rtd = electra.TokenDiscriminator(e.activation, e.dtype, e.kernel_init)

  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> dict[str, Float[Array, "b l"]]:
    """Returns float32 {"rtd_logits"}; see `Headless` for the batch."""
    hidden, _ = encode(self.encoder, batch, train=train)
    return {"rtd_logits": self.rtd(hidden)}


class Pairs(nn.Module):
  """An encoder with pooler and pair head alone: BERT's next sentence."""

  encoder: Any

  def setup(self):
    e = self.encoder
    self.pooler = heads.Pooler(e.dtype, e.kernel_init)
    self.pair = heads.Classifier(2, 0.0, e.kernel_init)

  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> dict[str, Float[Array, "b 1 2"]]:
    """Returns float32 {"pair_logits"}; see `Headless` for the batch."""
    hidden, _ = encode(self.encoder, batch, train=train)
    first = jnp.zeros((hidden.shape[0], 1), jnp.int32)
    return {"pair_logits": self.pair(self.pooler(hidden, first))}


class Words(nn.Module):
  """ELMo's encoder."""

  encoder: elmo.Elmo

  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> dict[str, Float[Array, "b n l d"]]:
    """Returns {"layers"}, the words first.

    Args:
      batch: `char_ids` [b, l, 50], `sequence_ids` [b, l] where it is there.
      train: apply dropout; needs a "dropout" rng.
    """
    ids = batch["char_ids"], batch.get("sequence_ids")
    return {"layers": self.encoder(*ids, train=train)}
