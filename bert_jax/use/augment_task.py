"""Augments a task's training file for TinyBERT's task stages.

The output has each line of the input, followed by the line's variants, which
have the same label. `bert_jax prepare-task` reads the output as a file of the
same task.
"""

import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from bert_jax import files
from bert_jax.messages import Progress, UserError
from bert_jax.tasks import task_inputs
from bert_jax.tasks.files import custom, glue
from bert_jax.tasks.published import TaskFormat
from bert_jax.use import augmentation, predict, text_inputs, word_vectors
from bert_jax.use.augmentation import Example, Options

_TAB_OR_LINE_BREAK = re.compile(r"[\t\r\n]")


class AugmentedFile(NamedTuple):
  """Says how many examples a file has before and after its augmentation.

  Attributes:
    num_read: the number of examples in the input.
    num_written: the number of examples in the output: the examples of the input
      and their variants.
    skipped_lines: the file and the number of each line that was left out
      because it lacks columns.
  """

  num_read: int
  num_written: int
  skipped_lines: list[str]


def augment(
  model_path: str,
  task: str,
  source: str,
  target: str,
  vectors: str | None = None,
  options: Options = Options(),  # noqa: B008, it is immutable
  kind: str | None = None,
  columns: str | None = None,
  batch_size: int = 128,
  dtype: str = "float32",
  family: str | None = None,
) -> AugmentedFile:
  """Writes the examples of a file, and their variants, into a new file.

  Args:
    model_path: the path of a BERT with a masked-LM head; see
      `predict.open_predictor`.
    task: the name of a published or custom task with one or two texts.
    source: the task's training file.
    target: the .tsv file to write. It is written completely or not at all.
    vectors: a file in GloVe's text format. None leaves words of several pieces
      unchanged.
    options: how variants are drawn.
    kind: the kind of a custom task; None means a published task.
    columns: the columns of a custom task; see `custom.parse_columns`.
    batch_size: the number of rows in a batch.
    dtype: the dtype of the computation.
    family: the family, if a transformers folder's config.json names no family.

  Raises:
    UserError: an argument or a line of the file is wrong. Nothing is written.
  """
  _check_arguments(source, target, options)
  task_format, column_names = task_and_columns(task, kind, columns)
  skipped_lines: list[str] = []
  # Read the whole file before the model runs, to report a bad line early.
  num_read = sum(1 for _ in _read_examples(task_format, source, skipped_lines))
  if not num_read:
    raise UserError(f"{source} has no examples; give a file of the task.")
  glove_vectors = None
  if vectors:
    with Progress(f"reading {vectors}"):
      glove_vectors = word_vectors.read(vectors)
  predictor = _open_predictor(
    model_path, batch_size, options.num_candidates, dtype, family
  )
  num_written = 0
  examples = _read_examples(task_format, source, [])
  with (
    Progress(f"augmenting {source}", num_read, "examples") as progress,
    files.atomic_file(target) as partial_path,
    pathlib.Path(partial_path).open("w", encoding="utf-8", newline="\n") as f,
  ):
    f.write("\t".join(column_names) + "\n")
    for example in augmentation.add_variants(
      predictor, glove_vectors, options, examples, progress.report
    ):
      f.write("\t".join([*example.texts, example.label]) + "\n")
      num_written += 1
  return AugmentedFile(num_read, num_written, skipped_lines)


def _check_arguments(source: str, target: str, options: Options) -> None:
  """Raises UserError if an option or the name of the output is wrong."""
  if not 0 <= options.threshold <= 1:
    raise UserError(f"threshold={options.threshold} must be from 0 to 1.")
  if options.seed < 0:
    raise UserError(f"seed={options.seed} must be at least 0.")
  if not target.lower().endswith(".tsv"):
    raise UserError(
      f"the output {target} must end in .tsv, because tabs separate its"
      " columns."
    )
  text_inputs.check_not_same_file(source, target)


def task_and_columns(
  name: str, kind: str | None, columns: str | None
) -> tuple[TaskFormat, list[str]]:
  """Returns a task with one or two texts, and the names of its columns.

  Args:
    name: the task's name.
    kind: the kind of a custom task; None means a published task.
    columns: the columns of a custom task; None means a published task.

  Raises:
    UserError: no task has this name, or its examples are not one or two texts.
  """
  task_format = task_inputs.find_task(name, kind, columns)
  if columns is None:
    if name not in glue.TEXT_COLUMNS:
      raise UserError(
        f"the task {name} cannot be augmented; choose one of"
        f" {', '.join(glue.TEXT_COLUMNS)}, or give the columns of your own task"
        " with one or two texts."
      )
    return task_format, [*glue.TEXT_COLUMNS[name], "label"]
  name_by_role = custom.parse_columns(columns, task_format.task.kind)
  text_columns = [
    name_by_role[role] for role in ("text", "pair") if role in name_by_role
  ]
  label_columns = name_by_role.get(custom.LABEL_COLUMNS)
  return task_format, [
    *text_columns,
    *(label_columns or [name_by_role.get("label", "label")]),
  ]


def _read_examples(
  task_format: TaskFormat, path: str, skipped_lines: list[str]
) -> Iterator[Example]:
  """Yields a file's examples; appends lines that lack columns to a list."""
  for record in task_format.read_records(path, skipped_lines):
    # True: each record needs a label.
    for example in task_format.parse_record(record, True):
      # Texts in JSON and CSV files may contain tabs and line breaks.
      texts = tuple(
        _TAB_OR_LINE_BREAK.sub(" ", text) for text in example["texts"]
      )
      label_columns = (task_format.columns or {}).get(custom.LABEL_COLUMNS)
      if label_columns:
        cells = (str(int(name in example["label"])) for name in label_columns)
        yield Example(texts, "\t".join(cells))
        continue
      label = str(example["label"])
      if _TAB_OR_LINE_BREAK.search(label):
        raise UserError(
          f"{record.location}: label {label!r:.60} has a tab or a line break,"
          " which no .tsv can hold."
        )
      yield Example(texts, label)


def _open_predictor(
  path: str,
  batch_size: int,
  num_candidates: int,
  dtype: str,
  family: str | None,
) -> predict.Predictor:
  """Opens a model that fills masks and has WordPiece, or raises UserError."""
  predictor = predict.open_predictor(
    path, batch_size, top_k=num_candidates, dtype=dtype, family=family
  )
  if predictor.kind != "fill":
    raise UserError(
      f"{path} is a model for {predictor.kind}; augmentation needs a"
      " pre-trained model with its masked-LM head."
    )
  if predictor.vocabulary.algorithm != "wordpiece":
    raise UserError(
      f"{path} has a tokenizer of kind {predictor.vocabulary.algorithm};"
      " augmentation needs BERT's WordPiece."
    )
  return predictor
