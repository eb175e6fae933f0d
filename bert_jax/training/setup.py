"""All that a run needs before it trains, made of its config and checked."""

import dataclasses
import inspect
from typing import Any, TypeVar

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

T = TypeVar("T", config_lib.Evaluate, config_lib.Checkpoint)
# Keys of a model's config that its teacher shares, unless the teacher's section
# has its own values.
SHARED = ("dtype", "attention", "elementwise", "unroll")
# Keys of both models that come from the data and the mesh.
OF_DATA = ("vocab_size", "padding_id")


def open_feed(
  phase: phases.Phase, seed: int, evaluate: config_lib.Evaluate
) -> Feed:
  """Opens a phase's stream of examples and its held-out set."""
  # Each phase has a stream of its own, from its beginning.
  if phase.number:
    seed = hashing.make_key("phase", phase.number, seed)
  data = loader.open_data(seed=seed, **phase.data)
  heldout = None
  if evaluate.every:
    limit = evaluate.examples or None
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
  run: config_lib.Run,
) -> tuple[
  batches.TrainingSplit,
  batches.Splits | None,
  Pretrained | None,
  config_lib.Run,
]:
  """Opens a task's folder, and the model that fine-tuning begins with.

  Returns:
    The data, its splits that are scored, the model, and the config with what
    the data and the model decide: steps, kind and labels of the objective, the
    model's sizes.

  Raises:
    ValueError: with one sentence.
  """
  data = batches.open_data(
    run.batch_size, run.seed, **config_lib.options(run.data)
  )
  objective = dataclasses.replace(
    run.objective, kind=data.task.kind, labels=data.task.labels
  )
  if objective.name == "finetune":
    pad = data.folder.meta["pad"]
    objective = dataclasses.replace(objective, padding_id=pad)
  run = dataclasses.replace(
    run,
    total_steps=run.total_steps or data.steps_of_epochs,
    evaluate=_every_epoch(run.evaluate, data),
    checkpoint=_every_epoch(run.checkpoint, data),
    objective=objective,
  )
  start_model = None
  if run.init_from:
    start_model = start_from.read(
      run.init_from,
      data.prepared[0].vocab,
      run.data.path,
      run.model.family,
    )
    model = start_from.fill_model(config_lib.options(run.model), start_model)
    run = dataclasses.replace(run, model=config_lib.model_of(model))
  elif run.model.family is None:
    raise ValueError(
      "init_from is empty; pass --config.init_from=PATH, a pre-trained model:"
      " the --workdir of a run, a converted folder or one of transformers."
    )
  splits = None
  if run.evaluate.every:
    predicts = objective.others.get("stage") != "layers"
    splits = batches.open_splits(data, predicts)
  return data, splits, start_model, run


def _every_epoch(section: T, data: batches.TrainingSplit) -> T:
  """Returns a section whose `every` is an epoch if it was left open."""
  if section.every is not None:
    return section
  return dataclasses.replace(section, every=data.steps_of_epoch)


def open_start(
  run: config_lib.Run, data: loader.PretrainingData
) -> tuple[Pretrained, config_lib.Model]:
  """Opens the model that pre-training goes on from.

  Returns:
    The model, and the config's section `model` with its sizes.

  Raises:
    ValueError: with one sentence.
  """
  start_model = start_from.read_to_go_on(
    run.init_from,
    data.prepared[0].vocab,
    run.data.path,
    config_lib.options(run.objective),
    run.model.family,
  )
  model = config_lib.options(run.model)
  line = start_from.variant_line(model, start_model)
  if line:
    start_model = start_model._replace(notes=(line, *start_model.notes))
  sizes = start_from.fill_model(model, start_model)
  return start_model, config_lib.model_of(sizes)


def build(run: config_lib.Run, before: dict[str, Any] | None = None) -> Setup:
  """Builds the parts of a run that do not train, and checks that they fit.

  Args:
    run: the run's config. `Setup.config` is this config with what the data,
      `init_from` and the teacher's files decide.
    before: config.json of the run that goes on from a checkpoint of its own. A
      model that its pre-training began with is not opened again: its sizes
      stand here.

  Raises:
    ValueError: with one sentence that names the key and the remedy.
  """
  logging.Spikes(run.spike.action, run.spike.factor)
  if run.spike.action != "none" and not run.log.every:
    raise ValueError(
      "config.spike compares a loss with those of the last logged window; set"
      " config.log.every to the number of steps in one."
    )
  mesh = sharding.make_mesh(run.mesh.data, run.mesh.fsdp, run.mesh.tensor)
  task, start_model = None, None
  if run.is_task:
    data, splits, start_model, run = open_task(run)
    task = data.task
  plan = phases.plan(run)
  for phase in plan:
    sharding.check_batch(mesh, phase.batch_size, phase.micro_batches)
  if task:
    feeds = [make_feed(phase, data, splits) for phase in plan]
  else:
    feeds = [open_feed(phase, run.seed, run.evaluate) for phase in plan]
  data, vocab_size = feeds[0].data, feeds[0].data.vocab_size
  model = run.model
  if before and not task and before.get("init_from"):
    sizes = before.get("model", {}) | config_lib.options(model)
    model = config_lib.model_of(sizes)
  elif run.init_from and not task:
    start_model, model = open_start(run, data)
  run = dataclasses.replace(run, model=with_data(model, data, run.data.path))
  taught = None
  if run.teacher:
    taught = teacher.read(
      data.prepared[0],
      task,
      run.teacher.path,
      config_lib.options(run.teacher.model),
    )
    model = config_lib.model_of(taught.model)
    run = dataclasses.replace(
      run, teacher=dataclasses.replace(run.teacher, model=model)
    )
  objective, schedule, optimizer = make_parts(
    run, sharding.vocab_multiple(mesh)
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
    config=run,
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


def with_data(
  model: config_lib.Model,
  data: loader.PretrainingData | batches.TrainingSplit,
  data_path: str,
) -> config_lib.Model:
  """Returns the section `model` with the sizes that the data decide.

  Args:
    model: the section; a size that is None is taken from the data.
    data: the data of the first phase.
    data_path: the path of the data, for messages.

  Raises:
    ValueError: the config says another size.
  """
  of_data = {"vocab_size": data.vocab_size}
  if model.family == "roberta":
    # Its positions begin after this number, and skip tokens that have it.
    of_data["padding_id"] = data.special.pad
  for name, value in of_data.items():
    stated = getattr(model, name)
    if stated is not None and stated != value:
      raise ValueError(
        f"model.{name}={stated}, but with the vocabulary of {data_path} it is"
        f" {value}; leave model.{name} unset to take it from the data."
      )
  return dataclasses.replace(model, **of_data)


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
  run: config_lib.Run, vocab_multiple: int = 1
) -> tuple[objectives.Objective, optim.Schedule, optax.GradientTransformation]:
  """Objective, schedule and optimizer; needs neither data nor a teacher.

  Args:
    run: the run's config.
    vocab_multiple: see `sharding.vocab_multiple`.
  """
  options = config_lib.options(run.objective)
  name = options.pop("name")
  factory = objectives.factory(name)
  model = config_lib.options(run.model) | {"vocab_multiple": vocab_multiple}
  sizes = [model]
  if takes_teacher(name, run.teacher):
    sizes.append(_teacher_model(run.teacher, model))
  objective = config_lib.call("objective", factory, *sizes, **options)
  decay = getattr(run.optimizer, "weight_decay", 0.0)
  if name == "distil" and options.get("freeze_positions", True) and decay:
    raise ValueError(
      f"optimizer.weight_decay={decay} would shrink the position embeddings"
      " that objective.freeze_positions=True keeps; set it to 0, or pass"
      " --config.objective.freeze_positions=False."
    )
  schedule = optim.build_schedule(
    run.total_steps, **config_lib.options(run.schedule)
  )
  make = optim.factory(run.optimizer.name)
  optimizer = make(schedule, **config_lib.options(run.optimizer))
  return objective, schedule, optimizer


def takes_teacher(name: str, source: config_lib.Teacher | None) -> bool:
  """Returns True if an objective learns from a teacher.

  Args:
    name: the name of the objective.
    source: the section `teacher`; None if the config has none.

  Raises:
    ValueError: the config has one where it does not, or has none where it does.
  """
  takes = name in objectives.WITH_TEACHER
  if takes and source is None:
    raise ValueError(
      f"config.teacher is missing: objective {name!r} learns from one; add"
      " teacher=dict(path=..., model=dict(family=..., variant=...))."
    )
  if source is not None and not takes:
    raise ValueError(
      f"config.teacher: objective {name!r} learns from none; remove it."
    )
  return takes


def _teacher_model(
  source: config_lib.Teacher, model: dict[str, Any]
) -> dict[str, Any]:
  """Keyword arguments of the teacher's `build`, with `family`."""
  same = {name: model[name] for name in SHARED if name in model}
  placed = {"vocab_multiple": model["vocab_multiple"]}
  of_data = {name: model[name] for name in OF_DATA if name in model}
  return of_data | same | config_lib.options(source.model) | placed
