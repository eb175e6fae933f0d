"""Seeds and grids: many runs of one config, and a table of what they reach."""

import ast
import concurrent.futures
import copy
import itertools
import json
import math
import os
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from bert_jax import files
from bert_jax.files import without_nan, write_json
from bert_jax.messages import UserError, nearest
from bert_jax.tasks import batches, encoded_rows, metrics
from bert_jax.training import config as config_lib
from bert_jax.training import logging, train
from bert_jax.training.setup import defaults as default_values
from bert_jax.weights.run_config import flatten

RESULTS = "sweep.json"


class Run(NamedTuple):
  """One run of a sweep.

  Attributes:
    point: key -> value of the grid.
    seed: the seed of the run.
    config: complete.
  """

  point: dict[str, Any]
  seed: int
  config: dict[str, Any]

  @property
  def name(self) -> str:
    """The name of its folder: the values of the grid and the seed."""
    keys = [f"{key}={value}" for key, value in self.point.items()]
    return ",".join([*keys, f"seed={self.seed}"]).replace(os.sep, "_")


class Done(NamedTuple):
  """A run that ended, well or not.

  Attributes:
    run: which.
    error: why it failed, in a sentence; None if it did not.
    rows: the rows of its metrics.jsonl that are of the held-out set.
  """

  run: Run
  error: str | None
  rows: list[dict[str, Any]]


def parse_axis(text: str, config: dict[str, Any]) -> tuple[str, list[Any]]:
  """Splits `KEY=A,B` into the key and values of its type.

  Raises:
    ValueError: no such key, no value, or one of another type.
  """
  key, _, values = text.partition("=")
  key = key.removeprefix("config.")
  flat = flatten(config)
  if key not in flat:
    raise UserError(f"--grid {text}: no such key{nearest(key, flat)}")
  if not values:
    raise UserError(f"--grid {text}: no values; write {key}=A,B.")
  return key, [_value(value, flat[key], text) for value in values.split(",")]


def _value(text: str, before: Any, axis: str) -> Any:
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    value = text
  if isinstance(before, str):
    return text
  if isinstance(before, float) and type(value) is int:
    return float(value)
  if before is not None and type(value) is not type(before):
    raise UserError(
      f"--grid {axis}: {text!r} is not of type {type(before).__name__}."
    )
  return value


def plan(
  config: dict[str, Any], grid: Sequence[str], seeds: Iterable[int]
) -> list[Run]:
  """All runs: each point of the grid with each seed.

  Args:
    config: the config that each run begins with.
    grid: texts of the form `KEY=A,B`.
    seeds: the seeds of each point.

  Raises:
    ValueError: a key or value twice, or as `parse_axis`; no run at all.
  """
  axes = [parse_axis(text, config) for text in grid]
  keys, seeds = [key for key, _ in axes], list(seeds)
  if len(set(keys)) < len(keys) or "seed" in keys:
    raise UserError(
      f"--grid: each key once, and seeds by --seeds; got {', '.join(keys)}."
    )
  runs = []
  for values in itertools.product(*(values for _, values in axes)):
    point = dict(zip(keys, values, strict=True))
    for seed in seeds:
      run_config = copy.deepcopy(config) | {"seed": seed}
      for key, value in point.items():
        *sections, last = key.split(".")
        section = run_config
        for name in sections:
          section = section[name]
        section[last] = value
      runs.append(Run(point, seed, run_config))
  if not runs:
    raise UserError("--seeds must be at least 1.")
  names = [run.name for run in runs]
  twice = [name for i, name in enumerate(names) if name in names[:i]]
  if twice:
    raise UserError(f"--grid: {twice[0]} is there twice; give values once.")
  return runs


def metric_of(config: dict[str, Any]) -> str:
  """The first metric of a config's task; "loss" where nothing is predicted."""
  stage = config["objective"].get("stage")
  if not config_lib.is_task(config) or stage == "layers":
    return "loss"
  return _task(config).metrics[0]


def _task(config: dict[str, Any]) -> encoded_rows.Task:
  task_folder = batches.open_part(config["data"]["path"])
  return encoded_rows.task_of(task_folder.meta["task"])


def check_metric(metric: str, runs: Sequence[Run]) -> None:
  """Raises ValueError for what no row of a task's runs has.

  Before the first of them begins; of pre-training nothing is known ahead.
  """
  names: set[str] = set()
  for run in runs:
    if not config_lib.is_task(run.config):
      return
    names.update(_numbers(run.config))
  if metric not in names:
    raise UserError(
      f"--metric={metric}: the runs have no such number{nearest(metric, names)}"
    )


def _numbers(config: dict[str, Any]) -> Iterator[str]:
  """Names of the numbers of a task's run, over each of its splits."""
  objective, data = config["objective"], config["data"]
  task = _task(config)
  named = task.kind not in ("regression", "span")
  if objective.get("stage") == "layers":
    names = ["attention_loss", "hidden_loss", "embedding_loss"]
  else:
    names = [*metrics.names(task), "task_loss"]
    names += ["predicted_labels"] if named else []
    names += [] if task.kind == "regression" else ["task_accuracy"]
    names += ["prediction_loss"] if "stage" in objective else []
    names += ["lm_loss", "lm_accuracy"] if objective.get("lm_weight") else []
  names.append("loss")
  for number, split in enumerate(data["validation"].split(",")):
    for name in names:
      yield f"{split.strip()}/{name}" if number else name


def run_all(
  runs: Sequence[Run], folder: str, command: Sequence[str], processes: int
) -> list[Done]:
  """Runs all; one that fails is noted, and the others go on.

  Given again, those that ended are read, one that was stopped continues.

  Args:
    runs: the runs of `plan`.
    folder: each run gets one in it.
    command: the words that start a run in a process of its own; `--workdir`
      and the values of its config are added.
    processes: runs at a time, each a process; 0: one after the other here.

  Raises:
    ValueError: a run was stopped by a signal.
  """
  os.makedirs(folder, exist_ok=True)
  if not processes:
    # The runs have their programs in common.
    cache = os.path.join(folder, "compiled")
    jax.config.update("jax_compilation_cache_dir", cache)
    return [_run_one(run, folder, _in_this_process) for run in runs]

  def start(run, workdir):
    return _in_other_process(run, workdir, command)

  with concurrent.futures.ThreadPoolExecutor(processes) as pool:
    return list(pool.map(lambda run: _run_one(run, folder, start), runs))


def _run_one(run: Run, folder: str, start: Any) -> Done:
  workdir = os.path.join(folder, run.name)
  error = None
  if not _ended(workdir, run.config):
    print(f"run {run.name}", flush=True)
    error = start(run, workdir)
  if error:
    print(f"run {run.name} failed: {error}", flush=True)
  rows = logging.read_rows(os.path.join(workdir, "metrics.jsonl"))
  return Done(run, error, [r for r in rows if r["split"] == "heldout"])


def _ended(workdir: str, config: dict[str, Any]) -> bool:
  """Returns True if a run of this config ended in a folder.

  Raises:
    ValueError: the run here is of another config.
  """
  path = os.path.join(workdir, "config.json")
  if not os.path.exists(path):
    return False
  old = files.read_object(path)
  rows = logging.read_rows(os.path.join(workdir, "metrics.jsonl"))
  if not rows or rows[-1]["step"] != old["total_steps"]:
    return False
  # The sweep's config lacks the values that the program fills in.
  flat = flatten(config)
  before = flatten(old)
  set_now = {key: value for key, value in flat.items() if value is not None}
  old_values = {key: before[key] for key in set_now.keys() & before.keys()}
  defaults = flatten(default_values(old))
  config_lib.check_restart(old_values, set_now, defaults)
  return True


def _in_this_process(run: Run, workdir: str) -> str | None:
  try:
    state = train.run(copy.deepcopy(run.config), workdir)
  except Exception as e:  # Whatever it is, the other runs go on.
    return str(e) or type(e).__name__
  finally:
    jax.clear_caches()  # A run's programs are its own.
  total = files.read_object(os.path.join(workdir, "config.json"))["total_steps"]
  if int(state.step) < total:
    raise UserError(
      f"run {run.name} was stopped; the same command continues the sweep."
    )
  return None


def _in_other_process(
  run: Run, workdir: str, command: Sequence[str]
) -> str | None:
  os.makedirs(workdir, exist_ok=True)
  flags = [
    f"--config.{key}={_written(value)}"
    for key, value in flatten(run.config).items()
    if value is not None
  ]
  with open(os.path.join(workdir, "output.txt"), "ab") as out:
    done = subprocess.run(
      [*command, f"--workdir={workdir}", *flags],
      stdout=out,
      stderr=subprocess.PIPE,
      check=False,
    )
    out.write(done.stderr)
  if not done.returncode:
    return None
  lines = done.stderr.decode(errors="replace").strip().split("\n")
  return lines[-1].removeprefix("error: ") or f"exit code {done.returncode}"


def _written(value: Any) -> str:
  return repr(value) if isinstance(value, (tuple, list)) else str(value)


def judge(done: Sequence[Done], metric: str) -> list[Done]:
  """The same; of a run whose last step has no finite metric, `error` says so.

  A correlation is NaN where all predictions are the same.
  """
  judged = []
  for run_result in done:
    last = run_result.rows[-1] if run_result.rows else {}
    if not run_result.error and not math.isfinite(last.get(metric, math.nan)):
      what = "is not a finite number" if metric in last else "is not there"
      run_result = run_result._replace(
        error=f"{metric} at the last step {what}."
      )
    judged.append(run_result)
  return judged


def summarise(done: Sequence[Done], metric: str) -> list[dict[str, Any]]:
  """Returns the results of each point of the grid at the last step.

  Returns:
    For each point its `point`, `runs`, `failed` (without a result, see
    `judge`), `constant` (one label for every example, or tag for every word: a
    run that did not train), and `median`, `mean`, `deviation` (of the sample),
    `least`, `most` of the results of all that did not fail.
  """
  points: dict[str, list[Done]] = {}
  for run_result in judge(done, metric):
    points.setdefault(json.dumps(run_result.run.point), []).append(run_result)
  table = []
  for group in points.values():
    last = [run_result.rows[-1] for run_result in group if not run_result.error]
    values = [row[metric] for row in last]
    table.append(
      {
        "point": group[0].run.point,
        "runs": len(group),
        "failed": len(group) - len(values),
        "constant": sum(row.get("predicted_labels") == 1 for row in last),
        "median": statistics.median(values) if values else None,
        "mean": statistics.fmean(values) if values else None,
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "least": min(values, default=None),
        "most": max(values, default=None),
      }
    )
  return table


def report(folder: str, done: Sequence[Done], metric: str) -> list[str]:
  """Writes `sweep.json` and returns the lines of a table.

  Below it stand the runs that ended without a result.
  """
  table, ended = summarise(done, metric), done
  done = judge(ended, metric)
  runs = [
    {
      "name": run_result.run.name,
      "point": run_result.run.point,
      "seed": run_result.run.seed,
      "error": run_result.error,
      "last": run_result.rows[-1] if run_result.rows else None,
    }
    for run_result in done
  ]
  path = os.path.join(folder, RESULTS)
  results = {"metric": metric, "table": table, "runs": runs}
  write_json(path, without_nan(results))
  numbers = ("median", "mean", "deviation", "least", "most")
  names = ["point", "runs", "failed", "constant", *numbers]
  lines = [[*names]]
  for row in table:
    point = " ".join(f"{k}={v}" for k, v in row["point"].items()) or "all"
    counts = [str(row[name]) for name in names[1:4]]
    shown = ["-" if row[n] is None else f"{row[n]:.4f}" for n in numbers]
    lines.append([point, *counts, *shown])
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  table_lines = [
    "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True))
    for line in lines
  ]
  table_lines += [
    f"run {now.run.name} failed: {now.error}"
    for now, before in zip(done, ended, strict=True)
    if now.error != before.error
  ]
  return [
    f"{metric} at the last step:",
    *map(str.rstrip, table_lines),
    f"all: {path}",
  ]
