"""Rows of any stream as a `seqio.DataSource`: by global example number."""

import atexit
import functools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from bert_jax import hashing
from bert_jax.corpus import reader as corpus
from bert_jax.examples import loader, streams
from bert_jax.examples.batch_keys import Batch, padding
from bert_jax.examples.recipes_builder import Builder
from bert_jax.examples.text_stream import Text, TextStream
from bert_jax.text.vocabulary import SpecialIds, Vocabulary

# Rows that one call of a vectorised builder makes.
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
  for reader in readers:
    reader.close()
  limit = time.monotonic() + EXIT_SECONDS
  for reader in readers:
    reader.ended.wait(max(limit - time.monotonic(), 0))
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
      source: what has `read`.
      end: where the rows end; None if `read` stops by itself.
      shard: which part of each block is read; None for all.
      start: number of the first row.
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


class EpochStream(streams.Stream):
  """A stream that can tell where an epoch ends."""

  def end(self, epochs: int, epoch: int = 0, first: int = 0) -> int:
    """Returns the number of examples in the first `epochs` epochs.

    Args:
      epochs: how many.
      epoch: an epoch not after them, to count from; the stream goes on there.
      first: the number of its first example.
    """
    self._go_to(epoch, 0, first)
    while self._epoch < epochs:
      self._advance()
    end = self._first
    self._go_to(epoch, 0, first)
    return end


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
    place: what tells folders and texts apart.
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
      opener: returns a `corpus.Prepared` or a `Text`.
      place: tells folders and texts apart.
      builder: a name in `BUILDERS`.
      options: of the builder.

    Raises:
      ValueError: no such builder or option, or a value out of range.
    """
    super().__init__(splits=corpus.SPLITS, caching_permitted=False)
    self._performs_internal_shuffling = True
    self._opener, self.place = opener, place
    self._builder, self._options = builder, dict(options)
    # What a row looks like depends on no vocabulary.
    some = SpecialIds(0, 1, 2, 3, 4)
    self.features = loader.make_builder(
      builder, some, 5, self._options
    ).features

  @functools.cached_property
  def opened(self) -> Any:
    return self._opener()

  def tokenizer(self) -> Vocabulary:
    """Returns the tokenizer of the vocabulary; reads it."""
    return self.opened.tokenizer

  def builder(self) -> Builder:
    return loader.make_builder(
      self._builder, self.opened.special, self.opened.vocab_size, self._options
    )

  def corpus(self, split: str) -> corpus.Corpus:
    """Returns the documents of a split (of text: the held-out ones)."""
    if isinstance(self.opened, Text):
      return self.opened.validation
    return loader.split_of(self.opened, split)

  def stream(
    self, builder: Builder, split: str, seed: int, name: str
  ) -> streams.Source:
    """Returns the endless rows of a split; see `streams.Stream`."""
    if isinstance(self.opened, Text) and split == "train":
      return TextStream(self.opened, builder, seed, name)
    return streams.Stream(self.corpus(split), builder, seed, name)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    return [split]

  @functools.cache  # noqa: B019 (registered sources live for ever)
  def num_input_examples(self, split: str) -> int | None:
    """Rows of one epoch (of seed 0); None for text to train on."""
    if split == "validation":
      return len(streams.heldout(self.corpus(split), self.builder()))
    if isinstance(self.opened, Text):
      return None
    return EpochStream(self.corpus(split), self.builder(), 0, "0").end(1)

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
    builder = self.builder()
    if split == "validation":
      rows = streams.heldout(self.corpus(split), builder)
      return _Reader(rows, len(rows), shard)
    # As `loader.open_data` calls the folders of a mixture; a folder alone is 0.
    name = str(self._number_in_mixture())
    follows = epochs and not isinstance(self.opened, Text)
    if number and not follows:
      seed = hashing.make_key("pass", number, seed)
    if isinstance(self.opened, Text):
      rows = TextStream(self.opened, builder, seed, name, epochs)
      return _Reader(rows, None, shard)
    rows = EpochStream(self.corpus(split), builder, seed, name)
    if not epochs:
      return _Reader(rows, ENDLESS, shard)
    end = rows.end((number + 1) * epochs, number * epochs, first)
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
      raise ValueError(f"no split {split!r}; choose {', '.join(self.splits)}.")
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
