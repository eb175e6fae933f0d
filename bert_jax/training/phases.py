"""Plans the phases of a run: their steps, row lengths and batch sizes.

`config.RunConfig.phases` is {"phase1": config.Phase, "phase2": ...}; {} means a
run of one phase. All phases share one learning-rate schedule over
`total_steps`.
"""

import dataclasses
from typing import Any

from bert_jax.messages import UserError
from bert_jax.training import config as config_lib

# Keys of `config.data` that a phase may override.
OVERRIDING_KEYS = {"mask_rate"}


@dataclasses.dataclass(frozen=True)
class Phase:
  """Describes the steps of one phase, and their batches.

  Attributes:
    name: the name of the section, "phase1", ...; "" in a run of one phase.
    index: the index of the phase; the first phase has 0.
    start: the first step; the run's first step is 0.
    end: the step after the last step.
    batch_size: the number of rows of a batch, over all hosts.
    num_micro_batches: the number of micro-batches into which a batch is split.
    data_options: for a text, the keyword arguments of `loader.open_data`
      without the seed; for a task, the options of the config's section `data`.
  """

  name: str
  index: int
  start: int
  end: int
  batch_size: int
  num_micro_batches: int
  data_options: dict[str, Any]

  def first_example(self, step: int) -> int:
    """Returns the index, in the phase, of the first example of a step."""
    return (step - self.start) * self.batch_size


def plan(config: config_lib.RunConfig) -> list[Phase]:
  """Returns the phases of a run in order; each step is in exactly one phase.

  If a run has only a few steps, a phase may have no steps.

  Args:
    config: the config, with its number of steps.

  Raises:
    UserError: the phases have wrong names, the fractions do not add up to 1, a
      batch is not a whole number of rows, a key is set both in `data` and in a
      phase, there are more prediction slots than tokens, or `max_predictions`
      is missing or not allowed.
  """
  shared_options = config.data.options()
  sections = _sections(config)
  phases, fraction_done = [], 0.0
  for index, (name, section) in enumerate(sections.items()):
    start = round(fraction_done * config.steps)
    fraction_done += section.fraction
    end = round(fraction_done * config.steps)
    if index == len(sections) - 1:
      end = config.steps
    num_rows = config.batch_size * section.batch_scale
    if not (num_rows >= 1 and num_rows % 1 == 0):
      raise UserError(
        f"config.phases.{name}.batch_scale={section.batch_scale} times"
        f" batch_size={config.batch_size} is {num_rows:g}, which is not a whole"
        " number of rows."
      )
    options = shared_options
    if name:
      options = _with_phase_options(shared_options, section)
      _check_max_predictions(f"phases.{name}", options)
    _check_number_of_slots(f"phases.{name}" if name else "data", options)
    micro_batches = config.micro_batches * section.micro_scale
    phases.append(
      Phase(name, index, start, end, int(num_rows), micro_batches, options)
    )
  return phases


def _sections(config: config_lib.RunConfig) -> dict[str, config_lib.Phase]:
  """Returns phase name -> section, in order.

  A config without phases has one phase, with the name "".
  """
  names = [f"phase{i + 1}" for i in range(len(config.phases))]
  if sorted(config.phases) != sorted(names):
    raise UserError(
      f"config.phases: the phases must have the names phase1, phase2, ... in"
      f" their order, not {', '.join(config.phases)}."
    )
  if not names:
    only_section = config_lib.Phase(
      fraction=1.0, length=0, batch_scale=1.0, micro_scale=1
    )
    return {"": only_section}
  fractions = [config.phases[name].fraction for name in names]
  total = sum(fractions)
  if not (all(f > 0 for f in fractions) and abs(total - 1.0) <= 1e-6):
    raise UserError(
      f"config.phases: the fractions must be positive and add up to 1; they"
      f" add up to {total:g}."
    )
  return {name: config.phases[name] for name in names}


def _with_phase_options(
  data: dict[str, Any], section: config_lib.Phase
) -> dict[str, Any]:
  """Returns the options of the data of a phase.

  Args:
    data: the options that all phases share.
    section: the phase's section, whose options are added.

  Raises:
    UserError: `data` and `section` both set a key that is not in
      OVERRIDING_KEYS.
  """
  options = {
    name: setting
    for name, setting in section.options().items()
    if name in ("length", "max_predictions", "mask_rate")
  }
  for key in options.keys() & data.keys() - OVERRIDING_KEYS:
    raise UserError(
      f"config.data.{key} is also in each phase of config.phases; remove"
      f" config.data.{key}."
    )
  return data | options


def _check_max_predictions(section: str, options: dict[str, Any]) -> None:
  """Raises UserError if `max_predictions` is missing or not allowed.

  Args:
    section: the section of the phase, for messages.
    options: the options of the phase's data.
  """
  builder, key = options.get("builder"), f"config.{section}.max_predictions"
  is_unmasked = builder in config_lib.UNMASKED_BUILDERS
  if is_unmasked and "max_predictions" in options:
    raise UserError(
      f"{key} is set, but data.builder={builder} hides no tokens; remove it."
    )
  if not is_unmasked and "max_predictions" not in options:
    raise UserError(
      f"{key} is missing, but data.builder={builder} hides tokens; set the"
      " largest number of hidden tokens in a row."
    )


def _check_number_of_slots(section: str, options: dict[str, Any]) -> None:
  """Raises UserError if rows have more prediction slots than tokens."""
  num_slots, length = options.get("max_predictions"), options.get("length")
  # If the config lacks one of the two options, the recipe makes this check.
  if num_slots is not None and length is not None and num_slots > length:
    raise UserError(
      f"config.{section}.max_predictions={num_slots} must be at most"
      f" {section}.length={length}, which is a slot for each token."
    )
