"""Measures the parameters and the speed of a teacher and of its students.

  python benchmarks/teacher_student.py
  python benchmarks/teacher_student.py --models runs/teacher,runs/student

The models run one after the other in this process. Each encoder runs under
`jax.jit`, with weights that were cast once. A batch has `--tokens` tokens,
padding included, and its rows are at least half full. The output is the mean
over each row's tokens without padding, as in benchmarks/inference.py. A model
has a published size and random weights, or comes from a folder that
`open_model` opens. The program prints one JSON object; `speedup` is the speed
divided by the speed of the first model. Parameters are counted without heads.
A length is left out for a model that cannot read rows of this length.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import inference
import jax
import jax.numpy as jnp
import side_by_side

from bert_jax import models
from bert_jax.devices import sharding
from bert_jax.weights.load import open_model

PUBLISHED_SIZES = {
  "bert-base": ("bert", "base"),
  "distilbert-base": ("distilbert", "base"),
  "tinybert-6x768": ("tinybert", "6x768"),
  "tinybert-4x312": ("tinybert", "4x312"),
}


def open_encoder(name: str, dtype: str) -> tuple[nn.Module, Any]:
  """Returns an encoder and its parameters.

  The parameters are random if the name is in `PUBLISHED_SIZES`. Otherwise the
  name is a folder, from which the parameters are read.
  """
  if Path(name).is_dir():
    opened_model = open_model(name, dtype=dtype)
    return opened_model.module.encoder, opened_model.params["encoder"]
  if name not in PUBLISHED_SIZES:
    raise ValueError(
      f"{name} is neither a folder nor one of {', '.join(PUBLISHED_SIZES)}."
    )
  family, variant = PUBLISHED_SIZES[name]
  encoder = models.family(family).build(variant, dtype=dtype)
  ids = jnp.zeros((1, 8), jnp.int32)
  boxed_variables = jax.jit(encoder.init)(jax.random.key(0), ids)
  return encoder, nn.unbox(boxed_variables)["params"]


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
  """Returns the part of the JSON object that is about one model."""
  encoder, params = open_encoder(name, args.dtype)
  num_parameters = sum(x.size for x in jax.tree.leaves(params))
  params = jax.tree.map(lambda x: x.astype(args.dtype), params)

  @sharding.jit
  def sentence_vectors(params, ids, mask):
    hidden, _ = encoder.apply(
      {"params": params}, ids, segment_ids=None, sequence_ids=mask
    )
    weights = mask[..., None].astype(jnp.float32)
    return (hidden * weights).sum(1) / weights.sum(1)

  speeds, ms_by_length = {}, {}
  lengths = [length for length in args.lengths if length <= encoder.max_length]
  if not lengths:
    raise ValueError(
      f"{name} takes rows of at most {encoder.max_length} tokens; give a"
      " shorter length in --lengths."
    )
  for length in lengths:
    arrays = inference.make_batch(length, args.tokens, encoder.vocab_size)
    ids, mask = map(jnp.asarray, arrays)

    def run(count, ids=ids, mask=mask):
      for _ in range(count):
        vectors = sentence_vectors(params, ids, mask)
      vectors.block_until_ready()

    ms, ms_of_windows = side_by_side.time_calls(run, args.steps, args.windows)
    speeds[str(length)] = round(len(ids) / ms * 1e3, 1)
    ms_by_length[str(length)] = ms_of_windows
  return dict(
    parameters=num_parameters,
    layers=encoder.num_layers,
    width=encoder.hidden,
    sentences_per_second=speeds,
    window_ms=ms_by_length,
  )


def parse_numbers(text: str) -> list[int]:
  return [int(word) for word in text.split(",")]


def make_table(
  model_names: list[str], args: argparse.Namespace
) -> dict[str, Any]:
  """Returns {name: row}; a row has ratios to the first model's row."""
  rows = {name: measure(name, args) for name in model_names}
  first_row = rows[model_names[0]]
  for row in rows.values():
    row["of_parameters"] = round(row["parameters"] / first_row["parameters"], 3)
    row["speedup"] = {
      length: round(speed / first_row["sentences_per_second"][length], 2)
      for length, speed in row["sentences_per_second"].items()
      if length in first_row["sentences_per_second"]
    }
  return rows


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--models", default=",".join(PUBLISHED_SIZES), help="the teacher first")
  add(
    "--lengths",
    type=parse_numbers,
    default=(32, 128, 512),
    help="lengths of rows, with commas between",
  )
  add(
    "--tokens", type=int, default=32768, help="tokens in a batch, padding too"
  )
  add("--dtype", default="bfloat16")
  add("--steps", type=int, default=20, help="batches in a time measurement")
  add("--windows", type=int, default=5, help="time measurements")
  args = parser.parse_args()
  try:
    rows = make_table(args.models.split(","), args)
  except ValueError as e:
    sys.exit(f"error: {e}")
  device = jax.devices()[0].device_kind
  report = dict(work=vars(args), device=device, jax=jax.__version__)
  print(json.dumps(report | {"models": rows}, indent=1))


if __name__ == "__main__":
  main()
