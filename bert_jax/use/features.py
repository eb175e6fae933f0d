"""Vectors of texts from a frozen encoder: `extract`.

model = bert_jax.load(PATH)
spec = features_of.Spec(layers=(-4, -3, -2, -1), combine="concat")
for found in features_of.extract(model, ["One text.", "Another."], spec):
  found.vectors  # float32 [pieces, 4 x width]
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bert_jax import models
from bert_jax.devices import sharding
from bert_jax.messages import UserError
from bert_jax.models.encoder import encode
from bert_jax.tasks.windows import windows
from bert_jax.use import text_batches
from bert_jax.use.text_batches import Text, Tokens
from bert_jax.weights.load import OpenedModel

COMBINE = ("concat", "sum", "mean", "mix", "stack")
UNITS = ("piece", "word", "cls", "mean", "max")
# The units that give one vector for a whole text.
WHOLE = ("cls", "mean", "max")
PIECES = ("first", "mean")
# Texts that are sorted by length at once; their vectors wait in memory.
BLOCK = 1024


class Spec(NamedTuple):
  """Which vectors.

  Attributes:
    layers: numbers of layers, 0 for the embeddings (of ELMo: the words), -1 for
      the last one.
    combine: "concat" and "sum" as in BERT's Table 7; "mean"; "mix", ELMo's
      weighted sum; "stack" leaves the layers apart, on an axis of their own.
    mix: for "mix", the learnt weights of the layers, before their softmax.
    gamma: for "mix", the factor.
    unit: "piece", special tokens included; "word"; of a whole text "cls", the
      vector at its first token (of GPT-1 its last), or "mean" or "max", that of
      all tokens, special ones included.
    pieces: for "word", its "first" piece gives the vector, or their "mean".
    normalize: divide each vector by its length.
    max_length: tokens of a window; None for the model's longest row, any for
      ELMo.
    overlap: tokens that neighbouring windows share at least.
  """

  layers: tuple[int, ...] = (-1,)
  combine: str = "concat"
  mix: tuple[float, ...] = ()
  gamma: float = 1.0
  unit: str = "piece"
  pieces: str = "first"
  normalize: bool = False
  max_length: int | None = None
  overlap: int = 64


class Features(NamedTuple):
  """The vectors of a text.

  Attributes:
    id: the id of the text.
    tokens: names of pieces or words; None for a whole text.
    vectors: float32 [tokens, width], [width] of a whole text; "stack" has
      [.., layers, width]. Zeros for a word without pieces.
  """

  id: Any
  tokens: tuple[str, ...] | None
  vectors: np.ndarray


class _Window(NamedTuple):
  """A row: text `number`'s tokens, of which `own` are taken from it."""

  number: int
  ids: np.ndarray
  own: tuple[int, int]  # In the row.
  place: int  # Of the first of these in the text.


def extract(
  model: OpenedModel,
  texts: Iterable[str | Sequence[str]],
  spec: Spec = Spec(),  # noqa: B008, it is immutable
  tokens: int = 8192,
) -> Iterator[Features]:
  """Yields the vectors of each text, in the order of the texts.

  Args:
    model: a model of any family; one tower of ELECTRA.
    texts: strings, or lists of words.
    spec: which vectors.
    tokens: tokens of a batch, with padding.

  Raises:
    ValueError: a spec that the model has not.
  """
  prepared_texts = (
    text_batches.of_text(i, text)
    if isinstance(text, str)
    else text_batches.of_words(i, text)
    for i, text in enumerate(texts)
  )
  return extract_texts(model, prepared_texts, spec, tokens)


def extract_texts(
  model: OpenedModel, texts: Iterable[Text], spec: Spec, tokens: int = 8192
) -> Iterator[Features]:
  """`extract` of texts with ids."""
  check(model, spec)
  texts = iter(texts)
  return itertools.chain.from_iterable(
    _block(model, block, spec, tokens)
    for block in iter(lambda: list(itertools.islice(texts, BLOCK)), [])
  )


def own_pooling(
  model: OpenedModel, unit: str | None
) -> tuple[str, bool, list[str]]:
  """Chooses the unit of the vectors: the user's, or else the model's.

  Args:
    model: a model of sentence-transformers, or any other model.
    unit: the unit that the user asks for. None takes the model's own pooling,
      or pieces if it has none.

  Returns:
    The unit; True if the model divides these vectors by their length; lines
    that say what was chosen.

  Raises:
    ValueError: the user asks for no unit, and the model's pooling is not
      computed here.
  """
  pooling = model.config["source"].get("pooling")
  if pooling is None:
    return unit or UNITS[0], False, []
  model_unit = " and ".join(pooling["modes"])
  if unit in ("piece", "word"):
    return unit, False, []
  if unit is None and model_unit not in WHOLE:
    raise UserError(
      f"the model's own pooling is {model_unit}, which is not computed here;"
      " pass"
      f" --pooling={' or --pooling='.join(UNITS)}."
    )
  lines = []
  if unit not in (None, model_unit):
    lines.append(
      f"the model's own pooling is {model_unit}; {unit} is used instead, as you"
      " asked"
    )
  if unit is None:
    divided = ", divided by its length" if pooling["normalize"] else ""
    lines.append(
      "one vector for each text, by the model's own pooling:"
      f" {model_unit}{divided}; --pooling=piece gives one for each piece"
    )
  if pooling["others"]:
    names = ", ".join(pooling["others"])
    lines.append(f"the model's {names} after the pooling is not computed here")
  return unit or model_unit, unit is None and pooling["normalize"], lines


def num_layers(model: OpenedModel) -> int:
  """Layers that a model has, the embeddings or words among them."""
  return model.module.encoder.num_layers + 1


def check(model: OpenedModel, spec: Spec) -> None:
  """Raises ValueError if a model cannot give what a spec asks for."""
  count, family = num_layers(model), model.config["family"]
  if "encoder" not in model.params:
    raise UserError(
      "the model has both towers of ELECTRA; load it with tower="
      '"discriminator" or "generator".'
    )
  choices = dict(combine=COMBINE, unit=UNITS, pieces=PIECES)
  for name, allowed in choices.items():
    if getattr(spec, name) not in allowed:
      raise UserError(f"{name}={getattr(spec, name)!r}: not one of {allowed}.")
  for layer in spec.layers:
    if not -count <= layer < count:
      raise UserError(
        f"layer {layer}: the model has 0 (embeddings) to {count - 1}, -1 is the"
        " last one."
      )
  if not spec.layers:
    raise UserError("no layers: name one at least.")
  wanted = len(spec.layers) if spec.combine == "mix" else 0
  if len(spec.mix) != wanted:
    raise UserError(
      f"{len(spec.mix)} weights of a mix for {wanted} layers that are mixed."
    )
  if family == "elmo" and spec.unit == "cls":
    raise UserError("ELMo has no [CLS]; take the mean.")
  longest, length = _longest(model), spec.max_length
  if length is not None and not 8 <= length <= (longest or length):
    raise UserError(
      f"windows of {length} tokens: the model takes 8 to {longest or 'any'}."
    )
  if spec.overlap < 0:
    raise UserError(f"overlap {spec.overlap}: it must be 0 or more.")


def _longest(model: OpenedModel) -> int | None:
  return getattr(model.module.encoder, "max_length", None)


def layers_of(
  encoder: nn.Module,
  params: Any,
  batch: dict[str, Array],
  wanted: Sequence[int],
) -> list[Float[Array, "b l d"]]:
  """Runs an encoder of any family; returns some of its layers.

  Args:
    encoder: the encoder of an opened model.
    params: its part of the parameters.
    batch: `char_ids` of ELMo, else `input_ids`; `sequence_ids`.
    wanted: numbers of layers, see `Spec`.
  """
  variables = {"params": params}
  if "char_ids" in batch:
    ids = batch["char_ids"], batch["sequence_ids"]
    stacked = encoder.apply(variables, *ids)
    return [stacked[:, layer] for layer in wanted]
  count = encoder.num_layers + 1
  numbers = [layer % count for layer in wanted]
  # Whoever needs the last layer alone gets the fast kernels.
  collect = set(numbers) != {count - 1}
  run = functools.partial(encoder.apply, variables)
  last, seen = encode(run, batch, collect=collect)
  if not collect:
    return [last for _ in numbers]
  hidden = seen["hidden"]
  return [hidden[n - 1] if n else seen["embeddings"] for n in numbers]


@functools.partial(sharding.jit, static_argnums=(0, 1))
def _run(
  encoder: nn.Module,
  spec: Spec,
  params: Any,
  batch: dict[str, Array],
  weights: Float[Array, "b l"] | None,
) -> Array:
  """Vectors of positions; with weights, of rows, summed on the device."""
  layers = layers_of(encoder, params, batch, spec.layers)
  x = _combine([layer.astype(jnp.float32) for layer in layers], spec)
  if weights is None:
    return x
  if spec.unit == "max":
    inside = jnp.expand_dims(weights > 0, range(2, x.ndim))
    return jnp.where(inside, x, -jnp.inf).max(1)
  return jnp.einsum("bl,bl...->b...", weights, x)


def _combine(layers: list[Array], spec: Spec) -> Array:
  if spec.combine == "concat":
    return jnp.concatenate(layers, -1)
  stacked = jnp.stack(layers, 2)
  if spec.combine == "stack":
    return stacked
  if spec.combine == "mix":
    weights = jax.nn.softmax(jnp.array(spec.mix, jnp.float32))
    return spec.gamma * jnp.einsum("n,blnd->bld", weights, stacked)
  return stacked.sum(2) if spec.combine == "sum" else stacked.mean(2)


def _block(
  model: OpenedModel, texts: list[Text], spec: Spec, tokens: int
) -> Iterator[Features]:
  """The features of some texts."""
  encoded = text_batches.encode(model, texts)
  longest = spec.max_length or _longest(model)
  rows = [
    window
    for i, tokens_of_text in enumerate(encoded)
    for window in _windows(i, tokens_of_text, longest, spec.overlap)
  ]
  pool = _weigher(model, spec)
  run = functools.partial(
    _run,
    model.module.encoder,
    # Keep only the fields that change the compiled program, so that other
    # options reuse the jit cache.
    Spec(
      tuple(spec.layers),
      spec.combine,
      tuple(spec.mix),
      spec.gamma,
      spec.unit if spec.unit == "max" else UNITS[0],
    ),
    model.params["encoder"],
  )
  sums: list[Any] = [None] * len(texts)
  for batch in text_batches.batches([r.ids for r in rows], longest, tokens):
    mine = [rows[i] for i in batch.numbers]
    weights = pool and pool(mine, batch.inputs["sequence_ids"].shape)
    vectors = np.asarray(run(batch.inputs, weights))
    for window, x in zip(mine, vectors, strict=False):
      n, (begin, end) = window.number, window.own
      if pool:
        add = np.maximum if spec.unit == "max" else np.add
        sums[n] = x if sums[n] is None else add(sums[n], x)
        continue
      if sums[n] is None:
        sums[n] = np.zeros((len(encoded[n].ids), *x.shape[1:]), np.float32)
      sums[n][window.place : window.place + end - begin] = x[begin:end]
  counts = np.bincount([row.number for row in rows], minlength=len(texts))
  for text, tokens_of_text, x, count in zip(
    texts, encoded, sums, counts, strict=True
  ):
    yield _finish(text, tokens_of_text, x, int(count), spec)


def _windows(
  number: int, encoded: Tokens, longest: int | None, overlap: int
) -> Iterator[_Window]:
  """Rows of a text, which own each of its tokens once.

  Where two overlap, each owns the half that is further from its edge.
  """
  begin, end, count = encoded.begin, encoded.end, len(encoded.ids)
  if longest is None or count <= longest:
    yield _Window(number, encoded.ids, (0, count), 0)
    return
  head, tail = encoded.ids[:begin], encoded.ids[end:]
  room = longest - len(head) - len(tail)
  stride = room - min(overlap, room // 2)
  cuts = windows(end - begin, room, stride, full=True)
  place = 0
  for i, (start, stop) in enumerate(cuts):
    ids = np.concatenate(
      [head, encoded.ids[begin + start : begin + stop], tail]
    )
    last = i + 1 == len(cuts)
    until = count if last else begin + (stop + cuts[i + 1][0]) // 2
    yield _Window(number, ids, (place - start, until - start), place)
    place = until


def _weigher(model: OpenedModel, spec: Spec) -> Callable | None:
  """Returns a function that weighs positions; None if each has its vector."""
  if spec.unit not in WHOLE:
    return None
  family = model.config["family"]
  last = spec.unit == "cls" and models.family(family).POOLING.last

  def weigh(rows: list[_Window], shape: tuple[int, int]) -> np.ndarray:
    weights = np.zeros(shape, np.float32)
    for i, row in enumerate(rows):
      if spec.unit in ("mean", "max"):
        weights[i, row.own[0] : row.own[1]] = 1.0
      elif len(row.ids):
        weights[i, len(row.ids) - 1 if last else 0] = 1.0
    return weights

  return weigh


def _finish(
  text: Text, encoded: Tokens, x: np.ndarray, rows: int, spec: Spec
) -> Features:
  """Returns a text's features from its vectors, summed or one a token."""
  names: Sequence[str] | None = None
  if spec.unit == "mean":
    x = x / np.float32(max(len(encoded.ids), 1))
  elif spec.unit == "max":
    x = np.where(np.isfinite(x), x, 0.0)  # A text without a token.
  elif spec.unit == "cls":
    x = x / np.float32(rows)
  elif spec.unit == "piece":
    names = encoded.pieces
  else:
    names, x = _words(text, encoded, x, spec.pieces)
  if spec.normalize:
    # As torch.nn.functional.normalize, which sentence-transformers uses.
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    x = x / np.maximum(length, np.float32(1e-12))
  return Features(text.id, None if names is None else tuple(names), x)


def _words(
  text: Text, encoded: Tokens, x: np.ndarray, pieces: str
) -> tuple[list[str], np.ndarray]:
  """Names and vectors of words."""
  if len(encoded.ids) and encoded.ids.ndim > 1:  # ELMo's own, one row each.
    return encoded.pieces[1:-1], x[1:-1]
  names = [text.text[begin:end] for begin, end in text.words]
  in_words = np.flatnonzero(encoded.words >= 0)
  result = np.zeros((len(names), *x.shape[1:]), np.float32)
  if pieces == "first":
    words, first = np.unique(encoded.words[in_words], return_index=True)
    result[words] = x[in_words[first]]
    return names, result
  np.add.at(result, encoded.words[in_words], x[in_words])
  counts = np.bincount(encoded.words[in_words], minlength=len(names))
  counts = np.maximum(counts, 1).astype(np.float32)
  return names, result / counts.reshape(-1, *[1] * (x.ndim - 1))
