"""Tests configs: overrides by flags, misspelt keys, changes at a restart."""

import contextlib
import copy
import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from config_names import PRETRAINING_CONFIGS, config_file_text
from prepared import random_documents, write_prepared
from tiny_runs import BERT, shrink_config

from bert_jax.cli import configs
from bert_jax.cli.main import execute, parser_of
from bert_jax.corpus import reader
from bert_jax.examples import loader, recipes
from bert_jax.messages import UserError
from bert_jax.text.vocabulary import SpecialIds
from bert_jax.training import config as config_lib
from bert_jax.training import config_files, train
from bert_jax.training import setup as building
from bert_jax.training.state import init_state

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

ROOT = str(pathlib.Path(__file__).parents[2])
# ELMo's configs need text that is split into words; see test_elmo_runs.py.
CONFIGS = [name for name in PRETRAINING_CONFIGS if "elmo" not in name]


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("data") / "prepared"
  return write_prepared(path, random_documents(60, 0), random_documents(9, 1))


def train_command(*flags, config="configs/bert.py:base"):
  """Returns the arguments of `bert_jax train` with these flags."""
  return ["train", f"--config={config}", "--workdir=unused", *flags]


def last_line(stderr_text):
  """Returns the last line of the output of a failed command.

  Also checks that the output has no traceback, and that no folder was made.
  """
  assert "Traceback" not in stderr_text
  assert not (pathlib.Path(ROOT) / "unused").exists()
  return stderr_text.strip().splitlines()[-1]


def error_of_command(*flags):
  """Runs `train` with refused flags; returns the last line of the error."""
  with contextlib.chdir(ROOT), pytest.raises(SystemExit) as error:
    execute(train_command(*flags))
  assert isinstance(
    error.value.code, str
  )  # Python prints this text and exits with status 1.
  return last_line(error.value.code)


@pytest.mark.parametrize(
  "flag, parts_of_message",
  [
    ("--config.seed=1e-3", ["config.seed", "1e-3"]),
    ("--config.seed=True", ["config.seed", "True"]),
    ("--config.model.remat=maybe", ["config.model.remat", "maybe"]),
    ("--config.schedule.peek=1", ["config.schedule.peek", "schedule.peak"]),
    ("--config.modle.variant=tiny", ["config.modle.variant", "model.variant"]),
    ("--config.zzzz=1", ["config.zzzz", "bert.py:base"]),
    ("--confg.seed=1", ["confg.seed"]),
    ("--config.data.path=/no/such", ["/no/such", "prepared"]),
    ("--config.batch_size=0", ["batch_size=0", "at least 1"]),
    ("--config.batch_size=2147483648", ["config.batch_size=2", "below 2**31"]),
    ("--config.total_steps=2147483648", ["config.total_steps=2", "below 2**"]),
    ("--config.micro_batches=3", ["batch_size=256", "micro_batches=3"]),
    ("--config.mesh.data=7", ["data=7", "device"]),
  ],
)
def test_the_error_of_a_bad_flag_is_the_last_line(flag, parts_of_message):
  """There is no traceback, and the last line has all parts of the message."""
  line = error_of_command(flag)
  assert line.startswith("error: ")
  for part in parts_of_message:
    assert part in line, line


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["batch_size=8.5"], "config.batch_size='8.5' must be a whole number."),
    (
      ["total_steps", "1e2"],
      "config.total_steps='1e2' must be a whole number.",
    ),
    (["log.every=True"], "config.log.every='True' must be a whole number."),
    (["seed=None"], "config.seed='None' must be a whole number."),
    (["model.vocab_size=x"], "config.model.vocab_size='x' must be a whole nu"),
    (["schedule.peak=hi"], "config.schedule.peak='hi' must be a number."),
    (["model.remat=yes"], "config.model.remat='yes' must be True or False."),
    (["modle.remat=yes"], "has no such key; did you mean model.remat?"),
    (["zzzz=1"], "quickstart.py has no such key."),
  ],
)
def test_a_flag_of_the_wrong_type_is_refused(arguments, message):
  path = f"{ROOT}/configs/quickstart.py"
  argv = ["train", f"--config={path}", "--workdir=unused"]
  argv += [f"--config.{arguments[0]}", *arguments[1:]]
  with pytest.raises(SystemExit, match=f"^error: .*{re.escape(message)}"):
    execute(argv)


def test_sizes_that_the_variant_has_can_be_set():
  """Flags set sizes, although the config file sets only `model.variant`."""
  argv = [f"--config={BERT}", "--workdir=unused"]
  argv += ["--config.model.num_layers=3", "--config.model.mlp", "96"]
  argv += ["--config.seed=7", "--config.model.heads=4"]
  parsed_arguments = parser_of("train").parse(argv)
  config = configs.read(parsed_arguments.config, parsed_arguments.overrides)
  assert config["seed"] == 7
  model = config["model"]
  assert [model[name] for name in ("num_layers", "mlp", "heads")] == [3, 96, 4]
  defaults = configs.load_defaults(BERT)
  config_lib.check_types(config, defaults)
  assert defaults["model"].items() <= model.items()
  objective, *_ = building.make_objective_and_optimizer(
    config_lib.parse(config | {"total_steps": 10})
  )
  assert objective.flops  # The encoder could be built.


@pytest.mark.parametrize(
  "path, flag, message",
  [
    (
      BERT,
      "model.num_layers=3.5",
      "config.model.num_layers='3.5' must be a w",
    ),
    (BERT, "model.num_layers=True", "must be a whole number."),
    (BERT, "model.num_layer=3", "has no such key; did you mean model.num_l"),
    (BERT, "modle.num_layers=3", "has no such key; did you mean model.num_l"),
    (BERT, "model.layerz=3", "has no such key; did you mean model.num_layers"),
    (BERT, "model.vocab_multiple=8", "has no such key"),
    ("configs/glue.py:sst2", "model.num_layers=3", "has no such key"),
    ("configs/elmo.py:original", "model.filters=3", "must be a list in brack"),
  ],
)
def test_a_bad_size_flag_is_refused(path, flag, message):
  path = str(pathlib.Path(ROOT) / path)
  argv = ["train", f"--config={path}", "--workdir=unused", f"--config.{flag}"]
  with pytest.raises(SystemExit, match=f"^error: .*{re.escape(message)}"):
    execute(argv)


@pytest.mark.parametrize(
  "key",
  [
    *("model.remat", "model.family", "data.builder", "log.every", "seed"),
    *("checkpoint.every", "optimizer.b1", "schedule.peak", "objective.name"),
  ],
)
def test_a_key_that_a_config_lacks_is_named(data_folder, key):
  config = shrink_config(configs.load_defaults(BERT), data_folder)
  *section_names, name = key.split(".")
  section = config
  for section_name in section_names:
    section = section[section_name]
  del section[name]
  with pytest.raises(ValueError, match=f"^config.{re.escape(key)} is missing"):
    config_lib.parse(config)
    building.make_objective_and_optimizer(config_lib.parse(config))


def test_checkpoint_every_0_saves_only_at_the_end(
  data_folder, tmp_path, compilation_cache
):
  config = shrink_config(configs.load_defaults(BERT), data_folder)
  config["checkpoint"] |= {"every": 0, "keep": 9}
  config["evaluate"]["every"] = 0
  assert int(train.run(config, str(tmp_path / "run")).step) == 4
  checkpoint_names = [
    path.name for path in (tmp_path / "run" / "checkpoints").iterdir()
  ]
  assert [name for name in checkpoint_names if name.isdigit()] == ["4"]


@pytest.mark.parametrize(
  "builder, shortest",
  [
    *(("lm", 2), ("elmo", 2), ("full_sentences", 3), ("doc_sentences", 3)),
    *(("bert_pairs", 5), ("albert_pairs", 5), ("electra_segments", 5)),
  ],
)
def test_rows_below_the_shortest_length_are_refused(builder, shortest):
  """A builder accepts the length `shortest`, and refuses a smaller one."""
  with pytest.raises(ValueError, match=f"must be at least {shortest}."):
    config_lib.check_length("data", builder, shortest - 1)
  config_lib.check_length("data", builder, shortest)
  if builder == "elmo":
    return
  special_ids, options = (
    SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4),
    {"length": shortest - 1},
  )
  with pytest.raises(ValueError, match=f"needs {shortest} to 32,768"):
    recipes.make_recipe(builder, special_ids, vocab_size=64, options=options)
  recipe = recipes.make_recipe(
    builder, special_ids, vocab_size=64, options={"length": shortest}
  )
  documents = [[[7, 8, 9, 10, 11], [12, 13]], [[14], [15, 16, 17]]]
  corpus = reader.corpus_from_documents(documents)
  stream = loader.Stream(corpus, recipe, seed=0)
  batch = stream.read(0, 20)
  assert batch["input_ids"].shape == (20, shortest)
  if builder == "lm":
    predictions_per_row = batch["lm_weights"].sum(1)
    assert set(predictions_per_row.tolist()) <= {1.0, 2.0}
    # Each token of the documents has the id of the token before it, plus 1.
    ids = batch["input_ids"][batch["lm_weights"] > 0]
    np.testing.assert_array_equal(
      ids + 1, batch["lm_ids"][batch["lm_weights"] > 0]
    )


def test_a_missing_config_file_is_named():
  process = subprocess.run(
    [
      sys.executable,
      "-m",
      "bert_jax",
      *train_command(config="configs/no_such.py"),
    ],
    cwd=ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
  )
  assert process.returncode != 0
  line = last_line(process.stderr)
  assert line.startswith("error: ") and "configs/no_such.py" in line


def original_and_changed(section, **values):
  """Returns a config, and a copy with changed values in one section."""
  config = configs.load_defaults(BERT)
  return config, config | {section: config[section] | values}


def test_types_that_ml_collections_accepts_are_refused():
  """ml_collections takes True for an int; `check_types` does not."""
  defaults, config = original_and_changed("checkpoint", keep=True)
  with pytest.raises(ValueError, match="checkpoint.keep=True.*int"):
    config_lib.check_types(config, defaults)
  defaults, config = original_and_changed("schedule", peak=1)
  config_lib.check_types(config, defaults)
  defaults, config = original_and_changed("schedule", peak="1")
  with pytest.raises(ValueError, match="schedule.peak='1'.*float"):
    config_lib.check_types(config, defaults)
  defaults, config = original_and_changed("model", remat=1)
  with pytest.raises(ValueError, match="model.remat=1.*bool"):
    config_lib.check_types(config, defaults)


def test_unknown_and_missing_keys_are_errors():
  defaults = dict(peak=dataclasses.MISSING, warmup=dataclasses.MISSING)
  check = functools.partial(config_lib.check_keys, "s", defaults=defaults)
  assert check(dict(peak=2, warmup=3)) is None
  with pytest.raises(ValueError, match="config.s.peek .* mean peak"):
    check(dict(peek=2, warmup=3))
  with pytest.raises(ValueError, match=r"^config\.s\.warmup is missing\.$"):
    check(dict(peak=2))
  config = configs.load_defaults(BERT)
  with pytest.raises(ValueError, match="config.sed .* mean seed"):
    config_lib.parse(config | {"sed": 1})
  with pytest.raises(ValueError, match="config.seed is missing"):
    config_lib.parse(
      {key: value for key, value in config.items() if key != "seed"}
    )


def test_a_restart_may_change_the_log_but_not_the_training():
  old_config, new_config = original_and_changed("log", every=7)
  lines = config_lib.check_restart(old_config, new_config, defaults={})
  assert lines == [f"config.log.every: {old_config['log']['every']} -> 7"]
  old_config, new_config = original_and_changed("optimizer", b1=0.8)
  new_config["total_steps"] = 5
  with pytest.raises(ValueError, match="optimizer.b1.*total_steps"):
    config_lib.check_restart(old_config, new_config, defaults={})
  assert config_lib.check_restart(old_config, old_config, defaults={}) == []


@pytest.mark.parametrize(
  "name, section, key, other_value",
  [
    ("bert:base", "data", "static_masks", 3),
    ("bert:base", "data", "cased", True),
    ("bert:base", "model", "num_segments", 3),
    ("spanbert:base", "objective", "span_boundary", True),
    ("albert:base_v2", "model", "initializer_range", 0.5),
    ("distilbert:base", "objective", "kl_tokens", "masked"),
    ("distilbert:base", "teacher", "norm_epsilon", 0.1),
    ("elmo:original", "model", "filters", ((1, 4),)),
    ("glue:sst2", "objective", "head_dropout", 0.3),
    ("glue:sst2", "data", "group", False),
  ],
)
def test_a_restart_may_have_newer_keys_with_their_defaults(
  name, section, key, other_value
):
  """A key that the old config lacks must have its default in the new config."""
  old_config = configs.load_defaults(name)
  old_config["model"] = {"family": "bert", "variant": "base"} | {
    model_key: value
    for model_key, value in old_config["model"].items()
    if value is not None
  }
  new_config = copy.deepcopy(old_config)
  new_section, old_section = new_config[section], old_config[section]
  if section == "teacher":
    new_section, old_section, section = (
      new_section["model"],
      old_section["model"],
      "teacher.model",
    )
  old_section.pop(key, None)
  default_values = building.default_values(new_config)
  default_at_path = default_values
  for name_on_path in [*section.split("."), key]:
    default_at_path = default_at_path[name_on_path]
  assert default_at_path != other_value
  new_section[key] = default_at_path
  assert (
    config_lib.check_restart(old_config, new_config, defaults=default_values)
    == []
  )
  new_section[key] = other_value
  with pytest.raises(ValueError, match=rf"config.{section}.{key}: .* -> "):
    config_lib.check_restart(old_config, new_config, defaults=default_values)
  # If the old config has the key, the default of the key does not matter.
  old_section[key] = other_value
  new_section[key] = default_at_path
  with pytest.raises(ValueError, match=rf"config.{section}.{key}: "):
    config_lib.check_restart(old_config, new_config, defaults=default_values)


def test_a_run_without_newer_keys_continues(
  data_folder, tmp_path, compilation_cache, capsys
):
  """The run's config.json lacks keys that were added to the program later.

  With their defaults, the run continues, and prints no line about them. With
  another value, it is refused.
  """
  workdir = tmp_path / "run"
  config = shrink_config(configs.load_defaults(BERT), data_folder)
  config["phases"] = {}
  config["data"] |= dict(length=32, max_predictions=5)
  train.run(config | {"total_steps": 2}, str(workdir))
  saved_config = json.loads((workdir / "config.json").read_text())
  for section, key in (
    ("data", "static_masks"),
    ("data", "max_sequences"),
    ("model", "activation"),
    ("model", "products"),
  ):
    del saved_config[section][key]
  (workdir / "config.json").write_text(json.dumps(saved_config))
  capsys.readouterr()
  train.run(config | {"total_steps": 2}, str(workdir))
  printed = capsys.readouterr().out
  assert "continuing from step 2" in printed and "changed" not in printed
  (workdir / "config.json").write_text(json.dumps(saved_config))
  config["data"]["static_masks"] = 2
  with pytest.raises(ValueError, match="data.static_masks: 0 -> 2"):
    train.run(config | {"total_steps": 2}, str(workdir))


# The test below trains these configs. Of all other `CONFIGS`, it only builds
# the model and the data.
TRAINED_CONFIGS = ("bert:base", "roberta:base")
SLOW_TRAINED_CONFIGS = (
  "spanbert:base",
  "albert:base_v1",
  "electra:small",
  "gpt:gpt1",
)


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(
      name, marks=[pytest.mark.slow] * (name in SLOW_TRAINED_CONFIGS)
    )
    for name in CONFIGS
  ],
)
def test_every_config_trains_or_builds(
  name, data_folder, tmp_path, compilation_cache
):
  """Trains some configs, and builds all others.

  A run's config.json must hold its config and the values that come from its
  data.
  """
  for word in ("Paper:", "hardware:", "Command:"):
    assert word in config_file_text(name), f"{name}: its file has no {word!r}"
  config = shrink_config(configs.load_defaults(name), data_folder)
  config_lib.parse(config)
  if name not in TRAINED_CONFIGS + SLOW_TRAINED_CONFIGS:
    setup = building.build(config_lib.parse(config))
    assert setup.config.model.vocab_size == 64
    assert all(
      feed.training_rows.read(0, 8)["input_ids"].size for feed in setup.feeds
    )
    return
  original_config = copy.deepcopy(config)
  state = train.run(config, str(tmp_path / "run"))
  assert int(state.step) == 4
  assert config == original_config  # A run does not change its argument.
  saved_config = json.loads((tmp_path / "run" / "config.json").read_text())
  values_from_data = {"vocab_size": 64}
  if saved_config["model"]["family"] == "roberta":
    values_from_data["padding_id"] = 0
  config["model"] |= values_from_data
  assert saved_config == json.loads(json.dumps(config))
  assert saved_config["model"]["vocab_size"] == 64
  if saved_config["model"]["family"] == "roberta":
    # This is the padding id of the text's vocabulary, not the default.
    assert saved_config["model"]["padding_id"] == 0


def test_random_share_may_be_a_number(data_folder, tmp_path, compilation_cache):
  """A flag may give a number for a key whose default is text."""
  config = configs.read(BERT, [("data.random_share", "0.5")])
  config = shrink_config(config, data_folder)
  assert int(train.run(config, str(tmp_path / "run")).step) == 4
  saved_config = json.loads((tmp_path / "run" / "config.json").read_text())
  assert saved_config["data"]["random_share"] == "0.5"


def test_vocabulary_of_another_size_is_refused(data_folder, tmp_path):
  config = shrink_config(configs.load_defaults(BERT), data_folder)
  config["model"]["vocab_size"] = 100
  with pytest.raises(ValueError, match="vocab_size=100.*it is 64"):
    train.run(config, str(tmp_path / "run"))


def test_uncased_data_is_refused_if_the_config_says_cased(
  data_folder, tmp_path
):
  config = shrink_config(configs.load_defaults(BERT), data_folder)
  config["data"]["cased"] = True
  with pytest.raises(ValueError, match="config.data.cased=False, or prepare"):
    train.run(config, str(tmp_path / "run"))


def test_rows_longer_than_the_position_table_are_refused(data_folder, tmp_path):
  config = shrink_config(configs.load_defaults(BERT), data_folder)
  config["model"]["max_positions"] = 16
  with pytest.raises(ValueError, match="length 32.*max_positions=16"):
    train.run(config, str(tmp_path / "run"))


def test_two_runs_in_one_folder_are_refused(data_folder, tmp_path):
  from bert_jax.training import workdir

  config = shrink_config(configs.load_defaults(BERT), data_folder)
  with (
    workdir.lock(str(tmp_path)),
    pytest.raises(ValueError, match="another run"),
  ):
    train.run(config, str(tmp_path))


@pytest.mark.parametrize("name", ["bert:tiny", "small:distil_cpu"])
def test_build_does_not_change_its_config(name, data_folder):
  config = shrink_config(configs.load_defaults(name), data_folder)
  original_config = copy.deepcopy(config)
  setup = building.build(config_lib.parse(config))
  assert config == original_config
  assert config["model"]["vocab_size"] is None
  assert setup.config.model.vocab_size == 64


@pytest.mark.parametrize("name", ["bert:tiny", "albert:base_v2", "gpt:gpt1"])
def test_the_first_parameters_do_not_depend_on_unrolling(name, data_folder):
  """Draws parameters with unrolled layers, and with scanned layers.

  They must be equal, because a run always draws them with scanned layers.
  """
  config = shrink_config(configs.load_defaults(name), data_folder)
  config["model"] |= {"unroll": 2, "num_layers": 2}
  setup = building.build(config_lib.parse(config))
  states = [
    init_state(
      objective,
      setup.optimizer,
      setup.mesh,
      seed=3,
      batch=setup.feeds[0].shapes,
    )
    for objective in (setup.objective, building.make_drawing_objective(setup))
  ]
  jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.parametrize(
  "key, value, pattern",
  [
    ("schedule.peek", 1.0, "config.schedule.peek is not a key; .* mean peak"),
    ("log.evry", 5, "config.log.evry is not a key; did you mean every"),
    ("phases.phase1.lenght", 5, "phase1.lenght is not a key; .* mean length"),
    ("optimizer.name", 5, "config.optimizer.name=5 must be text."),
    ("model.remat", 1, "config.model.remat=1 must be True or False."),
    ("objective.pairs", "no", "config.objective.pairs='no' must be True or"),
    ("init_from", None, "config.init_from=None must be text."),
  ],
)
def test_an_unknown_key_or_a_wrong_type_is_refused(key, value, pattern):
  config = configs.load_defaults(BERT)
  *sections, last_name = key.split(".")
  section = config
  for name in sections:
    section = section[name]
  section[last_name] = value
  with pytest.raises(UserError, match=pattern):
    config_lib.parse(config)


def test_a_parsed_config_is_frozen():
  config = configs.load_defaults(BERT)
  run_config = config_lib.parse(config)
  assert run_config.schedule == config_lib.Schedule(
    "bert", peak=1e-4, warmup=0.01
  )
  assert (
    run_config.phases["phase2"].length == 512 and not run_config.model.remat
  )
  assert run_config.model.other_keys["attention"] == "auto"
  assert run_config.data.other_keys["short_probability"] == 0.1
  with pytest.raises(dataclasses.FrozenInstanceError):
    run_config.log.every = 5
  with pytest.raises(TypeError):
    run_config.data.other_keys["short_probability"] = 0.2


def test_a_run_takes_a_config_dict_and_does_not_change_it(tmp_path):
  """Trains with a ConfigDict, and with a dict.

  Both have an empty `data.path`, so both must get the error that names it.
  """
  config = config_files.open_config("own")
  original_dict = config.to_dict()
  for same_config in (config, config.to_dict()):
    with pytest.raises(UserError, match="data.path is empty"):
      train.run(same_config, str(tmp_path))
  assert config.to_dict() == original_dict
