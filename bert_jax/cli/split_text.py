"""`bert_jax split-text`: writes any text in BERT's format."""

import argparse

from bert_jax.cli import flags

HELP = """Writes any text in BERT's format: one sentence on each line, a blank
line between documents. `prepare` does not need it. Use it to look at a text, or
to save a text that is slow to extract and read more than once."""
EXAMPLE = """\
  bert_jax split-text --input docstrings --output text.txt"""


def add_flags(parser: flags.Parser) -> None:
  flags.add_text(parser)
  flags.add(parser, "language")
  flags.add(parser, "output", metavar="FILE", help="the file to write")


def run(args: argparse.Namespace) -> None:
  from bert_jax.corpus import split_text

  num_documents, num_words = split_text.split_text(
    args.input, args.output, args.format, args.errors, args.language
  )
  print(f"{args.output}: {num_documents:,} documents, {num_words:,} words.")
  print(
    f"next: bert_jax vocab --input {args.output} --size 30522 --output"
    " vocab.txt"
  )
