"""Reads SuperGLUE's files (super.gluebenchmark.com), which are JSON lines.

`records` flattens nested lines into the records that TensorFlow Datasets has:
one for each answer of MultiRC and one for each query of ReCoRD. SuperGLUE does
not say how WSC's spans are marked and how ReCoRD's summary points are joined to
the passage. This module does both as T5 does (Raffel et al. 2019, appendix D).
"""

import re
from collections.abc import Iterator
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import label_fields, tables
from bert_jax.tasks.files.tables import Record, get_cell, get_int, get_text

TASK_NAMES = ("boolq", "cb", "copa", "multirc", "record", "wic", "wsc")
# COPA's questions, as in Roemmele et al. 2011, section 3.
_COPA_QUESTIONS = {
  "cause": "What was the cause of this?",
  "effect": "What happened as a result?",
}


def records(name: str, path: str) -> Iterator[Record]:
  """Yields the flat records of a task's file.

  Args:
    name: the task, one of `TASK_NAMES`.
    path: the task's .jsonl file.

  Raises:
    UserError: a line is wrong; the message names the file and the line.
  """
  for record in tables.jsonl_records(path):
    if name == "multirc":
      yield from _multirc_answers(record)
    elif name == "record":
      yield from _record_queries(record)
    elif name == "wsc" and isinstance(record.fields.get("target"), dict):
      yield Record(record.fields | record.fields["target"], record.location)
    else:
      yield record


def _multirc_answers(record: Record) -> Iterator[Record]:
  """Yields a record for each answer to a question of a MultiRC paragraph."""
  passage = record._replace(fields=_object_field(record, "passage"))
  for question in _object_records(passage, "questions"):
    for answer in _object_records(question, "answers"):
      indices = [get_cell(level, "idx") for level in (record, question, answer)]
      fields = dict(
        paragraph=get_text(passage, "text"),
        question=get_text(question, "question"),
        answer=get_text(answer, "text"),
        idx=dict(
          zip(("paragraph", "question", "answer"), indices, strict=True)
        ),
      )
      if "label" in answer.fields:
        fields["label"] = answer.fields["label"]
      yield Record(fields, record.location)


def _record_queries(record: Record) -> Iterator[Record]:
  """Yields a record for each query of a ReCoRD passage."""
  passage = record._replace(fields=_object_field(record, "passage"))
  text = get_text(passage, "text")
  # In the files, `end` is the position of an entity's last character.
  spans = [
    (get_int(entity, "start"), get_int(entity, "end") + 1)
    for entity in _object_records(passage, "entities")
  ]
  entities = list(dict.fromkeys(text[begin:end] for begin, end in spans))
  for query in _object_records(record, "qas"):
    fields = dict(
      passage=text,
      query=get_text(query, "query"),
      entities=entities,
      idx=dict(query=get_cell(query, "idx")),
    )
    if "answers" in query.fields:
      fields["answers"] = [
        get_text(answer, "text") for answer in _object_records(query, "answers")
      ]
    yield Record(fields, record.location)


def _object_field(record: Record, name: str) -> dict[str, Any]:
  """Returns the object in a field, or raises UserError if it is no object."""
  fields = get_cell(record, name)
  if not isinstance(fields, dict):
    raise UserError(f"{record.location}: {name!r} is not an object.")
  return fields


def _object_records(record: Record, name: str) -> list[Record]:
  """Returns the objects in a field as records with the record's location."""
  objects = get_cell(record, name)
  if not isinstance(objects, list) or not all(
    isinstance(fields, dict) for fields in objects
  ):
    raise UserError(f"{record.location}: {name!r} is not a list of objects.")
  return [Record(fields, record.location) for fields in objects]


def parse(
  task: Task, record: Record, needs_label: bool
) -> Iterator[dict[str, Any]]:
  """Makes the examples of a record.

  A record of ReCoRD gives an example for each entity. A record of every other
  task gives one example.

  Args:
    task: a task of SuperGLUE.
    record: a flat record, from `records` or from TensorFlow Datasets.
    needs_label: True if a record without a label is an error.

  Raises:
    UserError: a line is wrong; the message names the file and the line.
  """
  if task.name == "record":
    yield from _record_examples(record, needs_label)
    return
  example: dict[str, Any] = {"id": record.fields.get("idx")}
  if task.name == "multirc":
    text, question, answer = (
      get_text(record, name) for name in ("paragraph", "question", "answer")
    )
    levels = ("paragraph", "question", "answer")
    indices = [str(get_cell(record, "idx")[level]) for level in levels]
    example = dict(
      id="-".join(indices),
      group="-".join(indices[:2]),
      answer=answer,
      texts=[text, f"{question} {answer}"],
    )
  elif task.name == "copa":
    example["texts"] = _copa_texts(record)
  else:
    example["texts"] = _TEXT_READERS[task.name](record)
  label = label_fields.read_name(record, "label", task.labels, needs_label)
  yield example | {"label": label}


def _record_examples(
  record: Record, needs_label: bool
) -> Iterator[dict[str, Any]]:
  """Yields an example for each entity that may answer a ReCoRD query."""
  passage = re.sub(
    r"(\.|\?|!|\"|')\n@highlight\n", r"\1 ", get_text(record, "passage")
  ).replace("\n@highlight\n", ". ")
  query = get_text(record, "query")
  query_id = str(get_cell(record, "idx")["query"])
  answers = [
    _decode_text(answer) for answer in record.fields.get("answers", ())
  ]
  if needs_label and not answers:
    raise UserError(f"{record.location}: query {query_id} has no answers.")
  entities = [_decode_text(entity) for entity in get_cell(record, "entities")]
  if not entities:
    raise UserError(
      f"{record.location}: query {query_id} has no entities to choose from."
    )
  for entity_index, entity in enumerate(entities):
    label = str(entity in answers).lower() if answers else None
    yield dict(
      id=f"{query_id}-{entity_index}",
      group=query_id,
      answer=entity,
      answers=answers,
      texts=[passage, query.replace("@placeholder", entity)],
      label=label,
    )


def _decode_text(value: Any) -> str:
  """Decodes the bytes that TensorFlow Datasets gives for a text."""
  return value.decode("utf-8") if isinstance(value, bytes) else value


def _copa_texts(record: Record) -> list[list[str]]:
  """Returns for each of COPA's two choices [premise and question, choice]."""
  question = get_text(record, "question")
  if question not in _COPA_QUESTIONS:
    raise UserError(
      f"{record.location}: question {question!r:.40} is not one of"
      f" {', '.join(_COPA_QUESTIONS)}."
    )
  premise = f"{get_text(record, 'premise')} {_COPA_QUESTIONS[question]}"
  return [
    [premise, get_text(record, f"choice{choice_number}")]
    for choice_number in (1, 2)
  ]


def _mark_wsc_spans(record: Record) -> list[str]:
  """Returns WSC's text with * around its first span and # around its second."""
  words = get_text(record, "text").split(" ")
  # Mark the later span first: signs in front of a span would move its words.
  spans = sorted(
    (get_int(record, f"span{span_number}_index"), span_number)
    for span_number in (1, 2)
  )[::-1]
  for first_word, span_number in spans:
    num_words = len(get_text(record, f"span{span_number}_text").split(" "))
    if not 0 <= first_word <= len(words) - num_words:
      raise UserError(
        f"{record.location}: span{span_number} is not within the text."
      )
    sign = "*#"[span_number - 1]
    words[first_word : first_word + num_words] = [
      sign,
      *words[first_word : first_word + num_words],
      sign,
    ]
  return [" ".join(words)]


_TEXT_READERS = {
  "boolq": lambda r: [get_text(r, "question"), get_text(r, "passage")],
  "cb": lambda r: [get_text(r, "premise"), get_text(r, "hypothesis")],
  "wic": lambda r: [
    f"{get_text(r, 'word')}: {get_text(r, 'sentence1')}",
    get_text(r, "sentence2"),
  ],
  "wsc": _mark_wsc_spans,
}
