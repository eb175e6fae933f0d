"""Tokenises text once, into a folder that training reads.

  python -m bert_jax.cli.prepare --input 'text/*.txt' --vocab vocab.txt \\
    --output data/mine

Killed or stopped, the same command goes on where it was.
"""

import signal
import sys

from bert_jax.cli import flags_flags as flags
from bert_jax.cli import prepare_task
from bert_jax.corpus import filters
from bert_jax.corpus import prepare as preparing
from bert_jax.text import unigram, wordpiece, words

# A recipe that was published with a tokenizer of this kind.
RECIPES = {
  "wordpiece": "bert:base",
  "bytelevel": "roberta:base",
  "unigram": "albert:base_v2",
  "gpt1": "gpt:gpt1",
  "words": "elmo:original",
}


def _parser() -> flags.Parser:
  parser = flags.Parser(
    prog="python -m bert_jax.cli.prepare",
    description="Tokenises text once, into a folder that training reads."
    " Killed or stopped, the same command goes on where it was. With --task it"
    " encodes the files of a task: see --task=NAME --help.",
  )
  flags.add_input_flags(parser)
  flags.add_language_flag(parser)
  parser.add_argument(
    "--vocab",
    required=True,
    help="a vocabulary: a piece or word a line, a SentencePiece .model,"
    " tokenizer.json, vocab.json beside its merges, or a model's folder",
  )
  flags.add_tokens_flag(parser)
  parser.add_argument("--output", required=True, help="the folder to make")
  parser.add_argument(
    "--heldout",
    type=float,
    default=0.005,
    help="share of the documents to hold out (default %(default)s)",
  )
  parser.add_argument(
    "--processes", type=int, help="worker processes (default: one a core)"
  )
  flags.add_cleaning_flags(parser)
  parser.add_argument(
    "--rules",
    choices=(*wordpiece.RULES, *words.RULES),
    help="of WordPiece: huggingface (default) or those of the first release;"
    " of words: those that the vocabulary was counted with, else words, or"
    " spaces for text that was split before",
  )
  parser.add_argument(
    "--word_starts",
    choices=unigram.WORD_STARTS,
    help="of SentencePiece, which pieces begin a word for whole-word masks and"
    " n-grams: space (default), those with a space before them; albert, the"
    " released rule for English, by which a sign, a digit and any piece of"
    " another script begins one too",
  )
  _add_filter_flags(parser)
  return parser


def _add_filter_flags(parser: flags.Parser) -> None:
  group = parser.add_argument_group(
    "filters", "Each is off by default; docs/corpus.md has published values."
  )
  group.add_argument(
    "--normalise", choices=filters.FORMS, help="put the text in a Unicode form"
  )
  group.add_argument(
    "--min_words", type=int, metavar="N", help="drop shorter documents"
  )
  group.add_argument(
    "--max_symbols",
    type=float,
    metavar="SHARE",
    help="drop documents with a larger share of characters that are neither"
    " letters, digits, punctuation nor space",
  )
  group.add_argument(
    "--max_repetition",
    type=float,
    metavar="SHARE",
    help="drop documents with a larger share of characters in 5 words that"
    " occurred before in the document",
  )
  group.add_argument(
    "--drop_duplicates",
    action="store_true",
    help="keep the first of documents with the same words",
  )
  group.add_argument(
    "--near_duplicates",
    type=float,
    metavar="SIMILARITY",
    help="drop documents that share this much (Jaccard index of their sets of"
    " 5 words, by MinHash) with an earlier one; 6 KB of memory a document",
  )


def _stop(number, frame) -> None:
  raise KeyboardInterrupt


def main() -> None:
  if any(argument.split("=")[0] == "--task" for argument in sys.argv[1:]):
    prepare_task.main()
    return
  args = _parser().parse_args()
  signal.signal(signal.SIGTERM, _stop)
  names = filters.Filters._fields
  chosen = filters.Filters(**{name: getattr(args, name) for name in names})
  try:
    meta = preparing.prepare(
      args.input,
      args.vocab,
      args.output,
      format=args.format,
      errors=args.errors,
      heldout=args.heldout,
      processes=args.processes,
      rules=args.rules,
      word_starts=args.word_starts,
      **flags.cleaning_options(args),
      language=args.language,
      filters=chosen,
      add_tokens=args.add_tokens,
    )
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    what = f"{e.filename}: {e.strerror}" if e.filename else str(e)
    sys.exit(
      f"error: {what.rstrip('.')}. Once that is mended, the same command goes"
      " on where it was."
    )
  except MemoryError as e:
    sys.exit(
      f"error: {e or 'too little memory'}. With fewer --processes, the same"
      " command goes on where it was."
    )
  except KeyboardInterrupt:
    sys.exit("stopped; the same command goes on where it was.")
  recipe = RECIPES[meta["tokenizer"]]
  print(
    f"next: python -m bert_jax.cli.train --config {recipe} --workdir"
    f" runs/mine --config.data.path={args.output}"
    f" --config.data.cased={not meta['lower_case']}"
  )


if __name__ == "__main__":
  main()
