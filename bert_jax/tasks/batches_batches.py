"""Rows to batches of a few lengths, each by its number alone.

An epoch is a permutation keyed by (seed, epoch); its last batch is filled up
with rows of weight 0. Nothing is kept from one batch to the next, so a restart
needs a step number only. A batch is as long as the smallest of a few lengths
that holds its longest row: a length is a compilation.
"""

import functools
from collections.abc import Sequence

import numpy as np

from bert_jax import hashing
from bert_jax.tasks.encoded_rows import Rows, Task, lengths

Batch = dict[str, np.ndarray]

BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512)
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
      task: of the rows.
      rows: a split, see `rows.load`.
      pad: id of padding.
      batch_size: over all hosts, a multiple of `hosts`.
      seed: of the order.
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
      raise ValueError(f"task {task.name}: a split without rows has no batch.")
    if batch_size < 1 or batch_size % hosts:
      raise ValueError(
        f"batch_size={batch_size} must be a positive multiple of the {hosts}"
        " hosts."
      )
    if group and not shuffle:
      raise ValueError("group=True orders rows by length: shuffle is needed.")
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
    # What the last batch has too few of are the shortest of its pool.
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
    part = self.batch_size // self._hosts
    units = units[self._host * part : (self._host + 1) * part]
    columns = np.arange(self._columns)
    row = np.where(units < 0, -1, units * self._columns)
    flat = np.where(units[:, None] < 0, -1, row[:, None] + columns).ravel()
    batch = _lay_out(self._rows, flat, length, self._pad)
    if self._columns > 1:
      shape = (part, self._columns, length)
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
    known = (place < sizes) & (labels >= 0)
    labels = np.where(known, labels, 0)
  else:
    labels = rows.labels[row]
    if task.kind == "regression":
      known = np.isfinite(labels) & (row >= 0)
      labels = np.where(known, labels, np.float32(0))
    elif task.kind in ("span", "multi_label"):
      known = (labels >= 0).all(1) & (row >= 0)
      labels = np.where(known[:, None], labels, 0)
    else:
      known = (labels >= 0) & (row >= 0)
      labels = np.where(known, labels, 0)
  return {"labels": labels, "label_weights": known.astype(np.float32)}
