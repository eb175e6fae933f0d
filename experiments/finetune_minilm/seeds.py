r"""Compares fine-tuning with transformers: scores over seeds, time of a run.

Both sides have the same settings (`RECIPE`): AdamW, linear warm-up and decay,
dropout and head of MiniLM's config, and bfloat16 on a GPU. The score is
measured after the last step, on the development set. In flags and results,
"ours" is bert_jax and "theirs" is transformers.

For scores, --chunk seeds share a process (our side runs `bert_jax sweep`). Rows
are shuffled as Trainer does by default; --grouped groups rows by length. For
times (--speed), each run has a separate process, and both sides group by
length.

  python experiments/finetune_minilm/seeds.py --model MINILM --data FOLDERS \\
    --output OUT.jsonl --tasks cola,rte,stsb --seeds 20 [--side ours]
    [--processes 8] [--until SECONDS] [--limit STEPS]
  python experiments/finetune_minilm/seeds.py ... --speed sst2
  python experiments/finetune_minilm/seeds.py --output OUT.jsonl --table

FOLDERS has a folder of `bert_jax prepare-task` for each task. --limit makes a
short trial.
"""

import argparse
import concurrent.futures
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SIDES = ("ours", "theirs")
RECIPE = dict(epochs=3, batch_size=32, warmup=0.1, decay=0.01, clip=1.0)
EPSILON = 1e-8


def read_meta(folder):
  with open(os.path.join(folder, "meta.json"), encoding="utf-8") as f:
    return json.load(f)


def bert_jax_command(args, task, seeds, workdir):
  """Returns the command that trains with the task's config and `RECIPE`."""
  folder = os.path.join(args.data, task)
  rows = read_meta(folder)["splits"]["train"]["rows"]
  steps = args.limit or -(-rows // RECIPE["batch_size"]) * RECIPE["epochs"]
  settings = {
    "init_from": args.model,
    "total_steps": steps,
    "batch_size": RECIPE["batch_size"],
    "data.path": folder,
    "data.group": args.grouped,
    "optimizer.epsilon": EPSILON,
    "optimizer.weight_decay": RECIPE["decay"],
    "optimizer.clip_norm": RECIPE["clip"],
    "schedule.name": "linear",
    "schedule.peak": args.peak,
    "schedule.warmup": RECIPE["warmup"],
  }
  if args.speed:
    settings["seed"] = seeds[0]
    flags = []
  else:  # Evaluate only at the end, not after every epoch.
    settings |= {"evaluate.every": steps, "checkpoint.every": steps}
    flags = [f"--seeds={len(seeds)}", f"--first-seed={seeds[0]}"]
  path = os.path.join(ROOT, "configs", f"glue.py:{task}")
  command = [sys.executable, "-m", "bert_jax", "sweep" if flags else "train"]
  command += [f"--config={path}", f"--workdir={workdir}", *flags]
  return command + [
    f"--config.{key}={setting}" for key, setting in settings.items()
  ]


def transformers_command(args, task, seeds, workdir):
  """Returns the command of `transformers_loop.py` with `RECIPE`."""
  command = [
    args.python or sys.executable,
    os.path.join(HERE, "transformers_loop.py"),
  ]
  command += [f"--model={args.model}", f"--data={args.data}/{task}"]
  command += [f"--output={workdir}/results.jsonl", "--seeds"]
  command += [*map(str, seeds), f"--peak={args.peak}", f"--limit={args.limit}"]
  command += [f"--{key}={setting}" for key, setting in RECIPE.items()]
  command += ["--grouped"] if args.grouped else []
  command += ["--each_epoch"] if args.speed else []
  return command + (["--compile"] if args.compile else [])


def read_json_lines(path):
  """Returns the JSON values of a file's lines; [] if there is no file."""
  if not os.path.exists(path):
    return []
  with open(path, encoding="utf-8") as f:
    return [json.loads(line) for line in f]


def bert_jax_scores(workdir, seed, metric):
  """Returns the scores of a run's evaluations; [] if there are none."""
  for folder in (os.path.join(workdir, f"seed={seed}"), workdir):
    rows = read_json_lines(os.path.join(folder, "metrics.jsonl"))
    rows = [row for row in rows if row["split"] == "heldout"]
    if rows:
      scores = [row[metric] for row in rows]
      return [math.nan if score is None else score for score in scores]
  return []


def transformers_scores(workdir, seed, metric):
  for row in read_json_lines(os.path.join(workdir, "results.jsonl")):
    if row["seed"] == seed:
      assert row["metric"] == metric
      return row["each_epoch"]
  return []


def run_process(args, task, seeds, side, max_seconds=None):
  """Runs one process; returns a row for each seed.

  The process is stopped after `max_seconds`. Then only seeds with a score have
  rows.
  """
  metric = read_meta(os.path.join(args.data, task))["task"]["metrics"][0]
  command, read_scores = {
    "ours": (bert_jax_command, bert_jax_scores),
    "theirs": (transformers_command, transformers_scores),
  }[side]
  with tempfile.TemporaryDirectory() as folder:
    workdir = os.path.join(folder, "run")
    os.makedirs(workdir)
    start_time = time.monotonic()
    try:
      output = subprocess.run(
        command(args, task, seeds, workdir),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=max_seconds,
      ).stdout
    except subprocess.TimeoutExpired:
      output = None
    seconds = round((time.monotonic() - start_time) / len(seeds), 2)
    scores_by_seed = {
      seed: read_scores(workdir, seed, metric) for seed in seeds
    }
  common_fields = {"task": task, "side": side, "peak": args.peak}
  common_fields["grouped"] = args.grouped
  common_fields |= {"compile": args.compile} if side == "theirs" else {}
  rows = []
  for seed, scores in scores_by_seed.items():
    row = common_fields | {"seed": seed}
    if not scores:
      if output is not None:
        rows.append(row | {"error": output[-2000:]})
      continue
    row |= {"metric": metric, "value": scores[-1], "each_epoch": scores}
    rows.append(row | {"seconds": seconds})
  return rows


def append_line(path, row):
  with open(path, "a", encoding="utf-8") as f:
    f.write(json.dumps(row) + "\n")


def describe_row(row):
  """Returns a line of progress about a row."""
  name = f"{row['task']} {row['side']} seed {row['seed']}"
  if "error" in row:
    return f"{name} FAILED: {row['error']}"
  return f"{name}: {row['metric']} {row['value']:.4f}, {row['seconds']:.1f} s"


def run_seeds(args):
  """Does all runs: several processes at a time, each with a few seeds."""
  end = args.first + args.seeds
  jobs = [
    (task, range(first, min(first + args.chunk, end)), side)
    for first in range(args.first, end, args.chunk)
    for task in args.tasks.split(",")
    for side in args.sides
  ]
  start_time = time.monotonic()

  def run_job(job):
    # Only the time decides which seeds run, because their choice must not
    # depend on results.
    seconds_left = (
      args.until - (time.monotonic() - start_time) if args.until else None
    )
    if seconds_left is not None and seconds_left <= 0:
      return
    for row in run_process(args, *job, seconds_left):
      append_line(args.output, row)
      print(
        f"{time.monotonic() - start_time:5.0f} s  {describe_row(row)}",
        flush=True,
      )

  with concurrent.futures.ThreadPoolExecutor(args.processes) as pool:
    list(pool.map(run_job, jobs))


def run_speed(args):
  """Times whole runs of a task one after the other, with all evaluations."""
  for seed in range(args.first, args.first + args.seeds):
    for side in args.sides:
      row = run_process(args, args.speed, [seed], side)[0] | {"speed": True}
      append_line(args.output, row)
      print(describe_row(row), flush=True)


def difference_interval(scores, peer_scores):
  """Returns the difference of means and the ends of its 95% interval.

  All three are in units of the pooled standard deviation. The interval is
  Welch's, for two samples of unequal variances.
  """
  from scipy import stats

  # The variance of each mean.
  variances = [statistics.variance(x) / len(x) for x in (scores, peer_scores)]
  pooled_freedom = len(scores) + len(peer_scores) - 2
  squares = sum(
    (len(x) - 1) * statistics.variance(x) for x in (scores, peer_scores)
  )
  pooled_deviation = math.sqrt(squares / pooled_freedom)
  freedom = sum(variances) ** 2 / sum(
    variance**2 / (len(x) - 1)
    for variance, x in zip(variances, (scores, peer_scores), strict=True)
  )
  half_width = float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(variances))
  gap = statistics.fmean(scores) - statistics.fmean(peer_scores)
  return [
    (gap + shift) / pooled_deviation for shift in (0.0, -half_width, half_width)
  ]


def table_lines(rows):
  """Returns a table's lines with each task's means, deviations and interval."""
  lines = [
    "| task | metric | runs | ours | transformers | difference in deviations"
    " (95%) | failed |",
    "|---|---|---|---|---|---|---|",
  ]
  score_rows = [row for row in rows if not row.get("speed")]
  for task in dict.fromkeys(row["task"] for row in score_rows):
    task_rows = [row for row in score_rows if row["task"] == task]
    score_by_seed = {
      side: {
        row["seed"]: row["value"] for row in task_rows if has_score(row, side)
      }
      for side in SIDES
    }
    num_failed = sum("error" in row for row in task_rows)
    metric = next((row["metric"] for row in task_rows if "metric" in row), "-")
    # The scores of our side, and those of their side.
    score_lists = [list(score_by_seed[side].values()) for side in SIDES]
    if min(map(len, score_lists)) < 2:
      lines.append(f"| {task} | two runs of each side are needed |")
      continue
    cells = [
      f"{statistics.fmean(scores):.4f} ± {statistics.stdev(scores):.4f}"
      for scores in score_lists
    ]
    gap, low, high = difference_interval(*score_lists)
    counts = " + ".join(str(len(scores)) for scores in score_lists)
    lines.append(
      f"| {task} | {metric} | {counts} | {cells[0]} | {cells[1]} |"
      f" {gap:+.2f} ({low:+.2f} to {high:+.2f}) | {num_failed} |"
    )
  return lines + speed_lines([r for r in rows if r.get("speed")])


def has_score(row, side):
  return row["side"] == side and "value" in row


def speed_lines(rows):
  """Returns lines about the times of runs, with ratios of their medians."""
  # First the (seconds, score) of each run of a side, then the median seconds.
  lines, medians = [], {}
  for row in rows:
    if "value" in row:
      side = row["side"] + (", torch.compile" if row.get("compile") else "")
      medians.setdefault(side, []).append((row["seconds"], row["value"]))
  for side, pairs in medians.items():
    seconds, scores = zip(*pairs, strict=True)
    lines.append(
      f"{side}: {', '.join(f'{s:.1f}' for s in seconds)} s, median"
      f" {statistics.median(seconds):.1f}; scores"
      f" {', '.join(f'{score:.4f}' for score in scores)}"
    )
    medians[side] = statistics.median(seconds)
  if "ours" in medians:
    lines += [
      f"ours / {side}: {medians['ours'] / median:.2f}"
      for side, median in medians.items()
      if side != "ours"
    ]
  return lines


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add("--output", required=True, help="a JSON file, a line for each run")
  add("--model", help="folder of MiniLM")
  add("--data", help="folder of prepared tasks")
  add("--tasks", default="cola,rte,stsb")
  add("--seeds", type=int, default=20)
  add("--first", type=int, default=0, help="first seed")
  add("--side", choices=(*SIDES, "both"), default="both")
  add("--peak", type=float, default=1e-4)
  add("--processes", type=int, default=1, help="number of processes at a time")
  add("--chunk", type=int, default=4, help="number of seeds in a process")
  add("--until", type=float, default=0, help="end all runs after SECONDS")
  add("--limit", type=int, default=0, help="steps of a run; 0: all")
  add("--grouped", action="store_true", help="group rows by length")
  add("--compile", action="store_true", help="use torch.compile on their side")
  add("--python", help="Python of their side (default: this Python)")
  add("--speed", help="a task whose whole runs are timed")
  add("--table", action="store_true", help="print a table of OUTPUT and end")
  args = parser.parse_args()
  args.grouped = args.grouped or bool(args.speed)
  args.sides = SIDES if args.side == "both" else (args.side,)
  if args.table:
    print("\n".join(table_lines(read_json_lines(args.output))))
    return
  if not args.model or not args.data:
    parser.error("--model and --data are needed")
  args.model, args.data = map(os.path.abspath, (args.model, args.data))
  run_speed(args) if args.speed else run_seeds(args)


if __name__ == "__main__":
  main()
