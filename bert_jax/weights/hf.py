"""Reads and writes folders of Hugging Face's transformers."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.messages import DamagedFile, UserError, note
from bert_jax.models import from_config
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

# (family, task) -> parameters that the classes of transformers do not have.
# These parameters must be zero.
ZERO_PARAMETERS = {
  ("gpt", "sequence_classification"): ("classifier/dense/bias",)
}


def read(path: str, family: str, tower: str | None = None) -> Weights:
  """Reads a folder of transformers: config, weights, tokenizer.

  Args:
    path: the folder. If it has the folders `generator` and `discriminator`,
      these are the two towers of an ELECTRA.
    family: a key of `hf_names.NAMINGS`.
    tower: "generator", "discriminator" or "both"; by default each tower that
      the folder has.

  Raises:
    UserError: the folder cannot be read as a model. The message is one
      sentence.
  """
  if family not in hf_names.NAMINGS:
    raise UserError(
      f"family={family}: Hugging Face's files can be read for these families:"
      f" {', '.join(hf_names.NAMINGS)}."
    )
  folder = epath.Path(path)
  if not folder.is_dir():
    raise UserError(f"there is no folder {path}.")
  has_both_towers = _has_towers(folder)
  generator_discriminator.check_tower_name(family, tower)
  if has_both_towers and tower in (None, "both") and family == "electra":
    towers = {
      tower_name: _read_single_model(str(folder / tower_name), family)
      for tower_name in generator_discriminator.TOWERS
    }
    weights = generator_discriminator.join_towers(towers, path)
  else:
    tower_path = str(folder / tower) if has_both_towers and tower else path
    weights = _read_single_model(tower_path, family)
    generator_discriminator.check_is_tower(weights, tower, tower_path)
  tokenizer_files = (
    weights.tokenizer_files or model_folder.read_tokenizer_files(path)
  )
  return weights._replace(tokenizer_files=tokenizer_files)


def _has_towers(folder: epath.Path) -> bool:
  """Returns True if a folder has a folder for each of ELECTRA's towers."""
  return all(
    (folder / tower).is_dir() for tower in generator_discriminator.TOWERS
  )


def find_family(path: str) -> str:
  """Finds the family of a transformers folder from its config or its arrays.

  Raises:
    UnknownFamily: neither the config nor the arrays identify a family.
    UserError: a file is damaged.
  """
  if _has_towers(epath.Path(path)):
    return "electra"
  config_path = str(epath.Path(path) / model_folder.CONFIG_FILE)
  config = model_folder.read_json(config_path)
  try:
    return hf_tasks.family_from_config(config, config_path)
  except hf_tasks.UnknownFamily:
    if config.get("model_type") or config.get("architectures"):
      raise
    arrays, weights_path = hf_files.read(path)
    family = hf_tasks.family_from_arrays(arrays)
    if family is None:
      raise
  note(
    f"note: {config_path} names no family; by the names in {weights_path} the"
    f" model is of {family}."
  )
  return family


def _find_task(
  config: dict[str, Any],
  family: str,
  array_names: Collection[str],
  config_path: str,
) -> tuple[str, bool]:
  """Finds the task of a file's head from the config and the array names.

  Args:
    config: the content of config.json.
    family: a key of `hf_names.NAMINGS`.
    array_names: the names of all arrays.
    config_path: the path of config.json, for messages.

  Returns:
    The task, and whether it is "pretraining" with a head for pairs.

  Raises:
    UserError: the config and the arrays' names do not identify a task.
  """
  task_by_class, model_types = (
    hf_tasks.task_by_class(family),
    hf_tasks.model_types(family),
  )
  model_type = config.get("model_type")
  if model_type not in (None, *model_types):
    raise UserError(
      f"{config_path}: model_type is {model_type!r}, but {family} has"
      f" {' or '.join(map(repr, model_types))}; pass the right family."
    )
  has_pair_head = hf_tasks.file_has_pair_head(family, array_names)
  architectures = config.get("architectures")
  if architectures:
    if not isinstance(architectures, list) or architectures[0] not in [
      *task_by_class
    ]:
      raise UserError(
        f"{config_path}: architectures is {architectures}; for {family} it can"
        f" be one of {', '.join(task_by_class)}."
      )
    has_pair_head |= architectures[0].endswith("ForPreTraining")
    tasks = [task_by_class[architectures[0]]]
  else:
    tasks = hf_tasks.guess_task(family, array_names)
  if len(tasks) != 1:
    class_names = [hf_tasks.class_of(family, task) for task in tasks]
    raise UserError(
      f"{config_path} has no architectures, and the arrays could be of class"
      f" {' or '.join(class_names) or 'unknown'}; write the class into"
      " architectures."
    )
  return tasks[0], has_pair_head and tasks[0] == "pretraining"


def _resolve_tied_arrays(
  arrays: dict[str, np.ndarray], family: str, prefix: str, file: str
) -> None:
  """Checks that tied arrays are equal, and adds an original that is missing.

  Args:
    arrays: name -> array. If only the copy is there, it is also added under the
      original's name.
    family: a key of `hf_names.NAMINGS`.
    prefix: the prefix of the encoder's arrays.
    file: the file of the arrays, for messages.

  Raises:
    UserError: a copy differs from its original.
  """
  tied_arrays = hf_names.NAMINGS[family].tied_arrays
  for copy_name, (takes_prefix, name_without_prefix) in tied_arrays.items():
    original_name = (
      prefix + name_without_prefix if takes_prefix else name_without_prefix
    )
    if copy_name not in arrays:
      continue
    if original_name not in arrays:
      arrays[original_name] = arrays[copy_name]
    elif not np.array_equal(arrays[copy_name], arrays[original_name]):
      raise UserError(
        f"{file}: {copy_name} differs from {original_name}. Here the two are"
        " tied, so a model with a separate decoder cannot be converted."
      )


def _read_config(
  config: dict[str, Any],
  family: str,
  array_names: Collection[str],
  config_path: str,
) -> tuple[dict[str, Any], list[str]]:
  """Returns a converted folder's config, and notes on absent fields.

  The config's key `source` is still empty.

  Args:
    config: the content of transformers' config.json.
    family: a key of `hf_names.NAMINGS`.
    array_names: the names of all arrays.
    config_path: the path of config.json, for messages.
  """
  task, has_pair_head = _find_task(config, family, array_names, config_path)
  fields = hf_config.HfFields(config, family, config_path)
  model = hf_config.read_model(fields, task)
  labels: list[str] | None = None
  problem: str | None = None
  notes: list[str] = []
  if task in hf_config.TASKS_WITH_LABELS:
    labels, notes = hf_config.read_labels(config, config_path)
  if task == "sequence_classification":
    problem = hf_config.problem_of(config, len(labels or ()), config_path)
  head = hf_config.read_head(
    fields, task, model, len(labels or ()), has_pair_head
  )
  prefix = hf_tasks.encoder_prefix(family, array_names)
  folder_config = model_folder.make_config(
    family,
    task,
    model,
    head=head,
    labels=labels,
    problem=problem,
    pooler=hf_tasks.has_pooler(
      family, task, prefix, has_pair_head, array_names
    ),
  )
  return folder_config, notes + fields.notes()


def _read_single_model(path: str, family: str) -> Weights:
  config_path = str(epath.Path(path) / model_folder.CONFIG_FILE)
  hf_fields = model_folder.read_json(config_path)
  arrays, weights_path = hf_files.read(path)
  prefix = hf_tasks.encoder_prefix(family, arrays)
  _resolve_tied_arrays(arrays, family, prefix, weights_path)
  config, notes = _read_config(hf_fields, family, arrays, config_path)
  task = config["task"]
  try:
    shapes = from_config.param_shapes(config)
  except ValueError as e:
    raise UserError(f"{config_path}: {e}") from e
  zero_arrays = {
    name: np.zeros(shapes.pop(name), np.float32)
    for name in ZERO_PARAMETERS.get((family, task), ())
  }
  skipped_patterns = hf_tasks.skipped_patterns(family, task, prefix)
  rules = hf_tasks.rules_of(config, prefix)
  used_names = set(mapping.shapes_in_file(rules, shapes))
  dtype = hf_files.common_dtype(
    {
      array_name: arrays[array_name]
      for array_name in used_names & arrays.keys()
    },
    weights_path,
  )
  class_name = hf_tasks.class_of(
    family, task, config["head"].get("pairs", False)
  )
  params = mapping.to_params(
    rules, arrays, shapes, skipped_patterns, f"{weights_path} as {class_name}"
  )
  config["source"] = {
    "format": "hf",
    "dtype": dtype,
    "skipped": sorted(arrays.keys() - used_names),
    "config": hf_config.remaining_fields(hf_fields, family, task),
  }
  if pooling := read_pooling(path):
    config["source"]["pooling"] = pooling
  for config_note in notes:
    note(f"note: {config_note}.")
  return Weights(
    config, params | zero_arrays, model_folder.read_tokenizer_files(path)
  )


def write(path: str, weights: Weights, tower: str | None = None) -> None:
  """Writes a folder that transformers opens.

  Args:
    path: the new folder. If the model has both towers of ELECTRA, each tower
      gets a folder in it.
    weights: the model. Its `source` has the fields and dtype to write back.
    tower: "generator", "discriminator" or "both"; by default each tower of
      the model.

  Raises:
    UserError: `path` exists and is not empty, or transformers has no such
      model. Nothing is written.
  """
  model_folder.check_new_folder(path)
  family, task = weights.config["family"], weights.config["task"]
  if family not in hf_names.NAMINGS:
    raise UserError(
      f"transformers has no family {family}, so it cannot open this model."
    )
  generator_discriminator.check_tower_name(family, tower)
  extract_tower = generator_discriminator.extract_tower
  has_both_towers = family == "electra" and task == "pretraining"
  if has_both_towers and tower in (None, "both"):
    hf_models = {
      tower_name: _to_hf(extract_tower(weights, tower_name))
      for tower_name in generator_discriminator.TOWERS
    }
  elif has_both_towers and tower:
    hf_models = {"": _to_hf(extract_tower(weights, tower))}
  else:
    generator_discriminator.check_is_tower(weights, tower, "the model")
    hf_models = {"": _to_hf(weights)}
  with model_folder.new_folder(path) as temporary:
    for name, (config, arrays) in hf_models.items():
      folder = epath.Path(temporary) / name
      folder.mkdir(parents=True, exist_ok=True)
      # transformers refuses a safetensors file whose header has no "format".
      model_folder.write_files(
        str(folder),
        config,
        arrays,
        weights.tokenizer_files,
        metadata={"format": "pt"},
      )


def _to_hf(weights: Weights) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Returns a model's config and arrays as transformers stores them."""
  config, arrays = weights.config, dict(weights.arrays)
  family, task = config["family"], config["task"]
  if task == "span" and "beam" in config["head"]:
    raise UserError(
      "transformers has no place for a head that finds the end of an answer"
      " from its start (objective.span_head=joint); `export` keeps the head."
    )
  dtype = config["source"].get("dtype", "float32")
  hf_fields = hf_config.make_config(config, weights.tokenizer_files, dtype)
  for name in ZERO_PARAMETERS.get((family, task), ()):
    if arrays.pop(name).any():
      raise UserError(
        f"{name} is not zero, but transformers' {hf_fields['architectures'][0]}"
        " has no such parameter, so it cannot hold this model."
      )
  prefix = "" if task == "encoder" else hf_names.NAMINGS[family].prefix
  hf_arrays = mapping.to_arrays(hf_tasks.rules_of(config, prefix), arrays)
  return hf_fields, {
    name: array.astype(hf_files.FLOAT_DTYPES[dtype])
    for name, array in hf_arrays.items()
  }


# The file and the folder in which sentence-transformers describes a pooling.
MODULES_FILE, POOLING_FOLDER = "modules.json", "1_Pooling"
# Field of a pooling's config in the old format -> the pooling's name in the new
# format.
_POOLING_MODES = {
  "pooling_mode_cls_token": "cls",
  "pooling_mode_mean_tokens": "mean",
  "pooling_mode_max_tokens": "max",
  "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
  "pooling_mode_weightedmean_tokens": "weightedmean",
  "pooling_mode_lasttoken": "lasttoken",
}


def read_pooling(path: str) -> dict[str, Any] | None:
  """Reads how a model of sentence-transformers makes one vector from a text.

  Args:
    path: a sentence-transformers folder, or any other folder.

  Returns:
    None if the folder has no pooling. Otherwise a dict with these entries:
    "modes": names of poolings, whose vectors are concatenated.
    "normalize": True if the vectors are divided by their norm.
    "unsupported": names of modules that are not supported here.

  Raises:
    DamagedFile: a file is damaged.
    UserError: modules.json names a folder outside of `path`.
  """
  folder = epath.Path(path)
  pooling_folder, normalize, unsupported = POOLING_FOLDER, False, []
  modules_path = folder / MODULES_FILE
  if modules_path.is_file():
    try:
      modules = files.read_json(str(modules_path))
    except ValueError as e:
      raise DamagedFile(f"{modules_path} is damaged ({e}).") from e
    for module in modules if isinstance(modules, list) else [modules]:
      if not isinstance(module, Mapping) or not isinstance(
        module.get("type"), str
      ):
        raise DamagedFile(
          f"{modules_path} is damaged: {module!r:.60} names no type."
        )
      module_type = module["type"].rpartition(".")[2]
      if module_type == "Pooling":
        pooling_folder = str(module.get("path", pooling_folder))
      elif module_type == "Normalize":
        normalize = True
      elif module_type not in ("Transformer", "Dropout"):
        unsupported.append(str(module.get("path") or module_type))
  # The file may come from a stranger, so it may not lead out of the folder.
  if not model_folder.is_file_name(pooling_folder):
    raise UserError(
      f"{modules_path}: {pooling_folder!r} is not the name of a folder in it."
    )
  config_path = folder / pooling_folder / model_folder.CONFIG_FILE
  if not config_path.is_file():
    return None
  config = model_folder.read_json(str(config_path))
  modes = config.get("pooling_mode")
  if modes is None:
    modes = [
      name for field, name in _POOLING_MODES.items() if config.get(field)
    ]
  if isinstance(modes, str):
    modes = [modes]
  if not isinstance(modes, list) or not modes:
    raise DamagedFile(f"{config_path} is damaged: it names no pooling.")
  modes = [_POOLING_MODES.get(mode, str(mode)) for mode in modes]
  return {"modes": modes, "normalize": normalize, "unsupported": unsupported}
