"""The mesh, one table of rules for logical axes, and what follows from them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")

# Logical axis of a parameter or activation -> mesh axes.
RULES: tuple[tuple[str, Any], ...] = (
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
)
BATCH = PartitionSpec(("data", "fsdp"))


def make_mesh(
  data: int = -1,
  fsdp: int = 1,
  tensor: int = 1,
  devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Makes the mesh over all devices of all processes.

  Args:
    data: devices that only split the batch; -1 for all that are left.
    fsdp: devices that split the batch and the parameters.
    tensor: devices that split heads, MLP and vocabulary.
    devices: others than this machine's, to compile for; `jax.devices()` if
      None.

  Raises:
    ValueError: the sizes do not make up the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  count = len(devices)
  if data == -1:
    data = count // (fsdp * tensor)
  if data < 1 or data * fsdp * tensor != count:
    raise ValueError(
      f"mesh data={data} x fsdp={fsdp} x tensor={tensor} does not make up the"
      f" {count} devices."
    )
  # Linen's constraints raise on Explicit axes, which are make_mesh's default.
  types = (AxisType.Auto,) * len(AXES)
  shape = (data, fsdp, tensor)
  return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)


@contextlib.contextmanager
def use_mesh(mesh: Mesh) -> Iterator[None]:
  """Enters the mesh and the rules; without either, constraints vanish."""
  with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
    yield


def shardings(mesh: Mesh, boxed: Any) -> Any:
  """Shardings of a tree that is boxed with logical axis names.

  Args:
    mesh: the mesh.
    boxed: arrays or their shapes, as `jax.eval_shape` of a linen `init` gives.

  Returns:
    A tree of NamedSharding with the structure of the unboxed tree.
  """
  return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, RULES)


def check_batch(mesh: Mesh, batch_size: int, micro_batches: int) -> None:
  """Raises ValueError unless each micro-batch splits evenly over the mesh."""
  shards = mesh.shape["data"] * mesh.shape["fsdp"]
  if batch_size % (micro_batches * shards):
    raise ValueError(
      f"batch_size={batch_size} is not a multiple of micro_batches="
      f"{micro_batches} times the {shards} devices that split the batch."
    )


def to_global(mesh: Mesh, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
  """Makes global arrays from this process's rows of each array."""
  sharding = NamedSharding(mesh, BATCH)
  return {
    key: jax.make_array_from_process_local_data(sharding, value)
    for key, value in batch.items()
  }
