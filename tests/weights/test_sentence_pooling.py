"""Tests that `features` uses the pooling of models of sentence-transformers."""

import json

import numpy as np
import pytest
import tiny_hf

from bert_jax.cli.main import execute
from bert_jax.use.features import Spec, extract
from bert_jax.weights import hf, model_folder
from bert_jax.weights.load import open_model

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]
TEXTS = ["a b", "c", "d c b a", ""]
FIELD_BY_MODE = {
  "cls": "pooling_mode_cls_token",
  "mean": "pooling_mode_mean_tokens",
  "max": "pooling_mode_max_tokens",
  "weightedmean": "pooling_mode_weightedmean_tokens",
}


def write_model(
  path, modes, is_normalized=False, has_dense=False, is_new_format=False
):
  """Writes a model and its pooling as sentence-transformers writes them."""
  rng = np.random.default_rng(0)
  shapes = tiny_hf.array_shapes("BertModel")
  arrays = {
    key: rng.normal(0, 0.5, shape).astype("f") for key, shape in shapes.items()
  }
  tiny_hf.write_folder(path, "BertModel", arrays)
  (path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
  module_types = [("", "Transformer"), ("1_Pooling", "Pooling")]
  module_types += [("2_Dense", "Dense")] if has_dense else []
  module_types += [("3_Normalize", "Normalize")] if is_normalized else []
  modules = [
    {"path": folder, "type": f"sentence_transformers.models.{module_type}"}
    for folder, module_type in module_types
  ]
  (path / "modules.json").write_text(json.dumps(modules))
  (path / "1_Pooling").mkdir()
  config = {field: name in modes for name, field in FIELD_BY_MODE.items()}
  config = (
    {"pooling_mode": modes if modes[1:] else modes[0]}
    if is_new_format
    else config
  )
  (path / "1_Pooling" / "config.json").write_text(json.dumps(config))
  return str(path)


def run_features(tmp_path, capsys, model, *flags):
  """Runs the verb `features`; returns the vectors and the text on stderr."""
  (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
  output_path = tmp_path / "out.npz"
  output_path.unlink(missing_ok=True)
  files = ["--input", str(tmp_path / "in.txt"), "--output", str(output_path)]
  execute(["features", "--model", model, *files, *flags])
  return np.load(output_path)["vectors"], capsys.readouterr().err


def expected_vectors(model, mode):
  """Returns a vector for each text: NumPy pools the vectors of its pieces."""
  texts = extract(open_model(model), TEXTS, Spec(unit="piece"))
  pool = {
    "cls": lambda x: x[0],
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
  }[mode]
  return np.stack([pool(text.vectors) for text in texts])


@pytest.mark.parametrize("mode", ["cls", "mean", "max"])
@pytest.mark.parametrize("is_normalized", [False, True])
def test_the_pooling_of_the_model_is_used(
  tmp_path, capsys, mode, is_normalized
):
  model_path = write_model(
    tmp_path / "model", [mode], is_normalized, is_new_format=is_normalized
  )
  vectors, printed = run_features(tmp_path, capsys, model_path)
  expected = expected_vectors(model_path, mode)
  if is_normalized:
    expected = expected / np.linalg.norm(expected, axis=-1, keepdims=True)
  # The order of the float32 sums differs.
  np.testing.assert_allclose(vectors, expected, atol=1e-5)
  assert f"by the model's own pooling: {mode}" in printed
  assert ("divided by its length" in printed) == is_normalized
  # A converted folder keeps the pooling.
  model_folder.write(str(tmp_path / "ours"), hf.read(model_path, "bert"))
  vectors_of_copy, _ = run_features(tmp_path, capsys, str(tmp_path / "ours"))
  np.testing.assert_array_equal(vectors_of_copy, vectors)


def test_another_pooling_by_flag_is_used_and_noted(tmp_path, capsys):
  model_path = write_model(tmp_path / "model", ["cls"], is_normalized=True)
  vectors, printed = run_features(
    tmp_path, capsys, model_path, "--pooling", "mean"
  )
  np.testing.assert_allclose(
    vectors, expected_vectors(model_path, "mean"), atol=1e-5
  )
  assert "own pooling is cls; mean is used instead, as" in printed
  vectors, printed = run_features(
    tmp_path, capsys, model_path, "--pooling", "cls"
  )
  np.testing.assert_allclose(
    vectors, expected_vectors(model_path, "cls"), atol=1e-5
  )
  assert "is used instead" not in printed
  _, printed = run_features(tmp_path, capsys, model_path, "--pooling", "piece")
  assert "pooling" not in printed


@pytest.mark.parametrize(
  "modes, name",
  [(["weightedmean"], "weightedmean"), (["cls", "max"], "cls and max")],
)
def test_an_unknown_pooling_is_named(tmp_path, capsys, modes, name):
  model_path = write_model(tmp_path / "model", modes)
  with pytest.raises(SystemExit, match=f"own pooling is {name}, which is not"):
    run_features(tmp_path, capsys, model_path)
  assert not (tmp_path / "out.npz").exists()
  vectors, printed = run_features(
    tmp_path, capsys, model_path, "--pooling", "max"
  )
  np.testing.assert_allclose(
    vectors, expected_vectors(model_path, "max"), atol=1e-5
  )
  assert f"own pooling is {name}; max is used instead" in printed


def test_modules_after_the_pooling_are_named(tmp_path, capsys):
  model_path = write_model(tmp_path / "model", ["mean"], has_dense=True)
  _, printed = run_features(tmp_path, capsys, model_path)
  assert "the model's 2_Dense after the pooling is not computed here" in printed


def test_a_model_without_a_pooling_gives_pieces(tmp_path, capsys):
  model_path = write_model(tmp_path / "model", ["cls"])
  (tmp_path / "model" / "1_Pooling" / "config.json").unlink()
  vectors, printed = run_features(tmp_path, capsys, model_path)
  assert len(vectors) == sum(len(text.split()) + 2 for text in TEXTS)
  assert "pooling" not in printed


def test_damaged_modules_are_refused(tmp_path):
  write_model(tmp_path / "model", ["cls"])
  modules_path = tmp_path / "model" / "modules.json"
  for text, message in (
    ("[{", "modules.json is damaged"),
    ("[1]", "modules.json is damaged: 1 names no type"),
    ('[{"type": "x.Pooling", "path": "../p"}]', "'../p' is not the name"),
  ):
    modules_path.write_text(text)
    with pytest.raises(ValueError, match=message):
      hf.read_pooling(str(tmp_path / "model"))
  modules_path.unlink()
  config_path = tmp_path / "model" / "1_Pooling" / "config.json"
  config_path.write_text("{}")
  with pytest.raises(ValueError, match="is damaged: it names no pooling"):
    hf.read_pooling(str(tmp_path / "model"))


def test_max_pooling_covers_all_windows_of_a_text(tmp_path):
  """Pools a text in several windows, since a row has at most ten tokens.

  Each number of the vector must be the largest one over all windows.
  """
  model = open_model(write_model(tmp_path / "model", ["max"]))
  text = "a b c d " * 5
  (piece_features,) = extract(model, [text], Spec(unit="piece", overlap=2))
  (pooled_features,) = extract(model, [text], Spec(unit="max", overlap=2))
  np.testing.assert_allclose(
    pooled_features.vectors, piece_features.vectors.max(0), atol=1e-5
  )
