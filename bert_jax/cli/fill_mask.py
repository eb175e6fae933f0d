"""`bert_jax fill-mask`: fills the masks of texts."""

import argparse
import json

from bert_jax.cli import flags

HELP = "Fills the masks of texts with a masked language model."
EXAMPLE = """  bert_jax fill-mask --model runs/mine "The cat sat on the [MASK]."
"""


def add_flags(parser: flags.Parser) -> None:
  flags.add(parser, "model", "top", "json", "family")
  parser.add_argument(
    "texts", nargs="+", metavar="TEXT", help="a text with the model's mask"
  )


def run(args: argparse.Namespace) -> None:
  from bert_jax.use import fill_mask
  from bert_jax.weights.load import open_model

  model = open_model(args.model, family=args.family, default_tower="generator")
  masks_of_texts = fill_mask.fill(model, args.texts, args.top)
  lines = []
  for text, masks in zip(args.texts, masks_of_texts, strict=True):
    if not args.json:
      lines.append(fill_mask.show(text, masks))
      continue
    named = [
      [{"token": piece, "probability": p} for piece, p in candidates]
      for candidates in masks
    ]
    row = {"text": text, "masks": named}
    lines.append(json.dumps(row, ensure_ascii=False))
  print("\n".join(lines), flush=True)
