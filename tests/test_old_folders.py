"""Tests that folders of an earlier commit open and give their old numbers.

tests/data/folders_of_083eab5/README.md says how the folders were made.
"""

import json
import pathlib
import shutil
import tarfile

import jax
import numpy as np
import pytest
from tiny_runs import untimed_rows

from bert_jax.cli import configs
from bert_jax.cli.main import execute
from bert_jax.examples import loader
from bert_jax.training import train
from bert_jax.weights.load import open_model

pytestmark = pytest.mark.usefixtures("compilation_cache")
DATA_FOLDER = pathlib.Path(__file__).parent / "data" / "folders_of_083eab5"
# Relative tolerances. CPUs add in different orders, and 20 steps of Adam
# enlarge the differences of rounding.
PREDICTION_TOLERANCE, TRAINING_TOLERANCE = 1e-5, 5e-5


@pytest.fixture(scope="module")
def old_folders(tmp_path_factory):
  path = tmp_path_factory.mktemp("old")
  with tarfile.open(DATA_FOLDER / "folders.tar.xz") as archive:
    archive.extractall(path, filter="data")
  return path


def read_lines(path):
  lines = path.read_text(encoding="utf-8").splitlines()
  return [json.loads(line) for line in lines]


def assert_close_json(measured, expected, rel=PREDICTION_TOLERANCE):
  """Asserts that two JSON values are equal, with floats within `rel`."""
  if isinstance(expected, dict):
    assert list(measured) == list(expected)
    for key in expected:
      assert_close_json(measured[key], expected[key], rel)
  elif isinstance(expected, list | tuple):
    assert len(measured) == len(expected)
    for pair in zip(measured, expected, strict=True):
      assert_close_json(*pair, rel)
  elif isinstance(expected, float):
    assert measured == pytest.approx(expected, rel=rel)
  else:
    assert measured == expected


def test_a_prepared_folder_opens(old_folders):
  """The sums of the first batch depend on every array of the folder."""
  config = json.loads((old_folders / "pretrained" / "config.json").read_text())
  options = config["data"] | {"path": str(old_folders / "prepared")}
  data = loader.open_data(
    seed=config["seed"], length=32, max_predictions=5, **options
  )
  batch = data.read(0, 8)
  sums = {key: int(np.abs(array).sum()) for key, array in batch.items()}
  assert sums == {
    "input_ids": 8551,
    "sequence_ids": 255,
    "segment_ids": 122,
    "mlm_positions": 558,
    "mlm_ids": 1842,
    "mlm_weights": 40,
    "pair_labels": 3,
    "pair_weights": 8,
    "cls_positions": 0,
  }


@pytest.mark.parametrize(
  "name, data_folder, config_name",
  [
    ("pretrained", "prepared", "bert:tiny"),
    ("tuned", "task", "glue:sst2"),
  ],
)
def test_a_run_continues(old_folders, tmp_path, name, data_folder, config_name):
  """From step 10 on, the run logs what the old run logged."""
  run_copy = tmp_path / name
  shutil.copytree(old_folders / name, run_copy)
  shutil.rmtree(run_copy / "checkpoints" / "20")
  # Take only the keys of the config file from config.json, to which the run
  # added other keys.
  config = configs.load_defaults(config_name)
  saved_config = json.loads((run_copy / "config.json").read_text())
  for key, section in config.items():
    if isinstance(section, dict):
      config[key] = {
        name: value
        for name, value in saved_config[key].items()
        if name in section
      }
    else:
      config[key] = saved_config[key]
  # Flags set the sizes of the model, so they are not in the config file.
  config["model"] = saved_config["model"]
  config["data"]["path"] = str(old_folders / data_folder)
  if config["init_from"]:
    config["init_from"] = str(old_folders / config["init_from"])
  assert int(train.run(config, str(run_copy)).step) == 20
  expected_lines = untimed_rows(old_folders / name)
  assert (
    expected_lines[-1]["step"] == 20
    and expected_lines[-1]["split"] == "heldout"
  )
  logged_lines = untimed_rows(run_copy)
  assert len(logged_lines) == len(expected_lines)
  for line, expected_line in zip(logged_lines, expected_lines, strict=True):
    # The old version did not log the FLOPs.
    is_new_line = line["split"] == "train" and line["step"] > 10
    assert ("flops_per_step" in line) == is_new_line
    line.pop("flops_per_step", None)
    assert_close_json(line, expected_line, TRAINING_TOLERANCE)


def test_masks_are_filled_as_before(old_folders, capsys):
  expected_lines = read_lines(DATA_FOLDER / "fill_mask.jsonl")
  texts = [line["text"] for line in expected_lines]
  execute(
    ["fill-mask", "--json", "--model", str(old_folders / "pretrained"), *texts]
  )
  printed = capsys.readouterr().out.splitlines()
  assert_close_json([json.loads(line) for line in printed], expected_lines)


@pytest.mark.parametrize(
  "name, texts",
  [
    *((name, "masks") for name in ("pretrained", "converted", "hf")),
    ("tuned", "texts"),
  ],
)
def test_models_predict_as_before(old_folders, tmp_path, name, texts):
  """Predicts with a run, its two converted folders, and a fine-tuned run."""
  output = tmp_path / "predictions.jsonl"
  options = {
    "--model": old_folders / name,
    "--input": DATA_FOLDER / f"{texts}.jsonl",
    "--output": output,
  }
  execute(
    ["predict", *(str(part) for pair in options.items() for part in pair)]
  )
  assert_close_json(
    read_lines(output), read_lines(DATA_FOLDER / f"predicted_{texts}.jsonl")
  )


@pytest.mark.parametrize("name", ["converted", "hf"])
def test_a_converted_folder_holds_the_run_s_parameters(old_folders, name):
  converted_params = open_model(str(old_folders / name)).params
  run_params = open_model(str(old_folders / "pretrained")).params
  assert len(jax.tree.leaves(run_params)) == 30
  jax.tree.map(np.testing.assert_array_equal, converted_params, run_params)
