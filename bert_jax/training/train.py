"""Trains a run from its start or a checkpoint to its end.

`loop.py` has the loop over the steps.
"""

import contextlib
import dataclasses
import json
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import files
from bert_jax.corpus import reader
from bert_jax.devices import hosts, sharding
from bert_jax.examples import loader, recipes
from bert_jax.messages import UserError, by_caller, key_name, same_call, say
from bert_jax.training import config as config_lib
from bert_jax.training import (
  evaluate,
  logging,
  loop,
  start_from,
)
from bert_jax.training.parts import Setup
from bert_jax.training.setup import (
  build,
  default_values,
  make_drawing_objective,
)
from bert_jax.training.state import (
  TrainState,
  init_state,
  resize_to_layout,
  state_shapes,
  vocabulary_axes,
)
from bert_jax.training.workdir import (
  add_file_to_errors,
  lock,
  print_changed_tokenizer,
  read_config_if_resumed,
  read_saved_config,
  write_config_and_tokenizer,
)
from bert_jax.weights import checkpoint, run_config


def print_text_coverage(setup: Setup) -> None:
  """On process 0, prints how much of the text the rows of each phase hold."""
  if setup.task or jax.process_index():
    return
  for feed in setup.feeds:
    assert isinstance(feed.training_rows, loader.PretrainingData)
    options = feed.phase.data_options
    if line := recipes.slots_warning(options["builder"], options):
      say(": ".join(filter(None, [feed.phase.name, line])))
    for folder, line in loader.describe_coverage(feed.training_rows, **options):
      names = [feed.phase.name, folder if len(setup.data_folders) > 1 else ""]
      say(": ".join(filter(None, [*names, line])))


def make_first_state(
  setup: Setup, saver: checkpoint.Checkpointer
) -> tuple[TrainState, dict[str, Any]]:
  """Returns the state to train from.

  The state comes from the newest checkpoint. Without a checkpoint, the
  parameters come from `init_from`. If `init_from` is empty, the parameters are
  drawn at random, except for those that the objective copies from the teacher.

  Returns:
    The state, and the checkpoint's metadata ({} without a checkpoint).

  Raises:
    ValueError: the checkpoint does not fit the model, the data or the teacher.
  """
  config = setup.config
  shapes = setup.feeds[0].shapes
  splits_update = setup.update_sharding is not None
  if saver.latest_step() is not None:
    layout = state_shapes(
      setup.objective, setup.optimizer, setup.mesh, shapes, splits_update
    )
    saved_state, meta, step = saver.restore_newest(setup.checkpoint_layout)
    _check_inputs(setup, meta)
    setup.feeds[meta["phase"]].training_rows.restore(meta["data"])
    say(f"continuing from step {step}")
    return resize_to_layout(saved_state, layout), meta
  state = init_state(
    make_drawing_objective(setup),
    setup.optimizer,
    setup.mesh,
    config.seed,
    shapes,
    splits_update,
  )
  start_model = setup.start_model
  if start_model is None and config.init_from:
    # `build` opened no model, because the run has checkpoints. But all of them
    # are damaged, so the run begins again.
    start_model, _ = start_from.open_start_model(
      config, setup.feeds[0].training_rows
    )
  if start_model:
    params, lines = start_from.take_parameters(
      start_model,
      state.params,
      setup.objective.is_pretrained,
      setup.task.labels if setup.task else (),
      vocabulary_axes(setup.objective, setup.feeds[0].shapes),
      config.model.vocab_size,
      config.init_new_rows,
    )
    if setup.objective.inherit:
      lines.append(
        "no parameters from the teacher: init_from overrides objective.layers"
      )
    title = f"parameters from {config.init_from}"
    say("\n  ".join([title, *lines]))
    state = dataclasses.replace(state, params=params)
  elif setup.objective.inherit:
    shardings = jax.tree.map(lambda x: x.sharding, state.params)
    inherit = jax.jit(setup.objective.inherit, out_shardings=shardings)
    params = inherit(state.params, setup.teacher_params)
    state = dataclasses.replace(state, params=params)
  return state, {}


def _check_inputs(setup: Setup, meta: dict[str, Any]) -> None:
  """Raises UserError if a checkpoint does not fit the data or the teacher."""
  config = setup.config
  if meta["fingerprint"] not in setup.accepted_fingerprints:
    raise UserError(
      f"data.path={config.data.path} does not hold the data with which"
      " this run was started (the fingerprints differ); give the right folder,"
      " or start in a new workdir."
    )
  if meta.get("teacher") != setup.teacher_digest:
    path = config.teacher.path if config.teacher else ""
    raise UserError(
      f"teacher.path={path} is not the teacher with which this"
      " run was started (the digests differ); give the right teacher, or"
      " start in a new workdir."
    )


def print_summary(setup: Setup, means: dict[str, float], workdir: str) -> None:
  """Prints the last lines of a run: its results, and where to find more.

  Args:
    setup: the objects that do not change during the run.
    means: the results of the last evaluation.
    workdir: the run's folder.
  """
  first_data, last_feed = setup.feeds[0].training_rows, setup.feeds[-1]
  if setup.task:
    for name, mean in means.items():
      # Do not print a number twice: the objective's "task_accuracy" is the
      # task's metric "accuracy", and its "task_loss" is the "loss".
      short_name = name.removeprefix("task_")
      if short_name == name or short_name not in means:
        say(f"{name}: {logging.result_text(name, mean)}")
  elif isinstance(last_feed.heldout, loader.Heldout) and means:
    assert isinstance(first_data, loader.PretrainingData)
    counts = np.sum(
      [folder.unigrams for folder in first_data.prepared_folders], 0
    )
    smoothing = last_feed.phase.data_options.get("smoothing", 0.0)
    for line in evaluate.summary_lines(
      last_feed.heldout, counts, means, smoothing
    ):
      say(line)
  say(f"plot: {epath.Path(workdir) / 'loss.png'}")
  say(f"TensorBoard: tensorboard --logdir {workdir}")
  say(f"next: {next_command(setup, workdir)}")


def next_command(setup: Setup, workdir: str) -> str:
  """Returns a command or a call that uses the model of a finished run.

  Args:
    setup: the objects that do not change during the run.
    workdir: the run's folder.
  """
  folder = setup.data_folders[0]
  opening = f"model = bert_jax.load({workdir!r})"
  if setup.task or not isinstance(folder, reader.PreparedFolder):
    output = "--input texts.jsonl --output predictions.jsonl"
    return by_caller(
      f"bert_jax predict --model {workdir} {output}",
      f"{opening}; model.predict(...)",
    )
  mask = folder.special.mask
  builder = setup.feeds[0].phase.data_options["builder"]
  if mask is None or builder in config_lib.UNMASKED_BUILDERS:
    output = "--input texts.txt --output vectors.npz"
    return by_caller(
      f"bert_jax features --model {workdir} {output}",
      f'{opening}; model.features("A text.")',
    )
  text = f"Text with {folder.vocab[mask]}."
  return by_caller(
    f'bert_jax fill-mask --model {workdir} "{text}"',
    f'{opening}; model.fill_mask("{text}")',
  )


def finished_step(config: dict[str, Any], workdir: str) -> int | None:
  """Returns the last step of a run that is complete; else None.

  This function reads no data and trains nothing. It prints a line for each
  value of the config that was changed since the run, if a restart may change
  it. If a restart may not change it, the result is None. The result is also
  None if the run lacks its last evaluation, or if a file of the run is damaged.
  Call `run` then, which says what is wrong, or does what is missing.

  Args:
    config: a nested dict with the keys of `config.RunConfig`. A key whose value
      is None takes the value of the run.
    workdir: the run's folder.
  """
  if not checkpoint.has_checkpoint(workdir):
    return None
  try:
    with checkpoint.Checkpointer.for_reading(workdir) as saver:
      step = saver.latest_step()
      assert step is not None  # `for_reading` has checked this.
      meta = saver.read_metadata(step)
    old_config = files.read_json_object(epath.Path(workdir) / "config.json")
    if step != old_config["total_steps"] or meta.get("pending", False):
      return None
    old_settings = run_config.flatten(old_config)
    settings = run_config.flatten(json.loads(json.dumps(config)))
    changed_keys = {
      key
      for key, setting in settings.items()
      if setting is not None and setting != old_settings.get(key)
    }
    if not all(map(run_config.restart_may_change, changed_keys)):
      return None
  except (UserError, KeyError):
    return None
  # Do not print keys that the run lacks, because an earlier version of bert_jax
  # wrote its config. Do not print `data.path`: the data's folder may have
  # moved.
  for key in sorted(changed_keys & old_settings.keys() - {"data.path"}):
    change = f"{old_settings.get(key)!r} -> {settings[key]!r}"
    say(f"changed: {key_name(key)}: {change}")
  return step


def run(
  config: dict[str, Any] | ConfigDict,
  workdir: str,
  on_row: logging.RowCallback | None = None,
) -> TrainState:
  """Trains to the end, from the newest checkpoint if the folder has one.

  Args:
    config: nested dict with the keys of `config.RunConfig`, or a ConfigDict;
      see configs/. The config is not changed.
    workdir: the run's folder, which is made if it is missing. The folder gets
      config.json, the tokenizer's files, metrics.jsonl, TensorBoard files,
      loss.png and checkpoints/.
    on_row: see `logging.Logger`.

  Returns:
    The last state: at the end of the run, or at the step at which SIGTERM or
    SIGINT stopped it.

  Raises:
    ValueError: the config, the data or the checkpoint cannot be used. The
      message is one sentence.
    FloatingPointError: a loss, a gradient or a parameter is not finite; earlier
      checkpoints are kept.
  """
  if isinstance(config, ConfigDict):
    config = config.to_dict()
  parsed_config = config_lib.parse(config)
  with logging.watch_run("opening the data and the model"):
    setup = build(parsed_config, read_config_if_resumed(workdir))
  parsed_config = setup.config
  config = config_lib.to_json(config, parsed_config)
  # Hosts may have the same data and teacher in different folders.
  comparable_config = config | {
    "data": config["data"] | {"path": setup.fingerprints}
  }
  if setup.teacher_digest:
    comparable_config["teacher"] = config["teacher"] | {
      "path": setup.teacher_digest
    }
  hosts.check_same_as_process_0("config", run_config.flatten(comparable_config))
  with contextlib.ExitStack() as stack:
    stack.enter_context(lock(workdir))
    stack.enter_context(sharding.use_mesh(setup.mesh))
    signals = stack.enter_context(hosts.stop_signals())
    saver = checkpoint.Checkpointer(
      workdir, parsed_config.checkpoint.keep, parsed_config.checkpoint.keep_best
    )
    stack.callback(saver.close)
    stack.enter_context(hosts.end_all_on_error())
    stack.enter_context(add_file_to_errors(workdir))
    # Until a first checkpoint exists, a restart may use a different config.
    if saver.latest_step() is not None:
      defaults = default_values(config)
      old_config = read_saved_config(workdir, saver, defaults)
      for line in config_lib.check_restart(old_config, config, defaults):
        say(f"changed: {line}")
    with logging.watch_run("making or reading the parameters"):
      state, meta = make_first_state(setup, saver)
    # Write config.json only now: `make_first_state` has checked that the
    # folder's checkpoints belong to this run.
    with logging.watch_run("writing the config and the tokenizer"):
      tokenizer = setup.data_folders[0].tokenizer_files()
      print_changed_tokenizer(workdir, meta.get("tokenizer"))
      write_config_and_tokenizer(workdir, config, tokenizer)
      saver.set_run_metadata(config, tokenizer)
    with logging.watch_run("counting the text that the rows hold"):
      print_text_coverage(setup)
    must_evaluate = meta.get("pending", False)
    with logging.watch_run("opening the run's logs"):
      logger = logging.Logger(
        workdir,
        int(state.step),
        parsed_config.steps,
        saved=meta.get("log"),
        repeats_evaluation=must_evaluate,
        on_row=on_row,
      )
    stack.callback(logger.close)
    progress = loop.RunProgress(
      state,
      step_sums=logging.StepSums(
        meta.get("window"), skip_is_error=parsed_config.spike.action == "stop"
      ),
      best_cost=meta.get("best"),
      evaluation_results=meta.get("heldout", {}),
      spike_detector=logging.SpikeDetector(
        parsed_config.spike.action,
        parsed_config.spike.factor,
        max_loss=meta.get("limit"),
      ),
      first_loss=meta.get("first"),
    )
    profiler = logging.Profiler(
      workdir, parsed_config.profile.start, parsed_config.profile.steps
    )
    stack.callback(profiler.close)
    if must_evaluate:
      feed = setup.feeds[meta["phase"]]
      loop.evaluate_pending_checkpoint(setup, feed, progress, saver, logger)
    for feed in setup.feeds:
      if not progress.stop_requested and progress.state.step < feed.phase.end:
        loop.run_phase(setup, feed, progress, saver, logger, signals, profiler)
    with logger.report_progress("writing the last checkpoint and loss.png"):
      saver.wait()
      logger.plot_losses()
  step = int(progress.state.step)
  if step == parsed_config.steps:
    print_summary(setup, progress.evaluation_results, workdir)
  else:
    say(f"stopped at step {step}; {same_call()} continues.")
  return progress.state
