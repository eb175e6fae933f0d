"""Converts published weights into a folder, or a folder into published form.

  python -m bert_jax.weights --family bert --from hf --input PATH --output DIR
  python -m bert_jax.weights --family bert --to hf --input DIR --output DIR2

PATH is a folder of Hugging Face's, a TF1 checkpoint, or a folder of bilm-tf;
DIR may also be the --workdir of a run, whose newest checkpoint is taken;
RUN@best is its best one, RUN@STEP that of a step.
"""

import argparse
import importlib
import sys

from absl import logging

from bert_jax.messages import note
from bert_jax.text import model_tokenizer
from bert_jax.weights import checkpoint, hf, runs
from bert_jax.weights import generator_discriminator as towers
from bert_jax.weights import model_folder as folder

# Each reads its format; loaded when it is asked for.
SOURCES = ("hf", "tf1", "bilm")


def convert_from(args: argparse.Namespace) -> None:
  """Reads a published format, writes a folder."""
  if args.family is None and args.source == "hf":
    args.family = hf.find_family(args.input)
  if args.family is None:
    raise ValueError(f"--from {args.source} needs --family=NAME.")
  reader = importlib.import_module(f"bert_jax.weights.{args.source}")
  weights = reader.read(args.input, args.family, args.tower)
  folder.write(args.output, weights)
  _say_rows(args.input, weights)


def convert_to(args: argparse.Namespace) -> None:
  """Reads a folder or a run, writes a published format."""
  is_run = checkpoint.split_path(args.input)[1] or runs.is_run(args.input)
  read = runs.read if is_run else folder.read
  weights = read(args.input)
  family = weights.config["family"]
  if args.family not in (None, family):
    raise ValueError(f"--family={args.family}: {args.input} is of {family}.")
  hf.write(args.output, weights, args.tower)
  _say_rows(args.input, weights)


def _say_rows(path: str, weights: folder.Weights) -> None:
  """Says which pieces of the tokenizer have no row in the word table."""
  if weights.config["family"] == "elmo":  # It reads characters.
    return
  rows = weights.config["model"]["vocab_size"]
  files = weights.tokenizer_files
  if line := model_tokenizer.without_rows_of(files, rows, path):
    note(f"note: {line}")


def main() -> None:
  parser = argparse.ArgumentParser(
    prog="python -m bert_jax.weights",
    description="Converts weights from published formats and to them.",
  )
  parser.add_argument(
    "--family",
    help="bert, roberta, ... (default: what config.json or the arrays say)",
  )
  way = parser.add_mutually_exclusive_group(required=True)
  way.add_argument("--from", dest="source", choices=SOURCES)
  way.add_argument("--to", dest="target", choices=("hf",))
  parser.add_argument("--input", required=True, help="what to convert")
  parser.add_argument("--output", required=True, help="the folder to write")
  parser.add_argument(
    "--tower",
    choices=(*towers.TOWERS, "both"),
    help="of ELECTRA (default: what the input holds)",
  )
  args = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  try:
    folder.check_new(args.output)
    (convert_from if args.source else convert_to)(args)
  except (ValueError, OSError) as e:
    sys.exit(f"error: {e}")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")
  print(f"wrote {args.output}")


if __name__ == "__main__":
  main()
