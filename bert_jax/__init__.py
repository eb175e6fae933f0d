"""BERT-family encoders in JAX: pre-training, fine-tuning and study."""

import glob
import importlib.util
import os
import pathlib
import sys
from typing import Any

__version__ = "0.1.0"

# Modules that a user may take for commands, and what does the work.
_INSTEAD = {
  "train": "python -m bert_jax.cli.train trains.",
  "evaluate": "A run evaluates while it trains (config.evaluate.every);"
  " python -m bert_jax.cli.evaluate_task scores a model on a task, python -m"
  " bert_jax.cli.zero_shot one that is only pre-trained.",
}


def _has_main(path: pathlib.Path) -> bool:
  return '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")


def _check_command() -> None:
  """Ends `python -m bert_jax.MODULE` of a module that is no command.

  Python would import it, do nothing and exit with status 0. While it looks for
  the module, the first of its arguments is "-m".
  """
  if sys.argv[:1] != ["-m"] or "-m" not in sys.orig_argv:
    return
  name = sys.orig_argv[sys.orig_argv.index("-m") + 1]
  package, *parts = name.split(".")
  root = pathlib.Path(__file__).parent
  path = root.joinpath(*parts).with_suffix(".py")
  if package != "bert_jax" or not parts or not path.is_file():
    return
  if not _has_main(path):
    commands = sorted(p.stem for p in root.glob("*.py") if _has_main(p))
    instead = _INSTEAD.get(parts[-1], f"Commands: {', '.join(commands)}.")
    sys.exit(f"error: {name} is a module, no command. {instead}")
  _look_for_no_tpu()


def _look_for_no_tpu() -> None:
  """Lets a command use the CPU where the TPU's compiler is installed alone.

  Else jax asks libtpu for a TPU at every start, and libtpu complains at length
  on a machine that has none. Where jax has another plugin (CUDA), or the user
  names platforms, nothing is changed.
  """
  chosen = os.environ.get("JAX_PLATFORMS")
  chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
  find = importlib.util.find_spec
  if not chosen and not chips and find("libtpu") and not find("jax_plugins"):
    os.environ["JAX_PLATFORMS"] = "cpu"


_check_command()


def __getattr__(name: str) -> Any:
  """`bert_jax.load`, whose imports wait until it is asked for."""
  if name == "load":
    from bert_jax.weights.load import load

    return load
  raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
