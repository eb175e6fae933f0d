"""The loop of a run: steps, logged rows, evaluations and checkpoints."""

import dataclasses
import functools
import math
from collections.abc import Callable
from concurrent.futures import Executor

import jax

from bert_jax.devices import compile_ahead, hosts, sharding
from bert_jax.examples import loader
from bert_jax.training import evaluate, evaluate_task, logging, phases, steps
from bert_jax.training.parts import Feed, Setup
from bert_jax.training.snapshot import Snapshots
from bert_jax.training.state import TrainState
from bert_jax.weights import checkpoint

# The run has diverged if the held-out loss is more than this many times the
# loss of the run's first steps. A checkpoint at such a step is never the best.
DIVERGED = 1.5


def check_data(setup: Setup) -> None:
  """Raises OSError if the data was changed since the run opened it."""
  for prepared in setup.read_on_the_way:
    prepared.watch.check()


@dataclasses.dataclass
class Progress:
  """What changes while a run goes on, besides its files.

  Attributes:
    state: the train state.
    window: sums of the steps since the last row.
    best: lowest held-out loss of the phase so far, of a task minus its best
      score; each phase starts anew, since longer rows are easier to predict.
    means: the results of the last evaluation.
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


def run_phase(
  setup: Setup,
  feed: Feed,
  progress: Progress,
  saver: checkpoint.Checkpointer,
  log: logging.Logger,
  stop: list[int],
  profiler: logging.Profiler,
) -> None:
  """Steps, rows, evaluations and checkpoints, all on step numbers only."""
  phase, objective, settings = feed.phase, setup.objective, setup.config
  total = settings.total_steps
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
