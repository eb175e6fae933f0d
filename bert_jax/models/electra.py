"""ELECTRA (Clark et al. 2020): a generator and the discriminator it tests."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import encoder_base as base
from bert_jax.models import heads, layers, stack
from bert_jax.models.encoder import Embeddings

# google-research/electra util/training_utils.py, get_bert_config; the width of
# the generator, whose tables have `embedding_size` as well: 1/4, 1/3, 1/4 of
# the discriminator's (configure_pretraining.py, README). Its heads are 64 wide,
# its MLP 4 times its width, its depth the discriminator's.
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
# The vector of [CLS] itself, then dropout (google-research/electra
# finetune/classification/classification_tasks.py); no pooler.
POOLING = heads.Pooling(activation=None)
# With a dense layer and gelu before it (transformers modeling_electra.py,
# ElectraClassificationHead).
DENSE_POOLING = heads.Pooling(activation="gelu", input_dropout=True)


class Tower(nn.Module):
  """A stack on embeddings that are not its own.

  Attributes:
    hidden: width; a linear map leads to it where embeddings are not as wide.
    num_layers: and the others: see `Electra`.
  """

  hidden: int
  num_layers: int
  heads: int
  mlp: int
  dropout: float
  attention_dropout: float
  activation: str
  norm_epsilon: float
  dtype: jnp.dtype
  kernel_init: layers.Init
  attention: str
  elementwise: str
  products: str
  unroll: int
  remat: bool

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l e"],
    sequence_ids: Int[Array, "b l"],
    train: bool = False,
    collect: bool = False,
  ) -> tuple[Float[Array, "b l d"], dict[str, Array]]:
    """Returns what `Electra.__call__` does, for embedded tokens."""
    base.check_heads(self.hidden, self.heads)
    if x.shape[-1] != self.hidden:
      x = layers.Dense(
        (self.hidden,),
        (None, "embed"),
        self.dtype,
        self.kernel_init,
        name="project",
      )(x)
      x = nn.with_logical_constraint(x, layers.ACTIVATION_AXES)
    embedded = x
    run = stack.build(self, name="layers")
    x, seen = run(x, sequence_ids, train, collect)
    return x, dict(embeddings=embedded, **seen) if collect else {}


class Electra(nn.Module):
  """One tower with its embeddings: the encoder to fine-tune; no head.

  Attributes:
    vocab_size: pieces, the rows of the word table.
    embedding_size: width of the tables, which both towers read.
    hidden: width, a multiple of `heads`.
    num_layers: Transformer layers.
    heads: attention heads.
    mlp: width of the MLP.
    generator_hidden: width of the generator in pre-training; see `generator`.
    max_positions: rows of the position table, the longest length.
    num_segments: rows of the segment table.
    dropout: on embeddings and on each sub-layer's output.
    attention_dropout: on attention probabilities.
    activation: of the MLP, a name of `layers.ACTIVATIONS`.
    norm_epsilon: of every LayerNorm.
    initializer_range: standard deviation of the truncated normal.
    dtype: of the computation; parameters are float32 always.
    attention: implementation, see `fused.implementation`.
    elementwise: the same of bias, dropout, residual, LayerNorm, activation.
    products: "auto" for products in `dtype`, or "fp8": see fp8.py.
    unroll: see `stack.Stack`.
    remat: see `stack.Stack`.
    vocab_multiple: see `embeddings.Embeddings`.
  """

  vocab_size: int = 30522
  embedding_size: int = 128
  hidden: int = 256
  num_layers: int = 12
  heads: int = 4
  mlp: int = 1024
  generator_hidden: int = 64
  max_positions: int = 512
  num_segments: int = 2
  dropout: float = 0.1
  attention_dropout: float = 0.1
  activation: str = "gelu"
  norm_epsilon: float = 1e-12
  initializer_range: float = 0.02
  dtype: jnp.dtype = jnp.dtype(jnp.float32)
  attention: str = "auto"
  elementwise: str = "auto"
  products: str = "auto"
  unroll: int = 0
  remat: bool = False
  vocab_multiple: int = 1

  @property
  def kernel_init(self) -> layers.Init:
    return nn.initializers.truncated_normal(self.initializer_range)

  @property
  def max_length(self) -> int:
    """The longest row."""
    return self.max_positions

  @property
  def word_embedding(self) -> Float[Array, "v e"]:
    """The word table, for a head that is tied to it."""
    return self.embeddings.word.embedding

  def setup(self):
    self.embeddings = make_embeddings(self)
    self.tower = make_tower(self)

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
    """Encodes a batch; arguments and results are those of `bert.Bert`."""
    x = self.embeddings(input_ids, segment_ids, position_ids, train=train)
    sequence_ids = base.default_sequence_ids(input_ids, sequence_ids)
    return self.tower(x, sequence_ids, train, collect)


def make_embeddings(encoder: Electra) -> Embeddings:
  """The tables of an encoder, which both towers share in pre-training."""
  e = encoder
  return Embeddings(
    e.vocab_size,
    e.embedding_size,
    e.max_positions,
    e.num_segments,
    e.dropout,
    e.norm_epsilon,
    e.dtype,
    e.kernel_init,
    e.vocab_multiple,
  )


def make_tower(encoder: Electra, **sizes: int) -> Tower:
  """The tower of an encoder, or one of other sizes beside it."""
  fields = [
    f for f in Tower.__dataclass_fields__ if f not in ("parent", "name")
  ]
  return Tower(**{f: getattr(encoder, f) for f in fields} | sizes)


class TokenDiscriminator(nn.Module):
  """A logit at each position: above 0, the token is not the original.

  Dense, activation, linear to one (google-research/electra run_pretraining.py,
  _get_discriminator_output). All positions count, [CLS] and [SEP] too.
  """

  activation: str
  dtype: jnp.dtype
  kernel_init: layers.Init

  @nn.compact
  def __call__(self, hidden: Float[Array, "b l d"]) -> Float[Array, "b l"]:
    x = layers.Dense(
      (hidden.shape[-1],),
      ("embed", "embed_out"),
      self.dtype,
      self.kernel_init,
      name="dense",
    )(hidden)
    x = layers.activation(self.activation)(x)
    output = heads.Classifier(1, 0.0, self.kernel_init, name="output")
    return output(x)[..., 0]


class ForPreTraining(nn.Module):
  """Both towers on one set of embeddings, with their heads.

  Attributes:
    encoder: the discriminator's attributes; it is not itself a part.
  """

  encoder: Electra

  def setup(self):
    e = self.encoder
    self.embeddings = make_embeddings(e)
    self.discriminator = make_tower(e)
    self.generator = make_tower(e, **generator_sizes(e))
    self.mlm = heads.MaskedLanguageModel(
      e.vocab_size, e.activation, e.norm_epsilon, e.dtype, e.kernel_init
    )
    self.rtd = TokenDiscriminator(e.activation, e.dtype, e.kernel_init)

  def _embed(self, batch: dict[str, Array], train: bool) -> tuple[Array, Array]:
    ids, segments, sequences, positions = map(batch.get, base.INPUTS)
    x = self.embeddings(ids, segments, positions, train=train)
    return x, base.default_sequence_ids(ids, sequences)

  def generate(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> Float[Array, "b m v"]:
    """Returns the generator's float32 logits at `mlm_positions`.

    Args:
      batch: see `pretraining.ForPreTraining`; `input_ids` are masked.
      train: apply dropout; needs a "dropout" rng.
    """
    hidden, _ = self.generator(*self._embed(batch, train), train)
    table = self.embeddings.word.embedding
    return self.mlm(hidden, batch["mlm_positions"], table)

  def discriminate(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> Float[Array, "b l"]:
    """Returns the discriminator's float32 logits at all positions.

    Args:
      batch: as for `generate`; `input_ids` hold the generator's samples.
      train: apply dropout; needs a "dropout" rng.
    """
    hidden, _ = self.discriminator(*self._embed(batch, train), train)
    return self.rtd(hidden)

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> dict[str, Array]:
    """Both heads on the same ids, float32 "mlm_logits" and "rtd_logits"."""
    return {
      "mlm_logits": self.generate(batch, train=train),
      "rtd_logits": self.discriminate(batch, train=train),
    }


def generator_sizes(encoder: Electra) -> dict[str, int]:
  """Attributes of the generator's tower that differ from the encoder's.

  Raises:
    ValueError: its heads do not split its width evenly.
  """
  hidden = encoder.generator_hidden
  heads_ = max(1, hidden // 64)
  if hidden % heads_:
    raise ValueError(
      f"model.generator_hidden={hidden}: its {heads_} heads of about 64 do"
      " not split it evenly; choose a multiple of 64."
    )
  return dict(hidden=hidden, heads=heads_, mlp=4 * hidden)


def build(variant: str, **overrides: Any) -> Electra:
  """Builds a published size, see `base.build`."""
  return base.build(Electra, VARIANTS, variant, overrides)


def flops(encoder: Electra, rows: int, length: int, predictions: int) -> float:
  """Operations of a forward pass of both towers and their heads."""
  e, total = encoder, 0.0
  sizes = generator_sizes(e)
  for hidden, mlp in ((e.hidden, e.mlp), (sizes["hidden"], sizes["mlp"])):
    total += base.stack_flops(e.num_layers, hidden, mlp, rows, length)
    if hidden != e.embedding_size:
      total += 2.0 * rows * length * e.embedding_size * hidden
  total += 2.0 * rows * length * e.hidden * (e.hidden + 1)
  head = 2 * sizes["hidden"] * e.embedding_size
  head += 2 * e.embedding_size * e.vocab_size
  return total + rows * predictions * head
