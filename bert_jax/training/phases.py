"""Phases of a run: steps, length, batch size and predictions of each.

`Run.phases` is {} for a run of one phase, or {"phase1": ..., "phase2": ...},
each a `config.Phase`. All share one learning rate line over `total_steps`.
"""

import dataclasses
from typing import Any, NamedTuple

from bert_jax.training import config as config_lib

# Keys that a phase may set although `config.data` has them too.
OVERRIDING = {"mask_rate"}


class Phase(NamedTuple):
  """A stretch of steps with batches of one shape.

  Attributes:
    name: of its section, "phase1", ...
    number: 0 for the first.
    start: first step (0 is the run's first).
    end: the step after its last.
    batch_size: rows of all hosts.
    micro_batches: parts that a batch is split into.
    data: keyword arguments of `loader.open_data`, seed excepted.
  """

  name: str
  number: int
  start: int
  end: int
  batch_size: int
  micro_batches: int
  data: dict[str, Any]

  def first_example(self, step: int) -> int:
    """The phase's example that the batch of `step` begins with."""
    return (step - self.start) * self.batch_size


def _own_data(section: config_lib.Phase) -> dict[str, Any]:
  """The options of the data that a phase has of its own."""
  values = dataclasses.asdict(section)
  names = ("length", "max_predictions", "mask_rate")
  return {name: values[name] for name in names if values[name] is not None}


def plan(run: config_lib.Run) -> list[Phase]:
  """The phases of a run, in order; they cover every step once.

  In a run of a few steps a phase may have none.

  Raises:
    ValueError: fractions that do not add up to 1, a batch that is no whole
      number, a key in both places, more prediction slots than tokens, none
      where tokens are hidden, some where none are.
  """
  total, data = run.total_steps, config_lib.options(run.data)
  names = [f"phase{i + 1}" for i in range(len(run.phases))]
  if sorted(run.phases) != sorted(names):
    raise ValueError(
      f"config.phases: name them phase1, phase2, ... in their order, not"
      f" {', '.join(run.phases)}."
    )
  scales = {
    name: (
      run.phases[name].fraction,
      run.phases[name].batch_scale,
      run.phases[name].micro_scale,
    )
    for name in names
  } or {"": (1.0, 1.0, 1)}
  whole = sum(fraction for fraction, *_ in scales.values())
  positive = all(fraction > 0 for fraction, *_ in scales.values())
  if not (positive and abs(whole - 1.0) <= 1e-6):
    raise ValueError(
      f"config.phases: the fractions must be positive and add up to 1; they"
      f" add up to {whole:g}."
    )
  phases, done = [], 0.0
  for number, name in enumerate(scales):
    fraction, batch_scale, micro_scale = scales[name]
    own_data = _own_data(run.phases[name]) if name else {}
    start = round(done * total)
    done += fraction
    end = total if number == len(scales) - 1 else round(done * total)
    rows = run.batch_size * batch_scale
    if not (rows >= 1 and rows % 1 == 0):
      raise ValueError(
        f"config.phases.{name}.batch_scale={batch_scale}: batch_size"
        f"={run.batch_size} times it is {rows:g}, no number of rows."
      )
    for key in own_data.keys() & data.keys() - OVERRIDING:
      raise ValueError(
        f"config.data.{key}: each of config.phases has its own; remove it."
      )
    micro = run.micro_batches * micro_scale
    options = data | own_data
    if name:
      _check_hidden(f"phases.{name}", options)
    _check_slots(f"phases.{name}" if name else "data", options)
    phases.append(Phase(name, number, start, end, int(rows), micro, options))
  return phases


def _check_hidden(section: str, options: dict[str, Any]) -> None:
  """Raises ValueError unless a phase has slots where its rows hide tokens."""
  builder, key = options.get("builder"), f"config.{section}.max_predictions"
  bare = builder in config_lib.BARE
  if bare and "max_predictions" in options:
    raise ValueError(
      f"{key}: data.builder={builder} hides no tokens; remove it."
    )
  if not bare and "max_predictions" not in options:
    raise ValueError(
      f"{key} is missing: data.builder={builder} hides tokens; say how many of"
      " a row at most."
    )


def _check_slots(section: str, options: dict[str, Any]) -> None:
  """Raises ValueError at more prediction slots than tokens in a row."""
  slots, length = options.get("max_predictions"), options.get("length")
  # Without one of them, it is the builder's own.
  if slots is not None and length is not None and slots > length:
    raise ValueError(
      f"config.{section}.max_predictions={slots}: must be at most"
      f" {section}.length={length}, a slot for each token."
    )
