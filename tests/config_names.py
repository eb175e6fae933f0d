"""Lists the names of all configs in configs/, and reads their values."""

import json
import pathlib

_VALUES_PATH = pathlib.Path(__file__).parent / "training" / "config_values.json"
# Name -> {"model.variant": "base", ...}. JSON has neither tuples nor
# the placeholders of ml_collections (a type without a value), so the file has
# {"tuple": [...]} and {"placeholder": "int"}.
CONFIG_VALUES = json.loads(_VALUES_PATH.read_text(encoding="utf-8"))
PRETRAINING_CONFIGS = [
  name for name in CONFIG_VALUES if "data.builder" in CONFIG_VALUES[name]
]
TASK_CONFIGS = [
  name for name in CONFIG_VALUES if "data.builder" not in CONFIG_VALUES[name]
]


def config_file_text(name: str) -> str:
  file = f"{name.partition(':')[0]}.py"
  root = pathlib.Path(__file__).parents[1]
  return (root / "configs" / file).read_text(encoding="utf-8")
