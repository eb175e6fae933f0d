"""Fine-tunes a model on a user's table: `bert_jax.finetune`."""

import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bert_jax import messages
from bert_jax.messages import UserError, did_you_mean, note, watched
from bert_jax.tasks import (
  bucket_lengths,
  encoded_rows,
  prepare_task,
  task_inputs,
)
from bert_jax.tasks.files.tables import Record
from bert_jax.tasks.published import TaskFormat
from bert_jax.use import arguments, labelled, trained
from bert_jax.use.model import Model
from bert_jax.use.trained import Config, Trained

# The share of the rows that is held out if `validation` is None.
HELD_OUT_SHARE = 0.1
# With the default config, a run writes about this many rows of training to
# metrics.jsonl, which are enough for a plot.
_NUM_LOGGED_ROWS = 50
# Kind -> name of its default config. Every other kind has the config "own".
_CONFIG_BY_KIND = {"span": "squad:squad"}
# Buckets that are added if all buckets of the config are longer.
_SHORT_BUCKETS = (32, 64)
# Key of a config -> the parameter that sets it.
_PARAMETER_BY_KEY = trained.PARAMETER_BY_KEY | {
  "data.epochs": "epochs",
  "data.path": "data",
}


@watched
def finetune(
  model: str | os.PathLike[str] | Model,
  data: Any,
  *,
  validation: Any = None,
  text: str | None = None,
  pair: str | None = None,
  label: str | None = None,
  kind: str | None = None,
  epochs: float | None = None,
  batch_size: int | None = None,
  learning_rate: float | None = None,
  length: int | None = None,
  seed: int | None = None,
  config: Config = None,
  workdir: str | os.PathLike[str] | None = None,
) -> Trained:
  """Fine-tunes a model on labelled texts.

  >>> import bert_jax
  >>> reviews = [("a good film", "positive"), ("a bad film", "negative")] * 20
  >>> trained = bert_jax.finetune(PATH, reviews, epochs=1, batch_size=8)
  >>> trained.model.labels
  ['negative', 'positive']
  >>> row = trained.model.predict("a good film")
  >>> row["label"] in trained.model.labels
  True
  >>> trained.history[-1]["step"]
  5

  The defaults are those of Devlin et al. 2019 for GLUE: 3 epochs of batches of
  32 rows, with a learning rate of 2e-5. The function says on stderr what it
  does. It changes no argument, and may run in a thread.

  Args:
    model: the path or name of a pre-trained model, as `bert_jax.load` takes it,
      or a model that `load` returned.
    data: the rows to train on: a DataFrame of pandas or polars; a
      `datasets.Dataset`; a list of (text, label), or of ((text, second text),
      label); a list of dicts; a dict of columns; or the path of a file, .csv,
      .tsv, .jsonl or SQuAD's .json. It may also be a dict {"train": rows,
      "validation": rows}.
    validation: the rows to evaluate on after each epoch, in any form that
      `data` may have; or the share of `data` to hold out for this; or 0 for no
      evaluation. By default 0.1.
    text: the column of texts; by default "text", or "words" if there is no
      column "text". For tags, a text is a list of words.
    pair: the column of second texts, for tasks with pairs of texts; by default
      "text_pair", if `data` has this column.
    label: the column of labels; by default "label", or "tags" if there is no
      column "label".
    kind: what to predict: "classification", "multi_label" (labels are lists of
      names), "regression", "tagging" (a list of tags for a list of words), or
      "span" (columns question, context and answers, as in SQuAD). If None,
      the data decide: whole numbers, for example, are classes.
    epochs: how often each row is used.
    batch_size: the number of rows of a step.
    learning_rate: the highest learning rate, after the warm-up.
    length: the largest number of tokens of a row; a longer text is cut, or read
      in windows if the kind is tagging or span. By default 128, or 384 for
      questions, but never more than the model can read.
    seed: decides the order of rows, the held-out rows and the new head's
      parameters. None means 0.
    config: a ConfigDict with all settings; the name of a config, such as
      "glue:rte,roberta"; or a dict of keys to change, such as
      {"schedule.warmup": 0.06}. `bert_jax config own` prints all keys.
      `batch_size`, `learning_rate`, `seed` and `epochs` override the config.
    workdir: the run's folder. A repeated call with this folder continues a run
      that was stopped, and returns at once if the run is complete. By default a
      temporary folder, which is deleted when Python ends.

  Returns:
    `Trained`, with `model`, `history` and `workdir`.

  Raises:
    UserError: an argument or a row of the data cannot be used; the message is
      one sentence, which names the parameter or the row.
    FloatingPointError: a loss is not finite.
  """
  given_names = arguments.names_of_given_arguments(
    dict(
      model=model,
      epochs=epochs,
      batch_size=batch_size,
      learning_rate=learning_rate,
      seed=seed,
    )
  )
  with messages.name_parameters(_PARAMETER_BY_KEY, given_names):
    for option, name in (("text", text), ("pair", pair), ("label", label)):
      if name is not None:
        arguments.check_name(option, name, "the name of a column")
    if kind is not None and kind not in labelled.KINDS:
      raise UserError(
        f"kind={kind!r:.60} is not a kind of task"
        f"{did_you_mean(str(kind), labelled.KINDS)}"
      )
    if epochs is not None:
      epochs = arguments.check_positive("epochs", epochs)
    if length is not None:
      length = arguments.check_count("length", length)
    changes = trained.config_changes(batch_size, learning_rate, seed)
    changes["data.epochs"] = epochs
    return _finetune(
      model,
      data,
      validation=validation,
      columns=_ColumnNames(text, pair, label, kind),
      length=length,
      changes=changes,
      config=config,
      workdir=workdir,
    )


class _ColumnNames(NamedTuple):
  """Holds the arguments of `finetune` about the columns of the data."""

  text: str | None
  pair: str | None
  label: str | None
  kind: str | None


def _finetune(
  model: str | os.PathLike[str] | Model,
  data: Any,
  *,
  validation: Any,
  columns: _ColumnNames,
  length: int | None,
  changes: dict[str, Any],
  config: Config,
  workdir: str | os.PathLike[str] | None,
) -> Trained:
  """Does the work of `finetune`, which has checked each argument by itself.

  All data are checked before the model is opened, because opening takes
  seconds.

  Args:
    model: see `finetune`.
    data: see `finetune`.
    validation: see `finetune`.
    columns: the user's names of columns, and the kind of the task.
    length: see `finetune`.
    changes: key of the config -> value; None changes nothing.
    config: see `finetune`.
    workdir: see `finetune`.
  """
  start_model = trained.StartModel(model)
  if isinstance(data, dict) and "train" in data:
    unread_splits = {*data} - {"train"}
    if validation is None and "validation" in data:
      validation = data["validation"]
      unread_splits -= {"validation"}
    if unread_splits:
      names = ", ".join(sorted(map(repr, unread_splits)))
      note(
        f"finetune: data has more splits than are read: {names}; its rows for"
        ' evaluation are "validation", unless validation= is given'
      )
    data = data["train"]
  rows = labelled.read(data, "data", columns.text, columns.label)
  task_columns = labelled.Columns(
    rows, columns.kind, columns.text, columns.pair, columns.label
  )
  full_config = trained.open_config(
    config, _CONFIG_BY_KIND.get(task_columns.kind, "own"), changes
  )
  splits, held_out_note = _split_rows(
    rows, validation, full_config["seed"], columns.text, columns.label
  )
  task_format, inputs = labelled.make_task(task_columns, splits)
  task_inputs.read(task_format, inputs)
  _say_task(task_format, splits, held_out_note)
  folder = trained.make_folder(workdir, "finetune")
  task_meta = _prepare_task(
    start_model.open, task_format, inputs, length, folder
  )
  full_config["data"]["path"] = str(pathlib.Path(folder) / "task")
  full_config["init_from"] = start_model.path
  if not splits.get("validation"):
    full_config["evaluate"]["every"] = 0
  _set_defaults(full_config, config, task_meta)
  return trained.run(full_config, folder, "finetune")


def _split_rows(
  rows: list[Record],
  validation: Any,
  seed: int,
  text: str | None,
  label: str | None,
) -> tuple[dict[str, list[Record]], str]:
  """Returns {split: its rows}, and a note if rows were held out (else "")."""
  if validation is None:
    validation = HELD_OUT_SHARE
  if isinstance(validation, np.generic):
    validation = validation.item()
  if isinstance(validation, bool):
    raise UserError(
      f"validation={validation} must be rows, a share of data, or 0."
    )
  if not isinstance(validation, int | float):
    evaluated_rows = labelled.read(validation, "validation", text, label)
    return {"train": rows, "validation": evaluated_rows}, ""
  if validation == 0:
    return {"train": rows}, ""
  train_rows, evaluated_rows = labelled.hold_out(rows, validation, seed)
  held_out_note = (
    f", held out at random by validation={validation:g}, seed={seed}"
  )
  return {"train": train_rows, "validation": evaluated_rows}, held_out_note


def _say_task(
  task_format: TaskFormat, splits: dict[str, list[Record]], held_out_note: str
) -> None:
  """Prints the task's kind and labels, and the numbers of rows.

  If the user does not pass them, they are inferred from the data, so the user
  should see them.
  """
  kind, labels = task_format.task.kind, task_format.task.labels
  names = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
  labels_text = f" into {len(labels)} labels ({names})" if labels else ""
  num_rows = len(splits["train"])
  num_evaluated = len(splits.get("validation", ()))
  note(
    f"finetune: {kind}{labels_text}; {num_rows}"
    f" {'row' if num_rows == 1 else 'rows'} to train on, {num_evaluated} to"
    f" evaluate on{held_out_note}"
  )


def _prepare_task(
  open_model: Callable[[], Model],
  task_format: TaskFormat,
  inputs: list[labelled.Input],
  length: int | None,
  folder: str,
) -> dict[str, Any]:
  """Writes the tokenizer and the task, unless the run's folder has them.

  Args:
    open_model: returns the model to start from. It is not called if the folder
      has the tokenizer and the task already.
    task_format: the task.
    inputs: the inputs of the task.
    length: the largest number of tokens of a row; None means the task's length,
      or the model's largest length if this is less.
    folder: the run's folder.

  Returns:
    The content of the task's `meta.json`.
  """
  task_folder = pathlib.Path(folder) / "task"
  tokenizer_folder = pathlib.Path(folder) / trained.TOKENIZER_FOLDER
  if task_folder.is_dir() and tokenizer_folder.is_dir():
    length = length or encoded_rows.read_meta(str(task_folder))["length"]
  else:
    model = open_model()
    if model.family == "elmo":
      raise UserError(
        f"model={model.path}: finetune does not train ELMo; train a model on"
        " its features, or fine-tune a Transformer."
      )
    if length is not None:
      trained.check_length(model, length)
    length = length or min(task_format.length, model.module.encoder.max_length)
    trained.save_tokenizer(model, folder)
  try:
    meta = prepare_task.prepare(
      task_format, inputs, str(tokenizer_folder), str(task_folder), length
    )
  except prepare_task.TaskFolderDiffers as e:
    raise UserError(
      f"workdir={folder}: its run was started with another"
      f" {' and '.join(e.changed)}; give the same data and options again, or"
      " another workdir."
    ) from e
  for line in prepare_task.note_lines(meta):
    note(line)
  return meta


def _set_defaults(
  config: dict[str, Any], user_config: Config, task_meta: dict[str, Any]
) -> None:
  """Sets the values of a default config that depend on machine and data.

  Args:
    config: the config, which is changed, except for keys in `user_config`.
    user_config: the argument `config` that the user passed.
    task_meta: the content of the task's `meta.json`.
  """
  changed_keys = trained.changed_keys(user_config)
  if changed_keys is None:
    return
  if "model.dtype" not in changed_keys and trained.computes_on_cpu():
    config["model"]["dtype"] = "float32"
  if "data.buckets" not in changed_keys:
    # The last bucket is the length, because the model may have no positions
    # for longer rows.
    length, buckets = task_meta["length"], config["data"]["buckets"]
    if min(buckets) > _SHORT_BUCKETS[-1]:
      # The published rows of questions are long, but a user's may be short.
      buckets = {*_SHORT_BUCKETS, *buckets}
    if length > max(buckets):
      buckets = {*buckets, *bucket_lengths.BUCKETS}
    shorter_buckets = sorted(bucket for bucket in buckets if bucket < length)
    config["data"]["buckets"] = (*shorter_buckets, length)
  if "log.every" not in changed_keys:
    epoch_steps = task_meta["splits"]["train"]["rows"] / config["batch_size"]
    num_steps = config["total_steps"] or epoch_steps * config["data"]["epochs"]
    config["log"]["every"] = max(1, min(20, int(num_steps / _NUM_LOGGED_ROWS)))
