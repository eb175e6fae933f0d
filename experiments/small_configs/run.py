r"""Runs the small configs, several at a time, and prints their losses.

  python experiments/small_configs/run.py --kind gpu --data DATA --output OUT \\
    --lanes roberta,spanbert,teacher,distil,alone electra,albert,gpt,elmo
  python experiments/small_configs/run.py --output OUT --table

DATA has prepared folders with the names in `FOLDERS`, and "wordpiece" for all
other configs. A lane is a list of configs that run one after the other, each in
a child process. Lane i uses GPU i modulo --gpus, or all cores of a CPU. A run
that takes more than --limit seconds gets SIGTERM and saves a checkpoint. The
same command continues this run. Further flags, such as
--config.total_steps=100, are given to each run. OUT/results.jsonl gets a line
each time that a run ends or stops.
"""

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(
  os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
# Config -> its folder in DATA.
FOLDERS = {
  "roberta": "bytelevel",
  "albert": "unigram",
  "gpt": "bpe",
  "elmo": "words",
}
STUDENTS = ("distil", "alone", "tinybert")
# The keys of metrics.jsonl that the table shows, in this order.
METRICS = (
  *("mlm_loss", "lm_loss", "forward_loss", "rtd_loss", "rtd_replaced"),
  *("sop_accuracy", "kl_loss", "span_loss"),
)


def train_command(name: str, args: argparse.Namespace) -> list[str]:
  folder = FOLDERS.get(name, "wordpiece")
  if args.kind == "cpu" and folder == "bpe":
    folder = "wordpiece"
  arguments = [sys.executable, "-m", "bert_jax", "train"]
  arguments += [f"--config=configs/small.py:{name}_{args.kind}"]
  arguments += [f"--workdir={args.output}/{name}"]
  arguments += [f"--config.data.path={args.data}/{folder}"]
  if name in STUDENTS:
    arguments += [f"--config.teacher.path={args.output}/teacher"]
  return arguments + args.flags


def run_config(name: str, lane: int, args: argparse.Namespace) -> dict:
  """Starts or continues a config; returns its line of the results."""
  environment = dict(os.environ)
  if args.kind == "gpu":
    environment["CUDA_VISIBLE_DEVICES"] = str(lane % args.gpus)
    runs_per_gpu = -(-len(args.lanes) // args.gpus)
    environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / runs_per_gpu:.2f}"
  start = time.monotonic()
  with open(f"{args.output}/{name}.log", "a", encoding="utf-8") as log:
    process = subprocess.Popen(
      train_command(name, args),
      cwd=ROOT,
      env=environment,
      stdout=log,
      stderr=log,
    )
    try:
      process.wait(args.limit)
    except subprocess.TimeoutExpired:
      process.send_signal(signal.SIGTERM)
      process.wait()
  row = {"config": f"small:{name}_{args.kind}", "status": process.returncode}
  return row | {"seconds": round(time.monotonic() - start, 1)}


def last_metrics(name: str, args: argparse.Namespace) -> dict:
  """Returns a run's last evaluation: step, metrics, unigram cross-entropy."""
  rows = []
  path = f"{args.output}/{name}/metrics.jsonl"
  if os.path.exists(path):
    with open(path, encoding="utf-8") as f:
      rows = [json.loads(line) for line in f]
  rows = [row for row in rows if row["split"] == "heldout"]
  if not rows:
    return {}
  metrics = {name: value for name, value in rows[-1].items() if name in METRICS}
  with open(f"{args.output}/{name}.log", encoding="utf-8") as f:
    unigram_lines = [line for line in f if "unigram cross-entropy" in line]
  if unigram_lines:  # ELMo's log has two lines; the forward one is first.
    metrics["unigrams"] = float(
      unigram_lines[-2:][0].rsplit(": ", 1)[1].split()[0]
    )
  return {"step": rows[-1]["step"], **metrics}


def run_lane(number: int, args: argparse.Namespace) -> None:
  """Runs the configs of a lane in order, and writes their results."""
  for name in args.lanes[number].split(","):
    line = json.dumps(run_config(name, number, args) | last_metrics(name, args))
    print(line, flush=True)
    with open(f"{args.output}/results.jsonl", "a", encoding="utf-8") as f:
      f.write(line + "\n")


def markdown_table(lines: list[dict]) -> str:
  rows = [
    "| config | seconds | steps | unigrams | held out |",
    "|---|---|---|---|---|",
  ]
  for line in lines:
    metrics = [f"{key} {line[key]:.3f}" for key in METRICS if key in line]
    first_cells = (line["config"], line["seconds"], line.get("step", "-"))
    unigrams = line.get("unigrams", "-")
    cells = " | ".join(map(str, (*first_cells, unigrams, ", ".join(metrics))))
    rows.append(f"| {cells} |")
  return "\n".join(rows)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--output", required=True, help="folder of the runs, which are continued")
  add("--kind", choices=("cpu", "gpu"), default="gpu")
  add("--data", help="folder of prepared folders")
  add("--lanes", nargs="*", default=[], help="configs, joined by commas")
  add("--gpus", type=int, default=1)
  add("--limit", type=float, default=300.0, help="seconds of a start")
  add("--table", action="store_true", help="print a table of OUTPUT and end")
  args, args.flags = parser.parse_known_args()
  args.output = os.path.abspath(args.output)
  if args.table:
    with open(f"{args.output}/results.jsonl", encoding="utf-8") as f:
      print(markdown_table([json.loads(line) for line in f]))
    return
  if not args.data or not args.lanes:
    parser.error("--data and --lanes are needed")
  args.data = os.path.abspath(args.data)
  os.makedirs(args.output, exist_ok=True)
  with concurrent.futures.ThreadPoolExecutor(len(args.lanes)) as pool:
    list(pool.map(lambda i: run_lane(i, args), range(len(args.lanes))))


if __name__ == "__main__":
  main()
