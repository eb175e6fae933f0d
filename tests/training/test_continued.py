"""Tests runs that train models of transformers further."""

import functools
import importlib.util
import json
import os
import shutil
import types

import jax
import numpy as np
import pytest
from flax import traverse_util
from prepared import random_documents, write_prepared

if importlib.util.find_spec("torch") and importlib.util.find_spec(
  "transformers"
):
  import continued
elif "BERT_JAX_TEST_DATA" in os.environ:
  raise ImportError("these tests need torch and transformers here.")
else:
  pytest.skip(
    "torch and transformers are not installed", allow_module_level=True
  )

from bert_jax import files
from bert_jax.corpus import reader
from bert_jax.devices import sharding
from bert_jax.training import config as config_lib
from bert_jax.training import setup as building
from bert_jax.training import train
from bert_jax.weights import hf, runs

# Relative tolerances of the first loss and of the later losses. bert_jax and
# transformers compute in float32, but sum in different orders. The differences
# were 1e-6 in the first step, and 1e-5 after 20 steps: Adam amplifies the noise
# of small gradients.
FIRST_TOLERANCE, LATER_TOLERANCE = 2e-6, 5e-5
FAMILIES = tuple(continued.REFERENCES)
WORD_TABLE_PATH = "encoder/embeddings/word/embedding"


pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
  """Returns a prepared folder, with the pieces "new", "##er" and "newer"."""
  path = tmp_path_factory.mktemp("data") / "prepared"
  write_prepared(path, random_documents(40, 0), random_documents(6, 1))
  pieces = (path / "vocab.txt").read_text().split()
  pieces[10], pieces[11], pieces[-1] = "new", "##er", "newer"
  (path / "vocab.txt").write_text("\n".join(pieces) + "\n")
  meta = json.loads((path / "meta.json").read_text())
  meta["fingerprint"] = reader.compute_fingerprint(str(path), meta["options"])
  (path / "meta.json").write_text(json.dumps(files.add_checksum(meta)))
  return path


@pytest.fixture(scope="module")
def model_path_of(data_folder, tmp_path_factory):
  """Returns a function that maps a family to the folder of a model.

  The function writes each model once.
  """

  @functools.cache
  def write(family):
    path = tmp_path_factory.mktemp(family) / "model"
    continued.write_reference(path, family, data_folder / "vocab.txt")
    return str(path)

  return write


def config_json_of(config):
  """Returns what a run with this config writes to config.json."""
  setup = building.build(config_lib.parse(config))
  return config_lib.to_json(config, setup.config)


def start_run(config, capsys=None):
  """Returns a new run's first parameters, {path: array}, and printed lines."""
  setup = building.build(config_lib.parse(config))
  with sharding.use_mesh(setup.mesh):
    no_checkpoints = types.SimpleNamespace(latest_step=lambda: None)
    state, meta = train.make_first_state(setup, no_checkpoints)
  assert meta == {} and int(state.step) == 0
  arrays = traverse_util.flatten_dict(jax.device_get(state.params), sep="/")
  lines = capsys.readouterr().out.splitlines() if capsys else []
  return arrays, [line.strip() for line in lines]


def assert_equal_arrays(arrays, expected_arrays, names):
  assert names
  for name in names:
    np.testing.assert_array_equal(arrays[name], expected_arrays[name], name)


def assert_losses_agree(rows, losses):
  """Compares the losses of all steps, with a smaller tolerance for step 1."""
  assert len(rows) == len(losses) > 0
  for index, (row, reference_losses) in enumerate(
    zip(rows, losses, strict=True)
  ):
    assert row["step"] == index + 1
    for name, loss in reference_losses.items():
      tolerance = LATER_TOLERANCE if index else FIRST_TOLERANCE
      assert row[name] == pytest.approx(loss, rel=tolerance), (index, name)


@pytest.mark.parametrize(
  "family",
  [
    pytest.param(name, marks=[] if name == "bert" else [pytest.mark.slow])
    for name in FAMILIES
  ],
)
def test_the_losses_of_twenty_steps_equal_those_of_transformers(
  family, model_path_of, data_folder, tmp_path, capsys
):
  config = continued.config_of(family, data_folder, model_path_of(family))
  rows, config = continued.run_config(config, tmp_path / "run")
  model = continued.write_reference(
    tmp_path / "again", family, data_folder / "vocab.txt"
  )
  rates = [row["learning_rate"] for row in rows]
  assert len(rates) == 20
  assert_losses_agree(
    rows, continued.train_reference(model, family, config, rates)
  )
  printed = capsys.readouterr().out
  assert "newly initialized: none" in printed and "not used: none" in printed
  assert "hidden=16" in printed and "not those of model.variant" in printed
  assert config["model"]["hidden"] == 16


@pytest.mark.parametrize(
  "family",
  [
    pytest.param(name, marks=[] if name == "gpt" else [pytest.mark.slow])
    for name in FAMILIES
  ],
)
@pytest.mark.parametrize("method", ["mean", "drawn"])
def test_a_longer_vocabulary_trains_as_in_transformers(
  family, method, data_folder, tmp_path, capsys
):
  """The data have one piece that the model's vocabulary lacks: "newer".

  The model's tokenizer splits "newer" into "new" and "##er". With "mean", the
  new embedding must be the mean of theirs. The loss must be that of
  transformers.
  """
  pieces = (data_folder / "vocab.txt").read_text().split()
  short_vocabulary_path = tmp_path / "vocab.txt"
  short_vocabulary_path.write_text("\n".join(pieces[:-1]) + "\n")
  vocab_size = len(pieces)
  model = continued.write_reference(
    tmp_path / "model", family, short_vocabulary_path, vocab_size - 1
  )
  changes = {"init_new_rows": method, "total_steps": 1}
  config = continued.config_of(
    family, data_folder, tmp_path / "model", **changes
  )
  arrays, lines = start_run(config, capsys)
  description_by_method = {
    "mean": "each the mean of old rows",
    "drawn": "all random",
  }
  expected_line = (
    f"new rows of the word table: 1 ('newer'), {description_by_method[method]}"
  )
  assert expected_line in lines
  table_path = (
    WORD_TABLE_PATH.removeprefix("encoder/")
    if family == "electra"
    else WORD_TABLE_PATH
  )
  table = arrays[table_path]
  assert len(table) == vocab_size
  # Pieces 10 and 11 are "new" and "##er".
  if method == "mean":
    np.testing.assert_allclose(table[-1], table[[10, 11]].mean(0), rtol=1e-6)
    if "mlm/bias" in arrays:
      bias = arrays["mlm/bias"]
      assert bias[-1] == pytest.approx(bias[[10, 11]].mean(), rel=1e-6)
  else:
    drawn_arrays, _ = start_run(config_json_of(config) | {"init_from": ""})
    np.testing.assert_array_equal(table[-1], drawn_arrays[table_path][-1])
    if "mlm/bias" in arrays:
      assert arrays["mlm/bias"][-1] == drawn_arrays["mlm/bias"][-1] == 0
  rows, config = continued.run_config(config, tmp_path / "run")
  bias = arrays.get("mlm/bias")
  longer_model = continued.add_piece(
    model, table[-1], None if bias is None else bias[-1]
  )
  assert_losses_agree(
    rows, continued.train_reference(longer_model, family, config, [0.0])
  )


@pytest.mark.parametrize(
  "name, new_heads",
  [
    ("BertModel", {"mlm", "pair"}),
    pytest.param("BertForMaskedLM", {"pooler", "pair"}, marks=pytest.mark.slow),
    pytest.param(
      "BertForTokenClassification",
      {"mlm", "pooler", "pair"},
      marks=pytest.mark.slow,
    ),
  ],
)
def test_heads_that_a_model_lacks_are_initialized_and_named(
  data_folder, tmp_path, capsys, name, new_heads
):
  sizes = continued.REFERENCES["bert"][1] | {"vocab_size": 64}
  continued.build_reference(name, sizes).save_pretrained(tmp_path / "hf")
  shutil.copy(data_folder / "vocab.txt", tmp_path / "hf")
  config = continued.config_of("bert", data_folder, tmp_path / "hf")
  arrays, lines = start_run(config, capsys)
  weights = hf.read(str(tmp_path / "hf"), "bert")
  paths_of_new_heads = {
    path for path in arrays if path.split("/")[0] in new_heads
  }
  assert {path.split("/")[0] for path in paths_of_new_heads} == new_heads
  assert_equal_arrays(
    arrays, weights.arrays, arrays.keys() - paths_of_new_heads
  )
  report = dict(line.split(": ", 1) for line in lines if ": " in line)
  for head in new_heads:
    assert head in report["newly initialized"] and head not in report["taken"]
  has_classifier = "classifier" in "".join(weights.arrays)
  assert ("classifier" in report["not used"]) == has_classifier
  # A run of this size without `init_from` draws equal heads.
  model = config_json_of(config)["model"] | config["model"]
  config = config | {"init_from": "", "model": model}
  drawn_arrays, _ = start_run(config)
  assert_equal_arrays(arrays, drawn_arrays, paths_of_new_heads)


def test_a_key_that_contradicts_the_model_is_refused(
  data_folder, model_path_of
):
  changes = {"model.hidden": 32, "model.activation": "relu"}
  config = continued.config_of(
    "gpt", data_folder, model_path_of("gpt"), **changes
  )
  pattern = (
    "model.activation='relu', model.hidden=32, but.*gelu_new', hidden=16"
  )
  with pytest.raises(ValueError, match=f"{pattern}.*--config.model.hidden=16"):
    building.build(config_lib.parse(config))


@pytest.mark.slow
def test_a_restart_does_not_read_init_from(
  data_folder, model_path_of, tmp_path
):
  """Restarts runs at step 2, with the model deleted or `init_from` empty.

  The losses must be those of the whole run.
  """
  model_copy = tmp_path / "model"
  shutil.copytree(model_path_of("gpt"), model_copy)

  def make_config(model_path=model_copy):
    changes = {"total_steps": 4, "checkpoint.every": 2}
    return continued.config_of("gpt", data_folder, model_path, **changes)

  rows, _ = continued.run_config(make_config(), tmp_path / "whole")
  shutil.rmtree(model_copy)
  for name, model_path in (("gone", model_copy), ("unnamed", "")):
    run_copy = tmp_path / name
    shutil.copytree(tmp_path / "whole", run_copy)
    shutil.rmtree(run_copy / "checkpoints" / "4")
    new_rows, _ = continued.run_config(make_config(model_path), run_copy)
    assert [row["loss"] for row in new_rows] == [row["loss"] for row in rows]


@pytest.mark.slow
def test_init_from_may_name_a_step_of_a_run(
  data_folder, model_path_of, tmp_path, capsys
):
  changes = {"total_steps": 4, "checkpoint.every": 2}
  config = continued.config_of(
    "gpt", data_folder, model_path_of("gpt"), **changes
  )
  continued.run_config(config, tmp_path / "run")
  for suffix, step in (("@2", 2), ("", 4)):
    path = f"{tmp_path / 'run'}{suffix}"
    config = continued.config_of("gpt", data_folder, path)
    capsys.readouterr()
    arrays, lines = start_run(config, capsys)
    assert (
      f"the model is from step {step} of its run; this run begins at step 0"
    ) in lines
    assert_equal_arrays(arrays, runs.read(path).arrays, arrays.keys())
