"""Objectives: what the train loop knows of a model, its losses and its data."""

from collections.abc import Callable
from typing import Any

from bert_jax.objectives import (
  distil,
  electra,
  elmo,
  finetune,
  lm,
  mlm,
  tinybert,
  tinybert_task,
)
from bert_jax.objectives.base import Objective

OBJECTIVES: dict[str, Callable[..., Objective]] = {
  "mlm": mlm.build,
  "electra": electra.build,
  "lm": lm.build,
  "distil": distil.build,
  "tinybert": tinybert.build,
  "tinybert_task": tinybert_task.build,
  "elmo": elmo.build,
  "finetune": finetune.build,
}


def factory(name: str) -> Callable[..., Objective]:
  """Returns (model, **options) -> objective by its name in `OBJECTIVES`.

  Raises:
    ValueError: an unknown name; the known ones are named.
  """
  if name not in OBJECTIVES:
    raise ValueError(f"objective.name={name!r}: not one of {list(OBJECTIVES)}.")
  return OBJECTIVES[name]


def build(
  name: str, model: dict[str, Any], options: dict[str, Any]
) -> Objective:
  """Builds an objective from the `objective` and `model` config sections.

  Args:
    name: a key of `OBJECTIVES`.
    model: keyword arguments of the family's `build`, with `family`.
    options: keyword arguments of the objective.
  """
  return factory(name)(model, **options)
