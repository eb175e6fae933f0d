"""Phases of a run: the steps, row length, batch size and data of each.

`Run.phases` is {} for a run of one phase, or {"phase1": ..., "phase2": ...},
each a `config.Phase`. All phases share one learning-rate schedule over
`total_steps`.
"""

import dataclasses
from typing import Any

from bert_jax.messages import UserError
from bert_jax.training import config as config_lib

# Keys that a phase may set although `config.data` has them too.
OVERRIDING = {"mask_rate"}


@dataclasses.dataclass(frozen=True)
class Phase:
  """Consecutive steps with batches of one shape.

  Attributes:
    name: the name of its section, "phase1", ...; "" in a run of one phase.
    number: its number; 0 for the first phase.
    start: its first step; the run's first step is 0.
    end: the step after its last step.
    batch_size: rows of a batch over all hosts.
    micro_batches: number of equal pieces into which a batch is split.
    data: keyword arguments of `loader.open_data`, except the seed.
  """

  name: str
  number: int
  start: int
  end: int
  batch_size: int
  micro_batches: int
  data: dict[str, Any]

  def first_example(self, step: int) -> int:
    """Returns the number of the first example in the batch of `step`."""
    return (step - self.start) * self.batch_size


def plan(run: config_lib.Run) -> list[Phase]:
  """Returns the phases of a run in order; together they have every step once.

  In a run of a few steps a phase may have no steps.

  Args:
    run: the config, with its number of steps.

  Raises:
    UserError: the phases have wrong names, the fractions do not add up to 1, a
      batch is not a whole number of rows, a key is set both in `data` and in a
      phase, there are more prediction slots than tokens, or `max_predictions`
      is missing or not allowed.
  """
  shared_options = run.data.options()
  sections = _sections(run)
  phases, fraction_done = [], 0.0
  for number, (name, section) in enumerate(sections.items()):
    start = round(fraction_done * run.steps)
    fraction_done += section.fraction
    end = round(fraction_done * run.steps)
    if number == len(sections) - 1:
      end = run.steps
    rows = run.batch_size * section.batch_scale
    if not (rows >= 1 and rows % 1 == 0):
      raise UserError(
        f"config.phases.{name}.batch_scale={section.batch_scale}: batch_size"
        f"={run.batch_size} times it is {rows:g}, no number of rows."
      )
    options = shared_options
    if name:
      options = _with_phase(shared_options, section)
      _check_hidden(f"phases.{name}", options)
    _check_slots(f"phases.{name}" if name else "data", options)
    micro_batches = run.micro_batches * section.micro_scale
    phases.append(
      Phase(name, number, start, end, int(rows), micro_batches, options)
    )
  return phases


def _sections(run: config_lib.Run) -> dict[str, config_lib.Phase]:
  """Returns name -> section of the phases in order; "" for the only phase."""
  names = [f"phase{i + 1}" for i in range(len(run.phases))]
  if sorted(run.phases) != sorted(names):
    raise UserError(
      f"config.phases: name them phase1, phase2, ... in their order, not"
      f" {', '.join(run.phases)}."
    )
  if not names:
    whole = config_lib.Phase(
      fraction=1.0, length=0, batch_scale=1.0, micro_scale=1
    )
    return {"": whole}
  fractions = [run.phases[name].fraction for name in names]
  total = sum(fractions)
  if not (all(f > 0 for f in fractions) and abs(total - 1.0) <= 1e-6):
    raise UserError(
      f"config.phases: the fractions must be positive and add up to 1; they"
      f" add up to {total:g}."
    )
  return {name: run.phases[name] for name in names}


def _with_phase(
  data: dict[str, Any], section: config_lib.Phase
) -> dict[str, Any]:
  """Returns the options of the data, with those that a phase sets."""
  options = {
    name: setting
    for name, setting in section.options().items()
    if name in ("length", "max_predictions", "mask_rate")
  }
  for key in options.keys() & data.keys() - OVERRIDING:
    raise UserError(
      f"config.data.{key}: each of config.phases has its own; remove it."
    )
  return data | options


def _check_hidden(section: str, options: dict[str, Any]) -> None:
  """Raises UserError unless rows have prediction slots if they hide tokens.

  Args:
    section: the section of the phase, for messages.
    options: the options of the phase's data.
  """
  builder, key = options.get("builder"), f"config.{section}.max_predictions"
  bare = builder in config_lib.BARE
  if bare and "max_predictions" in options:
    raise UserError(
      f"{key}: data.builder={builder} hides no tokens; remove it."
    )
  if not bare and "max_predictions" not in options:
    raise UserError(
      f"{key} is missing: data.builder={builder} hides tokens; say how many of"
      " a row at most."
    )


def _check_slots(section: str, options: dict[str, Any]) -> None:
  """Raises UserError if rows have more prediction slots than tokens."""
  slots, length = options.get("max_predictions"), options.get("length")
  # If a config sets only one of them, the recipe checks it.
  if slots is not None and length is not None and slots > length:
    raise UserError(
      f"config.{section}.max_predictions={slots}: must be at most"
      f" {section}.length={length}, a slot for each token."
    )
