"""Objectives: the losses of a model, as pure functions for the train loop.

The room imports the rooms `models/` and `kernels/`, and the packages jax, flax,
jaxtyping and numpy. Start with `base.py`, the interface, then read `mlm.py`.

  base.py: `Objective`, cross-entropy, sums in chunks, checks of options.
  mlm.py: masked LM, with the losses of segment pairs and span boundaries.
  electra.py: ELECTRA's generator and replaced token detection.
  lm.py: GPT-1's language model.
  elmo.py: ELMo's language models of both directions, the sampled softmax.
  finetune.py: the losses of downstream tasks.
  distil.py: DistilBERT: a student learns its teacher's distribution.
  tinybert.py: TinyBERT: a student learns its teacher's inner states.
  tinybert_task.py: TinyBERT's two stages on a task's rows.
  teaching.py: functions that the objectives with a teacher share.
"""

import dataclasses
import inspect
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


def build_function(name: str) -> Callable[..., Objective]:
  """Returns an objective's `build`, a function (model, **options) -> objective.

  Args:
    name: a key of `OBJECTIVES`.

  Raises:
    ValueError: the name is unknown; the message lists all names.
  """
  if name not in OBJECTIVES:
    raise ValueError(
      f"objective.name={name!r} is not one of {', '.join(OBJECTIVES)}."
    )
  return OBJECTIVES[name]


def option_defaults(name: str) -> dict[str, Any]:
  """Returns {option: default} for an objective.

  For an option that must be given, the default is `dataclasses.MISSING`. The
  arguments `model` and `teacher` are not options.

  Raises:
    ValueError: the name is unknown.
  """
  parameters = inspect.signature(build_function(name)).parameters.values()
  return {
    parameter.name: dataclasses.MISSING
    if parameter.default is parameter.empty
    else parameter.default
    for parameter in parameters
    if parameter.name not in ("model", "teacher")
  }


def build(
  name: str,
  model: dict[str, Any],
  options: dict[str, Any],
  teacher: dict[str, Any] | None = None,
) -> Objective:
  """Builds an objective from the `objective` and `model` config sections.

  Args:
    name: a key of `OBJECTIVES`.
    model: keyword arguments of the family's `build`, and `family`.
    options: keyword arguments of the objective's `build`.
    teacher: keyword arguments of the teacher's `build`, and `family`; None for
      an objective without a teacher.

  Raises:
    ValueError: the name is unknown, or the objective refuses an option.
  """
  model_arguments = (model,) if teacher is None else (model, teacher)
  return build_function(name)(*model_arguments, **options)
