"""Joins ELECTRA's two towers into one model, and splits them again.

A tower is one of ELECTRA's two encoders with its head: the generator or the
discriminator. transformers publishes each tower as a model. Here, a model may
hold both towers, which then share their embeddings.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.messages import UserError
from bert_jax.models import electra, from_config
from bert_jax.weights import model_folder
from bert_jax.weights.model_folder import Weights

TOWERS = ("discriminator", "generator")
# The prefix of the embeddings in a model with one tower, and with both towers.
_EMBEDDING_PREFIXES = ("encoder/embeddings/", "embeddings/")
_REMEDY = "pass tower=generator or tower=discriminator"


def check_tower_name(family: str, tower: str | None) -> None:
  """Raises a UserError unless `tower` is None or a tower of the family."""
  if tower is None:
    return
  if family != "electra":
    raise UserError(f"tower={tower}: only ELECTRA has towers.")
  if tower not in (*TOWERS, "both"):
    raise UserError(f"tower={tower} is not one of {', '.join(TOWERS)}, both.")


def check_is_tower(weights: Weights, tower: str | None, path: str) -> None:
  """Raises a UserError if `tower` is given, and a model is not this tower."""
  task = weights.config["task"]
  if tower == "both":
    raise UserError(
      f"tower=both: {path} does not hold both towers, in folders named"
      f" {' and '.join(TOWERS)}."
    )
  if tower and task != tower:
    raise UserError(f"tower={tower}: {path} is a model for {task}.")


def _prefixes(tower: str) -> tuple[tuple[str, str], ...]:
  """Returns pairs: (prefix in a one-tower model, prefix in a joined model)."""
  return (_EMBEDDING_PREFIXES, ("encoder/tower/", f"{tower}/"))


def _replace_prefix(path: str, prefixes: tuple[tuple[str, str], ...]) -> str:
  for old_prefix, new_prefix in prefixes:
    if path.startswith(old_prefix):
      return new_prefix + path.removeprefix(old_prefix)
  return path


def rename_for_pretraining(weights: Weights, name: str) -> Weights:
  """Gives a model's parameters the names that pre-training uses.

  Args:
    weights: a model of ELECTRA with both towers, or only the discriminator.
    name: the model's name, for messages.

  Raises:
    UserError: the model is the generator without a discriminator.
  """
  task = weights.config["task"]
  if task == "pretraining":
    return weights
  if task == "generator":
    raise UserError(
      f"{name} is ELECTRA's generator without the discriminator; give"
      f" a folder with two folders named {' and '.join(TOWERS)}, or the"
      " discriminator's folder."
    )
  prefixes = _prefixes("discriminator")
  arrays = {
    _replace_prefix(path, prefixes): array
    for path, array in weights.arrays.items()
  }
  return weights._replace(arrays=arrays)


def _generator_attributes(model: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the generator's attributes in a model with both towers."""
  sizes = electra.generator_sizes(electra.Electra(**model))
  return model_folder.without_keys(model, "generator_hidden") | sizes


def join_towers(towers: Mapping[str, Weights], folder: str) -> Weights:
  """Makes one model from both towers, which share their embeddings.

  Args:
    towers: tower -> model.
    folder: the folder that holds both towers, for messages.

  Raises:
    UserError: the sizes or the embeddings of the towers do not agree.
  """
  for tower, weights in towers.items():
    if weights.config["task"] != tower:
      raise UserError(
        f"{folder}/{tower} is a model for {weights.config['task']}, not a"
        f" {tower}."
      )
  configs = {tower: weights.config for tower, weights in towers.items()}
  generator_hidden = configs["generator"]["model"]["hidden"]
  model = configs["discriminator"]["model"] | {
    "generator_hidden": generator_hidden
  }
  generator_model = configs["generator"]["model"]
  for name, size in _generator_attributes(model).items():
    if generator_model[name] != size:
      raise UserError(
        f"{folder}: the generator's {name} is {generator_model[name]}, but with"
        f" this discriminator it must be {size}; {_REMEDY}."
      )
  arrays: dict[str, np.ndarray] = {}
  for tower, weights in towers.items():
    for path, array in weights.arrays.items():
      joined_path = _replace_prefix(path, _prefixes(tower))
      if joined_path in arrays and not np.array_equal(
        array, arrays[joined_path]
      ):
        raise UserError(
          f"{folder}: {joined_path} differs between generator and"
          f" discriminator, but a model with both shares it; {_REMEDY}."
        )
      arrays[joined_path] = array
  source = {
    "format": "hf",
    "towers": {tower: config["source"] for tower, config in configs.items()},
  }
  config = model_folder.make_config(
    "electra", "pretraining", model, source=source
  )
  shapes = from_config.param_shapes(config)
  ordered_arrays = {path: arrays[path] for path in shapes}
  return Weights(
    config, ordered_arrays, towers["discriminator"].tokenizer_files
  )


def extract_tower(weights: Weights, tower: str) -> Weights:
  """Takes one tower out of a model with both towers; returns it as a model."""
  model = weights.config["model"]
  if tower == "generator":
    attributes = _generator_attributes(model)
  else:
    attributes = model_folder.without_keys(model, "generator_hidden")
  source = weights.config["source"]
  config = model_folder.make_config(
    "electra",
    tower,
    attributes,
    source=source.get("towers", {tower: source})[tower],
  )
  prefixes = tuple(
    (joined_prefix, single_prefix)
    for single_prefix, joined_prefix in _prefixes(tower)
  )
  shapes = from_config.param_shapes(config)
  arrays = {
    _replace_prefix(path, prefixes): array
    for path, array in weights.arrays.items()
  }
  return Weights(
    config, {path: arrays[path] for path in shapes}, weights.tokenizer_files
  )


def choose_tower(
  weights: Weights,
  tower: str | None,
  path: str,
  default_tower: str | None = None,
) -> Weights:
  """Chooses one or both towers of an ELECTRA with both towers.

  Any other model is returned unchanged.

  Args:
    weights: a model of any family.
    tower: "generator", "discriminator" or "both"; None if the user named no
      tower.
    path: the model's path, for messages.
    default_tower: the tower to take if the model has both and `tower` is None;
      None means both.

  Raises:
    UserError: the model is not the tower that the user named.
  """
  family, task = weights.config["family"], weights.config["task"]
  check_tower_name(family, tower)
  if family != "electra" or task != "pretraining":
    check_is_tower(weights, tower, path)
    return weights
  tower = tower or default_tower
  return weights if tower in (None, "both") else extract_tower(weights, tower)
