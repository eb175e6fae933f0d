"""Compiles the train steps of a run for TPU slices, and reports on them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.devices import tpu_cycles
from bert_jax.messages import Progress, UserError, say
from bert_jax.training import config as config_lib
from bert_jax.training import phases, suggestions, topologies

GIB = 2**30
# The columns of a table without cycles.
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
# The columns of a table with cycles, which are in millions.
CYCLE_COLUMNS = (
  "slice",
  "phase",
  "temporaries",
  "HBM",
  "fits",
  *tpu_cycles.GROUPS,
  "kernels",
  "total",
  "compute ms",
  "collectives ms",
  "MFU",
)


def format_gib(num_bytes: float | None) -> str:
  """Formats a number of bytes as GiB with two decimals; None as "?"."""
  return "?" if num_bytes is None else f"{num_bytes / GIB:.2f}"


def describe_suggestion(report: dict[str, Any]) -> str:
  """Says which flags make a step fit, or which flags were tried in vain."""
  if report["offer"]:
    return (
      f"fits with {report['offer']} (compiled:"
      f" {format_gib(report['offer_total_bytes'])} GiB)"
    )
  tried_flags = "; ".join(report["tried"]) or "nothing"
  return f"no change that was compiled makes it fit (compiled: {tried_flags})"


def describe_fit(report: dict[str, Any]) -> str:
  """Says whether a step fits: "yes", "no", or that the compiler crashed."""
  if "crashed" in report:
    return f"not known, compiler crashed ({report['crashed']})"
  return "yes" if report["fits"] else "no"


def as_text(report: dict[str, Any]) -> str:
  """Formats a report as lines of text."""
  mesh = " ".join(f"{axis}={size}" for axis, size in report["mesh"].items())
  lines = [
    f"{report['topology']}, {report['phase']}: {report['devices']} devices,"
    f" {mesh}; batch {report['batch_size']} x {report['length']} in"
    f" {report['micro_batches']} micro-batches",
    f"  arguments    {format_gib(report['arguments_bytes'])} GiB a device",
    f"  temporaries  {format_gib(report['temporaries_bytes'])} GiB",
  ]
  hbm = format_gib(report["hbm_bytes"])
  if "flops" not in report:
    reason = f"; {report['refused']}" if "refused" in report else ""
    lines.append(f"  HBM          {hbm} GiB{reason}")
  else:
    loop_note = ""
    if report["loops"]:
      longest_loop = max(report["loops"])
      loop_note = (
        "; the compiler counts the body of a loop once; compare the numbers"
        f" with --config.model.unroll={longest_loop}"
      )
    collectives = ", ".join(
      f"{kind} {traffic['count']} times, {format_gib(traffic['bytes'])} GiB"
      for kind, traffic in report["collectives"].items()
    )
    lines += [
      f"  outputs      {format_gib(report['outputs_bytes'])} GiB, of which"
      f" {format_gib(report['aliased_bytes'])} reuse the arguments' memory",
      f"  program      {format_gib(report['code_bytes'])} GiB",
      f"  HBM          {hbm} GiB; needed {format_gib(report['total_bytes'])}",
      f"  FLOPs        {report['flops']:.4g}, {report['flops_ratio']:.3f}"
      f" times the model's own count of {report['model_flops']:.4g}{loop_note}",
      f"  collectives  {collectives or 'none'}",
      f"  all-reduced  {report['all_reduced_ratio']:.3f} times the size of"
      f" the gradients, {format_gib(report['gradient_bytes'])} GiB",
    ]
  if "cycles" in report:
    lines += cycle_lines(report["cycles"])
  lines += [
    f"  compiled in  {report['compile_seconds']:.0f} s",
    f"  fits         {describe_fit(report)}",
  ]
  if not report["fits"]:
    lines.append(f"  offer        {describe_suggestion(report)}")
  return "\n".join(lines)


def format_million(cycles: float) -> str:
  """Formats a number of cycles in millions, with two decimals."""
  return f"{cycles / 1e6:.2f}"


def cycle_lines(cycles: dict[str, Any]) -> list[str]:
  """Formats the dict of `tpu_cycles.estimate_step` as lines of text."""
  cycles_by_part = dict(cycles["groups"])
  for name, kernel in cycles["kernels"].items():
    cycles_by_part[f"{name}, {kernel['count']} calls (modelled)"] = kernel[
      "cycles"
    ]
  sorted_parts = sorted(cycles_by_part.items(), key=lambda item: -item[1])
  return [
    f"  cycles       {format_million(cycles['total'])} million at"
    f" {cycles['clock'] / 1e6:.0f} MHz, by estimate:",
    *(
      f"    {format_million(num_cycles):>9}"
      f" {num_cycles / cycles['total']:4.0%}  {name}"
      for name, num_cycles in sorted_parts
    ),
    f"  time         {cycles['compute_ms']:.1f} ms to compute,"
    f" {cycles['collectives_ms']:.1f} ms for collectives (modelled); MFU"
    f" {cycles['mfu']:.1%}",
  ]


def as_markdown_row_of_cycles(report: dict[str, Any]) -> str:
  """Formats a report as a row of a table with `CYCLE_COLUMNS`."""
  cells = [
    report["topology"],
    report["phase"],
    format_gib(report["temporaries_bytes"]),
    format_gib(report["hbm_bytes"]),
    describe_fit(report)
    + ("" if report["fits"] else f"; {describe_suggestion(report)}"),
  ]
  cycles = report.get("cycles")
  if cycles is None:
    cells += ["-"] * (len(CYCLE_COLUMNS) - len(cells))
  else:
    kernel_cycles = sum(
      kernel["cycles"] for kernel in cycles["kernels"].values()
    )
    group_cycles = [cycles["groups"][name] for name in tpu_cycles.GROUPS]
    cells += [
      *map(format_million, [*group_cycles, kernel_cycles, cycles["total"]]),
      f"{cycles['compute_ms']:.1f}",
      f"{cycles['collectives_ms']:.1f}",
      f"{cycles['mfu']:.1%}",
    ]
  return f"| {' | '.join(cells)} |"


def as_markdown_row(report: dict[str, Any]) -> str:
  """Formats a report as a row of a table with `COLUMNS`; sizes are in GiB."""
  ratios = ["-", "-"]
  if "flops" in report:
    loop_note = " (scanned)" if report["loops"] else ""
    ratios = [
      f"{report['flops_ratio']:.3f}{loop_note}",
      f"{report['all_reduced_ratio']:.3f}",
    ]
  cells = [
    report["topology"],
    str(report["devices"]),
    report["phase"],
    format_gib(report["arguments_bytes"]),
    format_gib(report["temporaries_bytes"]),
    format_gib(report["hbm_bytes"]),
    describe_fit(report)
    + ("" if report["fits"] else f"; {describe_suggestion(report)}"),
    *ratios,
    f"{report['compile_seconds']:.0f}",
  ]
  return f"| {' | '.join(cells)} |"


FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {
  "text": as_text,
  "markdown": as_markdown_row,
  "json": json.dumps,
}


def compile_phases(
  config: dict[str, Any],
  slices: Sequence[str],
  phase_number: int | None = None,
  output_format: str = "text",
  estimates_cycles: bool = False,
) -> bool:
  """Compiles every phase for every slice, and prints a report on each.

  Args:
    config: the config of a run that pre-trains.
    slices: names of TPU slices, for example "v2:4x4".
    phase_number: the number of the only phase to compile; the first phase has
      1. None means all phases.
    output_format: one of `FORMATS`.
    estimates_cycles: True to estimate the time of a step.

  Returns:
    True if every phase fits into the memory of every slice's devices.

  Raises:
    UserError: there is no such slice or phase, or the config fine-tunes.
    ValueError: the config is wrong, or the compiler is not installed.
  """
  if not slices:
    raise UserError("--topology is empty; give a slice, for example v2:4x4.")
  parsed_config = topologies.with_published_vocabulary(config_lib.parse(config))
  plan = phases.plan(parsed_config)
  num_phases = len(plan)
  phase_indices = list(range(num_phases))
  if phase_number is not None:
    if not 1 <= phase_number <= num_phases:
      raise UserError(
        f"--phase={phase_number}: the run's phases are 1 to {num_phases}."
        if num_phases > 1
        else f"--phase={phase_number}: the run has one phase only."
      )
    phase_indices = [phase_number - 1]
  # An unknown slice is refused before anything is compiled.
  for slice_name in slices:
    topologies.devices_of_slice(slice_name)
  format_report = FORMATS[output_format]
  if output_format == "markdown":
    columns = CYCLE_COLUMNS if estimates_cycles else COLUMNS
    format_report = (
      as_markdown_row_of_cycles if estimates_cycles else as_markdown_row
    )
    say(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
  all_fit = True
  for slice_name in slices:
    for index in phase_indices:
      phase_name = plan[index].name
      action = f"compiling {': '.join(filter(None, [slice_name, phase_name]))}"
      with Progress(action, first_wait=0.0) as progress:
        report = topologies.compile_step(
          config, index, slice_name, estimates_cycles
        )
        if not report["fits"]:
          progress.describe("it does not fit; looking for settings that do")
          report |= suggestions.find_suggestion(config, index, report)
          all_fit = False
      say(format_report(report | topologies.compiler_versions()))
  return all_fit
