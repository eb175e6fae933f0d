"""Reads XLA's optimized program text: loops, collectives and their bytes."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from bert_jax.messages import UserError

# Bits of an element; a token takes no space.
BITS = {"pred": 8, "token": 0, "c64": 64, "c128": 128}
COLLECTIVES = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "ragged-all-to-all",
  "collective-permute",
  "collective-broadcast",
)
_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*-> .*\{$")
_NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_OPERATION = re.compile(r"(?:^|\s)([a-z][a-z0-9-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+)(\d*)(?:[a-z]\w*)?\[([\d,]*)\]")
_CALLED = re.compile(
  r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)"
  r"=%?([\w.-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_KNOWN_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Instruction(NamedTuple):
  """One line of a computation.

  Attributes:
    name: without the %.
    shape: the text of its type, a tuple's in brackets.
    operation: opcode, for example "all-reduce".
    rest: operands and attributes, as text.
  """

  name: str
  shape: str
  operation: str
  rest: str


class Program(NamedTuple):
  """Computations by name, and the name of the first one run."""

  computations: dict[str, list[Instruction]]
  entry: str


class Traffic(NamedTuple):
  """How often a step runs a collective, and the bytes of its results."""

  count: int
  bytes: int


def _split_type(text: str) -> tuple[str, str]:
  """Splits "TYPE opcode(...)" after the type, which may be a tuple."""
  if not text.startswith("("):
    shape, _, rest = text.partition(" ")
    return shape, rest
  depth = 0
  for i, character in enumerate(text):
    depth += (character == "(") - (character == ")")
    if not depth:
      return text[: i + 1], text[i + 1 :]
  raise UserError(f"unbalanced brackets in the program's line {text[:60]!r}.")


def parse(text: str) -> Program:
  """Parses the text of an HLO module, as `Compiled.as_text()` gives it.

  Raises:
    ValueError: the text has no entry computation.
  """
  computations: dict[str, list[Instruction]] = {}
  entry, current = "", None
  for line in text.splitlines():
    if header := _HEADER.match(line):
      current = computations.setdefault(header[2], [])
      entry = header[2] if header[1] else entry
    elif (named := _NAME.match(line)) and current is not None:
      shape, rest = _split_type(named[2])
      if operation := _OPERATION.search(rest):
        current.append(Instruction(named[1], shape, operation[1], rest))
  if not entry:
    raise UserError("the compiled program's text has no ENTRY computation.")
  return Program(computations, entry)


def num_bytes(shape: str) -> int:
  """Bytes of the arrays in a type's text, layouts' padding not counted."""
  # A layout such as {1,0:T(8,128)(2,1)} has no array in it.
  return sum(
    math.prod(int(n) for n in sizes.split(",") if n)
    * BITS.get(kind + bits, int(bits or 0))
    // 8
    for kind, bits, sizes in _ARRAY.findall(shape)
  )


def trip_count(program: Program, loop: Instruction) -> int:
  """How often a `while` runs its body; 1 if its text does not say.

  XLA says it as known_trip_count; the TPU compiler's text does not, but a scan
  counts from 0 to the one integer constant in its condition.
  """
  if count := _KNOWN_COUNT.search(loop.rest):
    return int(count[1])
  condition = re.search(r"\bcondition=%?([\w.-]+)", loop.rest)
  constants = [
    int(value[1])
    for instruction in program.computations.get(condition[1], [])
    if instruction.operation == "constant"
    and (value := re.match(r"\s*constant\((\d+)\)", instruction.rest))
  ]
  return constants[0] if len(constants) == 1 else 1


def walk(
  program: Program, name: str | None = None, times: int = 1
) -> Iterator[tuple[Instruction, int]]:
  """Yields each instruction that runs, and how often a run of the entry does.

  A branch counts as if it were taken; the scalar functions that reductions
  apply are yielded once for each reduction.
  """
  for instruction in program.computations.get(name or program.entry, []):
    yield instruction, times
    inner = times
    if instruction.operation == "while":
      inner *= trip_count(program, instruction)
    called = _CALLED.findall(instruction.rest)
    for branches in _BRANCHES.findall(instruction.rest):
      called += [branch.strip().lstrip("%") for branch in branches.split(",")]
    for other in called:
      yield from walk(program, other, inner)


def loops(program: Program) -> list[int]:
  """Trip counts of the loops that run, those above 1."""
  counts = [
    trip_count(program, instruction)
    for instruction, _ in walk(program)
    if instruction.operation == "while"
  ]
  return [count for count in counts if count > 1]


def collectives(program: Program) -> dict[str, Traffic]:
  """Counts the collectives of a step by kind, loops' trips included.

  An asynchronous pair counts once, by the result of its -done. Bytes are those
  of one device's results: a reduce-scatter's are a device's share, an
  all-gather's the whole.
  """
  total: dict[str, Traffic] = {}
  for instruction, times in walk(program):
    kind = instruction.operation.removesuffix("-done")
    if kind in COLLECTIVES:
      before = total.get(kind, Traffic(0, 0))
      size = num_bytes(instruction.shape)
      total[kind] = Traffic(before.count + times, before.bytes + times * size)
  return total
