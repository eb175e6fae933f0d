"""Finds config files by name, opens them, and prints them as flat lists.

`bert:base` is the recipe `base` of the installed file `bert_jax.configs.bert`.
`configs/bert.py:base` is the same recipe of a file that is named by its path;
this is the syntax of ml_collections.
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
  """Returns the folder of the recipes, and makes them importable.

  `pip install` puts the recipes inside the package. In a checkout they are in a
  folder beside the package, so Python would not find `bert_jax.configs`.
  """
  if _PACKAGE not in sys.modules and not (_ROOT / "configs").is_dir():
    path = _ROOT.parent / "configs"
    spec = importlib.util.spec_from_file_location(
      _PACKAGE, path / "__init__.py", submodule_search_locations=[str(path)]
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_PACKAGE] = module
  file = importlib.import_module(_PACKAGE).__file__
  assert file
  return pathlib.Path(file).parent


def names() -> list[str]:
  """Returns the names of the installed config files."""
  paths = _folder().glob("[!_]*.py")
  return sorted(path.stem for path in paths if path.stem != "common")


def resolve(text: str) -> str:
  """Returns the value of --config, with the path of the file that it names.

  Args:
    text: "PATH.py" or "PATH.py:NAME"; or "FILE" or "FILE:NAME", which means an
      installed file.

  Raises:
    UserError: there is no such file.
  """
  file, colon, name = text.partition(":")
  installed = _folder()
  if "/" not in file and not file.endswith(".py"):
    path = installed / f"{file}.py"
    if file not in names():
      raise UserError(
        f"--config={text} names no config{nearest(file, names())}"
      )
    return f"{path}{colon}{name}"
  if not pathlib.Path(file).is_file():
    # The documentation names files of a checkout. Without a checkout, the same
    # recipes are installed.
    stem = pathlib.PurePath(file).stem
    remedy = ""
    if stem in names():
      remedy = f"; the installed recipe is --config={stem}{colon}{name}"
    raise UserError(f"--config={text} names no file{remedy}.")
  return text


def open_config(text: str) -> ConfigDict:
  """Returns the config that --config=TEXT means, without overrides.

  Args:
    text: see `resolve`.

  Raises:
    UserError: the file is not a config. If the file raises an error, the
      message names its line.
  """
  path, colon, name = resolve(text).partition(":")
  try:
    get_config = runpy.run_path(path)["get_config"]
  except KeyError as e:
    raise UserError(f"--config={text} has no {e}.") from e
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
  """Returns an error that names the line of the config file that failed.

  Args:
    text: the value of --config.
    path: the config file.
    error: the error that running the file raised.
  """
  frames = traceback.extract_tb(error.__traceback__)
  lines = [frame.lineno for frame in frames if frame.filename == path]
  line = error.lineno if isinstance(error, SyntaxError) else (lines or [1])[-1]
  return UserError(f"--config={text}: line {line}: {error!r}.")


def flat_text(config: ConfigDict) -> str:
  """Returns a config as lines of "key = value", with keys as in flags.

  A value is None if it comes from the data or from another model.
  """
  flat = flatten(config.to_dict())
  return "\n".join(f"{key} = {flat[key]!r}" for key in flat)
