"""The parts that the objectives with a teacher share."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from jaxtyping import Array, Float

from bert_jax import models
from bert_jax.models.encoder import encode
from bert_jax.objectives.base import Batch

# Family -> a name for the rows that it reads. A family may teach another one
# that reads the same rows.
KINDS = {
  "bert": "bert",
  "tinybert": "bert",
  "distilbert": "bert",
  "roberta": "roberta",
}


def make_encoders(
  objective: str, model: dict[str, Any], teacher: dict[str, Any]
) -> tuple[nn.Module, nn.Module]:
  """Encoders of a student and of its teacher.

  Args:
    objective: the objective's name.
    model: keyword arguments of the student's `build`, with `family`.
    teacher: the same for the teacher.

  Raises:
    ValueError: a family that cannot learn, or from the other.
  """
  families = model.get("family"), teacher.get("family")
  for role, name in zip(("model", "teacher.model"), families, strict=True):
    if name not in KINDS:
      raise ValueError(
        f"{role}.family={name!r}: objective {objective!r} knows"
        f" {', '.join(KINDS)}."
      )
  student, master = families
  if KINDS[student] != KINDS[master]:
    fitting = [name for name in KINDS if KINDS[name] == KINDS[master]]
    raise ValueError(
      f"model.family={student!r} cannot learn from"
      f" teacher.model.family={master!r}; choose {' or '.join(fitting)}."
    )
  return _encoder(**model), _encoder(**teacher)


def _encoder(family: str, **model: Any) -> nn.Module:
  return models.family(family).build(**model)


def check_sizes(student: Any, teacher: Any, picked: Sequence[int]) -> None:
  """Raises ValueError unless a student can compare itself and begin so.

  Args:
    student: the student's encoder.
    teacher: the teacher's encoder.
    picked: layers of the teacher that the student begins with; may be empty.
  """
  names = ["hidden", "vocab_size"]
  # Copied layers compute the same function only if all of these are equal.
  if picked:
    names += ["heads", "mlp", "max_positions", "activation", "norm_epsilon"]
  names += ["padding_id"] if hasattr(student, "padding_id") else []
  for name in names:
    value, wanted = getattr(student, name), getattr(teacher, name)
    if value != wanted:
      remedy = f"set --config.model.{name}={wanted}"
      if name not in ("hidden", "vocab_size", "padding_id"):
        remedy += ", or objective.layers=() to begin from the seed"
      raise ValueError(
        f"model.{name}={value}, but the teacher's is {wanted}; {remedy}."
      )
  if picked and len(picked) != student.num_layers:
    raise ValueError(
      f"objective.layers={tuple(picked)} are {len(picked)}, but"
      f" model.num_layers={student.num_layers}; name a layer of the teacher for"
      " each."
    )
  for layer in picked:
    if type(layer) is not int or not 0 <= layer < teacher.num_layers:
      raise ValueError(
        f"objective.layers={tuple(picked)}: {layer!r} is no layer of the"
        f" teacher; it has 0 to {teacher.num_layers - 1}."
      )


def check_weights(**weights: float) -> None:
  """Raises ValueError if every loss of an objective has the weight 0."""
  if not any(weights.values()):
    *names, last = weights
    raise ValueError(
      f"objective.{', '.join(names)} and {last} are all 0; nothing would be"
      " learnt."
    )


def copy_layers(params: Any, teacher: Any, picked: Sequence[int]) -> Any:
  """Replaces a student's parameters by the teacher's of the same path.

  Args:
    params: the student's parameters; kept where the teacher has none.
    teacher: the teacher's parameters. Those that the student lacks, such as the
      embeddings of segments, are left out, as released.
    picked: the teacher's layer for each of the student's.
  """
  flat, available = map(traverse_util.flatten_dict, (params, teacher))
  index = jnp.array(picked)

  def copy(path, x):
    if path not in available:
      return x
    array = available[path]
    return array[index] if "layers" in path else array

  return traverse_util.unflatten_dict({p: copy(p, x) for p, x in flat.items()})


def hold_positions(params: Any) -> Any:
  """The same parameters; no gradient reaches the position embeddings."""
  encoder = params["encoder"]
  held = jax.lax.stop_gradient(encoder["embeddings"]["position"])
  embeddings = encoder["embeddings"] | {"position": held}
  return params | {"encoder": encoder | {"embeddings": embeddings}}


def last_hidden(
  module: nn.Module, batch: Batch, train: bool = False
) -> Float[Array, "b l d"]:
  """The last hidden states of a module's encoder."""
  hidden, _ = encode(module.encoder, batch, train=train)
  return hidden
