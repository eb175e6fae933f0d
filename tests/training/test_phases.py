"""Tests the steps, examples, mask slots and best checkpoints of phases."""

import dataclasses
import json
import pathlib

import pytest
from prepared import random_documents, write_prepared

from bert_jax.cli import configs
from bert_jax.devices import hosts
from bert_jax.examples import recipes
from bert_jax.training import config as config_lib
from bert_jax.training import evaluate, loop, phases, train
from bert_jax.weights import checkpoint

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

ROOT = str(pathlib.Path(__file__).parents[2])

PHASE_SECTION = dict(
  fraction=1.0, length=128, max_predictions=20, batch_scale=1.0, micro_scale=1
)


DATA_SECTION = dict(path="x", builder="bert_pairs")


def plan_default_phases(
  total_steps=1_000_000, batch_size=256, data=None, **sections
):
  """Returns the phases of a run of BERT; sections change `PHASE_SECTION`."""
  return plan_phases(
    total_steps,
    batch_size,
    data,
    {name: PHASE_SECTION | section for name, section in sections.items()},
  )


def plan_phases(total_steps, batch_size, data, sections):
  """Returns the phases of a run of BERT whose config has these sections."""
  run_config = config_lib.parse(configs.load_defaults("bert:tiny"))
  return phases.plan(
    dataclasses.replace(
      run_config,
      total_steps=total_steps,
      batch_size=batch_size,
      micro_batches=2,
      data=config_lib.parse_section(
        config_lib.Data, "data", DATA_SECTION | (data or {})
      ),
      phases={
        name: config_lib.parse_section(
          config_lib.Phase, f"phases.{name}", section
        )
        for name, section in sections.items()
      },
    )
  )


def test_bert_has_its_two_published_phases():
  """Devlin et al. 2019, A.2: 128 tokens for 90% of the steps, then 512."""
  first_phase, second_phase = plan_default_phases(
    phase1=dict(fraction=0.9),
    phase2=dict(
      fraction=0.1,
      length=512,
      max_predictions=80,
      batch_scale=0.5,
      micro_scale=4,
    ),
  )
  assert (first_phase.start, first_phase.end) == (0, 900_000)
  assert (second_phase.start, second_phase.end) == (900_000, 1_000_000)
  assert (first_phase.batch_size, first_phase.num_micro_batches) == (256, 2)
  assert (second_phase.batch_size, second_phase.num_micro_batches) == (128, 8)
  assert first_phase.data_options == DATA_SECTION | dict(
    length=128, max_predictions=20
  )
  assert second_phase.data_options == DATA_SECTION | dict(
    length=512, max_predictions=80
  )
  assert (
    first_phase.first_example(0) == 0 and first_phase.first_example(3) == 768
  )
  assert second_phase.first_example(900_000) == 0
  assert second_phase.first_example(900_003) == 3 * 128


@pytest.mark.parametrize("total_steps", range(1, 40))
def test_every_step_is_in_one_phase(total_steps):
  plan = plan_default_phases(
    total_steps,
    phase1=dict(fraction=0.3),
    phase2=dict(fraction=0.6),
    phase3=dict(fraction=0.1),
  )
  steps = [step for phase in plan for step in range(phase.start, phase.end)]
  assert steps == list(range(total_steps))


def test_a_run_without_phases_has_one_phase():
  (only_phase,) = plan_default_phases(data=dict(path="x", length=64))
  assert (
    only_phase.start,
    only_phase.end,
    only_phase.data_options["length"],
  ) == (
    0,
    1_000_000,
    64,
  )


@pytest.mark.parametrize(
  "sections, data, message",
  [
    (dict(phase1=dict(fraction=0.9)), None, "add up to 0.9"),
    (
      dict(phase1=dict(fraction=1.5), phase2=dict(fraction=-0.5)),
      None,
      "positive",
    ),
    # 0.3 of the batch size, 256, is not a whole number.
    (dict(phase1=dict(batch_scale=0.3)), None, "76.8"),
    (dict(phase1={}), dict(length=3), "config.data.length"),
    (dict(phase1=dict(lenght=3)), None, "phases.phase1.lenght.*length"),
    (dict(phase1=dict(max_predictions=129)), None, "phase1.max_.*=129.*=128"),
    ({}, dict(length=64, max_predictions=65), "config.data.max_.*=65.*=64"),
  ],
)
def test_bad_phases_are_refused(sections, data, message):
  with pytest.raises(ValueError, match=message):
    plan_default_phases(data=data, **sections)


def test_rows_that_hide_nothing_have_no_slots():
  section = {
    key: value
    for key, value in PHASE_SECTION.items()
    if key != "max_predictions"
  }
  for builder in ("lm", "elmo"):
    options = dict(builder=builder)
    (phase,) = plan_phases(
      total_steps=10, batch_size=4, data=options, sections=dict(phase1=section)
    )
    assert phase.data_options == dict(path="x", builder=builder, length=128)
    with pytest.raises(ValueError, match=f"{builder} hides no tokens; remove"):
      plan_phases(
        total_steps=10,
        batch_size=4,
        data=options,
        sections=dict(phase1=PHASE_SECTION),
      )
  # For a builder that hides tokens, a phase must set the number of slots.
  with pytest.raises(ValueError, match="phase1.max_predictions is missing"):
    plan_phases(
      total_steps=10,
      batch_size=4,
      data=dict(builder="bert_pairs"),
      sections=dict(phase1=section),
    )


def test_too_few_slots_for_the_mask_rate_are_reported(
  tmp_path, capsys, monkeypatch, compilation_cache
):
  """Starts a run with too few slots; it must only print a line about them.

  ALBERT's published data have 20 slots for rows of 512 tokens.
  """
  published_options = dict(length=512, max_predictions=20)
  assert recipes.slots_warning("albert_pairs", published_options) == (
    "max_predictions 20 hides at most 3.9% of a full row of 512, not"
    " mask_rate's 15%"
  )
  assert recipes.slots_warning("bert_pairs", dict(length=512)).startswith(
    "max_"
  )
  for name, options in (
    ("albert_pairs", published_options | dict(max_predictions=77)),
    ("albert_pairs", {}),
    ("bert_pairs", dict(mask_rate=0.16)),
    ("electra_segments", {}),
    ("full_sentences", {}),
    ("doc_sentences", dict(masking="span", count="ceil")),
    ("lm", dict(length=512)),
    ("elmo", {}),
  ):
    assert recipes.slots_warning(name, options) is None
  path = f"{ROOT}/configs/bert.py:tiny"
  config = configs.load_defaults(path)
  config["model"] |= dict(hidden=32, heads=2, mlp=64)
  for name, num_slots in (("phase1", 2), ("phase2", 1)):
    sizes = dict(fraction=0.5, length=16, max_predictions=num_slots)
    config["phases"][name] |= sizes
  config["evaluate"]["every"] = 0
  config |= dict(total_steps=2, batch_size=4)
  config["data"]["path"] = write_prepared(
    tmp_path / "p", random_documents(20, 0), []
  )
  monkeypatch.setattr(loop, "run_phase", lambda *args: None)
  train.run(config, str(tmp_path / "run"))
  lines = capsys.readouterr().out.splitlines()
  assert [line for line in lines if "max_predictions" in line] == [
    "phase2: max_predictions 1 hides at most 6.2% of a full row of 16, not"
    " mask_rate's 15%"
  ]


def test_each_phase_has_its_own_best_checkpoint(
  tmp_path, monkeypatch, compilation_cache
):
  """A run keeps its newest step, and the best step of its newest phase.

  Here the newest phase is the one that was evaluated last.
  """
  losses = {2: 0.5, 4: 0.4, 6: 0.9, 8: 0.8, 10: 0.85}
  monkeypatch.setattr(
    evaluate,
    "evaluate",
    lambda eval_step, coefficients, state, *rest: {
      "loss": losses[int(state.step)]
    },
  )
  monkeypatch.setattr(hosts, "stop_requested", lambda step, seen: step == 6)
  config = configs.load_defaults(f"{ROOT}/configs/bert.py:tiny")
  config["model"] |= dict(hidden=32, heads=2, mlp=64)
  for section in config["phases"].values():
    section |= dict(fraction=0.5, length=16, max_predictions=3)
  config["evaluate"] |= dict(every=2, examples=4)
  config["checkpoint"] |= dict(every=100, keep=1)
  config |= dict(total_steps=10, batch_size=4)
  config["data"]["path"] = write_prepared(
    tmp_path / "p", random_documents(20, 0), random_documents(5, 1)
  )
  workdir = str(tmp_path / "run")
  folder = tmp_path / "run" / "checkpoints"
  assert int(train.run(config, workdir).step) == 6
  # Step 6 is saved but not evaluated yet, so step 4 is still the best.
  assert sorted(path.name for path in folder.iterdir()) == ["4", "6"]
  assert int(train.run(config, workdir).step) == 10
  assert sorted(path.name for path in folder.iterdir()) == ["10", "8"]
  with checkpoint.Checkpointer.for_reading(workdir) as checkpoints:
    assert checkpoints.best_step() == 8
  metadata = json.loads((folder / "10/meta/metadata").read_text())
  assert metadata["best"] == 0.8
