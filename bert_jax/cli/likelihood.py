"""`bert_jax likelihood`: tests what a model knows without fine-tuning."""

import argparse
import json
from typing import Any

from bert_jax.cli import flags
from bert_jax.messages import UserError

HELP = """Tests what a pre-trained model knows without fine-tuning: pairs of
sentences (BLiMP) and blanks to fill. A line of the --cloze file is
  {"text": "... [MASK] ...", "answer": "..."}"""
EXAMPLE = """\
  bert_jax likelihood --model runs/mine --blimp blimp.tar.xz
  bert_jax likelihood --model runs/mine --cloze blanks.jsonl"""
TAKES_STDOUT = True


def add_flags(parser: flags.Parser) -> None:
  from bert_jax.use.likelihood import METHODS

  add = parser.add_argument
  flags.add(parser, "model")
  add("--blimp", metavar="PATH", help="folder or tar of BLiMP's .jsonl files")
  add("--cloze", metavar="FILE", help="JSON lines with one [MASK] each")
  add(
    "--method",
    choices=METHODS,
    help="how the likelihood of BLiMP's sentences is computed (default: pll for"
    " a masked model, otherwise the method of the model's head)",
  )
  add(
    "--pairs",
    type=int,
    metavar="N",
    help="use only the first N pairs of each file",
  )
  flags.add(
    parser,
    "output",
    required=False,
    metavar="FILE",
    help="a .json file for the results; - for stdout",
  )
  flags.add(parser, "batch-tokens", "dtype", "family", "tower")


def run(args: argparse.Namespace) -> None:
  from bert_jax import files
  from bert_jax.use import likelihood_tests

  if not (args.blimp or args.cloze):
    raise UserError("name a test: --blimp or --cloze.")
  flags.check_at_least(1, args, "batch_tokens", "pairs")

  def compute_scores() -> dict[str, Any]:
    return likelihood_tests.run_tests(
      args.model,
      args.blimp,
      args.cloze,
      method=args.method,
      max_pairs=args.pairs,
      batch_tokens=args.batch_tokens,
      dtype=args.dtype,
      family=args.family,
      tower=args.tower,
    )

  if args.output == "-":
    # Inside this block, all other output goes to stderr.
    with files.open_text_output("-") as out:
      json.dump(files.without_nan(compute_scores()), out, ensure_ascii=False)
      out.write("\n")
    return
  scores = compute_scores()
  if args.output:
    files.write_json(args.output, scores)
