"""Dropout and the float32 product, as operations with their own derivatives.

Derivatives by jax would cost more: dropout would save a mask of its input's
size, and the gradients of the product would be products of float32 arrays.
`jax.custom_vjp` avoids both costs, but it refuses forward-mode derivatives. So
each operation is a primitive of jax, with a rule for each transformation:

  jvp          `jax.jvp`, `jax.jacfwd`, and the first half of `jax.grad`
  transpose    the second half of `jax.grad`
  batching     `jax.vmap`

The rules consist of these primitives and of jax's own operations. So second
derivatives need no further rules.
"""

import functools
import math
import string
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float, UInt32

from bert_jax.kernels import fused


def dropout_bits(seed: UInt32[Array, "2"], shape: tuple[int, ...]) -> Array:
  """Returns random uint32 bits: for each element a hash of seed and index.

  The bits of an element depend only on its global index. So the compiler can
  fuse this function into the operation that reads the bits, each device
  computes the bits of its shard, and every mesh gives the same bits. Only the
  hashes of the first axis depend on the seed; the hashes of the other axes
  are constants.

  Args:
    seed: the output of `layers.dropout_seed`.
    shape: the shape of the bits.

  Raises:
    ValueError: a row is too large: the last axis, or the axes between the first
      and the last together, have over 2**31 indices.
  """
  *leading_sizes, num_columns = shape
  if max(math.prod(leading_sizes[1:]), num_columns) > 2**31:
    raise ValueError(f"dropout over {shape}: a row has over 2**31 elements.")
  first_size, *middle_sizes = leading_sizes or [1]
  hashes = fused.first_hashes(seed, first_size).reshape(
    first_size, *(1 for _ in leading_sizes)
  )
  indices = np.arange(math.prod(middle_sizes), dtype=np.uint32)
  indices = indices.reshape(*(1 for _ in leading_sizes[:1]), *middle_sizes, 1)
  hashes = fused.row_hashes(hashes, indices)
  column_hashes = fused.column_hashes(np.arange(num_columns, dtype=np.uint32))
  column_hashes = column_hashes.reshape(*(1 for _ in hashes.shape[1:]), -1)
  return fused.random_bits(hashes, column_hashes).reshape(shape)


def dropout(
  x: Float[Array, "..."], seed: UInt32[Array, "2"], rate: float
) -> Array:
  """Sets elements to 0 with probability `rate`, and scales all other elements.

  Dropout is a linear function of `x`, and is its own transpose. The derivatives
  compute the bits again from the seed, so the forward pass saves only the seed.

  Args:
    x: an array of any shape and float dtype.
    seed: the seed of `dropout_bits`.
    rate: the probability, in (0, 1).
  """
  return cast(Array, _dropout_primitive.bind(x, seed, rate=rate, seed_axes=()))


def _apply_dropout(
  x: Array, seed: Array, *, rate: float, seed_axes: tuple[int | None, ...]
) -> Array:
  """Computes the primitive of `dropout`.

  Args:
    x: an array with a leading axis for each entry of `seed_axes`, and then the
      axes of the array of `dropout`.
    seed: a seed with a leading axis for each 0 in `seed_axes`.
    rate: the rate of `dropout`.
    seed_axes: an entry for each `jax.vmap` around the call, the outermost
      first: 0 if each index of this `jax.vmap` has a seed, None if all indices
      share a seed.
  """

  def drop_elements(x: Array, seed: Array) -> Array:
    is_kept = dropout_bits(seed, x.shape) >= fused.drop_threshold(rate)
    return jnp.where(is_kept, x * (1.0 / (1.0 - rate)), 0).astype(x.dtype)

  for seed_axis in reversed(seed_axes):
    drop_elements = jax.vmap(drop_elements, (0, seed_axis))
  return drop_elements(x, seed)


def _shape_of_dropout(x: Any, seed: Any, **options: Any) -> Any:
  return x.update(weak_type=False)


def _transpose_dropout(
  gradient: Any, x: Any, seed: Array, **options: Any
) -> tuple[Any, None]:
  if type(gradient) is ad.Zero:
    return ad.Zero(x.aval), None
  return _dropout_primitive.bind(gradient, seed, **options), None


def _batch_dropout(
  arrays: tuple[Array, Array],
  axes: tuple[Any, Any],
  *,
  rate: float,
  seed_axes: tuple[int | None, ...],
) -> tuple[Array, int]:
  (x, seed), (x_axis, seed_axis) = arrays, axes
  if seed_axis is not None:
    seed = jnp.moveaxis(seed, seed_axis, 0)
    seed_axis = 0
  if x_axis is None:
    x = jnp.broadcast_to(x[None], (len(seed), *x.shape))
  else:
    x = jnp.moveaxis(x, x_axis, 0)
  return _dropout_primitive.bind(
    x, seed, rate=rate, seed_axes=(seed_axis, *seed_axes)
  ), 0


_dropout_primitive = Primitive("dropout")
_dropout_primitive.def_impl(
  jax.jit(_apply_dropout, static_argnames=("rate", "seed_axes"))
)
_dropout_primitive.def_abstract_eval(_shape_of_dropout)
mlir.register_lowering(
  _dropout_primitive, mlir.lower_fun(_apply_dropout, multiple_results=False)
)
ad.defjvp(
  _dropout_primitive,
  lambda tangent, x, seed, **options: _dropout_primitive.bind(
    tangent, seed, **options
  ),
  None,
)
ad.primitive_transposes[_dropout_primitive] = _transpose_dropout
batching.primitive_batchers[_dropout_primitive] = _batch_dropout


def float32_einsum(spec: str, a: Array, b: Array) -> Float[Array, "..."]:
  """Multiplies two arrays of one dtype; the sums and the result are float32.

  The backward pass rounds the gradient to the dtype of the inputs before it
  multiplies, as all other products do. Otherwise the gradient would stay in
  float32, and the products with it would be slower.

  Args:
    spec: the equation, as for `jnp.einsum`, with letters for all axes.
    a: the first array.
    b: the second array.
  """
  if a.dtype == b.dtype == jnp.float32:
    # There is nothing to round, so jax's rules for einsum suffice.
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)
  precision = jax.config.values["jax_default_matmul_precision"]
  y = _product_primitive.bind(a, b, spec=spec, precision=precision)
  return cast(Array, y)


def _compute_product(
  a: Array, b: Array, *, spec: str, precision: str | None
) -> Array:
  return jnp.einsum(
    spec, a, b, precision=precision, preferred_element_type=jnp.float32
  )


def _shape_of_product(a: Any, b: Any, **options: Any) -> Any:
  return jax.make_jaxpr(functools.partial(_compute_product, **options))(
    a, b
  ).out_avals[0]


def _transpose_product(
  gradient: Any, a: Any, b: Any, *, spec: str, precision: str | None
) -> tuple[Any, Any]:
  is_linear_in_a = ad.is_undefined_primal(a)
  linear_operand = a if is_linear_in_a else b
  if type(gradient) is ad.Zero:
    operand_gradient = ad.Zero(linear_operand.aval)
  else:
    einsum = functools.partial(jnp.einsum, spec, precision=precision)
    (operand_gradient,) = jax.linear_transpose(
      (lambda a: einsum(a, b)) if is_linear_in_a else (lambda b: einsum(a, b)),
      linear_operand.aval,
    )(gradient.astype(linear_operand.aval.dtype))
  if is_linear_in_a:
    return operand_gradient, None
  return None, operand_gradient


def _batch_product(
  arrays: tuple[Array, Array],
  axes: tuple[Any, Any],
  *,
  spec: str,
  precision: str | None,
) -> tuple[Array, int]:
  new_letter = next(
    letter for letter in string.ascii_letters if letter not in spec
  )
  inputs, output = spec.split("->")
  operands, input_letters = [], []
  for array, axis, letters in zip(arrays, axes, inputs.split(","), strict=True):
    is_mapped = axis is not None
    operands.append(jnp.moveaxis(array, axis, 0) if is_mapped else array)
    input_letters.append(new_letter + letters if is_mapped else letters)
  spec = f"{','.join(input_letters)}->{new_letter}{output}"
  return _product_primitive.bind(*operands, spec=spec, precision=precision), 0


_product_primitive = Primitive("float32_product")
_product_primitive.def_impl(
  jax.jit(_compute_product, static_argnames=("spec", "precision"))
)
_product_primitive.def_abstract_eval(_shape_of_product)
mlir.register_lowering(
  _product_primitive, mlir.lower_fun(_compute_product, multiple_results=False)
)
ad.defjvp(
  _product_primitive,
  lambda tangent, a, b, **options: _product_primitive.bind(
    tangent, b, **options
  ),
  lambda tangent, a, b, **options: _product_primitive.bind(
    a, tangent, **options
  ),
)
ad.primitive_transposes[_product_primitive] = _transpose_product
batching.primitive_batchers[_product_primitive] = _batch_product
