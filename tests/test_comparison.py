import importlib
import json
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent.parent / "experiments" / "comparison"


@pytest.fixture
def compare(monkeypatch):
  """The program experiments/comparison/compare.py as a module."""
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
  module = importlib.import_module("compare")
  yield module
  for name in ("compare", "config"):
    sys.modules.pop(name, None)


def test_steps_for_flops(compare):
  costs = [
    compare.PhaseCost(share=0.6, flops=10.0, positions=8),
    compare.PhaseCost(share=0.4, flops=20.0, positions=8),
  ]
  # A mean step costs 14.
  assert compare.steps_for_flops(costs, 14.0 * 400) == 400
  assert compare.steps_for_flops(costs, 14.0 * 439.9) == 400
  assert compare.steps_for_flops(costs, 14.0 * 440.1) == 440
  with pytest.raises(ValueError, match=r"pays for 39\.0 steps"):
    compare.steps_for_flops(costs, 14.0 * 39)
  assert compare.steps_for_seconds(2.5, 100.0) == 240


def test_plan_counts_the_objective_and_all_parameters(compare):
  vocab_size, hidden, mlp, layers = 100, 64, 256, 2
  (first, second), parameters = compare.read_plan("roberta,tiny", vocab_size)
  assert (first.share, second.share) == (0.6, 0.4)
  assert first.positions == second.positions == 8 * 128
  # The products with the kernels alone: 6 FLOPs for a weight and a token.
  kernels = layers * (4 * hidden**2 + 2 * hidden * mlp)
  assert first.flops > 6 * kernels * first.positions
  # Longer rows have more attention, and as many products with kernels.
  assert first.flops < second.flops < 2 * first.flops
  embeddings = (vocab_size + 128 + 2) * hidden
  assert parameters > kernels + embeddings
  assert parameters < 1.2 * (kernels + embeddings) + 2 * hidden**2
  # A student of 4 layers pays for the forward pass of its teacher's 8 layers,
  # so for 3 * 4 + 8 layers instead of the 3 * 8 of its teacher's training, and
  # a little more for the logits of all positions.
  (teacher, _), _ = compare.read_plan("roberta", vocab_size)
  (student, _), _ = compare.read_plan("distilbert", vocab_size)
  assert 20 / 24 < student.flops / teacher.flops < 21 / 24


def test_every_system_has_a_config_of_both_sizes(compare):
  for name in compare.systems.NAMES:
    full, tiny = (
      compare.systems.get_config(name + end) for end in ("", ",tiny")
    )
    assert full.data.builder == tiny.data.builder
    assert full.model.hidden > tiny.model.hidden
    if name != "elmo":
      assert full.batch_size * 128 == 32_768
      assert full.schedule == compare.systems.get_config("roberta").schedule


def test_summary_is_the_speed_without_slow_rows(compare):
  costs = [
    compare.PhaseCost(share=0.5, flops=1.0, positions=10),
    compare.PhaseCost(share=0.5, flops=3.0, positions=10),
  ]
  rates = [1.0, 4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 0.5]
  rows = [
    {
      "step": step,
      "split": "train",
      "steps_per_second": rate,
      "tokens_per_second": 8 * rate,
    }
    for step, rate in zip(range(20, 180, 20), rates, strict=True)
  ]
  rows += [
    {"step": step, "split": "heldout", "mlm_loss": 5.0} for step in (40, 120)
  ]
  summary = compare.summarise_training(rows, costs, 160)
  assert summary["steps_per_second"] == [4.0, 2.0]
  assert summary["tokens_per_second"] == [32.0, 16.0]
  assert summary["seconds"] == 80 / 4 + 80 / 2
  assert summary["flops"] == 80 * 1.0 + 80 * 3.0
  assert summary["positions"] == 1600
  first, second = summary["curve"]
  assert (first["flops"], first["seconds"]) == (40.0, 10.0)
  assert (second["flops"], second["seconds"]) == (80 + 120.0, 20 + 20.0)
  assert second["mlm_loss"] == 5.0


def test_records_are_kept(compare, tmp_path, capsys):
  records = compare.Records(str(tmp_path))
  assert records.read("bert", 0, "train") is None
  records.write({"seconds": 3.0, "curve": [1]}, "bert", 0, "train")
  assert "bert.0.train" in capsys.readouterr().out
  again = compare.Records(str(tmp_path))
  assert again.read("bert", 0, "train") == {"seconds": 3.0, "curve": [1]}
  assert again.read("bert", 1, "train") is None
  (file,) = (tmp_path / "records").iterdir()
  assert json.loads(file.read_text("utf-8"))["curve"] == [1]


def test_table_row_has_medians(compare, tmp_path):
  records = compare.Records(str(tmp_path))
  assert compare.table_row(records, "gpt", 0) == ""
  record = dict(parameters=2e6, steps=1000, positions=3e6, flops=4e15)
  record |= dict(seconds=5.0, tokens_per_second=[6e6, 7e6])
  records.write(record, "gpt", 0, "train")
  for seed, score in enumerate([0.1, 0.5, 0.2]):
    records.write({"scores": [{"matthews": score}]}, "gpt", 0, "cola", seed)
  assert compare.table_row(records, "gpt", 0) == (
    "| gpt | 2.0 | 1,000 | 3 | 4.0 | 5 | 7.00 |  |  | 20.0 (3) |  |  |"
  )


def test_best_teacher_has_the_highest_score_on_blimp(compare, tmp_path):
  records = compare.Records(str(tmp_path))
  assert compare.best_teacher(records, 0) is None
  for name, accuracy in [("bert", 0.6), ("roberta", 0.7), ("albert", 0.9)]:
    records.write({"accuracy": accuracy}, name, 0, "blimp")
  assert compare.best_teacher(records, 0) == "roberta"
