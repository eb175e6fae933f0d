"""Lets modules run on a mesh with explicit axes, which `jax.make_mesh` makes.

With explicit axes each array's type says how devices split it. jax refuses an
operation whose output could be split in several ways, such as the look-up of
ids in a table. With automatic axes the compiler chooses one of the ways. So a
module makes the axes automatic during a call, and explicit again in the outputs
of the call.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import flax.linen as nn
import jax
from flax.core import lift
from flax.linen import transforms
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard

Method = TypeVar("Method", bound=Callable[..., Any])
# The `PartitionSpec` of an array that no axis of the mesh splits.
UNSPLIT = PartitionSpec()


def accepted(**row_axes: int) -> Callable[[Method], Method]:
  """Decorates a method of a linen module, so that it accepts explicit axes.

  The mesh is that of the first array. The rows of each output are split over
  the same axes of the mesh as the rows of the first array. The parameters may
  be split in any way.

  The arguments of the method are bools and trees of arrays. The first axis of
  each array counts rows.

  Args:
    **row_axes: {key of a dict in the output: the axis that counts rows}, for
      outputs whose first axis does not count rows.
  """

  def as_explicit(output: Any, mesh: Any, row_axis: Any) -> Any:
    def with_sharding(path: Any, x: jax.Array) -> jax.Array:
      key = getattr(path[-1], "key", "") if path else ""
      partition_spec = PartitionSpec(*[None] * row_axes.get(key, 0), row_axis)
      return reshard(x, NamedSharding(mesh, partition_spec))

    return jax.tree_util.tree_map_with_path(with_sharding, output)

  def decorate(method: Method) -> Method:
    @functools.wraps(method)
    def call(self: nn.Module, *arguments: Any, **options: Any) -> Any:
      bool_options = {
        name: option
        for name, option in options.items()
        if isinstance(option, bool)
      }
      arrays = (
        arguments,
        {
          name: option
          for name, option in options.items()
          if name not in bool_options
        },
      )
      sharding = jax.typeof(jax.tree.leaves(arrays)[0]).sharding
      mesh = sharding.mesh
      if AxisType.Explicit not in mesh.axis_types:
        return method(self, *arguments, **options)
      row_axis = sharding.spec[0]
      if self.is_initializing():
        # The parameters do not depend on the ids. So no array is split here,
        # and no operation is refused. The parameters get explicit types.
        arguments, keyword_arrays = reshard(
          arrays, NamedSharding(mesh, UNSPLIT)
        )
        output = method(self, *arguments, **keyword_arrays, **bool_options)
      else:
        run = transforms.lift_transform(
          _with_automatic_axes,
          lambda self, arrays: method(
            self, *arrays[0], **arrays[1], **bool_options
          ),
          mesh=mesh,
          row_axis=row_axis,
        )
        output = run(self, arrays)
      return as_explicit(output, mesh, row_axis)

    return cast(Method, call)

  return decorate


def _with_automatic_axes(
  function: Callable[..., Any], *, mesh: Any, row_axis: Any
) -> Callable[..., Any]:
  """Wraps a function for Flax's `lift_transform`, to run with automatic axes.

  Args:
    function: (Flax scopes, arrays) -> output.
    mesh: the mesh, with explicit axes.
    row_axis: the mesh axis, or axes, that split the rows.
  """
  automatic_types = {
    name: AxisType.Auto
    for name, axis_type in zip(mesh.axis_names, mesh.axis_types, strict=True)
    if axis_type == AxisType.Explicit
  }
  # If there are no rules for logical axes, split activations by rows only.
  rules: Any = contextlib.nullcontext()
  if not nn.get_logical_axis_rules():
    rules = nn.logical_axis_rules((("batch", row_axis),))

  def run(
    scope_function: Callable[..., Any],
    repack: Callable[..., Any],
    variables: Any,
    keys: Any,
    arrays: Any,
  ) -> Any:
    with (
      jax.sharding.use_abstract_mesh(mesh.update_axis_types(automatic_types)),
      rules,
    ):
      # `reshard` changes only the types: the compiler need not move any array.
      variables, keys, arrays = reshard((variables, keys, arrays), UNSPLIT)
      scopes = scope_function(variables, keys)
      output = function(scopes, arrays)
    return output, repack(scopes)

  # `run` gets all variables and all keys, and gives no variables back.
  return lift.pack(
    run,
    in_variable_filters=(True,),
    out_variable_filters=(False,),
    rng_filters=(True,),
  )
