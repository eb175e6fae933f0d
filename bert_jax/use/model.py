"""A model for users: `load` opens it, and its methods use it.

>>> import bert_jax
>>> model = bert_jax.load(PATH)
>>> model.fill_mask("The cat sat on the [MASK].")["filled"]
'The cat sat on the mat.'

One rule holds for all methods. One text (a string, a dict, or a pair in a
tuple) gives one result. A list or another collection of texts gives a result
for each text, in order. Results that are numbers or vectors come as one NumPy
array with an entry for each text. All other results come as a list with a dict
for each text; a notebook shows the list as a table, and `pandas.DataFrame`
takes it.
"""

import functools
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import flax.linen as nn
import numpy as np
from tokenizers import Tokenizer

from bert_jax import messages, models
from bert_jax.messages import Progress, UserError, did_you_mean, note_once
from bert_jax.models import from_config
from bert_jax.tasks.files import requests
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.use import (
  arguments,
  attention,
  features,
  fill_mask,
  likelihood,
  results,
  text_inputs,
)
from bert_jax.use import predict as predict_lib
from bert_jax.use.features import Spec
from bert_jax.use.predict import Predictor
from bert_jax.use.results import Results
from bert_jax.use.text_inputs import Text
from bert_jax.weights import hf, model_folder
from bert_jax.weights import load as loading
from bert_jax.weights.generator_discriminator import TOWERS
from bert_jax.weights.load import OpenedModel

FORMATS = ("bert_jax", "hf")
# The dtypes in which an encoder may compute.
DTYPES = ("float32", "bfloat16", "float16")
P = ParamSpec("P")
T = TypeVar("T")


def _names_parameters(function: Callable[P, T]) -> Callable[P, T]:
  """Makes the messages of a function use parameters' names, not flags."""

  @functools.wraps(function)
  def call(*args: P.args, **kwargs: P.kwargs) -> T:
    with messages.name_parameters():
      return function(*args, **kwargs)

  return call


@_names_parameters
def load(
  path: str,
  *,
  family: str | None = None,
  tower: str | None = None,
  dtype: str = "float32",
  **computation: Any,
) -> "Model":
  """Opens a model from any path.

  >>> import bert_jax
  >>> bert_jax.load(PATH).family
  'bert'

  Args:
    path: the folder of a run, for its newest checkpoint; RUN@best or RUN@STEP,
      for the best checkpoint or the checkpoint of a step; a folder that
      `bert_jax convert` or `save` wrote; a folder of transformers; "mini", the
      model that the package ships; the name of a model on the Hugging Face hub.
    family: the family of a folder of transformers; needed only if the folder's
      config.json does not name a family.
    tower: for ELECTRA: "generator" or "discriminator". If None, each method
      of a model with both towers uses the tower that fits the method.
    dtype: the dtype of the computation: "float32", or "bfloat16", which is
      faster on GPUs and TPUs.
    **computation: how the encoder computes: its options `attention`, `unroll`
      and `remat` (see `models.from_config.build`).

  Raises:
    UserError: the model or its tokenizer cannot be opened. The message is one
      sentence.
  """
  path = arguments.check_path("path", path, "the path or name of a model")
  if family is not None:
    arguments.check_choice("family", family, models.FAMILIES)
  if tower is not None:
    arguments.check_choice("tower", tower, (*TOWERS, "both"))
  dtype = _dtype_name(dtype)
  for name in computation:
    if name not in from_config.COMPUTATION_OPTIONS:
      options = ("family", "tower", *from_config.COMPUTATION_OPTIONS)
      raise UserError(
        f"{name} is no parameter of load{did_you_mean(name, options)}"
      )
  with Progress(f"opening {path}"):
    opened = loading.open_model(
      path, family=family, tower=tower, dtype=dtype, **computation
    )
    # Read parameters and tokenizer now, so that `load` reports a bad file.
    opened.params, opened.tokenizer  # noqa: B018
  return Model(opened)


def _dtype_name(dtype: Any) -> str:
  """Returns the name of a dtype, which the user gives as a name or a type."""
  try:
    name = None if dtype is None else np.dtype(dtype).name
  except TypeError:
    name = None
  if name not in DTYPES:
    raise UserError(f"dtype={dtype!r:.60} is not one of {', '.join(DTYPES)}.")
  return name


# Method -> the models that have the method, in words.
_NEEDED_MODELS = {
  "fill_mask": "a masked language model",
  "predict": "a model that was fine-tuned for a task",
  "likelihood": (
    "a masked or causal language model or ELECTRA's discriminator"
  ),
  "attention": "a Transformer",
}
# The next three dicts name tasks, families and kinds of tokenizers in words.
_HEAD_NAMES = {
  "encoder": "encoder without a head",
  "pretraining": "masked language model",
  "next_sentence": "model with a head for pairs of sentences",
  "generator": "generator, a masked language model",
  "discriminator": "discriminator of replaced tokens",
  "multiple_choice": "model for multiple choice",
  "token_classification": "model for tags",
  "span": "model for questions",
}
_FAMILY_NAMES = {
  "bert": "BERT",
  "roberta": "RoBERTa",
  "albert": "ALBERT",
  "electra": "ELECTRA",
  "distilbert": "DistilBERT",
  "tinybert": "TinyBERT",
  "gpt": "GPT-1",
  "elmo": "ELMo",
}
_TOKENIZER_NAMES = {
  "wordpiece": "WordPiece",
  "bytelevel": "byte-level BPE",
  "gpt1": "BPE",
  "unigram": "unigram",
  "words": "words",
}


class Model:
  """An opened model with its tokenizer.

  `load` makes it. No method changes its arguments or the model, and several
  threads may call methods of one model.

  Attributes:
    module: the Flax module: the encoder, `module.encoder`, with its head.
    params: the parameter tree; `module.apply({"params": params}, batch)`.
    tokenizer: a `tokenizers.Tokenizer`; None if the model has no tokenizer.
    config: family, task, sizes and labels.
  """

  def __init__(self, opened: OpenedModel):
    """Takes a model that `weights.load.open_model` opened."""
    self._opened = opened
    self._predictors: dict[tuple[int, bool], Predictor] = {}

  def __reduce__(self) -> tuple[type["Model"], tuple[OpenedModel]]:
    """Leaves compiled programs out of pickles and copies."""
    return type(self), (self._opened,)

  @functools.cached_property
  def _generator_or_model(self) -> OpenedModel:
    """The generator if an ELECTRA has both towers; else the whole model."""
    return loading.take_tower(self._opened, "generator")

  @functools.cached_property
  def _discriminator_or_model(self) -> OpenedModel:
    """The discriminator if an ELECTRA has both towers; else the whole model."""
    return loading.take_tower(self._opened, "discriminator")

  @property
  def module(self) -> nn.Module:
    """The Flax module; `module.encoder` is the encoder."""
    return self._opened.module

  @property
  @_names_parameters
  def params(self) -> dict[str, Any]:
    """The parameter tree."""
    return self._opened.params

  @property
  @_names_parameters
  def tokenizer(self) -> Tokenizer | None:
    """The tokenizer with special tokens; None if the model has no tokenizer."""
    return self._opened.tokenizer

  @property
  @_names_parameters
  def vocabulary(self) -> Vocabulary:
    """The tokenizer as a `Vocabulary`, which the functions of bert_jax take."""
    return self._opened.vocabulary

  @property
  def config(self) -> dict[str, Any]:
    """Family, task, sizes, label names, and where the model came from."""
    return self._opened.config

  @property
  def path(self) -> str:
    """The path or name that was opened."""
    return self._opened.path

  @property
  def family(self) -> str:
    """The name of the family: "bert", "roberta", ..."""
    return self.config["family"]

  @property
  def labels(self) -> list[str]:
    """The names of the predicted classes or tags; [] if there are no labels."""
    return list(self.config["labels"] or ())

  @property
  @_names_parameters
  def mask_token(self) -> str | None:
    """The spelling of the mask in a text; None if texts can have no mask."""
    if not self._opened.has_vocabulary:
      return None
    mask_id = self.vocabulary.special.mask
    return None if mask_id is None else self.vocabulary.pieces[mask_id]

  @property
  def methods(self) -> tuple[str, ...]:
    """The names of the methods that this model has."""
    config = self.config
    family, task = config["family"], config["task"]
    has_both_towers = family == "electra" and task == "pretraining"
    can_fill = has_both_towers or fill_mask.can_fill(config)
    can_score = can_fill or task in ("pretraining", "discriminator")
    pretraining_tasks = ("encoder", "pretraining", "next_sentence", *TOWERS)
    has_method = {  # Messages offer the methods in this order.
      "fill_mask": can_fill,
      "predict": task not in pretraining_tasks,
      "likelihood": can_score and family != "elmo",
      "attention": family != "elmo",
    }
    names = [name for name in has_method if has_method[name]]
    return (*names, "features", "similarity", "tokenize", "save")

  def __repr__(self) -> str:
    """Returns family, size, head, number of parameters, tokenizer, source."""
    arrays = self._opened.weights.arrays.values()
    num_parameters = sum(int(array.size) for array in arrays)
    step = self.config["source"].get("step")
    step_text = "" if step is None else f", step {step}"
    return (
      f"Model({self._description()}, {num_parameters:,} parameters,"
      f" {self._tokenizer_description()}, from {self.path!r}{step_text})"
    )

  def _tokenizer_description(self) -> str:
    """Returns the kind and size of the tokenizer in words."""
    if not self._opened.has_vocabulary:
      return "no tokenizer"
    try:
      vocabulary = self.vocabulary
    except UserError:
      # A tokenizer.json may have rules that `Vocabulary` does not support.
      return "a tokenizer of another kind"
    kind = _TOKENIZER_NAMES.get(vocabulary.algorithm, vocabulary.algorithm)
    case = "uncased " if vocabulary.lower_case else ""
    return f"{case}{kind} tokenizer of {vocabulary.vocab_size:,} pieces"

  def _description(self) -> str:
    """Returns family, size and head in words."""
    config = self.config
    family, task, sizes = config["family"], config["task"], config["model"]
    family_name = _FAMILY_NAMES.get(family, family)
    num_layers = self.module.encoder.num_layers
    size = f"{num_layers} layers of {sizes['hidden']}"
    if task == "sequence_classification":
      kind = (config["problem"] or "classification").replace("_", "-")
      labels = self.labels
      head = f"model for {kind}"
      if kind != "regression" and labels:
        head += f" into {len(labels)} labels"
    elif family == "gpt" and task == "pretraining":
      head = "causal language model"
    elif family == "electra" and task == "pretraining":
      head = "generator and discriminator"
    else:
      head = _HEAD_NAMES.get(task, task)
    return f"{family_name} of {size}: {head}"

  def _check_method(self, method: str) -> None:
    """Raises a UserError if the model does not have a method.

    The message says what the model is, and which methods it has.
    """
    if method in self.methods:
      return
    needed_models = _NEEDED_MODELS[method]
    offered_methods = [
      name for name in self.methods if name in (*_NEEDED_MODELS, "features")
    ]
    *first_methods, last_method = offered_methods
    choice = (
      f"{', '.join(first_methods)} or {last_method}"
      if first_methods
      else last_method
    )
    raise UserError(
      f"{self.path} is {_with_article(self._description())}, so it has no"
      f" {method}, which needs {needed_models}; use its {choice}, or load such"
      " a model."
    )

  @_names_parameters
  def fill_mask(self, texts: Any, top_k: int = 5) -> Any:
    """Fills each mask in texts with the pieces that the model finds likely.

    >>> row = model.fill_mask("the cat sat on the [MASK] .", top_k=3)
    >>> row["filled"]
    'the cat sat on the mat .'
    >>> row["masks"][0][0]["token"]
    'mat'
    >>> rows = model.fill_mask(["the [MASK] sat", "[MASK] cat [MASK]"])
    >>> [len(row["masks"]) for row in rows]
    [1, 2]

    Args:
      texts: a text or a collection of texts, each with one or more masks in
        the spelling of `mask_token`.
      top_k: the number of pieces for each mask.

    Returns:
      For each text a dict with `text`, `filled` (the text with the likeliest
      pieces) and `masks`: for each mask a list of dicts with `token` and
      `probability`, the likeliest first.

    Raises:
      UserError: the model fills no masks, or a text has no mask or is too long.
    """
    self._check_method("fill_mask")
    # Allow every whole number here, because `fill_mask.fill` checks that
    # `top_k` is from 1 to the number of pieces.
    option = messages.by_caller("--top", "top_k")
    top_k = arguments.check_count(option, top_k, -arguments.MAX_COUNT)
    is_collection, strings = _texts_as_strings(texts)
    model = self._generator_or_model
    with Progress("fill_mask", len(strings), "texts") as progress:
      masks = fill_mask.fill(model, strings, top_k, report=progress.report)
    return _one_or_all(
      is_collection, fill_mask.make_results(model, strings, masks)
    )

  @_names_parameters
  def predict(
    self,
    inputs: Any,
    *,
    batch_size: int = 32,
    max_length: int = 512,
    no_answer: bool = False,
  ) -> Any:
    """Predicts with the model's head.

    >>> row = classifier.predict("A fine film.")
    >>> row["label"], round(row["probability"], 2)
    ('positive', 0.95)
    >>> list(row["probabilities"])
    ['positive', 'negative']
    >>> rows = classifier.predict([("a text", "another"), ("a", "b")])
    >>> [row["label"] for row in rows]
    ['positive', 'positive']
    >>> entity = tagger.predict("in Oslo")["entities"][-1]
    >>> entity["label"], entity["text"], entity["start"], entity["end"]
    ('LOC', 'Oslo', 3, 7)

    Args:
      inputs: one input, or a collection of inputs: a list, an array, a column,
        a DataFrame or a data set of dicts. An input is one of these:

        | the model predicts | fields of a dict | string, list or tuple |
        |---|---|---|
        | classes, numbers | text, text_pair | text, or (text, text_pair) |
        | choices | text, choices | (text, choices) |
        | tags | text or words | text, or a list of words |
        | answers | question, context | (question, context) |

        A dict's fields that are not in the table are not read.
      batch_size: the number of rows that are run together.
      max_length: the largest number of tokens in a row. A longer text is read
        in windows.
      no_answer: True if a question may have no answer, as in SQuAD 2.0.

    Returns:
      For each input a dict, which depends on what the model predicts:

      * a class: `label`, `probability`, and `probabilities` by label.
      * several classes: `labels` (the predicted classes), and `probabilities`
        by label.
      * numbers: `score` for one number, or else `scores` by name.
      * choices: `choice` (its number), `probability`, `probabilities`.
      * tags: `words`, `tags` and `probabilities`. If the tags mark entities,
        also `entities`: for each entity `text`, `label`, `start` and `end`
        (characters of the text), and `probability`, the mean over the entity's
        words.
      * answers: `answer`, `probability`, `start` and `end` (characters of the
        context; None if `answer` is ""), and `nbest`: a list of answers, each
        with `text`, `probability`, `start` and `end`.

    Raises:
      UserError: the model predicts nothing, or an input is wrong; the message
        then names the input by its index.
    """
    self._check_method("predict")
    batch_size = arguments.check_count("batch_size", batch_size)
    max_length = arguments.check_count("max_length", max_length)
    arguments.check_bool("no_answer", no_answer)
    predictor = self._predictor(max_length, no_answer)
    is_collection, items = results.items_of(inputs, (Mapping, tuple))
    examples = []
    for input_index, item in enumerate(items):
      fields = results.fields_of(item, predictor.kind, input_index)
      try:
        example = requests.parse(fields, predictor.kind)
      except UserError as e:
        raise UserError(f"input {input_index}: {e}.") from e
      examples.append({"id": str(input_index)} | example)
    # For few inputs, a small batch needs little padding.
    smallest_batch_size = min(
      batch_size, 1 << max(len(examples) - 1, 0).bit_length()
    )
    predictor = predict_lib.with_batch_size(predictor, smallest_batch_size)
    predictions: list[dict[str, Any]] = []
    with Progress("predict", len(examples), "inputs") as progress:
      for chunk in predict_lib.chunks(iter(examples)):
        report = functools.partial(_report_from, progress, len(predictions))
        predictions += predict_lib.predict(predictor, chunk, report)
    return _one_or_all(is_collection, predictions)

  def _predictor(self, max_length: int, no_answer: bool) -> Predictor:
    """Returns the predictor for the two options; makes each only once."""
    options = max_length, no_answer
    if options not in self._predictors:
      self._predictors[options] = predict_lib.make_predictor(
        self._generator_or_model, max_length=max_length, no_answer=no_answer
      )
    return self._predictors[options]

  @_names_parameters
  def features(
    self,
    texts: Any,
    *,
    layers: int | Sequence[int] | str = -1,
    unit: str | None = None,
    combine: str = "concat",
    pieces: str = "first",
    normalize: bool = False,
  ) -> Any:
    """Returns vectors of texts, of their words or of their pieces.

    >>> model.features(["the cat sat", "a mat"]).shape
    (2, 32)
    >>> model.features("the cat sat", layers=[-2, -1]).shape
    (64,)
    >>> row = model.features("the cat sat", unit="word")
    >>> row["tokens"], row["vectors"].shape
    (['the', 'cat', 'sat'], (3, 32))

    Args:
      texts: a text or a collection of texts. A text may be a list of words if
        it is in a collection.
      layers: the index of a layer, several indices, or "all". 0 is the
        embeddings (for ELMo the vectors of the words), and -1 the last layer.
      unit: "mean", "cls" or "max" for a vector of each text; "word" or "piece"
        for vectors of its parts. If None, a model of sentence-transformers uses
        the pooling that its files name, and a model without a pooling uses
        "mean".
      combine: how several layers are joined: "concat", "sum", "mean", or
        "stack", which adds an axis of layers.
      pieces: "first" takes the vector of a word's first piece; "mean" takes the
        mean of the vectors of all its pieces.
      normalize: True divides each vector by its length.

    Returns:
      float32 [texts, width], or [width] for one text. For words and pieces a
      dict for each text with `tokens` and `vectors`, float32 [tokens, width].

    Raises:
      UserError: the model has no layer with this index, or no tokenizer.
    """
    is_collection, inputs = _texts_or_words(texts)
    spec = self._make_spec(layers, unit, combine, pieces, normalize)
    with Progress("features", len(inputs), "texts") as progress:
      vectors_by_text = list(
        features.extract_texts(
          self._discriminator_or_model, inputs, spec, report=progress.report
        )
      )
    if spec.unit not in features.TEXT_UNITS:
      return _one_or_all(
        is_collection,
        [
          {
            "tokens": list(text_vectors.tokens or ()),
            "vectors": text_vectors.vectors,
          }
          for text_vectors in vectors_by_text
        ],
      )
    if not vectors_by_text:
      # The vector of an empty text shows the shape of a vector.
      shape = self.features("", layers=layers, unit=unit, combine=combine).shape
      return np.zeros((0, *shape), np.float32)
    all_vectors = np.stack(
      [text_vectors.vectors for text_vectors in vectors_by_text]
    )
    return all_vectors if is_collection else all_vectors[0]

  def _make_spec(
    self,
    layers: int | Sequence[int] | str,
    unit: str | None,
    combine: str,
    pieces: str,
    normalize: bool,
  ) -> Spec:
    arguments.check_bool("normalize", normalize)
    for name, choice in (("unit", unit), ("combine", combine)):
      if choice is not None and not isinstance(choice, str):
        raise UserError(f"{name}={choice!r:.60} must be a string.")
    layer_indices: Any = None
    if not isinstance(layers, str) or layers != "all":
      layer_indices = [layers]
      if isinstance(layers, Iterable) and not isinstance(layers, str):
        layer_indices = [*layers]
      if not all(_is_integer(layer) for layer in layer_indices):
        raise UserError(
          f"layers={layers!r:.60}: write numbers of layers, or 'all'."
        )
      layer_indices = tuple(int(layer) for layer in layer_indices)
    spec = Spec(
      layers=layer_indices,
      combine=combine,
      unit=unit,  # type: ignore[arg-type]  # `complete_spec` replaces None.
      pieces=pieces,
      normalize=normalize,
    )
    spec, notes = features.complete_spec(
      self._discriminator_or_model, spec, "mean"
    )
    for line in notes:
      note_once(f"note: {line}.")
    return spec

  @_names_parameters
  def similarity(
    self,
    a: Any,
    b: Any = None,
    *,
    layers: int | Sequence[int] | str = -1,
    unit: str | None = None,
  ) -> Any:
    """Returns the cosines of the vectors of texts.

    >>> texts = ["the cat sat", "a cat sat", "un able"]
    >>> round(model.similarity(texts[0], texts[0]), 4)
    1.0
    >>> model.similarity(texts[0], texts).shape
    (3,)
    >>> model.similarity(texts).shape
    (3, 3)

    Args:
      a: a text or a collection of texts.
      b: the texts to compare with those of `a`; None compares `a` with itself.
      layers: see `features`.
      unit: "mean", "cls" or "max"; see `features`.

    Returns:
      float32 [texts of a, texts of b]. If `a` or `b` is one text, its axis is
      left out. Two single texts give a float.

    Raises:
      UserError: `unit` does not give one vector for a whole text.
    """
    if unit not in (None, *features.TEXT_UNITS):
      raise UserError(
        f"unit={unit!r}: a similarity needs a vector of each text; choose"
        f" {', '.join(features.TEXT_UNITS)}."
      )
    if isinstance(layers, Iterable) and not isinstance(layers, str):
      layers = [*layers]  # An iterator can be read only once.
    options: dict[str, Any] = dict(layers=layers, unit=unit, normalize=True)
    vectors_of_a = self.features(a, **options)
    vectors_of_b = vectors_of_a if b is None else self.features(b, **options)
    cosines = np.asarray(vectors_of_a @ vectors_of_b.T)
    return cosines if cosines.ndim else float(cosines)

  @_names_parameters
  def likelihood(self, texts: Any, *, method: str | None = None) -> Any:
    """Returns the likelihood of texts: for each a sum of natural logarithms.

    >>> model.likelihood(["the cat sat .", "cat the . sat"]).shape
    (2,)
    >>> bool(model.likelihood("the cat sat .") < 0)
    True

    Args:
      texts: a text or a collection of texts. No text may be longer than a row.
      method: what is summed over the tokens of a text. If None, the first
        method of this table that the model has.

        | method | models | value of each token |
        |---|---|---|
        | "pll" | masked LM | log P with this token alone masked |
        | "pll_word_l2r" | masked LM | log P with this token and the later |
        | | | pieces of its word masked |
        | "rtd" | ELECTRA | log P(the token is not replaced) |
        | "lm" | GPT-1 | log P given the earlier tokens; the first token |
        | | | has no value |

    Returns:
      float64 [texts], or a float for one text.

    Raises:
      UserError: the model has no likelihood, `method` does not fit the model,
        or a text is too long.
    """
    self._check_method("likelihood")
    if method is not None:
      arguments.check_name("method", method, "the name of a method")
    is_collection, strings = _texts_as_strings(texts)
    uses_generator = method is not None and method.startswith("pll")
    model = (
      self._generator_or_model
      if uses_generator
      else self._discriminator_or_model
    )
    with Progress("likelihood", len(strings), "texts") as progress:
      scores = likelihood.score_texts(
        model, strings, method, report=progress.report
      )
    return scores if is_collection else float(scores[0])

  @_names_parameters
  def attention(self, text: Any) -> Any:
    """Returns the attention weights of all heads in all layers.

    >>> row = model.attention("the cat sat")
    >>> row["tokens"]
    ['[CLS]', 'the', 'cat', 'sat', '[SEP]']
    >>> row["attention"].shape
    (2, 4, 5, 5)

    Args:
      text: a text or a collection of texts. No text may be longer than a row.

    Returns:
      For each text a dict with `tokens` and `attention`, float32 [layers,
      heads, from, to]. Each row [layer, head, from] sums to 1.

    Raises:
      UserError: the family has no attention, or a text is too long.
    """
    self._check_method("attention")
    is_collection, inputs = _texts_or_words(text)
    with Progress("attention", len(inputs), "texts") as progress:
      attentions = attention.attention(
        self._discriminator_or_model, inputs, report=progress.report
      )
    return _one_or_all(is_collection, attentions)

  @_names_parameters
  def tokenize(self, text: Any) -> Any:
    """Returns the pieces of a text, their ids and their characters.

    >>> model.tokenize("unaffable cat")["pieces"]
    ['[CLS]', 'un', '##aff', '##able', 'cat', '[SEP]']
    >>> model.tokenize("the cat")["ids"]
    [2, 5, 6, 3]
    >>> model.tokenize("the cat")["offsets"]
    [(0, 0), (0, 3), (4, 7), (0, 0)]

    Args:
      text: a text or a collection of texts.

    Returns:
      For each text a dict of three lists: `pieces`, with the special tokens;
      `ids`; and `offsets`, the characters (begin, end) of each piece. For
      ELMo, `ids` has one list for each word: the ids of 50 characters.

    Raises:
      UserError: the model has no tokenizer.
    """
    is_collection, inputs = _texts_or_words(text)
    with Progress(f"tokenize: {len(inputs):,} texts"):
      encoded = text_inputs.encode(self._discriminator_or_model, inputs)
    return _one_or_all(
      is_collection,
      [
        {
          "pieces": list(tokens.pieces),
          "ids": tokens.ids.tolist(),
          "offsets": [tuple(offset) for offset in tokens.offsets],
        }
        for tokens in encoded
      ],
    )

  @_names_parameters
  def save(self, path: str, *, format: str = "bert_jax") -> None:
    """Writes the model into a new folder, which `load` opens.

    >>> model.save("my_model")
    >>> bert_jax.load("my_model").predict is not None
    True
    >>> model.save("for_transformers", format="hf")

    Args:
      path: the new folder.
      format: "bert_jax" for a folder of this package; "hf" for a folder
        that transformers also opens.

    Raises:
      UserError: the folder exists and is not empty, the format is unknown, or
        transformers has no class for this model.
    """
    path = arguments.check_path("path", path, "the path of a new folder")
    if format not in FORMATS:
      raise UserError(f"format={format!r}: choose {' or '.join(FORMATS)}.")
    weights = self._opened.weights
    with Progress(f"saving {path}"):
      if format == "hf":
        hf.write(path, weights)
      else:
        model_folder.write(path, weights)


def _report_from(progress: Progress, start: int, done: int) -> None:
  """Reports `done` inputs of a chunk, before which `start` inputs are done."""
  progress.report(start + done)


def _is_integer(value: Any) -> bool:
  """Returns True if a value is an integer and not a bool."""
  return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _one_or_all(is_collection: bool, dicts: list[dict[str, Any]]) -> Any:
  """Returns all results for a collection, else the only result."""
  return Results(dicts) if is_collection else dicts[0]


def _texts_as_strings(texts: Any) -> tuple[bool, list[str]]:
  """Returns True for a collection of texts, and the texts."""
  is_collection, inputs = results.items_of(texts, (Mapping,))
  return is_collection, [
    results.text_of(text, i) for i, text in enumerate(inputs)
  ]


def _texts_or_words(texts: Any) -> tuple[bool, list[Text]]:
  """Returns True for a collection of texts, and the texts.

  A text in a collection may be a list of words.
  """
  is_collection, inputs = results.items_of(texts, (Mapping,))
  converted = []
  for i, text in enumerate(inputs):
    if isinstance(text, list | tuple | np.ndarray):
      words = [results.text_of(word, i) for word in text]
      converted.append(text_inputs.text_of_words(i, words))
    else:
      converted.append(text_inputs.text_of_string(i, results.text_of(text, i)))
  return is_collection, converted


def _with_article(description: str) -> str:
  """Puts "a" or "an" before a description."""
  # Only three names of families begin with the sound of a vowel.
  begins_with_vowel = description.startswith(("ALBERT", "ELECTRA", "ELMo"))
  return f"{'an' if begins_with_vowel else 'a'} {description}"
