"""TinyBERT (Jiao et al. 2020): small sizes of BERT, which learn from BERT."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.models import bert, layers
from bert_jax.models.encoder import Encoder, build_variant, encode

# The sizes of section 4.1 of the paper. A name is the number of layers and the
# width.
#   4x312  14.5M parameters
#   6x768  67M parameters
VARIANTS: dict[str, dict[str, int]] = {
  "4x312": dict(hidden=312, num_layers=4, heads=12, mlp=1200),
  "6x768": dict(hidden=768, num_layers=6, heads=12, mlp=3072),
}
# The values of `ForDistillation.maps`.
MAPS = ("shared", "two")
# The pooling, the heads, the objective and the count of operations are BERT's.
# PRETRAINED_POOLER is True: BERT's pre-training trains the pooler.
POOLING, PRETRAINED_POOLER = bert.POOLING, bert.PRETRAINED_POOLER
ForPreTraining, OBJECTIVE = bert.ForPreTraining, bert.OBJECTIVE
flops = bert.flops


def build(variant: str, **overrides: Any) -> bert.Bert:
  """Builds a published size; see `encoder.build_variant`."""
  return build_variant(bert.Bert, VARIANTS, variant, overrides)


class ForDistillation(nn.Module):
  """Adds learnt linear maps from an encoder's states to its teacher's width.

  Attributes:
    encoder: the student's encoder.
    width: the width of the teacher's hidden states.
    maps: "shared": one map for the embeddings and the hidden states, as in the
      published program (fit_dense in TinyBERT/transformer/modeling.py of
      huawei-noah/Pretrained-Language-Model). "two": a map for the embeddings
      and another for the hidden states, as in the paper (equations 8 and 9).
  """

  encoder: Encoder
  width: int
  maps: str = "shared"

  def setup(self) -> None:
    """Makes the maps."""
    self.fit = self._make_map()
    if self.maps == "two":
      self.fit_embeddings = self._make_map()

  def _make_map(self) -> layers.Dense:
    encoder = self.encoder
    return layers.Dense(
      (self.width,), ("embed", None), encoder.dtype, encoder.kernel_init
    )

  def __call__(
    self, batch: dict[str, Array], *, train: bool = False
  ) -> tuple[Float[Array, "n b l d"], Float[Array, "n b l w"]]:
    """Returns the states of `layer_states`, before and after the maps.

    Args:
      batch: has `input_ids`, and optionally `segment_ids`, `sequence_ids` and
        `position_ids`, all [b, l].
      train: True applies dropout, which needs a "dropout" rng.
    """
    states = layer_states(self.encoder, batch, train)
    embeddings_map = self.fit_embeddings if self.maps == "two" else self.fit
    mapped_states = embeddings_map(states[:1]), self.fit(states[1:])
    return states, jnp.concatenate(mapped_states)


def layer_states(
  encoder: Callable[..., Any], batch: dict[str, Array], train: bool = False
) -> Float[Array, "n b l d"]:
  """Returns the embeddings and the output of each layer, stacked.

  Args:
    encoder: an encoder, or its `apply` bound to parameters.
    batch: see `ForDistillation.__call__`.
    train: True applies dropout, which needs a "dropout" rng.
  """
  _, collected = encode(encoder, batch, train=train, collect=True)
  return jnp.concatenate([collected["embeddings"][None], collected["hidden"]])


def map_shapes(encoder: Encoder, width: int, maps: str) -> dict[str, Any]:
  """Returns the shapes of the maps' parameters.

  `weights/runs.py` needs them in order to read a run.

  Args:
    encoder: the student's encoder.
    width: the width of the teacher's hidden states.
    maps: see `ForDistillation`.
  """
  batch = {"input_ids": jax.ShapeDtypeStruct((1, 1), jnp.int32)}
  module = ForDistillation(encoder, width, maps)
  boxed_params = jax.eval_shape(module.init, jax.random.key(0), batch)
  params = nn.unbox(boxed_params)["params"]
  return {name: params[name] for name in params if name != "encoder"}
