"""Tests the reports of `bert_jax compile`, which needs no TPU."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import children
import pytest
from children import without_progress

from bert_jax.cli import configs
from bert_jax.devices import hlo, isolated
from bert_jax.messages import UserError
from bert_jax.training import compile_report, suggestions, topologies

ROOT = pathlib.Path(__file__).parents[2]
needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None,
  reason="libtpu is not installed: pip install 'bert_jax[tpu]'",
)
NO_DROPOUT_FLAGS = [
  "--config.model.dropout=0.0",
  "--config.model.attention_dropout=0.0",
]
# With these flags, the model is so small that it compiles in seconds.
TINY_FLAGS = ["--config.model.variant=tiny", "--config.model.vocab_size=512"]

HLO_TEXT = """HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(256)} parameter(0)
  %b = f32[]{:T(256)} parameter(1)
  ROOT %sum = f32[]{:T(256)} add(%a, %b)
}

%inner_condition (p: (s32[], f32[4])) -> pred[] {
  %three = s32[]{:T(256)} constant(3)
  %p = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%i, %three), direction=LT
}

%inner_body (q: (s32[], f32[4])) -> (s32[], f32[4]) {
  %q = (s32[], f32[4]) parameter(0)
  %start = ((f32[2]{0}), f32[4]{0:T(128)}, u32[]) all-gather-start(%q), to_apply=%none
  %done = f32[4]{0:T(128)} all-gather-done(%start)
  ROOT %next = (s32[], f32[4]) tuple(%i, %done)
}

%outer_condition (r: (s32[])) -> pred[] {
  ROOT %r = (s32[]) parameter(0)
}

%outer_body (s: (s32[])) -> (s32[]) {
  %x = (bf16[1,8,2]{2,1,0:T(8,128)(2,1)}, /*index=1*/f32[3]) all-reduce(%g, %h), replica_groups={}, to_apply=%add
  %loop = (s32[], f32[4]) while(%t), condition=%inner_condition, body=%inner_body
  ROOT %y = (s32[]) tuple(%c)
}

%branch (u: f32[2]) -> f32[2] {
  ROOT %permuted = f32[2] collective-permute(%u), source_target_pairs={{0,1}}
}

%fused (v: f32[8]) -> f32[2] {
  ROOT %part = f32[2] reduce-scatter(%v), dimensions={0}, to_apply=%add
}

ENTRY %main (w: f32[8]) -> f32[8] {
  %w = f32[8]{0} parameter(0)
  %used = f32[8]{0} fusion(%all-reduce.7), kind=kLoop, calls=%fused
  %either = f32[2] conditional(%k, %w, %w), branch_computations={%branch, %add}
  %times = (s32[]) while(%w), condition=%outer_condition, body=%outer_body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %last = f32[8]{0} all-reduce(%w), to_apply=%add
}
"""  # noqa: E501


def test_num_bytes_gives_the_size_of_a_type():
  sizes = {
    "f32[2,3]{1,0:T(8,128)}": 24,
    "bf16[4]": 8,
    "f32[]{:T(256)}": 4,
    "(s32[], pred[8], /*index=2*/f8e4m3fn[16], s4[8])": 32,
    "token[]": 0,
    "c64[2]": 16,
    "bf16[0,7]": 0,
  }
  assert {type_text: hlo.num_bytes(type_text) for type_text in sizes} == sizes


def test_collectives_are_counted_as_often_as_they_run():
  """A collective in the inner loop runs 5 * 3 times.

  The program says that the outer loop runs 5 times. The condition of the inner
  loop says that this loop runs 3 times.
  """
  program = hlo.parse_program(HLO_TEXT)
  assert program.entry == "main"
  assert hlo.loop_trip_counts(program) == [5, 3]
  assert hlo.collective_traffic(program) == {
    "reduce-scatter": hlo.Traffic(count=1, bytes=8),
    "collective-permute": hlo.Traffic(count=1, bytes=8),
    "all-reduce": hlo.Traffic(count=5 + 1, bytes=5 * (32 + 12) + 32),
    "all-gather": hlo.Traffic(count=5 * 3, bytes=5 * 3 * 16),
  }


def test_a_text_without_a_program_is_refused():
  with pytest.raises(ValueError, match="no ENTRY"):
    hlo.parse_program("HloModule nothing\n")


def test_memory_sizes_are_read_from_messages_of_the_compiler():
  messages = [
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required"
    " for HLO temporaries (27.50G) exceeds available HBM (15.75G).",
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 27.50G of"
    " 15.75G hbm. Exceeded hbm capacity by 11.75G.",
  ]
  for message in messages:
    assert topologies.parse_memory_message(message) == {
      "needed": 27.5 * 2**30,
      "usable": 15.75 * 2**30,
    }
  message = "RESOURCE_EXHAUSTED: Ran out of vmem."
  assert topologies.parse_memory_message(message) == {}
  assert topologies.parse_memory_message("INTERNAL: no") is None


@pytest.mark.parametrize(
  "name, nearest",
  [
    ("v2:3x3", "v2:2x2"),
    ("V4:2X2X4", "v4:2x2x4"),
    ("v4:4x4", "v4:2x2x4"),  # both have 16 chips
    ("v5lite:4x4", "v5e:4x4"),
    ("v3-32", "v3:4x4"),  # the number counts cores, of which a chip has two
    ("v5litepod-16", "v5e:4x4"),  # the number counts chips
    ("v6e", "v6e:2x2"),
    ("", "v6e:2x2"),
  ],
)
def test_the_nearest_slice_is_found(name, nearest):
  assert topologies.nearest_topology(name) == nearest


def test_an_isolated_process_gives_its_values_and_errors():
  assert list(isolated.run_in_process(children.yield_two_values)) == [1, 2]
  for function, error, pattern in (
    (children.raise_value_error, ValueError, "a sentence"),
    (children.end_by_signal, isolated.Crash, "segmentation fault"),
    (children.end_by_exit, isolated.Crash, "exit code 3"),
  ):
    values = isolated.run_in_process(function)
    assert next(values) == 1
    with pytest.raises(error, match=pattern):
      next(values)


REPORT_OF_PHASE = dict(
  topology="v5e:4x4",
  devices=16,
  mesh=dict(data=16, fsdp=1, tensor=1),
  batch_size=256,
  micro_batches=1,
  hbm_bytes=16,
  arguments_bytes=4,
  gradient_bytes=1,
  temporaries_bytes=28,
)
SMALL_CONFIG = dict(
  phases=dict(phase1=dict(micro_scale=1), phase2=dict(micro_scale=2)),
  micro_batches=1,
  model=dict(remat=False),
  mesh=dict(data=-1, fsdp=1, tensor=1),
)


def replace_compiler(monkeypatch, does_fit):
  """Replaces `compile_step`, and returns the list of the settings it gets.

  `does_fit` takes the settings as keywords. It returns True if the program fits
  into the memory, False if it does not, and None to make `compile_step` raise
  ValueError.
  """
  tried_settings = []

  def compile_step(config, phase_index, slice_name):
    values = dict(
      micro=config["phases"][f"phase{phase_index + 1}"]["micro_scale"],
      remat=config["model"]["remat"],
      fsdp=config["mesh"]["fsdp"],
      topology=slice_name,
    )
    tried_settings.append(values)
    fits = does_fit(**values)
    if fits is None:
      raise ValueError("does not divide")
    return dict(fits=fits, total_bytes=9)

  monkeypatch.setattr(topologies, "compile_step", compile_step)
  return tried_settings


def test_only_settings_that_compiled_are_suggested(monkeypatch):
  """A setting for which `compile_step` raises an error is skipped."""
  tried_settings = replace_compiler(
    monkeypatch,
    lambda micro, remat, **_: None if micro == 8 and not remat else remat,
  )
  suggestion = suggestions.find_suggestion(
    SMALL_CONFIG, phase_index=1, report=REPORT_OF_PHASE
  )
  # 28 bytes of temporaries do not fit into 16 - 4 - 1 bytes, so the rows are
  # divided by at least 4. A device has 16 rows, so the factors 4, 8 and 16 are
  # tried, and then remat. Each factor multiplies micro_scale, which is 2 in
  # phase 2.
  assert [values["micro"] for values in tried_settings] == [8, 16, 32, 2]
  assert suggestion == dict(
    offer="--config.model.remat=True",
    offer_total_bytes=9,
    tried=[
      "--config.phases.phase2.micro_scale=16",
      "--config.phases.phase2.micro_scale=32",
    ],
  )
  assert not SMALL_CONFIG["model"]["remat"]


def test_a_larger_slice_is_suggested_for_a_state_that_is_too_large(monkeypatch):
  tried_settings = replace_compiler(
    monkeypatch, lambda topology, remat, **_: topology != "v5e:4x4" and remat
  )
  suggestion = suggestions.find_suggestion(
    SMALL_CONFIG,
    phase_index=0,
    report=REPORT_OF_PHASE | dict(arguments_bytes=16),
  )
  assert tried_settings[0] == dict(
    micro=1, remat=False, fsdp=16, topology="v5e:4x4"
  )
  assert suggestion["tried"][0] == "--config.mesh.data=1 --config.mesh.fsdp=16"
  assert suggestion["offer"] == (
    "--topology=v5e:4x8 --config.mesh.data=1 --config.mesh.fsdp=32"
    " --config.model.remat=True"
  )


def test_nothing_is_suggested_if_nothing_fits(monkeypatch):
  tried_settings = replace_compiler(monkeypatch, lambda **_: False)
  suggestion = suggestions.find_suggestion(
    SMALL_CONFIG, phase_index=0, report=REPORT_OF_PHASE
  )
  assert (
    len(tried_settings) == len(suggestion["tried"]) == suggestions.MAX_TRIALS
  )
  assert suggestion["offer"] is None and suggestion["offer_total_bytes"] is None


def test_a_crash_of_the_compiler_is_reported(monkeypatch):
  """After a crash, remat=False is the first setting that is tried."""

  def crash(function, *args):
    yield dict(REPORT_OF_PHASE)
    raise isolated.Crash("segmentation fault")

  monkeypatch.setattr(isolated, "run_in_process", crash)
  config = SMALL_CONFIG | dict(model=dict(remat=True))
  report = topologies.compile_step(config, phase_index=1, slice_name="v5e:4x4")
  assert report["fits"] is None
  assert report["crashed"] == "segmentation fault"
  tried_settings = replace_compiler(monkeypatch, lambda **_: True)
  suggestion = suggestions.find_suggestion(config, phase_index=1, report=report)
  assert suggestion["offer"] == "--config.model.remat=False"
  assert len(tried_settings) == 1


def run_command(*flags, config="bert:base"):
  return subprocess.run(
    [
      *(sys.executable, "-m", "bert_jax", "compile"),
      *(f"--config={config}", *flags),
    ],
    capture_output=True,
    text=True,
    cwd=ROOT,
  )


def reports_in(process):
  return [json.loads(line) for line in process.stdout.splitlines()]


def assert_refused(process, *message_parts):
  assert process.returncode == 1 and not process.stdout
  error = without_progress(process.stderr)
  assert error.startswith("error: ") and error.count("\n") == 1
  for part in message_parts:
    assert part in process.stderr


@needs_libtpu
@pytest.mark.parametrize(
  "flags, message_parts",
  [
    (["--topology=v2:3x3"], ["v2:3x3", "v2:2x2"]),
    (["--topology="], ["--topology is empty"]),
    (["--topology=v2:4x4", "--phase=3"], ["--phase=3", "1 to 2"]),
    (["--topology=v2:16x16"], ["batch_size=256", "512 devices"]),
    (
      ["--topology=v2:4x4", "--config.mesh.tensor=5"],
      ["tensor=5", "32 devices"],
    ),
  ],
)
def test_bad_flags_get_one_sentence(flags, message_parts):
  assert_refused(run_command(*flags), *message_parts)


def test_a_config_that_fine_tunes_is_refused():
  config = configs.load_defaults("glue:cola")
  with pytest.raises(UserError, match="compiles pre-training, but"):
    compile_report.compile_phases(config, ["v2:4x4"])


def test_a_missing_compiler_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match=r"pip install 'bert_jax\[tpu\]'"):
    topologies.devices_of_slice("v2:4x4")


def test_an_unknown_slice_gets_the_nearest_and_all_generations(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
  with pytest.raises(ValueError) as error:
    topologies.devices_of_slice("v9:4x4")
  assert str(error.value) == (
    "--topology=v9:4x4 is not a slice; did you mean v4:2x2x4? The generations"
    " are v2, v3, v4, v5e, v5p, v6e; the slices of v4 are 2x2x1, 2x2x2, 2x2x4,"
    " 2x4x4, 4x4x4, 4x4x8, 4x8x8."
  )
  for topology in ("v2:4x4x4", "v4:4x4", "v5p:1000x1000x1000"):
    with pytest.raises(ValueError, match=f"{topology} is not a slice"):
      topologies.devices_of_slice(topology)


@needs_libtpu
def test_a_small_step_is_compiled_and_reported():
  process = run_command(
    *("--topology=v2:2x2", "--phase=1", "--json", "--cycles"),
    *(*TINY_FLAGS, *NO_DROPOUT_FLAGS, "--config.model.unroll=2"),
  )
  assert process.returncode == 0, process.stderr
  assert "compiling v2:2x2: phase1 ...\n" in process.stderr
  assert without_progress(process.stderr) == ""
  (report,) = reports_in(process)
  assert report["devices"] == 8 and report["hbm_bytes"] == 8 * 2**30
  assert report["length"] == 128 and report["loops"] == []
  # Each of the 8 devices holds a part of the word table and of its moments.
  # Arrays of fewer than 65,536 elements are whole on each device.
  state_bytes = 3 * report["gradient_bytes"]
  assert state_bytes / 8 < report["arguments_bytes"] < state_bytes / 2
  # Nearly all of the new state is written into the memory of the old state.
  assert report["aliased_bytes"] > 0.99 * state_bytes / 8
  assert report["total_bytes"] > report["temporaries_bytes"] > 0
  # The devices gather the parameters, and sum up the gradients.
  assert set(report["collectives"]) == {"all-gather", "all-reduce"}
  # All-reduce sums nearly all gradients, some of them in bfloat16, which halves
  # their bytes.
  assert report["all_reduced_ratio"] > 0.5
  assert report["fits"]
  cycles = report["cycles"]
  groups = cycles["groups"]
  assert cycles["total"] == cycles["compiler"] == sum(groups.values())
  assert cycles["kernels"] == {}
  for name in ("products", "attention", "norms", "heads", "optimizer"):
    assert groups[name] > 0.01 * cycles["total"]
  # No loop of the program stacks its results. Few cycles belong to no group.
  assert groups["stacking"] < 0.01 * cycles["total"]
  assert groups["other"] < 0.05 * cycles["total"]
  assert 0 < cycles["compute_ms"] < cycles["step_ms"]
  assert 0 < cycles["mfu"] < 0.5


def run_compile(topology, phase, *flags, config="bert:base"):
  process = run_command(
    *(f"--topology={topology}", f"--phase={phase}", "--json", *flags),
    config=config,
  )
  assert process.returncode == 0, process.stderr + process.stdout
  (report,) = reports_in(process)
  assert report["fits"]
  assert report["all_reduced_ratio"] <= 1.05
  return report


@needs_libtpu
@pytest.mark.slow
def test_attention_in_a_kernel_needs_less_memory():
  """The kernel, which is the default on v5e, saves no attention scores.

  TPUs before v4 have no kernel.
  """
  kernel_report, formula_report = (
    run_compile("v5e:2x2", 2, *TINY_FLAGS, "--cycles", *flags)
    for flags in ([], ["--config.model.attention=xla"])
  )
  assert (
    kernel_report["temporaries_bytes"]
    < 0.8 * formula_report["temporaries_bytes"]
  )
  kernels = kernel_report["cycles"]["kernels"]
  assert formula_report["cycles"]["kernels"] == {}
  # The model has two layers.
  assert {name: kernel["count"] for name, kernel in kernels.items()} == {
    "attention_forward": 2,
    "attention_backward": 2,
  }
  # A kernel keeps the scores in the core, so it needs fewer cycles than
  # separate products.
  assert kernel_report["cycles"]["total"] < formula_report["cycles"]["total"]
  process = run_command(
    "--topology=v2:2x2", *TINY_FLAGS, "--config.model.attention=tpu"
  )
  assert process.returncode != 0
  assert "TPUs from v4 on, but this device is 'TPU v2'" in process.stderr


@needs_libtpu
@pytest.mark.slow
def test_base_fits_the_published_slice():
  """Only phase 2 is compiled: its rows are longer, so it needs more memory."""
  run_compile("v2:4x4", 2)


@needs_libtpu
@pytest.mark.slow
def test_large_fits_the_published_slice_with_the_suggested_setting():
  """Without remat, phase 2 does not fit, and the report offers remat.

  Phase 2 would also fit if the devices split the update, or if the layers were
  unrolled.
  """
  settings = ("--config.model.unroll=1", "--config.mesh.split_update=off")
  process = run_command(
    *("--topology=v2:8x8", "--phase=2", "--json"),
    *(*settings, "--config.model.remat=False"),
    config="bert:large",
  )
  assert process.returncode == 2, process.stderr
  (report,) = reports_in(process)
  assert not report["fits"] and "Ran out of memory" in report["refused"]
  assert report["offer"] == "--config.model.remat=True"
  report_with_remat = run_compile(
    "v2:8x8", 2, *settings, report["offer"], config="bert:large"
  )
  assert report_with_remat["total_bytes"] == report["offer_total_bytes"]


SMALL_FLAGS = ["--config.model.variant=small", "--config.model.unroll=4"]


@needs_libtpu
@pytest.mark.slow
def test_the_compiler_counts_about_as_many_operations_as_the_formula():
  """The layers are unrolled, since a loop's body would be counted only once."""
  assert 0.97 <= run_compile("v2:4x4", 2, *SMALL_FLAGS)["flops_ratio"] <= 1.1


@needs_libtpu
@pytest.mark.slow
@pytest.mark.xfail(
  strict=True, reason="attention dropout's result is kept: 1.22 times, not 1.1"
)
def test_dropout_needs_at_most_a_tenth_more_memory():
  dropout_report = run_compile("v2:4x4", 2, *SMALL_FLAGS)
  no_dropout_report = run_compile("v2:4x4", 2, *SMALL_FLAGS, *NO_DROPOUT_FLAGS)
  assert (
    dropout_report["temporaries_bytes"]
    <= 1.1 * no_dropout_report["temporaries_bytes"]
  )
