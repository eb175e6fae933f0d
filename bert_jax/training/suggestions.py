"""Suggests changes of a config with which a step fits into devices' memory.

Each change is compiled before it is suggested.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

from bert_jax.training import topologies

# The largest number of changes that are compiled. A change that does not fit is
# refused within seconds. A change that fits compiles for a minute.
MAX_TRIALS = 10


def find_suggestion(
  config: dict[str, Any], phase_index: int, report: dict[str, Any]
) -> dict[str, Any]:
  """Looks for a change with which a phase's step fits.

  Args:
    config: a config whose step does not fit or crashes the compiler.
    phase_index: the index of the phase; the first phase has 0.
    report: the result of `topologies.compile_step` for this config and phase.

  Returns:
    {"offer": the flags of the change as text, or None if no change fits,
    "offer_total_bytes": bytes that a device then needs, "tried": the flags of
    changes that do not fit}.
  """
  tried_flags: list[str] = []
  for settings, topology in candidate_changes(config, phase_index, report):
    if len(tried_flags) == MAX_TRIALS:
      break
    changed_config = with_settings(config, settings)
    try:
      new_report = topologies.compile_step(
        changed_config, phase_index, topology
      )
    except ValueError:
      continue  # The batch or a layer cannot be split evenly over the devices.
    flags = [f"--config.{key}={settings[key]}" for key in settings]
    if topology != report["topology"]:
      flags.insert(0, f"--topology={topology}")
    if new_report["fits"]:
      total_bytes = new_report["total_bytes"]
      return dict(
        offer=" ".join(flags), offer_total_bytes=total_bytes, tried=tried_flags
      )
    tried_flags.append(" ".join(flags))
  return dict(offer=None, offer_total_bytes=None, tried=tried_flags)


def candidate_changes(
  config: dict[str, Any], phase_index: int, report: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], str]]:
  """Yields ({config key: value}, topology); the fastest changes come first.

  `find_suggestion` describes the arguments.
  """
  topology, model = report["topology"], config["model"]
  if "crashed" in report and "remat" in model:
    # If the compiler crashed, first try the other remat setting: the crash is
    # usually in the program that remat produces.
    yield {"model.remat": not model["remat"]}, topology
  remat_setting = {} if model.get("remat", True) else {"model.remat": True}
  split_settings: dict[str, Any] = {}
  if report["arguments_bytes"] + report["gradient_bytes"] > report["hbm_bytes"]:
    # One device cannot hold the whole state, so all devices split it. More
    # devices that each hold the whole state would not help.
    split_settings = _split_settings(config, report["devices"])
    yield split_settings, topology
  scales = _micro_scales(report)
  micro_batch_settings = [
    _micro_batch_setting(config, phase_index, scale) for scale in scales
  ]
  # First more micro-batches, which cost hardly any time. Then remat, which
  # costs the time of a part of a forward pass.
  yield from (
    (split_settings | setting, topology) for setting in micro_batch_settings
  )
  if remat_setting:
    yield split_settings | remat_setting, topology
    yield from (
      (split_settings | remat_setting | setting, topology)
      for setting in micro_batch_settings
    )
  for larger_slice, factor in _larger_slices(topology):
    num_devices = round(report["devices"] * factor)
    larger_settings = (
      _split_settings(config, num_devices) if split_settings else {}
    )
    yield larger_settings, larger_slice
    if remat_setting:
      yield larger_settings | remat_setting, larger_slice


def with_settings(
  config: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
  """Returns a copy of a config with settings: {"mesh.fsdp": value, ...}."""
  changed_config = copy.deepcopy(config)
  for path, setting in settings.items():
    *sections, key = path.split(".")
    section = changed_config
    for name in sections:
      section = section[name]
    section[key] = setting
  return changed_config


def _split_settings(config: dict[str, Any], num_devices: int) -> dict[str, Any]:
  """Returns the settings with which all devices split the state."""
  return {
    "mesh.data": 1,
    "mesh.fsdp": num_devices // config["mesh"]["tensor"],
  }


def _micro_batch_setting(
  config: dict[str, Any], phase_index: int, scale: int
) -> dict[str, Any]:
  """Returns the setting that multiplies a phase's micro-batches by `scale`."""
  if config["phases"]:
    name = f"phase{phase_index + 1}"
    old_scale = config["phases"][name]["micro_scale"]
    return {f"phases.{name}.micro_scale": old_scale * scale}
  return {"micro_batches": config["micro_batches"] * scale}


def _micro_scales(report: dict[str, Any]) -> list[int]:
  """Returns up to three factors for the number of micro-batches, ascending.

  Most bytes of temporaries are proportional to the rows of a micro-batch. If
  all of them were, the first factor would suffice. The second factor is twice
  the first, and the third leaves one row of a micro-batch on each device. A
  factor that does not divide the rows evenly is left out.
  """
  num_shards = report["mesh"]["data"] * report["mesh"]["fsdp"]
  rows_per_device = (
    report["batch_size"] // report["micro_batches"] // num_shards
  )
  fixed_bytes = report["arguments_bytes"] + report["gradient_bytes"]
  # If parameters and gradients leave less than a quarter of the memory,
  # calculate with a quarter.
  free_bytes = max(report["hbm_bytes"] - fixed_bytes, report["hbm_bytes"] // 4)
  # If the number of temporaries' bytes is not known, assume twice the free
  # bytes.
  ratio = (report["temporaries_bytes"] or 2 * free_bytes) / free_bytes
  first_factor = 2 ** max(1, math.ceil(math.log2(max(ratio, 1))))
  factors = sorted({first_factor, 2 * first_factor, rows_per_device})
  return [f for f in factors if f > 1 and rows_per_device % f == 0][:3]


def _larger_slices(topology: str) -> Iterator[tuple[str, float]]:
  """Yields the known slices of the same generation that have more chips.

  Yields:
    The name of a slice, and its number of chips divided by that of `topology`.
  """
  name, _, layout = topology.partition(":")
  for larger_layout in topologies.GENERATIONS[name].layouts:
    factor = topologies.num_chips(larger_layout) / topologies.num_chips(layout)
    if factor > 1:
      yield f"{name}:{larger_layout}", factor
