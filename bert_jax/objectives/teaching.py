"""What the objectives that learn from a teacher have in common."""

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

# Which families read the same rows, so that one may teach another.
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
    objective: its name.
    model: keyword arguments of the student's `build`, with `family`.
    teacher: the same of the teacher.

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
  own, other = families
  if KINDS[own] != KINDS[other]:
    near = [name for name in KINDS if KINDS[name] == KINDS[other]]
    raise ValueError(
      f"model.family={own!r} cannot learn from teacher.model.family={other!r};"
      f" choose {' or '.join(near)}."
    )
  return _encoder(**model), _encoder(**teacher)


def _encoder(family: str, **model: Any) -> nn.Module:
  return models.family(family).build(**model)


def check_sizes(student: Any, teacher: Any, picked: Sequence[int]) -> None:
  """Raises ValueError unless a student can compare itself and begin so.

  Args:
    student: its encoder.
    teacher: its encoder.
    picked: layers of the teacher that the student begins with; may be empty.
  """
  names = ["hidden", "vocab_size"]
  # A layer computes what it did in the teacher only with all of these.
  if picked:
    names += ["heads", "mlp", "max_positions", "activation", "norm_epsilon"]
  names += ["padding_id"] if hasattr(student, "padding_id") else []
  for name in names:
    own, other = getattr(student, name), getattr(teacher, name)
    if own != other:
      copied = (
        ""
        if name in ("hidden", "vocab_size", "padding_id")
        else (", or objective.layers=() to begin from the seed")
      )
      raise ValueError(
        f"model.{name}={own}, but the teacher's is {other}; set"
        f" --config.model.{name}={other}{copied}."
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
  """A student's parameters, with what its teacher has in their place.

  Args:
    params: of the student; kept where the teacher has none.
    teacher: its parameters. What the student has not, such as the embeddings of
      segments, is left out, as released.
    picked: the teacher's layer for each of the student's.
  """
  own, other = map(traverse_util.flatten_dict, (params, teacher))
  index = jnp.array(picked)

  def value(path, x):
    found = other.get(path, x)
    return found[index] if "layers" in path and path in other else found

  return traverse_util.unflatten_dict({p: value(p, x) for p, x in own.items()})


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
