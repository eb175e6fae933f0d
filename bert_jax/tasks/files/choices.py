"""SWAG (Zellers et al. 2018) and RACE (Lai et al. 2017): multiple choice."""

import json
import os
from collections.abc import Iterator
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import label_fields, tables
from bert_jax.tasks.files.tables import Record, get, get_text

LETTERS = ("A", "B", "C", "D")


def race_records(path: str) -> Iterator[Record]:
  """Reads a folder of RACE, a passage a file, questions in their order.

  Args:
    path: a folder, `RACE/dev/middle` or `RACE/dev` for example, or a file; of
      .jsonl each line is a passage, or a question with its `article`.

  Raises:
    ValueError: no files, or one that is no passage.
  """
  if tables.is_jsonl(path, whole=True):
    yield from _race_lines(path)
    return
  files = [path]
  if os.path.isdir(path):
    places = ((at, n) for at, _, names in os.walk(path) for n in names)
    files = sorted(
      os.path.join(at, n) for at, n in places if n.endswith(".txt")
    )
    if not files:
      raise UserError(f"{path}: no .txt files of RACE in it.")
  for file in files:
    name = os.path.splitext(os.path.relpath(file, path))[0]
    if not os.path.isdir(path):
      name = os.path.splitext(os.path.basename(file))[0]
    try:
      fields = tables.parse_json("\n".join(tables.lines(file)))
      questions = list(race_questions(Record(fields, file), name))
    except json.JSONDecodeError as e:
      raise UserError(f"{file}:{e.lineno}: not JSON ({e.msg}).") from e
    yield from questions


def _race_lines(path: str) -> Iterator[Record]:
  for number, record in enumerate(tables.jsonl(path), 1):
    name = record.fields.get("id", record.fields.get("example_id", number))
    if "questions" in record.fields:
      yield from race_questions(record, str(name))
    else:
      yield record._replace(fields={**record.fields, "id": str(name)})


def race_questions(passage: Record, name: str) -> Iterator[Record]:
  """The questions of a passage.

  Args:
    passage: as a file has it.
    name: its name, for the questions' ids.

  Raises:
    ValueError: something is missing, or of another number.
  """
  try:
    fields, answers = passage.fields, passage.fields.get("answers")
    many = [fields["questions"], fields["options"]]
    many.append(many[0] if answers is None else answers)
    for i, (asked, options, answer) in enumerate(zip(*many, strict=True)):
      question = dict(
        article=fields["article"], question=asked, options=options
      )
      question["id"] = f"{name}-{i}"
      if answers is not None:
        question["answer"] = answer
      yield Record(question, f"{passage.where}: question {i + 1}")
  except (KeyError, TypeError, AttributeError, ValueError) as e:
    raise UserError(f"{passage.where}: no passage of RACE ({e!r:.60}).") from e


def parse_swag(task: Task, record: Record, needed: bool) -> dict[str, Any]:
  """The sentence, and each ending behind the words it goes on from.

  Devlin et al. 2018, section 4.4.
  """
  first, begin = (get_text(record, name) for name in ("sent1", "sent2"))
  endings = [get_text(record, f"ending{k}") for k in range(task.columns)]
  return dict(
    id=record.fields.get("", record.fields.get("id")),
    texts=[[first, f"{begin} {ending}"] for ending in endings],
    label=label_fields.read_name(record, "label", task.labels, needed),
  )


def parse_race(task: Task, record: Record, needed: bool) -> dict[str, Any]:
  """The passage, and the question with each answer.

  The answer stands where the question has its `_`, if it has one (fairseq
  examples/roberta/preprocess_RACE.py).
  """
  passage, question = (get_text(record, n) for n in ("article", "question"))
  options = get(record, "options")
  options = options if isinstance(options, list) else []
  if [type(option) for option in options] != [str] * task.columns:
    raise UserError(f"{record.where}: not {task.columns} options.")
  rows = []
  for option in options:
    filled = question.replace("_", option)
    rows.append(
      [passage, filled if "_" in question else f"{question} {option}"]
    )
  label = label_fields.read_name(record, "answer", task.labels, needed)
  return dict(id=get(record, "id"), texts=rows, label=label)
