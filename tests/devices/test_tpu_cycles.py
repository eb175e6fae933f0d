"""Tests the estimate of a TPU program's time from the program's text."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.devices import hlo, kernel_operations, tpu_cycles
from bert_jax.messages import UserError


def instruction_line(text, path="", cycles=None):
  """Returns the line of an instruction as libtpu writes it."""
  estimate = "" if cycles is None else f'"estimated_cycles":"{cycles}",'
  path = f"jit(step)/{path}" if path else ""
  return (
    f'  {text}, metadata={{op_name="{path}"}}, backend_config='
    f'{{"window_config":{{{estimate}"iteration_bounds":["1"]}}}}'
  )


LAYER_PATH = "jvp(Model)/encoder/layers/while/body/layer.body/layer"
# Parts of a program that libtpu wrote, shortened: a loop of 12 layers, the
# embedding, a head and the optimizer.
HLO_TEXT = f"""HloModule jit_step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  ROOT %plus = f32[] add(%a, %a)
}}

%fused_product (p: bf16[8,8]) -> bf16[8,8] {{
  %p = bf16[8,8] parameter(0)
  {instruction_line("%product = f32[8,8] convolution(%p, %p), dim_labels=bf_io->bf", LAYER_PATH + "/mlp_in.product_and_bias/dot_general")}
  {instruction_line("ROOT %gelu = bf16[8,8] multiply(%product, %p)", LAYER_PATH + "/mul")}
}}

%fused_scores (p: bf16[8,8]) -> bf16[8,8] {{
  %p = bf16[8,8] parameter(0)
  {instruction_line("ROOT %scores = f32[8,8] convolution(%p, %p), dim_labels=bf_io->bf", LAYER_PATH + "/attention/bqhk,bshk->bhqs/dot_general")}
}}

%fused_query (p: bf16[8,8]) -> bf16[8,8] {{
  %p = bf16[8,8] parameter(0)
  {instruction_line("ROOT %query = f32[8,8] convolution(%p, %p), dim_labels=bf_io->bf", LAYER_PATH + "/attention/dot_general")}
}}

%fused_cast (p: f32[8,8]) -> bf16[8,8] {{
  %p = f32[8,8] parameter(0)
  %flat = f32[64] bitcast(%p)
  ROOT %half = bf16[64] convert(%flat)
}}

%fused_norm (p: bf16[8,8]) -> bf16[8,8] {{
  %p = bf16[8,8] parameter(0)
  {instruction_line("ROOT %mean = f32[8] reduce(%p, %p), to_apply=%sum", LAYER_PATH + "/mlp_norm/reduce_sum")}
}}

%fused_update (p: bf16[8,8]) -> bf16[8,8] {{
  %p = bf16[8,8] parameter(0)
  {instruction_line("ROOT %write = bf16[12,8,8] dynamic-update-slice(%p, %p)", "jvp(Model)/encoder/layers/while/body/dynamic_update_slice")}
}}

%condition (s: (s32[])) -> pred[] {{
  %layers = s32[] constant(12)
  ROOT %less = pred[] compare(%s, %layers), direction=LT
}}

%body (s: (s32[])) -> (s32[]) {{
  {instruction_line("%fusion.1 = bf16[8,8] fusion(%x), kind=kOutput, calls=%fused_product", LAYER_PATH + "/mul", 100)}
  {instruction_line("%fusion.2 = bf16[8,8] fusion(%x), kind=kOutput, calls=%fused_scores", LAYER_PATH + "/attention/sub", 30)}
  {instruction_line("%fusion.3 = bf16[8,8] fusion(%x), kind=kOutput, calls=%fused_query", LAYER_PATH + "/attention/transpose", 7)}
  {instruction_line("%fusion.4 = f32[8] fusion(%x), kind=kLoop, calls=%fused_norm", LAYER_PATH + "/mlp_norm/reduce_sum", 11)}
  {instruction_line("%fusion.5 = bf16[12,8,8] fusion(%x), kind=kLoop, calls=%fused_update", "jvp(Model)/encoder/layers/while/body/dynamic_update_slice", 13)}
  {instruction_line("%add.1 = bf16[8,8] add(%x, %x)", LAYER_PATH + "/add", 3)}
  {instruction_line("%scalar = s32[] add(%x, %x)", LAYER_PATH + "/add")}
  %forward.1 = f32[5,64,1] custom-call(%x), custom_call_target="tpu_custom_call", metadata={{op_name="jit(step)/{LAYER_PATH}/attention/forward/pallas_call"}}
  %reduced.1 = f32[1000] all-reduce(%x), replica_groups=mesh['data'=8,'fsdp'=2] {{'data'}}, to_apply=%sum
  ROOT %next = (s32[]) tuple(%s)
}}

ENTRY %main (w: f32[8,8]) -> f32[8,8] {{
  %w = f32[8,8] parameter(0)
  {instruction_line("%fusion.6 = bf16[64] fusion(%w), kind=kLoop, calls=%fused_cast", "", 17)}
  {instruction_line("%convert.1 = bf16[8,8] convert(%w)", LAYER_PATH + "/convert_element_type", 19)}
  {instruction_line("%zeros = f32[12,8] broadcast(%w)", "transpose(jvp(Model))/encoder/layers/broadcast_in_dim", 23)}
  {instruction_line("%rows = f32[8,8] gather(%w)", "jvp(Model)/encoder/embed/embeddings/norm/add", 29)}
  {instruction_line("%joined = f32[12,8] concatenate(%w)", "transpose(jvp(Model))/encoder/layers/concatenate", 47)}
  {instruction_line("%written = f32[12,8] dynamic-update-slice(%w, %w)", "", 53)}
  %loop = (s32[]) while(%w), condition=%condition, body=%body
  {instruction_line("%logits = f32[8,8] convolution(%w, %w), dim_labels=bf_io->bf", "jvp(Model)/mlm/bme,ve->bmv/dot_general", 31)}
  {instruction_line("%loss = f32[] add(%w, %w)", "jvp()/reduce_sum", 37)}
  {instruction_line("%moment = f32[8,8] multiply(%w, %w)", "mul", 41)}
  %noname = f32[8,8] copy(%w), backend_config={{"window_config":{{"estimated_cycles":"43"}}}}
  %started = (f32[4], f32[64]) all-gather-start(%w), replica_groups=[1,16]<=[16], dimensions={{0}}
  ROOT %gathered = f32[64] all-gather-done(%started)
}}
"""  # noqa: E501


def test_cycles_of_a_group_count_every_trip_of_a_loop():
  cycles = tpu_cycles.cycles_by_group(hlo.parse_program(HLO_TEXT))
  assert cycles == {
    "products": 12 * (100 + 7),
    "attention": 12 * 30,
    "activations": 12 * 3,
    "norms": 12 * 11,
    "embedding": 29,
    "heads": 31 + 37,
    "optimizer": 41,
    "stacking": 12 * 13 + 23 + 47 + 53,
    "casts": 17 + 19,
    "other": 43,
  }


def test_collectives_have_the_sizes_of_their_groups():
  collective = tpu_cycles.Collective
  assert tpu_cycles.list_collectives(
    hlo.parse_program(HLO_TEXT), num_devices=16
  ) == [
    collective("all-reduce", count=12, bytes=4000, group_size=8),
    collective("all-gather", count=1, bytes=256, group_size=16),
  ]
  instruction = (
    "  %x = f32[2] reduce-scatter(%w), replica_groups={{0,1,2},{3,4,5}}"
  )
  program = hlo.parse_program(
    f"ENTRY %m (w: f32[8]) -> f32[2] {{\n{instruction}\n}}\n"
  )
  assert tpu_cycles.list_collectives(program, num_devices=6) == [
    collective("reduce-scatter", count=1, bytes=8, group_size=3)
  ]


def test_a_collective_in_several_fusions_is_counted_once():
  """The compiler may split a collective into steps in different fusions."""
  program = hlo.parse_program(
    """
%fused_step.1 (x.1: f32[2]) -> f32[8] {
  ROOT %gather.1 = f32[8]{0} all-gather(%x.1), channel_id=7, replica_groups={}
}

%fused_step.2 (x.2: f32[2]) -> f32[8] {
  ROOT %gather.2 = f32[8]{0} all-gather(%x.2), channel_id=7, replica_groups={}
}

ENTRY %main (x: f32[2]) -> f32[8] {
  %x = f32[2]{0} parameter(0)
  %first = f32[8]{0} fusion(%x), kind=kCustom, calls=%fused_step.1
  %second = f32[8]{0} fusion(%x), kind=kCustom, calls=%fused_step.2
  ROOT %other = f32[8]{0} all-gather(%x), channel_id=8, replica_groups={}
}
"""
  )
  assert hlo.collective_traffic(program) == {
    "all-gather": hlo.Traffic(count=2, bytes=64)
  }
  collective = tpu_cycles.Collective(
    "all-gather", count=1, bytes=32, group_size=4
  )
  assert tpu_cycles.list_collectives(program, num_devices=4) == [collective] * 2


def collective_seconds(opcode, num_bytes, group_size, topology):
  generation, sizes = topology.split(":")
  return tpu_cycles.collective_seconds(
    tpu_cycles.Collective(opcode, 1, num_bytes, group_size),
    tpu_cycles.CHIPS[generation],
    tuple(int(size) for size in sizes.split("x")),
  )


def test_the_time_of_collectives_follows_from_the_links_of_chips():
  # In this slice of v5e, a chip has a link of 50 GB/s along each of the two
  # axes, which are not rings.
  assert collective_seconds(
    "all-gather", num_bytes=16e8, group_size=16, topology="v5e:4x4"
  ) == pytest.approx(15e8 / 1e11)
  # An all-reduce is a reduce-scatter and an all-gather, so it takes twice as
  # long as an all-gather.
  assert collective_seconds(
    "all-reduce", num_bytes=16e8, group_size=16, topology="v5e:4x4"
  ) == pytest.approx(30e8 / 1e11)
  assert collective_seconds(
    "reduce-scatter", num_bytes=1e8, group_size=16, topology="v5e:4x4"
  ) == pytest.approx(15e8 / 1e11)
  # An axis of 16 chips is a ring: a chip receives from both sides.
  assert collective_seconds(
    "all-gather", num_bytes=256e8, group_size=256, topology="v5e:16x16"
  ) == pytest.approx(255e8 / 2e11)
  # v4 has rings only if all axes are multiples of 4.
  assert collective_seconds(
    "all-gather", num_bytes=16e8, group_size=16, topology="v4:2x2x4"
  ) == pytest.approx(15e8 / 1.5e11)
  assert collective_seconds(
    "all-gather", num_bytes=64e8, group_size=64, topology="v4:4x4x4"
  ) == pytest.approx(63e8 / 3e11)
  # The two devices of a v2 chip share the chip's links. The group of 8 devices
  # lies on one axis.
  assert collective_seconds(
    "all-gather", num_bytes=4e8, group_size=8, topology="v2:4x4"
  ) == pytest.approx(3e8 / 62e9)
  # The time for a few bytes depends only on the longest way, 3 + 3 links, which
  # an all-reduce goes twice.
  assert collective_seconds(
    "all-reduce", num_bytes=4, group_size=16, topology="v5e:4x4"
  ) == pytest.approx(12e-6)
  assert (
    collective_seconds(
      "all-reduce", num_bytes=4, group_size=1, topology="v5e:1x1"
    )
    == 0
  )


def run_kernel(x, y, out):
  product = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)
  out[...] = jnp.exp(product).sum(1, keepdims=True) + 1.0


def call_kernel(name, dimension_semantics, x, y):
  block = pl.BlockSpec((None, 64, 128), lambda i: (i, 0, 0))
  return pl.pallas_call(
    run_kernel,
    grid=(x.shape[0],),
    in_specs=[block, pl.BlockSpec((128, 256), lambda i: (0, 0))],
    out_specs=pl.BlockSpec((None, 64, 1), lambda i: (i, 0, 0)),
    out_shape=jax.ShapeDtypeStruct((x.shape[0], 64, 1), jnp.float32),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=dimension_semantics
    ),
    name=name,
  )(x, y)


def operations_of_kernels(num_rows, semantics=("arbitrary",)):
  x = jax.ShapeDtypeStruct((num_rows, 64, 128), jnp.bfloat16)
  y = jax.ShapeDtypeStruct((128, 256), jnp.bfloat16)
  function = functools.partial(call_kernel, "forward", semantics)
  return kernel_operations.count_kernel_operations(
    jax.jit(function).trace(x, y)
  )


def test_the_operations_of_a_kernel_are_counted():
  (operations,) = operations_of_kernels(num_rows=5)
  num_exponentials = 64 * 256 // 1024
  assert operations == kernel_operations.KernelOperations(
    name="forward",
    output_bytes=5 * 64 * 4,
    products=((64, 128, 256, 1),),
    # The operations are the exponentials, their sums, and the addition of 1.0
    # to 64 rows, which fill 8 registers.
    num_vector_operations=2 * num_exponentials + 8,
    num_transcendental_operations=num_exponentials,
    num_programs=5,
    is_independent=False,
    # The output has one column, which is padded to 128 columns.
    bytes=2 * 5 * 64 * 128 + 2 * 128 * 256 + 4 * 5 * 64 * 128,
  )


def test_bytes_of_arrays_include_their_padding():
  assert kernel_operations.padded_bytes((2, 512, 1), 4) == 2 * 512 * 128 * 4
  assert kernel_operations.padded_bytes((1, 100), 4) == 128 * 4
  assert kernel_operations.padded_bytes((9, 128), 2) == 16 * 128 * 2
  assert kernel_operations.padded_bytes((9, 128), 4) == 16 * 128 * 4


def test_the_calls_of_a_kernel_in_a_loop_are_counted():
  """Two kernels have the name "forward"; their outputs have different shapes.

  The output's shape says which of the two a call in the program runs.
  """
  small_kernel, large_kernel = (
    *operations_of_kernels(num_rows=5),
    *operations_of_kernels(num_rows=20),
  )
  chip = tpu_cycles.CHIPS["v5e"]
  program = hlo.parse_program(HLO_TEXT)
  cycles = [
    tpu_cycles.kernel_cycles(call, chip)
    for call in (small_kernel, large_kernel)
  ]
  # The large kernel has four times as many programs, so it needs four times as
  # many cycles.
  assert cycles[1] == pytest.approx(4 * cycles[0], abs=4)
  for calls in ([small_kernel, large_kernel], [large_kernel, small_kernel]):
    assert tpu_cycles.cycles_by_kernel(program, calls, chip) == {
      "forward": tpu_cycles.KernelCycles(count=12, cycles=12 * cycles[0])
    }
  assert tpu_cycles.cycles_by_kernel(program, [large_kernel], chip) == {
    "unknown": tpu_cycles.KernelCycles(count=12, cycles=0)
  }


def test_independent_programs_of_a_kernel_run_on_all_cores():
  (serial_kernel,) = operations_of_kernels(num_rows=20)
  (independent_kernel,) = operations_of_kernels(
    num_rows=20, semantics=("parallel",)
  )
  assert independent_kernel.is_independent
  for name, num_cores in (("v4", 2), ("v5p", 2), ("v5e", 1), ("v6e", 1)):
    chip = tpu_cycles.CHIPS[name]
    cycles = tpu_cycles.kernel_cycles(independent_kernel, chip)
    assert tpu_cycles.kernel_cycles(serial_kernel, chip) == pytest.approx(
      num_cores * cycles, rel=0.001
    )


def test_the_parts_of_the_estimate_of_a_step_add_up():
  estimate = tpu_cycles.estimate_step(
    hlo.parse_program(HLO_TEXT),
    operations_of_kernels(num_rows=5),
    "v5e:4x4",
    num_devices=16,
    model_flops=1e9,
  )
  group_cycles = sum(estimate["groups"].values())
  assert group_cycles == estimate["compiler"]
  assert (
    estimate["total"] == group_cycles + estimate["kernels"]["forward"]["cycles"]
  )
  assert estimate["compute_ms"] == pytest.approx(
    estimate["total"] / 1.503e9 * 1e3, rel=0.01
  )
  assert estimate["step_ms"] == pytest.approx(
    estimate["compute_ms"] + estimate["collectives_ms"], abs=0.002
  )
  assert estimate["mfu"] == pytest.approx(
    1e9 / (estimate["step_ms"] / 1e3) / 197e12, rel=0.01
  )


def test_a_program_without_estimated_cycles_is_refused():
  program = hlo.parse_program(HLO_TEXT.replace("estimated_cycles", "cycles"))
  with pytest.raises(UserError, match="no estimated_cycles"):
    tpu_cycles.estimate_step(
      program, [], "v5e:4x4", num_devices=16, model_flops=1e9
    )


def test_chips_have_the_published_clocks():
  for name, megahertz in (("v2", 700), ("v3", 940), ("v4", 1050)):
    assert tpu_cycles.CHIPS[name].clock == pytest.approx(
      1e6 * megahertz, rel=0.002
    )
