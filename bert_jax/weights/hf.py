"""Hugging Face's folders: read into ours, and written from ours."""

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bert_jax import files
from bert_jax.messages import Damaged, UserError, note
from bert_jax.weights import (
  generator_discriminator,
  hf_config,
  hf_files,
  hf_names,
  hf_tasks,
  mapping,
  model_folder,
)
from bert_jax.weights.model_folder import Weights

# Arrays that the classes of transformers lack: always zero there.
ZERO = {("gpt", "sequence_classification"): ("classifier/dense/bias",)}


def read(path: str, family: str, tower: str | None = None) -> Weights:
  """Reads a folder of transformers: config, weights, tokenizer.

  Args:
    path: a folder; for both towers of ELECTRA, one with a folder for each:
      `generator` and `discriminator`.
    family: a key of `hf_names.NAMINGS`.
    tower: "generator", "discriminator", "both"; None for what there is.

  Raises:
    ValueError: with one sentence, whatever is wrong.
  """
  if family not in hf_names.NAMINGS:
    raise UserError(
      f"--family={family}: of Hugging Face's files, known are"
      f" {', '.join(hf_names.NAMINGS)}."
    )
  if not os.path.isdir(path):
    raise UserError(f"{path}: no such folder.")
  both = all(
    os.path.isdir(os.path.join(path, t)) for t in generator_discriminator.TOWERS
  )
  generator_discriminator.check_name(family, tower)
  if both and tower in (None, "both") and family == "electra":
    towers = {
      t: _read_one(os.path.join(path, t), family)
      for t in generator_discriminator.TOWERS
    }
    weights = generator_discriminator.join(towers, path)
  else:
    tower_path = os.path.join(path, tower) if both and tower else path
    weights = _read_one(tower_path, family)
    generator_discriminator.check_is(weights, tower, tower_path)
  tokenizer_files = weights.tokenizer_files or model_folder.read_tokenizer(path)
  return weights._replace(tokenizer_files=tokenizer_files)


def find_family(path: str) -> str:
  """The family of a folder of transformers, from its config or its arrays.

  Raises:
    UnknownFamily: neither says it for sure.
    ValueError: a damaged file.
  """
  if all(
    os.path.isdir(os.path.join(path, tower))
    for tower in generator_discriminator.TOWERS
  ):
    return "electra"
  config_path = os.path.join(path, model_folder.CONFIG)
  config = model_folder.read_json(config_path)
  try:
    return hf_tasks.family_of(config, config_path)
  except hf_tasks.UnknownFamily:
    if config.get("model_type") or config.get("architectures"):
      raise
    arrays, file = hf_files.read(path)
    family = hf_tasks.family_by_names(arrays)
    if family is None:
      raise
  note(
    f"note: {config_path} names no family; by the names in {file} it is"
    f" {family}."
  )
  return family


def _task(
  config: dict[str, Any], family: str, keys: Collection[str], config_path: str
) -> tuple[str, bool]:
  """The task that config and names agree on; whether it has a pair head."""
  classes, kinds = hf_tasks.tasks_of(family), hf_tasks.model_types(family)
  kind = config.get("model_type")
  if kind not in (None, *kinds):
    raise UserError(
      f"{config_path}: model_type is {kind!r}, {family}'s is"
      f" {' or '.join(map(repr, kinds))};"
      " pass the right --family."
    )
  pairs = hf_tasks.has_pairs(family, keys)
  named = config.get("architectures")
  if named:
    if not isinstance(named, list) or named[0] not in [*classes]:
      raise UserError(
        f"{config_path}: architectures is {named}; of {family}, known are"
        f" {', '.join(classes)}."
      )
    pairs |= named[0].endswith("ForPreTraining")
    fits = [classes[named[0]]]
  else:
    fits = hf_tasks.guess_task(family, keys)
  if len(fits) != 1:
    could = " or ".join(hf_tasks.class_of(family, task) for task in fits)
    raise UserError(
      f"{config_path} has no architectures, and the arrays could be those of"
      f" {could or 'no known class'}; write the class in."
    )
  return fits[0], pairs and fits[0] == "pretraining"


def _untie(
  arrays: dict[str, np.ndarray], family: str, prefix: str, file: str
) -> None:
  """Checks copies of other arrays; one without its original becomes it."""
  for copy, (inner, name) in hf_names.NAMINGS[family].tied.items():
    original = prefix + name if inner else name
    if copy not in arrays:
      continue
    if original not in arrays:
      arrays[original] = arrays[copy]
    elif not np.array_equal(arrays[copy], arrays[original]):
      raise UserError(
        f"{file}: {copy} differs from {original}, to which it is tied here;"
        " a model with a decoder of its own cannot be converted."
      )


def _read_config(
  config: dict[str, Any], family: str, keys: Collection[str], config_path: str
) -> tuple[dict[str, Any], list[str]]:
  """A folder's config without its source, and notes on what was absent."""
  task, pairs = _task(config, family, keys, config_path)
  fields = hf_config.HfFields(config, family, config_path)
  model = hf_config.read_model(fields, task)
  labels, problem, notes = None, None, []
  if task in hf_config.WITH_LABELS:
    labels, notes = hf_config.read_labels(config, config_path)
  if task == "sequence_classification":
    problem = hf_config.problem_of(config, len(labels), config_path)
  head = hf_config.read_head(fields, task, model, len(labels or ()), pairs)
  prefix = hf_tasks.prefix_of(family, keys)
  result = model_folder.make_config(
    family,
    task,
    model,
    head=head,
    labels=labels,
    problem=problem,
    pooler=hf_tasks.has_pooler(family, task, prefix, pairs, keys),
  )
  return result, notes + fields.notes()


def _read_one(path: str, family: str) -> Weights:
  config_path = os.path.join(path, model_folder.CONFIG)
  hf_fields = model_folder.read_json(config_path)
  arrays, file = hf_files.read(path)
  prefix = hf_tasks.prefix_of(family, arrays)
  _untie(arrays, family, prefix, file)
  config, notes = _read_config(hf_fields, family, arrays, config_path)
  task = config["task"]
  try:
    shapes = model_folder.shapes_of(model_folder.module_of(config), config)
  except ValueError as e:
    raise UserError(f"{config_path}: {e}") from e
  zeros = {
    name: np.zeros(shapes.pop(name), np.float32)
    for name in ZERO.get((family, task), ())
  }
  skip = hf_tasks.skipped_of(family, task, prefix)
  rules = hf_tasks.rules_of(config, prefix)
  used = set(mapping.wanted(rules, shapes))
  dtype = hf_files.dtype_of({k: arrays[k] for k in used & arrays.keys()}, file)
  name = hf_tasks.class_of(family, task, config["head"].get("pairs", False))
  params = mapping.to_ours(rules, arrays, shapes, skip, f"{file} as {name}")
  config["source"] = {
    "format": "hf",
    "dtype": dtype,
    "skipped": sorted(arrays.keys() - used),
    "config": hf_config.source_fields(hf_fields, family, task),
  }
  if pooling := read_pooling(path):
    config["source"]["pooling"] = pooling
  for line in notes:
    note(f"note: {line}.")
  return Weights(config, params | zeros, model_folder.read_tokenizer(path))


def write(path: str, weights: Weights, tower: str | None = None) -> None:
  """Writes a folder that transformers opens.

  Args:
    path: the new folder; each tower of ELECTRA gets a folder of its own in it.
    weights: the model; its `source` has the fields and dtype to write back.
    tower: "generator", "discriminator", "both"; None for what there is.

  Raises:
    ValueError: `path` exists and is not empty, or transformers has no such
      model; nothing is written.
  """
  model_folder.check_new(path)
  family, task = weights.config["family"], weights.config["task"]
  if family not in hf_names.NAMINGS:
    raise UserError(f"transformers has no {family}.")
  generator_discriminator.check_name(family, tower)
  both = family == "electra" and task == "pretraining"
  if both and tower in (None, "both"):
    models = {
      t: _theirs(generator_discriminator.split(weights, t))
      for t in generator_discriminator.TOWERS
    }
  elif both:
    models = {"": _theirs(generator_discriminator.split(weights, tower))}
  else:
    generator_discriminator.check_is(weights, tower, "the model")
    models = {"": _theirs(weights)}
  with model_folder.new_folder(path) as new:
    for name, (config, arrays) in models.items():
      model_path = os.path.join(new, name)
      os.makedirs(model_path, exist_ok=True)
      # transformers asks for this word before it opens the file.
      model_folder.write_files(
        model_path, config, arrays, weights.tokenizer_files, {"format": "pt"}
      )


def _theirs(weights: Weights) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """The config and arrays of transformers."""
  config, arrays = weights.config, dict(weights.arrays)
  family, task = config["family"], config["task"]
  if task == "span" and "beam" in config["head"]:
    raise UserError(
      "transformers has no place for a head that finds the end of an answer by"
      " its start (objective.span_head=joint); `export` keeps it."
    )
  dtype = config["source"].get("dtype", "float32")
  hf_fields = hf_config.make_config(config, weights.tokenizer_files, dtype)
  for name in ZERO.get((family, task), ()):
    if arrays.pop(name).any():
      raise UserError(
        f"{name} is not zero, and {hf_fields['architectures'][0]} has none."
      )
  prefix = "" if task == "encoder" else hf_names.NAMINGS[family].prefix
  named = mapping.to_theirs(hf_tasks.rules_of(config, prefix), arrays)
  wanted = hf_files.FLOATS[dtype]
  return hf_fields, {
    name: array.astype(wanted) for name, array in named.items()
  }


MODULES, POOLING = "modules.json", "1_Pooling"
# Field of an older config -> the name of the pooling in newer configs.
_POOLING_MODES = {
  "pooling_mode_cls_token": "cls",
  "pooling_mode_mean_tokens": "mean",
  "pooling_mode_max_tokens": "max",
  "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
  "pooling_mode_weightedmean_tokens": "weightedmean",
  "pooling_mode_lasttoken": "lasttoken",
}


def read_pooling(path: str) -> dict[str, Any] | None:
  """Reads how a folder's vectors are made.

  Args:
    path: a sentence-transformers folder, or any other folder.

  Returns:
    None for a folder without a pooling; otherwise a dict with these entries.
    "modes": names of poolings, whose results are concatenated to the vector.
    "normalize": True if vectors are divided by their length.
    "others": names of modules that are not computed here.

  Raises:
    ValueError: a file is damaged.
  """
  pooling_folder, normalize, others = POOLING, False, []
  modules_path = os.path.join(path, MODULES)
  if os.path.isfile(modules_path):
    try:
      modules = files.read_json(modules_path)
    except ValueError as e:
      raise Damaged(f"{modules_path} is damaged ({e}).") from e
    for module in modules if isinstance(modules, list) else [modules]:
      if not isinstance(module, Mapping) or not isinstance(
        module.get("type"), str
      ):
        raise Damaged(
          f"{modules_path} is damaged: {module!r:.60} names no type."
        )
      kind = module["type"].rpartition(".")[2]
      if kind == "Pooling":
        pooling_folder = str(module.get("path", pooling_folder))
      elif kind == "Normalize":
        normalize = True
      elif kind not in ("Transformer", "Dropout"):
        others.append(str(module.get("path") or kind))
  # The file may come from a stranger, so its path must stay inside the folder.
  if os.path.basename(pooling_folder) != pooling_folder:
    raise UserError(
      f"{modules_path}: {pooling_folder!r} is not the name of a folder in it."
    )
  config_path = os.path.join(path, pooling_folder, model_folder.CONFIG)
  if not os.path.isfile(config_path):
    return None
  config = model_folder.read_json(config_path)
  modes = config.get("pooling_mode")
  if modes is None:
    modes = [
      name for field, name in _POOLING_MODES.items() if config.get(field)
    ]
  if isinstance(modes, str):
    modes = [modes]
  if not isinstance(modes, list) or not modes:
    raise Damaged(f"{config_path} is damaged: it names no pooling.")
  modes = [_POOLING_MODES.get(mode, str(mode)) for mode in modes]
  return {"modes": modes, "normalize": normalize, "others": others}
