"""Compares fused kernels, in Pallas' interpreter, with their formulas.

All arrays are float32. A kernel and its formula differ only in the order of
their sums, so they agree within 2e-6 of the largest value. In the calls of
kernels, the last argument True chooses the interpreter.
"""

import functools
import math
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax.kernels import (
  attention_kernels,
  fused,
  fused_activation,
  fused_attention,
  fused_norm,
  tpu_attention,
)
from bert_jax.models import attention, layers, primitives

SEED = jnp.array([3, 4], jnp.uint32)


def random_arrays(*shapes):
  rng = np.random.default_rng(0)
  return [
    jnp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in shapes
  ]


def assert_close(outputs, expected):
  for a, b in zip(
    jax.tree.leaves(outputs), jax.tree.leaves(expected), strict=True
  ):
    assert a.shape == b.shape and a.dtype == b.dtype
    scale = float(jnp.abs(b).max())
    np.testing.assert_allclose(a, b, atol=2e-6 * max(scale, 1.0), rtol=0)


def assert_same_function(run_kernel, run_formula, arguments, gradients):
  """Compares the outputs of a kernel and a formula, and their gradients.

  `gradients` are the gradients with respect to the outputs. The compared
  gradients are those with respect to `arguments`.
  """

  def run(function, arguments, gradients):
    outputs, vjp_function = jax.vjp(function, *arguments)
    return outputs, vjp_function(gradients)

  assert_close(
    *(
      fast_jit(functools.partial(run, function))(arguments, gradients)
      for function in (run_kernel, run_formula)
    )
  )


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(3, 5, 48), (2, 4, 64), (2, 75, 48)])
def test_add_norm_equals_the_formula(shape, rate):
  x, y, first_gradient, second_gradient = random_arrays(*[shape] * 4)
  vectors = random_arrays(*[shape[-1:]] * 3)

  def run_formula(x, y, bias, scale, shift):
    y = y + bias[None, None]
    if rate:
      y = primitives.dropout(y, SEED, rate)
    norm_output = layers.normalise(x + y, scale, shift, 1e-5)
    return norm_output, norm_output

  def run_kernel(*arrays):
    return fused_norm.add_norm(*arrays, SEED, rate, 1e-5, True)

  assert_same_function(
    run_kernel, run_formula, (x, y, *vectors), (first_gradient, second_gradient)
  )


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu"])
def test_bias_activation_equals_the_formula(name):
  x, output_gradient = random_arrays((2, 37, 200), (2, 37, 200))
  (bias,) = random_arrays((200,))
  function = run_formula = layers.activation(name)
  if name == "gelu_new":
    # This formula has the values of the formula with tanh. jax's derivative of
    # the formula with tanh has an error of 3.5e-6.
    root = math.sqrt(8 / math.pi)

    def run_formula(x):
      return x * jax.nn.sigmoid(root * (x + 0.044715 * x**3))

  fused_functions = fused_activation.function_and_derivative(name, function)

  def run_kernel(x, bias):
    return fused_activation.bias_activation(x, bias, *fused_functions, True)

  assert_same_function(
    run_kernel,
    lambda x, bias: run_formula(x + bias[None, None]),
    (3 * x, bias),
    output_gradient,
  )


def attention_by_formula(qkv, bias, ids, rate, causal):
  query, key, value = jnp.moveaxis(qkv + bias[None, None], 3, 0)
  mask = attention.attention_mask(ids)
  if causal:
    mask &= attention.causal_mask(ids.shape[1])
  scores = jnp.einsum("bqhk,bshk->bhqs", query, key) / query.shape[-1] ** 0.5
  weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)
  if rate:
    weights = primitives.dropout(weights, SEED, rate)
  return jnp.einsum("bhqs,bshk->bqhk", weights, value)


ATTENTION_SHAPES = [(3, 16, 2, 16), (2, 100, 3, 24), (1, 192, 1, 64)]
DROPOUT_AND_CAUSAL = [(0.0, False), (0.2, True), (0.2, False)]
# The first two shapes have one quick case each. All other cases are slow.
ATTENTION_CASES = [
  pytest.param(s, *r, marks=[] if i == j < 2 else [pytest.mark.slow])
  for i, s in enumerate(ATTENTION_SHAPES)
  for j, r in enumerate(DROPOUT_AND_CAUSAL)
]


@pytest.mark.parametrize("shape,rate,causal", ATTENTION_CASES)
def test_attention_of_packed_and_padded_rows_equals_the_formula(
  shape, rate, causal
):
  batch_size, length, num_heads, head_dim = shape
  qkv, output_gradient, bias = random_arrays(
    (batch_size, length, num_heads, 3, head_dim),
    shape,
    (num_heads, 3, head_dim),
  )
  ids = np.ones((batch_size, length), np.int32)
  ids[0, length // 3 :] = 2
  ids[0, -3:] = 0
  # Row 1 is all padding; its outputs must be finite.
  ids[1:2] = 0

  def run_kernel(qkv, bias):
    return fused_attention.attention(qkv, bias, ids, SEED, rate, causal, True)

  def run_formula(qkv, bias):
    return attention_by_formula(qkv, bias, ids, rate, causal)

  assert_same_function(run_kernel, run_formula, (qkv, bias), output_gradient)


@pytest.mark.parametrize("queries_per_block", [16, 32])
def test_one_kernel_computes_all_gradients_of_a_row_of_one_block(
  monkeypatch, queries_per_block
):
  monkeypatch.setattr(
    fused_attention, "ROW_TUNING", (queries_per_block, 32, 4, 1)
  )
  plans = []
  original_kernel = attention_kernels.row_kernel

  def row_kernel(*refs, plan):
    plans.append(plan)
    original_kernel(*refs, plan=plan)

  monkeypatch.setattr(attention_kernels, "row_kernel", row_kernel)
  test_attention_of_packed_and_padded_rows_equals_the_formula(
    (3, 24, 2, 24), 0.2, queries_per_block == 16
  )
  assert {(plan.queries_per_block, plan.num_blocks) for plan in plans} == {
    (queries_per_block, 1)
  }


def tpu_attention_of(qkv, bias, ids, rate, causal):
  """Runs the kernel for TPUs; the arguments are those of the formula."""
  *batch_and_length, num_heads, _, _ = qkv.shape
  return tpu_attention.attention(
    *(qkv[..., i, :].reshape(*batch_and_length, -1) for i in range(3)),
    jnp.swapaxes(bias, 0, 1).reshape(3, -1),
    ids,
    SEED,
    num_heads,
    rate,
    causal,
    True,
  ).reshape(*batch_and_length, num_heads, -1)


# With the second shape, one program computes two groups of two heads. With the
# third shape, there are three blocks of queries. With the last shape, two
# programs compute a row.
@pytest.mark.parametrize(
  "shape,rate,causal",
  [
    ((2, 100, 3, 24), 0.0, False),
    ((2, 24, 4, 64), 0.2, True),
    ((2, 384, 1, 64), 0.2, True),
    ((1, 512, 4, 64), 0.2, False),
  ],
)
def test_attention_for_tpus_equals_the_formula(shape, rate, causal):
  batch_size, length, num_heads, head_dim = shape
  qkv, output_gradient, bias = random_arrays(
    (batch_size, length, num_heads, 3, head_dim),
    shape,
    (num_heads, 3, head_dim),
  )
  ids = np.ones((batch_size, length), np.int32)
  ids[0, length // 3 :] = 2
  ids[0, -3:] = 0
  ids[1:] = 0

  def run_kernel(qkv, bias):
    return tpu_attention_of(qkv, bias, jnp.asarray(ids), rate, causal)

  def run_formula(qkv, bias):
    return attention_by_formula(qkv, bias, ids, rate, causal)

  assert_same_function(run_kernel, run_formula, (qkv, bias), output_gradient)


def test_attention_for_tpus_refuses_long_rows():
  long_rows = jnp.zeros((1, 513, 1, 3, 8))
  with pytest.raises(ValueError, match="512 tokens, and this row has 513"):
    tpu_attention_of(long_rows, jnp.zeros((1, 3, 8)), None, 0.0, False)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_of_attention_for_tpus_keeps_the_elements_of_the_formula(rate):
  first_hashes = fused.first_hashes(SEED, 2)[:, None, None]
  indices = np.arange(64, dtype=np.uint32)[None, :, None]
  row = fused.row_hashes(first_hashes, indices)
  column = fused.column_hashes(np.arange(256, dtype=np.uint32)[None, None])
  is_kept = tpu_attention.keep_mask(
    row.astype(jnp.int32), jnp.asarray(column.astype(np.int32)), rate
  )
  expected_mask = fused.keep_mask(row, jnp.asarray(column), rate)
  np.testing.assert_array_equal(is_kept, expected_mask)
  assert abs(float(is_kept.mean()) - (1 - rate)) < 0.01


@pytest.mark.parametrize(
  "num_heads,head_dim,length,expected_group_size,expected_heads_per_program",
  [
    (12, 64, 128, 2, 12),
    (12, 64, 256, 2, 4),
    (12, 64, 512, 2, 2),
    (16, 64, 128, 2, 16),
    (3, 64, 512, 1, 3),
    (8, 128, 512, 1, 1),
    (2, 16, 128, 1, 2),
    (8, 16, 512, 8, 8),
    (12, 26, 512, 1, 12),
    (8, 96, 512, 1, 4),
  ],
)
def test_programs_of_attention_for_tpus_read_whole_registers(
  num_heads, head_dim, length, expected_group_size, expected_heads_per_program
):
  assert tpu_attention.group_size(num_heads, head_dim) == expected_group_size
  heads_per_program = tpu_attention.heads_of_program(
    num_heads, head_dim, length
  )
  assert heads_per_program == expected_heads_per_program
  # The heads of one program form groups of the same size as all heads.
  assert (
    tpu_attention.group_size(heads_per_program, head_dim) == expected_group_size
  )


def test_gelu_of_kernels_and_its_derivative_equal_the_exact_gelu():
  """In float32, the error of the kernels' formula is about 2e-7 times x."""
  x = np.linspace(-12, 12, 10_001)
  probability = 0.5 * np.array([math.erfc(-v / math.sqrt(2)) for v in x])
  expected_derivative = probability + x * np.exp(-0.5 * x * x) / math.sqrt(
    2 * math.pi
  )
  x_float32 = jnp.asarray(x, jnp.float32)
  bound = 3e-7 * np.maximum(np.abs(x), 1.0)
  assert (
    np.abs(fused_activation.gelu(x_float32) - x * probability) < bound
  ).all()
  derivative = fused_activation.gelu_derivative(x_float32)
  assert (np.abs(derivative - expected_derivative) < bound).all()


def test_gelu_new_of_kernels_and_its_derivative_equal_the_tanh_form():
  """The expected numbers are in double precision."""
  x = np.linspace(-30, 30, 10_001)
  tanh_argument = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
  factor = 0.5 * (1 + np.tanh(tanh_argument))
  slope_of_argument = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
  expected_derivative = (
    factor
    + 0.5
    * x
    * slope_of_argument
    / np.cosh(np.clip(tanh_argument, -300, 300)) ** 2
  )
  x_float32 = jnp.asarray(x, jnp.float32)
  bound = 3e-7 * np.maximum(np.abs(x), 1.0)
  assert (
    np.abs(fused_activation.gelu_new(x_float32) - x * factor) < bound
  ).all()
  derivative = fused_activation.gelu_new_derivative(x_float32)
  assert (np.abs(derivative - expected_derivative) < 4e-7).all()


def run_all_kernels(x, y, qkv, mlp_inputs, sequence_ids):
  """Runs each kernel once, with dropout; returns the sum of squared outputs."""
  width, (_, _, num_heads, _, head_dim) = x.shape[-1], qkv.shape
  vector = jnp.linspace(0.5, 1.5, width)
  norm_output, _ = fused_norm.add_norm(
    x, y, vector, vector, vector, SEED, 0.1, 1e-5, True
  )
  attention_bias = jnp.linspace(-1, 1, num_heads * 3 * head_dim).reshape(
    num_heads, 3, head_dim
  )
  attention_output = fused_attention.attention(
    qkv, attention_bias, sequence_ids, SEED, 0.1, False, True
  )
  tpu_attention_output = tpu_attention_of(
    qkv, attention_bias, sequence_ids, 0.1, False
  )
  gelu_functions = fused_activation.function_and_derivative(
    "gelu", layers.activation("gelu")
  )
  mlp_bias = jnp.linspace(-1, 1, mlp_inputs.shape[-1])
  activation_output = fused_activation.bias_activation(
    mlp_inputs, mlp_bias, *gelu_functions, True
  )
  return (
    (norm_output**2).sum()
    + (attention_output**2).sum()
    + (tpu_attention_output**2).sum()
    + (activation_output**2).sum()
  )


def compare_on_a_mesh():
  """Compares gradients on a mesh of 2 x 2 x 2 devices with those of no mesh."""
  from bert_jax.devices import sharding

  shapes = (8, 4, 32), (8, 4, 32), (8, 4, 2, 3, 16), (8, 4, 64)
  arrays, ids = (
    random_arrays(*shapes),
    jnp.ones((8, 4), jnp.int32).at[:, 3].set(0),
  )
  grad = jax.value_and_grad(run_all_kernels, argnums=(0, 1, 2, 3))
  results_without_mesh = jax.jit(grad)(*arrays, ids)
  with sharding.use_mesh(sharding.make_mesh(data=2, fsdp=2, tensor=2)):
    results_with_mesh = jax.jit(lambda *a: grad(*a))(*arrays, ids)
  assert_close(results_without_mesh, results_with_mesh)


@pytest.mark.slow
def test_kernels_give_the_same_gradients_on_a_mesh():
  folder = pathlib.Path(__file__).parent
  paths = [str(folder), str(folder.parent), os.environ.get("PYTHONPATH", "")]
  environment = os.environ | {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    "PYTHONPATH": os.pathsep.join(paths),
  }
  code = "import test_fused; test_fused.compare_on_a_mesh()"
  subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def lowered_text(function, *shapes):
  arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
  gpu = jax.sharding.AbstractDevice("NVIDIA H100", 132, "gpu")
  mesh = jax.sharding.AbstractMesh((), (), abstract_device=gpu)
  with jax.sharding.use_abstract_mesh(mesh):
    traced = jax.jit(jax.grad(function)).trace(*arrays)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_kernels_lower_for_a_gpu(dtype):
  """The kernels pass those steps of the compiler that need no GPU."""

  def total(function):
    return lambda x, *rest: function(x, *rest).astype(jnp.float32).sum()

  vector = ((96,), "float32")
  text = lowered_text(
    total(lambda x, v: fused_norm.add_norm(x, x, v, v, v, SEED, 0.1, 1e-5)[0]),
    ((2, 128, 96), dtype),
    vector,
  )
  assert text.count("triton") >= 2
  text = lowered_text(
    total(
      lambda x, v: fused_activation.bias_activation(
        x, v, fused_activation.gelu, fused_activation.gelu_derivative
      )
    ),
    ((2, 128, 96), dtype),
    vector,
  )
  assert "triton" in text
  for length, num_kernels in ((200, 3), (20, 2)):
    ids = jnp.ones((2, length), jnp.int32)
    text = lowered_text(
      total(lambda x, v, i=ids: fused_attention.attention(x, v, i, SEED, 0.1)),
      ((2, length, 2, 3, 64), dtype),
      ((2, 3, 64), "float32"),
    )
    assert text.count("triton") >= num_kernels
