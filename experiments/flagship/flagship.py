r"""Trains the flagship, scores it on BLiMP and fine-tunes it on five tasks.

  python experiments/flagship/flagship.py --data FOLDER --tasks TASKS \\
    --blimp TAR --output OUT --gpus 2

FOLDER is the prepared text. TASKS is a folder with the prepared tasks cola,
rte, sst2, stsb and wnut17. Interrupted training continues from its last
checkpoint. Scores that OUT already has are not computed again.
"""

import argparse
import itertools
import json
import os
import queue
import sys
import threading
import time

from study import HERE, run_verb

# Task -> (number of epochs, peak learning rate). The task's config has all
# other settings.
TASKS = {
  "sst2": (3, 3e-5),
  "wnut17": (8, 2e-5),
  "stsb": (6, 5e-5),
  "cola": (6, 2e-5),
  "rte": (10, 5e-5),
}
CONFIGS = {task: f"glue:{task}" for task in TASKS} | {"wnut17": "ner:wnut17"}


def train_flagship(args: argparse.Namespace) -> str:
  """Starts or continues training; returns the run's folder."""
  folder = os.path.join(args.output, "run")
  start_time = time.monotonic()
  status = run_verb(
    "train",
    folder + ".log",
    ",".join(str(gpu) for gpu in range(args.gpus)),
    share=0.8,
    arguments=[
      f"--config={HERE}/config.py:flagship",
      f"--workdir={folder}",
      f"--config.data.path={args.data}",
      *args.flags,
    ],
  )
  print(f"training: {time.monotonic() - start_time:.0f} s", flush=True)
  if status:
    sys.exit(f"training failed; see {folder}.log.")
  return folder


def score_on_blimp(args: argparse.Namespace, folder: str, gpu: int) -> None:
  """Scores the run on BLiMP, and writes a score for each file of BLiMP."""
  path = os.path.join(args.output, "blimp.json")
  if os.path.exists(path):
    return
  status = run_verb(
    "likelihood",
    os.path.join(args.output, "blimp.log"),
    str(gpu),
    share=0.2,
    arguments=[
      f"--model={folder}",
      f"--blimp={args.blimp}",
      f"--output={path}",
      "--dtype=bfloat16",
      "--batch-tokens=65536",
    ],
  )
  if status:
    print(f"BLiMP failed; see {args.output}/blimp.log.", flush=True)


def fine_tune(
  args: argparse.Namespace, folder: str, gpu: int, task: str, seed: int
) -> None:
  """Fine-tunes on a task with one seed; writes the development scores."""
  workdir = os.path.join(args.output, f"{task}-{seed}")
  if os.path.exists(workdir + ".json"):
    return
  epochs, peak = TASKS[task]
  start_time = time.monotonic()
  status = run_verb(
    "train",
    workdir + ".log",
    str(gpu),
    share=0.15,
    arguments=[
      f"--config={CONFIGS[task]}",
      f"--workdir={workdir}",
      f"--config.init_from={folder}",
      f"--config.data.path={args.tasks}/{task}",
      f"--config.data.epochs={epochs}.0",
      f"--config.schedule.peak={peak}",
      f"--config.seed={seed}",
      "--config.data.buckets=(32,64,128)",
      "--config.checkpoint.keep_best=0",
      *args.fine_tune_flags,
    ],
  )
  rows = []
  if os.path.exists(workdir + "/metrics.jsonl"):
    with open(workdir + "/metrics.jsonl", encoding="utf-8") as f:
      rows = [json.loads(line) for line in f]
  report = {
    "task": task,
    "seed": seed,
    "status": status,
    "seconds": round(time.monotonic() - start_time, 1),
    "scores": [row for row in rows if row["split"] != "train"],
  }
  with open(workdir + ".json", "w", encoding="utf-8") as f:
    json.dump(report, f)
  print(
    task, seed, status, report["seconds"], report["scores"][-1:], flush=True
  )


def score_and_fine_tune(args: argparse.Namespace, folder: str) -> None:
  """Runs BLiMP and all fine-tuning, with several jobs at once on each GPU."""
  jobs: queue.SimpleQueue = queue.SimpleQueue()
  jobs.put((score_on_blimp, ()))
  for seed, task in itertools.product(range(args.seeds), TASKS):
    jobs.put((fine_tune, (task, seed)))

  def work(gpu: int) -> None:
    while True:
      try:
        job, arguments = jobs.get_nowait()
      except queue.Empty:
        return
      job(args, folder, gpu, *arguments)

  workers = [
    threading.Thread(target=work, args=(gpu,))
    for _ in range(args.jobs)
    for gpu in range(args.gpus)
  ]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join()


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--data", required=True, help="prepared folder")
  add("--tasks", required=True, help="folder of prepared tasks")
  add("--blimp", required=True, help="folder or tar file")
  add("--output", required=True, help="folder of the results")
  add("--gpus", type=int, default=1)
  add("--jobs", type=int, default=3, help="fine-tuning runs at once on a GPU")
  add("--seeds", type=int, default=3, help="fine-tuning seeds of each task")
  add(
    "--fine-tune-flags",
    type=str.split,
    default=["--config.model.unroll=12"],
    help="further flags for fine-tuning, in one string",
  )
  add("flags", nargs="*", help="further flags for training, after --")
  args = parser.parse_args()
  os.makedirs(args.output, exist_ok=True)
  score_and_fine_tune(args, train_flagship(args))


if __name__ == "__main__":
  main()
