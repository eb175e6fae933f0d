"""Sums the TPU compiler's estimates of a program's cycles, and models the rest.

libtpu writes how many cycles it expects each fusion to take
("estimated_cycles") into the text of the compiled program. It gives no estimate
for collectives and for Pallas kernels. This file models these two, from their
bytes and operations. docs/tpu.md says how exact the numbers are.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_jax.devices import hlo
from bert_jax.devices.kernel_operations import KernelOperations
from bert_jax.messages import UserError

# The groups in which instructions count; see `group_of`.
GROUPS = (
  "products",
  "attention",
  "activations",
  "norms",
  "embedding",
  "heads",
  "optimizer",
  "stacking",
  "casts",
  "other",
)
_ESTIMATED_CYCLES_PATTERN = re.compile(r'"estimated_cycles":"(\d+)"')
_KERNEL_TARGET = 'custom_call_target="tpu_custom_call"'
_PRODUCT_OPCODES = ("convolution", "dot")
# Instructions that move or name numbers, but compute none.
_MOVE_OPCODES = {
  *("parameter", "constant", "bitcast", "copy", "transpose", "reshape"),
  *("slice", "tuple", "get-tuple-element", "broadcast", "concatenate"),
}
# A loop over layers stacks arrays. An operation that reads or writes one
# layer's part of such an array has one of these folders in its path.
_STACKING_WORDS = {
  *("dynamic_update_slice", "dynamic_slice"),
  *("jit(dynamic_update_index_in_dim)", "jit(dynamic_index_in_dim)"),
}
# The paths of other operations on stacked arrays end with one of these texts.
# Without a loop, the gradients of layers are concatenated.
_STACKING_ENDS = tuple(
  f"{module}/{operation}"
  for module in ("layers", "tower")
  for operation in ("broadcast_in_dim", "concatenate", "slice")
)
# Names of modules. They are also folders of the path of an operation.
_LAYER_WORDS = {"layer", "layer.body"}
_NORM_WORDS = {"attention_norm", "mlp_norm"}
_ENCODER_WORDS = {"encoder", "generator", "discriminator", "layers", "tower"}
# A kernel's program takes the time of its busiest unit, plus this share of the
# time of its other units, because units wait for each other's results.
_WAITING_SHARE = 0.45
# Cycles that a program waits for its first and its last numbers.
# `_STARTUP_CYCLES`, `_WAITING_SHARE` and `Chip.vector_operations` make the
# model fit libtpu's schedules of the attention kernels; see docs/tpu.md.
_STARTUP_CYCLES = 330
# The shortest time in which a message reaches the neighbouring chip
# (jax-ml.github.io/scaling-book/sharding, "A note on ICI latency").
_HOP_SECONDS = 1e-6


@dataclasses.dataclass(frozen=True)
class Chip:
  """Holds the published speed of a TPU's device.

  A device is a core on v2 and v3, and a chip from v4 on.

  Attributes:
    peak_flops: the FLOPs a second of products in bfloat16.
    cycle_flops: the FLOPs of products in bfloat16 in a cycle.
    num_cores: the number of cores of a device.
    unit_size: the number of rows, and of columns, of a unit for matrix
      products.
    vector_operations: operations on registers, as `kernel_operations` counts
      them, that the vector unit of a core completes in a cycle on average.
    memory_bandwidth: bytes a second from and to the device's memory.
    link_bandwidth: bytes a second from a chip to a neighbour, in one direction.
    ring_length: if the number of chips along an axis of a slice is a multiple
      of this number, the last chip of the axis is linked to the first chip.
    needs_cube: True if the links from the last to the first chip exist only in
      a slice whose axes are all multiples of `ring_length`.
    devices_per_chip: the number of devices of a chip.
  """

  peak_flops: float
  cycle_flops: int
  num_cores: int
  unit_size: int
  vector_operations: float
  memory_bandwidth: float
  link_bandwidth: float
  ring_length: int
  needs_cube: bool = False
  devices_per_chip: int = 1

  @property
  def clock(self) -> float:
    """Cycles a second, from the published peak."""
    return self.peak_flops / self.cycle_flops


# Sources:
#   v2             Jouppi et al. 2020 (Communications of the ACM 63, 7): 700
#                  MHz, 4 links of 496 Gbit/s.
#   v3, v4         Jouppi et al. 2023 (arXiv 2304.01433, table 4): 940 MHz and 4
#                  links of 70 GB/s; 1050 MHz and 6 links of 50 GB/s.
#   v5e, v5p, v6e  cloud.google.com/tpu/docs, "System architecture" of each
#                  version. The bandwidth between chips there is the sum over a
#                  chip's 4 or 6 links and both directions. The clocks are not
#                  published; a peak divided by the FLOPs of a cycle gives 1503,
#                  1751 and 1751 MHz.
#   v6e            The documentation names two units of 256 x 256, but libtpu
#                  expects more FLOPs in a cycle than two units could compute.
#                  Four units fit the peak.
#   rings          jax-ml.github.io/scaling-book/tpus.
# Each chip has, in this order: peak_flops, cycle_flops, num_cores, unit_size,
# vector_operations, memory_bandwidth, link_bandwidth, ring_length.
CHIPS: Mapping[str, Chip] = {
  "v2": Chip(22.9e12, 32768, 1, 128, 0.6, 350e9, 62e9, 16, devices_per_chip=2),
  "v3": Chip(61.5e12, 65536, 1, 128, 0.6, 450e9, 70e9, 32, devices_per_chip=2),
  "v4": Chip(275e12, 262144, 2, 128, 0.6, 1200e9, 50e9, 4, needs_cube=True),
  "v5e": Chip(197e12, 131072, 1, 128, 2.6, 819e9, 50e9, 16),
  "v5p": Chip(459e12, 262144, 2, 128, 2.6, 2765e9, 100e9, 4, needs_cube=True),
  "v6e": Chip(918e12, 524288, 1, 256, 2.6, 1638e9, 100e9, 16),
}


@dataclasses.dataclass(frozen=True)
class KernelCycles:
  """Holds the number and the modelled cycles of a kernel's calls in a step."""

  count: int
  cycles: int


@dataclasses.dataclass(frozen=True)
class Collective:
  """Describes a collective of a program.

  Attributes:
    opcode: the opcode, without "-start" and "-done".
    count: how often a step runs the collective.
    bytes: the bytes of the output on a device.
    group_size: the number of devices that exchange data with each other.
  """

  opcode: str
  count: int
  bytes: int
  group_size: int


def _estimated_cycles(instruction: hlo.Instruction) -> int | None:
  """Returns the compiler's estimate of the cycles of one run, or None."""
  cycles_match = _ESTIMATED_CYCLES_PATTERN.search(instruction.call)
  return int(cycles_match[1]) if cycles_match else None


def _walk_unfused(
  program: hlo.Program, name: str, num_runs: int
) -> Iterator[tuple[hlo.Instruction, int]]:
  """Yields each instruction outside of fusions, and how often it runs."""
  for instruction in program.computations.get(name, []):
    yield instruction, num_runs
    if instruction.operation in ("while", "call", "conditional"):
      num_trips = 1
      if instruction.operation == "while":
        num_trips = hlo.trip_count(program, instruction)
      for callee in hlo.callees(instruction):
        yield from _walk_unfused(program, callee, num_runs * num_trips)


def _fused_instructions(
  program: hlo.Program, instruction: hlo.Instruction
) -> list[hlo.Instruction]:
  """Returns the instructions in a fusion, or the instruction itself."""
  instructions = [
    inner_instruction
    for callee in hlo.callees(instruction)
    if instruction.operation == "fusion"
    for inner_instruction, _ in hlo.walk_instructions(program, callee)
  ]
  return instructions or [instruction]


def group_of(program: hlo.Program, instruction: hlo.Instruction) -> str:
  """Returns the group, one of `GROUPS`, in which an instruction counts.

  A fusion counts as a whole, in the module that its path names. This is the
  path of the fusion's last matrix product. If there is none, it is the path of
  the fusion itself, or else of the fusion's last operation that has a path.

    group        what counts in it
    products     fusions with a matrix product of a layer's input and a weight
    attention    scores, their softmax and dropout, their products with values,
                 and operations that reorder heads in memory
    activations  all other operations of a layer's MLP
    norms        LayerNorm of layers, with dropout and residual
    embedding    embeddings, with their norm and dropout
    heads        heads of the objective with their products, and the losses
    optimizer    operations that are not differentiated: the gradients' sums and
                 norm, and the update of parameters
    stacking     reading and writing arrays that have a layer axis
    casts        fusions that only convert dtypes
    other        instructions of no other group
  """
  instructions = _fused_instructions(program, instruction)
  operations = {
    inner_instruction.operation for inner_instruction in instructions
  }
  products = [
    inner_instruction
    for inner_instruction in instructions
    if inner_instruction.operation in _PRODUCT_OPCODES
  ]
  # Take the first path that is not empty. A product says what its fusion is
  # for, because the other operations are fused with it.
  path = next(
    filter(
      None,
      map(
        hlo.operation_path, [*products[::-1], instruction, *instructions[::-1]]
      ),
    ),
    "",
  )
  folders = set(path.split("/"))
  if not products:
    if "convert" in operations and operations <= _MOVE_OPCODES | {"convert"}:
      return "casts"
    if folders & _STACKING_WORDS or path.endswith(_STACKING_ENDS):
      return "stacking"
    if not path and "dynamic-update-slice" in operations:
      return "stacking"
  if "embeddings" in folders:
    return "embedding"
  if folders & _NORM_WORDS:
    return "norms"
  if "attention" in folders:
    # The path of an einsum has a formula with "->". Products with weights are
    # not einsums.
    return "products" if products and "->" not in path else "attention"
  if folders & _LAYER_WORDS:
    return "products" if products else "activations"
  if folders & _ENCODER_WORDS:
    return "products" if products else "other"
  if "jvp(" in path:
    return "heads"
  return "optimizer" if path else "other"


def cycles_by_group(program: hlo.Program) -> dict[str, int]:
  """Sums the compiler's estimate of a step's cycles on a device by group.

  The trips of a loop count, and all branches count as if they ran.

  Returns:
    The cycles of each of `GROUPS`.
  """
  cycles = dict.fromkeys(GROUPS, 0)
  for instruction, num_runs in _walk_unfused(
    program, program.entry, num_runs=1
  ):
    estimate = _estimated_cycles(instruction)
    if estimate is not None:
      cycles[group_of(program, instruction)] += num_runs * estimate
  return cycles


def _group_size(call: str, num_devices: int) -> int:
  """Returns how many devices exchange data with each other in a collective.

  The compiler writes the groups in one of these forms:

    replica_groups={{0,1},{2,3}}
    replica_groups=[2,2]<=[4]
    replica_groups=mesh['data'=4,'fsdp'=2] {'data'}
  """
  if listed_match := re.search(r"replica_groups=\{\{([\d,]+)\}", call):
    return len(listed_match[1].split(","))
  if tiled_match := re.search(r"replica_groups=\[\d+,(\d+)\]", call):
    return int(tiled_match[1])
  if named_match := re.search(
    r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", call
  ):
    sizes = dict(re.findall(r"('[^']+')=(\d+)", named_match[1]))
    names = re.findall(r"'[^']+'", named_match[2])
    return math.prod(int(sizes.get(name, 1)) for name in names)
  return num_devices


def list_collectives(
  program: hlo.Program, num_devices: int
) -> list[Collective]:
  """Lists the collectives of a step, as `hlo.collective_traffic` counts them.

  Args:
    program: the compiled program.
    num_devices: the number of devices of the slice.
  """
  # Only the "-start" of an asynchronous collective names the groups.
  group_sizes = {
    instruction.name: _group_size(instruction.call, num_devices)
    for instruction, _ in hlo.walk_instructions(program)
    if instruction.operation.endswith("-start")
  }
  listed_collectives = []
  for instruction, num_runs in hlo.walk_collectives(program):
    opcode = instruction.operation.removesuffix("-done")
    operand_match = re.search(r"\(%?([\w.-]+)", instruction.call)
    group_size = group_sizes.get(operand_match[1] if operand_match else "")
    if group_size is None:
      group_size = _group_size(instruction.call, num_devices)
    output_bytes = hlo.num_bytes(instruction.type_text)
    listed_collectives.append(
      Collective(
        opcode=opcode,
        count=num_runs,
        bytes=output_bytes,
        group_size=group_size,
      )
    )
  return listed_collectives


def collective_seconds(
  collective: Collective, chip: Chip, layout: tuple[int, ...]
) -> float:
  """Models the time of all runs of a collective from the speed of the links.

  The devices of a whole slice exchange along all of its axes at the same time.
  A smaller group of devices is taken to lie on one axis.

  Args:
    collective: the collective.
    chip: the chip of the slice.
    layout: the number of chips along each axis of the slice.
  """
  num_chips = max(collective.group_size // chip.devices_per_chip, 1)
  if num_chips == 1:
    return 0.0
  axis_lengths = [length for length in layout if length > 1]
  if num_chips < math.prod(layout):
    axis_lengths = [num_chips]
  is_cube = all(length % chip.ring_length == 0 for length in layout)
  num_links, num_hops = 0, 0
  for length in axis_lengths:
    is_ring = length % chip.ring_length == 0
    is_ring &= is_cube or not chip.needs_cube
    num_links += 2 if is_ring else 1
    num_hops += length // 2 if is_ring else length - 1
  # A gathered array has the bytes of all shards. Through its links, a device
  # receives all shards but one, which it has already.
  gathered_bytes = collective.bytes
  if collective.opcode == "reduce-scatter":
    gathered_bytes *= num_chips
  num_passes = 2 if collective.opcode == "all-reduce" else 1
  received_bytes = gathered_bytes * (num_chips - 1) / num_chips
  if collective.opcode == "collective-permute":
    received_bytes, num_hops, num_links = gathered_bytes, 1, 1
  seconds = max(
    received_bytes / (num_links * chip.link_bandwidth), num_hops * _HOP_SECONDS
  )
  return collective.count * num_passes * seconds


def kernel_cycles(operations: KernelOperations, chip: Chip) -> int:
  """Models the cycles of a call of a Pallas kernel.

  A program of the grid takes the time of its busiest unit, plus a share of the
  time of the other units. At the same time the kernel reads and writes arrays;
  this time counts only if it is longer than the time of all programs.
  Independent programs run on all cores of the device, and dependent programs on
  one core.
  """
  unit_size = chip.unit_size
  num_passes = sum(
    num_rows * -(-depth // unit_size) * -(-num_columns // unit_size) * num_runs
    for num_rows, depth, num_columns, num_runs in operations.products
  )
  num_units = chip.cycle_flops // (2 * unit_size * unit_size) // chip.num_cores
  unit_cycles = (
    num_passes / num_units,
    operations.num_vector_operations / chip.vector_operations,
    operations.num_transcendental_operations,
  )
  busiest_cycles = max(unit_cycles)
  program_cycles = (
    _STARTUP_CYCLES
    + busiest_cycles
    + _WAITING_SHARE * (sum(unit_cycles) - busiest_cycles)
  )
  num_cores = chip.num_cores if operations.is_independent else 1
  programs_per_core = math.ceil(operations.num_programs / num_cores)
  memory_cycles = operations.bytes / chip.memory_bandwidth * chip.clock
  return round(max(program_cycles * programs_per_core, memory_cycles))


def cycles_by_kernel(
  program: hlo.Program, operations: Sequence[KernelOperations], chip: Chip
) -> dict[str, KernelCycles]:
  """Models the Pallas kernels of a step.

  Args:
    program: the compiled program, which says how often kernels run.
    operations: the operations of the program's kernels.
    chip: the chip of the slice.

  Returns:
    {name of a kernel: its calls and cycles}. A kernel that `operations` lacks
    has the name "unknown" and no cycles.
  """
  results: dict[str, KernelCycles] = {}
  for instruction, num_runs in _walk_unfused(
    program, program.entry, num_runs=1
  ):
    if _KERNEL_TARGET not in instruction.call:
      continue
    # The compiler keeps the kernel's name in the path of the operation.
    path = hlo.operation_path(instruction)
    output_bytes = hlo.num_bytes(instruction.type_text)
    matching_calls = [
      call
      for call in operations
      if call.name in path and call.output_bytes == output_bytes
    ]
    name = matching_calls[0].name if matching_calls else "unknown"
    cycles = (
      num_runs * kernel_cycles(matching_calls[0], chip) if matching_calls else 0
    )
    kernel_so_far = results.get(name, KernelCycles(count=0, cycles=0))
    results[name] = KernelCycles(
      count=kernel_so_far.count + num_runs,
      cycles=kernel_so_far.cycles + cycles,
    )
  return results


def estimate_step(
  program: hlo.Program,
  operations: Sequence[KernelOperations],
  topology: str,
  num_devices: int,
  model_flops: float,
) -> dict[str, Any]:
  """Estimates the time of a step on a device of a TPU slice.

  Args:
    program: the compiled program.
    operations: the operations of the Pallas kernels of the program.
    topology: the slice, for example "v5e:4x4".
    num_devices: the number of devices of the slice.
    model_flops: FLOPs of a step on a device, as `Objective.flops` counts them.

  Returns:
    A dict that can be written as JSON.

    | key | value |
    |---|---|
    | groups | cycles of each of `GROUPS`, which the compiler estimates |
    | compiler | the sum of `groups` |
    | kernels | {name: {count, cycles}} of the Pallas kernels, modelled |
    | total | cycles of the compiler's estimate and of the kernels |
    | clock | cycles a second |
    | compute_ms | the time of `total` |
    | collectives_ms | the time of the collectives, modelled |
    | step_ms | `compute_ms` plus `collectives_ms`, which do not overlap |
    | mfu | `model_flops`, as a share of the chip's peak in `step_ms` |

  Raises:
    UserError: the compiler wrote no estimate into the program.
  """
  generation, _, sizes = topology.partition(":")
  chip = CHIPS[generation]
  layout = tuple(int(size) for size in sizes.split("x"))
  groups = cycles_by_group(program)
  kernels = cycles_by_kernel(program, operations, chip)
  compiler_cycles = sum(groups.values())
  if not compiler_cycles:
    raise UserError(
      "the TPU compiler gave no estimated_cycles; install the libtpu that the"
      " installed jax names: pip install 'bert_jax[tpu]'."
    )
  total_cycles = compiler_cycles + sum(
    kernel.cycles for kernel in kernels.values()
  )
  compute_seconds = total_cycles / chip.clock
  exchange_seconds = sum(
    collective_seconds(collective, chip, layout)
    for collective in list_collectives(program, num_devices)
  )
  step_seconds = compute_seconds + exchange_seconds
  return dict(
    groups=groups,
    compiler=compiler_cycles,
    kernels={
      name: dataclasses.asdict(kernel) for name, kernel in kernels.items()
    },
    total=total_cycles,
    clock=round(chip.clock),
    compute_ms=1e3 * compute_seconds,
    collectives_ms=1e3 * exchange_seconds,
    step_ms=1e3 * step_seconds,
    mfu=model_flops / step_seconds / chip.peak_flops,
  )
