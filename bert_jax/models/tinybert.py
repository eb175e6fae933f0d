"""TinyBERT (Jiao et al. 2020): BERT's encoder in two other sizes."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.models import bert, layers
from bert_jax.models.encoder import build_variant, encode

# Paper, section 4.1 (4 layers, 14.5M parameters; 6 layers, 67M).
VARIANTS: dict[str, dict[str, int]] = {
  "4x312": dict(hidden=312, num_layers=4, heads=12, mlp=1200),
  "6x768": dict(hidden=768, num_layers=6, heads=12, mlp=3072),
}
MAPS = ("shared", "two")
# Everything else is BERT's.
POOLING, PRETRAINED_POOLER = bert.POOLING, bert.PRETRAINED_POOLER
ForPreTraining, OBJECTIVE = bert.ForPreTraining, bert.OBJECTIVE
flops = bert.flops


def build(variant: str, **overrides: Any) -> bert.Bert:
  """Builds a published size, see `encoder.build_variant`."""
  return build_variant(bert.Bert, VARIANTS, variant, overrides)


class ForDistillation(nn.Module):
  """An encoder, and learnt maps of its states to its teacher's width.

  Attributes:
    encoder: an encoder whose `collect` gives "embeddings" and "hidden".
    width: width of the teacher's hidden states.
    maps: "shared": one map of embeddings and hidden states (huawei-noah/
      Pretrained-Language-Model TinyBERT transformer/modeling.py, fit_dense);
      "two": one map of each (paper, equations 8 and 9).
  """

  encoder: Any
  width: int
  maps: str = "shared"

  def setup(self):
    e = self.encoder
    options = ((self.width,), ("embed", None), e.dtype, e.kernel_init)
    self.fit = layers.Dense(*options)
    if self.maps == "two":
      self.fit_embeddings = layers.Dense(*options)

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> tuple[Float[Array, "n b l d"], Float[Array, "n b l w"]]:
    """Returns embeddings and each layer's output, as they are and mapped.

    Args:
      batch: see `heads.ForPreTraining`.
      train: apply dropout; needs a "dropout" rng.
    """
    states = collect(self.encoder, batch, train)
    first = self.fit_embeddings if self.maps == "two" else self.fit
    mapped = first(states[:1]), self.fit(states[1:])
    return states, jnp.concatenate(mapped)


def collect(
  encoder: Callable[..., Any], batch: dict[str, Array], train: bool = False
) -> Float[Array, "n b l d"]:
  """The embeddings and each layer's output.

  Args:
    encoder: an encoder, or its `apply` with the parameters.
    batch: see `heads.ForPreTraining`.
    train: apply dropout.
  """
  _, collected = encode(encoder, batch, train=train, collect=True)
  return jnp.concatenate([collected["embeddings"][None], collected["hidden"]])


def map_shapes(encoder: Any, width: int, maps: str) -> dict[str, Any]:
  """Shapes of the maps' parameters, which no published file has."""
  batch = {"input_ids": jax.ShapeDtypeStruct((1, 1), jnp.int32)}
  module = ForDistillation(encoder, width, maps)
  boxed = jax.eval_shape(module.init, jax.random.key(0), batch)
  params = nn.unbox(boxed)["params"]
  return {name: params[name] for name in params if name != "encoder"}
