"""Makes a converted folder's module, and the shapes of its parameters.

Both follow from the folder's config, which `weights/model_folder.py` describes.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from jaxtyping import Array, Float

from bert_jax import models
from bert_jax.messages import UserError
from bert_jax.models import electra, elmo, heads, task_heads
from bert_jax.models import encoder as encoder_lib
from bert_jax.models.encoder import encode

# The largest number of layers. The deepest published encoders have 1,000.
# Without a limit, a damaged number could fill the memory with layers' names.
MAX_LAYERS = 10_000
# Attributes of an encoder that change its results at most by rounding.
COMPUTATION_OPTIONS = (
  *("dtype", "attention", "elementwise", "products"),
  *("unroll", "remat"),
)


def model_attributes(encoder: nn.Module) -> dict[str, Any]:
  """Returns the attributes that define an encoder: `config["model"]`."""
  excluded_names = (*COMPUTATION_OPTIONS, "vocab_multiple")
  fields = encoder_lib.field_values(encoder)
  return {name: fields[name] for name in fields if name not in excluded_names}


def build(config: Mapping[str, Any], **computation: Any) -> nn.Module:
  """Builds the module of a config.

  The tasks of a config are:

  * "encoder": no head.
  * "pretraining": the pre-training heads that the model has.
  * "next_sentence": only BERT's head for pairs of sentences.
  * "generator", "discriminator": one encoder of ELECTRA with its head.
  * "sequence_classification", "multiple_choice", "token_classification",
    "span": a fine-tuned head.

  Args:
    config: the config of a converted folder.
    **computation: attributes of the encoder, from `COMPUTATION_OPTIONS`.

  Raises:
    ValueError: the family, the task or an attribute is unknown.
  """
  if config["family"] == "elmo":
    # config["model"] replaces all sizes, so any variant may be named.
    return WordEncoder(elmo.build("original", **config["model"], **computation))
  family, task = models.family(config["family"]), config["task"]
  for name in computation:
    if name not in COMPUTATION_OPTIONS:
      raise UserError(
        f"{name}= may not be given; only {COMPUTATION_OPTIONS} may."
      )
  # config["model"] replaces all sizes of this variant.
  variant = next(iter(family.VARIANTS))
  encoder = family.build(variant, **config["model"], **computation)
  head = dict(config["head"])
  if task == "encoder":
    return HeadlessModel(encoder, config["pooler"])
  if task == "pretraining":
    return family.ForPreTraining(encoder, **head)
  if task == "next_sentence":
    return NextSentenceModel(encoder)
  if task == "generator":
    return models.bert.ForPreTraining(encoder, pairs=False)
  if task == "discriminator":
    return Discriminator(encoder)
  if task in task_heads.TASK_BY_KIND.values():
    return task_heads.build(task, encoder, head)
  raise UserError(f"the task {task!r} is unknown.")


def param_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
  """Returns {path: shape} for every parameter of a converted folder.

  A pooler that the folder has is included even if the module does not read it,
  because a classifier that starts from the folder needs it.

  Raises:
    ValueError: a size in the config is too large, or `build` refuses the
      config.
  """
  module = build(config)
  ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  chars = jax.ShapeDtypeStruct((1, 1, elmo.MAX_CHARS), jnp.int32)
  batch = dict(input_ids=ids, mlm_positions=ids, cls_positions=ids)
  batch |= dict(segment_ids=ids, char_ids=chars)
  for name, size in config["model"].items():
    if isinstance(size, int) and size >= 2**31:
      raise UserError(
        f"{name} has {len(str(size))} digits; sizes are below 2**31."
      )
  num_layers = config["model"].get("num_layers", 0)
  if num_layers > MAX_LAYERS:
    raise UserError(f"num_layers={num_layers} is more than {MAX_LAYERS:,}.")
  try:
    boxed_params = jax.eval_shape(module.init, jax.random.key(0), batch)
  except OverflowError as e:
    raise UserError("a size of the model is 2**31 or more.") from e
  params_by_path = traverse_util.flatten_dict(
    nn.unbox(boxed_params)["params"], sep="/"
  )
  shapes = {path: tuple(leaf.shape) for path, leaf in params_by_path.items()}
  if config["pooler"]:
    width = config["model"]["hidden"]
    shapes.setdefault("pooler/dense/kernel", (width, width))
    shapes.setdefault("pooler/dense/bias", (width,))
  return shapes


Batch = dict[str, Array]


class HeadlessModel(nn.Module):
  """Runs an encoder without a head, and the model's pooler if it has one.

  Attributes:
    encoder: an encoder of any family.
    has_pooler: True if the model has a pooler: a dense layer and a tanh on the
      first position.
  """

  encoder: Any
  has_pooler: bool = False

  def setup(self) -> None:
    """Makes the pooler, if the model has one."""
    if self.has_pooler:
      self.pool = heads.Pooler(
        self.encoder.dtype, self.encoder.kernel_init, name="pooler"
      )

  def __call__(
    self, batch: Batch, *, train: bool = False, collect: bool = False
  ) -> dict[str, Array]:
    """Returns "hidden_states", [b l d]; a pooler adds "pooled", [b d].

    Args:
      batch: `input_ids`, and optionally `segment_ids`, `sequence_ids` (0 at
        padding) and `position_ids`, all [b, l].
      train: True applies dropout, which needs a "dropout" rng.
      collect: True adds the dict of `Encoder.__call__`.
    """
    hidden, collected = encode(
      self.encoder, batch, train=train, collect=collect
    )
    outputs = {"hidden_states": hidden, **collected}
    if self.has_pooler:
      first_positions = jnp.zeros((hidden.shape[0], 1), jnp.int32)
      outputs["pooled"] = self.pool(hidden, first_positions)[:, 0]
    return outputs


class Discriminator(nn.Module):
  """Finds replaced tokens with ELECTRA's discriminator and its head."""

  encoder: electra.Electra

  def setup(self) -> None:
    """Makes the head."""
    encoder = self.encoder
    self.rtd = electra.TokenDiscriminator(
      encoder.activation, encoder.dtype, encoder.kernel_init
    )

  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> dict[str, Float[Array, "b l"]]:
    """Returns float32 {"rtd_logits"}; see `HeadlessModel` for the batch."""
    hidden, _ = encode(self.encoder, batch, train=train)
    return {"rtd_logits": self.rtd(hidden)}


class NextSentenceModel(nn.Module):
  """Runs an encoder with a pooler and only BERT's next-sentence head."""

  encoder: Any

  def setup(self) -> None:
    """Makes the pooler and the head."""
    encoder = self.encoder
    self.pooler = heads.Pooler(encoder.dtype, encoder.kernel_init)
    self.pair = heads.Classifier(
      num_labels=2, dropout=0.0, kernel_init=encoder.kernel_init
    )

  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> dict[str, Float[Array, "b 1 2"]]:
    """Returns float32 {"pair_logits"}; see `HeadlessModel` for the batch."""
    hidden, _ = encode(self.encoder, batch, train=train)
    first_positions = jnp.zeros((hidden.shape[0], 1), jnp.int32)
    return {"pair_logits": self.pair(self.pooler(hidden, first_positions))}


class WordEncoder(nn.Module):
  """Runs ELMo's encoder, which reads the characters of words."""

  encoder: elmo.Elmo

  def __call__(
    self, batch: Batch, *, train: bool = False
  ) -> dict[str, Float[Array, "b n l d"]]:
    """Returns {"layers"}, [b n l d]; the first layer is the words' vectors.

    Args:
      batch: `char_ids`, [b, l, 50], and optionally `sequence_ids`, [b, l].
      train: True applies dropout, which needs a "dropout" rng.
    """
    layers = self.encoder(
      batch["char_ids"], batch.get("sequence_ids"), train=train
    )
    return {"layers": layers}
