"""The config.json of a run, and which of its keys define the saved model."""

import json
from typing import Any

# Keys that a restart may change, since they only change the rounding of
# results. The folders of `data.path` and `teacher.path` may move, but the
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
  """{"model.variant": "base", ...}."""
  flat = {}
  for key, value in config.items():
    if isinstance(value, dict):
      flat |= flatten(value, f"{prefix}{key}.")
    else:
      flat[prefix + key] = value
  return flat


def is_free(key: str) -> bool:
  """Returns True if a restart may change a key like "data.path"."""
  return any(key == free or key.startswith(free + ".") for free in FREE)


def with_saved_model(
  written: dict[str, Any], saved: dict[str, Any], prefix: str = ""
) -> dict[str, Any]:
  """Returns `written` with those values of `saved` that define the model.

  Args:
    written: the content of config.json.
    saved: the config in a checkpoint.
    prefix: the path of these sections with a dot at its end; "" for the whole.
  """
  result = {}
  for key in written.keys() | saved.keys():
    name = f"{prefix}{key}"
    pair = written.get(key), saved.get(key)
    if all(isinstance(value, dict) for value in pair):
      result[key] = with_saved_model(*pair, f"{name}.")
    else:
      values = saved if _defines_model(name) and not is_free(name) else written
      if key in values:
        result[key] = values[key]
  return result


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
  old, new = flatten(saved), flatten(written)
  default_values = flatten(json.loads(json.dumps(defaults or {})))
  shared_keys = default_values.keys() & old.keys()
  new = {key: default_values[key] for key in shared_keys} | new
  return [
    f"{key} is {new.get(key)!r}, was {old.get(key)!r}"
    for key in sorted(old.keys() | new.keys())
    if old.get(key) != new.get(key)
    and not is_free(key)
    and (_defines_model(key) or not of_model)
  ]
