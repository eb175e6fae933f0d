"""`bert_jax convert`: converts a model from or to a published format."""

import argparse
from pathlib import Path

from bert_jax.cli import flags

HELP = """Converts published weights into a folder that bert_jax opens, or a
model of bert_jax into a published format. --from takes a transformers folder
(hf), a TF1 checkpoint or a bilm-tf folder as --model. --to takes a run
(RUN@best, RUN@STEP) or a converted folder."""
EXAMPLE = """\
  bert_jax convert --from hf --model bert-base-uncased --output bert
  bert_jax convert --to hf --model runs/mine --output published"""

# Values of the key `task` in a converted folder's config. Models with these
# tasks give only vectors here: they neither fill masks nor predict labels.
_ENCODER_TASKS = ("encoder", "pretraining", "next_sentence", "discriminator")


def add_flags(parser: flags.Parser) -> None:
  from bert_jax.weights.convert import READERS

  direction = parser.add_mutually_exclusive_group(required=True)
  direction.add_argument(
    "--from", dest="source", choices=READERS, help="the format to read"
  )
  direction.add_argument(
    "--to", dest="target", choices=("hf",), help="the format to write"
  )
  flags.add(parser, "model", help="the model to convert")
  flags.add(parser, "output", metavar="DIR", help="the folder to write")
  flags.add(
    parser,
    "family",
    help="the model's family (default: read from config.json or the arrays)",
  )
  flags.add(
    parser,
    "tower",
    choices=("discriminator", "generator", "both"),
    help="the network of an ELECTRA to convert (default: all its networks)",
  )


def run(args: argparse.Namespace) -> None:
  from bert_jax.weights import convert

  if args.source:
    convert.from_published(
      args.source, args.model, args.output, args.family, args.tower
    )
  else:
    convert.to_published(args.model, args.output, args.family, args.tower)
  print(f"wrote {args.output}")
  if args.source:
    print(f"next: {_next_command(args.output)}")


def _next_command(folder: str) -> str:
  """Returns a command that uses the model of a converted folder."""
  from bert_jax.use import fill_mask
  from bert_jax.weights import model_folder

  config = model_folder.read_json(str(Path(folder) / model_folder.CONFIG_FILE))
  if fill_mask.can_fill(config):
    mask = "<mask>" if config["family"] == "roberta" else "[MASK]"
    return f'bert_jax fill-mask --model {folder} "Text with {mask}."'
  if config["task"] in _ENCODER_TASKS:
    output = "--input texts.txt --output vectors.npz"
    return f"bert_jax features --model {folder} {output}"
  output = "--input texts.jsonl --output predictions.jsonl"
  return f"bert_jax predict --model {folder} {output}"
