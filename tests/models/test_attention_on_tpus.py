"""Compares the attention module's form for TPUs with its other form.

Everything is in float32 and runs on the CPU, the kernel in Pallas' interpreter.
The two forms differ only in the order of their sums, so they agree within 2e-6
of the largest value.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax.kernels import fused, tpu_attention
from bert_jax.models.attention import Attention

NUM_ROWS, LENGTH, NUM_HEADS, HEAD_DIM = 2, 24, 4, 8
SEQUENCE_IDS = jnp.array([[1] * 10 + [2] * 12 + [0] * 2, [1] * 24])


def run_attention(implementation):
  """Returns the output, and the gradients of the parameters and the input."""
  rng = np.random.default_rng(0)
  x, gradient = (
    jnp.asarray(
      rng.normal(size=(NUM_ROWS, LENGTH, NUM_HEADS * HEAD_DIM)), jnp.float32
    )
    for _ in range(2)
  )
  module = Attention(
    heads=NUM_HEADS,
    head_dim=HEAD_DIM,
    dropout=0.2,
    causal=False,
    dtype=jnp.float32,
    kernel_init=jax.nn.initializers.normal(0.3),
    implementation=implementation,
  )
  params = jax.tree.map(
    lambda param: jnp.asarray(rng.normal(size=param.shape) * 0.3, jnp.float32),
    jax.eval_shape(
      lambda: module.init(jax.random.key(0), x, SEQUENCE_IDS, False)
    ),
  )

  def loss(params, x):
    y, bias, _ = module.apply(
      params, x, SEQUENCE_IDS, True, rngs={"dropout": jax.random.key(1)}
    )
    return ((y + bias[None, None]) * gradient).sum(), y

  gradients, y = fast_jit(jax.grad(loss, (0, 1), has_aux=True))(params, x)
  return y, gradients


# For TPUs, the module computes queries, keys and values by three products.
# Otherwise it computes them by one product with a stacked kernel.
def test_three_products_equal_one_product(monkeypatch):
  expected = run_attention("xla")
  num_arguments_by_call = []
  kernel = tpu_attention.attention

  def interpreted_kernel(*arguments):
    num_arguments_by_call.append(len(arguments))
    return kernel(*arguments, True)

  # The CPU would refuse the kernel.
  monkeypatch.setattr(
    fused, "choose_implementation", lambda option, name, dtype: name
  )
  monkeypatch.setattr(tpu_attention, "attention", interpreted_kernel)
  results = run_attention("tpu")
  assert num_arguments_by_call
  # The gradient of the bias of keys is 0 but for rounding, so the largest value
  # of all results is the scale.
  scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
  for result, expected_result in zip(
    jax.tree.leaves(results), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(
      result, expected_result, atol=2e-6 * scale, rtol=0
    )


@pytest.mark.parametrize(
  "kind, dtype, length, heads, head_dim, expected",
  [
    ("TPU v5 lite", jnp.bfloat16, 512, 12, 64, "tpu"),
    ("TPU v4", jnp.bfloat16, 128, 16, 64, "tpu"),
    ("TPU v3", jnp.bfloat16, 512, 12, 64, "xla"),
    ("TPU v4", jnp.float32, 512, 12, 64, "xla"),
    ("TPU v4", jnp.bfloat16, 64, 12, 64, "xla"),
    ("TPU v4", jnp.bfloat16, 200, 12, 64, "xla"),
    ("TPU v4", jnp.bfloat16, 640, 12, 64, "xla"),
    # TinyBERT's heads have 26 columns, and 3 heads of 64 leave half a register.
    ("TPU v4", jnp.bfloat16, 128, 12, 26, "xla"),
    ("TPU v4", jnp.bfloat16, 128, 3, 64, "xla"),
    ("cpu", jnp.bfloat16, 512, 12, 64, "xla"),
  ],
)
def test_auto_chooses_the_kernel_where_it_is_faster(
  monkeypatch, kind, dtype, length, heads, head_dim, expected
):
  device = types.SimpleNamespace(
    device_kind=kind, platform=kind.split()[0].lower()
  )
  monkeypatch.setattr(fused, "device_in_use", lambda: device)
  arguments = dtype, length, heads, head_dim
  assert fused.choose_attention("auto", *arguments) == expected
  assert fused.choose_attention("xla", *arguments) == "xla"
