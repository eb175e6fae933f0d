"""Data sets of TensorFlow Datasets, read as files are: `tfds:NAME:SPLIT`.

The package is imported only when such an input is read.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks.files import choices
from bert_jax.tasks.files.tables import Record

# The input `tfds` or `tfds:NAME:SPLIT` stands in place of a file.
TFDS = "tfds"
PREFIX = TFDS + ":"


def _builder(name: str) -> Any:
  """Opens a data set of TensorFlow Datasets; ValueError says what is wrong."""
  try:
    import tensorflow_datasets as tfds
  except ImportError as e:
    raise UserError(
      f"{PREFIX}{name}: needs the package tensorflow-datasets; run `pip install"
      " 'bert_jax[data]'`, or give files."
    ) from e
  try:
    builder = tfds.builder(name)
    builder.download_and_prepare()
  except Exception as e:  # TFDS raises errors of many kinds.
    message = " ".join(str(e).partition("Available")[0].split())[:200]
    raise UserError(
      f"{PREFIX}{name}: cannot be loaded by TFDS ({message})."
    ) from e
  return builder


def splits(name: str) -> list[str]:
  """The splits of a data set."""
  return list(_builder(name).info.splits)


def records(path: str, labels: Sequence[str] = ()) -> Iterator[Record]:
  """Reads a split of a data set, in the order of its files.

  Args:
    path: `tfds:NAME:SPLIT`.
    labels: the task's labels; a class with another name gets its number.

  Raises:
    ValueError: cannot be loaded, or no such split.
  """
  import tensorflow_datasets as tfds

  name, _, split = path.removeprefix(PREFIX).rpartition(":")
  builder = _builder(name)
  if split not in builder.info.splits:
    raise UserError(
      f"{path}: no split {split!r}; there are {', '.join(builder.info.splits)}."
    )
  config = tfds.ReadConfig(interleave_cycle_length=1)
  ds = builder.as_dataset(split=split, shuffle_files=False, read_config=config)
  for i, row in enumerate(tfds.as_numpy(ds)):
    fields = _plain(row, builder.info.features, tuple(labels))
    record = Record(fields, f"{path}: example {i}")
    if name.startswith("race"):
      yield from choices.race_questions(record, str(fields["example_id"]))
    elif name.startswith("conll2003"):
      tagged = dict(words=fields["tokens"], tags=fields["ner"])
      yield record._replace(fields=tagged)
    else:
      yield record


def _plain(value: Any, feature: Any, labels: tuple[str, ...]) -> Any:
  """Python values for a data set's: texts, names of classes, lists."""
  import tensorflow_datasets as tfds

  if isinstance(value, dict):
    return {k: _plain(v, feature[k], labels) for k, v in value.items()}
  if isinstance(feature, tfds.features.ClassLabel):
    if np.ndim(value) == 0:
      name = feature.int2str(int(value)) if value >= 0 else None
      fits = name is None or not labels or {name, name.lower()} & {*labels}
      return name if fits else str(int(value))
  # `tf.RaggedTensor` has `to_list`.
  if isinstance(value, list | tuple | np.ndarray) or hasattr(value, "to_list"):
    inner = getattr(feature, "feature", feature)
    items = value.to_list() if hasattr(value, "to_list") else list(value)
    return [_plain(item, inner, labels) for item in items]
  if isinstance(value, bytes):
    return value.decode("utf-8", "replace")
  return value.item() if isinstance(value, np.generic) else value
