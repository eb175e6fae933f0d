"""Suggests a change of the config with which a step fits on the devices.

Each change is compiled before it is suggested.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

from bert_jax.training import topologies

# The most changes that are compiled. The compiler refuses one that does not fit
# in seconds; one that fits takes a minute.
MAX_TRIALS = 10


def find_offer(
  config: dict[str, Any], number: int, report: dict[str, Any]
) -> dict[str, Any]:
  """Looks for a change with which a phase's step fits.

  Args:
    config: a config whose step does not fit or crashes the compiler.
    number: the number of the phase; 0 is the first.
    report: the result of `topologies.compile_step` for this config and phase.

  Returns:
    {"offer": the flags of the change as text, or None if no change fits,
    "offer_total_bytes": bytes that a device then needs, "tried": the flags of
    changes that do not fit}.
  """
  tried: list[str] = []
  for settings, topology in candidates(config, number, report):
    if len(tried) == MAX_TRIALS:
      break
    changed = change(config, settings)
    try:
      new_report = topologies.compile_step(changed, number, topology)
    except ValueError:
      continue  # The devices do not divide the batch or a layer.
    flags = [f"--config.{key}={settings[key]}" for key in settings]
    if topology != report["topology"]:
      flags.insert(0, f"--topology={topology}")
    if new_report["fits"]:
      total = new_report["total_bytes"]
      return dict(offer=" ".join(flags), offer_total_bytes=total, tried=tried)
    tried.append(" ".join(flags))
  return dict(offer=None, offer_total_bytes=None, tried=tried)


def candidates(
  config: dict[str, Any], number: int, report: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], str]]:
  """Yields ({config key: value}, topology); the cheapest for a run comes first.

  For the arguments see `find_offer`.
  """
  topology, model = report["topology"], config["model"]
  if "crashed" in report and "remat" in model:
    # If the compiler crashed, first try the other remat setting: the crash is
    # usually in the program that remat produces.
    yield {"model.remat": not model["remat"]}, topology
  remat = {} if model.get("remat", True) else {"model.remat": True}
  split: dict[str, Any] = {}
  if report["arguments_bytes"] + report["gradient_bytes"] > report["hbm_bytes"]:
    # One device cannot hold the whole state, so all devices split it. More
    # devices that each hold the whole state would not help.
    split = _split(config, report["devices"])
    yield split, topology
  scales = _micro_scales(report)
  micro_batches = [_micro(config, number, scale) for scale in scales]
  # More micro-batches cost hardly any time. Remat costs a part of a forward
  # pass.
  yield from ((split | setting, topology) for setting in micro_batches)
  if remat:
    yield split | remat, topology
    yield from (
      (split | remat | setting, topology) for setting in micro_batches
    )
  for larger, times in _larger(topology):
    devices = round(report["devices"] * times)
    larger_split = _split(config, devices) if split else {}
    yield larger_split, larger
    if remat:
      yield larger_split | remat, larger


def change(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
  """Returns a copy of a config with other settings.

  Args:
    config: the config.
    settings: key as in a flag ("mesh.fsdp") -> value.
  """
  changed = copy.deepcopy(config)
  for path, setting in settings.items():
    *sections, key = path.split(".")
    section = changed
    for name in sections:
      section = section[name]
    section[key] = setting
  return changed


def _split(config: dict[str, Any], devices: int) -> dict[str, Any]:
  """Returns the settings with which all devices split the state."""
  return {
    "mesh.data": 1,
    "mesh.fsdp": devices // config["mesh"]["tensor"],
  }


def _micro(config: dict[str, Any], number: int, scale: int) -> dict[str, Any]:
  """Returns the setting with `scale` times as many micro-batches of a phase."""
  if config["phases"]:
    name = f"phase{number + 1}"
    old_scale = config["phases"][name]["micro_scale"]
    return {f"phases.{name}.micro_scale": old_scale * scale}
  return {"micro_batches": config["micro_batches"] * scale}


def _micro_scales(report: dict[str, Any]) -> list[int]:
  """Returns up to three factors for the number of micro-batches, ascending.

  The bytes of temporaries are proportional to the rows of a micro-batch, except
  for the gradients. The first factor suffices if all temporaries are
  proportional. The last factor leaves one row on a device.
  """
  shards = report["mesh"]["data"] * report["mesh"]["fsdp"]
  rows = report["batch_size"] // report["micro_batches"] // shards
  fixed = report["arguments_bytes"] + report["gradient_bytes"]
  room = max(report["hbm_bytes"] - fixed, report["hbm_bytes"] // 4)
  need = (report["temporaries_bytes"] or 2 * room) / room
  first = 2 ** max(1, math.ceil(math.log2(max(need, 1))))
  factors = sorted({first, 2 * first, rows})
  return [f for f in factors if f > 1 and rows % f == 0][:3]


def _larger(topology: str) -> Iterator[tuple[str, float]]:
  """Yields the larger slices of a generation.

  Args:
    topology: the name of a slice, for example "v4:2x2x1".

  Yields:
    The name of a larger slice, and how many times as many chips it has.
  """
  name, _, layout = topology.partition(":")
  for larger in topologies.GENERATIONS[name].layouts:
    times = topologies.chips(larger) / topologies.chips(layout)
    if times > 1:
      yield f"{name}:{larger}", times
