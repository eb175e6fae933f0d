"""Writes predictions to the files that official scripts and servers read.

The servers of GLUE and SuperGLUE prescribe the names of the files and columns
(gluebenchmark.com/faq, super.gluebenchmark.com/faq).
"""

import io
import json
import pathlib
import zipfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bert_jax.files import PathLike, write_atomically, write_json
from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Examples, Task

# Task -> the name of its file, without the extension.
GLUE = {
  "cola": "CoLA",
  "sst2": "SST-2",
  "mrpc": "MRPC",
  "stsb": "STS-B",
  "qqp": "QQP",
  "mnli": "MNLI-m",
  "qnli": "QNLI",
  "rte": "RTE",
  "wnli": "WNLI",
}
GLUE_FILES = tuple(f"{name}.tsv" for name in (*GLUE.values(), "MNLI-mm", "AX"))
SUPERGLUE = {
  "boolq": "BoolQ",
  "cb": "CB",
  "copa": "COPA",
  "multirc": "MultiRC",
  "record": "ReCoRD",
  "rte": "RTE",
  "wic": "WiC",
  "wsc": "WSC",
}
SUPERGLUE_FILES = tuple(
  f"{name}.jsonl" for name in (*SUPERGLUE.values(), "AX-b", "AX-g")
)
# Test sets without training data of their own, which a task's model predicts:
# task -> a word in the name of the test set's split -> file.
OTHER_TEST_SETS = {
  "mnli": {
    "mismatched": "MNLI-mm.tsv",
    "diagnostic": "AX.tsv",
    "ax": "AX.tsv",
  },
  "rte": {"axb": "AX-b.jsonl", "axg": "AX-g.jsonl"},
}
# The tasks whose classes GLUE's server reads by name. The server reads the
# classes of every other task by index.
_TASKS_WITH_CLASS_NAMES = ("mnli", "qnli", "rte")


def server_files(task: str, split: str) -> tuple[str, ...]:
  """Returns the names of the files in which servers read predictions.

  Args:
    task: the name of the task.
    split: the name of the split. For example, mnli's split "test_mismatched"
      gives MNLI-mm.tsv, its split "diagnostic" gives AX.tsv, and rte's split
      "axb" gives AX-b.jsonl; see `OTHER_TEST_SETS`.
  """
  for word in split.lower().split("_"):
    if file_name := OTHER_TEST_SETS.get(task, {}).get(word):
      return (file_name,)
  file_names = [f"{GLUE[task]}.tsv"] if task in GLUE else []
  return (
    *file_names,
    *([f"{SUPERGLUE[task]}.jsonl"] if task in SUPERGLUE else []),
  )


def write(
  folder: PathLike,
  task: Task,
  predictions: Sequence[Any],
  examples: Examples,
  split: str = "",
) -> list[str]:
  """Writes predictions in every official format of a task.

  The examples need no labels. The files depend on the task:

  | task | files |
  |---|---|
  | span | `predictions.json` and `nbest_predictions.json`, as for SQuAD |
  | span, if a question may have no answer | also `null_odds.json` |
  | tagging | `predictions.conll` |
  | GLUE, SuperGLUE | see `server_files` |
  | every other task | `predictions.jsonl` with `id` and `prediction` |

  Args:
    folder: the folder for the files, which is made if it does not exist.
    task: the task.
    predictions: one prediction for each example, from
      `predictions.make_predictions`.
    examples: the raw fields of the examples.
    split: the name of the split, see `server_files`.

  Returns:
    The paths of the files.

  Raises:
    ValueError: the numbers of predictions and examples differ, or two examples
      of kind span have the same id.
    OSError: a file cannot be written.
  """
  if len(predictions) != len(examples):
    raise UserError(
      f"task {task.name}: there are {len(predictions)} predictions for"
      f" {len(examples)} examples; give one for each example, in order."
    )
  target = pathlib.Path(folder)
  target.mkdir(parents=True, exist_ok=True)
  if task.kind == "span":
    return _write_squad(target, predictions, examples)
  text_by_file: dict[str, str] = {}
  if task.kind == "tagging":
    text_by_file["predictions.conll"] = conll_text(predictions, examples)
  for name in server_files(task.name, split):
    is_tsv = name.endswith(".tsv")
    text_by_file[name] = (
      glue_text(task, predictions)
      if is_tsv
      else superglue_text(task, predictions, examples)
    )
  if not text_by_file:
    text_by_file["predictions.jsonl"] = _json_lines(
      {"id": example.get("id"), "prediction": prediction}
      for example, prediction in zip(examples, predictions, strict=True)
    )
  for name, text in text_by_file.items():
    write_atomically(target / name, text)
  return [str(target / name) for name in text_by_file]


def _write_squad(
  folder: pathlib.Path,
  predictions: Sequence[dict[str, Any]],
  examples: Examples,
) -> list[str]:
  """Writes the files of SQuAD; see `write`."""
  ids = [example["id"] for example in examples]
  if len(set(ids)) < len(ids):
    repeated_id = next(
      question_id
      for index, question_id in enumerate(ids)
      if question_id in ids[:index]
    )
    raise UserError(
      f"question id {repeated_id!r} occurs twice; SQuAD's files have one answer"
      " for each id."
    )
  key_by_file = {"predictions.json": "text", "nbest_predictions.json": "nbest"}
  if predictions and "null_odds" in predictions[0]:
    key_by_file["null_odds.json"] = "null_odds"
  for file_name, key in key_by_file.items():
    answers = (prediction[key] for prediction in predictions)
    write_json(folder / file_name, dict(zip(ids, answers, strict=True)))
  return [str(folder / file_name) for file_name in key_by_file]


def conll_text(predictions: Sequence[Sequence[str]], examples: Examples) -> str:
  """Returns the text of a file with the columns word, true tag, predicted tag.

  conlleval reads the last two columns. If the examples have no tags, there is
  no column of true tags. conlleval ends a column at any space, so spaces in a
  word or a tag become underscores. A word without a piece has no predicted
  tag, and gets an underscore.

  Args:
    predictions: for each example a tag for each word.
    examples: examples with `words` and `tags`.
  """
  sentence_blocks = []
  for example, tags in zip(examples, predictions, strict=True):
    columns = [
      ["_".join((cell or "").split()) or "_" for cell in column]
      for column in (example["words"], example["tags"], tags)
      if column is not None
    ]
    rows = zip(*columns, strict=True)
    sentence_blocks.append("".join(" ".join(cells) + "\n" for cells in rows))
  return "\n".join(sentence_blocks)


def glue_text(task: Task, predictions: Sequence[Any]) -> str:
  """Returns the text of GLUE's file, with columns `index` and `prediction`."""

  def cell(prediction: Any) -> str:
    if task.kind == "regression":
      return f"{min(max(prediction, 0.0), 5.0):.3f}"
    if task.name in _TASKS_WITH_CLASS_NAMES:
      return prediction
    return str(task.labels.index(prediction))

  lines = [
    f"{index}\t{cell(prediction)}\n"
    for index, prediction in enumerate(predictions)
  ]
  return "index\tprediction\n" + "".join(lines)


def superglue_text(
  task: Task, predictions: Sequence[str], examples: Examples
) -> str:
  """Returns the text of SuperGLUE's file, with keys `idx` and `label`."""
  pairs = zip(examples, predictions, strict=True)
  if task.name == "multirc":
    return _multirc_text(task, pairs)
  if task.name == "record":
    return _json_lines(
      {"idx": int(example["group"]), "label": example["answer"]}
      for example, prediction in pairs
      if prediction == task.labels[1]
    )
  converters: dict[str, Callable[[str], Any]] = {
    "copa": task.labels.index,
    "wsc": str.capitalize,
  }
  convert = converters.get(task.name, str)
  return _json_lines(
    {"idx": int(example["id"]), "label": convert(prediction)}
    for example, prediction in pairs
  )


def _multirc_text(
  task: Task, pairs: Iterable[tuple[dict[str, Any], str]]
) -> str:
  """Returns the text of MultiRC's file: a line for each passage.

  Args:
    task: the task.
    pairs: each example with its prediction.
  """
  passages: dict[int, dict[int, list[dict[str, int]]]] = {}
  for example, prediction in pairs:
    passage, question, answer = map(int, example["id"].split("-"))
    answers_of_question = passages.setdefault(passage, {}).setdefault(
      question, []
    )
    answers_of_question.append(
      {"idx": answer, "label": task.labels.index(prediction)}
    )
  return _json_lines(
    {
      "idx": passage,
      "passage": {
        "questions": [
          {"idx": question, "answers": answers}
          for question, answers in questions.items()
        ]
      },
    }
    for passage, questions in passages.items()
  )


def _json_lines(values: Iterable[dict[str, Any]]) -> str:
  """Returns a text with a JSON object on each line."""
  return "".join(
    json.dumps(value, ensure_ascii=False) + "\n" for value in values
  )


def pack_submission(path: PathLike, files: Sequence[PathLike]) -> list[str]:
  """Packs files of `write` into a zip for GLUE's or SuperGLUE's server.

  Args:
    path: the zip to write.
    files: the paths of files whose names the server knows; either all are of
      GLUE, or all of SuperGLUE.

  Returns:
    The names of the files that the server needs, but the zip lacks.

  Raises:
    ValueError: the server does not know a name, or a name is repeated.
    OSError: a file cannot be read, or the zip cannot be written.
  """
  names = [pathlib.Path(file).name for file in files]
  server_names = GLUE_FILES if {*names} & {*GLUE_FILES} else SUPERGLUE_FILES
  for i, name in enumerate(names):
    if name not in server_names:
      raise UserError(
        f"the server knows no file {files[i]}; it knows"
        f" {', '.join(server_names)}."
      )
    if name in names[:i]:
      raise UserError(f"{files[i]} is a second {name}; give only one.")
  packed = io.BytesIO()
  with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
    for file, name in zip(files, names, strict=True):
      archive.writestr(name, pathlib.Path(file).read_bytes())
  write_atomically(path, packed.getvalue())
  return [name for name in server_names if name not in names]
