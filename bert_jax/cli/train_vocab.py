"""Trains a vocabulary: WordPiece, byte-level BPE, SentencePiece, words.

  python -m bert_jax.cli.train_vocab --input 'text/*.txt' --size 30522 \\
    --output vocab.txt
"""

import sys

from bert_jax.cli import flags_flags as flags
from bert_jax.text import train_vocabulary as training_vocab
from bert_jax.text import words


def main() -> None:
  parser = flags.Parser(
    prog="python -m bert_jax.cli.train_vocab",
    description="Trains a vocabulary from text.",
  )
  flags.add_input_flags(parser)
  parser.add_argument(
    "--size",
    type=int,
    required=True,
    help="pieces in the vocabulary, special tokens included (BERT: 30522)",
  )
  parser.add_argument(
    "--kind",
    choices=training_vocab.KINDS,
    default="wordpiece",
    help="wordpiece (default): BERT's; bytelevel: RoBERTa's byte-level BPE;"
    " unigram: ALBERT's SentencePiece model; words: ELMo's, by count",
  )
  parser.add_argument(
    "--rules",
    choices=words.RULES,
    help="of words: how text becomes words, as `prepare` takes it too",
  )
  parser.add_argument(
    "--output",
    required=True,
    help="the file to write (unigram: NAME.model; bytelevel: a new folder)",
  )
  flags.add_cleaning_flags(parser)
  args = parser.parse_args()
  try:
    training_vocab.train_vocab(
      args.input,
      args.size,
      args.output,
      kind=args.kind,
      format=args.format,
      errors=args.errors,
      rules=args.rules,
      **flags.cleaning_options(args),
    )
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except MemoryError as e:
    sys.exit(f"error: {e or 'too little memory'}; nothing was written.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")


if __name__ == "__main__":
  main()
