"""Flags of commands that take a config: parsed, or refused in a sentence."""

import ast
import inspect
import re
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from bert_jax.examples.recipes import BUILDERS
from bert_jax.messages import nearest
from bert_jax.training import config as config_lib
from bert_jax.training.config_files import open_config, resolve
from bert_jax.weights.run_config import flatten


def load_defaults(text: str) -> dict[str, Any]:
  """Returns the config that --config=TEXT means, without overrides.

  Raises:
    ValueError: the file is no config; names its line where it has an error.
  """
  return open_config(text).to_dict()


def config_path(argv: Sequence[str]) -> str | None:
  """The value of --config, however it is written."""
  for arg, following in zip(argv, [*argv[1:], ""], strict=True):
    name, given, value = arg.lstrip("-").partition("=")
    if name == "config" and arg.startswith("-"):
      return value if given else following
  return None


def is_out_of_memory(error: Exception) -> bool:
  """Whether the host's or a device's memory did not suffice.

  JAX says it of a device by a RuntimeError with XLA's status.
  """
  return isinstance(error, MemoryError) or (
    isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
  )


_KINDS = {float: "a number", bool: "True or False"}


def _remedy(name: str, known: dict[str, Any]) -> str:
  """How a sentence about a key that a config lacks ends."""
  section, _, option = name.partition(".")
  takers = [
    builder
    for builder, factory in BUILDERS.items()
    if option in inspect.signature(factory).parameters
  ]
  builder = known.get("data.builder")
  if section != "data" or not takers or builder in (None, *takers):
    return nearest(name, known)
  return (
    f": data.builder={builder} makes no use of it; choose a config with one of"
    f" {', '.join(takers)}."
  )


def explain(argv: Sequence[str], error: Exception) -> str:
  """One sentence for a failed override; names the nearest right key."""
  path = config_path(argv)
  known = flatten(load_defaults(path)) if path else {}
  for arg, following in zip(argv, [*argv[1:], ""], strict=True):
    flag, given, value = arg.lstrip("-").partition("=")
    name = flag.removeprefix("config.")
    if not known or name == flag:
      continue
    if name not in known:
      return f"config.{name}: {path} has no such key{_remedy(name, known)}"
    value = value if given else following
    if f"--{flag}={value}: " in str(error):
      kind = _KINDS.get(type(known[name]), "a whole number")
      return f"config.{name}={value!r}: must be {kind}."
  if match := re.match(r"flag --(\w+)=None: ", str(error)):
    return f"--{match[1]} is missing."
  return str(error).strip()


def _attributes(model: dict[str, Any]) -> dict[str, Any]:
  """Returns attributes of an encoder that a config may set: name -> value."""
  if not model.get("family") or not model.get("variant"):
    return {}
  # Import it here, because it loads jax, which most command lines do not need.
  from bert_jax import models

  encoder = models.family(model["family"]).build(model["variant"])
  names = encoder.__dataclass_fields__.keys()
  return {
    name: getattr(encoder, name)
    for name in names - {"parent", "name", "vocab_multiple"}
  }


def _attribute_value(flag: str, text: str, before: Any) -> Any:
  """Parses a flag that sets an attribute of an encoder.

  Args:
    flag: the flag, for messages.
    text: the value on the command line.
    before: the attribute's value in the variant, which has the right type.

  Raises:
    ValueError: the value has a different type.
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
    kind = _KINDS.get(type(before), "a whole number")
    kind = "a list in brackets" if isinstance(before, tuple) else kind
    raise ValueError(f"{flag}={text!r}: must be {kind}.")
  return value


def take_attributes(
  argv: Sequence[str], config: dict[str, Any]
) -> tuple[list[str], dict[str, Any]]:
  """Splits off the flags that set attributes of the model's variant.

  A config names a published size by `model.variant`. Flags can set each
  attribute of the size (num_layers, hidden, heads, ...), even if the config
  lacks it.

  Args:
    argv: the command line.
    config: the config of the file.

  Returns:
    The other arguments, and the attributes: {"model.num_layers": 3, ...}.

  Raises:
    ValueError: a value has the wrong type.
  """
  flat = flatten(config)
  others, values = [], {}
  arguments = iter(argv)
  for argument in arguments:
    flag, equal, value = argument.lstrip("-").partition("=")
    key = flag.removeprefix("config.")
    section, _, name = key.rpartition(".")
    if key == flag or key in flat or not argument.startswith("-"):
      others.append(argument)
      continue
    sections = {"model": config.get("model", {})}
    sections["teacher.model"] = config.get("teacher", {}).get("model", {})
    attributes = _attributes(sections[section]) if section in sections else {}
    if name not in attributes:
      others.append(argument)
      continue
    value = value if equal else next(arguments, "")
    values[key] = _attribute_value(flag, value, attributes[name])
  return others, values


def _resolved(argv: Sequence[str], path: str) -> list[str]:
  """Returns a command line whose --config is a path, for config_flags."""
  resolved, arguments = resolve(path), list(argv)
  for i, argument in enumerate(arguments):
    name, equal, _ = argument.lstrip("-").partition("=")
    if name == "config" and argument.startswith("-"):
      if equal:
        arguments[i] = f"--config={resolved}"
      elif i + 1 < len(arguments):
        arguments[i + 1] = resolved
  return arguments


def parse(argv: Sequence[str]) -> list[str]:
  """Parses the flags; exits with one sentence if one is bad."""
  path = config_path(argv)
  try:
    if not path:
      return flags.FLAGS(argv)
    config = load_defaults(path)
    others, attributes = take_attributes(argv, config)
    # config_flags reads sys.argv, not the arguments that it is given.
    arguments, _ = take_attributes(sys.argv[1:], config)
    sys.argv[1:] = _resolved(arguments, path)
    arguments = flags.FLAGS(_resolved(others, path))
    parsed = flags.FLAGS.config
    with parsed.unlocked():
      for key, value in attributes.items():
        section, _, name = key.rpartition(".")
        config_lib.section_of(parsed, section)[name] = value
    return arguments
  except flags.Error as e:
    sys.exit(f"error: {explain(argv, e)}")
  except ValueError as e:
    if str(e).startswith((f"--config={path}: ", "config.")):
      sys.exit(f"error: {e}")
    sys.exit(f"error: {explain(argv, e)}")
  except (AttributeError, KeyError, TypeError) as e:
    sys.exit(f"error: {explain(argv, e)}")
