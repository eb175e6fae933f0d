"""A sweep's table: which runs failed, and which predict one thing alone."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_tasks

from bert_jax.tasks import prepare_task
from bert_jax.tasks.batches import Split
from bert_jax.training import evaluate_task, sweep


def done(seed, error=None, **last):
  rows = [{"step": 9, "split": "heldout", **last}] if last else []
  return sweep.Done(sweep.Run({}, seed, {}), error, rows)


def test_a_run_without_a_finite_metric_has_failed(tmp_path):
  found = [done(0, pearson=0.25), done(1, pearson=math.nan)]
  found += [done(2, pearson=0.75), done(3, "diverged"), done(4, loss=1.0)]
  lines = sweep.report(str(tmp_path), found, "pearson")
  (row,) = sweep.summarise(found, "pearson")
  assert (row["runs"], row["failed"]) == (5, 3)
  assert (row["least"], row["median"], row["most"]) == (0.25, 0.5, 0.75)
  assert lines[-3:-1] == [
    "run seed=1 failed: pearson at the last step is not a finite number.",
    "run seed=4 failed: pearson at the last step is not there.",
  ]
  text = (tmp_path / "sweep.json").read_text()
  assert "NaN" not in text
  errors = [run["error"] for run in json.loads(text)["runs"]]
  assert errors[0] is None and errors[3] == "diverged"
  assert "not a finite number" in errors[1]
  # None is left: there is nothing to count.
  (row,) = sweep.summarise(found[1:2], "pearson")
  assert row["failed"] == 1 and row["median"] is row["deviation"] is None
  assert all(one.error for one in sweep.judge(found[1:2], "pearson"))


@pytest.mark.parametrize("tag, labels", [("O", 1), ("B-X", 2)])
def test_a_tagger_that_says_one_thing_alone_is_constant(tag, labels):
  task, words = tiny_tasks.TASKS["tagging"], tiny_tasks.vocabulary()
  examples = [
    dict(id=str(i), words=text.split(), tags=["O"] * len(text.split()))
    for i, text in enumerate(tiny_tasks.sentences(4))
  ]
  made = prepare_task.encode_examples(task, examples, words, 16)
  sizes = np.diff(made.rows.starts)
  logits = [np.tile([1.0, 0.0, 0.0], (size, 1)) for size in sizes]
  # The first word of all, behind [CLS].
  logits[0][1, task.labels.index(tag)] = 2.0
  split = Split("validation", task, 0, made.rows, examples, (16,), ())

  def scorer(*_):
    return logits, {"task_loss": 0.5}

  state = SimpleNamespace(step=1)
  found = evaluate_task.score(scorer, state, {}, [split], 4, {})
  assert found["predicted_labels"] == labels
  last = done(0, **found)
  (row,) = sweep.summarise([last], "tagging_f1")
  assert row["constant"] == (labels == 1)
