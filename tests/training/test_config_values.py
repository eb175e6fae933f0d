"""Every key of every config in configs/, with its value and its type."""

import json
import pathlib
import runpy
from typing import Any

import pytest
from ml_collections import ConfigDict, FieldReference

ROOT = pathlib.Path(__file__).parents[2]
# Name -> {"model.variant": "base", ...}; a tuple and a key without a value yet,
# which JSON lacks, are {"tuple": [...]} and {"placeholder": "int"}.
VALUES = json.loads(
  (ROOT / "tests" / "training" / "config_values.json").read_text()
)
FILES = {
  "choices": "finetune/{}",
  "distilbert:base": "distilbert",
  "distilbert:roberta": "distilroberta",
  "glue": "finetune/{}",
  "gpt": "{}",
  "ner": "finetune/{}",
  "own": "finetune/own",
  "squad": "finetune/{}",
  "tinybert:sst2": "finetune/tinybert_sst2",
}


def flatten(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
  """Returns the values of a config in the form of the JSON file."""
  flat: dict[str, Any] = {}
  for key, value in config.items(preserve_field_references=True):
    name = prefix + key
    if isinstance(value, ConfigDict) and value:
      flat |= flatten(value, f"{name}.")
    elif isinstance(value, ConfigDict):
      flat[name] = {}
    elif isinstance(value, FieldReference):
      assert value.get() is None, name
      flat[name] = {"placeholder": value.get_type().__name__}
    elif isinstance(value, tuple):
      flat[name] = {"tuple": list(value)}
    else:
      flat[name] = value
  return flat


def open_named(name: str) -> ConfigDict:
  family, _, size = name.partition(":")
  form = FILES.get(name, FILES.get(family, f"{family}_{size}".strip("_")))
  path = ROOT / "configs" / f"{form.format(size)}.py"
  return runpy.run_path(str(path))["get_config"]()


@pytest.mark.parametrize("name", VALUES)
def test_a_config_has_the_same_keys_values_and_types(name):
  # As JSON, so that 1 is not 1.0 and True is not 1.
  flat = json.loads(json.dumps(flatten(open_named(name))))
  assert flat == VALUES[name]
  for key, value in flat.items():
    assert type(value) is type(VALUES[name][key]), key


def test_no_config_is_left_out():
  files = [*ROOT.glob("configs/*.py"), *ROOT.glob("configs/finetune/*.py")]
  assert len(files) == len(VALUES) == 63
