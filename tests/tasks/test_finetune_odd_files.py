"""Tests readers of files with long fields, empty cells or odd spaces."""

import csv
import json

import finetune_files as files
import pytest

from bert_jax.cli.main import execute
from bert_jax.tasks import encoded_rows, prepare_task, server_files, task_inputs
from bert_jax.tasks.task_inputs import Input

COLUMNS = "text=text,label=label"


def read_examples(path, name="mine", split="train", **options):
  task = task_inputs.find_task(name, **options)
  return task_inputs.read(task, [Input(split, path)]).splits[split]


def test_a_field_of_a_csv_may_be_long(tmp_path):
  text = "cat, " * 1000
  path = files.write_text(tmp_path / "a.csv", f'text,label\n"{text}",x\nb,y\n')
  default_limit = csv.field_size_limit(1000)
  try:
    examples = read_examples(path, columns=COLUMNS)
  finally:
    csv.field_size_limit(default_limit)
  assert examples[0]["texts"] == [text]


def test_lines_with_only_empty_cells_are_examples_of_a_test_set(tmp_path):
  content = "text\tpair\na\tb\n\t\n\nc\td\n\t\n"
  path = files.write_text(tmp_path / "a.tsv", content)
  options = dict(columns="text=text,pair=pair", labels=["x", "y"])
  examples = read_examples(path, split="test", **options)
  expected = [["a", "b"], ["", ""], ["c", "d"], ["", ""]]
  assert [example["texts"] for example in examples] == expected
  path = files.write_text(tmp_path / "b.tsv", "\t\n\n")
  with pytest.raises(ValueError, match=r"b\.tsv: the file is empty"):
    read_examples(path, split="test", **options)


def test_labels_of_a_regression_are_finite_in_float32(tmp_path):
  options = dict(kind="regression", columns=COLUMNS)
  numbers = ["-1e-3", "2E2", " 7 ", "+.5", "-3e38"]
  lines = "".join(f"a\t{number}\n" for number in numbers)
  path = files.write_text(tmp_path / "a.tsv", f"text\tlabel\n{lines}")
  labels = [example["label"] for example in read_examples(path, **options)]
  assert labels == [-0.001, 200.0, 7.0, 0.5, -3e38]
  path = files.write_text(tmp_path / "b.tsv", "text\tlabel\na\t \n")
  assert read_examples(path, split="test", **options)[0]["label"] is None
  with pytest.raises(
    ValueError, match=r"b\.tsv:2 has no label in column 'label'"
  ):
    read_examples(path, **options)
  # In float32, -4e38 would be infinite, and no run could train on it.
  path = files.write_text(tmp_path / "c.tsv", "text\tlabel\na\t-4e38\n")
  with pytest.raises(ValueError, match=r"c\.tsv:2: label '-4e38' is beyond"):
    read_examples(path, **options)


@pytest.mark.parametrize(
  "json_value, shown_value", [("true", "True"), ("false", "False")]
)
def test_true_and_false_are_no_numbers(tmp_path, json_value, shown_value):
  path = tmp_path / "a.jsonl"
  line = '{"text": "a", "label": %s}\n'
  path.write_text(line % 1 + line % json_value)
  message = rf"a\.jsonl:2: label {shown_value} is not a number"
  with pytest.raises(ValueError, match=message):
    read_examples(str(path), kind="regression", columns=COLUMNS)
  path.write_text(line % 1 + line % 0)
  examples = read_examples(str(path), kind="regression", columns=COLUMNS)
  assert [example["label"] for example in examples] == [1.0, 0.0]


def test_labels_and_columns_with_commas_are_quoted(tmp_path):
  content = 'text,"label, mine"\na,"no, thanks"\nb,yes\n'
  path = files.write_text(tmp_path / "a.csv", content)
  flags = dict(task="mine", input=f"train={path}", output=tmp_path / "out")
  flags |= dict(columns='text=text,"label=label, mine"')
  flags |= dict(
    labels='yes, "no, thanks"', vocab=files.write_wordpiece(tmp_path)
  )
  argv = ["prepare-task", *(f"--{key}={value}" for key, value in flags.items())]
  execute(argv)
  task, rows, _ = encoded_rows.load(str(tmp_path / "out"), "train")
  assert task.labels == ("yes", "no, thanks")
  assert rows.labels.tolist() == [1, 0]
  with pytest.raises(SystemExit, match="error: --labels=.*unexpected end"):
    execute([*argv, '--labels=yes,"no, thanks'])


@pytest.mark.parametrize(
  "first_line, num_examples",
  [
    ("gj04\t1\t\tthe cat", 2),
    ("sentence\t0\t*\tsentence", 2),
    ("gj04\t\t\tthe cat", 2),
    ("index\t\tstar\tsentence", 1),
  ],
)
def test_a_file_of_cola_may_have_a_header(tmp_path, first_line, num_examples):
  path = files.write_text(
    tmp_path / "a.tsv", f"{first_line}\ngj04\t1\t\tit ran\n"
  )
  examples = read_examples(path, "cola", "test")
  assert len(examples) == num_examples and examples[-1]["texts"] == ["it ran"]


def test_an_unknown_label_of_cola_is_refused(tmp_path):
  path = files.write_text(tmp_path / "a.tsv", "gj04\t2\t\tthe cat\n")
  message = r"a\.tsv:1: label '2' is not one of 0, 1"
  with pytest.raises(ValueError, match=message):
    read_examples(path, "cola")


def test_spaces_other_than_blanks_and_tabs_are_parts_of_words(tmp_path):
  content = "10\u00a0000 O\ncats B-X\n\u00a0\n-DOCSTART- O\nran O\n"
  path = files.write_text(tmp_path / "a.conll", content)
  examples = read_examples(path, kind="tagging")
  expected = [["10\u00a0000", "cats"], ["ran"]]
  assert [example["words"] for example in examples] == expected
  # A document may begin without a blank line before it.
  content = "cats B-X\n-DOCSTART- O\nran O\n"
  path = files.write_text(tmp_path / "b.conll", content)
  examples = read_examples(path, kind="tagging")
  assert [example["words"] for example in examples] == [["cats"], ["ran"]]
  # A word may be only white space, which gives no pieces.
  path = files.write_text(tmp_path / "c.conll", "\u3000\tO\ncats\tB-X\n")
  (example,) = read_examples(path, kind="tagging")
  assert example["words"] == ["\u3000", "cats"]
  path = files.write_text(tmp_path / "d.conll", "cats\tB-X\n \tO\n")
  with pytest.raises(ValueError, match=r"d\.conll:2 has no word in column 1"):
    read_examples(path, kind="tagging")


@pytest.mark.parametrize("columns", [None, "words=1,tags=2"])
def test_commas_between_columns_of_words_are_refused(tmp_path, columns):
  options = dict(kind="tagging", columns=columns, labels=["O", "B-X"])
  path = files.write_text(tmp_path / "a.csv", "cats,B-X\nran,O\n")
  for split in ("train", "test"):
    with pytest.raises(
      ValueError, match=r"a\.csv:1 has commas between the col"
    ):
      read_examples(path, split=split, **options)
  path = files.write_text(tmp_path / "a.txt", "cats,B-X\nran,O\n")
  with pytest.raises(
    ValueError, match=r"a\.txt:1 has no tags: .* tabs or spaces"
  ):
    read_examples(path, **options)
  # A word may be a comma.
  path = files.write_text(tmp_path / "b.csv", ",\ncats\n")
  assert read_examples(path, split="test", **options)[0]["words"] == [
    ",",
    "cats",
  ]


def test_a_tag_with_a_space_stays_one_column(tmp_path):
  path = files.write_text(tmp_path / "a.tsv", "cats\tB-New York\nran\tO\n")
  examples = read_examples(path, kind="tagging")
  content = server_files.conll_text([["B-New York", "O"]], examples)
  assert content == "cats B-New_York B-New_York\nran O O\n"


@pytest.mark.parametrize(
  "fields, message",
  [
    (
      dict(is_impossible="false"),
      "id 1: is_impossible is 'false', not true or",
    ),
    (
      dict(answers=dict(text=["cat", "cat"], answer_start=[0])),
      "id 1: answers are .*, not a list",
    ),
  ],
)
def test_malformed_answers_are_refused(tmp_path, fields, message):
  question = dict(id="1", question="what?", is_impossible=0)
  question["answers"] = [dict(text="cat", answer_start=0)]
  for extra_fields in ({}, fields):
    paragraph = dict(context="cat sat", qas=[question | extra_fields])
    content = json.dumps(dict(data=[dict(paragraphs=[paragraph])]))
    path = files.write_text(tmp_path / "a.json", content)
    if not extra_fields:
      (example,) = read_examples(path, "squad2", "train")
      assert example["answers"] == question["answers"]
  with pytest.raises(ValueError, match=message):
    read_examples(path, "squad2", "train")


def test_a_task_folder_with_different_columns_is_refused(tmp_path):
  path = files.write_text(tmp_path / "a.tsv", "x\ty\na\tb\nb\ta\n")
  vocab_path, output = files.write_wordpiece(tmp_path), str(tmp_path / "out")

  def prepare(columns):
    task = task_inputs.find_task("mine", columns=columns)
    inputs = [Input("train", path)]
    return prepare_task.prepare(task, inputs, vocab_path, output, length=16)

  assert prepare("text=x,label=y") == prepare("label=y,text=x")
  with pytest.raises(ValueError, match="made with another columns; delete it"):
    prepare("text=y,label=x")
