"""`bert_jax submission`: packs predictions for a server."""

import argparse
import sys

from bert_jax.cli import flags

HELP = "Packs predictions for GLUE's or SuperGLUE's server."
EXAMPLE = """\
  bert_jax submission --input runs/*/CoLA.tsv runs/*/SST-2.tsv \\
    --output glue.zip"""


def add_flags(parser: flags.Parser) -> None:
  flags.add(
    parser,
    "input",
    nargs="+",
    action="extend",
    help="files that `evaluate --output` wrote: CoLA.tsv, BoolQ.jsonl, ...",
  )
  flags.add(parser, "output", metavar="FILE", help="the .zip to make")


def run(args: argparse.Namespace) -> None:
  from bert_jax.tasks import server_files

  missing_files = server_files.pack_submission(args.output, args.input)
  print(args.output)
  if missing_files:
    print(f"The server also wants {', '.join(missing_files)}.", file=sys.stderr)
