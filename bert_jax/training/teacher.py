"""Opens the teacher of a run, which is a trained model that does not change.

A teacher is read from the folder of a run, a converted folder or a transformers
folder, by `open_model`. The teacher's parameters are an argument of the
train step. They are never donated and never saved; a checkpoint has only a
digest of the parameters.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from bert_jax import messages, models
from bert_jax.corpus.reader import PreparedFolder
from bert_jax.messages import UserError, say
from bert_jax.models import task_heads
from bert_jax.models.from_config import COMPUTATION_OPTIONS
from bert_jax.tasks.batches import TaskFolder
from bert_jax.tasks.encoded_rows import Task
from bert_jax.text.open_vocabulary import check_begins_with
from bert_jax.training import config as config_lib
from bert_jax.training import start_from
from bert_jax.weights.model_folder import Weights, columns_in_task_order

# Settings that matter only while a model is trained.
_TRAINING_SETTINGS = ("dropout", "attention_dropout", "initializer_range")


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
  """Holds a teacher that was read from its files.

  Attributes:
    path: the path of the files.
    model: the section `teacher.model` with all sizes.
    arrays: path in the parameter tree, joined by "/" -> float32 array.
    digest: a digest of encoder and head. Equal parameters have equal digests,
      whatever the format of the files.
  """

  path: str
  model: config_lib.Model
  arrays: Mapping[str, np.ndarray]
  digest: str


def open_teacher(
  section: config_lib.Teacher,
  data_folder: PreparedFolder | TaskFolder,
  task: Task | None,
) -> Teacher:
  """Opens a teacher, and checks that it fits the config and the data.

  Args:
    section: the section `teacher` of the config. The sizes that
      `section.model` sets, by a variant or key by key, must be equal to the
      sizes in the files. All other sizes are taken from the files.
    data_folder: the prepared text, or the task's folder, that the run reads.
    task: the task for which the teacher must have been fine-tuned. The columns
      of the teacher's classifier are put in the order of the task's labels.
      None means a run on text, for which the teacher must have a masked-LM
      head.

  Raises:
    UserError: the files cannot be read, or the teacher does not fit the config,
      the data's vocabulary or the task.
  """
  path = section.path
  if not path:
    raise UserError(
      f"teacher.path is empty; pass {messages.setting('teacher.path', 'PATH')},"
      " the folder of a run, a converted folder or one of transformers."
    )
  opened_model = start_from.open_configured_model("teacher.path", path)
  weights = opened_model.weights
  settings = _with_sizes_of_files(section.model.options(), weights)
  _check_model(path, weights, settings)
  vocabulary = start_from.vocabulary_of(
    "teacher.path", opened_model, data_folder.path
  )
  if task:
    weights = _with_labels_of_task(path, weights, task)
  check_begins_with(
    data_folder.vocab,
    vocabulary.pieces,
    data_folder.path,
    f"teacher.path={path}",
    "prepare it with the teacher's vocabulary",
  )
  weights = _cut_table(path, weights, data_folder)
  head_prefixes = ("pooler/", "classifier/") if task else ("mlm/",)
  digest = _digest(weights, ("encoder/", *head_prefixes))
  names = ("family", "variant", *COMPUTATION_OPTIONS)
  model_section = {name: settings[name] for name in names if name in settings}
  model_section |= weights.config["model"]
  return Teacher(
    path, config_lib.Model.from_values(model_section), weights.arrays, digest
  )


def _with_sizes_of_files(
  settings: dict[str, Any], weights: Weights
) -> dict[str, Any]:
  """Returns `teacher.model`, with missing sizes from the files.

  If `teacher.model` names a variant, only the family is added. `_check_model`
  then compares the sizes of this variant with those of the files.
  """
  family = weights.config["family"]
  if "variant" in settings or family not in models.FAMILIES:
    return {"family": family} | settings
  variant = next(iter(models.family(family).VARIANTS))
  sizes = weights.config["model"]
  return {"family": family, "variant": variant} | sizes | settings


def _with_labels_of_task(path: str, weights: Weights, task: Task) -> Weights:
  """Returns a model whose classifier has the labels in a task's order.

  Raises:
    UserError: the model was not fine-tuned for this kind of task, or has
      different labels.
  """
  config = weights.config
  head_matches = config["task"] == task_heads.TASK_BY_KIND[task.kind]
  if not head_matches or config["problem"] not in (None, task.kind):
    raise UserError(
      f"teacher.path={path} is a model for"
      f" {config['problem'] or config['task']}, but the task {task.name} is of"
      f" the kind {task.kind}; choose a model that was fine-tuned for it."
    )
  if task.kind != "classification":
    return weights
  column_order = columns_in_task_order(task.labels, config["labels"])
  if column_order is None:
    raise UserError(
      f"teacher.path={path} has the labels {', '.join(config['labels'])}, but"
      f" the task {task.name} has {', '.join(task.labels)}; choose a model that"
      " was fine-tuned for this task."
    )
  arrays = {
    name: array[..., column_order] if name.startswith("classifier/") else array
    for name, array in weights.arrays.items()
  }
  return weights._replace(arrays=arrays)


def _check_model(path: str, weights: Weights, settings: dict[str, Any]) -> None:
  """Raises UserError if the model in the files contradicts the config.

  Args:
    path: the model's path, for messages.
    weights: the model in the files.
    settings: the config's model; see `_with_sizes_of_files`.
  """
  config_values = {"family": settings["family"]}
  file_values = {"family": weights.config["family"]}
  if config_values == file_values:
    family = models.family(settings["family"])
    arguments = {k: v for k, v in settings.items() if k != "family"}
    try:
      encoder = family.build(**arguments)
    except ValueError as e:
      raise UserError(f"teacher.{e}") from e
    ignored_names = (*COMPUTATION_OPTIONS, *_TRAINING_SETTINGS, "variant")
    sizes = family.VARIANTS[settings["variant"]] | arguments
    names = [name for name in sizes if name not in ignored_names]
    config_values = {name: getattr(encoder, name) for name in names}
    file_values = {name: weights.config["model"][name] for name in names}
  different_sizes = {
    n: file_values[n]
    for n in config_values
    if config_values[n] != file_values[n]
  }
  if different_sizes:
    raise UserError(
      f"teacher.path={path} has "
      + ", ".join(f"{name}={size}" for name, size in different_sizes.items())
      + ", but the config says "
      + ", ".join(
        f"teacher.model.{name}={config_values[name]}"
        for name in different_sizes
      )
      + f"; {_remedy(settings, different_sizes)}, or choose another teacher."
    )


def _remedy(settings: dict[str, Any], sizes: dict[str, Any]) -> str:
  """Returns a remedy: how to set the sizes of a teacher in the config.

  A flag can set only a key that the config has. All other keys must be written
  into the config's file.

  Args:
    settings: the section `teacher.model`.
    sizes: the sizes to set.
  """
  names_for_flags = [name for name in sizes if name in settings]
  names_for_file = [name for name in sizes if name not in settings]
  remedies = []
  if names_for_flags:
    remedies.append(
      "pass "
      + messages.by_caller(" ", ", ").join(
        messages.setting(f"teacher.model.{n}", sizes[n])
        for n in names_for_flags
      )
    )
  if names_for_file:
    remedies.append(
      "write "
      + ", ".join(f"{n}={sizes[n]!r}" for n in names_for_file)
      + " into teacher.model of the config's file"
    )
  return " and ".join(remedies)


def _cut_table(
  path: str, weights: Weights, data_folder: PreparedFolder | TaskFolder
) -> Weights:
  """Cuts a teacher's word embeddings to the pieces of the data.

  The teacher must not predict pieces that its student lacks. So the embeddings
  of pieces that the data does not have are cut off, and those of padding too.

  Args:
    path: the model's path, for messages.
    weights: the teacher.
    data_folder: the prepared text, or the task's folder.

  Raises:
    UserError: the teacher has fewer pieces than the data.
  """
  num_rows, num_pieces = (
    weights.config["model"]["vocab_size"],
    len(data_folder.vocab),
  )
  if num_rows < num_pieces:
    raise UserError(
      f"teacher.path={path} has {num_rows:,} rows for the {num_pieces:,} pieces"
      f" of {data_folder.path}; choose a teacher that has all of them."
    )
  if num_rows == num_pieces:
    return weights
  say(
    f"the teacher has {num_rows:,} rows, and the data has {num_pieces:,} pieces"
    "; the teacher predicts only these pieces"
  )
  name_endings = ("word/embedding", "mlm/bias")
  arrays = {
    name: array[:num_pieces] if name.endswith(name_endings) else array
    for name, array in weights.arrays.items()
  }
  sizes = weights.config["model"] | {"vocab_size": num_pieces}
  return weights._replace(
    config=weights.config | {"model": sizes}, arrays=arrays
  )


def _digest(weights: Weights, prefixes: tuple[str, ...]) -> str:
  """Returns a digest of the arrays from which a student learns.

  Args:
    weights: the teacher.
    prefixes: the beginnings of these arrays' paths.
  """
  digest = hashlib.sha256()
  for path, array in sorted(weights.arrays.items()):
    if path.startswith(prefixes):
      digest.update(f"{path} {array.shape}".encode())
      digest.update(np.ascontiguousarray(array).data)
  return digest.hexdigest()


def place_on_devices(teacher: Teacher, layout: Any) -> Any:
  """Puts the parameters that the objective needs on the devices.

  Args:
    teacher: the teacher.
    layout: a tree of shapes with shardings. If an array has fewer rows than its
      shape in this tree, rows of zeros are added at the end.

  Raises:
    UserError: the teacher lacks one of the parameters.
  """

  def place(path: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
    if path not in teacher.arrays:
      raise UserError(
        f"teacher.path={teacher.path} has no {path}, which the objective needs;"
        " choose a teacher with its masked-LM head."
      )
    array = teacher.arrays[path]
    size_pairs = zip(shape.shape, array.shape, strict=True)
    array = np.pad(array, [(0, new - old) for new, old in size_pairs])
    return jax.make_array_from_callback(
      shape.shape, shape.sharding, lambda index: array[index]
    )

  flat_layout = traverse_util.flatten_dict(layout, sep="/")
  placed_arrays = {
    path: place(path, shape) for path, shape in flat_layout.items()
  }
  return traverse_util.unflatten_dict(placed_arrays, sep="/")
