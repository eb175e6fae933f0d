"""Runs seeds and grids of a config, and says what they reach.

python -m bert_jax.cli.sweep --config configs/glue.py:rte --workdir DIR \\
  --seeds 20 --grid schedule.peak=2e-5,3e-5 [--config.key=value ...]
"""

import os
import sys
import threading
from collections.abc import Sequence

from absl import app, flags, logging
from ml_collections import config_flags

from bert_jax.cli.flags import load_defaults, parse
from bert_jax.training import config as config_lib

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "What every run begins with; override by --config.key=value."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "The sweep's folder; each run has one in it."
)
_SEEDS = flags.DEFINE_integer("seeds", 1, "Runs of each point of the grid.")
_FIRST = flags.DEFINE_integer("first_seed", 0, "Seed of the first of them.")
_GRID = flags.DEFINE_multi_string(
  "grid", [], "KEY=A,B,...: values of a key; give it once for each key."
)
_PROCESSES = flags.DEFINE_integer(
  "processes", 0, "Runs at a time, each a process; 0: all in this one."
)
_METRIC = flags.DEFINE_string(
  "metric", None, "What is reported (default: the task's first metric)."
)
flags.mark_flags_as_required(["config", "workdir"])


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    sys.exit(f"error: unexpected argument {argv[1]!r}.")
  logging.set_verbosity(logging.FATAL)
  threading.excepthook = sys.unraisablehook = lambda _: None
  from bert_jax.training import sweep as sweeping

  path = config_flags.get_config_filename(flags.FLAGS["config"])
  folder = os.path.abspath(_WORKDIR.value)
  try:
    config = _CONFIG.value.to_dict()
    config_lib.check_types(config, load_defaults(path))
    seeds = range(_FIRST.value, _FIRST.value + _SEEDS.value)
    runs = sweeping.plan(config, _GRID.value, seeds)
    metric = _METRIC.value or sweeping.metric_of(config)
    sweeping.check_metric(metric, runs)
    done = sweeping.run_all(runs, folder, path, _PROCESSES.value)
    lines = sweeping.report(folder, done, metric)
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or folder}: {e.strerror}.")
  print("\n".join(lines), flush=True)
  done = sweeping.judge(done, metric)
  if all(one.error for one in done):
    sys.exit(f"error: every run failed, the first so: {done[0].error}")


if __name__ == "__main__":
  app.run(main, flags_parser=parse)
