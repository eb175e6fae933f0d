"""Reads multiple choice: SWAG (Zellers et al. 2018), RACE (Lai et al. 2017)."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import label_fields, tables
from bert_jax.tasks.files.tables import Record, get_cell, get_text

LETTERS = ("A", "B", "C", "D")


def race_records(path: str) -> Iterator[Record]:
  """Yields the questions of RACE, in the order of the sorted file names.

  Args:
    path: a folder, for example `RACE/dev/middle` or `RACE/dev`, or one file.
      A .txt file holds one passage. Each line of a .jsonl file holds a passage,
      or a question with its `article`.

  Raises:
    UserError: there are no files, or a file is not a passage.
  """
  if tables.is_jsonl(path, json_is_one_value=True):
    yield from _race_lines(path)
    return
  source = pathlib.Path(path)
  files, root = [source], source.parent
  if source.is_dir():
    root = source
    text_files = (file for file in source.rglob("*.txt") if not file.is_dir())
    files = sorted(text_files, key=str)
    if not files:
      raise UserError(f"{path}: the folder has no .txt files of RACE.")
  for file in files:
    passage_name = str(file.relative_to(root).with_suffix(""))
    try:
      fields = tables.parse_json("\n".join(tables.read_lines(str(file))))
      questions = list(race_questions(Record(fields, str(file)), passage_name))
    except json.JSONDecodeError as e:
      raise UserError(f"{file}:{e.lineno} is not JSON ({e.msg}).") from e
    yield from questions


def _race_lines(path: str) -> Iterator[Record]:
  """Yields the questions of a .jsonl file."""
  for record_number, record in enumerate(tables.jsonl_records(path), 1):
    passage_name = record.fields.get(
      "id", record.fields.get("example_id", record_number)
    )
    if "questions" in record.fields:
      yield from race_questions(record, str(passage_name))
    else:
      yield record._replace(fields={**record.fields, "id": str(passage_name)})


def race_questions(passage: Record, name: str) -> Iterator[Record]:
  """Yields the questions of a passage.

  Args:
    passage: a passage with the fields that RACE's files have.
    name: the passage's name; the ids of its questions begin with it.

  Raises:
    UserError: a field is missing, or the numbers of questions, lists of options
      and answers differ.
  """
  try:
    fields, answers = passage.fields, passage.fields.get("answers")
    columns = [fields["questions"], fields["options"]]
    if answers is not None:
      columns.append(answers)
    for question_index, (question, options, *answer) in enumerate(
      zip(*columns, strict=True)
    ):
      question_fields = dict(
        article=fields["article"],
        question=question,
        options=options,
        id=f"{name}-{question_index}",
      )
      if answer:
        question_fields["answer"] = answer[0]
      yield Record(
        question_fields, f"{passage.location}: question {question_index + 1}"
      )
  except (KeyError, TypeError, AttributeError, ValueError) as e:
    raise UserError(
      f"{passage.location} is not a passage of RACE ({e!r:.60})."
    ) from e


def parse_swag(task: Task, record: Record, needs_label: bool) -> dict[str, Any]:
  """Makes SWAG's example: pairs of the first and a possible second sentence.

  A second sentence is its given beginning, followed by one of the endings
  (Devlin et al. 2018, section 4.4).

  Args:
    task: SWAG's task.
    record: a line of SWAG's file.
    needs_label: True if a record without a label is an error.
  """
  sentence, begin = (get_text(record, name) for name in ("sent1", "sent2"))
  endings = [
    get_text(record, f"ending{choice_index}")
    for choice_index in range(task.num_choices)
  ]
  return dict(
    id=record.fields.get("", record.fields.get("id")),
    texts=[[sentence, f"{begin} {ending}"] for ending in endings],
    label=label_fields.read_name(record, "label", task.labels, needs_label),
  )


def parse_race(task: Task, record: Record, needs_label: bool) -> dict[str, Any]:
  """Makes RACE's example: pairs of the passage and a question with an option.

  An option replaces the `_` of its question. If the question has no `_`,
  the option follows the question (fairseq examples/roberta/preprocess_RACE.py).

  Args:
    task: RACE's task.
    record: a question, from `race_records`.
    needs_label: True if a record without a label is an error.
  """
  passage = get_text(record, "article")
  question = get_text(record, "question")
  options = get_cell(record, "options")
  options = options if isinstance(options, list) else []
  if [type(option) for option in options] != [str] * task.num_choices:
    raise UserError(
      f"{record.location}: 'options' is not a list of {task.num_choices} texts."
    )
  texts = []
  for option in options:
    if "_" in question:
      statement = question.replace("_", option)
    else:
      statement = f"{question} {option}"
    texts.append([passage, statement])
  label = label_fields.read_name(record, "answer", task.labels, needs_label)
  return dict(id=get_cell(record, "id"), texts=texts, label=label)
