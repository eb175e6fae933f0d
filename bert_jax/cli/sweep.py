"""`bert_jax sweep`: seeds and grids of a config."""

import argparse
import os
import sys

from absl import logging

from bert_jax.cli import configs, flags
from bert_jax.messages import UserError

HELP = "Runs seeds and grids of a config, and says what they reach."
EXAMPLE = """\
  bert_jax sweep --config glue:rte --workdir sweeps/rte \\
    --seeds 20 --grid schedule.peak=2e-5,3e-5 --config.data.path=data/rte"""
CONFIG = True
RESUMES = True
VERBOSITY = logging.FATAL


def add_flags(parser: flags.Parser) -> None:
  flags.add(parser, "config")
  flags.add(
    parser, "workdir", help="the sweep's folder; each run has one in it"
  )
  parser.add_argument(
    "--seeds",
    type=int,
    default=1,
    metavar="N",
    help="runs of each point of the grid (default %(default)s)",
  )
  parser.add_argument(
    "--first-seed",
    type=int,
    default=0,
    metavar="N",
    help="seed of the first of them (default %(default)s)",
  )
  parser.add_argument(
    "--grid",
    action="append",
    default=[],
    metavar="KEY=A,B,...",
    help="values of a key; once for each key",
  )
  flags.add(
    parser,
    "processes",
    default=0,
    help="runs at a time, each a process (default 0: one after another in this"
    " one)",
  )
  parser.add_argument(
    "--metric",
    metavar="NAME",
    help="what is reported (default: the task's first metric)",
  )


def run(args: argparse.Namespace) -> None:
  config = configs.read(args.config, args.overrides)
  from bert_jax.training import sweep

  folder = os.path.abspath(args.workdir)
  seeds = range(args.first_seed, args.first_seed + args.seeds)
  runs = sweep.plan(config, args.grid, seeds)
  metric = args.metric or sweep.metric_of(config)
  sweep.check_metric(metric, runs)
  command = [sys.executable, "-m", "bert_jax", "train", "--config", args.config]
  done = sweep.run_all(runs, folder, command, args.processes)
  print("\n".join(sweep.report(folder, done, metric)), flush=True)
  done = sweep.judge(done, metric)
  if all(result.error for result in done):
    raise UserError(f"every run failed, the first so: {done[0].error}")
