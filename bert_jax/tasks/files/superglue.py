"""SuperGLUE's files (super.gluebenchmark.com): JSON lines.

`records` flattens them to what TensorFlow Datasets has, a line an answer.
What stands around the texts is T5's where SuperGLUE prescribes nothing (Raffel
et al. 2019, appendix D): WSC's spans between * and #, ReCoRD's summary points.
"""

import re
from collections.abc import Iterator
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import label_fields, tables
from bert_jax.tasks.files.tables import Record, get, get_int, get_text

NAMES = ("boolq", "cb", "copa", "multirc", "record", "wic", "wsc")
# Roemmele et al. 2011, section 3.
_COPA = {
  "cause": "What was the cause of this?",
  "effect": "What happened as a result?",
}


def records(name: str, path: str) -> Iterator[Record]:
  """Reads a file of a task; ValueError names the file and line."""
  for record in tables.jsonl(path):
    if name == "multirc":
      yield from _answers(record)
    elif name == "record":
      yield from _queries(record)
    elif name == "wsc" and isinstance(record.fields.get("target"), dict):
      yield Record(record.fields | record.fields["target"], record.where)
    else:
      yield record


def _answers(record: Record) -> Iterator[Record]:
  """MultiRC: a paragraph's answers, each by itself."""
  passage = record._replace(fields=_dict(record, "passage"))
  for question in _dicts(passage, "questions"):
    for answer in _dicts(question, "answers"):
      numbers = [get(part, "idx") for part in (record, question, answer)]
      fields = dict(
        paragraph=get_text(passage, "text"),
        question=get_text(question, "question"),
        answer=get_text(answer, "text"),
        idx=dict(
          zip(("paragraph", "question", "answer"), numbers, strict=True)
        ),
      )
      if "label" in answer.fields:
        fields["label"] = answer.fields["label"]
      yield Record(fields, record.where)


def _queries(record: Record) -> Iterator[Record]:
  """ReCoRD: a passage's queries; `end` of an entity is its last character."""
  passage = record._replace(fields=_dict(record, "passage"))
  text = get_text(passage, "text")
  spans = [
    (get_int(e, "start"), get_int(e, "end") + 1)
    for e in _dicts(passage, "entities")
  ]
  entities = list(dict.fromkeys(text[begin:end] for begin, end in spans))
  for query in _dicts(record, "qas"):
    fields = dict(
      passage=text,
      query=get_text(query, "query"),
      entities=entities,
      idx=dict(query=get(query, "idx")),
    )
    if "answers" in query.fields:
      fields["answers"] = [
        get_text(a, "text") for a in _dicts(query, "answers")
      ]
    yield Record(fields, record.where)


def _dict(record: Record, name: str) -> dict[str, Any]:
  value = get(record, name)
  if not isinstance(value, dict):
    raise UserError(f"{record.where}: {name!r} is no object.")
  return value


def _dicts(record: Record, name: str) -> list[Record]:
  value = get(record, name)
  if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
    raise UserError(f"{record.where}: {name!r} is no list of objects.")
  return [Record(v, record.where) for v in value]


def parse(task: Task, record: Record, needed: bool) -> Iterator[dict[str, Any]]:
  """Makes the examples of a line: of ReCoRD one an entity, else one.

  Args:
    task: of SuperGLUE.
    record: flat, see `records`.
    needed: whether it must have a label.

  Raises:
    ValueError: names the file and line.
  """
  if task.name == "record":
    yield from _entities(record, needed)
    return
  number = record.fields.get("idx")
  example: dict[str, Any] = {"id": number}
  if task.name == "multirc":
    text, question, answer = (
      get_text(record, name) for name in ("paragraph", "question", "answer")
    )
    parts = [get(record, "idx")[k] for k in ("paragraph", "question", "answer")]
    example = dict(
      id="-".join(map(str, parts)),
      group="-".join(map(str, parts[:2])),
      answer=answer,
      texts=[text, f"{question} {answer}"],
    )
  elif task.name == "copa":
    example["texts"] = _alternatives(record)
  else:
    example["texts"] = _TEXTS[task.name](record)
  label = label_fields.read_name(record, "label", task.labels, needed)
  yield example | {"label": label}


def _entities(record: Record, needed: bool) -> Iterator[dict[str, Any]]:
  passage = re.sub(
    r"(\.|\?|!|\"|')\n@highlight\n", r"\1 ", get_text(record, "passage")
  ).replace("\n@highlight\n", ". ")
  query = get_text(record, "query")
  number = str(get(record, "idx")["query"])
  answers = [_text(a) for a in record.fields.get("answers", ())]
  if needed and not answers:
    raise UserError(f"{record.where}: query {number} has no answers.")
  entities = [_text(e) for e in get(record, "entities")]
  if not entities:
    raise UserError(
      f"{record.where}: query {number} has no entities to choose from."
    )
  for k, entity in enumerate(entities):
    label = str(entity in answers).lower() if answers else None
    yield dict(
      id=f"{number}-{k}",
      group=number,
      answer=entity,
      answers=answers,
      texts=[passage, query.replace("@placeholder", entity)],
      label=label,
    )


def _text(value: Any) -> str:
  return value.decode("utf-8") if isinstance(value, bytes) else value


def _alternatives(record: Record) -> list[list[str]]:
  asked = get_text(record, "question")
  if asked not in _COPA:
    raise UserError(
      f"{record.where}: question {asked!r:.40} is none of {', '.join(_COPA)}."
    )
  premise = f"{get_text(record, 'premise')} {_COPA[asked]}"
  return [[premise, get_text(record, f"choice{k}")] for k in (1, 2)]


def _marked(record: Record) -> list[str]:
  """WSC: the text with * around the first span and # around the second."""
  words = get_text(record, "text").split(" ")
  # The later one first, so that its words are still where they were.
  spans = sorted((get_int(record, f"span{k}_index"), k) for k in (1, 2))[::-1]
  for begin, k in spans:
    count = len(get_text(record, f"span{k}_text").split(" "))
    if not 0 <= begin <= len(words) - count:
      raise UserError(f"{record.where}: span{k} is not within the text.")
    sign = "*#"[k - 1]
    words[begin : begin + count] = [
      sign,
      *words[begin : begin + count],
      sign,
    ]
  return [" ".join(words)]


_TEXTS = {
  "boolq": lambda r: [get_text(r, "question"), get_text(r, "passage")],
  "cb": lambda r: [get_text(r, "premise"), get_text(r, "hypothesis")],
  "wic": lambda r: [
    f"{get_text(r, 'word')}: {get_text(r, 'sentence1')}",
    get_text(r, "sentence2"),
  ],
  "wsc": _marked,
}
