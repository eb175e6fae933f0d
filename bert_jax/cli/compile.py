"""Compiles a run for a TPU slice that is not here, and says if it fits.

  python -m bert_jax.cli.compile --config configs/NAME.py --topology v2:4x4

Exits with 0 if every phase fits into the devices' memory, 2 if one does not or
the compiler crashed at it, 1 after an error. Needs libtpu, no TPU, no data:
`pip install 'bert_jax[tpu]'`.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags, logging
from ml_collections import config_flags

from bert_jax.cli.flags import load_defaults, parse
from bert_jax.training import config as config_lib

_CONFIG = config_flags.DEFINE_config_file(
  "config",
  None,
  "The run, FILE.py:NAME or bert:base; override a value by --config.key=value.",
)
_TOPOLOGY = flags.DEFINE_list(
  "topology", None, "Slices, for example v2:4x4 or v4:2x2x4,v5e:4x4."
)
_PHASE = flags.DEFINE_integer("phase", None, "One phase only, 1 is the first.")
_JSON = flags.DEFINE_bool("json", False, "Print a JSON object for each phase.")
_MARKDOWN = flags.DEFINE_bool("markdown", False, "Print rows of a table.")
flags.mark_flags_as_required(["config", "topology"])

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


def prepare_environment() -> None:
  """Keeps jax and libtpu off this machine's hardware; before jax is loaded."""
  os.environ["JAX_PLATFORMS"] = "cpu"
  # Else libtpu asks the cloud's metadata server what machine this is, and
  # complains if it is none.
  os.environ["TPU_SKIP_MDS_QUERY"] = "1"
  # Else libtpu refuses a second process, and one left behind by a killed one.
  os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v2-8")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def gib(count: float | None) -> str:
  """Bytes as GiB with two decimals; "?" if not known."""
  return "?" if count is None else f"{count / GIB:.2f}"


def offer_text(report: dict[str, Any]) -> str:
  """What would make it fit, as found by compiling it."""
  if report["offer"]:
    return (
      f"fits with {report['offer']} (compiled:"
      f" {gib(report['offer_total_bytes'])} GiB)"
    )
  tried = "; ".join(report["tried"]) or "nothing"
  return f"found nothing that makes it fit (compiled: {tried})"


def verdict(report: dict[str, Any]) -> str:
  """Whether it fits: "yes", "no", or that the compiler crashed."""
  if "crashed" in report:
    return f"not known, compiler crashed ({report['crashed']})"
  return "yes" if report["fits"] else "no"


def text(report: dict[str, Any]) -> str:
  """The report as lines of text."""
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
  """The report as a row of a table with `COLUMNS`; sizes in GiB."""
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


def show(report: dict[str, Any]) -> None:
  """Prints a report in the form that the flags ask for."""
  if _JSON.value:
    print(json.dumps(report), flush=True)
  else:
    print((markdown if _MARKDOWN.value else text)(report), flush=True)


def run(config: dict[str, Any]) -> bool:
  """Compiles and shows every phase on every slice; True if all fit.

  Raises:
    ValueError: in one sentence.
  """
  # Imported late: the environment is read when jax is loaded.
  from bert_jax.training import phases
  from bert_jax.training import suggestions as offers
  from bert_jax.training import topologies as slices

  if not _TOPOLOGY.value:
    raise ValueError("--topology is empty; name a slice, for example v2:4x4.")
  config_lib.check_keys(config)
  count = len(phases.plan(config))
  numbers = range(count)
  if _PHASE.value is not None:
    if not 1 <= _PHASE.value <= count:
      raise ValueError(
        f"--phase={_PHASE.value}: the run's phases are 1 to {count}."
        if count > 1
        else f"--phase={_PHASE.value}: the run has one phase only."
      )
    numbers = [_PHASE.value - 1]
  for topology in _TOPOLOGY.value:
    slices.describe(topology)
  if _MARKDOWN.value:
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
  fits = True
  for topology in _TOPOLOGY.value:
    for number in numbers:
      report = slices.compile_step(config, number, topology)
      if not report["fits"]:
        report |= offers.find_offer(config, number, report)
        fits = False
      show(report | slices.versions())
  return fits


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    sys.exit(f"error: unexpected argument {argv[1]!r}.")
  logging.set_verbosity(logging.ERROR)
  prepare_environment()
  path = config_flags.get_config_filename(flags.FLAGS["config"])
  try:
    config = _CONFIG.value.to_dict()
    config_lib.check_types(config, load_defaults(path))
    fits = run(config)
  except (ValueError, OSError) as e:
    sys.exit(f"error: {e}")
  sys.exit(0 if fits else 2)


if __name__ == "__main__":
  app.run(main, flags_parser=parse)
