"""The stack of Transformer layers, applied in one loop."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.kernels import fused
from bert_jax.models import layers
from bert_jax.models.attention import Attention


class TransformerLayer(nn.Module):
  """Applies attention and MLP; dropout, residual and LayerNorm follow each.

  This is the post-LayerNorm block of Vaswani et al. 2017 as BERT uses it
  (google-research/bert modeling.py, transformer_model).
  """

  heads: int
  mlp: int
  dropout: float
  attention_dropout: float
  activation: str
  norm_epsilon: float
  dtype: jnp.dtype
  kernel_init: layers.Initializer
  causal: bool = False
  attention: str = "xla"
  elementwise: str = "xla"
  products: str = "dtype"

  @nn.compact
  def __call__(
    self, x: Float[Array, "b l d"], sequence_ids: Int[Array, "b l"], train: bool
  ) -> tuple[Float[Array, "b l d"], dict[str, Array | None]]:
    """Returns the output, and the dict of `Encoder.__call__` for this layer."""
    width = x.shape[-1]
    attention_output, bias, probabilities = Attention(
      heads=self.heads,
      head_dim=width // self.heads,
      dropout=self.attention_dropout,
      causal=self.causal,
      dtype=self.dtype,
      kernel_init=self.kernel_init,
      implementation=self.attention,
      products=self.products,
      name="attention",
    )(x, sequence_ids, train)
    add_norm = functools.partial(
      layers.AddNorm,
      self.norm_epsilon,
      self.dropout,
      self.dtype,
      self.elementwise,
    )
    x, residual = (
      nn.with_logical_constraint(copy, layers.ACTIVATION_AXES)
      for copy in add_norm(name="attention_norm")(
        x, attention_output, bias, train
      )
    )
    dense_options = self.dtype, self.kernel_init, self.products
    y, bias = layers.Dense(
      (self.mlp,), ("embed", "mlp"), *dense_options, name="mlp_in"
    ).product_and_bias(x)
    y = layers.bias_activation(y, bias, self.activation, self.elementwise)
    y = nn.with_logical_constraint(y, ("batch", "length", "mlp"))
    y, bias = layers.Dense(
      (width,), ("mlp", "embed"), *dense_options, name="mlp_out"
    ).product_and_bias(y)
    x, _ = add_norm(name="mlp_norm")(residual, y, bias, train)
    x = nn.with_logical_constraint(x, layers.ACTIVATION_AXES)
    return x, {"hidden": x, "attention": probabilities}


def _unroll_of_scan(unroll: int, length: int) -> int:
  """Returns the `unroll` of lax.scan; 0 makes no loop.

  It is 0 if the loop would have one iteration. Even such a loop would copy
  everything that the layers save for the backward pass, in order to stack the
  iterations.
  """
  unroll = max(unroll, 1)
  return unroll if unroll < length else 0


class Stack(nn.Module):
  """Applies layers in one scan; every parameter has a leading layer axis.

  Attributes:
    num_layers: the number of layers.
    layer: the keyword arguments of `TransformerLayer`.
    unroll: the number of layers in an iteration of the loop; `num_layers`
      unrolls the whole loop, which makes steps faster and compiling slower. 0
      unrolls the whole loop on GPUs and TPUs, and nothing on a CPU. The tree of
      parameters and the dropout bits do not depend on `unroll`.
    remat: True saves only the products with weights for the backward pass,
      which computes everything else in a layer again.
    num_groups: 0 if no layers share parameters. Otherwise the number of sets of
      parameters (ALBERT). Each set is applied `num_layers` / `num_groups`
      times in succession, each time with new dropout bits, and the leading
      axis of a parameter counts the sets.

  Raises:
    ValueError: `num_layers` is not a multiple of `num_groups`.
  """

  num_layers: int
  layer: dict
  unroll: int = 0
  remat: bool = False
  num_groups: int = 0

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l d"],
    sequence_ids: Int[Array, "b l"],
    train: bool,
    collect: bool = False,
  ) -> tuple[Float[Array, "b l d"], dict[str, Array]]:
    """Applies the layers.

    Args:
      x: the input of the first layer.
      sequence_ids: see `Encoder.__call__`.
      train: see `Encoder.__call__`.
      collect: see `Encoder.__call__`.

    Returns:
      The last hidden states, and a dict. The dict is empty unless `collect` is
      True; then it has "hidden" and "attention" of `Encoder.__call__`.
    """
    num_layers, num_sets = self.num_layers, self.num_groups or self.num_layers
    if num_layers % num_sets:
      raise ValueError(
        f"num_layers={num_layers} is not a multiple of {num_sets}."
      )

    unroll = self.unroll or (1 if fused.runs_on_cpu() else num_layers)

    def body(
      layer: TransformerLayer, x: Array, sequence_ids: Array
    ) -> tuple[Array, dict[str, Array | None]]:
      x, collected = layer(x, sequence_ids, train)
      return x, collected if collect else {}

    apply_layers: Any = body
    if self.remat:
      apply_layers = nn.remat(
        body,
        # Save the products with the layers' weights. Compute scores, softmax,
        # activations and norms again: they take most of the memory, and few of
        # the operations.
        policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        # Outside of a loop, the compiler would find the repeated operations
        # equal to those of the forward pass, and would save their outputs.
        prevent_cse=unroll >= num_layers,
      )
    repeats = num_layers // num_sets
    if self.num_groups:
      apply_layers = nn.scan(
        apply_layers,
        variable_broadcast="params",
        split_rngs={"params": False, "dropout": True},
        in_axes=nn.broadcast,
        length=repeats,
        unroll=_unroll_of_scan(unroll, repeats),
      )
    apply_layers = nn.scan(
      apply_layers,
      variable_axes={"params": 0},
      split_rngs={"params": True, "dropout": True},
      in_axes=nn.broadcast,
      length=num_sets,
      unroll=_unroll_of_scan(unroll // repeats, num_sets),
      metadata_params={
        nn.PARTITION_NAME: "layer_groups" if self.num_groups else "layers"
      },
    )
    fields = dict(self.layer)
    for name in ("elementwise", "products"):
      fields[name] = fused.choose_implementation(
        name, fields[name], fields["dtype"]
      )
    heads, (_, length, width) = fields["heads"], x.shape
    fields["attention"] = fused.choose_attention(
      fields["attention"], fields["dtype"], length, heads, width // heads
    )
    if collect:
      # Only "xla" returns the probabilities.
      fields["attention"] = "xla"
    layer = TransformerLayer(**fields, name="layer")
    x, collected = apply_layers(layer, x, sequence_ids)
    if self.num_groups:
      collected = jax.tree.map(
        lambda s: s.reshape(num_layers, *s.shape[2:]), collected
      )
    return x, collected


def stack_options(
  encoder: Any, num_groups: int = 0, causal: bool = False
) -> dict[str, Any]:
  """Returns the keyword arguments of an encoder's `Stack`.

  Args:
    encoder: an encoder with the fields of `encoder.Encoder`.
    num_groups: see `Stack`.
    causal: True lets no query see a key after it.

  Raises:
    ValueError: the heads do not split the hidden size evenly.
  """
  if encoder.hidden % encoder.heads:
    raise ValueError(
      f"hidden={encoder.hidden} is not a multiple of heads={encoder.heads}."
    )
  return dict(
    num_layers=encoder.num_layers,
    layer=dict(
      heads=encoder.heads,
      mlp=encoder.mlp,
      dropout=encoder.dropout,
      attention_dropout=encoder.attention_dropout,
      activation=encoder.activation,
      norm_epsilon=encoder.norm_epsilon,
      dtype=encoder.dtype,
      kernel_init=encoder.kernel_init,
      causal=causal,
      attention=encoder.attention,
      elementwise=encoder.elementwise,
      products=encoder.products,
    ),
    unroll=encoder.unroll,
    remat=encoder.remat,
    num_groups=num_groups,
  )


def build(encoder: Any, num_groups: int = 0, causal: bool = False) -> Stack:
  """Builds the stack of an encoder; see `stack_options`."""
  return Stack(**stack_options(encoder, num_groups, causal))
