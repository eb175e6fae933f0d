"""The teacher of a run: a model that was trained before, and does not change.

A run's --workdir, a converted folder or one of transformers, opened as
`bert_jax.load` does. Its parameters are an argument of the train step, never
donated and never saved; a checkpoint keeps their digest.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from bert_jax import models
from bert_jax.corpus.reader import Prepared
from bert_jax.messages import UserError
from bert_jax.models import task_heads
from bert_jax.tasks.batches import TaskFolder
from bert_jax.tasks.encoded_rows import Task
from bert_jax.text.open_vocabulary import check_begins
from bert_jax.training import start_from
from bert_jax.weights.load import OpenedModel
from bert_jax.weights.model_folder import COMPUTATION, Weights, columns_of

# Settings of a model that only its own training reads.
_TRAINING = ("dropout", "attention_dropout", "initializer_range")


class Teacher(NamedTuple):
  """A teacher as its files have it.

  Attributes:
    path: the path of the files.
    model: keyword arguments of the family's `build`, with `family`.
    arrays: path in the parameter tree, joined by "/", -> float32 array.
    digest: a digest of encoder and head, the same for every format.
  """

  path: str
  model: dict[str, Any]
  arrays: Mapping[str, np.ndarray]
  digest: str


def read(
  prepared: Prepared | TaskFolder,
  task: Task | None,
  path: str,
  model: dict[str, Any],
) -> Teacher:
  """Reads a teacher, and checks that it is the one meant and fits the data.

  Args:
    prepared: the text or the task's folder that it will read.
    task: that it must have been fine-tuned for; the columns of its classifier
      are put in the order of the task's labels. None: it has a masked-LM head.
    path: a --workdir, a folder, or the name of a model on the hub.
    model: `family`, `variant`, and other sizes as they must be; what is None is
      the files', without a variant all sizes.

  Raises:
    ValueError: with one sentence: of the files, or they are of another model,
      another vocabulary or another task.
  """
  if not path:
    raise UserError(
      "teacher.path is empty; pass --config.teacher.path=PATH, the --workdir of"
      " a run, a converted folder or one of transformers."
    )
  opened = start_from.open_for("teacher.path", path)
  weights = opened.weights
  model = _filled(model, weights)
  _check_model(path, weights, model)
  weights = _cut(opened, prepared)
  if task:
    weights = _for_task(path, weights, task)
  setting_names = ("family", "variant", *COMPUTATION)
  settings = {
    key: value for key, value in model.items() if key in setting_names
  }
  heads = ("pooler/", "classifier/") if task else ("mlm/",)
  digest = _digest(weights, ("encoder/", *heads))
  return Teacher(
    path, settings | weights.config["model"], weights.arrays, digest
  )


def _filled(model: dict[str, Any], weights: Weights) -> dict[str, Any]:
  """A config's model; what it leaves open is the files'."""
  settings = {name: value for name, value in model.items() if value is not None}
  family = weights.config["family"]
  if "variant" in settings or family not in models.FAMILIES:
    return {"family": family} | settings
  variant = next(iter(models.family(family).VARIANTS))
  sizes = weights.config["model"]
  return {"family": family, "variant": variant} | sizes | settings


def _for_task(path: str, weights: Weights, task: Task) -> Weights:
  """A model with its labels in a task's order.

  Raises:
    ValueError: it was not fine-tuned for such a task, or has other labels.
  """
  config, name = weights.config, task_heads.NAMES[task.kind]
  if config["task"] != name or config["problem"] not in (None, task.kind):
    raise UserError(
      f"teacher.path={path} is a model for"
      f" {config['problem'] or config['task']}, the task {task.name} is a"
      f" {task.kind}; choose a model that was fine-tuned for it."
    )
  if task.kind != "classification":
    return weights
  order = columns_of(task.labels, config["labels"])
  if order is None:
    raise UserError(
      f"teacher.path={path} has the labels {', '.join(config['labels'])}, the"
      f" task {task.name} {', '.join(task.labels)}; choose a model that was"
      " fine-tuned for it."
    )
  arrays = {
    name: array[..., order] if name.startswith("classifier/") else array
    for name, array in weights.arrays.items()
  }
  return weights._replace(arrays=arrays)


def _check_model(path: str, weights: Weights, model: dict[str, Any]) -> None:
  """Raises ValueError unless a config means the model that the files hold."""
  wanted = {"family": model.get("family")}
  there = {"family": weights.config["family"]}
  if wanted == there:
    settings = {
      k: v for k, v in model.items() if k != "family" and v is not None
    }
    family = models.family(wanted["family"])
    try:
      encoder = family.build(**settings)
    except ValueError as e:
      raise UserError(f"teacher.{e}") from e
    skip = (*COMPUTATION, *_TRAINING, "variant")
    names = [n for n in family.VARIANTS[settings["variant"]] | settings]
    names = [name for name in names if name not in skip]
    wanted = {name: getattr(encoder, name) for name in names}
    there = {name: weights.config["model"][name] for name in names}
  other = [name for name in wanted if wanted[name] != there[name]]
  if other:
    raise UserError(
      f"teacher.path={path} has "
      + ", ".join(f"{name}={there[name]}" for name in other)
      + ", but the config says "
      + ", ".join(f"teacher.model.{name}={wanted[name]}" for name in other)
      + f"; {_remedy(model, {name: there[name] for name in other})}, or choose"
      " another teacher."
    )


def _remedy(model: dict[str, Any], right: dict[str, Any]) -> str:
  """How to say what is right: flags set no key that a config lacks."""
  flags = [name for name in right if name in model]
  lines = [name for name in right if name not in model]
  remedies = []
  if flags:
    remedies.append(
      "pass "
      + " ".join(f"--config.teacher.model.{n}={right[n]}" for n in flags)
    )
  if lines:
    remedies.append(
      "write "
      + ", ".join(f"{n}={right[n]!r}" for n in lines)
      + " into teacher.model of the config's file"
    )
  return " and ".join(remedies)


def _cut(model: OpenedModel, prepared: Prepared | TaskFolder) -> Weights:
  """Cuts a teacher's word table to the pieces of the data.

  The teacher must not predict pieces that its student lacks. So rows beyond its
  vocabulary (a table padded to a round number) and rows of pieces beyond the
  data's are left out.

  Raises:
    ValueError: the teacher's vocabulary differs from the data's, or it has too
      few rows.
  """
  weights, path = model.weights, model.path
  vocabulary = start_from.vocabulary_of("teacher.path", model, prepared.path)
  check_begins(
    prepared.vocab,
    vocabulary.pieces,
    prepared.path,
    f"teacher.path={path}",
    "prepare it with the teacher's vocabulary",
  )
  rows, size = weights.config["model"]["vocab_size"], len(prepared.vocab)
  if rows < size:
    raise UserError(
      f"teacher.path={path} has {rows:,} rows for the {size:,} pieces of"
      f" {prepared.path}; choose a teacher that has all of them."
    )
  if rows == size:
    return weights
  print(
    f"teacher: it has {rows:,} rows, and the data has {size:,} pieces; it"
    " predicts only these pieces",
    flush=True,
  )
  names = ("word/embedding", "mlm/bias")
  arrays = {
    name: array[:size] if name.endswith(names) else array
    for name, array in weights.arrays.items()
  }
  sizes = weights.config["model"] | {"vocab_size": size}
  return weights._replace(
    config=weights.config | {"model": sizes}, arrays=arrays
  )


def _digest(weights: Weights, prefixes: tuple[str, ...]) -> str:
  """A hash of the arrays that a student may learn from."""
  digest = hashlib.sha256()
  for path, array in sorted(weights.arrays.items()):
    if path.startswith(prefixes):
      digest.update(f"{path} {array.shape}".encode())
      digest.update(np.ascontiguousarray(array).data)
  return digest.hexdigest()


def place(teacher: Teacher, layout: Any) -> Any:
  """Puts the parameters that are needed on the devices.

  Args:
    teacher: whose.
    layout: tree of shapes with shardings; rows that it has more are zeros.

  Raises:
    ValueError: the teacher has not all of them.
  """

  def put(path, wanted):
    if path not in teacher.arrays:
      raise UserError(
        f"teacher.path={teacher.path} has no {path}, which the objective needs;"
        " choose a teacher with its masked-LM head."
      )
    array = teacher.arrays[path]
    more = zip(wanted.shape, array.shape, strict=True)
    array = np.pad(array, [(0, size - had) for size, had in more])
    return jax.make_array_from_callback(
      wanted.shape, wanted.sharding, lambda index: array[index]
    )

  flat = traverse_util.flatten_dict(layout, sep="/")
  placed = {path: put(path, wanted) for path, wanted in flat.items()}
  return traverse_util.unflatten_dict(placed, sep="/")
