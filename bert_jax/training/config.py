"""A run's config as frozen dataclasses, and what a restart may change.

`parse` turns the dict of a config file into a `Run`, one dataclass a section.
Each field says beside its name which values it may have; an unknown key, a
wrong type or a value out of range is one sentence. A field whose default is
None has the default of the function that the section's docstring names.
"""

import dataclasses
import inspect
import json
import math
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bert_jax.messages import UserError, nearest
from bert_jax.weights.run_config import flatten, is_free

T = TypeVar("T")
# Sections that a config may lack -> their default values.
OPTIONAL: dict[str, Any] = {
  "init_new_rows": "mean",
  "spike": {"action": "none", "factor": 2.0},
}
# The smallest normal number of float32, and its largest.
_FLOAT32 = (2.0**-126, 2.0**128 - 2.0**104)
# Without a loss scale, gradients vanish in float16.
DTYPES = ("float32", "bfloat16")
# Builder -> the fewest tokens of a row. Rows are [CLS] A [SEP] B [SEP], 5
# tokens, <s> A </s> or text alone.
SHORTEST = {"full_sentences": 3, "doc_sentences": 3, "lm": 2, "elmo": 2}
# Objectives whose data are a task's.
TASKS = ("finetune", "tinybert_task")
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


def _whole(least: int, **options: Any) -> Any:
  """A field for a whole number of at least `least`; see `_field`.

  Most smaller numbers would train without an error, but compute something else.
  """
  return _field(int, least=least, **options)


def _positive(**options: Any) -> Any:
  """A field for a number above 0; see `_field`."""
  return _field(float, above=0, **options)


def _not_negative(**options: Any) -> Any:
  """A field for a number of at least 0; see `_field`."""
  return _field(float, least=0, **options)


def _share(**options: Any) -> Any:
  """A field for a number in [0, 1); see `_field`."""
  return _field(float, share=True, **options)


def _field(kind: type, default: Any = dataclasses.MISSING, **rules: Any) -> Any:
  """A field of a section.

  Args:
    kind: int, float (a whole number is one too), bool, str or dict.
    default: the value if a config lacks the key; without one it is an error.
    **rules: `least`, `above`, `below`: bounds of a number. `share`: True for a
      number in [0, 1). `choices`: the values that it may have. `open`: "data"
      if the key may be None, which leaves the value to the data; "task" if it
      may where the data are a task's.
  """
  return dataclasses.field(default=default, metadata={"kind": kind, **rules})


@dataclasses.dataclass(frozen=True)
class Mesh:
  """How devices split the work; see `sharding.make_mesh`."""

  data: int = _field(int, -1)
  fsdp: int = _whole(1, default=1)
  tensor: int = _whole(1, default=1)


@dataclasses.dataclass(frozen=True)
class Log:
  """Steps between two rows of metrics.jsonl; 0 for none."""

  every: int = _whole(0)


@dataclasses.dataclass(frozen=True)
class Evaluate:
  """Steps between two evaluations (0 for none), and held-out examples (0: all).

  A task is evaluated on its whole splits.
  """

  every: int = _whole(0, open="task")
  examples: int = _whole(0, default=0)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """Steps between two checkpoints (0: the end alone), and how many are kept."""

  every: int = _whole(0, open="task")
  keep: int = _whole(1, default=2)
  keep_best: int = _whole(0, default=1)


@dataclasses.dataclass(frozen=True)
class Profile:
  """The first step that is traced, and the number of them; 0 for none."""

  start: int = _whole(0)
  steps: int = _whole(0)


@dataclasses.dataclass(frozen=True)
class Spike:
  """What is done at a loss that is too high; see `logging.Spikes`."""

  action: str = _field(str, "none")
  factor: float = _positive(default=2.0)


@dataclasses.dataclass(frozen=True)
class Schedule:
  """See `optim.build_schedule`."""

  name: str = _field(str)
  peak: float = _positive()
  warmup: float = _field(float)
  decay: float | None = _field(float, None)


@dataclasses.dataclass(frozen=True)
class Adam:
  """See `optim.build_optimizer`."""

  name: str = _field(str)
  b1: float = _share()
  b2: float = _share()
  epsilon: float = _positive()
  weight_decay: float = _not_negative()
  clip_norm: float = _not_negative()
  layer_decay: float | None = _positive(default=None)
  layer_rule: str | None = _field(str, None)


@dataclasses.dataclass(frozen=True)
class Adagrad:
  """See `optim.build_adagrad`."""

  name: str = _field(str)
  initial_accumulator: float = _positive()
  gradient_scale: float = _positive()
  clip_norm: float = _not_negative()


@dataclasses.dataclass(frozen=True)
class Phase:
  """A section of `phases`.

  Attributes:
    fraction: the share of `total_steps`; those of all phases add up to 1.
    length: tokens in a row.
    batch_scale: times `batch_size`, a whole number of rows.
    micro_scale: times `micro_batches`.
    max_predictions: prediction slots in a row; None where nothing is hidden.
    mask_rate: share of the tokens that is hidden in this phase; None takes
      `data.mask_rate`.
  """

  fraction: float = _field(float)
  length: int = _field(int)
  batch_scale: float = _field(float)
  micro_scale: int = _whole(1)
  max_predictions: int | None = _whole(1, default=None)
  mask_rate: float | None = _positive(default=None)


@dataclasses.dataclass(frozen=True)
class TaskData:
  """The data of a task; see `batches.open_data`."""

  path: str = _field(str)
  train: str | None = _field(str, None)
  validation: str | None = _field(str, None)
  epochs: float | None = _positive(default=None)
  shuffle: bool | None = _field(bool, None)
  group: bool | None = _field(bool, None)
  buckets: tuple[int, ...] | None = _field(object, None)


@dataclasses.dataclass(frozen=True)
class Data:
  """The text of pre-training; `others` are options of the builder's rows."""

  RESERVED = ("seed",)

  path: str = _field(str)
  builder: str = _field(str)
  length: int | None = _field(int, None)
  max_predictions: int | None = _whole(1, default=None)
  streams: int | None = _whole(0, default=None)
  mask_rate: float | None = _positive(default=None)
  smoothing: float | None = _not_negative(default=None)
  others: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Model:
  """A family's variant, and attributes of its encoder that differ from it.

  A field that is None has the variant's value. `others` are attributes of one
  family; its `build` refuses those that it has not.
  """

  RESERVED = ("vocab_multiple",)

  remat: bool | None = _field(bool, None)
  family: str | None = _field(str, None, open="task")
  variant: str | None = _field(str, None, open="task")
  dtype: str | None = _field(str, None, choices=DTYPES)
  vocab_size: int | None = _whole(1, default=None, open="data")
  padding_id: int | None = _whole(0, default=None, open="data")
  hidden: int | None = _whole(1, default=None)
  embedding_size: int | None = _whole(1, default=None)
  generator_hidden: int | None = _whole(1, default=None)
  num_layers: int | None = _whole(1, default=None)
  heads: int | None = _whole(1, default=None)
  mlp: int | None = _whole(1, default=None)
  max_positions: int | None = _whole(1, default=None)
  cell: int | None = _whole(1, default=None)
  highways: int | None = _whole(0, default=None)
  unroll: int | None = _whole(0, default=None)
  dropout: float | None = _share(default=None, open="task")
  attention_dropout: float | None = _share(default=None, open="task")
  initializer_range: float | None = _positive(default=None)
  clip: float | None = _positive(default=None)
  others: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Objective:
  """An objective; `others` are options of it without a range.

  `kind`, `labels` and `padding_id` are those of a task; `build` sets them.
  """

  RESERVED = ("kind", "labels", "padding_id")

  name: str = _field(str)
  pairs: bool | None = _field(bool, None)
  negatives: int | None = _whole(0, default=None)
  temperature: float | None = _positive(default=None)
  discriminator_weight: float | None = _not_negative(default=None)
  kl_weight: float | None = _not_negative(default=None)
  mlm_weight: float | None = _not_negative(default=None)
  cosine_weight: float | None = _not_negative(default=None)
  attention_weight: float | None = _not_negative(default=None)
  hidden_weight: float | None = _not_negative(default=None)
  embedding_weight: float | None = _not_negative(default=None)
  lm_weight: float | None = _not_negative(default=None)
  head_dropout: float | None = _share(default=None, open="task")
  kind: str | None = _field(str, None)
  labels: tuple[str, ...] | None = _field(object, None)
  padding_id: int | None = _field(int, None)
  others: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Teacher:
  """The model that a student learns from; see `teacher.read`."""

  path: str = _field(str)
  model: Model = _field(dict)


@dataclasses.dataclass(frozen=True)
class Run:
  """A whole config.

  Attributes:
    seed: below 2**32, since jax would lose the upper bits of a larger one.
    total_steps: optimizer steps; None takes `data.epochs` of a task. Counts of
      steps and rows are int32 in jax.
    batch_size: rows of a batch on all hosts.
    micro_batches: parts that a batch is split into.
    init_from: the model to begin with; "" for none.
    init_new_rows: "mean" or "drawn"; see `start_from.VocabularyRows`.
    phases: {} for a run of one phase, or "phase1", ... -> section.
  """

  seed: int = _whole(0, below=2**32)
  total_steps: int | None = _whole(1, below=2**31, open="task")
  batch_size: int = _whole(1, below=2**31)
  micro_batches: int = _whole(1)
  phases: Mapping[str, Phase] = _field(dict)
  init_from: str = _field(str)
  model: Model = _field(dict)
  objective: Objective = _field(dict)
  data: Data | TaskData = _field(dict)
  optimizer: Adam | Adagrad = _field(dict)
  schedule: Schedule = _field(dict)
  mesh: Mesh = _field(dict)
  log: Log = _field(dict)
  evaluate: Evaluate = _field(dict)
  checkpoint: Checkpoint = _field(dict)
  profile: Profile = _field(dict)
  init_new_rows: str = _field(str, OPTIONAL["init_new_rows"])
  spike: Spike = _field(dict, Spike())
  teacher: Teacher | None = _field(dict, None)

  @property
  def is_task(self) -> bool:
    """True if the run fine-tunes: its data are the rows of a task."""
    return isinstance(self.data, TaskData)


_CLOSED = {
  "schedule": Schedule,
  "mesh": Mesh,
  "log": Log,
  "evaluate": Evaluate,
  "checkpoint": Checkpoint,
  "profile": Profile,
  "spike": Spike,
  "teacher": Teacher,
  "model": Model,
  "objective": Objective,
}


def parse(config: dict[str, Any]) -> Run:
  """Returns a config as dataclasses.

  Args:
    config: the nested dict of a config file.

  Raises:
    UserError: a key is unknown or missing, or has a value that it may not have.
  """
  _check_sections(config)
  for key, value in flatten(config).items():
    _check_float32(key, value)
  task = is_task(config)
  sections: dict[str, Any] = {
    key: section(cls, key, config[key], task)
    for key, cls in _CLOSED.items()
    if key in config
  }
  sections["data"] = section(
    TaskData if task else Data, "data", config["data"], task
  )
  sections["optimizer"] = optimizer_of(config["optimizer"])
  if "remat" not in config["model"]:
    raise UserError("config.model.remat is missing.")
  if not task:
    _check_required(config)
  if "teacher" in config:
    model = section(Model, "teacher.model", config["teacher"]["model"], True)
    sections["teacher"] = dataclasses.replace(sections["teacher"], model=model)
  sections["phases"] = types.MappingProxyType(
    {
      name: section(Phase, f"phases.{name}", values)
      for name, values in config["phases"].items()
    }
  )
  run = section(Run, "", config | sections, task)
  builder = config["data"].get("builder")
  check_length("data", builder, config["data"])
  for name, values in config["phases"].items():
    check_length(f"phases.{name}", builder, values)
  flat = flatten(config)
  check_rows(flat)
  check_pair_name(flat)
  check_streams(flat)
  return run


def options(values: Any) -> dict[str, Any]:
  """Returns {key: value} of a section, a dataclass, without those of None."""
  pairs = {
    field.name: getattr(values, field.name)
    for field in dataclasses.fields(values)
  }
  pairs |= pairs.pop("others", None) or {}
  return {key: value for key, value in pairs.items() if value is not None}


def model_of(values: Mapping[str, Any]) -> Model:
  """Returns the section `model` with these keys; it checks no value."""
  names = {field.name for field in dataclasses.fields(Model)}
  others = {key: value for key, value in values.items() if key not in names}
  fields = {key: value for key, value in values.items() if key in names}
  return Model(**fields, others=types.MappingProxyType(others))


def to_json(config: dict[str, Any], run: Run) -> dict[str, Any]:
  """Returns the content of config.json.

  Args:
    config: the config as it was given; what it leaves to a default, apart from
      `OPTIONAL`, config.json leaves out too.
    run: the config with what `build` derived.
  """
  derived: dict[str, Any] = {
    "total_steps": run.total_steps,
    "init_new_rows": run.init_new_rows,
    "spike": dataclasses.asdict(run.spike),
    "model": options(run.model),
  }
  for name in ("evaluate", "checkpoint"):
    derived[name] = config[name] | {"every": getattr(run, name).every}
  if run.is_task:
    task = {"kind": run.objective.kind, "labels": [*run.objective.labels]}
    if run.objective.padding_id is not None:
      task["padding_id"] = run.objective.padding_id
    derived["objective"] = config["objective"] | task
  if run.teacher:
    model = options(run.teacher.model)
    derived["teacher"] = config["teacher"] | {"model": model}
  return OPTIONAL | config | derived


def _check_sections(config: dict[str, Any]) -> None:
  """Raises UserError at an unknown key, or a section that is not a dict."""
  fields = {field.name: field for field in dataclasses.fields(Run)}
  for key in config:
    if key not in fields:
      raise UserError(f"config.{key} is not a key{nearest(key, fields)}")
  for key, field in fields.items():
    if key not in config:
      if field.default is dataclasses.MISSING:
        raise UserError(f"config.{key} is missing.")
    elif field.metadata["kind"] is dict:
      _check_is_section(key, config[key])
  for name, values in config["phases"].items():
    _check_is_section(f"phases.{name}", values)


def _check_is_section(key: str, value: Any) -> None:
  if not isinstance(value, dict):
    raise UserError(f"config.{key}={value!r}: must be a section.")


def _check_required(config: dict[str, Any]) -> None:
  """Raises UserError if pre-training lacks a key that a task may lack."""
  for key in ("model.family", "model.variant", "evaluate.examples"):
    name, _, option = key.partition(".")
    if option not in config[name]:
      raise UserError(f"config.{key} is missing.")


def section(
  cls: type[T], path: str, values: Mapping[str, Any], task: bool = False
) -> T:
  """Returns a section of a config as its dataclass.

  Args:
    cls: the dataclass. One with a field `others` takes any other key there.
    path: the section's name, for messages; "" for the whole config.
    values: the section.
    task: True if the data are a task's: then more keys may be None.

  Raises:
    UserError: see `parse`.
  """
  prefix = f"config.{path}." if path else "config."
  fields = {field.name: field for field in dataclasses.fields(cls)}
  others = {key: v for key, v in values.items() if key not in fields}
  for key in values:
    if key in getattr(cls, "RESERVED", ()):
      raise UserError(f"{prefix}{key} is not a key; the program sets it.")
  for key in others:
    if "others" not in fields:
      raise UserError(f"{prefix}{key} is not a key{nearest(key, fields)}")
  arguments = {}
  for key, field in fields.items():
    if key == "others":
      arguments[key] = types.MappingProxyType(others)
    elif key in values:
      _check_value(f"{prefix}{key}", values[key], field.metadata, task)
      arguments[key] = values[key]
    elif field.default is dataclasses.MISSING:
      raise UserError(f"{prefix}{key} is missing.")
  return cls(**arguments)


_KINDS = {
  int: (int, "a whole number"),
  float: ((int, float), "a number"),
  bool: (bool, "True or False"),
  str: (str, "text"),
}


def _check_value(
  key: str, value: Any, rules: Mapping[str, Any], task: bool
) -> None:
  """Raises UserError if a key has another type or a number out of its range."""
  allowed = ("data", "task") if task else ("data",)
  if rules["kind"] not in _KINDS or (
    value is None and rules.get("open") in allowed
  ):
    return
  kinds, name = _KINDS[rules["kind"]]
  is_bool = isinstance(value, bool)
  if not isinstance(value, kinds) or (is_bool and rules["kind"] is not bool):
    raise UserError(f"{key}={value!r}: must be {name}.")
  if value not in rules.get("choices", (value,)):
    raise UserError(
      f"{key}={value!r}: not one of {', '.join(rules['choices'])}."
    )
  bounds = []
  if "least" in rules:
    bounds.append((value >= rules["least"], f"at least {rules['least']}"))
  if "above" in rules:
    bounds.append((value > rules["above"], f"above {rules['above']}"))
  if "share" in rules:
    bounds.append((0 <= value < 1, "in [0, 1)"))
  if "below" in rules:
    power = rules["below"].bit_length() - 1
    bounds.append((value < rules["below"], f"below 2**{power}"))
  for fits, words in bounds:
    if math.isinf(value):
      raise UserError(f"{key}={value!r}: must be {words}, and finite.")
    if not fits:
      raise UserError(f"{key}={value!r}: must be {words}.")


def optimizer_of(values: dict[str, Any]) -> Adam | Adagrad:
  """Returns the section `optimizer` as the dataclass of its name."""
  is_adagrad = str(values.get("name", "")).startswith("adagrad")
  return section(Adagrad if is_adagrad else Adam, "optimizer", values)


def check_length(
  path: str, builder: str | None, values: dict[str, Any]
) -> None:
  """Raises UserError at rows that are too short for their builder."""
  shortest, length = SHORTEST.get(builder, 5), values.get("length")
  if length is not None and length < shortest:
    raise UserError(
      f"config.{path}.length={length}: must be at least {shortest}."
    )


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
    old: the config in the run's folder.
    new: the config that the run is started with now.
    defaults: the result of `setup.defaults`: the values of keys that the old
      config lacks, since it is older than they are.

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
