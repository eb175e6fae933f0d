"""`bert_jax vocab`: trains a vocabulary."""

import argparse
import shlex

from bert_jax.cli import flags
from bert_jax.text import words

HELP = "Trains a vocabulary from text: WordPiece, BPE, SentencePiece or words."
EXAMPLE = (
  """  bert_jax vocab --input 'text/*.txt' --size 30522 --output vocab.txt"""
)


def add_flags(parser: flags.Parser) -> None:
  from bert_jax.text.train_vocabulary import ALGORITHMS

  flags.add_text(parser)
  parser.add_argument(
    "--size",
    type=int,
    required=True,
    metavar="N",
    help="pieces in the vocabulary, special tokens included (BERT: 30522)",
  )
  parser.add_argument(
    "--tokenizer",
    choices=ALGORITHMS,
    default="wordpiece",
    help="wordpiece (default): BERT's; bytelevel: RoBERTa's byte-level BPE;"
    " unigram: ALBERT's SentencePiece model; words: ELMo's most frequent words",
  )
  parser.add_argument(
    "--rules",
    choices=words.RULES,
    help="how text becomes words (only for words)",
  )
  flags.add(parser, "no-lower-case", "keep-accents")
  flags.add(
    parser,
    "output",
    help="the file to write (unigram: NAME.model; bytelevel: a new folder)",
  )


def run(args: argparse.Namespace) -> None:
  from bert_jax.corpus import train_vocab

  train_vocab.train_vocab(
    args.input,
    args.size,
    args.output,
    algorithm=args.tokenizer,
    format=args.format,
    errors=args.errors,
    rules=args.rules,
    **flags.cleaning_options(args),
  )
  data_format = "" if args.format == "auto" else f" --format {args.format}"
  print(
    f"next: bert_jax prepare --input {shlex.join(args.input)}{data_format}"
    f" --vocab {args.output} --output data/mine"
  )
