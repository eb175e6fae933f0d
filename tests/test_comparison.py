"""Tests experiments/comparison/compare.py, which compares the families."""

import argparse
import importlib
import json
import pathlib
import sys

import pytest

COMPARISON_FOLDER = (
  pathlib.Path(__file__).parent.parent / "experiments" / "comparison"
)


@pytest.fixture
def compare(monkeypatch):
  """Yields the module of experiments/comparison/compare.py."""
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  monkeypatch.setattr(sys, "path", [str(COMPARISON_FOLDER), *sys.path])
  module = importlib.import_module("compare")
  yield module
  for name in ("compare", "config"):
    sys.modules.pop(name, None)


def test_steps_are_a_multiple_of_40_within_the_budget(compare):
  costs = [
    compare.PhaseCost(share=0.6, flops=10.0, positions=8),
    compare.PhaseCost(share=0.4, flops=20.0, positions=8),
  ]
  # A step costs 14 FLOPs on average.
  assert compare.steps_for_flops(costs, 14.0 * 400) == 400
  assert compare.steps_for_flops(costs, 14.0 * 439.9) == 400
  assert compare.steps_for_flops(costs, 14.0 * 440.1) == 440
  with pytest.raises(ValueError, match=r"pays for 39\.0 steps"):
    compare.steps_for_flops(costs, 14.0 * 39)
  assert compare.steps_for_seconds(steps_per_second=2.5, seconds=100.0) == 240
  assert compare.steps_for_seconds(steps_per_second=2.5, seconds=1.0) == 40


def test_a_plan_has_the_costs_of_phases_and_the_number_of_parameters(compare):
  vocab_size, hidden, mlp, num_layers = 100, 64, 256, 2
  (first_phase, second_phase), num_parameters = compare.read_plan(
    "roberta,tiny", vocab_size
  )
  assert (first_phase.share, second_phase.share) == (0.6, 0.4)
  assert first_phase.positions == second_phase.positions == 8 * 128
  # The products with the kernels alone need 6 FLOPs for each weight and token.
  num_kernel_weights = num_layers * (4 * hidden**2 + 2 * hidden * mlp)
  assert first_phase.flops > 6 * num_kernel_weights * first_phase.positions
  # In phase 2, rows are longer, so the attention costs more. The products with
  # kernels cost the same.
  assert first_phase.flops < second_phase.flops < 2 * first_phase.flops
  num_embedding_weights = (vocab_size + 128 + 2) * hidden
  assert num_parameters > num_kernel_weights + num_embedding_weights
  assert (
    num_parameters
    < 1.2 * (num_kernel_weights + num_embedding_weights) + 2 * hidden**2
  )
  # A student of 4 layers also pays for the forward pass of its teacher's 8
  # layers. That is 3 * 4 + 8 passes through a layer, while the training of the
  # teacher has 3 * 8. The logits of all positions cost a little more.
  (teacher_phase, _), _ = compare.read_plan("roberta", vocab_size)
  (student_phase, _), _ = compare.read_plan("distilbert", vocab_size)
  assert 20 / 24 < student_phase.flops / teacher_phase.flops < 21 / 24


def test_every_system_has_a_config_of_both_sizes(compare):
  for name in compare.systems.SYSTEM_NAMES:
    full_config, tiny_config = (
      compare.systems.get_config(name + suffix) for suffix in ("", ",tiny")
    )
    assert full_config.data.builder == tiny_config.data.builder
    assert full_config.model.hidden > tiny_config.model.hidden
    # A batch has 32,768 tokens, in rows of 128.
    if name != "elmo":
      assert full_config.batch_size * 128 == 32_768
      assert (
        full_config.schedule == compare.systems.get_config("roberta").schedule
      )


def test_a_summary_has_the_median_speed_of_each_phase(compare):
  costs = [
    compare.PhaseCost(share=0.5, flops=1.0, positions=10),
    compare.PhaseCost(share=0.5, flops=3.0, positions=10),
  ]
  speeds = [1.0, 4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 0.5]
  lines = [
    {
      "step": step,
      "split": "train",
      "steps_per_second": speed,
      "tokens_per_second": 8 * speed,
    }
    for step, speed in zip(range(20, 180, 20), speeds, strict=True)
  ]
  lines += [
    {"step": step, "split": "heldout", "mlm_loss": 5.0} for step in (40, 120)
  ]
  summary = compare.summarise_training(lines, costs, steps=160)
  # The first four lines are of phase 1, and the last four are of phase 2.
  assert summary["steps_per_second"] == [4.0, 2.0]
  assert summary["tokens_per_second"] == [32.0, 16.0]
  assert summary["seconds"] == 80 / 4 + 80 / 2
  assert summary["flops"] == 80 * 1.0 + 80 * 3.0
  assert summary["positions"] == 1600
  first_point, second_point = summary["curve"]
  assert (first_point["flops"], first_point["seconds"]) == (40.0, 10.0)
  assert (second_point["flops"], second_point["seconds"]) == (
    80 + 120.0,
    20 + 20.0,
  )
  assert second_point["mlm_loss"] == 5.0


def test_records_stay_in_the_folder(compare, tmp_path, capsys):
  records = compare.Records(str(tmp_path))
  # The name of a record has a system, its seed and a part of the experiment.
  assert records.read("bert", 0, "train") is None
  records.write({"seconds": 3.0, "curve": [1]}, "bert", 0, "train")
  assert "bert.0.train" in capsys.readouterr().out
  reopened_records = compare.Records(str(tmp_path))
  assert reopened_records.read("bert", 0, "train") == {
    "seconds": 3.0,
    "curve": [1],
  }
  assert reopened_records.read("bert", 1, "train") is None
  (file,) = (tmp_path / "records").iterdir()
  assert json.loads(file.read_text("utf-8"))["curve"] == [1]


def test_a_row_of_the_table_has_the_median_score(compare, tmp_path):
  records = compare.Records(str(tmp_path))
  assert compare.table_row(records, "gpt", 0) == ""
  record = dict(parameters=2e6, steps=1000, positions=3e6, flops=4e15)
  record |= dict(seconds=5.0, tokens_per_second=[6e6, 7e6])
  records.write(record, "gpt", 0, "train")
  for seed, score in enumerate([0.1, 0.5, 0.2]):
    records.write({"scores": [{"matthews": score}]}, "gpt", 0, "cola", seed)
  # The cells are: name, millions of parameters, steps, millions of positions,
  # 1e15 FLOPs, seconds, millions of tokens per second, held-out loss, BLiMP,
  # and the median score of each task with the number of its seeds.
  assert compare.table_row(records, "gpt", 0) == (
    "| gpt | 2.0 | 1,000 | 3 | 4.0 | 5 | 7.00 |  |  | 20.0 (3) |  |  |"
  )


def test_the_printed_results_have_every_part(compare, tmp_path, capsys):
  records = compare.Records(str(tmp_path))
  records.write(dict(seconds=5.0, curve=[1]), "gpt", 0, "train")
  blimp = dict(
    method="likelihood",
    accuracy=0.6,
    phenomena={"binding": dict(accuracy=0.7, files=7)},
  )
  records.write(blimp, "gpt", 0, "blimp")
  for seed, score in enumerate([0.1, 0.5]):
    records.write({"scores": [{"matthews": score}]}, "gpt", 0, "cola", seed)
  speed = dict(encoder_parameters=7, rows_512=dict(rows_per_second=9.0))
  records.write(speed, "gpt", 0, "speed")
  capsys.readouterr()
  compare.print_results(argparse.Namespace(workdir=str(tmp_path), seed=0))
  assert json.loads(capsys.readouterr().out) == dict(
    system="gpt",
    seconds=5.0,
    curve=[1],
    blimp=dict(method="likelihood", accuracy=0.6, phenomena={"binding": 0.7}),
    cola=[0.1, 0.5],
    encoder_parameters=7,
    encoder_rows_per_second={"512": 9.0},
  )


def test_the_best_teacher_has_the_highest_score_on_blimp(compare, tmp_path):
  records = compare.Records(str(tmp_path))
  assert compare.best_teacher(records, 0) is None
  for name, accuracy in [("bert", 0.6), ("roberta", 0.7), ("albert", 0.9)]:
    records.write({"accuracy": accuracy}, name, 0, "blimp")
  assert compare.best_teacher(records, 0) == "roberta"


class FakeChildren:
  """Stands in for child processes: lists them, and writes their results.

  A training seems to make 8 steps a second.
  """

  def __init__(self):
    self.started = []

  def __call__(self, driver, log, share, arguments):
    self.started.append(arguments)
    flags = dict(
      argument.split("=", 1)
      for argument in arguments
      if argument.startswith("--config")
    )
    workdirs = [
      argument.partition("=")[2]
      for argument in arguments
      if "--workdir=" in argument
    ]
    if workdirs:
      steps = int(flags.get("--config.total_steps", 40))
      heldout_line = {
        "step": steps,
        "split": "heldout",
        "matthews": 0.25,
        "loss": 2.0,
      }
      train_lines = [
        {
          "step": step,
          "split": "train",
          "steps_per_second": 8.0,
          "tokens_per_second": 800.0,
        }
        for step in range(1, steps + 1)
      ]
      folder = pathlib.Path(workdirs[0])
      folder.mkdir(exist_ok=True)
      metrics_text = "".join(
        json.dumps(line) + "\n" for line in [*train_lines, heldout_line]
      )
      (folder / "metrics.jsonl").write_text(metrics_text, "utf-8")
    else:
      output = pathlib.Path(arguments[arguments.index("--output") + 1])
      text = json.dumps({"accuracy": 0.5, "mlm_loss": 3.0})
      output.write_text(text + "\n", "utf-8")
    return 0

  def configs(self):
    """Returns the names of the systems that were trained, in order."""
    return [
      argument.rpartition(":")[2]
      for arguments in self.started
      for argument in arguments
      if argument.startswith("--config=") and "comparison" in argument
    ]


# The first call trains and evaluates two systems. The second call gets four
# systems, and finds two records deleted.
def test_driver_trains_evaluates_and_continues(
  compare, tmp_path, monkeypatch, capsys
):
  children = FakeChildren()
  monkeypatch.setattr(
    compare.Driver, "run", lambda self, *args: children(self, *args)
  )
  (tmp_path / "meta.json").write_text('{"vocab_size": 100}', "utf-8")
  command = ["compare.py", "train", "--tiny", "--workdir", str(tmp_path)]
  for flag in ("data", "words", "tasks", "blimp", "wnut17"):
    command += [f"--{flag}", str(tmp_path)]
  command += ["--flops", "6e10", "--fine-tune", "cola", "--task-seeds", "2"]
  first_systems, all_systems = "elmo,bert", "elmo,bert,distilbert,tinybert"
  monkeypatch.setattr(sys, "argv", [*command, "--systems", first_systems])
  compare.main()
  # A short trial of ELMo comes first. As there is no BERT yet, ELMo then trains
  # for 90 seconds.
  assert children.configs() == ["elmo,tiny", "elmo,tiny", "bert,tiny"]
  records = compare.Records(str(tmp_path))
  assert records.read("elmo", 0, "train")["steps"] == 8 * 90
  bert_record = records.read("bert", 0, "train")
  assert bert_record["steps"] % 40 == 0
  assert 0.3 * 6e10 < bert_record["flops"] <= 6e10
  assert bert_record["seconds"] == bert_record["steps"] / 8
  names = {path.name for path in (tmp_path / "records").iterdir()}
  bert_parts = ("train", "blimp", "heldout", "cola.0", "cola.1", "features")
  bert_names = {f"bert.0.{part}.json" for part in (*bert_parts, "speed")}
  elmo_names = {f"elmo.0.{part}.json" for part in ("train", "blimp", "speed")}
  assert names == bert_names | elmo_names
  # The second call does only what is missing.
  children.started.clear()
  (tmp_path / "records" / "bert.0.cola.1.json").unlink()
  (tmp_path / "records" / "elmo.0.train.json").unlink()
  monkeypatch.setattr(sys, "argv", [*command, "--systems", all_systems])
  compare.main()
  assert children.configs() == [
    *("elmo,tiny", "distilbert,tiny", "tinybert,tiny")
  ]
  num_steps_in_time_of_bert = bert_record["seconds"] * 8
  assert records.read("elmo", 0, "train")["steps"] == num_steps_in_time_of_bert
  assert records.read("bert", 0, "cola", 1)["scores"][-1]["matthews"] == 0.25
  assert records.read("distilbert", 0, "train")["teacher"] == "bert"
  teacher_flag = f"--config.teacher.path={tmp_path / 'bert-0'}"
  assert any(teacher_flag in arguments for arguments in children.started)
  assert records.read("tinybert", 0, "blimp") is None
  assert "failed" not in capsys.readouterr().out


def test_driver_goes_on_after_a_failure(compare, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(compare.Driver, "run", lambda self, *args: 1)
  (tmp_path / "meta.json").write_text('{"vocab_size": 100}', "utf-8")
  command = ["compare.py", "train", "--tiny", "--workdir", str(tmp_path)]
  for flag in ("data", "words", "tasks", "blimp"):
    command += [f"--{flag}", str(tmp_path)]
  command += ["--flops", "6e10", "--systems", "gpt,distilbert,roberta"]
  monkeypatch.setattr(sys, "argv", command)
  compare.main()
  out = capsys.readouterr().out
  assert "distilbert: no teacher has been scored" in out
  records = compare.Records(str(tmp_path))
  assert records.read("gpt", 0, "train") is None
  assert records.read("gpt", 0, "failed")["status"] == 1
  assert records.read("roberta", 0, "failed")["status"] == 1
