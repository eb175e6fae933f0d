"""The stack of Transformer layers: the only nn.scan and nn.remat here."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bert_jax.models import layers
from bert_jax.models.attention import Attention


class TransformerLayer(nn.Module):
  """Attention and MLP, each with dropout, residual and LayerNorm after it.

  The post-LayerNorm block of Vaswani et al. 2017 as BERT uses it
  (google-research/bert modeling.py, transformer_model).
  """

  heads: int
  mlp: int
  dropout: float
  attention_dropout: float
  activation: str
  norm_epsilon: float
  dtype: jnp.dtype
  kernel_init: layers.Init
  attention: str = "xla"

  @nn.compact
  def __call__(
    self, x: Float[Array, "b l d"], mask: Bool[Array, "b #h l l"], train: bool
  ) -> tuple[Float[Array, "b l d"], dict[str, Array]]:
    width = x.shape[-1]
    mixed, probabilities = Attention(
      heads=self.heads,
      head_dim=width // self.heads,
      dropout=self.attention_dropout,
      dtype=self.dtype,
      kernel_init=self.kernel_init,
      implementation=self.attention,
      name="attention",
    )(x, mask, train)
    mixed = layers.Dropout(self.dropout, name="attention_dropout")(mixed, train)
    norm = layers.layer_norm(self.norm_epsilon, self.dtype, "attention_norm")
    x = nn.with_logical_constraint(norm(x + mixed), layers.ACTIVATION_AXES)
    y = layers.Dense(
      (self.mlp,), ("embed", "mlp"), self.dtype, self.kernel_init, name="mlp_in"
    )(x)
    y = layers.activation(self.activation)(y)
    y = nn.with_logical_constraint(y, ("batch", "length", "mlp"))
    y = layers.Dense(
      (width,), ("mlp", "embed"), self.dtype, self.kernel_init, name="mlp_out"
    )(y)
    y = layers.Dropout(self.dropout, name="mlp_dropout")(y, train)
    norm = layers.layer_norm(self.norm_epsilon, self.dtype, "mlp_norm")
    x = nn.with_logical_constraint(norm(x + y), layers.ACTIVATION_AXES)
    return x, {"hidden": x, "attention": probabilities}


class Stack(nn.Module):
  """`num_layers` layers as one scan; every parameter has a leading layer axis.

  Attributes:
    num_layers: how many.
    layer: keyword arguments of `TransformerLayer`.
    unroll: layers a loop iteration holds; `num_layers` unrolls all. The stored
      tree and the dropout bits do not depend on it.
    remat: keep the products with weights alone for the backward pass and make
      the rest of each layer again.
    groups: 0: each layer has parameters of its own. Else that many sets of
      parameters, each applied `num_layers` / `groups` times in a row with
      dropout of its own each time (ALBERT); the leading axis is the group's.

  Raises:
    ValueError: `num_layers` is not a multiple of `groups`.
  """

  num_layers: int
  layer: dict
  unroll: int = 1
  remat: bool = False
  groups: int = 0

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l d"],
    mask: Bool[Array, "b #h l l"],
    train: bool,
    collect: bool = False,
  ) -> tuple[Float[Array, "b l d"], dict[str, Array]]:
    """Returns the last hidden states and, if `collect`, stacks over layers."""
    count, groups = self.num_layers, self.groups or self.num_layers
    if count % groups:
      raise ValueError(f"num_layers={count} is not a multiple of {groups}.")

    def body(layer, x, mask):
      x, seen = layer(x, mask, train)
      return x, seen if collect else {}

    options = dict(
      # What the layers' weights made is kept; scores, softmax, activations and
      # norms, most of the memory and few of the operations, are made again.
      policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
      # Without a loop around it, the compiler would merge what is made again
      # with what was made first, and keep it.
      prevent_cse=self.unroll >= count,
    )
    run = nn.remat(body, **options) if self.remat else body
    repeats = count // groups
    if self.groups:
      run = nn.scan(
        run,
        variable_broadcast="params",
        split_rngs={"params": False, "dropout": True},
        in_axes=nn.broadcast,
        length=repeats,
        unroll=min(self.unroll, repeats),
      )
    run = nn.scan(
      run,
      variable_axes={"params": 0},
      split_rngs={"params": True, "dropout": True},
      in_axes=nn.broadcast,
      length=groups,
      unroll=max(self.unroll // repeats, 1),
      metadata_params={nn.PARTITION_NAME: "layers"},
    )
    x, seen = run(TransformerLayer(**self.layer, name="layer"), x, mask)
    if self.groups:
      seen = jax.tree.map(lambda s: s.reshape(count, *s.shape[2:]), seen)
    return x, seen


def build(encoder: Any, groups: int = 0, name: str | None = None) -> Stack:
  """The stack of an encoder, whose attributes have the names used here."""
  return Stack(
    encoder.num_layers,
    dict(
      heads=encoder.heads,
      mlp=encoder.mlp,
      dropout=encoder.dropout,
      attention_dropout=encoder.attention_dropout,
      activation=encoder.activation,
      norm_epsilon=encoder.norm_epsilon,
      dtype=encoder.dtype,
      kernel_init=encoder.kernel_init,
      attention=encoder.attention,
    ),
    unroll=encoder.unroll,
    remat=encoder.remat,
    groups=groups,
    name=name,
  )
