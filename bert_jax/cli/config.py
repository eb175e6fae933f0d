"""`bert_jax config`: every value of a run's config."""

import argparse

from ml_collections import ConfigDict

from bert_jax.cli import configs, flags

HELP = "Prints every value of a run's config, one key on each line."
EXAMPLE = """\
  bert_jax config bert:base
  bert_jax config bert:base --config.seed=1"""
TAKES_CONFIG = True


def add_flags(parser: flags.Parser) -> None:
  parser.add_argument(
    "config", metavar="FILE[:NAME]", help=flags.SHARED_FLAGS["config"]["help"]
  )


def run(args: argparse.Namespace) -> None:
  from bert_jax.training import config_files

  config = configs.read(args.config, args.overrides)
  print(config_files.flat_text(ConfigDict(config)))
