"""Makes, from a config, everything that a run needs before its first step."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax import messages, models, objectives
from bert_jax.devices import sharding, update_sharding
from bert_jax.examples import loader, recipes
from bert_jax.messages import UserError
from bert_jax.models.encoder import field_values
from bert_jax.tasks import batches
from bert_jax.training import config as config_lib
from bert_jax.training import (
  inputs,
  logging,
  memory,
  optim,
  phases,
  start_from,
  teacher,
)
from bert_jax.training.parts import Feed, Setup
from bert_jax.training.state import checkpoint_layout, teacher_shapes

# Keys whose values the teacher takes from the student's section `model`, unless
# the section `teacher.model` sets them.
KEYS_FROM_STUDENT = ("dtype", "attention", "elementwise", "unroll")
# Keys whose values are taken from the data, for the student and the teacher.
KEYS_FROM_DATA = ("vocab_size", "padding_id")


def build(
  config: config_lib.RunConfig, resumed_config: dict[str, Any] | None = None
) -> Setup:
  """Opens and builds everything that does not change during a run.

  Also checks that data, models, config and devices fit together.

  Args:
    config: the run's config. `Setup.config` is this config with the values that
      the data, `init_from` and the teacher's files decide.
    resumed_config: the content of config.json if the run continues from a
      checkpoint in its folder, else None. A run that pre-trains takes the
      model's sizes from config.json, and does not open the model of `init_from`
      again.

  Raises:
    ValueError: the config cannot be used; the message names the key and the
      remedy.
  """
  _check_spikes(config)
  task = None
  if config.trains_on_task:
    # The number of steps may depend on the data.
    config, training_split, splits = inputs.open_task(config)
    task = training_split.task
  plan = phases.plan(config)
  mesh = sharding.make_mesh(
    config.mesh.data, config.mesh.fsdp, config.mesh.tensor
  )
  for phase in plan:
    sharding.check_batch_size(mesh, phase.batch_size, phase.num_micro_batches)
  if task:
    feeds = [Feed(phase, training_split, splits) for phase in plan]
  else:
    feeds = inputs.open_text(plan, config.seed, config.evaluate)
  first_data = feeds[0].training_rows
  start_model, opened_teacher = None, None
  model = config.model
  if resumed_config and not task and resumed_config.get("init_from"):
    model_options = resumed_config.get("model", {}) | model.options()
    model = config_lib.Model.from_values(model_options)
  elif config.init_from:
    start_model, model = start_from.open_start_model(config, first_data)
  elif model.family is None:
    raise UserError(
      "init_from is empty; pass --config.init_from=PATH, a pre-trained model:"
      " the folder of a run, a converted folder or one of transformers."
    )
  model = fill_from_data(model, first_data, config.data.path)
  model = dataclasses.replace(
    model, remat=memory.choose_remat(model, plan, mesh)
  )
  config = dataclasses.replace(config, model=model)
  if config.teacher:
    opened_teacher = teacher.open_teacher(
      config.teacher, first_data.prepared_folders[0], task
    )
    teacher_section = dataclasses.replace(
      config.teacher, model=opened_teacher.model
    )
    config = dataclasses.replace(config, teacher=teacher_section)
  objective, schedule, optimizer = make_objective_and_optimizer(
    config, sharding.vocab_multiple(mesh)
  )
  for feed in feeds:
    # If rows are longer than the position table, this raises an error now, and
    # not at the first step. The parameters have equal shapes in all phases.
    boxed_params = jax.eval_shape(
      objective.init, jax.random.key(0), feed.shapes
    )
  sharding.check_parameter_sizes(mesh, boxed_params)
  splits_update = update_sharding.splits_update(mesh, config.mesh.split_update)
  teacher_params = {}
  if opened_teacher:
    try:
      teacher_layouts = [
        teacher_shapes(objective, mesh, feed.shapes) for feed in feeds
      ]
    except ValueError as e:  # Raised by the teacher's encoder.
      raise UserError(f"teacher.path={opened_teacher.path}: {e}") from e
    teacher_params = teacher.place_on_devices(
      opened_teacher, teacher_layouts[0]
    )
  return Setup(
    config=config,
    mesh=mesh,
    feeds=feeds,
    objective=objective,
    optimizer=optimizer,
    schedule=schedule,
    checkpoint_layout=checkpoint_layout(
      objective,
      optimizer,
      mesh,
      feeds[-1].shapes,
      first_data.vocab_size,
      splits_update,
    ),
    update_sharding=update_sharding.plan(
      mesh, boxed_params, config.model.unroll or 0
    )
    if splits_update
    else None,
    teacher_params=teacher_params,
    teacher_digest=opened_teacher.digest if opened_teacher else None,
    task=task,
    start_model=start_model,
  )


def _check_spikes(config: config_lib.RunConfig) -> None:
  """Raises UserError if the section `spike` cannot be used."""
  # The constructor checks both values.
  logging.SpikeDetector(config.spike.action, config.spike.factor)
  if config.spike.action != "none" and not config.log.every:
    raise UserError(
      "config.spike compares a loss with that of the last logged row; set"
      " config.log.every to the number of steps between rows."
    )


def fill_from_data(
  model: config_lib.Model,
  data: loader.PretrainingData | batches.TrainingSplit,
  data_path: str,
) -> config_lib.Model:
  """Returns the section `model` with the values that the data decide.

  These values are `vocab_size` and, for RoBERTa, `padding_id`.

  Args:
    model: the section. The section's value for one of these keys must be None,
      or equal to the value from the data.
    data: the data of the first phase.
    data_path: the path of the data, for messages.

  Raises:
    UserError: the config contradicts the data.
  """
  vocab_size, padding_id = data.vocab_size, model.padding_id
  if model.family == "roberta":
    # RoBERTa numbers its positions from the number after the padding's id, and
    # skips tokens that have this id.
    padding_id = data.special.pad
  values_from_data = {"vocab_size": vocab_size, "padding_id": padding_id}
  for name, data_value in values_from_data.items():
    setting = getattr(model, name)
    if setting is not None and setting != data_value:
      raise UserError(
        f"model.{name}={setting}, but with the vocabulary of {data_path} it is"
        f" {data_value}; leave model.{name} unset to take it from the data."
      )
  return dataclasses.replace(
    model, vocab_size=vocab_size, padding_id=padding_id
  )


def default_values(config: dict[str, Any]) -> dict[str, Any]:
  """Returns the default values of the keys that a run's config may lack.

  Args:
    config: a complete config. The builder, the objective and the families of
      this config decide which keys have a default.

  Returns:
    {"data": {...}, "objective": {...}, ...}, nested like the config.
  """
  if config_lib.trains_on_task(config):
    fields = dataclasses.fields(config_lib.TaskData)
    data_defaults: dict[str, Any] = {
      field.name: field.default for field in fields
    }
  else:
    recipe = recipes.RECIPES[config["data"]["builder"]]
    data_defaults = {"cased": None, **recipe.defaults}
  sections = {
    "data": data_defaults,
    "objective": objectives.option_defaults(config["objective"]["name"]),
    "model": _model_defaults(config["model"]),
  }
  nested_defaults = config_lib.OPTIONAL_KEYS | {
    name: {
      key: default
      for key, default in section.items()
      if default is not dataclasses.MISSING
    }
    for name, section in sections.items()
  }
  if "teacher" in config:
    nested_defaults["teacher"] = {
      "model": _model_defaults(config["teacher"]["model"])
    }
  return nested_defaults


def _model_defaults(model: dict[str, Any]) -> dict[str, Any]:
  """Returns all attributes of the variant that a section `model` names."""
  encoder = models.family(model["family"]).build(model["variant"])
  return field_values(encoder) | {"dtype": jnp.dtype(encoder.dtype).name}


def make_drawing_objective(setup: Setup) -> objectives.Objective:
  """Returns an objective that draws the parameters of `setup.objective`.

  Its layers are scanned, so the program that draws the parameters is smaller.
  For BERT-base, this program compiles in 3 s on a CPU; with unrolled layers, in
  8 s.
  """
  model = dataclasses.replace(setup.config.model, unroll=1)
  objective, *_ = make_objective_and_optimizer(
    dataclasses.replace(setup.config, model=model),
    sharding.vocab_multiple(setup.mesh),
  )
  return objective


def make_objective_and_optimizer(
  config: config_lib.RunConfig, vocab_multiple: int = 1
) -> tuple[objectives.Objective, optim.Schedule, optax.GradientTransformation]:
  """Returns objective, schedule and optimizer; opens no data and no model.

  Args:
    config: the run's config, with its number of steps.
    vocab_multiple: see `sharding.vocab_multiple`.

  Raises:
    ValueError: a key is unknown, or a value cannot be used.
  """
  options = config.objective.options()
  name = options.pop("name")
  decay = getattr(config.optimizer, "weight_decay", 0.0)
  if name == "distil" and options.get("freeze_positions", True) and decay:
    raise UserError(
      f"optimizer.weight_decay={decay} would shrink the position embeddings"
      " that objective.freeze_positions=True keeps; set it to 0, or pass"
      f" {messages.setting('objective.freeze_positions', False)}."
    )
  schedule = optim.build_schedule(config.steps, **config.schedule.options())
  make_optimizer = optim.optimizer_factory(config.optimizer.name)
  optimizer = make_optimizer(schedule, **config.optimizer.options())
  model = config.model.options() | {"vocab_multiple": vocab_multiple}
  teacher_model = (
    _teacher_model(config.teacher, model) if config.teacher else None
  )
  config_lib.check_keys("objective", options, objectives.option_defaults(name))
  objective = objectives.build(name, model, options, teacher_model)
  return objective, schedule, optimizer


def _teacher_model(
  section: config_lib.Teacher, model: dict[str, Any]
) -> dict[str, Any]:
  """Returns the teacher's `family`, and the arguments of the family's `build`.

  Args:
    section: the section `teacher`.
    model: the student's `family` and arguments, in the same form.
  """
  options_from_student = {
    k: model[k] for k in (*KEYS_FROM_DATA, *KEYS_FROM_STUDENT) if k in model
  }
  vocab_option = {"vocab_multiple": model["vocab_multiple"]}
  return options_from_student | section.model.options() | vocab_option
