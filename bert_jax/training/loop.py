"""Trains the phases of a run, and logs, evaluates and saves its steps."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import jax

from bert_jax.devices import compile_ahead, hosts, sharding
from bert_jax.examples import loader
from bert_jax.messages import say
from bert_jax.tasks import batches as task_batches
from bert_jax.tasks import encoded_rows
from bert_jax.training import evaluate, evaluate_task, logging, phases, steps
from bert_jax.training.parts import Feed, Setup
from bert_jax.training.snapshot import SnapshotMaker
from bert_jax.training.state import TrainState
from bert_jax.weights import checkpoint

# The run has diverged if the held-out loss is more than this many times the
# loss of the run's first steps. A checkpoint of a diverged run never counts as
# the best.
DIVERGENCE_FACTOR = 1.5

# A function that evaluates a state. It returns the results by name, and the
# cost of the state. A lower cost is better. For text the cost is the loss, and
# for a task it is minus the task's first metric, or None if this metric is
# undefined.
StateEvaluator = Callable[[TrainState], tuple[dict[str, float], float | None]]


def check_data_unchanged(setup: Setup) -> None:
  """Raises OSError if the data was changed since the run opened it."""
  for prepared in setup.mapped_folders:
    prepared.watch.check_run_data()


@dataclasses.dataclass
class RunProgress:
  """Holds what changes during a run, except its files.

  Attributes:
    state: the train state.
    step_sums: the sums of the losses and metrics of all steps since the last
      line that training wrote to metrics.jsonl.
    best_cost: the lowest cost in this phase; None before the first evaluation
      in the phase. Costs of two phases are not compared, since longer rows are
      easier to predict.
    evaluation_results: the results of the last evaluation, by name.
    spike_detector: finds losses that are too high.
    first_loss: the mean loss in the first line that training writes to
      metrics.jsonl; None before this line, and always None for a task.
    stop_requested: True after a SIGTERM or SIGINT.
  """

  state: TrainState
  step_sums: logging.StepSums
  best_cost: float | None
  evaluation_results: dict[str, float]
  spike_detector: logging.SpikeDetector
  first_loss: float | None = None
  stop_requested: bool = False


def run_phase(
  setup: Setup,
  feed: Feed,
  progress: RunProgress,
  saver: checkpoint.Checkpointer,
  log: logging.Logger,
  signals: list[int],
  profiler: logging.Profiler,
) -> None:
  """Trains one phase, and logs, evaluates and saves its steps.

  Whether to log, evaluate or save depends only on the number of the step. So a
  run that was stopped and continued gives the same results as a run that was
  not stopped.

  Args:
    setup: the objects that do not change during the run.
    feed: the phase and its data.
    progress: what changes during the run; this function updates it.
    saver: the run's checkpoints.
    log: the run's logger.
    signals: the numbers of the signals that came so far, from
      `hosts.stop_signals`.
    profiler: traces the steps that the config chooses.
  """
  phase, objective, config = feed.phase, setup.objective, setup.config
  total_steps = config.steps
  intervals = {
    "log": config.log.every,
    "checkpoint": config.checkpoint.every,
    "evaluate": config.evaluate.every if feed.heldout else 0,
  }
  jitted_step = jit_step(setup, phase, progress.state, bool(config.model.remat))
  train_step = compile_ahead.CompiledAhead(
    jitted_step, batch_index=2, mesh=setup.mesh
  )
  key = jax.random.key(config.seed)
  start_step = int(progress.state.step)
  if start_step == phase.start:
    # Losses of rows of different lengths cannot be compared.
    progress.best_cost = None
  example_ranges = (
    (phase.first_example(step), phase.batch_size)
    for step in range(start_step, phase.end)
  )
  host, num_hosts = sharding.batch_share_of_process(setup.mesh)
  compiled_shapes = set()

  def is_due(name: str, step: int) -> bool:
    interval = intervals[name]
    if not interval:
      # 0 means never; only a checkpoint is still saved at the last step.
      return name == "checkpoint" and step == total_steps
    return step % interval == 0 or step == total_steps

  def take_step(step: int, batch: dict[str, Any]) -> None:
    flops = objective.flops(batch) * num_hosts
    with profiler.trace_step(step):
      progress.state, metrics = train_step(
        progress.state,
        setup.teacher_params,
        sharding.to_global_batch(setup.mesh, batch),
        key,
        *progress.spike_detector.step_arguments(),
      )
    profiler.stop_if_complete(step, metrics["loss"])
    progress.step_sums.add(step, metrics | {"flops_per_step": flops})

  with (
    compile_ahead.compile_threads() as pool,
    loader.Batches(
      feed.training_rows, example_ranges, host, num_hosts
    ) as batches,
    contextlib.ExitStack() as watch_until_first_batch,
  ):
    watch_until_first_batch.enter_context(
      logging.watch_run("making the programs and the first batch")
    )
    if isinstance(feed.training_rows, task_batches.TrainingSplit):
      for features in feed.training_rows.features_by_length():
        train_step.begin_compilation(
          pool,
          progress.state,
          setup.teacher_params,
          sharding.batch_shapes(features, phase.batch_size),
          key,
          *progress.spike_detector.step_arguments(),
        )
    evaluate_state = make_state_evaluator(setup, feed, progress.state, pool)
    # The pool compiles programs in the order of these calls. The program that
    # copies the state is needed last.
    make_snapshot = SnapshotMaker(
      pool, progress.state, setup.checkpoint_layout, setup.mesh
    )
    for step, (batch, position) in enumerate(
      log.count_data_wait(batches), start_step + 1
    ):
      watch_until_first_batch.close()
      shape = batch["sequence_ids"].shape
      if shape not in compiled_shapes:
        compiled_shapes.add(shape)
        progress.step_sums.wait()
        title = f"compiling the step for rows of {shape[-1]} tokens"
        # The speed that is logged does not include the compilation.
        with log.exclude_from_speed(steps=1), log.report_progress(title):
          take_step(step, batch)
          progress.step_sums.wait()
      else:
        take_step(step, batch)
      progress.stop_requested = hosts.stop_requested(step, signals)
      log.print_if_silent(step)
      if is_due("log", step):
        means, tokens = progress.step_sums.take_means()
        log.log_training(step, means, tokens)
        progress.spike_detector.set_max_loss(means["loss"])
        if progress.first_loss is None and not setup.task:
          progress.first_loss = means["loss"]
      must_evaluate = is_due("evaluate", step)
      must_save = is_due("checkpoint", step) or progress.stop_requested
      save_step = functools.partial(
        save_checkpoint,
        setup,
        phase,
        progress,
        saver,
        log,
        step,
        position,
        make_snapshot,
      )
      if must_save:
        # Save before the evaluation. If the evaluation fails or is killed,
        # the steps so far are not lost.
        save_step(evaluation_pending=must_evaluate)
      if progress.stop_requested and step < total_steps:
        return  # The continued run begins with this step's evaluation.
      if must_evaluate and must_save:
        evaluate_checkpoint(evaluate_state, phase, progress, saver, log, step)
      elif must_evaluate:
        cost, is_best = evaluate_step(evaluate_state, progress, log, step)
        if is_best:
          save_step(cost=cost)
      if progress.stop_requested:
        return


def evaluate_step(
  evaluate_state: StateEvaluator,
  progress: RunProgress,
  log: logging.Logger,
  step: int,
) -> tuple[float | None, bool]:
  """Evaluates the current state of a run; `progress` gets the results.

  Returns:
    The cost of the state, and True if this cost is the lowest so far in the
    phase. The cost is None if it is undefined or the run has diverged.
  """
  progress.step_sums.wait()
  title = f"evaluating step {step}"
  with log.exclude_from_speed(), log.report_progress(title):
    progress.evaluation_results, cost = evaluate_state(progress.state)
  log.log_evaluation(step, progress.evaluation_results)
  first_loss = progress.first_loss
  max_cost = math.inf if first_loss is None else DIVERGENCE_FACTOR * first_loss
  if cost is not None and cost > max_cost:
    say(
      f"step {step}: the held-out loss {cost:.4g} is more than"
      f" {DIVERGENCE_FACTOR} times the loss of the run's first steps,"
      f" {first_loss:.4g}; this checkpoint never counts as the best"
    )
    cost = None
  is_best = cost is not None and (
    progress.best_cost is None or cost < progress.best_cost
  )
  progress.best_cost = cost if is_best else progress.best_cost
  return cost, is_best


def evaluate_checkpoint(
  evaluate_state: StateEvaluator,
  phase: phases.Phase,
  progress: RunProgress,
  saver: checkpoint.Checkpointer,
  log: logging.Logger,
  step: int,
) -> None:
  """Evaluates the last saved checkpoint, and adds the result to its metadata.

  Raises:
    FloatingPointError: a loss is not finite. The checkpoint is removed, so that
      an earlier checkpoint is the newest.
  """
  try:
    cost, _ = evaluate_step(evaluate_state, progress, log, step)
  except FloatingPointError:
    saver.remove(step)
    raise
  metadata = dict(
    best=progress.best_cost,
    heldout=progress.evaluation_results,
    pending=False,
    log=log.row_record(),
  )
  with log.count_wait("checkpoint"):
    saver.add_evaluation(step, metadata, cost, phase.index)


def evaluate_pending_checkpoint(
  setup: Setup,
  feed: Feed,
  progress: RunProgress,
  saver: checkpoint.Checkpointer,
  log: logging.Logger,
) -> None:
  """Evaluates a checkpoint that a stopped run saved without an evaluation.

  If the config was changed so that the run never evaluates, nothing is
  evaluated, and the checkpoint is only marked as not pending.
  """
  step = int(progress.state.step)
  if not feed.heldout:
    saver.add_evaluation(step, dict(pending=False), None, feed.phase.index)
    return
  with compile_ahead.compile_threads() as pool:
    evaluate_state = make_state_evaluator(setup, feed, progress.state, pool)
    evaluate_checkpoint(evaluate_state, feed.phase, progress, saver, log, step)


def jit_step(
  setup: Setup, phase: phases.Phase, state: TrainState, remat: bool
) -> Callable[..., tuple[TrainState, steps.Metrics]]:
  """Returns the jitted step of a phase; see `steps.make_train_step`."""
  return jax.jit(
    steps.make_train_step(
      setup.objective,
      setup.optimizer,
      setup.schedule,
      phase.num_micro_batches,
      setup.update_sharding,
    ),
    donate_argnums=0,
    # Keep the shardings of the state. Otherwise the compiler may copy an array
    # that is split over devices to every device.
    out_shardings=(jax.tree.map(lambda x: x.sharding, state), None),
    compiler_options=sharding.compiler_options(
      setup.mesh.devices.flat[0], remat, setup.update_sharding is not None
    ),
  )


def make_state_evaluator(
  setup: Setup, feed: Feed, state: TrainState, pool: Executor
) -> StateEvaluator:
  """Returns a function that evaluates a state on the held-out rows.

  Args:
    setup: the objects that do not change during the run.
    feed: the phase and its data.
    state: the train state, or its shapes.
    pool: the threads that compile a task's evaluation ahead.
  """
  # This objective gathers the parameters that devices store in parts.
  objective = steps.gather_first(setup.objective, setup.update_sharding)
  phase = feed.phase
  # An evaluation's batch has as many rows as a micro-batch of training.
  num_rows = phase.batch_size // phase.num_micro_batches
  eval_step = steps.make_eval_step(objective)
  heldout = feed.heldout
  if setup.task:
    task, splits = setup.task, heldout or []
    assert isinstance(splits, list)
    evaluator = evaluate_task.SplitEvaluator(
      eval_step, objective.predict, setup.mesh
    )
    if splits:
      evaluator.begin_compilation(
        pool, state, setup.teacher_params, splits, num_rows
      )

    def evaluate_on_task(
      state: TrainState,
    ) -> tuple[dict[str, float], float | None]:
      means = evaluate_task.evaluate_splits(
        evaluator,
        state,
        setup.teacher_params,
        splits,
        num_rows,
        objective.coefficients,
      )
      score = means.get(task.metrics[0], -means["loss"])
      # A correlation is undefined if all predictions are equal.
      return means, -score if math.isfinite(score) else None

    return evaluate_on_task
  compiled_step = compile_ahead.CompiledAhead(
    sharding.jit(eval_step), batch_index=3, mesh=setup.mesh
  )

  def evaluate_on_text(
    state: TrainState,
  ) -> tuple[dict[str, float], float | None]:
    assert isinstance(heldout, loader.Heldout)
    means = evaluate.evaluate(
      compiled_step,
      objective.coefficients,
      state,
      setup.teacher_params,
      heldout,
      num_rows,
      setup.mesh,
    )
    evaluate_task.check_loss(int(state.step), "held-out", means["loss"])
    check_data_unchanged(setup)
    return means, means["loss"]

  return evaluate_on_text


def save_checkpoint(
  setup: Setup,
  phase: phases.Phase,
  progress: RunProgress,
  saver: checkpoint.Checkpointer,
  log: logging.Logger,
  step: int,
  position: dict[str, int],
  make_snapshot: SnapshotMaker,
  cost: float | None = None,
  evaluation_pending: bool = False,
) -> None:
  """Starts to save a checkpoint, with everything that a restart needs.

  Args:
    setup: the objects that do not change during the run.
    phase: the phase to which the step belongs.
    progress: what changes during the run.
    saver: the run's checkpoints.
    log: the run's logger, which counts the time that the run waits here.
    step: the number of optimizer steps done.
    position: the position in the data.
    make_snapshot: copies the state for the checkpoint.
    cost: the cost from an evaluation at this step; None if the step was not
      evaluated, or if the cost is undefined.
    evaluation_pending: True if an evaluation at this step must still be made.

  Raises:
    OSError: the data was changed since it was opened.
  """
  check_data_unchanged(setup)
  # `window` holds the sums since the last line of metrics.jsonl, `log` says
  # which lines this file has, and a loss above `limit` is a spike.
  metadata = dict(
    phase=phase.index,
    data=position,
    best=progress.best_cost,
    pending=evaluation_pending,
    window=progress.step_sums.value_to_save(),
    heldout=progress.evaluation_results,
    fingerprint=setup.fingerprints,
    teacher=setup.teacher_digest,
    log=log.row_record(),
    first=progress.first_loss,
    limit=progress.spike_detector.value_to_save(),
  )
  if setup.task:
    metadata["task"] = encoded_rows.task_fields(setup.task)
  title = f"copying the state of step {step} for its checkpoint"
  with log.report_progress(title), log.count_wait("checkpoint"):
    file_state, checksums = make_snapshot(step, progress.state)
    saver.save(step, file_state, metadata, cost, phase.index, checksums)
