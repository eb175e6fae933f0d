"""`bert_jax compile`: asks the TPU's compiler whether a run fits."""

import argparse
import os

from bert_jax.cli import configs, flags

HELP = """Compiles a run for a TPU slice that is not here, and says if it fits.
It needs neither a TPU nor data: pip install 'bert_jax[tpu]'. The exit status is
0 if every phase fits, 2 if one does not or the compiler crashed at it, 1 after
an error."""
EXAMPLE = """\
  bert_jax compile --config bert:base \\
    --topology v2:4x4,v4:2x2x4"""
CONFIG = True


def add_flags(parser: flags.Parser) -> None:
  flags.add(parser, "config")
  parser.add_argument(
    "--topology",
    required=True,
    metavar="SLICE,...",
    help="TPU slices, for example v2:4x4 or v4:2x2x4,v5e:4x4",
  )
  parser.add_argument(
    "--phase", type=int, metavar="N", help="this phase only, 1 is the first"
  )
  flags.add(parser, "json", help="print a JSON object for each phase")
  parser.add_argument(
    "--markdown", action="store_true", help="print rows of a table"
  )


def _prepare_environment() -> None:
  """Keeps jax and libtpu off this machine's hardware; before jax is loaded."""
  os.environ["JAX_PLATFORMS"] = "cpu"
  # Else libtpu asks the cloud's metadata server what machine this is, and
  # complains if it is none.
  os.environ["TPU_SKIP_MDS_QUERY"] = "1"
  # Else libtpu refuses a second process, and one left behind by a killed one.
  os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v2-8")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def run(args: argparse.Namespace) -> int:
  _prepare_environment()
  config = configs.read(args.config, args.overrides)
  from bert_jax.training import compile_report

  slices = [name for name in args.topology.split(",") if name]
  form = "json" if args.json else "markdown" if args.markdown else "text"
  fits = compile_report.compile_run(config, slices, args.phase, form)
  return 0 if fits else 2
