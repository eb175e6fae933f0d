"""Words from their characters: convolutions, highways, a projection."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import layers


def symmetric(bound: float) -> layers.Init:
  """An initializer, uniform between -bound and bound."""

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init


def convolution_init(activation: str, width: int, char_dim: int) -> layers.Init:
  """How the filters of a width begin (allenai/bilm-tf bilm/training.py)."""
  if activation == "tanh":
    return nn.initializers.normal((width * char_dim) ** -0.5)
  return symmetric(0.05)


class Highway(nn.Module):
  """A gated layer: g relu(W x + b) + (1 - g) x, g = sigmoid(W' x + b').

  Srivastava et al. 2015; allenai/bilm-tf calls g the carry gate, though it
  lets the new values through, and starts its bias at -2.
  """

  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    def dense(name, bias):
      return nn.Dense(
        x.shape[-1],
        dtype=self.dtype,
        kernel_init=nn.with_logical_partitioning(
          nn.initializers.normal(x.shape[-1] ** -0.5), ("embed", "mlp")
        ),
        bias_init=nn.with_logical_partitioning(
          nn.initializers.constant(bias), ("mlp",)
        ),
        name=name,
      )

    gate = jax.nn.sigmoid(dense("gate", -2.0)(x))
    return gate * jax.nn.relu(dense("new", 0.0)(x)) + (1.0 - gate) * x


class CharCnn(nn.Module):
  """Vectors of words (Kim et al. 2016, as in allenai/bilm-tf bilm/model.py).

  Attributes:
    num_chars: rows of the character table; row 0 is none and stays 0.
    char_dim: width of the table.
    filters: (width in characters, number) of each convolution.
    highways: layers after the convolutions.
    features: width of the result.
    activation: after the maximum over positions.
    dtype: of the computation; parameters are float32 always.
  """

  num_chars: int
  char_dim: int
  filters: tuple[tuple[int, int], ...]
  highways: int
  features: int
  activation: str
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, char_ids: Int[Array, "b l c"]) -> Float[Array, "b l d"]:
    """Returns a vector for each word, padding included.

    Raises:
      ValueError: words of fewer characters than the widest filter.
    """
    widest = max(width for width, _ in self.filters)
    if char_ids.shape[-1] < widest:
      raise ValueError(
        f"char_ids of shape {char_ids.shape}: the widest filter needs words of"
        f" {widest} characters."
      )
    table = layers.Embedding(
      self.num_chars,
      self.char_dim,
      symmetric(1.0),
      axes=(None, None),
      one_hot=True,
      name="chars",
    )
    x = jnp.where((char_ids != 0)[..., None], table(char_ids), 0.0)
    # Sizes are given in full: there may be no word at all.
    batch, length = char_ids.shape[:2]
    x = x.reshape(batch * length, *x.shape[2:]).astype(self.dtype)
    found, axes = [], nn.with_logical_partitioning
    for i, (width, count) in enumerate(self.filters):
      convolution = nn.Conv(
        count,
        (width,),
        padding="VALID",
        dtype=self.dtype,
        kernel_init=axes(
          convolution_init(self.activation, width, self.char_dim),
          (None, None, None),
        ),
        bias_init=axes(nn.initializers.zeros_init(), (None,)),
        name=f"convolution_{i}",
      )
      found.append(convolution(x).max(-2))
    x = layers.activation(self.activation)(jnp.concatenate(found, -1))
    for i in range(self.highways):
      x = Highway(self.dtype, name=f"highway_{i}")(x)
    x = layers.Dense(
      (self.features,),
      (None, "embed"),
      self.dtype,
      nn.initializers.normal(x.shape[-1] ** -0.5),
      name="project",
    )(x)
    return x.reshape(batch, length, self.features)
