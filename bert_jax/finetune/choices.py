"""SWAG (Zellers et al. 2018) and RACE (Lai et al. 2017): multiple choice."""

import json
import os
from collections.abc import Iterator
from typing import Any

from bert_jax.finetune import labels, tables
from bert_jax.finetune.rows import Task
from bert_jax.finetune.tables import Record, get, get_text

LETTERS = ("A", "B", "C", "D")


def swag_records(path: str) -> Iterator[Record]:
  """Reads a .csv with SWAG's columns; ValueError names the file and line."""
  return tables.table(path)


def race_records(path: str) -> Iterator[Record]:
  """Reads a folder of RACE, a passage a file, questions in their order.

  Args:
    path: a folder, `RACE/dev/middle` or `RACE/dev` for example, or a file.

  Raises:
    ValueError: no files, or one that is no passage.
  """
  files = [path]
  if os.path.isdir(path):
    found = ((at, n) for at, _, names in os.walk(path) for n in names)
    files = sorted(os.path.join(at, n) for at, n in found if n.endswith(".txt"))
    if not files:
      raise ValueError(f"{path}: no .txt files of RACE in it.")
  for file in files:
    name = os.path.splitext(os.path.relpath(file, path))[0]
    if not os.path.isdir(path):
      name = os.path.splitext(os.path.basename(file))[0]
    try:
      fields = json.loads("\n".join(tables.lines(file)))
      many = [fields[k] for k in ("questions", "options")]
      answers = fields.get("answers")
      for i, (asked, options) in enumerate(zip(*many, strict=True)):
        made = dict(
          id=f"{name}-{i}",
          article=fields["article"],
          question=asked,
          options=options,
        )
        if answers is not None:
          made["answer"] = answers[i]
        yield Record(made, f"{file}: question {i + 1}")
    except (KeyError, IndexError, TypeError, json.JSONDecodeError) as e:
      raise ValueError(f"{file}: no passage of RACE ({e!r:.60}).") from e


def parse_swag(task: Task, record: Record, needed: bool) -> dict[str, Any]:
  """The sentence, and each ending behind the words it goes on from.

  Devlin et al. 2018, section 4.4.
  """
  first, begin = (get_text(record, name) for name in ("sent1", "sent2"))
  endings = [get_text(record, f"ending{k}") for k in range(task.columns)]
  return dict(
    id=record.fields.get(""),
    texts=[[first, f"{begin} {ending}"] for ending in endings],
    label=labels.name(record, "label", task.labels, needed),
  )


def parse_race(task: Task, record: Record, needed: bool) -> dict[str, Any]:
  """The passage, and the question with each answer.

  The answer stands where the question has its `_`, if it has one (fairseq
  examples/roberta/preprocess_RACE.py).
  """
  passage, question = (get_text(record, n) for n in ("article", "question"))
  options = get(record, "options")
  if len(options) != task.columns or not all(
    isinstance(option, str) for option in options
  ):
    raise ValueError(f"{record.where}: not {task.columns} options.")
  rows = []
  for option in options:
    filled = question.replace("_", option)
    rows.append(
      [passage, filled if "_" in question else f"{question} {option}"]
    )
  label = labels.name(record, "answer", task.labels, needed)
  return dict(id=get(record, "id"), texts=rows, label=label)
