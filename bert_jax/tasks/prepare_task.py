"""Makes a task folder from the files of a task and a tokenizer."""

import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any

from etils import epath

from bert_jax import files
from bert_jax.messages import Progress, UserError, note
from bert_jax.tasks import (
  encode,
  encoded_rows,
  layouts,
  questions,
  tagging,
  task_inputs,
)
from bert_jax.tasks.encode import EncodedExamples
from bert_jax.tasks.encoded_rows import Examples, Task
from bert_jax.tasks.published import TaskFormat
from bert_jax.text import open_vocabulary, token_files
from bert_jax.text.vocabulary import Vocabulary

# Raise this number whenever the encoding changes, so that no folder with an
# earlier encoding is used.
ENCODING_VERSION = 1


class TaskFolderDiffers(UserError):
  """A task folder exists, and was made from other inputs or settings.

  Attributes:
    changed: the keys of `made_from` in `meta.json` whose values differ.
  """

  def __init__(self, message: str, changed: Sequence[str]):
    """Stores the keys of the values that differ."""
    super().__init__(message)
    self.changed = tuple(changed)


def encode_examples(
  task: Task,
  examples: Examples,
  vocabulary: Vocabulary,
  length: int,
  *,
  with_context: bool = False,
  stride: int = questions.STRIDE,
  max_question: int = questions.MAX_QUESTION,
) -> EncodedExamples:
  """Encodes the examples of a task of any kind.

  Args:
    task: the task.
    examples: the examples, see `encoded_rows`.
    vocabulary: turns text into ids.
    length: the largest number of tokens in a row.
    with_context: see `tagging.encode_sentences`.
    stride: see `questions.encode_questions`.
    max_question: see `questions.encode_questions`.

  Raises:
    ValueError: `length` has no space for text, or a label is unknown.
  """
  if task.kind == "span":
    return questions.encode_questions(
      examples, vocabulary, length, stride, max_question
    )
  if task.kind == "tagging":
    return tagging.encode_sentences(
      task, examples, vocabulary, length, with_context
    )
  return encode.encode_texts(task, examples, vocabulary, length)


def prepare(
  task_format: TaskFormat,
  inputs: Sequence[task_inputs.Input],
  vocab: str,
  output: str,
  length: int | None = None,
  stride: int = questions.STRIDE,
  max_question: int = questions.MAX_QUESTION,
  add_tokens: str | None = None,
  **options: Any,
) -> dict[str, Any]:
  """Writes a task folder, unless it exists already.

  Args:
    task_format: the task, from `task_inputs.find_task`.
    inputs: the files to read.
    vocab: the path of the vocabulary, see `open_vocabulary.load`.
    output: the path of the task folder.
    length: the largest number of tokens in a row; by default the task's
      published length.
    stride: see `questions.encode_questions`.
    max_question: see `questions.encode_questions`.
    add_tokens: a file of tokens to add to the vocabulary, see `token_files`.
    **options: options of the tokenizer.

  Returns:
    The content of `meta.json`. Its entry `notes` is {split: {event: [the number
    of examples, the ids of the first ten examples]}}.

  Raises:
    ValueError: an input is wrong, or the folder exists and was not made from
      these inputs and settings.
  """
  with Progress(f"preparing {output}") as progress:
    return _prepare(
      task_format,
      inputs,
      vocab,
      output,
      length or task_format.length,
      stride,
      max_question,
      add_tokens,
      options,
      progress,
    )


def _prepare(
  task_format: TaskFormat,
  inputs: Sequence[task_inputs.Input],
  vocab: str,
  output: str,
  length: int,
  stride: int,
  max_question: int,
  add_tokens: str | None,
  options: dict[str, Any],
  progress: Progress,
) -> dict[str, Any]:
  """Does the work of `prepare`, and shows each step on `progress`."""
  vocabulary = open_vocabulary.load(vocab, **options)
  if note_text := open_vocabulary.unreachable_warning(vocabulary, vocab):
    note(note_text)
  if add_tokens is not None:
    vocabulary, note_text = token_files.add_from_file(vocabulary, add_tokens)
    note(note_text)
  progress.describe("reading")
  paths = [
    path for task_input in inputs for path in _input_paths(task_input.path)
  ]
  file_watch = files.FileWatch(
    path for path in paths if pathlib.Path(path).is_file()
  )
  made_from: dict[str, Any] = dict(
    version=ENCODING_VERSION,
    # JSON has lists instead of tuples.
    task=[
      list(field) if type(field) is tuple else field
      for field in task_format.task
    ],
    length=length,
    stride=stride,
    max_question=max_question,
    tokenizer=_digest_tokenizer(vocabulary),
    input=[
      [task_input.split, _digest_input(task_input.path)]
      for task_input in inputs
    ],
  )
  if vocabulary.added_tokens:
    made_from["added_tokens"] = [
      token.content for token in vocabulary.added_tokens
    ]
  if task_format.columns is not None:
    made_from["columns"] = task_format.columns
  if epath.Path(output).exists():
    return _read_same_meta(output, made_from)
  try:
    contents = task_inputs.read(task_format, inputs)
  except ValueError:
    # If a program is still writing an input, report this rather than the wrong
    # format that a half-written file often has.
    file_watch.check_command_input()
    raise
  file_watch.check_command_input()
  layout = layouts.layout_of(vocabulary)
  splits, notes = {}, _input_notes(contents)
  for split, examples in contents.splits.items():
    progress.describe(f"encoding {len(examples):,} examples of {split}")
    encoded = encode_examples(
      contents.task,
      examples,
      vocabulary,
      length,
      with_context=task_format.with_context,
      stride=stride,
      max_question=max_question,
    )
    splits[split] = encoded.rows, examples
    notes.setdefault(split, {}).update(
      {event: [len(ids), ids[:10]] for event, ids in encoded.notes.items()}
    )
  progress.describe("writing")
  meta = dict(
    length=length,
    pad=layout.pad,
    vocab_size=layout.vocab_size,
    extra_tokens=list(layout.new_tokens),
    tokenizer=vocabulary.algorithm,
    lower_case=vocabulary.lower_case,
    special=vocabulary.special._asdict(),
    notes=notes,
    made_from=made_from,
  )
  tokenizer_files = open_vocabulary.to_files(vocabulary)
  encoded_rows.save(output, contents.task, splits, meta, tokenizer_files)
  return encoded_rows.read_meta(output)


def _input_notes(
  contents: task_inputs.Contents,
) -> dict[str, dict[str, list[Any]]]:
  """Returns notes about all inputs together, in the form of `meta.json`."""
  notes: dict[str, dict[str, list[Any]]] = {}
  if contents.skipped_lines:
    count_and_lines = [len(contents.skipped_lines), contents.skipped_lines[:10]]
    notes["files"] = {
      "lines left out for their number of columns": count_and_lines
    }
  if contents.notes:
    # A number of 0 says that the event is a whole sentence; see `note_lines`.
    notes["labels"] = {sentence: [0, []] for sentence in contents.notes}
  return notes


def size_lines(meta: dict[str, Any]) -> list[str]:
  """Returns a line about the size of each split.

  Args:
    meta: the content of `meta.json`.
  """
  return [
    f"{split}: {counts['examples']} examples, {counts['rows']} rows of"
    f" {counts['tokens'] / counts['rows']:.1f} tokens on average"
    for split, counts in meta["splits"].items()
  ]


def note_lines(meta: dict[str, Any]) -> list[str]:
  """Returns a line for each event in the notes of a task folder.

  Args:
    meta: the content of `meta.json`.
  """
  lines = []
  for split, events in meta["notes"].items():
    for event, (count, names) in events.items():
      dots = ", ..." if count > len(names) else ""
      event_line = f"{count} {event}: {', '.join(names)}{dots}"
      lines.append(f"{split}: {event_line if count else event}")
  return lines


def _read_same_meta(output: str, made_from: dict[str, Any]) -> dict[str, Any]:
  """Returns the content of an existing folder's `meta.json`.

  Raises:
    ValueError: the folder was not made from `made_from`.
  """
  meta = encoded_rows.read_meta(output)
  old_made_from = meta.get("made_from", {})
  changed_keys = [
    key for key in made_from if old_made_from.get(key) != made_from[key]
  ]
  if changed_keys:
    raise TaskFolderDiffers(
      f"{output} is there already, made with another"
      f" {' and '.join(changed_keys)}; delete it, or choose another output.",
      changed_keys,
    )
  return meta


def _digest_tokenizer(vocabulary: Vocabulary) -> str:
  """Returns a hash of all files of a tokenizer, including its settings."""
  digest = hashlib.sha256()
  contents = open_vocabulary.to_files(vocabulary, with_digests=False)
  for name, content in sorted(contents.items()):
    digest.update(f"{name} {len(content)}\n".encode() + content)
  return digest.hexdigest()


def _digest_input(path: str) -> str:
  """Returns a hash of an input: of its content, or of the name `tfds:...`."""
  digest = hashlib.sha256()
  for input_path in _input_paths(path):
    if pathlib.Path(input_path).is_file():
      digest.update(bytes.fromhex(files.file_digest(input_path)))
    else:
      digest.update(input_path.encode())
  return digest.hexdigest()


def _input_paths(path: str) -> list[str]:
  """Returns the path of an input, or the sorted paths of a folder's files."""
  if not pathlib.Path(path).is_dir():
    return [path]
  return sorted(
    str(file_path)
    for file_path in pathlib.Path(path).rglob("*")
    if not file_path.is_dir()
  )
