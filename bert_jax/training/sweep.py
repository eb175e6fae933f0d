"""Runs sweeps: trains one config with each point of a grid and each seed.

A point of the grid is one value for each of the grid's keys.
"""

import ast
import concurrent.futures
import copy
import dataclasses
import functools
import itertools
import json
import math
import operator
import os
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from etils import epath

from bert_jax import files
from bert_jax.files import PathLike, without_nan, write_json
from bert_jax.messages import Progress, UserError, did_you_mean, say
from bert_jax.tasks import batches, encoded_rows, metrics
from bert_jax.training import config as config_lib
from bert_jax.training import logging, train
from bert_jax.training.setup import default_values
from bert_jax.weights.run_config import flatten

RESULTS_FILE = "sweep.json"


@dataclasses.dataclass(frozen=True)
class PlannedRun:
  """Describes one run of a sweep.

  Attributes:
    point: the run's point of the grid, {key: value}.
    seed: the seed of the run.
    config: the run's complete config.
  """

  point: dict[str, Any]
  seed: int
  config: dict[str, Any]

  @property
  def name(self) -> str:
    """The name of the run's folder: the run's point and its seed."""
    settings = [f"{key}={setting}" for key, setting in self.point.items()]
    return ",".join([*settings, f"seed={self.seed}"]).replace(os.sep, "_")


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Holds the result of one run of a sweep.

  Attributes:
    run: the run.
    error: a sentence that says why the run failed; None if the run did not
      fail.
    rows: the lines of evaluations in the run's metrics.jsonl, as dicts.
  """

  run: PlannedRun
  error: str | None
  rows: list[dict[str, Any]]

  @property
  def last_row(self) -> dict[str, Any]:
    """The results of the last evaluation; {} if there was no evaluation."""
    return self.rows[-1] if self.rows else {}


# Trains a run in a folder to its end; returns the message of an error, or None.
TrainRun = Callable[[PlannedRun, epath.Path], str | None]


def parse_axis(axis: str, config: dict[str, Any]) -> tuple[str, list[Any]]:
  """Splits `KEY=A,B` into the key and its values.

  Args:
    axis: one axis of a grid, in the form `KEY=A,B`.
    config: the config. The value of the key in this config decides the type of
      the axis's values.

  Raises:
    UserError: the key is unknown, there are no values, or a value has a wrong
      type.
  """
  key, _, values_text = axis.partition("=")
  key = key.removeprefix("config.")
  flat_config = flatten(config)
  if key not in flat_config:
    raise UserError(
      f"--grid {axis}: the config has no such key"
      f"{did_you_mean(key, flat_config)}"
    )
  if not values_text:
    raise UserError(f"--grid {axis} has no values; write {key}=A,B.")
  return key, [
    _parse_grid_value(word, flat_config[key], axis)
    for word in values_text.split(",")
  ]


def _parse_grid_value(word: str, config_value: Any, axis: str) -> Any:
  """Parses a value of a grid.

  Args:
    word: the value.
    config_value: the config's value, whose type the result must have. If it is
      None, a value of any type is allowed.
    axis: the axis of the grid, in the form `KEY=A,B`, for the message.
  """
  if isinstance(config_value, str):
    return word
  try:
    parsed_value = ast.literal_eval(word)
  except (ValueError, SyntaxError):
    parsed_value = word
  if isinstance(config_value, float) and type(parsed_value) is int:
    return float(parsed_value)
  if config_value is not None and type(parsed_value) is not type(config_value):
    raise UserError(
      f"--grid {axis}: {word!r} is not of type {type(config_value).__name__}."
    )
  return parsed_value


def plan(
  config: dict[str, Any], grid: Sequence[str], seeds: Iterable[int]
) -> list[PlannedRun]:
  """Lists all runs: each point of the grid with each seed.

  Args:
    config: the config that all runs share.
    grid: the axes of the grid, in the form `KEY=A,B`.
    seeds: the seeds of each point.

  Raises:
    UserError: a key or a value occurs twice, `seed` is a key, there is no run,
      or see `parse_axis`.
  """
  axes = [parse_axis(text, config) for text in grid]
  keys = [key for key, _ in axes]
  if len(set(keys)) < len(keys) or "seed" in keys:
    raise UserError(
      f"--grid has the keys {', '.join(keys)}; give each key only once, and set"
      " seeds by --seeds."
    )
  points = [
    dict(zip(keys, values, strict=True))
    for values in itertools.product(*(values for _, values in axes))
  ]
  runs = [
    PlannedRun(point, seed, _with_point(config, point) | {"seed": seed})
    for point, seed in itertools.product(points, seeds)
  ]
  if not runs:
    raise UserError("--seeds must be at least 1.")
  names = [run.name for run in runs]
  repeated_names = [name for i, name in enumerate(names) if name in names[:i]]
  if repeated_names:
    raise UserError(
      f"--grid gives {repeated_names[0]} twice; give each value once."
    )
  return runs


def _with_point(
  config: dict[str, Any], point: dict[str, Any]
) -> dict[str, Any]:
  """Returns a copy of `config` in which the keys of `point` have its values."""
  changed_config = copy.deepcopy(config)
  for path, setting in point.items():
    *sections, key = path.split(".")
    functools.reduce(operator.getitem, sections, changed_config)[key] = setting
  return changed_config


def default_metric(config: dict[str, Any]) -> str:
  """Returns the name of the metric that a sweep reports by default.

  It is the first metric of the config's task. It is "loss" if the run has no
  task, or if it has the stage "layers", which predicts no labels.
  """
  stage = config["objective"].get("stage")
  if not config_lib.trains_on_task(config) or stage == "layers":
    return "loss"
  return _open_task(config).metrics[0]


def _open_task(config: dict[str, Any]) -> encoded_rows.Task:
  task_folder = batches.open_folder(config["data"]["path"])
  return encoded_rows.task_of(task_folder.meta["task"])


def check_metric(metric: str, runs: Sequence[PlannedRun]) -> None:
  """Checks, before any run begins, that at least one run will report a metric.

  If a run pre-trains, the name of the metric is not checked, because the names
  of its metrics are not known in advance.

  Raises:
    UserError: a run is never evaluated; or all runs train on tasks, and none of
      them reports the metric.
  """
  for run in runs:
    if run.config["evaluate"]["every"] == 0:
      raise UserError(
        f"evaluate.every is 0 in the run {run.name}, so it would report no"
        f" {metric}; set a number of steps above 0, because a sweep compares"
        " evaluations."
      )
  metric_names: set[str] = set()
  for run in runs:
    if not config_lib.trains_on_task(run.config):
      return
    metric_names.update(_metric_names(run.config))
  if metric not in metric_names:
    suggestion = did_you_mean(metric, metric_names)
    raise UserError(
      f"--metric={metric}: the runs have no such metric{suggestion}"
    )


def _metric_names(config: dict[str, Any]) -> Iterator[str]:
  """Yields the names of all metrics that a run on a task reports.

  The names for each split in `data.validation` except the first begin with
  "SPLIT/".
  """
  objective = config["objective"]
  task = _open_task(config)
  if objective.get("stage") == "layers":
    names = ["attention_loss", "hidden_loss", "embedding_loss"]
  else:
    names = [*metrics.score_names(task), "task_loss"]
    if task.kind not in ("regression", "span"):
      names += ["predicted_labels"]
    names += [] if task.kind == "regression" else ["task_accuracy"]
    names += ["prediction_loss"] if "stage" in objective else []
    names += ["lm_loss", "lm_accuracy"] if objective.get("lm_weight") else []
  names.append("loss")
  splits = config["data"]["validation"].split(",")
  for index, split in enumerate(splits):
    for name in names:
      yield f"{split.strip()}/{name}" if index else name


def run_all(
  runs: Sequence[PlannedRun],
  folder: PathLike,
  command: Sequence[str],
  processes: int,
) -> list[Outcome]:
  """Trains all runs. If a run fails, the other runs go on.

  When a sweep is started again, a run that has ended is not repeated, and a run
  that was stopped continues.

  Args:
    runs: the runs, from `plan`.
    folder: the sweep's folder; each run has a folder in it.
    command: the command that trains a run in its own process. The flag
      `--workdir` and flags with the values of the run's config are added.
    processes: the number of runs at a time, each in its own process. 0 means
      one run after the other, in this process.

  Raises:
    UserError: a run in this process was stopped by a signal, or a run in the
      folder has ended, but its config differs.
  """
  root = epath.Path(folder)
  root.mkdir(parents=True, exist_ok=True)
  if not processes:
    # A program that several runs need is compiled once, and read from disk.
    jax.config.update("jax_compilation_cache_dir", str(root / "compiled"))
    return [_train_or_skip(run, root, _train_in_this_process) for run in runs]
  train_run = functools.partial(_train_in_other_process, command)
  outcomes = []
  with (
    Progress(f"sweep of {len(runs)} runs") as progress,
    concurrent.futures.ThreadPoolExecutor(processes) as pool,
  ):
    progress.describe(f"0 of {len(runs)} runs have ended")
    for outcome in pool.map(
      lambda run: _train_or_skip(run, root, train_run), runs
    ):
      outcomes.append(outcome)
      progress.describe(f"{len(outcomes)} of {len(runs)} runs have ended")
  return outcomes


def _train_or_skip(
  run: PlannedRun, root: epath.Path, train_run: TrainRun
) -> Outcome:
  # `root` is the sweep's folder.
  workdir = root / run.name
  error = None
  if not _has_ended(workdir, run.config):
    say(f"run {run.name}")
    error = train_run(run, workdir)
  if error:
    say(f"run {run.name} failed: {error}")
  rows = logging.read_rows(workdir / "metrics.jsonl")
  return Outcome(run, error, [r for r in rows if r["split"] == "heldout"])


def _has_ended(workdir: epath.Path, config: dict[str, Any]) -> bool:
  """Returns True if a folder holds a run of this config that has ended.

  Raises:
    UserError: the folder's run has ended, but its config differs.
  """
  path = workdir / "config.json"
  if not path.exists():
    return False
  saved_config = files.read_json_object(path)
  rows = logging.read_rows(workdir / "metrics.jsonl")
  if not rows or rows[-1]["step"] != saved_config["total_steps"]:
    return False
  # Compare only the values that the sweep's config sets. The config in the
  # run's folder also has the values that the program derived.
  saved_settings = flatten(saved_config)
  new_values = {k: v for k, v in flatten(config).items() if v is not None}
  saved_values = {
    key: saved_settings[key] for key in new_values.keys() & saved_settings
  }
  config_lib.check_restart(
    saved_values, new_values, flatten(default_values(saved_config))
  )
  return True


def _train_in_this_process(run: PlannedRun, workdir: epath.Path) -> str | None:
  try:
    state = train.run(copy.deepcopy(run.config), str(workdir))
  except Exception as e:  # The other runs go on after an error of any class.
    return str(e) or type(e).__name__
  finally:
    # Free the memory of this run's programs. If the next run needs one of them,
    # it reads the program from the folder `compiled`.
    jax.clear_caches()
  total_steps = files.read_json_object(workdir / "config.json")["total_steps"]
  if int(state.step) < total_steps:
    raise UserError(
      f"run {run.name} was stopped; the same command continues the sweep."
    )
  return None


def _train_in_other_process(
  command: Sequence[str], run: PlannedRun, workdir: epath.Path
) -> str | None:
  workdir.mkdir(parents=True, exist_ok=True)
  flags = [
    f"--config.{key}={_flag_text(setting)}"
    for key, setting in flatten(run.config).items()
    if setting is not None
  ]
  with (workdir / "output.txt").open("ab") as output:
    child = subprocess.run(
      [*command, f"--workdir={workdir}", *flags],
      stdout=output,
      stderr=subprocess.PIPE,
      check=False,
    )
    output.write(child.stderr)
  if not child.returncode:
    return None
  lines = child.stderr.decode(errors="replace").strip().split("\n")
  return lines[-1].removeprefix("error: ") or f"exit code {child.returncode}"


def _flag_text(setting: Any) -> str:
  """Returns a config's value as it is written in a flag."""
  return repr(setting) if isinstance(setting, (tuple, list)) else str(setting)


def mark_missing_metric(
  outcomes: Sequence[Outcome], metric: str
) -> list[Outcome]:
  """Marks runs as failed if they lack a finite metric at the last step.

  A metric can be NaN; for example, a correlation is NaN if all predictions are
  equal.
  """
  checked_outcomes = []
  for outcome in outcomes:
    last_row = outcome.last_row
    if not outcome.error and not math.isfinite(last_row.get(metric, math.nan)):
      reason = "is not a finite number" if metric in last_row else "is missing"
      outcome = dataclasses.replace(
        outcome, error=f"{metric} at the last step {reason}."
      )
    checked_outcomes.append(outcome)
  return checked_outcomes


def best_outcome(outcomes: Sequence[Outcome], metric: str) -> Outcome:
  """Returns the outcome of the run with the best metric at the last step.

  Args:
    outcomes: the outcomes of the runs; at least one run did not fail.
    metric: the name of the metric. A lower loss is better; all other metrics
      are better if they are higher.
  """
  sign = -1 if metric.endswith("loss") else 1
  return max(
    (outcome for outcome in outcomes if not outcome.error),
    key=lambda outcome: sign * outcome.last_row[metric],
  )


def summarise(outcomes: Sequence[Outcome], metric: str) -> list[dict[str, Any]]:
  """Summarises the metric at the last step for each point of the grid.

  Returns:
    A dict for each point. `median`, `mean`, `deviation` (the sample standard
    deviation), `least` and `most` are over the runs that did not fail. They are
    None if there are too few of these runs.

    | key | meaning |
    |---|---|
    | `point` | the point of the grid, {key: value} |
    | `runs` | the number of runs |
    | `failed` | the number of runs that ended in an error, or that
      `mark_missing_metric` marks |
    | `constant` | the number of runs that did not fail, but predict the same
      label for all examples, or the same tag for all words |
  """
  outcomes_by_point: dict[str, list[Outcome]] = {}
  for outcome in mark_missing_metric(outcomes, metric):
    outcomes_by_point.setdefault(json.dumps(outcome.run.point), []).append(
      outcome
    )
  table = []
  for point_outcomes in outcomes_by_point.values():
    last_rows = [
      outcome.last_row for outcome in point_outcomes if not outcome.error
    ]
    scores = [row[metric] for row in last_rows]
    table.append(
      {
        "point": point_outcomes[0].run.point,
        "runs": len(point_outcomes),
        "failed": len(point_outcomes) - len(scores),
        "constant": sum(row.get("predicted_labels") == 1 for row in last_rows),
        "median": statistics.median(scores) if scores else None,
        "mean": statistics.fmean(scores) if scores else None,
        "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
        "least": min(scores, default=None),
        "most": max(scores, default=None),
      }
    )
  return table


def write_report(
  folder: PathLike, outcomes: Sequence[Outcome], metric: str
) -> list[str]:
  """Writes `sweep.json`, and returns the lines of a report.

  The report is a table of `summarise`, and below it a line for each run that
  `mark_missing_metric` marks.
  """
  table, checked_outcomes = (
    summarise(outcomes, metric),
    mark_missing_metric(outcomes, metric),
  )
  runs = [
    {
      "name": outcome.run.name,
      "point": outcome.run.point,
      "seed": outcome.run.seed,
      "error": outcome.error,
      "last": outcome.last_row or None,
    }
    for outcome in checked_outcomes
  ]
  path = epath.Path(folder) / RESULTS_FILE
  write_json(
    path, without_nan({"metric": metric, "table": table, "runs": runs})
  )
  statistics_names = ("median", "mean", "deviation", "least", "most")
  count_names = ("runs", "failed", "constant")
  table_cells = [["point", "runs", "failed", "one label", *statistics_names]]
  for row in table:
    point = " ".join(f"{key}={v}" for key, v in row["point"].items()) or "all"
    count_cells = [str(row[name]) for name in count_names]
    statistic_cells = [
      "-" if row[name] is None else f"{row[name]:.4f}"
      for name in statistics_names
    ]
    table_cells.append([point, *count_cells, *statistic_cells])
  widths = [max(map(len, column)) for column in zip(*table_cells, strict=True)]
  table_lines = [
    "  ".join(
      cell.ljust(width) for cell, width in zip(cells, widths, strict=True)
    )
    for cells in table_cells
  ]
  table_lines += [
    f"run {outcome.run.name} failed: {outcome.error}"
    for outcome, unchecked_outcome in zip(
      checked_outcomes, outcomes, strict=True
    )
    if outcome.error != unchecked_outcome.error
  ]
  return [
    f"{metric} at the last step:",
    *map(str.rstrip, table_lines),
    f"all results: {path}",
  ]
