"""Tests that predictions have the format of official scripts and servers."""

import json
import pathlib
import zipfile

import pytest

from bert_jax.cli.main import execute
from bert_jax.tasks import server_files
from bert_jax.tasks.encoded_rows import Task

BINARY_LABELS = ("0", "1")


def make_task(kind, labels=(), *metric_names, num_choices=1, name="mine"):
  return Task(name, kind, labels, num_choices=num_choices, metrics=metric_names)


def read_text(path):
  return pathlib.Path(path).read_text(encoding="utf-8")


def test_squad_files_hold_answers_and_odds(tmp_path):
  examples = [{"id": "é1", "context": "red cat"}, {"id": "2", "context": "red"}]
  candidate = dict(text="red", probability=1.0, start_logit=0.5, end_logit=0.25)
  predicted = [
    dict(text="", best="red", null_odds=2.5, nbest=[candidate]),
    dict(text="red", best="red", null_odds=-1.0, nbest=[candidate]),
  ]
  task = make_task("span", (), "squad2")
  paths = server_files.write(str(tmp_path / "a"), task, predicted, examples)
  texts, nbest_lists, null_odds = (
    json.loads(read_text(path)) for path in paths
  )
  assert [path.rsplit("/")[-1] for path in paths] == [
    "predictions.json",
    "nbest_predictions.json",
    "null_odds.json",
  ]
  assert texts == {"é1": "", "2": "red"}
  assert nbest_lists == {"é1": [candidate], "2": [candidate]}
  assert null_odds == {"é1": 2.5, "2": -1.0}
  with pytest.raises(ValueError, match="question id '2' occurs twice"):
    server_files.write(str(tmp_path), task, predicted, [{"id": "2"}] * 2)
  with pytest.raises(ValueError, match="are 2 predictions for 1 examples"):
    server_files.write(str(tmp_path), task, predicted, examples[:1])


def test_a_conll_file_has_words_and_both_tags(tmp_path):
  task = make_task("tagging", ("O", "B-X"))
  examples = [
    {"words": ["New York", "is", "\u00a0"], "tags": ["B-X", "O", "O"]},
    {"words": ["x"], "tags": ["O"]},
  ]
  predicted = [["B-X", "B-X", "O"], ["O"]]
  (path,) = server_files.write(str(tmp_path), task, predicted, examples)
  assert read_text(path) == "New_York B-X B-X\nis O B-X\n_ O O\n\nx O O\n"
  unlabelled_examples = [example | {"tags": None} for example in examples]
  (path,) = server_files.write(
    str(tmp_path), task, predicted, unlabelled_examples
  )
  assert read_text(path) == "New_York B-X\nis B-X\n_ O\n\nx O\n"


def test_glue_files_hold_index_and_prediction(tmp_path, capsys):
  class_names = ("entailment", "not_entailment")
  cases = [
    (
      make_task("classification", BINARY_LABELS, name="cola"),
      ["1", "0"],
      "1 0",
    ),
    (
      make_task("regression", name="stsb"),
      [5.2, -0.1, 3.80049],
      "5.000 0.000 3.800",
    ),
    (
      make_task("classification", class_names, name="qnli"),
      ["entailment"],
      "entailment",
    ),
  ]
  paths = []
  for task, predicted, expected in cases:
    examples = [{"id": None, "label": None}] * len(predicted)
    (path,) = server_files.write(
      str(tmp_path / task.name), task, predicted, examples
    )
    lines = [f"{i}\t{value}\n" for i, value in enumerate(expected.split())]
    assert read_text(path) == "index\tprediction\n" + "".join(lines)
    paths.append(path)
  archive_path = str(tmp_path / "glue.zip")
  execute(["submission", "--output", archive_path, "--input", *paths])
  with zipfile.ZipFile(archive_path) as archive:
    assert archive.namelist() == ["CoLA.tsv", "STS-B.tsv", "QNLI.tsv"]
    assert archive.read("CoLA.tsv") == b"index\tprediction\n0\t1\n1\t0\n"
  assert "also wants SST-2.tsv, MRPC.tsv, QQP.tsv, MNLI-m.tsv, RTE.tsv," in (
    capsys.readouterr().err
  )
  with pytest.raises(ValueError, match="is a second CoLA.tsv"):
    server_files.pack_submission(archive_path, [paths[0]] * 2)
  with pytest.raises(ValueError, match="the server knows no file other.tsv"):
    server_files.pack_submission(archive_path, ["CoLA.tsv", "other.tsv"])
  with pytest.raises(SystemExit, match="error: .*no/CoLA.tsv"):
    execute(["submission", "--output", archive_path, "--input", "no/CoLA.tsv"])


@pytest.mark.parametrize(
  "name, split, file_names",
  [
    ("mnli", "test_matched", ["MNLI-m.tsv"]),
    ("mnli", "validation_mismatched", ["MNLI-mm.tsv"]),
    ("mnli", "test_mismatched", ["MNLI-mm.tsv"]),
    ("mnli", "diagnostic", ["AX.tsv"]),
    ("mnli", "ax", ["AX.tsv"]),
    ("rte", "test", ["RTE.tsv", "RTE.jsonl"]),
    ("rte", "axb", ["AX-b.jsonl"]),
    ("rte", "axg", ["AX-g.jsonl"]),
    ("cola", "test_mismatched", ["CoLA.tsv"]),
  ],
)
def test_the_split_decides_the_file_for_the_server(
  tmp_path, name, split, file_names
):
  task = make_task("classification", ("a", "b"), name=name)
  paths = server_files.write(str(tmp_path), task, ["b"], [{"id": 4}], split)
  assert [path.removeprefix(f"{tmp_path}/") for path in paths] == file_names
  server_names = {*server_files.GLUE_FILES, *server_files.SUPERGLUE_FILES}
  assert {*file_names} <= server_names
  has_label_names = name in ("mnli", "rte")
  expected = {
    "tsv": f"index\tprediction\n0\t{'b' if has_label_names else 1}\n",
    "jsonl": '{"idx": 4, "label": "b"}\n',
  }
  assert [read_text(path) for path in paths] == [
    expected[path.rpartition(".")[2]] for path in paths
  ]


def test_superglue_files_hold_idx_and_label(tmp_path):
  truth_values = ("false", "true")

  def written_lines(task, predicted, examples):
    (path,) = server_files.write(
      str(tmp_path / task.name), task, predicted, examples
    )
    assert path.endswith(f"/{server_files.SUPERGLUE[task.name]}.jsonl")
    return [json.loads(line) for line in read_text(path).splitlines()]

  ids = [{"id": 0}, {"id": "1"}]
  task = make_task("classification", truth_values, name="boolq")
  expected = [{"idx": 0, "label": "true"}, {"idx": 1, "label": "false"}]
  assert written_lines(task, ["true", "false"], ids) == expected
  task = task._replace(name="wsc")
  expected = [{"idx": 0, "label": "True"}, {"idx": 1, "label": "False"}]
  assert written_lines(task, ["true", "false"], ids) == expected
  task = make_task("choice", BINARY_LABELS, num_choices=2, name="copa")
  expected = [{"idx": 0, "label": 1}, {"idx": 1, "label": 0}]
  assert written_lines(task, ["1", "0"], ids) == expected

  task = make_task("classification", BINARY_LABELS, name="multirc")
  examples = [{"id": i} for i in ("7-0-0", "7-0-1", "7-1-2", "8-2-3")]

  def passage_of_questions(*pairs):
    return {
      "questions": [
        {
          "idx": question,
          "answers": [
            {"idx": answer, "label": label} for answer, label in answers
          ],
        }
        for question, answers in pairs
      ]
    }

  assert written_lines(task, [*"1010"], examples) == [
    {
      "idx": 7,
      "passage": passage_of_questions((0, [(0, 1), (1, 0)]), (1, [(2, 1)])),
    },
    {"idx": 8, "passage": passage_of_questions((2, [(3, 0)]))},
  ]
  task = make_task("classification", truth_values, "record", name="record")
  examples = [
    {"group": group, "answer": answer} for group, answer in ("3A", "3B", "4C")
  ]
  expected = [{"idx": 3, "label": "B"}, {"idx": 4, "label": "C"}]
  assert written_lines(task, ["false", "true", "true"], examples) == expected


def test_the_file_of_a_custom_task_holds_id_and_prediction(tmp_path):
  task = make_task("classification", ("ham", "spam"))
  examples = [{"id": "a", "label": None}, {"id": None, "label": None}]
  (path,) = server_files.write(str(tmp_path), task, ["spam", "ham"], examples)
  assert [json.loads(line) for line in read_text(path).splitlines()] == [
    {"id": "a", "prediction": "spam"},
    {"id": None, "prediction": "ham"},
  ]
