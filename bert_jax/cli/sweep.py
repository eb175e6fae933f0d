"""`bert_jax sweep`: runs a config with several seeds and values."""

import argparse
import sys
from pathlib import Path

from absl import logging

from bert_jax.cli import configs, flags
from bert_jax.messages import UserError

HELP = """Runs a config with several seeds and a grid of values, and prints the
metric of each run."""
EXAMPLE = """\
  bert_jax sweep --config glue:rte --workdir sweeps/rte \\
    --seeds 20 --grid schedule.peak=2e-5,3e-5 --config.data.path=data/rte"""
TAKES_CONFIG = True
CONTINUES = True
VERBOSITY = logging.FATAL


def add_flags(parser: flags.Parser) -> None:
  flags.add(parser, "config")
  flags.add(
    parser, "workdir", help="the sweep's folder, with a folder for each run"
  )
  parser.add_argument(
    "--seeds",
    type=int,
    default=1,
    metavar="N",
    help="runs at each point of the grid (default %(default)s)",
  )
  parser.add_argument(
    "--first-seed",
    type=int,
    default=0,
    metavar="N",
    help="seed of the first run (default %(default)s)",
  )
  parser.add_argument(
    "--grid",
    action="append",
    default=[],
    metavar="KEY=A,B,...",
    help="values of a key; give the flag once for each key",
  )
  flags.add(
    parser,
    "processes",
    default=0,
    help="runs at a time, each in its own process (default 0: one after another"
    " in this process)",
  )
  parser.add_argument(
    "--metric",
    metavar="NAME",
    help="the metric to report (default: the task's first metric)",
  )


def run(args: argparse.Namespace) -> None:
  config = configs.read(args.config, args.overrides)
  from bert_jax.training import config as config_lib
  from bert_jax.training import sweep

  folder = str(Path(args.workdir).absolute())
  seeds = range(args.first_seed, args.first_seed + args.seeds)
  runs = sweep.plan(config, args.grid, seeds)
  metric = args.metric or sweep.default_metric(config)
  sweep.check_metric(metric, runs)
  command = [sys.executable, "-m", "bert_jax", "train", "--config", args.config]
  outcomes = sweep.run_all(runs, folder, command, args.processes)
  print("\n".join(sweep.write_report(folder, outcomes, metric)), flush=True)
  outcomes = sweep.mark_missing_metric(outcomes, metric)
  if all(outcome.error for outcome in outcomes):
    raise UserError(f"every run failed; the first error: {outcomes[0].error}")
  if config_lib.trains_on_task(config):
    best_name = sweep.best_outcome(outcomes, metric).run.name
    print(
      f"next: bert_jax predict --model {Path(args.workdir) / best_name}"
      " --input texts.jsonl --output predictions.jsonl"
    )
