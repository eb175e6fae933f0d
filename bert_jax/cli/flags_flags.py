"""Flags that the commands which read text have in common."""

import argparse
import sys
from typing import Any, NoReturn

from bert_jax.corpus.sources_reading import FORMATS
from bert_jax.text import cleaning


class Parser(argparse.ArgumentParser):
  """Answers a bad flag in one sentence, as every other bad input."""

  def __init__(self, *arguments: Any, stdout: bool = False, **options: Any):
    """Builds a parser.

    Args:
      *arguments: the arguments of argparse.ArgumentParser.
      stdout: True if `--output -` means stdout. Otherwise it is an error,
        because the command would write a file with the name "-".
      **options: the keyword arguments of argparse.ArgumentParser.
    """
    super().__init__(*arguments, **options)
    self._stdout = stdout

  def parse_args(self, *arguments: Any, **options: Any) -> Any:
    """Parses flags; ends the program if `--output -` is not allowed."""
    parsed = super().parse_args(*arguments, **options)
    if getattr(parsed, "output", None) == "-" and not self._stdout:
      self.error(
        "--output -: this command does not write to stdout; name a"
        " file or folder"
      )
    return parsed

  def error(self, message: str) -> NoReturn:
    sys.exit(f"error: {message}; {self.prog} --help shows all flags.")


def add_input_flags(parser: argparse.ArgumentParser) -> None:
  """Adds --input, --format and --errors: what a command reads, and how."""
  parser.add_argument(
    "--input",
    nargs="+",
    action="extend",  # Given again, it adds; the last alone would lose text.
    required=True,
    metavar="GLOB",
    help="files, tfds:NAME[:SPLIT] or docstrings; several are allowed, each"
    " with its own format as in text:GLOB",
  )
  parser.add_argument(
    "--format",
    choices=("auto", *FORMATS),
    default="auto",
    help="auto (default) goes by the extension; .txt is bert: a sentence a"
    " line, a blank line between documents; text is plain text, a file a"
    " document; text_blocks has a blank line between documents, text_lines a"
    " document a line",
  )
  parser.add_argument(
    "--errors",
    choices=("strict", "replace"),
    default="strict",
    help="what to do with bytes that are not UTF-8",
  )


def add_cleaning_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of text cleaning: --no-lower-case and --keep_accents."""
  parser.add_argument(
    "--no-lower-case",
    action="store_true",
    help="keep capitals and accents (a cased vocabulary)",
  )
  parser.add_argument(
    "--keep_accents",
    action="store_true",
    help="keep accents and other marks of letters, also in lower case: for most"
    " languages except English",
  )


def cleaning_options(args: argparse.Namespace) -> dict[str, bool]:
  """Returns these flags as options of `vocabulary_files.load`."""
  return cleaning.asked(
    False if args.no_lower_case else None, True if args.keep_accents else None
  )


def add_language_flag(parser: argparse.ArgumentParser) -> None:
  """Adds --language, where a command finds sentences."""
  parser.add_argument(
    "--language",
    default="en",
    metavar="CODE",
    help="two-letter ISO 639 code, for finding sentences (default %(default)s)",
  )


def add_tokens_flag(parser: argparse.ArgumentParser) -> None:
  """Adds --add_tokens, for commands that read text with a vocabulary."""
  parser.add_argument(
    "--add_tokens",
    metavar="FILE",
    help="tokens to add after the vocabulary's last piece, one per line; see"
    " docs/tokenizers.md",
  )


def add_family_flag(parser: argparse.ArgumentParser) -> None:
  """Adds --family, for commands that open a model."""
  parser.add_argument(
    "--family",
    metavar="NAME",
    help="the family of a transformers folder whose config.json names none:"
    " bert, roberta, albert, electra, distilbert, tinybert, gpt",
  )
