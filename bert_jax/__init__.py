"""BERT-family encoders in JAX: pre-training, fine-tuning and study."""

import sys
from typing import Any

__version__ = "0.1.0"


def _refuse_module() -> None:
  """Ends `python -m bert_jax.MODULE` with an error.

  The only command is `bert_jax`. Without this check, Python would import the
  module, do nothing and exit with status 0. While Python looks for the module,
  `sys.argv[0]` is "-m".
  """
  if sys.argv[:1] != ["-m"] or "-m" not in sys.orig_argv:
    return
  name = sys.orig_argv[sys.orig_argv.index("-m") + 1]
  if name.startswith("bert_jax."):
    sys.exit(
      f"error: {name} is not a command; bert_jax --help shows the command's"
      " verbs (or python -m bert_jax --help)."
    )


_refuse_module()


def __getattr__(name: str) -> Any:
  """Imports `bert_jax.load` only when it is used, since that takes seconds."""
  if name == "load":
    from bert_jax.weights.load import load

    return load
  raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
