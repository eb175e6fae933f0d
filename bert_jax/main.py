"""Trains: python -m bert_jax.main --config configs/NAME.py --workdir DIR."""

import sys
from collections.abc import Sequence

from absl import app, flags, logging
from ml_collections import config_flags

from bert_jax import config as config_lib
from bert_jax.command_line import load_defaults, parse

_CONFIG = config_flags.DEFINE_config_file(
  "config",
  None,
  "The run, configs/NAME.py; override a value by --config.key=value.",
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.")
flags.mark_flags_as_required(["config", "workdir"])


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    sys.exit(f"error: unexpected argument {argv[1]!r}.")
  # Orbax tells every step of a save at the level of a warning.
  logging.set_verbosity(logging.ERROR)
  # Imported late: a bad flag is answered before jax is loaded.
  from bert_jax import train

  path = config_flags.get_config_filename(flags.FLAGS["config"])
  try:
    config = _CONFIG.value.to_dict()
    config_lib.check_types(config, load_defaults(path))
    train.run(config, _WORKDIR.value)
  except (ValueError, FloatingPointError, OSError) as e:
    sys.exit(f"error: {e}")


if __name__ == "__main__":
  app.run(main, flags_parser=parse)
