"""ELECTRA (Clark et al. 2020): a generator and a discriminator."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import explicit_axes, heads, layers, stack
from bert_jax.models.encoder import (
  Embeddings,
  Encoder,
  build_variant,
  default_sequence_ids,
  stack_flops,
)

# The sizes are from google-research/electra util/training_utils.py,
# get_bert_config. The generator is 1/4 (small, large) or 1/3 (base) as wide as
# the discriminator (configure_pretraining.py, README). The generator's heads
# are 64 wide, its MLP is 4 times as wide as its hidden states, and it has as
# many layers as the discriminator. The two share tables of width
# `embedding_size`.
VARIANTS: dict[str, dict[str, int]] = {
  "small": dict(
    embedding_size=128,
    hidden=256,
    num_layers=12,
    heads=4,
    mlp=1024,
    generator_hidden=64,
  ),
  "base": dict(
    embedding_size=768,
    hidden=768,
    num_layers=12,
    heads=12,
    mlp=3072,
    generator_hidden=256,
  ),
  "large": dict(
    embedding_size=1024,
    hidden=1024,
    num_layers=24,
    heads=16,
    mlp=4096,
    generator_hidden=256,
  ),
}
# The classifier reads the vector of [CLS] after dropout, without a pooler
# (google-research/electra finetune/classification/classification_tasks.py).
POOLING = heads.Pooling(activation=None)
PRETRAINED_POOLER = False
OBJECTIVE = "electra"
# The library transformers adds a dense layer with gelu (modeling_electra.py,
# ElectraClassificationHead).
DENSE_POOLING = heads.Pooling(activation="gelu", input_dropout=True)


class Tower(nn.Module):
  """The stack of the generator or of the discriminator, without embeddings.

  Attributes:
    hidden: the width of the stack. If the width of the embeddings differs, a
      linear map changes it to `hidden`.
    dtype: the dtype of the map.
    kernel_init: the initializer of the map's kernel.
    stack_options: the keyword arguments of `stack.Stack`.
  """

  hidden: int
  dtype: jnp.dtype
  kernel_init: layers.Initializer
  stack_options: dict[str, Any]

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l e"],
    sequence_ids: Int[Array, "b l"],
    train: bool = False,
    collect: bool = False,
  ) -> tuple[Float[Array, "b l d"], dict[str, Array]]:
    """Encodes embedded tokens.

    Args:
      x: the embeddings.
      sequence_ids: see `Encoder.__call__`.
      train: see `Encoder.__call__`.
      collect: see `Encoder.__call__`.

    Returns:
      The output of `Encoder.__call__`, with "embeddings" [b l d] after the map.
    """
    if x.shape[-1] != self.hidden:
      x = layers.Dense(
        (self.hidden,),
        (None, "embed"),
        self.dtype,
        self.kernel_init,
        name="project",
      )(x)
      x = nn.with_logical_constraint(x, layers.ACTIVATION_AXES)
    layer_stack = stack.Stack(**self.stack_options, name="layers")
    last_states, collected = layer_stack(x, sequence_ids, train, collect)
    return last_states, dict(embeddings=x, **collected) if collect else {}


class Electra(Encoder):
  """The embeddings and one tower: the encoder that is fine-tuned.

  Attributes (in addition to those of `Encoder`):
    embedding_size: the width of the tables, which generator and discriminator
      share.
    generator_hidden: the width of the generator in pre-training; see
      `generator_encoder`.
    num_segments: the number of rows of the segment table.
  """

  hidden: int = 256
  heads: int = 4
  mlp: int = 1024
  embedding_size: int = 128
  generator_hidden: int = 64
  num_segments: int = 2

  @nn.nowrap
  def make_embeddings(self, **overrides: Any) -> Embeddings:
    """Builds the tables, which both towers share in pre-training."""
    return super().make_embeddings(features=self.embedding_size, **overrides)

  def setup(self) -> None:
    """Makes the embeddings and the tower."""
    self.embeddings = self.make_embeddings()
    self.tower = make_tower(self)

  @explicit_axes.accepted(hidden=1, attention=1)
  def __call__(
    self,
    input_ids: Int[Array, "b l"],
    segment_ids: Int[Array, "b l"] | None = None,
    sequence_ids: Int[Array, "b l"] | None = None,
    position_ids: Int[Array, "b l"] | None = None,
    *,
    train: bool = False,
    collect: bool = False,
  ) -> tuple[Float[Array, "b l d"], dict[str, Array]]:
    """Encodes a batch; see `Encoder.__call__`."""
    x = self.embed(input_ids, segment_ids, position_ids, train)
    sequence_ids = default_sequence_ids(input_ids, sequence_ids)
    return self.tower(x, sequence_ids, train, collect)


def make_tower(encoder: Electra) -> Tower:
  """Builds the tower of an encoder."""
  return Tower(
    hidden=encoder.hidden,
    dtype=encoder.dtype,
    kernel_init=encoder.kernel_init,
    stack_options=stack.stack_options(encoder),
  )


class TokenDiscriminator(nn.Module):
  """Gives each token a logit, which is above 0 if the token seems replaced.

  The head is a dense layer, an activation and a linear map to one number
  (google-research/electra run_pretraining.py, _get_discriminator_output). The
  head reads all positions, including [CLS] and [SEP].
  """

  activation: str
  dtype: jnp.dtype
  kernel_init: layers.Initializer

  @nn.compact
  def __call__(self, hidden: Float[Array, "b l d"]) -> Float[Array, "b l"]:
    """Returns float32 logits for the last hidden states."""
    x = layers.Dense(
      (hidden.shape[-1],),
      ("embed", "embed_out"),
      self.dtype,
      self.kernel_init,
      name="dense",
    )(hidden)
    x = layers.activation(self.activation)(x)
    output = heads.Classifier(
      num_labels=1, dropout=0.0, kernel_init=self.kernel_init, name="output"
    )
    return output(x)[..., 0]


class ForPreTraining(nn.Module):
  """Joins generator and discriminator, with heads and shared embeddings.

  Attributes:
    encoder: an encoder with the discriminator's fields. Only its sizes and
      settings are read; it has no parameters in the tree of this module.
  """

  encoder: Electra

  def setup(self) -> None:
    """Makes the embeddings, both towers and both heads."""
    encoder = self.encoder
    self.embeddings = encoder.make_embeddings()
    self.discriminator = make_tower(encoder)
    self.generator = make_tower(generator_encoder(encoder))
    self.mlm = heads.build_word_head(encoder)
    self.rtd = TokenDiscriminator(
      encoder.activation, encoder.dtype, encoder.kernel_init
    )

  def _embed(self, batch: dict[str, Array], train: bool) -> tuple[Array, Array]:
    ids = batch["input_ids"]
    segment_ids, position_ids = map(batch.get, ("segment_ids", "position_ids"))
    embedded = self.embeddings(ids, segment_ids, position_ids, train=train)
    return embedded, default_sequence_ids(ids, batch.get("sequence_ids"))

  @explicit_axes.accepted()
  def generate(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> Float[Array, "b m v"]:
    """Returns the generator's float32 logits at `mlm_positions`.

    Args:
      batch: see `heads.ForPreTraining`; `input_ids` are masked.
      train: True applies dropout, which needs a "dropout" rng.
    """
    hidden, _ = self.generator(*self._embed(batch, train), train)
    table = self.embeddings.word.embedding
    return self.mlm(hidden, batch["mlm_positions"], table)

  @explicit_axes.accepted()
  def discriminate(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> Float[Array, "b l"]:
    """Returns the discriminator's float32 logits at all positions.

    Args:
      batch: as for `generate`, but `input_ids` hold the generator's samples at
        the masked positions.
      train: True applies dropout, which needs a "dropout" rng.
    """
    hidden, _ = self.discriminator(*self._embed(batch, train), train)
    return self.rtd(hidden)

  @explicit_axes.accepted()
  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Returns float32 "mlm_logits" and "rtd_logits", both for `input_ids`.

    Args:
      batch: see `heads.ForPreTraining`.
      train: True applies dropout, which needs a "dropout" rng.
    """
    return {
      "mlm_logits": self.generate(batch, train=train),
      "rtd_logits": self.discriminate(batch, train=train),
    }


def generator_sizes(encoder: Electra) -> dict[str, int]:
  """Returns the generator's fields that differ from the encoder's.

  Raises:
    ValueError: the generator's heads do not split its width evenly.
  """
  hidden = encoder.generator_hidden
  num_heads = max(1, hidden // 64)
  if hidden % num_heads:
    raise ValueError(
      f"model.generator_hidden={hidden} must be a multiple of its {num_heads}"
      " heads of about 64; choose a multiple of 64."
    )
  return dict(hidden=hidden, heads=num_heads, mlp=4 * hidden)


def generator_encoder(encoder: Electra) -> Electra:
  """Returns an encoder with the generator's sizes."""
  sizes: dict[str, Any] = generator_sizes(encoder)
  return encoder.clone(**sizes)


def build(variant: str, **overrides: Any) -> Electra:
  """Builds a published size; see `encoder.build_variant`."""
  return build_variant(Electra, VARIANTS, variant, overrides)


def flops(
  encoder: Electra, num_rows: int, length: int, num_predictions: int
) -> float:
  """Counts the operations of a forward pass of both towers and both heads.

  The arguments are those of `heads.flops`.
  """
  total_flops = 0.0
  for tower in (encoder, generator_encoder(encoder)):
    total_flops += stack_flops(tower, num_rows, length)
    if tower.hidden != encoder.embedding_size:
      total_flops += (
        2.0 * num_rows * length * encoder.embedding_size * tower.hidden
      )
  total_flops += 2.0 * num_rows * length * encoder.hidden * (encoder.hidden + 1)
  masked_lm_head_flops = (
    2 * generator_encoder(encoder).hidden * encoder.embedding_size
  )
  masked_lm_head_flops += 2 * encoder.embedding_size * encoder.vocab_size
  return total_flops + num_rows * num_predictions * masked_lm_head_flops
