"""Tests that each command that opens a run opens RUN@best and RUN@STEP."""

import json
import logging
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax import models, objectives
from bert_jax.cli.main import execute
from bert_jax.models import from_config
from bert_jax.training.state import TrainState
from bert_jax.weights import checkpoint, hf, model_folder, runs
from bert_jax.weights import load as loading

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "##c", "cafe"]
# Step -> held-out loss. Step 8 is the best, and step 12 the newest.
LOSS_BY_STEP = {4: 3.0, 8: 1.5, 12: 2.0}
MODEL_OPTIONS = dict(
  **dict(hidden=8, heads=2, mlp=16, num_layers=2, max_positions=12),
  **dict(vocab_size=len(PIECES), dtype="float32"),
)


def word_table(step):
  return np.full((len(PIECES), 8), step, np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Makes a run; each checkpoint's word table is filled with its step."""
  path = tmp_path_factory.mktemp("runs") / "run"
  path.mkdir()
  model = dict(family="bert", variant="tiny", **MODEL_OPTIONS)
  run_config = {"objective": {"name": "mlm", "pairs": False}, "model": model}
  (path / "config.json").write_text(json.dumps(run_config))
  (path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
  (path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
  encoder = models.bert.build("tiny", **MODEL_OPTIONS)
  model_config = model_folder.make_config(
    "bert",
    "pretraining",
    from_config.model_attributes(encoder),
    head={"pairs": False},
  )
  shapes = from_config.param_shapes(model_config)
  rng = np.random.default_rng(0)
  arrays = {
    key: rng.normal(size=shape).astype("f") for key, shape in shapes.items()
  }
  with checkpoint.Checkpointer(str(path), keep=3) as checkpoints:
    for step, loss in LOSS_BY_STEP.items():
      arrays["encoder/embeddings/word/embedding"] = word_table(step)
      arrays["mlm/bias"] = np.arange(len(PIECES), dtype="f") / step
      params = model_folder.unflatten(arrays)
      state = TrainState(jnp.int32(step), params, opt_state={}, carry={})
      checkpoints.save(step, state, meta={}, heldout_loss=loss)
    checkpoints.wait()
  return path


def step_of(weights):
  """Returns the step with which the word table is filled.

  The config must name this step.
  """
  table = weights.arrays["encoder/embeddings/word/embedding"]
  (step,) = set(table.ravel().tolist())
  assert weights.config["source"]["step"] == step
  return step


def test_opening_a_run_prints_no_warning_of_orbax(run):
  records = []
  handler = logging.Handler()
  handler.emit = records.append
  logger = logging.getLogger("absl")
  logger.addHandler(handler)
  try:
    bert_jax.load(str(run))
  finally:
    logger.removeHandler(handler)
  assert not [
    record.getMessage()
    for record in records
    if record.levelno >= logging.WARNING
  ]


@pytest.mark.parametrize(
  "name, step", [("", 12), ("@best", 8), ("@4", 4), ("@012", 12)]
)
def test_every_reader_opens_the_checkpoint_that_is_named(
  run, tmp_path, name, step
):
  path = f"{run}{name}"
  assert step_of(loading.read(path)) == step
  assert step_of(runs.read(path)) == step
  loaded = loading.open_model(path)
  table = loaded.params["encoder"]["embeddings"]["word"]["embedding"]
  assert table[0, 0] == step
  assert loaded.tokenizer.encode("abc").ids == [2, 5, 6, 3]
  arguments = ["--to", "hf", "--family", "bert", "--model", path]
  execute(["convert", *arguments, "--output", str(tmp_path / "hf")])
  converted = hf.read(str(tmp_path / "hf"), "bert")
  table = converted.arrays["encoder/embeddings/word/embedding"]
  np.testing.assert_array_equal(table, word_table(step))


def test_best_may_be_an_argument_or_a_part_of_the_path(run, tmp_path):
  assert step_of(runs.read(str(run), best=True)) == 8
  assert step_of(runs.read(f"{run}@best", best=True)) == 8
  with pytest.raises(ValueError, match="name a step or the best one, not both"):
    runs.read(f"{run}@4", best=True)
  with pytest.raises(ValueError, match="there is no folder .*run@best"):
    loading.open_model(f"{run}@best@4")
  (tmp_path / "in.jsonl").write_text('{"text": "ab [MASK]"}\n')

  def predicted_text(*flags):
    output = tmp_path / "out.jsonl"
    output.unlink(missing_ok=True)
    file_flags = [
      "--input",
      str(tmp_path / "in.jsonl"),
      "--output",
      str(output),
    ]
    execute(["predict", *flags, *file_flags])
    return output.read_text()

  best_text = predicted_text("--model", f"{run}@best")
  assert best_text == predicted_text("--model", f"{run}@8")
  with pytest.raises(SystemExit, match="error: --best is no flag"):
    predicted_text("--model", str(run), "--best")
  assert best_text != predicted_text("--model", str(run))


@pytest.mark.parametrize(
  "name, message",
  [
    ("@5", "has no step 5, only 4, 8, 12"),
    ("@newest", "write .*run@best, or .*run@ and the step of a"),
    ("@", "write .*run@best, or .*run@ and the step of a"),
  ],
)
def test_a_path_that_names_no_checkpoint_is_refused(run, name, message):
  for read in (loading.read, loading.open_model, bert_jax.load):
    with pytest.raises(ValueError, match=message):
      read(f"{run}{name}")


def test_a_run_that_never_evaluated_has_no_best(tmp_path):
  with checkpoint.Checkpointer(str(tmp_path)) as checkpoints:
    params = {"w": jnp.zeros(2)}
    checkpoints.save(
      3,
      TrainState(jnp.int32(3), params, opt_state={}, carry={}),
      meta={},
      heldout_loss=None,
    )
    checkpoints.wait()
    with pytest.raises(ValueError, match="no best checkpoint.*steps .3. was"):
      checkpoints.find_step("best")
    assert (
      checkpoints.find_step("3") == 3 and checkpoints.find_step(None) is None
    )


def test_the_name_of_a_folder_may_have_an_at_sign(run, tmp_path):
  for name in ("my@run", "run@best", "run@4"):
    path = tmp_path / name
    shutil.copytree(run, path)
    # The path is a folder, so the newest checkpoint is read.
    assert step_of(loading.read(str(path))) == 12
    assert step_of(loading.read(f"{path}@4")) == 4
  model_folder.write(str(tmp_path / "x@8"), runs.read(str(run)))
  assert step_of(loading.read(str(tmp_path / "x@8"))) == 12
  with pytest.raises(ValueError, match="x@8 is not the .*no best step"):
    loading.read(str(tmp_path / "x@8@best"))
  with pytest.raises(ValueError, match="nowhere is not the .*no step 7"):
    loading.read(str(tmp_path / "nowhere@7"))


def test_runs_of_every_objective_can_be_exported():
  assert set(runs.EXPORTABLE_OBJECTIVES) == set(objectives.OBJECTIVES)


def test_only_masked_lm_has_a_head_for_pairs_by_default(
  run, tmp_path, monkeypatch
):
  """The run has no head for pairs; the test deletes the key `pairs` too."""
  path = tmp_path / "run"
  shutil.copytree(run, path)
  config = json.loads((path / "config.json").read_text())
  for name in ("distil", "new"):
    config["objective"] = {"name": name}
    (path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(
      runs, "EXPORTABLE_OBJECTIVES", (*runs.EXPORTABLE_OBJECTIVES, "new")
    )
    assert runs.read(str(path)).config["head"] == {"pairs": False}
  config["objective"] = {"name": "mlm"}
  (path / "config.json").write_text(json.dumps(config))
  with pytest.raises(ValueError, match="pair/dense/bias is missing"):
    runs.read(str(path))
