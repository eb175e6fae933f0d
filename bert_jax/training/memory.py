"""Decides whether a run recomputes activations in the backward pass.

If `model.remat` is not set in the config, the size of the activations and the
memory of a device decide.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax import models
from bert_jax.devices import sharding
from bert_jax.kernels import fused
from bert_jax.training import config as config_lib
from bert_jax.training import phases

GIB = 2**30
# Kind of a TPU -> GiB of memory of a device (cloud.google.com/tpu/docs, "TPU
# versions"). A device is a core on v2 and v3, and a chip from v4 on.
TPU_MEMORY_GIB = {
  "TPU v2": 8,
  "TPU v3": 16,
  "TPU v4": 32,
  "TPU v5 lite": 16,  # v5e
  "TPU v5": 95,  # v5p
  "TPU v6 lite": 32,  # v6e
}
# The share of a device's memory that activations may take. The rest is for
# parameters, moments, gradients, logits and the compiler's own arrays.
ACTIVATION_SHARE = 0.5


def device_memory(device: jax.Device) -> int | None:
  """Returns a device's bytes of memory; None if they are not known.

  Args:
    device: the device. It may be a TPU of a slice that is not here.
  """
  if gib := TPU_MEMORY_GIB.get(device.device_kind):
    return gib * GIB
  statistics = device.memory_stats() or {}
  return statistics.get("bytes_limit")


def activation_bytes(
  model: config_lib.Model, phase: phases.Phase, mesh: Mesh
) -> float:
  """Estimates the bytes of activations that a device keeps without `remat`.

  A layer keeps s b h (34 + 5 a s / h) bytes in 16 bits, for rows of s tokens, b
  rows, width h and a heads (Korthikanti et al. 2022, "Reducing Activation
  Recomputation in Large Transformer Models", equation 1). A kernel for
  attention keeps no attention scores, so the second term is left out.

  Args:
    model: the section `model` of the config.
    phase: the phase, whose rows decide b and s.
    mesh: the mesh that splits the batch.
  """
  options = model.options()
  family = models.family(options.pop("family"))
  encoder = family.build(options.pop("variant"), **options)
  length = phase.data_options.get("length", encoder.max_length)
  num_shards = mesh.shape["data"] * mesh.shape["fsdp"]
  rows_per_device = phase.batch_size / phase.num_micro_batches / num_shards
  with sharding.use_mesh(mesh):
    attention = fused.choose_attention(
      encoder.attention,
      encoder.dtype,
      length,
      encoder.heads,
      encoder.hidden // encoder.heads,
    )
  # Bytes for each element of a layer's hidden states, in 16 bits.
  bytes_per_element = 34.0
  if attention == "xla":
    bytes_per_element += 5 * encoder.heads * length / encoder.hidden
  bytes_per_layer = (
    length * rows_per_device * encoder.hidden * bytes_per_element
  )
  bytes_per_layer *= jnp.dtype(encoder.dtype).itemsize / 2
  return bytes_per_layer * encoder.num_layers / mesh.shape["tensor"]


def choose_remat(
  model: config_lib.Model, plan: Sequence[phases.Phase], mesh: Mesh
) -> bool:
  """Returns True if all phases of a run recompute activations.

  If the config does not set `model.remat`, the result is True if the
  activations of a phase take more than `ACTIVATION_SHARE` of a device's memory,
  or if the size of this memory is not known.

  Args:
    model: the section `model` of the config.
    plan: the phases of the run.
    mesh: the mesh.
  """
  if model.remat is not None:
    return model.remat
  memory_bytes = device_memory(mesh.devices.flat[0])
  if memory_bytes is None:
    return True
  most_bytes = max(activation_bytes(model, phase, mesh) for phase in plan)
  return most_bytes > ACTIVATION_SHARE * memory_bytes
