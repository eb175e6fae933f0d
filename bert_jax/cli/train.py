"""`bert_jax train`: pre-trains, fine-tunes or distils a model."""

import argparse
import contextlib

from absl import logging

from bert_jax.cli import configs, flags
from bert_jax.messages import UserError, Watch, say

HELP = "Trains a model: pre-training, fine-tuning or distillation."
EXAMPLE = """\
  bert_jax train --config bert:base --workdir runs/mine \\
    --config.data.path=data/mine --config.micro_batches=4"""
TAKES_CONFIG = True
CONTINUES = True
# At a lower level, orbax would log every part of a save, and the traceback of
# an error for which the command prints a sentence.
VERBOSITY = logging.FATAL


def add_flags(parser: flags.Parser) -> None:
  flags.add(parser, "config")
  flags.add(
    parser,
    "workdir",
    help="the run's folder; the same command continues a run that was stopped",
  )
  group = parser.add_argument_group("several hosts (docs/hosts.md)")
  group.add_argument(
    "--coordinator", metavar="HOST:PORT", help="address of process 0"
  )
  group.add_argument(
    "--num-processes",
    type=int,
    metavar="N",
    help="processes of the run, on all hosts together",
  )
  group.add_argument(
    "--process-id",
    type=int,
    metavar="I",
    help="number of this process, from 0",
  )
  group.add_argument(
    "--distributed",
    action="store_true",
    help="find the other hosts of this TPU pod slice",
  )


def run(args: argparse.Namespace) -> None:
  if not args.workdir:
    raise UserError("--workdir is empty; name the run's folder.")
  config = configs.read(args.config, args.overrides)
  watch: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
  if not args.process_id:
    say(f"run {args.workdir}: opening data and devices ...")
    watch = Watch("importing the trainer", say)
  with watch:
    # Import these here, so that a bad flag is refused before jax is loaded.
    from bert_jax.devices import hosts, xla_errors
    from bert_jax.training import train

  remedy = (
    "Raise config.micro_batches, which splits the"
    f" batch_size={config['batch_size']} rows of a step, or lower"
    " config.batch_size; all checkpoints are complete."
  )
  with (
    xla_errors.reports_out_of_memory(remedy),
    hosts.join_run(
      args.coordinator, args.num_processes, args.process_id, args.distributed
    ),
  ):
    train.run(config, args.workdir)
