"""Compares and merges a run's config.json and the config in a checkpoint."""

import json
from typing import Any

# Keys that a restart may change, since they change the results of a restarted
# run at most by rounding. The folders of `data.path` and `teacher.path` may
# move, but the data's fingerprint and the teacher's digest must not change.
CHANGEABLE_KEYS = (
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
  flat_config: dict[str, Any] = {}
  for key, entry in config.items():
    if isinstance(entry, dict):
      flat_config |= flatten(entry, f"{prefix}{key}.")
    else:
      flat_config[prefix + key] = entry
  return flat_config


def restart_may_change(key: str) -> bool:
  """Returns True if a restart may change a key like "data.path"."""
  return any(
    key == changeable or key.startswith(f"{changeable}.")
    for changeable in CHANGEABLE_KEYS
  )


def with_saved_model_keys(
  written_config: dict[str, Any],
  saved_config: dict[str, Any],
  prefix: str = "",
) -> dict[str, Any]:
  """Returns a run's config.json, with the model keys of a checkpoint's config.

  Args:
    written_config: the content of config.json.
    saved_config: the config in a checkpoint. The result has the values of this
      config for the keys that define the model and that a restart may not
      change.
    prefix: the path of the section that the two arguments hold, with a dot at
      its end; "" for whole configs.
  """
  merged_config = {}
  for key in written_config.keys() | saved_config.keys():
    path = f"{prefix}{key}"
    written_value, saved_value = written_config.get(key), saved_config.get(key)
    if isinstance(written_value, dict) and isinstance(saved_value, dict):
      merged_config[key] = with_saved_model_keys(
        written_value, saved_value, f"{path}."
      )
    else:
      takes_saved_value = _defines_model(path) and not restart_may_change(path)
      config = saved_config if takes_saved_value else written_config
      if key in config:
        merged_config[key] = config[key]
  return merged_config


def _defines_model(key: str) -> bool:
  return any(
    key == name or key.startswith(f"{name}.") for name in MODEL_SECTIONS
  )


def list_changes(
  written_config: dict[str, Any],
  saved_config: dict[str, Any],
  only_model_keys: bool = False,
  defaults: dict[str, Any] | None = None,
) -> list[str]:
  """Lists the changes of a run's config.json since a checkpoint was saved.

  Args:
    written_config: the content of config.json now.
    saved_config: the config in the checkpoint.
    only_model_keys: if True, only compare keys that define what the model
      computes.
    defaults: a config; its value is used for a key that the checkpoint has but
      config.json lacks.

  Returns:
    A line for each key that differs, except for keys that a restart may change.
  """
  saved_values = flatten(saved_config)
  written_values = flatten(written_config)
  default_values = flatten(json.loads(json.dumps(defaults or {})))
  shared_keys = default_values.keys() & saved_values.keys()
  written_values = {
    key: default_values[key] for key in shared_keys
  } | written_values
  return [
    f"{key} is {written_values.get(key)!r}, was {saved_values.get(key)!r}"
    for key in sorted(saved_values.keys() | written_values.keys())
    if saved_values.get(key) != written_values.get(key)
    and not restart_may_change(key)
    and (_defines_model(key) or not only_model_keys)
  ]
