"""Tests predictions of exported files, and errors about damaged files."""

import json
import os
import pathlib
import random
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tiny_models

from bert_jax.cli.main import execute
from bert_jax.tasks.files import requests
from bert_jax.use import export, serve
from bert_jax.use import predict as predicting
from bert_jax.weights import load as loading

pytest.importorskip("flatbuffers")
LINES_BY_KIND = {
  "classification": [
    {"id": "x", "text": "the cats sat ."},
    {"texts": ["a b", "c"]},
    {"text": ""},
    {"text": "unaffable " * 20},
  ],
  "multi_label": [{"text": "the cat"}, {"texts": ["a b", "c"]}, {"text": "d"}],
  "regression": [{"text": "the cat"}, {"texts": ["a", "b c d"]}],
  "choice": [
    {"texts": [["a", "b"], ["a", "the cat"], ["a", "c"]]},
    {"id": 7, "texts": [["cats"], ["a mat ."]]},
  ],
  "tagging": [
    {"words": ["unaffable", "cats", "\u200b", "sat"]},
    {"words": ["the", "cats"] * 20},
  ],
  "span": [
    {"question": "a b ?", "context": "the cats sat  on a mat. " * 5},
    {"question": "c", "context": ""},
  ],
}
HEAD_BY_KIND = {
  "classification": ("sequence_classification", dict(num_labels=2)),
  "multi_label": ("sequence_classification", dict(num_labels=3)),
  "regression": ("sequence_classification", dict(num_labels=1)),
  "choice": ("multiple_choice", dict(num_labels=1)),
  "tagging": ("token_classification", dict(num_labels=3)),
  "span": ("span", {}),
}
LABELS_BY_KIND = {
  "classification": ["no", "yes"],
  "multi_label": ["new", "old", "odd"],
  "tagging": ["O", "B-X", "I-X"],
}


pytestmark = pytest.mark.usefixtures("fast_compilation")


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory):
  """Returns {kind of task: the folder of a tiny converted model}."""
  path = tmp_path_factory.mktemp("models")
  folder_by_kind = {}
  for kind, (task, head) in HEAD_BY_KIND.items():
    labels = LABELS_BY_KIND.get(kind)
    folder = tiny_models.write_model(path / kind, "bert", task, head, labels)
    if kind in ("multi_label", "regression"):
      tiny_models.delete_digests(folder)
      config_path = path / kind / "config.json"
      config = json.loads(config_path.read_text())
      config_path.write_text(json.dumps(config | {"problem": kind}))
    folder_by_kind[kind] = folder
  return folder_by_kind


def write_lines(path, lines):
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  return str(path)


def split_floats(tree):
  """Returns the floats of a prediction, and the prediction without floats."""
  if isinstance(tree, float):
    return [tree], None
  if isinstance(tree, (dict, list, tuple)):
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    branches = [split_floats(tree[key]) for key in keys]
    floats = [
      number for branch_floats, _ in branches for number in branch_floats
    ]
    branches_without_floats = [branch for _, branch in branches]
    return floats, list(zip(keys, branches_without_floats, strict=True))
  return [], tree


def predict(model, kind, lines):
  examples = requests.read(map(json.dumps, lines), kind, "in.jsonl")
  return predicting.predict(model, list(examples))


def assert_close(predictions, expected):
  floats, other_values = split_floats(predictions)
  expected_floats, expected_other_values = split_floats(expected)
  assert other_values == expected_other_values
  assert floats == pytest.approx(expected_floats, abs=1e-6)


@pytest.mark.parametrize("kind", HEAD_BY_KIND)
def test_the_file_predicts_what_the_live_model_does(
  kind, model_folders, tmp_path
):
  path = str(tmp_path / "model.bin")
  # Each length compiles two programs, so only classification has two lengths.
  # The other kinds pad all rows to 32 tokens.
  lengths = (16, 32) if kind == "classification" else (32,)
  export.save(path, loading.open_model(model_folders[kind]), lengths, ("cpu",))
  exported_predictor = export.load(path, batch_size=2)
  live_predictor = predicting.open_predictor(
    model_folders[kind], batch_size=2, max_length=32
  )
  assert (
    exported_predictor.task == live_predictor.task
    and exported_predictor.kind == live_predictor.kind == kind
  )
  predictions = predict(exported_predictor, kind, LINES_BY_KIND[kind])
  assert_close(predictions, predict(live_predictor, kind, LINES_BY_KIND[kind]))
  assert_valid_predictions(kind, predictions)
  source = write_lines(tmp_path / "in.jsonl", LINES_BY_KIND[kind])
  output = tmp_path / "out.jsonl"
  num_predictions = serve.answer_file(
    lambda: exported_predictor, source, str(output)
  )
  assert num_predictions == len(predictions)
  lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
  for line in lines:
    del line["id"]
  assert_close(lines, predictions)


def assert_valid_predictions(kind, predictions):
  """Asserts that each line has a prediction with valid values."""
  for line, prediction in zip(LINES_BY_KIND[kind], predictions, strict=True):
    if kind == "classification":
      probabilities = prediction["probabilities"]
      assert sum(probabilities.values()) == pytest.approx(1) and list(
        probabilities
      ) == ["no", "yes"]
      assert prediction["label"] == max(probabilities, key=probabilities.get)
    elif kind == "multi_label":
      probabilities = prediction["probabilities"]
      assert list(probabilities) == LABELS_BY_KIND[kind] and all(
        0 < probability < 1 for probability in probabilities.values()
      )
      assert prediction["labels"] == [
        name for name in probabilities if probabilities[name] > 0.5
      ]
    elif kind == "choice":
      assert len(prediction["probabilities"]) == len(line["texts"])
    elif kind == "tagging":
      words = line.get("words", line.get("text"))
      assert len(prediction["tags"]) == len(words)
      assert set(prediction["tags"]) <= set(LABELS_BY_KIND["tagging"])
    elif kind == "span":
      assert prediction["answer"] in line["context"]
    else:
      assert np.isfinite(prediction["score"])


def test_run_exported_needs_only_the_exported_file(
  model_folders, tmp_path, capsys
):
  path = str(tmp_path / "model.bin")
  arguments = ["--model", model_folders["classification"], "--output", path]
  execute(["export", *arguments, "--lengths", "32,512"])
  assert capsys.readouterr().out.splitlines()[-1] == (
    f"next: bert_jax run-exported --model {path} --input texts.jsonl"
    " --output predictions.jsonl"
  )
  # The model takes at most 34 tokens, so 34 stands for 512.
  with zipfile.ZipFile(path) as archive:
    assert json.loads(archive.read("meta.json"))["lengths"] == [32, 34]
  input_path = write_lines(
    tmp_path / "in.jsonl", LINES_BY_KIND["classification"]
  )
  output = tmp_path / "out.jsonl"
  command = [sys.executable, "-m", "bert_jax", "run-exported", "--model", path]
  process = subprocess.run(
    [*command, "--input", input_path, "--output", output],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
  )
  assert process.returncode == 0, process.stderr
  assert "4 predictions" in process.stdout
  predictions = [json.loads(line) for line in output.read_text().splitlines()]
  assert [prediction.pop("id") for prediction in predictions] == ["x", 2, 3, 4]
  live_predictor = predicting.open_predictor(model_folders["classification"])
  assert_close(
    predictions,
    predict(live_predictor, "classification", LINES_BY_KIND["classification"]),
  )


@pytest.fixture(scope="module")
def exported_path(model_folders, tmp_path_factory):
  path = str(tmp_path_factory.mktemp("file") / "model.bin")
  model = loading.open_model(model_folders["tagging"])
  export.save(path, model, (16,), ("cpu", "tpu"))
  return path


@pytest.mark.parametrize("begin", [0, -1500])
def test_a_flipped_bit_is_reported_or_changes_no_parameter(
  exported_path, tmp_path, begin
):
  """Flips one bit near the beginning, or near the table of contents at the end.

  Loading must fail with the file's name, or give the parameters of the intact
  file.
  """
  content, rng = pathlib.Path(exported_path).read_bytes(), random.Random(0)
  path = tmp_path / "a.bin"
  num_errors = 0
  for _ in range(10):
    changed_content, offset = bytearray(content), begin + rng.randrange(1500)
    changed_content[offset] ^= 1 << rng.randrange(8)
    path.write_bytes(changed_content)
    try:
      predictor = export.load(str(path))
    except ValueError as error:
      assert str(path) in str(error)
      num_errors += 1
      continue
    # The bit may be outside the model, for example in the date of a zip entry.
    intact_predictor = export.load(exported_path)
    assert predictor.params.keys() == intact_predictor.params.keys()
    for name, array in intact_predictor.params.items():
      np.testing.assert_array_equal(predictor.params[name], array)
  assert num_errors > 3


# Offset in an entry of the table of contents -> (bits to set, message).
DAMAGE_BY_OFFSET = {
  6: (255, "zip file version"),
  8: (1, "encrypted"),
  10: (255, "compression method"),
}


@pytest.mark.parametrize("offset", DAMAGE_BY_OFFSET)
def test_a_wrong_table_of_contents_is_refused(exported_path, tmp_path, offset):
  content = bytearray(pathlib.Path(exported_path).read_bytes())
  with zipfile.ZipFile(exported_path) as archive:
    table_start = archive.start_dir
  bits, reason = DAMAGE_BY_OFFSET[offset]
  content[table_start + offset] |= bits
  path = tmp_path / "a.bin"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=reason) as error:
    export.load(str(path))
  message = str(error.value)
  assert message.startswith(
    f"{path} is not an exported model, or it is damaged ("
  )


def test_a_renamed_parameter_is_reported_as_missing(exported_path, tmp_path):
  content = pathlib.Path(exported_path).read_bytes()
  with zipfile.ZipFile(exported_path) as archive:
    names = [name for name in archive.namelist() if name.startswith("params/")]
  path = tmp_path / "a.bin"
  for name in (names[0], names[-1]):
    new_name = f"q{name[1:]}".encode()
    path.write_bytes(content.replace(name.encode(), new_name))
    missing_name = name.removesuffix(".npy")
    with pytest.raises(ValueError, match=f"damaged \\('{missing_name}'\\)"):
      export.load(str(path))
  # The files of earlier versions have no list of arrays, and can be loaded.
  path = write_changed_copy(tmp_path / "old.bin", exported_path, arrays=None)
  assert len(export.load(path).params) == len(names)


def write_changed_copy(path, old_path, **changes):
  """Writes a copy of an exported file, with changes in its meta.json.

  A value of None deletes its key. The value of `program` is also written as the
  content of program_16.
  """
  with (
    zipfile.ZipFile(old_path) as source,
    zipfile.ZipFile(path, "w") as target,
  ):
    for name in source.namelist():
      content = source.read(name)
      if name == "meta.json":
        meta = json.loads(content) | changes
        meta = {key: value for key, value in meta.items() if value is not None}
        content = json.dumps(meta)
      if name == "program_16" and "program" in changes:
        content = changes["program"]
      target.writestr(name, content)
  return str(path)


def test_a_damaged_file_is_refused_in_a_sentence(exported_path, tmp_path):
  content = bytearray(pathlib.Path(exported_path).read_bytes())
  (tmp_path / "cut").write_bytes(content[: len(content) // 2])
  with zipfile.ZipFile(exported_path) as archive:
    largest_entry = max(archive.infolist(), key=lambda info: info.file_size)
  content[largest_entry.header_offset + largest_entry.file_size // 2] ^= 255
  (tmp_path / "flipped").write_bytes(content)
  write_changed_copy(tmp_path / "format", exported_path, format_version=9)
  write_changed_copy(tmp_path / "garbage", exported_path, program="no program")
  message_by_file = {
    "none": "No such file",
    "cut": "not an exported model, or it is damaged",
    "flipped": "not an exported model, or it is damaged",
    "format": "format_version is 9",
    "garbage": "does not read its program",
  }
  input_path = write_lines(tmp_path / "in.jsonl", LINES_BY_KIND["tagging"])
  output = str(tmp_path / "out.jsonl")
  for name, expected in message_by_file.items():
    assert_run_exported_error(
      expected, str(tmp_path / name), input_path, output
    )
  path_of_bad_lines = write_lines(
    tmp_path / "bad.jsonl", [{"text": "a"}, {"texts": ["a"]}]
  )
  expected = "bad.jsonl:2: it has no field 'text'"
  assert_run_exported_error(expected, exported_path, path_of_bad_lines, output)
  path_of_no_lines = write_lines(tmp_path / "empty.jsonl", [])
  expected = "empty.jsonl has no lines"
  assert_run_exported_error(expected, exported_path, path_of_no_lines, output)
  assert not pathlib.Path(output).exists()
  assert not pathlib.Path(output + ".partial").exists()
  expected = "is the input; choose another"
  assert_run_exported_error(expected, exported_path, input_path, input_path)
  input_lines = pathlib.Path(input_path).read_text().splitlines()
  assert [json.loads(line) for line in input_lines] == LINES_BY_KIND["tagging"]


def assert_run_exported_error(expected, model, source, target):
  flags = ["--model", model, "--input", source, "--output", target]
  assert_command_error(expected, "run-exported", *flags)


def assert_command_error(expected, verb, *arguments):
  with pytest.raises(SystemExit) as exit_info:
    execute([verb, *arguments])
  assert str(exit_info.value).startswith("error: ") and expected in str(
    exit_info.value
  )
  assert "\n" not in str(exit_info.value)


def test_models_and_flags_that_cannot_be_exported_are_refused(
  model_folders, tmp_path
):
  encoder_path = tiny_models.write_model(tmp_path / "bare", "bert")
  output = str(tmp_path / "out")
  for expected, *arguments in (
    ("is a model for encoder", "--model", encoder_path),
    ("--lengths x", "--model", model_folders["span"], "--lengths", "x"),
    (
      "the length of rows is 0; it must be 1 or more",
      "--model",
      model_folders["span"],
      "--lengths",
      "0,32",
    ),
    ("no space for text", "--model", model_folders["span"], "--lengths", "4"),
    ("--platforms gpu", "--model", model_folders["span"], "--platforms", "gpu"),
  ):
    arguments += ["--output", output]
    assert_command_error(expected, "export", *arguments)
  assert [path.name for path in tmp_path.iterdir()] == ["bare"]
