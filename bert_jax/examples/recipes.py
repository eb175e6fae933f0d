"""The recipes: each published way to make rows from documents, by name.

A recipe is a few pure numpy functions. `index` cuts an epoch of a range of
documents into examples; `build` turns any of them into a batch. Streams,
mixtures and seqio tasks know no more about an objective than this.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_jax import hashing
from bert_jax.corpus.reader import Corpus, SpecialIds
from bert_jax.examples import assembly, elmo_windows, pairs, sentences
from bert_jax.examples.batch_keys import Batch, Features, select
from bert_jax.examples.masking import Masks, check_corpus, check_masks
from bert_jax.messages import UserError, nearest
from bert_jax.text.characters import MAX_CHARS

# The special tokens of a masked language model, of `SpecialIds`.
ROLES = ("pad", "cls", "sep", "mask")


@dataclasses.dataclass(frozen=True)
class Recipe:
  """What a stream needs to know about an objective.

  Attributes:
    features: key -> (shape of one row, dtype).
    check: (corpus); raises ValueError if it cannot serve the objective.
    index: (corpus, first document, last document, key) -> array, one element
      along its first axis an example of this epoch.
    build: (corpus, [B] elements of the index, [B] uint64 numbers of the
      examples, key) -> batch. The numbers and the key determine every draw.
    roles: the special tokens that it needs, of `SpecialIds`.
    copies: 0 if every epoch has examples of its own; else epoch e repeats those
      of epoch e mod `copies`, masks and all, in another order.
    streams: 0, or the number of streams of text that go on from batch to batch,
      one a row; see `stateful_streams.StatefulStreams`.
    settle: see `assembly.Settle`: which texts elements of the index stand for;
      None if they are no `rows.EXAMPLE`.
    pairs: True if a row has two texts and a label for how they belong together.
  """

  features: Features
  check: Callable[[Corpus], None]
  index: Callable[[Corpus, int, int, int], np.ndarray]
  build: Callable[[Corpus, np.ndarray, np.ndarray, int], Batch]
  roles: tuple[str, ...] = ()
  copies: int = 0
  streams: int = 0
  settle: assembly.Settle | None = None
  pairs: bool = False


def draws_key(recipe: Recipe, key: int, *place: int) -> int:
  """The key of an epoch's examples: its own, or that of its copy.

  Args:
    recipe: the recipe of a stream.
    key: the key of the stream.
    *place: the epoch, and what else tells keys apart.
  """
  epoch, *rest = place
  if not recipe.copies:
    return hashing.make_key(key, "epoch", *place)
  return hashing.make_key(key, "copy", epoch % recipe.copies, *rest)


def fixed_numbers(key: int, count: int) -> np.ndarray:
  """Numbers of examples that every epoch of a copy gives them, [count] uint64.

  Args:
    key: the key of the copy and of a part of the corpus.
    count: the number of examples in the part.
  """
  return hashing.bits(hashing.make_key(key, "numbers"), np.arange(count))


@dataclasses.dataclass(frozen=True)
class RowOptions:
  """The options of all recipes; a recipe has those that it names a default of.

  Attributes:
    length: L, tokens in a row, special tokens included; for ELMo words.
    max_predictions, mask_rate, masking, replacement, count, repeat_positions,
      smoothing: see `masking.Masks`.
    short_probability: share of documents (ELECTRA: of rows) that are cut short.
    random_share: share of BERT's pairs whose second segment is random.
      "published": half, and every chunk that is a single sentence, so more than
      half in total. 0.5: half; a chunk that is a single sentence then makes a
      "next" pair by a split inside it, at a uniform place (if it is a single
      token, at a document's end, it stays random).
    single: what ALBERT's chunk of one sentence becomes. "split": the sentence
      in two, at a uniform place, so that both segments are of one document
      always (a single token makes no pair). "random_document": its second
      segment is random, with the label of swapped ones, as released.
    static_masks: the number of copies with fixed pairs and masks that the
      epochs go through (10 in BERT's released program and in RoBERTa's paper,
      section 4.1; 40 in ALBERT's, dupe_factor); 0 for new ones in every epoch.
    max_sequences: S, the most sequences in a row; 1 for one a row, more packs.
    streams: 0: ELMo's row is any window, both directions read it, and an epoch
      shuffles them. Else the text is that many streams side by side, one a row
      of a batch, which go on from batch to batch (as published): the forward
      direction reads a stream from its beginning, the backward direction the
      same one from its end, in rows of its own.
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

  def masks(self) -> Masks:
    """Returns what is hidden; ValueError if an option is out of its range."""
    return check_masks(
      Masks(**{name: getattr(self, name) for name in Masks._fields})
    )


@dataclasses.dataclass(frozen=True)
class RecipeFactory:
  """Makes a recipe for a vocabulary: `factory(special, vocab_size, **options)`.

  Attributes:
    name: the name of the recipe.
    defaults: option -> its default; it has these options alone.
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
      special: ids of the special tokens.
      vocab_size: number of pieces.
      **options: of `RowOptions`, those in `defaults`.

    Raises:
      ValueError: no such option, or one is out of its range.
    """
    for option in options:
      if option not in self.defaults:
        raise UserError(
          f"{self.name} has no option {option!r}"
          f"{nearest(option, self.defaults)}"
        )
    options = {**self.defaults, **options}
    return self.function(special, vocab_size, RowOptions(**options))


RECIPES: dict[str, RecipeFactory] = {}


def _register(
  **defaults: Any,
) -> Callable[[Callable[..., Recipe]], RecipeFactory]:
  """Puts a function into `RECIPES`, with the options that it has."""

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

  The defaults are those of google-research/bert's create_pretraining_data.py.
  """
  _check_share(options)
  # On a command line it is a string.
  split_single = str(options.random_share) == "0.5"
  if options.random_share != "published" and not split_single:
    raise UserError(
      f"random_share is {options.random_share!r}; choose 'published' or 0.5."
    )
  return _pairs(special, vocab_size, options, split_single, needs_two=True)


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

  google-research/albert create_pretraining_data.py; its flag for
  `max_predictions` is 20, at length 512 too, which hides 4%: by default there
  is room for the 15% of the paper.
  """
  _check_share(options)
  singles = ("split", "random_document")
  if options.single not in singles:
    raise UserError(
      f"single is {options.single!r}{nearest(str(options.single), singles)}"
    )
  split = options.single == "split"
  return _pairs(
    special, vocab_size, options, split, needs_two=not split, order=True
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

  google-research/electra build_pretraining_dataset.py; `max_predictions` is
  (mask_rate + 0.005) * length in its configure_pretraining.py.
  """
  _check_share(options)
  layout = assembly.Layout(
    special,
    vocab_size,
    options.length,
    options.masks(),
    segments=True,
    returning=True,
    max_sequences=options.max_sequences,
  )
  index = functools.partial(
    sentences.index_segments,
    length=options.length,
    short_probability=options.short_probability,
  )
  return _laid_out(layout, index, options.static_masks)


# RoBERTa's rows (fairseq).
_ROBERTA = dict(
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


@_register(**_ROBERTA)
def full_sentences(
  special: SpecialIds, vocab_size: int, options: RowOptions
) -> Recipe:
  """RoBERTa's FULL-SENTENCES: <s> sentences </s>, across documents.

  Where a document ends within a row there is one </s> more, and tokens attend
  across it (Liu et al. 2019, section 4.2; fairseq "complete"). Special tokens
  are never hidden, where fairseq's masks take no notice of what a token is.
  """
  if options.max_sequences > 1:
    raise UserError(
      f"max_sequences is {options.max_sequences}, but full_sentences fills its"
      " rows already; choose builder doc_sentences, whose rows can be packed,"
      " or max_sequences=1."
    )
  return _sentences(special, vocab_size, options, crossing=True)


@_register(**_ROBERTA)
def doc_sentences(
  special: SpecialIds, vocab_size: int, options: RowOptions
) -> Recipe:
  """RoBERTa's DOC-SENTENCES: <s> sentences </s>, of one document.

  With masking="span", replacement="unigram" and count="ceil" it makes
  SpanBERT's rows (Joshi et al. 2020; no_nsp_span_bert_dataset.py of
  facebookresearch/SpanBERT).
  """
  return _sentences(special, vocab_size, options, crossing=False)


@_register(length=512, max_sequences=1)
def lm(special: SpecialIds, vocab_size: int, options: RowOptions) -> Recipe:
  """GPT-1's rows: contiguous tokens of one document and what follows each.

  It needs no special tokens; padding has id 0 if there is no special one.
  """
  layout = assembly.Layout(
    special,
    vocab_size,
    options.length,
    None,
    max_sequences=options.max_sequences,
  )
  index = functools.partial(sentences.index_tokens, length=options.length)
  return _laid_out(layout, index)


@_register(length=20, streams=0)
def elmo(special: SpecialIds, vocab_size: int, options: RowOptions) -> Recipe:
  """ELMo's pre-training: words before and after each word.

  The vocabulary is one of words; words beyond it are `<UNK>` as targets. The
  length is `unroll_steps` of allenai/bilm-tf.
  """
  del special
  length, streams = options.length, options.streams
  if not 2 <= length <= 2**15:
    raise UserError(f"length is {length}; 2 to 32,768 words.")
  if streams < 0:
    raise UserError(f"streams is {streams}; 0 for windows in any order.")
  keys = list(elmo_windows.KEYS)
  index, build = elmo_windows.index_all, elmo_windows.build_all
  if streams:
    keys.append("back_char_ids")
    index, build = elmo_windows.index_links, elmo_windows.build_links
  return Recipe(
    features=select(keys, {"L": length, "C": MAX_CHARS}),
    check=elmo_windows.check,
    index=functools.partial(index, length=length),
    build=functools.partial(build, length=length, vocab_size=vocab_size),
    roles=("cls", "sep"),
    streams=streams,
  )


def make_recipe(
  name: str, special: SpecialIds, vocab_size: int, options: Mapping[str, Any]
) -> Recipe:
  """Makes a recipe from its name in `RECIPES` and its options.

  Raises:
    ValueError: no such recipe or option (the nearest is named), a value out of
      range, or the vocabulary lacks a special token.
  """
  if name not in RECIPES:
    raise UserError(f"no builder {name!r}{nearest(name, RECIPES)}")
  recipe = RECIPES[name](special, vocab_size, **options)
  lacking = [role for role in recipe.roles if getattr(special, role) is None]
  if lacking:
    raise UserError(
      f"{name}: the vocabulary has no token for {', '.join(lacking)}; prepare"
      " the text with one that has."
    )
  return recipe


def shortfall(name: str, options: Mapping[str, Any]) -> str | None:
  """Says that full rows have fewer prediction slots than `mask_rate` asks for.

  As ALBERT's released data have; None if there are enough.

  Args:
    name: a key of `RECIPES`.
    options: options, of which only those of the recipe are read.
  """
  defaults = RECIPES[name].defaults
  if "max_predictions" not in defaults:
    return None
  length, slots, rate = (
    options.get(option, defaults[option])
    for option in ("length", "max_predictions", "mask_rate")
  )
  if slots >= round(length * rate):
    return None
  return (
    f"max_predictions {slots} hides at most {slots / length:.1%} of a full row"
    f" of {length}, not mask_rate's {100 * rate:g}%"
  )


def _check_share(options: RowOptions) -> None:
  """Raises ValueError, naming the option, its value and its range."""
  share = options.short_probability
  if not 0 <= share <= 1:
    raise UserError(f"short_probability is {share}; it is a share, 0 to 1.")


def _pairs(
  special: SpecialIds,
  vocab_size: int,
  options: RowOptions,
  split_single: bool,
  needs_two: bool,
  order: bool = False,
) -> Recipe:
  """A recipe for pairs of segments; see `pairs.index_chunks`."""
  layout = assembly.Layout(
    special,
    vocab_size,
    options.length,
    options.masks(),
    pairs=True,
    segments=True,
    max_sequences=options.max_sequences,
  )
  room = options.length - 3
  index = functools.partial(
    pairs.index_chunks,
    max_tokens=room,
    short_probability=options.short_probability,
    split_single=split_single,
    order=order,
  )
  settle = functools.partial(pairs.resolve, max_tokens=room)
  return _laid_out(
    layout, index, options.static_masks, settle, needs_two=needs_two
  )


def _sentences(
  special: SpecialIds, vocab_size: int, options: RowOptions, crossing: bool
) -> Recipe:
  """A recipe for whole sentences; see `sentences.index_sentences`."""
  layout = assembly.Layout(
    special,
    vocab_size,
    options.length,
    options.masks(),
    crossing=crossing,
    max_sequences=options.max_sequences,
  )
  index = functools.partial(
    sentences.index_sentences, room=options.length - 2, cross=crossing
  )
  return _laid_out(layout, index, options.static_masks)


def _check(corpus: Corpus, masks: Masks | None, needs_two: bool) -> None:
  if needs_two:
    pairs.check_pairs(corpus)
  if masks is not None:
    check_corpus(corpus, masks)


def _laid_out(
  layout: assembly.Layout,
  index: Callable[..., np.ndarray],
  static_masks: int = 0,
  settle: assembly.Settle = assembly.settled,
  needs_two: bool = False,
) -> Recipe:
  """Puts a recipe together whose examples are `rows.EXAMPLE`.

  Args:
    layout: how a row is laid out.
    index: as `Recipe.index`, of single examples.
    static_masks: as `Recipe.copies`.
    settle: what these examples are.
    needs_two: True if a corpus must have two documents.
  """
  assembly.check_layout(layout)
  if static_masks < 0:
    raise UserError(f"static_masks is {static_masks}; 0 for new ones always.")
  if layout.max_sequences > 1:
    index = functools.partial(
      assembly.index_packed, layout=layout, index=index, settle=settle
    )
    settle = assembly.settled
  return Recipe(
    features=select(assembly.keys(layout), assembly.sizes(layout)),
    check=functools.partial(_check, masks=layout.masks, needs_two=needs_two),
    index=index,
    build=functools.partial(assembly.build, layout=layout, settle=settle),
    roles=ROLES if layout.masks else (),
    copies=static_masks,
    settle=settle,
    pairs=layout.pairs,
  )
