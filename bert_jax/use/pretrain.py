"""Pre-trains a model on a user's text: `bert_jax.pretrain`."""

import glob
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_jax import files as files_lib
from bert_jax import messages
from bert_jax.corpus import prepare, train_vocab
from bert_jax.messages import UserError, did_you_mean, note, watched
from bert_jax.training import start_from
from bert_jax.use import arguments, results, trained
from bert_jax.use.model import Model
from bert_jax.use.trained import Config, Trained

Path = str | os.PathLike[str]
# A text without spaces that looks like a glob, or like the path of a file.
_PATH_PATTERN = re.compile(
  r"\S*\*\S*|\S+[/\\]\S+|\S+\.(txt|jsonl|json|parquet|gz|xz|zst)"
)
# Key of a config -> the parameter that sets it.
_PARAMETER_BY_KEY = trained.PARAMETER_BY_KEY | {
  "total_steps": "steps",
  "data.length": "length",
}
# Family -> the config of its size "tiny": 2 layers of width 128, for two CPU
# cores. Every other size is a name in the family's file of configs, as in
# `bert:base`.
_TINY_CONFIGS = {
  "bert": "quickstart",
  "roberta": "small:roberta_cpu",
  "albert": "small:albert_cpu",
  "electra": "small:electra_cpu",
  "gpt": "small:gpt_cpu",
  "spanbert": "small:spanbert_cpu",
}
# Family -> kind of its vocabulary. A family that is not here has WordPiece.
_VOCABULARY_KINDS = {
  "roberta": "bytelevel",
  "gpt": "bytelevel",
  "albert": "unigram",
}
# Kind of vocabulary -> the name of its file or folder in a run's folder.
_VOCABULARY_NAMES = {
  "wordpiece": "vocabulary.txt",
  "unigram": "vocabulary.model",
  "bytelevel": "vocabulary",
}
# The number of slots as a share of a row's tokens: 20 of 128, as in BERT.
_SLOT_SHARE = 20 / 128
# Family -> the number of positions that a model has in addition to one for each
# token of a row.
_NUM_EXTRA_POSITIONS = {"roberta": 2}
# With the default config, a run writes about this many rows of training to
# metrics.jsonl, which are enough for a plot.
_NUM_LOGGED_ROWS = 50


@watched
def pretrain(
  texts: Any = None,
  *,
  files: Path | Sequence[Path] | None = None,
  text: str = "text",
  model: Path | Model | None = None,
  family: str = "bert",
  size: str = "tiny",
  vocabulary: Path | None = None,
  vocab_size: int = 4096,
  heldout: float = 0.02,
  processes: int | None = None,
  steps: int | None = None,
  batch_size: int | None = None,
  learning_rate: float | None = None,
  length: int | None = None,
  seed: int | None = None,
  config: Config = None,
  workdir: Path | None = None,
) -> Trained:
  """Pre-trains a model on text, from random parameters or from a model.

  >>> import bert_jax
  >>> texts = ["The cat sat on the mat. The dog sat, too. It ran."] * 60
  >>> trained = bert_jax.pretrain(
  ...   texts, steps=2, batch_size=4, length=32, vocab_size=100, config=CONFIG
  ... )
  >>> trained.model.family
  'bert'
  >>> trained.model.fill_mask("The [MASK] sat.")["text"]
  'The [MASK] sat.'
  >>> trained.history[-1]["step"]
  2

  The defaults train a BERT with 2 layers of width 128 for 4,200 steps on rows
  of 32 tokens, which takes minutes on two CPU cores. The function says on
  stderr what it does. It changes no argument, and may run in a thread.

  Args:
    texts: the documents: a list or column of strings, a table with a column of
      documents, or a data set of dicts. A single string is one document, and
      BERT needs two or more documents.
    files: in place of `texts`, the paths of text files. A path may hold `*`. A
      .txt file has a sentence on each line and blank lines between documents. A
      .jsonl file has {"text": ...} on each line. docs/corpus.md has all
      formats.
    text: the column of the documents in a table.
    model: the model whose training continues on the texts: its path or name, as
      `bert_jax.load` takes it, or a model that `load` returned. The model
      decides the family, the sizes and the vocabulary. The default
      `learning_rate` and `length` are meant for a new small model. A model that
      reads longer rows forgets less if `length` is the row length of its own
      training, and `learning_rate` is about 1e-4.
    family: "bert", "roberta", "albert", "electra", "gpt" or "spanbert".
    size: "tiny", or a name in the family's file of configs, such as "base"; see
      `bert_jax config`. A config such as "base" has the published settings,
      which need many accelerators for days.
    vocabulary: the file or folder of a vocabulary. If None, a vocabulary is
      trained on the text.
    vocab_size: the number of pieces of a trained vocabulary. Little text gives
      fewer pieces.
    heldout: the share of the documents to evaluate on; 0 for none.
    processes: the number of processes that tokenize the text. A script that
      sets `processes` must call `pretrain` under
      `if __name__ == "__main__":`. If None, this process does the work.
    steps: the number of optimizer steps.
    batch_size: the number of rows of a step.
    learning_rate: the highest learning rate, after the warm-up.
    length: the number of tokens of a row.
    seed: decides the parameters, the order of rows and the masks. None means 0.
    config: a ConfigDict with all settings; the name of a config, such as
      "bert:base"; or a dict of keys to change, such as {"model.num_layers": 4}.
      A ConfigDict or a name takes the place of `size`. The other arguments
      override the config.
    workdir: the run's folder, which also gets the vocabulary and the prepared
      text. A repeated call with this folder continues a run that was stopped,
      and returns at once if the run is complete. If None, a temporary folder is
      used, which is deleted when Python ends.

  Returns:
    `Trained`, with `model`, `history` and `workdir`. In `history`, the numbers
    whose names begin with "validation_" come from the held-out documents.

  Raises:
    UserError: an argument cannot be used; the message is one sentence.
    FloatingPointError: a loss is not finite.
  """
  given_names = arguments.names_of_given_arguments(
    dict(
      model=model,
      steps=steps,
      batch_size=batch_size,
      learning_rate=learning_rate,
      length=length,
      seed=seed,
    )
  )
  with messages.name_parameters(_PARAMETER_BY_KEY, given_names):
    if (texts is None) == (files is None):
      raise UserError("pass either texts= or files=, the text to train on.")
    changes = trained.config_changes(batch_size, learning_rate, seed)
    if steps is not None:
      steps = arguments.check_count("steps", steps)
    changes["total_steps"] = steps
    if length is not None:
      length = arguments.check_count("length", length)
    if processes is not None:
      processes = arguments.check_count("processes", processes)
    arguments.check_name("text", text, "the name of a column")
    arguments.check_name("size", size, "the name of a size")
    if not isinstance(family, str) or family not in _TINY_CONFIGS:
      similar_names = did_you_mean(str(family), _TINY_CONFIGS)
      raise UserError(f"family={family!r:.60} is unknown{similar_names}")
    if vocabulary is not None:
      vocabulary = arguments.check_path(
        "vocabulary", vocabulary, "the file or folder of a vocabulary"
      )
      if model is not None:
        raise UserError(
          "pass either model= or vocabulary=: a model keeps its vocabulary."
        )
    return _pretrain(
      documents=None if texts is None else _read_documents(texts, text),
      paths=None if files is None else _list_paths(files),
      model=model,
      family=family,
      size=size,
      vocabulary=vocabulary,
      vocab_size=arguments.check_count("vocab_size", vocab_size),
      heldout=arguments.check_share("heldout", heldout),
      processes=processes,
      length=length,
      changes=changes,
      config=config,
      workdir=workdir,
    )


def _pretrain(
  *,
  documents: list[str] | None,
  paths: list[str] | None,
  model: Path | Model | None,
  family: str,
  size: str,
  vocabulary: str | None,
  vocab_size: int,
  heldout: float,
  processes: int | None,
  length: int | None,
  changes: dict[str, Any],
  config: Config,
  workdir: Path | None,
) -> Trained:
  """Does the work of `pretrain`, which has checked the arguments.

  Args:
    documents: the texts; None if the text is in files.
    paths: the paths of the text's files; None if the text is in `documents`.
    model: see `pretrain`.
    family: see `pretrain`.
    size: see `pretrain`.
    vocabulary: see `pretrain`.
    vocab_size: see `pretrain`.
    heldout: see `pretrain`.
    processes: see `pretrain`.
    length: see `pretrain`.
    changes: key of the config -> value; None changes nothing.
    config: see `pretrain`.
    workdir: see `pretrain`.
  """
  start_model = None
  if model is not None:
    start_model = trained.StartModel(model).open()
    family = start_model.family
    if family not in _TINY_CONFIGS:
      raise UserError(
        f"model={start_model.path}: pretrain does not train the family"
        f" {family}, only {', '.join(_TINY_CONFIGS)}."
      )
  default_config = (
    _TINY_CONFIGS[family] if size == "tiny" else f"{family}:{size}"
  )
  if (
    start_model
    and default_config == "quickstart"
    and not _predicts_pairs(start_model)
  ):
    default_config = "quickstart:sentences"
  full_config = trained.open_config(
    config, default_config, changes, f"size={size!r}"
  )
  if start_model:
    _take_sizes(full_config["model"], start_model)
    full_config["init_from"] = start_model.path
  if length is not None:
    if start_model:
      trained.check_length(start_model, length)
    _set_length(full_config, length)
  folder = trained.make_folder(workdir, "pretrain")
  inputs = paths or []
  if documents is not None:
    # A path may hold characters that mean something in a glob.
    inputs = [f"jsonl:{glob.escape(_write_texts(documents, folder))}"]
  if start_model:
    vocabulary = trained.save_tokenizer(start_model, folder)
  if vocabulary is None:
    vocabulary = _train_vocabulary(inputs, family, vocab_size, folder)
  meta = prepare.prepare(
    inputs,
    vocabulary,
    str(pathlib.Path(folder) / "text"),
    heldout=heldout,
    processes=processes,
    in_this_process=processes is None,
  )
  full_config["data"]["path"] = str(pathlib.Path(folder) / "text")
  full_config["data"]["cased"] = not meta["lower_case"]
  if not meta["splits"]["validation"]["documents"]:
    if heldout:
      note("pretrain: too few documents to hold any out, so none are evaluated")
    full_config["evaluate"]["every"] = 0
  changed_keys = trained.changed_keys(config)
  if changed_keys is not None and "log.every" not in changed_keys:
    log_every = full_config["total_steps"] // _NUM_LOGGED_ROWS
    full_config["log"]["every"] = max(1, min(100, log_every))
  return trained.run(full_config, folder, "pretrain")


def _predicts_pairs(model: Model) -> bool:
  """Returns True if a BERT has the head for pairs of sentences."""
  config = model.config
  return config["task"] == "pretraining" and config["head"].get("pairs", True)


def _take_sizes(section: dict[str, Any], model: Model) -> None:
  """Copies the sizes of a model into a config's section `model`."""
  sizes = model.config["model"]
  names_to_keep = start_from.SETTINGS_THAT_MAY_DIFFER
  for name in section.keys() & sizes.keys() - {*names_to_keep}:
    section[name] = sizes[name]


def _read_documents(texts: Any, column: str) -> list[str]:
  """Returns the texts of a user as a list of strings.

  Raises:
    UserError: no document has text, or a document is not a string.
  """
  if isinstance(texts, os.PathLike):
    raise UserError(
      f"texts={os.fspath(texts)!r} is a path; pass files= for it."
    )
  if isinstance(texts, str) and _is_file(texts):
    raise UserError(
      f"texts={texts!r} is the name of a file; pass files={texts!r} to read it."
    )
  if isinstance(texts, str) and _PATH_PATTERN.fullmatch(texts):
    raise UserError(
      f"texts={texts!r:.80} looks like the path of files; pass"
      f" files={texts!r:.80} to read them, or a list of documents."
    )
  if isinstance(texts, set | frozenset):
    raise UserError(
      "texts is a set, which has no order, so a repeated call could not give"
      " the same result; pass a list."
    )
  if isinstance(texts, Mapping):
    texts = _read_column(texts, column, "texts")
  items = results.items_of(texts, ())[1]
  documents = []
  for index, item in enumerate(items):
    if isinstance(item, Mapping):
      item = _read_column(item, column, f"row {index} of texts")
    if not isinstance(item, str):
      raise UserError(f"text {index} is {item!r:.60}, not a string.")
    _check_unicode(item, index)
    documents.append(str(item))
  if not any(document.strip() for document in documents):
    raise UserError("texts has no text in it.")
  return documents


def _check_unicode(text: str, index: int) -> None:
  """Raises a UserError if a text has half a surrogate pair."""
  try:
    text.encode("utf-8")
  except UnicodeEncodeError as e:
    raise UserError(
      f"text {index} has half a surrogate pair at character {e.start}; correct"
      " it."
    ) from e


def _is_file(text: str) -> bool:
  """Returns True if a user's text is the path of a file."""
  # A long text is no path, and some systems raise an error for a long path.
  return len(text) < 256 and "\n" not in text and pathlib.Path(text).is_file()


def _read_column(fields: Mapping[Any, Any], column: str, place: str) -> Any:
  """Returns a column's value; raises a UserError if the column is missing."""
  if column not in fields:
    raise UserError(
      f"{place} has no column {column!r}, only {', '.join(map(str, fields))};"
      " pass text= with the name of another column."
    )
  return fields[column]


def _list_paths(paths: Any) -> list[str]:
  """Returns the paths of text files as a list of strings."""
  if isinstance(paths, str | os.PathLike):
    paths = [paths]
  if not isinstance(paths, Iterable) or isinstance(paths, bytes | Mapping):
    raise UserError(f"files={paths!r:.60}: pass a path or a list of paths.")
  strings = [
    arguments.check_path("files", path, "a path, or a list with each path")
    for path in paths
  ]
  if not strings:
    raise UserError("files= is empty; pass the paths of text files.")
  # The order of the files decides the run, and a set has no order.
  return sorted(strings) if isinstance(paths, set | frozenset) else strings


def _write_texts(documents: Sequence[str], folder: str) -> str:
  """Writes documents as JSON lines, unless the file has them already.

  Returns:
    The path of the file.

  Raises:
    UserError: the file has documents that differ from `documents`.
  """
  path = pathlib.Path(folder) / "texts.jsonl"
  with files_lib.atomic_file(path) as partial_path:
    with pathlib.Path(partial_path).open("w", encoding="utf-8") as file:
      file.writelines(_json_lines(documents))
    if path.exists():
      if files_lib.file_digest(path) != files_lib.file_digest(partial_path):
        raise UserError(
          f"workdir={folder}: its run was started with other texts; give the"
          " same texts again, or another workdir."
        )
      # `prepare` recognises an unchanged file by its time, so keep the time.
      stat = path.stat()
      os.utime(partial_path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  return str(path)


def _json_lines(documents: Sequence[str]) -> Iterator[str]:
  for document in documents:
    yield json.dumps({"text": document}) + "\n"


def _train_vocabulary(
  inputs: list[str], family: str, vocab_size: int, folder: str
) -> str:
  """Trains the vocabulary of a run, unless the run's folder has one already.

  Returns:
    The path of the vocabulary.
  """
  kind = _VOCABULARY_KINDS.get(family, "wordpiece")
  path = pathlib.Path(folder) / _VOCABULARY_NAMES[kind]
  if path.exists():
    note(f"pretrain: {path} is used again, whatever vocab_size is")
  else:
    train_vocab.train_vocab(inputs, vocab_size, path, kind)
  return str(path)


def _set_length(config: dict[str, Any], length: int) -> None:
  """Sets the length of rows in a config, and the keys that depend on it.

  Raises:
    UserError: the config has phases, each of which has its own length.
  """
  if config["phases"]:
    names = ", ".join(f"phases.{name}.length" for name in config["phases"])
    raise UserError(
      f"length={length}: this config has phases with their own lengths; change"
      f" {names} by config=."
    )
  data, model = config["data"], config["model"]
  data["length"] = length
  if data.get("max_predictions") is not None:
    data["max_predictions"] = max(1, round(length * _SLOT_SHARE))
  num_positions = length + _NUM_EXTRA_POSITIONS.get(model["family"], 0)
  model["max_positions"] = max(model["max_positions"], num_positions)
