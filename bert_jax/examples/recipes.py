"""Defines the recipes, the published ways to make rows from documents.

A recipe is a few pure numpy functions. For one epoch, `index` cuts a range of
documents into examples. It returns the index, an array with one element for
each example. `build` turns any elements of the index into a batch. Streams,
mixtures and seqio tasks use these functions, and need no code for a new recipe.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus, SpecialIds
from bert_jax.examples import assembly, elmo_windows, pairs, sentences
from bert_jax.examples.batch_keys import Batch, Features, features_of
from bert_jax.examples.masking import (
  MaskOptions,
  check_corpus,
  check_mask_options,
)
from bert_jax.messages import UserError, did_you_mean
from bert_jax.text.characters import MAX_CHARS

# The fields of `SpecialIds` that a masked language model needs.
MASKED_LM_TOKENS = ("pad", "cls", "sep", "mask")


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Holds the functions and sizes that a stream needs for an objective.

  Attributes:
    features: key -> (shape of one row, dtype).
    check: a function of a corpus; it raises UserError if the corpus cannot be
      used for the objective.
    index: (corpus, first document, end document, random key) -> array. Each
      element along its first axis is an example of one epoch. The end document
      is not in the range.
    build: (corpus, [B] elements of the index, [B] uint64 numbers of the
      examples, random key) -> batch. The numbers and the key determine every
      draw.
    required_tokens: the fields of `SpecialIds` that the vocabulary must have.
    copies: 0 if every epoch has new examples. Otherwise epoch e repeats the
      examples of epoch e mod `copies`, with the same masks, in a new order.
    num_streams: the number of stateful streams, one for each row of a batch; 0
      if the rows are not from stateful streams. See `streams.StatefulStreams`.
    find_texts: finds the texts that elements of the index stand for, see
      `assembly.FindTexts`; None for ELMo, whose rows `rows.SEQUENCE_DTYPE`
      cannot describe.
    has_pairs: True if each sequence of a row is a pair of texts with a label.
  """

  features: Features
  check: Callable[[Corpus], None]
  index: Callable[[Corpus, int, int, int], np.ndarray]
  build: Callable[[Corpus, np.ndarray, np.ndarray, int], Batch]
  required_tokens: tuple[str, ...] = ()
  copies: int = 0
  num_streams: int = 0
  find_texts: assembly.FindTexts | None = None
  has_pairs: bool = False


def draws_key(recipe: Recipe, key: int, epoch: int, *subkeys: int) -> int:
  """Returns the key of an epoch's draws.

  All epochs that repeat one copy have the same key.

  Args:
    recipe: the recipe of a stream.
    key: the key of the stream.
    epoch: the number of the epoch, from 0.
    *subkeys: numbers that the returned key also depends on.
  """
  if not recipe.copies:
    return hashing.make_key(key, "epoch", epoch, *subkeys)
  return hashing.make_key(key, "copy", epoch % recipe.copies, *subkeys)


def fixed_numbers(key: int, count: int) -> np.ndarray:
  """Returns the number that each example has in all epochs of one copy.

  Args:
    key: a key that depends on the copy and the range of documents.
    count: the number of examples in the range.

  Returns:
    [count] uint64.
  """
  return hashing.bits(hashing.make_key(key, "numbers"), np.arange(count))


@dataclasses.dataclass(frozen=True)
class RowOptions:
  """Holds the options of all recipes.

  A recipe has the options for which its registration gives a default.

  Attributes:
    length: L, the number of tokens in a row, special tokens included; for ELMo,
      the number of words.
    max_predictions, mask_rate, masking, replacement, count, repeat_positions,
      smoothing: see `masking.MaskOptions`.
    short_probability: the share of documents that are cut into shorter
      examples; for ELECTRA, the share of rows that may be shorter.
    random_share: "published" or 0.5; it decides which of BERT's pairs are
      random, that is, have a random second segment. A pair is made from a chunk
      (consecutive sentences of one document).
      With "published", a chunk of one sentence always makes a random pair. Half
      of the other chunks make random pairs. So more than half of all pairs are
      random.
      With 0.5, half of the pairs are random. A chunk of one sentence can then
      make a pair that is not random: the sentence is split at a uniform
      position. (A chunk of a single token, at the end of a document, still
      makes a random pair.)
    single: how ALBERT makes a pair from a chunk of one sentence. "split" splits
      the sentence at a uniform position, so that both segments are always from
      one document; a sentence of a single token makes no pair.
      "random_document" takes a random second segment, with the label of swapped
      segments, as the released program does.
    static_masks: the number of copies of the examples, with fixed pairs and
      masks, which the epochs repeat in turn. 0 gives every epoch new pairs and
      masks. BERT's released program and RoBERTa's paper (section 4.1) have 10
      copies. ALBERT's program has 40 (dupe_factor).
    max_sequences: S, the largest number of sequences in a row. A number above 1
      packs rows.
    streams: the number of stateful streams, for ELMo; 0 means no stateful
      streams. With 0, both directions read the same window of the text, and
      each epoch shuffles the windows. With a larger number, the text is cut
      into that many streams, as published. Each stream gives one row of every
      batch. The forward direction reads the windows of a stream from the first
      to the last, and the backward direction from the last to the first.
  """

  length: int
  max_predictions: int = 20
  mask_rate: float = 0.15
  masking: str = "token"
  replacement: str = "bert"
  count: str = "round"
  repeat_positions: bool = False
  smoothing: float = 0.0
  short_probability: float = 0.1
  random_share: str | float = "published"
  single: str = "split"
  static_masks: int = 0
  max_sequences: int = 1
  streams: int = 0

  def mask_options(self) -> MaskOptions:
    """Returns the masking options; raises UserError if one is out of range."""
    option_names = [field.name for field in dataclasses.fields(MaskOptions)]
    return check_mask_options(
      MaskOptions(**{name: getattr(self, name) for name in option_names})
    )


@dataclasses.dataclass(frozen=True)
class RecipeFactory:
  """Makes a recipe for a vocabulary: `factory(special, vocab_size, **options)`.

  Attributes:
    name: the name of the recipe.
    defaults: option -> its default. The recipe has only these options.
    function: (ids of the special tokens, number of pieces, options) -> recipe.
  """

  name: str
  defaults: Mapping[str, Any]
  function: Callable[[SpecialIds, int, RowOptions], Recipe]

  def __call__(
    self, special: SpecialIds, vocab_size: int, **options: Any
  ) -> Recipe:
    """Makes a recipe.

    Args:
      special: the ids of the special tokens.
      vocab_size: the number of pieces.
      **options: fields of `RowOptions` that are in `defaults`.

    Raises:
      UserError: there is no such option, or an option is out of range.
    """
    for option in options:
      if option not in self.defaults:
        raise UserError(
          f"{self.name} has no option {option!r}"
          f"{did_you_mean(option, self.defaults)}"
        )
    options = {**self.defaults, **options}
    return self.function(special, vocab_size, RowOptions(**options))


RECIPES: dict[str, RecipeFactory] = {}


def _register(
  **defaults: Any,
) -> Callable[[Callable[..., Recipe]], RecipeFactory]:
  """Returns a decorator that puts a function into `RECIPES`.

  Args:
    **defaults: the options of the recipe, and their defaults.
  """

  def decorate(function: Callable[..., Recipe]) -> RecipeFactory:
    name = function.__name__
    RECIPES[name] = RecipeFactory(name, defaults, function)
    return RECIPES[name]

  return decorate


@_register(
  length=128,
  max_predictions=20,
  mask_rate=0.15,
  short_probability=0.1,
  random_share="published",
  masking="token",
  replacement="bert",
  count="round",
  repeat_positions=False,
  static_masks=0,
  max_sequences=1,
)
def bert_pairs(
  special: SpecialIds, vocab_size: int, options: RowOptions
) -> Recipe:
  """BERT's pre-training: masked tokens and next-sentence prediction.

  The defaults come from google-research/bert's create_pretraining_data.py.
  """
  _check_short_probability(options)
  # The option is a string if it comes from a command line.
  splits_single_sentence = str(options.random_share) == "0.5"
  if options.random_share != "published" and not splits_single_sentence:
    raise UserError(
      f"random_share is {options.random_share!r}; choose 'published' or 0.5."
    )
  return _pair_recipe(
    special,
    vocab_size,
    options,
    splits_single_sentence=splits_single_sentence,
    needs_two_documents=True,
  )


@_register(
  length=512,
  max_predictions=77,
  mask_rate=0.15,
  short_probability=0.1,
  single="split",
  masking="ngram",
  replacement="bert",
  count="round",
  static_masks=0,
  max_sequences=1,
)
def albert_pairs(
  special: SpecialIds, vocab_size: int, options: RowOptions
) -> Recipe:
  """ALBERT's pre-training: masked n-grams and sentence-order prediction.

  The source is google-research/albert create_pretraining_data.py. Its flag for
  `max_predictions` is 20, also at length 512, where 20 predictions are only 4%
  of a row. The default here has space for the 15% of the paper.
  """
  _check_short_probability(options)
  choices = ("split", "random_document")
  if options.single not in choices:
    raise UserError(
      f"single is {options.single!r}"
      f"{did_you_mean(str(options.single), choices)}"
    )
  splits_single_sentence = options.single == "split"
  return _pair_recipe(
    special,
    vocab_size,
    options,
    splits_single_sentence=splits_single_sentence,
    needs_two_documents=not splits_single_sentence,
    predicts_order=True,
  )


@_register(
  length=128,
  max_predictions=19,
  mask_rate=0.15,
  short_probability=0.05,
  masking="token",
  replacement="electra",
  count="round_single",
  repeat_positions=False,
  static_masks=0,
  max_sequences=1,
)
def electra_segments(
  special: SpecialIds, vocab_size: int, options: RowOptions
) -> Recipe:
  """ELECTRA's rows: one or two segments of one document, without a label.

  The source is google-research/electra build_pretraining_dataset.py. In its
  configure_pretraining.py, `max_predictions` is (mask_rate + 0.005) * length.
  """
  _check_short_probability(options)
  layout = assembly.RowLayout(
    special,
    vocab_size,
    options.length,
    options.mask_options(),
    has_segments=True,
    moves_sentences=True,
    max_sequences=options.max_sequences,
  )
  index = functools.partial(
    sentences.index_segments,
    length=options.length,
    short_probability=options.short_probability,
  )
  return _layout_recipe(layout, index, options.static_masks)


# The options of RoBERTa's rows (fairseq).
_ROBERTA_OPTIONS = dict(
  length=512,
  max_predictions=80,
  mask_rate=0.15,
  masking="token",
  replacement="roberta",
  count="stochastic",
  smoothing=0.0,
  static_masks=0,
  max_sequences=1,
)


@_register(**_ROBERTA_OPTIONS)
def full_sentences(
  special: SpecialIds, vocab_size: int, options: RowOptions
) -> Recipe:
  """RoBERTa's FULL-SENTENCES: <s> sentences </s>, across documents.

  If a document ends inside a row, one more </s> follows it, and tokens attend
  across this </s> (Liu et al. 2019, section 4.2; fairseq "complete"). Special
  tokens are never hidden here; fairseq hides them like tokens of the text.
  """
  if options.max_sequences > 1:
    raise UserError(
      f"max_sequences is {options.max_sequences}, but full_sentences fills its"
      " rows already; choose builder doc_sentences, whose rows can be packed,"
      " or max_sequences=1."
    )
  return _sentence_recipe(special, vocab_size, options, crosses_documents=True)


@_register(**_ROBERTA_OPTIONS)
def doc_sentences(
  special: SpecialIds, vocab_size: int, options: RowOptions
) -> Recipe:
  """RoBERTa's DOC-SENTENCES: <s> sentences </s>, from one document.

  With masking="span", replacement="unigram" and count="ceil", the rows are
  SpanBERT's (Joshi et al. 2020; no_nsp_span_bert_dataset.py of
  facebookresearch/SpanBERT).
  """
  return _sentence_recipe(special, vocab_size, options, crosses_documents=False)


@_register(length=512, max_sequences=1)
def lm(special: SpecialIds, vocab_size: int, options: RowOptions) -> Recipe:
  """GPT-1's rows: contiguous tokens of one document, and the token after each.

  No special tokens are needed. Padding has id 0 if the vocabulary has no
  padding token.
  """
  layout = assembly.RowLayout(
    special,
    vocab_size,
    options.length,
    mask_options=None,
    max_sequences=options.max_sequences,
  )
  index = functools.partial(sentences.index_tokens, length=options.length)
  return _layout_recipe(layout, index)


@_register(length=20, streams=0)
def elmo(special: SpecialIds, vocab_size: int, options: RowOptions) -> Recipe:
  """ELMo's pre-training: predicts the words before and after each word.

  The vocabulary is a list of words. A word that is not in the list has the
  target `<UNK>`. The default length is `unroll_steps` of allenai/bilm-tf.
  """
  del special
  length, streams = options.length, options.streams
  if not 2 <= length <= 2**15:
    raise UserError(f"length is {length}; it must be 2 to 32,768 words.")
  if streams < 0:
    raise UserError(
      f"streams is {streams}; it must be at least 0 (0 means windows in any"
      " order)."
    )
  keys = list(elmo_windows.BATCH_KEYS)
  index, build = elmo_windows.index_windows, elmo_windows.build_windows
  if streams:
    keys.append("back_char_ids")
    index, build = elmo_windows.index_links, elmo_windows.build_links
  return Recipe(
    features=features_of(keys, {"L": length, "C": MAX_CHARS}),
    check=elmo_windows.check_words,
    index=functools.partial(index, length=length),
    build=functools.partial(build, length=length, vocab_size=vocab_size),
    required_tokens=("cls", "sep"),
    num_streams=streams,
  )


def make_recipe(
  name: str, special: SpecialIds, vocab_size: int, options: Mapping[str, Any]
) -> Recipe:
  """Makes a recipe from its name in `RECIPES` and its options.

  Raises:
    UserError: there is no such recipe or option, a value is out of range, or
      the vocabulary lacks a special token.
  """
  if name not in RECIPES:
    raise UserError(
      f"there is no builder {name!r}{did_you_mean(name, RECIPES)}"
    )
  recipe = RECIPES[name](special, vocab_size, **options)
  missing_tokens = [
    token for token in recipe.required_tokens if getattr(special, token) is None
  ]
  if missing_tokens:
    raise UserError(
      f"{name}: the vocabulary has no token for {', '.join(missing_tokens)};"
      " prepare the text with a vocabulary that has one."
    )
  return recipe


def slots_warning(name: str, options: Mapping[str, Any]) -> str | None:
  """Returns a warning if full rows have fewer slots than `mask_rate` asks for.

  It returns None if there are enough slots, or if the recipe has no slots. Too
  few slots are no error, because ALBERT's released data have too few.

  Args:
    name: a key of `RECIPES`.
    options: name -> option. Options that the recipe does not have are ignored.
  """
  defaults = RECIPES[name].defaults
  if "max_predictions" not in defaults:
    return None
  length, num_slots, rate = (
    options.get(option, defaults[option])
    for option in ("length", "max_predictions", "mask_rate")
  )
  if num_slots >= round(length * rate):
    return None
  return (
    f"max_predictions {num_slots} hides at most {num_slots / length:.1%} of a"
    f" full row of {length}, not mask_rate's {100 * rate:g}%"
  )


def _check_short_probability(options: RowOptions) -> None:
  """Raises UserError if `short_probability` is out of range."""
  share = options.short_probability
  if not 0 <= share <= 1:
    raise UserError(f"short_probability is {share}; it is a share, 0 to 1.")


def _pair_recipe(
  special: SpecialIds,
  vocab_size: int,
  options: RowOptions,
  splits_single_sentence: bool,
  needs_two_documents: bool,
  predicts_order: bool = False,
) -> Recipe:
  """Returns a recipe for pairs of segments; see `pairs.index_chunks`."""
  layout = assembly.RowLayout(
    special,
    vocab_size,
    options.length,
    options.mask_options(),
    has_pairs=True,
    has_segments=True,
    max_sequences=options.max_sequences,
  )
  max_tokens = options.length - 3
  index = functools.partial(
    pairs.index_chunks,
    max_tokens=max_tokens,
    short_probability=options.short_probability,
    splits_single_sentence=splits_single_sentence,
    predicts_order=predicts_order,
  )
  find_texts = functools.partial(pairs.find_texts, max_tokens=max_tokens)
  return _layout_recipe(
    layout,
    index,
    options.static_masks,
    find_texts,
    needs_two_documents=needs_two_documents,
  )


def _sentence_recipe(
  special: SpecialIds,
  vocab_size: int,
  options: RowOptions,
  crosses_documents: bool,
) -> Recipe:
  """Returns a recipe for whole sentences; see `sentences.index_sentences`."""
  layout = assembly.RowLayout(
    special,
    vocab_size,
    options.length,
    options.mask_options(),
    crosses_documents=crosses_documents,
    max_sequences=options.max_sequences,
  )
  index = functools.partial(
    sentences.index_sentences,
    max_tokens=options.length - 2,
    crosses_documents=crosses_documents,
  )
  return _layout_recipe(layout, index, options.static_masks)


def _check_documents(
  corpus: Corpus, mask_options: MaskOptions | None, needs_two_documents: bool
) -> None:
  """Raises UserError if a corpus cannot be used; see `_layout_recipe`."""
  if needs_two_documents:
    pairs.check_pairs(corpus)
  if mask_options is not None:
    check_corpus(corpus, mask_options)


def _layout_recipe(
  layout: assembly.RowLayout,
  index: Callable[..., np.ndarray],
  static_masks: int = 0,
  find_texts: assembly.FindTexts = assembly.return_elements,
  needs_two_documents: bool = False,
) -> Recipe:
  """Makes a recipe whose rows hold sequences, see `rows.SEQUENCE_DTYPE`.

  Args:
    layout: the layout of the rows.
    index: a function like `Recipe.index`; each element of its array is one
      sequence of a row.
    static_masks: see `Recipe.copies`.
    find_texts: finds the texts of the elements of `index`.
    needs_two_documents: True if a corpus must have at least two documents.
  """
  assembly.check_layout(layout)
  if static_masks < 0:
    raise UserError(
      f"static_masks is {static_masks}; it must be at least 0 (0 means new"
      " masks in every epoch)."
    )
  if layout.max_sequences > 1:
    index = functools.partial(
      assembly.index_packed,
      layout=layout,
      index_sequences=index,
      find_texts=find_texts,
    )
    find_texts = assembly.return_elements
  return Recipe(
    features=features_of(
      assembly.batch_key_names(layout), assembly.axis_sizes(layout)
    ),
    check=functools.partial(
      _check_documents,
      mask_options=layout.mask_options,
      needs_two_documents=needs_two_documents,
    ),
    index=index,
    build=functools.partial(
      assembly.build, layout=layout, find_texts=find_texts
    ),
    required_tokens=MASKED_LM_TOKENS if layout.mask_options else (),
    copies=static_masks,
    find_texts=find_texts,
    has_pairs=layout.has_pairs,
  )
