"""`bert_jax export`: writes a fine-tuned model and its tokenizer to a file."""

import argparse

from bert_jax.cli import flags
from bert_jax.messages import UserError

HELP = "Exports a fine-tuned model with its tokenizer into one file."
EXAMPLE = """\
  bert_jax export --model runs/sst2@best --output sst2.bin"""


def add_flags(parser: flags.Parser) -> None:
  from bert_jax.tasks.bucket_lengths import EXPORT_BUCKETS
  from bert_jax.use.export import PLATFORMS

  flags.add(parser, "model")
  flags.add(parser, "output", metavar="FILE", help="the file to write")
  parser.add_argument(
    "--lengths",
    default=",".join(map(str, EXPORT_BUCKETS)),
    metavar="N,...",
    help="lengths of rows, with a program for each (default %(default)s)",
  )
  parser.add_argument(
    "--platforms",
    default=",".join(PLATFORMS),
    metavar="NAME,...",
    help="platforms that the file runs on (default %(default)s)",
  )
  flags.add(parser, "dtype", "family")


def run(args: argparse.Namespace) -> None:
  from bert_jax.use import export

  lengths = args.lengths.split(",")
  if not all(length.strip().isdigit() for length in lengths):
    raise UserError(
      f"--lengths {args.lengths} must be whole numbers and commas."
    )
  platforms = args.platforms.split(",")
  if not set(platforms) <= set(export.PLATFORMS):
    raise UserError(
      f"--platforms {args.platforms} must be some of"
      f" {', '.join(export.PLATFORMS)}."
    )
  meta = export.export_model(
    args.model,
    args.output,
    [int(length) for length in lengths],
    platforms,
    args.dtype,
    args.family,
  )
  row_lengths = ", ".join(map(str, meta["lengths"]))
  print(f"{args.output}: {meta['kind']}, rows of {row_lengths} tokens.")
  print(
    f"next: bert_jax run-exported --model {args.output} --input texts.jsonl"
    " --output predictions.jsonl"
  )
