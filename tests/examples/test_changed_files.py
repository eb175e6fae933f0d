"""Tests that a changed file of a run or a model is noticed and named."""

import json
import pathlib
import random
import shutil

import numpy as np
import pytest
from prepared import random_documents, write_prepared
from tiny_runs import two_step_config, untimed_rows

from bert_jax import files
from bert_jax.examples import loader
from bert_jax.training import train
from bert_jax.weights import load as loading
from bert_jax.weights import model_folder
from bert_jax.weights.load import open_model

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("data") / "p"
  return write_prepared(
    path, random_documents(20, seed=0), random_documents(5, seed=1)
  )


def six_step_config(data_folder):
  config = two_step_config(data_folder) | {"total_steps": 6}
  config["log"]["every"] = 1
  config["checkpoint"]["every"] = config["evaluate"]["every"] = 2
  return config


@pytest.fixture(scope="module")
def finished_runs(data_folder, tmp_path_factory):
  """Returns a folder with a run of six steps and the run's converted folder."""
  path = tmp_path_factory.mktemp("finished")
  train.run(six_step_config(data_folder), str(path / "run"))
  model_folder.write(str(path / "model"), loading.read(str(path / "run")))
  return path


@pytest.fixture
def run_copy(finished_runs, tmp_path):
  return pathlib.Path(shutil.copytree(finished_runs / "run", tmp_path / "run"))


@pytest.fixture
def model_copy(finished_runs, tmp_path):
  return pathlib.Path(
    shutil.copytree(finished_runs / "model", tmp_path / "model")
  )


def read_model(path):
  """Returns a model's config as JSON, its tokenizer files and its arrays."""
  weights = loading.read(str(path))
  config = {
    key: value for key, value in weights.config.items() if key != "source"
  }
  return json.dumps(config), weights.tokenizer_files, weights.arrays


def count_errors(path, name, num_flips, rng):
  """Reads the model `num_flips` times, each time with one flipped bit.

  The bit is a random one of the file `name`. Returns how many readings fail. A
  flipped bit of config.json may be accepted, but then it must not change the
  config or the arrays of the model.
  """
  original_model, content = read_model(path), (path / name).read_bytes()
  num_errors = 0
  for _ in range(num_flips):
    flipped_content, index = bytearray(content), rng.randrange(len(content))
    flipped_content[index] ^= 1 << rng.randrange(8)
    (path / name).write_bytes(flipped_content)
    try:
      model_read = read_model(path)
    except ValueError:
      num_errors += 1
      continue
    # The bit may be in a value that the model does not use, such as the seed.
    assert model_read[0] == original_model[0] and name == "config.json"
    assert all(
      (model_read[2][path_of_array] == original_array).all()
      for path_of_array, original_array in original_model[2].items()
    )
  (path / name).write_bytes(content)
  return num_errors


@pytest.mark.parametrize(
  "name", ["config.json", "vocab.txt", "tokenizer_config.json"]
)
def test_a_flipped_bit_of_a_run_is_noticed(run_copy, name):
  num_errors = count_errors(run_copy, name, num_flips=16, rng=random.Random(0))
  assert num_errors == 16 if name != "config.json" else num_errors > 4


@pytest.mark.parametrize(
  "name",
  ["config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"],
)
def test_a_flipped_bit_of_a_converted_folder_is_noticed(model_copy, name):
  assert (
    count_errors(model_copy, name, num_flips=16, rng=random.Random(0)) == 16
  )


def replace_text(path, old, new):
  text = path.read_text()
  assert text.count(old) == 1
  path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
  "section, key, value, message",
  [
    ("model", "activation", "relu", "model.activation is 'relu', was 'gelu'"),
    ("model", "variant", "mini", "model.variant is 'mini', was 'tiny'"),
    ("objective", "name", "distil", "objective.name is 'distil', was 'mlm'"),
  ],
)
def test_the_edited_key_of_a_config_is_named(
  run_copy, section, key, value, message
):
  config = json.loads((run_copy / "config.json").read_text())
  config[section][key] = value
  (run_copy / "config.json").write_text(json.dumps(config))
  for open_run in (open_model, read_model):
    with pytest.raises(ValueError, match=f"config.json was changed.*{message}"):
      open_run(str(run_copy))


def test_two_swapped_lines_of_a_vocabulary_are_noticed(run_copy):
  lines = (run_copy / "vocab.txt").read_text().split("\n")
  lines[10], lines[11] = lines[11], lines[10]
  (run_copy / "vocab.txt").write_text("\n".join(lines))
  for open_run in (open_model, read_model):
    with pytest.raises(ValueError, match="vocab.txt is not the file that the"):
      open_run(str(run_copy))


def test_an_added_tokenizer_json_is_noticed(run_copy):
  (run_copy / "tokenizer.json").write_text("{}")
  with pytest.raises(ValueError, match="tokenizer.json is not the file that"):
    read_model(run_copy)


def test_keys_that_do_not_change_the_model_may_be_edited(run_copy):
  config = json.loads((run_copy / "config.json").read_text())
  config["model"]["unroll"], config["log"]["every"] = 2, 9
  (run_copy / "config.json").write_text(json.dumps(config))
  read_model(run_copy)


def test_an_edit_is_accepted_if_the_digests_are_deleted(model_copy, capsys):
  """With digests, an error names the section that was edited.

  If the digests are deleted too, the edit is accepted.
  """
  config = json.loads((model_copy / "config.json").read_text())
  config["model"]["activation"] = "relu"
  (model_copy / "config.json").write_text(json.dumps(config))
  with pytest.raises(ValueError, match="'model' of config.json changed since"):
    read_model(model_copy)
  del config["sha256"], config["checksum"]
  (model_copy / "config.json").write_text(json.dumps(config))
  assert json.loads(read_model(model_copy)[0])["model"]["activation"] == "relu"
  assert f"note: {model_copy} has no digests" in capsys.readouterr().err


def test_tokenizer_files_of_a_converted_folder_may_not_change(model_copy):
  (model_copy / "added_tokens.json").write_text("{}")
  with pytest.raises(ValueError, match="added_tokens.json changed since"):
    read_model(model_copy)
  (model_copy / "added_tokens.json").unlink()
  (model_copy / "vocab.txt").unlink()
  with pytest.raises(ValueError, match="vocab.txt changed since"):
    read_model(model_copy)


def remove_metadata(run, step):
  """Removes the metadata that the checkpoints of earlier versions lack."""
  path = run / "checkpoints" / str(step) / "meta" / "metadata"
  meta = json.loads(path.read_text())
  for key in ("config", "tokenizer", "log", "step", "measured"):
    del meta[key]
  path.write_text(json.dumps(files.add_checksum(meta)))


def test_a_run_of_an_earlier_version_is_opened_and_continued(
  data_folder, run_copy, capsys
):
  for checkpoint in (run_copy / "checkpoints").iterdir():
    remove_metadata(run_copy, checkpoint.name)
  read_model(run_copy)
  assert (
    f"note: {run_copy}: the checkpoint of step 6" in capsys.readouterr().err
  )
  train.run(six_step_config(data_folder), str(run_copy))
  assert "continuing from step 6" in capsys.readouterr().out


# Deletes the last checkpoint, lets the run continue, and returns what it
# prints.
def restart_output(data_folder, run, capsys):
  shutil.rmtree(run / "checkpoints" / "6")
  capsys.readouterr()
  train.run(six_step_config(data_folder), str(run))
  return capsys.readouterr().out


def test_a_restart_says_what_was_changed(
  data_folder, finished_runs, run_copy, capsys
):
  replace_text(run_copy / "vocab.txt", "w10\n", "zzz\n")
  config = json.loads((run_copy / "config.json").read_text())
  config["model"]["initializer_range"] = 0.5
  (run_copy / "config.json").write_text(json.dumps(config))
  printed = restart_output(data_folder, run_copy, capsys)
  assert "vocab.txt was changed or deleted, and is written again" in printed
  assert (
    "config.json was changed after the last checkpoint:"
    " model.initializer_range is 0.5, was 0.05"
  ) in printed
  assert untimed_rows(run_copy) == untimed_rows(finished_runs / "run")
  assert read_model(run_copy)[0] == read_model(finished_runs / "run")[0]


@pytest.mark.parametrize(
  "num_kept, message",
  # How many lines of metrics.jsonl stay: none, the first one, the first four
  # (written as -3), or all (None).
  [
    (0, "the train rows of steps 1 to 4 are missing"),
    (1, "the train rows of steps 2, 3, 4 are missing"),
    (-3, "the train rows of step 4 are missing"),
    (None, None),
  ],
)
def test_missing_lines_of_metrics_are_named_by_their_steps(
  data_folder, run_copy, capsys, num_kept, message
):
  path = run_copy / "metrics.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  if num_kept == 0:
    path.unlink()
  elif num_kept is not None:
    # The run continues from step 4, so it drops the later lines in any case.
    path.write_text(
      "".join(lines[: num_kept if num_kept > 0 else -len(lines) + 4])
    )
  printed = restart_output(data_folder, run_copy, capsys)
  if message:
    assert f"{path}: {message}" in printed
    assert ("the heldout rows of step" in printed) == (num_kept is not None)
  else:
    assert "are missing" not in printed and "a row was changed" not in printed
  # The message comes only once, because the next checkpoint notes what is
  # missing.
  train.run(six_step_config(data_folder), str(run_copy))
  assert "are missing" not in capsys.readouterr().out


def test_a_changed_line_of_metrics_is_noticed(data_folder, run_copy, capsys):
  path = run_copy / "metrics.jsonl"
  content = path.read_text()
  first_line = json.loads(content.split("\n")[0])
  first_line["loss"] += 1
  path.write_text(json.dumps(first_line) + content[content.index("\n") :])
  assert f"{path}: a row was changed" in restart_output(
    data_folder, run_copy, capsys
  )


@pytest.mark.parametrize("is_put_back", [False, True])
def test_a_run_stops_if_its_data_are_overwritten(
  data_folder, finished_runs, tmp_path, monkeypatch, is_put_back
):
  """The run stops, and saves no checkpoint after the data have changed.

  Then the old data are put back. A restart logs the same as a run whose data
  never changed.
  """
  data_copy = pathlib.Path(shutil.copytree(data_folder, tmp_path / "p"))
  tokens_path, read_batches = (
    data_copy / "train.tokens",
    loader.PretrainingData.read,
  )
  content = tokens_path.read_bytes()

  def read_and_change(batches, first, count):
    if first >= 12:
      with tokens_path.open("r+b") as tokens_file:
        tokens_file.write(np.full(len(content) // 2, 9, np.uint16).tobytes())
    if is_put_back and first >= 16:
      tokens_path.write_bytes(content)
    return read_batches(batches, first, count)

  monkeypatch.setattr(loader.PretrainingData, "read", read_and_change)
  run_folder = tmp_path / "run"
  with pytest.raises(OSError, match="train.tokens was changed while this run"):
    train.run(six_step_config(str(data_copy)), str(run_folder))
  monkeypatch.undo()
  saved_steps = [
    int(folder.name) for folder in (run_folder / "checkpoints").iterdir()
  ]
  assert max(saved_steps, default=0) < 4
  tokens_path.write_bytes(content)
  train.run(six_step_config(str(data_copy)), str(run_folder))
  assert untimed_rows(run_folder) == untimed_rows(finished_runs / "run")


def test_a_checkpoint_copied_to_another_number_is_noticed(
  data_folder, finished_runs, run_copy, capsys
):
  shutil.copytree(
    run_copy / "checkpoints" / "4", run_copy / "checkpoints" / "20"
  )
  assert read_model(run_copy)[0] == read_model(finished_runs / "run")[0]
  assert "is a copy of the checkpoint of step 4" in capsys.readouterr().err
  printed = restart_output(data_folder, run_copy, capsys)
  assert "20 is a copy of the checkpoint of step 4. Using step 4" in printed
  assert untimed_rows(run_copy) == untimed_rows(finished_runs / "run")
