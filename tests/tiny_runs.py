"""Shrinks published configs to runs of seconds; reads metrics.jsonl."""

import pathlib

import jax
import numpy as np
from tiny_teachers import write_teacher

from bert_jax.cli import configs
from bert_jax.training import config as config_lib
from bert_jax.training import logging

ROOT = str(pathlib.Path(__file__).parents[1])

# The path of a config file, and the name of a config in it.
BERT = f"{ROOT}/configs/bert.py:base"

SHRUNK_SIZES = dict(hidden=128, num_layers=2, heads=2, mlp=512)

SIZES_BY_FAMILY = {
  "albert": dict(embedding_size=16),
  "electra": dict(embedding_size=16, generator_hidden=64),
}


def shrink_config(config, folder):
  """Returns a config with a tiny model and 4 steps; changes `config`, too."""
  model, data_section = config["model"], config["data"]
  model |= (
    SHRUNK_SIZES
    | SIZES_BY_FAMILY.get(model["family"], {})
    | dict(dtype="float32")
  )
  data_section |= dict(path=folder, cased=False)
  for section in list(config["phases"].values()) or [data_section]:
    section["length"] = 32
    if "max_predictions" in section:
      section["max_predictions"] = 5
  config["checkpoint"]["every"] = config["log"]["every"] = 2
  config["evaluate"] |= dict(every=2, examples=16)
  if "teacher" in config:
    family = config["teacher"]["model"]["family"]
    path = str(pathlib.Path(folder).parent / f"t{model['max_positions']}")
    sizes = SHRUNK_SIZES | dict(max_positions=model["max_positions"])
    sizes |= {"padding_id": 0} if family == "roberta" else {}
    if not pathlib.Path(path).exists():
      write_teacher(path, folder, family, **sizes)
    config["teacher"] = dict(
      path=path, model=sizes | dict(family=family, variant="base")
    )
    if "layers" in config["objective"]:
      config["objective"]["layers"] = (1, 0)
  return config | dict(total_steps=4, batch_size=8, micro_batches=1)


TOTAL_STEPS, HALF_STEPS = 8, 4

# Values that `tiny_config` sets: these in every config, and those of
# EXTRA_VALUES in the config with this name.
TINY_VALUES = {
  "total_steps": TOTAL_STEPS,
  "batch_size": 4,
  "micro_batches": 1,
  "data.length": 32,
  "data.max_predictions": 6,
  "model.max_positions": 34,
  "model.hidden": 16,
  "model.num_layers": 2,
  "model.heads": 2,
  "model.mlp": 32,
  "model.dtype": "float32",
  "model.remat": False,
  "schedule.peak": 1e-2,
  "schedule.warmup": 0.25,
  "log.every": 1,
  "evaluate.every": HALF_STEPS,
  "evaluate.examples": 16,
  "checkpoint.every": HALF_STEPS,
  "data.cased": False,
}

ALBERT_VALUES = {"model.embedding_size": 8, "data.max_sequences": 3}

ALBERT_VALUES |= {"micro_batches": 2}

ELECTRA_VALUES = {"model.embedding_size": 8, "model.generator_hidden": 8}

# The masks are static: each example has two copies with fixed masks. The
# padding id is that of the tests' vocabulary.
ROBERTA_VALUES = {"model.padding_id": 0, "data.static_masks": 2}

EXTRA_VALUES = {
  "electra:small": ELECTRA_VALUES,
  "gpt:gpt1": {"data.max_predictions": None},
  "albert:base_v1": ALBERT_VALUES,
  "spanbert:base": {},
  "roberta:base": ROBERTA_VALUES,
}


def set_values(config, values):
  """Sets values of a config by dotted keys; skips values that are None."""
  for key, setting in values.items():
    section = config
    *section_names, name = key.split(".")
    for section_name in section_names:
      section = section[section_name]
    if setting is not None:
      section[name] = setting


def tiny_config(name, path):
  """Returns a published config at a small size."""
  config = configs.load_defaults(name)
  set_values(config, TINY_VALUES | EXTRA_VALUES[name] | {"data.path": path})
  config_lib.parse(config)
  return config


def arrays_of_state(state):
  """Returns {path: array} of a train state."""
  return {
    jax.tree_util.keystr(path): np.asarray(array)
    for path, array in jax.tree_util.tree_leaves_with_path(state)
  }


def untimed_rows(workdir):
  """Returns the lines of metrics.jsonl without speeds and waiting times."""
  timing_keys = ("steps_per_second", "tokens_per_second", "mfu")
  timing_keys += ("data_wait", "checkpoint_wait")
  lines = logging.read_rows(f"{workdir}/metrics.jsonl")
  return [
    {key: value for key, value in line.items() if key not in timing_keys}
    for line in lines
  ]


def two_step_config(folder):
  """Returns the quickstart's config with two steps and a tiny model."""
  config = configs.load_defaults("quickstart")
  config["model"] |= dict(variant="tiny", unroll=1)
  config["data"] |= dict(path=folder, length=32, max_predictions=5)
  config["evaluate"] |= dict(every=2, examples=8)
  config["checkpoint"]["every"] = config["log"]["every"] = 2
  return config | dict(total_steps=2, batch_size=4, phases={})


def distillation_config(folders, name="distilbert:base", **changes):
  """Returns a config of distillation at a small size.

  Args:
    folders: (the prepared folder, the teacher's folder).
    name: the name of the published config.
    **changes: values to set, by dotted keys.
  """
  config = configs.load_defaults(name)
  prepared_folder, teacher_folder = folders
  changes = {
    "data.path": prepared_folder,
    "teacher.path": teacher_folder,
    "teacher.model.hidden": 16,
    "teacher.model.num_layers": 4,
    "teacher.model.heads": 2,
    "teacher.model.mlp": 32,
    "objective.layers": (0, 3),
  } | changes
  set_values(config, TINY_VALUES | changes)
  config_lib.parse(config)
  return config
