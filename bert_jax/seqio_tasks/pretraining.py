"""Registers prepared folders and plain text as seqio tasks for pre-training.

  pretraining.register_prepared("wiki", "data/wiki", length=128)
  pretraining.register_text("mine", "text/*.txt", "vocab.txt")
  seqio.MixtureRegistry.add("both", [("wiki", 0.7), ("mine", 0.3)])

A task gives the same rows as a run with the same seed. Each pass (iteration)
over a dataset gives the rows of the next epochs: two passes of one epoch give
the rows of one pass with `num_epochs=2`. Two tasks of a mixture that read the
same folder give different rows. With `data.path=MODULE:NAME`, a run trains on a
task that MODULE registers.
"""

import atexit
import contextlib
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax import hashing
from bert_jax.corpus import reader, sources
from bert_jax.examples import loader, streams
from bert_jax.examples.batch_keys import Batch, Features, empty_rows
from bert_jax.examples.plain_text import ReadRecords, Text
from bert_jax.examples.recipes import Recipe, make_recipe
from bert_jax.messages import UserError
from bert_jax.seqio_tasks.text_vocabulary import TextVocabulary
from bert_jax.text import cleaning, open_vocabulary
from bert_jax.text.vocabulary import SpecialIds, Vocabulary

# Batch keys whose values are ids of the vocabulary.
ID_KEYS = ("input_ids", "mlm_ids", "lm_ids")
# The number of rows that a block has for each shard. One call of a vectorised
# recipe makes all these rows.
BLOCK_ROWS = 256
# The number of rows, or of blocks, of an endless dataset.
ENDLESS_ROWS = 2**62
# The longest wait for all pipelines when Python ends, in seconds.
MAX_EXIT_WAIT = 1.0

# The largest number of open readers of a dataset. Each reader holds an index of
# its rows.
MAX_READERS = 8

_readers: "weakref.WeakSet[_BlockReader]" = weakref.WeakSet()
_python_is_ending = threading.Event()


@atexit.register
def _end_readers() -> None:
  """Ends all pipelines before Python ends.

  A TensorFlow thread that calls Python while Python ends would wait for ever,
  and the iterator's destructor would wait for the thread. Usually the wait in
  this function is short. But a thread whose buffer is full makes no further
  call and never becomes idle, so the wait has a limit.
  """
  _python_is_ending.set()
  readers = list(_readers)
  for block_reader in readers:
    block_reader.close()
  deadline = time.monotonic() + MAX_EXIT_WAIT
  for block_reader in readers:
    block_reader.idle.wait(max(deadline - time.monotonic(), 0))
  if readers:
    time.sleep(0.1)  # Let the last call return.


class _BlockReader:
  """Makes the blocks of one shard for a TensorFlow pipeline."""

  def __init__(
    self,
    source: Any,
    end: int | None,
    shard: seqio.ShardInfo | None,
    start: int = 0,
  ):
    """Stores what to read; reads nothing yet.

    Args:
      source: has `features`, and `read`, which reads rows by index.
      end: the index after the last row. None means that `source.read` ends by
        itself: after the last row it gives no rows.
      shard: selects a share of each block; None selects the whole block.
      start: the index of the first row.
    """
    self._source, self._start, self.end = source, start, end
    self._shard = shard or seqio.ShardInfo(0, 1)
    self._lock, self._closed = threading.Lock(), _python_is_ending.is_set()
    # The event is set before a pipeline's first block and after its last block.
    self.idle = threading.Event()
    self.idle.set()
    _readers.add(self)

  def close(self) -> None:
    """Makes each later call return no rows."""
    with self._lock:
      self._closed = True

  def __call__(self, block_index: int) -> list[np.ndarray]:
    """Returns this shard's rows of a block, without rows after the end."""
    with self._lock:
      arrays = list(self._read(int(block_index)).values())
      if len(arrays[0]):
        self.idle.clear()
      else:
        self.idle.set()
      return arrays

  def _read(self, block_index: int) -> Batch:
    block_size = BLOCK_ROWS * self._shard.num_shards
    first_row = self._start + block_index * block_size
    if self._closed:
      return empty_rows(self._source.features, 0)
    if self.end is None:
      batch = self._source.read(first_row, block_size)
      begin, end = self._range_of_shard(len(next(iter(batch.values()))))
      return {key: array[begin:end] for key, array in batch.items()}
    begin, end = self._range_of_shard(
      min(block_size, max(self.end - first_row, 0))
    )
    if begin == end:
      return empty_rows(self._source.features, 0)
    return self._source.read(first_row + begin, end - begin)

  def _range_of_shard(self, num_rows: int) -> tuple[int, int]:
    """Returns this shard's rows (begin, end) in a block of `num_rows` rows."""
    index, num_shards = self._shard.index, self._shard.num_shards
    return num_rows * index // num_shards, num_rows * (index + 1) // num_shards


class _PassReaders:
  """Holds the readers of a dataset, one for each pass (iteration).

  TensorFlow does not tell when a pass stops before its end. So only the
  `MAX_READERS` readers that were used most recently stay open. A dropped reader
  is opened again when it is needed.
  """

  def __init__(self, open_reader: Callable[[int, int], _BlockReader]):
    """Opens the first reader, so that this call raises its errors.

    Args:
      open_reader: returns the reader of a pass. Its arguments are the index of
        the pass, and the row at which the previous pass ends.
    """
    self._open = open_reader
    self._lock, self._num_passes = threading.Lock(), 0
    self._starts = [0]  # The first row of each pass.
    self._readers: dict[int, _BlockReader] = {}
    self._reader_of_pass(0)

  def _reader_of_pass(self, pass_index: int) -> _BlockReader:
    """Returns the reader of a pass; all passes before it have begun."""
    reader = self._readers.pop(pass_index, None)
    if reader is None:
      reader = self._open(pass_index, self._starts[pass_index])
    if pass_index + 1 == len(self._starts):
      self._starts.append(reader.end or 0)
    self._readers[pass_index] = reader  # The newest is last.
    while len(self._readers) > MAX_READERS:
      del self._readers[next(iter(self._readers))]
    return reader

  def begin_pass(self) -> np.ndarray:
    """Begins a pass, and returns its index."""
    with self._lock:
      pass_index = self._num_passes
      self._num_passes += 1
      self._reader_of_pass(pass_index)
    return np.asarray(pass_index, np.int64)

  def __call__(self, pass_index: int, block_index: int) -> list[np.ndarray]:
    """Returns a block of a pass; see `_BlockReader`."""
    with self._lock:
      reader = self._reader_of_pass(int(pass_index))
    arrays = reader(block_index)
    if not len(arrays[0]):  # The pass has ended.
      with self._lock:
        self._readers.pop(int(pass_index), None)
    return arrays


class RowSource(seqio.DataSource):
  """Makes the rows of global example numbers.

  The stream (`streams.Stream`) decides the order and the epochs: `shuffle` has
  no effect, a seed of None is 0, and no epoch repeats the rows of an earlier
  epoch. Each shard gets an equal contiguous share of every block of rows.

  If a dataset is iterated again, by `repeat` or by a second iterator, it
  continues with new epochs. An endless dataset has no next epoch, so it
  continues with a new seed. The held-out rows are the same in each iteration.
  If several tasks of a mixture read the same folder or text, each has different
  examples.

  Attributes:
    path_key: a key that is different for each folder or text.
    features: the shape and dtype of each batch key of a row.
  """

  def __init__(
    self,
    open_documents: Callable[[], reader.PreparedFolder | Text],
    builder: str,
    options: Mapping[str, Any],
    path_key: str = "",
  ):
    """Describes a source; opens nothing yet.

    Args:
      open_documents: returns a `reader.PreparedFolder` or a `Text`.
      builder: the name of a recipe in `recipes.RECIPES`.
      options: the options of the recipe.
      path_key: a key that is different for each folder or text.

    Raises:
      ValueError: the builder or an option is unknown, or out of range.
    """
    super().__init__(splits=reader.SPLITS, caching_permitted=False)
    self._performs_internal_shuffling = True
    self._open_documents, self.path_key = open_documents, path_key
    self._builder, self._options = builder, dict(options)
    # The shape of a row does not depend on the vocabulary.
    any_ids = SpecialIds(0, 1, 2, 3, 4)
    self.features = make_recipe(
      builder, any_ids, vocab_size=5, options=self._options
    ).features

  @functools.cached_property
  def documents(self) -> reader.PreparedFolder | Text:
    """The folder or text, opened at the first use."""
    return self._open_documents()

  def tokenizer(self) -> Vocabulary:
    """Reads and returns the tokenizer."""
    return self.documents.tokenizer

  def recipe(self) -> Recipe:
    """Returns the recipe of the rows."""
    return make_recipe(
      self._builder,
      self.documents.special,
      self.documents.vocab_size,
      self._options,
    )

  def corpus(self, split: str) -> reader.Corpus:
    """Returns a split's documents; for a text, always the held-out ones."""
    if isinstance(self.documents, Text):
      return self.documents.validation
    return loader.corpus_of_split(self.documents, split)

  def stream(
    self, recipe: Recipe, split: str, seed: int, name: str
  ) -> streams.Source:
    """Returns the endless rows of a split; see `streams.Stream`."""
    if isinstance(self.documents, Text) and split == "train":
      return streams.Stream(self.documents, recipe, seed, name)
    return streams.Stream(self.corpus(split), recipe, seed, name)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True: any number of shards can read the rows."""
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns the split's name alone, because the rows are not in files."""
    return [split]

  @functools.cache  # noqa: B019 (registered sources are never deleted)
  def num_input_examples(self, split: str) -> int | None:
    """Counts the rows of the first epoch of seed 0; None for training text."""
    if split == "validation":
      return len(streams.make_heldout(self.corpus(split), self.recipe()))
    if isinstance(self.documents, Text):
      return None
    return streams.Stream(
      self.corpus(split), self.recipe(), seed=0, name="0"
    ).count_examples(epochs=1)

  def _open_reader(
    self,
    split: str,
    seed: int,
    shard: seqio.ShardInfo | None,
    num_epochs: int | None,
    pass_index: int,
    first_row: int,
  ) -> _BlockReader:
    """Opens the reader of a pass over the dataset.

    Args:
      split: the split.
      seed: the seed of the rows.
      shard: selects a share of each block; None selects the whole block.
      num_epochs: the number of epochs of the pass; None makes the pass endless.
      pass_index: the index of the pass.
      first_row: the row at which the previous pass ends.
    """
    recipe = self.recipe()
    if split == "validation":
      heldout = streams.make_heldout(self.corpus(split), recipe)
      return _BlockReader(heldout, len(heldout), shard)
    # `loader.open_data` also names the folders of a mixture by their indices.
    stream_name = str(self._index_in_mixture())
    continues_epochs = num_epochs and not isinstance(self.documents, Text)
    if pass_index and not continues_epochs:
      seed = hashing.make_key("pass", pass_index, seed)
    if isinstance(self.documents, Text):
      stream = streams.Stream(
        self.documents, recipe, seed, stream_name, epochs=num_epochs
      )
      return _BlockReader(stream, None, shard)
    stream = streams.Stream(self.corpus(split), recipe, seed, stream_name)
    if not num_epochs:
      return _BlockReader(stream, ENDLESS_ROWS, shard)
    end = stream.count_examples(
      epochs=(pass_index + 1) * num_epochs,
      epoch=pass_index * num_epochs,
      first=first_row,
    )
    return _BlockReader(stream, end, shard, first_row)

  def _index_in_mixture(self) -> int:
    """Returns an index that differs between tasks of the same folder or text.

    It is the task's index in a registered mixture if an earlier task of that
    mixture reads the same folder or text. Otherwise it is 0.
    """
    index = 0
    for name in seqio.MixtureRegistry.names():
      mixture = seqio.MixtureRegistry.get(name)
      task_sources = [task.source for task in mixture.tasks]
      if self in task_sources:
        position = task_sources.index(self)
        path_keys = [
          getattr(source, "path_key", None) for source in task_sources
        ]
        if self.path_key in path_keys[:position]:
          index = max(index, position)
    return index

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
    """Returns the rows of `num_epochs` epochs; None gives endless rows.

    Raises:
      UserError: no split has this name.
    """
    if split not in self.splits:
      raise UserError(
        f"there is no split {split!r}; choose {', '.join(self.splits)}."
      )
    seed = int(seed or 0)
    pass_readers = _PassReaders(
      functools.partial(self._open_reader, split, seed, shard_info, num_epochs)
    )
    features = self.features

    def make_block(
      pass_index: tf.Tensor, block_index: tf.Tensor
    ) -> dict[str, tf.Tensor]:
      types = [tf.as_dtype(dtype) for _, dtype in features.values()]
      arrays = tf.numpy_function(pass_readers, [pass_index, block_index], types)
      return {
        key: tf.ensure_shape(array, (None, *features[key][0]))
        for key, array in zip(features, arrays, strict=True)
      }

    first_key = next(iter(features))

    def blocks_of_pass(pass_index: tf.Tensor) -> tf.data.Dataset:
      dataset = tf.data.Dataset.range(ENDLESS_ROWS).map(
        lambda block_index: make_block(pass_index, block_index)
      )
      return dataset.take_while(lambda batch: tf.shape(batch[first_key])[0] > 0)

    # TensorFlow calls `begin_pass` whenever a pass over the dataset starts.
    pass_indices = tf.data.Dataset.from_tensors(0).map(
      lambda _: tf.ensure_shape(
        tf.numpy_function(pass_readers.begin_pass, [], tf.int64), ()
      )
    )
    rows = pass_indices.flat_map(blocks_of_pass).unbatch()
    # The held-out rows are the same in every pass.
    return rows.repeat(num_epochs) if split == "validation" else rows


class RowTask(seqio.Task):
  """A task whose examples differ in each epoch. Its source counts the epochs.

  `seqio.Task` would repeat the rows and masks of the first epoch, and would
  keep small datasets in memory.
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
    """Returns the rows; see `seqio.Task.get_dataset` and `RowSource`.

    Raises:
      UserError: `sequence_length` is not the length of the rows. Rows are never
        cut, because masked positions would be beyond the end of a row.
    """
    for key, length in (sequence_length or {}).items():
      shape = self.source.features.get(key, (None,))[0]
      if shape and length not in (None, *shape, shape, list(shape)):
        raise UserError(
          f"sequence_length[{key!r}] is {length}, but the rows of {self.name}"
          f" have {shape}; give the length when the task is registered."
        )
    ds = self.source.get_dataset(
      split, shuffle, seed, shard_info, num_epochs=num_epochs
    )
    return self._validate_preprocessing(ds).prefetch(tf.data.AUTOTUNE)


class PretrainFeatureConverter(seqio.FeatureConverter):
  """Checks the shapes of a task's rows, and passes the rows on unchanged.

  seqio's `EncoderFeatureConverter` computes a loss only where the input is the
  mask id. With that converter, a fifth of BERT's targets would have no loss.

    converter = PretrainFeatureConverter("wiki")
    seqio.get_dataset("wiki", converter.lengths, converter, "train")
  """

  def __init__(self, name: str):
    """Makes a converter.

    Args:
      name: the name of a registered task, or of a mixture of registered tasks.
    """
    self._features: Features = sources_and_rates(name)[0][0].features
    self.TASK_FEATURES = self.MODEL_FEATURES = {
      key: self.FeatureSpec(dtype=tf.as_dtype(dtype), rank=len(shape))
      for key, (shape, dtype) in self._features.items()
    }
    self.lengths = {key: shape[0] for key, (shape, _) in self._features.items()}
    # `_convert_features` checks the shapes once, not for each row.
    super().__init__(pack=False, apply_length_check=False)

  def _convert_features(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
  ) -> tf.data.Dataset:
    for key, (shape, _) in self._features.items():
      row_shape = ds.element_spec[key].shape
      if not row_shape.is_compatible_with(shape):
        raise UserError(
          f"the rows have {key} of shape {row_shape}, not {shape}."
        )
    return ds.map(
      lambda row: {
        key: tf.ensure_shape(row[key], shape)
        for key, (shape, _) in self._features.items()
      }
    )

  def get_model_feature_lengths(
    self, task_feature_lengths: Mapping[str, int]
  ) -> Mapping[str, int]:
    """Returns the task's lengths, because the rows are not changed."""
    return task_feature_lengths


def _register(name: str, source: RowSource) -> seqio.Task:
  vocabulary = TextVocabulary(source.tokenizer)
  no_vocabulary = seqio.PassThroughVocabulary(size=0)
  return seqio.TaskRegistry.add(
    name,
    source=source,
    output_features={
      key: seqio.Feature(
        vocabulary if key in ID_KEYS else no_vocabulary,
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
  """Registers a prepared folder, which is opened at the first use.

  Args:
    name: the name of the task.
    path: the prepared folder.
    builder: the name of a recipe in `recipes.RECIPES`.
    **options: options of the recipe, for example `length=512`.

  Raises:
    ValueError: the builder or an option is unknown, or the name is registered
      already.
  """

  def open_documents() -> reader.PreparedFolder:
    return reader.open_prepared(path)

  path_key = str(Path(path).resolve())
  return _register(name, RowSource(open_documents, builder, options, path_key))


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
  group_size: int = 128,
  **options: Any,
) -> seqio.Task:
  """Registers text that is tokenised while it is read (`plain_text.Text`).

  Args:
    name: the name of the task.
    inputs: globs as in `sources.find_sources`; or a seqio source, whose split
      `train` gives strings or dicts with a string `text`.
    vocab: the path of a vocabulary of any kind (see `open_vocabulary.load`).
    builder: the name of a recipe in `recipes.RECIPES`.
    validation: the held-out text, given like `inputs`; of a seqio source, the
      split `validation` is read. If None, a share of the documents of `inputs`
      is held out.
    format: as in `sources.find_sources`. Every string of a seqio source is a
      document. But with the format `bert`, a string is a sentence, and a blank
      string ends a document.
    lower_case: False for a cased vocabulary. If None, the setting that is
      stored with the vocabulary is used, or True if no setting is stored.
    keep_accents: if None, the setting that is stored with the vocabulary is
      used. If no setting is stored, accents are kept if capitals are kept.
    word_starts: the rule for a SentencePiece model (see `unigram.build`).
    heldout: see `Text`.
    language: see `Text`.
    group_size: see `Text`.
    **options: options of the recipe.

  Raises:
    ValueError: the builder or an option is unknown, or the name is registered
      already.
  """

  def open_documents() -> Text:
    train_records, version = _record_reader(inputs, "train", format)
    heldout_records = None
    if validation is not None:
      heldout_records, heldout_version = _record_reader(
        validation, "validation", format
      )
      version = [version, heldout_version]
    vocabulary_options: dict[str, Any] = cleaning.options_for_load(
      lower_case, keep_accents
    )
    if word_starts is not None:
      vocabulary_options["word_starts"] = word_starts
    tokenizer = open_vocabulary.load(vocab, **vocabulary_options)
    return Text(
      name,
      train_records,
      heldout_records,
      tokenizer,
      heldout=heldout,
      language=language,
      group_size=group_size,
      version=version,
    )

  path_key = f"text {inputs!r}"
  return _register(name, RowSource(open_documents, builder, options, path_key))


def _record_reader(
  inputs: Any, split: str, format: str
) -> tuple[ReadRecords, Any]:
  """Returns a function that yields raw documents, and their version."""
  if isinstance(inputs, seqio.DataSource):
    return functools.partial(_read_records, inputs, split, format), repr(inputs)
  input_sources = sources.find_sources(inputs, format)
  version = [(source.format, source.version) for source in input_sources]
  return functools.partial(sources.read_records, input_sources), version


def _read_records(
  source: seqio.DataSource, split: str, format: str
) -> Iterator[sources.Record]:
  """Yields the documents of a seqio source, shard by shard, in order."""
  # Read one shard after the other. If seqio read all shards together, it would
  # mix their lines, and a document would get sentences of several files.
  num_shards = len(source.list_shards(split))
  for shard in (seqio.ShardInfo(i, num_shards) for i in range(num_shards)):
    dataset = source.get_dataset(split=split, shuffle=False, shard_info=shard)
    texts = map(_text_of_element, dataset.as_numpy_iterator())
    # How far the reading of a seqio source has come (`share`) is not known.
    if format != "bert":
      yield from (
        sources.Record(text, layout="paragraphs", share=0.0) for text in texts
      )
      continue
    for is_blank, lines in itertools.groupby(texts, lambda t: not t.strip()):
      if not is_blank:
        yield sources.Record("\n".join(lines), layout="lines", share=0.0)


def _text_of_element(element: Any) -> str:
  """Returns the text of an element of a seqio source."""
  text = element.get("text") if isinstance(element, dict) else element
  if not isinstance(text, bytes):
    raise UserError(
      "a seqio source of text must yield strings, or dicts with a string"
      f" `text`; this one yields {element!r:.80}."
    )
  return text.decode("utf-8", "replace")


def registered_names() -> set[str]:
  """Returns the names of all registered tasks and mixtures."""
  return {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}


def sources_and_rates(name: str) -> tuple[list[RowSource], list[float]]:
  """Returns the sources of a task or mixture, and their rates.

  Raises:
    UserError: this module did not register one of the tasks.
  """
  registered = seqio.get_mixture_or_task(name)
  is_mixture = isinstance(registered, seqio.Mixture)
  tasks = registered.tasks if is_mixture else [registered]
  for task in tasks:
    if not isinstance(task.source, RowSource):
      raise UserError(
        f"the seqio task {task.name} does not make rows for pre-training;"
        " register its source with"
        " bert_jax.seqio_tasks.pretraining.register_text."
      )
  task_sources = [task.source for task in tasks]
  if len(tasks) == 1:
    return task_sources, [1.0]
  return task_sources, [registered.get_rate(task) for task in tasks]


def open_data(
  name: str,
  builder: str,
  split: str,
  seed: int,
  cased: bool | None,
  **options: Any,
) -> loader.PretrainingData:
  """Opens a task or mixture as `loader.open_data` opens a folder.

  The training loop then runs without TensorFlow. The arguments give the recipe
  and its options; the registered recipe and options are for seqio's interface
  alone.

  Raises:
    ValueError: the message says in one sentence what to change.
  """
  # Hide the GPU from TensorFlow, which would take all of its memory from JAX.
  with contextlib.suppress(RuntimeError):
    tf.config.set_visible_devices([], "GPU")
  row_sources, rates = sources_and_rates(name)
  opened_documents: tuple[Any, ...] = tuple(
    source.documents for source in row_sources
  )
  for documents in opened_documents[1:]:
    open_vocabulary.check_same_pieces(
      opened_documents[0].vocab,
      documents.vocab,
      f"{name}: {opened_documents[0].path}",
      documents.path,
      "register both with one vocab.txt",
    )
  loader.check_case(opened_documents, cased)
  special, vocab_size = (
    opened_documents[0].special,
    opened_documents[0].vocab_size,
  )
  recipe = make_recipe(builder, special, vocab_size, options)
  row_streams = [
    source.stream(recipe, split, seed, str(i))
    for i, source in enumerate(row_sources)
  ]
  if len(row_streams) == 1:
    stream = row_streams[0]
  else:
    stream = streams.Mixture(row_streams, rates, seed)
  return loader.PretrainingData(stream, vocab_size, special, opened_documents)


def open_heldout(
  name: str,
  builder: str,
  split: str,
  limit: int | None,
  cased: bool | None,
  **options: Any,
) -> streams.Heldout:
  """Opens the held-out documents as `loader.open_heldout` does for a folder."""
  row_sources, _ = sources_and_rates(name)
  opened_documents = [source.documents for source in row_sources]
  loader.check_case(opened_documents, cased)
  special, vocab_size = (
    opened_documents[0].special,
    opened_documents[0].vocab_size,
  )
  recipe = make_recipe(builder, special, vocab_size, options)
  return streams.Heldout(
    [source.corpus(split) for source in row_sources], recipe, limit
  )


loader.OPENERS.append(loader.Opener(registered_names, open_data, open_heldout))
