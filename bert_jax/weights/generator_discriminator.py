"""ELECTRA's two towers: two models of one file each, one tree here."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.messages import UserError
from bert_jax.models import electra
from bert_jax.weights import model_folder
from bert_jax.weights.model_folder import Weights

TOWERS = ("discriminator", "generator")
_SHARED = ("encoder/embeddings/", "embeddings/")
_REMEDY = "pass --tower=generator or --tower=discriminator"


def check_name(family: str, tower: str | None) -> None:
  """Raises ValueError if a family has no such tower."""
  if tower is None:
    return
  if family != "electra":
    raise UserError(f"--tower={tower}: only ELECTRA has towers.")
  if tower not in (*TOWERS, "both"):
    raise UserError(f"--tower={tower}: not one of {', '.join(TOWERS)}, both.")


def check_is(weights: Weights, tower: str | None, path: str) -> None:
  """Raises ValueError if a model is not the tower that was asked for."""
  task = weights.config["task"]
  if tower == "both":
    raise UserError(
      f"--tower=both: {path} does not hold both towers, each in a folder of"
      f" its own named {' and '.join(TOWERS)}."
    )
  if tower and task != tower:
    raise UserError(f"--tower={tower}: {path} is a model for {task}.")


def _names(tower: str) -> tuple[tuple[str, str], ...]:
  """Beginnings of paths in a model of one tower, and in one of both."""
  return (_SHARED, ("encoder/tower/", f"{tower}/"))


def _rename(path: str, names: tuple[tuple[str, str], ...]) -> str:
  for old, new in names:
    if path.startswith(old):
      return new + path.removeprefix(old)
  return path


def pretraining_names(
  arrays: Mapping[str, np.ndarray], tower: str
) -> dict[str, np.ndarray]:
  """A tower's arrays by the names that they have in a model of both."""
  return {_rename(path, _names(tower)): a for path, a in arrays.items()}


def _generator(model: Mapping[str, Any]) -> dict[str, Any]:
  """Attributes of the generator that goes with a discriminator's."""
  sizes = electra.generator_sizes(electra.Electra(**model))
  return model_folder.without(model, "generator_hidden") | sizes


def join(towers: Mapping[str, Weights], where: str) -> Weights:
  """Makes one model of both towers, which share their embeddings.

  Args:
    towers: tower -> model.
    where: the folder, for messages.

  Raises:
    ValueError: they do not belong together.
  """
  for tower, weights in towers.items():
    if weights.config["task"] != tower:
      raise UserError(
        f"{where}/{tower} is a model for {weights.config['task']}, no {tower}."
      )
  configs = {tower: weights.config for tower, weights in towers.items()}
  hidden = configs["generator"]["model"]["hidden"]
  model = configs["discriminator"]["model"] | {"generator_hidden": hidden}
  for name, value in _generator(model).items():
    if configs["generator"]["model"][name] != value:
      raise UserError(
        f"{where}: the generator's {name} is"
        f" {configs['generator']['model'][name]}, beside this discriminator it"
        f" is {value}; {_REMEDY}."
      )
  arrays: dict[str, np.ndarray] = {}
  for tower, weights in towers.items():
    for path, array in weights.arrays.items():
      new = _rename(path, _names(tower))
      if new in arrays and not np.array_equal(array, arrays[new]):
        raise UserError(
          f"{where}: {new} of the generator is not the discriminator's, but"
          f" both share it here; {_REMEDY}."
        )
      arrays[new] = array
  source = {
    "format": "hf",
    "towers": {tower: config["source"] for tower, config in configs.items()},
  }
  config = model_folder.make_config(
    "electra", "pretraining", model, source=source
  )
  shapes = model_folder.shapes_of(model_folder.module_of(config), config)
  ordered = {path: arrays[path] for path in shapes}
  return Weights(config, ordered, towers["discriminator"].tokenizer_files)


def split(weights: Weights, tower: str) -> Weights:
  """The model of one tower, of a model of both."""
  model = weights.config["model"]
  if tower == "generator":
    sizes = _generator(model)
  else:
    sizes = model_folder.without(model, "generator_hidden")
  source = weights.config["source"]
  config = model_folder.make_config(
    "electra", tower, sizes, source=source.get("towers", {tower: source})[tower]
  )
  back = tuple((new, old) for old, new in _names(tower))
  shapes = model_folder.shapes_of(model_folder.module_of(config), config)
  arrays = {_rename(p, back): a for p, a in weights.arrays.items()}
  return Weights(
    config, {p: arrays[p] for p in shapes}, weights.tokenizer_files
  )


def choose(
  weights: Weights, tower: str | None, path: str, default: str | None = None
) -> Weights:
  """Takes one of ELECTRA's towers; other models are returned as they are.

  Args:
    weights: a model of any family.
    tower: "generator", "discriminator" or "both"; None if none was asked for.
    path: the model's path, for messages.
    default: the tower to take if the model has both and `tower` is None; None
      means both.

  Raises:
    ValueError: the model is not the tower that was asked for.
  """
  family, task = weights.config["family"], weights.config["task"]
  check_name(family, tower)
  if family != "electra" or task != "pretraining":
    check_is(weights, tower, path)
    return weights
  tower = tower or default
  return weights if tower in (None, "both") else split(weights, tower)
