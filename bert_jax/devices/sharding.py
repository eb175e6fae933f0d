"""Makes meshes, and shards arrays by a table of rules for logical axes.

An array has logical axes, such as "heads". `AXIS_RULES` says which axes of the
mesh split each logical axis.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.messages import UserError

BatchShapes = dict[str, jax.ShapeDtypeStruct]
MESH_AXES = ("data", "fsdp", "tensor")

# Logical axis of a parameter or activation -> the mesh axes that split it.
AXIS_RULES: tuple[tuple[str, Any], ...] = (
  ("batch", ("data", "fsdp")),
  ("length", None),
  ("vocab", "tensor"),
  ("embed", "fsdp"),
  ("embed_out", "tensor"),
  ("embed_activation", None),
  ("heads", "tensor"),
  ("head_dim", None),
  ("mlp", "tensor"),
  ("norm", None),
  ("layers", None),
  ("layer_groups", None),
)
BATCH_SPEC = PartitionSpec(("data", "fsdp"))
# Logical axis of a parameter -> the config key that sets its size.
SIZE_KEYS = {
  "vocab": "model.vocab_size",
  "embed": "model.hidden",
  "embed_out": "model.hidden",
  "heads": "model.heads",
  "mlp": "model.mlp",
}


class JittedFunction(Protocol):
  """A function from `jax.jit` or from `jit`."""

  def __call__(self, *arguments: Any) -> Any:
    """Calls the function."""

  def lower(self, *arguments: Any) -> Any:
    """Returns the function lowered for arguments or shapes."""


def make_mesh(
  data: int = -1,
  fsdp: int = 1,
  tensor: int = 1,
  devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Makes the mesh over all devices of all processes.

  Args:
    data: the number of devices that split only the batch; -1 for the number of
      all devices divided by (`fsdp` times `tensor`).
    fsdp: the number of devices that split the batch and the parameters.
    tensor: the number of devices that split heads, MLP and vocabulary.
    devices: the devices; None means `jax.devices()`. To compile for a machine
      that is not here, pass its devices.

  Raises:
    UserError: the product of the sizes is not the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  num_devices = len(devices)
  if data == -1:
    data = num_devices // (fsdp * tensor)
  if data < 1 or data * fsdp * tensor != num_devices:
    raise UserError(
      f"mesh data={data} x fsdp={fsdp} x tensor={tensor} does not make up the"
      f" {num_devices} devices; the product must be {num_devices} (data=-1"
      " takes all remaining devices)."
    )
  # `jax.make_mesh` makes explicit axes by default, but Linen's constraints
  # refuse explicit axes.
  axis_types = (AxisType.Auto,) * len(MESH_AXES)
  shape = (data, fsdp, tensor)
  return jax.make_mesh(shape, MESH_AXES, axis_types=axis_types, devices=devices)


@contextlib.contextmanager
def use_mesh(mesh: Mesh) -> Iterator[None]:
  """Enters the mesh and the rules.

  If one of the two is missing, the constraints in the models have no effect.
  """
  with jax.set_mesh(mesh), nn.logical_axis_rules(AXIS_RULES):
    yield


def with_shardings(mesh: Mesh, boxed: Any) -> Any:
  """Returns shapes and dtypes, with shardings by the rules for logical axes.

  Args:
    mesh: the mesh.
    boxed: arrays or their shapes, boxed with logical axis names, as
      `jax.eval_shape` of a linen `init` gives.

  Returns:
    A tree of `jax.ShapeDtypeStruct` with the structure of the unboxed tree.
  """
  axes = nn.get_partition_spec(boxed)
  shardings = nn.logical_to_mesh_sharding(axes, mesh, AXIS_RULES)
  # Build the tree from its leaves, because `nn.unbox` inside a mesh would
  # constrain arrays, and these leaves are only shapes.
  return jax.tree.unflatten(
    jax.tree.structure(shardings),
    [
      jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
      for x, sharding in zip(
        jax.tree.leaves(boxed), jax.tree.leaves(shardings), strict=True
      )
    ],
  )


def check_parameter_sizes(mesh: Mesh, boxed: Any) -> None:
  """Raises UserError unless the mesh splits every parameter evenly.

  Otherwise XLA would silently put the whole parameter on every device.

  Args:
    mesh: the mesh.
    boxed: parameters or their shapes, boxed with logical axis names.
  """
  rules = dict(AXIS_RULES)
  leaves = jax.tree_util.tree_leaves_with_path(
    boxed, is_leaf=lambda x: hasattr(x, "names")
  )
  for path, leaf in leaves:
    for size, logical_axis in zip(leaf.value.shape, leaf.names, strict=True):
      mesh_axis = rules.get(logical_axis)
      if mesh_axis and size % mesh.shape[mesh_axis]:
        parameter = jax.tree_util.keystr(path, simple=True, separator="/")
        divisor = math.gcd(size, mesh.shape[mesh_axis])
        raise UserError(
          f"{SIZE_KEYS[logical_axis]}={size} (of {parameter}) is not a multiple"
          f" of mesh.{mesh_axis}={mesh.shape[mesh_axis]}; choose a"
          f" mesh.{mesh_axis} that divides it, for example {divisor}."
        )


def vocab_multiple(mesh: Mesh) -> int:
  """Returns a number; the word embeddings are padded to a multiple of it.

  It is a multiple of the number of devices that split the vocabulary. On
  accelerators it is also a multiple of 128, the width of their matrix units.
  Files hold only the embeddings of the vocabulary, without the padding.
  """
  unit_width = 1 if mesh.devices.flat[0].platform == "cpu" else 128
  return math.lcm(unit_width, mesh.shape["tensor"])


def compiler_options(
  device: jax.Device, remat: bool = False, splits_update: bool = False
) -> dict[str, Any]:
  """Returns the options for the compiler.

    devices      option                            reason
    TPU v4, v6e  no dot-dot fusion, if `remat`     libtpu 0.0.42 overflows its
                                                   stack over some layers that
                                                   are computed again
    TPU          no loops that run parts of a      in such loops, the products
                 product between parts of a        of BERT-base take 1.5 times
                 collective, if `splits_update`    the cycles (the compiler's
                                                   estimate)
    GPU          cuBLASLt and not Triton for       cuBLASLt adds biases and
                 matrix products                   residuals in the same pass

  Args:
    device: one of the devices to compile for.
    remat: the remat setting of a train step; see `models.stack.Stack`.
    splits_update: True for a train step whose devices split the update; see
      devices/update_sharding.py.
  """
  options = {}
  if remat and device.device_kind.startswith(("TPU v4", "TPU v6")):
    options["xla_tpu_dot_dot_fusion"] = "false"
  if splits_update and device.platform == "tpu":
    for name in ("all_gather", "reduce_scatter"):
      options[f"xla_tpu_enable_windowed_einsum_for_{name}"] = "false"
  return options or (_gpu_options() if device.platform == "gpu" else {})


@functools.cache
def _gpu_options() -> dict[str, Any]:
  options = {
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_enable_cublaslt": True,
  }
  # Some versions of the compiler do not know these options.
  try:
    jax.jit(lambda: 0, compiler_options=options).lower().compile()
  except Exception:
    return {}
  return options


def jit(function: Callable[..., Any], **keywords: Any) -> JittedFunction:
  """Returns `jax.jit` of a function, with the device's `compiler_options`.

  Args:
    function: the function.
    **keywords: keyword arguments of `jax.jit`.

  Returns:
    A jitted function. The device is looked up at the first call, so that a
    module may call `jit` before the devices are known.
  """

  @functools.cache
  def jitted() -> Any:
    options = compiler_options(jax.devices()[0])
    return jax.jit(function, compiler_options=options, **keywords)

  @functools.wraps(function)
  def call(*arguments: Any) -> Any:
    return jitted()(*arguments)

  wrapper: Any = call
  wrapper.lower = lambda *arguments: jitted().lower(*arguments)
  return wrapper


def check_batch_size(
  mesh: Mesh, batch_size: int, num_micro_batches: int
) -> None:
  """Raises UserError unless each micro-batch splits evenly over the mesh."""
  num_shards = mesh.shape["data"] * mesh.shape["fsdp"]
  if batch_size % (num_micro_batches * num_shards):
    raise UserError(
      f"batch_size={batch_size} is not a multiple of micro_batches="
      f"{num_micro_batches} times the {num_shards} devices that split the"
      " batch; change batch_size, micro_batches or the mesh."
    )


def batch_share_of_process(mesh: Mesh) -> tuple[int, int]:
  """Returns (index of this process's share of a batch, number of shares).

  All shares have the same number of rows. Two processes whose devices hold the
  same rows, because the tensor axis connects them, read the same share.

  Raises:
    UserError: two processes hold shares that overlap and are not equal, or
      shares of different sizes.
  """
  # The devices of a group hold the same rows of a batch.
  device_groups = mesh.devices.reshape(-1, mesh.shape["tensor"])
  groups_by_process: dict[int, set[int]] = {}
  for group, devices in enumerate(device_groups):
    for device in devices:
      groups_by_process.setdefault(device.process_index, set()).add(group)
  shares = sorted(
    {tuple(sorted(groups)) for groups in groups_by_process.values()}
  )
  share_sizes = [len(share) for share in shares]
  if sum(share_sizes) != len(device_groups) or len(set(share_sizes)) != 1:
    raise UserError(
      f"mesh.tensor={mesh.shape['tensor']} does not fit the devices of a"
      " process; choose a number that divides the number of these devices, or a"
      " multiple of it."
    )
  share = tuple(sorted(groups_by_process[jax.process_index()]))
  return shares.index(share), len(shares)


def batch_shapes(
  row_shapes: Mapping[str, tuple[tuple[int, ...], Any]], batch_size: int
) -> BatchShapes:
  """Returns the shapes of a batch over all hosts.

  Args:
    row_shapes: {key: (shape of one row, dtype)}.
    batch_size: the number of rows over all hosts.
  """
  return {
    key: jax.ShapeDtypeStruct((batch_size, *shape), dtype)
    for key, (shape, dtype) in row_shapes.items()
  }


def global_batch_shapes(mesh: Mesh, batch: BatchShapes) -> BatchShapes:
  """Returns a batch's shapes, sharded as `to_global_batch` shards the batch."""
  sharding = NamedSharding(mesh, BATCH_SPEC)
  return {
    key: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    for key, x in batch.items()
  }


def to_global_batch(
  mesh: Mesh, batch: dict[str, np.ndarray]
) -> dict[str, jax.Array]:
  """Makes global arrays from this process's rows of each array."""
  sharding = NamedSharding(mesh, BATCH_SPEC)
  return {
    key: jax.make_array_from_process_local_data(sharding, rows)
    for key, rows in batch.items()
  }
