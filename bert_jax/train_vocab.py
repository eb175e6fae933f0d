"""Trains a WordPiece vocabulary from text.

  python -m bert_jax.train_vocab --input 'text/*.txt' --size 30522 \\
    --output vocab.txt
"""

import argparse
import sys

from bert_jax.data import reading, training_vocab


def main() -> None:
  parser = argparse.ArgumentParser(
    prog="python -m bert_jax.train_vocab",
    description="Trains a WordPiece vocabulary from text.",
  )
  parser.add_argument(
    "--input",
    nargs="+",
    required=True,
    metavar="GLOB",
    help="files, tfds:NAME[:SPLIT] or docstrings; several are allowed",
  )
  parser.add_argument(
    "--size",
    type=int,
    required=True,
    help="pieces in the vocabulary, special tokens included (BERT: 30522)",
  )
  parser.add_argument("--output", required=True, help="the file to write")
  parser.add_argument(
    "--format",
    choices=("auto", *reading.FORMATS),
    default="auto",
    help="auto (default) goes by the extension; .txt is bert: a sentence a"
    " line, a blank line between documents; text is plain text",
  )
  parser.add_argument(
    "--errors",
    choices=("strict", "replace"),
    default="strict",
    help="what to do with bytes that are not UTF-8",
  )
  parser.add_argument(
    "--no-lower-case",
    action="store_true",
    help="keep capitals and accents (a cased vocabulary)",
  )
  args = parser.parse_args()
  try:
    training_vocab.train_vocab(
      args.input,
      args.size,
      args.output,
      format=args.format,
      errors=args.errors,
      lower_case=not args.no_lower_case,
    )
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")


if __name__ == "__main__":
  main()
