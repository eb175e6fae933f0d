"""Configs: checks before anything starts, and what a restart may change."""

import difflib
import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any

# Every key of a pre-training config. A section is the keyword arguments of one
# function and is checked against its signature, so a misspelt or unread key is
# an error, never a silent default.
KEYS = (
  "seed",
  "total_steps",
  "batch_size",
  "micro_batches",
  "phases",
  "init_from",
  "model",
  "objective",
  "data",
  "optimizer",
  "schedule",
  "mesh",
  "log",
  "evaluate",
  "checkpoint",
  "profile",
)

# What a restart may change: none of it changes what the run computes, beyond
# rounding. `data.path` may move; the folder's fingerprint must be the same.
FREE = (
  "mesh",
  "log",
  "checkpoint",
  "profile",
  "evaluate.every",
  "micro_batches",
  "init_from",
  "data.path",
  "model.attention",
  "model.unroll",
  "model.remat",
)


def nearest(name: str, known: Iterable[str]) -> str:
  """Returns "; did you mean ...?" for a misspelt name, or ""."""
  close = difflib.get_close_matches(name, list(known), 1)
  return f"; did you mean {close[0]}?" if close else ""


def check_keys(config: dict[str, Any]) -> None:
  """Raises ValueError at a top-level key that is unknown or missing."""
  for key in config:
    if key not in KEYS:
      raise ValueError(f"config.{key} is not a key{nearest(key, KEYS)}.")
  for key in KEYS:
    if key not in config:
      raise ValueError(f"config.{key} is missing.")
  for key in ("total_steps", "batch_size", "micro_batches"):
    if config[key] < 1:
      raise ValueError(f"config.{key}={config[key]}: must be at least 1.")


def call(
  section: str,
  function: Callable[..., Any],
  *args: Any,
  **arguments: Any,
) -> Any:
  """Calls a function with a config section as its keyword arguments.

  Raises:
    ValueError: the section has a key that the function has not, or lacks one.
  """
  signature = inspect.signature(function)
  try:
    bound = signature.bind(*args, **arguments)
  except TypeError as e:
    parameters = signature.parameters
    for key in arguments:
      if key not in parameters:
        hint = nearest(key, list(parameters)[len(args) :])
        raise ValueError(f"config.{section}.{key} is not a key{hint}.") from e
    raise ValueError(f"config.{section}: {e}.") from e
  return function(*bound.args, **bound.kwargs)


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  """{"model.variant": "base", ...}."""
  flat = {}
  for key, value in config.items():
    if isinstance(value, dict):
      flat |= flatten(value, f"{prefix}{key}.")
    else:
      flat[prefix + key] = value
  return flat


def check_types(config: dict[str, Any], defaults: dict[str, Any]) -> None:
  """Raises ValueError where an override changed a value's type.

  ml_collections lets `True` into an int field, and anything into a field that
  was None once.
  """
  old = flatten(defaults)
  for key, value in flatten(config).items():
    before = old.get(key)
    if value is None or before is None:
      continue
    if isinstance(value, bool) != isinstance(before, bool) or not isinstance(
      value, (int, float) if isinstance(before, float) else type(before)
    ):
      raise ValueError(
        f"config.{key}={value!r}: must be of type {type(before).__name__}."
      )


def check_restart(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
  """Compares a run's config with the one it is started again with.

  Returns:
    A line for each key that differs and may.

  Raises:
    ValueError: keys differ that change what the run computes; all are named.
  """
  old = flatten(json.loads(json.dumps(old)))
  new = flatten(json.loads(json.dumps(new)))
  changed = [
    key
    for key in sorted(old.keys() | new.keys())
    if old.get(key) != new.get(key)
  ]
  lines = [
    f"config.{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in changed
  ]
  refused = [
    line
    for key, line in zip(changed, lines, strict=True)
    if not any(key == free or key.startswith(free + ".") for free in FREE)
  ]
  if refused:
    raise ValueError(
      f"the run in this folder has another config: {'; '.join(refused)}. These"
      " keys change what the run computes; undo them, or start in a new"
      " --workdir (with --config.init_from=OLD_WORKDIR to go on from its"
      " parameters)."
    )
  return lines
