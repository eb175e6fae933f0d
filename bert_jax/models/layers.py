"""Layers that the families share: activations, dropout, dense, norm, tables."""

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, UInt32

from bert_jax.kernels import fp8, fused_activation, fused_norm
from bert_jax.models import primitives

# An initializer of a parameter: (key, shape, dtype) -> array.
Initializer = Callable[..., Array]
# The logical axes of hidden states.
ACTIVATION_AXES = ("batch", "length", "embed_activation")

# Activations by their names in the published configuration files.
#   name      function              families that use it
#   gelu      exact gelu            BERT (released weights), RoBERTa, ELECTRA,
#                                   DistilBERT
#   gelu_new  gelu's tanh form      ALBERT, GPT-1
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  "gelu": lambda x: 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5))),
  "gelu_new": functools.partial(jax.nn.gelu, approximate=True),
  "relu": jax.nn.relu,
  "tanh": jnp.tanh,
}


def activation(name: str) -> Callable[[Array], Array]:
  """Returns the activation with this name; raises ValueError if none has it."""
  if name not in ACTIVATIONS:
    raise ValueError(
      f"activation {name!r} is not one of {sorted(ACTIVATIONS)}."
    )
  return ACTIVATIONS[name]


def dropout_seed(key: Array) -> UInt32[Array, "2"]:
  """Returns two random uint32 numbers, the seed of `primitives.dropout`."""
  return jax.random.bits(key, (2,), jnp.uint32)


def dropout(x: Float[Array, "..."], rate: float, key: Array | None) -> Array:
  """Sets elements to 0 with probability `rate`, and scales all other elements.

  The scale 1 / (1 - rate) keeps the expected value of every element.

  Args:
    x: an array of any shape and float dtype; the first axis is the batch.
    rate: the probability, in [0, 1).
    key: a jax PRNG key; may be None if the rate is 0.

  Raises:
    ValueError: the rate is out of its range.
  """
  if rate == 0.0:
    return x
  if not 0.0 < rate < 1.0:
    raise ValueError(f"dropout rate {rate} must be in [0, 1).")
  assert key is not None
  return primitives.dropout(x, dropout_seed(key), rate)


class Dropout(nn.Module):
  """Applies dropout in training, with a key from the "dropout" rng stream."""

  rate: float

  @nn.compact
  def __call__(self, x: Float[Array, "..."], train: bool) -> Array:
    """Applies `dropout`; returns `x` itself unless `train` is True."""
    if not train or self.rate == 0.0:
      return x
    return dropout(x, self.rate, self.make_rng("dropout"))


class Named(nn.LogicallyPartitioned):
  """Boxes a parameter with the names of its logical axes.

  `nnx.bridge.ToNNX` keeps the names. With `nn.LogicallyPartitioned`, the bridge
  would also ask for a mesh whose axes have these names.

  Attributes:
    compute_dtype: the dtype to which the model casts the parameter before each
      use; None if the model uses the parameter without a cast.
  """

  compute_dtype: Any = struct.field(default=None, pytree_node=False)

  def to_nnx_metadata(self) -> dict[str, Any]:
    """Returns the fields of the parameter's `nnx.Variable`."""
    return dict(
      value=self.value,
      mesh=self.mesh,
      out_sharding=self.names,
      sharding_rules=self.rules,
      eager_sharding=False,
    )


def with_axes(
  init: Initializer,
  axes: tuple[str | None, ...],
  compute_dtype: jnp.dtype | None = None,
) -> Initializer:
  """Returns an initializer whose array is boxed; see `Named`.

  For type checkers, the new initializer returns an array: `nn.Module.param`
  takes the array out of the box.
  """

  @functools.wraps(init)
  def init_in_box(*arguments: Any) -> Named:
    return Named(init(*arguments), axes, compute_dtype=compute_dtype)

  return cast(Initializer, init_in_box)


class Dense(nn.Module):
  """Maps the trailing axes of an array linearly, with float32 parameters.

  Attributes:
    features: the sizes of the output's trailing axes, one or several.
    axes: the logical axes of the kernel: the axes of the input that the product
      sums over, and then an axis for each size in `features`.
    dtype: the dtype of the product.
    kernel_init: the initializer of the kernel in its full shape; the bias
      starts at zero.
    products: the precision of the product, "dtype" or "fp8"; see
      kernels/fp8.py.
  """

  features: tuple[int, ...]
  axes: tuple[str | None, ...]
  dtype: jnp.dtype
  kernel_init: Initializer
  products: str = "dtype"

  @property
  def num_summed_axes(self) -> int:
    """The number of trailing axes of the input that the product sums over."""
    return len(self.axes) - len(self.features)

  @nn.compact
  def kernel_and_bias(
    self, input_shape: tuple[int, ...]
  ) -> tuple[Array, Array]:
    """Returns the float32 kernel and bias for an input of this shape."""
    kernel = self.param(
      "kernel",
      with_axes(self.kernel_init, self.axes, jnp.dtype(self.dtype)),
      input_shape[len(input_shape) - self.num_summed_axes :] + self.features,
      jnp.float32,
    )
    bias = self.param(
      "bias",
      with_axes(
        nn.initializers.zeros_init(), self.axes[self.num_summed_axes :]
      ),
      self.features,
      jnp.float32,
    )
    return kernel, bias

  def product_and_bias(self, x: Float[Array, "..."]) -> tuple[Array, Array]:
    """Returns the product in `dtype`, and the float32 bias to add to it."""
    kernel, bias = self.kernel_and_bias(x.shape)
    y = product(x, kernel, self.num_summed_axes, self.dtype, self.products)
    return y, bias

  def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the product plus the bias, in `dtype`."""
    y, bias = self.product_and_bias(x)
    return y + jax.lax.broadcast_to_rank(bias.astype(self.dtype), y.ndim)


def product(
  x: Float[Array, "..."],
  kernel: Float[Array, "..."],
  num_summed_axes: int,
  dtype: jnp.dtype,
  products: str = "dtype",
) -> Float[Array, "..."]:
  """Multiplies an array by a kernel.

  Args:
    x: the array.
    kernel: the kernel.
    num_summed_axes: the number of axes that the product sums over: the last
      axes of `x`, which are the first axes of the kernel.
    dtype: the dtype of both operands and of the product.
    products: the precision of the product, "dtype" or "fp8"; see
      kernels/fp8.py.
  """
  if products == "fp8":
    return fp8.product(x.astype(dtype), kernel.astype(dtype), num_summed_axes)
  summed_axes = tuple(range(x.ndim - num_summed_axes, x.ndim))
  dimensions = ((summed_axes, tuple(range(num_summed_axes))), ((), ()))
  return jax.lax.dot_general(x.astype(dtype), kernel.astype(dtype), dimensions)


class AddNorm(nn.Module):
  """Computes LayerNorm(x + dropout(y + bias)), after attention or the MLP.

  Attributes:
    epsilon: the epsilon of the LayerNorm.
    rate: the rate of the dropout.
    dtype: the dtype of the output.
    implementation: "xla"; or "triton" for one kernel in the forward pass and
      one in the backward pass.
  """

  epsilon: float
  rate: float
  dtype: jnp.dtype
  implementation: str = "xla"

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l d"],
    y: Float[Array, "b l d"],
    bias: Float[Array, "d"],
    train: bool,
  ) -> tuple[Float[Array, "b l d"], Float[Array, "b l d"]]:
    """Returns the output twice; see `fused_norm.add_norm` for the reason.

    Args:
      x: the residual.
      y: the output of attention or MLP, to which no bias was added.
      bias: the bias of attention or MLP, float32.
      train: True applies dropout, which needs a "dropout" rng.
    """
    ones, zeros = nn.initializers.ones_init(), nn.initializers.zeros_init()
    scale, shift = (
      self.param(name, with_axes(init, ("norm",)), x.shape[-1:], jnp.float32)
      for name, init in (("scale", ones), ("bias", zeros))
    )
    rate = self.rate if train else 0.0
    key = self.make_rng("dropout") if rate else None
    if self.implementation == "triton":
      seed = jnp.zeros(2, jnp.uint32) if key is None else dropout_seed(key)
      return fused_norm.add_norm(
        x, y, bias, scale, shift, seed, rate, self.epsilon
      )
    y_with_bias = y + jax.lax.broadcast_to_rank(bias.astype(self.dtype), y.ndim)
    y = dropout(y_with_bias, rate, key)
    output = normalise(x + y, scale, shift, self.epsilon).astype(self.dtype)
    return output, output


def normalise(
  x: Float[Array, "... d"],
  scale: Float[Array, "d"],
  shift: Float[Array, "d"],
  epsilon: float,
) -> Float[Array, "... d"]:
  """Applies LayerNorm over the last axis, in float32."""
  x = x.astype(jnp.float32)
  scale, shift = (
    jax.lax.broadcast_to_rank(parameter, x.ndim) for parameter in (scale, shift)
  )
  x = x - x.mean(-1, keepdims=True)
  variance = jnp.square(x).mean(-1, keepdims=True)
  return x * (jax.lax.rsqrt(variance + epsilon) * scale) + shift


def bias_activation(
  x: Float[Array, "b l f"],
  bias: Float[Array, "f"],
  name: str,
  implementation: str,
) -> Float[Array, "b l f"]:
  """Computes activation(x + bias).

  Args:
    x: a dense layer's output, to which no bias was added.
    bias: the bias of the dense layer, float32.
    name: a key of `ACTIVATIONS`.
    implementation: "xla"; or "triton" for one kernel in the forward pass and
      one in the backward pass.
  """
  function = activation(name)
  if implementation == "triton":
    function_pair = fused_activation.function_and_derivative(name, function)
    return fused_activation.bias_activation(x, bias, *function_pair)
  return function(x + jax.lax.broadcast_to_rank(bias.astype(x.dtype), x.ndim))


def layer_norm(
  epsilon: float, dtype: jnp.dtype, name: str | None = None
) -> nn.LayerNorm:
  """Returns a LayerNorm over the last axis, with float32 statistics."""
  return nn.LayerNorm(
    epsilon=epsilon,
    dtype=dtype,
    use_fast_variance=False,
    scale_init=with_axes(nn.initializers.ones_init(), ("norm",)),
    bias_init=with_axes(nn.initializers.zeros_init(), ("norm",)),
    name=name,
  )


def with_zero_rows(init: Initializer, num_rows: int) -> Initializer:
  """Returns an initializer: `init` in the first `num_rows` rows, then zeros.

  The first rows are drawn as if the array had only these rows. The rows of
  zeros let devices share a table equally; no id points to them.
  """

  def pad(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    values = init(key, (num_rows, *shape[1:]), dtype)
    row_padding = (0, shape[0] - num_rows)
    return jnp.pad(values, [row_padding] + [(0, 0)] * (len(shape) - 1))

  return pad


class Embedding(nn.Module):
  """Holds a float32 table [size, features], and looks up rows by their ids.

  A look-up returns float32 rows, which the caller casts. So the gradient of
  the look-up is a float32 scatter. A bfloat16 scatter is slow: in a BERT-base
  step on an H100 it took a third of the time.

  An id outside of [0, size) gives a row of NaN. A device cannot raise an error,
  and nobody would notice a row of another id, or of zeros.

  Attributes:
    size: the number of rows.
    features: the number of columns.
    kernel_init: the initializer of the table.
    axes: the logical axes of rows and columns.
    one_hot: True for small tables: in training the rows are computed by a
      one-hot product. The gradient of a look-up would be a scatter, in which
      the thousands of tokens of a batch collide on few rows.
  """

  size: int
  features: int
  kernel_init: Initializer
  axes: tuple[str | None, str | None] = ("vocab", "embed")
  one_hot: bool = False

  def setup(self) -> None:
    """Makes the table."""
    self.embedding = self.param(
      "embedding",
      with_axes(self.kernel_init, self.axes),
      (self.size, self.features),
      jnp.float32,
    )

  def __call__(
    self, ids: Int[Array, "..."], train: bool = True
  ) -> Float[Array, "... d"]:
    """Returns the rows of `ids`; `train` matters only with `one_hot`."""
    is_valid = (ids >= 0) & (ids < self.size)
    if self.one_hot and train:
      rows = jnp.einsum(
        "...v,vd->...d",
        jax.nn.one_hot(ids, self.size),
        self.embedding,
        precision=jax.lax.Precision.HIGHEST,
      )
      return jnp.where(is_valid[..., None], rows, jnp.nan)
    # The mesh axis that splits the columns splits the batch too. Collect all
    # columns on each device first; otherwise the partitioner would copy the
    # rows of the whole batch to every device.
    table = nn.with_logical_constraint(self.embedding, (self.axes[0], None))
    # `take` gives NaN for ids beyond the end, but it counts negative ids from
    # the end. So replace negative ids by `size`.
    return jnp.take(table, jnp.where(is_valid, ids, self.size), axis=0)


def vocabulary_table(
  vocab_size: int, multiple: int, features: int, kernel_init: Initializer
) -> Embedding:
  """Returns a table with a row for each piece.

  Args:
    vocab_size: the number of pieces.
    multiple: the table gets rows of zeros up to a multiple of this number.
    features: the number of columns.
    kernel_init: the initializer of the pieces' rows.
  """
  num_rows = math.ceil(vocab_size / multiple) * multiple
  return Embedding(num_rows, features, with_zero_rows(kernel_init, vocab_size))


def gather_positions(
  x: Float[Array, "b l d"], positions: Int[Array, "b m"]
) -> Float[Array, "b m d"]:
  """Returns the vectors of x at `positions`, by a one-hot product.

  The product is exact, since each sum has one term that is not 0. The gradient
  of the product is a product too; that of a gather would be a scatter in x's
  dtype.
  """
  one_hot = jax.nn.one_hot(positions, x.shape[1], dtype=x.dtype)
  return jnp.einsum(
    "bml,bld->bmd", one_hot, x, precision=jax.lax.Precision.HIGHEST
  )
