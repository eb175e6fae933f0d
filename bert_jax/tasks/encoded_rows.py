"""A task's examples as rows of token ids, and the folder that holds them.

The folder has these files:
* `meta.json`: the task, how the rows were made, a checksum, and a digest of
  every other file;
* `SPLIT.npz`: the arrays of `Rows`;
* `SPLIT.examples.jsonl`: the raw fields, one example on each line, in order;
* the tokenizer's files.
The folder exists only when it is complete.

Fields of an example, `id` (text) in all:

  classification, regression   texts: one or two; label: its name or a number,
                               None if unlabelled; group: what several examples
                               are answers of (MultiRC, ReCoRD); answer: that
                               text; answers: all right ones (ReCoRD)
  multi_label                  texts: one or two; label: the names of all that
                               apply, [] for none, None if unlabelled
  choice                       texts: one or two of each choice; label: its name
  tagging                      words; tags: names, None if unlabelled
  span                         question; context; answers: [{text,
                               answer_start}], [] if there is none, None if
                               unlabelled; title
"""

import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_jax.files import (
  atomic_folder,
  changed_files,
  create,
  digest,
  digests,
  is_sealed,
  parse_json,
  read_json,
  seal,
  sync_file,
  write_durably,
  write_json,
)
from bert_jax.messages import Damaged, UserError, note_once
from bert_jax.text import open_vocabulary

FORMAT_VERSION = 1
KINDS = (
  *("classification", "regression", "multi_label"),
  *("choice", "tagging", "span"),
)
META = "meta.json"
# Keys of `meta.json` that check its other keys.
FINGERPRINTS = ("fingerprint", "checksum")
# numpy and json raise these at a file that is cut, empty or another's.
_DAMAGED = (
  *(OSError, KeyError, ValueError, EOFError, TypeError, AttributeError),
  zipfile.BadZipFile,
)


class Task(NamedTuple):
  """What a model and a metric must know of a task.

  Attributes:
    name: "sst2", "squad", or a user's own name.
    kind: one of `KINDS`.
    labels: names of classes or tags, in the order of their ids; () for
      regression and spans.
    columns: rows an example: choices of "choice", else 1. Windows of a long
      text are more rows of one example.
    metrics: names of metrics, of which the first decides what is best.
  """

  name: str
  kind: str
  labels: tuple[str, ...]
  columns: int
  metrics: tuple[str, ...]


class Rows(NamedTuple):
  """The encoded rows of one split; N rows of T tokens in all.

  The tokens of row i are `ids[starts[i]:starts[i + 1]]`, special tokens
  included, no padding.

  Attributes:
    ids: int32 [T].
    starts: int64 [N + 1].
    second: int32 [N], place in the row where segment 1 begins; the row's length
      if there is one segment. Of span, where the context begins, in families
      without segments too.
    example: int64 [N], number of the example a row is of, ascending, in the
      file's order.
    labels: classification int32 [N] (-1: unlabelled); regression float32 [N]
      (NaN); multi_label int32 [N, labels], 1 for those that apply (-1); choice
      int32 [N], that of its example (-1); tagging int32 [T] (-1: no word's
      first piece, or unlabelled); span int32 [N, 2], the answer's first and
      last token (0, 0: none in this window; -1, -1: unlabelled).
    offsets: int32 [T, 2]; span: characters (begin, end) of the raw context;
      tagging: at a word's first piece its number in the example, twice; (-1,
      -1) at other tokens; [0, 2] for the other kinds.
  """

  ids: np.ndarray
  starts: np.ndarray
  second: np.ndarray
  example: np.ndarray
  labels: np.ndarray
  offsets: np.ndarray


Examples = list[dict[str, Any]]
Split = tuple[Rows, Examples]


def lengths(rows: Rows) -> np.ndarray:
  """Tokens of each row, int64 [N]."""
  return np.diff(rows.starts)


def save(
  folder: str,
  task: Task,
  splits: Mapping[str, Split],
  meta: Mapping[str, Any],
  files: Mapping[str, bytes] | None = None,
) -> None:
  """Writes a folder of features; a stop at any moment leaves no folder.

  Args:
    folder: its name; it must not exist.
    task: the task.
    splits: split -> (rows, examples).
    meta: JSON values that say what made the rows; `pad` (the id of padding) and
      `vocab_size` are needed by whoever makes batches.
    files: name -> content of the tokenizer's files.

  Raises:
    ValueError: the folder exists, or rows and examples do not fit together.
    OSError: it cannot be written.
  """
  folder = os.path.normpath(folder)
  if os.path.exists(folder):
    raise UserError(f"{folder} exists; delete it, or choose another name.")
  for name, (rows, examples) in splits.items():
    _check(task, rows, len(examples), f"{folder}: split {name}")
  with atomic_folder(folder) as new:
    for name, (rows, examples) in splits.items():
      with create(os.path.join(new, f"{name}.npz")) as f:
        np.savez(f, allow_pickle=False, **rows._asdict())
        sync_file(f)
      with create(os.path.join(new, f"{name}.examples.jsonl")) as f:
        for example in examples:
          f.write(json.dumps(example).encode("utf-8") + b"\n")
        sync_file(f)
    for name, content in (files or {}).items():
      write_durably(os.path.join(new, name), content)
    whole = {**meta, "format_version": FORMAT_VERSION, "task": task._asdict()}
    whole["splits"] = {
      name: dict(examples=len(e), rows=len(r.example), tokens=len(r.ids))
      for name, (r, e) in splits.items()
    }
    whole["files"] = digests(new, sorted(os.listdir(new)))
    whole = json.loads(json.dumps(whole))
    whole["fingerprint"] = _fingerprint(whole)
    write_json(os.path.join(new, META), seal(whole))


def _fingerprint(meta: Mapping[str, Any]) -> str:
  """Returns a hash of everything in a folder that a run reads.

  It does not depend on the names of the input files and the notes about them.
  """
  skipped = (*FINGERPRINTS, "made_from", "notes")
  read = {key: value for key, value in meta.items() if key not in skipped}
  return digest(json.dumps(read, sort_keys=True).encode())


def read_meta(folder: str) -> dict[str, Any]:
  """Reads `meta.json`.

  Raises:
    ValueError: no folder of features, another version's, or damaged.
  """
  path = os.path.join(folder, META)
  try:
    meta = read_json(path)
  except FileNotFoundError as e:
    raise UserError(
      f"{folder}: no folder of a task's features ({META} is missing); make one"
      " with `bert_jax prepare-task --task NAME`."
    ) from e
  except ValueError as e:
    raise Damaged(f"{path} is damaged ({e}); make it anew.") from e
  if not isinstance(meta, dict) or "task" not in meta:
    if isinstance(meta, dict) and "splits" in meta:
      raise UserError(
        f"{folder} holds text for pre-training; to fine-tune, make a folder of"
        " a task with"
        " `bert_jax prepare-task --task NAME`."
      )
    raise UserError(f"{folder}: a folder, but not of a task's features.")
  if meta.get("format_version") != FORMAT_VERSION:
    raise UserError(
      f"{path}: format {meta.get('format_version')}, this program reads"
      f" {FORMAT_VERSION}; make the folder anew."
    )
  if not is_sealed(meta):
    raise Damaged(f"{path} is damaged (its checksum differs).")
  _check_files(folder, meta)
  return meta


def _check_files(folder: str, meta: Mapping[str, Any]) -> None:
  """Raises ValueError if a file was changed or added since `save`."""
  if "files" not in meta:
    note_once(
      f"note: {folder} was prepared by an earlier version, without digests: its"
      " files are not checked. Prepare it again to have them checked."
    )
    return
  changed = changed_files(meta["files"], folder)
  added = [
    name
    for name in open_vocabulary.INPUT_FILES
    if name not in meta["files"] and os.path.exists(os.path.join(folder, name))
  ]
  if changed or added:
    change = "is not the file that" if changed else "was added after"
    raise Damaged(
      f"{folder} is damaged: {(changed + added)[0]} {change} `prepare` wrote"
      f"{'' if changed else ' it'}. Rows, labels and tokenizer belong together:"
      " to change one, delete the folder and prepare the task again."
    )


def task_of(fields: Mapping[str, Any]) -> Task:
  """The task of JSON fields, as in `meta.json` and a checkpoint's metadata."""
  return Task(
    fields["name"],
    fields["kind"],
    tuple(fields["labels"]),
    int(fields["columns"]),
    tuple(fields["metrics"]),
  )


def gold_field(task: Task) -> str:
  """The name of an example's field that holds what is right, or None."""
  return {"tagging": "tags", "span": "answers"}.get(task.kind, "label")


def load(folder: str, split: str) -> tuple[Task, Rows, Examples]:
  """Reads one split.

  Raises:
    ValueError: no such folder or split, or a damaged file.
  """
  meta = read_meta(folder)
  if split not in meta["splits"]:
    raise UserError(
      f"{folder}: no split {split!r}; it has {', '.join(meta['splits'])}."
    )
  task = task_of(meta["task"])
  path = os.path.join(folder, f"{split}.npz")
  try:
    with np.load(path, allow_pickle=False) as arrays:
      rows = Rows(**{name: arrays[name] for name in Rows._fields})
    with open(os.path.join(folder, f"{split}.examples.jsonl"), "rb") as f:
      examples = [parse_json(line) for line in f]
    _check(task, rows, meta["splits"][split]["examples"], path)
    if len(examples) != meta["splits"][split]["examples"]:
      raise ValueError(f"{len(examples)} examples")
    # Folders that `write` was given no size of a vocabulary for have none.
    size = meta.get("vocab_size")
    if size is not None and rows.ids.size and rows.ids.max() >= size:
      raise ValueError(f"piece {rows.ids.max()} of {size}")
    field = gold_field(task)
    for number, example in enumerate(examples, 1):
      if not isinstance(example, dict) or field not in example:
        raise ValueError(f"line {number} of the examples has no label's field")
  except _DAMAGED as e:
    raise Damaged(
      f"{folder}: split {split} is damaged ({e}); make the folder anew."
    ) from e
  return task, rows, examples


def _check(task: Task, rows: Rows, examples: int, where: str) -> None:
  """Raises ValueError unless shapes, types and numbers fit together."""
  if task.kind not in KINDS:
    raise UserError(f"{where}: kind {task.kind!r} is none of {list(KINDS)}.")
  n, t = len(rows.example), len(rows.ids)
  per_token = task.kind in ("tagging", "span")
  number = np.float32 if task.kind == "regression" else np.int32
  several = {"multi_label": (n, len(task.labels))}
  several |= {"tagging": (t,), "span": (n, 2)}
  labels = several.get(task.kind, (n,))
  wanted = Rows(
    ((t,), np.int32),
    ((n + 1,), np.int64),
    ((n,), np.int32),
    ((n,), np.int64),
    (labels, number),
    ((t if per_token else 0, 2), np.int32),
  )
  for name, array, (shape, dtype) in zip(
    Rows._fields, rows, wanted, strict=True
  ):
    if array.shape != shape or array.dtype != dtype:
      raise UserError(
        f"{where}: {name} is {array.dtype} {list(array.shape)}, not"
        f" {np.dtype(dtype)} {list(shape)}."
      )
  sizes = lengths(rows)
  if rows.starts[0] or rows.starts[-1] != t or (sizes < 1).any():
    raise UserError(f"{where}: `starts` are not those of {t} tokens.")
  if task.kind == "span" and (rows.second >= sizes).any():
    raise UserError(
      f"{where}: `second` is not where the contexts begin, as in folders of"
      " earlier versions."
    )
  counts = np.bincount(rows.example, minlength=examples) if n else np.zeros(0)
  if (np.diff(rows.example) < 0).any() or len(counts) != examples:
    raise UserError(f"{where}: rows are of other than {examples} examples.")
  if task.columns > 1 and (counts != task.columns).any():
    raise UserError(f"{where}: not {task.columns} rows an example.")
  if (counts < 1).any():
    raise UserError(f"{where}: an example has no row.")
  named = task.kind in ("classification", "tagging")
  if named and rows.labels.size and rows.labels.max() >= len(task.labels):
    raise UserError(
      f"{where}: label {rows.labels.max()}, of {len(task.labels)} labels."
    )
