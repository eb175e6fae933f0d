"""Counts what the Pallas kernels of a traced program compute and move.

A TPU's compiler gives no estimate for a Pallas kernel. `tpu_cycles.py` makes an
estimate from the counts of this file.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax

# A vector register of a TPU holds this many rows and columns of 32-bit numbers,
# and arrays in memory are padded to whole blocks of this shape.
REGISTER_ROWS, REGISTER_COLUMNS = 8, 128
# Operations that move or name values, but do not compute.
_FREE_OPERATIONS = {
  *("get", "swap", "broadcast_in_dim", "reshape", "squeeze", "iota"),
  *("convert_element_type", "bitcast_convert_type", "program_id", "copy"),
  *("slice", "stop_gradient", "multiple_of", "expand_dims"),
}
# Operations of the unit for transcendental functions.
_TRANSCENDENTAL_OPERATIONS = {
  *("exp", "exp2", "log", "log1p", "logistic", "tanh", "erf", "rsqrt"),
  *("sqrt", "sin", "cos", "pow", "expm1"),
}


@dataclasses.dataclass(frozen=True)
class KernelOperations:
  """Holds what one call of a kernel does on one device.

  Attributes:
    name: the kernel's name.
    output_bytes: the bytes of the call's outputs, without padding.
    products: (rows, depth, columns, count) of each matrix product in a program
      of the kernel's grid; the program computes the product `count` times.
    num_vector_operations: the number of operations on vector registers in a
      program of the grid. A register holds 1,024 numbers of 32 bits.
    num_transcendental_operations: how many of these operations need the unit
      for transcendental functions.
    num_programs: the number of programs of the grid.
    is_independent: True if the programs may run on several cores.
    bytes: the bytes that a call reads and writes, with padding.
  """

  name: str
  output_bytes: int
  products: tuple[tuple[int, int, int, int], ...]
  num_vector_operations: int
  num_transcendental_operations: int
  num_programs: int
  is_independent: bool
  bytes: int


def padded_bytes(shape: tuple[int, ...], itemsize: int) -> int:
  """Returns the bytes of an array in a TPU's memory, with padding.

  The last axis is padded to a multiple of 128. The axis before it is padded
  to a multiple of 8 for 32-bit numbers, and of 16 for 16-bit numbers, except if
  its size is 1.
  """
  *outer_sizes, num_rows, num_columns = (1, 1, *shape)
  row_multiple = REGISTER_ROWS * max(4 // itemsize, 1)
  if num_rows > 1:
    num_rows = -(-num_rows // row_multiple) * row_multiple
  return (
    math.prod(outer_sizes)
    * num_rows
    * -(-num_columns // REGISTER_COLUMNS)
    * REGISTER_COLUMNS
    * itemsize
  )


def num_registers(shape: tuple[int, ...]) -> int:
  """Returns how many vector registers hold an array of 32-bit numbers."""
  *outer_sizes, num_rows, num_columns = (1, 1, *shape)
  return (
    math.prod(outer_sizes)
    * -(-num_rows // REGISTER_ROWS)
    * -(-num_columns // REGISTER_COLUMNS)
  )


def _inner_jaxprs(equation: Any) -> list[Any]:
  """Returns the jaxprs among the parameters of an equation."""
  values: list[Any] = []
  for value in equation.params.values():
    values += value if isinstance(value, (tuple, list)) else [value]
  jaxprs = [getattr(value, "jaxpr", value) for value in values]
  return [jaxpr for jaxpr in jaxprs if hasattr(jaxpr, "eqns")]


def _equations(jaxpr: Any, num_runs: int = 1) -> Iterator[tuple[Any, int]]:
  """Yields each equation and how often it runs; enters no `pallas_call`."""
  for equation in jaxpr.eqns:
    yield equation, num_runs
    if equation.primitive.name != "pallas_call":
      num_trips = equation.params["length"] if _is_scan(equation) else 1
      for inner_jaxpr in _inner_jaxprs(equation):
        yield from _equations(inner_jaxpr, num_runs * num_trips)


def _is_scan(equation: Any) -> bool:
  return bool(equation.primitive.name == "scan")


def _product_sizes(equation: Any, num_runs: int) -> tuple[int, int, int, int]:
  """Returns an entry of `KernelOperations.products`."""
  left_shape, right_shape = (
    variable.aval.shape for variable in equation.invars
  )
  (depth_axes, _), (batch_axes, _) = equation.params["dimension_numbers"]
  depth = math.prod(left_shape[axis] for axis in depth_axes)
  batch_size = math.prod(left_shape[axis] for axis in batch_axes)
  num_rows = math.prod(left_shape) // (depth * batch_size)
  return (
    num_rows,
    depth,
    math.prod(right_shape) // (depth * batch_size),
    num_runs * batch_size,
  )


def _count_operations(call: Any) -> KernelOperations:
  """Counts the operations of a `pallas_call` equation."""
  products, num_vector_operations, num_transcendental_operations = [], 0, 0
  for equation, num_runs in _equations(call.params["jaxpr"]):
    name = equation.primitive.name
    if name == "dot_general":
      products.append(_product_sizes(equation, num_runs))
    elif name not in _FREE_OPERATIONS and not _inner_jaxprs(equation):
      arrays = (*equation.outvars, *equation.invars)
      # A reduction computes with each element of its input, and any other
      # operation with each element of its output.
      is_reduction = name.startswith(("reduce", "arg", "cum"))
      shapes = [
        variable.aval.shape
        for variable in arrays
        if hasattr(variable.aval, "shape")
      ]
      shape = max(shapes, key=math.prod) if is_reduction else shapes[0]
      if shape:
        num_vector_operations += num_runs * num_registers(shape)
        num_transcendental_operations += (
          num_runs * num_registers(shape)
          if name in _TRANSCENDENTAL_OPERATIONS
          else 0
        )
  outputs = [variable.aval for variable in call.outvars]
  dimension_semantics = getattr(
    call.params["compiler_params"], "dimension_semantics", ()
  )
  all_arrays = [*outputs, *(variable.aval for variable in call.invars)]
  return KernelOperations(
    name=_kernel_name(call),
    output_bytes=sum(output.size * output.dtype.itemsize for output in outputs),
    products=tuple(products),
    num_vector_operations=num_vector_operations,
    num_transcendental_operations=num_transcendental_operations,
    num_programs=math.prod(call.params["grid_mapping"].grid),
    is_independent="parallel" in map(str, dimension_semantics or ()),
    bytes=sum(
      padded_bytes(array.shape, array.dtype.itemsize) for array in all_arrays
    ),
  )


def _kernel_name(call: Any) -> str:
  """Returns the name of a kernel, as `pallas_call` got it."""
  name_or_info = call.params.get("name_and_src_info", call.params.get("name"))
  return str(getattr(name_or_info, "name", name_or_info))


def count_kernel_operations(
  traced: jax.stages.Traced,
) -> list[KernelOperations]:
  """Counts the operations of each call of a Pallas kernel in a program.

  Args:
    traced: a function that was traced for its arguments, from `jax.jit`.

  Returns:
    The operations of each call in the function's text, in order. Equal calls
    are listed separately, but a call in a loop is listed once.
  """
  return [
    _count_operations(equation)
    for equation, _ in _equations(traced.jaxpr.jaxpr)
    if equation.primitive.name == "pallas_call"
  ]
