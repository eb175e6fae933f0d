"""Opens configs and folders, trains, and shows the progress.

The functions `finetune` and `pretrain` share this file.
"""

import atexit
import contextlib
import copy
import functools
import logging as logs
import math
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax import files, messages
from bert_jax.devices import xla_errors
from bert_jax.messages import UserError, did_you_mean, note
from bert_jax.text import open_vocabulary
from bert_jax.training import config as config_lib
from bert_jax.training import config_files, logging, train
from bert_jax.use import arguments
from bert_jax.use.model import Model, load
from bert_jax.use.results import Results

# The types that a user may pass as `config`.
Config: TypeAlias = ConfigDict | Mapping[str, Any] | str | None
# Key of a config -> the parameter of `finetune` and `pretrain` for this key.
PARAMETER_BY_KEY = {
  "batch_size": "batch_size",
  "schedule.peak": "learning_rate",
  "seed": "seed",
  "init_from": "model",
}
# The folder of the tokenizer in a run's folder.
TOKENIZER_FOLDER = "tokenizer"
# Fields of metrics.jsonl that say nothing about learning.
_HIDDEN_FIELDS = ("data_wait", "checkpoint_wait")


class Trained:
  """The result of a training.

  Attributes:
    model: the model at the last step.
    history: a dict for each logged step, for `pandas.DataFrame(history)`. The
      dict has `step`, `loss` and `learning_rate` of training, and after an
      evaluation `validation_loss` and further numbers whose names begin with
      `validation_`. A number that a step lacks is NaN.
    workdir: the folder of the run, which `bert_jax.load` opens.
  """

  def __init__(self, model: Model, history: Results, workdir: str):
    """Stores the attributes."""
    self.model, self.history, self.workdir = model, history, workdir

  def __repr__(self) -> str:
    """Returns a text with the model's step, last numbers, and the folder."""
    last_numbers: dict[str, float] = {}
    for row in self.history:
      last_numbers |= {
        name: number for name, number in row.items() if not math.isnan(number)
      }
    score_name = next(
      (name for name in last_numbers if name.startswith("validation_")), "loss"
    )
    names = dict.fromkeys(("loss", "validation_loss", score_name))
    numbers = [
      f"{name} {last_numbers[name]:.4g}"
      for name in names
      if name in last_numbers
    ]
    # A run that was stopped may have a step that is not logged.
    step = self.model.config["source"]["step"]
    content = ", ".join([f"{step} steps", *numbers])
    return f"Trained({content}, workdir={self.workdir!r})"


def read_history(workdir: str) -> Results:
  """Returns the numbers of a run's metrics.jsonl; see `Trained.history`."""
  numbers_by_step: dict[int, dict[str, Any]] = {}
  names: dict[str, None] = {}
  for row in logging.read_rows(pathlib.Path(workdir) / "metrics.jsonl"):
    prefix = "" if row["split"] == "train" else "validation_"
    numbers = {
      f"{prefix}{name}": number
      for name, number in row.items()
      if isinstance(number, int | float)
      and name not in ("step", *_HIDDEN_FIELDS)
    }
    numbers_by_step.setdefault(row["step"], {}).update(numbers)
    names |= dict.fromkeys(numbers)
  nan_by_name = dict.fromkeys(names, math.nan)
  return Results(
    {"step": step} | nan_by_name | numbers_by_step[step]
    for step in sorted(numbers_by_step)
  )


def make_folder(
  workdir: str | os.PathLike[str] | None, function_name: str
) -> str:
  """Returns the absolute path of a run's folder, which is made if needed.

  Args:
    workdir: the folder; if None, a temporary folder, which is deleted when
      Python ends.
    function_name: the name of the calling function, for a note.
  """
  if workdir is not None:
    workdir = arguments.check_path("workdir", workdir, "the folder of the run")
    path = pathlib.Path(workdir).absolute()
    try:
      path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
      raise UserError(
        f"workdir={path}: the folder cannot be made ({e.strerror})."
      ) from e
    return str(path)
  folder = tempfile.mkdtemp(prefix=f"bert_jax-{function_name}-")
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  note(
    f"{function_name}: without workdir=, the run is in {folder} until Python"
    " ends; keep its model with .model.save(path)."
  )
  return folder


def open_config(
  config: Config,
  default: str,
  changes: Mapping[str, Any],
  default_source: str = "",
) -> dict[str, Any]:
  """Returns a config as a nested dict, and changes none of its arguments.

  Args:
    config: a ConfigDict with all settings; the name of a config, such as
      "bert:base"; or a dict of changes to the default, whose keys may have
      dots. None means the default config.
    default: the name of the default config.
    changes: key with dots -> value; a value of None changes nothing.
    default_source: the argument that chose the default, for messages.

  Raises:
    UserError: a key is unknown, or a value has the wrong type.
  """
  user_changes: dict[str, Any] = {}
  if isinstance(config, ConfigDict):
    base_config = copy.deepcopy(config.to_dict())
  elif isinstance(config, str):
    base_config = config_files.open_config(config).to_dict()
  elif config is None or isinstance(config, Mapping):
    base_config = config_files.open_config(default, default_source).to_dict()
    user_changes = dict(_flatten(config or {}))
  else:
    raise UserError(
      f"config={config!r:.60}: pass a ConfigDict, the name of a config or a"
      " dict of the keys to change."
    )
  new_config = copy.deepcopy(base_config)
  function_changes = {
    key: setting for key, setting in changes.items() if setting is not None
  }
  for key, setting in {**user_changes, **function_changes}.items():
    if isinstance(setting, np.generic):
      setting = setting.item()
    _set_key(new_config, key, copy.deepcopy(setting))
  config_lib.check_types(new_config, base_config)
  return new_config


class StartModel:
  """Holds the model that a training starts from, and opens it if needed.

  Attributes:
    path: the path or name of the model.
  """

  def __init__(self, model: str | os.PathLike[str] | Model):
    """Takes the model, or its path or name.

    Raises:
      UserError: `model` is neither a model, nor a path.
    """
    self._model = model if isinstance(model, Model) else None
    self.path = (
      model.path
      if isinstance(model, Model)
      else arguments.check_path("model", model, "the path or name of a model")
    )

  def open(self) -> Model:
    """Returns the model, which is opened at the first call."""
    if self._model is None:
      self._model = load(self.path)
    return self._model


def check_length(model: Model, length: int) -> None:
  """Raises a UserError if a model cannot read rows of this length."""
  max_length = model.module.encoder.max_length
  if not 0 < length <= max_length:
    raise UserError(
      f"length={length}: the model reads rows of 1 to {max_length} tokens."
    )


def save_tokenizer(model: Model, folder: str) -> str:
  """Writes a model's tokenizer into a run's folder, unless it has one already.

  Returns:
    The path of the tokenizer's folder.
  """
  path = pathlib.Path(folder) / TOKENIZER_FOLDER
  if not path.exists():
    with files.atomic_folder(path) as partial_path:
      open_vocabulary.save(model.vocabulary, partial_path)
  return str(path)


def config_changes(
  batch_size: int | None, learning_rate: float | None, seed: int | None
) -> dict[str, Any]:
  """Returns the changes of a config that a user's arguments ask for.

  Args:
    batch_size: the number of rows of a step.
    learning_rate: the highest learning rate, after the warm-up.
    seed: the seed of the run.

  Returns:
    Key with dots -> value, for `open_config`. None changes nothing.

  Raises:
    UserError: an argument is not a number that a config may have.
  """
  if batch_size is not None:
    batch_size = arguments.check_count("batch_size", batch_size)
  if learning_rate is not None:
    learning_rate = arguments.check_positive("learning_rate", learning_rate)
  if seed is not None:
    seed = arguments.check_count("seed", seed, least=0, most=arguments.MAX_SEED)
  return {
    "batch_size": batch_size,
    "schedule.peak": learning_rate,
    "seed": seed,
  }


def changed_keys(config: Config) -> set[str] | None:
  """Returns the keys that a user changes; None for a complete config."""
  if isinstance(config, ConfigDict | str):
    return None
  return {key for key, _ in _flatten(config or {})}


def _flatten(
  config: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields the keys with dots and the values of a nested dict."""
  for name, setting in config.items():
    if isinstance(setting, Mapping) and setting:
      yield from _flatten(setting, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", setting


def _set_key(config: dict[str, Any], key: str, setting: Any) -> None:
  """Sets a value of a nested dict.

  Raises:
    UserError: the config does not have the key. The section `model` may get new
      keys, because each attribute of an encoder can be set.
  """
  *sections, name = key.split(".")
  section = config
  for section_name in sections:
    if not isinstance(section.get(section_name), dict):
      raise UserError(
        f"config.{key} is not a key{did_you_mean(section_name, section)}"
      )
    section = section[section_name]
  if name not in section and sections != ["model"]:
    raise UserError(f"config.{key} is not a key{did_you_mean(name, section)}")
  if isinstance(section.get(name), dict) and not isinstance(setting, Mapping):
    raise UserError(
      f"config.{key}={setting!r:.60} must be a dict, because {key} is a section"
      f" with the keys {', '.join(section[name]) or 'of your choice'}."
    )
  section[name] = setting


def computes_on_cpu() -> bool:
  """Returns True if jax computes on a CPU, where bfloat16 is slow."""
  return jax.default_backend() == "cpu"


def run(config: dict[str, Any], workdir: str, function_name: str) -> Trained:
  """Trains, shows the progress on stderr, and returns the result.

  If the folder has this run, and the run is complete, nothing is computed.

  Args:
    config: the complete config.
    workdir: the run's folder.
    function_name: the name of the calling function, for notes.
  """
  remedy = (
    f"Lower batch_size, which is {config['batch_size']}, or raise"
    " micro_batches in config, which splits the rows of a step."
  )
  with messages.pass_lines_to(note):
    step = train.finished_step(config, workdir)
  if step is not None:
    note(f"{function_name}: the run is complete, at step {step}")
    model = load(workdir)
  else:
    with (
      _show_progress() as on_row,
      messages.pass_lines_to(note),
      xla_errors.reports_out_of_memory(remedy),
      orbax_warnings_hidden(),
    ):
      step = int(train.run(config, workdir, on_row).step)
      model = load(workdir)
  history = read_history(workdir)
  if history and history[-1]["step"] > step:
    history = Results(row for row in history if row["step"] <= step)
  note(f"{function_name}: the run is in {workdir}")
  return Trained(model, history, workdir)


@contextlib.contextmanager
def orbax_warnings_hidden() -> Iterator[None]:
  """Hides orbax's warnings in a block; they are only about orbax's options."""

  def is_shown(record: logs.LogRecord) -> bool:
    return record.levelno >= logs.ERROR or "orbax" not in record.pathname

  logger = logs.getLogger("absl")
  logger.addFilter(is_shown)
  try:
    yield
  finally:
    logger.removeFilter(is_shown)


@contextlib.contextmanager
def _show_progress() -> Iterator[logging.RowCallback]:
  """Yields a function that shows metrics in a notebook's bar, or as lines."""
  bar_class = _notebook_bar_class()
  if bar_class is None:
    yield lambda row, line, total: note(line)
    return
  with contextlib.closing(bar_class(unit="step")) as bar:
    yield functools.partial(_advance_bar, bar)


def _advance_bar(
  bar: Any, row: Mapping[str, Any], line: str, total: int
) -> None:
  """Moves a bar of tqdm to the step of a row, and shows the row's numbers."""
  messages.count_as_line()
  bar.total = total
  bar.update(row["step"] - bar.n)
  names = ("loss",) if row["split"] == "train" else tuple(row)
  numbers = {
    name
    if row["split"] == "train"
    else f"validation_{name}": f"{row[name]:.4f}"
    for name in names
    if isinstance(row[name], float)
  }
  shown_numbers = getattr(bar, "shown_numbers", {}) | numbers
  bar.shown_numbers = shown_numbers
  bar.set_postfix(shown_numbers)


def _notebook_bar_class() -> Any:
  """Returns the class of tqdm's bar in a notebook with tqdm; else None."""
  ipython = sys.modules.get("IPython")
  shell = ipython.get_ipython() if ipython else None
  # The shells of Jupyter and Colab are of the class ZMQInteractiveShell or of a
  # subclass.
  class_names = {cls.__name__ for cls in type(shell).__mro__}
  if "ZMQInteractiveShell" not in class_names:
    return None
  try:
    from tqdm.auto import tqdm
  except ImportError:
    return None
  return tqdm
