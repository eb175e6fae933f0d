"""Fills each [MASK] of a text with the pieces that a model finds likely.

For example:

model = weights.load.open_model(PATH, default_tower="generator")
(masks,) = fill_mask.fill(model, ["Paris is the [MASK] of France."])
masks[0]  # [("capital", 0.97), ...]
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bert_jax.devices import sharding
from bert_jax.messages import UserError, by_caller
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.use import row_batches


class MaskFillingModel(Protocol):
  """Lists the attributes of `weights.load.OpenedModel` that are read here."""

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
  has_mlm_head = task == "pretraining" and family not in ("gpt", "electra")
  return has_mlm_head or task == "generator"


def log_probabilities(
  module: nn.Module,
  params: Any,
  inputs: Mapping[str, Array],
  positions: Int[Array, "b m"],
) -> Float[Array, "b m v"]:
  """Returns the log-probability of each entry of the word table at each mask.

  Args:
    module: a model with a masked-language-model head.
    params: the model's parameters.
    inputs: `input_ids` and the other inputs of the encoder, each [b, l].
    positions: the masked positions. A row with fewer than m masks is filled up
      with any positions.
  """
  batch = {**inputs, "mlm_positions": positions}
  batch["cls_positions"] = jnp.zeros_like(positions[:, :1])
  outputs: Any = module.apply({"params": params}, batch)
  return jax.nn.log_softmax(outputs["mlm_logits"], axis=-1)


@functools.partial(sharding.jit, static_argnums=(0, 1, 2))
def _top_pieces(
  module: nn.Module,
  top_k: int,
  num_pieces: int,
  params: Any,
  inputs: Mapping[str, Array],
  positions: Int[Array, "b m"],
) -> tuple[Float[Array, "b m k"], Int[Array, "b m k"]]:
  """Returns the log-probabilities and ids of the `top_k` likeliest pieces."""
  log_p = log_probabilities(module, params, inputs, positions)
  # The word table may have more entries than there are pieces. The further
  # entries only round up the size of the table.
  return jax.lax.top_k(log_p[..., :num_pieces], top_k)


def encode(
  model: MaskFillingModel, texts: Sequence[str]
) -> tuple[list[np.ndarray], list[list[int]]]:
  """Returns rows `[CLS] text [SEP]`, int32 [T], and their masked positions.

  Raises:
    UserError: the tokenizer lacks the mask, [CLS] or [SEP], or a text has no
      mask or is too long.
  """
  special = model.vocabulary.special
  if special.mask is None:
    raise UserError(f"{model.path}: its tokenizer has no mask token.")
  if special.cls is None or special.sep is None:
    raise UserError(f"{model.path}: its tokenizer has no [CLS] and [SEP].")
  max_length = model.module.encoder.max_length
  rows, positions = [], []
  for text in texts:
    if not text.isascii() and text.encode("utf-8", "replace").decode() != text:
      raise UserError(f"{text!r} cannot be written as UTF-8; correct the text.")
    ids = [special.cls, *model.vocabulary.encode_special(text), special.sep]
    masked_positions = [
      position
      for position, token_id in enumerate(ids)
      if token_id == special.mask
    ]
    if not masked_positions:
      spelling = model.vocabulary.pieces[special.mask]
      raise UserError(f"{text!r} has no {spelling} to fill.")
    if len(ids) > max_length:
      raise UserError(
        f"{text[:40]!r}... has {len(ids)} tokens with [CLS] and [SEP]; the"
        f" model takes {max_length}. Shorten the text."
      )
    rows.append(np.array(ids, np.int32))
    positions.append(masked_positions)
  return rows, positions


# The likeliest pieces for one mask, each with its probability.
Candidates = list[tuple[str, float]]


def fill(
  model: MaskFillingModel,
  texts: Sequence[str],
  top_k: int = 5,
  batch_tokens: int = 8192,
  report: Callable[[int], None] | None = None,
) -> list[list[Candidates]]:
  """Returns the `top_k` likeliest pieces for each [MASK] of each text.

  Args:
    model: a masked language model, or ELECTRA's generator.
    texts: texts with at least one mask each, in the tokenizer's spelling.
    top_k: the number of pieces to return, the likeliest first.
    batch_tokens: the largest number of tokens in a batch, with padding.
    report: called after each batch with the number of texts done so far.

  Raises:
    UserError: the model has no head for masks, its vocabulary does not fit, or
      a text cannot be encoded; see `encode`.
  """
  config = model.config
  if not can_fill(config):
    raise UserError(
      f"{model.path} is a model for {config['task']} of family"
      f" {config['family']}: it has no head that fills masks; choose a masked"
      " language model."
    )
  pieces = model.vocabulary.pieces
  if len(pieces) > config["model"]["vocab_size"]:
    raise UserError(
      f"{model.path}: its vocabulary has {len(pieces)} pieces, but the model"
      f" has {config['model']['vocab_size']}; put the model's own"
      " tokenizer into its folder."
    )
  if not 1 <= top_k <= len(pieces):
    raise UserError(
      f"{by_caller('--top', 'top_k')}={top_k}: {top_k} candidates for a mask"
      f" are not possible; ask for 1 to {len(pieces)}, which is all pieces."
    )
  rows, positions = encode(model, texts)
  masks_of_texts: list[list[Candidates]] = [[] for _ in texts]
  # Every row gets logits for `num_masks` masks, so batches are smaller if a
  # text has many masks. A power of two lets different texts share compiled
  # programs.
  max_masks = max(map(len, positions), default=1)
  num_masks = 1 << (max_masks - 1).bit_length()
  max_length = model.module.encoder.max_length
  num_done = 0
  for batch in row_batches.batches(
    rows, max_length, max(batch_tokens // num_masks, 1)
  ):
    num_rows = len(batch.inputs["sequence_ids"])
    padded_positions = np.zeros((num_rows, num_masks), np.int32)
    for i, text_index in enumerate(batch.row_indices):
      row_positions = positions[text_index]
      padded_positions[i, : len(row_positions)] = row_positions
    log_p, ids = map(
      np.asarray,
      _top_pieces(
        model.module,
        top_k,
        len(pieces),
        model.params,
        batch.inputs,
        padded_positions,
      ),
    )
    for i, text_index in enumerate(batch.row_indices):
      for mask_index in range(len(positions[text_index])):
        id_probability_pairs = zip(
          ids[i, mask_index], np.exp(log_p[i, mask_index]), strict=True
        )
        masks_of_texts[text_index].append(
          [
            (pieces[token_id], float(probability))
            for token_id, probability in id_probability_pairs
          ]
        )
    num_done += len(batch.row_indices)
    if report is not None:
      report(num_done)
  return masks_of_texts


def make_results(
  model: MaskFillingModel,
  texts: Sequence[str],
  masks_of_texts: Sequence[Sequence[Candidates]],
) -> list[dict[str, Any]]:
  """Turns the candidates that `fill` returns into dicts for users.

  Args:
    model: the model that filled the masks.
    texts: the texts.
    masks_of_texts: the candidates for each mask of each text.

  Returns:
    A dict for each text:
    `text`: the text.
    `filled`: the text with the likeliest pieces in place of its masks.
    `masks`: for each mask, a list of dicts with `token` and `probability`.
  """
  mask_id = model.vocabulary.special.mask
  assert mask_id is not None  # `encode` has checked this.
  spelling = model.vocabulary.pieces[mask_id]
  decode = model.vocabulary.plain_text_tokenizer.decoder.decode
  results = []
  for text, masks in zip(texts, masks_of_texts, strict=True):
    filled_text, *texts_after = text.split(spelling)
    for candidates, text_after in zip(masks, texts_after, strict=False):
      filled_text += decode([candidates[0][0]]).strip() + text_after
    mask_dicts = [
      [{"token": piece, "probability": p} for piece, p in candidates]
      for candidates in masks
    ]
    results.append({"text": text, "filled": filled_text, "masks": mask_dicts})
  return results


def format_result(result: Mapping[str, Any]) -> str:
  """Returns lines that show the candidates for the masks of one text.

  Args:
    result: a dict that `make_results` returns.
  """
  lines, masks = [result["text"]], result["masks"]
  for i, candidates in enumerate(masks):
    if len(masks) > 1:
      lines.append(f"  [MASK] {i + 1}")
    lines += [
      f"  {candidate['probability']:.4f}  {candidate['token']}"
      for candidate in candidates
    ]
  return "\n".join(lines)
