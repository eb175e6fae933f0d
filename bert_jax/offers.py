"""What would make a step fit: changes that were compiled before being said."""

import copy
import math
from collections.abc import Iterator
from typing import Any

from bert_jax import slices

# Compiles at most; each takes minutes.
MAX_TRIALS = 4


def find_offer(
  config: dict[str, Any], number: int, report: dict[str, Any]
) -> dict[str, Any]:
  """Looks for a change under which a phase's step fits.

  Args:
    config: under which it does not.
    number: of the phase, 0 is the first.
    report: what `slices.compile_step` said of it.

  Returns:
    {"offer": flags as text, or None if none that was tried fits, "offer_total":
    bytes of a device then, "tried": the flags that did not help}.
  """
  tried: list[str] = []
  for flags, changed, topology in candidates(config, number, report):
    if len(tried) == MAX_TRIALS:
      break
    try:
      other = slices.compile_step(changed, number, topology)
    except ValueError:
      continue  # It does not divide the batch or a layer.
    if other["fits"]:
      total = other["total_bytes"]
      return dict(offer=flags, offer_total_bytes=total, tried=tried)
    tried.append(flags)
  return dict(offer=None, offer_total_bytes=None, tried=tried)


def candidates(
  config: dict[str, Any], number: int, report: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], str]]:
  """Yields (flags, config, topology), what costs a run least first."""
  topology = report["topology"]
  if report["arguments_bytes"] < report["hbm_bytes"]:
    # More micro-batches cost hardly any time, remat a forward pass.
    for times in _micro_scales(report):
      yield (*_micro(config, number, times), topology)
    yield (*_change(config, {"model.remat": True}), topology)
    flags, changed = _change(config, {"model.remat": True})
    times = math.prod([2, *_micro_scales(report)[:1]])
    more, changed = _micro(changed, number, times)
    yield f"{flags} {more}", changed, topology
  else:
    # The state alone is too large: more chips that each hold all of it do not
    # help, so it is split.
    split = {"mesh.data": 1, "mesh.fsdp": report["devices"]}
    yield (*_change(config, split), topology)
  for larger in _larger(topology):
    yield f"--topology={larger}", config, larger


def _change(
  config: dict[str, Any], values: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
  """Returns the flags that set the values, and the config with them."""
  changed = copy.deepcopy(config)
  for path, value in values.items():
    *sections, key = path.split(".")
    section = changed
    for name in sections:
      section = section[name]
    section[key] = value
  flags = " ".join(f"--config.{k}={v}" for k, v in values.items())
  return flags, changed


def _micro(
  config: dict[str, Any], number: int, times: int
) -> tuple[str, dict[str, Any]]:
  """Multiplies the micro-batches of one phase, or of a run without phases."""
  if config["phases"]:
    name = sorted(config["phases"])[number]
    scale = config["phases"][name]["micro_scale"]
    return _change(config, {f"phases.{name}.micro_scale": scale * times})
  return _change(config, {"micro_batches": config["micro_batches"] * times})


def _micro_scales(report: dict[str, Any]) -> list[int]:
  """Up to two factors for the micro-batches, the likelier one first.

  Temporaries go with a micro-batch's rows, but for the gradients.
  """
  shards = report["mesh"]["data"] * report["mesh"]["fsdp"]
  rows = report["batch_size"] // report["micro_batches"] // shards
  fixed = report["arguments_bytes"] + report["gradient_bytes"]
  room = max(report["hbm_bytes"] - fixed, 1)
  need = (report["temporaries_bytes"] or 2 * room) / room
  first = 2 ** max(1, math.ceil(math.log2(max(need, 1))))
  return [times for times in (first, 2 * first) if rows % times == 0]


def _larger(topology: str) -> Iterator[str]:
  """Known slices of the same generation with more chips."""
  name, _, layout = topology.partition(":")
  for larger in slices.GENERATIONS[name].layouts:
    if _chips(larger) > _chips(layout):
      yield f"{name}:{larger}"


def _chips(layout: str) -> int:
  return math.prod(int(n) for n in layout.split("x"))
