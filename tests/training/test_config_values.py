"""Tests the value and the type of every key of every config in configs/.

For a new config, add a line to config_values.json. This command prints it:
  PYTHONPATH=tests python tests/training/test_config_values.py FILE:NAME
"""

import json
import os
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import pytest
from config_names import CONFIG_VALUES
from ml_collections import ConfigDict, FieldReference

from bert_jax.messages import UserError
from bert_jax.training import config_files
from bert_jax.weights import run_config

ROOT = pathlib.Path(__file__).parents[2]


def values_of(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
  """Returns the values of a config as config_values.json writes them."""
  values: dict[str, Any] = {}
  for key, setting in config.items(preserve_field_references=True):
    name = prefix + key
    if isinstance(setting, ConfigDict) and setting:
      values |= values_of(setting, f"{name}.")
    elif isinstance(setting, ConfigDict):
      values[name] = {}
    elif isinstance(setting, FieldReference):
      assert setting.get() is None, name
      values[name] = {"placeholder": setting.get_type().__name__}
    elif isinstance(setting, tuple):
      values[name] = {"tuple": list(setting)}
    else:
      values[name] = setting
  return values


def table_line(name: str) -> str:
  """Returns the line of a config in config_values.json."""
  config_values = values_of(config_files.open_config(name))
  values_text = json.dumps(config_values, sort_keys=True, separators=(",", ":"))
  return f"{json.dumps(name)}: {values_text}"


@pytest.mark.parametrize("name", CONFIG_VALUES)
def test_a_config_has_the_keys_values_and_types_of_the_table(name):
  # JSON turns tuples into lists. In Python 1 == 1.0 == True, so the types are
  # compared after the values.
  values = json.loads(json.dumps(values_of(config_files.open_config(name))))
  assert values == CONFIG_VALUES[name]
  for key, setting in values.items():
    assert type(setting) is type(CONFIG_VALUES[name][key]), key


CONFIG_FILES = sorted(
  {name.partition(":")[0] for name in CONFIG_VALUES if ":" in name}
)


@pytest.mark.parametrize("file", CONFIG_FILES)
def test_a_wrong_name_gives_all_names(file):
  with pytest.raises(UserError) as error:
    config_files.open_config(f"{file}:no such")
  message_start = (
    f"--config={file}:no such: 'no such' is not a name of this file; "
  )
  assert str(error.value).startswith(f"{message_start}choose ")
  listed_names = (
    str(error.value).removeprefix(f"{message_start}choose ").strip(".")
  )
  # A name such as "race,gpt1" is a task with the settings of a family.
  names = {name for name in listed_names.split(", ") if "," not in name}
  assert names == {
    name.partition(":")[2]
    for name in CONFIG_VALUES
    if name.startswith(f"{file}:")
  }


def test_the_nearest_name_comes_first():
  with pytest.raises(UserError, match=": 'large_wmm' .* choose large_wwm, la"):
    config_files.open_config("bert:large_wmm")
  with pytest.raises(
    UserError, match="there is no such config; did you mean bert?"
  ):
    config_files.open_config("brt:base")
  with pytest.raises(
    UserError, match=r"configs/bart.py:base: there is no such file\.$"
  ):
    config_files.open_config("configs/bart.py:base")


def test_a_missing_path_names_the_installed_config(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(
    UserError, match=r"pass --config=bert:mini, which is installed\."
  ):
    config_files.open_config("configs/bert.py:mini")


def test_every_file_has_a_name_in_the_table():
  file_names = {name.partition(":")[0] for name in CONFIG_VALUES}
  assert set(config_files.installed_names()) == file_names


@pytest.mark.parametrize(
  "name, values",
  [
    (
      "glue:cola,roberta",
      {
        "total_steps": 5336,
        "batch_size": 16,
        "schedule.name": "linear",
        "schedule.peak": 1e-5,
        "schedule.warmup": 320 / 5336,
        "optimizer.name": "adamw_fairseq",
        "optimizer.b2": 0.98,
        "optimizer.weight_decay": 0.1,
        "optimizer.clip_norm": 0.0,
        "log.every": 50,
      },
    ),
    (
      "glue:qqp,albert",
      {
        "total_steps": 14_000,
        "batch_size": 128,
        "schedule.name": "bert",
        "schedule.peak": 5e-5,
        "schedule.warmup": 1000 / 14_000,
        "objective.head_dropout": 0.1,
      },
    ),
    (
      "glue:rte,electra",
      {
        "total_steps": None,
        "schedule.name": "electra",
        "schedule.peak": 1e-4,
        "optimizer.layer_decay": 0.8,
        "data.epochs": 10.0,
      },
    ),
    (
      "choices:race,gpt1",
      {
        "batch_size": 32,
        "schedule.name": "linear",
        "schedule.peak": 6.25e-5,
        "schedule.warmup": 0.002,
        "objective.lm_weight": 0.5,
        "optimizer.name": "adamw",
        "optimizer.b2": 0.999,
        "optimizer.weight_decay": 0.01,
        "optimizer.clip_norm": 1.0,
        "data.epochs": 3.0,
      },
    ),
    (
      "choices:race,albert",
      {
        "total_steps": 12_000,
        "batch_size": 32,
        "schedule.name": "bert",
        "schedule.peak": 2e-5,
        "schedule.warmup": 1000 / 12_000,
        "optimizer.name": "adamw",
        "optimizer.b2": 0.999,
        "optimizer.weight_decay": 0.01,
        "optimizer.clip_norm": 1.0,
        "objective.head_dropout": 0.1,
      },
    ),
    (
      "squad:squad,roberta",
      {
        "data.epochs": 2.0,
        "batch_size": 48,
        "schedule.name": "linear",
        "schedule.peak": 1.5e-5,
        "schedule.warmup": 0.06,
        "optimizer.name": "adamw",
        "optimizer.b2": 0.98,
      },
    ),
    (
      "squad:squad2,electra",
      {
        "objective.span_head": "joint",
        "batch_size": 32,
        "schedule.name": "electra",
        "optimizer.layer_decay": 0.8,
        "data.epochs": 2.0,
      },
    ),
  ],
)
def test_tasks_of_families_other_than_bert_have_published_settings(
  name, values
):
  """The numbers are from the papers that the config files name."""
  all_values = run_config.flatten(config_files.open_config(name).to_dict())
  assert {key: all_values[key] for key in values} == values


def test_flat_text_has_a_line_for_each_key():
  lines = config_files.flat_text(config_files.open_config("own")).splitlines()
  # The empty section `phases` has no line.
  assert len(lines) == len(CONFIG_VALUES["own"]) - 1
  assert "model.family = None" in lines and "batch_size = 32" in lines
  assert "data.buckets = (16, 32, 48, 64, 96, 128)" in lines


def test_a_wheel_has_the_configs(tmp_path):
  """`--config bert:tiny` works from an installed package in any folder."""
  wheel_arguments = ["bdist_wheel", "--quiet", "--dist-dir", str(tmp_path)]
  command = [sys.executable, "setup.py", "build", "--build-base"]
  command += [str(tmp_path / "build"), "egg_info", "--egg-base", str(tmp_path)]
  subprocess.run(
    [*command, *wheel_arguments], cwd=ROOT, check=True, capture_output=True
  )
  (wheel,) = tmp_path.glob("*.whl")
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(tmp_path / "site")
  code = (
    "from bert_jax.training.config_files import open_config, resolve_name;"
    "print(open_config('bert:tiny').model.variant, resolve_name('glue:mrpc'))"
  )
  process = subprocess.run(
    [sys.executable, "-c", code],
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
    capture_output=True,
    text=True,
    check=True,
  )
  path = tmp_path / "site" / "bert_jax" / "configs" / "glue.py"
  assert process.stdout.split() == ["tiny", f"{path}:mrpc"]


if __name__ == "__main__":
  print("\n".join(map(table_line, sys.argv[1:])))
