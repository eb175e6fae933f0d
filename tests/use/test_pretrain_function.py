"""Tests `bert_jax.pretrain`: forms of text, repeated calls, messages."""

import copy
import doctest
import threading

import numpy as np
import pytest
from frames import Frame
from history_columns import documented_columns

import bert_jax
from bert_jax.messages import UserError
from bert_jax.use import pretrain

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

TEXTS = [
  f"The cat {i} sat on the mat. The dog sat, too. It ran off to the {i}."
  for i in range(50)
]
CONFIG = {
  **{"model.hidden": 16, "model.heads": 2, "model.mlp": 32},
  **{"evaluate": {"every": 2, "examples": 8}, "checkpoint.every": 2},
}
OPTIONS = dict(
  steps=2, batch_size=4, length=32, vocab_size=100, heldout=0.2, config=CONFIG
)


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
  """Trains in a thread, where no signal handlers can be set.

  Returns the result, and checks that `pretrain` did not change its arguments.
  """
  texts = list(TEXTS)
  originals = copy.deepcopy((texts, OPTIONS))
  results = []

  def train():
    workdir = tmp_path_factory.mktemp("run")
    results.append(bert_jax.pretrain(texts, workdir=workdir, **OPTIONS))

  thread = threading.Thread(target=train)
  thread.start()
  thread.join()
  (result,) = results
  assert (texts, OPTIONS) == originals
  return result


def test_texts_give_a_model_and_a_history(first_run):
  assert (
    first_run.model.family == "bert"
    and first_run.model.config["model"]["hidden"] == 16
  )
  row = first_run.model.fill_mask("The [MASK] sat.")
  assert "[MASK]" not in row["filled"]
  assert [row["step"] for row in first_run.history] == [1, 2]
  losses = [
    first_run.history[0]["loss"],
    first_run.history[1]["validation_loss"],
  ]
  assert np.isfinite(losses).all()
  assert "validation_mlm_accuracy" in first_run.history[1]
  columns = documented_columns()
  for name in first_run.history[0]:
    assert name.removeprefix("validation_") in columns, name


def test_a_repeated_call_returns_the_run_and_other_texts_are_refused(
  first_run, capsys
):
  repeated_run = bert_jax.pretrain(
    Frame(text=TEXTS), workdir=first_run.workdir, **OPTIONS
  )
  captured = capsys.readouterr()
  assert "pretrain: the run is complete, at step 2\n" in captured.err
  assert "evaluating" not in captured.err and not captured.out
  assert "vocabulary.txt is used again" in captured.err
  assert [row["loss"] for row in repeated_run.history] == [
    row["loss"] for row in first_run.history
  ]
  with pytest.raises(UserError, match="was started with other texts; give"):
    bert_jax.pretrain(TEXTS[1:], workdir=first_run.workdir, **OPTIONS)


def test_the_example_of_the_docstring_runs():
  variables = {"CONFIG": CONFIG}
  finder = doctest.DocTestFinder(exclude_empty=True)
  tests = finder.find(pretrain.pretrain, "pretrain", globs=variables)
  assert sum(len(test.examples) for test in tests) == 6
  report = []
  for test in tests:
    doctest.DocTestRunner().run(test, out=report.append)
  assert not report, "".join(report)
  assert "pretrain" in bert_jax.__all__ and "pretrain" in dir(bert_jax)


def test_every_form_of_texts_gives_documents():
  assert pretrain._read_documents("a cat sat", "text") == ["a cat sat"]
  for texts in (
    ["a", "b"],
    np.array(["a", "b"]),
    iter(["a", "b"]),
    {"text": ["a", "b"]},
    [{"text": "a"}, {"text": "b", "other": 1}],
    Frame(other=[1, 2], text=["a", "b"]),
  ):
    assert pretrain._read_documents(texts, "text") == ["a", "b"]


@pytest.mark.parametrize(
  "arguments, message",
  [
    ({}, "pass either texts= or files="),
    ({"texts": "a", "files": "b"}, "pass either texts= or files="),
    ({"texts": __file__}, "is the name of a file; pass files="),
    ({"texts": ["a", 5]}, "text 1 is 5, not a string"),
    ({"texts": []}, "texts has no text in it"),
    ({"texts": [" "]}, "texts has no text in it"),
    (
      {"texts": [{"body": "a"}]},
      "row 0 of texts has no column 'text', only body",
    ),
    (
      {"texts": ["a"], "family": "brt"},
      "family='brt' is unknown; did you mean",
    ),
    # "This file" is configs/bert.py.
    (
      {"texts": ["a"], "size": "bas"},
      "^size='bas': 'bas' is not a name of this file; ",
    ),
    ({"texts": ["a"], "size": 3}, "^size=3 must be the name of a size, a str"),
    (
      {"texts": ["a"], "family": 3},
      "^family=3 is unknown; choose albert, bert",
    ),
    (
      {"texts": "text/*.txt"},
      r"^texts='text/\*.txt' looks like the path of files; pass"
      r" files='text/\*.txt' to read them, or a list of documents.$",
    ),
    ({"texts": "no/such.txt"}, "^texts='no/such.txt' looks like the path of f"),
    ({"texts": {"a", "b"}}, "^texts is a set, which has no order, so a"),
    ({"texts": b"abc"}, "b'abc' is not a text; pass a string or a list"),
    (
      {"texts": ["a", "b\ud800"]},
      "^text 1 has half a surrogate pair at charac",
    ),
    ({"texts": ["a"], "vocab_size": 9}, "^vocab_size=9 is too small; give 100"),
    ({"files": []}, "^files= is empty; pass the paths of text files.$"),
    (
      {"files": [3]},
      "^files=3: pass a path, or a list with each path, as a st",
    ),
    ({"files": b"a.txt"}, "^files=b'a.txt': pass a path or a list of paths.$"),
    ({"texts": ["a"], "text": None}, "^text=None must be the name of a column"),
    (
      {"texts": ["a"], "vocabulary": 3},
      "^vocabulary=3: pass the file or folder",
    ),
    (
      {"texts": ["a"], "vocabulary": "no.txt"},
      "^there is no vocabulary no.txt; without vocabulary=, one is trained",
    ),
    *(
      ({"texts": ["a"], name: value}, f"^{name}={value!r} must be {fault}.$")
      for name, value, fault in (
        ("steps", 0, "at least 1"),
        ("steps", "3", "a whole number"),
        ("steps", True, "a whole number"),
        ("batch_size", 0, "at least 1"),
        ("learning_rate", "fast", "a number"),
        ("learning_rate", -1, "above 0, and finite"),
        ("length", 16.5, "a whole number"),
        ("seed", -1, "at least 0"),
        ("vocab_size", "100", "a whole number"),
        ("heldout", 1, "at least 0 and below 1"),
        ("heldout", True, "a number"),
        ("processes", 0, "at least 1"),
      )
    ),
    # BERT's base size trains on rows of 128 tokens, then of 512.
    ({"texts": ["a"], "size": "base", "length": 9}, "phases with their own"),
    ({"texts": ["a"], "config": {"steps": 9}}, "config.steps is not a key"),
    ({"files": 5}, "files=5: pass a path or a list of paths"),
    ({"files": "missing.txt"}, "there is no file missing.txt"),
  ],
)
def test_wrong_arguments_get_one_sentence(arguments, message, tmp_path):
  with pytest.raises(UserError, match=message) as error:
    bert_jax.pretrain(workdir=tmp_path, **arguments)
  assert "\n" not in str(error.value) and "--" not in str(error.value)


def test_errors_about_files_tell_which_files_to_pass(tmp_path):
  path = tmp_path / "text.html"
  path.write_text("a b c\n")
  message = f"give files=FORMAT:{path}, with one of "
  with pytest.raises(UserError, match=message) as error:
    bert_jax.pretrain(files=path, workdir=tmp_path / "run")
  assert "--" not in str(error.value)
  path.write_bytes(b"PAR1\n")
  message = f"{path} is a Parquet file; pass files=parquet:{path}.$"
  with pytest.raises(UserError, match=message):
    bert_jax.pretrain(files=f"text:{path}", workdir=tmp_path / "run")
  path.write_bytes(b"\xff\n")
  message = "not UTF-8 in line 1, at byte 0; convert the file.$"
  with pytest.raises(UserError, match=message):
    bert_jax.pretrain(files=f"text:{path}", workdir=tmp_path / "run")


def test_workdir_may_contain_glob_characters(tmp_path, monkeypatch):
  configs = []

  def run(config, workdir, name):
    configs.append(config)

  # Do not train; only keep the config.
  monkeypatch.setattr(pretrain.trained, "run", run)
  workdir = tmp_path / "run[1]*"
  bert_jax.pretrain(TEXTS, workdir=workdir, **OPTIONS)
  assert configs[0]["data"]["path"] == str(workdir / "text")


@pytest.mark.slow
@pytest.mark.parametrize(
  "family", ["roberta", "albert", "electra", "gpt", "spanbert"]
)
def test_other_families_than_bert_train(family, tmp_path):
  config = {"evaluate": {"every": 2, "examples": 8}, "checkpoint.every": 2}
  options = OPTIONS | {"config": config, "vocab_size": 400}
  run = bert_jax.pretrain(TEXTS, family=family, workdir=tmp_path, **options)
  assert np.isfinite(run.history[-1]["validation_loss"])
  assert run.model.features("The cat sat.").ndim == 1


def test_training_continues_from_a_model(first_run, tmp_path):
  model = first_run.model
  options = OPTIONS | {"vocab_size": 50, "learning_rate": 1e-30}
  continued_run = bert_jax.pretrain(
    TEXTS, model=model, workdir=tmp_path, **options
  )
  assert continued_run.model.config["model"] == model.config["model"]
  assert (
    continued_run.model.vocabulary.vocab_size == model.vocabulary.vocab_size
  )
  assert continued_run.model.config["head"] == model.config["head"]
  # The rate is too small to change a parameter.
  old_embeddings, new_embeddings = (
    trained_model.params["encoder"]["embeddings"]
    for trained_model in (model, continued_run.model)
  )
  np.testing.assert_array_equal(
    new_embeddings["word"]["embedding"], old_embeddings["word"]["embedding"]
  )


def test_a_model_without_pairs_is_trained_on_rows_without_pairs(tmp_path):
  options = dict(steps=1, batch_size=2, length=16, heldout=0)
  result = bert_jax.pretrain(TEXTS, model="mini", workdir=tmp_path, **options)
  assert result.model.config["head"] == {"pairs": False}
  assert result.model.config["model"]["hidden"] == 384
  filled = result.model.fill_mask("Paris is the capital of [MASK].")
  assert filled["masks"][0][0]["token"] == "france"


def test_model_and_vocabulary_cannot_both_be_given():
  with pytest.raises(UserError, match="either model= or vocabulary="):
    bert_jax.pretrain(TEXTS, model="mini", vocabulary="vocab.txt")


def test_a_length_that_the_model_cannot_read_is_refused(tmp_path):
  with pytest.raises(UserError, match=r"length=129: the model reads .* 128"):
    bert_jax.pretrain(TEXTS, model="mini", length=129, workdir=tmp_path)
