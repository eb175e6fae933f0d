"""Tests that bad input gives an error of one sentence."""

import dataclasses
import errno
import functools
import json
import operator
import pathlib
import shutil

import jax.numpy as jnp
import pytest
from prepared import random_documents, write_prepared
from tiny_runs import two_step_config

from bert_jax import files
from bert_jax.cli import configs
from bert_jax.cli.main import execute
from bert_jax.corpus import prepare, reader, split_text, train_vocab
from bert_jax.examples import recipes, streams
from bert_jax.text.vocabulary import SPECIAL_TOKENS, SpecialIds
from bert_jax.training import config as config_lib
from bert_jax.training import logging, phases, train, workdir
from bert_jax.training import setup as building

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")
ROOT = str(pathlib.Path(__file__).parents[2])


def load_config(name="quickstart"):
  return configs.load_defaults(name)


def with_value(config, key, value):
  """Sets a dotted key of the config to a value, and returns the config.

  The key may be new.
  """
  *sections, last_name = key.split(".")
  functools.reduce(operator.getitem, sections, config)[last_name] = value
  return config


@pytest.mark.parametrize(
  "key, value, pattern",
  [
    ("batch_size", 8.5, "whole number"),
    ("batch_size", "8", "whole number"),
    ("seed", 2**32, "below 2"),
    ("seed", -1, "at least 0"),
    ("log.every", -1, "at least 0"),
    ("evaluate.every", -1, "at least 0"),
    ("evaluate.examples", -5, "at least 0"),
    ("checkpoint.every", -1, "at least 0"),
    ("checkpoint.keep", 0, "at least 1"),
    ("checkpoint.read_only", True, "not a key"),
    ("profile.start", -1, "at least 0"),
    ("schedule.peak", -1.0, "above 0"),
    ("schedule.peak", float("nan"), "above 0"),
    ("schedule.peak", float("inf"), "above 0"),
    ("schedule.peak", 1e300, "between 1.2e-38 and 3.4e.38"),
    ("schedule.peak", 10**400, "between 1.2e-38 and 3.4e.38"),
    ("optimizer.epsilon", 1e-60, "between 1.2e-38 and 3.4e.38"),
    ("optimizer.weight_decay", 1e39, "between 1.2e-38 and 3.4e.38"),
    ("optimizer.b1", 1.5, r"\[0, 1\)"),
    ("optimizer.b2", 1.0, r"\[0, 1\)"),
    ("optimizer.epsilon", 0.0, "above 0"),
    ("optimizer.clip_norm", -1.0, "at least 0"),
    ("model.dropout", 1.0, r"\[0, 1\)"),
    ("model.attention_dropout", -0.5, r"\[0, 1\)"),
    ("model.hidden", 0, "at least 1"),
    ("model.generator_hidden", -8, "at least 1"),
    ("model.num_layers", 0, "at least 1"),
    ("model.heads", 0, "at least 1"),
    ("model.vocab_size", -5, "at least 1"),
    ("model.unroll", -1, "at least 0"),
    ("objective.temperature", float("nan"), "above 0"),
    ("objective.temperature", float("inf"), "finite"),
    ("objective.discriminator_weight", -50.0, "at least 0"),
    ("objective.pair_name", "sop", "bert_pairs, whose labels are 'nsp'"),
    ("model.dtype", "float8", "float32, bfloat16"),
    ("model.dtype", "float16", "float32, bfloat16"),
    ("mesh.fsdp", 0, "at least 1"),
    ("data.mask_rate", 0.0, "above 0"),
    ("data.length", 4, "at least 5"),
    ("data.length", 24.0, "whole number"),
    ("data.max_predictions", 0, "at least 1"),
    ("data.seed", 3, "not a key"),
    ("model", None, "section"),
    ("data", 5, "section"),
    ("phases", None, "section"),
  ],
)
def test_bad_values_are_refused(key, value, pattern):
  with pytest.raises(ValueError, match=f"config.{key}.*{pattern}"):
    config_lib.parse(with_value(load_config(), key, value))


def test_the_lowest_valid_value_of_every_number_is_accepted():
  classes_by_prefix = {
    "": config_lib.RunConfig,
    "data.": config_lib.Data,
    "model.": config_lib.Model,
    "objective.": config_lib.Objective,
    "mesh.": config_lib.Mesh,
    "log.": config_lib.Log,
    "evaluate.": config_lib.Evaluate,
    "checkpoint.": config_lib.Checkpoint,
    "profile.": config_lib.Profile,
  }
  lowest_values = {
    f"{prefix}{field.name}": field.metadata["least"]
    for prefix, section_class in classes_by_prefix.items()
    for field in dataclasses.fields(section_class)
    if field.metadata.get("least") is not None
  }
  assert len(lowest_values) >= 30
  # Rows of two segments need 5 tokens.
  for key, lowest_value in (lowest_values | {"data.length": 5}).items():
    config_lib.parse(with_value(load_config(), key, lowest_value))


def test_none_is_refused_for_a_key_whose_default_is_a_string():
  with pytest.raises(ValueError, match="data.path=None.*str"):
    config_lib.check_types(
      with_value(load_config(), "data.path", None), load_config()
    )


@pytest.mark.parametrize(
  "key, value, pattern",
  [
    ("fraction", 0.5, "add up to 0.6"),
    ("fraction", float("nan"), "add up to nan"),
    ("batch_scale", 0.3, "is not a whole number"),
    ("batch_scale", float("nan"), "is not a whole number"),
    ("batch_scale", float("inf"), "is not a whole number"),
    ("micro_scale", 0, "at least 1"),
  ],
)
def test_bad_phases_are_refused(key, value, pattern):
  config = with_value(load_config("bert:tiny"), f"phases.phase1.{key}", value)
  with pytest.raises(ValueError, match=f"config.phases.*{pattern}"):
    phases.plan(config_lib.parse(config))


def test_bad_names_and_sections_of_phases_are_refused():
  config = load_config("bert:tiny")
  config["phases"]["warm"] = config["phases"].pop("phase1")
  with pytest.raises(ValueError, match="must have the names phase1, phase2"):
    phases.plan(config_lib.parse(config))
  config = with_value(load_config("bert:tiny"), "phases.phase1", None)
  with pytest.raises(ValueError, match="phases.phase1=None must be a section"):
    config_lib.parse(config)
  for key, least in (("length", 5), ("max_predictions", 1)):
    config = with_value(load_config("bert:tiny"), f"phases.phase2.{key}", 0)
    with pytest.raises(ValueError, match=f"phase2.{key}=0 .* least {least}"):
      config_lib.parse(config)


def test_a_pair_name_that_the_builder_does_not_have_is_refused():
  config = with_value(load_config(), "data.builder", "albert_pairs")
  with pytest.raises(ValueError, match="set objective.pair_name=sop"):
    config_lib.parse(config)
  config_lib.parse(with_value(config, "objective.pairs", False))


def test_an_unknown_option_of_the_objective_is_refused():
  config = with_value(load_config(), "objective.paris", True)
  with pytest.raises(ValueError, match="objective.paris .* mean pairs"):
    building.make_objective_and_optimizer(config_lib.parse(config))


@pytest.mark.parametrize(
  "text, message",
  [
    ("x = 1\ndef get_config(:\n", "line 2: SyntaxError"),
    ("x = 1\n", "no 'get_config'"),
    ("def get_config():\n  return 5\n", "ConfigDict"),
    ("def get_config():\n  return 1 / 0\n", "line 2: ZeroDivisionError"),
    ("import no_such_module\n", "line 1: ModuleNotFoundError"),
  ],
)
def test_an_error_in_a_config_file_gives_one_line(
  tmp_path, capsys, text, message
):
  path = tmp_path / "custom.py"
  path.write_text(text)
  with pytest.raises(SystemExit) as error:
    execute(["train", f"--config={path}", "--workdir=unused"])
  assert error.value.code.startswith(
    (f"error: --config={path}: ", f"error: --config={path} has ")
  )
  assert message in error.value.code and "\n" not in error.value.code


@pytest.mark.parametrize("heldout", [0, 1])
def test_too_few_held_out_documents_are_refused(tmp_path, heldout):
  folder = write_prepared(
    tmp_path / "p", random_documents(9, 0), random_documents(heldout, 1)
  )
  with pytest.raises(ValueError, match="held-out.*--config.evaluate.every=0"):
    train.run(two_step_config(folder), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


def test_an_empty_path_and_bad_mixture_weights_are_refused():
  with pytest.raises(ValueError, match="--config.data.path=DIR"):
    building.build(config_lib.parse(two_step_config("")))
  special_ids = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
  recipe = recipes.bert_pairs(special_ids, 64, random_share="0.5")
  corpus = reader.corpus_from_documents(random_documents(5, 0))
  two_streams = [
    streams.Stream(corpus, recipe, seed=0, name=str(i)) for i in range(2)
  ]
  with pytest.raises(ValueError, match="mixture weights"):
    streams.Mixture(two_streams, [float("nan"), 1.0], 0)


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
  """Returns the prepared folder on which `finished_run` has trained."""
  path = tmp_path_factory.mktemp("data") / "p"
  return write_prepared(path, random_documents(20, 0), random_documents(5, 1))


@pytest.fixture(scope="module")
def finished_run(data_folder, tmp_path_factory):
  """Returns the folder of a finished run of two steps."""
  path = tmp_path_factory.mktemp("finished") / "run"
  train.run(two_step_config(data_folder), str(path))
  return path


@pytest.fixture
def run_copy(finished_run, tmp_path):
  """Returns a copy of the folder `finished_run`, which a test may change."""
  shutil.copytree(finished_run, tmp_path / "run")
  return tmp_path / "run"


@pytest.mark.parametrize(
  "content, pattern",
  [(b"", "damaged"), (b"\xff", "damaged"), (b"[1]", "damaged"), (None, "miss")],
)
def test_a_damaged_config_is_not_overwritten(
  data_folder, run_copy, content, pattern
):
  path = run_copy / "config.json"
  path.unlink()
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(ValueError, match=f"config.json is {pattern}"):
    train.run(two_step_config(data_folder), str(run_copy))
  assert path.exists() == (content is not None)
  assert content is None or path.read_bytes() == content


def test_a_restart_before_the_first_checkpoint_may_have_another_config(
  data_folder, tmp_path
):
  config = two_step_config(data_folder) | {"init_from": str(tmp_path / "none")}
  with pytest.raises(ValueError, match="init_from: there is no folder .*none"):
    train.run(config, str(tmp_path / "run"))
  config = two_step_config(data_folder) | {"seed": 5}
  assert int(train.run(config, str(tmp_path / "run")).step) == 2
  config["seed"] = 6
  with pytest.raises(ValueError, match="config.seed: 5 -> 6"):
    train.run(config, str(tmp_path / "run"))


def test_damaged_metrics_do_not_stop_a_run(data_folder, run_copy, capsys):
  path = run_copy / "metrics.jsonl"
  text = path.read_text()
  path.write_bytes(b"\xff\n{}\n" + text.encode() + text[:40].encode())
  train.run(two_step_config(data_folder), str(run_copy))
  assert "metrics.jsonl:1 is damaged" in capsys.readouterr().out
  assert logging.read_rows(str(path)) == [
    json.loads(line) for line in text.splitlines()
  ]


def test_parameters_of_another_vocabulary_are_refused(
  data_folder, finished_run, tmp_path
):
  """Starts a run from a run with another vocabulary.

  The vocabularies have equal sizes, but piece 10 differs.
  """
  other_data_folder = tmp_path / "p"
  shutil.copytree(data_folder, other_data_folder)
  text = (other_data_folder / "vocab.txt").read_text()
  (other_data_folder / "vocab.txt").write_text(text.replace("w10\n", "zzz\n"))
  meta = json.loads((other_data_folder / "meta.json").read_text())
  meta["fingerprint"] = reader.compute_fingerprint(
    str(other_data_folder), meta["options"]
  )
  meta["files"] = reader.file_digests(str(other_data_folder))
  (other_data_folder / "meta.json").write_text(
    json.dumps(files.add_checksum(meta))
  )
  config = two_step_config(str(other_data_folder)) | {
    "init_from": str(finished_run)
  }
  with pytest.raises(ValueError, match="piece 10 is 'w10', .*'zzz'"):
    train.run(config, str(tmp_path / "run"))


def test_parameters_that_are_not_finite_are_not_saved(
  data_folder, run_copy, monkeypatch
):
  """Trains with a learning rate that is infinite in step 4.

  The schedule counts steps from 0, so this is step 3 of the schedule. The
  parameters become infinite, and no checkpoint after step 2 may be written.
  """
  from bert_jax.training import optim

  monkeypatch.setattr(
    optim,
    "build_schedule",
    lambda total_steps, name, peak, warmup: (
      lambda step: jnp.where(step == 3, jnp.inf, 1e-3)
    ),
  )
  config = json.loads((run_copy / "config.json").read_text())
  (run_copy / "config.json").write_text(json.dumps(config | {"total_steps": 6}))
  with pytest.raises(FloatingPointError, match="step 4"):
    train.run(two_step_config(data_folder) | {"total_steps": 6}, str(run_copy))
  assert [path.name for path in (run_copy / "checkpoints").iterdir()] == ["2"]


def test_a_refused_restart_changes_no_file_of_the_run(
  data_folder, run_copy, tmp_path
):
  other_data_folder = write_prepared(
    tmp_path / "p", random_documents(20, 2), random_documents(5, 3), 70
  )
  names = ("config.json", "vocab.txt", "tokenizer_config.json", "metrics.jsonl")
  contents = [(run_copy / name).read_bytes() for name in names]
  config = json.loads(contents[0])
  config["model"]["vocab_size"] = 70
  for path, pattern in (
    (other_data_folder, "vocab_size: 64 -> 70"),
    (data_folder, "_size="),
  ):
    with pytest.raises(ValueError, match=pattern):
      train.run(
        two_step_config(path) | {"model": config["model"]}, str(run_copy)
      )
  other_folder_of_same_size = write_prepared(
    tmp_path / "q", random_documents(20, 2), random_documents(5, 3)
  )
  with pytest.raises(
    ValueError, match="does not hold the data with which this"
  ):
    train.run(two_step_config(other_folder_of_same_size), str(run_copy))
  assert [(run_copy / name).read_bytes() for name in names] == contents


def test_a_full_disk_at_the_start_leaves_the_old_config(
  data_folder, run_copy, monkeypatch
):
  content = (run_copy / "config.json").read_bytes()

  def raise_disk_full(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(files.os, "fsync", raise_disk_full)
  pattern = (
    "config.json: No space left on device. Once that is mended, the same"
  )
  with pytest.raises(OSError, match=pattern):
    train.run(two_step_config(data_folder) | {"seed": 0}, str(run_copy))
  assert (run_copy / "config.json").read_bytes() == content
  assert not list(run_copy.glob("*.tmp"))


def test_a_file_named_checkpoints_is_refused(data_folder, tmp_path):
  (tmp_path / "checkpoints").write_text("")
  with pytest.raises(ValueError, match="checkpoints is a file where a run has"):
    train.run(two_step_config(data_folder), str(tmp_path))


def test_a_bad_workdir_is_refused(tmp_path, data_folder):
  prepared_folder = pathlib.Path(data_folder)
  paths_before = sorted(prepared_folder.iterdir())
  with pytest.raises(ValueError, match="this is a prepared folder"):
    train.run(two_step_config(data_folder), data_folder)
  assert sorted(prepared_folder.iterdir()) == paths_before
  (tmp_path / "file").write_text("")
  for name in ("file", "file/below"):
    with (
      pytest.raises(
        ValueError, match="workdir=.*file.* cannot be made or written"
      ),
      workdir.lock(str(tmp_path / name)),
    ):
      pass


@pytest.mark.parametrize(
  "name, content, message",
  [
    ("vocab.txt", None, "vocab.txt is not the file that the checkpoint"),
    ("config.json", None, "is missing"),
    ("config.json", "{", "is damaged"),
    ("config.json", "{}", "damaged"),
    ("tokenizer_config.json", "{}", "is not the file that the checkpoint"),
    ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", "is not the"),
  ],
)
def test_fill_mask_refuses_a_damaged_run(run_copy, name, content, message):
  (run_copy / name).unlink()
  if content is not None:
    (run_copy / name).write_text(content)
  with pytest.raises(SystemExit) as error:
    execute(["fill-mask", "--model", str(run_copy), "[MASK]"])
  assert error.value.code.startswith("error: ") and message in error.value.code


def test_fill_mask_refuses_bytes_that_are_not_text(run_copy):
  arguments = ["fill-mask", "--model", str(run_copy), "\udcff [MASK]"]
  with pytest.raises(
    SystemExit, match="cannot be written as UTF-8; correct the text"
  ):
    execute(arguments)


def test_bad_output_paths_are_refused(tmp_path):
  text_path = tmp_path / "a.txt"
  text_path.write_text("some words .\n")
  with pytest.raises(ValueError, match="is a folder"):
    split_text.split_text(
      [str(text_path)],
      str(tmp_path),
      format="auto",
      errors="strict",
      language="en",
    )
  with pytest.raises(ValueError, match="size=2000000000 is too large"):
    train_vocab.train_vocab(
      str(text_path), size=2_000_000_000, output=str(tmp_path / "v")
    )
  with pytest.raises(ValueError, match="the output is empty"):
    train_vocab.train_vocab(str(text_path), size=600, output="")
  vocab_path = tmp_path / "vocab.txt"
  vocab_path.write_text("\n".join([*SPECIAL_TOKENS, "some"]) + "\n")
  with pytest.raises(ValueError, match="the output is empty"):
    prepare.prepare(str(text_path), str(vocab_path), "")
  assert sorted(tmp_path.iterdir()) == [text_path, vocab_path]
