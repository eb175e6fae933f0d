"""Predictions in the files that official scripts and servers read.

GLUE's and SuperGLUE's names and columns are those of their servers
(gluebenchmark.com/faq, super.gluebenchmark.com/faq).
"""

import io
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.files import write_atomically, write_json
from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Examples, Task

# Names of files by names of tasks.
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
GLUE_FILES = tuple(f"{n}.tsv" for n in (*GLUE.values(), "MNLI-mm", "AX"))
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
  f"{n}.jsonl" for n in (*SUPERGLUE.values(), "AX-b", "AX-g")
)
# Sets that models of other tasks predict -> their files, by a word of the name
# of the split.
OTHER_SETS = {
  "mnli": {
    "mismatched": "MNLI-mm.tsv",
    "diagnostic": "AX.tsv",
    "ax": "AX.tsv",
  },
  "rte": {"axb": "AX-b.jsonl", "axg": "AX-g.jsonl"},
}
# GLUE's server wants these by name, all other classes by number.
_BY_NAME = ("mnli", "qnli", "rte")


def server_files(task: str, split: str) -> tuple[str, ...]:
  """Names of the files in which servers want a task's predictions.

  Args:
    task: its name.
    split: its name; "validation_mismatched" and "test_mismatched" of mnli give
      MNLI-mm.tsv, "ax" and "diagnostic" AX.tsv; of rte "axb" and "axg" give
      AX-b.jsonl and AX-g.jsonl.
  """
  for word in split.lower().split("_"):
    if name := OTHER_SETS.get(task, {}).get(word):
      return (name,)
  names = [f"{GLUE[task]}.tsv"] if task in GLUE else []
  return (*names, *([f"{SUPERGLUE[task]}.jsonl"] if task in SUPERGLUE else []))


def write(
  folder: str,
  task: Task,
  predictions: Sequence[Any],
  examples: Examples,
  split: str = "",
) -> list[str]:
  """Writes predictions in every official format of a task.

  Labels are not needed.

  Args:
    folder: the folder for the files; it is made if it does not exist.
    task: the task.
    predictions: one for each example, from `predictions.make_predictions`.
    examples: the raw fields.
    split: name of the split, which may name another file of the server's.

  Returns:
    Paths: span, SQuAD's `predictions.json`, `nbest_predictions.json` and, if
    there may be no answer, `null_odds.json`; tagging, `predictions.conll`; a
    task of GLUE or SuperGLUE, its server's file; any other,
    `predictions.jsonl` with `id` and `prediction`.

  Raises:
    ValueError: another number of predictions than of examples, or two examples
      of kind span with the same id.
    OSError: they cannot be written.
  """
  if len(predictions) != len(examples):
    raise UserError(
      f"task {task.name}: {len(predictions)} predictions of {len(examples)}"
      " examples; each needs one, in order."
    )
  os.makedirs(folder, exist_ok=True)
  if task.kind == "span":
    return _write_squad(folder, predictions, examples)
  files: dict[str, str] = {}
  if task.kind == "tagging":
    files["predictions.conll"] = conll(predictions, examples)
  for name in server_files(task.name, split):
    tsv = name.endswith(".tsv")
    files[name] = (
      glue(task, predictions) if tsv else superglue(task, predictions, examples)
    )
  if not files:
    files["predictions.jsonl"] = _json_lines(
      {"id": e.get("id"), "prediction": p}
      for e, p in zip(examples, predictions, strict=True)
    )
  paths = [os.path.join(folder, name) for name in files]
  for path, text in zip(paths, files.values(), strict=True):
    write_atomically(path, text)
  return paths


def _write_squad(
  folder: str, predictions: Sequence[dict[str, Any]], examples: Examples
) -> list[str]:
  names = [example["id"] for example in examples]
  if len(set(names)) < len(names):
    twice = next(n for i, n in enumerate(names) if n in names[:i])
    raise UserError(
      f"question id {twice!r} occurs twice; SQuAD's files have one answer"
      " for each id."
    )
  files = {"predictions.json": "text", "nbest_predictions.json": "nbest"}
  if predictions and "null_odds" in predictions[0]:
    files["null_odds.json"] = "null_odds"
  for file, key in files.items():
    answers = (prediction[key] for prediction in predictions)
    write_json(
      os.path.join(folder, file), dict(zip(names, answers, strict=True))
    )
  return [os.path.join(folder, file) for file in files]


def conll(predictions: Sequence[Sequence[str]], examples: Examples) -> str:
  """Columns word, right tag (if there is one), predicted tag.

  conlleval reads the last two of them. It takes any space as the end of a
  column, so that spaces within a word or a tag become underlines; one is also
  the tag of a word that has none, since it has no piece.
  """
  blocks = []
  for example, tags in zip(examples, predictions, strict=True):
    columns = [
      ["_".join((cell or "").split()) or "_" for cell in column]
      for column in (example["words"], example["tags"], tags)
      if column is not None
    ]
    rows = zip(*columns, strict=True)
    blocks.append("".join(" ".join(row) + "\n" for row in rows))
  return "\n".join(blocks)


def glue(task: Task, predictions: Sequence[Any]) -> str:
  """The lines of a file for GLUE's server: `index` and `prediction`."""

  def value(prediction: Any) -> str:
    if task.kind == "regression":
      return f"{min(max(prediction, 0.0), 5.0):.3f}"
    if task.name in _BY_NAME:
      return prediction
    return str(task.labels.index(prediction))

  lines = [f"{i}\t{value(p)}\n" for i, p in enumerate(predictions)]
  return "index\tprediction\n" + "".join(lines)


def superglue(
  task: Task, predictions: Sequence[str], examples: Examples
) -> str:
  """The lines of a file for SuperGLUE's server: `idx` and `label`."""
  pairs = zip(examples, predictions, strict=True)
  if task.name == "multirc":
    return _multirc(task, pairs)
  if task.name == "record":
    return _json_lines(
      {"idx": int(example["group"]), "label": example["answer"]}
      for example, prediction in pairs
      if prediction == task.labels[1]
    )
  values: dict[str, Callable[[str], Any]] = {
    "copa": task.labels.index,
    "wsc": str.capitalize,
  }
  value = values.get(task.name, str)
  return _json_lines({"idx": int(e["id"]), "label": value(p)} for e, p in pairs)


def _multirc(task: Task, pairs: Any) -> str:
  """A line a paragraph, with its questions and of each its answers."""
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


def _json_lines(values: Any) -> str:
  return "".join(json.dumps(v, ensure_ascii=False) + "\n" for v in values)


def submission(path: str, files: Sequence[str]) -> list[str]:
  """Packs files of `write` for GLUE's or SuperGLUE's server.

  Args:
    path: the zip to make.
    files: with the names that the server knows, all of GLUE or all of
      SuperGLUE.

  Returns:
    The files that the server wants beside these.

  Raises:
    ValueError: a name that the server does not know, or twice the same.
    OSError: a file cannot be read, or the zip not written.
  """
  names = [os.path.basename(file) for file in files]
  server_names = GLUE_FILES if {*names} & {*GLUE_FILES} else SUPERGLUE_FILES
  for i, name in enumerate(names):
    if name not in server_names:
      raise UserError(
        f"{files[i]}: the server knows no such file, but"
        f" {', '.join(server_names)}."
      )
    if name in names[:i]:
      raise UserError(f"{files[i]}: a second {name}; give one.")
  packed = io.BytesIO()
  with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
    for file, name in zip(files, names, strict=True):
      with open(file, "rb") as f:
        archive.writestr(name, f.read())
  write_atomically(path, packed.getvalue())
  return [name for name in server_names if name not in names]
