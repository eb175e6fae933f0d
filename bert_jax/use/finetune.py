"""Fine-tunes a model on a user's table: `bert_jax.finetune`."""

import os
import pathlib
from typing import Any

from bert_jax.messages import UserError, note, watched
from bert_jax.tasks import bucket_lengths, prepare_task
from bert_jax.tasks.files.tables import Record
from bert_jax.tasks.published import TaskFormat
from bert_jax.use import labelled, trained
from bert_jax.use.model import Model
from bert_jax.use.trained import Config, Trained

# The share of the rows that is held out if `validation` is None.
HELD_OUT_SHARE = 0.1
# The default config logs about this many rows, which are enough for a plot.
_NUM_LOGGED_ROWS = 50
# Kind -> its config. A kind that is not here has the config "own".
_CONFIG_BY_KIND = {"span": "squad:squad"}


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
      .tsv or .jsonl. It may also be a dict {"train": rows, "validation": rows}.
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
    length: the most tokens of a row; a longer text is cut, or read in windows
      if the kind is tagging or span. By default 128, for questions 384, but
      never more than the model can read.
    seed: decides the order of rows, the held-out rows and the new head's
      parameters. None means 0.
    config: a ConfigDict, which is taken as it is; the name of a config, such as
      "glue:rte,roberta"; or a dict of keys to change, such as
      {"schedule.warmup": 0.06}. `bert_jax config own` prints all keys.
      `batch_size`, `learning_rate`, `seed` and `epochs` override it.
    workdir: the run's folder. A repeated call with this folder continues a run
      that was stopped, and returns at once if the run is complete. By default a
      temporary folder, which is deleted when Python ends.

  Returns:
    `Trained`, with `model`, `history` and `workdir`.

  Raises:
    UserError: an argument cannot be used; the message is one sentence.
    FloatingPointError: a loss is not finite.
  """
  if isinstance(data, dict) and "train" in data:
    validation = data.get("validation") if validation is None else validation
    data = data["train"]
  rows = labelled.read(data, "data", text, label)
  columns = labelled.Columns(rows, kind, text, pair, label)
  changes = trained.config_changes(batch_size, learning_rate, seed)
  changes["data.epochs"] = None if epochs is None else float(epochs)
  full_config = trained.open_config(
    config, _CONFIG_BY_KIND.get(columns.kind, "own"), changes
  )
  splits, held_out_note = _split_rows(
    rows, validation, full_config["seed"], text, label
  )
  task, inputs = labelled.make_task(columns, splits)
  _say_task(task, splits, held_out_note)
  model = trained.open_start_model(model)
  folder = trained.make_folder(workdir, "finetune")
  task_meta = _prepare_task(model, task, inputs, length, folder)
  full_config["data"]["path"] = str(pathlib.Path(folder) / "task")
  full_config["init_from"] = model.path
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
  task: TaskFormat, splits: dict[str, list[Record]], held_out_note: str
) -> None:
  """Prints what a run learns, because much of it may come from the data."""
  kind, labels = task.task.kind, task.task.labels
  names = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
  labels_text = f" into {len(labels)} labels ({names})" if labels else ""
  num_evaluated = len(splits.get("validation", ()))
  note(
    f"finetune: {kind}{labels_text}; {len(splits['train'])} rows to train on,"
    f" {num_evaluated} to evaluate on{held_out_note}"
  )


def _prepare_task(
  model: Model,
  task: TaskFormat,
  inputs: list[labelled.Input],
  length: int | None,
  folder: str,
) -> dict[str, Any]:
  """Writes the tokenizer and the task into a run's folder, if they are new.

  Returns:
    The content of the task's `meta.json`.
  """
  tokenizer = trained.save_tokenizer(model, folder)
  max_length = model.module.encoder.max_length
  if length is not None:
    trained.check_length(model, length)
  try:
    meta = prepare_task.prepare(
      task,
      inputs,
      tokenizer,
      str(pathlib.Path(folder) / "task"),
      length or min(task.length, max_length),
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
    if length > max(buckets):
      buckets = {*buckets, *bucket_lengths.BUCKETS}
    shorter_buckets = sorted(bucket for bucket in buckets if bucket < length)
    config["data"]["buckets"] = (*shorter_buckets, length)
  if "log.every" not in changed_keys:
    num_batches = task_meta["splits"]["train"]["rows"] / config["batch_size"]
    num_steps = config["total_steps"] or num_batches * config["data"]["epochs"]
    config["log"]["every"] = max(1, min(20, int(num_steps / _NUM_LOGGED_ROWS)))
