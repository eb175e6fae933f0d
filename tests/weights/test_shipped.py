"""Tests the model that the package ships."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import bert_jax
from bert_jax.messages import UserError
from bert_jax.weights import load, shipped

# The most bytes of all shipped files, with the vocabulary and the card.
MAX_BYTES = 10_000_000


def test_shipped_files_are_smaller_than_10_mb():
  assert shipped.model_names() == ["mini"]
  sizes = [
    file.stat().st_size for file in (shipped.MODELS_FOLDER / "mini").iterdir()
  ]
  assert sum(sizes) < MAX_BYTES


def test_mini_fills_masks_with_the_right_words(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)  # Here `mini` is not a folder.
  texts = {
    "Paris is the capital of [MASK].": "france",
    "The capital of Germany is [MASK].": "berlin",
    "She opened the [MASK] and walked into the room.": "door",
    "They drank a cup of [MASK] after dinner.": "tea",
    "Tokyo is the largest city in [MASK].": "japan",
    "The president of the United [MASK] gave a speech.": "states",
  }
  predictions = bert_jax.load("mini").fill_mask(list(texts), top_k=1)
  words = [prediction["masks"][0][0]["token"] for prediction in predictions]
  assert words == list(texts.values())


def test_a_folder_of_the_same_name_is_opened_instead(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "mini").mkdir()
  with pytest.raises(UserError, match=r"mini"):
    load.read("mini")


def test_codes_times_steps_are_the_weights():
  codes = np.array([[-3, 0, 127], [1, 2, -128]], np.int8)
  steps = np.array([[0.5], [0.25]], np.float16)
  arrays = shipped.dequantise(
    {"a/kernel.codes": codes, "a/kernel.steps": steps, "a/bias": steps[:, 0]}
  )
  assert {name: array.dtype for name, array in arrays.items()} == {
    "a/kernel": np.float32,
    "a/bias": np.float32,
  }
  np.testing.assert_array_equal(
    arrays["a/kernel"], [[-1.5, 0, 63.5], [0.25, 0.5, -32]]
  )
  np.testing.assert_array_equal(arrays["a/bias"], [0.5, 0.25])


def _copy_mini(monkeypatch, tmp_path: pathlib.Path) -> pathlib.Path:
  shutil.copytree(shipped.MODELS_FOLDER / "mini", tmp_path / "mini")
  monkeypatch.setattr(shipped, "MODELS_FOLDER", tmp_path)
  return tmp_path / "mini"


def test_truncated_parameters_are_reported(monkeypatch, tmp_path):
  path = _copy_mini(monkeypatch, tmp_path) / shipped.PARAMETERS_FILE
  path.write_bytes(path.read_bytes()[:100_000])
  with pytest.raises(UserError, match=r"parameters.npz is damaged .*install"):
    shipped.read("mini")


def test_a_changed_byte_of_the_parameters_is_reported(monkeypatch, tmp_path):
  path = _copy_mini(monkeypatch, tmp_path) / shipped.PARAMETERS_FILE
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 255
  path.write_bytes(content)
  with pytest.raises(UserError, match=r"parameters.npz is damaged .*install"):
    shipped.read("mini")


def test_a_config_of_another_size_is_reported(monkeypatch, tmp_path):
  path = _copy_mini(monkeypatch, tmp_path) / "config.json"
  config = json.loads(path.read_text())
  config["model"]["hidden"] = 256
  path.write_text(json.dumps(config))
  with pytest.raises(UserError, match=r"parameters.npz"):
    shipped.read("mini")
