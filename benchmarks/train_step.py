"""A pre-training step of ours beside transformers' compiled one, on one GPU.

  python benchmarks/train_step.py --rows 256 --length 128

Both run in this call on the same card, one after the other, each in a process
of its own, on random token ids: forward and backward pass, bfloat16 with
float32 master weights, dropout, AdamW. Ours also clips the gradient and masks
at `--predictions` positions of a row; the peer's labels are at the same
positions, and it makes logits for all of them, as its users get it. Prints one
JSON object; the ratio is of the medians of tokens a second.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time

import numpy as np

BATCHES = 4


def make_batches(args: argparse.Namespace) -> list[dict[str, np.ndarray]]:
  """Random rows without padding, two segments each."""
  rng = np.random.default_rng(0)
  shape = (args.rows, args.length)
  batches = []
  for _ in range(BATCHES):
    positions = rng.random(shape).argsort(1)[:, : args.predictions]
    ids = rng.integers(1000, args.vocab, shape, dtype=np.int32)
    positions = np.sort(positions, 1).astype(np.int32)
    labels = np.take_along_axis(ids, positions, 1)
    np.put_along_axis(ids, positions, 103, 1)
    segments = np.arange(args.length) >= args.length // 2
    batches.append(
      dict(
        input_ids=ids,
        segment_ids=np.broadcast_to(segments, shape).astype(np.int32),
        sequence_ids=np.ones(shape, np.int32),
        mlm_positions=positions,
        mlm_ids=labels,
        mlm_weights=np.ones(labels.shape, np.float32),
        pair_labels=rng.integers(0, 2, (args.rows, 1), dtype=np.int32),
        cls_positions=np.zeros((args.rows, 1), np.int32),
        pair_weights=np.ones((args.rows, 1), np.float32),
      )
    )
  return batches


def measure(args: argparse.Namespace, run_steps, compile_seconds: float):
  """Times windows of steps; `run_steps(n)` ends when n steps have."""
  run_steps(args.steps)
  seconds = []
  for _ in range(args.windows):
    start = time.perf_counter()
    run_steps(args.steps)
    seconds.append((time.perf_counter() - start) / args.steps)
  median = statistics.median(seconds)
  return dict(
    ms=round(median * 1e3, 3),
    tokens_per_second=round(args.rows * args.length / median),
    windows_ms=[round(s * 1e3, 3) for s in seconds],
    compile_seconds=round(compile_seconds, 1),
  )


def ours(args: argparse.Namespace) -> dict:
  """Our step, as `bert_jax.train` compiles it."""
  import jax

  from bert_jax import objectives, optim, sharding, state, steps

  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  model = dict(
    family="bert",
    variant=args.size,
    vocab_size=args.vocab,
    vocab_multiple=sharding.vocab_multiple(mesh),
    dropout=args.dropout,
    attention_dropout=args.dropout,
    dtype=args.dtype,
    attention=args.attention,
    elementwise=args.elementwise,
    remat=args.remat,
  )
  model |= json.loads(args.model)
  objective = objectives.build("mlm", model, dict(pairs=True))
  schedule = optim.build_schedule(1_000_000, "bert", 1e-4, 0.01)
  optimizer = optim.build_optimizer(
    schedule, "adamw_bert", 0.9, 0.999, 1e-6, 0.01, 1.0
  )
  batches = make_batches(args)
  with sharding.use_mesh(mesh):
    train_state = state.init_state(objective, optimizer, mesh, 0, batches[0])
    step = jax.jit(
      steps.make_train_step(objective, optimizer, schedule, 1),
      donate_argnums=0,
      out_shardings=(jax.tree.map(lambda x: x.sharding, train_state), None),
      compiler_options=sharding.compiler_options(mesh, args.remat)
      | json.loads(args.compiler_options),
    )
    batches = [sharding.to_global(mesh, batch) for batch in batches]
    key = jax.random.key(0)
    start = time.perf_counter()
    step = step.lower(train_state, {}, batches[0], key).compile()
    compile_seconds = time.perf_counter() - start
    losses = []

    def run_steps(count):
      nonlocal train_state
      for i in range(count):
        batch = batches[i % BATCHES]
        train_state, metrics = step(train_state, {}, batch, key)
      losses.append(float(metrics["loss"]))

    result = measure(args, run_steps, compile_seconds)
    flops = objective.flops(batches[0])
    memory = step.memory_analysis()
    result["temporaries_gib"] = round(memory.temp_size_in_bytes / 2**30, 2)
    result["model_tflops"] = round(flops / result["ms"] / 1e9, 1)
    result["losses"] = [round(loss, 4) for loss in losses]
    if args.profile:
      with jax.profiler.trace(args.profile):
        run_steps(args.steps)
      result["kernels_ms"] = kernels(args.profile, args.steps)
  return dict(
    device=jax.devices()[0].device_kind, jax=jax.__version__, **result
  )


def kernels(folder: str, steps: int) -> dict[str, float]:
  """Milliseconds a step by kernel name, the largest first."""
  import collections
  import glob
  import re

  import jax

  (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
  total = collections.Counter()
  for plane in jax.profiler.ProfileData.from_file(path).planes:
    if not plane.name.startswith("/device:GPU"):
      continue
    for line in plane.lines:
      if line.name.startswith("Stream"):
        for event in line.events:
          name = re.sub(r"[._]?\d+$", "", event.name)
          total[name] += event.duration_ns / 1e6 / steps
  return {name: round(ms, 3) for name, ms in total.most_common(60)}


def peer(args: argparse.Namespace) -> dict:
  """transformers' BertForPreTraining: torch.compile, SDPA, fused AdamW."""
  import torch
  import transformers

  width, layers, heads = {
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
  }[args.size]
  config = transformers.BertConfig(
    vocab_size=args.vocab,
    hidden_size=width,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    intermediate_size=4 * width,
    hidden_dropout_prob=args.dropout,
    attention_probs_dropout_prob=args.dropout,
    attn_implementation="sdpa",
  )
  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  model = transformers.BertForPreTraining(config).cuda().train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
  compiled = torch.compile(model)
  batches = []
  for batch in make_batches(args):
    labels = np.full(batch["input_ids"].shape, -100, np.int64)
    np.put_along_axis(labels, batch["mlm_positions"], batch["mlm_ids"], 1)
    inputs = dict(
      input_ids=batch["input_ids"].astype(np.int64),
      token_type_ids=batch["segment_ids"].astype(np.int64),
      attention_mask=batch["sequence_ids"].astype(np.int64),
      labels=labels,
      next_sentence_label=batch["pair_labels"][:, 0].astype(np.int64),
    )
    batches.append({k: torch.tensor(v).cuda() for k, v in inputs.items()})

  def run_steps(count):
    for i in range(count):
      with torch.autocast("cuda", torch.bfloat16):
        loss = compiled(**batches[i % BATCHES]).loss
      loss.backward()
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()

  start = time.perf_counter()
  run_steps(2)
  result = measure(args, run_steps, time.perf_counter() - start)
  return dict(
    device=torch.cuda.get_device_name(),
    torch=torch.__version__,
    transformers=transformers.__version__,
    **result,
  )


def in_process(argv: list[str], part: str) -> dict:
  """Runs a part in a process of its own, so that each has the whole card."""
  command = [sys.executable, __file__, *argv, "--part", part]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  if done.returncode:
    return dict(failed=done.returncode)
  return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = functools.partial(parser.add_argument)
  add("--size", default="base", choices=("base", "large"))
  add("--rows", type=int, default=256)
  add("--length", type=int, default=128)
  add("--predictions", type=int, default=20)
  add("--vocab", type=int, default=30522)
  add("--dropout", type=float, default=0.1)
  add("--dtype", default="bfloat16")
  add("--attention", default="auto")
  add("--elementwise", default="auto")
  add("--remat", action="store_true")
  add("--model", default="{}", help="JSON: other attributes of the model")
  add("--compiler_options", default="{}", help="JSON: more of XLA's")
  add("--steps", type=int, default=20, help="of a window")
  add("--windows", type=int, default=5)
  add("--profile", default="", help="folder of a trace of our step")
  add("--part", choices=("ours", "peer", "both"), default="both")
  args = parser.parse_args()
  if args.part != "both":
    print(json.dumps({"ours": ours, "peer": peer}[args.part](args)))
    return
  parts = {p: in_process(sys.argv[1:], p) for p in ("ours", "peer")}
  speeds = [parts[p].get("tokens_per_second", 0) for p in ("ours", "peer")]
  ratio = round(speeds[0] / speeds[1], 3) if all(speeds) else None
  print(json.dumps(dict(work=vars(args), **parts, ratio=ratio), indent=1))


if __name__ == "__main__":
  main()
