"""Tests `bert_jax.finetune`: forms of data, history, restarts, messages."""

import copy
import doctest
import json
import logging
import math
import re
import sys
import threading
import types

import jax
import numpy as np
import pytest
import tiny_models
import tiny_tasks
from frames import Frame
from history_columns import documented_columns
from ml_collections import ConfigDict

import bert_jax
from bert_jax.devices import hosts
from bert_jax.messages import UserError
from bert_jax.training import config_files, train
from bert_jax.use import finetune, labelled, trained

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

TEXTS = ["red cat runs .", "blue dog .", "green cat .", "dog sings ."] * 6
LABELS = ["cat", "dog"] * 12
ROWS = list(zip(TEXTS, LABELS, strict=True))
ANSWER = {"text": "Rome", "answer_start": 3}


class NAType:
  """Is like pandas.NA, which has no truth value and equals nothing."""

  def __eq__(self, other):
    return self

  def __hash__(self):
    return 0

  def __bool__(self):
    raise TypeError("the truth value is ambiguous")


MISSING_LABEL = NAType()
QUESTION = {"question": "Where?", "context": "In Rome."}
OPTIONS = dict(epochs=2, batch_size=8, learning_rate=1e-2, validation=1 / 3)


class FakeDataset(list):
  """Has the attributes of `datasets.Dataset` that `finetune` reads."""

  def __init__(self, rows, names):
    super().__init__(rows)
    self.features = {"label": types.SimpleNamespace(names=names)}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
  path = tmp_path_factory.mktemp("models") / "mine"
  tiny_tasks.write_model(path)
  return str(path)


def float32_config():
  """Returns a new copy of the config that `first_run` trains with."""
  config = config_files.open_config("own")
  config.model.dtype = "float32"
  config.log.every = 1
  return config


@pytest.fixture(scope="module")
def first_run(model_path, tmp_path_factory):
  """Trains in a thread, where no signal handlers can be set.

  Returns the result, and checks that `finetune` did not change its arguments.
  """
  config = float32_config()
  frame = Frame(verdict=LABELS, review=np.array(TEXTS), other=[None] * 24)
  arguments = [frame, config, dict(OPTIONS)]
  originals = copy.deepcopy([vars(frame), config.to_dict(), OPTIONS])
  results = []

  def train():
    result = bert_jax.finetune(
      model_path,
      frame,
      text="review",
      label="verdict",
      config=config,
      workdir=tmp_path_factory.mktemp("run"),
      **arguments[2],
    )
    results.append(result)

  thread = threading.Thread(target=train)
  thread.start()
  thread.join()
  (result,) = results
  arguments_after = [vars(frame), config.to_dict(), arguments[2]]
  np.testing.assert_equal(arguments_after, originals)
  return result


def test_a_table_gives_a_model_and_a_history(first_run):
  assert first_run.model.labels == ["cat", "dog"]
  assert first_run.model.predict("red cat runs .")["label"] in ("cat", "dog")
  assert [row["step"] for row in first_run.history] == [1, 2, 3, 4]
  assert all(math.isfinite(row["loss"]) for row in first_run.history)
  is_evaluated = [
    not math.isnan(row["validation_loss"]) for row in first_run.history
  ]
  assert is_evaluated == [False, True, False, True]
  assert first_run.history[1].keys() == first_run.history[0].keys()
  assert 0 <= first_run.history[-1]["validation_accuracy"] <= 1
  description = repr(first_run)
  assert (
    description.startswith("Trained(4 steps, loss 0.")
    and first_run.workdir in description
  )
  assert "validation_accuracy" in description and len(description) < 300
  assert bert_jax.load(first_run.workdir).labels == first_run.model.labels


def test_the_page_explains_every_column_of_the_history(first_run):
  columns = documented_columns()
  for name in first_run.history[0]:
    assert {name, name.removeprefix("validation_")} & columns, name


def test_a_stopped_run_continues_to_the_same_numbers(
  first_run, model_path, tmp_path, monkeypatch, capsys
):
  """Stops a run after step 3, and repeats the call.

  The second call must end with the parameters and losses of `first_run`, which
  did not stop. The rows are those of `first_run`, but as a list of tuples.
  """

  def finetune_again():
    config = {"log": {"every": 1}}
    return bert_jax.finetune(
      bert_jax.load(model_path),
      ROWS,
      config=config,
      workdir=tmp_path,
      **OPTIONS,
    )

  with monkeypatch.context() as patch:
    patch.setattr(hosts, "stop_requested", lambda step, seen: step == 3)
    stopped_run = finetune_again()
  assert stopped_run.history[-1]["step"] == 3
  stopped_run.history.pop()
  assert repr(stopped_run).startswith("Trained(3 steps, loss ")
  captured = capsys.readouterr()
  assert not captured.out
  assert "16 rows to train on, 8 to evaluate on, held out" in captured.err
  assert "step 3/4 loss" in captured.err
  result = finetune_again()
  assert "continuing from step 3" in capsys.readouterr().err
  for array, expected_array in zip(
    jax.tree.leaves(result.model.params),
    jax.tree.leaves(first_run.model.params),
    strict=True,
  ):
    np.testing.assert_array_equal(array, expected_array)
  losses = [[row["loss"] for row in run.history] for run in (result, first_run)]
  assert losses[0] == losses[1]
  with pytest.raises(UserError, match="was started with another input"):
    bert_jax.finetune(model_path, ROWS[2:], workdir=tmp_path, **OPTIONS)
  message = "another config: learning_rate: 0.01 -> 0.5.*model='OLD_WORKDIR'"
  with pytest.raises(UserError, match=message) as error:
    options = OPTIONS | {"learning_rate": 0.5}
    bert_jax.finetune(model_path, ROWS, workdir=tmp_path, **options)
  assert "--" not in str(error.value)


def test_a_complete_run_returns_at_once(
  first_run, model_path, monkeypatch, capsys
):
  def refuse(*args, **kwargs):
    raise AssertionError("the run is complete")

  monkeypatch.setattr(train, "run", refuse)
  monkeypatch.setattr(trained.StartModel, "open", refuse)
  config = float32_config()
  repeated_run = bert_jax.finetune(
    model_path, ROWS, config=config, workdir=first_run.workdir, **OPTIONS
  )
  stderr = capsys.readouterr().err
  assert "finetune: the run is complete, at step 4\n" in stderr
  assert "changed" not in stderr and "opening" not in stderr
  np.testing.assert_equal(repeated_run.history, first_run.history)
  for array, expected_array in zip(
    jax.tree.leaves(repeated_run.model.params),
    jax.tree.leaves(first_run.model.params),
    strict=True,
  ):
    np.testing.assert_array_equal(array, expected_array)
  bert_jax.finetune(
    "mini", ROWS, config=config, workdir=first_run.workdir, **OPTIONS
  )
  change = f"changed: model: {model_path!r} -> 'mini'\n"
  assert change in capsys.readouterr().err
  with pytest.raises(AssertionError, match="the run is complete"):
    options = OPTIONS | {"epochs": 3}
    bert_jax.finetune(
      model_path, ROWS, config=config, workdir=first_run.workdir, **options
    )


def test_the_last_lines_have_a_python_line_and_each_metric_once(
  model_path, tmp_path, capsys
):
  bert_jax.finetune(model_path, ROWS, workdir=tmp_path, **OPTIONS)
  lines = capsys.readouterr().err.splitlines()
  load_call = f"model = bert_jax.load({str(tmp_path)!r})"
  assert f"next: {load_call}; model.predict(...)" in lines
  names = [line.partition(": ")[0] for line in lines]
  for name in ("accuracy", "loss"):
    assert names.count(name) == 1 and f"task_{name}" not in names
  assert "examples: 8" in lines
  assert [line for line in lines if "held-out: " in line and " 8 " in line]
  assert "read only" not in "".join(lines)


def test_opening_a_run_hides_the_warning_about_reading(first_run, caplog):
  with caplog.at_level(logging.WARNING, logger="absl"):
    bert_jax.load(first_run.workdir)
    assert not caplog.records
    logging.getLogger("absl").warning("another warning")
  assert [record.message for record in caplog.records] == ["another warning"]


def test_the_example_of_the_docstring_runs(model_path):
  variables = {"PATH": model_path}
  finder = doctest.DocTestFinder(exclude_empty=True)
  tests = finder.find(finetune.finetune, "finetune", globs=variables)
  assert sum(len(test.examples) for test in tests) == 7
  report = []
  for test in tests:
    doctest.DocTestRunner().run(test, out=report.append)
  assert not report, "".join(report)
  assert {"finetune"} <= {*bert_jax.__all__} & {*dir(bert_jax)}


def test_every_form_of_data_gives_the_same_rows(tmp_path):
  columns = {"text": ["a b", "c, d"], "label": ["x", "y"]}
  dicts = [{"text": "a b", "label": "x"}, {"text": "c, d", "label": "y"}]
  (tmp_path / "t.csv").write_text('text,label\na b,x\n"c, d",y\n')
  dicts_with_numbers = [
    {"text": "a b", "label": 0},
    {"text": "c, d", "label": np.int64(1)},
  ]
  forms = (
    columns,
    dicts,
    iter(dicts),
    Frame(**columns),
    [("a b", "x"), ("c, d", "y")],
    tmp_path / "t.csv",
    str(tmp_path / "t.csv"),
    FakeDataset(dicts_with_numbers, ["x", "y"]),
  )
  for form in forms:
    rows = labelled.read(form, "data")
    assert [row.fields for row in rows] == dicts
  pairs = labelled.read([(("a", "b"), True)], "data")
  pair_columns = labelled.Columns(
    pairs, kind=None, text=None, pair=None, label=None
  )
  assert pair_columns.rename_columns(pairs[0]).fields == {
    **{"text": "a", "pair": "b"},
    "label": True,
  }


@pytest.mark.parametrize(
  "label, kind",
  [
    ("x", "classification"),
    (3, "classification"),
    (2.0, "classification"),
    ("2", "classification"),
    (True, "classification"),
    (0.5, "regression"),
    ("0.5", "regression"),
    (["x", "y"], "multi_label"),
  ],
)
def test_the_kind_comes_from_the_labels(label, kind):
  rows = labelled.read([("a", label), ("b", None)], "data")
  assert (
    labelled.Columns(rows, kind=None, text=None, pair=None, label=None).kind
    == kind
  )


def test_tags_and_answers_decide_the_kind_of_task():
  rows = labelled.read({"words": [["a"]], "tags": [["O"]]}, "data")
  columns = labelled.Columns(rows, kind=None, text=None, pair=None, label=None)
  assert columns.kind == "tagging"
  assert columns.rename_columns(rows[0]).fields == {
    "words": ["a"],
    "tags": ["O"],
  }
  answers = {"text": ["c"], "answer_start": [0]}
  fields = {"question": "q", "context": "c d", "answers": answers}
  rows = labelled.read([fields], "data")
  columns = labelled.Columns(rows, kind=None, text=None, pair=None, label=None)
  task, _ = labelled.make_task(columns, {"train": rows})
  assert task.task.name == "squad"
  # A DataFrame of SQuAD holds NumPy's arrays in the dicts.
  arrays = {name: np.array(values) for name, values in answers.items()}
  assert labelled.read([fields | {"answers": arrays}], "data") == rows


@pytest.mark.parametrize("indent", [None, 2])
def test_a_file_of_squad_is_a_table_of_questions(tmp_path, indent):
  question = {"id": 7, "question": "q", "answers": [ANSWER]}
  paragraphs = [{"context": "In Rome.", "qas": [question]}]
  content = {"version": "1.1", "data": [{"paragraphs": paragraphs}]}
  path = tmp_path / "questions.json"
  path.write_text(json.dumps(content, indent=indent))
  rows = labelled.read(path, "data")
  columns = labelled.Columns(rows, kind=None, text=None, pair=None, label=None)
  assert columns.kind == "span"
  fields = columns.rename_columns(rows[0]).fields
  assert (fields["id"], fields["context"]) == ("7", "In Rome.")
  assert fields["answers"] == [ANSWER]
  task, _ = labelled.make_task(columns, {"train": rows})
  assert task.task.name == "squad"
  path.write_text('{"text": "a", "label": 1}\n{"text": "b", "label": 2}')
  assert [row.fields["label"] for row in labelled.read(path, "data")] == [1, 2]


@pytest.mark.parametrize(
  "data, options, message",
  [
    (
      "a good film",
      {},
      "a string is the path of a table, and there is no such",
    ),
    ([], {}, "data has no rows"),
    (7, {}, "data is of type int; pass a DataFrame"),
    (["abc", "def"], {}, r"row 0 of data is 'abc'; pass \(text, label\)"),
    (
      [("a", "b", "c")],
      {},
      r"row 0 of data is \('a', 'b', 'c'\); pass \(text, label\),"
      r" \(\(text, second text\), label\) for a pair, or a dict.$",
    ),
    ({"text": "ab", "label": [1, 2]}, {}, "column 'text' is 'ab', not a list"),
    ({"text": ["a"], "label": [1, 2]}, {}, "unequal lengths: text 1, label 2"),
    (
      {"t": ["a"], "label": [1]},
      {},
      "no column 'text', only t, label; pass text=",
    ),
    (
      ROWS,
      {"label": "y", "text": "x", "pair": "z"},
      "no column 'z', only y, x",
    ),
    (
      [("a", "x")] * 9,
      {},
      r"data has 1 class \(x\); a classification needs two",
    ),
    ([("a", "x"), ("b", None)] * 9, {}, "row 1 of data has no label in column"),
    ([("a", "x"), (5, "y")] * 9, {}, "row 1 of data: 'text' is 5, not a text"),
    (ROWS, {"kind": "tags"}, "kind='tags' is not a kind of task; choose class"),
    (ROWS, {"kind": "regression"}, "label 'cat' is not a number"),
    (ROWS, {"validation": 1.5}, "validation=1.5: a share must be between"),
    (ROWS[:1], {}, "^data has 1 row, too few to hold some out; pass more rows"),
    (set(ROWS), {}, "^data is a set, which has no order, so a repeated call"),
    ({"text": {"a"}, "label": [1]}, {}, "column 'text' is {'a'}, not a list"),
    (b"abc", {}, "^data is of type bytes; pass a DataFrame"),
    (
      [("a", "x"), (None, "y")] * 9,
      {},
      "^row 1 of data has no text in column 'text'; leave such rows out",
    ),
    ([("a", "x"), (b"b", "y")] * 9, {}, "row 1 of data: 'text' is b'b', not a"),
    ([("a", "x"), ("b", b"y")] * 9, {}, "label b'y' is neither a name nor a n"),
    (
      [{"text": "a", "label": 1}, {"text": "b"}] * 9,
      {},
      "^row 1 of data has no column 'label'; the columns are text.$",
    ),
    (
      ROWS,
      {"validation": [{"review": "a", "label": "cat"}]},
      "^row 0 of validation has no column 'text'; the columns are review, la",
    ),
    (
      Frame(text=TEXTS, label=LABELS),
      {"label": "stars"},
      "^label='stars': data has no column 'stars', only text, label; name one",
    ),
    (
      Frame(text=TEXTS, label=LABELS),
      {"label": "text"},
      "^text='text', pair=None, label='text': name a column only once.$",
    ),
    (
      Frame(review=[None] * 4, stars=[1, 2, 1, 2]),
      {"text": "review", "label": "stars"},
      "^row 0 of data has no text in column 'review'; leave such rows out",
    ),
    (
      [(["a", "b"], ["O"]), (["a"], ["X"])],
      {},
      "^row 0 of data has 1 tag for 2 words; every word needs one tag.$",
    ),
    (
      [(["a", "b"], ["O", "O"])] * 4,
      {},
      r"^data has 1 tag \(O\); a task of tags needs two or more.$",
    ),
    (
      [(["a", "b"], ["O", "B-X"]), (["a"], ["X"])],
      {},
      "^row 1 of data: tag 'X' is not O, B-TYPE or I-TYPE, as other tags are",
    ),
    (
      [(["a", "b"], ["O", "X"]), (["a", 5], ["O", "X"])],
      {"validation": 0},
      "^row 1 of data: the list 'text' has 5, wh",
    ),
    ([("a", ["x"]), ("b", ["x"])], {}, r"^data has 1 label \(x\); a task with"),
    (
      [{"question": "q", "context": "c", "answer": "a"}] * 4,
      {},
      "^data has no column 'answers', only question, context, answer; a table"
      " of questions has the columns question, context, answers; rename"
      " 'answer'.$",
    ),
    (
      [QUESTION | {"answers": "Rome"}] * 4,
      {},
      "^row 0 of data: answers are 'Rome', not a list; an answer is",
    ),
    (
      [QUESTION | {"answers": None}] * 4,
      {},
      r"training and validation need them \(an empty list says that a question",
    ),
    (
      [QUESTION | {"answers": {"text": ["Rome"], "answer_start": [0]}}] * 4,
      {},
      "^row 0 of data: the answer 'Rome' does not begin at character 0 of its",
    ),
    (
      ROWS,
      {"text": 3},
      "^text=3 must be the name of a column, a string.$",
    ),
    (
      ROWS,
      {"validation": True},
      "^validation=True must be rows, a share of da",
    ),
    (
      ROWS,
      {"workdir": 5},
      "^workdir=5: pass the folder of the run, as a strin",
    ),
    (ROWS, {"kind": 5}, "^kind=5 is not a kind of task; choose classification"),
    (ROWS, {"config": "bert:huge"}, "^config=bert:huge: 'huge' is not a name"),
    (ROWS, {"length": 99}, "length=99: the model reads rows of 1 to 40 tokens"),
    (ROWS, {"config": {"schedule.peek": 1.0}}, "peek is not a key; did you"),
    (
      ROWS,
      {"config": {"batch_size": "8"}},
      "batch_size='8' must be of type int",
    ),
    (
      ROWS,
      {"config": {"schedule": 3}},
      "^config.schedule=3 must be a dict, because schedule is a section with",
    ),
    (
      [("a", "x"), (("a", "b"), "y")] * 9,
      {},
      "^row 1 of data has a second text, but row 0 of data has none; give all",
    ),
    (
      ROWS,
      {"validation": [("a", "cat"), (("a", "b"), "dog")]},
      "^row 1 of validation has a second text, but row 0 of data has none",
    ),
    ([("a", {"x"}), ("b", {"y"})] * 9, {}, "row 0 of data: label {'x'} is nei"),
    (
      [{"text": "a"}, {"text": "b", "label": 1}],
      {},
      "^row 0 of data has no column 'label'; the columns are text.$",
    ),
    ([("a", object()), ("b", 1)] * 9, {}, "row 0 of data: label <object .* na"),
    (
      [("a", 1), ("b", MISSING_LABEL)] * 9,
      {},
      "^row 1 of data has no label in col",
    ),
    (
      [("a", [1]), ("b", [MISSING_LABEL])] * 9,
      {},
      "row 1 of data: label None is nei",
    ),
    (
      [("a", np.array(1)), ("b", 10**400)],
      {"workdir": 5},
      "^workdir=5: pass t",
    ),
    (ROWS, {"config": 8}, "config=8: pass a ConfigDict, the name of a config"),
    (ROWS, {"config": "ovn"}, "there is no such config; did you mean own"),
    # The test replaces FILE by the path of a file, which can hold no folder.
    (ROWS, {"workdir": "FILE/run"}, "the folder cannot be made"),
  ],
)
def test_wrong_arguments_get_one_sentence(
  model_path, tmp_path, data, options, message
):
  (tmp_path / "file").touch()
  workdir = options.get("workdir", "run")
  if isinstance(workdir, str):
    workdir = tmp_path / workdir.replace("FILE", "file")
  with pytest.raises(UserError, match=message) as error:
    bert_jax.finetune(model_path, data, **options | {"workdir": workdir})
  assert "\n" not in str(error.value) and "--" not in str(error.value)


@pytest.mark.parametrize(
  "name, value, fault",
  [
    ("epochs", "3", "'3' must be a number"),
    ("epochs", True, "True must be a number"),
    ("epochs", 0, "0 must be above 0, and finite"),
    ("epochs", math.nan, "nan must be above 0, and finite"),
    ("batch_size", "8", "'8' must be a whole number"),
    ("batch_size", True, "True must be a whole number"),
    ("batch_size", 2.5, "2.5 must be a whole number"),
    ("batch_size", 0, "0 must be at least 1"),
    ("batch_size", -1, "-1 must be at least 1"),
    ("learning_rate", -1, "-1 must be above 0, and finite"),
    ("learning_rate", "1e-4", "'1e-4' must be a number"),
    ("length", 16.0, "16.0 must be a whole number"),
    ("length", 0, "0 must be at least 1"),
    ("seed", "0", "'0' must be a whole number"),
    ("seed", np.True_, "np.True_ must be a whole number"),
    ("seed", 2**32, "4294967296 must be at most 4294967295"),
  ],
)
def test_wrong_numbers_are_refused_first(name, value, fault):
  # There is neither a model nor a table with these names.
  with pytest.raises(UserError, match=f"^{name}={re.escape(fault)}.$"):
    bert_jax.finetune("no model", "no data", **{name: value})


def test_data_are_checked_before_the_model_is_opened(monkeypatch):
  def refuse(self):
    raise AssertionError("the model is opened")

  monkeypatch.setattr(trained.StartModel, "open", refuse)
  with pytest.raises(UserError, match="row 1 of data: 'text' is 5, not a text"):
    bert_jax.finetune("mini", [("a", "x"), (5, "y")] * 9)
  with pytest.raises(AssertionError, match="the model is opened"):
    bert_jax.finetune("mini", ROWS)


def test_numbers_of_numpy_become_numbers_of_python():
  changes = trained.config_changes(np.int64(4), np.float32(0.5), np.int32(7))
  assert changes == {"batch_size": 4, "schedule.peak": 0.5, "seed": 7}
  assert [type(number) for number in changes.values()] == [int, float, int]
  config = trained.open_config(
    {"log.every": np.int64(3)}, default="own", changes={}
  )
  assert type(config["log"]["every"]) is int and config["log"]["every"] == 3


def test_elmo_and_unread_splits_are_named(tmp_path, capsys):
  path = tiny_models.write_model(tmp_path / "elmo", "elmo")
  data = {"train": ROWS, "valid": ROWS[:2]}
  with pytest.raises(UserError, match="finetune does not train ELMo; train a"):
    bert_jax.finetune(
      path, data, validation=np.int64(0), workdir=tmp_path / "run"
    )
  notes = capsys.readouterr().err
  assert "data has more splits than are read: 'valid'; its rows" in notes
  assert "24 rows to train on, 0 to evaluate on" in notes


def test_short_rows_of_questions_get_short_buckets():
  config = config_files.open_config("squad:squad").to_dict()
  task_meta = {"length": 384, "splits": {"train": {"rows": 64_000}}}
  finetune._set_defaults(config, user_config=None, task_meta=task_meta)
  assert config["data"]["buckets"] == (32, 64, 128, 192, 256, 320, 384)


def test_a_config_dict_is_used_unchanged_and_a_dict_changes_the_default():
  config = ConfigDict({"a": {"b": 1}, "model": {}})
  assert (
    trained.open_config(config, default="own", changes={}) == config.to_dict()
  )
  changed_config = trained.open_config(
    {"schedule": {"peak": 1e-3}, "model.num_layers": 3},
    default="own",
    changes={"batch_size": 4, "seed": None},
  )
  default = config_files.open_config("own").to_dict()
  assert changed_config["schedule"] == default["schedule"] | {"peak": 1e-3}
  assert (
    changed_config["batch_size"] == 4
    and changed_config["seed"] == default["seed"]
  )
  assert changed_config["model"] == default["model"] | {"num_layers": 3}


@pytest.mark.parametrize(
  "length, buckets",
  [
    (40, (16, 32, 40)),
    (128, (16, 32, 48, 64, 96, 128)),
    (200, (16, 32, 48, 64, 96, 128, 192, 200)),
  ],
)
def test_the_last_bucket_is_the_largest_length(length, buckets):
  """With longer buckets, rows could have more tokens than the model reads."""
  config = config_files.open_config("own").to_dict()
  task_meta = {"length": length, "splits": {"train": {"rows": 64_000}}}
  finetune._set_defaults(config, user_config=None, task_meta=task_meta)
  assert config["data"]["buckets"] == buckets
  assert config["log"]["every"] == 20 and config["model"]["dtype"] == "float32"


def test_a_notebook_shows_a_progress_bar(monkeypatch, capsys):
  shell = type("ZMQInteractiveShell", (), {"config": {}})()
  ipython = types.SimpleNamespace(get_ipython=lambda: shell)
  monkeypatch.setitem(sys.modules, "IPython", ipython)
  with trained._show_progress() as on_row:
    on_row({"step": 5, "split": "train", "loss": 0.5}, "line", 20)
    on_row({"step": 10, "split": "heldout", "loss": 0.25}, "line", 20)
  stderr = capsys.readouterr().err
  assert "10/20" in stderr and "validation_loss=0.25" in stderr
  assert "loss=0.5" in stderr and "line" not in stderr


@pytest.mark.slow
@pytest.mark.parametrize(
  "kind", ["regression", "multi_label", "tagging", "span"]
)
def test_every_kind_but_classification_trains(model_path, tmp_path, kind):
  answers = {"text": ["cat"], "answer_start": [4]}
  data = {
    "regression": [(text, i / 7) for i, text in enumerate(TEXTS)],
    "multi_label": [(text, text.split()[:2]) for text in TEXTS],
    "tagging": [
      (text.split(), ["B-X" if word == "cat" else "O" for word in text.split()])
      for text in TEXTS
    ],
    "span": [{"question": "dog ?", "context": "red cat .", "answers": answers}]
    * 24,
  }[kind]
  run = bert_jax.finetune(
    model_path, data, epochs=1, batch_size=8, workdir=tmp_path
  )
  text = {"tagging": "red cat", "span": ("dog ?", "red cat .")}.get(kind, "cat")
  assert run.model.predict(text)
  assert math.isfinite(run.history[-1]["validation_loss"])
