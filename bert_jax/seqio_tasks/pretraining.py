"""Every seqio registration: prepared folders and plain text as seqio tasks.

  tasks.register_prepared("wiki", "data/wiki", length=128)
  tasks.register_text("mine", "text/*.txt", "vocab.txt")
  seqio.MixtureRegistry.add("both", [("wiki", 0.7), ("mine", 0.3)])

A row of such a task is what a run sees, by global number and seed. A dataset
that is iterated twice has other rows each time (`num_epochs=2` has the same two
epochs), and two tasks over one folder have other rows in a mixture.
`data.path=MODULE:NAME` trains from one that MODULE registers.
"""

import atexit
import contextlib
import functools
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax import hashing
from bert_jax.corpus import reader, sources
from bert_jax.examples import loader, streams
from bert_jax.examples.batch_keys import Batch, Features, padding
from bert_jax.examples.plain_text import Records, Text
from bert_jax.examples.recipes import Recipe, make_recipe
from bert_jax.messages import UserError
from bert_jax.seqio_tasks.text_vocabulary import TextVocabulary
from bert_jax.text import cleaning, open_vocabulary
from bert_jax.text.vocabulary import SpecialIds, Vocabulary

# Keys whose values are pieces of the vocabulary.
PIECES = ("input_ids", "mlm_ids", "lm_ids")
# Rows that one call of a vectorised recipe makes.
BLOCK = 256
ENDLESS = 2**62
EXIT_SECONDS = 1.0

# Passes over a dataset whose readers are kept, each with an index of rows.
OPEN_PASSES = 8

_readers: "weakref.WeakSet[_Reader]" = weakref.WeakSet()
_exiting = threading.Event()


@atexit.register
def _end_readers() -> None:
  """Ends all pipelines.

  A TensorFlow thread that calls a Python that is ending waits for ever, and
  the iterator's destructor for the thread. The wait is short where a thread
  fills a buffer; one whose buffer is full makes no call, hence the limit.
  """
  _exiting.set()
  readers = list(_readers)
  for block_reader in readers:
    block_reader.close()
  limit = time.monotonic() + EXIT_SECONDS
  for block_reader in readers:
    block_reader.ended.wait(max(limit - time.monotonic(), 0))
  if readers:
    time.sleep(0.1)  # The last call has still to return.


class _Reader:
  """Makes the blocks of one shard, inside of a TensorFlow pipeline."""

  def __init__(
    self,
    source: Any,
    end: int | None,
    shard: seqio.ShardInfo | None,
    start: int = 0,
  ):
    """Describes a reader.

    Args:
      source: an object with a method `read`.
      end: the number after the last row; None if `read` stops by itself.
      shard: the part of each block to read; None for all of it.
      start: the number of the first row.
    """
    self._source, self._start, self.end = source, start, end
    self._shard = shard or seqio.ShardInfo(0, 1)
    self._lock, self._closed = threading.Lock(), _exiting.is_set()
    self.ended = threading.Event()  # Nobody waits for another block.
    self.ended.set()
    _readers.add(self)

  def close(self) -> None:
    """From now on there are no more rows; waits for a block in the making."""
    with self._lock:
      self._closed = True

  def __call__(self, number: int) -> list[np.ndarray]:
    """Returns this shard's part of block `number`, empty beyond the end."""
    with self._lock:
      values = list(self._read(int(number)).values())
      if len(values[0]):
        self.ended.clear()
      else:
        self.ended.set()
      return values

  def _read(self, number: int) -> Batch:
    size = BLOCK * self._shard.num_shards
    first = self._start + number * size
    if self._closed:
      return padding(self._source.features, 0)
    if self.end is None:
      batch = self._source.read(first, size)
      begin, end = self._part(len(next(iter(batch.values()))))
      return {key: value[begin:end] for key, value in batch.items()}
    begin, end = self._part(min(size, max(self.end - first, 0)))
    if begin == end:
      return padding(self._source.features, 0)
    return self._source.read(first + begin, end - begin)

  def _part(self, rows: int) -> tuple[int, int]:
    index, shards = self._shard.index, self._shard.num_shards
    return rows * index // shards, rows * (index + 1) // shards


class _Passes:
  """The readers of a dataset: each time it is iterated it has a new one.

  Nobody says that a pass has stopped before its end. So the readers that were
  used last are kept, and any other one is opened again when it is asked for.
  """

  def __init__(self, open_reader: Callable[[int, int], _Reader]):
    """Opens the first reader, so that errors are raised here.

    Args:
      open_reader: takes the number of the pass, from 0 on, and where the pass
        before it ends.
    """
    self._open = open_reader
    self._lock, self._count = threading.Lock(), 0
    self._starts = [0]
    self._readers: dict[int, _Reader] = {}
    self._reader(0)

  def _reader(self, number: int) -> _Reader:
    """The reader of a pass; all passes before it have begun."""
    reader = self._readers.pop(number, None)
    if reader is None:
      reader = self._open(number, self._starts[number])
    if number + 1 == len(self._starts):
      self._starts.append(reader.end or 0)
    self._readers[number] = reader  # Behind the others: it was used last.
    while len(self._readers) > OPEN_PASSES:
      del self._readers[next(iter(self._readers))]
    return reader

  def begin(self) -> np.ndarray:
    """Returns the number of a new pass."""
    with self._lock:
      number, self._count = self._count, self._count + 1
      self._reader(number)
    return np.int64(number)

  def __call__(self, number: int, block: int) -> list[np.ndarray]:
    """Returns a block of a pass; see `_Reader`."""
    with self._lock:
      reader = self._reader(int(number))
    values = reader(block)
    if not len(values[0]):
      with self._lock:  # It has come to its end.
        self._readers.pop(int(number), None)
    return values


class RowSource(seqio.DataSource):
  """Counts global example numbers and makes the rows with these numbers.

  Order and epochs are the stream's: `shuffle` has no effect, `seed` None is 0,
  and an epoch is made anew, never repeated. Of each block of rows a shard gets
  an equal contiguous part.

  A dataset that is iterated again, by `repeat` or by another iterator, goes on
  with epochs that it has not given yet (without an end: with those of another
  seed); the held-out rows are always the same. Tasks over one folder or text in
  one mixture have examples of their own each.

  Attributes:
    place: a key that differs between folders and texts.
    features: the features of a row.
  """

  def __init__(
    self,
    opener: Callable[[], Any],
    builder: str,
    options: Mapping[str, Any],
    place: str = "",
  ):
    """Describes a source; opens nothing yet.

    Args:
      opener: returns a `reader.Prepared` or a `Text`.
      place: tells folders and texts apart.
      builder: the name of a recipe, in `recipes.RECIPES`.
      options: the options of the recipe.

    Raises:
      ValueError: no such builder or option, or a value out of range.
    """
    super().__init__(splits=reader.SPLITS, caching_permitted=False)
    self._performs_internal_shuffling = True
    self._opener, self.place = opener, place
    self._builder, self._options = builder, dict(options)
    # The shape of a row does not depend on the vocabulary.
    some = SpecialIds(0, 1, 2, 3, 4)
    self.features = make_recipe(builder, some, 5, self._options).features

  @functools.cached_property
  def opened(self) -> Any:
    return self._opener()

  def tokenizer(self) -> Vocabulary:
    """Returns the tokenizer of the vocabulary; reads it."""
    return self.opened.tokenizer

  def recipe(self) -> Recipe:
    return make_recipe(
      self._builder, self.opened.special, self.opened.vocab_size, self._options
    )

  def corpus(self, split: str) -> reader.Corpus:
    """Returns the documents of a split (of text: the held-out ones)."""
    if isinstance(self.opened, Text):
      return self.opened.validation
    return loader.split_of(self.opened, split)

  def stream(
    self, recipe: Recipe, split: str, seed: int, name: str
  ) -> streams.Source:
    """Returns the endless rows of a split; see `streams.Stream`."""
    if isinstance(self.opened, Text) and split == "train":
      return streams.Stream(self.opened, recipe, seed, name)
    return streams.Stream(self.corpus(split), recipe, seed, name)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    return [split]

  @functools.cache  # noqa: B019 (registered sources live for ever)
  def num_input_examples(self, split: str) -> int | None:
    """Rows of one epoch (of seed 0); None for text to train on."""
    if split == "validation":
      return len(streams.heldout(self.corpus(split), self.recipe()))
    if isinstance(self.opened, Text):
      return None
    return streams.Stream(self.corpus(split), self.recipe(), 0, "0").count(1)

  def _reader(
    self,
    split: str,
    seed: int,
    shard: seqio.ShardInfo | None,
    epochs: int | None,
    number: int,
    first: int,
  ) -> _Reader:
    """Opens the reader of a pass over the dataset.

    Args:
      split, seed, shard, epochs: see `get_dataset`.
      number: the number of the pass, from 0 on.
      first: the row at which the pass before it ends.
    """
    recipe = self.recipe()
    if split == "validation":
      rows = streams.heldout(self.corpus(split), recipe)
      return _Reader(rows, len(rows), shard)
    # As `loader.open_data` calls the folders of a mixture; a folder alone is 0.
    name = str(self._number_in_mixture())
    follows = epochs and not isinstance(self.opened, Text)
    if number and not follows:
      seed = hashing.make_key("pass", number, seed)
    if isinstance(self.opened, Text):
      rows = streams.Stream(self.opened, recipe, seed, name, epochs=epochs)
      return _Reader(rows, None, shard)
    rows = streams.Stream(self.corpus(split), recipe, seed, name)
    if not epochs:
      return _Reader(rows, ENDLESS, shard)
    end = rows.count((number + 1) * epochs, number * epochs, first)
    return _Reader(rows, end, shard, first)

  def _number_in_mixture(self) -> int:
    """0, or where a registered mixture has this task after one of its place."""
    number = 0
    for name in seqio.MixtureRegistry.names():
      sources = [task.source for task in seqio.MixtureRegistry.get(name).tasks]
      if self in sources:
        places = [getattr(source, "place", None) for source in sources]
        if self.place in places[: sources.index(self)]:
          number = max(number, sources.index(self))
    return number

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    *,
    sequence_length: Mapping[str, int] | None = None,
    use_cached: bool = False,
    num_epochs: int | None = 1,
  ) -> tf.data.Dataset:
    """Returns the rows; `num_epochs` None is for ever."""
    if split not in self.splits:
      raise UserError(f"no split {split!r}; choose {', '.join(self.splits)}.")
    seed = int(seed or 0)
    passes = _Passes(
      functools.partial(self._reader, split, seed, shard_info, num_epochs)
    )
    features = self.features

    def make(number: tf.Tensor, block: tf.Tensor) -> dict[str, tf.Tensor]:
      types = [tf.as_dtype(dtype) for _, dtype in features.values()]
      values = tf.numpy_function(passes, [number, block], types)
      return {
        key: tf.ensure_shape(value, (None, *features[key][0]))
        for key, value in zip(features, values, strict=True)
      }

    some = next(iter(features))

    def blocks(number: tf.Tensor) -> tf.data.Dataset:
      dataset = tf.data.Dataset.range(ENDLESS).map(lambda k: make(number, k))
      return dataset.take_while(lambda batch: tf.shape(batch[some])[0] > 0)

    # Run once for each time that the dataset is iterated.
    numbers = tf.data.Dataset.from_tensors(0).map(
      lambda _: tf.ensure_shape(
        tf.numpy_function(passes.begin, [], tf.int64), ()
      )
    )
    rows = numbers.flat_map(blocks).unbatch()
    # The held-out rows are fixed.
    return rows.repeat(num_epochs) if split == "validation" else rows


class RowTask(seqio.Task):
  """A task whose source counts epochs, so that each has its own examples.

  `seqio.Task` would repeat the rows of the first epoch, masks and all, and
  would keep small ones in memory.
  """

  def get_dataset(
    self,
    sequence_length: Mapping[str, int] | None = None,
    split: str = "train",
    use_cached: bool = False,
    shuffle: bool = True,
    shuffle_buffer_size: int | None = None,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    num_epochs: int | None = 1,
    trim_output_features: bool = True,
    try_in_mem_cache: bool = True,
  ) -> tf.data.Dataset:
    """See `seqio.Task.get_dataset` and `RowSource`.

    Raises:
      ValueError: `sequence_length` is not that of the rows; to cut them would
        leave masked positions beyond their end.
    """
    for key, length in (sequence_length or {}).items():
      shape = self.source.features.get(key, (None,))[0]
      if shape and length not in (None, *shape, shape, list(shape)):
        raise UserError(
          f"sequence_length[{key!r}] is {length}, the rows of {self.name} have"
          f" {shape}; give the length when the task is registered."
        )
    ds = self.source.get_dataset(
      split, shuffle, seed, shard_info, num_epochs=num_epochs
    )
    return self._validate_preprocessing(ds).prefetch(tf.data.AUTOTUNE)


class PretrainFeatureConverter(seqio.FeatureConverter):
  """Passes the rows of a task on as they are, and checks that they are so.

  seqio's `EncoderFeatureConverter` puts loss only where the input equals the
  mask id: a fifth of BERT's targets would get none.

    converter = PretrainFeatureConverter("wiki")
    seqio.get_dataset("wiki", converter.lengths, converter, "train")
  """

  def __init__(self, name: str):
    """Args: `name` of a registered task or mixture of this module's tasks."""
    self._features: Features = components(name)[0][0].features
    self.TASK_FEATURES = self.MODEL_FEATURES = {
      key: self.FeatureSpec(dtype=tf.as_dtype(dtype), rank=len(shape))
      for key, (shape, dtype) in self._features.items()
    }
    self.lengths = {key: s[0] for key, (s, _) in self._features.items()}
    # The shapes are checked below, without an assertion for each row.
    super().__init__(pack=False, apply_length_check=False)

  def _convert_features(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
  ) -> tf.data.Dataset:
    for key, (shape, _) in self._features.items():
      row_shape = ds.element_spec[key].shape
      if not row_shape.is_compatible_with(shape):
        raise UserError(f"rows with {key} of shape {row_shape}, not {shape}.")
    return ds.map(
      lambda row: {
        key: tf.ensure_shape(row[key], shape)
        for key, (shape, _) in self._features.items()
      }
    )

  def get_model_feature_lengths(
    self, task_feature_lengths: Mapping[str, int]
  ) -> Mapping[str, int]:
    return task_feature_lengths


def _register(name: str, source: RowSource) -> seqio.Task:
  vocabulary = TextVocabulary(source.tokenizer)
  other = seqio.PassThroughVocabulary(size=0)
  return seqio.TaskRegistry.add(
    name,
    source=source,
    output_features={
      key: seqio.Feature(
        vocabulary if key in PIECES else other,
        add_eos=False,
        dtype=tf.as_dtype(dtype),
        rank=len(shape),
      )
      for key, (shape, dtype) in source.features.items()
    },
    task_cls=RowTask,
    shuffle_buffer_size=None,
  )


def register_prepared(
  name: str, path: str, builder: str = "bert_pairs", **options: Any
) -> seqio.Task:
  """Registers a prepared folder; it is opened when the task is used.

  Args:
    name: the name of the task.
    path: the folder.
    builder: the name of a recipe, in `recipes.RECIPES`.
    **options: options of the recipe, for example `length=512`.

  Raises:
    ValueError: no such builder or option, or the name is taken.
  """

  def opener() -> reader.Prepared:
    return reader.open_prepared(path)

  place = os.path.realpath(path)
  return _register(name, RowSource(opener, builder, options, place))


def register_text(
  name: str,
  inputs: str | Sequence[str] | seqio.DataSource,
  vocab: str,
  builder: str = "bert_pairs",
  *,
  validation: str | Sequence[str] | seqio.DataSource | None = None,
  format: str = "auto",
  lower_case: bool | None = None,
  keep_accents: bool | None = None,
  word_starts: str | None = None,
  heldout: float = 0.005,
  language: str = "en",
  group: int = 128,
  **options: Any,
) -> seqio.Task:
  """Registers text, which is tokenised on the way; see `plain_text.Text`.

  Args:
    name: the name of the task.
    inputs: as in `sources.find_sources`, or a seqio source (its split `train`)
      of strings or of dicts with a string `text`.
    vocab: path of a vocabulary of any kind, see `open_vocabulary.load`.
    builder: the name of a recipe, in `recipes.RECIPES`.
    validation: the held-out text, like `inputs` (a seqio source's split
      `validation`); None holds out a share of the documents of `inputs`.
    format: as in `sources.find_sources`. Of a seqio source every string is a
      document; with `bert` a sentence, and a blank one ends a document.
    lower_case: False for a cased vocabulary; None for what came with it, True
      if nothing does.
    keep_accents: None for what came with the vocabulary; if nothing did they
      are kept where capitals are.
    word_starts: the rule for a SentencePiece model; see `unigram.unigram`.
    heldout, language, group: see `Text`.
    **options: options of the recipe.

  Raises:
    ValueError: no such builder or option, or the name is taken.
  """

  def opener() -> Text:
    train, version = _records(inputs, "train", format)
    held = None
    if validation is not None:
      held, other = _records(validation, "validation", format)
      version = [version, other]
    choices: dict[str, Any] = cleaning.asked(lower_case, keep_accents)
    if word_starts is not None:
      choices["word_starts"] = word_starts
    tokenizer = open_vocabulary.load(vocab, **choices)
    return Text(
      name,
      train,
      held,
      tokenizer,
      heldout=heldout,
      language=language,
      group=group,
      version=version,
    )

  place = f"text {inputs!r}"
  return _register(name, RowSource(opener, builder, options, place))


def _records(inputs: Any, split: str, format: str) -> tuple[Records, Any]:
  """Returns what yields the raw documents, and their version."""
  if isinstance(inputs, seqio.DataSource):
    return functools.partial(_read, inputs, split, format), repr(inputs)
  found_sources = sources.find_sources(inputs, format)
  version = [(source.kind, source.version) for source in found_sources]
  return functools.partial(sources.read_records, found_sources), version


def _read(
  source: seqio.DataSource, split: str, format: str
) -> Iterator[sources.Record]:
  """Yields the documents of a seqio source, shard by shard, in order."""
  # All shards at once would come interleaved: sentences of several files.
  count = len(source.list_shards(split))
  for shard in (seqio.ShardInfo(i, count) for i in range(count)):
    ds = source.get_dataset(split=split, shuffle=False, shard_info=shard)
    texts = map(_text, ds.as_numpy_iterator())
    if format != "bert":
      yield from (sources.Record(t, "paragraphs", 0.0) for t in texts)
      continue
    for blank, lines in itertools.groupby(texts, lambda t: not t.strip()):
      if not blank:
        yield sources.Record("\n".join(lines), "lines", 0.0)


def _text(element: Any) -> str:
  text = element.get("text") if isinstance(element, dict) else element
  if not isinstance(text, bytes):
    raise UserError(
      "a seqio source of text must yield strings, or dicts with a string"
      f" `text`; this one yields {element!r:.80}."
    )
  return text.decode("utf-8", "replace")


def names() -> set[str]:
  """Returns the names of all registered tasks and mixtures."""
  return {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}


def components(name: str) -> tuple[list[RowSource], list[float]]:
  """Returns the sources of a task or mixture, and their rates.

  Raises:
    ValueError: a task that is not one of this module.
  """
  registered = seqio.get_mixture_or_task(name)
  mixed = isinstance(registered, seqio.Mixture)
  tasks = registered.tasks if mixed else [registered]
  for task in tasks:
    if not isinstance(task.source, RowSource):
      raise UserError(
        f"the seqio task {task.name} does not make rows for pre-training;"
        " register its source with"
        " bert_jax.seqio_tasks.pretraining.register_text."
      )
  single = len(tasks) == 1
  rates = [1.0] if single else [registered.get_rate(task) for task in tasks]
  return [task.source for task in tasks], rates


def open_data(
  name: str,
  builder: str,
  split: str,
  seed: int,
  cased: bool | None,
  **options: Any,
) -> loader.Data:
  """Opens a task or mixture as `loader.open_data` opens a folder.

  No TensorFlow is in the loop. Builder and options are the arguments', those of
  the registration are for seqio's own interface.

  Raises:
    ValueError: with one sentence that says what to change.
  """
  # The accelerator is JAX's; TensorFlow would take all of its memory.
  with contextlib.suppress(RuntimeError):
    tf.config.set_visible_devices([], "GPU")
  parts, rates = components(name)
  opened = tuple(part.opened for part in parts)
  for other in opened[1:]:
    open_vocabulary.check_same(
      opened[0].vocab,
      other.vocab,
      f"{name}: {opened[0].path}",
      other.path,
      "register both with one vocab.txt",
    )
  loader.check_cased(opened, cased)
  special, size = opened[0].special, opened[0].vocab_size
  recipe = make_recipe(builder, special, size, options)
  rows = [p.stream(recipe, split, seed, str(i)) for i, p in enumerate(parts)]
  source = rows[0] if len(rows) == 1 else streams.Mixture(rows, rates, seed)
  return loader.Data(source, size, special, opened)


def open_heldout(
  name: str,
  builder: str,
  split: str,
  limit: int | None,
  cased: bool | None,
  **options: Any,
) -> streams.Heldout:
  """Opens the held-out documents as `loader.open_heldout` does a folder's."""
  parts, _ = components(name)
  opened = parts[0].opened
  loader.check_cased([part.opened for part in parts], cased)
  recipe = make_recipe(builder, opened.special, opened.vocab_size, options)
  return streams.Heldout([part.corpus(split) for part in parts], recipe, limit)


loader.OPENERS.append(loader.Opener(names, open_data, open_heldout))
