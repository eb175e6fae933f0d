"""Tests a sweep's table with failed runs and constant predictions."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_tasks

from bert_jax.tasks import prepare_task
from bert_jax.tasks.batches import Split
from bert_jax.training import evaluate_task, sweep


def make_outcome(seed, error=None, **metrics):
  rows = [{"step": 9, "split": "heldout", **metrics}] if metrics else []
  return sweep.Outcome(
    sweep.PlannedRun(point={}, seed=seed, config={}), error=error, rows=rows
  )


def test_a_run_without_a_finite_metric_has_failed(tmp_path):
  outcomes = [
    make_outcome(0, pearson=0.25),
    make_outcome(1, pearson=math.nan),
    make_outcome(2, pearson=0.75),
    make_outcome(3, error="diverged"),
    make_outcome(4, loss=1.0),
  ]
  lines = sweep.write_report(str(tmp_path), outcomes, "pearson")
  (row,) = sweep.summarise(outcomes, "pearson")
  assert (row["runs"], row["failed"]) == (5, 3)
  assert (row["least"], row["median"], row["most"]) == (0.25, 0.5, 0.75)
  assert lines[-3:-1] == [
    "run seed=1 failed: pearson at the last step is not a finite number.",
    "run seed=4 failed: pearson at the last step is missing.",
  ]
  report_text = (tmp_path / "sweep.json").read_text()
  assert "NaN" not in report_text
  errors = [run["error"] for run in json.loads(report_text)["runs"]]
  assert errors[0] is None and errors[3] == "diverged"
  assert "not a finite number" in errors[1]
  # If all runs failed, there are no statistics.
  (row,) = sweep.summarise(outcomes[1:2], "pearson")
  assert row["failed"] == 1 and row["median"] is row["deviation"] is None
  (marked_outcome,) = sweep.mark_missing_metric(outcomes[1:2], "pearson")
  assert marked_outcome.error


@pytest.mark.parametrize("tag, num_labels", [("O", 1), ("B-X", 2)])
def test_runs_that_predict_one_tag_only_are_counted(tag, num_labels):
  task, vocabulary = tiny_tasks.TASKS["tagging"], tiny_tasks.vocabulary()
  examples = [
    dict(id=str(i), words=text.split(), tags=["O"] * len(text.split()))
    for i, text in enumerate(tiny_tasks.random_sentences(4))
  ]
  encoded_examples = prepare_task.encode_examples(
    task, examples, vocabulary, length=16
  )
  row_lengths = np.diff(encoded_examples.rows.starts)
  logits = [np.tile([1.0, 0.0, 0.0], (length, 1)) for length in row_lengths]
  # Every token gets the tag O, but then the first word gets `tag`. It is token
  # 1, because token 0 is [CLS].
  logits[0][1, task.labels.index(tag)] = 2.0
  split = Split(
    name="validation",
    task=task,
    pad=0,
    rows=encoded_examples.rows,
    examples=examples,
    buckets=(16,),
    pieces=(),
  )

  def evaluator(*_):
    return logits, {"task_loss": 0.5}

  state = SimpleNamespace(step=1)
  scores = evaluate_task.evaluate_splits(
    evaluator,
    state,
    teacher_params={},
    splits=[split],
    batch_size=4,
    coefficients={},
  )
  assert scores["predicted_labels"] == num_labels
  (row,) = sweep.summarise([make_outcome(0, **scores)], "tagging_f1")
  assert row["constant"] == (num_labels == 1)
