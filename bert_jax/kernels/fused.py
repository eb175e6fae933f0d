"""Functions that all kernels share: random bits, shards, choice by platform."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, UInt32

Axes = tuple[str | None, ...]
# An array of a device, or a constant of a program.
Numbers = TypeVar("Numbers", Array, np.ndarray)
GOLDEN_RATIO_PRIME = 0x9E3779B1  # A prime near 2**32 / the golden ratio.

# Option of an encoder -> the names of implementations; "auto" is valid too.
IMPLEMENTATIONS = {
  "attention": ("xla", "cudnn", "triton", "tpu"),
  "elementwise": ("xla", "triton"),
  "products": ("dtype", "fp8"),
}


def device_in_use() -> Any:
  """Returns a device of the mesh in use; without a mesh, the first device.

  A program for a TPU or a GPU may be compiled on a machine without a TPU or a
  GPU. Then the device is abstract: it has only `platform` and `device_kind`.
  """
  abstract_device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.devices()[0] if abstract_device is None else abstract_device


def runs_on_gpu() -> bool:
  """Returns True if `device_in_use` is a GPU."""
  return device_in_use().platform in ("gpu", "cuda")


def runs_on_cpu() -> bool:
  """Returns True if `device_in_use` is a CPU."""
  return device_in_use().platform == "cpu"


def _runs_tpu_kernels() -> bool:
  """Returns True if `device_in_use` is a TPU from v4 on.

  The matrix units of TPU v2 and v3 lack some products of the kernels.
  """
  # The kind of a device is, for example, "TPU v3".
  device_kind = device_in_use().device_kind
  return device_kind.startswith("TPU") and device_kind[5:6] not in "23"


def choose_implementation(option: str, name: str, dtype: jnp.dtype) -> str:
  """Chooses the implementation for one of an encoder's options.

  "auto" chooses the fastest implementation for the platform of `device_in_use`:

    option       on a GPU in 16 bits  otherwise
    attention    triton               xla, but see `choose_attention`
    elementwise  triton               xla
    products     dtype                dtype

  Args:
    option: a key of `IMPLEMENTATIONS`.
    name: "auto", or one of the option's names in `IMPLEMENTATIONS`.
    dtype: the dtype of the computation. The kernels are fast in 16 bits only.

  Raises:
    ValueError: the name is unknown, or the implementation does not run on the
      device in use.
  """
  if name != "auto" and name not in IMPLEMENTATIONS[option]:
    raise ValueError(
      f"model.{option}={name!r} is not one of auto,"
      f" {', '.join(IMPLEMENTATIONS[option])}."
    )
  if option == "products":
    return "dtype" if name == "auto" else name
  if name == "auto":
    is_fast = runs_on_gpu() and jnp.dtype(dtype).itemsize == 2
    return "triton" if is_fast else "xla"
  device_kind = device_in_use().device_kind
  if name == "tpu":
    runs_here = _runs_tpu_kernels()
    needed_device = "TPUs from v4 on"
  else:
    runs_here, needed_device = name == "xla" or runs_on_gpu(), "GPUs of NVIDIA"
  if not runs_here:
    raise ValueError(
      f"model.{option}={name!r} runs on {needed_device}, but this device is"
      f" {device_kind!r}; set model.{option}='auto'."
    )
  return name


def choose_attention(
  name: str, dtype: jnp.dtype, length: int, heads: int, head_dim: int
) -> str:
  """Chooses the implementation of attention, for rows of a known length.

  This is `choose_implementation`, but "auto" also chooses the kernel for TPUs:
  from v4 on, in 16 bits, for rows of 128, 256, 384 or 512 tokens, if the heads
  of a device fill registers of 128 columns. By the compiler's estimate of
  a step and our estimate of the kernel, steps with such rows are faster with
  the kernel (docs/tpu.md).

  Args:
    name: "auto" or one of `IMPLEMENTATIONS["attention"]`.
    dtype: the dtype of the computation.
    length: the number of tokens of a row.
    heads: the number of heads, on all devices.
    head_dim: the width of a head.

  Raises:
    ValueError: see `choose_implementation`.
  """
  if name == "auto" and _runs_tpu_kernels():
    mesh = jax.sharding.get_abstract_mesh()
    num_columns = heads // mesh.shape.get("tensor", 1) * head_dim
    if (
      jnp.dtype(dtype).itemsize == 2
      and length in range(128, 513, 128)
      and num_columns % 128 == 0 == 128 % head_dim
    ):
      return "tpu"
  return choose_implementation("attention", name, dtype)


def hash_uint32(x: Numbers) -> Numbers:
  """Hashes uint32 numbers by "lowbias32" (C. Wellons).

  The hash is a bijection on 32 bits with full avalanche: each bit of `x`
  changes each bit of the output with a probability of about 1/2.
  """
  x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
  return x ^ (x >> 16)


def first_hashes(seed: UInt32[Array, "2"], count: int) -> Array:
  """Returns hashes, uint32 [count], of the seed and of each index 0, 1, ...

  Args:
    seed: the seed of the hashes; see `layers.dropout_seed`.
    count: the number of indices.
  """
  indices = jnp.arange(count, dtype=jnp.uint32)
  return hash_uint32(hash_uint32(indices + seed[0]) ^ seed[1])


def row_hashes(first: Array, index: Numbers) -> Array:
  """Returns hashes, uint32, of the seed and of indices on the first axes.

  The first axes are all axes except the last.

  Args:
    first: the output of `first_hashes`, which broadcasts with `index`.
    index: uint32 below 2**31: indices on the axes between the first and the
      last axis, as if these axes were flattened into one axis.
  """
  return hash_uint32(
    first + hash_uint32(index * np.uint32(2) + np.uint32(GOLDEN_RATIO_PRIME))
  )


def column_hashes(index: Numbers) -> Numbers:
  """Returns hashes, uint32, of indices on the last axis, but not of the seed.

  Args:
    index: the indices, uint32.
  """
  x = index * np.uint32(GOLDEN_RATIO_PRIME) + np.uint32(GOLDEN_RATIO_PRIME)
  return x ^ (x >> 15)


def random_bits(row: Array, column: Array | np.ndarray) -> Array:
  """Returns uint32 random bits; the lowest bits are the least random.

  Each element costs one product and one sum. This is strongly universal hashing
  (Dietzfelbinger 1996), with one difference: the factor and the summand of a
  row are not independent, but are both made from the row's hash. The bits are
  good for a comparison with a threshold. The results of comparisons are
  distributed as with independent draws: for two elements, for the four corners
  of a rectangle, and summed over rows and columns
  (tests/models/test_layers.py).

  Args:
    row: the output of `row_hashes`.
    column: the output of `column_hashes`, which broadcasts with `row`.
  """
  factor = row | np.uint32(1)
  return cast(Array, column * factor) + row * factor


def drop_threshold(rate: float) -> np.uint32:
  """Returns the number below which random bits make dropout drop an element."""
  return np.uint32(round(rate * 2**32))


def keep_mask(row: Array, column: Array, rate: float) -> Array:
  """Returns True for the elements that dropout keeps; see `random_bits`."""
  return random_bits(row, column) >= drop_threshold(rate)


def _apply_instruction(asm: str, x: Array) -> Array:
  """Applies an instruction of the GPU to each float32."""
  (y,) = triton.elementwise_inline_asm(
    f"{asm} $0, $1;",
    args=[x],
    constraints="=f,f",
    pack=1,
    result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, jnp.float32)],
  )
  return y


def exp2(x: Float[Array, "..."], in_interpreter: bool) -> Float[Array, "..."]:
  """Returns 2**x in a kernel, within 2 units in the last place.

  Results below 2**-126 become 0, because exact results would cost three more
  instructions.

  Args:
    x: float32.
    in_interpreter: True in the interpreter, which cannot run instructions of
      the GPU.
  """
  return (
    jnp.exp2(x)
    if in_interpreter
    else _apply_instruction("ex2.approx.ftz.f32", x)
  )


def reciprocal(
  x: Float[Array, "..."], in_interpreter: bool
) -> Float[Array, "..."]:
  """Returns 1 / x in a kernel, within 1 unit in the last place.

  Args:
    x: float32, from 1 to 2**126.
    in_interpreter: see `exp2`.
  """
  return (
    1.0 / x if in_interpreter else _apply_instruction("rcp.approx.ftz.f32", x)
  )


def zero_cotangent(x: Array) -> np.ndarray:
  """Returns the cotangent of an integer or boolean array."""
  return np.zeros(x.shape, jax.dtypes.float0)


def run_on_shards(
  kernel: Callable[..., Any],
  in_axes: Sequence[Axes],
  out_axes: Sequence[Axes],
  *arrays: Array,
) -> Any:
  """Runs a kernel on each device's shard of the arguments.

  XLA cannot split a kernel over devices by itself.

  Args:
    kernel: (*shards) -> a tuple of shards.
    in_axes: the logical axes of each argument.
    out_axes: the logical axes of each output.
    *arrays: the global arguments.

  Returns:
    A tuple of global arrays.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return kernel(*arrays)
  partition_specs = [
    nn.logical_to_mesh_axes(axes) for axes in (*in_axes, *out_axes)
  ]
  return jax.shard_map(
    kernel,
    mesh=mesh,
    in_specs=tuple(partition_specs[: len(in_axes)]),
    out_specs=tuple(partition_specs[len(in_axes) :]),
    check_vma=False,
  )(*arrays)


def dot(a: Array, b: Array, summed_axes: tuple[int, int]) -> Array:
  """Multiplies two matrices; the product is float32.

  Float32 matrices are multiplied without rounding them to fewer bits first.

  Args:
    a: the first matrix.
    b: the second matrix, in the dtype of `a`.
    summed_axes: the axes of `a` and of `b` that the product sums over.
  """
  is_float32 = a.dtype == jnp.float32
  return jax.lax.dot_general(
    a,
    b,
    (((summed_axes[0],), (summed_axes[1],)), ((), ())),
    precision=jax.lax.Precision.HIGHEST if is_float32 else None,
    preferred_element_type=jnp.float32,
  )


def sum_groups_of_rows(x: Float[Array, "n ..."]) -> Float[Array, "m ..."]:
  """Adds up groups of rows, so that at most 32 rows are left.

  The caller adds up the rows that are left. In a sum over all rows, the
  compiler gives each processor a few columns, with all of their rows. With a
  thousand rows and few columns, most of the processors would be idle. An array
  with few rows, or with an odd number of rows, is returned as it is.
  """
  num_rows = len(x)
  num_groups = math.gcd(num_rows, 32)
  # An H100 has 132 processors.
  if num_rows <= 2 * 132 or num_groups == 1:
    return x
  sums = x.reshape(num_groups, num_rows // num_groups, *x.shape[1:]).sum(1)
  # The barrier keeps the compiler from merging the two sums into one.
  return jax.lax.optimization_barrier(sums)


def next_power_of_2(size: int, minimum: int = 1) -> int:
  """Returns the smallest power of 2 that is at least `size` and `minimum`."""
  return max(minimum, 1 << (size - 1).bit_length())
