"""Names of labels in Hugging Face's config.json; they travel by name."""

from collections.abc import Mapping
from typing import Any

# Each has a name in memory; classifiers of a whole vocabulary have 250,000.
MAX_LABELS = 10_000_000


def default_labels(count: int) -> list[str]:
  """The names that transformers gives to labels without any."""
  return [f"LABEL_{i}" for i in range(count)]


def read(config: Mapping[str, Any], where: str) -> tuple[list[str], list[str]]:
  """Label names in the order of their ids, and notes.

  Args:
    config: of a classifier.
    where: its file, for messages.

  Raises:
    ValueError: ids are not 0, 1, ..., a name stands twice, or the two maps or
      the count disagree.
  """
  names, count = config.get("id2label"), config.get("num_labels")
  if names is None:
    if count is None:
      labels = default_labels(2)
      return labels, [f"{where} has no labels: {labels}, as transformers reads"]
    return default_labels(_counted(count, where)), []
  try:
    by_id = {int(key): str(name) for key, name in names.items()}
  except (AttributeError, ValueError) as e:
    raise ValueError(f"{where}: id2label is no map from ids to names.") from e
  if sorted(by_id) != list(range(len(names))) or not by_id:
    raise ValueError(
      f"{where}: the ids of id2label are {sorted(by_id)}, not 0, 1, ... ."
    )
  labels = [by_id[i] for i in range(len(by_id))]
  if len(set(labels)) != len(labels):
    twice = next(name for name in labels if labels.count(name) > 1)
    raise ValueError(f"{where}: id2label names {twice!r} twice.")
  if not _agree(labels, config.get("label2id")):
    raise ValueError(
      f"{where}: id2label and label2id disagree; take out the wrong one."
    )
  if count is None or count == len(labels):
    return labels, []
  # Files of 2019 have their own count beside the unchanged default.
  if labels == default_labels(2):
    return default_labels(_counted(count, where)), [
      f"{where}: id2label is the default, num_labels={count} counts"
    ]
  raise ValueError(
    f"{where}: num_labels is {count}, id2label has {len(labels)} names."
  )


def _counted(count: Any, where: str) -> int:
  """`num_labels`, if it is a number of labels."""
  if type(count) is not int or not 1 <= count <= MAX_LABELS:
    raise ValueError(
      f"{where}: num_labels is {count!r:.40}, not a whole number from 1 to"
      f" {MAX_LABELS:,}."
    )
  return count


def _agree(labels: list[str], backward: Any) -> bool:
  """Whether label2id, if there, says the same; its ids may be text."""
  if not backward:
    return True
  try:
    ids = {str(name): int(i) for name, i in backward.items()}
  except (AttributeError, TypeError, ValueError, OverflowError):
    return False
  return ids == {name: i for i, name in enumerate(labels)}


def write(labels: list[str]) -> dict[str, Any]:
  """The fields for labels."""
  return {
    "id2label": {str(i): name for i, name in enumerate(labels)},
    "label2id": {name: i for i, name in enumerate(labels)},
  }
