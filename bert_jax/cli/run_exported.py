"""`bert_jax run-exported`: predicts with an exported file."""

import argparse
import time

from bert_jax.cli import flags

HELP = """Predicts with an exported model. It needs only the exported file. The
lines of the input and output are those of `predict`."""
EXAMPLE = """\
  bert_jax run-exported --model sst2.bin --input in.jsonl \\
    --output out.jsonl"""
TAKES_STDOUT = True


def add_flags(parser: flags.Parser) -> None:
  flags.add(parser, "model", metavar="FILE", help="a file that `export` wrote")
  flags.add(parser, "input", help="JSON lines; - for stdin")
  flags.add(parser, "output", metavar="FILE", help="JSON lines; - for stdout")
  flags.add(parser, "batch-size", "no-answer")


def run(args: argparse.Namespace) -> None:
  from bert_jax.use import export, serve

  begin = time.monotonic()
  flags.check_at_least(1, args, "batch_size")
  num_predictions = serve.answer_file(
    lambda: export.load(args.model, args.batch_size, args.no_answer),
    args.input,
    args.output,
  )
  seconds = time.monotonic() - begin
  if args.output != "-":
    print(f"{args.output}: {num_predictions:,} predictions in {seconds:.1f} s.")
