r"""Trains a list of jobs, one after the other on each GPU; scores on BLiMP.

  python experiments/flagship/study.py --jobs JOBS --data DATA --blimp TAR \\
    --output OUT --gpus 2

JOBS is a text file that may grow while this program runs. A line has a name,
the name of a folder in DATA, and flags for `bert_jax train`. A job whose name
is in OUT/results.jsonl is not run again. After the jobs before the line "end",
the program ends. While a job is scored on BLiMP, the next job trains.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def read_jobs(path: str) -> list[list[str]]:
  """Returns the lines of a file of jobs, split at spaces."""
  with open(path, encoding="utf-8") as f:
    return [line.split() for line in f if line.strip()]


def run_verb(
  verb: str, log: str, gpus: str, share: float, arguments: list[str]
) -> int:
  """Runs a verb of bert_jax in a child process.

  Args:
    verb: the name of the verb.
    log: the file to which the process appends its output.
    gpus: the numbers of the GPUs to use, such as "0" or "0,1".
    share: the share of each GPU's memory to reserve, in (0, 1].
    arguments: the verb's flags.

  Returns:
    The exit status.
  """
  environment = dict(os.environ, CUDA_VISIBLE_DEVICES=gpus)
  environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(share)
  with open(log, "a", encoding="utf-8") as f:
    return subprocess.call(
      [sys.executable, "-m", "bert_jax", verb, *arguments],
      cwd=ROOT,
      env=environment,
      stdout=f,
      stderr=f,
    )


class Study:
  """Holds the state that the threads of all GPUs share."""

  def __init__(self, args: argparse.Namespace):
    """Reads the results of an earlier call, if there are any."""
    self.args = args
    self.lock = threading.Lock()
    self.started_names: set[str] = set()
    self.scorers: list[threading.Thread] = []
    self.path = os.path.join(args.output, "results.jsonl")
    if os.path.exists(self.path):
      with open(self.path, encoding="utf-8") as f:
        self.started_names = {json.loads(line)["name"] for line in f}

  def next_job(self) -> list[str] | None:
    """Returns the next job, or None at the line "end"; waits for new lines."""
    while True:
      with self.lock:
        for job in read_jobs(self.args.jobs):
          if job[0] == "end":
            return None
          if job[0] not in self.started_names:
            self.started_names.add(job[0])
            return job
      time.sleep(1)

  def write_row(self, row: dict) -> None:
    """Appends a row to the results and prints it."""
    with self.lock, open(self.path, "a", encoding="utf-8") as f:
      f.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)

  def score_on_blimp(self, row: dict, folder: str, gpu: int) -> None:
    """Adds BLiMP's accuracy to a job's row, and writes the row."""
    scores_path = folder + "/blimp.json"
    run_verb(
      "likelihood",
      folder + ".log",
      str(gpu),
      share=0.2,
      arguments=[
        f"--model={folder}",
        f"--blimp={self.args.blimp}",
        f"--output={scores_path}",
        "--dtype=bfloat16",
        "--batch-tokens=65536",
      ],
    )
    if os.path.exists(scores_path):
      with open(scores_path, encoding="utf-8") as f:
        blimp = json.load(f)["blimp"]
      row["blimp"] = blimp["accuracy"]
      accuracies = [
        phenomenon["accuracy"] for phenomenon in blimp["phenomena"].values()
      ]
      row["blimp_phenomena"] = sum(accuracies) / len(accuracies)
    self.write_row(row)

  def run_gpu(self, gpu: int) -> None:
    """Runs jobs on one GPU until no job is left."""
    while (job := self.next_job()) is not None:
      name, corpus, *flags = job
      folder = os.path.join(self.args.output, name)
      start_time = time.monotonic()
      status = run_verb(
        "train",
        folder + ".log",
        str(gpu),
        share=0.7,
        arguments=[
          f"--config={HERE}/config.py",
          f"--workdir={folder}",
          f"--config.data.path={self.args.data}/{corpus}",
          *flags,
        ],
      )
      row = {"name": name, "data": corpus, "flags": flags, "status": status}
      row["seconds"] = round(time.monotonic() - start_time, 1)
      row["curve"] = loss_curve(folder + "/metrics.jsonl")
      if status:
        self.write_row(row)
        continue
      scorer = threading.Thread(
        target=self.score_on_blimp, args=(row, folder, gpu)
      )
      scorer.start()
      self.scorers.append(scorer)


def loss_curve(path: str) -> list[list[float]]:
  """Returns [step, held-out masked-LM loss] of each evaluation."""
  if not os.path.exists(path):
    return []
  with open(path, encoding="utf-8") as f:
    rows = [json.loads(line) for line in f]
  return [
    [row["step"], round(row["mlm_loss"], 4)]
    for row in rows
    if row["split"] == "heldout"
  ]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--jobs", required=True, help="file of jobs")
  add("--data", required=True, help="folder of prepared folders")
  add("--blimp", required=True, help="folder or tar file")
  add("--output", required=True, help="folder of the runs")
  add("--gpus", type=int, default=1)
  args = parser.parse_args()
  os.makedirs(args.output, exist_ok=True)
  study = Study(args)
  threads = [
    threading.Thread(target=study.run_gpu, args=(gpu,))
    for gpu in range(args.gpus)
  ]
  for thread in threads:
    thread.start()
  for thread in threads + study.scorers:
    thread.join()


if __name__ == "__main__":
  main()
