"""Compiles every phase of a run for TPU slices, and reports what it needs."""

import json
from collections.abc import Sequence
from typing import Any

from bert_jax.messages import UserError
from bert_jax.training import config as config_lib
from bert_jax.training import phases, suggestions, topologies

GIB = 2**30
COLUMNS = (
  "slice",
  "devices",
  "phase",
  "arguments",
  "temporaries",
  "HBM",
  "fits",
  "FLOPs",
  "all-reduced",
  "seconds",
)


def gib(count: float | None) -> str:
  """Returns bytes as GiB with two decimals; "?" if not known."""
  return "?" if count is None else f"{count / GIB:.2f}"


def offer_text(report: dict[str, Any]) -> str:
  """Says what would make a run fit, as found by compiling it."""
  if report["offer"]:
    return (
      f"fits with {report['offer']} (compiled:"
      f" {gib(report['offer_total_bytes'])} GiB)"
    )
  tried = "; ".join(report["tried"]) or "nothing"
  return f"found nothing that makes it fit (compiled: {tried})"


def verdict(report: dict[str, Any]) -> str:
  """Says "yes" if it fits, "no", or that the compiler crashed."""
  if "crashed" in report:
    return f"not known, compiler crashed ({report['crashed']})"
  return "yes" if report["fits"] else "no"


def text(report: dict[str, Any]) -> str:
  """Returns the report as lines of text."""
  mesh = " ".join(f"{axis}={size}" for axis, size in report["mesh"].items())
  rows = [
    f"{report['topology']}, {report['phase']}: {report['devices']} devices,"
    f" {mesh}; batch {report['batch_size']} x {report['length']} in"
    f" {report['micro_batches']} micro-batches",
    f"  arguments    {gib(report['arguments_bytes'])} GiB a device",
    f"  temporaries  {gib(report['temporaries_bytes'])} GiB",
  ]
  hbm = gib(report["hbm_bytes"])
  if "flops" not in report:
    refused = f"; {report['refused']}" if "refused" in report else ""
    rows.append(f"  HBM          {hbm} GiB{refused}")
  else:
    looped = ""
    if report["loops"]:
      most = max(report["loops"])
      looped = (
        f"; loops' bodies counted once, --config.model.unroll={most} to compare"
      )
    kinds = ", ".join(
      f"{kind} {traffic['count']} times, {gib(traffic['bytes'])} GiB"
      for kind, traffic in report["collectives"].items()
    )
    rows += [
      f"  outputs      {gib(report['outputs_bytes'])} GiB,"
      f" {gib(report['aliased_bytes'])} in the arguments' place",
      f"  program      {gib(report['code_bytes'])} GiB",
      f"  HBM          {hbm} GiB; needed {gib(report['total_bytes'])}",
      f"  FLOPs        {report['flops']:.4g}, the model counts"
      f" {report['model_flops']:.4g}: {report['flops_ratio']:.3f}{looped}",
      f"  collectives  {kinds or 'none'}",
      f"  all-reduced  {report['all_reduced_ratio']:.3f} times the gradients'"
      f" {gib(report['gradient_bytes'])} GiB",
    ]
  rows += [
    f"  compiled in  {report['compile_seconds']:.0f} s",
    f"  fits         {verdict(report)}",
  ]
  if not report["fits"]:
    rows.append(f"  offer        {offer_text(report)}")
  return "\n".join(rows)


def markdown(report: dict[str, Any]) -> str:
  """Returns the report as a row of a table with `COLUMNS`; sizes in GiB."""
  ratios = ["-", "-"]
  if "flops" in report:
    looped = " (scanned)" if report["loops"] else ""
    ratios = [
      f"{report['flops_ratio']:.3f}{looped}",
      f"{report['all_reduced_ratio']:.3f}",
    ]
  cells = [
    report["topology"],
    str(report["devices"]),
    report["phase"],
    gib(report["arguments_bytes"]),
    gib(report["temporaries_bytes"]),
    gib(report["hbm_bytes"]),
    verdict(report) + ("" if report["fits"] else f"; {offer_text(report)}"),
    *ratios,
    f"{report['compile_seconds']:.0f}",
  ]
  return f"| {' | '.join(cells)} |"


def as_json(report: dict[str, Any]) -> str:
  """Returns the report as a JSON object on a line."""
  return json.dumps(report)


FORMS = {"text": text, "markdown": markdown, "json": as_json}


def compile_run(
  config: dict[str, Any],
  slices: Sequence[str],
  phase: int | None = None,
  form: str = "text",
) -> bool:
  """Compiles every phase for every slice, and prints what each needs.

  Args:
    config: the run's config.
    slices: names of TPU slices, for example "v2:4x4".
    phase: compile this phase only, 1 is the first; None for all.
    form: one of `FORMS`.

  Returns:
    True if every phase fits into the memory of a slice's devices.

  Raises:
    UserError: no such slice or phase.
    ValueError: the config is wrong, or the compiler is not installed.
  """
  if not slices:
    raise UserError("--topology is empty; name a slice, for example v2:4x4.")
  count = len(phases.plan(config_lib.parse(config)))
  numbers = range(count)
  if phase is not None:
    if not 1 <= phase <= count:
      raise UserError(
        f"--phase={phase}: the run's phases are 1 to {count}."
        if count > 1
        else f"--phase={phase}: the run has one phase only."
      )
    numbers = [phase - 1]
  for topology in slices:
    topologies.describe(topology)
  if form == "markdown":
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
  fits = True
  for topology in slices:
    for number in numbers:
      report = topologies.compile_step(config, number, topology)
      if not report["fits"]:
        report |= suggestions.find_offer(config, number, report)
        fits = False
      print(FORMS[form](report | topologies.versions()), flush=True)
  return fits
