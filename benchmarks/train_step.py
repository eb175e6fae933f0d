"""A pre-training step of ours beside transformers', on one GPU or a CPU.

  python benchmarks/train_step.py --rows 256 --length 128
  JAX_PLATFORMS=cpu python benchmarks/train_step.py --rows 8 --dtype float32 \
    --steps 1 --windows 3

Both run in this call on the same device, one after the other, each in a process
of its own, on random token ids: forward and backward pass, float32 master
weights, dropout, AdamW; on a GPU the peer is compiled. Ours also clips the
gradient, and makes logits at the `--predictions` masked positions of a row; the
peer's labels are at the same positions, and it makes logits for all of them, as
its users get it. Prints one JSON object; the ratio is of the medians of tokens
a second.
"""

import argparse
import json
import time

import numpy as np
import side_by_side

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


def speed(args: argparse.Namespace, run_steps, compile_seconds: float) -> dict:
  """Milliseconds a step and tokens a second; `run_steps(n)` ends when done."""
  ms, all_ms = side_by_side.windows(run_steps, args.steps, args.windows)
  return dict(
    ms=round(ms, 3),
    tokens_per_second=round(args.rows * args.length / ms * 1e3),
    windows_ms=all_ms,
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
    unroll=args.unroll,
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

    result = speed(args, run_steps, compile_seconds)
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
  """transformers' BertForPreTraining: SDPA, fused AdamW, torch.compile."""
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
  device = "cuda" if torch.cuda.is_available() else "cpu"
  model = transformers.BertForPreTraining(config).to(device).train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
  compiled = torch.compile(model) if device == "cuda" else model
  dtype = getattr(torch, args.dtype)
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
    batches.append({k: torch.tensor(v).to(device) for k, v in inputs.items()})

  def run_steps(count):
    for i in range(count):
      with torch.autocast(device, dtype, enabled=args.dtype != "float32"):
        loss = compiled(**batches[i % BATCHES]).loss
      loss.backward()
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    if device == "cuda":
      torch.cuda.synchronize()

  start = time.perf_counter()
  run_steps(2)
  result = speed(args, run_steps, time.perf_counter() - start)
  return dict(
    device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
    torch=torch.__version__,
    transformers=transformers.__version__,
    **result,
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--size", default="base", choices=("base", "large"))
  add("--rows", type=int, default=256)
  add("--length", type=int, default=128)
  add("--predictions", type=int, default=20)
  add("--vocab", type=int, default=30522)
  add("--dropout", type=float, default=0.1)
  add("--dtype", default="bfloat16")
  add("--attention", default="auto")
  add("--elementwise", default="auto")
  add("--unroll", type=int, default=0, help="layers of a loop's iteration")
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
  print(side_by_side.both(__file__, vars(args), "tokens_per_second"))


if __name__ == "__main__":
  main()
