"""Words with tags: CoNLL columns, a word a line, blank lines between sentences.

CoNLL-2003 (Tjong Kim Sang and De Meulder 2003): four columns, documents begin
with -DOCSTART-; WNUT17 (Derczynski et al. 2017): a word, a tab, a tag.
"""

from collections.abc import Iterator
from typing import Any

from bert_jax.finetune import labels, tables
from bert_jax.finetune.rows import Task
from bert_jax.finetune.tables import Record, get

DOCUMENT = "-DOCSTART-"


class Sentence(Record):
  """A record whose words stand on lines of their own, from `where` on."""


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
    # WNUT17 has a tab in its blank lines.
    if not line.strip():
      if words:
        yield _sentence(path, words, tags, document, begin)
      words, tags = [], []
      continue
    values = line.split("\t") if "\t" in line else line.split()
    if DOCUMENT in values:
      document += 1
      continue
    if columns is None:
      columns = len(values)
      places = _places(columns, word, tag, f"{path}:{number}")
    if len(values) != columns or not values[places[0]].strip():
      raise ValueError(
        f"{path}:{number}: {len(values)} columns where the first line has"
        f" {columns}; a word and its tag stand in each line."
      )
    if not words:
      begin = number
    words.append(values[places[0]])
    tags += [values[place].strip() for place in places[1:]]


def _places(columns: int, word: int, tag: int, where: str) -> list[int]:
  """Places of the word and, of several columns, of its tag."""
  if columns == 1:
    return [0]
  for what, place in (("words", word), ("tags", tag)):
    if not 1 <= abs(place) <= columns:
      raise ValueError(
        f"{where}: no column {place} for the {what}; there are {columns}."
      )
  found = [(place - (place > 0)) % columns for place in (word, tag)]
  if found[0] == found[1]:
    raise ValueError(
      f"{where}: of {columns} columns, {word} and {tag} are the same; words and"
      " tags need one each."
    )
  return found


def _sentence(
  path: str, words: list[str], tags: list[str], document: int, begin: int
) -> Sentence:
  fields: dict[str, Any] = dict(words=words, document=document or None)
  if tags:
    fields["tags"] = tags
  return Sentence(fields, f"{path}:{begin}")


def parse(task: Task, record: Record, needed: bool) -> dict[str, Any]:
  """Makes an example of a sentence; IOB1 becomes IOB2 in CoNLL-2003.

  Args:
    task: of kind tagging.
    record: with `words`, and `tags` if it has them.
    needed: whether it must have tags.

  Raises:
    ValueError: no tags where there must be, another number of them than words,
      one without its prefix, or one that the task has not.
  """
  words = get(record, "words")
  if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
    raise ValueError(f"{record.where}: 'words' is no list of texts.")
  tags = record.fields.get("tags")
  if tags is None and needed:
    get(record, "tags")
    raise ValueError(f"{record.where}: no tags; training needs them.")
  if tags is not None:
    if not isinstance(tags, list) or len(tags) != len(words):
      count = len(tags) if isinstance(tags, list) else "no list of"
      raise ValueError(
        f"{record.where}: {count} tags for {len(words)} words; every word has"
        " one."
      )
    _check(task, tags, record)
    if task.name == "conll2003":
      tags = labels.to_iob2(tags)
  return dict(words=words, tags=tags, document=record.fields.get("document"))


def _check(task: Task, tags: list[Any], record: Record) -> None:
  path, _, line = record.where.rpartition(":")
  for i, tag in enumerate(tags):
    own = record.where
    if isinstance(record, Sentence):
      # The tag's own line can be named.
      own = f"{path}:{int(line) + i}"
    labels.check_tags([str(tag)], own)
    if task.labels and tag not in task.labels:
      raise ValueError(
        f"{own}: tag {tag!r:.60} is none of {', '.join(task.labels)}."
      )
