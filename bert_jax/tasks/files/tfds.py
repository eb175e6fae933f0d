"""Reads data sets of TensorFlow Datasets like files: `tfds:NAME:SPLIT`.

The package is imported only when such an input is read.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks.files import choices
from bert_jax.tasks.files.tables import Record

# An input may be `tfds` or `tfds:NAME:SPLIT` in place of a file.
TFDS = "tfds"
PREFIX = TFDS + ":"


def _open_builder(name: str) -> Any:
  """Opens a data set of TensorFlow Datasets, after downloading it if needed.

  Raises:
    ValueError: the package is missing, or the data set cannot be loaded.
  """
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
  """Returns the names of the splits of a data set."""
  return list(_open_builder(name).info.splits)


def records(path: str, labels: Sequence[str] = ()) -> Iterator[Record]:
  """Reads a split of a data set, in the order of its files.

  Args:
    path: `tfds:NAME:SPLIT`.
    labels: the task's labels. A class whose name is not among them is read as
      the number of the class.

  Raises:
    ValueError: the data set cannot be loaded, or has no such split.
  """
  import tensorflow_datasets as tfds

  name, _, split = path.removeprefix(PREFIX).rpartition(":")
  builder = _open_builder(name)
  if split not in builder.info.splits:
    raise UserError(
      f"{path}: no split {split!r}; there are {', '.join(builder.info.splits)}."
    )
  read_config = tfds.ReadConfig(interleave_cycle_length=1)
  dataset = builder.as_dataset(
    split=split, shuffle_files=False, read_config=read_config
  )
  for example_index, tfds_example in enumerate(tfds.as_numpy(dataset)):
    fields = _to_python(tfds_example, builder.info.features, tuple(labels))
    record = Record(fields, f"{path}: example {example_index}")
    if name.startswith("race"):
      yield from choices.race_questions(record, str(fields["example_id"]))
    elif name.startswith("conll2003"):
      tagged_fields = dict(words=fields["tokens"], tags=fields["ner"])
      yield record._replace(fields=tagged_fields)
    else:
      yield record


def _to_python(value: Any, feature: Any, labels: tuple[str, ...]) -> Any:
  """Converts a value of a data set to texts, numbers, lists and dicts.

  Args:
    value: the value.
    feature: the value's feature in TensorFlow Datasets.
    labels: see `records`.
  """
  import tensorflow_datasets as tfds

  if isinstance(value, dict):
    return {
      name: _to_python(field, feature[name], labels)
      for name, field in value.items()
    }
  is_class = isinstance(feature, tfds.features.ClassLabel)
  if is_class and np.ndim(value) == 0:
    name = feature.int2str(int(value)) if value >= 0 else None
    uses_name = name is None or not labels or {name, name.lower()} & {*labels}
    return name if uses_name else str(int(value))
  is_ragged = hasattr(value, "to_list")  # This is a `tf.RaggedTensor`.
  if is_ragged or isinstance(value, list | tuple | np.ndarray):
    inner_feature = getattr(feature, "feature", feature)
    elements = value.to_list() if is_ragged else list(value)
    return [_to_python(element, inner_feature, labels) for element in elements]
  if isinstance(value, bytes):
    return value.decode("utf-8", "replace")
  return value.item() if isinstance(value, np.generic) else value
