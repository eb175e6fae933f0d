"""A task's folder as a run reads it: batches to train on, splits to score.

Rows become batches of a few lengths, each by its number alone. An epoch is a
permutation keyed by (seed, epoch); its last batch is filled up with rows of
weight 0. Nothing is kept from one batch to the next, so a restart needs a step
number only. A batch is as long as the smallest of a few lengths that holds its
longest row: a length is a compilation.
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.examples.batch_keys import Batch, Features
from bert_jax.messages import UserError
from bert_jax.tasks import encoded_rows, metrics
from bert_jax.tasks.bucket_lengths import BUCKETS
from bert_jax.tasks.encoded_rows import Examples, Rows, Task, lengths
from bert_jax.text import open_vocabulary
from bert_jax.text.vocabulary import SpecialIds, Vocabulary

# The key of `Part.meta` that checkpoints of earlier versions keep.
ROWS = "rows_fingerprint"
# Batches whose rows are sorted by length together (`group`), at most; and pools
# of an epoch at least, so that batches differ from epoch to epoch. Both as in
# transformers' group_by_length.
POOL, POOLS = 50, 4


class Batches:
  """The batches of one split.

  A unit of a batch is a row; of multiple choice it is an example, with its
  rows. Batch `step` belongs to epoch `step // steps_per_epoch`.

  Attributes:
    batch_size: units of a batch over all hosts.
    steps_per_epoch: batches of an epoch, the last one filled up.
    buckets: lengths that batches have.
  """

  def __init__(
    self,
    task: Task,
    rows: Rows,
    pad: int,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    group: bool = False,
    buckets: Sequence[int] = BUCKETS,
    host: int = 0,
    hosts: int = 1,
  ):
    """Describes the batches; makes none yet.

    Args:
      task: the task of the rows.
      rows: a split, as `encoded_rows.load` reads it.
      pad: id of padding.
      batch_size: over all hosts, a multiple of `hosts`.
      seed: another seed gives another order.
      shuffle: False for the order of the rows, every epoch.
      group: put rows of like length together, within shuffled pools of them.
      buckets: lengths; one for the longest row is added if none holds it.
      host: number of this one, whose part of each batch is made.
      hosts: how many there are.

    Raises:
      ValueError: no rows, or a size that cannot be.
    """
    self._columns = task.columns if task.kind == "choice" else 1
    self._count = len(rows.example) // self._columns
    if not self._count:
      raise UserError(f"task {task.name}: a split without rows has no batch.")
    if batch_size < 1 or batch_size % hosts:
      raise UserError(
        f"batch_size={batch_size} must be a positive multiple of the {hosts}"
        " hosts."
      )
    if group and not shuffle:
      raise UserError("group=True orders rows by length: shuffle is needed.")
    self._task, self._rows, self._pad = task, rows, pad
    self.batch_size, self._seed = batch_size, seed
    self._shuffle, self._group = shuffle, group
    self._host, self._hosts = host, hosts
    if task.kind == "span":
      self._unanswerable = unanswerable(rows)
    # A choice is as long as its longest row.
    self._lengths = lengths(rows).reshape(-1, self._columns).max(1)
    longest = int(self._lengths.max())
    holding = [b for b in sorted(buckets) if b >= longest]
    self.buckets = tuple(b for b in sorted(buckets) if b < longest)
    self.buckets += (holding[0] if holding else longest,)
    self.steps_per_epoch = -(-self._count // batch_size)
    self._order = functools.lru_cache(2)(self._make_order)

  def _make_order(self, epoch: int) -> np.ndarray:
    """Units of an epoch, int64 [steps, batch_size]; -1 fills the last up."""
    count, size = self._count, self.batch_size
    order = np.arange(count)
    if self._shuffle:
      key = hashing.make_key(self._seed, "finetune", epoch)
      order = np.argsort(hashing.bits(key, order), kind="stable")
    if self._group:
      order = self._grouped(order)
    fill = np.full(self.steps_per_epoch * size - count, -1, np.int64)
    batches = np.append(order, fill).reshape(-1, size)
    if self._group:
      # All but the last, which is not full, in an order of their own.
      whole = count // size
      key = hashing.make_key(self._seed, "finetune batches", epoch)
      mixed = np.argsort(hashing.bits(key, np.arange(whole)), kind="stable")
      batches[:whole] = batches[mixed]
    return batches

  def _grouped(self, order: np.ndarray) -> np.ndarray:
    pool = len(order) // (POOLS * self.batch_size)
    size = min(max(pool, 1), POOL) * self.batch_size
    pools = [order[i : i + size] for i in range(0, len(order), size)]
    # Sort longest first, so that the incomplete last batch holds the shortest
    # rows.
    return np.concatenate(
      [pool[np.argsort(-self._lengths[pool], kind="stable")] for pool in pools]
    )

  def length(self, step: int) -> int:
    """The length of batch `step`, on all hosts."""
    epoch, place = divmod(step, self.steps_per_epoch)
    return int(self._batch_lengths(self._order(epoch)[place : place + 1])[0])

  def _batch_lengths(self, units: np.ndarray) -> np.ndarray:
    longest = np.where(units < 0, 0, self._lengths[units]).max(1)
    return np.array(self.buckets)[np.searchsorted(self.buckets, longest)]

  def first_lengths(self) -> list[int]:
    """Lengths of the first epoch's batches, in the order of their coming."""
    lengths = self._batch_lengths(self._order(0)).tolist()
    return list(dict.fromkeys(lengths))

  def padding(self, epoch: int = 0) -> float:
    """The share of an epoch's places that hold no token."""
    order = self._order(epoch)
    places = self._batch_lengths(order).sum() * self.batch_size * self._columns
    return 1.0 - len(self._rows.ids) / float(places)

  def batch(self, step: int) -> Batch:
    """Makes this host's part of batch `step`.

    Returns:
      `input_ids`, `segment_ids`, `sequence_ids` int32 [b, l], of multiple
      choice [b, c, l]; `sequence_ids` are 1, 0 at padding. `labels`: int32 or
      float32 [b]; multi_label [b, n]; tagging [b, l]; span [b, 2].
      `label_weights`: float32 [b], tagging [b, l]; 0 where nothing is to be
      learnt, and there the label is 0.
      `unanswerable`: of span, float32 [b], 1 if its question has no answer.
      `row`: int64 [b], number of the (first) row, -1 for one that fills up.
    """
    epoch, place = divmod(step, self.steps_per_epoch)
    units = self._order(epoch)[place]
    length = self.length(step)
    host_size = self.batch_size // self._hosts
    units = units[self._host * host_size : (self._host + 1) * host_size]
    columns = np.arange(self._columns)
    row = np.where(units < 0, -1, units * self._columns)
    flat = np.where(units[:, None] < 0, -1, row[:, None] + columns).ravel()
    batch = _lay_out(self._rows, flat, length, self._pad)
    if self._columns > 1:
      shape = (host_size, self._columns, length)
      batch = {name: x.reshape(shape) for name, x in batch.items()}
    batch |= _labels(self._task, self._rows, row, length) | {"row": row}
    if self._task.kind == "span":
      batch["unanswerable"] = np.where(row < 0, 0, self._unanswerable[row])
    return batch


def unanswerable(rows: Rows) -> np.ndarray:
  """float32 [N] of kind span: 1 for the rows of a question without an answer.

  None of its windows holds one: an answer that all have only in part is none.
  """
  held = np.bincount(rows.example, (rows.labels > 0).any(1))
  return (held[rows.example] == 0).astype(np.float32)


def _lay_out(rows: Rows, row: np.ndarray, length: int, pad: int) -> Batch:
  """Inputs of rows by number, -1 for an empty one."""
  place = np.arange(length)
  sizes = np.where(row < 0, 0, np.diff(rows.starts)[row])[:, None]
  real = place < sizes
  second = rows.second[row][:, None]
  index = rows.starts[row][:, None] + place
  ids = np.where(real, rows.ids.take(index, mode="clip"), pad)
  return {
    "input_ids": ids.astype(np.int32),
    "segment_ids": (real & (place >= second)).astype(np.int32),
    "sequence_ids": real.astype(np.int32),
  }


def _labels(task: Task, rows: Rows, row: np.ndarray, length: int) -> Batch:
  """Labels and weights of rows by number, -1 for an empty one."""
  if task.kind == "tagging":
    place = np.arange(length)
    sizes = np.where(row < 0, 0, np.diff(rows.starts)[row])[:, None]
    index = rows.starts[row][:, None] + place
    labels = rows.labels.take(index, mode="clip")
    labelled = (place < sizes) & (labels >= 0)
    labels = np.where(labelled, labels, 0)
  else:
    labels = rows.labels[row]
    if task.kind == "regression":
      labelled = np.isfinite(labels) & (row >= 0)
      labels = np.where(labelled, labels, np.float32(0))
    elif task.kind in ("span", "multi_label"):
      labelled = (labels >= 0).all(1) & (row >= 0)
      labels = np.where(labelled[:, None], labels, 0)
    else:
      labelled = (labels >= 0) & (row >= 0)
      labels = np.where(labelled, labels, 0)
  return {"labels": labels, "label_weights": labelled.astype(np.float32)}


class Part(NamedTuple):
  """An opened folder.

  Attributes:
    path: the folder.
    meta: the content of `meta.json`; in a run also the fingerprint of the
      training rows.
    tokenizer: the tokenizer that made the rows.
  """

  path: str
  meta: dict[str, Any]
  tokenizer: Vocabulary

  @property
  def vocab(self) -> list[str]:
    return list(self.tokenizer.pieces)

  def tokenizer_files(self) -> dict[str, bytes]:
    """Returns name -> content of the tokenizer's files."""
    return open_vocabulary.contents(self.tokenizer)


class Split(NamedTuple):
  """A split to score.

  Attributes:
    name: the name of the split.
    task: the task of its folder.
    pad: id of padding.
    rows: the rows.
    examples: their raw fields.
    buckets: lengths of its batches.
    pieces: the pieces of the tokenizer that made the rows.
  """

  name: str
  task: Task
  pad: int
  rows: Rows
  examples: Examples
  buckets: tuple[int, ...]
  pieces: Sequence[str]

  def batches(self, batch_size: int) -> Batches:
    """All rows once, those of like length together."""
    return Batches(
      self.task,
      self.rows,
      self.pad,
      batch_size,
      group=True,
      buckets=self.buckets,
    )


Splits = list[Split]


class Data:
  """The training split of a folder, for `loader.Batches`.

  A batch depends on its number alone, so a restart needs no position.

  Attributes:
    task: the task of the folder.
    part: the folder.
    prepared: a tuple with this folder alone.
    vocab_size: ids that a model needs.
    special: ids of the special tokens.
    features: one row of the longest batch.
  """

  def __init__(self, part: Part, rows: Rows, batches: Batches, epochs: float):
    self.part, self.prepared = part, (part,)
    self.task = encoded_rows.task_of(part.meta["task"])
    self.vocab_size = part.meta["vocab_size"]
    self.special = SpecialIds(**part.meta["special"])
    self.features = _features(self.task, rows, max(batches.buckets))
    self._rows = rows
    self._batches, self._epochs = batches, epochs
    # Set by `open_data`; what `open_splits` opens beside.
    self.validation: tuple[str, ...] = ()

  @property
  def steps_of_epoch(self) -> int:
    return self._batches.steps_per_epoch

  @property
  def steps_of_epochs(self) -> int:
    return max(round(self._epochs * self.steps_of_epoch), 1)

  @property
  def padding(self) -> float:
    return self._batches.padding()

  def shapes(self) -> list[Features]:
    """The shapes of a row in the first epoch's batches, one of each length."""
    return shapes(self.task, self._rows, self._batches)

  def read(self, first: int, count: int) -> Batch:
    """This host's part of the batch whose examples begin with `first`."""
    step, place = divmod(first, self._batches.batch_size)
    batch = self._batches.batch(step)
    host = slice(place, place + count)
    return {k: v[host] for k, v in batch.items() if k != "row"}

  def position(self) -> dict[str, int]:
    return {}

  def restore(self, position: dict[str, int]) -> None:
    del position


def shapes(task: Task, rows: Rows, batches: Batches) -> list[Features]:
  """The shapes of a row in the first epoch's batches, one of each length.

  Args:
    task: the task of the rows.
    rows: a split.
    batches: its batches.
  """
  return [_features(task, rows, n) for n in batches.first_lengths()]


def _features(task: Task, rows: Rows, length: int) -> Features:
  """{key: (shape of one row of a batch, dtype)}."""
  row = (task.columns, length) if task.kind == "choice" else (length,)
  shape = (length,) if task.kind == "tagging" else rows.labels.shape[1:]
  weight = (length,) if task.kind == "tagging" else ()
  ids = dict.fromkeys(("input_ids", "segment_ids", "sequence_ids"))
  row_shapes: Features = {key: (row, np.dtype(np.int32)) for key in ids}
  row_shapes["labels"] = (shape, rows.labels.dtype)
  row_shapes["label_weights"] = (weight, np.dtype(np.float32))
  if task.kind == "span":
    row_shapes["unanswerable"] = ((), np.dtype(np.float32))
  return row_shapes


def _fingerprint(rows: Rows) -> str:
  digest = hashlib.sha256()
  for array in rows:
    digest.update(f"{array.dtype} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
  return digest.hexdigest()


def _has_labels(task: Task, rows: Rows) -> bool:
  if task.kind == "regression":
    return bool(np.isfinite(rows.labels).any())
  return bool((rows.labels >= 0).any())


def open_part(path: str) -> Part:
  """Opens a task's folder without its rows.

  Raises:
    ValueError: no such folder, or damaged.
  """
  if not path:
    raise UserError(
      "data.path is empty; pass --config.data.path=DIR, a folder of features"
      " that `bert_jax prepare-task --task NAME` made."
    )
  meta = encoded_rows.read_meta(path)
  return Part(path, meta, open_vocabulary.load(path))


def open_data(
  batch_size: int,
  seed: int,
  path: str,
  train: str = "train",
  validation: str = "validation",
  epochs: float = 3.0,
  shuffle: bool = True,
  group: bool = True,
  buckets: tuple[int, ...] = BUCKETS,
) -> Data:
  """Opens the training split of a folder.

  Args:
    batch_size: over all hosts.
    seed: another seed gives another order.
    path: the folder.
    train: name of the split.
    validation: names of the splits to evaluate, separated by commas; the first
      one decides which checkpoint is the best.
    epochs: how often each row is seen, where the config has no `total_steps`.
    shuffle: in an order of its own each epoch, or in the file's.
    group: rows of like length together, see `batches.Batches`.
    buckets: lengths of batches.

  Raises:
    ValueError: with one sentence.
  """
  folder = open_part(path)
  task, rows, _ = encoded_rows.load(path, train)
  if not _has_labels(task, rows):
    raise UserError(f"{path}: no example of split {train!r} has a label.")
  of_rows = {ROWS: _fingerprint(rows)}
  # A folder of an earlier version has no digest of all its files.
  whole = folder.meta.get("fingerprint", of_rows[ROWS])
  folder = folder._replace(meta=folder.meta | of_rows | {"fingerprint": whole})
  batches = Batches(
    task,
    rows,
    folder.meta["pad"],
    batch_size,
    seed=seed,
    shuffle=shuffle,
    group=group and shuffle,
    buckets=tuple(buckets),
  )
  data = Data(folder, rows, batches, epochs)
  data.validation = tuple(n.strip() for n in validation.split(",") if n.strip())
  return data


def open_splits(data: Data, predicts: bool = True) -> Splits:
  """Opens the splits to score.

  Args:
    data: with the names of the splits.
    predicts: True if the model predicts labels, which a metric can compare.

  Raises:
    ValueError: the folder has not all of them, or one has no labels, or those
      of which the task's metric is not defined; or a package for it is missing.
  """
  splits = []
  if predicts and data.validation:
    # Now: a run that stops at its first evaluation has trained for nothing.
    metrics.check_packages(data.task)
  for name in data.validation:
    try:
      split = open_split(data.part, name)
      if not _has_labels(split.task, split.rows):
        raise UserError(
          f"{data.part.path}: no example of split {name!r} has a label."
        )
      if predicts:
        _check_varied(split, data.part.path)
      splits.append(split)
    except ValueError as e:
      raise UserError(
        f"{e} Pass --config.data.validation=SPLIT, or --config.evaluate.every=0"
        " to train without."
      ) from e
  return splits


def _check_varied(split: Split, path: str) -> None:
  """Raises ValueError if no prediction could have the task's correlation."""
  if not set(metrics.CORRELATIONS) & set(split.task.metrics):
    return
  labels = [metrics.gold(split.task, example) for example in split.examples]
  labels = [label for label in labels if label is not None]
  if len(set(labels)) < 2:
    raise UserError(
      f"{path}: split {split.name!r} has only the label {labels[0]:g}"
      f" (examples: {len(labels)}), so that {split.task.metrics[0]} is not"
      " defined; it needs two examples of different labels."
    )


def open_split(part: Part, name: str) -> Split:
  """Opens a split of a folder to score it, or to predict its labels."""
  task, rows, examples = encoded_rows.load(part.path, name)
  pieces = part.tokenizer.pieces
  return Split(name, task, part.meta["pad"], rows, examples, BUCKETS, pieces)
