"""Fills each [MASK] of a text with the pieces that a model finds likely.

model = weights.load.open_model(PATH, default_tower="generator")
(masks,) = fill_mask.fill(model, ["Paris is the [MASK] of France."])
masks[0]  # [("capital", 0.97), ...]
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bert_jax.devices import sharding
from bert_jax.messages import UserError
from bert_jax.text.vocabulary import Vocabulary


class MaskedModel(Protocol):
  """The attributes of `weights.load.OpenedModel` that are read here."""

  @property
  def path(self) -> str:
    """The path or name that was opened."""

  @property
  def config(self) -> Mapping[str, Any]:
    """Family, task, sizes and label names."""

  @property
  def module(self) -> nn.Module:
    """The encoder with its head."""

  @property
  def params(self) -> Any:
    """The parameter tree."""

  @property
  def vocabulary(self) -> Vocabulary:
    """The vocabulary."""


def can_fill(config: Mapping[str, Any]) -> bool:
  """Returns True if a model's config names a head that predicts masks."""
  family, task = config["family"], config["task"]
  with_head = task == "pretraining" and family not in ("gpt", "electra")
  return with_head or task == "generator"


def log_probabilities(
  module: nn.Module,
  params: Any,
  inputs: Mapping[str, Array],
  positions: Int[Array, "b m"],
) -> Float[Array, "b m v"]:
  """Returns the log-probability of each row of the word table at each mask.

  Args:
    module: a model with a masked-language-model head.
    params: its parameters.
    inputs: `input_ids` and the other inputs of the encoder, [b, l] each.
    positions: the masked positions. Rows with fewer masks are filled up with
      any position.
  """
  batch = {**inputs, "mlm_positions": positions}
  batch["cls_positions"] = jnp.zeros_like(positions[:, :1])
  outputs: Any = module.apply({"params": params}, batch)
  return jax.nn.log_softmax(outputs["mlm_logits"], axis=-1)


_log_probabilities = functools.partial(sharding.jit, static_argnums=0)(
  log_probabilities
)


def encode(model: MaskedModel, texts: Sequence[str]) -> dict[str, np.ndarray]:
  """Returns a batch of `[CLS] text [SEP]` rows with their masked positions.

  Raises:
    UserError: the tokenizer has no mask, [CLS] or [SEP]; or a text has no mask,
      or is too long.
  """
  special = model.vocabulary.special
  if special.mask is None:
    raise UserError(f"{model.path}: its tokenizer has no mask token.")
  if special.cls is None or special.sep is None:
    raise UserError(f"{model.path}: its tokenizer has no [CLS] and [SEP].")
  longest = model.module.encoder.max_length
  rows, positions = [], []
  for text in texts:
    if not text.isascii() and text.encode("utf-8", "replace").decode() != text:
      raise UserError(f"{text!r} is not UTF-8.")
    ids = model.vocabulary.encode_special(text)
    rows.append([special.cls, *ids, special.sep])
    masked = [i for i, token in enumerate(rows[-1]) if token == special.mask]
    if not masked:
      spelling = model.vocabulary.pieces[special.mask]
      raise UserError(f"{text!r} has no {spelling} to fill.")
    if len(rows[-1]) > longest:
      raise UserError(
        f"{text[:40]!r}... has {len(rows[-1])} tokens with [CLS] and [SEP]; the"
        f" model takes {longest}. Shorten it."
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
  model: MaskedModel, texts: Sequence[str], top: int = 5
) -> list[list[list[tuple[str, float]]]]:
  """Returns for each text and each [MASK] the `top` (piece, probability).

  Args:
    model: a masked language model, or ELECTRA's generator.
    texts: texts with at least one mask each, in the tokenizer's spelling.
    top: the number of pieces to return, the likeliest first.

  Raises:
    UserError: the model has no head for masks, its vocabulary does not fit, or
      a text cannot be encoded; see `encode`.
  """
  config = model.config
  if not can_fill(config):
    raise UserError(
      f"{model.path} is a model for {config['task']} of family"
      f" {config['family']}: it has no head that fills masks; name a masked"
      " language model."
    )
  pieces = model.vocabulary.pieces
  if len(pieces) > config["model"]["vocab_size"]:
    raise UserError(
      f"{model.path}: its vocabulary has {len(pieces)} pieces, the model"
      f" {config['model']['vocab_size']}; put the model's own tokenizer there."
    )
  if not 1 <= top <= len(pieces):
    raise UserError(f"top={top}: must be 1 to {len(pieces)}, all pieces.")
  batch = encode(model, texts)
  inputs = {key: batch[key] for key in ("input_ids", "sequence_ids")}
  log_p = _log_probabilities(
    model.module, model.params, inputs, batch["mlm_positions"]
  )
  # Rows of the word table beyond the pieces only pad it to a round number.
  top_log_p, top_ids = jax.lax.top_k(log_p[..., : len(pieces)], top)
  probabilities, ids = np.exp(np.asarray(top_log_p)), np.asarray(top_ids)

  def candidates(row: int, mask: int) -> list[tuple[str, float]]:
    pairs = zip(ids[row, mask], probabilities[row, mask], strict=True)
    return [(pieces[i], float(p)) for i, p in pairs]

  counts = batch["mlm_weights"].sum(-1).astype(int)
  return [[candidates(r, m) for m in range(n)] for r, n in enumerate(counts)]


def show(text: str, masks: list[list[tuple[str, float]]]) -> str:
  """Returns the candidates for one text's masks as lines."""
  lines = [text]
  for i, candidates in enumerate(masks):
    if len(masks) > 1:
      lines.append(f"  [MASK] {i + 1}")
    lines += [f"  {p:.4f}  {piece}" for piece, p in candidates]
  return "\n".join(lines)
