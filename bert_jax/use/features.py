"""Computes vectors of texts with a frozen encoder: `extract`.

For example:

model = weights.load.open_model(PATH)
spec = features.Spec(layers=(-4, -3, -2, -1), combine="concat")
for text in features.extract(model, ["One text.", "Another."], spec):
  text.vectors  # float32 [pieces, 4 x width]
"""

import dataclasses
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
from bert_jax.tasks.windows import window_bounds
from bert_jax.use import row_batches, text_inputs
from bert_jax.use.text_inputs import Text, Tokens
from bert_jax.weights.load import OpenedModel

COMBINATIONS = ("concat", "sum", "mean", "mix", "stack")
UNITS = ("piece", "word", "cls", "mean", "max")
# The units that give one vector for each text.
TEXT_UNITS = ("cls", "mean", "max")
PIECE_CHOICES = ("first", "mean")
# The number of texts in a block. The texts of a block are sorted by length, and
# the memory holds the vectors of the whole block.
BLOCK_SIZE = 1024


class Spec(NamedTuple):
  """Says which vectors to compute.

  Values of `combine`:

  | value | vector |
  | --- | --- |
  | "concat", "sum" | the layers, concatenated or added (BERT's Table 7) |
  | "mean" | the mean of the layers |
  | "mix" | ELMo's weighted sum of the layers |
  | "stack" | the layers on a new axis before the last axis |

  Values of `unit`:

  | value | vectors |
  | --- | --- |
  | "piece" | one for each token, also for special tokens |
  | "word" | one for each word |
  | "cls" | the vector of the first token (GPT-1: last), averaged over windows |
  | "mean", "max" | the mean or maximum over all tokens, also special tokens |

  Attributes:
    layers: the indices of layers; None takes all layers. 0 is the embeddings
      (for ELMo the vectors of the words), and -1 is the last layer.
    combine: how layers are combined.
    mix: the learnt weights of the layers, before their softmax. They are empty
      unless `combine` is "mix".
    gamma: the factor of the weighted sum of "mix".
    unit: what gets a vector. Only `complete_spec` accepts None, which means the
      model's pooling.
    pieces: how the vector of a word is made: "first" takes the vector of its
      first piece, "mean" takes the mean over all its pieces.
    normalize: if True, divides each vector by its length.
    max_length: the largest number of tokens in a window. None takes the largest
      number that the model can read; ELMo has no limit.
    overlap: the number of tokens that neighbouring windows share, at most half
      a window. The last two windows may share more.
  """

  layers: tuple[int, ...] | None = (-1,)
  combine: str = "concat"
  mix: tuple[float, ...] = ()
  gamma: float = 1.0
  unit: str = "piece"
  pieces: str = "first"
  normalize: bool = False
  max_length: int | None = None
  overlap: int = 64


class TextVectors(NamedTuple):
  """Holds the vectors of a text.

  Attributes:
    id: the id of the text.
    tokens: the pieces or words; None if the text has one vector.
    vectors: float32 [tokens, width], or [width] if the text has one vector. If
      `combine` is "stack", the last axes are [layers, width]. A word without
      pieces has a vector of zeros.
  """

  id: Any
  tokens: tuple[str, ...] | None
  vectors: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Window:
  """Holds a row for the model: a text, or a window of a long text.

  Windows overlap, but each token's vector is taken from one window only. The
  unit "cls" instead averages one vector of each window.

  Attributes:
    text_index: the index of the text in its block.
    ids: int32 [T, ...], the ids of the row's tokens.
    begin: the first position in the row whose vector is taken.
    end: the position after the last position whose vector is taken.
    text_position: the position of token `begin` among all tokens of the text.
  """

  text_index: int
  ids: np.ndarray
  begin: int
  end: int
  text_position: int


def extract(
  model: OpenedModel,
  texts: Iterable[str | Sequence[str]],
  spec: Spec = Spec(),  # noqa: B008, it is immutable
  batch_tokens: int = 8192,
) -> Iterator[TextVectors]:
  """Yields the vectors of each text, in the order of the texts.

  Args:
    model: a model of any family; a model of ELECTRA must have one tower only.
    texts: strings, or lists of words.
    spec: which vectors to compute.
    batch_tokens: the largest number of tokens in a batch, with padding.

  Raises:
    UserError: the model cannot compute the vectors of the spec.
  """
  prepared_texts = (
    text_inputs.text_of_string(i, text)
    if isinstance(text, str)
    else text_inputs.text_of_words(i, text)
    for i, text in enumerate(texts)
  )
  return extract_texts(model, prepared_texts, spec, batch_tokens)


def extract_texts(
  model: OpenedModel,
  texts: Iterable[Text],
  spec: Spec,
  batch_tokens: int = 8192,
  report: Callable[[int], None] | None = None,
) -> Iterator[TextVectors]:
  """Does what `extract` does, but for texts of the class `Text`.

  Args:
    model: see `extract`.
    texts: the texts.
    spec: see `extract`.
    batch_tokens: see `extract`.
    report: called after each batch with an estimate of the number of texts
      done, from the share of the rows done.

  Raises:
    UserError: the model cannot compute the vectors of the spec.
  """
  if spec.layers is None:
    spec = spec._replace(layers=tuple(range(num_layers_with_embeddings(model))))
  check_spec(model, spec)
  texts = iter(texts)
  blocks = iter(lambda: list(itertools.islice(texts, BLOCK_SIZE)), [])
  return itertools.chain.from_iterable(
    _block_features(
      model, block, spec, batch_tokens, report, block_index * BLOCK_SIZE
    )
    for block_index, block in enumerate(blocks)
  )


def complete_spec(
  model: OpenedModel, spec: Spec, default_unit: str = "piece"
) -> tuple[Spec, list[str]]:
  """Fills in the unit of a spec whose `unit` is None.

  If the model's pooling is taken, and the model divides its pooled vectors by
  their length, `normalize` becomes True.

  Args:
    model: a model of any family.
    spec: a spec. If its `unit` is None, the model's pooling is taken.
    default_unit: the unit for a model without a pooling.

  Returns:
    The complete spec, and notes for the user about the pooling.

  Raises:
    UserError: `unit` is None, and the model's pooling is not supported.
  """
  if spec.unit is None and model.config["source"].get("pooling") is None:
    spec = spec._replace(unit=default_unit)
  unit, normalize, notes = choose_pooling(model, spec.unit)
  normalize = spec.normalize or normalize
  return spec._replace(unit=unit, normalize=normalize), notes


def choose_pooling(
  model: OpenedModel, unit: str | None
) -> tuple[str, bool, list[str]]:
  """Chooses a unit: the user's, or else the model's pooling.

  Args:
    model: any model; only a model of sentence-transformers has a pooling.
    unit: the unit that the user names. None means the model's pooling, or
      pieces if the model has no pooling.

  Returns:
    The unit; True if `unit` is None and the model divides its pooled vectors by
    their length; notes for the user about the pooling.

  Raises:
    UserError: the user names no unit, and the model's pooling is not supported.
  """
  pooling = model.config["source"].get("pooling")
  if pooling is None:
    return unit or UNITS[0], False, []
  model_unit = " and ".join(pooling["modes"])
  if unit in ("piece", "word"):
    return unit, False, []
  if unit is None and model_unit not in TEXT_UNITS:
    raise UserError(
      f"the model's own pooling is {model_unit}, which is not computed here;"
      f" choose another unit: {' or '.join(UNITS)}."
    )
  notes = []
  if unit not in (None, model_unit):
    notes.append(
      f"the model's own pooling is {model_unit}; {unit} is used instead, as you"
      " asked"
    )
  if unit is None:
    scaling = ", divided by its length" if pooling["normalize"] else ""
    notes.append(
      "one vector for each text, by the model's own pooling:"
      f" {model_unit}{scaling}; choose piece for a vector of each piece"
    )
  if pooling["unsupported"]:
    names = ", ".join(pooling["unsupported"])
    notes.append(f"the model's {names} after the pooling is not computed here")
  return unit or model_unit, unit is None and pooling["normalize"], notes


def num_layers_with_embeddings(model: OpenedModel) -> int:
  """Counts the layers that `Spec.layers` can name."""
  return model.module.encoder.num_layers + 1


def check_spec(model: OpenedModel, spec: Spec) -> None:
  """Raises a UserError if a model cannot compute the vectors of a spec."""
  num_layers = num_layers_with_embeddings(model)
  family = model.config["family"]
  if "encoder" not in model.params:
    raise UserError(
      "the model has both towers of ELECTRA; load it with tower="
      '"discriminator" or "generator".'
    )
  choices = dict(combine=COMBINATIONS, unit=UNITS, pieces=PIECE_CHOICES)
  for name, allowed in choices.items():
    if getattr(spec, name) not in allowed:
      raise UserError(
        f"{name}={getattr(spec, name)!r} is not one of {', '.join(allowed)}."
      )
  for layer in spec.layers or ():
    if not -num_layers <= layer < num_layers:
      raise UserError(
        f"layer {layer}: the model has layers 0 (embeddings) to"
        f" {num_layers - 1}; -1 is the last layer."
      )
  if not spec.layers:
    raise UserError("no layer is chosen; give the number of at least one.")
  num_mixed = len(spec.layers) if spec.combine == "mix" else 0
  if len(spec.mix) != num_mixed:
    raise UserError(
      f"mix has {len(spec.mix)} weights, but {num_mixed} layers are mixed."
    )
  if family == "elmo" and spec.unit == "cls":
    raise UserError("ELMo has no [CLS] token; choose the mean.")
  model_max_length, window_length = _max_length_of(model), spec.max_length
  if window_length is not None and not 8 <= window_length <= (
    model_max_length or window_length
  ):
    raise UserError(
      f"windows of {window_length} tokens are not possible: the model takes 8"
      f" {f'to {model_max_length}' if model_max_length else 'or more'}."
    )
  if spec.overlap < 0:
    raise UserError(f"overlap={spec.overlap} must be 0 or more.")


def _max_length_of(model: OpenedModel) -> int | None:
  """Returns the largest length that a model reads; None for no limit."""
  return getattr(model.module.encoder, "max_length", None)


def compute_layers(
  encoder: nn.Module,
  params: Any,
  batch: dict[str, Array],
  layers: Sequence[int],
) -> list[Float[Array, "b l d"]]:
  """Runs an encoder of any family, and returns the outputs of some layers.

  Args:
    encoder: the encoder of an opened model.
    params: the parameters of the encoder.
    batch: `sequence_ids`, and `char_ids` for ELMo or else `input_ids`.
    layers: numbers of layers; see `Spec`.
  """
  variables = {"params": params}
  if "char_ids" in batch:
    char_ids, sequence_ids = batch["char_ids"], batch["sequence_ids"]
    all_layers: Any = encoder.apply(variables, char_ids, sequence_ids)
    return [all_layers[:, layer] for layer in layers]
  layer_count = encoder.num_layers + 1
  layer_indices = [layer % layer_count for layer in layers]
  # The fast kernels return only the last layer, so collect all layers only if
  # an earlier layer is needed.
  needs_earlier_layers = set(layer_indices) != {layer_count - 1}
  apply_encoder = functools.partial(encoder.apply, variables)
  last_layer, collected = encode(
    apply_encoder, batch, collect=needs_earlier_layers
  )
  if not needs_earlier_layers:
    return [last_layer for _ in layer_indices]
  hidden = collected["hidden"]
  return [
    hidden[layer - 1] if layer else collected["embeddings"]
    for layer in layer_indices
  ]


@functools.partial(sharding.jit, static_argnums=(0, 1))
def _compute_vectors(
  encoder: nn.Module,
  spec: Spec,
  params: Any,
  batch: dict[str, Array],
  weights: Float[Array, "b l"] | None,
) -> Array:
  """Computes a vector for each position; with weights, one for each row.

  The vector of a row is the weighted sum over its positions, or for the unit
  "max" the maximum over the positions with a weight above 0.
  """
  layers = compute_layers(encoder, params, batch, spec.layers or ())
  vectors = _combine_layers(
    [layer.astype(jnp.float32) for layer in layers], spec
  )
  if weights is None:
    return vectors
  if spec.unit == "max":
    has_weight = jnp.expand_dims(weights > 0, range(2, vectors.ndim))
    return jnp.where(has_weight, vectors, -jnp.inf).max(1)
  return jnp.einsum("bl,bl...->b...", weights, vectors)


def _combine_layers(layers: list[Array], spec: Spec) -> Array:
  """Combines layers, each [b, l, d], as `spec.combine` says."""
  if spec.combine == "concat":
    return jnp.concatenate(layers, -1)
  stacked = jnp.stack(layers, 2)
  if spec.combine == "stack":
    return stacked
  if spec.combine == "mix":
    layer_weights = jax.nn.softmax(jnp.array(spec.mix, jnp.float32))
    return spec.gamma * jnp.einsum("n,blnd->bld", layer_weights, stacked)
  return stacked.sum(2) if spec.combine == "sum" else stacked.mean(2)


def _block_features(
  model: OpenedModel,
  texts: list[Text],
  spec: Spec,
  batch_tokens: int,
  report: Callable[[int], None] | None,
  num_earlier_texts: int,
) -> Iterator[TextVectors]:
  """Yields the features of one block of texts.

  See `extract_texts` for the arguments. `num_earlier_texts` is the number of
  texts in earlier blocks.
  """
  encoded = text_inputs.encode(model, texts)
  max_length = spec.max_length or _max_length_of(model)
  windows = [
    window
    for i, tokens_of_text in enumerate(encoded)
    for window in _windows_of(i, tokens_of_text, max_length, spec.overlap)
  ]
  weigh_windows = _make_row_weigher(model, spec)
  compute_vectors = functools.partial(
    _compute_vectors,
    model.module.encoder,
    # Keep only the fields that change the compiled program, so that specs that
    # differ only in other fields share one program.
    Spec(
      layers=tuple(spec.layers or ()),
      combine=spec.combine,
      mix=tuple(spec.mix),
      gamma=spec.gamma,
      unit=spec.unit if spec.unit == "max" else UNITS[0],
    ),
    model.params["encoder"],
  )
  vectors_by_text: list[Any] = [None] * len(texts)
  num_done = 0
  for batch in row_batches.batches(
    [window.ids for window in windows], max_length, batch_tokens
  ):
    batch_windows = [windows[i] for i in batch.row_indices]
    weights = weigh_windows and weigh_windows(
      batch_windows, batch.inputs["sequence_ids"].shape
    )
    vectors = np.asarray(compute_vectors(batch.inputs, weights))
    num_done += len(batch_windows)
    if report is not None:
      report(num_earlier_texts + num_done * len(texts) // len(windows))
    # The last rows of a batch may be padding, so there may be more vectors.
    for window, window_vectors in zip(batch_windows, vectors, strict=False):
      text_index = window.text_index
      if weigh_windows:
        merge = np.maximum if spec.unit == "max" else np.add
        vectors_by_text[text_index] = (
          window_vectors
          if vectors_by_text[text_index] is None
          else merge(vectors_by_text[text_index], window_vectors)
        )
        continue
      if vectors_by_text[text_index] is None:
        vectors_by_text[text_index] = np.zeros(
          (len(encoded[text_index].ids), *window_vectors.shape[1:]), np.float32
        )
      taken_vectors = window_vectors[window.begin : window.end]
      text_end = window.text_position + len(taken_vectors)
      vectors_by_text[text_index][window.text_position : text_end] = (
        taken_vectors
      )
  window_counts = np.bincount(
    [window.text_index for window in windows], minlength=len(texts)
  )
  for text, tokens_of_text, text_vectors, num_windows in zip(
    texts, encoded, vectors_by_text, window_counts, strict=True
  ):
    yield _features_of(
      text, tokens_of_text, text_vectors, int(num_windows), spec
    )


def _windows_of(
  text_index: int, encoded: Tokens, max_length: int | None, overlap: int
) -> Iterator[_Window]:
  """Yields the windows of a text: one row, or several if the text is long.

  In the overlap of two windows, the first half of the vectors is taken from the
  first window, and the second half from the second window. So a token in the
  overlap gets its vector from the window where it is farther from the edge.
  """
  begin, end, num_tokens = encoded.begin, encoded.end, len(encoded.ids)
  if max_length is None or num_tokens <= max_length:
    yield _Window(
      text_index, encoded.ids, begin=0, end=num_tokens, text_position=0
    )
    return
  head_ids, tail_ids = encoded.ids[:begin], encoded.ids[end:]
  inner_length = max_length - len(head_ids) - len(tail_ids)
  stride = inner_length - min(overlap, inner_length // 2)
  bounds = window_bounds(end - begin, inner_length, stride, last_is_full=True)
  taken_begin = 0
  for i, (start, stop) in enumerate(bounds):
    ids = np.concatenate(
      [head_ids, encoded.ids[begin + start : begin + stop], tail_ids]
    )
    is_last = i + 1 == len(bounds)
    # The head has `begin` tokens, so position p of the text is position
    # p - start of the window.
    taken_end = (
      num_tokens if is_last else begin + (stop + bounds[i + 1][0]) // 2
    )
    yield _Window(
      text_index,
      ids,
      begin=taken_begin - start,
      end=taken_end - start,
      text_position=taken_begin,
    )
    taken_begin = taken_end


def _make_row_weigher(
  model: OpenedModel, spec: Spec
) -> Callable[[list[_Window], tuple[int, int]], np.ndarray] | None:
  """Returns a function that computes the weights of positions in rows.

  The function takes rows and the batch's shape [b, l], and returns weights,
  float32 [b, l]. If the spec asks for a vector of each position, no weights are
  needed, and `_make_row_weigher` returns None.
  """
  if spec.unit not in TEXT_UNITS:
    return None
  family = model.config["family"]
  takes_last = spec.unit == "cls" and models.family(family).POOLING.last

  def weigh(rows: list[_Window], shape: tuple[int, int]) -> np.ndarray:
    weights = np.zeros(shape, np.float32)
    for i, row in enumerate(rows):
      if spec.unit in ("mean", "max"):
        weights[i, row.begin : row.end] = 1.0
      elif len(row.ids):
        weights[i, len(row.ids) - 1 if takes_last else 0] = 1.0
    return weights

  return weigh


def _features_of(
  text: Text, encoded: Tokens, x: np.ndarray, num_windows: int, spec: Spec
) -> TextVectors:
  """Returns the features of a text.

  Args:
    text: the text.
    encoded: the tokens of the text.
    x: the vectors of the tokens; if the text gets only one vector, the sum or
      the maximum of the vectors of its windows.
    num_windows: the number of windows of the text.
    spec: which vectors to compute.
  """
  token_names: Sequence[str] | None = None
  if spec.unit == "mean":
    x = x / np.float32(max(len(encoded.ids), 1))
  elif spec.unit == "max":
    x = np.where(np.isfinite(x), x, 0.0)  # A text without tokens has -inf.
  elif spec.unit == "cls":
    x = x / np.float32(num_windows)
  elif spec.unit == "piece":
    token_names = encoded.pieces
  else:
    token_names, x = _words_with_vectors(text, encoded, x, spec.pieces)
  if spec.normalize:
    # Divide by 1e-12 or more, as torch.nn.functional.normalize does, which
    # sentence-transformers uses.
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    x = x / np.maximum(norms, np.float32(1e-12))
  return TextVectors(
    text.id, None if token_names is None else tuple(token_names), x
  )


def _words_with_vectors(
  text: Text, encoded: Tokens, x: np.ndarray, piece_choice: str
) -> tuple[list[str], np.ndarray]:
  """Returns the words and their vectors, computed from the pieces' vectors."""
  # ELMo's tokens are words.
  if len(encoded.ids) and encoded.ids.ndim > 1:
    return encoded.pieces[1:-1], x[1:-1]
  words = [text.text[begin:end] for begin, end in text.word_spans]
  positions_in_words = np.flatnonzero(encoded.word_indices >= 0)
  vectors = np.zeros((len(words), *x.shape[1:]), np.float32)
  if piece_choice == "first":
    word_indices, first_pieces = np.unique(
      encoded.word_indices[positions_in_words], return_index=True
    )
    vectors[word_indices] = x[positions_in_words[first_pieces]]
    return words, vectors
  np.add.at(
    vectors, encoded.word_indices[positions_in_words], x[positions_in_words]
  )
  piece_counts = np.bincount(
    encoded.word_indices[positions_in_words], minlength=len(words)
  )
  piece_counts = np.maximum(piece_counts, 1).astype(np.float32)
  return words, vectors / piece_counts.reshape(-1, *[1] * (x.ndim - 1))
