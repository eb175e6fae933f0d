"""Compares an exported model with the live model: outputs and speed.

  python benchmarks/exported.py --model DIR [--dtype bfloat16]

Both models run the same batches of random ids on the same device, in turns. The
exported program is read from its file. For each length, one JSON object is
printed: the largest difference of the logits, the median rows per second and
their ratio (exported / live), and the seconds until the first batch is done.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from bert_jax.use import export, predict
from bert_jax.use.predict import Predictor
from bert_jax.weights import load as loading


def make_batch(
  rows: int, length: int, vocab_size: int
) -> dict[str, np.ndarray]:
  """Returns a batch of random ids without padding."""
  rng = np.random.default_rng(length)
  ones = np.ones((rows, length), np.int32)
  ids = rng.integers(0, vocab_size, (rows, length)).astype(np.int32)
  return dict(input_ids=ids, segment_ids=ones * 0, sequence_ids=ones)


def time_steps(predictor: Predictor, batch: dict, steps: int) -> float:
  """Returns the seconds that `steps` steps take."""
  start = time.perf_counter()
  for _ in range(steps):
    logits = predictor.step(predictor.params, batch)
  jax.block_until_ready(logits)
  return time.perf_counter() - start


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--model", required=True, help="a fine-tuned model")
  add("--rows", type=int, default=32)
  add("--lengths", default="32,128")
  add("--dtype", default="float32")
  add("--steps", type=int, default=5, help="steps in a time measurement")
  add("--windows", type=int, default=7, help="time measurements of each model")
  args = parser.parse_args()
  lengths = [int(length) for length in args.lengths.split(",")]
  model = loading.open_model(args.model)
  with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder, "model"))
    export.save(path, model, lengths, dtype=args.dtype)
    file_bytes = Path(path).stat().st_size
    start = time.perf_counter()
    exported_predictor = export.load(path)
    open_seconds = time.perf_counter() - start
  vocab_size = model.config["model"]["vocab_size"]
  live_predictor = predict.open_predictor(
    args.model, args.rows, dtype=args.dtype
  )
  for length in lengths:
    batch = make_batch(args.rows, length, vocab_size)
    first_seconds, outputs, seconds = {}, {}, {"live": [], "exported": []}
    predictors = {"live": live_predictor, "exported": exported_predictor}
    for name, predictor in predictors.items():
      start = time.perf_counter()
      outputs[name] = np.asarray(predictor.step(predictor.params, batch))
      first_seconds[name] = round(time.perf_counter() - start, 2)
    for _ in range(args.windows):
      for name, predictor in predictors.items():
        seconds[name].append(time_steps(predictor, batch, args.steps))
    rates = {
      name: args.rows * args.steps / statistics.median(measurements)
      for name, measurements in seconds.items()
    }
    difference = np.abs(outputs["live"] - outputs["exported"]).max()
    report = dict(
      device=jax.devices()[0].device_kind,
      jax=jax.__version__,
      length=length,
      rows=args.rows,
      difference=float(difference),
      rows_per_second={name: round(rate, 1) for name, rate in rates.items()},
      ratio=round(rates["exported"] / rates["live"], 3),
      seconds_to_open=round(open_seconds, 2),
      seconds_of_first_batch=first_seconds,
      file_bytes=file_bytes,
    )
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
  main()
