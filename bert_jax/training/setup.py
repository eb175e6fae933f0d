"""All that a run needs before it trains, made of its config and checked."""

import copy
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax import hashing, models, objectives
from bert_jax.devices import sharding
from bert_jax.examples import loader, recipes
from bert_jax.models.encoder import attributes
from bert_jax.tasks import batches
from bert_jax.training import config as config_lib
from bert_jax.training import logging, optim, phases, start_from, teacher
from bert_jax.training.parts import Feed, Pretrained, Setup
from bert_jax.training.state import file_state, frozen_shapes

# Keys of a model's config that its teacher shares, unless the teacher's section
# has its own values.
SHARED = ("dtype", "attention", "elementwise", "unroll")
# Keys of both models that come from the data and the mesh.
OF_DATA = ("vocab_size", "padding_id")


def open_feed(config: dict[str, Any], phase: phases.Phase) -> Feed:
  """Opens a phase's stream of examples and its held-out set."""
  # Each phase has a stream of its own, from its beginning.
  seed = config["seed"]
  if phase.number:
    seed = hashing.make_key("phase", phase.number, seed)
  data = loader.open_data(seed=seed, **phase.data)
  heldout = None
  if config["evaluate"]["every"]:
    limit = config["evaluate"]["examples"] or None
    try:
      heldout = loader.open_heldout(limit=limit, **phase.data)
    except ValueError as e:
      raise ValueError(
        f"held-out documents: {e} Prepare the text with a larger --heldout, or"
        " pass --config.evaluate.every=0."
      ) from e
  return make_feed(phase, data, heldout)


def make_feed(phase: phases.Phase, data: Any, heldout: Any) -> Feed:
  """A phase with its data and the shapes of their batches."""
  shapes = sharding.batch_shapes(data.features, phase.batch_size)
  return Feed(phase, data, heldout, shapes)


def open_task(
  config: dict[str, Any],
) -> tuple[
  batches.Data,
  batches.Splits | None,
  Pretrained | None,
  dict[str, Any],
]:
  """Opens a task's folder, and the model that fine-tuning begins with.

  Returns:
    The data, its splits that are scored, the model, and the config with what
    the data and the model decide: steps, kind and labels of the objective, the
    model's sizes.

  Raises:
    ValueError: with one sentence.
  """
  config_lib.section(config_lib.TaskData, "data", config["data"])
  data = batches.open_data(
    config["batch_size"], config["seed"], **config["data"]
  )
  derived: dict[str, Any] = {}
  if config["total_steps"] is None:
    derived["total_steps"] = data.steps_of_epochs
  for section in ("evaluate", "checkpoint"):
    if config[section]["every"] is None:
      derived[section] = config[section] | {"every": data.steps_of_epoch}
  labels = dict(kind=data.task.kind, labels=[*data.task.labels])
  if config["objective"]["name"] == "finetune":
    labels["padding_id"] = data.part.meta["pad"]
  derived["objective"] = config["objective"] | labels
  start_model = None
  if config["init_from"]:
    start_model = start_from.read(
      config["init_from"],
      data.prepared[0].vocab,
      config["data"]["path"],
      config["model"].get("family"),
    )
    derived["model"] = start_from.fill_model(config["model"], start_model)
  elif config["model"].get("family") is None:
    raise ValueError(
      "init_from is empty; pass --config.init_from=PATH, a pre-trained model:"
      " the --workdir of a run, a converted folder or one of transformers."
    )
  config = config | derived
  splits = None
  if config["evaluate"]["every"]:
    predicts = config["objective"].get("stage") != "layers"
    splits = batches.open_splits(data, predicts)
  return data, splits, start_model, config


def open_start(
  config: dict[str, Any], data: loader.Data
) -> tuple[Pretrained, dict[str, Any]]:
  """Opens the model that pre-training goes on from.

  Returns:
    The model, and the config's section `model` with its sizes.

  Raises:
    ValueError: with one sentence.
  """
  start_model = start_from.read_to_go_on(
    config["init_from"],
    data.prepared[0].vocab,
    config["data"]["path"],
    config["objective"],
    config["model"].get("family"),
  )
  line = start_from.variant_line(config["model"], start_model)
  if line:
    start_model = start_model._replace(notes=(line, *start_model.notes))
  return start_model, start_from.fill_model(config["model"], start_model)


def build(
  config: dict[str, Any], before: dict[str, Any] | None = None
) -> Setup:
  """Builds the parts of a run that do not train, and checks that they fit.

  Args:
    config: the run's config; it stays as it is. `Setup.config` is this config
      with what the data, `init_from` and the teacher's files decide.
    before: the config of the run that goes on from a checkpoint of its own. A
      model that its pre-training began with is not opened again: its sizes
      stand here.

  Raises:
    ValueError: with one sentence that names the key and the remedy.
  """
  config = {**copy.deepcopy(config_lib.OPTIONAL), **config}
  config["spike"] = config_lib.OPTIONAL["spike"] | config["spike"]
  spike = config_lib.section(config_lib.Spike, "spike", config["spike"])
  logging.Spikes(spike.action, spike.factor)
  if spike.action != "none" and not config["log"].get("every"):
    raise ValueError(
      "config.spike compares a loss with those of the last logged window; set"
      " config.log.every to the number of steps in one."
    )
  devices = config_lib.section(config_lib.Mesh, "mesh", config["mesh"])
  mesh = sharding.make_mesh(devices.data, devices.fsdp, devices.tensor)
  task, start_model = None, None
  if config_lib.is_task(config):
    data, splits, start_model, config = open_task(config)
    task = data.task
  plan = phases.plan(config)
  for phase in plan:
    sharding.check_batch(mesh, phase.batch_size, phase.micro_batches)
  if task:
    feeds = [make_feed(phase, data, splits) for phase in plan]
  else:
    feeds = [open_feed(config, phase) for phase in plan]
  data, vocab_size = feeds[0].data, feeds[0].data.vocab_size
  model = config["model"]
  if before and not task and before.get("init_from"):
    model = {**before.get("model", {}), **_stated(model)}
  elif config["init_from"] and not task:
    start_model, model = open_start(config, data)
  config = config | {"model": with_data(config, model, data)}
  taught = None
  if "teacher" in config:
    source = config_lib.section(
      config_lib.Teacher, "teacher", config["teacher"]
    )
    taught = teacher.read(data.prepared[0], task, source.path, source.model)
    config = config | {"teacher": config["teacher"] | {"model": taught.model}}
  objective, schedule, optimizer = make_parts(
    config, sharding.vocab_multiple(mesh)
  )
  for feed in feeds:
    # A length beyond the position table is an error here, before any step.
    boxed = jax.eval_shape(objective.init, jax.random.key(0), feed.shapes)
  sharding.check_sizes(mesh, boxed)
  frozen, digest = {}, None
  if taught:
    try:
      shapes = [frozen_shapes(objective, mesh, feed.shapes) for feed in feeds]
    except ValueError as e:  # Raised by the teacher's encoder.
      raise ValueError(f"teacher.path={taught.path}: {e}") from e
    frozen, digest = teacher.place(taught, shapes[0]), taught.digest
  return Setup(
    config=config,
    mesh=mesh,
    feeds=feeds,
    objective=objective,
    optimizer=optimizer,
    schedule=schedule,
    in_file=file_state(objective, optimizer, mesh, feed.shapes, vocab_size),
    frozen=frozen,
    digest=digest,
    task=task,
    start_model=start_model,
  )


def _stated(model: dict[str, Any]) -> dict[str, Any]:
  """A `model` section without the keys that are left open."""
  return {name: value for name, value in model.items() if value is not None}


def with_data(
  config: dict[str, Any], model: dict[str, Any], data: loader.Data
) -> dict[str, Any]:
  """Returns the section `model` with the sizes that the data decide.

  Args:
    config: the run's config.
    model: its section `model`; a key that is None is taken from the data, or,
      in a run that fine-tunes, left out, so that the family's value counts.
    data: the data of the first phase.

  Raises:
    ValueError: the config says another size.
  """
  model = _stated(model) if config_lib.is_task(config) else dict(model)
  of_data = {"vocab_size": data.vocab_size}
  if model["family"] == "roberta":
    # Its positions begin after this number, and skip tokens that have it.
    of_data["padding_id"] = data.special.pad
  for name, value in of_data.items():
    if model.get(name) is None:
      model[name] = value
    if model[name] != value:
      raise ValueError(
        f"model.{name}={model[name]}, but with the vocabulary of"
        f" {config['data']['path']} it is {value}; leave model.{name} unset to"
        " take it from the data."
      )
  return model


def defaults(config: dict[str, Any]) -> dict[str, Any]:
  """{"data": {...}, ...}: what the keys mean that a run's config lacks.

  Args:
    config: complete; its builder, objective and families decide.
  """
  objective = objectives.factory(config["objective"]["name"])
  takers = {"objective": [objective], "data": [batches.open_data]}
  if not config_lib.is_task(config):
    takers["data"] = [loader.open_data]
  found = {
    section: {
      name: parameter.default
      for function in functions
      for name, parameter in inspect.signature(function).parameters.items()
      if parameter.default is not parameter.empty
    }
    for section, functions in takers.items()
  }
  if not config_lib.is_task(config):
    recipe = recipes.RECIPES[config["data"]["builder"]]
    found["data"] = {**recipe.defaults, **found["data"]}
  found["model"] = _model_defaults(config["model"])
  found |= config_lib.OPTIONAL
  if "teacher" in config:
    found["teacher"] = {"model": _model_defaults(config["teacher"]["model"])}
  return found


def _model_defaults(model: dict[str, Any]) -> dict[str, Any]:
  """Every attribute of a family's variant as it is published."""
  encoder = models.family(model["family"]).build(model["variant"])
  return attributes(encoder) | {"dtype": jnp.dtype(encoder.dtype).name}


def make_parts(
  config: dict[str, Any], vocab_multiple: int = 1
) -> tuple[objectives.Objective, optim.Schedule, optax.GradientTransformation]:
  """Objective, schedule and optimizer; needs neither data nor a teacher.

  Args:
    config: of the run.
    vocab_multiple: see `sharding.vocab_multiple`.
  """
  options = dict(config["objective"])
  name = options.pop("name")
  factory = objectives.factory(name)
  sizes = [config["model"] | {"vocab_multiple": vocab_multiple}]
  if takes_teacher(name, config):
    sizes.append(_teacher_model(config, sizes[0]))
  objective = config_lib.call("objective", factory, *sizes, **options)
  decay = config["optimizer"].get("weight_decay")
  if name == "distil" and options.get("freeze_positions", True) and decay:
    raise ValueError(
      f"optimizer.weight_decay={decay} would shrink the position embeddings"
      " that objective.freeze_positions=True keeps; set it to 0, or pass"
      " --config.objective.freeze_positions=False."
    )
  config_lib.section(config_lib.Schedule, "schedule", config["schedule"])
  schedule = optim.build_schedule(config["total_steps"], **config["schedule"])
  make = optim.factory(config["optimizer"].get("name", ""))
  config_lib.optimizer_of(config["optimizer"])
  optimizer = make(schedule, **config["optimizer"])
  return objective, schedule, optimizer


def takes_teacher(name: str, config: dict[str, Any]) -> bool:
  """Returns True if an objective learns from a teacher.

  Raises:
    ValueError: the config has one where it does not, or has none where it does.
  """
  takes = "teacher" in inspect.signature(objectives.factory(name)).parameters
  if takes and "teacher" not in config:
    raise ValueError(
      f"config.teacher is missing: objective {name!r} learns from one; add"
      " teacher=dict(path=..., model=dict(family=..., variant=...))."
    )
  if "teacher" in config and not takes:
    raise ValueError(
      f"config.teacher: objective {name!r} learns from none; remove it."
    )
  return takes


def _teacher_model(
  config: dict[str, Any], model: dict[str, Any]
) -> dict[str, Any]:
  """Keyword arguments of the teacher's `build`, with `family`."""
  same = {name: model[name] for name in SHARED if name in model}
  placed = {"vocab_multiple": model["vocab_multiple"]}
  of_data = {name: model[name] for name in OF_DATA if name in model}
  return of_data | same | config["teacher"]["model"] | placed
