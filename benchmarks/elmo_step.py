"""Compares ELMo's training step with torch's cuDNN LSTM.

  python benchmarks/elmo_step.py
  python benchmarks/elmo_step.py --size medium --length 64 --vocab 32000 \
    --negatives 0
  JAX_PLATFORMS=cpu python benchmarks/elmo_step.py --rows 4 --size small \
    --vocab 2000 --negatives 100 --dtype float32 --steps 1 --windows 3

Both steps run on the same device and on random words, one after the other, each
in a separate process. Both have characters, convolutions, highways, two LSTM
layers with a projection in each direction, forward and backward pass, float32
master weights, dropout, the full or the sampled softmax, and the same
optimizer. Rows begin without states, so that both directions share a pass over
the words.

The peer is torch.nn.LSTM with proj_size, which computes both layers in one
call, in bf16 autocast. On a GPU, the part that makes word vectors is compiled.
The peer has no residual connection between the layers and clips neither cells
nor gradients, so it has less to do than our step. The words that the peer
samples for the softmax may repeat. The program prints one JSON object. Its
ratio compares the median words per second of both sides.
"""

import argparse
import json
import math
import time

import numpy as np
import side_by_side

NUM_BATCHES = 4
# The convolutions: (width in characters, number of filters).
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# Size -> (width, cells, highway layers).
SIZES = {
  "original": (512, 4096, 2),
  "medium": (256, 2048, 1),
  "small": (128, 1024, 1),
}


def make_batches(args: argparse.Namespace) -> list[dict[str, np.ndarray]]:
  """Returns batches of random words of 1 to 12 letters.

  The frequencies of the target words follow Zipf's law.
  """
  rng = np.random.default_rng(0)
  shape = (args.rows, args.length)
  column = np.arange(50)
  batches = []
  for _ in range(NUM_BATCHES):
    word_lengths = rng.integers(1, 13, (*shape, 1))
    # The ids 98 to 122 are letters. A word begins with the id 259 and ends with
    # 260; padding is 261.
    chars = rng.integers(98, 123, (*shape, 50))
    chars = np.where(
      column <= word_lengths,
      chars,
      np.where(column > word_lengths + 1, 261, 260),
    )
    chars[..., 0] = 259
    batch = dict(char_ids=chars.astype(np.int32))
    batch["sequence_ids"] = np.ones(shape, np.int32)
    for name in ("next", "previous"):
      ids = (
        np.exp(rng.random(shape) * math.log(args.vocab)).astype(np.int32) - 1
      )
      batch[f"{name}_ids"] = ids
      batch[f"{name}_weights"] = np.ones(shape, np.float32)
    batches.append(batch)
  return batches


def measure_speed(
  args: argparse.Namespace, run_steps, compile_seconds: float
) -> dict:
  """Returns the times of the steps, the words per second, and compile time."""
  median_ms, all_ms = side_by_side.time_calls(
    run_steps, args.steps, args.windows
  )
  return dict(
    ms=round(median_ms, 3),
    words_per_second=round(args.rows * args.length / median_ms * 1e3),
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
    family="elmo",
    variant=args.size,
    vocab_size=args.vocab,
    vocab_multiple=sharding.vocab_multiple(mesh),
    dropout=args.dropout,
    dtype=args.dtype,
    unroll=args.unroll,
    remat=args.remat,
  )
  objective = objectives.build("elmo", model, dict(negatives=args.negatives))
  schedule = optim.build_schedule(1_000_000, "constant", peak=1e-3, warmup=0.0)
  # adagrad: initial accumulator, gradient scale, clipping norm. adamw: b1, b2,
  # epsilon, weight decay, clipping norm.
  optimizer_settings = dict(
    adagrad=(1.0, 20.0, 10.0), adamw=(0.9, 0.999, 1e-8, 0.01, 10.0)
  )[args.optimizer]
  optimizer = optim.optimizer_factory(args.optimizer)(
    schedule, args.optimizer, *optimizer_settings
  )
  batches = make_batches(args)
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
        batch = batches[i % NUM_BATCHES]
        train_state, metrics = step(train_state, {}, batch, key)
      losses.append(float(metrics["loss"]))

    report = measure_speed(args, run_steps, compile_seconds)
    flops = objective.flops(batches[0])
    memory = step.memory_analysis()
    report["parameters"] = sum(
      x.size for x in jax.tree.leaves(train_state.params)
    )
    report["temporaries_gib"] = round(memory.temp_size_in_bytes / 2**30, 2)
    report["model_tflops"] = round(flops / report["ms"] / 1e9, 1)
    report["losses"] = [round(loss, 4) for loss in losses]
    if args.profile:
      with jax.profiler.trace(args.profile):
        run_steps(args.steps)
  return dict(
    device=jax.devices()[0].device_kind, jax=jax.__version__, **report
  )


def make_peer(args: argparse.Namespace):
  """Returns torch's model, which computes the loss of a batch."""
  import torch
  from torch import nn
  from torch.nn import functional

  width, num_cells, num_highways = SIZES[args.size]
  num_filters = sum(filters_of_width for _, filters_of_width in FILTERS)

  class WordEncoder(nn.Module):
    def __init__(self):
      super().__init__()
      # Each of the 262 character ids has a vector of 16 numbers.
      self.chars = nn.Embedding(262, 16, padding_idx=0)
      self.convolutions = nn.ModuleList(
        nn.Conv1d(16, filters_of_width, filter_width)
        for filter_width, filters_of_width in FILTERS
      )
      self.gates = nn.ModuleList(
        nn.Linear(num_filters, 2 * num_filters) for _ in range(num_highways)
      )
      self.project = nn.Linear(num_filters, width)

    def forward(self, ids):
      x = self.chars(ids.flatten(0, 1)).transpose(1, 2)
      x = torch.cat(
        [convolution(x).max(-1).values for convolution in self.convolutions], -1
      ).relu()
      for gates in self.gates:
        candidate, gate = gates(x).chunk(2, -1)
        gate = gate.sigmoid()
        x = gate * candidate.relu() + (1 - gate) * x
      return self.project(x).view(*ids.shape[:2], -1)

  class PeerModel(nn.Module):
    def __init__(self):
      super().__init__()
      self.word_encoder = WordEncoder()
      sizes = dict(num_layers=2, proj_size=width, dropout=args.dropout)
      self.directions = nn.ModuleList(
        nn.LSTM(width, num_cells, batch_first=True, **sizes) for _ in range(2)
      )
      self.softmax = nn.Linear(width, args.vocab)
      nn.init.normal_(self.softmax.weight, std=width**-0.5)

    def sampled_loss(self, x, labels):
      scale = math.log(args.vocab + 1)

      def log_expected(ids):
        probability = torch.log1p(1 / (ids + 1)) / scale
        return torch.log(
          -torch.expm1(args.negatives * torch.log1p(-probability))
        )

      uniform = torch.rand(args.negatives, device=x.device, dtype=torch.float64)
      ids = ((uniform * scale).exp().long() - 1).clamp(0, args.vocab - 1)
      table, bias = self.softmax.weight, self.softmax.bias
      negative_logits = functional.linear(x, table[ids], bias[ids]).float()
      negative_logits = negative_logits - log_expected(ids)
      negative_logits = negative_logits.masked_fill(
        labels[:, None] == ids, -1e30
      )
      true_logits = (x.float() * table[labels]).sum(-1) + bias[labels]
      true_logits = (true_logits - log_expected(labels))[:, None]
      return functional.cross_entropy(
        torch.cat([true_logits, negative_logits], -1), torch.zeros_like(labels)
      )

    def forward(self, chars, following, preceding):
      words = functional.dropout(self.word_encoder(chars), args.dropout)
      losses = []
      for direction, labels in enumerate((following, preceding)):
        x, _ = self.directions[direction](words.flip(1) if direction else words)
        x = functional.dropout(x.flip(1) if direction else x, args.dropout)
        x, labels = x.flatten(0, 1), labels.flatten()
        if args.negatives:
          losses.append(self.sampled_loss(x, labels))
        else:
          logits = self.softmax(x).float()
          losses.append(functional.cross_entropy(logits, labels))
      return sum(losses) / 2

  return PeerModel()


def measure_peer(args: argparse.Namespace) -> dict:
  """Measures torch's LSTM with cuDNN, bf16 autocast and a fused optimizer."""
  import torch

  torch.manual_seed(0)
  torch.set_float32_matmul_precision("high")
  device = "cuda" if torch.cuda.is_available() else "cpu"
  model = make_peer(args).to(device).train()
  parameters = sum(parameter.numel() for parameter in model.parameters())
  if device == "cuda":
    model.word_encoder = torch.compile(model.word_encoder)
  if args.optimizer == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
  else:
    optimizer = torch.optim.Adagrad(
      model.parameters(), lr=1e-3, initial_accumulator_value=1.0
    )
  dtype = getattr(torch, args.dtype)
  names = ("char_ids", "next_ids", "previous_ids")
  batches = [
    [torch.tensor(batch[name].astype(np.int64)).to(device) for name in names]
    for batch in make_batches(args)
  ]
  losses = []

  def run_steps(count):
    for i in range(count):
      with torch.autocast(device, dtype, enabled=args.dtype != "float32"):
        loss = model(*batches[i % NUM_BATCHES])
      (loss * args.length).backward()
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    losses.append(round(loss.item(), 4))

  start = time.perf_counter()
  # The first steps compile the model and fill caches.
  run_steps(2)
  report = measure_speed(args, run_steps, time.perf_counter() - start)
  return dict(
    device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
    torch=torch.__version__,
    parameters=parameters,
    losses=losses,
    **report,
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--size", default="original", choices=tuple(SIZES))
  add("--rows", type=int, default=128)
  add("--length", type=int, default=20)
  add("--vocab", type=int, default=793_471)
  add("--negatives", type=int, default=8192, help="0: the full softmax")
  add("--optimizer", default="adagrad", choices=("adagrad", "adamw"))
  add("--dropout", type=float, default=0.1)
  add("--dtype", default="bfloat16")
  add("--unroll", type=int, default=4, help="words in an iteration of the loop")
  add("--remat", action="store_true")
  add("--compiler_options", default="{}", help="JSON: more options of XLA")
  add("--steps", type=int, default=20, help="steps in a time measurement")
  add("--windows", type=int, default=5, help="time measurements")
  add("--profile", default="", help="folder for a trace of our step")
  add("--part", choices=("ours", "peer", "both"), default="both")
  args = parser.parse_args()
  if args.part != "both":
    measure = measure_ours if args.part == "ours" else measure_peer
    print(json.dumps(measure(args)))
    return
  print(side_by_side.run_both_sides(__file__, vars(args), "words_per_second"))


if __name__ == "__main__":
  main()
