"""Defines multi-head attention, as a function and as a module."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax.kernels import fused, fused_attention, tpu_attention
from bert_jax.models import layers, primitives


def attention_mask(
  sequence_ids: Int[Array, "b l"],
) -> Bool[Array, "b 1 l l"]:
  """Returns True where a query may see a key: both are in the same sequence.

  No query sees padding. A query at padding sees the first sequence of its row,
  as published (google-research/bert modeling.py,
  create_attention_mask_from_input_mask). Nothing reads the output of a query at
  padding.

  Args:
    sequence_ids: 0 at padding, 1, 2, ... for the sequences of a row.
  """
  query_ids = jnp.maximum(sequence_ids, 1)
  return (query_ids[:, :, None] == sequence_ids[:, None, :])[:, None]


def causal_mask(length: int) -> Bool[Array, "1 1 l l"]:
  """Returns True where a query may see a key: no key is after its query."""
  return jnp.tril(jnp.ones((1, 1, length, length), bool))


def attention(
  qkv: Float[Array, "b l h 3 k"],
  bias: Float[Array, "h 3 k"],
  sequence_ids: Int[Array, "b l"],
  *,
  causal: bool = False,
  dropout_rate: float = 0.0,
  dropout_key: Array | None = None,
  implementation: str = "xla",
) -> tuple[Float[Array, "b l h k"], Float[Array, "b h l l"] | None]:
  """Computes dot-product attention with dropout on the probabilities.

  The softmax is computed in float32, whatever the dtype of the inputs. A masked
  key gets probability exactly 0 if its query has a key that is not masked. If
  all keys of a query are masked, these keys get equal, finite probabilities.

  Args:
    qkv: queries, keys and values of each head, without their bias.
    bias: the float32 bias of queries, keys and values.
    sequence_ids: see `attention_mask`.
    causal: True means that no query sees a key that is after it.
    dropout_rate: the dropout rate on the probabilities, in [0, 1).
    dropout_key: a jax PRNG key; required if the rate is above 0.
    implementation: "auto", or one of `fused.IMPLEMENTATIONS["attention"]`. All
      implementations draw the same dropout bits, except "cudnn", which has no
      dropout.

  Returns:
    The mixed values (for each query the mean of the values, weighted by the
    probabilities) in the dtype of `qkv`, and the float32 probabilities before
    dropout. Only "xla" returns probabilities; the other implementations
    return None. The compiler removes probabilities that nothing reads.

  Raises:
    ValueError: the implementation is unknown, or does not run on this device or
      with this dropout.
  """
  implementation = fused.choose_implementation(
    "attention", implementation, qkv.dtype
  )
  if implementation == "tpu":
    mixed_values = attention_for_tpus(
      tuple(qkv[..., i, :] for i in range(3)),
      tuple(bias[:, i] for i in range(3)),
      sequence_ids,
      causal=causal,
      dropout_rate=dropout_rate,
      dropout_key=dropout_key,
    )
    return mixed_values, None
  if implementation == "triton":
    mixed_values = fused_attention.attention(
      qkv,
      bias,
      sequence_ids,
      _seed(dropout_rate, dropout_key),
      dropout_rate,
      causal,
    )
    return mixed_values, None
  query, key, value = jnp.moveaxis(fused_attention.add_bias(qkv, bias), 3, 0)
  mask = attention_mask(sequence_ids)
  if causal:
    mask &= causal_mask(qkv.shape[1])
  if implementation == "cudnn":
    if dropout_rate > 0.0:
      raise ValueError(
        "attention 'cudnn' has no dropout; set model.attention_dropout=0.0 or"
        " model.attention='triton'."
      )
    return jax.nn.dot_product_attention(
      query, key, value, mask=mask, implementation="cudnn"
    ), None
  return _attention_without_kernel(
    query, key, value, mask, dropout_rate, dropout_key
  )


def _seed(rate: float, key: Array | None) -> UInt32[Array, "2"]:
  """Returns the seed of a kernel's dropout; zeros if the rate is 0."""
  if rate == 0.0:
    return jnp.zeros(2, jnp.uint32)
  assert key is not None
  return layers.dropout_seed(key)


def attention_for_tpus(
  qkv: tuple[Float[Array, "b l h k"], ...],
  bias: tuple[Float[Array, "h k"], ...],
  sequence_ids: Int[Array, "b l"],
  *,
  causal: bool,
  dropout_rate: float,
  dropout_key: Array | None,
) -> Float[Array, "b l h k"]:
  """Computes `attention` by the kernel for TPUs, without probabilities.

  Args:
    qkv: queries, keys and values, without their bias.
    bias: the float32 bias of queries, of keys and of values.
    sequence_ids: see `attention`.
    causal: see `attention`.
    dropout_rate: see `attention`.
    dropout_key: see `attention`.
  """
  shape = num_rows, length, heads, head_dim = qkv[0].shape
  mixed_values = tpu_attention.attention(
    *(x.reshape(num_rows, length, heads * head_dim) for x in qkv),
    jnp.stack([x.reshape(-1) for x in bias]),
    sequence_ids,
    _seed(dropout_rate, dropout_key),
    heads,
    dropout_rate,
    causal,
  )
  return mixed_values.reshape(shape)


def _attention_without_kernel(
  query: Float[Array, "b l h k"],
  key: Float[Array, "b l h k"],
  value: Float[Array, "b l h k"],
  mask: Bool[Array, "#b 1 l l"],
  dropout_rate: float,
  dropout_key: Array | None,
) -> tuple[Float[Array, "b l h k"], Float[Array, "b h l l"]]:
  """Computes `attention` without a kernel."""
  scale = 1.0 / math.sqrt(query.shape[-1])
  scores = primitives.float32_einsum("bqhk,bshk->bhqs", query, key)
  # The score of a masked key is finite, so that a query whose keys are all
  # masked gets probabilities of 1/n and not 0/0.
  scores = jnp.where(mask, scores * scale, np.finfo(np.float32).min)
  probabilities = jax.nn.softmax(scores, axis=-1)
  weights = probabilities.astype(value.dtype)
  if dropout_rate > 0.0:
    weights = layers.dropout(weights, dropout_rate, dropout_key)
  return jnp.einsum("bhqs,bshk->bqhk", weights, value), probabilities


class Attention(nn.Module):
  """Self-attention with separate query, key, value and output projections.

  As published, each projection is a separate variable, since an optimizer with
  a trust ratio for each variable (LAMB) must see them separately. One matrix
  product computes queries, keys and values together. Only for the TPU kernel
  there are three products: the output of one product, and its gradient, would
  have to be reordered (docs/tpu.md has the cost).

  Attributes:
    heads: the number of heads.
    head_dim: the width of a head.
    dropout: the dropout rate on the probabilities.
    causal: True means that no query sees a key that is after it.
    dtype: the dtype of the computation; parameters are always float32.
    kernel_init: the initializer of the kernels.
    implementation: see `attention`.
    products: the precision of matrix products: "dtype" or "fp8"; see
      kernels/fp8.py.
  """

  heads: int
  head_dim: int
  dropout: float
  causal: bool
  dtype: jnp.dtype
  kernel_init: layers.Initializer
  implementation: str = "xla"
  products: str = "dtype"

  @nn.compact
  def __call__(
    self, x: Float[Array, "b l d"], sequence_ids: Int[Array, "b l"], train: bool
  ) -> tuple[
    Float[Array, "b l d"], Float[Array, "d"], Float[Array, "b h l l"] | None
  ]:
    """Computes attention.

    Returns:
      The output without its bias, the bias, and the probabilities.
    """
    projections = [
      layers.Dense(
        (self.heads, self.head_dim),
        ("embed", "heads", "head_dim"),
        self.dtype,
        self.kernel_init,
        name=name,
      ).kernel_and_bias(x.shape)
      for name in ("query", "key", "value")
    ]
    kernels, biases = zip(*projections, strict=True)
    rate = self.dropout if train else 0.0
    implementation = fused.choose_implementation(
      "attention", self.implementation, self.dtype
    )
    if implementation == "tpu":
      mixed_values = attention_for_tpus(
        tuple(self._project(x, kernel) for kernel in kernels),
        biases,
        sequence_ids,
        causal=self.causal,
        dropout_rate=rate,
        dropout_key=self.make_rng("dropout") if rate > 0.0 else None,
      )
      probabilities = None
    else:
      joint_kernel = jnp.stack(
        [kernel.astype(self.dtype) for kernel in kernels], 2
      )
      qkv = nn.with_logical_constraint(
        layers.product(
          x,
          joint_kernel,
          num_summed_axes=1,
          dtype=self.dtype,
          products=self.products,
        ),
        ("batch", "length", "heads", None, "head_dim"),
      )
      mixed_values, probabilities = attention(
        qkv,
        jnp.stack(biases, 1),
        sequence_ids,
        causal=self.causal,
        dropout_rate=rate,
        dropout_key=self.make_rng("dropout") if rate > 0.0 else None,
        implementation=implementation,
      )
    y, bias = layers.Dense(
      (x.shape[-1],),
      ("heads", "head_dim", "embed"),
      self.dtype,
      self.kernel_init,
      self.products,
      name="output",
    ).product_and_bias(mixed_values)
    return y, bias, probabilities

  def _project(
    self, x: Float[Array, "b l d"], kernel: Float[Array, "d h k"]
  ) -> Float[Array, "b l h k"]:
    """Returns the queries, the keys or the values, without their bias."""
    y = layers.product(
      x,
      kernel.reshape(len(kernel), -1),
      num_summed_axes=1,
      dtype=self.dtype,
      products=self.products,
    )
    y = nn.with_logical_constraint(y, ("batch", "length", "heads"))
    return y.reshape(*y.shape[:2], self.heads, self.head_dim)
