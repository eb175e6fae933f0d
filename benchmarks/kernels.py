"""Times each fused kernel with one or several tunings, on one GPU.

  python benchmarks/kernels.py --rows 128 --width 1024 --heads 16 --mlp 4096
  python benchmarks/kernels.py --rows 64 --length 512 --sweep

The program prints a line of JSON for each kernel and tuning. Without `--sweep`,
only the tuning that bert_jax uses is measured. `us` is the time of a call in
microseconds, which the profiler measures: the mean of `--calls` calls. `all_us`
is the time of all kernels of the same module, forward and backward, and of the
sums that follow. `bert_jax/kernels/fused_*.py` explains the numbers of a
tuning. If a tuning does not fit the GPU, its line has the error. Dropout is
0.1, and the dtype is bfloat16.
"""

import argparse
import concurrent.futures
import json
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import side_by_side

from bert_jax.kernels import fused_activation, fused_attention, fused_norm

DROPOUT_RATE = 0.1
NUM_PROCESSORS = 132  # An H100 and an H200 have this number.

# Tunings to try. `bert_jax/kernels/fused_*.py` explains the numbers.
FORWARD_TUNINGS = [
  (*block, stages)
  for block in (
    (128, 32, 4),
    (128, 64, 4),
    (128, 64, 8),
    (128, 128, 8),
    (64, 32, 4),
    (64, 64, 4),
    (64, 128, 4),
  )
  for stages in (2, 3)
]
ROW_TUNINGS = [
  (*block, stages)
  for block in ((16, 128, 4), (16, 128, 8), (32, 128, 4), (32, 128, 8))
  for stages in (2, 3, 5)
]
QUERY_TUNINGS = [
  (*block, stages)
  for block in ((128, 64, 4), (128, 32, 4), (64, 64, 4), (64, 128, 4))
  for stages in (2, 3)
]
KEY_TUNINGS = [
  (*block, stages)
  for block in ((16, 128, 4), (32, 128, 4), (32, 64, 4), (64, 128, 8))
  for stages in (3, 4)
]
NORM_TUNINGS = [
  (warps, blocks * NUM_PROCESSORS, tile)
  for warps, tile, blocks_per_processor in (
    (1, 1, (8,)),
    (2, 1, (4, 8)),
    (4, 1, (2, 4, 8)),
    (4, 2, (2, 4)),
    (8, 1, (1, 2, 4)),
    (8, 2, (1, 2)),
    (16, 2, (1,)),
  )
  for blocks in blocks_per_processor
]
ACTIVATION_TUNINGS = [
  (*block, warps)
  for block in ((16, 128), (32, 128), (64, 128), (32, 256), (16, 512))
  for warps in (4, 8)
]


def kernels_with_tunings(
  length: int, width: int
) -> list[tuple[str, Any, str, list[Any]]]:
  """Returns the kernels for these sizes.

  Returns:
    For each kernel: its name, its module, the name of its tuning in the module,
    and other tunings to try.
  """
  attention, norm, activation = fused_attention, fused_norm, fused_activation
  if length <= 128:
    attention_tunings = [
      ("attention_forward", attention, "FORWARD_SHORT_TUNING", FORWARD_TUNINGS),
      ("attention_row", attention, "ROW_TUNING", ROW_TUNINGS),
    ]
  else:
    attention_tunings = [
      ("attention_forward", attention, "FORWARD_TUNING", FORWARD_TUNINGS),
      ("attention_queries", attention, "QUERIES_TUNING", QUERY_TUNINGS),
      ("attention_keys", attention, "KEYS_TUNING", KEY_TUNINGS),
    ]
  norm_tuning = (
    "WIDE_TUNING" if width >= norm.MIN_WIDE_COLUMNS else "NARROW_TUNING"
  )
  return [
    *attention_tunings,
    ("forward_kernel", norm, "FORWARD_WARPS", [1, 2, 4]),
    ("backward_kernel", norm, norm_tuning, NORM_TUNINGS),
    (
      "bias_activation_forward",
      activation,
      "FORWARD_TUNING",
      ACTIVATION_TUNINGS,
    ),
    (
      "bias_activation_backward",
      activation,
      "BACKWARD_TUNING",
      ACTIVATION_TUNINGS,
    ),
  ]


def make_call(
  module: Any, args: argparse.Namespace
) -> tuple[Callable[..., Any], list[jax.Array]]:
  """Returns a function that calls all kernels of a module, and its inputs."""
  keys = iter(jax.random.split(jax.random.key(0), 8))
  batch_shape = args.rows, args.length
  seed = jax.random.bits(next(keys), (2,))

  def draw(*shape, dtype=jnp.bfloat16):
    return jax.random.normal(next(keys), shape, dtype)

  def vector(*shape):
    return draw(*shape, dtype=jnp.float32)

  if module is fused_attention:
    head_width = args.width // args.heads
    sequence_ids = jnp.ones(batch_shape, jnp.int32)
    inputs = [
      draw(*batch_shape, args.heads, 3, head_width),
      vector(args.heads, 3, head_width),
    ]
    gradient = draw(*batch_shape, args.heads, head_width)

    def call(qkv, bias):
      return fused_attention.attention(
        qkv, bias, sequence_ids, seed, DROPOUT_RATE
      )

  elif module is fused_norm:
    width = args.width
    inputs = [draw(*batch_shape, width), draw(*batch_shape, width)]
    inputs += [vector(width) for _ in range(3)]
    gradient = (draw(*batch_shape, width),) * 2

    def call(*arrays):
      # 1e-12 is the epsilon of LayerNorm.
      return fused_norm.add_norm(*arrays, seed, DROPOUT_RATE, 1e-12)

  else:
    inputs = [draw(*batch_shape, args.mlp), vector(args.mlp)]
    gradient = draw(*batch_shape, args.mlp)
    function_pair = fused_activation.gelu, fused_activation.gelu_derivative

    def call(x, bias):
      return fused_activation.bias_activation(x, bias, *function_pair)

  def forward_and_backward(*arrays):
    outputs, backward = jax.vjp(call, *arrays[:-1])
    return outputs, backward(arrays[-1])

  return forward_and_backward, [*inputs, gradient]


def measure_kernel(
  name: str, compiled: Any, inputs: list[jax.Array], calls: int
) -> dict[str, float]:
  """Returns the microseconds of a kernel, and of all kernels of its module."""
  jax.block_until_ready(compiled(*inputs))
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      for _ in range(calls):
        out = compiled(*inputs)
      jax.block_until_ready(out)
    milliseconds = side_by_side.kernel_times(folder, calls)
  times = [ms for kernel, ms in milliseconds.items() if name in kernel]
  if not times:
    raise ValueError(f"{name} is not among the kernels {list(milliseconds)}.")
  return {
    "us": round(sum(times) * 1e3, 1),
    "all_us": round(sum(milliseconds.values()) * 1e3, 1),
  }


def print_times_of_tunings(
  kernel: tuple[str, Any, str, list[Any]],
  args: argparse.Namespace,
  pool: concurrent.futures.Executor,
) -> None:
  """Prints a line for each tuning of a kernel; compiles them in parallel."""
  name, module, tuning_name, tunings_to_try = kernel
  default_tuning = getattr(module, tuning_name)
  tunings = [default_tuning]
  tunings += [
    tuning
    for tuning in tunings_to_try
    if args.sweep and tuning != default_tuning
  ]
  call, inputs = make_call(module, args)
  programs = []
  for tuning in tunings:
    setattr(module, tuning_name, tuning)
    jax.clear_caches()  # Do not reuse a program of another tuning.
    programs.append(pool.submit(jax.jit(call).lower(*inputs).compile))
  setattr(module, tuning_name, default_tuning)
  for tuning, program in zip(tunings, programs, strict=True):
    row: dict[str, Any] = {"kernel": name, tuning_name: tuning}
    try:
      row |= measure_kernel(name, program.result(), inputs, args.calls)
    except Exception as e:
      row["error"] = str(e).splitlines()[0][:200]
    print(json.dumps(row), flush=True)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--rows", type=int, default=256)
  add("--length", type=int, default=128)
  add("--width", type=int, default=768)
  add("--heads", type=int, default=12)
  add("--mlp", type=int, default=3072)
  add("--calls", type=int, default=10)
  add("--kernels", default="", help="names with commas between (default: all)")
  add("--sweep", action="store_true", help="try other tunings as well")
  args = parser.parse_args()
  wanted_names = args.kernels.split(",") if args.kernels else None
  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    for kernel in kernels_with_tunings(args.length, args.width):
      if not wanted_names or kernel[0] in wanted_names:
        print_times_of_tunings(kernel, args, pool)


if __name__ == "__main__":
  main()
