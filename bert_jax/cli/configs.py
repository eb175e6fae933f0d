"""The config of a command line: a file's, with the values that flags change.

`--config` names the file, see `training/config_files.py`;
`--config.KEY=VALUE` changes a value.
"""

import ast
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from bert_jax.examples.recipes import RECIPES
from bert_jax.messages import UserError, nearest
from bert_jax.training import config as config_lib
from bert_jax.training import config_files
from bert_jax.weights.run_config import flatten

Override = tuple[str, str]
_KINDS = {float: "a number", bool: "True or False", tuple: "a list in brackets"}


def _kind(value: Any) -> str:
  """Says what a value like this one must be."""
  return _KINDS.get(type(value), "a whole number")


def load_defaults(path: str) -> dict[str, Any]:
  """Returns the config that --config=PATH means, without overrides.

  Raises:
    UserError: the file is no config; names its line where it has an error.
  """
  return config_files.open_config(path).to_dict()


def read(path: str, overrides: Sequence[Override] = ()) -> dict[str, Any]:
  """Returns the config of a file with overrides.

  Args:
    path: the value of --config, see `config_files.resolve`.
    overrides: (key, value) of each --config.KEY=VALUE.

  Raises:
    UserError: no such file or key, or a value of another type; the nearest
      right key is named.
  """
  defaults = load_defaults(path)
  overrides, attributes = _split_attributes(overrides, defaults)
  flat = flatten(defaults)
  for key, _ in overrides:
    if not _has(defaults, key):
      remedy = _remedy(key, flat, _attribute_keys(defaults))
      raise UserError(f"config.{key}: {path} has no such key{remedy}")
  try:
    config = _overridden(path, overrides)
  except (flags.Error, ValueError, TypeError, AttributeError, KeyError) as e:
    raise _explain(path, overrides, flat, e) from e
  for key, value in attributes.items():
    section, _, name = key.rpartition(".")
    config_lib.section_of(config, section)[name] = value
  config_lib.check_types(config, defaults)
  return config


def _has(config: dict[str, Any], key: str) -> bool:
  """Returns True if a config has a value or section like "model.remat"."""
  for name in key.split("."):
    if not isinstance(config, dict) or name not in config:
      return False
    config = config[name]
  return True


def _overridden(path: str, overrides: Sequence[Override]) -> dict[str, Any]:
  """Lets ml_collections read a config and its overrides."""
  argv = ["bert_jax", f"--config={config_files.resolve(path)}"]
  argv += [f"--config.{key}={value}" for key, value in overrides]
  # A set of flags of its own: no other flag of absl is known to the command.
  values = flags.FlagValues()
  config_flags.DEFINE_config_file(
    "config", flag_values=values, sys_argv=argv, lock_config=True
  )
  values(argv)
  return values.config.to_dict()


def _explain(
  path: str,
  overrides: Sequence[Override],
  flat: dict[str, Any],
  error: Exception,
) -> UserError:
  """Returns a sentence that names the override which cannot be read."""
  for key, value in overrides:
    try:
      _overridden(path, [(key, value)])
    except (flags.Error, ValueError, TypeError, AttributeError, KeyError):
      return UserError(
        f"config.{key}={value!r}: must be {_kind(flat.get(key))}."
      )
  return UserError(str(error).strip())


def _remedy(
  name: str, flat: dict[str, Any], attribute_keys: Sequence[str]
) -> str:
  """Returns how a sentence about a key that a config lacks ends."""
  section, _, option = name.partition(".")
  takers = [
    builder
    for builder, factory in RECIPES.items()
    if option in factory.defaults
  ]
  builder = flat.get("data.builder")
  if section != "data" or not takers or builder in (None, *takers):
    return nearest(name, {*flat, *attribute_keys})
  return (
    f": data.builder={builder} makes no use of it; choose a config with one of"
    f" {', '.join(takers)}."
  )


def _attributes(model: dict[str, Any]) -> dict[str, Any]:
  """Returns attributes of an encoder that a config may set: name -> value."""
  if not model.get("family") or not model.get("variant"):
    return {}
  # Import it here, because it loads jax, which most command lines do not need.
  from bert_jax import models
  from bert_jax.models.encoder import attributes

  encoder = models.family(model["family"]).build(model["variant"])
  values = attributes(encoder)
  del values["vocab_multiple"]
  return values


def _models(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
  """Returns the sections of a config that describe an encoder, by their key."""
  return {
    "model": config.get("model", {}),
    "teacher.model": config.get("teacher", {}).get("model", {}),
  }


def _attribute_keys(config: dict[str, Any]) -> list[str]:
  """Returns keys such as model.num_layers, which flags may set."""
  return [
    f"{section}.{name}"
    for section, model in _models(config).items()
    for name in _attributes(model)
  ]


def _attribute_value(key: str, text: str, before: Any) -> Any:
  """Parses a flag that sets an attribute of an encoder.

  Args:
    key: the key, for messages.
    text: the value on the command line.
    before: the attribute's value in the variant, which has the right type.

  Raises:
    UserError: the value has a different type.
  """
  if isinstance(before, str) or not isinstance(before, int | float | tuple):
    return text
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    value = None
  kinds = (int, float) if isinstance(before, float) else type(before)
  if isinstance(value, bool) != isinstance(before, bool) or not isinstance(
    value, kinds
  ):
    raise UserError(f"config.{key}={text!r}: must be {_kind(before)}.")
  return value


def _split_attributes(
  overrides: Sequence[Override], config: dict[str, Any]
) -> tuple[list[Override], dict[str, Any]]:
  """Splits off the overrides that set attributes of the model's variant.

  A config names a published size by `model.variant`. Flags can set each
  attribute of the size (num_layers, hidden, heads, ...), even if the config
  lacks it.

  Args:
    overrides: the command line's.
    config: the config of the file.

  Returns:
    The other overrides, and the attributes: {"model.num_layers": 3, ...}.

  Raises:
    UserError: a value has the wrong type.
  """
  flat = flatten(config)
  models = _models(config)
  others, values = [], {}
  for key, value in overrides:
    section, _, name = key.rpartition(".")
    attributes = {}
    if key not in flat and section in models:
      attributes = _attributes(models[section])
    if name in attributes:
      values[key] = _attribute_value(key, value, attributes[name])
    else:
      others.append((key, value))
  return others, values
