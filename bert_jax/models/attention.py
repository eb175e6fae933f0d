"""Multi-head attention: one function, several implementations, one module."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models import layers

IMPLEMENTATIONS = ("xla",)


def attention_mask(
  sequence_ids: Int[Array, "b l"],
) -> Bool[Array, "b 1 l l"]:
  """True where a query may see a key: a real one of its own sequence.

  Packed rows hold several sequences; 0 is padding. No query sees padding, and
  padding sees every real key, as published (google-research/bert modeling.py,
  create_attention_mask_from_input_mask): what it gets is never read.
  """
  query, key = sequence_ids[:, :, None], sequence_ids[:, None, :]
  return ((key != 0) & ((query == key) | (query == 0)))[:, None]


def attention(
  query: Float[Array, "b q h k"],
  key: Float[Array, "b s h k"],
  value: Float[Array, "b s h k"],
  mask: Bool[Array, "b #h q s"],
  *,
  dropout_rate: float = 0.0,
  dropout_key: Array | None = None,
  implementation: str = "xla",
) -> tuple[Float[Array, "b q h k"], Float[Array, "b h q s"]]:
  """Scaled dot-product attention with dropout on the probabilities.

  The softmax is in float32 whatever the dtype of the inputs. A masked key gets
  probability exactly 0; a row whose keys are all masked stays finite.

  Args:
    query: and `key`, `value`: of one dtype.
    mask: True where the key is seen.
    dropout_rate: on the probabilities; needs `dropout_key` if above 0.
    dropout_key: a jax PRNG key.
    implementation: one of `IMPLEMENTATIONS`.

  Returns:
    The mixed values in the dtype of `value`, and the probabilities before
    dropout in float32 (unused, the compiler drops them).

  Raises:
    ValueError: unknown implementation.
  """
  if implementation not in IMPLEMENTATIONS:
    raise ValueError(
      f"attention {implementation!r}: not one of {IMPLEMENTATIONS}."
    )
  scale = 1.0 / math.sqrt(query.shape[-1])
  scores = jnp.einsum(
    "bqhk,bshk->bhqs", query, key, preferred_element_type=jnp.float32
  )
  # Finite, so that a row of masked keys gives 1/n and not 0/0.
  scores = jnp.where(mask, scores * scale, np.finfo(np.float32).min)
  probabilities = jax.nn.softmax(scores, axis=-1)
  dropped = probabilities.astype(value.dtype)
  if dropout_rate > 0.0:
    dropped = layers.dropout(dropped, dropout_rate, dropout_key)
  return jnp.einsum("bhqs,bshk->bqhk", dropped, value), probabilities


class Attention(nn.Module):
  """Self-attention with separate query, key, value and output projections.

  They stay separate variables, as published: an optimizer with one trust ratio
  a variable (LAMB) must see each alone.
  """

  heads: int
  head_dim: int
  dropout: float
  dtype: jnp.dtype
  kernel_init: layers.Init
  implementation: str = "xla"

  @nn.compact
  def __call__(
    self, x: Float[Array, "b l d"], mask: Bool[Array, "b #h l l"], train: bool
  ) -> tuple[Float[Array, "b l d"], Float[Array, "b h l l"]]:
    project = functools.partial(
      layers.Dense,
      (self.heads, self.head_dim),
      ("embed", "heads", "head_dim"),
      self.dtype,
      self.kernel_init,
    )
    query, key, value = (
      nn.with_logical_constraint(
        project(name=name)(x), ("batch", "length", "heads", "head_dim")
      )
      for name in ("query", "key", "value")
    )
    rate = self.dropout if train else 0.0
    mixed, probabilities = attention(
      query,
      key,
      value,
      mask,
      dropout_rate=rate,
      dropout_key=self.make_rng("dropout") if rate > 0.0 else None,
      implementation=self.implementation,
    )
    output = layers.Dense(
      (x.shape[-1],),
      ("heads", "head_dim", "embed"),
      self.dtype,
      self.kernel_init,
      name="output",
    )(mixed)
    return output, probabilities
