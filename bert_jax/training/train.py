"""A run from start or checkpoint to its end; `loop.py` has its steps."""

import contextlib
import os
from typing import Any

import jax

from bert_jax.devices import hosts, sharding
from bert_jax.examples import loader, recipes
from bert_jax.training import config as config_lib
from bert_jax.training import (
  evaluate,
  logging,
  loop,
  start_from,
)
from bert_jax.training.parts import Setup
from bert_jax.training.setup import build, defaults, open_start
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
    config.seed,
    setup.feeds[0].shapes,
  )
  if saver.latest_step() is not None:
    saved, meta, step = saver.restore_newest(setup.in_file)
    state = resize(saved, state)
    if meta["fingerprint"] not in setup.fingerprints:
      raise ValueError(
        f"data.path={config.data.path} does not hold the data that this"
        " run was started with (fingerprints differ); give the right folder, or"
        " start in a new --workdir."
      )
    if meta.get("teacher") != setup.digest:
      raise ValueError(
        f"teacher.path={config.teacher.path} is not the teacher that this"
        " run was started with (digests differ); give the right one, or start"
        " in a new --workdir."
      )
    setup.feeds[meta["phase"]].data.restore(meta["data"])
    print(f"continuing from step {step}", flush=True)
    return state, meta
  if setup.start_model is None and config.init_from:
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
      config.model.vocab_size,
      config.init_new_rows,
    )
    state = state.replace(params=params)
    if setup.objective.inherit:
      lines.append(
        "no parameters from the teacher: init_from overrides objective.layers"
      )
    title = f"parameters from {config.init_from}"
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


def run(config: dict[str, Any], workdir: str) -> TrainState:
  """Trains from `workdir`'s newest checkpoint, or from scratch, to the end.

  Args:
    config: nested dict with the keys of `config.Run`, see configs/. It stays
      as it is.
    workdir: the run's folder; made if missing. Gets config.json, vocab.txt,
      metrics.jsonl, TensorBoard files, loss.png, checkpoints/.

  Returns:
    The last state (that of the stop if SIGTERM or SIGINT came).

  Raises:
    ValueError: bad config, data or checkpoint, in one sentence.
    FloatingPointError: a loss is not finite; checkpoints before it are kept.
  """
  setup = build(config_lib.parse(config), config_before(workdir))
  settings = setup.config
  config = config_lib.to_json(config, settings)
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
    progress = loop.Progress(
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
      loop.evaluate_saved(setup, feed, progress, saver, log)
    for feed in setup.feeds:
      if not progress.stopped and progress.state.step < feed.phase.end:
        loop.run_phase(setup, feed, progress, saver, log, stop, profiler)
    saver.wait()
    log.plot()
  step = int(progress.state.step)
  if step == settings.total_steps:
    summary(setup, progress.means, workdir)
  else:
    print(f"stopped at step {step}; the same command continues.", flush=True)
  return progress.state
