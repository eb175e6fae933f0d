"""Compares a pre-training step with transformers', on one GPU or a CPU.

  python benchmarks/train_step.py --rows 256 --length 128
  python benchmarks/train_step.py --family roberta
  python benchmarks/train_step.py --family albert
  python benchmarks/train_step.py --family electra
  JAX_PLATFORMS=cpu python benchmarks/train_step.py --rows 8 --dtype float32 \
    --steps 1 --windows 3

Both sides run on the same device, one after the other, each in a separate
process, on random token ids. A step has forward and backward pass, float32
master weights, the published dropout and AdamW. The peer, transformers' model,
is compiled on a GPU. The objective is that of the family: BERT's masked LM and
next sentence, RoBERTa's masked LM, ALBERT's masked LM and sentence order,
ELECTRA's two networks (1 x generator + 50 x discriminator). ALBERT has AdamW on
both sides too, because torch has no LAMB.

bert_jax clips the gradient if the published settings do, and computes logits
only at the `--predictions` masked positions of a row. The peer's labels are at
the same positions, but the peer computes logits for all positions, as
transformers does for its users. Only the peer of ELECTRA (the joint step in
step_peers.py) computes logits for the masked positions alone. RoBERTa's rows
are full, so its peer gets no attention mask. With `--sequences`, bert_jax packs
several sequences into a row, each with separate attention and positions. The
peer then has less to do, because only bert_jax computes which tokens attend to
each other. The peers of the other families get the mask that padded pairs need.

The program prints one JSON object with speeds, numbers of parameters and losses
(at the end of each time measurement) of both sides. The ratio compares the
median tokens per second.
"""

import argparse
import json
import sys
import time
from typing import Any

import side_by_side
import step_batches

FAMILIES = tuple(step_batches.DEFAULT_SIZES)
# Family -> the objective, its options, the optimizer, its b2, and the clipping
# norm (0: no clipping). These settings are those of configs/, but ALBERT has
# AdamW. All families have one schedule, because a schedule costs no time.
OBJECTIVES: dict[str, tuple[str, dict[str, Any], str, float, float]] = {
  "bert": ("mlm", dict(pairs=True), "adamw_bert", 0.999, 1.0),
  "roberta": ("mlm", dict(pairs=False), "adamw_fairseq", 0.98, 0.0),
  "albert": ("mlm", dict(pairs=True, pair_name="sop"), "adamw", 0.999, 1.0),
  "electra": ("electra", {}, "adamw_bert", 0.999, 1.0),
}


def measure_speed(
  args: argparse.Namespace, run_steps, compile_seconds: float
) -> dict:
  """Returns the milliseconds of a step, and the tokens per second."""
  median_ms, all_ms = side_by_side.time_calls(
    run_steps, args.steps, args.windows
  )
  return dict(
    ms=round(median_ms, 3),
    tokens_per_second=round(args.rows * args.length / median_ms * 1e3),
    windows_ms=all_ms,
    compile_seconds=round(compile_seconds, 1),
  )


def measure_ours(args: argparse.Namespace) -> dict:
  """Measures the step as `bert_jax.training.train` compiles it."""
  import jax

  from bert_jax import objectives
  from bert_jax.devices import sharding
  from bert_jax.training import optim, state, steps

  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  model = dict(
    family=args.family,
    variant=args.size + ("_v1" if args.family == "albert" else ""),
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
  name, options, optimizer_name, b2, clip_norm = OBJECTIVES[args.family]
  objective = objectives.build(name, model, options)
  schedule = optim.build_schedule(1_000_000, "bert", peak=1e-4, warmup=0.01)
  optimizer = optim.build_optimizer(
    schedule,
    optimizer_name,
    b1=0.9,
    b2=b2,
    epsilon=1e-6,
    weight_decay=0.01,
    clip_norm=clip_norm,
  )
  batches = step_batches.make_batches(args)
  with sharding.use_mesh(mesh):
    train_state = state.init_state(
      objective, optimizer, mesh, seed=0, batch=batches[0]
    )
    step = jax.jit(
      steps.make_train_step(
        objective, optimizer, schedule, num_micro_batches=1
      ),
      donate_argnums=0,
      out_shardings=(jax.tree.map(lambda x: x.sharding, train_state), None),
      compiler_options=sharding.compiler_options(jax.devices()[0], args.remat)
      | json.loads(args.compiler_options),
    )
    batches = [sharding.to_global_batch(mesh, batch) for batch in batches]
    key = jax.random.key(0)
    start = time.perf_counter()
    step = step.lower(train_state, {}, batches[0], key).compile()
    compile_seconds = time.perf_counter() - start
    losses = []

    def run_steps(count):
      nonlocal train_state
      for i in range(count):
        batch = batches[i % len(batches)]
        train_state, metrics = step(train_state, {}, batch, key)
      losses.append(float(metrics["loss"]))

    report = measure_speed(args, run_steps, compile_seconds)
    flops = objective.flops(batches[0])
    memory = step.memory_analysis()
    report["temporaries_gib"] = round(memory.temp_size_in_bytes / 2**30, 2)
    report["parameters"] = count_parameters(
      state.checkpoint_layout(
        objective, optimizer, mesh, batches[0], args.vocab
      )
    )
    report["model_tflop"] = round(flops / 1e12, 3)
    report["model_tflops"] = round(flops / report["ms"] / 1e9, 1)
    report["losses"] = [round(loss, 4) for loss in losses]
    if args.profile:
      with jax.profiler.trace(args.profile):
        run_steps(args.steps)
      report["kernels_ms"] = side_by_side.kernel_times(args.profile, args.steps)
  return dict(
    device=jax.devices()[0].device_kind, jax=jax.__version__, **report
  )


def count_parameters(train_state: Any) -> int:
  """Counts the parameters of a train state of arrays or of shapes."""
  import jax

  return sum(x.size for x in jax.tree.leaves(train_state.params))


def measure_peer(args: argparse.Namespace) -> dict:
  """Measures transformers' model with SDPA, fused AdamW and torch.compile."""
  import step_peers
  import torch
  import transformers

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = "cuda" if torch.cuda.is_available() else "cpu"
  model = step_peers.MODEL_BUILDERS[args.family](args).to(device).train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
  compiled_model = torch.compile(model) if device == "cuda" else model
  dtype = getattr(torch, args.dtype)
  batches = [
    {
      key: torch.tensor(array).to(device)
      for key, array in step_peers.model_inputs(args.family, batch).items()
    }
    for batch in step_batches.make_batches(args)
  ]
  losses = []

  def run_steps(count):
    for i in range(count):
      with torch.autocast(device, dtype, enabled=args.dtype != "float32"):
        loss = compiled_model(**batches[i % len(batches)])[0]
      loss.backward()
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())
    if device == "cuda":
      torch.cuda.synchronize()

  start = time.perf_counter()
  # The first steps compile the model and fill caches.
  run_steps(2)
  report = measure_speed(args, run_steps, time.perf_counter() - start)
  return dict(
    device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
    torch=torch.__version__,
    transformers=transformers.__version__,
    **report,
    parameters=sum(parameter.numel() for parameter in model.parameters()),
    losses=[round(loss, 4) for loss in losses],
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--family", default="bert", choices=FAMILIES)
  add("--size", help="a published size (default: base; small for ELECTRA)")
  add("--rows", type=int, help="default: as published, or as many as fit")
  add("--length", type=int, help="tokens in a row (default: as published)")
  add("--predictions", type=int, help="default: in proportion to --length")
  add("--vocab", type=int, help="number of pieces (default: as published)")
  add("--sequences", type=int, default=1, help="sequences in RoBERTa's rows")
  add("--dropout", type=float, default=0.1)
  add("--dtype", default="bfloat16")
  add("--attention", default="auto")
  add("--elementwise", default="auto")
  add(
    "--unroll", type=int, default=0, help="layers in an iteration of the loop"
  )
  add("--remat", action="store_true")
  add("--model", default="{}", help="JSON: other attributes of the model")
  add("--compiler_options", default="{}", help="JSON: more options of XLA")
  add("--steps", type=int, default=20, help="steps in a time measurement")
  add("--windows", type=int, default=5, help="time measurements")
  add("--profile", default="", help="folder for a trace of our step")
  add("--part", choices=("ours", "peer", "both"), default="both")
  args = parser.parse_args()
  try:
    step_batches.set_missing_flags(args)
  except ValueError as e:
    sys.exit(f"error: {e}")
  if args.part != "both":
    measure = measure_ours if args.part == "ours" else measure_peer
    print(json.dumps(measure(args)))
    return
  print(side_by_side.run_both_sides(__file__, vars(args), "tokens_per_second"))


if __name__ == "__main__":
  main()
