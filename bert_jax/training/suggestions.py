"""Suggests changes that make a step fit; each was compiled before."""

import copy
import math
from collections.abc import Iterator
from typing import Any

from bert_jax.training import topologies

# Compiles at most; one that does not fit is refused in seconds, one that does
# takes a minute.
MAX_TRIALS = 10


def find_offer(
  config: dict[str, Any], number: int, report: dict[str, Any]
) -> dict[str, Any]:
  """Looks for a change under which a phase's step fits.

  Args:
    config: under which it does not, or the compiler crashes.
    number: the number of the phase; 0 is the first.
    report: the result of `topologies.compile_step` for it.

  Returns:
    {"offer": flags as text, or None if none that was tried fits,
    "offer_total_bytes": of a device then, "tried": the flags that did not
    help}.
  """
  tried: list[str] = []
  for values, topology in candidates(config, number, report):
    if len(tried) == MAX_TRIALS:
      break
    try:
      other = topologies.compile_step(change(config, values), number, topology)
    except ValueError:
      continue  # It does not divide the batch or a layer.
    flags = [f"--config.{key}={value}" for key, value in values.items()]
    if topology != report["topology"]:
      flags.insert(0, f"--topology={topology}")
    if other["fits"]:
      total = other["total_bytes"]
      return dict(offer=" ".join(flags), offer_total_bytes=total, tried=tried)
    tried.append(" ".join(flags))
  return dict(offer=None, offer_total_bytes=None, tried=tried)


def candidates(
  config: dict[str, Any], number: int, report: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], str]]:
  """Yields ({config key: value}, topology), what costs a run least first."""
  topology, model = report["topology"], config["model"]
  if "crashed" in report and "remat" in model:
    # If the compiler crashed, first try the other remat setting: the crash is
    # usually in the program that remat produces.
    yield {"model.remat": not model["remat"]}, topology
  remat = {} if model.get("remat", True) else {"model.remat": True}
  split: dict[str, Any] = {}
  if report["arguments_bytes"] + report["gradient_bytes"] > report["hbm_bytes"]:
    # More chips that each hold all of the state do not help: it is split.
    split = _split(config, report["devices"])
    yield split, topology
  micro = [_micro(config, number, times) for times in _micro_scales(report)]
  # More micro-batches cost hardly any time, remat a part of a forward pass.
  yield from ((split | more, topology) for more in micro)
  if remat:
    yield split | remat, topology
    yield from ((split | remat | more, topology) for more in micro)
  for larger, times in _larger(topology):
    more = _split(config, round(report["devices"] * times)) if split else {}
    yield more, larger
    if remat:
      yield more | remat, larger


def change(config: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
  """The config with other values, by keys as in flags."""
  changed = copy.deepcopy(config)
  for path, value in values.items():
    *sections, key = path.split(".")
    section = changed
    for name in sections:
      section = section[name]
    section[key] = value
  return changed


def _split(config: dict[str, Any], devices: int) -> dict[str, Any]:
  return {
    "mesh.data": 1,
    "mesh.fsdp": devices // config["mesh"]["tensor"],
  }


def _micro(config: dict[str, Any], number: int, times: int) -> dict[str, Any]:
  """More micro-batches of one phase, or of a run without phases."""
  if config["phases"]:
    name = f"phase{number + 1}"
    scale = config["phases"][name]["micro_scale"]
    return {f"phases.{name}.micro_scale": scale * times}
  return {"micro_batches": config["micro_batches"] * times}


def _micro_scales(report: dict[str, Any]) -> list[int]:
  """Up to three factors for the micro-batches, from small to large.

  Temporaries go with a micro-batch's rows, but for the gradients; the first
  factor is what would do if there were nothing else, the last leaves one row.
  """
  shards = report["mesh"]["data"] * report["mesh"]["fsdp"]
  rows = report["batch_size"] // report["micro_batches"] // shards
  fixed = report["arguments_bytes"] + report["gradient_bytes"]
  room = max(report["hbm_bytes"] - fixed, report["hbm_bytes"] // 4)
  need = (report["temporaries_bytes"] or 2 * room) / room
  first = 2 ** max(1, math.ceil(math.log2(max(need, 1))))
  factors = sorted({first, 2 * first, rows})
  return [times for times in factors if times > 1 and rows % times == 0][:3]


def _larger(topology: str) -> Iterator[tuple[str, float]]:
  """Known slices of the same generation with more chips: name, times more."""
  name, _, layout = topology.partition(":")
  for larger in topologies.GENERATIONS[name].layouts:
    if topologies.chips(larger) > topologies.chips(layout):
      yield (
        f"{name}:{larger}",
        topologies.chips(larger) / topologies.chips(layout),
      )
