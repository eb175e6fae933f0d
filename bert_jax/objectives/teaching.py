"""Functions that the objectives with a teacher share."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jaxtyping import Array, Float

from bert_jax import models
from bert_jax.models.encoder import Encoder, encode
from bert_jax.objectives.base import Batch, Params

# Family -> the format of its rows. A teacher's family and its student's must
# have the same format.
ROW_FORMATS = {
  "bert": "bert",
  "tinybert": "bert",
  "distilbert": "bert",
  "roberta": "roberta",
}


def make_encoders(
  objective: str, model: dict[str, Any], teacher: dict[str, Any]
) -> tuple[Encoder, Encoder]:
  """Builds the encoders of a student and of its teacher.

  Args:
    objective: the name of the objective.
    model: keyword arguments of the student's `build`, and `family`.
    teacher: keyword arguments of the teacher's `build`, and `family`.

  Raises:
    ValueError: the objective does not support one of the families, or the two
      families read rows of different formats.
  """
  student_family = str(model.get("family"))
  teacher_family = str(teacher.get("family"))
  for role, name in (
    ("model", student_family),
    ("teacher.model", teacher_family),
  ):
    if name not in ROW_FORMATS:
      raise ValueError(
        f"{role}.family={name!r} must be a family that objective {objective!r}"
        f" supports: {', '.join(ROW_FORMATS)}."
      )
  row_format = ROW_FORMATS[teacher_family]
  if ROW_FORMATS[student_family] != row_format:
    fitting_families = [
      name for name in ROW_FORMATS if ROW_FORMATS[name] == row_format
    ]
    raise ValueError(
      f"model.family={student_family!r} cannot learn from"
      f" teacher.model.family={teacher_family!r}; choose"
      f" {' or '.join(fitting_families)}."
    )
  return _build_encoder(**model), _build_encoder(**teacher)


def _build_encoder(family: str, **model: Any) -> Encoder:
  return models.family(family).build(**model)


def check_sizes(
  student: Encoder, teacher: Encoder, layers: Sequence[int]
) -> None:
  """Raises ValueError unless a teacher's sizes fit its student.

  Args:
    student: the student's encoder.
    teacher: the teacher's encoder.
    layers: the indices of the teacher's layers with which the student begins;
      may be empty.
  """
  field_names = ["hidden", "vocab_size"]
  # A copied layer computes the same function as in the teacher only if these
  # fields are equal too.
  if layers:
    field_names += [
      "heads",
      "mlp",
      "max_positions",
      "activation",
      "norm_epsilon",
    ]
  field_names += ["padding_id"] if hasattr(student, "padding_id") else []
  for name in field_names:
    size, teacher_size = getattr(student, name), getattr(teacher, name)
    if size != teacher_size:
      remedy = f"set --config.model.{name}={teacher_size}"
      if name not in ("hidden", "vocab_size", "padding_id"):
        remedy += ", or objective.layers=() to begin from the seed"
      raise ValueError(
        f"model.{name}={size}, but the teacher's is {teacher_size}; {remedy}."
      )
  if layers and len(layers) != student.num_layers:
    raise ValueError(
      f"objective.layers={tuple(layers)} names {len(layers)} layers, but"
      f" model.num_layers={student.num_layers}; name a layer of the teacher for"
      " each layer of the student."
    )
  for layer in layers:
    if type(layer) is not int or not 0 <= layer < teacher.num_layers:
      raise ValueError(
        f"objective.layers={tuple(layers)}: {layer!r} is no layer of the"
        f" teacher; choose from 0 to {teacher.num_layers - 1}."
      )


def check_weights(**weights: float) -> None:
  """Raises ValueError if every loss of an objective has the weight 0.

  Args:
    **weights: {option of the objective: weight of a loss}.
  """
  if not any(weights.values()):
    *names, last = weights
    raise ValueError(
      f"objective.{', '.join(names)} and {last} are all 0, so nothing would be"
      " learnt; give one of them a weight above 0."
    )


def copy_layers(
  params: Params, teacher: Params, layers: Sequence[int]
) -> Params:
  """Returns a student's parameters, with the teacher's values for common paths.

  Args:
    params: the student's parameters. A path that the teacher lacks keeps the
      student's value.
    teacher: the teacher's parameters. A path that the student lacks, such as
      the segment table's, is left out, as in the released program.
    layers: for each layer of the student the index of the teacher's layer.
  """
  flat_params = traverse_util.flatten_dict(params)
  flat_teacher = traverse_util.flatten_dict(teacher)
  layer_indices = jnp.array(layers)

  def copy(path: tuple[str, ...], array: Array) -> Array:
    if path not in flat_teacher:
      return array
    teacher_array = flat_teacher[path]
    return teacher_array[layer_indices] if "layers" in path else teacher_array

  return traverse_util.unflatten_dict(
    {path: copy(path, array) for path, array in flat_params.items()}
  )


def freeze_position_table(params: Params) -> Params:
  """Returns the parameters, and stops the gradient of position embeddings."""
  encoder = params["encoder"]
  frozen_table = jax.lax.stop_gradient(encoder["embeddings"]["position"])
  embeddings = encoder["embeddings"] | {"position": frozen_table}
  return params | {"encoder": encoder | {"embeddings": embeddings}}


def last_hidden_states(
  module: Any, batch: Batch, train: bool = False
) -> Float[Array, "b l d"]:
  """Returns the last hidden states of a module's encoder.

  Args:
    module: a module with an `encoder`, such as `heads.ForPreTraining`.
    batch: see `heads.ForPreTraining`.
    train: True applies dropout, which needs a "dropout" rng.
  """
  hidden, _ = encode(module.encoder, batch, train=train)
  return hidden
