"""Defines a task's rows of token ids, and writes and reads task folders.

A task folder has these files:
* `meta.json`: the task, how the rows were made, a checksum, and a digest of
  every other file;
* `SPLIT.npz`: the arrays of `Rows`;
* `SPLIT.examples.jsonl`: an example on each line, with its raw fields;
* the tokenizer's files.
A folder gets its name only when all files are written.

An example is a dict. Its field `id` is a text. The field with the label is None
if the example has no label. The other fields depend on the kind of the task:

| kind | field | content |
|---|---|---|
| classification | texts | one or two texts |
| | label | the name of the label |
| | group | the question, if several examples are its possible answers |
| | answer | the text of the possible answer, if there is a group |
| | answers | the texts of all right answers (ReCoRD) |
| regression | texts | one or two texts |
| | label | a number |
| multi_label | texts | one or two texts |
| | label | the names of all labels that apply, [] if none applies |
| choice | texts | for each choice a list of one or two texts |
| | label | the name of the right choice |
| tagging | words | the words of a sentence |
| | tags | the name of the tag of each word |
| span | question, context, title | texts |
| | answers | [{text, answer_start}], [] if there is no answer |
"""

import json
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.messages import DamagedFile, UserError, by_caller, note_once
from bert_jax.text import open_vocabulary

FORMAT_VERSION = 1
KINDS = (
  *("classification", "regression", "multi_label"),
  *("choice", "tagging", "span"),
)
META_FILE = "meta.json"
# The keys of `meta.json` whose values are hashes of its other entries.
FINGERPRINTS = ("fingerprint", "checksum")
# numpy and json raise these errors for a file that is cut off or empty, or has
# a wrong format.
_DAMAGE_ERRORS = (
  *(OSError, KeyError, ValueError, EOFError, TypeError, AttributeError),
  zipfile.BadZipFile,
)


class Task(NamedTuple):
  """Holds the facts about a task that a model and a metric need.

  Attributes:
    name: "sst2", "squad", or the name of a custom task.
    kind: one of `KINDS`.
    labels: the names of classes or tags, in the order of their ids. A task of
      kind regression or span has ().
    num_choices: for kind choice, the number of choices of an example, each of
      which has a row; else 1.
    metrics: the names of the metrics; the first one decides which checkpoint is
      the best.
  """

  name: str
  kind: str
  labels: tuple[str, ...]
  num_choices: int
  metrics: tuple[str, ...]


class Rows(NamedTuple):
  """Holds the encoded rows of one split: N rows with T tokens in all.

  The tokens of row i are `ids[starts[i]:starts[i + 1]]`, special tokens
  included, without padding. The meaning of `labels` depends on the kind:

  | kind | shape, dtype | label | without a label |
  |---|---|---|---|
  | classification | [N] int32 | id of the label | -1 |
  | regression | [N] float32 | number | NaN |
  | multi_label | [N, labels] int32 | 1 if a label applies, else 0 | -1 |
  | choice | [N] int32 | index of the example's right choice | -1 |
  | tagging | [T] int32 | id of a word's tag, at its first piece | -1 |
  | span | [N, 2] int32 | columns of the answer's first and last token | -1 |

  For tagging, a token that is not the first piece of a word has -1. For span, a
  window that does not hold the whole answer has (0, 0).

  Attributes:
    ids: int32 [T], token ids.
    starts: int64 [N + 1], the index of each row's first token, then T.
    second_begins: int32 [N], the column where segment 1 begins; the row's
      length if the row has one segment. For span, the column where the context
      begins, also in families without segments.
    example_indices: int64 [N], the index of each row's example, ascending. An
      example has several rows if it has a long text or choices.
    labels: see the table.
    offsets: int32 [T, 2] for span and tagging, else [0, 2]. For span, a token
      of the context has (begin, end) of its characters in the raw context. For
      tagging, a word's first piece has the index of the word in its example,
      twice. Every other token has (-1, -1).
  """

  ids: np.ndarray
  starts: np.ndarray
  second_begins: np.ndarray
  example_indices: np.ndarray
  labels: np.ndarray
  offsets: np.ndarray


# The names of the arrays in `SPLIT.npz`, in the order of the fields of `Rows`.
ARRAY_NAMES = ("ids", "starts", "second", "example", "labels", "offsets")
Examples = list[dict[str, Any]]
RowsAndExamples = tuple[Rows, Examples]


def named_arrays(rows: Rows) -> dict[str, np.ndarray]:
  """Returns the arrays of rows under their names in `SPLIT.npz`."""
  return dict(zip(ARRAY_NAMES, rows, strict=True))


def lengths(rows: Rows) -> np.ndarray:
  """Returns the number of tokens of each row, int64 [N]."""
  return np.diff(rows.starts)


def save(
  folder: files.PathLike,
  task: Task,
  splits: Mapping[str, RowsAndExamples],
  meta: Mapping[str, Any],
  tokenizer_files: Mapping[str, bytes] | None = None,
) -> None:
  """Writes a task folder. If the call is interrupted, there is no folder.

  Args:
    folder: the path of the folder, which must not exist.
    task: the task.
    splits: split -> (rows, examples).
    meta: JSON values that say how the rows were made. Batches need `pad` (the
      id of padding) and `vocab_size`.
    tokenizer_files: name -> content of the tokenizer's files.

  Raises:
    ValueError: the folder exists, or rows and examples do not fit together.
    OSError: the folder cannot be written.
  """
  target = pathlib.Path(folder)
  if target.exists():
    raise UserError(f"{target} exists; delete it, or choose another name.")
  for name, (rows, examples) in splits.items():
    _check_rows(task, rows, len(examples), f"{target}: split {name}")
  with files.atomic_folder(target) as temporary:
    folder_path = pathlib.Path(temporary)
    for name, (rows, examples) in splits.items():
      with files.create_file(folder_path / f"{name}.npz") as f:
        np.savez(f, allow_pickle=False, **named_arrays(rows))
        files.sync_file(f)
      with files.create_file(folder_path / f"{name}.examples.jsonl") as f:
        for example in examples:
          f.write(json.dumps(example).encode("utf-8") + b"\n")
        files.sync_file(f)
    for name, content in (tokenizer_files or {}).items():
      files.write_durably(folder_path / name, content)
    full_meta = {
      **meta,
      "format_version": FORMAT_VERSION,
      "task": task_fields(task),
    }
    full_meta["splits"] = {
      name: dict(
        examples=len(examples),
        rows=len(rows.example_indices),
        tokens=len(rows.ids),
      )
      for name, (rows, examples) in splits.items()
    }
    file_names = sorted(path.name for path in folder_path.iterdir())
    full_meta["files"] = files.folder_digests(temporary, file_names)
    full_meta = json.loads(json.dumps(full_meta))
    full_meta["fingerprint"] = _fingerprint(full_meta)
    files.write_json(folder_path / META_FILE, files.add_checksum(full_meta))


def _fingerprint(meta: Mapping[str, Any]) -> str:
  """Returns a hash of `meta.json`, which has a digest of every other file.

  The hash does not depend on the names of the input files or on notes.
  """
  skipped_keys = (*FINGERPRINTS, "made_from", "notes")
  entries = {key: meta[key] for key in meta if key not in skipped_keys}
  return files.content_digest(json.dumps(entries, sort_keys=True).encode())


def read_meta(folder: files.PathLike) -> dict[str, Any]:
  """Reads `meta.json`, and checks all files.

  Raises:
    ValueError: the folder is no task folder, has a format version that is not
      `FORMAT_VERSION`, or is damaged.
  """
  path = epath.Path(folder) / META_FILE
  remedy = by_caller(
    "make one with `bert_jax prepare-task --task NAME`",
    "delete it and make the same call again",
  )
  try:
    meta = files.read_json(path)
  except FileNotFoundError as e:
    raise UserError(
      f"{folder} is not a task folder ({META_FILE} is missing); {remedy}."
    ) from e
  except ValueError as e:
    raise DamagedFile(f"{path} is damaged ({e}); make the folder anew.") from e
  if not isinstance(meta, dict) or "task" not in meta:
    if isinstance(meta, dict) and "splits" in meta:
      raise UserError(
        f"{folder} holds text for pre-training; to fine-tune, make a task"
        " folder with `bert_jax prepare-task --task NAME`."
      )
    raise UserError(f"{folder} is a folder, but not a task folder; {remedy}.")
  if meta.get("format_version") != FORMAT_VERSION:
    raise UserError(
      f"{path} has format {meta.get('format_version')}, but this program reads"
      f" format {FORMAT_VERSION}; make the folder anew."
    )
  if not files.has_valid_checksum(meta):
    raise DamagedFile(
      f"{path} is damaged (its checksum differs); make the folder anew."
    )
  _check_files(folder, meta)
  return meta


def _check_files(folder: files.PathLike, meta: Mapping[str, Any]) -> None:
  """Raises ValueError if a file changed, or a tokenizer's file was added."""
  if "files" not in meta:
    note_once(
      f"note: {folder} was prepared by an earlier version, without digests: its"
      " files are not checked. Prepare it again to have them checked."
    )
    return
  changed_files = files.changed_files(meta["files"], folder)
  added_files = [
    name
    for name in open_vocabulary.INPUT_FILES
    if name not in meta["files"] and (epath.Path(folder) / name).exists()
  ]
  if changed_files or added_files:
    fault = (
      f"{changed_files[0]} is not the file that `prepare-task` wrote"
      if changed_files
      else f"{added_files[0]} was added after `prepare-task` wrote the folder"
    )
    raise DamagedFile(
      f"{folder} is damaged: {fault}. Rows, labels and tokenizer belong"
      " together: to change one, delete the folder and prepare the task again."
    )


def task_fields(task: Task) -> dict[str, Any]:
  """Returns a task as a dict for `meta.json` or a checkpoint."""
  # In files, the key of `num_choices` is "columns".
  file_keys = {"num_choices": "columns"}
  return {
    file_keys.get(name, name): value for name, value in task._asdict().items()
  }


def task_of(fields: Mapping[str, Any]) -> Task:
  """Returns the task for which `task_fields` returned `fields`."""
  return Task(
    fields["name"],
    fields["kind"],
    tuple(fields["labels"]),
    int(fields["columns"]),
    tuple(fields["metrics"]),
  )


def gold_field(task: Task) -> str:
  """Returns the name of the field of an example that has its label."""
  return {"tagging": "tags", "span": "answers"}.get(task.kind, "label")


def load(folder: files.PathLike, split: str) -> tuple[Task, Rows, Examples]:
  """Opens a task folder and reads one of its splits.

  Raises:
    ValueError: there is no such folder or split, or a file is damaged.
  """
  return load_split(folder, read_meta(folder), split)


def load_split(
  folder: files.PathLike, meta: Mapping[str, Any], split: str
) -> tuple[Task, Rows, Examples]:
  """Reads one split of an opened folder.

  Args:
    folder: the folder.
    meta: the result of `read_meta`, which has checked all files of the folder.
    split: the split's name.

  Raises:
    ValueError: the folder has no such split, or a file is damaged.
  """
  if split not in meta["splits"]:
    raise UserError(
      f"{folder} has no split {split!r}; it has {', '.join(meta['splits'])}."
    )
  task = task_of(meta["task"])
  path = epath.Path(folder) / f"{split}.npz"
  try:
    with path.open("rb") as f, np.load(f, allow_pickle=False) as arrays:
      rows = Rows(*(arrays[name] for name in ARRAY_NAMES))
    with (path.parent / f"{split}.examples.jsonl").open("rb") as f:
      examples = [files.parse_json(line) for line in f]
    num_examples = meta["splits"][split]["examples"]
    _check_rows(task, rows, num_examples, str(path))
    if len(examples) != num_examples:
      raise ValueError(f"it has {len(examples)} examples")
    # `save` may have been called without the size of the vocabulary.
    vocab_size = meta.get("vocab_size")
    if (
      vocab_size is not None and rows.ids.size and rows.ids.max() >= vocab_size
    ):
      raise ValueError(f"id {rows.ids.max()} is not below {vocab_size}")
    field = gold_field(task)
    for line_number, example in enumerate(examples, 1):
      if not isinstance(example, dict) or field not in example:
        raise ValueError(f"line {line_number} of the examples has no {field}")
  except _DAMAGE_ERRORS as e:
    raise DamagedFile(
      f"{folder}: split {split} is damaged ({e}); make the folder anew."
    ) from e
  return task, rows, examples


def _check_rows(
  task: Task, rows: Rows, num_examples: int, location: str
) -> None:
  """Raises ValueError unless shapes, dtypes and counts fit together.

  Args:
    task: the task.
    rows: the rows of a split.
    num_examples: the number of examples in the split.
    location: the file or split, for messages.
  """
  if task.kind not in KINDS:
    raise UserError(
      f"{location}: kind {task.kind!r} is not one of {list(KINDS)}."
    )
  num_rows, num_tokens = len(rows.example_indices), len(rows.ids)
  label_shapes: dict[str, tuple[int, ...]] = {
    "multi_label": (num_rows, len(task.labels)),
    "tagging": (num_tokens,),
    "span": (num_rows, 2),
  }
  shapes: dict[str, tuple[int, ...]] = {
    "ids": (num_tokens,),
    "starts": (num_rows + 1,),
    "second": (num_rows,),
    "example": (num_rows,),
    "labels": label_shapes.get(task.kind, (num_rows,)),
    "offsets": (num_tokens if task.kind in ("tagging", "span") else 0, 2),
  }
  dtypes: dict[str, type] = {"starts": np.int64, "example": np.int64}
  if task.kind == "regression":
    dtypes["labels"] = np.float32
  for name, array in named_arrays(rows).items():
    shape, dtype = shapes[name], dtypes.get(name, np.int32)
    if array.shape != shape or array.dtype != dtype:
      raise UserError(
        f"{location}: {name} is {array.dtype} {list(array.shape)}, not"
        f" {np.dtype(dtype)} {list(shape)}."
      )
  row_lengths = lengths(rows)
  if rows.starts[0] or rows.starts[-1] != num_tokens or (row_lengths < 1).any():
    raise UserError(f"{location}: `starts` do not fit {num_tokens} tokens.")
  if task.kind == "span" and (rows.second_begins >= row_lengths).any():
    raise UserError(
      f"{location}: `second` is not where the contexts begin, as in folders of"
      " earlier versions."
    )
  rows_per_example = (
    np.bincount(rows.example_indices, minlength=num_examples)
    if num_rows
    else np.zeros(0)
  )
  if (np.diff(rows.example_indices) < 0).any() or len(
    rows_per_example
  ) != num_examples:
    raise UserError(
      f"{location}: `example` does not fit {num_examples} examples."
    )
  if task.num_choices > 1 and (rows_per_example != task.num_choices).any():
    raise UserError(
      f"{location}: an example does not have {task.num_choices} rows."
    )
  if (rows_per_example < 1).any():
    raise UserError(f"{location}: an example has no row.")
  has_label_ids = task.kind in ("classification", "tagging")
  if (
    has_label_ids and rows.labels.size and rows.labels.max() >= len(task.labels)
  ):
    raise UserError(
      f"{location}: label {rows.labels.max()} is not below"
      f" {len(task.labels)}, the number of labels."
    )
