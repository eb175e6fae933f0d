"""`bert_jax report`: lays runs side by side, as a page with curves."""

import argparse

from bert_jax.cli import flags

HELP = """Lays runs side by side: a table, curves, and the settings that differ.
The runs may be of any kind, may come from other machines, and may still be
running."""
EXAMPLE = """\
  bert_jax report runs/small runs/large --output report.html
  bert_jax report a=runs/1 b=runs/2 --output report.md --axis seconds"""


def add_flags(parser: flags.Parser) -> None:
  from bert_jax.use import report

  add = parser.add_argument
  add(
    "runs",
    nargs="+",
    metavar="RUN",
    help="the folder of a run; NAME=RUN names it in the report (default: the"
    " name of its folder)",
  )
  flags.add(
    parser,
    "output",
    metavar="FILE",
    help="a .html file, which holds its pictures, or a .md file with pictures"
    " beside it; a .csv file beside it has all numbers",
  )
  add(
    "--metrics",
    metavar="NAME,...",
    help="the numbers whose curves are drawn (default: all losses and scores"
    " of evaluations)",
  )
  add(
    "--axis",
    choices=list(report.AXES),
    default="step",
    help="what the horizontal axes count (default %(default)s)",
  )


def run(args: argparse.Namespace) -> None:
  from bert_jax.use import report

  metrics = args.metrics.split(",") if args.metrics else None
  report.check_output(args.output)
  page = report.report(args.runs, metrics=metrics, axis=args.axis)
  for row in page.text_lines():
    print(row)
  for path in page.write(args.output):
    print(path)
