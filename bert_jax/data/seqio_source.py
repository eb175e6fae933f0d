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

from bert_jax.data import corpus, hashing, loader, streams, vocabulary_files
from bert_jax.data.builder import Builder
from bert_jax.data.features import Batch, padding
from bert_jax.data.text import Text, TextStream
from bert_jax.data.tokenizer import Vocabulary

# Rows that one call of a vectorised builder makes.
BLOCK = 256
ENDLESS = 2**62
EXIT_SECONDS = 1.0

_readers: "weakref.WeakSet[_Reader]" = weakref.WeakSet()


@atexit.register
def _end_readers() -> None:
  """Ends all pipelines.

  A TensorFlow thread that calls a Python that is ending waits for ever, and
  the iterator's destructor for the thread. The wait is short where a thread
  fills a buffer; one whose buffer is full makes no call, hence the limit.
  """
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
    self._source, self._start, self._end = source, start, end
    self._shard = shard or seqio.ShardInfo(0, 1)
    self._lock, self._closed = threading.Lock(), False
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
    if self._end is None:
      batch = self._source.read(first, size)
      begin, end = self._part(len(next(iter(batch.values()))))
      return {key: value[begin:end] for key, value in batch.items()}
    begin, end = self._part(min(size, max(self._end - first, 0)))
    if begin == end:
      return padding(self._source.features, 0)
    return self._source.read(first + begin, end - begin)

  def _part(self, rows: int) -> tuple[int, int]:
    index, shards = self._shard.index, self._shard.num_shards
    return rows * index // shards, rows * (index + 1) // shards


class _Passes:
  """The readers of a dataset: each time it is iterated it has a new one."""

  def __init__(self, open_reader: Callable[[int], _Reader]):
    """Args: `open_reader` takes the number of the pass, from 0 on."""
    self._open = open_reader
    self._lock, self._count = threading.Lock(), 0
    # A dataset that is made and never read costs what its first reader does.
    self._readers = {0: open_reader(0)}

  def begin(self) -> np.ndarray:
    """Returns the number of a new pass."""
    with self._lock:
      number, self._count = self._count, self._count + 1
      if number not in self._readers:
        self._readers[number] = self._open(number)
    return np.int64(number)

  def __call__(self, number: int, block: int) -> list[np.ndarray]:
    """Returns a block of a pass; see `_Reader`."""
    values = self._readers[int(number)](block)
    if number and not len(values[0]):
      with self._lock:  # It has come to its end.
        self._readers.pop(int(number), None)
    return values


class EpochStream(streams.Stream):
  """A stream that can tell where an epoch ends."""

  def end(self, epochs: int) -> int:
    """Returns the number of examples in the first `epochs` epochs."""
    self._go_to(0, 0, 0)
    while self._epoch < epochs:
      self._advance()
    return self._first


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
    features: of a row.
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
    some = corpus.SpecialIds(0, 1, 2, 3, 4)
    self.features = loader.make_builder(
      builder, some, 5, self._options
    ).features

  @functools.cached_property
  def opened(self) -> Any:
    return self._opener()

  def tokenizer(self) -> Vocabulary:
    """Returns the tokenizer of the vocabulary; reads it."""
    opened = self.opened
    if isinstance(opened, corpus.Prepared):
      return vocabulary_files.of_prepared(opened.path, opened.meta)
    return opened.tokenizer

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
  ) -> _Reader:
    """Opens the reader of a pass over the dataset, from 0 on."""
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
    start = rows.end(number * epochs)
    return _Reader(rows, rows.end((number + 1) * epochs), shard, start)

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
      lambda number: self._reader(split, seed, shard_info, num_epochs, number)
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
      made = tf.data.Dataset.range(ENDLESS).map(lambda k: make(number, k))
      return made.take_while(lambda batch: tf.shape(batch[some])[0] > 0)

    # Run once for each time that the dataset is iterated.
    numbers = tf.data.Dataset.from_tensors(0).map(
      lambda _: tf.ensure_shape(
        tf.numpy_function(passes.begin, [], tf.int64), ()
      )
    )
    rows = numbers.flat_map(blocks).unbatch()
    # The held-out rows are fixed.
    return rows.repeat(num_epochs) if split == "validation" else rows
