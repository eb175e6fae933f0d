"""Files and a tokenizer to a folder of features."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

from bert_jax import files
from bert_jax.messages import UserError, note
from bert_jax.tasks import (
  encode,
  encoded_rows,
  layouts,
  questions,
  tagging,
  task_inputs,
)
from bert_jax.tasks.encode import Encoded
from bert_jax.tasks.encoded_rows import Examples, Task
from bert_jax.tasks.published import TaskFiles
from bert_jax.text import open_vocabulary, token_files
from bert_jax.text.vocabulary import Vocabulary

# Raise this number whenever the encoding changes, so that old folders are not
# taken for current ones.
VERSION = 1


def encode_examples(
  task: Task,
  examples: Examples,
  vocabulary: Vocabulary,
  length: int,
  *,
  context: bool = False,
  stride: int = questions.STRIDE,
  max_question: int = questions.MAX_QUESTION,
) -> Encoded:
  """Encodes the examples of a task of any kind.

  Args:
    task: the task.
    examples: see `rows`.
    vocabulary: text to ids.
    length: tokens in a row at most.
    context: see `tagging.rows`.
    stride: see `questions.rows`.
    max_question: see `questions.rows`.

  Raises:
    ValueError: no room, or an unknown label.
  """
  if task.kind == "span":
    return questions.rows(examples, vocabulary, length, stride, max_question)
  if task.kind == "tagging":
    return tagging.rows(task, examples, vocabulary, length, context)
  return encode.texts(task, examples, vocabulary, length)


def prepare(
  task_files: TaskFiles,
  inputs: Sequence[task_inputs.Input],
  vocab: str,
  output: str,
  length: int | None = None,
  stride: int = questions.STRIDE,
  max_question: int = questions.MAX_QUESTION,
  add_tokens: str | None = None,
  **options: Any,
) -> dict[str, Any]:
  """Writes a folder of features; does nothing if it is there already.

  Args:
    task_files: the task, from `task_inputs.find`.
    inputs: the files to read.
    vocab: see `open_vocabulary.load`.
    output: the folder.
    length: tokens in a row at most; None for the task's own.
    stride: of windows of questions' contexts.
    max_question: tokens of a question at most.
    add_tokens: a file of tokens to add to the vocabulary, see `token_files`.
    **options: options of the tokenizer.

  Returns:
    `meta.json`. Its `notes` are what happened -> which examples (ten at most),
    and how many.

  Raises:
    ValueError: bad input, or a folder that was made from something else.
  """
  vocabulary = open_vocabulary.load(vocab, **options)
  if line := open_vocabulary.warning(vocabulary, vocab):
    note(line)
  if add_tokens is not None:
    vocabulary, line = token_files.extend(vocabulary, add_tokens)
    note(line)
  length = length or task_files.length
  paths = [path for i in inputs for path in _paths(i.path)]
  watch = files.Watch(filter(os.path.isfile, paths))
  made_from = dict(
    version=VERSION,
    task=[*task_files.task],
    length=length,
    stride=stride,
    max_question=max_question,
    tokenizer=_digest_tokenizer(vocabulary),
    input=[[i.split, _digest(i.path)] for i in inputs],
  )
  if vocabulary.added:
    made_from["added_tokens"] = [token.content for token in vocabulary.added]
  if task_files.columns is not None:
    made_from["columns"] = task_files.columns
  # As JSON has it.
  made_from["task"] = [
    list(x) if type(x) is tuple else x for x in task_files.task
  ]
  if os.path.exists(output):
    return _same(output, made_from)
  try:
    read = task_inputs.read(task_files, inputs)
  except ValueError:
    # Half of a new file may be no file of its kind.
    watch.check_input()
    raise
  watch.check_input()
  around = layouts.of_vocabulary(vocabulary)
  splits, notes = {}, _notes_of(read)
  for split, examples in read.splits.items():
    encoded = encode_examples(
      read.task,
      examples,
      vocabulary,
      length,
      context=task_files.context,
      stride=stride,
      max_question=max_question,
    )
    splits[split] = encoded.rows, examples
    notes.setdefault(split, {}).update(
      {what: [len(ids), ids[:10]] for what, ids in encoded.notes.items()}
    )
  meta = dict(
    length=length,
    pad=around.pad,
    vocab_size=around.vocab_size,
    extra_tokens=list(around.extra),
    tokenizer=vocabulary.kind,
    lower_case=vocabulary.lower_case,
    special=vocabulary.special._asdict(),
    notes=notes,
    made_from=made_from,
  )
  tokenizer_files = open_vocabulary.contents(vocabulary)
  encoded_rows.save(output, read.task, splits, meta, tokenizer_files)
  return encoded_rows.read_meta(output)


def _notes_of(read: task_inputs.Read) -> dict[str, dict[str, list[Any]]]:
  """What is worth a line of the files as a whole: sentence -> [count, some]."""
  notes: dict[str, dict[str, list[Any]]] = {}
  if read.skipped:
    some = [len(read.skipped), read.skipped[:10]]
    notes["files"] = {"lines left out for their number of columns": some}
  if read.notes:
    notes["labels"] = {sentence: [0, []] for sentence in read.notes}
  return notes


def sizes(meta: dict[str, Any]) -> list[str]:
  """Returns a line for each split of a prepared task, which says its size.

  Args:
    meta: the content of `meta.json`.
  """
  return [
    f"{split}: {counts['examples']} examples, {counts['rows']} rows of"
    f" {counts['tokens'] / counts['rows']:.1f} tokens on average"
    for split, counts in meta["splits"].items()
  ]


def notes(meta: dict[str, Any]) -> list[str]:
  """Returns a line for each kind of example that was not used as it is.

  Args:
    meta: the content of `meta.json`.
  """
  lines = []
  for split, kinds in meta["notes"].items():
    for what, (count, examples) in kinds.items():
      more = ", ..." if count > len(examples) else ""
      listed = f"{count} {what}: {', '.join(examples)}{more}"
      lines.append(f"{split}: {listed if count else what}")
  return lines


def _same(output: str, made_from: dict[str, Any]) -> dict[str, Any]:
  """The metadata of a folder made from the same; ValueError if it is not."""
  meta = encoded_rows.read_meta(output)
  old = meta.get("made_from", {})
  other = [name for name in made_from if old.get(name) != made_from[name]]
  if other:
    raise UserError(
      f"{output} is there already, made with another {' and '.join(other)};"
      " delete it, or choose another --output."
    )
  return meta


def _digest_tokenizer(vocabulary: Vocabulary) -> str:
  """A hash of all files of a tokenizer, its settings among them."""
  digest = hashlib.sha256()
  contents = open_vocabulary.contents(vocabulary, with_digests=False)
  for name, content in sorted(contents.items()):
    digest.update(f"{name} {len(content)}\n".encode() + content)
  return digest.hexdigest()


def _digest(path: str) -> str:
  """A hash of an input's content; of `tfds:` its name."""
  digest = hashlib.sha256()
  for name in _paths(path):
    if os.path.isfile(name):
      digest.update(bytes.fromhex(files.file_digest(name)))
    else:
      digest.update(name.encode())
  return digest.hexdigest()


def _paths(path: str) -> list[str]:
  """The path of an input, or those of what is in its folder, sorted."""
  if not os.path.isdir(path):
    return [path]
  pairs = ((at, name) for at, _, names in os.walk(path) for name in names)
  return sorted(os.path.join(*pair) for pair in pairs)
