"""Layers that the families share: activations, dropout, dense, norm, tables."""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from bert_jax.kernels import fp8, fused, fused_activation, fused_norm

Init = Callable[..., Array]
# Logical axes of hidden states.
ACTIVATION_AXES = ("batch", "length", "embed_activation")

# "gelu" is the exact form (BERT's released weights, RoBERTa, ELECTRA,
# DistilBERT); "gelu_new" the tanh form (ALBERT, GPT-1). The names are those of
# the published configuration files.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  "gelu": lambda x: 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5))),
  "gelu_new": functools.partial(jax.nn.gelu, approximate=True),
  "relu": jax.nn.relu,
  "tanh": jnp.tanh,
}


def activation(name: str) -> Callable[[Array], Array]:
  """Returns an activation by its published name; ValueError if unknown."""
  if name not in ACTIVATIONS:
    raise ValueError(f"activation {name!r}: not one of {sorted(ACTIVATIONS)}.")
  return ACTIVATIONS[name]


def dropout_bits(words: UInt32[Array, "2"], shape: tuple[int, ...]) -> Array:
  """Returns uint32 random bits of `shape`, a hash of (key words, index).

  Elementwise in the global index: the compiler fuses it into its consumer,
  every shard makes its own part, and any mesh gives the same bits. The hashes
  of the axes between the first and the last, and of the last, are constants.
  """
  *rows, columns = shape
  if max(math.prod(rows[1:]), columns) > 2**31:
    raise ValueError(f"dropout over {shape}: a row has over 2**31 elements.")
  first, *between = rows or (1,)
  hashes = fused.first_hashes(words, first).reshape(first, *(1 for _ in rows))
  place = np.arange(math.prod(between), dtype=np.uint32)
  place = place.reshape(*(1 for _ in rows[:1]), *between, 1)
  hashes = fused.row_hashes(hashes, place)
  columns = fused.column_hashes(np.arange(columns, dtype=np.uint32))
  columns = columns.reshape(*(1 for _ in hashes.shape[1:]), -1)
  return fused.bits(hashes, columns).reshape(shape)


def _apply_dropout(x: Array, words: Array, rate: float) -> Array:
  keep = dropout_bits(words, x.shape) >= fused.threshold(rate)
  return jnp.where(keep, x * (1.0 / (1.0 - rate)), 0).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropout(x: Array, words: Array, rate: float) -> Array:
  return _apply_dropout(x, words, rate)


def _dropout_fwd(x, words, rate):
  return _apply_dropout(x, words, rate), words


def _dropout_bwd(rate, words, g):
  # The bits are made again from the key: nothing of x's size is saved.
  return _apply_dropout(g, words, rate), fused.no_gradient(words)


_dropout.defvjp(_dropout_fwd, _dropout_bwd)


def dropout_words(key: Array) -> UInt32[Array, "2"]:
  """Makes the key words for `dropout_bits` from a jax PRNG key."""
  return jax.random.bits(key, (2,), jnp.uint32)


def dropout(x: Float[Array, "..."], rate: float, key: Array) -> Array:
  """Zeroes elements with probability `rate` and scales the rest to the mean.

  Args:
    x: any shape and float dtype; the first axis is the batch.
    rate: in [0, 1).
    key: a jax PRNG key.
  """
  if rate == 0.0:
    return x
  if not 0.0 < rate < 1.0:
    raise ValueError(f"dropout rate {rate}: must be in [0, 1).")
  return _dropout(x, dropout_words(key), rate)


class Dropout(nn.Module):
  """`dropout` with a key from the "dropout" stream; identity unless train."""

  rate: float

  @nn.compact
  def __call__(self, x: Float[Array, "..."], train: bool) -> Array:
    if not train or self.rate == 0.0:
      return x
    return dropout(x, self.rate, self.make_rng("dropout"))


class Dense(nn.Module):
  """A linear map of the trailing axes, float32 master weights.

  Attributes:
    features: output sizes, one or several axes.
    axes: logical axes of the kernel, inputs first; as many inputs are
      contracted as `axes` has more names than `features`.
    dtype: dtype of the product.
    kernel_init: initializer of the kernel in its full shape; the bias starts at
      zero.
    products: "dtype", or "fp8": see fp8.py.
  """

  features: tuple[int, ...]
  axes: tuple[str | None, ...]
  dtype: jnp.dtype
  kernel_init: Init
  products: str = "dtype"

  @property
  def contracted(self) -> int:
    """Trailing axes of the input that a product sums over."""
    return len(self.axes) - len(self.features)

  @nn.compact
  def weights(self, inputs: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns the float32 kernel and bias for an input of this shape."""
    kernel = self.param(
      "kernel",
      nn.with_logical_partitioning(self.kernel_init, self.axes),
      inputs[len(inputs) - self.contracted :] + self.features,
      jnp.float32,
    )
    bias = self.param(
      "bias",
      nn.with_logical_partitioning(
        nn.initializers.zeros_init(), self.axes[self.contracted :]
      ),
      self.features,
      jnp.float32,
    )
    return kernel, bias

  def without_bias(self, x: Float[Array, "..."]) -> tuple[Array, Array]:
    """The product alone in `dtype`, and the float32 bias."""
    kernel, bias = self.weights(x.shape)
    y = product(x, kernel, self.contracted, self.dtype, self.products)
    return y, bias

  def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
    y, bias = self.without_bias(x)
    return y + jax.lax.broadcast_to_rank(bias.astype(self.dtype), y.ndim)


def product(
  x: Float[Array, "..."],
  kernel: Float[Array, "..."],
  contracted: int,
  dtype: jnp.dtype,
  products: str = "dtype",
) -> Float[Array, "..."]:
  """Sums the last `contracted` axes of x with the first of the kernel."""
  if products == "fp8":
    return fp8.product(x.astype(dtype), kernel.astype(dtype), contracted)
  trailing = tuple(range(x.ndim - contracted, x.ndim))
  dimensions = ((trailing, tuple(range(contracted))), ((), ()))
  return jax.lax.dot_general(x.astype(dtype), kernel.astype(dtype), dimensions)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_einsum(spec: str, a: Array, b: Array) -> Float[Array, "..."]:
  """A product of two arrays of one dtype, summed and returned in float32.

  Its gradient is rounded to the inputs' dtype before the products that make
  theirs, as everywhere else; left to itself it would stay in float32 and make
  them slower products of another kind.
  """
  return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


def _float32_einsum_forward(spec, a, b):
  return float32_einsum(spec, a, b), (a, b)


def _float32_einsum_backward(spec, saved, gradient):
  a, b = saved
  _, pull = jax.vjp(functools.partial(jnp.einsum, spec), a, b)
  return pull(gradient.astype(a.dtype))


float32_einsum.defvjp(_float32_einsum_forward, _float32_einsum_backward)


class AddNorm(nn.Module):
  """LayerNorm(x + dropout(y + bias)), which follows each part of a layer.

  Attributes:
    epsilon: epsilon of the LayerNorm.
    rate: rate of the dropout.
    dtype: dtype of the result.
    implementation: "xla", or "triton" for one kernel each way.
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
    """Returns the result twice; see `fused_norm.add_norm`."""
    ones, zeros = nn.initializers.ones_init(), nn.initializers.zeros_init()
    scale, shift = (
      self.param(
        name,
        nn.with_logical_partitioning(init, ("norm",)),
        x.shape[-1:],
        jnp.float32,
      )
      for name, init in (("scale", ones), ("bias", zeros))
    )
    rate = self.rate if train else 0.0
    key = self.make_rng("dropout") if rate else None
    if self.implementation == "triton":
      words = dropout_words(key) if rate else jnp.zeros(2, jnp.uint32)
      return fused_norm.add_norm(
        x, y, bias, scale, shift, words, rate, self.epsilon
      )
    biased = y + jax.lax.broadcast_to_rank(bias.astype(self.dtype), y.ndim)
    y = dropout(biased, rate, key)
    out = normalise(x + y, scale, shift, self.epsilon).astype(self.dtype)
    return out, out


def normalise(
  x: Float[Array, "... d"],
  scale: Float[Array, "d"],
  shift: Float[Array, "d"],
  epsilon: float,
) -> Float[Array, "... d"]:
  """LayerNorm over the last axis, in float32."""
  x = x.astype(jnp.float32)
  scale, shift = (jax.lax.broadcast_to_rank(p, x.ndim) for p in (scale, shift))
  x = x - x.mean(-1, keepdims=True)
  variance = jnp.square(x).mean(-1, keepdims=True)
  return x * (jax.lax.rsqrt(variance + epsilon) * scale) + shift


def bias_activation(
  x: Float[Array, "b l f"],
  bias: Float[Array, "f"],
  name: str,
  implementation: str,
) -> Float[Array, "b l f"]:
  """activation(x + bias); by "xla", or "triton" for one backward kernel."""
  function = activation(name)
  if implementation == "triton":
    chosen = fused_activation.functions(name, function)
    return fused_activation.bias_activation(x, bias, *chosen)
  return function(x + jax.lax.broadcast_to_rank(bias.astype(x.dtype), x.ndim))


def layer_norm(
  epsilon: float, dtype: jnp.dtype, name: str | None = None
) -> nn.LayerNorm:
  """LayerNorm over the last axis with float32 statistics."""
  return nn.LayerNorm(
    epsilon=epsilon,
    dtype=dtype,
    use_fast_variance=False,
    scale_init=nn.with_logical_partitioning(
      nn.initializers.ones_init(), ("norm",)
    ),
    bias_init=nn.with_logical_partitioning(
      nn.initializers.zeros_init(), ("norm",)
    ),
    name=name,
  )


def padded(init: Init, rows: int) -> Init:
  """`init` for the first `rows` rows, drawn as if there were no more; then 0.

  The rows beyond are there for the mesh's layout: no id points at them.
  """

  def pad(key, shape, dtype):
    drawn = init(key, (rows, *shape[1:]), dtype)
    more = (0, shape[0] - rows)
    return jnp.pad(drawn, [more] + [(0, 0)] * (len(shape) - 1))

  return pad


class Embedding(nn.Module):
  """A table [size, features] in float32.

  Rows are gathered in float32 and cast by the caller: the gradient of the
  look-up is then a float32 scatter (in bfloat16 it was a third of a BERT-base
  step on an H100). In training small tables are read by a one-hot product
  instead, whose gradient has no scatter: thousands of rows of a batch would
  collide in it.

  An id that is negative or not below `size` gives NaN: on a device nothing can
  be raised, and neither a wrong row nor zeros would be noticed.
  """

  size: int
  features: int
  kernel_init: Init
  axes: tuple[str | None, str] = ("vocab", "embed")
  one_hot: bool = False

  def setup(self):
    self.embedding = self.param(
      "embedding",
      nn.with_logical_partitioning(self.kernel_init, self.axes),
      (self.size, self.features),
      jnp.float32,
    )

  def __call__(
    self, ids: Int[Array, "..."], train: bool = True
  ) -> Float[Array, "... d"]:
    valid = (ids >= 0) & (ids < self.size)
    if self.one_hot and train:
      rows = jnp.einsum(
        "...v,vd->...d",
        jax.nn.one_hot(ids, self.size),
        self.embedding,
        precision=jax.lax.Precision.HIGHEST,
      )
      return jnp.where(valid[..., None], rows, jnp.nan)
    # Gathered whole over the axis that splits the features, as the batch is
    # split over it too: the partitioner would copy the rows to every device.
    table = nn.with_logical_constraint(self.embedding, (self.axes[0], None))
    # `take` fills with NaN beyond the end, but counts negative ids from it.
    return jnp.take(table, jnp.where(valid, ids, self.size), axis=0)


def vocabulary_table(
  vocab_size: int, multiple: int, features: int, kernel_init: Init
) -> Embedding:
  """A table with a row for each piece, and zeros up to a multiple of rows."""
  rows = math.ceil(vocab_size / multiple) * multiple
  return Embedding(rows, features, padded(kernel_init, vocab_size))


def gather_positions(
  x: Float[Array, "b l d"], positions: Int[Array, "b m"]
) -> Float[Array, "b m d"]:
  """Rows of x at `positions`, as a one-hot product.

  Exact (one non-zero term a sum), and its gradient is a product as well,
  where a gather's would be a scatter in x's dtype.
  """
  one_hot = jax.nn.one_hot(positions, x.shape[1], dtype=x.dtype)
  return jnp.einsum(
    "bml,bld->bmd", one_hot, x, precision=jax.lax.Precision.HIGHEST
  )
