"""Tests metrics.jsonl (strict JSON, with null for NaN) and printed lines."""

import json
import math

import pytest

from bert_jax import messages
from bert_jax.training import logging


def parse_strictly(line):
  """Returns the content of a line of JSON; refuses NaN and Infinity."""

  def refuse(name):
    raise AssertionError(f"{name} is not JSON")

  return json.loads(line, parse_constant=refuse)


def test_a_metric_that_is_not_defined_is_null(tmp_path, capsys):
  path = tmp_path / "metrics.jsonl"
  # Earlier versions of the program wrote NaN.
  path.write_text('{"step": 1, "split": "heldout", "pearson": NaN}\n[1]\n')
  log = logging.Logger(str(tmp_path), start_step=1, total_steps=3)
  log.log_evaluation(2, {"pearson": math.nan, "task_loss": 0.5})
  log.plot_losses()
  log.close()
  assert "metrics.jsonl:2 is damaged and is left out" in capsys.readouterr().out
  rows = [parse_strictly(line) for line in path.read_text().splitlines()]
  expected_rows = [
    {"step": 1, "split": "heldout", "pearson": None},
    {"step": 2, "split": "heldout", "pearson": None, "task_loss": 0.5},
  ]
  assert rows == expected_rows
  # A restart keeps the rows.
  logging.Logger(str(tmp_path), start_step=2, total_steps=3).close()
  assert [
    parse_strictly(line) for line in path.read_text().splitlines()
  ] == expected_rows
  first_row, last_row = logging.read_rows(str(path))
  assert math.isnan(first_row["pearson"]) and math.isnan(last_row["pearson"])
  assert last_row["task_loss"] == 0.5


@pytest.mark.parametrize("padding", [-6e-8, -0.0, 0.0])
def test_the_share_of_padding_is_never_negative(tmp_path, capsys, padding):
  log = logging.Logger(str(tmp_path), start_step=0, total_steps=3)
  log.log_training(
    step=1,
    means={"loss": 1.0, "padding": padding, "flops_per_step": 1.0},
    tokens=8.0,
  )
  log.close()
  assert " padding 0.0% " in capsys.readouterr().out
  (row,) = logging.read_rows(str(tmp_path / "metrics.jsonl"))
  assert math.copysign(1, row["padding"]) == 1 and row["padding"] == 0


def test_a_run_prints_the_step_only_after_seconds_without_a_line(
  tmp_path, capsys, monkeypatch
):
  log = logging.Logger(str(tmp_path), start_step=0, total_steps=30)
  log.print_if_silent(1)
  assert not capsys.readouterr().out
  monkeypatch.setattr(messages, "INTERVAL", 0.0)
  log.print_if_silent(2)
  assert capsys.readouterr().out == "at step 2/30 ...\n"
  monkeypatch.setattr(messages, "INTERVAL", 600.0)
  log.print_if_silent(3)
  assert not capsys.readouterr().out
  log.close()
