"""A run from start or checkpoint to its end. Reads top to bottom."""

import contextlib
import json
import os
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import Mesh

from bert_jax import (
  checkpoint,
  evaluate,
  logs,
  objectives,
  optim,
  runtime,
  sharding,
  steps,
)
from bert_jax import config as config_lib
from bert_jax.data import corpus, loader
from bert_jax.metrics import Window
from bert_jax.state import TrainState, init_state


class Setup(NamedTuple):
  """What `build` makes of a config."""

  mesh: Mesh
  data: loader.Data
  heldout: loader.Heldout | None
  objective: objectives.Objective
  optimizer: optax.GradientTransformation
  schedule: optim.Schedule
  shapes: dict[str, jax.ShapeDtypeStruct]


def build(config: dict[str, Any]) -> Setup:
  """Makes everything that does not train yet, and checks that it fits.

  Fills `config["model"]["vocab_size"]` from the data where it is None.

  Raises:
    ValueError: with one sentence that names the key and the remedy.
  """
  mesh = config_lib.call("mesh", sharding.make_mesh, **config["mesh"])
  batch_size, micro = config["batch_size"], config["micro_batches"]
  sharding.check_batch(mesh, batch_size, micro)
  options = dict(config["data"])
  data = loader.open_data(seed=config["seed"], **options)
  model = config["model"]
  if model["vocab_size"] is None:
    model["vocab_size"] = data.vocab_size
  if model["vocab_size"] != data.vocab_size:
    raise ValueError(
      f"model.vocab_size={model['vocab_size']}, but the vocabulary of"
      f" {options['path']} has {data.vocab_size} pieces; leave"
      " model.vocab_size unset to take it from the data."
    )
  heldout = None
  if config["evaluate"]["every"]:
    heldout = loader.open_heldout(
      limit=config["evaluate"]["examples"] or None, **options
    )
  schedule = config_lib.call(
    "schedule",
    optim.build_schedule,
    config["total_steps"],
    **config["schedule"],
  )
  objective = dict(config["objective"])
  return Setup(
    mesh=mesh,
    data=data,
    heldout=heldout,
    objective=objectives.build(objective.pop("name"), model, objective),
    optimizer=config_lib.call(
      "optimizer", optim.build_optimizer, schedule, **config["optimizer"]
    ),
    schedule=schedule,
    shapes={
      key: jax.ShapeDtypeStruct((batch_size, *shape), dtype)
      for key, (shape, dtype) in data.features.items()
    },
  )


def prepare_workdir(
  workdir: str, config: dict[str, Any], prepared: corpus.Prepared
) -> None:
  """Writes the config and the tokenizer's files, or checks the config.

  Raises:
    ValueError: the folder's run has a config that computes something else.
  """
  path = os.path.join(workdir, "config.json")
  if os.path.exists(path):
    with open(path, encoding="utf-8") as f:
      old = json.load(f)
    for line in config_lib.check_restart(old, config):
      print(f"changed: {line}", flush=True)
  if jax.process_index() == 0:
    text = json.dumps(config, indent=2)
    logs.write_atomically(path, text + "\n")
    pieces = "".join(piece + "\n" for piece in prepared.vocab)
    logs.write_atomically(os.path.join(workdir, "vocab.txt"), pieces)
    # Hugging Face's file and names.
    tokenizer = {
      "tokenizer_class": "BertTokenizer",
      "do_lower_case": prepared.meta["lower_case"],
    }
    path = os.path.join(workdir, "tokenizer_config.json")
    logs.write_atomically(path, json.dumps(tokenizer, indent=2) + "\n")


def start(
  setup: Setup, config: dict[str, Any], saver: checkpoint.Checkpointer
) -> tuple[TrainState, dict[str, Any]]:
  """The state to go on from: newest checkpoint, `init_from`, or the seed.

  Returns:
    The state and the checkpoint's metadata ({} at a fresh start).

  Raises:
    ValueError: the checkpoint is of another model or of other data.
  """
  state = init_state(
    setup.objective, setup.optimizer, setup.mesh, config["seed"], setup.shapes
  )
  latest = saver.latest_step()
  if latest is not None:
    state, meta = saver.restore(latest, state)
    if meta["fingerprint"] != fingerprint(setup.data):
      raise ValueError(
        f"data.path={config['data']['path']} is not the text this run was"
        " started with (fingerprints differ); give the right folder, or start"
        " in a new --workdir."
      )
    setup.data.restore(meta["data"])
    print(f"continuing from step {latest}", flush=True)
    return state, meta
  if config["init_from"]:
    with checkpoint.Checkpointer.of_run(config["init_from"]) as source:
      params = source.restore_params(None, state.params)
      step = source.latest_step()
    state = state.replace(params=params)
    print(f"parameters from {config['init_from']}, step {step}", flush=True)
  return state, {}


def fingerprint(data: loader.Data) -> list[str]:
  return [part.meta["fingerprint"] for part in data.prepared]


def summary(setup: Setup, means: dict[str, float], workdir: str) -> None:
  """The last lines of a run: what it reached, and where to look."""
  if setup.heldout is not None and "mlm_loss" in means:
    counts = sum(part.unigrams for part in setup.data.prepared)
    baseline = evaluate.unigram_baseline(setup.heldout, counts)
    print(f"unigram cross-entropy: {baseline:.4f} nats")
    print(f"held-out MLM loss: {means['mlm_loss']:.4f} nats")
  print(f"plot: {os.path.join(workdir, 'loss.png')}")
  print(f"TensorBoard: tensorboard --logdir {workdir}", flush=True)


def run(config: dict[str, Any], workdir: str) -> TrainState:
  """Trains from `workdir`'s newest checkpoint, or from scratch, to the end.

  Args:
    config: plain nested dict with the keys of `config.KEYS`; see configs/.
    workdir: of the run; made if missing. Gets config.json, vocab.txt,
      metrics.jsonl, TensorBoard files, loss.png, checkpoints/.

  Returns:
    The last state (that of the stop if SIGTERM or SIGINT came).

  Raises:
    ValueError: bad config, data or checkpoint, in one sentence.
    FloatingPointError: a loss is not finite; checkpoints before it are kept.
  """
  config_lib.check_keys(config)
  setup = build(config)
  with contextlib.ExitStack() as stack:
    stack.enter_context(runtime.lock(workdir))
    stack.enter_context(sharding.use_mesh(setup.mesh))
    stop = stack.enter_context(runtime.stop_signals())
    saver = config_lib.call(
      "checkpoint",
      checkpoint.Checkpointer,
      workdir,
      **{k: v for k, v in config["checkpoint"].items() if k != "every"},
    )
    stack.callback(saver.close)
    prepare_workdir(workdir, config, setup.data.prepared[0])
    state, meta = start(setup, config, saver)
    log = logs.Logger(workdir, int(state.step), config["total_steps"])
    stack.callback(log.close)
    state, means = loop(setup, config, workdir, state, meta, saver, log, stop)
    saver.wait()
    log.plot()
  if int(state.step) == config["total_steps"]:
    summary(setup, means, workdir)
  else:
    print(f"stopped at step {state.step}; the same command continues.")
  return state


def loop(
  setup: Setup,
  config: dict[str, Any],
  workdir: str,
  state: TrainState,
  meta: dict[str, Any],
  saver: checkpoint.Checkpointer,
  log: logs.Logger,
  stop: list[int],
) -> tuple[TrainState, dict[str, float]]:
  """Steps, rows, evaluations and checkpoints, all on step numbers only.

  Returns:
    The last state, and the means of the last evaluation ({} if none).
  """
  objective, total = setup.objective, config["total_steps"]
  every = {name: config[name]["every"] for name in ("log", "checkpoint")}
  every["evaluate"] = config["evaluate"]["every"] if setup.heldout else 0
  micro = config["micro_batches"]
  train_step = jax.jit(
    steps.make_train_step(objective, setup.optimizer, setup.schedule, micro),
    donate_argnums=0,
  )
  eval_step = jax.jit(steps.make_eval_step(objective))
  key = jax.random.key(config["seed"])
  flops = objective.flops(setup.shapes)
  window, best = Window(meta.get("window")), meta.get("best")
  means = meta.get("heldout", {})
  profiler = config_lib.call(
    "profile", runtime.Profiler, workdir, **config["profile"]
  )
  first = int(state.step)
  hosts = jax.process_index(), jax.process_count()
  feed = loader.batches(setup.data, first, config["batch_size"], *hosts)

  def due(name, step):
    return every[name] and (step % every[name] == 0 or step == total)

  with feed:
    for step in range(first + 1, total + 1):
      batch, position = next(feed)
      with profiler.step(step):
        batch = sharding.to_global(setup.mesh, batch)
        state, metrics = train_step(state, {}, batch, key)
      profiler.finish(step, metrics["loss"])
      window.add(step, metrics)
      if step == first + 1:
        window.saved()
        log.pause()  # Compilation is not speed.
      stopping = runtime.stop_requested(step, stop)
      if due("log", step):
        log.train(step, *window.close(), flops)
      measured = None
      if due("evaluate", step):
        means = evaluate.evaluate(
          eval_step,
          objective.coefficients,
          state,
          {},
          setup.heldout,
          config["batch_size"] // micro,
          setup.mesh,
        )
        measured = means["loss"]
        log.heldout(step, means)
        log.pause()
      improved = measured is not None and (best is None or measured < best)
      best = measured if improved else best
      if due("checkpoint", step) or improved or stopping:
        saved = dict(data=position, window=window.saved(), best=best)
        saved |= dict(heldout=means, fingerprint=fingerprint(setup.data))
        saver.save(step, state, saved, measured)
      if stopping:
        break
  return state, means
