"""Tests tasks with several labels per text, from files to predictions."""

import json
import pathlib

import finetune_files as files
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tasks

from bert_jax.cli.configs import load_defaults
from bert_jax.cli.main import execute
from bert_jax.objectives import finetune
from bert_jax.tasks import encode, metrics, predictions, task_inputs
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.task_inputs import Input
from bert_jax.training import logging, sweep, train
from bert_jax.weights import hf, load

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

ROOT = str(pathlib.Path(__file__).parents[2])
COLUMNS = "text=text,label=moods"
MOODS_TASK = Task(
  "moods",
  "multi_label",
  ("a", "b", "c"),
  num_choices=1,
  metrics=("f1_micro",),
)


def read_contents(inputs, **options):
  task = task_inputs.find_task("mine", "multi_label", COLUMNS, **options)
  return task_inputs.read(task, [Input(*pair) for pair in inputs.items()])


def labels_of(contents, split):
  return [example["label"] for example in contents.splits[split]]


def test_lists_and_names_with_commas_read_the_same(tmp_path):
  expected = [["joy", "hope, at last"], [], ["joy"], ["7"]]
  moods = [["joy", " hope, at last"], [], ["joy"], [7.0]]
  lines = [{"text": "a", "moods": label_names} for label_names in moods]
  list_path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  table_lines = 'a\tjoy, "hope, at last"\nb\t\nc\t joy \nd\t7\n'
  table_path = files.write_text(
    tmp_path / "a.tsv", "text\tmoods\n" + table_lines
  )
  contents = read_contents({"train": list_path, "validation": table_path})
  assert (
    labels_of(contents, "train")
    == expected
    == labels_of(contents, "validation")
  )
  assert contents.task.labels == ("7", "hope, at last", "joy")
  assert contents.task.metrics == ("f1_micro",)
  # A test set may have no labels, or no labels for some of its texts.
  path_of_empty_labels = files.write_text(
    tmp_path / "b.csv", "text,moods\na,\nb,\n"
  )
  path_without_labels = files.write_text(tmp_path / "c.csv", "text\na\n")
  inputs = {
    "train": list_path,
    "test": path_of_empty_labels,
    "more": path_without_labels,
    "some": table_path,
  }
  contents = read_contents(inputs)
  assert labels_of(contents, "test") == [None, None]
  assert labels_of(contents, "more") == [None]
  assert labels_of(contents, "some") == expected


@pytest.mark.parametrize(
  "line, message",
  [
    ({"moods": "x, d"}, r"a\.jsonl:2: label 'd' is not one of x, y"),
    ({"moods": 3}, r"a\.jsonl:2: moods is 3, not a list of labels"),
    ({"moods": None}, r"a\.jsonl:2: moods is None, not a list of labels"),
    ({"moods": ["x", ["y"]]}, r"a\.jsonl:2: label \['y'\] is neither"),
    ({"moods": ["x", " "]}, r"a\.jsonl:2: label '' is neither a name"),
    ({"moods": 'x, "y'}, r"a\.jsonl:2: moods=x, \"y: unexpected end"),
    ({}, r"a\.jsonl:2 has no column 'moods'; the columns are text"),
  ],
)
def test_bad_labels_are_named(tmp_path, line, message):
  lines = [{"text": "a", "moods": ["x", "y"]}, {"text": "b"} | line]
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  with pytest.raises(ValueError, match=message):
    read_contents({"train": path}, labels=["x", "y"])


def test_the_loss_is_the_mean_binary_cross_entropy():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(3, 4)).astype(np.float32) * 3
  labels = rng.integers(0, 2, (3, 4))
  labels[1] = logits[1] > 0  # Every label of row 1 is predicted correctly.
  weights = jnp.array([1.0, 1.0, 0.0])
  sums = finetune.task_sums("multi_label", logits, jnp.array(labels), weights)
  probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
  losses = -np.log(np.where(labels, probabilities, 1 - probabilities)).mean(-1)
  np.testing.assert_allclose(sums["task_loss"], losses[:2].sum(), rtol=1e-5)
  assert sums["task_accuracy"] == 1.0 + (labels[0] == (logits[0] > 0)).all()


def test_scores_agree_with_counts_of_labels():
  rng = np.random.default_rng(0)
  is_label, logits = rng.integers(0, 2, (20, 3)), rng.normal(size=(20, 3))
  is_label[:, 2], logits[:, 2] = 0, -1.0
  label_names = np.array(MOODS_TASK.labels)
  examples = [
    dict(id=str(i), texts=["a"], label=label_names[row > 0].tolist()[::-1])
    for i, row in enumerate(is_label)
  ]
  rows = encode.encode_texts(
    MOODS_TASK, examples, tiny_tasks.vocabulary(), length=16
  ).rows
  np.testing.assert_array_equal(rows.labels, is_label)
  predicted = predictions.make_predictions(MOODS_TASK, rows, logits, examples)
  assert predicted == [
    label_names[row_logits > 0].tolist() for row_logits in logits
  ]
  is_predicted = logits > 0
  num_shared = (is_label & is_predicted).sum(0)
  label_counts = is_label.sum(0) + is_predicted.sum(0)
  scores = metrics.evaluate(MOODS_TASK, predicted, examples)
  assert list(scores) == metrics.score_names(MOODS_TASK)
  assert scores["f1_micro"] == pytest.approx(
    2 * num_shared.sum() / label_counts.sum()
  )
  f1_by_label = 2 * num_shared / np.maximum(label_counts, 1)
  assert f1_by_label[2] == 0 and scores["f1_macro"] == pytest.approx(
    f1_by_label.mean()
  )
  assert scores["exact"] == pytest.approx(
    (is_label == is_predicted).all(-1).mean()
  )
  # Examples without labels are left out, but an unknown label is an error.
  examples[0]["label"] = None
  assert metrics.evaluate(MOODS_TASK, predicted, examples)["examples"] == 19
  with pytest.raises(ValueError, match="label 'd' of example 0 is not one of"):
    examples[0]["label"] = ["a", "d"]
    metrics.evaluate(MOODS_TASK, predicted, examples)


def run_command(verb, **values):
  execute([verb, *(f"--{name}={value}" for name, value in values.items())])


def read_lines(path):
  content = pathlib.Path(path).read_text(encoding="utf-8")
  return [json.loads(line) for line in content.splitlines()]


def test_a_run_learns_and_predicts(tmp_path, capsys):
  # The labels are the animals that a text names.
  texts = tiny_tasks.random_sentences(80, max_words=5)
  lines = [
    {"text": text, "moods": sorted({"cat", "dog"} & set(text.split()))}
    for text in texts
  ]
  vocab_path = tmp_path / "vocab.txt"
  vocab_path.write_bytes(tiny_tasks.tokenizer_files()["vocab.txt"])
  tiny_tasks.write_model(tmp_path / "pre")
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  flags = dict(task="moods", kind="multi_label", columns=COLUMNS)
  flags |= dict(input=f"train={path}", vocab=vocab_path, length=16)
  flags |= dict(output=tmp_path / "task")
  run_command("prepare-task", **flags)
  config = load_defaults("own")
  config["init_from"] = str(tmp_path / "pre")
  config["data"] |= dict(path=str(tmp_path / "task"), validation="train")
  config["data"] |= dict(epochs=24.0, buckets=(16,))
  config["model"] |= dict(dtype="float32")
  config["schedule"]["peak"] = 5e-3
  config["batch_size"] = 16
  run_folder = str(tmp_path / "run")
  train.run(config, run_folder)
  last_line = logging.read_rows(str(tmp_path / "run" / "metrics.jsonl"))[-1]
  assert last_line["f1_micro"] > 0.9 and last_line["predicted_labels"] > 1
  runs = sweep.plan(config, grid=[], seeds=[0])
  for name in ("f1_micro", "f1_macro", "exact", "task_loss", "task_accuracy"):
    assert name in last_line
    sweep.check_metric(name, runs)
  # Three commands must give equal labels: `evaluate` and `predict` with the
  # run, and `predict` with the run's copy in the format of transformers.
  flags = dict(model=run_folder, data=tmp_path / "task", split="train")
  run_command("evaluate", **flags, output=tmp_path / "out")
  printed = capsys.readouterr().out
  assert f"f1_micro: {last_line['f1_micro']:.6g}" in printed
  evaluated_predictions = read_lines(tmp_path / "out" / "predictions.jsonl")
  flags = dict(input=path, output=tmp_path / "p.jsonl")
  run_command("predict", model=run_folder, **flags)
  predicted = read_lines(tmp_path / "p.jsonl")
  assert [prediction["labels"] for prediction in predicted] == [
    evaluated["prediction"] for evaluated in evaluated_predictions
  ]
  weights = load.read(str(run_folder))
  assert weights.config["problem"] == "multi_label"
  hf.write(str(tmp_path / "hf"), weights)
  run_command("predict", model=tmp_path / "hf", **flags)
  predictions_of_copy = read_lines(tmp_path / "p.jsonl")
  assert [prediction["labels"] for prediction in predictions_of_copy] == [
    prediction["labels"] for prediction in predicted
  ]
