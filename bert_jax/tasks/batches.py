"""A task's folder as a run reads it: batches to train on, splits to score."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.examples.batch_keys import Features
from bert_jax.tasks import encoded_rows as rows_lib
from bert_jax.tasks import metrics
from bert_jax.tasks.batches_batches import BUCKETS, Batch, Batches
from bert_jax.tasks.encoded_rows import Examples, Rows, Task
from bert_jax.text import open_vocabulary
from bert_jax.text.vocabulary import SpecialIds, Vocabulary

# The key of `Part.meta` that checkpoints of earlier versions keep.
ROWS = "rows_fingerprint"


class Part(NamedTuple):
  """An opened folder.

  Attributes:
    path: of the folder.
    meta: the content of `meta.json`; in a run also the fingerprint of the
      training rows.
    tokenizer: that made the rows.
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
    name: of it.
    task: of its folder.
    pad: id of padding.
    rows: the rows.
    examples: their raw fields.
    buckets: lengths of its batches.
    pieces: of the tokenizer that made the rows.
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
    task: of the folder.
    part: the folder.
    prepared: it alone.
    vocab_size: ids that a model needs.
    special: ids of the special tokens.
    features: one row of the longest batch.
  """

  def __init__(self, part: Part, rows: Rows, batches: Batches, epochs: float):
    self.part, self.prepared = part, (part,)
    self.task = rows_lib.task_of(part.meta["task"])
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
  made: Features = {key: (row, np.dtype(np.int32)) for key in ids}
  made["labels"] = (shape, rows.labels.dtype)
  made["label_weights"] = (weight, np.dtype(np.float32))
  if task.kind == "span":
    made["unanswerable"] = ((), np.dtype(np.float32))
  return made


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
    raise ValueError(
      "data.path is empty; pass --config.data.path=DIR, a folder of features"
      " that `bert_jax prepare-task --task NAME` made."
    )
  meta = rows_lib.read_meta(path)
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
    seed: of the order.
    path: the folder.
    train: name of the split.
    validation: those that are scored, separated by commas; the first decides
      what is best.
    epochs: how often each row is seen, where the config has no `total_steps`.
    shuffle: in an order of its own each epoch, or in the file's.
    group: rows of like length together, see `batches.Batches`.
    buckets: lengths of batches.

  Raises:
    ValueError: with one sentence.
  """
  part = open_part(path)
  task, rows, _ = rows_lib.load(path, train)
  if not _has_labels(task, rows):
    raise ValueError(f"{path}: no example of split {train!r} has a label.")
  of_rows = {ROWS: _fingerprint(rows)}
  # A folder of an earlier version has no digest of all its files.
  whole = part.meta.get("fingerprint", of_rows[ROWS])
  part = part._replace(meta=part.meta | of_rows | {"fingerprint": whole})
  batches = Batches(
    task,
    rows,
    part.meta["pad"],
    batch_size,
    seed=seed,
    shuffle=shuffle,
    group=group and shuffle,
    buckets=tuple(buckets),
  )
  data = Data(part, rows, batches, epochs)
  data.validation = tuple(n.strip() for n in validation.split(",") if n.strip())
  return data


def open_splits(data: Data, predicts: bool = True) -> Splits:
  """Opens the splits to score.

  Args:
    data: with the names of the splits.
    predicts: whether the model does, so that there is a metric of it.

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
        raise ValueError(
          f"{data.part.path}: no example of split {name!r} has a label."
        )
      if predicts:
        _check_varied(split, data.part.path)
      splits.append(split)
    except ValueError as e:
      raise ValueError(
        f"{e} Pass --config.data.validation=SPLIT, or --config.evaluate.every=0"
        " to train without."
      ) from e
  return splits


def _check_varied(split: Split, path: str) -> None:
  """Raises ValueError if no prediction could have the task's correlation."""
  if not set(metrics.CORRELATIONS) & set(split.task.metrics):
    return
  labels = [metrics.gold(split.task, example) for example in split.examples]
  known = [label for label in labels if label is not None]
  if len(set(known)) < 2:
    raise ValueError(
      f"{path}: split {split.name!r} has only the label {known[0]:g}"
      f" (examples: {len(known)}), so that {split.task.metrics[0]} is not"
      " defined; it needs two examples of different labels."
    )


def open_split(part: Part, name: str) -> Split:
  """Opens a split of a folder to score it, or to predict its labels."""
  task, rows, examples = rows_lib.load(part.path, name)
  pieces = part.tokenizer.pieces
  return Split(name, task, part.meta["pad"], rows, examples, BUCKETS, pieces)
