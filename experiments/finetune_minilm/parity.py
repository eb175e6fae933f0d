r"""Compares the losses of fine-tuning with transformers', step by step.

Both sides have the same weights and head, the same rows in the same order, and
the same AdamW, clipping and warm-up. There is no dropout. Both compute in
float32 on a CPU. The script needs torch and transformers.

--control: transformers trains once more. Before this, each weight is moved to
  the next float32, up or down. This shows how much rounding alone changes the
  losses.
--double: both sides compute in float64. Rounding is then negligible, so every
  difference comes from the programs. torch clips without the 1e-6 that it
  usually adds to the norm.
--train_padding: both sides train the embedding of [PAD], as run_squad.py does.
  Without this flag, neither side trains it, as in transformers (torch's
  padding_idx). The loss of an answer has a gradient for this embedding, through
  the softmax over all positions.

  python experiments/finetune_minilm/parity.py --model MINILM --data EVAL \\
    --output OUT [--tasks sst2,stsb,wnut17,squad] [--steps 100] [--peak 2e-5]
    [--control] [--double] [--train_padding]
"""

import argparse
import dataclasses
import json
import os
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from bert_jax.cli import configs
from bert_jax.devices import sharding
from bert_jax.tasks import encoded_rows, prepare_task, task_inputs
from bert_jax.tasks.batches import Batches
from bert_jax.training import config as config_lib
from bert_jax.training import logging, start_from, state, steps, train
from bert_jax.training import setup as building

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
TASK_FILES = {
  "sst2": "sst2/train.tsv",
  "stsb": "stsb/stsb-en-train.csv",
  "wnut17": "wnut17/wnut17train.conll",
  "squad": "squad/xquad.en.json",
}
MODEL_CLASSES = {
  "classification": transformers.AutoModelForSequenceClassification,
  "regression": transformers.AutoModelForSequenceClassification,
  "tagging": transformers.AutoModelForTokenClassification,
  "span": transformers.AutoModelForQuestionAnswering,
}
WARMUP, WEIGHT_DECAY, CLIP_NORM, BATCH_SIZE = 0.1, 0.01, 1.0, 8
TOLERANCE = 1e-4


def prepare_rows(name, args):
  """Encodes a task's training rows; returns (folder, task, rows)."""
  folder = os.path.join(args.output, name, "rows")
  inputs = [
    task_inputs.Input("train", os.path.join(args.data, TASK_FILES[name]))
  ]
  prepare_task.prepare(task_inputs.find_task(name), inputs, args.model, folder)
  return folder, *encoded_rows.load(folder, "train")[:2]


def write_model(task, args, path):
  """Writes the model with a random head, which transformers draws."""
  torch.manual_seed(0)
  names = task.labels or ("LABEL_0",)
  options = (
    {}
    if task.kind == "span"
    else dict(
      num_labels=len(names),
      id2label=dict(enumerate(names)),
      label2id={name: i for i, name in enumerate(names)},
    )
  )
  rates = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  model = MODEL_CLASSES[task.kind].from_pretrained(
    args.model, dtype=torch.float32, **rates, **options
  )
  model.save_pretrained(path)
  transformers.AutoTokenizer.from_pretrained(args.model).save_pretrained(path)
  return model


def make_config(name, folder, args, model):
  """Returns the task's config with the settings of `transformers_losses`."""
  config_name = {"wnut17": "ner", "squad": "squad"}.get(name, "glue")
  path = os.path.join(ROOT, "configs", f"{config_name}.py:{name}")
  config = configs.load_defaults(path)
  config |= dict(total_steps=args.steps, batch_size=BATCH_SIZE, init_from=model)
  config["model"] |= dict(dtype="float32", dropout=0.0, attention_dropout=0.0)
  config["objective"] |= dict(head="taken", head_dropout=0.0)
  config["objective"]["train_padding"] = args.train_padding
  config["data"] |= dict(path=folder, shuffle=False)
  config["optimizer"] |= dict(
    epsilon=1e-8, weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM
  )
  config["schedule"] = dict(name="linear", peak=args.peak, warmup=WARMUP)
  config["log"]["every"] = 1
  config["evaluate"]["every"] = 0
  config["checkpoint"]["every"] = args.steps
  return config


def bert_jax_losses(config, workdir):
  """Returns the losses of `train.run`."""
  train.run(config, workdir)
  rows = logging.read_rows(os.path.join(workdir, "metrics.jsonl"))
  return [row["loss"] for row in rows if row["split"] == "train"]


def bert_jax_losses_in_double(config):
  """Returns the losses of the run's steps, computed in float64."""
  # The code names float32 in many places, so replace it everywhere.
  with mock.patch.object(jnp, "float32", jnp.float64):
    run_config = config_lib.parse(config)
    model_config = dataclasses.replace(run_config.model, dtype="float64")
    setup = building.build(dataclasses.replace(run_config, model=model_config))
    objective, optimizer = setup.objective, setup.optimizer
    feed = setup.feeds[0]
    with sharding.use_mesh(setup.mesh):
      key = jax.random.key(config["seed"])
      init_arguments = objective, optimizer, setup.mesh, 0, feed.shapes
      train_state = state.init_state(*init_arguments)
      head_arguments = objective.is_pretrained, setup.task.labels
      params, _ = start_from.take_parameters(
        setup.start_model, train_state.params, *head_arguments
      )
      params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
      train_state = train_state.replace(
        params=params, opt_state=optimizer.init(params)
      )
      step = steps.make_train_step(
        objective, optimizer, setup.schedule, num_micro_batches=1
      )
      step, losses = jax.jit(step), []
      for step_index in range(config["total_steps"]):
        batch = feed.training_rows.read(step_index * BATCH_SIZE, BATCH_SIZE)
        train_state, metrics = step(train_state, {}, batch, key)
        losses.append(float(metrics["loss"]))
  assert all(
    x.dtype == jnp.float64 for x in jax.tree.leaves(train_state.params)
  )
  return losses


def inputs_of(task, batch, dtype):
  """Returns a batch as transformers' arguments.

  A missing label gets a value that transformers' loss skips.
  """
  is_labelled = torch.from_numpy(batch["label_weights"] > 0)
  labels = torch.from_numpy(batch["labels"])
  arrays = {
    "input_ids": batch["input_ids"],
    "token_type_ids": batch["segment_ids"],
    "attention_mask": batch["sequence_ids"],
  }
  tensors = {
    name: torch.from_numpy(array.astype(np.int64))
    for name, array in arrays.items()
  }
  if task.kind == "regression":
    return tensors | {"labels": labels.to(dtype)}
  if task.kind == "span":
    ends = torch.where(
      is_labelled[:, None], labels, batch["input_ids"].shape[1]
    )
    start, end = ends.long().unbind(1)
    return tensors | {"start_positions": start, "end_positions": end}
  return tensors | {"labels": torch.where(is_labelled, labels, -100).long()}


def clip_gradients(parameters, is_exact):
  """Clips by the global norm; torch adds 1e-6 to the norm unless `is_exact`."""
  if not is_exact:
    torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
    return
  grads = [p.grad for p in parameters if p.grad is not None]
  norm = torch.nn.utils.get_total_norm(grads)
  for grad in grads:
    grad.mul_((CLIP_NORM / norm).clamp(max=1.0))


def transformers_losses(task, rows, pad, buckets, args, model):
  """Trains transformers' model with torch's AdamW; returns its losses."""
  batches = Batches(task, rows, pad, BATCH_SIZE, shuffle=False, buckets=buckets)
  # Index 0 (False) has the parameters with decay, index 1 those without decay.
  parameter_groups = [[], []]
  for name, parameter in model.named_parameters():
    parameter_groups["bias" in name or "LayerNorm" in name].append(parameter)
  groups = [
    {"params": parameter_groups[0], "weight_decay": WEIGHT_DECAY},
    {"params": parameter_groups[1], "weight_decay": 0.0},
  ]
  optimizer = torch.optim.AdamW(groups, lr=args.peak, eps=1e-8)
  warmup_steps = round(WARMUP * args.steps)
  schedule = transformers.get_linear_schedule_with_warmup(
    optimizer, warmup_steps, args.steps
  )
  if args.train_padding:
    model.get_input_embeddings().padding_idx = None
  model.train()
  losses = []
  for step in range(args.steps):
    batch = inputs_of(task, batches.batch(step), model.dtype)
    loss = model(**batch).loss
    loss.backward()
    clip_gradients(model.parameters(), args.double)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    losses.append(loss.item())
  return losses


def move_weights(model):
  """Moves every weight to the next float32, up or down at random."""
  torch.manual_seed(1)
  with torch.no_grad():
    for weights in model.parameters():
      is_up = torch.rand_like(weights) < 0.5
      directions = torch.where(is_up, torch.inf, -torch.inf)
      weights.copy_(torch.nextafter(weights, directions))
  return model


def compare_task(name, args):
  """Trains both sides; returns their losses and the largest difference."""
  folder, task, rows = prepare_rows(name, args)
  model_path = os.path.join(args.output, name, "model")
  model = write_model(task, args, model_path)
  config = make_config(name, folder, args, model_path)
  if args.double:
    losses, model = bert_jax_losses_in_double(config), model.double()
  else:
    losses = bert_jax_losses(
      config, os.path.join(args.output, name, f"run_{args.steps}")
    )
  pad = encoded_rows.read_meta(folder)["pad"]
  arguments = task, rows, pad, config["data"]["buckets"], args
  peer_losses = transformers_losses(*arguments, model)
  differences = np.abs(np.array(losses) - np.array(peer_losses))
  report = {
    "task": name,
    "steps": args.steps,
    "peak": args.peak,
    "largest": float(differences.max()),
    "at_step": int(differences.argmax()) + 1,
    "ours": losses,
    "theirs": peer_losses,
  }
  if args.control:
    moved_losses = transformers_losses(
      *arguments,
      move_weights(MODEL_CLASSES[task.kind].from_pretrained(model_path)),
    )
    differences = np.abs(np.array(moved_losses) - np.array(peer_losses))
    report |= {"control": float(differences.max()), "shaken": moved_losses}
  return report


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--model", required=True, help="folder of MiniLM")
  parser.add_argument(
    "--data", required=True, help="folder of the tasks' files"
  )
  parser.add_argument("--output", required=True)
  parser.add_argument("--tasks", default=",".join(TASK_FILES))
  parser.add_argument("--steps", type=int, default=100)
  parser.add_argument("--peak", type=float, default=2e-5)
  parser.add_argument("--control", action="store_true")
  parser.add_argument("--double", action="store_true")
  parser.add_argument("--train_padding", action="store_true")
  args = parser.parse_args()
  if args.control and args.double:
    parser.error("--control works in float32, so not with --double")
  jax.config.update("jax_enable_x64", args.double)
  jax.config.update("jax_default_matmul_precision", "highest")
  suffix = "_double" if args.double else ""
  suffix += "_train_padding" if args.train_padding else ""
  for name in args.tasks.split(","):
    report = compare_task(name, args)
    path = os.path.join(args.output, f"{name}_{args.steps}{suffix}.json")
    with open(path, "w", encoding="utf-8") as f:
      json.dump(report, f, indent=1)
    verdict = "within" if report["largest"] <= TOLERANCE else "BEYOND"
    control = report.get("control")
    rounding = f"; by rounding alone {control:.2g}" if args.control else ""
    print(
      f"{name}: losses of {args.steps} steps differ by {report['largest']:.2g}"
      f" at most (step {report['at_step']}), {verdict} {TOLERANCE:g}{rounding};"
      f" {report['ours'][0]:.5f} at first, {report['ours'][-1]:.5f} at last",
      flush=True,
    )


if __name__ == "__main__":
  main()
