"""From a path to this host's batches, made ahead in a background thread."""

import dataclasses
import importlib
import importlib.util
import itertools
import math
import os
import queue
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from bert_jax.corpus.reader import Corpus, Prepared, open_prepared
from bert_jax.examples import coverage
from bert_jax.examples.batch_keys import Batch, Features
from bert_jax.examples.recipes import make_recipe
from bert_jax.examples.stateful_streams import StatefulStreams
from bert_jax.examples.streams import Heldout, Mixture, Source, Stream, heldout
from bert_jax.messages import UserError
from bert_jax.text.open_vocabulary import check_same
from bert_jax.text.vocabulary import SpecialIds

__all__ = [
  "Batches",
  "Data",
  "Heldout",
  "Item",
  "Mixture",
  "Stream",
  "batches",
  "heldout",
  "open_data",
  "open_heldout",
]


@dataclasses.dataclass(frozen=True)
class Data:
  """A stream or mixture with what a model must know about it.

  Attributes:
    source: the source of the rows.
    vocab_size: number of pieces; every id in a batch is below it.
    special: ids of the special tokens.
    prepared: the opened folders, one a component.
  """

  source: Source
  vocab_size: int
  special: SpecialIds
  prepared: tuple[Prepared, ...]

  @property
  def features(self) -> Features:
    return self.source.features

  def read(self, first: int, count: int) -> Batch:
    return self.source.read(first, count)

  def position(self) -> dict[str, int]:
    return self.source.position()

  def restore(self, position: dict[str, int]) -> None:
    self.source.restore(position)


def parse_mixture(path: str) -> list[tuple[str, float]]:
  """Splits `DIR` or `DIR1=0.7,DIR2=0.3` into folders and weights.

  Raises:
    ValueError: a component has no weight, or one that is no positive number;
      a folder is there twice.
  """
  if os.path.isdir(path) or not ("=" in path or "," in path):
    return [(path, 1.0)]
  parts = []
  for part in path.split(","):
    folder, _, weight = part.rpartition("=")
    try:
      parts.append((folder.strip(), float(weight)))
    except ValueError as e:
      raise UserError(
        f"data path {path!r}: {part!r} is no component of a mixture; write"
        " DIR1=0.7,DIR2=0.3."
      ) from e
    if not 0 < parts[-1][1] < math.inf:
      raise UserError(
        f"data path {path!r}: the weight {weight} is not a positive number."
      )
  folders = [os.path.realpath(folder) for folder, _ in parts]
  for i, (folder, _) in enumerate(parts):
    if folders[i] in folders[:i]:
      raise UserError(
        f"data path {path!r}: {folder} is there twice; add up its weights."
      )
  return parts


def _open_folders(path: str) -> tuple[tuple[Prepared, ...], list[float]]:
  """Opens the components of a path; they must share one vocabulary."""
  if not path:
    raise UserError(
      "data.path is empty; pass --config.data.path=DIR, a folder that `bert_jax"
      " prepare` made."
    )
  folders, weights = zip(*parse_mixture(path), strict=True)
  prepared = tuple(open_prepared(folder) for folder in folders)
  for other in prepared[1:]:
    check_same(
      prepared[0].vocab,
      other.vocab,
      prepared[0].path,
      other.path,
      "prepare both with one vocab.txt",
    )
  return prepared, list(weights)


def check_cased(parts: Iterable[Any], cased: bool | None) -> None:
  """Checks how the text was tokenised.

  Args:
    parts: opened folders or texts, with `path` and `meta`.
    cased: if capitals and accents were kept; None asks for neither.

  Raises:
    ValueError: they were, and should not, or the other way round.
  """
  for part in parts:
    if cased is not None and part.meta["lower_case"] == cased:
      done, remedy = ("", "with") if cased else ("not ", "without")
      raise UserError(
        f"{part.path} was {done}lower-cased, but data.cased={cased}; pass"
        f" --config.data.cased={not cased}, or prepare the text {remedy}"
        f" --no-lower-case (a task: register it with lower_case={not cased})."
      )


def split_of(prepared: Prepared, split: str) -> Corpus:
  """Returns the corpus of a split; raises ValueError if there is none."""
  if split not in prepared.splits:
    raise UserError(
      f"{prepared.path} has no documents in split {split!r}, only in"
      f" {', '.join(prepared.splits) or 'none'}."
    )
  return prepared.splits[split]._replace(unigrams=prepared.unigrams)


@dataclasses.dataclass(frozen=True)
class Opener:
  """Opens data by a name that another package's registry knows.

  Attributes:
    names: () -> the names that it opens.
    open_data: (name, recipe, split, seed, cased, **options), as `open_data`.
    open_heldout: (name, recipe, split, limit, cased, **options), as
      `open_heldout`.
  """

  names: Callable[[], Collection[str]]
  open_data: Callable[..., Data]
  open_heldout: Callable[..., Heldout]


# A module that registers data under names adds its opener when it is imported.
OPENERS: list[Opener] = []


def _find_opener(path: str) -> tuple[Opener, str] | None:
  """Returns what opens a registered name, and the name; None for folders.

  Args:
    path: `NAME`, or `MODULE:NAME`; MODULE is imported, and registers NAME.

  Raises:
    ValueError: the package seqio is missing, or there is no such module or
      name.
  """
  if os.path.isdir(path):
    return None
  if opener := _opener_of(path):
    return opener, path
  match = re.fullmatch(r"([A-Za-z_][\w.]*):([\w.:#]+)", path)
  if not match:
    return None
  if importlib.util.find_spec("seqio") is None:
    raise UserError(
      f"{path}: a seqio task needs the packages seqio and tensorflow; run"
      " `pip install 'bert_jax[data]'`, or prepare the text."
    )
  module, name = match.groups()
  try:
    importlib.import_module(module)
  except ModuleNotFoundError as e:
    raise UserError(
      f"data path {path!r}: there is no module {e.name}; start where it can"
      " be imported (one in the current folder can), or correct the name."
    ) from e
  if not OPENERS:
    raise UserError(
      f"data path {path!r}: {module} does not import"
      " bert_jax.seqio_tasks.pretraining, which opens seqio tasks; add"
      " `from bert_jax.seqio_tasks import pretraining` to it."
    )
  if opener := _opener_of(name):
    return opener, name
  names = sorted(name for opener in OPENERS for name in opener.names())
  raise UserError(
    f"no seqio task or mixture {name!r} is registered, only"
    f" {', '.join(names) or 'none'}; as data.path write MODULE:NAME, where"
    " MODULE registers it."
  )


def _opener_of(name: str) -> Opener | None:
  return next((o for o in OPENERS if name in o.names()), None)


def open_data(
  path: str,
  builder: str,
  split: str = "train",
  seed: int = 0,
  cased: bool | None = None,
  **options: Any,
) -> Data:
  """Opens a prepared folder, a mixture of some or a task as an endless stream.

  Args:
    path: a prepared folder, a mixture `DIR1=0.7,DIR2=0.3`, or a seqio task or
      mixture: `MODULE:NAME` (MODULE registers it), or NAME if registered.
    builder: the name of a recipe, in `recipes.RECIPES`.
    split: "train" or "validation".
    seed: the seed of order, pairs and masks.
    cased: if the text must have kept its capitals and accents; None takes it
      either way.
    **options: options of the recipe, for example `length=512`.

  Raises:
    ValueError: with one sentence that says what to change.
  """
  if found := _find_opener(path):
    opener, name = found
    return opener.open_data(name, builder, split, seed, cased, **options)
  prepared, weights = _open_folders(path)
  check_cased(prepared, cased)
  special, vocab_size = prepared[0].special, prepared[0].vocab_size
  recipe = make_recipe(builder, special, vocab_size, options)
  if recipe.streams:
    if len(prepared) > 1:
      raise UserError(
        f"data.streams={recipe.streams}: of one folder only, not of the"
        f" {len(prepared)} of a mixture; set data.streams=0."
      )
    corpus = split_of(prepared[0], split)
    source = StatefulStreams(corpus, recipe, seed)
    return Data(source, vocab_size, special, prepared)
  streams = [
    Stream(split_of(part, split), recipe, seed, name=str(i))
    for i, part in enumerate(prepared)
  ]
  source = streams[0] if len(streams) == 1 else Mixture(streams, weights, seed)
  return Data(source, vocab_size, special, prepared)


def open_heldout(
  path: str,
  builder: str,
  split: str = "validation",
  limit: int | None = None,
  cased: bool | None = None,
  **options: Any,
) -> Heldout:
  """Opens the held-out documents of a folder, or of all in a mixture.

  Args are those of `open_data`; `limit` as in `Heldout`. The rows depend on no
  seed and no weight.

  Raises:
    ValueError: with one sentence that says what to change.
  """
  if found := _find_opener(path):
    opener, name = found
    return opener.open_heldout(name, builder, split, limit, cased, **options)
  prepared, _ = _open_folders(path)
  check_cased(prepared, cased)
  recipe = make_recipe(
    builder, prepared[0].special, prepared[0].vocab_size, options
  )
  return Heldout([split_of(part, split) for part in prepared], recipe, limit)


def describe_rows(
  data: Data, path: str, builder: str, cased: bool | None = None, **options: Any
) -> Iterator[tuple[str, str]]:
  """Yields (folder, line) about how much of each prepared folder rows hold.

  Args:
    data: the result of `open_data` for the other arguments.
    path, builder, cased, options: see `open_data`.
  """
  del path, cased
  for folder in data.prepared:
    # Text that is tokenized during training cannot be measured before.
    if isinstance(folder, Prepared):
      recipe = make_recipe(builder, folder.special, folder.vocab_size, options)
      for line in coverage.coverage_lines(split_of(folder, "train"), recipe):
        yield folder.path, line


class Item(NamedTuple):
  """This host's rows of one global batch, and where to continue after it."""

  batch: Batch
  position: dict[str, int]


def host_rows(
  first: int, count: int, host_index: int, host_count: int
) -> tuple[int, int]:
  """Returns (first, count) of one host's share of a global batch.

  Raises:
    ValueError: the hosts do not divide the batch, or there is no such host.
  """
  if not 0 <= host_index < host_count:
    raise UserError(f"host {host_index} of {host_count}: no such host.")
  if count < 1 or count % host_count:
    raise UserError(
      f"batch size {count} is not a positive multiple of {host_count} hosts."
    )
  share = count // host_count
  return first + host_index * share, share


class Batches:
  """Iterates over this host's batches; a daemon thread makes them ahead.

  An error of the thread is raised where the consumer would have got the batch.
  The source belongs to the thread until `close`.
  """

  def __init__(
    self,
    source: Source | Data,
    spans: Iterable[tuple[int, int]],
    host_index: int = 0,
    host_count: int = 1,
    prefetch: int = 2,
  ):
    """Starts the thread.

    Args:
      source: the source of the rows.
      spans: (first, count) of the global batch of each step.
      host_index, host_count: this host reads an equal contiguous share.
      prefetch: batches to make ahead, at least 1.
    """
    self._queue: queue.Queue = queue.Queue(maxsize=prefetch)
    self._stop = threading.Event()
    self._ended = False
    self._thread = threading.Thread(
      target=self._work,
      args=(source, iter(spans), host_index, host_count),
      name="batches",
      daemon=True,
    )
    self._thread.start()

  def _work(
    self,
    source: Source | Data,
    spans: Iterator[tuple[int, int]],
    host_index: int,
    host_count: int,
  ) -> None:
    try:
      for first, count in spans:
        rows = host_rows(first, count, host_index, host_count)
        batch = source.read(*rows)
        self._put(Item(batch, source.position()))
        if self._stop.is_set():
          return
      self._put(StopIteration())
    except Exception as e:  # The consumer decides what to do about it.
      self._put(e)

  def _put(self, item: Item | Exception) -> None:
    """Queues an item unless the consumer has closed."""
    while not self._stop.is_set():
      try:
        return self._queue.put(item, timeout=0.1)
      except queue.Full:
        continue

  def __iter__(self) -> "Batches":
    return self

  def __next__(self) -> Item:
    if self._ended:
      raise StopIteration
    item = self._queue.get()
    if isinstance(item, Exception):
      self._ended = True
      raise item
    return item

  def close(self) -> None:
    """Stops the thread and waits for the batch it may be making."""
    self._ended = True
    self._stop.set()
    self._thread.join()

  def __enter__(self) -> "Batches":
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()


def batches(
  source: Source | Data,
  start_step: int,
  batch_size: int,
  host_index: int = 0,
  host_count: int = 1,
  prefetch: int = 2,
) -> Batches:
  """Returns the batches of steps `start_step`, `start_step` + 1, ...

  Step s is rows [s * batch_size, (s + 1) * batch_size); `batch_size` counts all
  hosts' rows.

  Raises:
    ValueError: the hosts do not divide the batch.
  """
  host_rows(0, batch_size, host_index, host_count)
  spans = ((s * batch_size, batch_size) for s in itertools.count(start_step))
  return Batches(source, spans, host_index, host_count, prefetch)
