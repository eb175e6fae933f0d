"""`bert_jax compile`: asks the TPU's compiler whether a run fits a slice."""

import argparse
import os

from bert_jax.cli import configs, flags

HELP = """Compiles a run for a TPU slice, and says if the run fits into the
memory of the slice. With --cycles, it also says how long a step takes by the
compiler's estimate. It needs pip install 'bert_jax[tpu]', but neither a TPU nor
data. The exit status is 0 if every phase fits; 2 if a phase does not fit, or
the compiler crashes; 1 after an error."""
EXAMPLE = """\
  bert_jax compile --config bert:base \\
    --topology v2:4x4,v4:2x2x4"""
TAKES_CONFIG = True


def add_flags(parser: flags.Parser) -> None:
  flags.add(parser, "config")
  parser.add_argument(
    "--topology",
    required=True,
    metavar="SLICE,...",
    help="TPU slices, for example v2:4x4 or v4:2x2x4,v5e:4x4",
  )
  parser.add_argument(
    "--phase",
    type=int,
    metavar="N",
    help="compile only this phase; 1 is the first",
  )
  parser.add_argument(
    "--cycles",
    action="store_true",
    help="also estimate the time of a step, and what it is spent on",
  )
  flags.add(parser, "json", help="print a JSON object for each phase")
  parser.add_argument(
    "--markdown", action="store_true", help="print rows of a table"
  )


def _prepare_environment() -> None:
  """Keeps jax and libtpu off this machine's hardware.

  Call this function before jax is imported.
  """
  os.environ["JAX_PLATFORMS"] = "cpu"
  # Without this, libtpu asks the cloud's metadata server which machine this is,
  # and prints errors if there is no server.
  os.environ["TPU_SKIP_MDS_QUERY"] = "1"
  # Without this, libtpu refuses to be loaded by two processes at a time. It
  # also refuses if a killed process has left its lock behind.
  os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v2-8")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def run(args: argparse.Namespace) -> int:
  _prepare_environment()
  config = configs.read(args.config, args.overrides)
  from bert_jax.training import compile_report

  slices = [name for name in args.topology.split(",") if name]
  output_format = (
    "json" if args.json else "markdown" if args.markdown else "text"
  )
  fits = compile_report.compile_phases(
    config, slices, args.phase, output_format, args.cycles
  )
  return 0 if fits else 2
