"""How likely a model finds a text, without training: `score`, `cloze`.

Sums of natural logarithms over the tokens of a text, special ones left out:

- "pll", pseudo-log-likelihood: each token masked in turn, log P(token | all
  others) (Salazar et al. 2020, equation 1).
- "pll_word_l2r": the same with the later pieces of its word masked as well, so
  that a word's pieces do not give each other away (Kauf and Ivanova 2023).
- "rtd": log P(original) of ELECTRA's discriminator at each token, one pass.
- "lm": log P(token | those before it), exact; the first token has none before
  it and does not count.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bert_jax.devices import sharding
from bert_jax.messages import UserError
from bert_jax.use import text_batches
from bert_jax.use.fill_mask import can_fill, log_probabilities
from bert_jax.use.text_batches import Text, Tokens
from bert_jax.weights.load import OpenedModel

METHODS = ("pll", "pll_word_l2r", "rtd", "lm")
# Texts whose rows are made and sorted at once.
BLOCK = 2048
_jit = functools.partial(sharding.jit, static_argnums=0)
_MASKS = ("[MASK]", "<mask>")


class Guess(NamedTuple):
  """A filled blank.

  Attributes:
    answer: log P of the answer; None if it is no single piece.
    best: the most likely piece.
    right: True if `best` is the answer.
  """

  answer: float | None
  best: str
  right: bool


class _Row(NamedTuple):
  """A row to run: of text `number`; what is read off at which positions."""

  number: int
  ids: np.ndarray
  position: int
  target: int


def method_of(model: OpenedModel) -> str:
  """The score that a model's head gives; ValueError if it gives none."""
  family, task = model.config["family"], model.config["task"]
  if family == "gpt" and task == "pretraining":
    return "lm"
  if task == "discriminator":
    return "rtd"
  if can_fill(model.config):
    return "pll"
  raise UserError(
    f"the model is of family {family} for {task}; a score needs the head of a"
    " masked or causal language model or of ELECTRA's discriminator."
  )


def check(model: OpenedModel, method: str) -> None:
  """Raises ValueError if a model's head does not give a score."""
  if method not in METHODS:
    raise UserError(f"method {method!r}: not one of {METHODS}.")
  head_method = method_of(model)
  if not method.startswith(head_method):
    raise UserError(
      f"method {method!r}: this model's head gives {head_method!r}."
    )


def score(
  model: OpenedModel,
  texts: Sequence[str],
  method: str | None = None,
  tokens: int = 8192,
) -> np.ndarray:
  """Scores texts.

  Args:
    model: a model with a pre-training head.
    texts: [N], none longer than the model's rows.
    method: one of `METHODS`; None chooses it by the model's head.
    tokens: the most tokens in a batch, with padding.

  Returns:
    float64 [N].

  Raises:
    ValueError: another method than the head's, or a text that is too long.
  """
  method = method or method_of(model)
  check(model, method)
  run = _PROGRAMS[method]
  # A causal model makes logits for all positions.
  tokens = tokens if method != "lm" else max(tokens // 4, 1)
  result = np.zeros(len(texts), np.float64)
  for start in range(0, len(texts), BLOCK):
    block = texts[start : start + BLOCK]
    encoded = encode(model, [text_batches.of_text(t[:40], t) for t in block])
    rows = list(_rows(model, encoded, method))
    for numbers, values in _run(model, run, rows, tokens):
      texts_of = [start + rows[i].number for i in numbers]
      np.add.at(result, texts_of, values[: len(numbers)].astype(np.float64))
  return result


def encode(model: OpenedModel, texts: Sequence[Text]) -> list[Tokens]:
  """`text_batches.encode`; ValueError for a text that is too long."""
  encoded = text_batches.encode(model, texts)
  longest = model.module.encoder.max_length
  for text, encoding in zip(texts, encoded, strict=True):
    if len(encoding.ids) > longest:
      raise UserError(
        f"{text.text[:40]!r}... has {len(encoding.ids)} tokens; the model takes"
        f" {longest}. Shorten it."
      )
  return encoded


def mask_token(model: OpenedModel) -> tuple[str, int]:
  """Spelling and id of the mask; ValueError if the model has none."""
  for token in _MASKS:
    number = model.tokenizer and model.tokenizer.token_to_id(token)
    if number is not None:
      return token, number
  raise UserError(f"the tokenizer has none of {', '.join(_MASKS)}.")


def _rows(
  model: OpenedModel, encoded: Sequence[Tokens], method: str
) -> Iterator[_Row]:
  mask = mask_token(model)[1] if method.startswith("pll") else 0
  for number, encoding in enumerate(encoded):
    if method in ("rtd", "lm"):
      # "rtd" and "lm" score every token in one pass; for them `target` is the
      # end position, not a token id.
      yield _Row(number, encoding.ids, encoding.begin, encoding.end)
      continue
    for i in range(encoding.begin, encoding.end):
      ids, end = encoding.ids.copy(), i + 1
      if method == "pll_word_l2r":
        while end < encoding.end and encoding.splits[end] == encoding.splits[i]:
          end += 1
      ids[i:end] = mask
      yield _Row(number, ids, i, int(encoding.ids[i]))


def _run(
  model: OpenedModel, run: Callable, rows: Sequence[_Row], tokens: int
) -> Iterator[tuple[np.ndarray, Any]]:
  """Yields numbers of rows and what the program gives for them."""
  longest = model.module.encoder.max_length
  for batch in text_batches.batches([row.ids for row in rows], longest, tokens):
    places = np.zeros((2, len(batch.inputs["sequence_ids"])), np.int32)
    for i, number in enumerate(batch.numbers):
      places[:, i] = rows[number].position, rows[number].target
    values = run(model.module, model.params, batch.inputs, *places)
    yield batch.numbers, jax.tree.map(np.asarray, values)


@_jit
def _pll(module, params, inputs, position, target):
  log_p = log_probabilities(module, params, inputs, position[:, None])[:, 0]
  return jnp.take_along_axis(log_p, target[:, None], 1)[:, 0]


@_jit
def _guess(module, params, inputs, position, target):
  """The most likely id, and log P of the target."""
  log_p = log_probabilities(module, params, inputs, position[:, None])[:, 0]
  wanted = jnp.take_along_axis(log_p, target[:, None], 1)[:, 0]
  return log_p.argmax(-1), wanted


def _between(shape: tuple[int, int], begin: Array, end: Array) -> Array:
  index = jnp.arange(shape[1])[None]
  return (index >= begin[:, None]) & (index < end[:, None])


@_jit
def _rtd(module, params, inputs, begin, end):
  logits = module.apply({"params": params}, inputs)["rtd_logits"]
  log_p = jax.nn.log_sigmoid(-logits)
  return jnp.where(_between(logits.shape, begin, end), log_p, 0).sum(-1)


@_jit
def _lm(module, params, inputs, begin, end):
  ids = inputs["input_ids"]
  logits = module.apply({"params": params}, inputs)["lm_logits"]
  log_p = jax.nn.log_softmax(logits[:, :-1])
  log_p = jnp.take_along_axis(log_p, ids[:, 1:, None], -1)[..., 0]
  counts = _between(ids.shape, begin, end)[:, 1:]
  return jnp.where(counts, log_p, 0).sum(-1)


_PROGRAMS = {"pll": _pll, "pll_word_l2r": _pll, "rtd": _rtd, "lm": _lm}


def cloze(
  model: OpenedModel,
  texts: Sequence[str],
  answers: Sequence[str],
  tokens: int = 8192,
) -> list[Guess]:
  """Fills one `[MASK]` a text by the most likely piece.

  An answer is the piece that stands in the blank when the text with the answer
  in its place is encoded; where that is no single piece, no guess is right.

  Args:
    model: a masked language model.
    texts: each with one `[MASK]`, whatever the model's own mask is.
    answers: the answers of the blanks.
    tokens: the most tokens in a batch, with padding.

  Raises:
    ValueError: no masked language model, not one `[MASK]`, a long text.
  """
  check(model, "pll")
  mask, mask_id = mask_token(model)
  for text in texts:
    if text.count("[MASK]") != 1:
      raise UserError(
        f"{text[:60]!r} has {text.count('[MASK]')} [MASK], not one."
      )
  pairs = zip(texts, answers, strict=True)
  encoded = encode(
    model, [text_batches.of_text("", t.replace("[MASK]", mask)) for t in texts]
  )
  filled = text_batches.encode(
    model, [text_batches.of_text("", t.replace("[MASK]", a)) for t, a in pairs]
  )
  rows, is_single_piece = [], []
  for i, (masked, other) in enumerate(zip(encoded, filled, strict=True)):
    place = int(np.flatnonzero(masked.ids == mask_id)[0])
    ids, answer = other.ids.copy(), 0
    if len(ids) == len(masked.ids):
      answer, ids[place] = int(ids[place]), mask_id
    rows.append(_Row(i, masked.ids, place, answer))
    is_single_piece.append(np.array_equal(ids, masked.ids))
  result: list[Any] = [None] * len(texts)
  for numbers, guesses in _run(model, _guess, rows, tokens):
    for number, best, log_p in zip(numbers, *guesses, strict=False):
      name = model.tokenizer.id_to_token(int(best)) or str(best)
      if is_single_piece[number]:
        right = int(best) == rows[number].target
        result[number] = Guess(float(log_p), name, right)
      else:
        result[number] = Guess(None, name, False)
  return result
