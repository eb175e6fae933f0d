"""Config files: found by name, opened, printed as a flat list.

`bert:base` is the recipe `base` of the installed `bert_jax.configs.bert`;
`configs/bert.py:base` is the same of a file, in the syntax of ml_collections.
"""

import importlib
import importlib.util
import pathlib
import runpy
import sys
import traceback

from ml_collections import ConfigDict

from bert_jax.messages import UserError, nearest
from bert_jax.weights.run_config import flatten

_PACKAGE = "bert_jax.configs"
_ROOT = pathlib.Path(__file__).parents[1]


def _folder() -> pathlib.Path:
  """Returns the folder of the recipes, which can be imported afterwards.

  `pip install` puts them inside the package. In a checkout they lie beside it,
  where Python would not find `bert_jax.configs`.
  """
  if _PACKAGE not in sys.modules and not (_ROOT / "configs").is_dir():
    path = _ROOT.parent / "configs"
    spec = importlib.util.spec_from_file_location(
      _PACKAGE, path / "__init__.py", submodule_search_locations=[str(path)]
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_PACKAGE] = module
  return pathlib.Path(importlib.import_module(_PACKAGE).__file__).parent


def names() -> list[str]:
  """Returns the names of the installed config files."""
  paths = _folder().glob("[!_]*.py")
  return sorted(path.stem for path in paths if path.stem != "common")


def resolve(text: str) -> str:
  """Returns the value of --config with the path of the file that it names.

  Args:
    text: "PATH.py", "PATH.py:NAME", or, of the installed files, "FILE" and
      "FILE:NAME".

  Raises:
    UserError: there is no such file.
  """
  file, colon, name = text.partition(":")
  installed = _folder()
  if "/" not in file and not file.endswith(".py"):
    path = installed / f"{file}.py"
    if file not in names():
      raise UserError(f"--config={text}: no config{nearest(file, names())}")
    return f"{path}{colon}{name}"
  if not pathlib.Path(file).is_file():
    # The pages name files of a checkout; elsewhere these recipes are installed.
    stem = pathlib.PurePath(file).stem
    remedy = ""
    if stem in names():
      remedy = f"; the installed recipe is --config={stem}{colon}{name}"
    raise UserError(f"--config={text}: no such file{remedy}.")
  return text


def open_config(text: str) -> ConfigDict:
  """Returns the config that --config=TEXT means, without overrides.

  Args:
    text: see `resolve`.

  Raises:
    UserError: the file is no config; names its line where it has an error.
  """
  path, colon, name = resolve(text).partition(":")
  try:
    get_config = runpy.run_path(path)["get_config"]
  except KeyError as e:
    raise UserError(f"--config={text}: it has no {e}.") from e
  except Exception as e:
    raise _line_error(text, path, e) from e
  try:
    config = get_config(name) if colon else get_config()
  except ValueError as e:
    if colon:
      raise UserError(f"--config={text}: {e}") from e
    raise _line_error(text, path, e) from e
  except Exception as e:
    raise _line_error(text, path, e) from e
  if not isinstance(config, ConfigDict):
    raise UserError(
      f"--config={text}: get_config() returned no ml_collections.ConfigDict."
    )
  return config


def _line_error(text: str, path: str, error: Exception) -> UserError:
  """Returns an error that names the line of the config file that failed."""
  frames = traceback.extract_tb(error.__traceback__)
  lines = [frame.lineno for frame in frames if frame.filename == path]
  line = error.lineno if isinstance(error, SyntaxError) else (lines or [1])[-1]
  return UserError(f"--config={text}: line {line}: {error!r}.")


def flat_text(config: ConfigDict) -> str:
  """Returns a config as lines of "key = value", as flags spell them.

  A value that the data or another model decides is None.
  """
  flat = flatten(config.to_dict())
  return "\n".join(f"{key} = {value!r}" for key, value in flat.items())
