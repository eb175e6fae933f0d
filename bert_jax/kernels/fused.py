"""Parts that all kernels share: random bits, shards, choice by platform."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int, UInt32

Axes = tuple[str | None, ...]
GOLDEN = 0x9E3779B1  # The golden ratio of 32 bits.

CHOICES = {
  "attention": ("xla", "cudnn", "triton", "tpu"),
  "elementwise": ("xla", "triton"),
  "products": ("dtype", "fp8"),
}


def device() -> Any:
  """Returns the device of the mesh in use, or the first one without a mesh.

  It has `platform` and `device_kind`. A program for a TPU or a GPU may be
  compiled on a machine that has none.
  """
  abstract = jax.sharding.get_abstract_mesh().abstract_device
  return jax.devices()[0] if abstract is None else abstract


def on_gpu() -> bool:
  return device().platform in ("gpu", "cuda")


def implementation(kind: str, name: str, dtype: jnp.dtype) -> str:
  """Chooses the implementation of a part of a layer.

  Args:
    kind: a key of `CHOICES`.
    name: one of its values, or "auto" for the kernels that are written for the
      platform of the mesh in use (without a mesh, of the first device), if any.
    dtype: dtype of the computation. The kernels are fast in 16 bits only, so
      "auto" chooses no kernel for wider numbers.

  Raises:
    ValueError: an unknown name, or kernels of another platform.
  """
  if name != "auto" and name not in CHOICES[kind]:
    raise ValueError(
      f"model.{kind}={name!r}: not one of auto, {', '.join(CHOICES[kind])}."
    )
  if kind == "products":
    return "dtype" if name == "auto" else name
  if name == "auto":
    fast = on_gpu() and jnp.dtype(dtype).itemsize == 2
    return "triton" if fast else "xla"
  kind_of_device = device().device_kind
  if name == "tpu":
    # Before version 4 their matrix units lack some products of kernels.
    fits = kind_of_device.startswith("TPU") and kind_of_device[5:6] not in "23"
    needs = "TPUs from v4 on"
  else:
    fits, needs = name == "xla" or on_gpu(), "GPUs of NVIDIA"
  if not fits:
    raise ValueError(
      f"model.{kind}={name!r} runs on {needs}, this is {kind_of_device!r};"
      f" leave model.{kind}='auto'."
    )
  return name


def mix(x: Array) -> Array:
  """A bijection on 32 bits with full avalanche ("lowbias32", C. Wellons)."""
  x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
  return x ^ (x >> 16)


def first_hashes(words: Sequence[Array], count: int) -> Array:
  """uint32 [count]: of the key, uint32 [2], and places on the first axis."""
  first = jnp.arange(count, dtype=jnp.uint32)
  return mix(mix(first + words[0]) ^ words[1])


def row_hashes(first: Array, place: Array) -> Array:
  """A hash of the key and of all places but the last.

  Args:
    first: a result of `first_hashes`.
    place: on the axes between the first and the last, flattened: uint32, a jax
      or numpy array, below 2**31.
  """
  return mix(first + mix(place * np.uint32(2) + np.uint32(GOLDEN)))


def column_hashes(place: Array) -> Array:
  """A hash of places on the last axis, whatever the key.

  Args:
    place: uint32, a jax or numpy array.
  """
  x = place * np.uint32(GOLDEN) + np.uint32(GOLDEN)
  return x ^ (x >> 15)


def bits(row: Array, column: Array) -> Array:
  """uint32 random bits, of which the lowest are the worst.

  A product and a sum an element: strongly universal hashing (Dietzfelbinger
  1996), whose two numbers a row are both made of its hash. Good for comparing
  with a threshold: pairs, rectangles of four, and sums over rows and columns
  are as those of independent draws (tests/models/test_layers.py).

  Args:
    row: a result of `row_hashes`.
    column: a result of `column_hashes`.
  """
  factor = row | np.uint32(1)
  return column * factor + row * factor


def threshold(rate: float) -> np.uint32:
  """Elements whose bits are below it are dropped."""
  return np.uint32(round(rate * 2**32))


def kept(row: Array, column: Array, rate: float) -> Array:
  """True for the elements that dropout keeps; see `bits`."""
  return bits(row, column) >= threshold(rate)


def _instruction(asm: str, x: Array) -> Array:
  """An instruction of the GPU on each float32."""
  (y,) = triton.elementwise_inline_asm(
    f"{asm} $0, $1;",
    args=[x],
    constraints="=f,f",
    pack=1,
    result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, jnp.float32)],
  )
  return y


def exp2(x: Float[Array, "..."], plain: bool) -> Float[Array, "..."]:
  """2**x in a kernel, to 2 units in the last place; 0 below 2**-126.

  Results so small cost three instructions more. `plain` is for the interpreter,
  which knows no instructions.
  """
  return jnp.exp2(x) if plain else _instruction("ex2.approx.ftz.f32", x)


def reciprocal(x: Float[Array, "..."], plain: bool) -> Float[Array, "..."]:
  """1 / x in a kernel, to a unit in the last place; of x from 1 to 2**126."""
  return 1.0 / x if plain else _instruction("rcp.approx.ftz.f32", x)


def no_gradient(x: UInt32[Array, "..."] | Int[Array, "..."]) -> np.ndarray:
  """The cotangent of an integer array."""
  return np.zeros(x.shape, jax.dtypes.float0)


def over_shards(
  kernel: Callable[..., Any],
  in_axes: Sequence[Axes],
  out_axes: Sequence[Axes],
  *arrays: Array,
) -> Any:
  """Runs a kernel on each device's part of its arguments.

  The partitioner does not look into a kernel.

  Args:
    kernel: (*parts) -> tuple.
    in_axes: logical axes of each of `arrays`.
    out_axes: logical axes of each result.
    *arrays: whole arrays.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return kernel(*arrays)
  specs = [nn.logical_to_mesh_axes(axes) for axes in (*in_axes, *out_axes)]
  return jax.shard_map(
    kernel,
    mesh=mesh,
    in_specs=tuple(specs[: len(in_axes)]),
    out_specs=tuple(specs[len(in_axes) :]),
    check_vma=False,
  )(*arrays)


def dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
  """A float32 product of two matrices; of float32 without a shortcut."""
  exact = a.dtype == jnp.float32
  return jax.lax.dot_general(
    a,
    b,
    (((contract[0],), (contract[1],)), ((), ())),
    precision=jax.lax.Precision.HIGHEST if exact else None,
    preferred_element_type=jnp.float32,
  )


def fewer_rows(x: Float[Array, "n ..."]) -> Float[Array, "m ..."]:
  """Sums of groups of rows, at most 32 of them; of few rows, the rows.

  The compiler gives a processor some columns and all their rows: over a
  thousand rows of few columns most processors have nothing to do.
  """
  count = len(x)
  groups = math.gcd(count, 32)
  if count <= 2 * 132 or groups == 1:
    return x
  sums = x.reshape(groups, count // groups, *x.shape[1:]).sum(1)
  return jax.lax.optimization_barrier(sums)  # Not to be made one sum again.


def power_of_2(size: int, least: int = 1) -> int:
  """The smallest power of 2 that is not below `size` nor `least`."""
  return max(least, 1 << (size - 1).bit_length())
