"""Reads the text of a program that XLA compiled: loops, collectives, bytes."""

import dataclasses
import math
import re
from collections.abc import Iterator

from bert_jax.messages import UserError

# Type -> the bits of an element, for types whose names do not say the bits.
# XLA's type `token`, which only orders operations, takes no space.
BITS_BY_TYPE = {"pred": 8, "token": 0}
COLLECTIVES = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "ragged-all-to-all",
  "collective-permute",
  "collective-broadcast",
)
_COMPUTATION_HEADER_PATTERN = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*-> .*\{$")
_ASSIGNMENT_PATTERN = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_OPERATION_PATTERN = re.compile(r"(?:^|\s)([a-z][a-z0-9-]*)\(")
_ARRAY_TYPE_PATTERN = re.compile(r"\b([a-z]+)(\d*)(?:[a-z]\w*)?\[([\d,]*)\]")
_CALLEE_PATTERN = re.compile(
  r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)"
  r"=%?([\w.-]+)"
)
_BRANCHES_PATTERN = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_OPERATION_PATH_PATTERN = re.compile(r'\bop_name="([^"]*)"')
_CHANNEL_PATTERN = re.compile(r"\bchannel_id=(\d+)")
_TRIP_COUNT_PATTERN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Instruction:
  """Describes one line of a computation.

  Attributes:
    name: the name of the result, without the %.
    type_text: the text of the result's type; a tuple is in brackets.
    operation: the opcode, for example "all-reduce".
    call: the text after the type: opcode, operands and attributes.
  """

  name: str
  type_text: str
  operation: str
  call: str


@dataclasses.dataclass(frozen=True)
class Program:
  """Holds a compiled program.

  Attributes:
    computations: {name of a computation: its instructions}.
    entry: the name of the computation that runs first.
  """

  computations: dict[str, list[Instruction]]
  entry: str


@dataclasses.dataclass(frozen=True)
class Traffic:
  """Holds how often a step runs a collective, and the bytes of its outputs."""

  count: int
  bytes: int


def _split_type(text: str) -> tuple[str, str]:
  """Splits "TYPE opcode(...)" after the type, which may be a tuple."""
  if not text.startswith("("):
    type_text, _, call = text.partition(" ")
    return type_text, call
  depth = 0
  for i, character in enumerate(text):
    depth += (character == "(") - (character == ")")
    if not depth:
      return text[: i + 1], text[i + 1 :]
  raise UserError(f"unbalanced brackets in the program's line {text[:60]!r}.")


def parse_program(text: str) -> Program:
  """Parses the text of an HLO module, which `Compiled.as_text()` returns.

  Raises:
    UserError: the text has no entry computation, or unbalanced brackets.
  """
  computations: dict[str, list[Instruction]] = {}
  entry, current_instructions = "", None
  for line in text.splitlines():
    if header_match := _COMPUTATION_HEADER_PATTERN.match(line):
      current_instructions = computations.setdefault(header_match[2], [])
      entry = header_match[2] if header_match[1] else entry
    elif (
      assignment_match := _ASSIGNMENT_PATTERN.match(line)
    ) and current_instructions is not None:
      type_text, call = _split_type(assignment_match[2])
      if operation_match := _OPERATION_PATTERN.search(call):
        current_instructions.append(
          Instruction(
            name=assignment_match[1],
            type_text=type_text,
            operation=operation_match[1],
            call=call,
          )
        )
  if not entry:
    raise UserError("the compiled program's text has no ENTRY computation.")
  return Program(computations, entry)


def num_bytes(type_text: str) -> int:
  """Returns the bytes of the arrays in a type's text, without padding."""
  # `_ARRAY_TYPE_PATTERN` matches nothing in a layout such as
  # {1,0:T(8,128)(2,1)}.
  return sum(
    math.prod(int(size) for size in sizes.split(",") if size)
    * BITS_BY_TYPE.get(base_type + bits, int(bits or 0))
    // 8
    for base_type, bits, sizes in _ARRAY_TYPE_PATTERN.findall(type_text)
  )


def trip_count(program: Program, loop: Instruction) -> int:
  """Returns how often a `while` runs its body; 1 if the text does not say.

  XLA writes the number as known_trip_count. The TPU compiler does not write it.
  In a program for a TPU, a scan counts from 0 to the only integer constant in
  the loop's condition.
  """
  if count_match := _TRIP_COUNT_PATTERN.search(loop.call):
    return int(count_match[1])
  condition_match = re.search(r"\bcondition=%?([\w.-]+)", loop.call)
  condition_name = condition_match[1] if condition_match else ""
  integers = [
    int(constant_match[1])
    for instruction in program.computations.get(condition_name, [])
    if instruction.operation == "constant"
    and (constant_match := re.match(r"\s*constant\((\d+)\)", instruction.call))
  ]
  return integers[0] if len(integers) == 1 else 1


def callees(instruction: Instruction) -> list[str]:
  """Returns the names of the computations that an instruction calls."""
  names = _CALLEE_PATTERN.findall(instruction.call)
  for branch_list in _BRANCHES_PATTERN.findall(instruction.call):
    names += [branch.strip().lstrip("%") for branch in branch_list.split(",")]
  return names


def operation_path(instruction: Instruction) -> str:
  """Returns the path of the operation that an instruction was compiled from.

  The names of functions and modules are its folders, for example
  "jit(step)/jvp(Model)/encoder/attention/add". It is "" if the text has none.
  """
  path_match = _OPERATION_PATH_PATTERN.search(instruction.call)
  return path_match[1] if path_match else ""


def walk_instructions(
  program: Program, name: str | None = None, num_runs: int = 1
) -> Iterator[tuple[Instruction, int]]:
  """Yields each instruction, and how often it runs if the program runs once.

  All branches count as if they ran. The instructions of the scalar function
  that a reduction applies are yielded once for each reduction.

  Args:
    program: the program.
    name: the computation to begin with; None means the entry.
    num_runs: how often the computation `name` runs.
  """
  for instruction in program.computations.get(name or program.entry, []):
    yield instruction, num_runs
    inner_runs = num_runs
    if instruction.operation == "while":
      inner_runs *= trip_count(program, instruction)
    for callee in callees(instruction):
      yield from walk_instructions(program, callee, inner_runs)


def loop_trip_counts(program: Program) -> list[int]:
  """Returns the trip counts of all loops whose bodies run more than once."""
  counts = [
    trip_count(program, instruction)
    for instruction, _ in walk_instructions(program)
    if instruction.operation == "while"
  ]
  return [count for count in counts if count > 1]


def walk_collectives(
  program: Program,
) -> Iterator[tuple[Instruction, int]]:
  """Yields each collective, and how often it runs if the program runs once.

  The start of an asynchronous collective is left out, because the end counts.
  The compiler may also split a collective into steps that run inside several
  fusions of other operations. All steps have the collective's channel and its
  whole output, so only the first step counts.
  """
  first_name_by_channel: dict[str, str] = {}
  for instruction, num_runs in walk_instructions(program):
    if instruction.operation.removesuffix("-done") not in COLLECTIVES:
      continue
    channel_match = _CHANNEL_PATTERN.search(instruction.call)
    name = instruction.name
    if (
      channel_match is None
      or first_name_by_channel.setdefault(channel_match[1], name) == name
    ):
      yield instruction, num_runs


def collective_traffic(program: Program) -> dict[str, Traffic]:
  """Counts the collectives of a step by opcode; each trip of a loop counts.

  The two instructions of an asynchronous collective count once, with the output
  of the second one ("-done"). The bytes are the size of the output on one
  device. The output of a reduce-scatter is the device's share. The output of an
  all-gather is the whole array.
  """
  traffic: dict[str, Traffic] = {}
  for instruction, num_runs in walk_collectives(program):
    opcode = instruction.operation.removesuffix("-done")
    earlier_traffic = traffic.get(opcode, Traffic(count=0, bytes=0))
    output_bytes = num_bytes(instruction.type_text)
    traffic[opcode] = Traffic(
      count=earlier_traffic.count + num_runs,
      bytes=earlier_traffic.bytes + num_runs * output_bytes,
    )
  return traffic
