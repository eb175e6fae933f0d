"""Configs: checks before anything starts, and what a restart may change."""

import inspect
import json
import math
import re
from collections.abc import Callable, Collection
from typing import Any

from bert_jax.messages import nearest
from bert_jax.weights.run_config import flatten, is_free

# Every key of a pre-training config. A section is the keyword arguments of one
# function and is checked against its signature, so a misspelt or unread key is
# an error, never a silent default.
KEYS = (
  "seed",
  "total_steps",
  "batch_size",
  "micro_batches",
  "phases",
  "init_from",
  "model",
  "objective",
  "data",
  "optimizer",
  "schedule",
  "mesh",
  "log",
  "evaluate",
  "checkpoint",
  "profile",
)
# Keys that a config may lack -> their default values.
OPTIONAL: dict[str, Any] = {
  "init_new_rows": "mean",
  "spike": {"action": "none", "factor": 2.0},
}
# A section that the objectives with a teacher need; see `teacher.read`.
TEACHER = "teacher"

# Keys of these sections that the program sets, not a config.
RESERVED = (
  "data.seed",
  "mesh.devices",
  "checkpoint.read_only",
  "spike.limit",
  "model.vocab_multiple",
  "teacher.model.vocab_multiple",
  "objective.kind",
  "objective.labels",
  "objective.padding_id",
)

# The smallest normal number of float32, and its largest.
_FLOAT32 = (2.0**-126, 2.0**128 - 2.0**104)

# Key -> the smallest allowed number. Most smaller numbers would train without
# an error, but compute something else. Keys that a config lacks are not
# checked.
AT_LEAST = {
  "data.length": 2,  # See also `SHORTEST`.
  "data.max_predictions": 1,
  "data.streams": 0,
  "total_steps": 1,
  "batch_size": 1,
  "micro_batches": 1,
  "seed": 0,
  "model.hidden": 1,
  "model.embedding_size": 1,
  "model.generator_hidden": 1,
  "model.num_layers": 1,
  "model.heads": 1,
  "model.mlp": 1,
  "model.max_positions": 1,
  "model.cell": 1,
  "model.highways": 0,
  "model.vocab_size": 1,
  "model.padding_id": 0,
  "model.unroll": 0,
  "objective.negatives": 0,
  "mesh.fsdp": 1,
  "mesh.tensor": 1,
  "log.every": 0,
  "evaluate.every": 0,
  "evaluate.examples": 0,
  "checkpoint.every": 0,
  "checkpoint.keep": 1,
  "checkpoint.keep_best": 0,
  "profile.start": 0,
  "profile.steps": 0,
}
# Builder -> the fewest tokens of a row, for rows that are not [CLS] A [SEP] B
# [SEP] (5 tokens) but <s> A </s> or text alone.
SHORTEST = {"full_sentences": 3, "doc_sentences": 3, "lm": 2, "elmo": 2}
# Keys that every config must have. Other keys that a section lacks have the
# defaults of the function that reads the section.
REQUIRED = (
  "model.remat",
  "objective.name",
  "data.path",
  "log.every",
  "evaluate.every",
  "checkpoint.every",
)
POSITIVE = (
  "schedule.peak",
  "optimizer.epsilon",
  "spike.factor",
  "optimizer.initial_accumulator",
  "optimizer.gradient_scale",
  "optimizer.layer_decay",
  "data.epochs",
  "model.initializer_range",
  "model.clip",
  "objective.temperature",
  "data.mask_rate",
)
NOT_NEGATIVE = (
  "objective.discriminator_weight",
  "objective.kl_weight",
  "objective.mlm_weight",
  "objective.cosine_weight",
  "objective.attention_weight",
  "objective.hidden_weight",
  "objective.embedding_weight",
  "objective.lm_weight",
  "data.smoothing",
  "optimizer.weight_decay",
  "optimizer.clip_norm",
)
BELOW_ONE = (
  "optimizer.b1",
  "optimizer.b2",
  "model.dropout",
  "model.attention_dropout",
  "objective.head_dropout",
)
# None takes that of the data.
OF_DATA = ("model.vocab_size", "model.padding_id")
# The same where the data are a task's: see tasks/batches.py.
OF_TASK = (
  "total_steps",
  "evaluate.every",
  "checkpoint.every",
  "model.dropout",
  "model.attention_dropout",
  "objective.head_dropout",
)
# Objectives whose data are a task's.
TASKS = ("finetune", "tinybert_task")
# Without a loss scale, gradients vanish in float16.
DTYPES = ("float32", "bfloat16")
# Builder -> the task of its pairs; metrics have this name.
PAIR_NAMES = {"bert_pairs": "nsp", "albert_pairs": "sop"}
# Builders of masked rows; those of two segments first.
SEGMENTED = (*PAIR_NAMES, "electra_segments")
MASKED = (*SEGMENTED, "full_sentences", "doc_sentences")
# Builders whose rows have no masks; each serves the objective of the same name.
BARE = ("lm", "elmo")
# Objective -> the builders whose rows it can train on.
ROWS = {name: (name,) for name in BARE}
ROWS |= dict.fromkeys(("mlm", "electra", "distil", "tinybert"), MASKED)
# A larger seed would lose its upper bits on the way to jax, whose counts of
# steps and rows are int32.
BELOW = {"seed": 2**32, "total_steps": 2**31, "batch_size": 2**31}


def check_keys(config: dict[str, Any]) -> None:
  """Raises ValueError at a key that is unknown or missing, or a bad number."""
  for key in config:
    if key not in (*KEYS, *OPTIONAL, TEACHER):
      hint = nearest(key, (*KEYS, *OPTIONAL))
      raise ValueError(f"config.{key} is not a key{hint}")
  for key in KEYS:
    if key not in config:
      raise ValueError(f"config.{key} is missing.")
  sections = (*KEYS[KEYS.index("model") :], "phases", "spike", TEACHER)
  for key in sections:
    if not isinstance(config.get(key, {}), dict):
      raise ValueError(f"config.{key}={config[key]!r}: must be a section.")
  for name, section in config["phases"].items():
    if not isinstance(section, dict):
      raise ValueError(f"config.phases.{name}={section!r}: must be a section.")
  flat = flatten(config)
  required = REQUIRED
  if not is_task(config):
    required += ("model.family", "model.variant", "data.builder")
    required += ("evaluate.examples",)
  for key in required:
    if key not in flat:
      raise ValueError(f"config.{key} is missing.")
  for key in RESERVED:
    if key in flat:
      raise ValueError(f"config.{key} is not a key; the program sets it.")
  check_numbers(flat, OF_DATA + (OF_TASK if is_task(config) else ()))
  dtype = flat.get("model.dtype", DTYPES[0])
  if dtype not in DTYPES:
    raise ValueError(
      f"config.model.dtype={dtype!r}: not one of {', '.join(DTYPES)}."
    )
  check_rows(flat)
  check_pair_name(flat)
  check_streams(flat)


def is_task(config: dict[str, Any]) -> bool:
  """Returns True if a run fine-tunes: its data are the rows of a task."""
  return config["objective"].get("name") in TASKS


def check_streams(flat: dict[str, Any]) -> None:
  """Raises ValueError unless every stream of text is one row of every batch."""
  streams, rows = flat.get("data.streams", 0), flat["batch_size"]
  if streams not in (0, rows):
    raise ValueError(
      f"config.data.streams={streams}: must be batch_size={rows}, or 0 for"
      " windows of text in any order."
    )
  phases = any(key.startswith("phases.") for key in flat)
  if streams and (flat["micro_batches"] > 1 or phases):
    raise ValueError(
      f"config.data.streams={streams}: each goes on from batch to batch; set"
      " micro_batches=1 and phases={}."
    )


def check_rows(flat: dict[str, Any]) -> None:
  """Raises ValueError if an objective lacks what a builder does not make."""
  name, builder = flat.get("objective.name"), flat.get("data.builder")
  if name not in ROWS or builder not in (*MASKED, *BARE):
    return  # Unknown ones have a sentence of their own.
  choice, more = ROWS[name], ""
  if flat.get("model.family") == "roberta":  # It knows one segment.
    choice = [one for one in choice if one not in SEGMENTED]
  elif name == "mlm" and flat.get("objective.pairs", True):
    more = ", or set objective.pairs=False" if builder in choice else ""
    choice = PAIR_NAMES
  if builder not in choice:
    raise ValueError(
      f"config.data.builder={builder}: objective {name} cannot train"
      f" {flat.get('model.family')} on its rows; choose {' or '.join(choice)}"
      f"{more}."
    )


def check_pair_name(flat: dict[str, Any]) -> None:
  """Raises ValueError if the pairs' loss would bear another label's name."""
  pairs = flat.get("objective.pairs", True)
  if flat.get("objective.name") != "mlm" or not pairs:
    return
  builder, name = flat.get("data.builder"), flat.get("objective.pair_name")
  for known, made in PAIR_NAMES.items():
    if builder == known and (name or "nsp") != made:
      raise ValueError(
        f"config.objective.pair_name={name!r}: the labels that data.builder"
        f"={builder} makes are {made!r}; set objective.pair_name={made}, or"
        " choose another builder."
      )


def check_numbers(
  flat: dict[str, Any], open_keys: Collection[str] = OF_DATA
) -> None:
  """Raises ValueError at a number out of its range, or that is no number.

  Args:
    flat: of `flatten`.
    open_keys: may be None: the program fills them in.
  """
  for key, value in flat.items():
    _check_float32(key, value)
  shortest = SHORTEST.get(flat.get("data.builder"), 5)
  least_of = AT_LEAST | {"data.length": shortest}
  rules = [
    (key, int, f"at least {least}", lambda x, least=least: x >= least)
    for key, least in least_of.items()
  ]
  rules += [
    (key, int, f"below 2**{end.bit_length() - 1}", lambda x, end=end: x < end)
    for key, end in BELOW.items()
  ]
  real = (int, float)
  rules += [(k, real, "above 0", lambda x: x > 0) for k in POSITIVE]
  rules += [(k, real, "at least 0", lambda x: x >= 0) for k in NOT_NEGATIVE]
  rules += [(k, real, "in [0, 1)", lambda x: 0 <= x < 1) for k in BELOW_ONE]
  for name, kind, words, test in rules:
    for key, value in flat.items():
      # A phase has keys of `data`, a teacher those of `model`.
      usual = re.sub(r"^phases\.[^.]*\.", "data.", key)
      usual = usual.removeprefix("teacher.")
      if usual != name or (value is None and usual in open_keys):
        continue
      if isinstance(value, bool) or not isinstance(value, kind):
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"config.{key}={value!r}: must be {what}.")
      if math.isinf(value):
        words = f"{words}, and finite"
      if not test(value) or math.isinf(value):
        raise ValueError(f"config.{key}={value!r}: must be {words}.")


def _check_float32(key: str, value: Any) -> None:
  """Raises ValueError if float32 turns the number into 0 or infinity."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    return
  size = abs(value)
  if isinstance(value, float) and (math.isinf(size) or math.isnan(size)):
    return  # The rules of each key check infinity and NaN.
  if size > _FLOAT32[1] or 0 < size < _FLOAT32[0]:
    raise ValueError(
      f"config.{key}={value!r:.40}: must be 0 or between {_FLOAT32[0]:.2g} and"
      f" {_FLOAT32[1]:.2g}, because the program computes in float32."
    )


def call(
  section: str,
  function: Callable[..., Any],
  *args: Any,
  **arguments: Any,
) -> Any:
  """Calls a function with a config section as its keyword arguments.

  Raises:
    ValueError: the section has a key that the function has not, or lacks one.
  """
  signature = inspect.signature(function)
  try:
    bound = signature.bind(*args, **arguments)
  except TypeError as e:
    parameters = signature.parameters
    for key in arguments:
      if key not in parameters:
        hint = nearest(key, list(parameters)[len(args) :])
        raise ValueError(f"config.{section}.{key} is not a key{hint}") from e
    for key, parameter in list(parameters.items())[len(args) :]:
      if key not in arguments and parameter.default is parameter.empty:
        if parameter.kind is parameter.VAR_KEYWORD:
          continue
        raise ValueError(f"config.{section}.{key} is missing.") from e
    raise ValueError(f"config.{section}: {e}.") from e
  return function(*bound.args, **bound.kwargs)


def section_of(config: Any, path: str) -> Any:
  """Returns the section of a config that a path like "teacher.model" names."""
  for name in path.split("."):
    config = config[name]
  return config


def check_types(config: dict[str, Any], defaults: dict[str, Any]) -> None:
  """Raises ValueError where an override changed a value's type.

  ml_collections lets `True` into an int field, and anything into a field that
  was None once.
  """
  old = flatten(defaults)
  for key, value in flatten(config).items():
    before = old.get(key)
    if before is None or value is before:
      continue
    if isinstance(value, bool) != isinstance(before, bool) or not isinstance(
      value, (int, float) if isinstance(before, float) else type(before)
    ):
      raise ValueError(
        f"config.{key}={value!r}: must be of type {type(before).__name__}."
      )


def check_restart(
  old: dict[str, Any], new: dict[str, Any], defaults: dict[str, Any]
) -> list[str]:
  """Compares a run's config with the one it is started again with.

  Args:
    old: of the run's folder.
    new: that it is started with.
    defaults: of `building.defaults`. A key that the old config lacks, being
      older than the key, had its default.

  Returns:
    A line for each key that differs and may.

  Raises:
    ValueError: keys differ that change what the run computes; all are named.
  """
  old, new, defaults = (
    flatten(json.loads(json.dumps(part))) for part in (old, new, defaults)
  )
  old = {key: defaults[key] for key in defaults.keys() & new.keys()} | old
  changed = [
    key
    for key in sorted(old.keys() | new.keys())
    if old.get(key) != new.get(key)
  ]
  lines = [
    f"config.{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in changed
  ]
  refused = [
    line for key, line in zip(changed, lines, strict=True) if not is_free(key)
  ]
  if refused:
    raise ValueError(
      f"the run in this folder has another config: {'; '.join(refused)}. These"
      " keys change what the run computes; undo them, or start in a new"
      " --workdir (with --config.init_from=OLD_WORKDIR to go on from its"
      " parameters)."
    )
  return lines
