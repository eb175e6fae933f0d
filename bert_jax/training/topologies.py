"""Compiles a run's train step for a TPU slice on a machine without TPUs."""

import dataclasses
import difflib
import importlib.metadata
import importlib.util
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax import models
from bert_jax.devices import (
  hlo,
  isolated,
  kernel_operations,
  sharding,
  tpu_cycles,
  update_sharding,
)
from bert_jax.devices.xla_errors import INVALID_ARGUMENT, has_status
from bert_jax.examples.recipes import make_recipe
from bert_jax.messages import UserError
from bert_jax.objectives.base import Batch
from bert_jax.text.vocabulary import SpecialIds
from bert_jax.training import config as config_lib
from bert_jax.training import memory, phases, steps
from bert_jax.training.setup import make_objective_and_optimizer
from bert_jax.training.state import state_shapes, teacher_shapes

# The number of pieces of BERT's cased vocabulary (google-research/bert README).
CASED_VOCAB_SIZE = 28996
# Keys of the config's section `data` that choose the text. All other keys in
# this section are `builder` and the options of the builder's recipe.
TEXT_OPTIONS = ("path", "split", "cased")


@dataclasses.dataclass(frozen=True)
class Generation:
  """Describes a generation of TPUs.

  Attributes:
    device_kind: the kind of a jax device. A device is a core on v2 and v3, and
      a chip from v4 on.
    cores_per_chip: the cores of a chip, as the names of Cloud TPU count them:
      v3-32 has 32 cores. It is 1 if the names count chips.
    layouts: layouts of known slices, from small to large. Messages suggest one
      of them if a slice is unknown or too small.
    options: further arguments of `topologies.get_topology_desc`.
  """

  device_kind: str
  cores_per_chip: int
  layouts: tuple[str, ...]
  options: Mapping[str, str] = dataclasses.field(default_factory=dict)


_LAYOUTS_2D = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16")
_LAYOUTS_3D = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8")
# Name of a generation in the name of a slice -> the generation.
GENERATIONS = {
  "v2": Generation("TPU v2", 2, _LAYOUTS_2D),
  "v3": Generation("TPU v3", 2, (*_LAYOUTS_2D, "16x32", "32x32")),
  # With this option both cores of a chip are one device, as on a real v4;
  # libtpu's default differs.
  "v4": Generation("TPU v4", 2, _LAYOUTS_3D, {"chip_config_name": "megacore"}),
  "v5e": Generation("TPU v5 lite", 1, _LAYOUTS_2D),
  "v5p": Generation("TPU v5", 2, _LAYOUTS_3D),
  "v6e": Generation("TPU v6 lite", 1, _LAYOUTS_2D),
}
# The number of chips of the largest slice, which is a v5p slice.
MAX_CHIPS = 8960


@dataclasses.dataclass(frozen=True)
class StepToCompile:
  """Holds the train step of a phase, and the shapes of its arguments.

  Attributes:
    phase: the phase.
    mesh: the mesh of the slice's devices.
    function: the step, (state, teacher_params, batch, key) -> (state, metrics).
    arguments: the arguments of `function`, as shapes with shardings.
    flops: FLOPs of a step on the whole slice, as the model counts them.
    remat: the model's remat setting.
    splits_update: True if the devices split the update.
    gradient_bytes: the bytes of the float32 gradients that a device computes.
      If the update is split, the device then keeps only a part of them.
  """

  phase: phases.Phase
  mesh: Mesh
  function: Callable[..., Any]
  arguments: tuple[Any, ...]
  flops: float
  remat: bool | None
  splits_update: bool
  gradient_bytes: int


def compiler_versions() -> dict[str, str]:
  """Returns the versions of jax and of libtpu, the TPU's compiler."""
  names = ("jax", "libtpu")
  return {name: importlib.metadata.version(name) for name in names}


def nearest_topology(slice_name: str) -> str:
  """Returns the known slice that an unknown name most likely means.

  The names of Cloud TPU are understood too; for example, v3-32 is v3:4x4.
  """
  # Cloud TPU calls the slice v5e:2x4, for example, v5litepod-8.
  prefix = re.findall(r"^[a-z]*\d*[a-z]*", slice_name.lower())[0]
  name, layout = prefix.replace("litepod", "e"), slice_name[len(prefix) :]
  # With cutoff 0.0, every name has a nearest generation.
  (generation,) = difflib.get_close_matches(name, GENERATIONS, 1, cutoff=0.0)
  cores_per_chip, layouts = (
    GENERATIONS[generation].cores_per_chip,
    GENERATIONS[generation].layouts,
  )
  num_wanted_chips = math.prod(int(n) for n in re.findall(r"\d+", layout))
  num_wanted_chips //= cores_per_chip if "-" in layout else 1
  nearest_layout = min(
    layouts, key=lambda x: abs(num_chips(x) - num_wanted_chips)
  )
  return f"{generation}:{nearest_layout}"


def num_chips(layout: str) -> int:
  """Returns the number of chips of a layout, for example 16 for "2x2x4"."""
  return math.prod(int(n) for n in layout.split("x"))


def devices_of_slice(slice_name: str) -> list[jax.Device]:
  """Returns a slice's devices. Programs can be compiled for them, but not run.

  Args:
    slice_name: the generation and the number of chips along each axis, for
      example "v2:4x4".

  Raises:
    ValueError: libtpu is not installed, or there is no such slice.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise UserError(
      "the TPU compiler, libtpu, is not installed: pip install 'bert_jax[tpu]'."
    )
  generation, _, layout = slice_name.partition(":")
  nearest_slice = nearest_topology(slice_name)
  nearest_generation = nearest_slice.partition(":")[0]
  unknown_slice_error = ValueError(
    f"--topology={slice_name} is not a slice; did you mean {nearest_slice}? The"
    f" generations are {', '.join(GENERATIONS)}; the slices of"
    f" {nearest_generation} are"
    f" {', '.join(GENERATIONS[nearest_generation].layouts)}."
  )
  if generation not in GENERATIONS or not re.fullmatch(r"\d+(x\d+)+", layout):
    raise unknown_slice_error
  # Check the size here, because libtpu crashes if a slice is very large.
  num_separators = GENERATIONS[generation].layouts[0].count("x")
  if layout.count("x") != num_separators or num_chips(layout) > MAX_CHIPS:
    raise unknown_slice_error
  try:
    options = GENERATIONS[generation].options
    return list(
      topologies.get_topology_desc(slice_name, "tpu", **options).devices
    )
  except jax.errors.JaxRuntimeError as e:
    if has_status(e, INVALID_ARGUMENT):
      raise unknown_slice_error from e
    raise UserError(
      f"the TPU compiler, libtpu, failed: {_first_sentence(e)}"
    ) from e


def batch_shapes(vocab_size: int, phase: phases.Phase) -> sharding.BatchShapes:
  """Returns {batch key: shape} for a phase of pre-training, and reads no data.

  Args:
    vocab_size: the number of pieces of the vocabulary.
    phase: the phase, whose length, batch size and recipe decide the shapes.
  """
  options = {
    k: v for k, v in phase.data_options.items() if k not in TEXT_OPTIONS
  }
  builder = options.pop("builder")
  # The values of the special ids do not change the shapes.
  recipe = make_recipe(builder, SpecialIds(0, 1, 2, 3, 4), vocab_size, options)
  return sharding.batch_shapes(recipe.features, phase.batch_size)


def with_published_vocabulary(
  config: config_lib.RunConfig,
) -> config_lib.RunConfig:
  """Fills in the keys of `model` that the data would decide.

  These keys are `vocab_size` and, for RoBERTa, `padding_id`. If they are None,
  they get the values of the published model.

  Raises:
    UserError: the config fine-tunes. Then the data decide more keys.
  """
  model = config.model
  if not isinstance(config.data, config_lib.Data) or model.family is None:
    raise UserError(
      "bert_jax compile compiles pre-training, but this config fine-tunes;"
      " choose a config that pre-trains."
    )
  family = models.family(model.family)
  published_model = family.build(next(iter(family.VARIANTS)))
  if model.vocab_size is None:
    is_cased = model.family == "bert" and config.data.cased
    vocab_size = CASED_VOCAB_SIZE if is_cased else published_model.vocab_size
    model = dataclasses.replace(model, vocab_size=vocab_size)
  if model.family == "roberta" and model.padding_id is None:
    model = dataclasses.replace(model, padding_id=published_model.padding_id)
  return dataclasses.replace(config, model=model)


def make_step(
  config: dict[str, Any], phase_index: int, slice_name: str
) -> StepToCompile:
  """Makes the train step of a phase for a slice.

  Args:
    config: the config that `train.run` takes. The folder `data.path` is not
      read.
    phase_index: the index of the phase; the first phase has 0.
    slice_name: the slice, see `devices_of_slice`.

  Raises:
    ValueError: the config is wrong, or there is no such slice.
  """
  parsed_config = with_published_vocabulary(config_lib.parse(config))
  mesh = sharding.make_mesh(
    parsed_config.mesh.data,
    parsed_config.mesh.fsdp,
    parsed_config.mesh.tensor,
    devices_of_slice(slice_name),
  )
  plan = phases.plan(parsed_config)
  phase = plan[phase_index]
  model = dataclasses.replace(
    parsed_config.model,
    remat=memory.choose_remat(parsed_config.model, plan, mesh),
  )
  parsed_config = dataclasses.replace(parsed_config, model=model)
  sharding.check_batch_size(mesh, phase.batch_size, phase.num_micro_batches)
  objective, schedule, optimizer = make_objective_and_optimizer(
    parsed_config, sharding.vocab_multiple(mesh)
  )
  vocab_size = parsed_config.model.vocab_size
  assert vocab_size, "`with_published_vocabulary` sets it."
  # Only shapes are needed, of the batch and of the random key.
  batch = sharding.global_batch_shapes(mesh, batch_shapes(vocab_size, phase))
  key = jax.eval_shape(lambda: jax.random.key(0))
  replicated_sharding = NamedSharding(mesh, PartitionSpec())
  key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=replicated_sharding)
  with sharding.use_mesh(mesh):
    boxed_params = jax.eval_shape(
      lambda x: objective.init(jax.random.key(0), x), batch
    )
    sharding.check_parameter_sizes(mesh, boxed_params)
    splits_update = update_sharding.splits_update(
      mesh, parsed_config.mesh.split_update
    )
    state = state_shapes(objective, optimizer, mesh, batch, splits_update)
    teacher_params = teacher_shapes(objective, mesh, batch)
    function = steps.make_train_step(
      objective,
      optimizer,
      schedule,
      phase.num_micro_batches,
      update_sharding.plan(mesh, boxed_params, parsed_config.model.unroll or 0)
      if splits_update
      else None,
    )
  # `flops` reads only the shapes of the batch.
  flops = objective.flops(cast(Batch, batch))
  arguments = (state, teacher_params, batch, key)
  return StepToCompile(
    phase,
    mesh,
    function,
    arguments,
    flops,
    remat=parsed_config.model.remat,
    splits_update=splits_update,
    gradient_bytes=bytes_per_device(
      sharding.with_shardings(mesh, boxed_params)
    ),
  )


def bytes_per_device(tree: Any) -> int:
  """Returns the number of bytes of a tree of arrays that one device holds.

  Args:
    tree: the shapes of the arrays, with shardings.
  """
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
  )


def parse_memory_message(message: str) -> dict[str, int] | None:
  """Reads two sizes from the compiler's message that the memory is too small.

  Returns:
    {"needed": bytes, "usable": bytes}; {} if the message has no numbers; None
    if it is not a message about memory.
  """
  if "RESOURCE_EXHAUSTED" not in message:
    return None
  size_pattern = r"([\d.]+)([KMGT]?)"
  match = re.search(
    rf"\({size_pattern}\) exceeds available HBM \({size_pattern}\)", message
  ) or re.search(rf"[Uu]sed {size_pattern} of {size_pattern} hbm", message)
  if not match:
    return {}
  bytes_of_unit = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
  return {
    "needed": round(float(match[1]) * bytes_of_unit[match[2]]),
    "usable": round(float(match[3]) * bytes_of_unit[match[4]]),
  }


def compile_step(
  config: dict[str, Any],
  phase_index: int,
  slice_name: str,
  estimates_cycles: bool = False,
) -> dict[str, Any]:
  """Compiles a phase's step, and reports what a device would hold and do.

  The compiler runs in a separate process, because it may crash, and because it
  does not free the memory that it used.

  Args:
    config: the run's config, see `make_step`.
    phase_index: the index of the phase; the first phase has 0.
    slice_name: the slice, see `devices_of_slice`.
    estimates_cycles: True to estimate the step's time.

  Returns:
    The report, which can be written as JSON. Bytes and FLOPs are for one
    device.

    | outcome | entries of the report |
    |---|---|
    | compiled | all of `compiled_entries`; `fits` is True or False |
    | out of memory | `refused` is the compiler's sentence; `fits` is False |
    | crashed | `crashed` says how; `fits` is None, which means not known |

    With `estimates_cycles`, a step that was compiled also has the entry
    `cycles`, the dict of `tpu_cycles.estimate_step`.
    If the memory does not suffice, `temporaries_bytes` is the number of bytes
    that the step needs according to the compiler; None if its message has no
    number.

  Raises:
    ValueError: see `make_step`; or the compiler failed, but not for lack of
      memory.
  """
  report: dict[str, Any] = {}
  start = time.monotonic()
  try:
    for entries in isolated.run_in_process(
      compile_in_this_process, config, phase_index, slice_name, estimates_cycles
    ):
      report |= entries
  except isolated.Crash as e:
    if not report:
      raise UserError(
        f"the compiler's process ended before it compiled: {e}."
      ) from e
    report |= dict(crashed=str(e), fits=None, temporaries_bytes=None)
    report |= dict(compile_seconds=round(time.monotonic() - start, 1))
  return report


def compile_in_this_process(
  config: dict[str, Any],
  phase_index: int,
  slice_name: str,
  estimates_cycles: bool = False,
) -> Iterator[dict[str, Any]]:
  """Compiles a phase's step in this process.

  Yields:
    The report's entries that are known before compiling, and then the entries
    that are known afterwards; see `compile_step`.
  """
  step = make_step(config, phase_index, slice_name)
  phase, num_devices = step.phase, step.mesh.size
  report = dict(
    topology=slice_name,
    devices=num_devices,
    mesh=dict(step.mesh.shape),
    phase=phase.name or "the only phase",
    number=phase_index + 1,
    length=phase.data_options["length"],
    batch_size=phase.batch_size,
    micro_batches=phase.num_micro_batches,
    hbm_bytes=memory.device_memory(step.mesh.devices.flat[0]),
    arguments_bytes=bytes_per_device(step.arguments),
    gradient_bytes=step.gradient_bytes,
    model_flops=step.flops / num_devices,
  )
  yield report
  start = time.monotonic()
  try:
    traced_step = trace_program(step)
    compiled_step = compile_program(step, traced_step)
    new_entries = compiled_entries(compiled_step, report)
    if estimates_cycles:
      new_entries["cycles"] = estimate_cycles(
        step, traced_step, compiled_step, slice_name
      )
  except jax.errors.JaxRuntimeError as e:
    memory_sizes = parse_memory_message(str(e))
    if memory_sizes is None:
      raise UserError(f"the TPU compiler failed: {_first_sentence(e)}") from e
    new_entries = dict(
      temporaries_bytes=memory_sizes.get("needed"),
      usable_bytes=memory_sizes.get("usable"),
      fits=False,
      refused=_first_sentence(e),
    )
  yield new_entries | dict(compile_seconds=round(time.monotonic() - start, 1))


def trace_program(step: StepToCompile) -> jax.stages.Traced:
  """Traces a step with the settings of the training loop."""
  state_shardings = jax.tree.map(lambda x: x.sharding, step.arguments[0])
  jitted_step = jax.jit(
    step.function,
    donate_argnums=0,
    out_shardings=(state_shardings, None),
    compiler_options=sharding.compiler_options(
      step.mesh.devices.flat[0], bool(step.remat), step.splits_update
    ),
  )
  with sharding.use_mesh(step.mesh):
    return jitted_step.trace(*step.arguments)


def compile_program(
  step: StepToCompile, traced_step: jax.stages.Traced | None = None
) -> jax.stages.Compiled:
  """Compiles a step with the settings of the training loop.

  Args:
    step: the step.
    traced_step: what `trace_program` returned for the step; None traces the
      step here.
  """
  traced_step = traced_step or trace_program(step)
  with sharding.use_mesh(step.mesh):
    return traced_step.lower(lowering_platforms=("tpu",)).compile()


def estimate_cycles(
  step: StepToCompile,
  traced_step: jax.stages.Traced,
  compiled: jax.stages.Compiled,
  slice_name: str,
) -> dict[str, Any]:
  """Estimates the time of a compiled step; see `tpu_cycles.estimate_step`.

  Args:
    step: the step.
    traced_step: what `trace_program` returned for the step.
    compiled: what `compile_program` returned for the step.
    slice_name: the slice, see `devices_of_slice`.
  """
  program_text = compiled.as_text()
  assert program_text, "libtpu gives it."
  return tpu_cycles.estimate_step(
    hlo.parse_program(program_text),
    kernel_operations.count_kernel_operations(traced_step),
    slice_name,
    step.mesh.size,
    step.flops / step.mesh.size,
  )


def _first_sentence(error: Exception) -> str:
  """Returns the first line of an error's message, as a sentence."""
  return str(error).partition("\n")[0].strip().rstrip(".") + "."


def compiled_entries(
  compiled: jax.stages.Compiled, report: dict[str, Any]
) -> dict[str, Any]:
  """Returns the entries of a report that only a compiled step has.

  Args:
    compiled: the compiled step.
    report: the entries that were known before compiling.
  """
  memory_sizes, costs = compiled.memory_analysis(), compiled.cost_analysis()
  program_text = compiled.as_text()
  assert memory_sizes and costs and program_text, "libtpu gives all of these."
  total_bytes = (
    memory_sizes.argument_size_in_bytes
    + memory_sizes.output_size_in_bytes
    - memory_sizes.alias_size_in_bytes
    + memory_sizes.temp_size_in_bytes
    + memory_sizes.generated_code_size_in_bytes
  )
  flops = costs["flops"]
  program = hlo.parse_program(program_text)
  collectives = hlo.collective_traffic(program)
  all_reduced_bytes = (
    collectives["all-reduce"].bytes if "all-reduce" in collectives else 0
  )
  return dict(
    arguments_bytes=memory_sizes.argument_size_in_bytes,
    outputs_bytes=memory_sizes.output_size_in_bytes,
    aliased_bytes=memory_sizes.alias_size_in_bytes,
    temporaries_bytes=memory_sizes.temp_size_in_bytes,
    code_bytes=memory_sizes.generated_code_size_in_bytes,
    total_bytes=total_bytes,
    fits=total_bytes <= report["hbm_bytes"],
    flops=flops,
    flops_ratio=round(flops / report["model_flops"], 4),
    loops=hlo.loop_trip_counts(program),
    collectives={
      kind: dataclasses.asdict(traffic)
      for kind, traffic in sorted(collectives.items())
    },
    all_reduced_bytes=all_reduced_bytes,
    all_reduced_ratio=round(all_reduced_bytes / report["gradient_bytes"], 4),
  )
