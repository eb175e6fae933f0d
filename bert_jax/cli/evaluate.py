"""`bert_jax evaluate`: evaluates a model on a split of a task."""

import argparse

from bert_jax.cli import flags

HELP = """Evaluates a model on a split of a task by the official metrics, and
writes its predictions in the official format."""
EXAMPLE = """\
  bert_jax evaluate --model runs/sst2@best --data data/sst2 \\
    --output predictions"""


def add_flags(parser: flags.Parser) -> None:
  flags.add(parser, "model")
  parser.add_argument(
    "--data",
    required=True,
    metavar="DIR",
    help="the task's folder, made by prepare-task",
  )
  parser.add_argument(
    "--split",
    default="validation",
    help="the split of the task's data (default %(default)s)",
  )
  flags.add(
    parser,
    "output",
    required=False,
    metavar="DIR",
    help="folder for the predictions (default: none are written)",
  )
  parser.add_argument(
    "--official-threshold",
    action="store_true",
    help="search the best threshold of SQuAD 2.0 as evaluate-v2.0.py does",
  )
  flags.add(parser, "batch-size", "dtype", "family")


def run(args: argparse.Namespace) -> None:
  from bert_jax.use import evaluate

  flags.check_at_least(1, args, "batch_size")
  scores, paths = evaluate.evaluate(
    args.model,
    args.data,
    args.split,
    args.output,
    batch_size=args.batch_size,
    search_official_threshold=args.official_threshold,
    dtype=args.dtype,
    family=args.family,
  )
  for path in paths:
    print(path)
  for name, score in scores.items():
    # A threshold is printed in full, because a rounded threshold could decide
    # differently.
    digits = ".17g" if name.endswith("_thresh") else ".6g"
    print(f"{name}: {score:{digits}}")
