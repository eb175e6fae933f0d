"""Trains: python -m bert_jax.cli.train --config configs/NAME.py --workdir DIR."""

import sys
import threading
from collections.abc import Sequence

from absl import app, flags, logging
from ml_collections import config_flags

from bert_jax.cli.flags import is_out_of_memory, load_defaults, parse
from bert_jax.training import config as config_lib

_CONFIG = config_flags.DEFINE_config_file(
  "config",
  None,
  "The run, FILE.py:NAME or bert:base; override a value by --config.key=value.",
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.")
_COORDINATOR = flags.DEFINE_string(
  "coordinator", None, "HOST:PORT of process 0, where there are several."
)
_NUM_PROCESSES = flags.DEFINE_integer(
  "num_processes", None, "How many processes the run has, on all hosts."
)
_PROCESS_ID = flags.DEFINE_integer(
  "process_id", None, "Which of them this is, from 0."
)
_DISTRIBUTED = flags.DEFINE_bool(
  "distributed", False, "Find the other hosts of this TPU pod slice."
)
flags.mark_flags_as_required(["config", "workdir"])


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    sys.exit(f"error: unexpected argument {argv[1]!r}.")
  # Orbax logs every step of a save, and a trace for what it raises as well.
  logging.set_verbosity(logging.FATAL)
  # What stops a save is raised again where the run waits for it; its threads
  # and callbacks would print a trace each.
  threading.excepthook = sys.unraisablehook = lambda _: None
  # Imported late: a bad flag is answered before jax is loaded.
  from bert_jax.devices import hosts
  from bert_jax.training import train

  if not _WORKDIR.value:
    sys.exit("error: --workdir is empty; name the run's folder.")
  path = config_flags.get_config_filename(flags.FLAGS["config"])
  try:
    config = _CONFIG.value.to_dict()
    config_lib.check_types(config, load_defaults(path))
    with hosts.joined(
      _COORDINATOR.value,
      _NUM_PROCESSES.value,
      _PROCESS_ID.value,
      _DISTRIBUTED.value,
    ):
      train.run(config, _WORKDIR.value)
  except (ValueError, FloatingPointError, OSError) as e:
    sys.exit(f"error: {e}")
  except (MemoryError, RuntimeError) as e:
    if not is_out_of_memory(e):
      raise
    text = str(e).partition("\n")[0]
    sys.exit(
      f"error: out of memory ({text}). Raise config.micro_batches, which splits"
      f" the batch_size={config['batch_size']} rows of a step, or lower"
      " config.batch_size; checkpoints are whole."
    )


if __name__ == "__main__":
  app.run(main, flags_parser=parse)
