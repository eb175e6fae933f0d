"""Scores a model on a split of a task, and writes the official files.

python -m bert_jax.cli.evaluate_task --model PATH --data TASK_FOLDER --split validation \\
  --output FOLDER
"""

import argparse
import os
import signal
import sys
from typing import Any

from absl import logging

from bert_jax.cli import flags_flags as flags
from bert_jax.tasks import batches as data
from bert_jax.tasks import encoded_rows as rows
from bert_jax.tasks import metrics
from bert_jax.tasks import server_files as formats
from bert_jax.training import evaluate_task as scoring
from bert_jax.use import predict as predicting


def _parser() -> flags.Parser:
  parser = flags.Parser(
    prog="python -m bert_jax.cli.evaluate_task",
    description="Scores a model on a split of a task by the official metrics,"
    " and writes its predictions in the official format.",
  )
  parser.add_argument(
    "--model",
    required=True,
    help="a run's folder (or RUN@best, RUN@STEP), a converted one, one of"
    " transformers",
  )
  parser.add_argument("--data", required=True, help="the task's folder")
  parser.add_argument("--split", default="validation")
  parser.add_argument("--output", help="folder for the predictions")
  parser.add_argument(
    "--batch_size", type=int, default=32, help="rows at a time"
  )
  parser.add_argument(
    "--best", action="store_true", help="of a run the best step, not the last"
  )
  parser.add_argument(
    "--official_threshold",
    action="store_true",
    help="search the best threshold of SQuAD 2.0 as evaluate-v2.0.py does",
  )
  parser.add_argument(
    "--dtype", default="float32", choices=("float32", "bfloat16")
  )
  flags.add_family_flag(parser)
  return parser


def run(args: argparse.Namespace) -> None:
  """Does what the flags ask for.

  Raises:
    ValueError: with one sentence.
    OSError: the predictions cannot be written.
  """
  if args.batch_size < 1:
    raise ValueError("--batch_size must be at least 1.")
  split = data.open_split(data.open_part(args.data), args.split)
  if args.official_threshold and "squad2" not in split.task.metrics:
    raise ValueError(
      f"--official_threshold: {args.data} is task {split.task.name}, not one"
      " whose questions may have no answer."
    )
  longest = int(rows.lengths(split.rows).max())
  predictor = predicting.open_model(
    args.model,
    args.batch_size,
    length=longest,
    best=args.best,
    dtype=args.dtype,
    family=args.family,
  )
  predicting.label_order(predictor, split, args.data)
  if any(metrics.gold(split.task, e) is not None for e in split.examples):
    metrics.check_packages(split.task)
  if predictor.length < longest:
    raise ValueError(
      f"{args.data} has rows of {longest} tokens, the model takes"
      f" {predictor.length}; prepare it with --length={predictor.length}."
    )
  if args.output:
    # Before the model runs, which may take long.
    os.makedirs(args.output, exist_ok=True)
  predictions = predicting.predict_split(predictor, split, args.data)
  task = split.task
  if args.official_threshold:
    task = task._replace(metrics=("squad2_official",))
  scores = metrics.evaluate(task, predictions, split.examples)
  scoring.say_doubts(split, predictions)
  if args.output:
    for path in formats.write(
      args.output, split.task, predictions, split.examples, split.name
    ):
      print(path)
  for name, value in scores.items():
    # A threshold that is rounded would be another one.
    digits = ".17g" if name.endswith("_thresh") else ".6g"
    print(f"{name}: {value:{digits}}")


def _stop(number: int, frame: Any) -> None:
  raise KeyboardInterrupt


def main() -> None:
  args = _parser().parse_args()
  logging.set_verbosity(logging.ERROR)
  signal.signal(signal.SIGTERM, _stop)
  try:
    run(args)
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except KeyboardInterrupt:
    print("stopped.", file=sys.stderr, flush=True)
    # The threads of jax may be at work, which an ordinary exit dies of.
    os._exit(1)


if __name__ == "__main__":
  main()
