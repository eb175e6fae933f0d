"""BERT-family encoders in JAX: pre-training, fine-tuning and study."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from bert_jax.use.model import Model, load

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


# The stable names. They are imported when they are first used, because that
# takes seconds.
__all__ = ["Model", "__version__", "load"]


def __getattr__(name: str) -> Any:
  """Imports a stable name when it is first used."""
  if name == "Model":
    from bert_jax.use.model import Model

    return Model
  if name == "load":
    from bert_jax.use.model import load

    return load
  raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
  """Returns the names of the package, those that are imported later too."""
  return sorted({*globals(), *__all__})
