r"""Fine-tunes one task with transformers, in a fast loop without bert_jax.

The rows are those of a folder of `bert_jax prepare-task`. They are shuffled as
transformers' Trainer does. With --grouped, rows of similar length share a
batch, as in transformers' LengthGroupedSampler. A batch is padded to its
longest row. The loop uses bfloat16 autocast on a GPU, fused AdamW, and one
transfer to the GPU for each batch. --output gets a line for each seed.

  python experiments/finetune_minilm/transformers_loop.py --model MINILM \\
    --data FOLDER --output RESULTS.jsonl [--seeds 0 1] [--peak 1e-4] [--grouped]
    [--each_epoch] [--compile]
"""

import argparse
import json
import os

import numpy as np
import torch
import transformers

# The number of batches whose rows are sorted together (LengthGroupedSampler).
BATCHES_IN_POOL = 50
# A batch's length is a multiple of this number of tokens, for tensor cores.
LENGTH_MULTIPLE = 8
# The number of rows in a batch of an evaluation.
EVAL_BATCH_SIZE = 128


def read_rows(folder, split):
  """Returns a split's arrays: `ids`, `starts`, `second` and `labels`."""
  with np.load(os.path.join(folder, f"{split}.npz")) as arrays:
    return {
      name: arrays[name] for name in ("ids", "starts", "second", "labels")
    }


def group_by_length(order, sizes, batch_size):
  """Returns an epoch's rows in an order that groups similar lengths.

  This is transformers' get_length_grouped_indices. In each pool of batches, the
  longest rows come first. The longest row of all is in the first batch.
  """
  pool_size = batch_size * max(
    min(len(sizes) // (4 * batch_size), BATCHES_IN_POOL), 1
  )
  pools = [order[i : i + pool_size] for i in range(0, len(order), pool_size)]
  pools = [
    indices[np.argsort(-sizes[indices], kind="stable")] for indices in pools
  ]
  longest = int(np.argmax([sizes[indices[0]] for indices in pools]))
  pools[0][0], pools[longest][0] = pools[longest][0], pools[0][0]
  return np.concatenate(pools)


def collate(rows, row_indices, pad, device):
  """Returns the chosen rows as the model's arguments, on the device."""
  starts = rows["starts"][row_indices][:, None]
  sizes = rows["starts"][row_indices + 1][:, None] - starts
  columns = np.arange(-(-int(sizes.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
  is_token = columns < sizes
  ids = np.where(is_token, rows["ids"].take(starts + columns, mode="clip"), pad)
  types = is_token & (columns >= rows["second"][row_indices][:, None])
  inputs = torch.from_numpy(np.stack([ids, types, is_token]).astype(np.int64))
  labels = torch.from_numpy(rows["labels"][row_indices])
  if labels.dtype != torch.float32:
    labels = labels.long()
  if device == "cuda":
    inputs, labels = inputs.pin_memory(), labels.pin_memory()
  ids, types, is_token = inputs.to(device, non_blocking=True)
  return {
    "input_ids": ids,
    "token_type_ids": types,
    "attention_mask": is_token,
    "labels": labels.to(device, non_blocking=True),
  }


def autocast(device):
  return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def evaluate_model(model, rows, pad, metric, device):
  """Returns accuracy, Matthews', or the mean of Pearson and Spearman."""
  model.eval()
  sizes = np.diff(rows["starts"])
  order = np.argsort(-sizes, kind="stable")
  predicted = []
  with torch.no_grad(), autocast(device):
    for i in range(0, len(order), EVAL_BATCH_SIZE):
      batch = collate(rows, order[i : i + EVAL_BATCH_SIZE], pad, device)
      predicted.append(model(**batch).logits.float())
  model.train()
  logits = torch.cat(predicted).cpu().numpy()[np.argsort(order)]
  labels = rows["labels"]
  if metric == "pearson_spearman":
    from scipy import stats

    columns = labels.astype(np.float64), logits[:, 0].astype(np.float64)
    correlations = stats.pearsonr(*columns)[0], stats.spearmanr(*columns)[0]
    return float(sum(correlations) / 2)
  if metric == "matthews":
    from sklearn import metrics

    return float(metrics.matthews_corrcoef(labels, logits.argmax(1)))
  return float((labels == logits.argmax(1)).mean())


def make_optimizer(model, args, steps):
  """Returns AdamW and its schedule; biases and LayerNorm do not decay."""
  # Index 0 (False) has the parameters with decay, index 1 those without decay.
  parameter_groups = [[], []]
  for name, parameter in model.named_parameters():
    parameter_groups["bias" in name or "LayerNorm" in name].append(parameter)
  groups = [
    {"params": parameter_groups[0], "weight_decay": args.decay},
    {"params": parameter_groups[1], "weight_decay": 0.0},
  ]
  optimizer = torch.optim.AdamW(groups, lr=args.peak, eps=1e-8, fused=True)
  warmup_steps = round(args.warmup * steps)
  return optimizer, transformers.get_linear_schedule_with_warmup(
    optimizer, warmup_steps, steps
  )


def train(args, seed, device):
  """Trains with a seed; returns its line of the output as a dict."""
  with open(os.path.join(args.data, "meta.json"), encoding="utf-8") as f:
    meta = json.load(f)
  transformers.set_seed(seed)
  model = transformers.AutoModelForSequenceClassification.from_pretrained(
    args.model,
    dtype=torch.float32,
    num_labels=len(meta["task"]["labels"]) or 1,
  ).to(device)
  rows, dev = read_rows(args.data, "train"), read_rows(args.data, "validation")
  sizes = np.diff(rows["starts"])
  epoch_steps = -(-len(sizes) // args.batch_size)
  steps = args.limit or epoch_steps * args.epochs
  optimizer, schedule = make_optimizer(model, args, steps)
  step_model = torch.compile(model, dynamic=True) if args.compile else model
  generator = torch.Generator().manual_seed(seed)
  metric, scores = meta["task"]["metrics"][0], []
  model.train()
  for step in range(steps):
    row_begin = step % epoch_steps * args.batch_size
    if not row_begin:
      order = torch.randperm(len(sizes), generator=generator).numpy()
      if args.grouped:
        order = group_by_length(order, sizes, args.batch_size)
    row_indices = order[row_begin : row_begin + args.batch_size]
    batch = collate(rows, row_indices, meta["pad"], device)
    with autocast(device):
      loss = step_model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    is_last = step + 1 == steps
    if is_last or (args.each_epoch and (step + 1) % epoch_steps == 0):
      scores.append(evaluate_model(model, dev, meta["pad"], metric, device))
      if args.each_epoch:
        folder = os.path.join(os.path.dirname(args.output), f"step_{step + 1}")
        model.save_pretrained(folder)
        state = optimizer.state_dict(), schedule.state_dict()
        torch.save(state, os.path.join(folder, "optimizer.pt"))
  return {
    "seed": seed,
    "metric": metric,
    "value": scores[-1],
    "each_epoch": scores,
    "steps": steps,
    "loss": loss.item(),
  }


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add("--model", required=True, help="folder of MiniLM")
  add("--data", required=True, help="folder of bert_jax prepare-task")
  add("--output", required=True, help="results, a line for each seed")
  add("--seeds", type=int, nargs="+", default=[0])
  add("--grouped", action="store_true", help="group rows by length")
  add("--peak", type=float, default=1e-4)
  add("--epochs", type=int, default=3)
  add("--batch_size", type=int, default=32)
  add("--warmup", type=float, default=0.1)
  add("--decay", type=float, default=0.01)
  add("--clip", type=float, default=1.0)
  add("--limit", type=int, default=0, help="steps; 0: all epochs")
  add("--each_epoch", action="store_true", help="score and save every epoch")
  add("--compile", action="store_true", help="torch.compile")
  args = parser.parse_args()
  torch.set_float32_matmul_precision("high")
  device = "cuda" if torch.cuda.is_available() else "cpu"
  for seed in args.seeds:
    result = train(args, seed, device)
    with open(args.output, "a", encoding="utf-8") as f:
      f.write(json.dumps(result) + "\n")


if __name__ == "__main__":
  main()
