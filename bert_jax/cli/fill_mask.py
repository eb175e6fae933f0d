"""`bert_jax fill-mask`: fills the masks of texts."""

import argparse
import json

from bert_jax.cli import flags

HELP = "Fills the masks of texts with a masked language model."
EXAMPLE = """  bert_jax fill-mask "Paris is the capital of [MASK]."
  bert_jax fill-mask --model runs/mine "The cat sat on the [MASK]."
"""


def add_flags(parser: flags.Parser) -> None:
  flags.add(
    parser,
    "model",
    required=False,
    default="mini",
    help="a run's folder (RUN@best and RUN@STEP name a checkpoint of it), a"
    " converted folder, a transformers folder, or mini (default), the model"
    " that the package ships",
  )
  flags.add(parser, "top", "json", "family")
  parser.add_argument(
    "texts", nargs="+", metavar="TEXT", help="a text with the model's mask"
  )


def run(args: argparse.Namespace) -> None:
  from bert_jax.use import fill_mask
  from bert_jax.use.model import load

  results = load(args.model, family=args.family).fill_mask(args.texts, args.top)
  lines = []
  for result in results:
    fields = {key: result[key] for key in ("text", "masks")}
    json_line = json.dumps(fields, ensure_ascii=False)
    lines.append(json_line if args.json else fill_mask.format_result(result))
  print("\n".join(lines), flush=True)
