"""Compiles a run's train step for a TPU slice that is not there."""

import dataclasses
import difflib
import importlib.metadata
import importlib.util
import math
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax import models
from bert_jax.devices import hlo, isolated, sharding
from bert_jax.devices.xla_errors import INVALID_ARGUMENT, has_status
from bert_jax.examples.recipes import make_recipe
from bert_jax.messages import UserError
from bert_jax.text.vocabulary import SpecialIds
from bert_jax.training import config as config_lib
from bert_jax.training import phases, steps
from bert_jax.training.setup import make_parts
from bert_jax.training.state import abstract_state, frozen_shapes

GIB = 2**30
# Pieces of BERT's cased vocabulary (google-research/bert README).
CASED = 28996
# Options of `data` that say which text is read; the others are the recipe's.
TEXT_OPTIONS = ("path", "split", "cased")


class Generation(NamedTuple):
  """A generation of TPUs.

  Attributes:
    hbm: GiB of memory a device has. A device is a core on v2 and v3, a chip
      from v4 on.
    cores: what a chip counts in the names of Cloud TPU, such as v3-32.
    layouts: slices that are named when a larger or a known one is asked for,
      from small to large.
    options: the options of the topology's description.
  """

  hbm: int
  cores: int
  layouts: tuple[str, ...]
  options: dict[str, str] = {}


_SQUARES = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8")
# HBM of a chip: cloud.google.com/tpu/docs, "TPU versions": v2 16 and v3 32 GiB
# for two cores; v4 32, v5e 16, v5p 95, v6e 32 GiB.
GENERATIONS = {
  "v2": Generation(8, 2, _SQUARES),
  "v3": Generation(16, 2, (*_SQUARES, "16x32", "32x32")),
  # Both cores of a chip are one device there, unlike libtpu's default.
  "v4": Generation(32, 2, _CUBES, {"chip_config_name": "megacore"}),
  "v5e": Generation(16, 1, _SQUARES),
  "v5p": Generation(95, 2, _CUBES),
  "v6e": Generation(32, 1, _SQUARES),
}
# The chips of the largest slice there is, v5p's (the same page).
MAX_CHIPS = 8960


class Step(NamedTuple):
  """One phase's train step with all that it is called with, as shapes.

  Attributes:
    phase: a phase of the run.
    mesh: over the slice's devices.
    function: (state, frozen, batch, key) -> (state, metrics).
    arguments: of `function`, shapes with shardings.
    flops: the model's own count for a step of the whole slice.
    remat: the model's remat setting.
  """

  phase: phases.Phase
  mesh: Mesh
  function: Any
  arguments: tuple[Any, ...]
  flops: float
  remat: bool


def versions() -> dict[str, str]:
  """Versions of jax and of libtpu, which is the compiler."""
  names = ("jax", "libtpu")
  return {name: importlib.metadata.version(name) for name in names}


def nearest_topology(topology: str) -> str:
  """The known slice that a name which is not known most likely means.

  Cloud TPU's own names count what a slice has: v3-32 is v3:4x4.
  """
  name, layout = re.match(r"([a-z]*\d*[a-z]*)(.*)", topology.lower()).groups()
  name = name.replace("litepod", "e")
  (near,) = difflib.get_close_matches(name, GENERATIONS, 1, cutoff=0.0)
  cores, layouts = GENERATIONS[near].cores, GENERATIONS[near].layouts
  count = math.prod(int(n) for n in re.findall(r"\d+", layout))
  count //= cores if "-" in layout else 1
  return f"{near}:{min(layouts, key=lambda x: abs(chips(x) - count))}"


def chips(layout: str) -> int:
  """How many chips a layout such as "2x2x4" has."""
  return math.prod(int(n) for n in layout.split("x"))


def describe(topology: str) -> list[jax.Device]:
  """Devices of a slice, which can be compiled for but run nothing.

  Args:
    topology: generation and chips along each axis, for example "v2:4x4".

  Raises:
    ValueError: libtpu is not installed, or there is no such slice.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise UserError(
      "the TPU compiler, libtpu, is not installed: pip install 'bert_jax[tpu]'."
    )
  name, _, layout = topology.partition(":")
  near = nearest_topology(topology)
  kind = near.partition(":")[0]
  unknown = ValueError(
    f"--topology={topology}: no such slice; did you mean {near}? Known are"
    f" {', '.join(GENERATIONS)}; of {kind}"
    f" {', '.join(GENERATIONS[kind].layouts)}."
  )
  if name not in GENERATIONS or not re.fullmatch(r"\d+(x\d+)+", layout):
    raise unknown
  # libtpu takes any, and crashes at very large ones.
  axes = GENERATIONS[name].layouts[0].count("x")
  if layout.count("x") != axes or chips(layout) > MAX_CHIPS:
    raise unknown
  try:
    options = GENERATIONS[name].options
    return list(
      topologies.get_topology_desc(topology, "tpu", **options).devices
    )
  except jax.errors.JaxRuntimeError as e:
    if has_status(e, INVALID_ARGUMENT):
      raise unknown from e
    raise UserError(f"the TPU compiler, libtpu: {_sentence(e)}") from e


def features(vocab_size: int, phase: phases.Phase) -> sharding.Shapes:
  """{batch key: shape} of a phase, without any data.

  Args:
    vocab_size: the number of pieces.
    phase: whose length, batch and predictions.
  """
  options = {k: v for k, v in phase.data.items() if k not in TEXT_OPTIONS}
  builder = options.pop("builder")
  recipe = make_recipe(builder, SpecialIds(0, 1, 2, 3, 4), vocab_size, options)
  return sharding.batch_shapes(recipe.features, phase.batch_size)


def with_published(run: config_lib.Run) -> config_lib.Run:
  """The config with what it leaves to its data as published."""
  model = run.model
  family = models.family(model.family)
  published = family.build(next(iter(family.VARIANTS)))
  if model.vocab_size is None:
    cased = model.family == "bert" and run.data.others.get("cased")
    size = CASED if cased else published.vocab_size
    model = dataclasses.replace(model, vocab_size=size)
  if model.family == "roberta" and model.padding_id is None:
    model = dataclasses.replace(model, padding_id=published.padding_id)
  return dataclasses.replace(run, model=model)


def make_step(config: dict[str, Any], number: int, topology: str) -> Step:
  """The train step of a phase, for a slice.

  Args:
    config: as `train.run` takes it; `data.path` is not read.
    number: the number of the phase; 0 is the first.
    topology: see `describe`.

  Raises:
    ValueError: in one sentence: of the config, or no such slice.
  """
  run = with_published(config_lib.parse(config))
  mesh = sharding.make_mesh(
    run.mesh.data, run.mesh.fsdp, run.mesh.tensor, describe(topology)
  )
  phase = phases.plan(run)[number]
  sharding.check_batch(mesh, phase.batch_size, phase.micro_batches)
  objective, schedule, optimizer = make_parts(
    run, sharding.vocab_multiple(mesh)
  )
  function = steps.make_train_step(
    objective, optimizer, schedule, phase.micro_batches
  )
  batch = sharding.global_shapes(mesh, features(run.model.vocab_size, phase))
  key = jax.eval_shape(lambda: jax.random.key(0))
  whole = NamedSharding(mesh, PartitionSpec())
  key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=whole)
  with sharding.use_mesh(mesh):
    boxed = jax.eval_shape(
      lambda x: objective.init(jax.random.key(0), x), batch
    )
    sharding.check_sizes(mesh, boxed)
    state = abstract_state(objective, optimizer, mesh, batch)
    frozen = frozen_shapes(objective, mesh, batch)
  arguments = (state, frozen, batch, key)
  flops = objective.flops(batch)
  return Step(phase, mesh, function, arguments, flops, run.model.remat)


def shard_bytes(tree: Any) -> int:
  """Bytes that a device holds of a tree of shapes with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
  )


def refusal(message: str) -> dict[str, int] | None:
  """Bytes {"needed", "usable"} of the compiler's out-of-memory message.

  None if it is no such message.
  """
  if "RESOURCE_EXHAUSTED" not in message:
    return None
  number = r"([\d.]+)([KMGT]?)"
  match = re.search(
    rf"\({number}\) exceeds available HBM \({number}\)", message
  ) or re.search(rf"[Uu]sed {number} of {number} hbm", message)
  if not match:
    return {}
  unit = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
  return {
    "needed": round(float(match[1]) * unit[match[2]]),
    "usable": round(float(match[3]) * unit[match[4]]),
  }


def compile_step(
  config: dict[str, Any], number: int, topology: str
) -> dict[str, Any]:
  """Compiles a phase's step and reports what a device would hold and do.

  In a process of its own: the compiler has crashed, and it keeps the memory
  that it took.

  Args:
    config: and `number`, `topology`: see `make_step`.

  Returns:
    The report, fit for JSON; bytes and FLOPs are a device's. Where the
    compiler itself ran out of memory, `refused` is its sentence, `temporaries`
    what it says it needs, and what only a program has is left out. Where it
    crashed, `crashed` says how, and `fits` is None: nobody knows.

  Raises:
    ValueError: see `make_step`.
  """
  report: dict[str, Any] = {}
  start = time.monotonic()
  try:
    for more in isolated.run(compile_here, config, number, topology):
      report |= more
  except isolated.Crash as e:
    if not report:
      raise UserError(f"the process that compiles ended: {e}.") from e
    report |= dict(crashed=str(e), fits=None, temporaries_bytes=None)
    report |= dict(compile_seconds=round(time.monotonic() - start, 1))
  return report


def compile_here(
  config: dict[str, Any], number: int, topology: str
) -> Iterator[dict[str, Any]]:
  """Yields a report's parts: what is known before compiling, then the rest.

  See `compile_step`.
  """
  step = make_step(config, number, topology)
  phase, devices = step.phase, step.mesh.size
  report = dict(
    topology=topology,
    devices=devices,
    mesh=dict(step.mesh.shape),
    phase=phase.name or "the only phase",
    number=number + 1,
    length=phase.data["length"],
    batch_size=phase.batch_size,
    micro_batches=phase.micro_batches,
    hbm_bytes=GENERATIONS[topology.partition(":")[0]].hbm * GIB,
    arguments_bytes=shard_bytes(step.arguments),
    gradient_bytes=shard_bytes(step.arguments[0].params),
    model_flops=step.flops / devices,
  )
  yield report
  start = time.monotonic()
  try:
    report_after = measure(compile_program(step), report)
  except jax.errors.JaxRuntimeError as e:
    room = refusal(str(e))
    if room is None:
      raise UserError(f"the TPU compiler failed: {_sentence(e)}") from e
    report_after = dict(
      temporaries_bytes=room.get("needed"),
      usable_bytes=room.get("usable"),
      fits=False,
      refused=_sentence(e),
    )
  yield report_after | dict(compile_seconds=round(time.monotonic() - start, 1))


def compile_program(step: Step) -> jax.stages.Compiled:
  """Compiles a step as the train loop does."""
  state = jax.tree.map(lambda x: x.sharding, step.arguments[0])
  jitted = jax.jit(
    step.function,
    donate_argnums=0,
    out_shardings=(state, None),
    compiler_options=sharding.compiler_options(
      step.mesh.devices.flat[0], step.remat
    ),
  )
  with sharding.use_mesh(step.mesh):
    lowered = jitted.trace(*step.arguments).lower(lowering_platforms=("tpu",))
    return lowered.compile()


def _sentence(error: Exception) -> str:
  return str(error).partition("\n")[0].strip().rstrip(".") + "."


def measure(
  compiled: jax.stages.Compiled, report: dict[str, Any]
) -> dict[str, Any]:
  """Numbers of a compiled step, beside those already in the report."""
  memory = compiled.memory_analysis()
  total = (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
    + memory.generated_code_size_in_bytes
  )
  flops = compiled.cost_analysis()["flops"]
  program = hlo.parse(compiled.as_text())
  collectives = hlo.collectives(program)
  reduced = (
    collectives["all-reduce"].bytes if "all-reduce" in collectives else 0
  )
  return dict(
    arguments_bytes=memory.argument_size_in_bytes,
    outputs_bytes=memory.output_size_in_bytes,
    aliased_bytes=memory.alias_size_in_bytes,
    temporaries_bytes=memory.temp_size_in_bytes,
    code_bytes=memory.generated_code_size_in_bytes,
    total_bytes=total,
    fits=total <= report["hbm_bytes"],
    flops=flops,
    flops_ratio=round(flops / report["model_flops"], 4),
    loops=hlo.loops(program),
    collectives={
      kind: dict(t._asdict()) for kind, t in sorted(collectives.items())
    },
    all_reduced_bytes=reduced,
    all_reduced_ratio=round(reduced / report["gradient_bytes"], 4),
  )
