"""Tests the report that lays runs side by side."""

import csv
import json
import math

import pytest

import bert_jax
from bert_jax.cli.main import execute
from bert_jax.messages import UserError

# The lines of a run's metrics.jsonl; three are about training. Each step up to
# step 4 costs 0.5 s, 100 tokens and 7 FLOPs. Each step from 5 to 8 costs
# 0.25 s, 40 tokens and 9 FLOPs.
ROWS = [
  # The program was compiled at this step, so the row has no speed.
  {"step": 1, "split": "train", "loss": 9.0, "mlm_loss": 9.0},
  {"step": 4, "split": "train", "loss": 8.0, "mlm_loss": 8.0},
  {"step": 6, "split": "heldout", "loss": 7.5, "mlm_loss": 7.5, "acc": 0.1},
  {"step": 8, "split": "train", "loss": 7.0, "mlm_loss": 7.0},
  {"step": 10, "split": "heldout", "loss": 7.6, "mlm_loss": 7.6, "acc": 0.2},
]
for row, flops in ((ROWS[0], 7.0), (ROWS[1], 7.0), (ROWS[3], 9.0)):
  row["flops_per_step"] = flops
ROWS[1] |= {"steps_per_second": 2.0, "tokens_per_second": 200.0}
ROWS[3] |= {"steps_per_second": 4.0, "tokens_per_second": 160.0}


def write_run(folder, rows=ROWS, **settings):
  folder.mkdir(parents=True)
  lines = [json.dumps(row) + "\n" for row in rows]
  (folder / "metrics.jsonl").write_text("".join(lines))
  config = {"seed": 0, "model": {"hidden": 16, **settings}}
  (folder / "config.json").write_text(json.dumps(config))
  return str(folder)


@pytest.fixture
def runs(tmp_path):
  slow_rows = [dict(row) for row in ROWS]
  slow_rows[1]["steps_per_second"] = 1.0
  return [
    write_run(tmp_path / "small"),
    write_run(tmp_path / "large", slow_rows, hidden=32),
  ]


def test_the_totals_are_sums_of_what_each_step_costs(runs):
  rows = bert_jax.report(runs[0]).runs[0].rows
  # These are the sums at steps 1, 4, 6, 8 and 10. Steps after step 8, where the
  # last training row ends, cost as much as those before.
  seconds = [0.5, 2.0, 2.5, 3.0, 3.5]
  assert [row["seconds"] for row in rows] == pytest.approx(seconds)
  tokens = [100, 400, 480, 560, 640]
  assert [row["tokens"] for row in rows] == pytest.approx(tokens)
  assert [row["flops"] for row in rows] == [7, 28, 46, 64, 82]


def test_the_table_has_the_last_and_the_best_evaluation(runs):
  row_of_small, row_of_large = bert_jax.report(runs).table()
  assert (row_of_small["run"], row_of_large["run"]) == ("small", "large")
  assert row_of_small["step"] == 10 and row_of_small[
    "seconds"
  ] == pytest.approx(3.5)
  assert (row_of_small["mlm_loss"], row_of_small["acc"]) == (7.6, 0.2)
  assert (row_of_small["best_mlm_loss"], row_of_small["best_step"]) == (7.5, 6)
  assert row_of_small["tokens_per_second"] == 180.0
  assert row_of_large["seconds"] == pytest.approx(5.5)
  row_by_accuracy = bert_jax.report(runs[0], metrics="acc").table()[0]
  assert (row_by_accuracy["best_acc"], row_by_accuracy["best_step"]) == (
    0.2,
    10,
  )


def test_curves_are_drawn_against_the_chosen_axis(runs):
  report = bert_jax.report(runs, axis="flops")
  training, evaluation = report.curves("mlm_loss")[:2]
  assert (training.is_evaluation, evaluation.is_evaluation) == (False, True)
  assert list(evaluation.x_values) == [46e-15, 82e-15]
  assert list(evaluation.y_values) == [7.5, 7.6]
  drawn_axes = report.draw("mlm_loss").axes[0]
  assert drawn_axes.get_xlabel() == "petaFLOPs" and len(drawn_axes.lines) == 4
  legend = [text.get_text() for text in drawn_axes.get_legend().get_texts()]
  assert legend == ["small", "large"]
  (training_curve,) = bert_jax.report(runs[0], metrics="flops_per_step").curves(
    "flops_per_step"
  )
  assert list(training_curve.y_values) == [7.0, 7.0, 9.0]
  # The training rows have no accuracy, so its curves show only evaluations.
  assert all(curve.is_evaluation for curve in report.curves("acc"))


def test_only_the_settings_that_differ_are_listed(runs, tmp_path):
  differences = bert_jax.report(runs).differences()
  assert differences == [{"setting": "model.hidden", "small": 16, "large": 32}]
  (tmp_path / "small" / "config.json").unlink()
  assert bert_jax.report(runs).differences() == []


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_the_command_writes_a_page_and_all_numbers(runs, tmp_path, suffix):
  page = tmp_path / "out" / f"page.{suffix}"
  execute(["report", f"a<b={runs[0]}", runs[1], "--output", str(page)])
  text = page.read_text()
  assert "model.hidden" in text and "7.6" in text
  pictures = [path.name for path in sorted(page.parent.glob("*.png"))]
  if suffix == "html":
    assert "a&lt;b" in text and "a<b" not in text
    assert text.count("data:image/png;base64,") == 2 and pictures == []
  else:
    assert pictures == ["page_acc.png", "page_mlm_loss.png"]
    assert all(f"]({name})" in text for name in pictures)
  with page.with_suffix(".csv").open() as file:
    rows = list(csv.DictReader(file))
  assert [row["run"] for row in rows] == ["a<b"] * 5 + ["large"] * 5
  assert float(rows[4]["acc"]) == 0.2 and rows[0]["acc"] == ""


def test_names_are_as_long_as_they_need_to_be(runs, tmp_path):
  write_run(tmp_path / "other" / "small")
  report = bert_jax.report([str(tmp_path / "*" / "metrics.jsonl"), runs[1]])
  assert [run.name for run in report.runs] == ["large", "small"]
  report = bert_jax.report([runs[0], str(tmp_path / "other" / "small")])
  folder = tmp_path.name
  assert [run.name for run in report.runs] == [f"{folder}/small", "other/small"]


def test_a_run_that_was_not_evaluated_shows_its_training(tmp_path):
  rows = [row for row in ROWS if row["split"] == "train"]
  report = bert_jax.report(write_run(tmp_path / "run", rows))
  assert report.metrics == ["mlm_loss"]
  assert report.table()[0]["mlm_loss"] == 7.0
  assert "best_step" not in report.table()[0]


def test_a_notebook_shows_the_page(runs):
  page = bert_jax.report(runs)._repr_html_()
  assert page.startswith("<h1>") and page.count("<img") == 2
  assert repr(bert_jax.report(runs)) == (
    "Report(small, large; curves of mlm_loss, acc)"
  )


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(metrics="mlm_los"), "no run has the number 'mlm_los'; the runs have"),
    (dict(metrics=[]), "the list is empty"),
    (dict(axis="hours"), "the axes are 'step', 'tokens', 'seconds', 'flops'"),
    (dict(output="page.pdf"), "page.pdf: the name of a report ends in .html"),
    (dict(runs=[]), "there is no run; give the folders"),
    (dict(runs="nowhere*"), "there is no run nowhere*"),
    (dict(runs=["a={0}", "a={1}"]), "two runs have the name a"),
    (dict(runs=["a={0}/../*"]), "these are 2 runs, but a name is for one"),
  ],
)
def test_wrong_arguments_are_refused(runs, changes, message):
  chosen_runs = changes.get("runs", runs)
  if isinstance(chosen_runs, list):
    chosen_runs = [run.format(*runs) for run in chosen_runs]
  with pytest.raises(UserError, match=message.replace("*", r"\*")):
    bert_jax.report(**{**changes, "runs": chosen_runs})


def test_a_run_without_rows_or_speed_is_refused(tmp_path):
  empty_run_folder = write_run(tmp_path / "empty", [])
  with pytest.raises(UserError, match="run empty: .* has no rows"):
    bert_jax.report(empty_run_folder)
  rows = [
    {key: value for key, value in row.items() if not key.endswith("_second")}
    for row in ROWS
  ]
  folder_without_speed = write_run(tmp_path / "no_speed", rows)
  assert math.isnan(bert_jax.report(folder_without_speed).table()[0]["seconds"])
  with pytest.raises(UserError, match="do not say how many seconds"):
    bert_jax.report(folder_without_speed, axis="seconds")
