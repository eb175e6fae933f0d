"""A run from start or checkpoint to its end. Reads top to bottom."""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import jax

from bert_jax.devices import compile_ahead, hosts, sharding
from bert_jax.examples import loader, recipes
from bert_jax.training import config as config_lib
from bert_jax.training import (
  evaluate,
  evaluate_task,
  logging,
  phases,
  start_from,
  steps,
)
from bert_jax.training.setup import Feed, Setup, build, defaults, open_start
from bert_jax.training.snapshot import Snapshots
from bert_jax.training.state import (
  TrainState,
  init_state,
  resize,
  vocabulary_axes,
)
from bert_jax.training.workdir import (
  config_before,
  lock,
  named_errors,
  print_changed_tokenizer,
  saved_config,
  write_workdir,
)
from bert_jax.weights import checkpoint, run_config

# The run has diverged if the held-out loss is more than this many times the
# loss of the run's first steps. A checkpoint at such a step is never the best.
DIVERGED = 1.5


def check_data(setup: Setup) -> None:
  """Raises OSError if the data was changed since the run opened it."""
  for prepared in setup.read_on_the_way:
    prepared.watch.check()


def print_rows(setup: Setup) -> None:
  """Prints how much of the text the rows of each phase hold, on process 0."""
  if setup.task or jax.process_index():
    return
  for feed in setup.feeds:
    data = feed.phase.data
    if line := recipes.shortfall(data["builder"], data):
      print(*filter(None, [feed.phase.name, line]), sep=": ", flush=True)
    for folder, line in loader.describe_rows(feed.data, **data):
      names = feed.phase.name, folder if len(setup.prepared) > 1 else ""
      print(*filter(None, [*names, line]), sep=": ", flush=True)


def start(
  setup: Setup, saver: checkpoint.Checkpointer
) -> tuple[TrainState, dict[str, Any]]:
  """The state to go on from: newest checkpoint, `init_from`, or the seed.

  With the seed, a student takes over what its objective says of its teacher.

  Returns:
    The state and the checkpoint's metadata ({} at a fresh start).

  Raises:
    ValueError: the checkpoint is of another model, other data, another teacher.
  """
  config = setup.config
  state = init_state(
    setup.objective,
    setup.optimizer,
    setup.mesh,
    config["seed"],
    setup.feeds[0].shapes,
  )
  if saver.latest_step() is not None:
    saved, meta, step = saver.restore_newest(setup.in_file)
    state = resize(saved, state)
    if meta["fingerprint"] not in setup.fingerprints:
      raise ValueError(
        f"data.path={config['data']['path']} does not hold the data that this"
        " run was started with (fingerprints differ); give the right folder, or"
        " start in a new --workdir."
      )
    if meta.get("teacher") != setup.digest:
      raise ValueError(
        f"teacher.path={config['teacher']['path']} is not the teacher that this"
        " run was started with (digests differ); give the right one, or start"
        " in a new --workdir."
      )
    setup.feeds[meta["phase"]].data.restore(meta["data"])
    print(f"continuing from step {step}", flush=True)
    return state, meta
  if setup.start_model is None and config["init_from"]:
    # `build` opened no model, since the run had checkpoints; but all of them
    # are damaged, so the run begins again.
    start_model, _ = open_start(config, setup.feeds[0].data)
    setup = setup._replace(start_model=start_model)
  if setup.start_model:
    params, lines = start_from.take(
      setup.start_model,
      state.params,
      setup.objective.takes,
      setup.task.labels if setup.task else (),
      vocabulary_axes(setup.objective, setup.feeds[0].shapes),
      config["model"]["vocab_size"],
      config["init_new_rows"],
    )
    state = state.replace(params=params)
    if setup.objective.inherit:
      lines.append(
        "no parameters from the teacher: init_from overrides objective.layers"
      )
    title = f"parameters from {config['init_from']}"
    print(title, *lines, sep="\n  ", flush=True)
  elif setup.objective.inherit:
    places = jax.tree.map(lambda x: x.sharding, state.params)
    inherit = jax.jit(setup.objective.inherit, out_shardings=places)
    state = state.replace(params=inherit(state.params, setup.frozen))
  return state, {}


def summary(setup: Setup, means: dict[str, float], workdir: str) -> None:
  """The last lines of a run: what it reached, and where to look."""
  heldout = setup.feeds[-1].heldout
  if setup.task:
    for name, value in means.items():
      print(f"{name}: {value:.4f}")
  elif heldout is not None and means:
    counts = sum(part.unigrams for part in setup.prepared)
    smoothing = setup.feeds[-1].phase.data.get("smoothing", 0.0)
    for line in evaluate.summary(heldout, counts, means, smoothing):
      print(line)
  print(f"plot: {os.path.join(workdir, 'loss.png')}")
  print(f"TensorBoard: tensorboard --logdir {workdir}", flush=True)


@dataclasses.dataclass
class Progress:
  """What changes while a run goes on, besides its files.

  Attributes:
    state: the train state.
    window: sums of the steps since the last row.
    best: lowest held-out loss of the phase so far, of a task minus its best
      score; each phase starts anew, since longer rows are easier to predict.
    means: of the last evaluation.
    spikes: finds losses that are too high.
    first_loss: mean loss of the first logged window; None for a task.
    work: operations of the steps since the last row.
    stopped: if SIGTERM or SIGINT came.
  """

  state: TrainState
  window: logging.Window
  best: float | None
  means: dict[str, float]
  spikes: logging.Spikes
  first_loss: float | None = None
  work: list[float] = dataclasses.field(default_factory=list)
  stopped: bool = False


def run(config: dict[str, Any], workdir: str) -> TrainState:
  """Trains from `workdir`'s newest checkpoint, or from scratch, to the end.

  Args:
    config: nested dict with the keys of `config.Run`, see configs/. It stays
      as it is.
    workdir: of the run; made if missing. Gets config.json, vocab.txt,
      metrics.jsonl, TensorBoard files, loss.png, checkpoints/.

  Returns:
    The last state (that of the stop if SIGTERM or SIGINT came).

  Raises:
    ValueError: bad config, data or checkpoint, in one sentence.
    FloatingPointError: a loss is not finite; checkpoints before it are kept.
  """
  given = config_lib.parse(config)
  setup = build(config, config_before(workdir))
  config = setup.config
  settings = config_lib.with_derived(given, config)
  same = config | {"data": config["data"] | {"path": setup.fingerprint}}
  if setup.digest:
    same["teacher"] = config["teacher"] | {"path": setup.digest}
  hosts.check_same("config", run_config.flatten(same))
  with contextlib.ExitStack() as stack:
    stack.enter_context(lock(workdir))
    stack.enter_context(sharding.use_mesh(setup.mesh))
    stop = stack.enter_context(hosts.stop_signals())
    saver = checkpoint.Checkpointer(
      workdir, settings.checkpoint.keep, settings.checkpoint.keep_best
    )
    stack.callback(saver.close)
    stack.enter_context(hosts.ends_all())
    stack.enter_context(named_errors(workdir))
    # Until a first checkpoint exists, a restart may use a different config.
    if saver.latest_step() is not None:
      default_values = defaults(config)
      before = saved_config(workdir, saver, default_values)
      for line in config_lib.check_restart(before, config, default_values):
        print(f"changed: {line}", flush=True)
    state, meta = start(setup, saver)
    # Write config.json only after `start` has checked that this folder's
    # checkpoints belong to this run.
    tokenizer = setup.prepared[0].tokenizer_files()
    print_changed_tokenizer(workdir, meta.get("tokenizer"))
    write_workdir(workdir, config, tokenizer)
    saver.describe(config, tokenizer)
    print_rows(setup)
    pending = meta.get("pending", False)
    step, total = int(state.step), settings.total_steps
    log = logging.Logger(workdir, step, total, meta.get("log"), again=pending)
    stack.callback(log.close)
    progress = Progress(
      state,
      logging.Window(meta.get("window"), settings.spike.action == "stop"),
      meta.get("best"),
      meta.get("heldout", {}),
      logging.Spikes(
        settings.spike.action, settings.spike.factor, meta.get("limit")
      ),
      meta.get("first"),
    )
    profiler = logging.Profiler(
      workdir, settings.profile.start, settings.profile.steps
    )
    stack.callback(profiler.close)
    if pending:
      feed = setup.feeds[meta["phase"]]
      evaluate_saved(setup, feed, progress, saver, log)
    for feed in setup.feeds:
      if not progress.stopped and progress.state.step < feed.phase.end:
        run_phase(setup, feed, settings, progress, saver, log, stop, profiler)
    saver.wait()
    log.plot()
  step = int(progress.state.step)
  if step == settings.total_steps:
    summary(setup, progress.means, workdir)
  else:
    print(f"stopped at step {step}; the same command continues.", flush=True)
  return progress.state


def run_phase(
  setup: Setup,
  feed: Feed,
  settings: config_lib.Run,
  progress: Progress,
  saver: checkpoint.Checkpointer,
  log: logging.Logger,
  stop: list[int],
  profiler: logging.Profiler,
) -> None:
  """Steps, rows, evaluations and checkpoints, all on step numbers only."""
  phase, objective, total = feed.phase, setup.objective, settings.total_steps
  every = {
    "log": settings.log.every,
    "checkpoint": settings.checkpoint.every,
    "evaluate": settings.evaluate.every if feed.heldout else 0,
  }
  jitted = jit_step(setup, phase, progress.state, settings.model.remat)
  train_step = compile_ahead.Ahead(jitted, 2, setup.mesh)
  key = jax.random.key(settings.seed)
  first = int(progress.state.step)
  if first == phase.start:
    progress.best = None  # Losses of other lengths do not compare.
  spans = (
    (phase.first_example(step), phase.batch_size)
    for step in range(first, phase.end)
  )
  share, shapes = sharding.host_share(setup.mesh), set()

  def due(name, step):
    if not every[name]:  # 0 means never, but a checkpoint is saved at the end.
      return name == "checkpoint" and step == total
    return step % every[name] == 0 or step == total

  def advance(step, batch):
    progress.work.append(objective.flops(batch) * share[1])
    with profiler.step(step):
      batch = sharding.to_global(setup.mesh, batch)
      progress.state, values = train_step(
        progress.state,
        setup.frozen,
        batch,
        key,
        *progress.spikes.argument(),
      )
    profiler.finish(step, values["loss"])
    progress.window.add(step, values)

  with (
    compile_ahead.threads() as pool,
    loader.Batches(feed.data, spans, *share) as batches,
  ):
    if setup.task:
      for row in feed.data.shapes():
        batch = sharding.batch_shapes(row, phase.batch_size)
        limit = progress.spikes.argument()
        train_step.prepare(
          pool, progress.state, setup.frozen, batch, key, *limit
        )
    measure = make_measure(setup, feed, progress.state, pool)
    # After the steps' and the measures': it is needed last.
    snapshot = Snapshots(pool, progress.state, setup.in_file, setup.mesh)
    for step, (batch, position) in enumerate(log.timed(batches), first + 1):
      shape = batch["sequence_ids"].shape
      if shape not in shapes:
        shapes.add(shape)
        progress.window.saved()  # Waits for the steps before.
        with log.excluded(steps=1):  # Compilation is not speed.
          advance(step, batch)
          progress.window.saved()
      else:
        advance(step, batch)
      progress.stopped = hosts.stop_requested(step, stop)
      if due("log", step):
        work = sum(progress.work) / len(progress.work)
        means, tokens = progress.window.close()
        log.train(step, means, tokens, work)
        progress.work.clear()
        progress.spikes.close(means["loss"])
        if progress.first_loss is None and not setup.task:
          progress.first_loss = means["loss"]
      evaluating = bool(due("evaluate", step))
      saving = bool(due("checkpoint", step)) or progress.stopped
      save_step = functools.partial(
        save, setup, phase, progress, saver, log, step, position, snapshot
      )
      if saving:
        # Save before the evaluation: if that fails or is killed, no step is
        # lost.
        save_step(pending=evaluating)
      if progress.stopped and step < total:
        return  # After a restart the same command makes the evaluation first.
      if evaluating and saving:
        evaluate_last(measure, phase, progress, saver, log, step)
      elif evaluating:
        measured, improved = evaluate_step(measure, progress, log, step)
        if improved:
          save_step(measured=measured)
      if progress.stopped:
        return


def evaluate_step(
  measure: Callable[[TrainState], tuple[dict[str, float], float | None]],
  progress: Progress,
  log: logging.Logger,
  step: int,
) -> tuple[float | None, bool]:
  """Evaluates the current state of a run.

  Returns:
    The result of `measure` as one number, and True if it is the best so far.
    The number is None if the run has diverged.
  """
  progress.window.saved()
  with log.excluded():
    progress.means, measured = measure(progress.state)
  log.heldout(step, progress.means)
  if progress.first_loss is not None and measured is not None:
    if measured > DIVERGED * progress.first_loss:
      print(
        f"step {step}: the held-out loss {measured:.4g} is more than {DIVERGED}"
        f" times the loss of the run's first steps, {progress.first_loss:.4g};"
        " this checkpoint never counts as the best",
        flush=True,
      )
      measured = None
  improved = measured is not None and (
    progress.best is None or measured < progress.best
  )
  progress.best = measured if improved else progress.best
  return measured, improved


def evaluate_last(
  measure: Callable[[TrainState], tuple[dict[str, float], float | None]],
  phase: phases.Phase,
  progress: Progress,
  saver: checkpoint.Checkpointer,
  log: logging.Logger,
  step: int,
) -> None:
  """Evaluates the checkpoint that was just saved, and adds the result to it.

  Raises:
    FloatingPointError: a loss is not finite. The checkpoint is removed, so that
      an earlier one is the newest.
  """
  try:
    measured, _ = evaluate_step(measure, progress, log, step)
  except FloatingPointError:
    saver.remove(step)
    raise
  meta = dict(best=progress.best, heldout=progress.means, pending=False)
  meta |= dict(log=log.written())
  with log.waiting("checkpoint"):
    saver.add(step, meta, measured, phase.number)


def evaluate_saved(
  setup: Setup,
  feed: Feed,
  progress: Progress,
  saver: checkpoint.Checkpointer,
  log: logging.Logger,
) -> None:
  """Makes the evaluation that a stopped run did not make at its last step."""
  step = int(progress.state.step)
  if not feed.heldout:
    saver.add(step, dict(pending=False), None, feed.phase.number)
    return
  with compile_ahead.threads() as pool:
    measure = make_measure(setup, feed, progress.state, pool)
    evaluate_last(measure, feed.phase, progress, saver, log, step)


def jit_step(
  setup: Setup, phase: phases.Phase, state: TrainState, remat: bool
) -> Callable[..., tuple[TrainState, steps.Metrics]]:
  """The step of a phase, jitted."""
  return jax.jit(
    steps.make_train_step(
      setup.objective, setup.optimizer, setup.schedule, phase.micro_batches
    ),
    donate_argnums=0,
    # Left to itself, the compiler may replicate what a rule splits.
    out_shardings=(jax.tree.map(lambda x: x.sharding, state), None),
    compiler_options=sharding.compiler_options(
      setup.mesh.devices.flat[0], remat
    ),
  )


def make_measure(
  setup: Setup, feed: Feed, state: TrainState, pool: Executor
) -> Callable[[TrainState], tuple[dict[str, float], float | None]]:
  """Returns a state -> what the held-out set says, and that as one number.

  The lower the number the better: the loss, or minus a task's first metric;
  None where that is no number. Of a task, what it needs is compiled by `pool`.
  """
  objective, phase = setup.objective, feed.phase
  rows = phase.batch_size // phase.micro_batches
  eval_step = steps.make_eval_step(objective)
  if setup.task:
    scorer = evaluate_task.Scorer(eval_step, objective.predict, setup.mesh)
    if feed.heldout:
      scorer.prepare(pool, state, setup.frozen, feed.heldout, rows)

    def score(state):
      data = state, setup.frozen, feed.heldout, rows
      means = evaluate_task.score(scorer, *data, objective.coefficients)
      best = means.get(setup.task.metrics[0], -means["loss"])
      # A correlation of one and the same number is none.
      return means, -best if math.isfinite(best) else None

    return score
  compiled = sharding.jit(eval_step)

  def measure(state):
    data = state, setup.frozen, feed.heldout, rows, setup.mesh
    means = evaluate.evaluate(compiled, objective.coefficients, *data)
    evaluate_task.check_loss(int(state.step), "held-out", means["loss"])
    check_data(setup)
    return means, means["loss"]

  return measure


def save(
  setup: Setup,
  phase: phases.Phase,
  progress: Progress,
  saver: checkpoint.Checkpointer,
  log: logging.Logger,
  step: int,
  position: dict[str, int],
  snapshot: Snapshots,
  measured: float | None = None,
  pending: bool = False,
) -> None:
  """Starts to save a checkpoint, with everything that a restart needs.

  Args:
    setup: the run's parts that do not train.
    phase: the phase to which the step belongs.
    progress: the run's current state.
    saver: the run's checkpoints.
    log: the run's logger, which counts the time of waiting.
    step: the number of optimizer steps done.
    position: the position in the data.
    snapshot: copies the state for the save.
    measured: the result of an evaluation at this step; None without one.
    pending: True if an evaluation at this step is still to be made.

  Raises:
    OSError: the data was changed since it was opened.
  """
  check_data(setup)
  meta = dict(phase=phase.number, data=position, best=progress.best)
  meta |= dict(pending=pending)
  meta |= dict(window=progress.window.saved(), heldout=progress.means)
  meta |= dict(fingerprint=setup.fingerprint, teacher=setup.digest)
  meta |= dict(log=log.written(), first=progress.first_loss)
  meta |= dict(limit=progress.spikes.saved())
  meta |= dict(task=setup.task._asdict()) if setup.task else {}
  with log.waiting("checkpoint"):
    in_file, sums = snapshot(step, progress.state)
    saver.save(step, in_file, meta, measured, phase.number, sums)
