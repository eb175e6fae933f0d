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


def records(path: str, tag: int = -1) -> Iterator[Record]:
  """Reads the sentences of a file, in order.

  Args:
    path: the file. The first column is the word.
    tag: number of the tag's column, from the end if negative.

  Raises:
    ValueError: a line with another number of columns than the first.
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
    if values[0] == DOCUMENT:
      document += 1
      continue
    columns = columns or len(values)
    if len(values) != columns or not values[0].strip():
      raise ValueError(
        f"{path}:{number}: {len(values)} columns where the first line has"
        f" {columns}; a word and its tag stand in each line."
      )
    if not words:
      begin = number
    words.append(values[0])
    if columns > 1:
      if not -columns <= tag < columns:
        raise ValueError(f"{path}:{number}: no column {tag}.")
      tags.append(values[tag].strip())


def _sentence(
  path: str, words: list[str], tags: list[str], document: int, begin: int
) -> Record:
  fields: dict[str, Any] = dict(words=words, document=document or None)
  if tags:
    fields["tags"] = tags
  return Record(fields, f"{path}:{begin}")


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
    _check(task, tags, record.where)
    if task.name == "conll2003":
      tags = labels.to_iob2(tags)
  return dict(words=words, tags=tags, document=record.fields.get("document"))


def _check(task: Task, tags: list[Any], where: str) -> None:
  # A file's lines are its words: the tag's own line can be named.
  path, _, line = where.rpartition(":")
  for i, tag in enumerate(tags):
    own = f"{path}:{int(line) + i}" if line.isdigit() else where
    labels.check_tags([str(tag)], own)
    if task.labels and tag not in task.labels:
      raise ValueError(
        f"{own}: tag {tag!r:.60} is none of {', '.join(task.labels)}."
      )
