"""`bert_jax prepare`: tokenises text once, for training."""

import argparse
from collections.abc import Mapping
from typing import Any

from bert_jax.cli import flags
from bert_jax.corpus import filters
from bert_jax.messages import say
from bert_jax.text import unigram, wordpiece, words

HELP = """Tokenises text once, into a folder that training reads. If it is
stopped, give the same command again to continue."""
EXAMPLE = """\
  bert_jax prepare --input 'text/*.txt' --vocab vocab.txt \\
    --output data/mine"""
CONTINUES = True
# Tokenizer -> a config that was published with it.
CONFIG_BY_TOKENIZER = {
  "wordpiece": "bert:base",
  "bytelevel": "roberta:base",
  "unigram": "albert:base_v2",
  "gpt1": "gpt:gpt1",
  "words": "elmo:original",
}


def add_flags(parser: flags.Parser) -> None:
  flags.add_text(parser)
  flags.add(parser, "vocab", "add-tokens", "no-lower-case", "keep-accents")
  flags.add(parser, "language")
  flags.add(parser, "output", metavar="DIR", help="the folder to make")
  parser.add_argument(
    "--heldout",
    type=float,
    default=0.005,
    metavar="SHARE",
    help="share of documents for evaluation (default %(default)s)",
  )
  flags.add(
    parser, "processes", help="worker processes (default: one for each core)"
  )
  parser.add_argument(
    "--rules",
    choices=(*wordpiece.RULES, *words.RULES),
    help="how text becomes words (docs/tokenizers.md)",
  )
  parser.add_argument(
    "--word-starts",
    choices=unigram.WORD_STARTS,
    help="which pieces of SentencePiece begin a word (docs/tokenizers.md)",
  )
  _add_filters(parser.add_argument_group("filters, off by default"))


def _add_filters(group: argparse._ArgumentGroup) -> None:
  """Adds the flags of `filters.Filters`; docs/corpus.md explains them."""
  add = group.add_argument
  add(
    "--normalise", choices=filters.NORMAL_FORMS, help="Unicode form of the text"
  )
  add(
    "--min-words", type=int, metavar="N", help="drop documents with fewer words"
  )
  add(
    "--max-symbols",
    type=float,
    metavar="SHARE",
    help="drop documents with a larger share of symbols",
  )
  add(
    "--max-repetition",
    type=float,
    metavar="SHARE",
    help="drop documents with a larger share of repetitions",
  )
  add(
    "--drop-duplicates",
    action="store_true",
    help="drop copies of documents",
  )
  add(
    "--near-duplicates",
    type=float,
    metavar="SIMILARITY",
    help="drop documents at least this similar to an earlier document",
  )


def run(args: argparse.Namespace) -> None:
  say(f"preparing {args.output} ...")
  from bert_jax.corpus import prepare

  filter_names = filters.Filters._fields
  meta = prepare.prepare(
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
    filters=filters.Filters(
      **{name: getattr(args, name) for name in filter_names}
    ),
    add_tokens=args.add_tokens,
  )
  print(
    f"next: bert_jax train --config {_suggested_config(meta, args.output)}"
    f" --workdir runs/mine --config.data.path={args.output}"
    f" --config.data.cased={not meta['lower_case']}"
  )


def _suggested_config(meta: Mapping[str, Any], folder: str) -> str:
  """Returns the name of a config for the vocabulary of a prepared folder.

  Args:
    meta: the content of the folder's `meta.json`.
    folder: the prepared folder.
  """
  from bert_jax.text import bpe, open_vocabulary

  special = meta.get("special", {})
  if meta["tokenizer"] == "bytelevel" and special["mask"] is None:
    # GPT-2's pieces have no mask to train RoBERTa with.
    return CONFIG_BY_TOKENIZER["gpt1"]
  if meta["tokenizer"] == "unigram":
    # A mask like RoBERTa's: XLM-R and CamemBERT are RoBERTa models with
    # SentencePiece vocabularies.
    pieces = open_vocabulary.read_pieces(folder)
    if pieces[special["mask"]] == bpe.ROBERTA_TOKENS["mask"]:
      return CONFIG_BY_TOKENIZER["bytelevel"]
  return CONFIG_BY_TOKENIZER[meta["tokenizer"]]
