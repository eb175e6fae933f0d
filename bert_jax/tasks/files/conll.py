"""Words with tags: CoNLL columns, a word a line, blank lines between sentences.

CoNLL-2003 (Tjong Kim Sang and De Meulder 2003): four columns, documents begin
with -DOCSTART-; WNUT17 (Derczynski et al. 2017): a word, a tab, a tag.
"""

from collections.abc import Iterator
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import tables
from bert_jax.tasks.files import tags as tags_lib
from bert_jax.tasks.files.tables import Record, get

DOCUMENT = "-DOCSTART-"
_SPACES = " \t"


class Sentence(Record):
  """A record whose words stand on lines of their own, from `where` on."""


def where_of(record: Record, word: int) -> str:
  """Returns FILE:LINE of a word, or of its record if words share a line."""
  if not isinstance(record, Sentence):
    return record.where
  path, _, line = record.where.rpartition(":")
  return f"{path}:{int(line) + word}"


def published_records(path: str) -> Iterator[Record]:
  """Reads the records of a published task, in columns or as .jsonl.

  Raises:
    ValueError: a line is bad; the message names the file and the line.
  """
  if not tables.is_jsonl(path):
    yield from records(path)
    return
  for record in tables.jsonl(path):
    if "words" not in record.fields:
      raise UserError(
        f"{record.where}: no list 'words'; a published task has the columns of"
        " CoNLL, or JSON lines with 'words' and 'tags'. If your columns have"
        " other names, give your task a new name and pass: --kind tagging"
        " --columns words=NAME,tags=NAME."
      )
    yield record


def records(path: str, tag: int = -1, word: int = 1) -> Iterator[Sentence]:
  """Reads the sentences of a file, in order.

  Args:
    path: the file; if it has one column, that is the word.
    tag: number of the tag's column, from 1, or from the end by -1.
    word: the same of the word.

  Raises:
    ValueError: a line with another number of columns than the first, or no
      column of that number.
  """
  words: list[str] = []
  tags: list[str] = []
  document, begin, columns = 0, 0, None
  for number, line in enumerate([*tables.lines(path), ""], 1):
    # WNUT17 has a tab in its blank lines; other white space may be a word.
    blank = not line.strip(_SPACES if columns == 1 else None)
    values = line.split("\t") if "\t" in line else line.split(" ")
    if "\t" not in line:
      values = [value for value in values if value]
    if blank or DOCUMENT in values:
      if words:
        yield _sentence(path, words, tags, document, begin)
      words, tags = [], []
      document += not blank
      continue
    where = f"{path}:{number}"
    if columns is None:
      columns = len(values)
      _check_commas(path, values, where)
      places = _places(columns, word, tag, where)
    if len(values) != columns:
      raise UserError(
        f"{where}: {len(values)} columns where the first line has {columns}; a"
        " word and its tag stand in each line."
      )
    if not values[places[0]].strip(_SPACES):
      raise UserError(
        f"{where}: no word in column {places[0] + 1}; blank lines alone stand"
        " between sentences."
      )
    if not words:
      begin = number
    words.append(values[places[0]])
    tags += [values[place].strip() for place in places[1:]]


def _check_commas(path: str, values: list[str], where: str) -> None:
  """Raises ValueError for the first line of a .csv with commas alone."""
  if len(values) > 1 or not path.lower().endswith(".csv"):
    return
  parts = values[0].split(",")
  if len(parts) > 1 and all(parts[:2]):
    raise UserError(
      f"{where}: commas between the columns of a file with a word a line;"
      " write tabs or spaces for them, or, of a table with a sentence a line,"
      " its names: --columns words=NAME,tags=NAME."
    )


def _places(columns: int, word: int, tag: int, where: str) -> list[int]:
  """Places of the word and, of several columns, of its tag."""
  if columns == 1:
    return [0]
  for what, place in (("words", word), ("tags", tag)):
    if not 1 <= abs(place) <= columns:
      raise UserError(
        f"{where}: no column {place} for the {what}; there are {columns}."
      )
  places = [(place - (place > 0)) % columns for place in (word, tag)]
  if places[0] == places[1]:
    raise UserError(
      f"{where}: of {columns} columns, {word} and {tag} are the same; words and"
      " tags need one each."
    )
  return places


def _sentence(
  path: str, words: list[str], tags: list[str], document: int, begin: int
) -> Sentence:
  fields = dict(words=words, tags=tags or None, document=document or None)
  return Sentence(fields, f"{path}:{begin}")


def parse(task: Task, record: Record, needed: bool) -> dict[str, Any]:
  """Makes an example of a sentence; IOB1 becomes IOB2 in CoNLL-2003.

  Args:
    task: a task of kind tagging.
    record: with `words`, and `tags` if it has them.
    needed: True if a record without tags is an error.

  Raises:
    ValueError: no tags where there must be, another number of them than words,
      one that is no text, or one that the task has not.
  """
  words = get(record, "words")
  if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
    raise UserError(f"{record.where}: 'words' is no list of texts.")
  tags = record.fields.get("tags")
  if tags is None and needed:
    get(record, "tags")
    what = "; training needs them"
    if isinstance(record, Sentence):
      what = (
        ": the first line has one column, and training needs tags in another;"
        " tabs or spaces stand between columns"
      )
    raise UserError(f"{record.where}: no tags{what}.")
  if tags is not None:
    if not isinstance(tags, list) or len(tags) != len(words):
      count = len(tags) if isinstance(tags, list) else "no list of"
      raise UserError(
        f"{record.where}: {count} tags for {len(words)} words; every word has"
        " one."
      )
    tags = _named(task, tags, record)
    if task.name == "conll2003":
      tags = tags_lib.to_iob2(tags)
  return dict(words=words, tags=tags, document=record.fields.get("document"))


def _named(task: Task, tags: list[Any], record: Record) -> list[str]:
  """Returns the names of tags; the name of a number is its digits.

  Raises:
    ValueError: a tag is no name, or is not a label of the task.
  """
  names = []
  for i, tag in enumerate(tags):
    location = where_of(record, i)
    if type(tag) is int:
      tag = str(tag)
    if not isinstance(tag, str) or not tag.strip():
      raise UserError(f"{location}: tag {tag!r:.60} is not the name of a tag.")
    if task.labels and tag not in task.labels:
      if task.metrics == ("tagging_f1",):
        tags_lib.check_published(tag, location)
      raise UserError(
        f"{location}: tag {tag!r:.60} is none of {', '.join(task.labels)}."
      )
    names.append(tag)
  return names
