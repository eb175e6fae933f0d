"""The stack of Transformer layers: the only nn.scan and nn.remat here."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bert_jax.models import layers
from bert_jax.models.attention import Attention

ACTIVATION_AXES = ("batch", "length", "embed_activation")


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
    x = nn.with_logical_constraint(norm(x + mixed), ACTIVATION_AXES)
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
    x = nn.with_logical_constraint(norm(x + y), ACTIVATION_AXES)
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
    collect: also return every layer's hidden states and attention
      probabilities.
  """

  num_layers: int
  layer: dict
  unroll: int = 1
  remat: bool = False

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l d"],
    mask: Bool[Array, "b #h l l"],
    train: bool,
    collect: bool = False,
  ) -> tuple[Float[Array, "b l d"], dict[str, Array]]:
    """Returns the last hidden states and, if `collect`, stacks over layers."""

    def body(layer, x, mask):
      x, seen = layer(x, mask, train)
      return x, seen if collect else {}

    options = dict(
      # What the layers' weights made is kept; scores, softmax, activations and
      # norms, most of the memory and few of the operations, are made again.
      policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
      # Without a loop around it, the compiler would merge what is made again
      # with what was made first, and keep it.
      prevent_cse=self.unroll >= self.num_layers,
    )
    scanned = nn.scan(
      nn.remat(body, **options) if self.remat else body,
      variable_axes={"params": 0},
      split_rngs={"params": True, "dropout": True},
      in_axes=nn.broadcast,
      length=self.num_layers,
      unroll=self.unroll,
      metadata_params={nn.PARTITION_NAME: "layers"},
    )
    return scanned(TransformerLayer(**self.layer, name="layer"), x, mask)
