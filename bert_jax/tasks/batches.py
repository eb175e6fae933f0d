"""Opens a task folder for a run, and makes batches of its rows.

In a run, a batch depends only on its step, so a restart needs only the step. An
epoch has each row once, in an order that depends on the seed and the epoch.
Empty rows, whose weight is 0, fill up the last batch of an epoch. All rows of a
batch are padded to one length, called the length of the batch: the smallest
bucket that holds the longest row (`bucket_lengths`).
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.examples.batch_keys import Batch, Features
from bert_jax.messages import UserError, by_caller
from bert_jax.tasks import encoded_rows, metrics
from bert_jax.tasks.bucket_lengths import BUCKETS
from bert_jax.tasks.encoded_rows import Examples, Rows, Task, lengths
from bert_jax.text import open_vocabulary
from bert_jax.text.vocabulary import SpecialIds, Vocabulary

# The key of `TaskFolder.meta` with the fingerprint of the training rows.
# Checkpoints of earlier versions have this fingerprint.
ROWS_FINGERPRINT = "rows_fingerprint"
# If `group_by_length` is True, the shuffled rows of an epoch are cut into pools
# of at most MAX_POOL_BATCHES batches, and each pool is sorted by length. An
# epoch has at least MIN_POOLS pools (if it has as many batches), so that
# batches differ from epoch to epoch. Both numbers are as in transformers'
# group_by_length.
MAX_POOL_BATCHES, MIN_POOLS = 50, 4


class Batches:
  """Makes the batches of one split.

  An entry of a batch is one row; for multiple choice, it is all rows of one
  example. Steps and epochs count from 0: batch `step` belongs to epoch
  `step // steps_per_epoch`.

  Attributes:
    batch_size: the number of entries in a batch, over all hosts.
    steps_per_epoch: the number of batches in an epoch; the last batch is
      filled up.
    buckets: the lengths that batches may have, ascending.
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
    group_by_length: bool = False,
    buckets: Sequence[int] = BUCKETS,
    host_index: int = 0,
    host_count: int = 1,
  ):
    """Stores how batches are made; makes no batch yet.

    Args:
      task: the task of the rows.
      rows: the rows of a split, from `encoded_rows.load`.
      pad: the id of padding.
      batch_size: the number of entries in a batch, over all hosts. It must be
        a multiple of `host_count`.
      seed: the seed of the order.
      shuffle: False keeps the order of `rows` in every epoch.
      group_by_length: True puts entries of similar lengths together, within
        shuffled pools.
      buckets: the lengths to choose from. If the longest row fits into no
        bucket, the length of this row becomes a bucket.
      host_index: the index of this host, which makes only its share of each
        batch.
      host_count: the number of hosts.

    Raises:
      ValueError: there are no rows, the hosts do not divide the batch, or
        `group_by_length` is used without `shuffle`.
    """
    self._rows_per_entry = task.num_choices if task.kind == "choice" else 1
    self._num_entries = len(rows.example_indices) // self._rows_per_entry
    if not self._num_entries:
      raise UserError(f"task {task.name}: a split without rows has no batch.")
    if batch_size < 1 or batch_size % host_count:
      raise UserError(
        f"batch_size={batch_size} must be a positive multiple of the"
        f" {host_count} hosts."
      )
    if group_by_length and not shuffle:
      raise UserError(
        "group_by_length=True puts rows of similar lengths together, and needs"
        " shuffle=True."
      )
    self._task, self._rows, self._pad = task, rows, pad
    self.batch_size, self._seed = batch_size, seed
    self._shuffle, self._group_by_length = shuffle, group_by_length
    self._host_index, self._host_count = host_index, host_count
    if task.kind == "span":
      self._unanswerable = mark_unanswerable(rows)
    # The length of an entry is the length of its longest row.
    self._lengths = lengths(rows).reshape(-1, self._rows_per_entry).max(1)
    max_length = int(self._lengths.max())
    fitting_buckets = [
      bucket for bucket in sorted(buckets) if bucket >= max_length
    ]
    self.buckets = tuple(
      bucket for bucket in sorted(buckets) if bucket < max_length
    )
    self.buckets += (fitting_buckets[0] if fitting_buckets else max_length,)
    self.steps_per_epoch = -(-self._num_entries // batch_size)
    self._epoch_order = functools.lru_cache(2)(self._make_order)

  def _make_order(self, epoch: int) -> np.ndarray:
    """Returns the indices of an epoch's entries, int64 [steps, batch_size].

    Indices of -1 fill up the last batch.
    """
    num_entries, batch_size = self._num_entries, self.batch_size
    order = np.arange(num_entries)
    if self._shuffle:
      key = hashing.make_key(self._seed, "finetune", epoch)
      order = np.argsort(hashing.bits(key, order), kind="stable")
    if self._group_by_length:
      order = self._sort_in_pools(order)
    filler = np.full(
      self.steps_per_epoch * batch_size - num_entries, -1, np.int64
    )
    batches = np.append(order, filler).reshape(-1, batch_size)
    if self._group_by_length:
      # Shuffle the batches, but keep an incomplete batch at the end.
      num_full_batches = num_entries // batch_size
      key = hashing.make_key(self._seed, "finetune batches", epoch)
      random_bits = hashing.bits(key, np.arange(num_full_batches))
      batches[:num_full_batches] = batches[
        np.argsort(random_bits, kind="stable")
      ]
    return batches

  def _sort_in_pools(self, order: np.ndarray) -> np.ndarray:
    """Sorts the entries of each pool by length.

    Args:
      order: the entries in the order in which they are cut into pools.
    """
    num_pool_batches = len(order) // (MIN_POOLS * self.batch_size)
    pool_size = (
      min(max(num_pool_batches, 1), MAX_POOL_BATCHES) * self.batch_size
    )
    pools = [order[i : i + pool_size] for i in range(0, len(order), pool_size)]
    # Sort the longest entries first, so that the incomplete last batch holds
    # the shortest entries.
    return np.concatenate(
      [pool[np.argsort(-self._lengths[pool], kind="stable")] for pool in pools]
    )

  def length(self, step: int) -> int:
    """Returns the length of batch `step`, which is the same on all hosts."""
    epoch, batch_index = divmod(step, self.steps_per_epoch)
    return int(
      self._batch_lengths(
        self._epoch_order(epoch)[batch_index : batch_index + 1]
      )[0]
    )

  def _batch_lengths(self, entries: np.ndarray) -> np.ndarray:
    """Returns the lengths of N batches, [N]; `entries` is [N, batch_size]."""
    max_lengths = np.where(entries < 0, 0, self._lengths[entries]).max(1)
    return np.array(self.buckets)[np.searchsorted(self.buckets, max_lengths)]

  def first_epoch_lengths(self) -> list[int]:
    """Returns the distinct lengths of the first epoch's batches, in order."""
    batch_lengths = self._batch_lengths(self._epoch_order(0)).tolist()
    return list(dict.fromkeys(batch_lengths))

  def padding(self, epoch: int = 0) -> float:
    """Returns the share of padding in an epoch; empty rows are padding too."""
    entries = self._epoch_order(epoch)
    num_positions = (
      self._batch_lengths(entries).sum()
      * self.batch_size
      * self._rows_per_entry
    )
    return 1.0 - len(self._rows.ids) / float(num_positions)

  def batch(self, step: int) -> Batch:
    """Makes this host's share of batch `step`.

    The share has b entries of length l. An example has c choices, and a task
    has n labels.

    Returns:
      `input_ids`, `segment_ids`, `sequence_ids`: int32 [b, l]; for multiple
      choice [b, c, l]. `sequence_ids` are 1 at tokens and 0 at padding.
      `labels`: int32 or float32 [b]; multi_label [b, n]; tagging [b, l]; span
      [b, 2]. A missing label is 0.
      `label_weights`: float32 [b], for tagging [b, l]; 0 if a label is missing.
      `unanswerable`: only for span, float32 [b], 1 if the question has no
      answer.
      `row`: int64 [b], the index of the entry's first row; -1 if the entry only
      fills the batch up.
    """
    epoch, batch_index = divmod(step, self.steps_per_epoch)
    entries = self._epoch_order(epoch)[batch_index]
    length = self.length(step)
    entries_per_host = self.batch_size // self._host_count
    first_of_host = self._host_index * entries_per_host
    entries = entries[first_of_host : first_of_host + entries_per_host]
    first_rows = np.where(entries < 0, -1, entries * self._rows_per_entry)
    row_indices = np.where(
      entries[:, None] < 0,
      -1,
      first_rows[:, None] + np.arange(self._rows_per_entry),
    ).ravel()
    batch = _input_arrays(self._rows, row_indices, length, self._pad)
    if self._rows_per_entry > 1:
      shape = (entries_per_host, self._rows_per_entry, length)
      batch = {name: array.reshape(shape) for name, array in batch.items()}
    batch |= _label_arrays(self._task, self._rows, first_rows, length)
    batch["row"] = first_rows
    if self._task.kind == "span":
      batch["unanswerable"] = np.where(
        first_rows < 0, 0, self._unanswerable[first_rows]
      )
    return batch


def mark_unanswerable(rows: Rows) -> np.ndarray:
  """Marks the rows of questions without an answer.

  A question has no answer if none of its windows holds a whole answer.

  Args:
    rows: N rows of kind span.

  Returns:
    float32 [N], 1 for a row of a question without an answer, else 0.
  """
  answer_window_counts = np.bincount(
    rows.example_indices, (rows.labels > 0).any(1)
  )
  return (answer_window_counts[rows.example_indices] == 0).astype(np.float32)


def _input_arrays(
  rows: Rows, row_indices: np.ndarray, length: int, pad: int
) -> Batch:
  """Returns the arrays of a batch that a model reads.

  Args:
    rows: the rows of a split.
    row_indices: [b] the index of each row to return; -1 gives an empty row.
    length: l, the length of the batch.
    pad: the id of padding.
  """
  positions = np.arange(length)
  row_lengths = np.where(row_indices < 0, 0, lengths(rows)[row_indices])[
    :, None
  ]
  is_token = positions < row_lengths
  second_begins = rows.second_begins[row_indices][:, None]
  token_indices = rows.starts[row_indices][:, None] + positions
  ids = np.where(is_token, rows.ids.take(token_indices, mode="clip"), pad)
  return {
    "input_ids": ids.astype(np.int32),
    "segment_ids": (is_token & (positions >= second_begins)).astype(np.int32),
    "sequence_ids": is_token.astype(np.int32),
  }


def _label_arrays(
  task: Task, rows: Rows, row_indices: np.ndarray, length: int
) -> Batch:
  """Returns `labels` and `label_weights` for the first row of each entry."""
  if task.kind == "tagging":
    positions = np.arange(length)
    row_lengths = np.where(row_indices < 0, 0, lengths(rows)[row_indices])[
      :, None
    ]
    token_indices = rows.starts[row_indices][:, None] + positions
    labels = rows.labels.take(token_indices, mode="clip")
    has_label = (positions < row_lengths) & (labels >= 0)
    labels = np.where(has_label, labels, 0)
  else:
    labels = rows.labels[row_indices]
    if task.kind == "regression":
      has_label = np.isfinite(labels) & (row_indices >= 0)
      labels = np.where(has_label, labels, np.float32(0))
    elif task.kind in ("span", "multi_label"):
      has_label = (labels >= 0).all(1) & (row_indices >= 0)
      labels = np.where(has_label[:, None], labels, 0)
    else:
      has_label = (labels >= 0) & (row_indices >= 0)
      labels = np.where(has_label, labels, 0)
  return {"labels": labels, "label_weights": has_label.astype(np.float32)}


class TaskFolder(NamedTuple):
  """Holds an opened task folder.

  Attributes:
    path: the path of the folder.
    meta: the content of `meta.json`; in a run also `ROWS_FINGERPRINT`.
    tokenizer: the tokenizer that made the rows.
  """

  path: str
  meta: dict[str, Any]
  tokenizer: Vocabulary

  @property
  def vocab(self) -> list[str]:
    """The pieces in the order of their ids."""
    return list(self.tokenizer.pieces)

  def tokenizer_files(self) -> dict[str, bytes]:
    """Returns name -> content of the tokenizer's files."""
    return open_vocabulary.to_files(self.tokenizer)


class Split(NamedTuple):
  """Holds a split to evaluate.

  Attributes:
    name: the name of the split.
    task: the task of the split's folder.
    pad: the id of padding.
    rows: the rows.
    examples: the raw fields of the examples.
    buckets: the lengths that the split's batches may have.
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
    """Returns batches with each row once in an epoch, grouped by length."""
    return Batches(
      self.task,
      self.rows,
      self.pad,
      batch_size,
      group_by_length=True,
      buckets=self.buckets,
    )


Splits = list[Split]


class TrainingSplit:
  """Reads a task folder's training split as a `Source` for `loader.Batches`.

  Attributes:
    task: the task of the folder.
    folder: the opened folder.
    prepared_folders: a tuple with only `folder`; a `Source` for pre-training
      has a tuple of prepared folders here.
    vocab_size: the number of ids that a model needs.
    special: the ids of the special tokens.
    features: key -> (shape of one entry of a batch of the largest length,
      dtype).
    validation_splits: the names of the splits to evaluate, for `open_splits`.
  """

  def __init__(
    self,
    folder: TaskFolder,
    rows: Rows,
    batches: Batches,
    epochs: float,
    validation_splits: Sequence[str] = (),
  ):
    """Describes the split.

    Args:
      folder: the opened folder.
      rows: the rows of the split.
      batches: the batches of these rows.
      epochs: the number of epochs to train.
      validation_splits: the names of the splits to evaluate.
    """
    self.folder, self.prepared_folders = folder, (folder,)
    self.task = encoded_rows.task_of(folder.meta["task"])
    self.vocab_size = folder.meta["vocab_size"]
    self.special = SpecialIds(**folder.meta["special"])
    self.features = _features(self.task, rows, max(batches.buckets))
    self.validation_splits = tuple(validation_splits)
    self._rows = rows
    self._batches, self._epochs = batches, epochs

  @property
  def steps_per_epoch(self) -> int:
    """The number of batches in an epoch."""
    return self._batches.steps_per_epoch

  @property
  def steps_of_all_epochs(self) -> int:
    """The number of batches in all epochs to train."""
    return max(round(self._epochs * self.steps_per_epoch), 1)

  @property
  def padding(self) -> float:
    """The share of padding in the batches of the first epoch."""
    return self._batches.padding()

  def features_by_length(self) -> list[Features]:
    """Returns `Features` for each length of the first epoch's batches."""
    return features_by_length(self.task, self._rows, self._batches)

  def read(self, first: int, count: int) -> Batch:
    """Returns entries [first, first + count), which must be in one batch."""
    step, begin = divmod(first, self._batches.batch_size)
    batch = self._batches.batch(step)
    entries = slice(begin, begin + count)
    return {key: array[entries] for key, array in batch.items() if key != "row"}

  def position(self) -> dict[str, int]:
    """Returns an empty dict, because a batch depends only on its step."""
    return {}

  def restore(self, position: dict[str, int]) -> None:
    """Does nothing, see `position`."""
    del position


def features_by_length(
  task: Task, rows: Rows, batches: Batches
) -> list[Features]:
  """Returns `Features` for each length of the first epoch's batches.

  Args:
    task: the task of the rows.
    rows: the rows of a split.
    batches: the batches of these rows.
  """
  return [
    _features(task, rows, length) for length in batches.first_epoch_lengths()
  ]


def _features(task: Task, rows: Rows, length: int) -> Features:
  """Returns key -> (shape of one entry of a batch, dtype)."""
  row_shape = (task.num_choices, length) if task.kind == "choice" else (length,)
  label_shape = (length,) if task.kind == "tagging" else rows.labels.shape[1:]
  weight_shape = (length,) if task.kind == "tagging" else ()
  id_keys = dict.fromkeys(("input_ids", "segment_ids", "sequence_ids"))
  features: Features = {key: (row_shape, np.dtype(np.int32)) for key in id_keys}
  features["labels"] = (label_shape, rows.labels.dtype)
  features["label_weights"] = (weight_shape, np.dtype(np.float32))
  if task.kind == "span":
    features["unanswerable"] = ((), np.dtype(np.float32))
  return features


def _fingerprint(rows: Rows) -> str:
  """Returns a hash of all arrays in `rows`."""
  digest = hashlib.sha256()
  for array in rows:
    digest.update(f"{array.dtype} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
  return digest.hexdigest()


def _has_labels(task: Task, rows: Rows) -> bool:
  """Returns True if at least one row has a label."""
  if task.kind == "regression":
    return bool(np.isfinite(rows.labels).any())
  return bool((rows.labels >= 0).any())


def open_folder(path: str) -> TaskFolder:
  """Opens a task folder without its rows.

  Raises:
    ValueError: there is no such folder, or it is damaged.
  """
  if not path:
    raise UserError(
      "data.path is empty; pass --config.data.path=DIR, a task folder that"
      " `bert_jax prepare-task --task NAME` made."
    )
  meta = encoded_rows.read_meta(path)
  return TaskFolder(path, meta, open_vocabulary.load(path))


def open_task(
  batch_size: int,
  seed: int,
  path: str,
  train: str = "train",
  validation: str = "validation",
  epochs: float = 3.0,
  shuffle: bool = True,
  group: bool = True,
  buckets: tuple[int, ...] = BUCKETS,
) -> TrainingSplit:
  """Opens the training split of a task folder.

  Args:
    batch_size: the number of entries in a batch, over all hosts.
    seed: the seed of the order.
    path: the task folder.
    train: the name of the training split.
    validation: the names of the splits to evaluate, separated by commas. The
      first split decides which checkpoint is the best.
    epochs: the number of epochs to train if the config has no `total_steps`.
    shuffle: True gives a new order in every epoch; False keeps the order of the
      file.
    group: True groups rows of similar lengths, see `Batches`; without `shuffle`
      this has no effect.
    buckets: the lengths that batches may have.

  Raises:
    ValueError: the folder cannot be opened, or no example of the split has a
      label.
  """
  folder = open_folder(path)
  task, rows, _ = encoded_rows.load_split(path, folder.meta, train)
  if not _has_labels(task, rows):
    raise UserError(f"{path}: no example of split {train!r} has a label.")
  row_digest = _fingerprint(rows)
  # A folder of an earlier version has no fingerprint.
  fingerprint = folder.meta.get("fingerprint", row_digest)
  digests = {ROWS_FINGERPRINT: row_digest, "fingerprint": fingerprint}
  folder = folder._replace(meta=folder.meta | digests)
  batches = Batches(
    task,
    rows,
    folder.meta["pad"],
    batch_size,
    seed=seed,
    shuffle=shuffle,
    group_by_length=group and shuffle,
    buckets=tuple(buckets),
  )
  validation_splits = [
    name.strip() for name in validation.split(",") if name.strip()
  ]
  return TrainingSplit(folder, rows, batches, epochs, validation_splits)


# The flags, or the parameter, that help if a split cannot be evaluated.
_REMEDY_FLAGS = "--config.data.validation=SPLIT, or --config.evaluate.every=0"
_REMEDY_PARAMETER = "other rows as validation, or validation=0"


def open_splits(
  training_split: TrainingSplit, predicts_labels: bool = True
) -> Splits:
  """Opens the splits to evaluate.

  Args:
    training_split: the training split; its `validation_splits` are opened.
    predicts_labels: True if the model predicts labels, which a metric can
      compare.

  Raises:
    ValueError: the folder lacks a split, a split has no labels, the task's
      metric is not defined for its labels, or a package for a
      metric is missing.
  """
  splits = []
  folder, names = training_split.folder, training_split.validation_splits
  if predicts_labels and names:
    # Check the packages now, because a run that fails at its first evaluation
    # has trained for nothing.
    metrics.check_packages(training_split.task)
  for name in names:
    try:
      split = open_split(folder, name)
      if not _has_labels(split.task, split.rows):
        raise UserError(
          f"{folder.path}: no example of split {name!r} has a label."
        )
      if predicts_labels:
        _check_labels_differ(split, folder.path)
      splits.append(split)
    except ValueError as e:
      raise UserError(
        f"{e} Pass {by_caller(_REMEDY_FLAGS, _REMEDY_PARAMETER)} to"
        " train without evaluation."
      ) from e
  return splits


def _check_labels_differ(split: Split, path: str) -> None:
  """Raises ValueError if all labels are equal and a metric is a correlation."""
  if not set(metrics.CORRELATIONS) & set(split.task.metrics):
    return
  labels = [
    metrics.gold_label(split.task, example) for example in split.examples
  ]
  labels = [label for label in labels if label is not None]
  if len(set(labels)) < 2:
    raise UserError(
      f"{path}: split {split.name!r} has only the label {labels[0]:g}"
      f" (examples: {len(labels)}), so that {split.task.metrics[0]} is not"
      " defined; it needs two examples of different labels."
    )


def open_split(folder: TaskFolder, name: str) -> Split:
  """Opens a split of a folder to evaluate it, or to predict its labels.

  Raises:
    ValueError: there is no such split, or it is damaged.
  """
  task, rows, examples = encoded_rows.load_split(folder.path, folder.meta, name)
  pieces = folder.tokenizer.pieces
  return Split(
    name=name,
    task=task,
    pad=folder.meta["pad"],
    rows=rows,
    examples=examples,
    buckets=BUCKETS,
    pieces=pieces,
  )
