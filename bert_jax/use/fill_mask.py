"""Fills [MASK] with the model of a run."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import files, models
from bert_jax.devices import sharding
from bert_jax.models import heads
from bert_jax.text import open_vocabulary as vocabulary_files
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.weights import checkpoint


class Filler(NamedTuple):
  """A run's masked language model with its tokenizer."""

  module: nn.Module
  params: Any
  tokenizer: Vocabulary
  max_length: int


def load(workdir: str) -> Filler:
  """Opens the masked language model of a run.

  Args:
    workdir: the run's folder; RUN@best or RUN@STEP for a checkpoint of it.

  Raises:
    ValueError: no run, no such checkpoint, or another objective.
  """
  workdir, which = checkpoint.split_path(workdir)
  with checkpoint.Checkpointer.of_run(workdir) as saver:
    step = saver.find_step(which) if which else None
    config = files.read_object(os.path.join(workdir, "config.json"))
    try:
      objective, model = config["objective"], dict(config["model"])
      vocab_size = model["vocab_size"]
    except (KeyError, TypeError) as e:
      raise ValueError(f"{workdir}: its .json files are damaged ({e}).") from e
    name = objective["name"]
    if name not in ("mlm", "distil"):
      raise ValueError(f"{workdir}: its objective is {name!r}.")
    family = models.family(model.pop("family"))
    encoder = family.build(**model)
    pairs = name == "mlm" and objective["pairs"]
    module = family.ForPreTraining(encoder, pairs=pairs)
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    batch = dict(input_ids=ids, mlm_positions=ids, cls_positions=ids)
    shapes = jax.eval_shape(module.init, jax.random.key(0), batch)
    wanted = nn.unbox(shapes)["params"]
    if objective.get("span_boundary"):
      wanted |= {"span": heads.span_shapes(encoder)}
    params, _ = saver.restore_params(step, wanted)
  settings = os.path.join(workdir, vocabulary_files.SETTINGS)
  if not files.read_object(settings):
    raise ValueError(f"{settings} is damaged: it says nothing.")
  tokenizer = vocabulary_files.load(workdir)
  if tokenizer.vocab_size != vocab_size:
    raise ValueError(
      f"{workdir}: its vocabulary has {tokenizer.vocab_size} pieces, the model"
      f" {vocab_size}; it is not the vocabulary of this run."
    )
  return Filler(module, params, tokenizer, encoder.max_length)


def encode(filler: Filler, texts: Sequence[str]) -> dict[str, np.ndarray]:
  """Returns a batch of `[CLS] text [SEP]` rows with their masked positions.

  Raises:
    ValueError: a text without the tokenizer's mask, or one that is too long.
  """
  special = filler.tokenizer.special
  rows, positions = [], []
  for text in texts:
    if not text.isascii() and text.encode("utf-8", "replace").decode() != text:
      raise ValueError(f"{text!r} is not UTF-8.")
    ids = filler.tokenizer.encode_special(text)
    rows.append([special.cls, *ids, special.sep])
    masked = [i for i, token in enumerate(rows[-1]) if token == special.mask]
    if not masked:
      spelling = filler.tokenizer.pieces[special.mask]
      raise ValueError(f"{text!r} has no {spelling} to fill.")
    if len(rows[-1]) > filler.max_length:
      raise ValueError(
        f"{text[:40]!r}... has {len(rows[-1])} tokens with [CLS] and [SEP]; the"
        f" model takes {filler.max_length}. Shorten it."
      )
    positions.append(masked)
  shape = len(rows), max(map(len, rows))
  masks = len(rows), max(map(len, positions))
  batch = {
    "input_ids": np.full(shape, special.pad, np.int32),
    "sequence_ids": np.zeros(shape, np.int32),
    "mlm_positions": np.zeros(masks, np.int32),
    "mlm_weights": np.zeros(masks, np.float32),
    "cls_positions": np.zeros((len(rows), 1), np.int32),
  }
  for i, (row, masked) in enumerate(zip(rows, positions, strict=True)):
    batch["input_ids"][i, : len(row)] = row
    batch["sequence_ids"][i, : len(row)] = 1
    batch["mlm_positions"][i, : len(masked)] = masked
    batch["mlm_weights"][i, : len(masked)] = 1.0
  return batch


def fill(
  filler: Filler, texts: Sequence[str], top: int = 5
) -> list[list[list[tuple[str, float]]]]:
  """Returns for each text and each [MASK] the `top` (piece, probability)."""
  batch = encode(filler, texts)
  out = sharding.jit(filler.module.apply)({"params": filler.params}, batch)
  log_p = jax.nn.log_softmax(out["mlm_logits"], axis=-1)
  values, ids = jax.lax.top_k(log_p, top)
  values, ids = np.exp(np.asarray(values)), np.asarray(ids)
  pieces = filler.tokenizer.pieces

  def candidates(row, mask):
    found = zip(ids[row, mask], values[row, mask], strict=True)
    return [(pieces[i], float(p)) for i, p in found]

  counts = batch["mlm_weights"].sum(-1).astype(int)
  return [[candidates(r, m) for m in range(n)] for r, n in enumerate(counts)]


def show(text: str, masks: list[list[tuple[str, float]]]) -> str:
  """The fillings of one text, a line a candidate."""
  lines = [text]
  for i, candidates in enumerate(masks):
    if len(masks) > 1:
      lines.append(f"  [MASK] {i + 1}")
    lines += [f"  {p:.4f}  {piece}" for piece, p in candidates]
  return "\n".join(lines)
