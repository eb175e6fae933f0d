"""Reads SQuAD's JSON (rajpurkar.github.io/SQuAD-explorer), 1.1 and 2.0."""

import json
from collections.abc import Iterator
from typing import Any

from bert_jax.messages import UserError, by_caller
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import tables
from bert_jax.tasks.files.tables import Record, get_cell, get_int, get_text

# How a user says that a question has no answer: with files, or in Python.
_UNANSWERED_IN_FILES = "task squad2 has questions without an answer"
_UNANSWERED_IN_PYTHON = "an empty list says that a question has no answer"


def records(path: str) -> Iterator[Record]:
  """Reads the questions of a file, in order.

  Args:
    path: SQuAD's JSON; or .jsonl with a question on each line: `id`,
      `question`, `context`, `answers`.

  Raises:
    ValueError: the file does not have SQuAD's form; the message names the file,
      and the line or article if one is wrong.
  """
  if tables.is_jsonl(path, json_is_one_value=True):
    yield from _jsonl_records(path)
    return
  text = tables.read_text(path)
  if not text.strip():
    raise UserError(f"{path}: the file is empty.")
  try:
    articles = tables.parse_json(text)["data"]
  except json.JSONDecodeError as e:
    raise UserError(
      f"{path}:{e.lineno} is not JSON ({e.msg}); the name of a file with a"
      " question on each line must end in .jsonl."
    ) from e
  except (KeyError, TypeError) as e:
    raise UserError(f"{path} is not a file of SQuAD: it has no `data`.") from e
  yield from article_records(path, articles)


def article_records(path: str, articles: Any) -> Iterator[Record]:
  """Yields the questions of SQuAD's list of articles, in order.

  Args:
    path: the file of the articles, for messages.
    articles: the list `data` of SQuAD's JSON.

  Raises:
    ValueError: an article does not have SQuAD's form; the message names it.
  """
  article_index = 0
  try:
    for article_index, article in enumerate(articles):
      for paragraph_index, paragraph in enumerate(article["paragraphs"]):
        for question_index, question in enumerate(paragraph["qas"]):
          question_id = question.get(
            "id", f"question {article_index}.{paragraph_index}.{question_index}"
          )
          fields = {**question, "context": paragraph["context"]}
          fields["title"] = article.get("title", "")
          yield Record(fields, f"{path}: id {question_id}")
  except (KeyError, TypeError, AttributeError) as e:
    raise UserError(
      f"{path}: article {article_index + 1} does not have SQuAD's form"
      f" ({e!r:.60})."
    ) from e


def _jsonl_records(path: str) -> Iterator[Record]:
  """Yields the questions of a .jsonl file."""
  for record_index, record in enumerate(tables.jsonl_records(path)):
    question_id = record.fields.get("id", record_index)
    fields = {"title": "", **record.fields, "id": str(question_id)}
    yield record._replace(fields=fields)


def parse(task: Task, record: Record, needs_label: bool) -> dict[str, Any]:
  """Makes an example from a question.

  If the list of answers is empty, the question has no answer (2.0), or the
  answers are hidden (1.1).

  Args:
    task: squad, squad2, or a custom task of kind span.
    record: the question; `answers` may have the form of SQuAD's file or of
      TensorFlow Datasets.
    needs_label: True if a record without answers is an error.

  Raises:
    ValueError: the record is wrong; the message names the file and question.
  """
  answers = _read_answers(record)
  is_impossible = record.fields.get("is_impossible")
  if is_impossible not in (True, False, None):
    raise UserError(
      f"{record.location}: is_impossible is {is_impossible!r:.60}, not true or"
      " false."
    )
  if is_impossible:
    answers = []
  may_lack_answers = "squad2" in task.metrics
  if not answers and not may_lack_answers:
    answers = None
  if answers is None and needs_label:
    raise UserError(
      f"{record.location} has no answers; training and validation need them"
      f" ({by_caller(_UNANSWERED_IN_FILES, _UNANSWERED_IN_PYTHON)})."
    )
  return dict(
    id=get_text(record, "id"),
    title=record.fields.get("title", ""),
    question=get_text(record, "question"),
    context=get_text(record, "context"),
    answers=answers,
  )


def _read_answers(record: Record) -> list[dict[str, Any]] | None:
  """Returns the answers of a record as [{text, answer_start}], or None."""
  answers = record.fields.get("answers")
  if answers is None:
    return None
  if isinstance(answers, dict):
    answer_columns = Record(answers, record.location)
    texts, starts = (
      get_cell(answer_columns, "text"),
      get_cell(answer_columns, "answer_start"),
    )
    are_lists = isinstance(texts, list) and isinstance(starts, list)
    if are_lists and len(texts) == len(starts):
      pairs = zip(texts, starts, strict=True)
      answers = [dict(text=text, answer_start=start) for text, start in pairs]
  if not isinstance(answers, list) or not all(
    isinstance(answer, dict) for answer in answers
  ):
    raise UserError(
      f"{record.location}: answers are {answers!r:.60}, not a list; an answer"
      ' is {"text": "...", "answer_start": 0}.'
    )
  parsed_answers = []
  for answer in answers:
    answer_record = Record(answer, record.location)
    start = get_int(answer_record, "answer_start")
    parsed_answers.append(
      dict(text=get_text(answer_record, "text"), answer_start=start)
    )
  # Drop answers with an empty text.
  return [answer for answer in parsed_answers if answer["text"]]
