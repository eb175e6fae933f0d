"""Compares a run's config.json with a saved config; lists keys of the model."""

import json
from typing import Any

# Keys that a restart may change, since they change at most the rounding
# of results. The folders of `data.path` and `teacher.path` may move, but the
# data's fingerprint and the teacher's digest must be the same.
FREE = (
  "mesh",
  "log",
  "checkpoint",
  "profile",
  "evaluate.every",
  "micro_batches",
  "init_from",
  "init_new_rows",
  "data.path",
  "teacher.path",
  "model.attention",
  "model.elementwise",
  "model.products",
  "model.unroll",
  "model.remat",
)

# The sections whose keys decide what a saved model computes.
MODEL_SECTIONS = ("model", "objective", "teacher.model")


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  """Returns a flat config such as {"model.variant": "base", ...}.

  Args:
    config: sections within sections.
    prefix: the text to put before each key.
  """
  flat: dict[str, Any] = {}
  for key, entry in config.items():
    if isinstance(entry, dict):
      flat |= flatten(entry, f"{prefix}{key}.")
    else:
      flat[prefix + key] = entry
  return flat


def is_free(key: str) -> bool:
  """Returns True if a restart may change a key like "data.path"."""
  return any(key == free or key.startswith(free + ".") for free in FREE)


def with_saved_model(
  written: dict[str, Any], saved: dict[str, Any], prefix: str = ""
) -> dict[str, Any]:
  """Returns `written` with the values of `saved` that define the model.

  Args:
    written: the content of config.json.
    saved: the config in a checkpoint.
    prefix: the path of these sections with a dot at its end; "" for a whole
      config.
  """
  merged = {}
  for key in written.keys() | saved.keys():
    name = f"{prefix}{key}"
    written_value, saved_value = written.get(key), saved.get(key)
    if isinstance(written_value, dict) and isinstance(saved_value, dict):
      merged[key] = with_saved_model(written_value, saved_value, f"{name}.")
    else:
      config = saved if _defines_model(name) and not is_free(name) else written
      if key in config:
        merged[key] = config[key]
  return merged


def _defines_model(key: str) -> bool:
  return any(
    key == name or key.startswith(f"{name}.") for name in MODEL_SECTIONS
  )


def edits(
  written: dict[str, Any],
  saved: dict[str, Any],
  of_model: bool = False,
  defaults: dict[str, Any] | None = None,
) -> list[str]:
  """Lists the changes of a run's config.json since a checkpoint was saved.

  Args:
    written: the content of config.json now.
    saved: the config in the checkpoint.
    of_model: if True, only compare keys that define what the model computes.
    defaults: the values of keys that config.json lacks.

  Returns:
    A line for each key that differs, except for keys that a restart may change.
  """
  saved_values, written_values = flatten(saved), flatten(written)
  default_values = flatten(json.loads(json.dumps(defaults or {})))
  shared_keys = default_values.keys() & saved_values.keys()
  written_values = {
    key: default_values[key] for key in shared_keys
  } | written_values
  return [
    f"{key} is {written_values.get(key)!r}, was {saved_values.get(key)!r}"
    for key in sorted(saved_values.keys() | written_values.keys())
    if saved_values.get(key) != written_values.get(key)
    and not is_free(key)
    and (_defines_model(key) or not of_model)
  ]
