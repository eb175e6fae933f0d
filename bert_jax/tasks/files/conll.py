"""Reads words with tags in CoNLL columns, with one word on each line.

Blank lines separate sentences. In CoNLL-2003 (Tjong Kim Sang and De Meulder
2003) there are four columns, and documents begin with -DOCSTART-. In WNUT17
(Derczynski et al. 2017) a line has a word, a tab and a tag.
"""

from collections.abc import Iterator
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import tables
from bert_jax.tasks.files import tags as tags_lib
from bert_jax.tasks.files.tables import Record, get_cell

DOCUMENT_LINE = "-DOCSTART-"
_SPACE_AND_TAB = " \t"


class Sentence(Record):
  """Holds a sentence of a file that has a word on each line.

  `location` is the line of the first word.
  """


def location_of(record: Record, word_index: int) -> str:
  """Returns FILE:LINE of a word.

  If the record is no `Sentence`, this is the location of the record.

  Args:
    record: a record with words.
    word_index: the index of the word, from 0.
  """
  if not isinstance(record, Sentence):
    return record.location
  path, _, line = record.location.rpartition(":")
  return f"{path}:{int(line) + word_index}"


def published_records(path: str) -> Iterator[Record]:
  """Reads the records of a published task, in columns or as .jsonl.

  Raises:
    ValueError: a line is wrong; the message names the file and the line.
  """
  if not tables.is_jsonl(path):
    yield from records(path)
    return
  for record in tables.jsonl_records(path):
    if "words" not in record.fields:
      raise UserError(
        f"{record.location} has no list 'words'; a published task has the"
        " columns of CoNLL, or JSON lines with 'words' and 'tags'. If your"
        " columns have other names, give your task a new name and pass: --kind"
        " tagging --columns words=NAME,tags=NAME."
      )
    yield record


def records(
  path: str, tag_column: int = -1, word_column: int = 1
) -> Iterator[Sentence]:
  """Reads the sentences of a file, in order.

  Args:
    path: the file. If it has only one column, this column has the words.
    tag_column: the number of the column of tags. The first column is 1, the
      last column is -1.
    word_column: the number of the column of words, counted like `tag_column`.

  Raises:
    ValueError: a line does not have as many columns as the first line, or there
      is no such column of tags or words.
  """
  words: list[str] = []
  tags: list[str] = []
  document_number, first_line, num_columns = 0, 0, None
  for line_number, line in enumerate([*tables.read_lines(path), ""], 1):
    # WNUT17 has a tab in its blank lines. In a file with one column, any white
    # space except tabs and spaces may be a word.
    is_blank = not line.strip(_SPACE_AND_TAB if num_columns == 1 else None)
    cells = line.split("\t") if "\t" in line else line.split(" ")
    if "\t" not in line:
      cells = [cell for cell in cells if cell]
    if is_blank or DOCUMENT_LINE in cells:
      if words:
        yield _make_sentence(path, words, tags, document_number, first_line)
      words, tags = [], []
      document_number += not is_blank
      continue
    location = f"{path}:{line_number}"
    if num_columns is None:
      num_columns = len(cells)
      _check_commas(path, cells, location)
      column_indices = _column_indices(
        num_columns, word_column, tag_column, location
      )
    if len(cells) != num_columns:
      raise UserError(
        f"{location} has {len(cells)} columns, but the first line has"
        f" {num_columns}; each line needs a word and its tag."
      )
    if not cells[column_indices[0]].strip(_SPACE_AND_TAB):
      raise UserError(
        f"{location} has no word in column {column_indices[0] + 1}; a line"
        " between sentences must be blank."
      )
    if not words:
      first_line = line_number
    words.append(cells[column_indices[0]])
    tags += [cells[index].strip() for index in column_indices[1:]]


def _check_commas(path: str, cells: list[str], location: str) -> None:
  """Raises ValueError if only commas separate the columns of a .csv.

  Args:
    path: the file.
    cells: the first line, split at tabs or spaces.
    location: FILE:LINE, for messages.
  """
  if len(cells) > 1 or not path.lower().endswith(".csv"):
    return
  column_texts = cells[0].split(",")
  if len(column_texts) > 1 and all(column_texts[:2]):
    raise UserError(
      f"{location} has commas between the columns of a file with a word on each"
      " line; write tabs or spaces instead. If each line has a sentence, give"
      " the names of its columns: --columns words=NAME,tags=NAME."
    )


def _column_indices(
  num_columns: int, word_column: int, tag_column: int, location: str
) -> list[int]:
  """Returns the index of the column of words, and of tags if there is one.

  Args:
    num_columns: the number of columns.
    word_column: see `records`.
    tag_column: see `records`.
    location: FILE:LINE, for messages.
  """
  if num_columns == 1:
    return [0]
  for role, number in (("words", word_column), ("tags", tag_column)):
    if not 1 <= abs(number) <= num_columns:
      raise UserError(
        f"{location} has no column {number} for the {role}; it has"
        f" {num_columns} columns."
      )
  indices = [
    (number - (number > 0)) % num_columns
    for number in (word_column, tag_column)
  ]
  if indices[0] == indices[1]:
    raise UserError(
      f"{location}: with {num_columns} columns, column {word_column} and column"
      f" {tag_column} are the same; words and tags need a column each."
    )
  return indices


def _make_sentence(
  path: str, words: list[str], tags: list[str], document: int, first_line: int
) -> Sentence:
  """Returns the record of a sentence that begins at line `first_line`."""
  fields = dict(words=words, tags=tags or None, document=document or None)
  return Sentence(fields, f"{path}:{first_line}")


def parse(task: Task, record: Record, needs_label: bool) -> dict[str, Any]:
  """Makes an example from a sentence, and turns CoNLL-2003's IOB1 into IOB2.

  Args:
    task: a task of kind tagging.
    record: a record with `words`, and `tags` unless it is unlabelled.
    needs_label: True if a record without tags is an error.

  Raises:
    ValueError: needed tags are missing, there are not as many tags as words, or
      a tag is not a text or not a label of the task.
  """
  words = get_cell(record, "words")
  if not isinstance(words, list) or not all(
    isinstance(word, str) for word in words
  ):
    raise UserError(f"{record.location}: 'words' is not a list of texts.")
  tags = record.fields.get("tags")
  if tags is None and needs_label:
    get_cell(record, "tags")
    remedy = "; training needs them"
    if isinstance(record, Sentence):
      remedy = (
        ": the first line has one column, and training needs tags in another;"
        " write tabs or spaces between columns"
      )
    raise UserError(f"{record.location} has no tags{remedy}.")
  if tags is not None:
    if not isinstance(tags, list) or len(tags) != len(words):
      tag_count = len(tags) if isinstance(tags, list) else "no list of"
      raise UserError(
        f"{record.location} has {tag_count} tags for {len(words)} words; every"
        " word needs one tag."
      )
    tags = _read_tags(task, tags, record)
    if task.name == "conll2003":
      tags = tags_lib.to_iob2(tags)
  return dict(words=words, tags=tags, document=record.fields.get("document"))


def _read_tags(task: Task, tags: list[Any], record: Record) -> list[str]:
  """Returns the names of tags. A tag that is a number is named by its digits.

  Raises:
    ValueError: a tag is not a name, or is not a label of the task.
  """
  names = []
  for i, tag in enumerate(tags):
    location = location_of(record, i)
    if type(tag) is int:
      tag = str(tag)
    if not isinstance(tag, str) or not tag.strip():
      raise UserError(f"{location}: tag {tag!r:.60} is not the name of a tag.")
    if task.labels and tag not in task.labels:
      if task.metrics == ("tagging_f1",):
        tags_lib.check_prefix(tag, location)
      raise UserError(
        f"{location}: tag {tag!r:.60} is not one of {', '.join(task.labels)}."
      )
    names.append(tag)
  return names
