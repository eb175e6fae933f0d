"""What a fine-tuning run begins with: the encoder of a pre-trained model.

A run's --workdir, a converted folder or one of transformers, of any family,
opened as `bert_jax.load` does.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from bert_jax import loading, models
from bert_jax.convert import towers
from bert_jax.convert.folder import Weights
from bert_jax.data import vocabulary_files

# Of the report: names of each sort that are written out.
_NAMED = 6


class Pretrained(NamedTuple):
  """A pre-trained model as its files have it.

  Attributes:
    path: of the files.
    config: of a converted folder, see convert/folder.py.
    arrays: path in the parameter tree, joined by "/", -> float32 array.
  """

  path: str
  config: dict[str, Any]
  arrays: Mapping[str, np.ndarray]


def read(path: str, pieces: Sequence[str], where: str) -> Pretrained:
  """Reads a model, and checks that it has the vocabulary of the data.

  Args:
    path: a --workdir, a folder, or the name of a model on the hub.
    pieces: of the data's vocabulary.
    where: the data's folder, for messages.

  Raises:
    ValueError: with one sentence: of the files, of the family, or they are of
      another vocabulary.
  """
  try:
    weights = loading.read(path, None, None)
  except ValueError as e:
    raise ValueError(f"init_from: {e}") from e
  if weights.config["family"] not in models.FAMILIES:
    raise ValueError(
      f"init_from={path} is of family {weights.config['family']}; fine-tuned"
      f" are {', '.join(models.FAMILIES)}."
    )
  both = weights.config["task"] == "pretraining"
  if weights.config["family"] == "electra" and both:
    weights = towers.split(weights, "discriminator")
  _check_pieces(path, weights, pieces, where)
  return Pretrained(path, weights.config, weights.arrays)


def _check_pieces(
  path: str, weights: Weights, pieces: Sequence[str], where: str
) -> None:
  """Raises ValueError unless a model has the vocabulary of the data."""
  if not vocabulary_files.has_tokenizer(weights.tokenizer_files):
    raise ValueError(
      f"init_from={path} has no vocabulary, so that nobody knows if it is that"
      f" of {where}; put its tokenizer's files beside it."
    )
  try:
    # As the data was prepared, which fills gaps between ids.
    theirs = vocabulary_files.of_files(weights.tokenizer_files, path).pieces
  except ValueError as e:
    raise ValueError(f"init_from: {e}") from e
  for number, (old, new) in enumerate(itertools.zip_longest(theirs, pieces)):
    if old != new:
      raise ValueError(
        f"init_from={path}: its piece {number} is {old!r}, that of {where} is"
        f" {new!r}; prepare the task with the model's tokenizer."
      )


def fill_model(model: dict[str, Any], found: Pretrained) -> dict[str, Any]:
  """The `model` section of a run that begins with a pre-trained model.

  Args:
    model: of the config; what is None is taken from the files.
    found: the files.

  Raises:
    ValueError: the config says another family or size.
  """
  given = {name: value for name, value in model.items() if value is not None}
  family = found.config["family"]
  theirs = {"family": family} | found.config["model"]
  free = ("dropout", "attention_dropout", "vocab_size")
  for name, value in given.items():
    if name in theirs and name not in free and value != theirs[name]:
      raise ValueError(
        f"model.{name}={value!r}, but init_from={found.path} has"
        f" {theirs[name]!r}; leave model.{name} unset to take it from there."
      )
  theirs.pop("vocab_size")
  given.pop("variant", None)
  variant = next(iter(models.family(family).VARIANTS))
  return {"family": family, "variant": variant} | theirs | given


def take(
  found: Pretrained,
  params: Any,
  takes: Callable[[str], bool],
  labels: Sequence[str],
) -> tuple[Any, list[str]]:
  """Puts the pre-trained arrays in place of drawn ones.

  A pooler that the files lack stays as drawn where the classifier does.

  Args:
    found: the files.
    params: the run's initial parameters.
    takes: path in the tree -> whether it is taken; the objective's. A
      classifier that is taken gets its labels in order by name.
    labels: names of the run's labels, () if it has none.

  Returns:
    The parameters, with the shardings of `params`, and lines that say what was
    taken, drawn anew, left.

  Raises:
    ValueError: an array is missing or has another shape.
  """
  head = takes("classifier/dense/kernel")
  order = _label_order(found, labels) if head else None
  flat = traverse_util.flatten_dict(params, sep="/")
  taken, new = [], []
  for path, drawn in flat.items():
    lacking = path not in found.arrays
    if not takes(path) or (lacking and path.startswith("pooler/") and not head):
      new.append(path)
      continue
    if lacking:
      hint = "; pass --config.objective.head=new" if head else ""
      raise ValueError(f"init_from={found.path} has no {path}{hint}.")
    array = found.arrays[path]
    if order is not None and path.startswith("classifier/"):
      array = array[..., order]
    flat[path] = _place(array, drawn, f"init_from={found.path}: {path}")
    taken.append(path)
  left = [path for path in found.arrays if path not in flat]
  lines = [
    f"{what}: {_listed(paths)}"
    for what, paths in (("taken", taken), ("new", new), ("left", left))
  ]
  return traverse_util.unflatten_dict(flat, sep="/"), lines


def _label_order(found: Pretrained, labels: Sequence[str]) -> Any:
  """Columns of the files' classifier in the order of `labels`.

  Raises:
    ValueError: the files have other labels.
  """
  theirs = found.config["labels"]
  if not labels or theirs is None:
    return None
  if sorted(theirs) != sorted(labels):
    raise ValueError(
      f"init_from={found.path} has the labels {theirs}, the task"
      f" {list(labels)}; pass --config.objective.head=new."
    )
  return [theirs.index(name) for name in labels]


def _place(array: np.ndarray, drawn: jax.Array, where: str) -> jax.Array:
  """`array` as `drawn` lies.

  Of the word table, rows that it lacks (GPT-1's new ids) stay as they were
  drawn, and those beyond the vocabulary (a table padded to a round number) are
  left out: no token has their ids.
  """
  words = where.endswith("word/embedding")
  begin = 1 if words else 0
  if array.shape[begin:] != drawn.shape[begin:] or array.ndim != drawn.ndim:
    raise ValueError(
      f"{where} has shape {list(array.shape)}, not {list(drawn.shape)}."
    )
  if words:
    rows = np.asarray(jax.device_get(drawn))[len(array) :]
    array = np.concatenate([array[: len(drawn)], rows])
  return jax.make_array_from_callback(
    drawn.shape, drawn.sharding, lambda index: array[index]
  )


def _listed(paths: list[str]) -> str:
  """A count by the first part of each name, and a few names."""
  if len(paths) <= _NAMED:
    return ", ".join(paths) or "nothing"
  counts: dict[str, int] = {}
  for path in paths:
    part = path.split("/")[0]
    counts[part] = counts.get(part, 0) + 1
  return ", ".join(f"{n} of {part}" for part, n in counts.items())
