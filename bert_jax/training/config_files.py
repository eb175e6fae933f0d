"""Finds config files by name, opens them, and formats configs as flat text.

`bert:base` is the config `base` of the installed module
`bert_jax.configs.bert`. `configs/bert.py:base` names the same config by the
path of its file, in the syntax of ml_collections.
"""

import importlib
import importlib.util
import pathlib
import runpy
import sys
import traceback

from ml_collections import ConfigDict

from bert_jax.messages import UserError, by_caller, did_you_mean
from bert_jax.weights.run_config import flatten

_CONFIGS_MODULE = "bert_jax.configs"
_PACKAGE_FOLDER = pathlib.Path(__file__).parents[1]


def _configs_folder() -> pathlib.Path:
  """Returns the folder of the config files, and makes them importable.

  `pip install` puts these files inside the package. In a checkout they are in a
  folder beside the package, so Python would not find `bert_jax.configs`.
  """
  if (
    _CONFIGS_MODULE not in sys.modules
    and not (_PACKAGE_FOLDER / "configs").is_dir()
  ):
    path = _PACKAGE_FOLDER.parent / "configs"
    module_spec = importlib.util.spec_from_file_location(
      _CONFIGS_MODULE,
      path / "__init__.py",
      submodule_search_locations=[str(path)],
    )
    assert module_spec and module_spec.loader
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    sys.modules[_CONFIGS_MODULE] = module
  init_file = importlib.import_module(_CONFIGS_MODULE).__file__
  assert init_file
  return pathlib.Path(init_file).parent


def installed_names() -> list[str]:
  """Returns the names of the installed config files."""
  paths = _configs_folder().glob("[!_]*.py")
  # common.py has functions that the config files share, but no config.
  return sorted(path.stem for path in paths if path.stem != "common")


def _option(text: str) -> str:
  """Returns "--config=TEXT" for a command, "config=TEXT" for a function."""
  return f"{by_caller('--config', 'config')}={text}"


def resolve_name(text: str, source: str = "") -> str:
  """Returns the value of --config as PATH.py or PATH.py:NAME.

  Args:
    text: "PATH.py" or "PATH.py:NAME"; or "FILE" or "FILE:NAME", which means an
      installed file.
    source: the option that named the config, for messages; "" means --config,
      or the parameter `config`.

  Raises:
    UserError: there is no such file.
  """
  source = source or _option(text)
  path_or_name, colon, name = text.partition(":")
  folder = _configs_folder()
  if "/" not in path_or_name and not path_or_name.endswith(".py"):
    path = folder / f"{path_or_name}.py"
    if path_or_name not in installed_names():
      suggestion = did_you_mean(path_or_name, installed_names())
      raise UserError(f"{source}: there is no such config{suggestion}")
    return f"{path}{colon}{name}"
  if not pathlib.Path(path_or_name).is_file():
    # The documentation gives paths in a checkout. A user who has only the
    # installed package finds the same configs under their short names.
    stem = pathlib.PurePath(path_or_name).stem
    remedy = ""
    if stem in installed_names():
      remedy = f"; pass {_option(f'{stem}{colon}{name}')}, which is installed"
    raise UserError(f"{source}: there is no such file{remedy}.")
  return text


def open_config(text: str, source: str = "") -> ConfigDict:
  """Returns the config that --config=TEXT names, without overrides.

  Args:
    text: see `resolve_name`.
    source: see `resolve_name`.

  Raises:
    UserError: the file is not a config. If the file raises an error, the
      message names the line of the file.
  """
  source = source or _option(text)
  path, colon, name = resolve_name(text, source).partition(":")
  try:
    get_config = runpy.run_path(path)["get_config"]
  except KeyError as e:
    raise UserError(
      f"{source} has no {e}; define this function in the file."
    ) from e
  except Exception as e:
    raise _line_error(source, path, e) from e
  try:
    config = get_config(name) if colon else get_config()
  except ValueError as e:
    if colon:
      raise UserError(f"{source}: {e}") from e
    raise _line_error(source, path, e) from e
  except Exception as e:
    raise _line_error(source, path, e) from e
  if not isinstance(config, ConfigDict):
    raise UserError(
      f"{source}: get_config() must return an ml_collections.ConfigDict."
    )
  return config


def _line_error(source: str, path: str, error: Exception) -> UserError:
  """Returns an error that names the line of the config file that failed.

  Args:
    source: the option that named the file.
    path: the config file.
    error: the error that running the file raised.
  """
  frames = traceback.extract_tb(error.__traceback__)
  line_numbers = [frame.lineno for frame in frames if frame.filename == path]
  line_number = (
    error.lineno
    if isinstance(error, SyntaxError)
    else (line_numbers or [1])[-1]
  )
  return UserError(f"{source}: line {line_number}: {error!r}.")


def flat_text(config: ConfigDict) -> str:
  """Returns a config as lines of "key = value", with keys as in flags.

  None means that a run takes the value from its data, or from a model that it
  opens.
  """
  values = flatten(config.to_dict())
  return "\n".join(f"{key} = {values[key]!r}" for key in values)
