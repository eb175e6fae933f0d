r"""Rounds the weights of a trained model to few bits, for the package.

  python experiments/mini/pack.py --model RUN --text TEXT.jsonl.xz \\
    --output bert_jax/weights/shipped_models/mini

Each row of a matrix (its last axis) becomes whole numbers times one step. The
rounding error of a weight costs loss in proportion to its squared gradient, so
a row's step is `--step` divided by the root of the mean squared gradient of its
weights. For a given size of the compressed file, this division of the bits
costs the least loss (reverse water-filling, Cover and Thomas 2006, section
10.3.3; the gradients are taken in place of the curvature). The gradients are
those of the masked-LM loss on `--rows` rows of the training text, 8 rows at a
time.
"""

import argparse
import io
import json
import lzma
import pathlib
import zipfile
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import bert_jax
from bert_jax.messages import Progress
from bert_jax.use import fill_mask
from bert_jax.weights import model_folder, shipped

BATCH, LENGTH, MASKS_PER_ROW = 8, 128, 18
# The step of a row is at most this share of the root mean square of the row:
# gradients say nothing about rows that the sampled text does not use.
LARGEST_STEP = 0.45
# The time stamp of the file's entries. It is fixed, so that the same weights
# give the same file.
ENTRY_TIME = (1980, 1, 1, 0, 0, 0)


def masked_batches(
  model: bert_jax.Model, path: str, rows: int
) -> Iterator[dict[str, np.ndarray]]:
  """Yields batches; each row has `MASKS_PER_ROW` masked tokens of a text."""
  tokenizer = model.tokenizer
  special_tokens = ("[CLS]", "[SEP]", "[MASK]")
  cls_id, sep_id, mask_id = map(tokenizer.token_to_id, special_tokens)
  rng = np.random.default_rng(0)
  tokens: list[int] = []
  batch: list[list[int]] = []
  with lzma.open(path, "rt", encoding="utf-8") as f:
    for line in f:
      text = json.loads(line)["text"]
      tokens += tokenizer.encode(text, add_special_tokens=False).ids
      while len(tokens) >= LENGTH - 2 and rows > 0:
        batch.append([cls_id, *tokens[: LENGTH - 2], sep_id])
        del tokens[: LENGTH - 2]
        if len(batch) < BATCH:
          continue
        ids = np.array(batch, np.int32)
        places = np.arange(1, LENGTH - 1)
        positions = np.stack(
          [rng.choice(places, MASKS_PER_ROW, replace=False) for _ in batch]
        )
        targets = np.take_along_axis(ids, positions, 1)
        np.put_along_axis(ids, positions, mask_id, 1)
        yield {"input_ids": ids, "positions": positions, "targets": targets}
        rows -= BATCH
        batch.clear()


def squared_gradients(
  model: bert_jax.Model, path: str, rows: int
) -> dict[str, np.ndarray]:
  """Returns path -> the mean over batches of each weight's squared gradient."""

  @jax.jit
  def add(sums, params, batch):
    def loss(params):
      ids = batch["input_ids"]
      inputs = {"input_ids": ids, "sequence_ids": jnp.ones_like(ids)}
      log_p = fill_mask.log_probabilities(
        model.module, params, inputs, batch["positions"]
      )
      return -jnp.take_along_axis(log_p, batch["targets"][..., None], 2).mean()

    gradients = jax.grad(loss)(params)
    return jax.tree.map(lambda s, g: s + g**2, sums, gradients)

  sums = jax.tree.map(jnp.zeros_like, model.params)
  num_batches = 0
  with Progress("taking gradients", rows) as progress:
    for batch in masked_batches(model, path, rows):
      sums = add(sums, model.params, batch)
      num_batches += 1
      progress.report(num_batches * BATCH)
  return model_folder.flatten(jax.tree.map(lambda s: s / num_batches, sums))


def encode(
  arrays: dict[str, np.ndarray], squares: dict[str, np.ndarray], step: float
) -> dict[str, np.ndarray]:
  """Rounds matrices to whole numbers times a step for each row.

  Args:
    arrays: path -> float32 array.
    squares: path -> the mean squared gradient of each number of the array.
    step: the step of a row whose mean squared gradient is 1.

  Returns:
    The arrays that `shipped` reads.
  """
  stored: dict[str, np.ndarray] = {}
  for path, array in arrays.items():
    if not path.endswith(("/kernel", "/embedding")):
      stored[path] = array.astype(np.float16)
      continue
    over_row = {"axis": -1, "keepdims": True}
    root_mean_square = np.sqrt((array**2).mean(**over_row))
    best_steps = step / np.sqrt(squares[path].mean(**over_row) + 1e-30)
    # A code is an int8, so the largest weight must be at most 127 steps.
    least_steps = np.abs(array).max(**over_row) / 127
    steps = np.maximum(
      np.minimum(best_steps, LARGEST_STEP * root_mean_square), least_steps
    ).astype(np.float16)
    divisors = np.where(steps > 0, steps, 1).astype(np.float32)
    codes = np.clip(np.rint(array / divisors), -127, 127).astype(np.int8)
    stored[path + shipped.CODES_ENDING] = codes
    stored[path + shipped.STEPS_ENDING] = steps
  return stored


def write(path: pathlib.Path, stored: dict[str, np.ndarray]) -> None:
  """Writes an .npz file that LZMA compresses; `numpy.load` reads it."""
  with zipfile.ZipFile(path, "w") as archive:
    for name, array in stored.items():
      content = io.BytesIO()
      np.lib.format.write_array(content, array, allow_pickle=False)
      entry = zipfile.ZipInfo(name + ".npy", ENTRY_TIME)
      entry.compress_type = zipfile.ZIP_LZMA
      archive.writestr(entry, content.getvalue())


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--model", required=True, help="the run, or a folder of its model")
  add("--text", required=True, help="a .jsonl.xz file of the training text")
  add("--output", required=True, help="the folder of the shipped model")
  add("--rows", type=int, default=2048, help="rows whose gradients are taken")
  add("--step", type=float, default=3e-5, help="larger makes a smaller file")
  args = parser.parse_args()
  model = bert_jax.load(args.model)
  squares = squared_gradients(model, args.text, args.rows)
  folder = pathlib.Path(args.output)
  folder.mkdir(parents=True, exist_ok=True)
  stored = encode(model_folder.flatten(model.params), squares, args.step)
  write(folder / shipped.PARAMETERS_FILE, stored)
  config = model_folder.without_keys(
    model.config, "format_version", model_folder.DIGESTS_KEY, "checksum"
  )
  (folder / model_folder.CONFIG_FILE).write_text(json.dumps(config, indent=2))
  for name, content in model_folder.read_tokenizer_files(args.model).items():
    (folder / name).write_bytes(content)
  size = sum(file.stat().st_size for file in folder.iterdir())
  print(f"{folder}: {size:,} bytes")


if __name__ == "__main__":
  main()
