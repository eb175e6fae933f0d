"""`score_texts` computes how probable texts are; `predict_blanks` fills blanks.

The score of a text is a sum of natural logarithms over its tokens, without the
special tokens. The methods are:

- "pll", pseudo-log-likelihood: log P(token | all other tokens), where only this
  token is masked (Salazar et al. 2020, equation 1).
- "pll_word_l2r": like "pll", but the later pieces of the token's word are
  masked too, because they would reveal the masked piece (Kauf and Ivanova
  2023).
- "rtd": log P(token is original), from ELECTRA's discriminator in one pass.
- "lm": log P(token | the tokens before it), from a causal model in one pass. A
  token at position 0 does not count, because no token is before it.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bert_jax.devices import sharding
from bert_jax.messages import UserError
from bert_jax.use import row_batches, text_inputs
from bert_jax.use.fill_mask import can_fill, log_probabilities
from bert_jax.use.text_inputs import Text, Tokens
from bert_jax.weights.load import OpenedModel

METHODS = ("pll", "pll_word_l2r", "rtd", "lm")
# The number of texts whose rows are made and sorted together.
BLOCK_SIZE = 2048
_jit = functools.partial(sharding.jit, static_argnums=0)
# `input_ids` and the other inputs of the encoder, [b, l] each.
Inputs = dict[str, Array]
_MASK_SPELLINGS = ("[MASK]", "<mask>")


class BlankPrediction(NamedTuple):
  """Holds the piece that a model puts into a blank.

  Attributes:
    answer_log_p: log P of the answer; None if the answer is not a single piece.
    piece: the most likely piece.
    is_right: True if `piece` is the answer.
  """

  answer_log_p: float | None
  piece: str
  is_right: bool


class _Row(NamedTuple):
  """Holds a row of token ids, and says which output is read from it.

  Attributes:
    text_index: the index of the row's text.
    ids: int32 [T], the ids of the row.
    arguments: two integers for the method's program. For "pll", "pll_word_l2r"
      and `predict_blanks` they are (position, token id) of a masked token. For
      "rtd" and "lm" they are the first position that counts and the position
      after the last one.
  """

  text_index: int
  ids: np.ndarray
  arguments: tuple[int, int]


def default_method(model: OpenedModel) -> str:
  """Returns the method that fits a model's head, or raises a UserError."""
  family, task = model.config["family"], model.config["task"]
  if family == "gpt" and task == "pretraining":
    return "lm"
  if task == "discriminator":
    return "rtd"
  if can_fill(model.config):
    return "pll"
  raise UserError(
    f"a model of family {family} for {task} has no likelihood; use a masked or"
    " causal language model, or ELECTRA's discriminator."
  )


def check_method(model: OpenedModel, method: str) -> None:
  """Raises a UserError if a method does not fit a model's head."""
  if method not in METHODS:
    raise UserError(f"method {method!r} is not one of {', '.join(METHODS)}.")
  head_method = default_method(model)
  # A head for "pll" also fits "pll_word_l2r".
  if not method.startswith(head_method):
    raise UserError(
      f"method {method!r} does not fit this model's head; choose"
      f" {head_method!r}."
    )


def score_texts(
  model: OpenedModel,
  texts: Sequence[str],
  method: str | None = None,
  batch_tokens: int = 8192,
  report: Callable[[int], None] | None = None,
) -> np.ndarray:
  """Scores texts; the top of this file explains the methods.

  Args:
    model: a model with a pre-training head.
    texts: N texts; each must fit into one row of the model.
    method: one of `METHODS`; None chooses the method by the model's head.
    batch_tokens: the largest number of tokens in a batch, with padding.
    report: called after each batch with an estimate of the number of texts
      done, from the share of the rows done.

  Returns:
    The scores, float64 [N].

  Raises:
    UserError: the method does not fit the model's head, or a text is too long.
  """
  method = method or default_method(model)
  check_method(model, method)
  program = _PROGRAMS[method]
  # The program of "lm" has logits at all positions, so its batches are smaller.
  batch_tokens = batch_tokens if method != "lm" else max(batch_tokens // 4, 1)
  scores = np.zeros(len(texts), np.float64)
  for start in range(0, len(texts), BLOCK_SIZE):
    block = texts[start : start + BLOCK_SIZE]
    encoded = encode_and_check_length(
      model,
      [text_inputs.text_of_string(id=text[:40], text=text) for text in block],
    )
    rows = list(_make_rows(model, encoded, method))
    num_done = 0
    for indices, log_p in _run_batches(model, program, rows, batch_tokens):
      num_done += len(indices)
      if report is not None:
        report(start + num_done * len(block) // len(rows))
      text_indices = [start + rows[i].text_index for i in indices]
      np.add.at(scores, text_indices, log_p[: len(indices)].astype(np.float64))
  return scores


def encode_and_check_length(
  model: OpenedModel, texts: Sequence[Text]
) -> list[Tokens]:
  """Encodes texts; raises a UserError if a text does not fit into one row."""
  encoded = text_inputs.encode(model, texts)
  max_length = model.module.encoder.max_length
  for text, encoding in zip(texts, encoded, strict=True):
    if len(encoding.ids) > max_length:
      raise UserError(
        f"{text.text[:40]!r}... has {len(encoding.ids)} tokens; the model takes"
        f" {max_length}. Shorten the text."
      )
  return encoded


def mask_token(model: OpenedModel) -> tuple[str, int]:
  """Returns the mask token's spelling and its id, or raises a UserError."""
  for token in _MASK_SPELLINGS:
    token_id = model.tokenizer and model.tokenizer.token_to_id(token)
    if token_id is not None:
      return token, token_id
  raise UserError(
    f"the tokenizer has no mask, neither {' nor '.join(_MASK_SPELLINGS)}; use a"
    " masked language model with its own tokenizer."
  )


def _make_rows(
  model: OpenedModel, encoded: Sequence[Tokens], method: str
) -> Iterator[_Row]:
  """Yields one row for each token ("pll" methods), or one for each text."""
  mask_id = mask_token(model)[1] if method.startswith("pll") else 0
  for text_index, encoding in enumerate(encoded):
    if method in ("rtd", "lm"):
      yield _Row(text_index, encoding.ids, (encoding.begin, encoding.end))
      continue
    for position in range(encoding.begin, encoding.end):
      ids, mask_end = encoding.ids.copy(), position + 1
      if method == "pll_word_l2r":
        while (
          mask_end < encoding.end
          and encoding.tokenizer_word_indices[mask_end]
          == encoding.tokenizer_word_indices[position]
        ):
          mask_end += 1
      ids[position:mask_end] = mask_id
      yield _Row(text_index, ids, (position, int(encoding.ids[position])))


def _run_batches(
  model: OpenedModel,
  program: Callable[..., Any],
  rows: Sequence[_Row],
  batch_tokens: int,
) -> Iterator[tuple[np.ndarray, Any]]:
  """Yields the indices of each batch's rows, and the program's output.

  The output may have more rows than there are indices: the last rows of a batch
  may be padding.
  """
  max_length = model.module.encoder.max_length
  for batch in row_batches.batches(
    [row.ids for row in rows], max_length, batch_tokens
  ):
    arguments = np.zeros((2, len(batch.inputs["sequence_ids"])), np.int32)
    for i, index in enumerate(batch.row_indices):
      arguments[:, i] = rows[index].arguments
    outputs = program(model.module, model.params, batch.inputs, *arguments)
    yield batch.row_indices, jax.tree.map(np.asarray, outputs)


# An integer for each row of a batch, such as a position or a token id.
RowIntegers = Int[Array, "b"]


@_jit
def _predict_blank(
  module: nn.Module,
  params: Any,
  inputs: Inputs,
  position: RowIntegers,
  token_id: RowIntegers,
) -> tuple[RowIntegers, Float[Array, "b"]]:
  """Returns the most likely id at a masked position, and log P(token_id)."""
  log_p = log_probabilities(module, params, inputs, position[:, None])[:, 0]
  token_log_p = jnp.take_along_axis(log_p, token_id[:, None], 1)[:, 0]
  return log_p.argmax(-1), token_log_p


@_jit
def _masked_token_log_p(
  module: nn.Module,
  params: Any,
  inputs: Inputs,
  position: RowIntegers,
  token_id: RowIntegers,
) -> Float[Array, "b"]:
  """Returns log P(token_id) at a masked position."""
  log_p = log_probabilities(module, params, inputs, position[:, None])[:, 0]
  return jnp.take_along_axis(log_p, token_id[:, None], 1)[:, 0]


def _is_between(
  length: int, begin: RowIntegers, end: RowIntegers
) -> Bool[Array, "b l"]:
  """Returns True at the positions from `begin` to `end` - 1 of each row."""
  positions = jnp.arange(length)[None]
  return (positions >= begin[:, None]) & (positions < end[:, None])


@_jit
def _original_token_log_p(
  module: nn.Module,
  params: Any,
  inputs: Inputs,
  begin: RowIntegers,
  end: RowIntegers,
) -> Float[Array, "b"]:
  """Sums log P(token is original) from `begin` to `end` - 1."""
  outputs: Any = module.apply({"params": params}, inputs)
  log_p = jax.nn.log_sigmoid(-outputs["rtd_logits"])
  return jnp.where(_is_between(log_p.shape[1], begin, end), log_p, 0).sum(-1)


@_jit
def _causal_log_p(
  module: nn.Module,
  params: Any,
  inputs: Inputs,
  begin: RowIntegers,
  end: RowIntegers,
) -> Float[Array, "b"]:
  """Sums log P(token | earlier tokens) from `begin` to `end` - 1."""
  ids = inputs["input_ids"]
  outputs: Any = module.apply({"params": params}, inputs)
  log_p = jax.nn.log_softmax(outputs["lm_logits"][:, :-1])
  log_p = jnp.take_along_axis(log_p, ids[:, 1:, None], -1)[..., 0]
  is_counted = _is_between(ids.shape[1], begin, end)[:, 1:]
  return jnp.where(is_counted, log_p, 0).sum(-1)


_PROGRAMS = {
  "pll": _masked_token_log_p,
  "pll_word_l2r": _masked_token_log_p,
  "rtd": _original_token_log_p,
  "lm": _causal_log_p,
}


def predict_blanks(
  model: OpenedModel,
  texts: Sequence[str],
  answers: Sequence[str],
  batch_tokens: int = 8192,
) -> list[BlankPrediction]:
  """Fills the blank of each text with the most likely piece (a cloze test).

  To find the answer's piece, the text is also encoded with the answer in its
  blank. If the answer is not a single piece in that text, no prediction counts
  as right.

  Args:
    model: a masked language model.
    texts: texts with one `[MASK]` each, also for a model whose mask is not
      spelt `[MASK]`.
    answers: the right word for each blank.
    batch_tokens: the largest number of tokens in a batch, with padding.

  Raises:
    UserError: the model is not a masked language model, a text does not have
      exactly one `[MASK]`, or a text is too long.
  """
  check_method(model, "pll")
  mask, mask_id = mask_token(model)
  for text in texts:
    if text.count("[MASK]") != 1:
      raise UserError(
        f"{text[:60]!r} has [MASK] {text.count('[MASK]')} times; it must have"
        " it exactly once."
      )
  text_answer_pairs = zip(texts, answers, strict=True)
  encoded = encode_and_check_length(
    model,
    [
      text_inputs.text_of_string(id="", text=text.replace("[MASK]", mask))
      for text in texts
    ],
  )
  encoded_with_answers = text_inputs.encode(
    model,
    [
      text_inputs.text_of_string(id="", text=text.replace("[MASK]", answer))
      for text, answer in text_answer_pairs
    ],
  )
  rows = []
  answer_ids: list[int | None] = []
  for i, (with_blank, with_answer) in enumerate(
    zip(encoded, encoded_with_answers, strict=True)
  ):
    position = int(np.flatnonzero(with_blank.ids == mask_id)[0])
    remasked_ids, token_id = with_answer.ids.copy(), 0
    if len(remasked_ids) == len(with_blank.ids):
      token_id, remasked_ids[position] = int(remasked_ids[position]), mask_id
    rows.append(_Row(i, with_blank.ids, (position, token_id)))
    is_single_piece = np.array_equal(remasked_ids, with_blank.ids)
    answer_ids.append(token_id if is_single_piece else None)
  assert model.tokenizer is not None  # `mask_token` has checked this.
  predictions: list[Any] = [None] * len(texts)
  for indices, (best_ids, answer_log_p) in _run_batches(
    model, _predict_blank, rows, batch_tokens
  ):
    for i, index in enumerate(indices):
      best_id, answer_id = int(best_ids[i]), answer_ids[index]
      predictions[index] = BlankPrediction(
        None if answer_id is None else float(answer_log_p[i]),
        model.tokenizer.id_to_token(best_id) or str(best_id),
        best_id == answer_id,
      )
  return predictions
