"""Defines the parser of a verb, and the flags that several verbs share."""

import argparse
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from bert_jax.messages import UserError, did_you_mean

# The name of a flag -> options of `argparse.add_argument`. A verb takes flags
# from this table with `add`, which can replace some options, such as the help.
SHARED_FLAGS: dict[str, dict[str, Any]] = {
  "model": dict(
    required=True,
    metavar="PATH",
    help="a run's folder (RUN@best and RUN@STEP name a checkpoint of it), a"
    " converted folder, or a transformers folder",
  ),
  "family": dict(
    metavar="NAME",
    help="model family, if the config.json of a transformers folder names none",
  ),
  "tower": dict(
    choices=("discriminator", "generator"),
    help="the network of an ELECTRA to use",
  ),
  "dtype": dict(
    choices=("float32", "bfloat16"),
    default="float32",
    help="dtype of the computation (default %(default)s)",
  ),
  "batch-size": dict(
    type=int,
    default=32,
    metavar="N",
    help="rows in a batch (default %(default)s)",
  ),
  "batch-tokens": dict(
    type=int,
    default=8192,
    metavar="N",
    help="tokens in a batch, padding included (default %(default)s)",
  ),
  "top": dict(
    type=int,
    default=5,
    metavar="N",
    help="candidates for each mask (default %(default)s)",
  ),
  "length": dict(
    type=int,
    metavar="N",
    help="largest number of tokens in a row, special tokens included",
  ),
  "no-answer": dict(
    action="store_true", help="a question may have no answer (SQuAD 2.0)"
  ),
  "input": dict(required=True, metavar="FILE"),
  "output": dict(required=True, metavar="PATH"),
  "vocab": dict(
    required=True,
    metavar="PATH",
    help="a vocabulary of any kind (docs/tokenizers.md), or a model's folder",
  ),
  "add-tokens": dict(
    metavar="FILE",
    help="tokens to add to the vocabulary, one on each line",
  ),
  "no-lower-case": dict(
    action="store_true", help="keep capitals and accents (a cased vocabulary)"
  ),
  "keep-accents": dict(
    action="store_true",
    help="keep accents in lower-cased text (most languages need them)",
  ),
  "format": dict(
    default="auto",
    help="auto (default): from the file's extension; bert: a sentence on each"
    " line, a blank line between documents; text: each file is a document"
    " (docs/corpus.md)",
  ),
  "errors": dict(
    choices=("strict", "replace"),
    default="strict",
    help="what to do with bytes that are not UTF-8 (default %(default)s)",
  ),
  "language": dict(
    default="en",
    metavar="CODE",
    help="ISO 639 code, used to find sentences (default %(default)s)",
  ),
  "task": dict(
    required=True,
    metavar="NAME",
    help="a published task, or any other name together with --columns",
  ),
  "columns": dict(
    metavar="ROLE=COLUMN,...",
    help="columns of your own task: text, pair, label, id",
  ),
  "kind": dict(metavar="KIND", help="what your own task predicts"),
  "processes": dict(type=int, metavar="N"),
  "json": dict(action="store_true", help="print a JSON object on each line"),
  "seed": dict(
    type=int,
    metavar="N",
    help="seed of all random numbers (default %(default)s)",
  ),
  "workdir": dict(required=True, metavar="DIR"),
  "config": dict(
    required=True,
    metavar="FILE[:NAME]",
    help="a config, for example bert:base; --config.KEY=VALUE changes a value",
  ),
}


def add(parser: Any, *names: str, **changes: Any) -> None:
  """Adds shared flags to a verb.

  Args:
    parser: the verb's parser, or one of its groups.
    *names: the flags, without the two hyphens in front.
    **changes: options of `add_argument` that replace options of `SHARED_FLAGS`.
  """
  for name in names:
    parser.add_argument(f"--{name}", **SHARED_FLAGS[name] | changes)


def add_text(parser: Any) -> None:
  """Adds the flags of verbs that read text: --input, --format and --errors."""
  from bert_jax.corpus.sources import FORMATS

  add(
    parser,
    "input",
    nargs="+",
    # A second --input adds files to those of the first.
    action="extend",
    metavar="GLOB",
    help="files, tfds:NAME[:SPLIT] or docstrings; several are allowed, and each"
    " may begin with its format, as in text:GLOB",
  )
  add(parser, "format", choices=("auto", *FORMATS))
  add(parser, "errors")


def cleaning_options(args: argparse.Namespace) -> dict[str, bool]:
  """Returns a vocabulary's options for --no-lower-case and --keep-accents."""
  from bert_jax.text import cleaning

  return cleaning.options_for_load(
    False if args.no_lower_case else None, True if args.keep_accents else None
  )


def parse_numbers(text: str, kind: type, flag: str) -> tuple:
  """Parses the value of a flag: numbers with commas between them.

  Args:
    text: the flag's value.
    kind: the type of the numbers: int or float.
    flag: the flag's name, for messages.

  Raises:
    UserError: the text has something that is not a finite number.
  """
  try:
    values = tuple(kind(word) for word in text.split(",") if word.strip())
  except ValueError as e:
    raise UserError(
      f"{flag} {text} must be numbers with commas between them."
    ) from e
  if not all(map(math.isfinite, values)):
    raise UserError(f"{flag} {text}: not all are finite numbers.")
  return values


def check_at_least(minimum: int, args: argparse.Namespace, *names: str) -> None:
  """Raises UserError if one of the flags in `names` is below `minimum`."""
  for name in names:
    number = getattr(args, name)
    if number is not None and number < minimum:
      flag = name.replace("_", "-")
      raise UserError(f"--{flag}={number} must be at least {minimum}.")


def _wrap(text: str) -> str:
  """Wraps text at 80 columns, but keeps lines that begin with a space."""
  paragraphs: list[str] = [""]
  for line in text.split("\n"):
    if line.startswith(" "):
      paragraphs += [line, ""]
    else:
      paragraphs[-1] = f"{paragraphs[-1]} {line}".strip()
  return "\n".join(
    paragraph if paragraph.startswith(" ") else textwrap.fill(paragraph, 80)
    for paragraph in paragraphs
    if paragraph
  )


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
  """Formats help for a screen that is 80 columns wide."""

  def __init__(self, prog: str):
    super().__init__(prog, width=80, max_help_position=24)


class Parser(argparse.ArgumentParser):
  """Parses a verb's flags, and reports a bad flag in one sentence."""

  def __init__(
    self,
    prog: str,
    description: str = "",
    example: str = "",
    takes_stdout: bool = False,
    takes_config: bool = False,
  ):
    """Builds a parser.

    Args:
      prog: the command as the user writes it.
      description: a sentence that says what the command does.
      example: a command line, which the help shows below the flags.
      takes_stdout: True if `--output -` means standard output. If False,
        `--output -` is an error, because the command would write a file with
        the name "-".
      takes_config: True if the verb takes `--config.KEY=VALUE`. `parse` puts
        these flags into the list `overrides` of the namespace.
    """
    super().__init__(
      prog,
      description=_wrap(description),
      epilog=example and f"example:\n{example}",
      formatter_class=_HelpFormatter,
      allow_abbrev=False,
    )
    self._takes_stdout, self._takes_config = takes_stdout, takes_config

  def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the flags of a command line.

    Args:
      arguments: the words after the verb.

    Raises:
      UserError: a flag is wrong or missing.
    """
    for argument in arguments:
      if argument == "--":
        break
      flag = argument.partition("=")[0]
      is_override = self._takes_config and flag.startswith("--config.")
      is_defined = flag in self._option_string_actions
      if flag.startswith("--") and not is_defined and not is_override:
        self._refuse_argument(argument)
    namespace, other_arguments = self.parse_known_args(arguments)
    if self._takes_config:
      namespace.overrides, other_arguments = _split_overrides(other_arguments)
    if other_arguments:
      self._refuse_argument(other_arguments[0])
    if getattr(namespace, "output", None) == "-" and not self._takes_stdout:
      self.error(
        "--output -: this command does not write to stdout; name a"
        " file or folder"
      )
    return namespace

  def _refuse_argument(self, argument: str) -> NoReturn:
    """Raises UserError for an argument that the verb does not have."""
    if not argument.startswith("-"):
      self.error(f"unexpected argument {argument!r}")
    flag = argument.partition("=")[0]
    known_flags = [f for f in self._option_string_actions if f.startswith("--")]
    remedy = did_you_mean(f"--{flag.lstrip('-')}", known_flags)
    if remedy.startswith("; did"):
      raise UserError(f"{flag} is no flag{remedy}")
    self.error(f"{flag} is no flag")

  def error(self, message: str) -> NoReturn:
    """Raises UserError with argparse's message, where argparse would exit."""
    raise UserError(f"{message}; {self.prog} --help shows all flags.")

  def format_usage(self) -> str:
    """Returns a short usage, which shows only the required flags."""
    return self._usage() + "\n"

  def format_help(self) -> str:
    """Returns the help, with the short usage of `format_usage`."""
    text = super().format_help()
    return re.sub(r"\Ausage: .*?\n\n", f"{self._usage()}\n\n", text, flags=re.S)

  def _usage(self) -> str:
    words = [f"usage: {self.prog}"]
    for action in self._actions:
      if action.required and action.option_strings:
        name = action.metavar or action.dest.upper()
        words.append(f"{action.option_strings[0]} {name}")
      elif action.required:
        words.append(f"{action.metavar or action.dest} ...")
    words += ["[flags]"]
    lines = [""]
    for word in words:
      if len(lines[-1]) + 1 + len(word) > 80:
        lines.append("   ")
      lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _split_overrides(
  arguments: Sequence[str],
) -> tuple[list[tuple[str, str]], list[str]]:
  """Separates `--config.KEY=VALUE` and `--config.KEY VALUE` from other words.

  Returns:
    The (key, value) pairs, and a list of all other words.
  """
  overrides, other_words = [], []
  remaining_arguments = iter(arguments)
  for argument in remaining_arguments:
    if not argument.startswith("--config."):
      other_words.append(argument)
      continue
    key, equals, text = argument.removeprefix("--config.").partition("=")
    overrides.append((key, text if equals else next(remaining_arguments, "")))
  return overrides, other_words
