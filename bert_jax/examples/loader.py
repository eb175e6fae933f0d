"""Opens data, and makes this host's batches ahead in a background thread."""

import dataclasses
import importlib
import importlib.util
import itertools
import math
import queue
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from etils import epath

from bert_jax.corpus.reader import Corpus, PreparedFolder, open_prepared
from bert_jax.examples import coverage
from bert_jax.examples.batch_keys import Batch, Features
from bert_jax.examples.recipes import make_recipe
from bert_jax.examples.streams import (
  Heldout,
  Mixture,
  Source,
  StatefulStreams,
  Stream,
  make_heldout,
)
from bert_jax.messages import UserError
from bert_jax.text.open_vocabulary import check_same_pieces
from bert_jax.text.vocabulary import SpecialIds

__all__ = [
  "Batches",
  "Heldout",
  "HostBatch",
  "Mixture",
  "PretrainingData",
  "Stream",
  "batches_from_step",
  "make_heldout",
  "open_data",
  "open_heldout",
]


@dataclasses.dataclass(frozen=True)
class PretrainingData:
  """Holds a stream or mixture, and the facts about it that a model needs.

  Attributes:
    source: the source of the rows.
    vocab_size: the number of pieces; every id in a batch is below this number.
    special: the ids of the special tokens.
    prepared_folders: for each data set of the mixture the opened folder, or the
      opened text of a seqio task; one entry if the source is no mixture.
  """

  source: Source
  vocab_size: int
  special: SpecialIds
  prepared_folders: tuple[PreparedFolder, ...]

  @property
  def features(self) -> Features:
    """The shape of one row and the dtype, for each key."""
    return self.source.features

  def read(self, first: int, count: int) -> Batch:
    """See `Source.read`."""
    return self.source.read(first, count)

  def position(self) -> dict[str, int]:
    """See `Source.position`."""
    return self.source.position()

  def restore(self, position: dict[str, int]) -> None:
    """See `Source.restore`."""
    self.source.restore(position)


def parse_mixture(path: str) -> list[tuple[str, float]]:
  """Splits `DIR` or `DIR1=0.7,DIR2=0.3` into folders and weights.

  Raises:
    UserError: a weight is missing or is not a positive number, or a folder is
      repeated.
  """
  if epath.Path(path).is_dir() or not ("=" in path or "," in path):
    return [(path, 1.0)]
  components = []
  for component in path.split(","):
    folder, _, weight = component.rpartition("=")
    try:
      components.append((folder.strip(), float(weight)))
    except ValueError as e:
      raise UserError(
        f"data path {path!r}: {component!r} is not a component of a mixture;"
        " write DIR1=0.7,DIR2=0.3."
      ) from e
    if not 0 < components[-1][1] < math.inf:
      raise UserError(
        f"data path {path!r}: the weight {weight} is not a positive number."
      )
  resolved_folders = [epath.Path(folder).resolve() for folder, _ in components]
  for i, (folder, _) in enumerate(components):
    if resolved_folders[i] in resolved_folders[:i]:
      raise UserError(
        f"data path {path!r}: {folder} is there twice; add up its weights."
      )
  return components


def _open_folders(path: str) -> tuple[tuple[PreparedFolder, ...], list[float]]:
  """Opens the folders of a data path; returns the folders and their weights.

  Raises:
    UserError: the path is empty, a folder cannot be opened, or two folders
      have different vocabularies.
  """
  if not path:
    raise UserError(
      "data.path is empty; pass --config.data.path=DIR, a folder that `bert_jax"
      " prepare` made."
    )
  folder_paths, weights = zip(*parse_mixture(path), strict=True)
  prepared_folders = tuple(
    open_prepared(folder_path) for folder_path in folder_paths
  )
  for folder in prepared_folders[1:]:
    check_same_pieces(
      prepared_folders[0].vocab,
      folder.vocab,
      prepared_folders[0].path,
      folder.path,
      "prepare both with one vocab.txt",
    )
  return prepared_folders, list(weights)


class _OpenedInput(Protocol):
  """Describes the type of an opened folder or an opened seqio task.

  Attributes:
    path: the name of the folder or text, for messages.
    meta: a dict; its key `lower_case` says whether the text was lower-cased.
  """

  @property
  def path(self) -> str: ...
  @property
  def meta(self) -> dict[str, Any]: ...


def check_case(
  opened_inputs: Iterable[_OpenedInput], cased: bool | None
) -> None:
  """Checks whether the text was lower-cased.

  Args:
    opened_inputs: opened folders or seqio tasks.
    cased: True if the text must have kept its capitals and accents, False if it
      must be lower-cased; None accepts both.

  Raises:
    UserError: `cased` is True and the text was lower-cased, or `cased` is
      False and the text was not lower-cased.
  """
  for opened_input in opened_inputs:
    if cased is not None and opened_input.meta["lower_case"] == cased:
      negation, remedy = ("", "with") if cased else ("not ", "without")
      raise UserError(
        f"{opened_input.path} was {negation}lower-cased, but"
        f" data.cased={cased}; pass --config.data.cased={not cased}, or prepare"
        f" the text {remedy} --no-lower-case. For a seqio task, pass"
        f" lower_case={not cased} where it is registered."
      )


def corpus_of_split(prepared: PreparedFolder, split: str) -> Corpus:
  """Returns the corpus of a split.

  Raises:
    UserError: the folder has no documents in this split.
  """
  if split not in prepared.splits:
    raise UserError(
      f"{prepared.path} has no documents in split {split!r}; splits"
      f" with documents: {', '.join(prepared.splits) or 'none'}."
    )
  return prepared.splits[split]._replace(unigrams=prepared.unigrams)


@dataclasses.dataclass(frozen=True)
class Opener:
  """Opens data by names that a package such as seqio has registered.

  Attributes:
    list_names: a function that returns the names that can be opened.
    open_data: a function like `open_data`, with a name in place of the path.
    open_heldout: a function like `open_heldout`, with a name in place of the
      path.
  """

  list_names: Callable[[], Collection[str]]
  open_data: Callable[..., PretrainingData]
  open_heldout: Callable[..., Heldout]


# `bert_jax.seqio_tasks.pretraining` appends its opener when it is imported.
OPENERS: list[Opener] = []


def _find_opener(path: str) -> tuple[Opener, str] | None:
  """Finds the opener of a registered name.

  Args:
    path: a data path. `MODULE:NAME` imports MODULE, which must register NAME;
      `NAME` must be registered already.

  Returns:
    The opener and NAME; None if `path` is a folder, or is neither
    MODULE:NAME nor a registered NAME.

  Raises:
    UserError: the package seqio is missing, or there is no such module or
      name.
  """
  if epath.Path(path).is_dir():
    return None
  if opener := _opener_with_name(path):
    return opener, path
  match = re.fullmatch(r"([A-Za-z_][\w.]*):([\w.:#]+)", path)
  if not match:
    return None
  if importlib.util.find_spec("seqio") is None:
    raise UserError(
      f"{path}: a seqio task needs the packages seqio and tensorflow; run"
      " `pip install 'bert_jax[data]'`, or prepare the text."
    )
  module_name, name = match.groups()
  try:
    importlib.import_module(module_name)
  except ModuleNotFoundError as e:
    raise UserError(
      f"data path {path!r}: there is no module {e.name}; run the command in"
      " the folder with that module, or correct the name."
    ) from e
  if not OPENERS:
    raise UserError(
      f"data path {path!r}: {module_name} does not import"
      " bert_jax.seqio_tasks.pretraining, which opens seqio tasks; add"
      " `from bert_jax.seqio_tasks import pretraining` to it."
    )
  if opener := _opener_with_name(name):
    return opener, name
  names = sorted(name for opener in OPENERS for name in opener.list_names())
  raise UserError(
    f"no seqio task or mixture {name!r} is registered; registered are:"
    f" {', '.join(names) or 'none'}. As data.path write MODULE:NAME, where"
    " MODULE registers NAME."
  )


def _opener_with_name(name: str) -> Opener | None:
  return next(
    (opener for opener in OPENERS if name in opener.list_names()), None
  )


def open_data(
  path: str,
  builder: str,
  split: str = "train",
  seed: int = 0,
  cased: bool | None = None,
  **options: Any,
) -> PretrainingData:
  """Opens training data as an endless stream.

  Args:
    path: a prepared folder; a mixture of folders `DIR1=0.7,DIR2=0.3`; or a
      seqio task or mixture. A seqio name is `MODULE:NAME`, where MODULE
      registers NAME, or only NAME if it is registered already.
    builder: the name of a recipe, a key of `recipes.RECIPES`.
    split: "train" or "validation".
    seed: the seed of the order, pairs and masks.
    cased: True if the text must have kept its capitals and accents, False if it
      must be lower-cased; None accepts both.
    **options: options of the recipe, for example `length=512`.

  Raises:
    UserError: the data cannot be opened or used; the message says what to
      change.
  """
  if registered := _find_opener(path):
    opener, name = registered
    return opener.open_data(name, builder, split, seed, cased, **options)
  prepared_folders, weights = _open_folders(path)
  check_case(prepared_folders, cased)
  special, vocab_size = (
    prepared_folders[0].special,
    prepared_folders[0].vocab_size,
  )
  recipe = make_recipe(builder, special, vocab_size, options)
  if recipe.num_streams:
    if len(prepared_folders) > 1:
      raise UserError(
        f"data.streams={recipe.num_streams} can read one folder only, and the"
        f" mixture has {len(prepared_folders)}; set data.streams=0."
      )
    corpus = corpus_of_split(prepared_folders[0], split)
    source: Source = StatefulStreams(corpus, recipe, seed)
    return PretrainingData(source, vocab_size, special, prepared_folders)
  streams = [
    Stream(corpus_of_split(folder, split), recipe, seed, name=str(index))
    for index, folder in enumerate(prepared_folders)
  ]
  source = streams[0] if len(streams) == 1 else Mixture(streams, weights, seed)
  return PretrainingData(source, vocab_size, special, prepared_folders)


def open_heldout(
  path: str,
  builder: str,
  split: str = "validation",
  limit: int | None = None,
  cased: bool | None = None,
  **options: Any,
) -> Heldout:
  """Opens the held-out documents of a folder, or of all folders of a mixture.

  The rows depend on no seed, and not on the weights of a mixture.

  Args:
    path: see `open_data`.
    builder: see `open_data`.
    split: the split with the held-out documents.
    limit: the largest number of examples, see `Heldout`.
    cased: see `open_data`.
    **options: see `open_data`.

  Raises:
    UserError: the data cannot be opened or used; the message says what to
      change.
  """
  if registered := _find_opener(path):
    opener, name = registered
    return opener.open_heldout(name, builder, split, limit, cased, **options)
  prepared_folders, _ = _open_folders(path)
  check_case(prepared_folders, cased)
  recipe = make_recipe(
    builder,
    prepared_folders[0].special,
    prepared_folders[0].vocab_size,
    options,
  )
  corpora = [corpus_of_split(folder, split) for folder in prepared_folders]
  return Heldout(corpora, recipe, limit)


def describe_coverage(
  data: PretrainingData,
  path: str,
  builder: str,
  cased: bool | None = None,
  **options: Any,
) -> Iterator[tuple[str, str]]:
  """Yields (path of a folder, line), see `coverage.coverage_lines`.

  Args:
    data: what `open_data` returned for the arguments below.
    path: not used; a caller may pass the arguments of `open_data` unchanged.
    builder: see `open_data`.
    cased: not used, like `path`.
    **options: see `open_data`.
  """
  del path, cased
  for folder in data.prepared_folders:
    # For text that is tokenised during training, the coverage is not known.
    if isinstance(folder, PreparedFolder):
      recipe = make_recipe(builder, folder.special, folder.vocab_size, options)
      for line in coverage.coverage_lines(
        corpus_of_split(folder, "train"), recipe
      ):
        yield folder.path, line


class HostBatch(NamedTuple):
  """Holds this host's rows of a global batch.

  Attributes:
    batch: the rows.
    position: the `Source.position` after this batch.
  """

  batch: Batch
  position: dict[str, int]


def host_rows(
  first: int, count: int, host_index: int, host_count: int
) -> tuple[int, int]:
  """Returns (first row, number of rows) of one host's share of a global batch.

  Raises:
    UserError: `count` is not a positive multiple of `host_count`, or
      no host has the index `host_index`.
  """
  if not 0 <= host_index < host_count:
    raise UserError(f"host {host_index} of {host_count} does not exist.")
  if count < 1 or count % host_count:
    raise UserError(
      f"batch size {count} is not a positive multiple of {host_count} hosts."
    )
  rows_per_host = count // host_count
  return first + host_index * rows_per_host, rows_per_host


class Batches:
  """Iterates over this host's batches, which a daemon thread makes ahead.

  If the thread fails, `__next__` raises the thread's error in place of the next
  batch. Until `close`, only the thread may use the source.
  """

  def __init__(
    self,
    source: Source | PretrainingData,
    example_ranges: Iterable[tuple[int, int]],
    host_index: int = 0,
    host_count: int = 1,
    prefetch: int = 2,
  ):
    """Starts the thread.

    Args:
      source: the source of the rows.
      example_ranges: (first, count) of the global batch of each step.
      host_index: the index of this host, from 0. Each global batch is cut into
        `host_count` contiguous shares; host i reads share i.
      host_count: the number of hosts, which have shares of equal size.
      prefetch: the number of batches to make ahead, at least 1.
    """
    self._queue: queue.Queue[HostBatch | Exception]
    self._queue = queue.Queue(maxsize=prefetch)
    self._stop = threading.Event()
    self._ended = False
    self._thread = threading.Thread(
      target=self._work,
      args=(source, iter(example_ranges), host_index, host_count),
      name="batches",
      daemon=True,
    )
    self._thread.start()

  def _work(
    self,
    source: Source | PretrainingData,
    example_ranges: Iterator[tuple[int, int]],
    host_index: int,
    host_count: int,
  ) -> None:
    """Puts the batches into the queue, and then StopIteration or an error."""
    try:
      for first, count in example_ranges:
        rows = host_rows(first, count, host_index, host_count)
        batch = source.read(*rows)
        self._put(HostBatch(batch, source.position()))
        if self._stop.is_set():
          return
      self._put(StopIteration())
    except Exception as e:  # `__next__` raises it for the consumer.
      self._put(e)

  def _put(self, entry: HostBatch | Exception) -> None:
    """Puts an entry into the queue, unless the consumer has called `close`."""
    while not self._stop.is_set():
      try:
        return self._queue.put(entry, timeout=0.1)
      except queue.Full:
        continue

  def __iter__(self) -> "Batches":
    """Returns itself."""
    return self

  def __next__(self) -> HostBatch:
    """Returns the next batch, or raises StopIteration or the thread's error."""
    if self._ended:
      raise StopIteration
    entry = self._queue.get()
    if isinstance(entry, Exception):
      self._ended = True
      raise entry
    return entry

  def close(self) -> None:
    """Stops the thread, and waits until it has ended."""
    self._ended = True
    self._stop.set()
    self._thread.join()

  def __enter__(self) -> "Batches":
    """Returns itself."""
    return self

  def __exit__(self, *exception: object) -> None:
    """Stops the thread, see `close`."""
    self.close()


def batches_from_step(
  source: Source | PretrainingData,
  start_step: int,
  batch_size: int,
  host_index: int = 0,
  host_count: int = 1,
  prefetch: int = 2,
) -> Batches:
  """Returns the batches of steps `start_step`, `start_step` + 1, ...

  Step s has rows [s * batch_size, (s + 1) * batch_size).

  Args:
    source: the source of the rows.
    start_step: the first step.
    batch_size: the number of rows in a batch, over all hosts.
    host_index: see `Batches`.
    host_count: see `Batches`.
    prefetch: see `Batches`.

  Raises:
    UserError: `batch_size` is not a positive multiple of `host_count`, or
      no host has the index `host_index`.
  """
  host_rows(0, batch_size, host_index, host_count)
  example_ranges = (
    (step * batch_size, batch_size) for step in itertools.count(start_step)
  )
  return Batches(source, example_ranges, host_index, host_count, prefetch)
