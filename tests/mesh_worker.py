"""Runs a tiny model on meshes of 8 simulated devices, for test_mesh.py."""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax import objectives
from bert_jax.devices import sharding, update_sharding
from bert_jax.models import bert, layers
from bert_jax.objectives.base import Objective
from bert_jax.training import evaluate, optim, steps
from bert_jax.training.state import (
  checkpoint_layout,
  init_state,
  resize_to_layout,
  state_shapes,
)
from bert_jax.weights import checkpoint

# (The meshes, each as the sizes of the axes data, fsdp and tensor; the numbers
# of micro-batches.)
MESHES_AND_COUNTS = (
  [(1, 1, 1), (8, 1, 1), (4, 2, 1), (2, 4, 1), (4, 1, 2), (2, 1, 4), (2, 2, 2)],
  (1, 2, 4, 8),
)
# 61 pieces cannot be divided evenly among several devices.
MODEL_OPTIONS = dict(
  family="bert", variant="tiny", hidden=32, heads=4, mlp=64, vocab_size=61
)
NO_DROPOUT = dict(dropout=0.0, attention_dropout=0.0)
NUM_STEPS = 3


def make_batch(seed, num_rows=32, length=12, num_slots=11):
  """Returns a batch whose rows have 0, 1, 2 or 11 masked tokens."""
  rng = np.random.default_rng(seed)
  ids = rng.integers(5, 60, (num_rows, length), dtype=np.int32)
  mask_counts = rng.choice([0, 1, 2, 11], num_rows, p=[0.3, 0.3, 0.2, 0.2])
  mask_counts[: num_rows // 4] = 11
  positions = np.stack(
    [rng.permutation(length)[:num_slots] for _ in range(num_rows)]
  )
  return {
    "input_ids": ids,
    "segment_ids": rng.integers(0, 2, ids.shape, dtype=np.int32),
    "sequence_ids": np.ones_like(ids),
    "mlm_positions": positions.astype(np.int32),
    "mlm_ids": rng.integers(5, 61, (num_rows, num_slots), dtype=np.int32),
    "mlm_weights": (np.arange(num_slots) < mask_counts[:, None]).astype(
      np.float32
    ),
    "pair_labels": rng.integers(0, 2, (num_rows, 1), dtype=np.int32),
    "pair_weights": np.ones((num_rows, 1), np.float32),
    "cls_positions": np.zeros((num_rows, 1), np.int32),
  }


def make_mesh(shape):
  return sharding.make_mesh(*shape, jax.devices()[: np.prod(shape)])


def make_objective_and_optimizer(mesh, **model):
  model = MODEL_OPTIONS | {"vocab_multiple": mesh.shape["tensor"]} | model
  objective = objectives.build("mlm", model, {})
  schedule = optim.build_schedule(
    total_steps=10, name="bert", peak=1e-3, warmup=0.1
  )
  # Adam's first steps follow the sign of the gradient, which rounding can
  # change if the gradient is near 0. A larger epsilon makes such steps small.
  return (
    objective,
    optim.build_optimizer(
      schedule,
      name="adamw_bert",
      b1=0.9,
      b2=0.999,
      epsilon=1e-3,
      weight_decay=0.01,
      clip_norm=1.0,
    ),
    schedule,
  )


def leaves_by_name(tree):
  return {
    jax.tree_util.keystr(path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def count_shards(state):
  """Returns {name of an array: the number of its different shards}."""
  return {
    name: len({str(shard.index) for shard in x.addressable_shards})
    for name, x in leaves_by_name(state).items()
  }


def train(mesh, micro_batches=1, splits_update=False, **model):
  """Trains for `NUM_STEPS` steps.

  Returns:
    (the losses, the numbers of shards before and after training, the state, the
    layout of the state in a checkpoint).
  """
  objective, optimizer, schedule = make_objective_and_optimizer(mesh, **model)
  batches = [make_batch(i) for i in range(NUM_STEPS)]
  state = init_state(
    objective,
    optimizer,
    mesh,
    seed=0,
    batch=batches[0],
    splits_update=splits_update,
  )
  layout = checkpoint_layout(
    objective,
    optimizer,
    mesh,
    batch=batches[0],
    vocab_size=61,
    splits_update=splits_update,
  )
  sharded_update = None
  if splits_update:
    boxed_params = jax.eval_shape(objective.init, jax.random.key(0), batches[0])
    sharded_update = update_sharding.plan(mesh, boxed_params, unroll=0)
  num_shards = {"init": count_shards(state)}
  step = jax.jit(
    steps.make_train_step(
      objective, optimizer, schedule, micro_batches, sharded_update
    ),
    donate_argnums=0,
    out_shardings=(jax.tree.map(lambda x: x.sharding, state), None),
  )
  losses = []
  for batch in batches:
    batch = sharding.to_global_batch(mesh, batch)
    state, metrics = step(state, {}, batch, jax.random.key(0))
    losses.append(float(metrics["loss"]))
  num_shards["after"] = count_shards(state)
  return losses, num_shards, state, layout


def run_meshes(folder, report, meshes):
  first_state_in_file = None
  for shape in meshes:
    mesh, mesh_name = make_mesh(shape), "x".join(map(str, shape))
    with sharding.use_mesh(mesh):
      losses, num_shards, state, layout = train(mesh)
      report["losses"][mesh_name], report["shards"][mesh_name] = (
        losses,
        num_shards,
      )
      state_in_file = resize_to_layout(state, layout)
      np.savez(
        folder / mesh_name, **jax.device_get(leaves_by_name(state_in_file))
      )
      embeddings = state.params["encoder"]["embeddings"]
      report["rows"][mesh_name] = len(embeddings["word"]["embedding"])
      if shape == (2, 2, 2):
        report_padding(report, mesh, state)
      if first_state_in_file is None:
        first_state_in_file = state_in_file
        with checkpoint.Checkpointer(str(folder)) as saver:
          saver.save(NUM_STEPS, state_in_file, meta={}, heldout_loss=None)
      with checkpoint.Checkpointer(str(folder)) as saver:
        saved_state, _ = saver.restore(NUM_STEPS, layout)
      restored_state = resize_to_layout(saved_state, state)
      same_sharding_tree = jax.tree.map(
        lambda a, b: a.sharding == b.sharding, restored_state, state
      )
      states_in_file = jax.device_get(
        [resize_to_layout(restored_state, layout), first_state_in_file]
      )
      equal_array_tree = jax.tree.map(np.array_equal, *states_in_file)
      report["restored"][mesh_name] = all(
        jax.tree.leaves([same_sharding_tree, equal_array_tree])
      )


def run_split_updates(folder, report):
  """Repeats three runs with split updates.

  In a split update, each device updates a part of every parameter. Each run
  also restores the checkpoint of a run without split updates.
  """
  # Split also the small arrays of the tiny model, which would stay whole.
  update_sharding.MIN_ELEMENTS = 64
  for run_name, shape, micro_batches, options in (
    ("8x1x1", (8, 1, 1), 1, {}),
    ("2x2x2", (2, 2, 2), 1, {}),
    ("parts2", (2, 2, 2), 2, NO_DROPOUT),
  ):
    mesh, split_run_name = make_mesh(shape), f"{run_name} split"
    with sharding.use_mesh(mesh):
      losses, num_shards, state, layout = train(
        mesh, micro_batches, True, **options
      )
      with checkpoint.Checkpointer(str(folder)) as saver:
        saved_state, _ = saver.restore(NUM_STEPS, layout)
      restored_state = resize_to_layout(saved_state, state)
      arrays = jax.device_get(leaves_by_name(resize_to_layout(state, layout)))
    np.savez(folder / split_run_name, **arrays)
    report["losses"][split_run_name] = losses
    report["split_shards"][split_run_name] = num_shards
    report["restored"][split_run_name] = all(
      restored.sharding == x.sharding
      for restored, x in zip(
        jax.tree.leaves(restored_state), jax.tree.leaves(state), strict=True
      )
    )


# Reports whether the vectors that were added to make the word table divisible
# stay zero, and the largest probability that one of them gets.
def report_padding(report, mesh, state):
  added_vectors = [
    x[61:]
    for name, x in leaves_by_name(state).items()
    if "['word']" in name or "['mlm']['bias']" in name
  ]
  # The table and the bias have two moments each, so there are six arrays.
  report["padded_rows_are_zero"] = len(added_vectors) == 6 and not any(
    np.asarray(x).any() or not len(x) for x in added_vectors
  )
  logits = make_logits_function(mesh)(state.params, make_batch(0))["mlm_logits"]
  largest_probability = jax.nn.softmax(logits)[..., 61:].max()
  report["padded_probability"] = float(largest_probability)


def make_logits_function(mesh, **model):
  options = MODEL_OPTIONS | {"vocab_multiple": mesh.shape["tensor"]} | model
  options.pop("family")
  module = bert.ForPreTraining(bert.build(**options))
  return jax.jit(lambda params, batch: module.apply({"params": params}, batch))


def report_graphs(report):
  """Reports the sharding constraints and the masks of padded logits.

  The constraints are counted in programs with a mesh and without a mesh.
  """
  mesh = make_mesh((2, 2, 2))
  batch = make_batch(0)
  objective, optimizer, _ = make_objective_and_optimizer(mesh)
  params = state_shapes(objective, optimizer, mesh, batch).params

  def count_constraints(function):
    text = function.lower(params, batch).as_text()
    return text.count("sdy.sharding_constraint ")

  with sharding.use_mesh(mesh):
    report["constraints"]["with"] = count_constraints(
      make_logits_function(mesh)
    )
  report["constraints"]["without"] = count_constraints(
    make_logits_function(mesh)
  )
  for vocab_size in (60, 61):
    objective, optimizer, _ = make_objective_and_optimizer(
      mesh, vocab_size=vocab_size
    )
    params = state_shapes(objective, optimizer, mesh, batch).params
    with sharding.use_mesh(mesh):
      text = (
        make_logits_function(mesh, vocab_size=vocab_size)
        .lower(params, batch)
        .as_text()
      )
    # Only the masked-LM head has arrays with 11 slots, so this finds no masks
    # of the attention.
    mask_lines = [
      line
      for line in text.splitlines()
      if "select" in line and "32x11x" in line
    ]
    report["masks_in_graph"][str(vocab_size)] = bool(mask_lines)


def run_micro_batches(folder, report, micro_batch_counts):
  mesh = make_mesh((2, 2, 2))
  with sharding.use_mesh(mesh):
    for micro_batches in micro_batch_counts:
      losses, _, state, layout = train(mesh, micro_batches, **NO_DROPOUT)
      report["losses"][f"parts{micro_batches}"] = losses
      saved_arrays = jax.device_get(
        leaves_by_name(resize_to_layout(state, layout))
      )
      np.savez(folder / f"parts{micro_batches}", **saved_arrays)


# Reports how many shards of a dropout mask differ, and whether the whole mask
# is the one that a single device draws.
def run_dropout(report):
  for num_devices in (1, 2, 4):
    mesh = make_mesh((num_devices, 1, 1))
    sharding_of_rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    apply_dropout = jax.jit(
      lambda x: layers.dropout(x, rate=0.5, key=jax.random.key(0)),
      out_shardings=sharding_of_rows,
    )
    output = apply_dropout(jax.device_put(jnp.ones((8, 16)), sharding_of_rows))
    different_shards = {
      np.asarray(shard.data).tobytes() for shard in output.addressable_shards
    }
    expected_output = np.asarray(
      layers.dropout(jnp.ones((8, 16)), rate=0.5, key=jax.random.key(0))
    )
    is_same_mask = bool((np.asarray(output) == expected_output).all())
    report["dropout"][str(num_devices)] = {
      "distinct": len(different_shards),
      "same": is_same_mask,
    }


class TenExamples:
  """Gives ten examples, eight of them right; later rows have the weight 0."""

  def __len__(self):
    return 10

  def read(self, first, count):
    numbers = np.arange(first, first + count)
    weights = (numbers < 10).astype(np.float32)
    return {"right": (numbers < 8).astype(np.float32), "weight": weights}


def run_evaluation(report):
  objective = Objective(
    init=None,
    divisors=lambda batch: {"accuracy": batch["weight"].sum()},
    loss=lambda params, frozen, carry, batch, rng, train: (
      {"accuracy": (batch["right"] * batch["weight"]).sum()},
      carry,
    ),
    coefficients={"accuracy": 1.0},
    flops=None,
  )
  state = type("State", (), dict(params={}, carry={}))
  step = jax.jit(steps.make_eval_step(objective))
  for num_devices in (1, 2, 4):
    mesh = make_mesh((num_devices, 1, 1))
    with sharding.use_mesh(mesh):
      for batch_size in {1, 3, 4, 7, 10, 16, 8}:
        if batch_size % num_devices == 0:
          means = evaluate.evaluate(
            step,
            objective.coefficients,
            state,
            teacher_params={},
            heldout=TenExamples(),
            batch_size=batch_size,
            mesh=mesh,
          )
          name = f"{num_devices} devices, batch {batch_size}"
          report["evaluation"][name] = means["accuracy"]


def report_refusal(report, name, function):
  try:
    function()
  except ValueError as error:
    report["refused"][name] = str(error)


def run_refusals(report):
  def check_sizes(shape, **model):
    mesh = make_mesh(shape)
    objective, _, _ = make_objective_and_optimizer(mesh, **model)
    boxed_params = jax.eval_shape(
      objective.init, jax.random.key(0), make_batch(0)
    )
    sharding.check_parameter_sizes(mesh, boxed_params)

  report_refusal(report, "heads", lambda: check_sizes((2, 1, 4), heads=2))
  report_refusal(report, "mlp", lambda: check_sizes((2, 1, 4), mlp=62))
  report_refusal(report, "hidden", lambda: check_sizes((1, 8, 1), hidden=36))
  mesh = make_mesh((4, 2, 1))
  report_refusal(
    report,
    "batch",
    lambda: sharding.check_batch_size(mesh, batch_size=12, num_micro_batches=1),
  )
  report_refusal(
    report, "devices", lambda: sharding.make_mesh(data=3, fsdp=1, tensor=2)
  )


def main(folder):
  meshes, micro_batch_counts = MESHES_AND_COUNTS
  report = {
    key: {}
    for key in (
      "losses",
      "shards",
      "rows",
      "restored",
      "constraints",
      "masks_in_graph",
      "dropout",
      "evaluation",
      "refused",
      "split_shards",
    )
  }
  run_refusals(report)
  run_dropout(report)
  run_evaluation(report)
  report_graphs(report)
  run_meshes(folder, report, meshes)
  run_micro_batches(folder, report, micro_batch_counts)
  run_split_updates(folder, report)
  (folder / "results.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
