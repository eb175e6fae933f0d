"""Reads the config of a command line.

`--config` names a file (see `training/config_files.py`), and
`--config.KEY=VALUE` overrides a value of the file.
"""

import ast
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from bert_jax.examples.recipes import RECIPES
from bert_jax.messages import UserError, did_you_mean
from bert_jax.training import config as config_lib
from bert_jax.training import config_files
from bert_jax.weights.run_config import flatten

Override = tuple[str, str]
# Type of a value -> the words for it in messages. Every other type is a whole
# number.
_TYPE_WORDS = {
  float: "a number",
  bool: "True or False",
  tuple: "a list in brackets",
}


def _type_words(value: Any) -> str:
  """Returns the words for the type of a value, for a message."""
  return _TYPE_WORDS.get(type(value), "a whole number")


def load_defaults(path: str) -> dict[str, Any]:
  """Returns the config of a file, without overrides.

  Args:
    path: the value of --config.

  Raises:
    UserError: the file is not a config. The message names the line at fault.
  """
  return config_files.open_config(path).to_dict()


def read(path: str, overrides: Sequence[Override] = ()) -> dict[str, Any]:
  """Returns the config of a file, with overrides.

  Args:
    path: the value of --config (see `config_files.resolve_name`).
    overrides: the (key, value) pairs of the flags --config.KEY=VALUE.

  Raises:
    UserError: the file or a key does not exist, or a value has the wrong type.
      For an unknown key, the message names a similar key.
  """
  defaults = load_defaults(path)
  overrides, attributes = _split_attributes(overrides, defaults)
  flat_config = flatten(defaults)
  for key, _ in overrides:
    if not _has_key(defaults, key):
      remedy = _remedy_for_key(key, flat_config, _encoder_keys(defaults))
      raise UserError(f"config.{key}: {path} has no such key{remedy}")
  try:
    config = _config_with_overrides(path, overrides)
  except (flags.Error, ValueError, TypeError, AttributeError, KeyError) as e:
    raise _error_of_overrides(path, overrides, flat_config, e) from e
  for key, setting in attributes.items():
    section, _, name = key.rpartition(".")
    config_lib.section_of(config, section)[name] = setting
  config_lib.check_types(config, defaults)
  return config


def _has_key(config: dict[str, Any], key: str) -> bool:
  """Returns True if a config has this key or section ("model.remat")."""
  for name in key.split("."):
    if not isinstance(config, dict) or name not in config:
      return False
    config = config[name]
  return True


def _config_with_overrides(
  path: str, overrides: Sequence[Override]
) -> dict[str, Any]:
  """Returns a config with overrides, as ml_collections parses them."""
  argv = ["bert_jax", f"--config={config_files.resolve_name(path)}"]
  argv += [f"--config.{key}={text}" for key, text in overrides]
  # Use a separate set of flags, because the command accepts no flags of absl.
  absl_flags = flags.FlagValues()
  config_flags.DEFINE_config_file(
    "config", flag_values=absl_flags, sys_argv=argv, lock_config=True
  )
  absl_flags(argv)
  return absl_flags.config.to_dict()


def _error_of_overrides(
  path: str,
  overrides: Sequence[Override],
  flat_config: dict[str, Any],
  error: Exception,
) -> UserError:
  """Returns an error that names the first override that cannot be parsed.

  Args:
    path: the value of --config.
    overrides: the overrides, which cannot be parsed together.
    flat_config: the config without overrides, key with dots -> value.
    error: the error of parsing the overrides together.
  """
  for key, text in overrides:
    try:
      _config_with_overrides(path, [(key, text)])
    except (flags.Error, ValueError, TypeError, AttributeError, KeyError):
      return UserError(
        f"config.{key}={text!r} must be {_type_words(flat_config.get(key))}."
      )
  return UserError(str(error).strip())


def _remedy_for_key(
  key: str, flat_config: dict[str, Any], attribute_keys: Sequence[str]
) -> str:
  """Returns the end of a message about an unknown key, which names a remedy."""
  section, _, option = key.partition(".")
  recipes_with_key = [
    recipe_name
    for recipe_name, recipe in RECIPES.items()
    if option in recipe.defaults
  ]
  builder = flat_config.get("data.builder")
  if (
    section != "data"
    or not recipes_with_key
    or builder in (None, *recipes_with_key)
  ):
    return did_you_mean(key, {*flat_config, *attribute_keys})
  return (
    f": data.builder={builder} does not use this key; choose a config with"
    f" one of {', '.join(recipes_with_key)}."
  )


def _encoder_attributes(model: dict[str, Any]) -> dict[str, Any]:
  """Returns an encoder's attributes that a config may set: name -> value."""
  if not model.get("family") or not model.get("variant"):
    return {}
  # Import these here, because they load jax, which most command lines do not
  # need.
  from bert_jax import models
  from bert_jax.models.encoder import field_values

  encoder = models.family(model["family"]).build(model["variant"])
  attributes = field_values(encoder)
  del attributes["vocab_multiple"]
  return attributes


def _model_sections(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
  """Returns the sections that describe an encoder: key -> section."""
  return {
    "model": config.get("model", {}),
    "teacher.model": config.get("teacher", {}).get("model", {}),
  }


def _encoder_keys(config: dict[str, Any]) -> list[str]:
  """Returns the keys of all encoder attributes, such as model.num_layers."""
  return [
    f"{section}.{name}"
    for section, model in _model_sections(config).items()
    for name in _encoder_attributes(model)
  ]


def _parse_attribute(key: str, text: str, default: Any) -> Any:
  """Parses a flag that sets an attribute of an encoder.

  Args:
    key: the key, for messages.
    text: the value on the command line.
    default: the attribute's value in the variant. The result must have the type
      of this value.

  Raises:
    UserError: the value does not have the type of `default`.
  """
  if isinstance(default, str) or not isinstance(default, int | float | tuple):
    return text
  try:
    setting = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    setting = None
  types = (int, float) if isinstance(default, float) else type(default)
  # A bool is an int in Python, but not a number in a config.
  agree_on_bool = isinstance(setting, bool) == isinstance(default, bool)
  if not agree_on_bool or not isinstance(setting, types):
    raise UserError(f"config.{key}={text!r} must be {_type_words(default)}.")
  return setting


def _split_attributes(
  overrides: Sequence[Override], config: dict[str, Any]
) -> tuple[list[Override], dict[str, Any]]:
  """Separates overrides that set attributes of an encoder from the others.

  A config names a published size by `model.variant`. Flags can also set each
  attribute of the encoder of this size (num_layers, hidden, heads, ...) that is
  not a key of the config.

  Args:
    overrides: the overrides on the command line.
    config: the config of the file.

  Returns:
    The other overrides; and {key of an attribute: its value}, for example
    {"model.num_layers": 3}.

  Raises:
    UserError: a value has the wrong type.
  """
  flat_config = flatten(config)
  sections = _model_sections(config)
  other_overrides, attribute_values = [], {}
  for key, text in overrides:
    section, _, name = key.rpartition(".")
    attributes = {}
    if key not in flat_config and section in sections:
      attributes = _encoder_attributes(sections[section])
    if name in attributes:
      attribute_values[key] = _parse_attribute(key, text, attributes[name])
    else:
      other_overrides.append((key, text))
  return other_overrides, attribute_values
