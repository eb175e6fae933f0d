"""Tests the flags in the README on every pre-training config."""

import pathlib

import jax
import pytest
from config_names import PRETRAINING_CONFIGS
from prepared import random_documents, write_prepared
from tiny_runs import shrink_config

from bert_jax import objectives
from bert_jax.cli import configs
from bert_jax.examples.recipes import RECIPES
from bert_jax.messages import UserError
from bert_jax.objectives import distil, electra, mlm, tinybert
from bert_jax.text.vocabulary import SpecialIds
from bert_jax.training import config as config_lib
from bert_jax.training import logging, phases, topologies, train
from bert_jax.training import setup as building

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

ROOT = str(pathlib.Path(__file__).parents[2])
MASKING_FLAGS = [
  f"data.masking={kind}" for kind in ("token", "whole_word", "ngram", "span")
]
README_FLAGS = (*MASKING_FLAGS, "data.max_sequences=8", "data.static_masks=10")


def open_config(path, *flags):
  """Returns the config of a command line with these flags."""
  return configs.read(path, [flag.split("=", 1) for flag in flags])


def parse_with_published_vocabulary(path, *flags):
  """Parses the config of a command line; sets the published vocabulary size."""
  return topologies.with_published_vocabulary(
    config_lib.parse(open_config(path, *flags))
  )


def shapes_of_phases(config):
  """Returns the batch shapes of each phase; raises for a bad option."""
  vocab_size = config.model.vocab_size
  return [
    topologies.batch_shapes(vocab_size, phase) for phase in phases.plan(config)
  ]


def test_the_readme_has_these_flags():
  text = (pathlib.Path(ROOT) / "README.md").read_text("utf-8")
  for flag in README_FLAGS[len(MASKING_FLAGS) :]:
    assert f"`{flag}`" in text
  for flag in MASKING_FLAGS:
    assert f"`{flag.partition('=')[2]}`" in text


@pytest.mark.parametrize("name", PRETRAINING_CONFIGS)
def test_a_config_takes_a_flag_or_says_why_not(name):
  """A config accepts the flag, or an error names the builders that use it."""
  builder = configs.load_defaults(name)["data"]["builder"]
  allowed_flags_by_builder = {"lm": ("data.max_sequences=8",), "elmo": ()}
  for flag in README_FLAGS:
    if flag in allowed_flags_by_builder.get(builder, README_FLAGS):
      config = parse_with_published_vocabulary(name, flag)
      # Smoothing chooses single tokens by their frequency, so it needs
      # masking=token. The error proposes smoothing=0, where all tokens have
      # equal chances.
      if config.data.smoothing and flag in MASKING_FLAGS[1:]:
        with pytest.raises(ValueError, match="; set smoothing=0 for equal"):
          shapes_of_phases(config)
        config = parse_with_published_vocabulary(
          name, flag, "data.smoothing=0.0"
        )
      # The rows of full_sentences are full already. The error proposes
      # doc_sentences, whose rows can be packed.
      if builder == "full_sentences" and "max_sequences" in flag:
        with pytest.raises(ValueError, match="builder doc_sentences, whose"):
          shapes_of_phases(config)
        config = parse_with_published_vocabulary(
          name, flag, "data.builder=doc_sentences"
        )
      for batch in shapes_of_phases(config):
        assert ("position_ids" in batch) == ("max_sequences" in flag)
      continue
    with pytest.raises(UserError) as error:
      parse_with_published_vocabulary(name, flag)
    key = flag.partition("=")[0]
    message_start = f"config.{key}: {name} has no such key: data.builder="
    message = str(error.value)
    # The message ends with all builders that use the key: "choose albert_pairs,
    # bert_pairs, ..., doc_sentences."
    assert message.startswith(
      f"{message_start}{builder} does not use this key; choose a"
    )
    assert "bert_pairs" in message and message.endswith(
      "doc_sentences" + (", lm." if "max_sequences" in flag else ".")
    )


CONFIGS_OF_PACKABLE_ROWS = [
  name for name in PRETRAINING_CONFIGS if "elmo" not in name
]


@pytest.mark.parametrize("name", CONFIGS_OF_PACKABLE_ROWS)
def test_packed_rows_fit_the_objective(name):
  flags = ["data.max_sequences=8"]
  if "roberta" in name:
    flags.append("data.builder=doc_sentences")
  config = parse_with_published_vocabulary(name, *flags)
  objective, _, _ = building.make_objective_and_optimizer(config)
  for batch in shapes_of_phases(config):
    assert batch["position_ids"].shape == batch["input_ids"].shape
    jax.eval_shape(objective.init, jax.random.key(0), batch)
    # Each loss is a sum divided by its divisor.
    divisors = jax.eval_shape(objective.divisors, batch)
    assert set(objective.coefficients) <= set(divisors)


def test_packed_roberta_trains_with_less_padding(tmp_path, compilation_cache):
  """Packing up to 8 sequences into a row removes over half of the padding."""
  folder = write_prepared(
    tmp_path / "p", random_documents(60, 0), random_documents(9, 1)
  )
  padding_by_run = []
  for max_sequences in (1, 8):
    config = open_config(
      "small:roberta_cpu",
      "data.builder=doc_sentences",
      f"data.max_sequences={max_sequences}",
    )
    config = shrink_config(config, folder)
    config["data"] |= dict(length=128, max_predictions=20)
    config["model"] |= dict(hidden=32, mlp=64)
    workdir = tmp_path / f"run{max_sequences}"
    assert int(train.run(config, str(workdir)).step) == 4
    logged_lines = logging.read_rows(str(workdir / "metrics.jsonl"))
    padding_by_run.append(
      [line["padding"] for line in logged_lines if line["split"] == "train"]
    )
    assert all(line["mlm_loss"] > 0 for line in logged_lines)
  assert max(padding_by_run[1]) < min(padding_by_run[0]) / 2


@pytest.mark.parametrize(
  "name, flag, pattern",
  [
    (
      "small:roberta_cpu",
      "data.builder=lm",
      "config.data.builder=lm: objective mlm cannot train roberta on its rows;"
      " choose full_sentences or doc_sentences.",
    ),
    (
      "roberta:base",
      "data.builder=bert_pairs",
      "choose full_sentences or doc_sentences.",
    ),
    (
      "bert:base",
      "data.builder=doc_sentences",
      "choose bert_pairs or albert_pairs, or set objective.pairs=False.",
    ),
    ("bert:base", "data.builder=lm", "choose bert_pairs or albert_pairs."),
    ("gpt:gpt1", "data.builder=elmo", "objective lm .*; choose lm."),
    ("small:elmo_cpu", "data.builder=lm", "objective elmo .*; choose elmo."),
    (
      "distilbert:base",
      "data.builder=lm",
      "objective distil .* electra_segments",
    ),
  ],
)
def test_rows_that_an_objective_cannot_train_on_are_refused(
  name, flag, pattern
):
  with pytest.raises(ValueError, match=pattern):
    parse_with_published_vocabulary(name, flag)


def test_every_objective_of_text_names_its_builders():
  text_objectives = objectives.OBJECTIVES.keys() - set(
    config_lib.TASK_OBJECTIVES
  )
  assert config_lib.OBJECTIVE_BUILDERS.keys() == text_objectives


@pytest.mark.parametrize("builder", RECIPES)
@pytest.mark.parametrize("name", config_lib.OBJECTIVE_BUILDERS)
def test_a_builder_is_refused_only_if_its_batches_do_not_fit(builder, name):
  """Calls `check_builder` with each objective `name` and each builder.

  It must raise an error if the objective or the family cannot use the keys of
  the builder's batches, and only then.
  """
  needed_keys = {
    "lm": {"lm_ids"},
    "elmo": {"next_ids"},
    "distil": set(distil.KEYS),
    "tinybert": set(tinybert.KEYS),
    "electra": set(electra.KEYS),
  }
  builder_keys = set(
    RECIPES[builder](
      SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4), 64
    ).features
  )
  for family in ("bert", "roberta"):
    for has_pairs in (True, False):
      keys = needed_keys.get(name) or {
        *mlm.MASKED_KEYS,
        *(mlm.PAIR_KEYS * has_pairs),
      }
      if family == "roberta" and has_pairs:
        continue
      can_train = keys <= builder_keys and not (
        family == "roberta" and "segment_ids" in builder_keys
      )
      objective = config_lib.Objective(name, pairs=has_pairs)
      if can_train:
        config_lib.check_builder(objective, builder, family)
      else:
        with pytest.raises(ValueError, match=f"builder={builder}: .* choose "):
          config_lib.check_builder(objective, builder, family)


def test_span_boundaries_need_masked_spans():
  path = "small:spanbert_cpu"
  config = parse_with_published_vocabulary(path, "data.masking=token")
  objective, _, _ = building.make_objective_and_optimizer(config)
  (batch,) = shapes_of_phases(config)
  pattern = "set data.masking=span, or objective.span_boundary=False"
  with pytest.raises(ValueError, match=pattern):
    jax.eval_shape(objective.init, jax.random.key(0), batch)
