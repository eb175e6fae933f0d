"""Tests `bert_jax.load` and the methods of the model that it returns."""

import copy
import doctest
import functools
import inspect
import json
import pathlib
import pickle
import re
import sys
import threading
import time
import types

import frames
import jax
import matplotlib
import numpy as np
import pytest
import tiny_models
import tiny_tasks
from close_results import assert_same_results

import bert_jax
from bert_jax import messages
from bert_jax.cli.main import execute
from bert_jax.messages import UserError
from bert_jax.training import evaluate_task
from bert_jax.use import fill_mask
from bert_jax.use import model as model_lib
from bert_jax.use import predict as predict_lib
from bert_jax.use.results import Results
from bert_jax.weights import model_folder

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
# Name of a folder in the page's `runs` -> the kind of its task.
KIND_BY_RUN = {"sst2": "classification", "ner": "tagging", "squad": "span"}


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory):
  """Returns a folder with tiny models under the names that `PAGE` uses."""
  path = tmp_path_factory.mktemp("page")
  tiny_tasks.write_model(path / "runs" / "mine")
  for name, kind in KIND_BY_RUN.items():
    tiny_tasks.write_fine_tuned(path / "runs" / name, kind)
  return path


@pytest.fixture(scope="module")
def masked_lm(page_folder):
  return bert_jax.load(str(page_folder / "runs" / "mine"))


@pytest.fixture(scope="module")
def classifier(page_folder):
  return bert_jax.load(str(page_folder / "runs" / "sst2"))


# The pieces of the models in the examples of docstrings. There are as many as
# in the models of `page_folder`, so that the models share compiled programs.
WORDS = tiny_models.WORDS[: len(tiny_tasks.PIECES)]


def write_constant_model(path, weights, name, bias, labels=None):
  """Returns a model that gives the same logits for every input.

  The model shares its programs with the models in `page_folder`, so that each
  program is compiled once.

  Args:
    path: the new folder.
    weights: the weights of a model; they are changed.
    name: the layer that gives the model's logits.
    bias: the logits.
    labels: the names of the model's labels; None keeps the default.
  """
  weights.arrays[f"{name}/bias"] = np.array(bias, np.float32)
  if name == "classifier/dense":
    weights.arrays[f"{name}/kernel"][:] = 0
  vocabulary = "".join(f"{word}\n" for word in WORDS).encode()
  weights = weights._replace(
    config=weights.config | {"labels": labels},
    tokenizer_files={"vocab.txt": vocabulary},
  )
  model_folder.write(str(path), weights)
  return bert_jax.load(str(path))


@pytest.fixture(scope="module")
def doctest_names(tmp_path_factory):
  """Returns the variables that the examples of docstrings use."""
  path = tmp_path_factory.mktemp("names")
  logits_of_mat = 20.0 * np.array([word == "mat" for word in WORDS])
  weights = tiny_tasks.write_model(path / "fill")
  model = write_constant_model(path / "model", weights, "mlm", logits_of_mat)
  weights = tiny_tasks.write_fine_tuned(path / "classes", "classification")
  classifier = write_constant_model(
    path / "classifier",
    weights,
    "classifier/dense",
    [3.0, 0.0],
    ["positive", "negative"],
  )
  weights = tiny_tasks.write_fine_tuned(path / "tags", "tagging")
  tagger = write_constant_model(
    path / "tagger",
    weights,
    "classifier/dense",
    [0.0, 5.0, 0.0],
    ["O", "B-LOC", "I-LOC"],
  )
  return {
    "PATH": model.path,
    "bert_jax": bert_jax,
    "model": model,
    "classifier": classifier,
    "tagger": tagger,
  }


def public_method_names():
  functions = inspect.getmembers(model_lib.Model, inspect.isfunction)
  return [name for name, _ in functions if not name.startswith("_")]


def test_examples_of_docstrings_run(doctest_names, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  finder = doctest.DocTestFinder(exclude_empty=True)
  runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
  tests = finder.find(model_lib, "model", globs=doctest_names)
  for test in tests:
    report = []
    runner.run(test, out=report.append)
    assert not report, "".join(report)
  names_with_examples = {test.name for test in tests if test.examples}
  method_names = public_method_names()
  assert names_with_examples >= {
    "model.load",
    *(f"model.Model.{name}" for name in method_names),
  }
  assert {*method_names} == {
    *("fill_mask", "predict", "features", "similarity", "likelihood"),
    *("attention", "tokenize", "save"),
  }


# Function in the page -> arguments that make its training small.
SMALL_ARGUMENTS = {
  "finetune": {"epochs": 1, "batch_size": 8},
  "pretrain": {
    "steps": 2,
    "batch_size": 4,
    "length": 32,
    "vocab_size": 100,
    "config": {
      **{"model.hidden": 16, "model.heads": 2, "model.mlp": 32},
      **{"evaluate": {"every": 2, "examples": 8}, "checkpoint.every": 2},
    },
    "heldout": 0.2,
  },
}
# The tests use this object in place of pandas, which they do not need.
# scikit-learn looks for the two classes in pandas.
FAKE_PANDAS = types.SimpleNamespace(
  read_csv=frames.read_csv, DataFrame=frames.Frame, Series=frames.Frame
)


def call_with_small_arguments(function, small_arguments, *arguments, **options):
  """Calls a function of the page with small arguments, so that it is fast."""
  return function(*arguments, **options | small_arguments)


def write_data_of_the_page(page_folder):
  """Writes the files that the page's programs read."""
  lines = ["red cat,good", "blue dog,bad"] * 10
  (page_folder / "reviews.csv").write_text(
    "\n".join(["text,label", *lines, ""])
  )
  (page_folder / "text").mkdir()
  for name in ("a", "b"):
    documents = [f"The {i} cats sat {name}.\nSome dogs ran." for i in range(30)]
    (page_folder / "text" / f"{name}.txt").write_text("\n\n".join(documents))
  row = {"step": 1, "split": "heldout", "mlm_loss": 2.0}
  speed = {"steps_per_second": 1.0, "tokens_per_second": 8.0}
  rows = [{**row, **speed, "split": "train"}, row]
  for name in ("mine", "small"):
    run_folder = page_folder / "runs" / name
    run_folder.mkdir(parents=True, exist_ok=True)
    (run_folder / "metrics.jsonl").write_text(
      "".join(json.dumps(row) + "\n" for row in rows)
    )


def test_programs_of_the_page_run(page_folder, monkeypatch):
  monkeypatch.chdir(page_folder)
  matplotlib.use("agg")
  write_data_of_the_page(page_folder)
  monkeypatch.setitem(sys.modules, "pandas", FAKE_PANDAS)
  for name, small_arguments in SMALL_ARGUMENTS.items():
    function = getattr(bert_jax, name)
    monkeypatch.setattr(
      bert_jax,
      name,
      functools.partial(call_with_small_arguments, function, small_arguments),
    )
  programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
  assert len(programs) == 13
  for program in programs:
    assert len(program.splitlines()) <= 10
    exec(compile(program, str(PAGE), "exec"), {})


def test_every_type_of_input_is_predicted(classifier):
  texts = ["red cat .", "dog"]
  expected = classifier.predict(texts)
  assert isinstance(expected, list) and len(expected) == 2
  assert {*expected[0]} == {"label", "probability", "probabilities"}
  # A string is one text, never characters.
  assert classifier.predict("dog")["label"] == expected[1]["label"]
  fields = [{"text": text, "label": 1} for text in texts]
  frame_with_gaps = frames.Frame(
    text=texts, text_pair=[None, float("nan")], other=[1, 2]
  )
  for inputs in (np.array(texts), iter(texts), fields, frame_with_gaps):
    assert classifier.predict(inputs) == expected
  pairs = [("red", "cat"), ("dog", "runs")]
  expected = classifier.predict(pairs)
  first_texts, second_texts = zip(*pairs, strict=True)
  assert (
    classifier.predict(frames.Frame(text=first_texts, text_pair=second_texts))
    == expected
  )
  row = classifier.predict(pairs[0])
  assert row["label"] == expected[0]["label"]
  assert row["probability"] == pytest.approx(expected[0]["probability"], 1e-5)
  assert classifier.predict([]) == []


def test_a_text_that_is_not_read_is_named(classifier, capsys):
  label = classifier.predict({"text": "dog", "pair": "cat", "id": "a"})["label"]
  assert label == classifier.predict("dog")["label"]
  assert capsys.readouterr().err == (
    "predict does not read the text in pair. A second text is read from the"
    " field text_pair.\n"
  )


def test_inputs_are_not_changed(classifier, masked_lm):
  inputs = [{"text": "red cat", "text_pair": None}, {"text": "dog"}]
  originals = copy.deepcopy(inputs)
  classifier.predict(inputs)
  masked_lm.features(inputs)
  masked_lm.likelihood(inputs)
  assert inputs == originals


@pytest.mark.parametrize(
  "inputs, message",
  [
    (5, "5 is not a text; pass a string or a list of strings"),
    (b"cat", "is not a text"),
    (["cat", 5], "input 1 is 5, not a text"),
    (["cat", None], "input 1 is None, not a text"),
    (
      [{"txt": "cat"}],
      "^input 0: it has no field 'text'; its fields are txt; rename one, or",
    ),
    ([{"text": float("nan")}], "input 0 has no text: its field 'text' is nan"),
    (
      [{"text": None, "id": 1}],
      "input 0 has no text: its field 'text' is None",
    ),
    ({"cat", "dog"}, "a set has no order, so no result could be matched"),
    (np.array(5), "5 is not a text; pass a string or a list of strings"),
    ([("a", "b", "c")], r"input 0 has 3 entries; pass \(text, text_pair\)"),
  ],
)
def test_wrong_inputs_are_named(classifier, inputs, message):
  with pytest.raises(UserError, match=message):
    classifier.predict(inputs)


@pytest.mark.parametrize(
  "inputs, message",
  [
    (
      frames.Frame(text=["cat", float("nan")]),
      "input 1 has no text: its field 'text' is nan; leave the input out, or"
      " give it a text.",
    ),
    (
      {"text": ["cat", "dog"]},
      "input 0: its field 'text' is ['cat', 'dog'], not a text; for several"
      " texts, pass a list of them, or of dicts.",
    ),
    (
      [{"text": b"cat"}],
      "input 0: its field 'text' is b'cat', not a text.",
    ),
    (
      {"review": "cat"},
      "input 0 has no field 'text' that is a string; it has review.",
    ),
    (
      frozenset(["cat"]),
      "a set has no order, so no result could be matched to its text; pass a"
      " list.",
    ),
  ],
)
def test_wrong_texts_are_named(masked_lm, inputs, message):
  for method in (masked_lm.features, masked_lm.tokenize, masked_lm.fill_mask):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
      method(inputs)


def test_columns_with_the_same_name_are_refused(classifier):
  frame = types.SimpleNamespace(columns=["text", "text"], to_dict=dict)
  message = "the table has 2 columns with the name 'text'; rename or drop all"
  with pytest.raises(UserError, match=message):
    classifier.predict(frame)


def test_empty_and_odd_texts_have_results(masked_lm, classifier):
  assert masked_lm.features([]).shape == (0, 32)
  assert masked_lm.similarity(["cat"], []).shape == (1, 0)
  assert masked_lm.likelihood([]).shape == (0,)
  for method in (masked_lm.tokenize, masked_lm.fill_mask, classifier.predict):
    assert method([]) == []
  texts = ["", "\n", "red\ncat", "\ud800", "cat " * 200, np.str_("cat")]
  assert masked_lm.features(texts).shape == (6, 32)
  assert len(classifier.predict(texts)) == 6
  assert classifier.predict(np.array("cat"))["label"] in classifier.labels
  rows = masked_lm.features([[], ["cat"]], unit="word")
  assert [row["vectors"].shape for row in rows] == [(0, 32), (1, 32)]


@pytest.mark.parametrize(
  "path, options, message",
  [
    (
      None,
      {},
      "path=None: pass the path or name of a model, as a string.",
    ),
    (7, {}, "path=7: pass the path or name of a model, as a string."),
    ("", {}, "path='': pass the path or name of a model, as a string."),
    (
      b"mini",
      {},
      "path=b'mini': pass the path or name of a model, as a string.",
    ),
    (
      "mini",
      {"dtype": "flaot16"},
      "dtype='flaot16' is not one of float32, bflo",
    ),
    (
      "mini",
      {"dtype": 16},
      "dtype=16 is not one of float32, bfloat16, float16",
    ),
    (
      "mini",
      {"dtpe": "float16"},
      "dtpe is no parameter of load; did you mean d",
    ),
    ("mini", {"family": "brt"}, "family='brt' is not one of "),
    ("mini", {"tower": 1}, "tower=1 must be a string, one of discriminator, "),
    (
      "mini@best",
      {},
      "mini is not the folder of a run, so it has no best step",
    ),
  ],
)
def test_wrong_arguments_of_load_are_named(path, options, message):
  with pytest.raises(UserError, match=f"^{re.escape(message)}") as error:
    bert_jax.load(path, **options)
  assert "\n" not in str(error.value) and "--" not in str(error.value)


def test_errors_suggest_a_similar_name_or_say_what_load_opens(monkeypatch):
  def fetch(*args, **kwargs):
    raise OSError("no network")

  hub = types.SimpleNamespace(snapshot_download=fetch)
  monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
  message = "did not give it (no network); did you mean mini?"
  with pytest.raises(UserError, match=f"{re.escape(message)}$"):
    bert_jax.load("mimi")
  message = (
    "a folder with config.json and weights, a model of the hub, or mini, which"
    " the package ships."
  )
  with pytest.raises(UserError, match=f"{re.escape(message)}$"):
    bert_jax.load("owner/other")
  message = "no attribute 'from_pretrained'; use bert_jax.load.$"
  with pytest.raises(AttributeError, match=message):
    bert_jax.from_pretrained  # noqa: B018
  with pytest.raises(
    AttributeError, match="'fine_tune'; did you mean finetune"
  ):
    bert_jax.fine_tune  # noqa: B018


def test_messages_name_parameters_unless_a_command_runs():
  def message_parts():
    key = "schedule.peak"
    return (
      messages.by_caller("--flag", "parameter="),
      messages.key_name(key),
      messages.setting(key, 1.0),
      messages.setting("evaluate.every", 0),
    )

  parts_with_flags = (
    *("--flag", "config.schedule.peak", "--config.schedule.peak=1.0"),
    "--config.evaluate.every=0",
  )
  parameter_by_key = {"schedule.peak": "learning_rate"}
  assert message_parts() == parts_with_flags
  with messages.name_parameters(parameter_by_key, {"learning_rate"}):
    assert message_parts() == (
      *("parameter=", "learning_rate", "learning_rate=1.0"),
      "config={'evaluate.every': 0}",
    )
  with messages.name_parameters(parameter_by_key):
    assert messages.key_name("schedule.peak") == "config.schedule.peak"
  with messages.name_flags(), messages.name_parameters(parameter_by_key):
    assert message_parts() == parts_with_flags


def test_wrong_options_are_named(classifier, masked_lm, tmp_path):
  with pytest.raises(UserError, match="batch_size=0 must be at least 1"):
    classifier.predict("cat", batch_size=0)
  for option in ("batch_size", "max_length"):
    for number in ("32", 2.5, True, None):
      message = f"^{option}={re.escape(repr(number))} must be a whole number.$"
      with pytest.raises(UserError, match=message):
        classifier.predict("cat", **{option: number})
  with pytest.raises(UserError, match="no_answer='no' must be True or False"):
    classifier.predict("cat", no_answer="no")
  for number in ("5", 1.0, True):
    message = f"^top_k={re.escape(repr(number))} must be a whole number.$"
    with pytest.raises(UserError, match=message):
      masked_lm.fill_mask("a [MASK]", top_k=number)
  message = "^top_k=999: 999 candidates for a mask are not possible; ask for 1"
  with pytest.raises(UserError, match=message):
    masked_lm.fill_mask("a [MASK]", top_k=999)
  with pytest.raises(UserError, match="normalize=1 must be True or False"):
    masked_lm.features("cat", normalize=1)
  for layers in (1.5, [True], ["1"], None):
    with pytest.raises(UserError, match="write numbers of layers, or 'all'"):
      masked_lm.features("cat", layers=layers)
  with pytest.raises(UserError, match="path=None: pass the path of a new fol"):
    masked_lm.save(None)
  with pytest.raises(UserError, match="only questions can have no answer"):
    classifier.predict("cat", no_answer=True)
  with pytest.raises(UserError, match="has no .MASK. to fill"):
    masked_lm.fill_mask("red cat")
  with pytest.raises(UserError, match="layer 7: the model has .*0 .* to 2"):
    masked_lm.features("cat", layers=7)
  with pytest.raises(UserError, match="write numbers of layers, or 'all'"):
    masked_lm.features("cat", layers="last")
  with pytest.raises(UserError, match="choose cls, mean, max"):
    masked_lm.similarity("cat", "dog", unit="word")
  with pytest.raises(UserError, match="tokens; the model takes"):
    masked_lm.attention("cat " * 99)
  with pytest.raises(UserError, match="format='tf': choose bert_jax or hf"):
    masked_lm.save(str(tmp_path / "new"), format="tf")
  (tmp_path / "full").mkdir()
  (tmp_path / "full" / "file").touch()
  with pytest.raises(UserError, match="exists and is not empty"):
    masked_lm.save(str(tmp_path / "full"))


def test_the_error_of_a_missing_method_says_what_the_model_is(
  masked_lm, classifier, tmp_path
):
  assert masked_lm.methods[:3] == ("fill_mask", "likelihood", "attention")
  message = (
    "is a BERT of 2 layers of 32: masked language model, so it has no predict,"
    " which needs a model that was fine-tuned for a task; use its fill_mask,"
    " likelihood, attention or features, or load such a model"
  )
  with pytest.raises(UserError, match=message):
    masked_lm.predict("cat")
  for method in ("fill_mask", "likelihood"):
    with pytest.raises(UserError, match=f"2 labels, so it has no {method}"):
      getattr(classifier, method)("cat")
  elmo = bert_jax.load(tiny_models.write_model(tmp_path / "elmo", "elmo"))
  with pytest.raises(UserError, match="is an ELMo .* which needs a Transform"):
    elmo.attention("cat")
  encoder_path = tiny_models.write_model(tmp_path / "bare", "bert")
  message = "encoder without a head.* use its attention or features"
  with pytest.raises(UserError, match=message):
    bert_jax.load(encoder_path).predict("cat")


def test_features_of_words_and_layers(masked_lm):
  stacked = masked_lm.features(
    ["red cat", "dog"], layers="all", combine="stack"
  )
  assert stacked.shape == (2, 3, 32) and stacked.dtype == np.float32
  last_layer = masked_lm.features("red cat")
  np.testing.assert_allclose(last_layer, stacked[0, -1], atol=1e-6)
  rows = masked_lm.features(["red cats", ["red", "cat s"]], unit="word")
  assert [row["tokens"] for row in rows] == [["red", "cats"], ["red", "cat s"]]
  unit_vector = masked_lm.features("dog", unit="cls", normalize=True)
  assert np.linalg.norm(unit_vector) == pytest.approx(1.0, abs=1e-6)
  assert masked_lm.features([]).shape == (0, 32)


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_copies_of_a_model_are_the_same_model(family, tmp_path):
  path = tiny_models.write_model(tmp_path / family, family)
  model = bert_jax.load(path, dtype="bfloat16")
  for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
    assert repr(copied) == repr(model) and copied.module == model.module
    assert copied.tokenize("cat on a mat") == model.tokenize("cat on a mat")
    jax.tree.map(np.testing.assert_array_equal, copied.params, model.params)


def test_a_tilde_is_the_home_folder(masked_lm, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  masked_lm.save("~/saved")
  assert not (tmp_path / "~").exists()
  assert bert_jax.load("~/saved").path == str(tmp_path / "home" / "saved")


def test_similarity_has_an_axis_for_each_list(masked_lm):
  texts = ["red cat", "dog", "blue bird sings"]
  similarities = masked_lm.similarity(texts)
  np.testing.assert_allclose(similarities, similarities.T, atol=1e-6)
  np.testing.assert_allclose(np.diag(similarities), 1.0, atol=1e-6)
  row = masked_lm.similarity(texts[0], texts)
  np.testing.assert_allclose(row, similarities[0], atol=1e-6)
  layers = (layer for layer in (-1,))
  row = masked_lm.similarity(texts[0], texts, layers=layers)
  np.testing.assert_allclose(row, similarities[0], atol=1e-6)
  assert isinstance(masked_lm.similarity(texts[0], texts[1]), float)


def test_masks_of_a_list_are_filled_as_those_of_one_text(masked_lm):
  texts = [*tiny_tasks.random_sentences(9), "a [MASK] b [MASK] c"]
  texts = [text.replace(" ", " [MASK] ", 1) for text in texts if " " in text]
  rows = masked_lm.fill_mask(texts, top_k=2)
  assert len(rows) == len(texts)
  assert [len(row["masks"]) for row in rows] == [
    text.count("[MASK]") for text in texts
  ]
  for row, text in list(zip(rows, texts, strict=True))[-2:]:
    single_row = masked_lm.fill_mask(text, top_k=2)
    assert single_row["text"] == row["text"] == text
    assert (
      single_row["filled"] == row["filled"] and "[MASK]" not in row["filled"]
    )
    for candidates, single_candidates in zip(
      row["masks"], single_row["masks"], strict=True
    ):
      for candidate, single_candidate in zip(
        candidates, single_candidates, strict=True
      ):
        assert candidate["token"] == single_candidate["token"]
        assert candidate["probability"] == pytest.approx(
          single_candidate["probability"], rel=1e-4
        )


def test_commands_print_what_methods_return(
  page_folder, masked_lm, tmp_path, capsys
):
  text = "red [MASK] runs"
  model_path = str(page_folder / "runs" / "mine")
  execute(["fill-mask", "--json", "--model", model_path, text])
  printed = json.loads(capsys.readouterr().out)
  row = masked_lm.fill_mask(text)
  assert printed == {key: row[key] for key in ("text", "masks")}
  lines = fill_mask.format_result(row).splitlines()
  assert lines[0] == text and len(lines) == 6
  source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
  for name, fields in {
    "sst2": {"text": "red cat", "text_pair": "dog"},
    "ner": {"text": "(red cat) runs."},
    "squad": {"question": "cat ?", "context": "  red cat runs ."},
  }.items():
    model_path = str(page_folder / "runs" / name)
    source.write_text(json.dumps(fields) + "\n")
    files = ["--input", str(source), "--output", str(target)]
    execute(["predict", "--model", model_path, *files])
    printed = json.loads(target.read_text())
    assert printed.pop("id") == 1
    assert_same_results(printed, bert_jax.load(model_path).predict(fields))


def test_entities_and_answers_have_character_offsets(page_folder):
  text = "  (red cat) runs."
  row = bert_jax.load(str(page_folder / "runs" / "ner")).predict(text)
  assert row["words"] == ["(", "red", "cat", ")", "runs", "."]
  assert len(row["tags"]) == 6 and row["entities"]
  for entity in row["entities"]:
    assert text[entity["start"] : entity["end"]] == entity["text"]
    assert entity["label"] == "X" and 0 < entity["probability"] <= 1
  context = "  red  cat runs ."
  fields = {"question": "cat ?", "context": context}
  squad = bert_jax.load(str(page_folder / "runs" / "squad"))
  row = squad.predict(fields)
  assert squad.predict(("cat ?", context)) == row
  for answer in row["nbest"]:
    assert context[answer["start"] : answer["end"]] == answer["text"]
  assert context[row["start"] : row["end"]] == row["answer"]
  answers_with_null = squad.predict(fields, no_answer=True)["nbest"]
  assert {"text": "", "start": None, "end": None}.items() <= next(
    answer for answer in answers_with_null if not answer["text"]
  ).items()


def test_rows_of_questions_are_padded_only_to_a_bucket(
  page_folder, monkeypatch
):
  """Answers two questions, with and without buckets of lengths.

  With buckets, the rows have 16 and 32 tokens; without, both have the model's
  maximum length, 40. The answers must be equal.
  """
  lengths = []
  run_batches = evaluate_task.run_batches

  def record_lengths(step, params, batches, *args):
    lengths.extend(batches.first_epoch_lengths())
    return run_batches(step, params, batches, *args)

  monkeypatch.setattr(evaluate_task, "run_batches", record_lengths)
  model = bert_jax.load(str(page_folder / "runs" / "squad"))
  inputs = [("red ?", "a cat sat"), ("red ?", "a cat sat on the mat . " * 3)]
  rows = [model.predict(question) for question in inputs]
  assert lengths == [16, 32]
  monkeypatch.setattr(predict_lib, "BUCKETS", ())
  long_rows = [model.predict(question) for question in inputs]
  assert lengths[2:] == [model.module.encoder.max_length] * 2 == [40, 40]
  for row, long_row in zip(rows, long_rows, strict=True):
    assert row["answer"] == long_row["answer"]
    assert_same_results(row, long_row)


def test_threads_get_what_one_caller_gets(page_folder):
  """Calls methods in three threads at once.

  Two threads share one new model, and a third thread opens its own model. All
  must get the results of a single caller.
  """
  path = str(page_folder / "runs" / "mine")
  texts = ["red [MASK] runs", "dog"]

  def call_methods(model):
    return [
      model.fill_mask(texts[0])["filled"],
      model.features(texts).tolist(),
      model.likelihood(texts).tolist(),
      model.attention(texts[0])["tokens"],
    ]

  expected = call_methods(bert_jax.load(path))
  shared_model = bert_jax.load(path)
  results = {}

  def call_and_store(number):
    results[number] = call_methods(
      shared_model if number else bert_jax.load(path)
    )

  threads = [
    threading.Thread(target=call_and_store, args=(i,)) for i in range(3)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert results == {0: expected, 1: expected, 2: expected}


def test_the_repr_of_a_model_is_short(page_folder, masked_lm, classifier):
  assert repr(masked_lm) == (
    "Model(BERT of 2 layers of 32: masked language model, 21,299 parameters,"
    " uncased WordPiece tokenizer of 17 pieces, from"
    f" {str(page_folder / 'runs' / 'mine')!r})"
  )
  assert "classification into 2 labels" in repr(classifier)
  assert classifier.labels == ["cat", "dog"] and classifier.family == "bert"
  assert masked_lm.mask_token == "[MASK]"
  assert {"Model", "load"} <= {*dir(bert_jax)}
  with pytest.raises(AttributeError, match="'laod'; did you mean load"):
    bert_jax.laod  # noqa: B018


def test_a_notebook_shows_a_table(classifier):
  row = {"text": "<b>", "p": {"x": 0.25, "y": 0.75}, "v": np.zeros((2, 3))}
  html = Results([row] * 60)._repr_html_()
  # The lines are the heading, the first 50 rows, and the number of rows.
  assert html.count("<tr>") == 52 and "60 rows" in html
  assert "&lt;b&gt;" in html and "<b>" not in html
  assert "y 0.7500, x 0.2500" in html and "float64 [2, 3]" in html
  assert "<th>label</th>" in classifier.predict(["cat"])._repr_html_()


def test_a_long_call_says_how_far_it_is(monkeypatch, capsys):
  monkeypatch.setattr(messages, "FIRST_WAIT", 0.01)
  monkeypatch.setattr(messages, "INTERVAL", 0.05)
  with messages.Progress("predict", 1200, "texts") as progress:
    time.sleep(0.1)
    progress.report(700)
    time.sleep(0.2)
  first, *_, second_last, last = capsys.readouterr().err.splitlines()
  assert first == "predict: 1,200 texts ..."
  assert second_last.startswith("predict: 700 of 1,200 texts, 0 s")
  assert last.startswith("predict: done in 0.")
  with messages.Progress("short"):
    pass
  with pytest.raises(KeyError), messages.Progress("broken"):
    raise KeyError
  assert not capsys.readouterr().err


def test_only_the_inner_one_of_two_watches_prints(monkeypatch, capsys):
  monkeypatch.setattr(messages, "FIRST_WAIT", 0.05)
  monkeypatch.setattr(messages, "INTERVAL", 0.1)
  with messages.Watch("outer"):
    with messages.Watch("inner") as inner:
      inner.describe("at its stage")
      time.sleep(0.4)
    time.sleep(0.2)
  lines = capsys.readouterr().err.splitlines()
  first_outer = lines.index("outer ...")
  assert lines[0] == "inner ..." and first_outer >= 2
  assert {*lines[1:first_outer]} == {"inner: at its stage, 0 s"}
  assert all(line.startswith("outer: ") for line in lines[first_outer + 1 :])


def test_a_watch_is_quiet_while_other_lines_come(monkeypatch, capsys):
  monkeypatch.setattr(messages, "FIRST_WAIT", 0.5)
  monkeypatch.setattr(messages, "INTERVAL", 0.5)
  with messages.Watch("quiet"):
    for _ in range(20):
      messages.note("a line")
      time.sleep(0.05)
  assert {*capsys.readouterr().err.splitlines()} == {"a line"}
  monkeypatch.setattr(messages, "FIRST_WAIT", 0.1)
  with messages.Watch("quiet"), messages.Progress("loud", first_wait=0.0):
    time.sleep(0.4)
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == "loud ..." and all(
    line.startswith("loud") for line in lines
  )


def test_a_watched_function_says_that_it_runs(monkeypatch, capsys):
  monkeypatch.setattr(messages, "FIRST_WAIT", 0.01)
  monkeypatch.setattr(messages, "INTERVAL", 60)

  @messages.watched
  def slow_function(number):
    """Is slow."""
    time.sleep(0.2)
    return number + 1

  assert slow_function(1) == 2 and slow_function.__doc__ == "Is slow."
  assert capsys.readouterr().err == "slow_function ...\n"
  for function in (bert_jax.finetune, bert_jax.pretrain):
    assert inspect.unwrap(function) is not function
