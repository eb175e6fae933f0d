r"""Trains systems with equal compute, one after the other, and scores them.

  python experiments/comparison/compare.py train --systems bert,roberta \\
    --workdir OUT --data DATA --words WORDS --tasks TASKS --blimp TAR \\
    --wnut17 FOLDER --flops 2.5e16
  python experiments/comparison/compare.py table --workdir OUT

DATA is the prepared text, WORDS is the same text prepared for ELMo, TASKS has
the prepared tasks cola, sst2 and wnut17, and the folder of --wnut17 has the
original files. The program uses one GPU. While a system trains, the previous
system is scored. Each finished piece of work gets a file in OUT/records, and a
later call does not repeat it. An interrupted training continues from its last
checkpoint. Several programs may share OUT, each with a GPU and a part of the
systems.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import time
from typing import Any

# The driver only plans; the GPU belongs to its child processes.
CHILD_ENVIRONMENT = dict(os.environ)
os.environ["JAX_PLATFORMS"] = "cpu"

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, ROOT]

import config as systems  # noqa: E402
import jax  # noqa: E402

from bert_jax import files  # noqa: E402
from bert_jax.training import config as config_lib  # noqa: E402
from bert_jax.training import phases, setup, topologies  # noqa: E402

# The numbers of evaluations and of logged rows in a run.
NUM_EVALUATIONS, NUM_LOG_ROWS = 8, 40
# Task -> (its config, number of epochs, peak learning rate).
TASKS = {
  "cola": ("glue:cola", 6.0, 5e-5),
  "sst2": ("glue:sst2", 1.0, 1e-4),
  "wnut17": ("ner:wnut17", 8.0, 5e-5),
}
# Systems whose model may become the teacher of the students.
TEACHERS = tuple(name for name in systems.MASKED_SYSTEMS if name != "albert")
# Systems with different shapes, whose speed is measured.
SPEED_SYSTEMS = ("bert", "albert", "electra", "gpt", "elmo", "distilbert")
SPEED_SYSTEMS += ("tinybert",)
# Features of BERT's Table 7, which are measured for two systems.
FEATURES = ("last", "second_to_last", "sum_last_four", "concat_last_four")
FEATURE_SYSTEMS = ("bert", "roberta")


@dataclasses.dataclass(frozen=True)
class PhaseCost:
  """Holds what one step of a phase costs.

  Attributes:
    share: the share of the run's steps.
    flops: the FLOPs of a step, as the objective counts them.
    positions: the token positions of a step, padding included.
  """

  share: float
  flops: float
  positions: int


def steps_for_flops(costs: list[PhaseCost], flops: float) -> int:
  """Returns the number of steps that a budget pays for.

  The number is a multiple of `NUM_LOG_ROWS`. So logged rows and evaluations are
  equally many steps apart, and the last evaluation is at the last step.

  Args:
    costs: the costs of the phases, whose shares add up to 1.
    flops: the budget.

  Raises:
    ValueError: the budget pays for fewer than `NUM_LOG_ROWS` steps.
  """
  mean_flops = sum(cost.share * cost.flops for cost in costs)
  return _whole_rows(flops / mean_flops)


def steps_for_seconds(steps_per_second: float, seconds: float) -> int:
  """Returns the number of steps that a time allows, at least `NUM_LOG_ROWS`."""
  return _whole_rows(max(steps_per_second * seconds, NUM_LOG_ROWS))


def _whole_rows(steps: float) -> int:
  """Rounds a number of steps down to a multiple of `NUM_LOG_ROWS`."""
  if steps < NUM_LOG_ROWS:
    raise ValueError(
      f"the budget pays for {steps:.1f} steps; give at least {NUM_LOG_ROWS}."
    )
  return int(steps) // NUM_LOG_ROWS * NUM_LOG_ROWS


def read_plan(name: str, vocab_size: int) -> tuple[list[PhaseCost], int]:
  """Returns the costs of a system's phases, and the number of its parameters.

  Args:
    name: `NAME` or `NAME,tiny`.
    vocab_size: the number of pieces, or of words for ELMo.
  """
  parsed = config_lib.parse(systems.get_config(name).to_dict())
  model = dataclasses.replace(parsed.model, vocab_size=vocab_size)
  parsed = dataclasses.replace(parsed, model=model)
  objective, _, _ = setup.make_objective_and_optimizer(parsed)
  costs, shapes = [], {}
  for phase in phases.plan(parsed):
    shapes = topologies.batch_shapes(vocab_size, phase)
    costs.append(
      PhaseCost(
        (phase.end - phase.start) / parsed.steps,
        objective.flops(shapes),  # type: ignore[arg-type]
        math.prod(shapes["sequence_ids"].shape),
      )
    )
  params = jax.eval_shape(objective.init, jax.random.key(0), shapes)
  return costs, sum(x.size for x in jax.tree.leaves(params))


def read_rows(path: str) -> list[dict[str, Any]]:
  """Returns the rows of a metrics.jsonl; [] if there is no file."""
  if not os.path.exists(path):
    return []
  with open(path, encoding="utf-8") as f:
    return [json.loads(line) for line in f]


def fast_rate(rows: list[dict[str, Any]], key: str) -> float:
  """Returns the upper quartile of a rate.

  During the slower rows, the GPU also scored a different system.

  Raises:
    ValueError: no row has the key.
  """
  rates = sorted(row[key] for row in rows if key in row)
  if not rates:
    raise ValueError(f"no row has {key}.")
  return rates[(3 * (len(rates) - 1)) // 4]


def summarise_training(
  rows: list[dict[str, Any]], costs: list[PhaseCost], steps: int
) -> dict[str, Any]:
  """Returns the curve and the speed of a run from its metrics.

  Args:
    rows: the rows of metrics.jsonl.
    costs: the costs of the phases.
    steps: the number of steps of the run.

  Returns:
    "seconds" and "tokens_per_second" of training alone, at the speed of the
    fast rows of each phase; "mfu"; and "curve", a dict for each evaluation with
    the step, the FLOPs, the seconds and the metrics.
  """
  # The steps at which the phases begin.
  starts, share_before = [], 0.0
  for cost in costs:
    starts.append(round(share_before * steps))
    share_before += cost.share
  ends = [*starts[1:], steps]
  training_rows = [row for row in rows if row["split"] == "train"]
  rows_by_phase = [
    [row for row in training_rows if start < row["step"] <= end]
    for start, end in zip(starts, ends, strict=True)
  ]
  rates = [
    fast_rate(phase_rows, "steps_per_second") for phase_rows in rows_by_phase
  ]

  def total(step: int, step_costs: list[float]) -> float:
    """Returns the cost of all steps up to `step`; a phase has one step cost."""
    return sum(
      step_cost * max(0, min(step, end) - start)
      for step_cost, start, end in zip(step_costs, starts, ends, strict=True)
    )

  # Each phase has its own cost of a step.
  step_flops, step_seconds = (
    [cost.flops for cost in costs],
    [1 / rate for rate in rates],
  )
  curve = [
    {
      "flops": total(row["step"], step_flops),
      "seconds": round(total(row["step"], step_seconds), 2),
      **{name: value for name, value in row.items() if name != "split"},
    }
    for row in rows
    if row["split"] == "heldout"
  ]
  summary = {
    "seconds": round(total(steps, step_seconds), 2),
    "flops": total(steps, step_flops),
    "positions": total(steps, [float(cost.positions) for cost in costs]),
    "steps_per_second": rates,
    "tokens_per_second": [
      fast_rate(phase_rows, "tokens_per_second") for phase_rows in rows_by_phase
    ],
    "curve": curve,
  }
  if training_rows and "mfu" in training_rows[-1]:
    summary["mfu"] = [
      fast_rate(phase_rows, "mfu") for phase_rows in rows_by_phase
    ]
  return summary


class Records:
  """Holds the finished pieces of work, each in a JSON file."""

  def __init__(self, workdir: str):
    """Makes the folder."""
    self.folder = os.path.join(workdir, "records")
    os.makedirs(self.folder, exist_ok=True)

  def path(self, *parts: object) -> str:
    """Returns the path of a piece's file.

    Args:
      *parts: the name of the piece, such as ("bert", 0, "blimp").
    """
    return os.path.join(self.folder, ".".join(map(str, parts)) + ".json")

  def read(self, *parts: object) -> dict[str, Any] | None:
    """Returns a piece; None if it is not finished."""
    if not os.path.exists(self.path(*parts)):
      return None
    with open(self.path(*parts), encoding="utf-8") as f:
      return json.load(f)

  def write(self, record: dict[str, Any], *parts: object) -> None:
    """Writes the whole file of a piece at once, and prints a line."""
    files.write_json(self.path(*parts), record)
    fields = {key: value for key, value in record.items() if key != "curve"}
    say(f"{'.'.join(map(str, parts))} {str(fields)[:400]}")


def say(line: str) -> None:
  """Prints a line with the time of day."""
  print(time.strftime("%H:%M:%S"), line, flush=True)


def best_teacher(records: Records, seed: int) -> str | None:
  """Returns the system of `TEACHERS` with the highest score on BLiMP so far.

  The result is None if none of them has been scored.
  """
  scores = {}
  for name in TEACHERS:
    if record := records.read(name, seed, "blimp"):
      scores[name] = record["accuracy"]
  return max(scores, key=lambda name: scores[name]) if scores else None


class Driver:
  """Trains and scores the systems of one GPU."""

  def __init__(self, args: argparse.Namespace):
    """Starts the threads that wait for the scoring processes."""
    self.args = args
    self.records = Records(args.workdir)
    self.pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
    self.waiting: list[concurrent.futures.Future[None]] = []

  def folder(self, name: str) -> str:
    """Returns the folder of a system's run."""
    return os.path.join(self.args.workdir, f"{name}-{self.args.seed}")

  def run(self, log: str, share: float, arguments: list[str]) -> int:
    """Runs Python with arguments; returns the exit status.

    Args:
      log: the file to which the process appends its output.
      share: the share of the GPU's memory to reserve, in (0, 1].
      arguments: the arguments of Python.
    """
    environment = dict(CHILD_ENVIRONMENT)
    environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(share)
    paths = (ROOT, environment.get("PYTHONPATH"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with open(log, "a", encoding="utf-8") as f:
      return subprocess.call(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=f,
        stderr=f,
      )

  def train(self, name: str) -> bool:
    """Trains a system; returns False if that failed."""
    if self.records.read(name, self.args.seed, "train"):
      return True
    start_time = time.monotonic()
    data = self.args.words if name == "elmo" else self.args.data
    with open(os.path.join(data, "meta.json"), encoding="utf-8") as f:
      vocab_size = json.load(f)["vocab_size"]
    costs, parameters = read_plan(self.scaled_name(name), vocab_size)
    flags = self.run_flags(name)
    record: dict[str, Any] = {"system": name, "seed": self.args.seed}
    if name in systems.STUDENTS:
      record["teacher"] = best_teacher(self.records, self.args.seed)
      if record["teacher"] is None:
        say(f"{name}: no teacher has been scored")
        return False
      flags.append(f"--config.teacher.path={self.folder(record['teacher'])}")
    if name == "elmo":
      steps = self.steps_of_elmo()
    else:
      steps = steps_for_flops(costs, self.args.flops)
    record |= {"steps": steps, "parameters": parameters}
    record["flops_of_a_step"] = [cost.flops for cost in costs]
    say(f"{name}: training {record}")
    folder = self.folder(name)
    flags += interval_flags(steps)
    status = self.train_run(name, folder, flags)
    record["status"] = status
    if not status:
      record |= summarise_training(
        read_rows(f"{folder}/metrics.jsonl"), costs, steps
      )
    record["seconds_of_the_process"] = round(time.monotonic() - start_time, 1)
    piece = "failed" if status else "train"
    self.records.write(record, name, self.args.seed, piece)
    return not status

  def scaled_name(self, name: str) -> str:
    """Returns the name of a system's config, which is tiny with --tiny."""
    return name + (",tiny" if self.args.tiny else "")

  def train_run(self, name: str, folder: str, flags: list[str]) -> int:
    """Runs `bert_jax train` for a system; returns the exit status."""
    first_arguments = [
      *("-m", "bert_jax", "train"),
      f"--config={HERE}/config.py:{self.scaled_name(name)}",
      f"--workdir={folder}",
    ]
    # The training gets 45% of the GPU's memory; scoring the previous system
    # needs the rest.
    return self.run(folder + ".log", 0.45, [*first_arguments, *flags])

  def steps_of_elmo(self) -> int:
    """Returns ELMo's steps for the seconds that BERT's steps take.

    The FLOPs of an LSTM cannot be compared with those of attention, so ELMo
    gets the same seconds.
    """
    seconds = self.args.seconds
    for name in ("bert", "roberta"):
      if record := self.records.read(name, self.args.seed, "train"):
        seconds = record["seconds"]
        break
    rows = read_rows(f"{self.folder('elmo')}-trial/metrics.jsonl")
    return steps_for_seconds(fast_rate(rows, "steps_per_second"), seconds)

  def try_elmo(self) -> None:
    """Measures ELMo's speed in a short run, while nothing is scored."""
    folder = self.folder("elmo") + "-trial"
    if self.records.read("elmo", self.args.seed, "train"):
      return
    if not read_rows(f"{folder}/metrics.jsonl"):
      flags = [*self.run_flags("elmo"), "--config.total_steps=60"]
      flags += ["--config.log.every=10", "--config.evaluate.every=0"]
      self.train_run("elmo", folder, flags)

  def run_flags(self, name: str) -> list[str]:
    """Returns the flags for a run's data and seed."""
    data = self.args.words if name == "elmo" else self.args.data
    return [f"--config.data.path={data}", f"--config.seed={self.args.seed}"]

  def submit(self, function: Any, *arguments: Any) -> None:
    """Lets a thread call a function; `wait` raises its error."""
    self.waiting.append(self.pool.submit(function, *arguments))

  def score(self, name: str) -> None:
    """Starts all measurements of a trained system, the quick ones first."""
    if name != "tinybert":
      blimp = ["--blimp", self.args.blimp, "--pairs", str(self.args.pairs)]
      self.submit(self.measure, name, "blimp", blimp)
    if name not in ("gpt", "elmo", "tinybert"):
      heldout = ["--data", self.args.data]
      self.submit(self.measure, name, "heldout", heldout)
    if name != "elmo":
      for task in self.args.fine_tune:
        for seed in range(self.args.task_seeds):
          self.submit(self.fine_tune, name, task, seed)
    if name in FEATURE_SYSTEMS and self.args.wnut17:
      self.submit(self.measure_features, name)

  def measure(self, name: str, piece: str, flags: list[str]) -> None:
    """Runs a part of measure.py, which writes the record."""
    if self.records.read(name, self.args.seed, piece):
      return
    start_time = time.monotonic()
    output = f"{self.folder(name)}.{piece}.json"
    status = self.run(
      f"{self.folder(name)}.{piece}.log",
      0.1,
      [
        *(f"{HERE}/measure.py", piece, "--model", self.folder(name)),
        *("--output", output),
        *flags,
      ],
    )
    self.finish(output, status, start_time, name, self.args.seed, piece)

  def finish(
    self, output: str, status: int, start_time: float, *parts: object
  ) -> None:
    """Writes the record of a process, or the reason why there is none.

    Args:
      output: the JSON file that the process has written.
      status: the exit status of the process.
      start_time: the time of `time.monotonic` when the process was started.
      *parts: the name of the piece.
    """
    record: dict[str, Any] = {}
    if not status and os.path.exists(output):
      with open(output, encoding="utf-8") as f:
        record = json.load(f)
    record["status"] = status
    record["seconds_of_the_process"] = round(time.monotonic() - start_time, 1)
    if status:
      say(f"{'.'.join(map(str, parts))} failed: {status}")
    else:
      self.records.write(record, *parts)

  def fine_tune(self, name: str, task: str, seed: int) -> None:
    """Fine-tunes on a task with one seed."""
    piece = (name, self.args.seed, task, seed)
    if self.records.read(*piece):
      return
    start_time = time.monotonic()
    task_config, epochs, peak = TASKS[task]
    workdir = f"{self.folder(name)}.{task}.{seed}"
    flags = [
      f"--config={task_config}",
      f"--workdir={workdir}",
      f"--config.init_from={self.folder(name)}",
      f"--config.data.path={self.args.tasks}/{task}",
      f"--config.data.epochs={epochs * self.args.epochs_factor}",
      f"--config.schedule.peak={peak}",
      f"--config.seed={seed}",
      "--config.data.buckets=(32,64,128)",
      "--config.model.dropout=0.1",
      "--config.model.attention_dropout=0.1",
      "--config.checkpoint.keep_best=0",
    ]
    if not self.args.tiny:
      flags.append("--config.model.unroll=8")
    status = self.run(
      workdir + ".log", 0.08, ["-m", "bert_jax", "train", *flags]
    )
    scores = [
      row
      for row in read_rows(workdir + "/metrics.jsonl")
      if row["split"] != "train"
    ]
    output = workdir + ".json"
    files.write_json(output, {"scores": scores})
    # The folder has the optimizer's state, hundreds of megabytes.
    shutil.rmtree(workdir, ignore_errors=True)
    self.finish(output, status, start_time, *piece)

  def measure_features(self, name: str) -> None:
    """Trains taggers on frozen features of WNUT17, as in BERT's Table 7."""
    piece = (name, self.args.seed, "features")
    if self.records.read(*piece):
      return
    start_time = time.monotonic()
    lines_path = self.folder(name) + ".features.jsonl"
    if os.path.exists(lines_path):
      os.remove(lines_path)
    status = self.run(
      self.folder(name) + ".features.log",
      0.1,
      [
        f"{ROOT}/experiments/bilstm_wnut17/run.py",
        *("--model", self.folder(name), "--data", self.args.wnut17),
        *("--features", *(("mix_all",) if self.args.tiny else FEATURES)),
        *("--hidden", "4" if self.args.tiny else "128"),
        *("--epochs", "1" if self.args.tiny else "8"),
        *("--output", lines_path),
      ],
    )
    rows = read_rows(lines_path)
    output = self.folder(name) + ".features.json"
    files.write_json(output, {"features": rows})
    self.finish(output, status, start_time, *piece)

  def measure_speed(self, names: list[str]) -> None:
    """Measures the encoders' speed, when nothing else runs on the GPU."""
    for name in names:
      if name in SPEED_SYSTEMS and self.records.read(
        name, self.args.seed, "train"
      ):
        self.measure(name, "speed", ["--tiny"] if self.args.tiny else [])

  def wait(self) -> None:
    """Waits for all measurements; prints the errors of this program."""
    for future in self.waiting:
      if error := future.exception():
        say(f"a measurement failed: {error!r}")
    self.pool.shutdown()


def interval_flags(steps: int) -> list[str]:
  """Returns the flags for a run's number of steps and for its intervals."""
  return [
    f"--config.total_steps={steps}",
    f"--config.log.every={steps // NUM_LOG_ROWS}",
    f"--config.evaluate.every={steps // NUM_EVALUATIONS}",
    f"--config.checkpoint.every={steps // 2}",
  ]


def train_all(args: argparse.Namespace) -> None:
  """Trains the systems in order; scores a system while the next one trains."""
  driver = Driver(args)
  names = args.systems.split(",")
  for name in names:
    systems.check_name(name, systems.SYSTEM_NAMES)
  if "elmo" in names:
    driver.try_elmo()
  for name in names:
    try:
      if driver.train(name):
        driver.score(name)
    except Exception as error:
      # The other systems do not depend on this one.
      say(f"{name} failed: {error!r}")
  driver.wait()
  driver.measure_speed(names)
  say(f"all done: {args.systems}")


def median(values: list[float]) -> float:
  """Returns the median; of two middle values, the lower one."""
  return sorted(values)[(len(values) - 1) // 2]


def table_row(records: Records, name: str, seed: int) -> str:
  """Returns a system's row of the Markdown table; "" if it was not trained."""
  record = records.read(name, seed, "train")
  if not record:
    return ""
  cells = [
    name,
    f"{record['parameters'] / 1e6:.1f}",
    f"{record['steps']:,}",
    f"{record['positions'] / 1e6:.0f}",
    f"{record['flops'] / 1e15:.1f}",
    f"{record['seconds']:.0f}",
    f"{record['tokens_per_second'][-1] / 1e6:.2f}",
  ]
  heldout = records.read(name, seed, "heldout")
  cells.append(f"{heldout['mlm_loss']:.3f}" if heldout else "")
  blimp = records.read(name, seed, "blimp")
  cells.append(f"{100 * blimp['accuracy']:.1f}" if blimp else "")
  for task in TASKS:
    # A task has at most 9 seeds.
    scores = [
      100 * last_score(fine_tuning["scores"])
      for task_seed in range(9)
      if (fine_tuning := records.read(name, seed, task, task_seed))
    ]
    cells.append(f"{median(scores):.1f} ({len(scores)})" if scores else "")
  return "| " + " | ".join(cells) + " |"


def last_score(rows: list[dict[str, Any]]) -> float:
  """Returns the main metric of the last evaluation of a task."""
  for key in ("matthews", "tagging_f1", "accuracy"):
    if key in rows[-1]:
      return rows[-1][key]
  raise ValueError(f"no metric of a task is in {rows[-1]}.")


def print_table(args: argparse.Namespace) -> None:
  """Prints a Markdown table of all records."""
  records = Records(args.workdir)
  print(
    "| system | parameters, M | steps | positions, M | PFLOPs | seconds |"
    " M tokens/s | held-out loss | BLiMP | CoLA | SST-2 | WNUT17 |\n"
    + "|---" * 12
    + "|"
  )
  for name in systems.SYSTEM_NAMES:
    if row := table_row(records, name, args.seed):
      print(row)


def result(records: Records, name: str, seed: int) -> dict[str, Any]:
  """Returns all numbers of a system in one dict; {} if it was not trained."""
  training = records.read(name, seed, "train")
  if not training:
    return {}
  collected = {"system": name, **training}
  if heldout := records.read(name, seed, "heldout"):
    collected["heldout_mlm_loss"] = heldout["mlm_loss"]
  if blimp := records.read(name, seed, "blimp"):
    collected["blimp"] = {
      "method": blimp["method"],
      "accuracy": blimp["accuracy"],
      "phenomena": {
        phenomenon: scores["accuracy"]
        for phenomenon, scores in blimp["phenomena"].items()
      },
    }
  for task in TASKS:
    # A task has at most 9 seeds.
    scores = [
      last_score(fine_tuning["scores"])
      for task_seed in range(9)
      if (fine_tuning := records.read(name, seed, task, task_seed))
    ]
    if scores:
      collected[task] = scores
  if speed := records.read(name, seed, "speed"):
    collected["encoder_parameters"] = speed["encoder_parameters"]
    collected["encoder_rows_per_second"] = {
      key.removeprefix("rows_"): value["rows_per_second"]
      for key, value in speed.items()
      if key.startswith("rows_")
    }
  if features := records.read(name, seed, "features"):
    collected["wnut17_features"] = {
      tagger["features"]: tagger["best"]["test"]
      for tagger in features["features"]
    }
  return collected


def print_results(args: argparse.Namespace) -> None:
  """Prints a JSON line for each system that was trained."""
  records = Records(args.workdir)
  for name in systems.SYSTEM_NAMES:
    if collected := result(records, name, args.seed):
      print(json.dumps(collected))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  verbs = parser.add_subparsers(dest="verb", required=True)
  for verb, function in (
    ("train", train_all),
    ("table", print_table),
    ("results", print_results),
  ):
    subparser = verbs.add_parser(verb)
    subparser.set_defaults(function=function)
    subparser.add_argument("--workdir", type=os.path.abspath, required=True)
    subparser.add_argument("--seed", type=int, default=0)
  add = verbs.choices["train"].add_argument
  add("--systems", required=True, help="names, joined by commas")
  for flag in ("data", "words", "tasks", "blimp"):
    add(f"--{flag}", type=os.path.abspath, required=True)
  add("--wnut17", type=os.path.abspath, help="WNUT17's original files")
  add("--flops", type=float, default=2.5e16, help="budget of each system")
  add("--seconds", type=float, default=90.0, help="for ELMo if no BERT has run")
  add("--jobs", type=int, default=4, help="measurements at the same time")
  add("--fine-tune", type=lambda x: x.split(","), default=list(TASKS))
  add("--task-seeds", type=int, default=3)
  add("--epochs-factor", type=float, default=1.0, help="for the tasks' epochs")
  add("--pairs", type=int, default=1000, help="pairs of each file of BLiMP")
  add("--tiny", action="store_true", help="2 layers of 64, for a trial")
  args = parser.parse_args()
  args.function(args)


if __name__ == "__main__":
  main()
