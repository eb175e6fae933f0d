"""Tests that masks are filled by models from every kind of path."""

import json

import numpy as np
import pytest
import tiny_models
from prepared import random_documents, write_prepared
from tiny_runs import BERT, shrink_config

from bert_jax.cli import configs
from bert_jax.cli.main import execute
from bert_jax.messages import UserError
from bert_jax.training import train
from bert_jax.use import fill_mask
from bert_jax.weights import hf, model_folder
from bert_jax.weights.load import open_model

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  path = tmp_path_factory.mktemp("fill")
  folder = write_prepared(
    path / "data", random_documents(60, 0), random_documents(9, 1)
  )
  config = shrink_config(configs.load_defaults(BERT), folder)
  config["phases"] = {"phase1": config["phases"]["phase1"] | {"fraction": 1.0}}
  train.run(config, str(path / "run"))
  return str(path / "run")


def test_probabilities_sum_to_one_in_any_batch(workdir):
  model = open_model(workdir)
  texts = ["w9 [MASK] w11", "w20 w21 [MASK] [MASK] w24 w25"]
  first_masks, second_masks = fill_mask.fill(model, texts, top_k=64)
  assert len(first_masks) == 1 and len(second_masks) == 2
  for candidates in (*first_masks, *second_masks):
    probabilities = [probability for _, probability in candidates]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-5)
    assert len({piece for piece, _ in candidates}) == 64
  # Neither padding nor other texts in the batch change the probabilities.
  (single_masks,) = fill_mask.fill(model, texts[:1], top_k=64)
  np.testing.assert_allclose(
    [probability for _, probability in single_masks[0]],
    [probability for _, probability in first_masks[0]],
    rtol=1e-5,
  )


def run_command(*arguments):
  execute(["fill-mask", *arguments])


def test_json_has_an_object_for_each_text(workdir, capsys):
  run_command("--json", "--model", workdir, "[MASK] w9", "w9 [MASK] [MASK]")
  lines = capsys.readouterr().out.splitlines()
  first, second = map(json.loads, lines)
  assert first["text"] == "[MASK] w9"
  assert [len(candidates) for candidates in first["masks"]] == [5]
  assert [len(candidates) for candidates in second["masks"]] == [5, 5]
  assert set(first["masks"][0][0]) == {"token", "probability"}


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["w9 w10"], "no [MASK]"),
    (["w9 [mask]"], "no [MASK]"),
    ([" ".join(["w9"] * 600) + " [MASK]"], "603 tokens"),
    (["--model", "RUN@7", "[MASK]"], "no step 7"),
    (["--top", "0", "[MASK]"], "--top=0: 0 candidates for a mask are not"),
  ],
)
def test_bad_input_gets_one_sentence(workdir, arguments, message):
  with pytest.raises(SystemExit) as exit_info:
    arguments = [text.replace("RUN", workdir) for text in arguments]
    run_command("--model", workdir, *arguments)
  assert str(exit_info.value).startswith("error: ") and message in str(
    exit_info.value
  )
  assert "\n" not in str(exit_info.value)


def test_a_folder_without_a_model_is_refused(tmp_path):
  with pytest.raises(SystemExit, match="config.json.* is missing"):
    run_command("--model", str(tmp_path), "[MASK]")


def test_every_kind_of_path_gives_the_same_candidates(workdir, tmp_path):
  weights = open_model(workdir).weights
  model_folder.write(str(tmp_path / "ours"), weights)
  hf.write(str(tmp_path / "hf"), weights)
  texts = ["w9 [MASK] w11", "[MASK] w25"]
  expected = fill_mask.fill(open_model(workdir), texts)
  for path in (f"{workdir}@best", str(tmp_path / "ours"), str(tmp_path / "hf")):
    candidates = fill_mask.fill(open_model(path), texts)
    assert candidates == expected, path


@pytest.mark.parametrize(
  "task, message",
  [("encoder", "for encoder of family bert"), ("gpt", "of family gpt")],
)
def test_a_model_without_a_head_for_masks_is_refused(tmp_path, task, message):
  family = "gpt" if task == "gpt" else "bert"
  task = "pretraining" if task == "gpt" else task
  path = tiny_models.write_model(tmp_path / "model", family, task)
  with pytest.raises(UserError, match=f"{message}: it has no head that fills"):
    fill_mask.fill(open_model(path), ["[MASK]"])


def test_the_generator_of_electra_fills_masks(tmp_path):
  path = tiny_models.write_model(
    tmp_path / "electra", "electra", "pretraining", generator_hidden=8, mlp=64
  )
  model = open_model(path, default_tower="generator")
  assert model.config["task"] == "generator"
  ((candidates,),) = fill_mask.fill(model, ["the [MASK]"], top_k=3)
  assert len(candidates) == 3
  with pytest.raises(UserError, match="for pretraining of family electra"):
    fill_mask.fill(open_model(path), ["the [MASK]"])
