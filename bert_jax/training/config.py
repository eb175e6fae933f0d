"""Holds a run's config as frozen dataclasses, and checks a restart's config.

`parse` turns the dict of a config file into a `RunConfig`, which has one
dataclass for each section. The definition of a field says which values are
allowed. An unknown key, a wrong type or a value out of range raises a
`UserError` whose message is one sentence. If the default of a field is None,
another part of the program chooses the value; see the section's docstring.
"""

# Ruff forbids calls in the defaults of dataclasses, because all instances share
# the result. Here each call of `_field` makes a new field.
# ruff: noqa: RUF009

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from bert_jax import messages
from bert_jax.messages import UserError, did_you_mean
from bert_jax.tasks.bucket_lengths import BUCKETS
from bert_jax.weights.run_config import flatten, restart_may_change

T = TypeVar("T", bound="_Dataclass")


class _Dataclass(Protocol):
  """Describes the type of any dataclass."""

  __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


# Keys of the top level that a config file may lack -> their default values.
OPTIONAL_KEYS: dict[str, Any] = {
  "init_new_rows": "mean",
  "spike": {"action": "none", "factor": 2.0},
}
# The smallest and the largest normal number of float32.
_FLOAT32_RANGE = (2.0**-126, 2.0**128 - 2.0**104)
# The dtypes of a model's computations. float16 is not allowed: without a scaled
# loss, small gradients would become 0.
DTYPES = ("float32", "bfloat16")
# Builder -> the smallest number of tokens in a row. Rows of full_sentences and
# doc_sentences are <s> A </s>. A builder that is not in this table needs 5
# tokens, for [CLS] A [SEP] B [SEP]. A and B are at least one token each.
MIN_LENGTHS = {"full_sentences": 3, "doc_sentences": 3, "lm": 2, "elmo": 2}
# Objectives that train on the rows of a task.
TASK_OBJECTIVES = ("finetune", "tinybert_task")
# Objectives that learn from a teacher. All other objectives refuse a teacher.
TEACHER_OBJECTIVES = ("distil", "tinybert", "tinybert_task")
# Builder -> the name of its loss on pairs of segments. The metrics of this loss
# begin with the name, for example nsp_loss.
PAIR_NAMES = {"bert_pairs": "nsp", "albert_pairs": "sop"}
# Builders of rows with two segments, and all builders of masked rows.
SEGMENT_BUILDERS = (*PAIR_NAMES, "electra_segments")
MASKED_BUILDERS = (*SEGMENT_BUILDERS, "full_sentences", "doc_sentences")
# Builders whose rows have no masks. Each of these builders serves only the
# objective of the same name.
UNMASKED_BUILDERS = ("lm", "elmo")
# Objective -> the builders whose rows it can train on.
OBJECTIVE_BUILDERS: dict[str, tuple[str, ...]] = {
  name: (name,) for name in UNMASKED_BUILDERS
}
OBJECTIVE_BUILDERS |= {
  name: MASKED_BUILDERS for name in ("mlm", "electra", "distil", "tinybert")
}


def _whole_number(least: int, **options: Any) -> Any:
  """Returns a field for a whole number of at least `least`; see `_field`.

  Without this check, most numbers below `least` would raise no error, but the
  run would compute something wrong.
  """
  return _field(int, least=least, **options)


def _positive_number(**options: Any) -> Any:
  """Returns a field for a number above 0; see `_field`."""
  return _field(float, above=0, **options)


def _nonnegative_number(**options: Any) -> Any:
  """Returns a field for a number of at least 0; see `_field`."""
  return _field(float, least=0, **options)


def _share(**options: Any) -> Any:
  """Returns a field for a number in [0, 1); see `_field`."""
  return _field(float, share=True, **options)


def _field(
  value_type: type, default: Any = dataclasses.MISSING, **rules: Any
) -> Any:
  """Returns a field of a section.

  Args:
    value_type: int, float (which includes whole numbers), bool or str; dict
      for a section; object for a value that is not checked.
    default: the value if a config lacks the key. Without a default, a config
      must have the key.
    **rules: the rules that a value must fulfil.
      `least`, `above`, `below`: bounds of a number.
      `share`: True if the number must be in [0, 1).
      `choices`: the allowed values.
      `may_be_none`: "always" if the key may be None, and the data then decide
      its value; "task" if only the config of a task may have None.
  """
  return dataclasses.field(
    default=default, metadata={"type": value_type, **rules}
  )


class Section:
  """Is the base class of a config's sections, which are dataclasses.

  The program sets the keys in `RESERVED_KEYS` of a section, so a config must
  not have them.
  """

  __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

  def options(self) -> dict[str, Any]:
    """Returns key -> value, without keys whose value is None.

    The result also has the keys in `other_keys`.
    """
    fields = dataclasses.fields(self)
    settings = {field.name: getattr(self, field.name) for field in fields}
    settings |= settings.pop("other_keys", None) or {}
    return {key: settings[key] for key in settings if settings[key] is not None}


@dataclasses.dataclass(frozen=True)
class Mesh(Section):
  """Says how the devices split the work.

  Attributes:
    data: the number of devices that split only the batch; -1 means all devices
      divided by `fsdp` times `tensor`.
    fsdp: the number of devices that split the batch and the parameters.
    tensor: the number of devices that split heads, MLP and vocabulary.
    split_update: whether the devices split the update of the parameters; see
      `update_sharding.splits_update`.
  """

  data: int = _field(int, -1)
  fsdp: int = _whole_number(1, default=1)
  tensor: int = _whole_number(1, default=1)
  split_update: str = _field(str, "auto", choices=("auto", "on", "off"))


@dataclasses.dataclass(frozen=True)
class Log(Section):
  """Says how often training writes a line to metrics.jsonl.

  Attributes:
    every: steps between two lines; 0 means that training writes no lines.
  """

  every: int = _whole_number(0)


@dataclasses.dataclass(frozen=True)
class Evaluate(Section):
  """Says when a run is evaluated, and on how many examples.

  Attributes:
    every: steps between two evaluations; 0 means no evaluation.
    examples: number of held-out examples of text; 0 means all held-out
      examples. A task is always evaluated on its whole splits.
  """

  every: int = _whole_number(0, may_be_none="task")
  examples: int = _whole_number(0, default=0)


@dataclasses.dataclass(frozen=True)
class Checkpoint(Section):
  """Says when checkpoints are saved, and how many are kept.

  Attributes:
    every: steps between two checkpoints; 0 means only one checkpoint, at the
      end. An evaluation with the lowest cost so far also saves a checkpoint.
    keep: the number of newest checkpoints that are kept.
    keep_best: the number of best checkpoints that are kept.
  """

  every: int = _whole_number(0, may_be_none="task")
  keep: int = _whole_number(1, default=2)
  keep_best: int = _whole_number(0, default=1)


@dataclasses.dataclass(frozen=True)
class Profile(Section):
  """Holds the first step and the number of steps that the profiler traces."""

  start: int = _whole_number(0)
  steps: int = _whole_number(0)


@dataclasses.dataclass(frozen=True)
class Spike(Section):
  """Holds arguments of `logging.SpikeDetector`, which finds high losses."""

  action: str = _field(str, "none")
  factor: float = _positive_number(default=2.0)


@dataclasses.dataclass(frozen=True)
class Schedule(Section):
  """Holds arguments of `optim.build_schedule`."""

  name: str = _field(str)
  peak: float = _positive_number()
  warmup: float = _field(float)
  decay: float | None = _field(float, None)


@dataclasses.dataclass(frozen=True)
class Adam(Section):
  """Holds arguments of `optim.build_optimizer`."""

  name: str = _field(str)
  b1: float = _share()
  b2: float = _share()
  epsilon: float = _positive_number()
  weight_decay: float = _nonnegative_number()
  clip_norm: float = _nonnegative_number()
  layer_decay: float | None = _positive_number(default=None)
  layer_rule: str | None = _field(str, None)


@dataclasses.dataclass(frozen=True)
class Adagrad(Section):
  """Holds arguments of `optim.build_adagrad`."""

  name: str = _field(str)
  initial_accumulator: float = _positive_number()
  gradient_scale: float = _positive_number()
  clip_norm: float = _nonnegative_number()


@dataclasses.dataclass(frozen=True)
class Phase(Section):
  """Holds the section of one phase.

  Attributes:
    fraction: the share of `total_steps`; the shares of all phases add up to 1.
    length: tokens in a row.
    batch_scale: the phase's number of rows in a batch, a whole number, is
      `batch_size` times this factor.
    micro_scale: the phase's number of micro-batches is `micro_batches` times
      this factor.
    max_predictions: prediction slots in a row; None if no tokens are masked.
    mask_rate: the share of tokens that are masked; None means `data.mask_rate`.
  """

  fraction: float = _field(float)
  length: int = _field(int)
  batch_scale: float = _field(float)
  micro_scale: int = _whole_number(1)
  max_predictions: int | None = _whole_number(1, default=None)
  mask_rate: float | None = _positive_number(default=None)


@dataclasses.dataclass(frozen=True)
class TaskData(Section):
  """Names the data of a task; see `batches.open_task`.

  Attributes:
    path: the task folder.
    train: the name of the split to train on.
    validation: the names of the splits to evaluate, separated by commas. The
      first split decides which checkpoint is the best.
    epochs: the number of epochs to train if `total_steps` is None.
    shuffle: True for a new order of the rows in every epoch.
    group: True to put rows of similar lengths into one batch.
    buckets: the lengths that batches may have.
  """

  path: str = _field(str)
  train: str = _field(str, "train")
  validation: str = _field(str, "validation")
  epochs: float = _positive_number(default=3.0)
  shuffle: bool = _field(bool, True)
  group: bool = _field(bool, True)
  buckets: tuple[int, ...] = _field(object, BUCKETS)


@dataclasses.dataclass(frozen=True)
class Data(Section):
  """Names the text of pre-training, and says how to make rows from it.

  `other_keys` are more options of the builder. `recipes.RowOptions` and
  `loader.open_data` say what a missing option means.
  """

  RESERVED_KEYS = ("seed",)

  path: str = _field(str)
  builder: str = _field(str)
  cased: bool | None = _field(bool, None, may_be_none="always")
  length: int | None = _field(int, None)
  max_predictions: int | None = _whole_number(1, default=None)
  streams: int | None = _whole_number(0, default=None)
  mask_rate: float | None = _positive_number(default=None)
  smoothing: float | None = _nonnegative_number(default=None)
  other_keys: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Model(Section):
  """Names a family and its variant, and replaces values of the variant.

  A field that is None has the variant's value. `other_keys` are attributes that
  only some families have; the family's `build` refuses an unknown attribute.
  """

  RESERVED_KEYS = ("vocab_multiple",)

  remat: bool | None = _field(bool, None, may_be_none="always")
  family: str | None = _field(str, None, may_be_none="task")
  variant: str | None = _field(str, None, may_be_none="task")
  dtype: str | None = _field(str, None, choices=DTYPES)
  vocab_size: int | None = _whole_number(1, default=None, may_be_none="always")
  padding_id: int | None = _whole_number(0, default=None, may_be_none="always")
  hidden: int | None = _whole_number(1, default=None)
  embedding_size: int | None = _whole_number(1, default=None)
  generator_hidden: int | None = _whole_number(1, default=None)
  num_layers: int | None = _whole_number(1, default=None)
  heads: int | None = _whole_number(1, default=None)
  mlp: int | None = _whole_number(1, default=None)
  max_positions: int | None = _whole_number(1, default=None)
  cell: int | None = _whole_number(1, default=None)
  highways: int | None = _whole_number(0, default=None)
  unroll: int | None = _whole_number(0, default=None)
  dropout: float | None = _share(default=None, may_be_none="task")
  attention_dropout: float | None = _share(default=None, may_be_none="task")
  initializer_range: float | None = _positive_number(default=None)
  clip: float | None = _positive_number(default=None)
  other_keys: Mapping[str, Any] | None = None

  @classmethod
  def from_values(cls, values: Mapping[str, Any]) -> "Model":
    """Returns the section with the given values, and does not check them."""
    names = {field.name for field in dataclasses.fields(cls)}
    other_keys = {key: values[key] for key in values.keys() - names}
    field_values = {key: values[key] for key in values.keys() & names}
    return cls(**field_values, other_keys=types.MappingProxyType(other_keys))


@dataclasses.dataclass(frozen=True)
class Objective(Section):
  """Holds an objective; `other_keys` are options that may have any value.

  `kind`, `labels` and `padding_id` come from the task; `setup.build` sets them.
  """

  RESERVED_KEYS = ("kind", "labels", "padding_id")

  name: str = _field(str)
  pairs: bool | None = _field(bool, None)
  negatives: int | None = _whole_number(0, default=None)
  temperature: float | None = _positive_number(default=None)
  discriminator_weight: float | None = _nonnegative_number(default=None)
  kl_weight: float | None = _nonnegative_number(default=None)
  mlm_weight: float | None = _nonnegative_number(default=None)
  cosine_weight: float | None = _nonnegative_number(default=None)
  attention_weight: float | None = _nonnegative_number(default=None)
  hidden_weight: float | None = _nonnegative_number(default=None)
  embedding_weight: float | None = _nonnegative_number(default=None)
  lm_weight: float | None = _nonnegative_number(default=None)
  head_dropout: float | None = _share(default=None, may_be_none="task")
  kind: str | None = _field(str, None)
  labels: tuple[str, ...] | None = _field(object, None)
  padding_id: int | None = _field(int, None)
  other_keys: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Teacher(Section):
  """Names the model that a student learns from; see `teacher.open_teacher`."""

  path: str = _field(str)
  model: Model = _field(dict)


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """Holds a whole config.

  Attributes:
    seed: below 2**32, since jax would lose the upper bits of a larger number.
    total_steps: optimizer steps. Only for a task it may be None, which means as
      many steps as `data.epochs` needs. `total_steps` and `batch_size` are
      below 2**31, because jax counts steps and rows in int32.
    batch_size: rows of a batch over all hosts.
    micro_batches: number of micro-batches into which a batch is split.
    init_from: the model from which the parameters are taken; "" means none.
    init_new_rows: "mean" or "drawn"; see `start_from.NEW_ROW_METHODS`.
    phases: {"phase1": its section, ...}; {} means a run of one phase.
  """

  seed: int = _whole_number(0, below=2**32)
  total_steps: int | None = _whole_number(1, below=2**31, may_be_none="task")
  batch_size: int = _whole_number(1, below=2**31)
  micro_batches: int = _whole_number(1)
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
  init_new_rows: str = _field(str, OPTIONAL_KEYS["init_new_rows"])
  spike: Spike = _field(dict, Spike())
  teacher: Teacher | None = _field(dict, None)

  @property
  def trains_on_task(self) -> bool:
    """True if the data of the run are the rows of a task."""
    return isinstance(self.data, TaskData)

  @property
  def steps(self) -> int:
    """The number of optimizer steps, after `setup.build` has set it."""
    assert self.total_steps is not None
    return self.total_steps


# The sections with only one dataclass. `data` and `optimizer` have two each.
_SECTIONS = {
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


def parse(config: dict[str, Any]) -> RunConfig:
  """Returns a config as dataclasses.

  Args:
    config: the nested dict of a config file.

  Raises:
    UserError: a key is unknown or missing, or its value is not allowed.
  """
  _check_sections(config)
  on_task = trains_on_task(config)
  sections: dict[str, Any] = {
    key: parse_section(cls, key, config[key], on_task)
    for key, cls in _SECTIONS.items()
    if key in config
  }
  sections["data"] = parse_section(
    TaskData if on_task else Data, "data", config["data"], on_task
  )
  sections["optimizer"] = parse_optimizer(config["optimizer"])
  if "remat" not in config["model"]:
    raise UserError("config.model.remat is missing.")
  if not on_task:
    _check_pretraining_keys(config)
  if "teacher" in config:
    # As for a task, more keys may be None: the teacher's files decide them.
    model = parse_section(
      Model, "teacher.model", config["teacher"]["model"], on_task=True
    )
    sections["teacher"] = dataclasses.replace(sections["teacher"], model=model)
  sections["phases"] = types.MappingProxyType(
    {
      name: parse_section(Phase, f"phases.{name}", values)
      for name, values in config["phases"].items()
    }
  )
  parsed = parse_section(RunConfig, "", config | sections, on_task)
  _check_teacher(parsed)
  data = parsed.data
  if isinstance(data, Data):
    check_length("data", data.builder, data.length)
    for name, phase in parsed.phases.items():
      check_length(f"phases.{name}", data.builder, phase.length)
    check_builder(parsed.objective, data.builder, parsed.model.family)
    _check_pair_name(parsed.objective, data.builder)
    _check_streams(parsed, data.streams or 0)
  return parsed


def to_json(config: dict[str, Any], parsed: RunConfig) -> dict[str, Any]:
  """Returns the content of config.json.

  Args:
    config: the dict that was parsed. If this dict lacks a section or another
      key of the top level, config.json lacks it too, except for the keys of
      `OPTIONAL_KEYS`.
    parsed: the config with the values that `setup.build` derived.
  """
  derived_values: dict[str, Any] = {
    "total_steps": parsed.total_steps,
    "init_new_rows": parsed.init_new_rows,
    "spike": dataclasses.asdict(parsed.spike),
    "model": parsed.model.options(),
  }
  for name in ("evaluate", "checkpoint"):
    derived_values[name] = config[name] | {"every": getattr(parsed, name).every}
  if parsed.trains_on_task:
    objective = parsed.objective
    derived_values["objective"] = config["objective"] | {
      "kind": objective.kind,
      "labels": list(objective.labels or ()),
    }
    if objective.padding_id is not None:
      derived_values["objective"]["padding_id"] = objective.padding_id
  if parsed.teacher:
    model = parsed.teacher.model.options()
    derived_values["teacher"] = config["teacher"] | {"model": model}
  return OPTIONAL_KEYS | config | derived_values


def _check_sections(config: dict[str, Any]) -> None:
  """Raises UserError if a key of the top level is unknown or missing.

  It also raises UserError if the value of a section's key is no section.
  """
  fields = {field.name: field for field in dataclasses.fields(RunConfig)}
  for key in config:
    if key not in fields:
      raise UserError(f"config.{key} is not a key{did_you_mean(key, fields)}")
  for key, field in fields.items():
    if key not in config:
      if field.default is dataclasses.MISSING:
        raise UserError(f"config.{key} is missing.")
    elif field.metadata["type"] is dict:
      _check_is_section(key, config[key])
  for name, values in config["phases"].items():
    _check_is_section(f"phases.{name}", values)


def _check_is_section(key: str, value: Any) -> None:
  if not isinstance(value, dict):
    raise UserError(f"config.{key}={value!r} must be a section.")


def _check_pretraining_keys(config: dict[str, Any]) -> None:
  """Raises UserError if a key is missing that only a task's config may lack."""
  for path in ("model.family", "model.variant", "evaluate.examples"):
    section, _, key = path.partition(".")
    if key not in config[section]:
      raise UserError(f"config.{path} is missing.")


def parse_section(
  cls: type[T],
  section_name: str,
  values: Mapping[str, Any],
  on_task: bool = False,
) -> T:
  """Returns a section of a config as its dataclass.

  Args:
    cls: the dataclass. If it has a field `other_keys`, this field gets all keys
      that are not fields.
    section_name: the section's name, for messages; "" means the whole config.
    values: the section.
    on_task: True if the run trains on a task. Then more keys may be None.

  Raises:
    UserError: see `parse`.
  """
  section_path = f"{section_name}." if section_name else ""
  prefix = f"config.{section_path}"
  fields = {field.name: field for field in dataclasses.fields(cls)}
  other_keys = {key: values[key] for key in values if key not in fields}
  for key in values:
    if key in getattr(cls, "RESERVED_KEYS", ()):
      raise UserError(f"{prefix}{key} is not a key; the program sets it.")
  for key in other_keys:
    if "other_keys" not in fields:
      raise UserError(f"{prefix}{key} is not a key{did_you_mean(key, fields)}")
  for key, setting in values.items():
    _check_float32(messages.key_name(f"{section_path}{key}"), setting)
  arguments = {}
  for key, field in fields.items():
    if key == "other_keys":
      arguments[key] = types.MappingProxyType(other_keys)
    elif key in values:
      name = messages.key_name(f"{section_path}{key}")
      _check_value(name, values[key], field.metadata, on_task)
      arguments[key] = values[key]
    elif field.default is dataclasses.MISSING:
      raise UserError(f"{prefix}{key} is missing.")
  return cls(**arguments)


# Type of a field -> the types that its value may have, and the words for these
# types in messages.
_VALUE_TYPES: dict[type, tuple[tuple[type, ...], str]] = {
  int: ((int,), "a whole number"),
  float: ((int, float), "a number"),
  bool: ((bool,), "True or False"),
  str: ((str,), "text"),
}


def _check_value(
  key: str, value: Any, rules: Mapping[str, Any], on_task: bool
) -> None:
  """Raises UserError if a value breaks the rules of its field.

  Args:
    key: the key, for messages.
    value: the value.
    rules: the field's rules; see `_field`.
    on_task: True if the run trains on a task.
  """
  none_rules = ("always", "task") if on_task else ("always",)
  if rules["type"] not in _VALUE_TYPES or (
    value is None and rules.get("may_be_none") in none_rules
  ):
    return
  value_types, description = _VALUE_TYPES[rules["type"]]
  is_bool = isinstance(value, bool)
  if not isinstance(value, value_types) or (
    is_bool and rules["type"] is not bool
  ):
    raise UserError(f"{key}={value!r} must be {description}.")
  if value not in rules.get("choices", (value,)):
    raise UserError(
      f"{key}={value!r} is not one of {', '.join(rules['choices'])}."
    )
  _check_bounds(key, value, rules)


def _check_bounds(key: str, value: Any, rules: Mapping[str, Any]) -> None:
  """Raises UserError if a number is outside the bounds of its field."""
  bounds = []
  if "least" in rules:
    bounds.append((value >= rules["least"], f"at least {rules['least']}"))
  if "above" in rules:
    bounds.append((value > rules["above"], f"above {rules['above']}"))
  if "share" in rules:
    bounds.append((0 <= value < 1, "in [0, 1)"))
  if "below" in rules:
    # All of these bounds are powers of 2.
    power = rules["below"].bit_length() - 1
    bounds.append((value < rules["below"], f"below 2**{power}"))
  for is_inside, bound in bounds:
    if math.isinf(value):
      raise UserError(f"{key}={value!r} must be {bound}, and finite.")
    if not is_inside:
      raise UserError(f"{key}={value!r} must be {bound}.")


def parse_optimizer(values: dict[str, Any]) -> Adam | Adagrad:
  """Returns the section `optimizer` as the dataclass that its `name` needs."""
  if str(values.get("name", "")).startswith("adagrad"):
    return parse_section(Adagrad, "optimizer", values)
  return parse_section(Adam, "optimizer", values)


def check_length(section_name: str, builder: str, length: int | None) -> None:
  """Raises UserError if rows are too short for their builder.

  Args:
    section_name: the section with the length, for messages: "data" or
      "phases.NAME".
    builder: the builder.
    length: the number of tokens in a row; None is not checked.
  """
  min_length = MIN_LENGTHS.get(builder, 5)
  if length is not None and length < min_length:
    name = messages.key_name(f"{section_name}.length")
    raise UserError(f"{name}={length} must be at least {min_length}.")


def trains_on_task(config: dict[str, Any]) -> bool:
  """Returns True if the data of a run are the rows of a task."""
  return config["objective"].get("name") in TASK_OBJECTIVES


def _check_teacher(config: RunConfig) -> None:
  """Raises UserError if the teacher is missing, or if no teacher is needed."""
  name = config.objective.name
  needs_teacher = name in TEACHER_OBJECTIVES
  if needs_teacher and config.teacher is None:
    raise UserError(
      f"config.teacher is missing, but objective {name!r} needs a teacher; add"
      " teacher=dict(path=..., model=dict(family=..., variant=...))."
    )
  if config.teacher is not None and not needs_teacher:
    raise UserError(
      f"config.teacher is set, but objective {name!r} learns from no teacher;"
      " remove config.teacher."
    )


def _check_streams(config: RunConfig, streams: int) -> None:
  """Raises UserError if a batch has not exactly one row of each stream.

  These are stateful streams, whose rows continue the texts of the batch before.
  """
  if streams not in (0, config.batch_size):
    raise UserError(
      f"config.data.streams={streams} must be batch_size={config.batch_size},"
      " or 0 for windows of text in any order."
    )
  if streams and (config.micro_batches > 1 or config.phases):
    raise UserError(
      f"config.data.streams={streams} continues streams from batch to batch;"
      " set micro_batches=1 and phases={}."
    )


def check_builder(
  objective: Objective, builder: str, family: str | None
) -> None:
  """Raises UserError if an objective cannot train on a builder's rows."""
  name = objective.name
  if name not in OBJECTIVE_BUILDERS or builder not in (
    *MASKED_BUILDERS,
    *UNMASKED_BUILDERS,
  ):
    return  # Other functions refuse unknown names.
  choices, hint = OBJECTIVE_BUILDERS[name], ""
  if family == "roberta":  # RoBERTa's rows have one segment.
    choices = tuple(
      choice for choice in choices if choice not in SEGMENT_BUILDERS
    )
  elif name == "mlm" and objective.pairs is not False:
    # With a loss on pairs, rows must have the labels of this loss.
    hint = ", or set objective.pairs=False" if builder in choices else ""
    choices = tuple(PAIR_NAMES)
  if builder not in choices:
    raise UserError(
      f"config.data.builder={builder}: objective {name} cannot train"
      f" {family} on its rows; choose {' or '.join(choices)}{hint}."
    )


def _check_pair_name(objective: Objective, builder: str) -> None:
  """Raises UserError if the objective's `pair_name` contradicts PAIR_NAMES."""
  if objective.name != "mlm" or objective.pairs is False:
    return
  name = objective.options().get("pair_name")
  expected_name = PAIR_NAMES.get(builder)
  if expected_name and (name or "nsp") != expected_name:
    raise UserError(
      f"config.objective.pair_name={name!r} does not fit data.builder"
      f"={builder}, whose labels are {expected_name!r}; set"
      f" objective.pair_name={expected_name}, or choose another builder."
    )


def _check_float32(key: str, value: Any) -> None:
  """Raises UserError for a number that becomes 0 or infinite in float32."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    return
  magnitude = abs(value)
  if isinstance(value, float) and not math.isfinite(value):
    return  # The rules of each key check infinity and NaN.
  min_magnitude, max_magnitude = _FLOAT32_RANGE
  if magnitude > max_magnitude or 0 < magnitude < min_magnitude:
    raise UserError(
      f"{key}={value!r:.40} must be 0 or between {min_magnitude:.2g} and"
      f" {max_magnitude:.2g}, because the program computes in float32."
    )


def check_keys(
  name: str, values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
  """Raises UserError if a key of a section is unknown or missing.

  Args:
    name: the section's name, for the message.
    values: the section.
    defaults: key -> default; `dataclasses.MISSING` means a required key.
  """
  for key in values:
    if key not in defaults:
      raise UserError(
        f"config.{name}.{key} is not a key{did_you_mean(key, defaults)}"
      )
  for key, default in defaults.items():
    if default is dataclasses.MISSING and key not in values:
      raise UserError(f"config.{name}.{key} is missing.")


def section_of(config: Any, path: str) -> Any:
  """Returns the section of a config that a path like "teacher.model" names."""
  for name in path.split("."):
    config = config[name]
  return config


def check_types(config: dict[str, Any], defaults: dict[str, Any]) -> None:
  """Raises UserError if an override changed the type of a value.

  ml_collections would allow `True` for a whole number. A key whose default is
  None is not checked here, but in `parse`.

  Args:
    config: the config with overrides.
    defaults: the config without overrides.
  """
  default_settings = flatten(defaults)
  for key, setting in flatten(config).items():
    default = default_settings.get(key)
    if default is None or setting is default:
      continue
    allowed_types = (
      (int, float) if isinstance(default, float) else type(default)
    )
    is_bool = isinstance(setting, bool)
    if is_bool != isinstance(default, bool) or not isinstance(
      setting, allowed_types
    ):
      raise UserError(
        f"{messages.key_name(key)}={setting!r} must be of type"
        f" {type(default).__name__}."
      )


def check_restart(
  old: dict[str, Any], new: dict[str, Any], defaults: dict[str, Any]
) -> list[str]:
  """Compares a run's saved config with the config of a restart.

  Args:
    old: the config in the run's folder.
    new: the config of the restart.
    defaults: the result of `setup.default_values`. It has the values of keys
      that did not exist when the old config was saved.

  Returns:
    A line for each changed key that a restart may change.

  Raises:
    UserError: a changed key changes what the run computes. The message names
      each of these keys.
  """
  old, new, defaults = (
    flatten(json.loads(json.dumps(config))) for config in (old, new, defaults)
  )
  old = {key: defaults[key] for key in defaults.keys() & new.keys()} | old
  changed_keys = [
    key
    for key in sorted(old.keys() | new.keys())
    if old.get(key) != new.get(key)
  ]
  lines = [
    f"{messages.key_name(key)}: {old.get(key)!r} -> {new.get(key)!r}"
    for key in changed_keys
  ]
  refused_lines = [
    line
    for key, line in zip(changed_keys, lines, strict=True)
    if not restart_may_change(key)
  ]
  if refused_lines:
    raise UserError(
      "the run in this folder has another config:"
      f" {'; '.join(refused_lines)}. These keys change what the run computes;"
      " undo them, or start in a new workdir (with"
      f" {messages.setting('init_from', 'OLD_WORKDIR')} to go on from its"
      " parameters)."
    )
  return lines
