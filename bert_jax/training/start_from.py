"""Opens the model that a run starts from: the key `init_from`.

The model is a run's --workdir (RUN@best, RUN@STEP), a converted folder or a
transformers folder, of any family. `open_model` opens it. A parameter that both
the objective and the model have is taken from the model. A head that the model
lacks is initialized. A parameter of the model that the objective does not use
is left out. A report lists the parameters of these three groups.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax import models
from bert_jax.examples import loader
from bert_jax.messages import UserError
from bert_jax.tasks import batches
from bert_jax.text import added_tokens
from bert_jax.text.open_vocabulary import OtherVocabulary, check_begins
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.training import config as config_lib
from bert_jax.training.parts import Pretrained
from bert_jax.weights import generator_discriminator, hf_tasks
from bert_jax.weights.load import OpenedModel, open_model
from bert_jax.weights.model_folder import columns_of

# The report lists the names of a group if they are at most this many. For a
# larger group it gives counts.
_MAX_LISTED = 6
# How rows of the word table are made for pieces that are new to the model. A
# "drawn" row is random, as in a new model. A "mean" row is the mean of the rows
# of the old pieces into which the model's tokenizer splits the new piece.
NEW_ROWS = ("mean", "drawn")
# Settings in which a run may differ from its model. They do not change the
# parameters that are taken.
_MAY_DIFFER = (
  "dropout",
  "attention_dropout",
  "vocab_size",
  "initializer_range",
)
# Groups of families that have the same parameters with the same names.
_FAMILY_GROUPS = ({"bert", "tinybert"},)
# Prefixes of the parameters that a run must take from its model, for ELECTRA
# and for every other objective. A complete model has all these parameters, so a
# missing parameter is an error.
_BODIES = {"electra": ("embeddings/", "discriminator/")}
_BODY = ("encoder/",)


def open_start(
  config: config_lib.RunConfig,
  data: loader.PretrainingData | batches.TrainingSplit,
) -> tuple[Pretrained, config_lib.Model]:
  """Opens the model that a run starts from, and checks that it fits the data.

  Args:
    config: the run's config.
    data: the data of the first phase.

  Returns:
    The model, and the config's section `model` with the sizes of this model.

  Raises:
    ValueError: the model cannot be read, or fits neither data nor config.
  """
  pieces = data.prepared[0].vocab
  if config.trains_on_task:
    pretrained = read_to_fine_tune(
      config.init_from, pieces, config.data.path, config.model.family
    )
  else:
    pretrained = read_to_go_on(
      config.init_from,
      pieces,
      config.data.path,
      config.objective.options(),
      config.model.family,
    )
  sizes, line = fill_model(config.model.options(), pretrained)
  if line and not config.trains_on_task:
    notes = (line, *pretrained.notes)
    pretrained = dataclasses.replace(pretrained, notes=notes)
  return pretrained, config_lib.Model.from_values(sizes)


def read_to_fine_tune(
  path: str, pieces: Sequence[str], data_path: str, family: str | None = None
) -> Pretrained:
  """Reads a model to fine-tune, and checks that it fits the data's vocabulary.

  Args:
    path: the model; see `weights.load.open_model`.
    pieces: the pieces of the data's vocabulary. First come all pieces of the
      model's vocabulary; further pieces may follow.
    data_path: the data's folder, for messages.
    family: the family in the run's config. It is used only for a folder that
      does not name a family.

  Raises:
    ValueError: the files cannot be read, the family cannot be fine-tuned, or
      the vocabularies differ. The message is one sentence.
  """
  model = open_for(
    "init_from", path, family=family, default_tower="discriminator"
  )
  if model.config["family"] not in models.FAMILIES:
    raise UserError(
      f"init_from={path} is of family {model.config['family']}; the families"
      f" that can be fine-tuned are {', '.join(models.FAMILIES)}."
    )
  remedy = "prepare the task with the model's tokenizer"
  vocabulary = _check_vocabulary(model, pieces, data_path, remedy)
  return Pretrained(
    path, model.config, model.weights.arrays, pieces, vocabulary
  )


def read_to_go_on(
  path: str,
  pieces: Sequence[str],
  data_path: str,
  objective: Mapping[str, Any],
  family: str | None = None,
) -> Pretrained:
  """Reads a model to continue its pre-training on the data of this run.

  Args:
    path: the model; see `read_to_fine_tune`.
    pieces: the pieces of the data's vocabulary; see `read_to_fine_tune`.
    data_path: the data's folder, for messages.
    objective: the section `objective` of the config.
    family: the family in the run's config; see `read_to_fine_tune`.

  Raises:
    ValueError: the files cannot be read, or the vocabularies differ. The
      message is one sentence.
  """
  model = open_for("init_from", path, family=family)
  weights, notes = model.weights, []
  if any(
    {family, weights.config["family"]} <= group for group in _FAMILY_GROUPS
  ):
    weights = weights._replace(config=weights.config | {"family": family})
  if objective["name"] == "electra" and weights.config["family"] == "electra":
    name = f"init_from={path}"
    weights = generator_discriminator.for_pretraining(weights, name)
  arrays = {**weights.arrays, **weights.heads}
  if objective["name"] == "elmo":
    vocabulary, note = _words_of_elmo(model, pieces, data_path)
    if note:
      arrays = {k: v for k, v in arrays.items() if k.startswith("encoder/")}
      notes.append(note)
  else:
    remedy = "prepare the text with the model's tokenizer"
    vocabulary = _check_vocabulary(model, pieces, data_path, remedy)
  source = weights.config["source"]
  default_task = "sop" if weights.config["family"] == "albert" else "nsp"
  model_task = source.get("pair_name", default_task)
  run_task = objective.get("pair_name", "nsp")
  pair_head = [name for name in arrays if name.startswith("pair/")]
  if objective["name"] == "mlm" and pair_head and run_task != model_task:
    arrays = {k: v for k, v in arrays.items() if k not in pair_head}
    notes.append(
      f"the model's pair head is left out: it was trained for {model_task}, and"
      f" this run trains {run_task}"
    )
  if "step" in source:
    notes.append(
      f"the model is from step {source['step']} of its run; this run begins at"
      " step 0"
    )
  return Pretrained(
    path, weights.config, arrays, pieces, vocabulary, tuple(notes)
  )


def open_for(
  option: str, path: str, family: str | None = None, **options: Any
) -> OpenedModel:
  """Opens the model that a key of the config names.

  Args:
    option: the key, for messages: "init_from" or "teacher.path".
    path: the key's value.
    family: the family in the run's config. It is used only for a folder that
      names no family.
    **options: the other arguments of `weights.load.open_model`.

  Raises:
    UserError: the model cannot be opened.
  """
  try:
    try:
      return open_model(path, **options)
    except hf_tasks.UnknownFamily:
      if family is None:
        raise
      return open_model(path, family=family, **options)
  except ValueError as e:
    raise UserError(f"{option}: {e}") from e


def vocabulary_of(
  option: str, model: OpenedModel, data_path: str
) -> Vocabulary:
  """Returns the model's own vocabulary, built as `prepare` builds it.

  Args:
    option: the key of the config that names the model, for messages.
    model: the model.
    data_path: the folder of the data, for messages.

  Raises:
    UserError: the model has no vocabulary, or its files are damaged.
  """
  if not model.has_vocabulary:
    raise UserError(
      f"{option}={model.path} has no vocabulary to compare with that of"
      f" {data_path}; put the files of its tokenizer into the same folder."
    )
  try:
    return model.vocabulary
  except ValueError as e:
    raise UserError(f"{option}: {e}") from e


def _check_vocabulary(
  model: OpenedModel, pieces: Sequence[str], data_path: str, remedy: str = ""
) -> Vocabulary:
  """Returns the model's vocabulary if the data's vocabulary begins with it.

  Args:
    model: the model.
    pieces: the pieces of the data's vocabulary.
    data_path: the data's folder, for messages.
    remedy: the end of the message if the vocabularies differ.

  Raises:
    UserError: the model has no vocabulary, or a different vocabulary.
  """
  vocabulary = vocabulary_of("init_from", model, data_path)
  name = f"init_from={model.path}"
  check_begins(vocabulary.pieces, pieces, name, data_path, remedy)
  return vocabulary


def _words_of_elmo(
  model: OpenedModel, pieces: Sequence[str], data_path: str
) -> tuple[Vocabulary | None, str | None]:
  """Compares the words of an ELMo with the words of the data.

  Only the softmax depends on the words. The encoder reads characters, which are
  the same in every ELMo.

  Returns:
    The model's words, and None. If the model has no softmax, None and None. If
    its words differ from the words of the data, None and a line of the report.
  """
  arrays = {**model.weights.arrays, **model.weights.heads}
  if all(name.startswith("encoder/") for name in arrays):
    return None, None
  try:
    return _check_vocabulary(model, pieces, data_path), None
  except OtherVocabulary as e:
    return None, f"the softmax is drawn anew, since the words differ ({e})"


def fill_model(
  settings: Mapping[str, Any], pretrained: Pretrained
) -> tuple[dict[str, Any], str | None]:
  """Returns the section `model` for a run that starts from a pre-trained model.

  The sizes come from the pre-trained model, even if the config's variant has
  other sizes. Any other key that contradicts the model is an error.

  Args:
    settings: the config's section, without keys whose value is None.
    pretrained: the pre-trained model.

  Returns:
    The whole section, and a line that names the sizes that differ from the
    config's variant. The line is None if no size differs.

  Raises:
    UserError: the config has another family, or a key contradicts the model.
  """
  family = pretrained.config["family"]
  sizes = {"family": family} | pretrained.config["model"]
  wrong_names = sorted(
    name
    for name in settings.keys() & sizes.keys() - {*_MAY_DIFFER}
    if not _equal(settings[name], sizes[name])
  )
  if wrong_names:
    values = ", ".join(
      f"model.{name}={settings[name]!r}" for name in wrong_names
    )
    model_values = ", ".join(f"{name}={sizes[name]!r}" for name in wrong_names)
    flags = " ".join(
      f"--config.model.{name}={sizes[name]}" for name in wrong_names
    )
    raise UserError(
      f"the config has {values}, but init_from={pretrained.path} has"
      f" {model_values}; pass {flags}, or leave them out of the config file to"
      " take the values of the model."
    )
  variants = models.family(family).VARIANTS
  published = variants.get(settings.get("variant"), {})
  differing_sizes = [
    f"{name}={sizes[name]}"
    for name in published
    if name in sizes and not _equal(published[name], sizes[name])
  ]
  line = None
  if differing_sizes:
    line = (
      f"sizes: {', '.join(differing_sizes)}, not those of"
      f" model.variant={settings['variant']!r}"
    )
  sizes.pop("vocab_size")
  return {"variant": next(iter(variants))} | sizes | settings, line


def _equal(a: Any, b: Any) -> bool:
  """Returns True if two values are equal in JSON, which has no tuples."""
  return json.dumps(a) == json.dumps(b) or a == b


def take(
  pretrained: Pretrained,
  params: Any,
  is_pretrained: Callable[[str], bool] | None,
  labels: Sequence[str],
  vocabulary_axes: Mapping[str, int] | None = None,
  vocab_size: int | None = None,
  init_new_rows: str = NEW_ROWS[0],
) -> tuple[Any, list[str]]:
  """Replaces initialized parameters by parameters of the pre-trained model.

  If the model has no pooler and the classifier is new, the pooler is new too.

  Args:
    pretrained: the pre-trained model.
    params: the run's initial parameters.
    is_pretrained: path of a parameter -> True if the objective takes it from
      the model. A classifier that is taken gets its columns in the order of
      `labels`. None means that the objective takes all of the model.
    labels: the names of the run's labels; () if it has none.
    vocabulary_axes: path -> axis along which a parameter has a row for each
      piece; see `state.vocabulary_axes`. None means the word table only.
    vocab_size: the number of ids. Rows of `params` beyond it are padding for
      the mesh. None means that every row has an id.
    init_new_rows: how to make rows for pieces that the model does not have, one
      of `NEW_ROWS`.

  Returns:
    The parameters, with the shardings of `params`, and the lines of the report,
    which say which parameters are taken, new or left out.

  Raises:
    ValueError: an array is missing or has a different shape.
  """
  takes_head = is_pretrained is not None and is_pretrained(
    "classifier/dense/kernel"
  )
  column_order = _label_order(pretrained, labels) if takes_head else None
  flat_params = traverse_util.flatten_dict(params, sep="/")
  is_electra = any(path.startswith("discriminator/") for path in flat_params)
  required = _BODIES["electra"] if is_electra else _BODY
  if vocabulary_axes is None:
    vocabulary_axes = {
      p: 0 for p in flat_params if p.endswith("word/embedding")
    }
  taken_paths, new_paths = [], []
  rows = VocabularyRows(pretrained, vocab_size, init_new_rows)
  for path, initial in flat_params.items():
    is_missing = path not in pretrained.arrays
    if is_pretrained is None:
      is_new = is_missing and not path.startswith(required)
    else:
      is_new = not is_pretrained(path)
      is_new |= is_missing and path.startswith("pooler/") and not takes_head
    if is_new:
      new_paths.append(path)
      continue
    if is_missing:
      hint = "; pass --config.objective.head=new" if takes_head else ""
      raise UserError(f"init_from={pretrained.path} has no {path}{hint}.")
    array = pretrained.arrays[path]
    if column_order is not None and path.startswith("classifier/"):
      array = array[..., column_order]
    if path in vocabulary_axes:
      array = rows.fit(array, initial, vocabulary_axes[path], path)
    flat_params[path] = _place(
      array, initial, f"init_from={pretrained.path}: {path}"
    )
    taken_paths.append(path)
  unused_paths = [path for path in pretrained.arrays if path not in flat_params]
  lists = {"taken": taken_paths, "new": new_paths, "left": unused_paths}
  lines = [f"{name}: {_listed(paths)}" for name, paths in lists.items()]
  lines += [*rows.lines(), *pretrained.notes]
  return traverse_util.unflatten_dict(flat_params, sep="/"), lines


def _label_order(pretrained: Pretrained, labels: Sequence[str]) -> Any:
  """Returns the columns of the model's classifier in the order of `labels`.

  Raises:
    ValueError: the model has different labels.
  """
  model_labels = pretrained.config["labels"]
  if not labels or model_labels is None:
    return None
  columns = columns_of(labels, model_labels)
  if columns is None:
    raise UserError(
      f"init_from={pretrained.path} has the labels {model_labels}, the task"
      f" {list(labels)}; pass --config.objective.head=new."
    )
  return columns


class VocabularyRows:
  """Fits arrays with a row for each piece to the data's vocabulary.

  The rows of the model's own pieces are taken. Further pieces at the end of the
  data's vocabulary get new rows. Rows that the model has beyond its pieces (a
  table padded to a round number) are left out.
  """

  def __init__(self, pretrained: Pretrained, vocab_size: int | None, how: str):
    """Prepares to fit arrays.

    Args:
      pretrained: the pre-trained model.
      vocab_size: the number of ids; see `take`.
      how: how new rows are made, one of `NEW_ROWS`.
    """
    check_init_new_rows(how)
    self._pretrained, self._vocab_size, self._how = pretrained, vocab_size, how
    self._new_pieces: Sequence[str] = ()
    # Counts of rows for ids without a piece, and of rows that are left out.
    self._num_without_piece, self._num_left = 0, 0

  def fit(
    self, array: np.ndarray, drawn: jax.Array, axis: int, path: str
  ) -> np.ndarray:
    """Returns the model's array with as many rows as `drawn`.

    Args:
      array: the model's parameter, float32.
      drawn: the run's initial parameter. It may have rows beyond the data's
        pieces: for ids that a task adds, and as padding for the mesh.
      axis: the axis of the rows in both arrays.
      path: the parameter's path, for messages.

    Raises:
      ValueError: the shapes differ along another axis.
    """
    shapes = [list(x.shape) for x in (array, drawn)]
    other_axes = [shape[:axis] + shape[axis + 1 :] for shape in shapes]
    if array.ndim != drawn.ndim or other_axes[0] != other_axes[1]:
      raise UserError(
        f"init_from={self._pretrained.path}: {path} has shape {shapes[0]}, not"
        f" {shapes[1]}."
      )
    array, count = np.moveaxis(array, axis, 0), drawn.shape[axis]
    pieces, vocabulary = self._pretrained.pieces, self._pretrained.vocabulary
    size = len(array)
    if vocabulary is not None:
      size = min(size, len(vocabulary.pieces))
    new_pieces = pieces[size:]
    if not new_pieces:
      # Rows beyond the pieces belong to ids that a task adds. These ids mean
      # the same in the model, so its rows for them are taken.
      size = min(len(array), count)
    self._num_left = max(self._num_left, len(array) - size)
    fitted = array[:size]
    if size < count:
      drawn_rows = np.moveaxis(np.asarray(_gather(drawn)), axis, 0)
      if new_pieces and vocabulary is not None:
        end = size + len(new_pieces)
        old_ids = added_tokens.old_ids(vocabulary, size)
        piece_rows = new_word_rows(
          fitted, new_pieces, old_ids, self._how, drawn_rows[size:end]
        )
        fitted = np.concatenate([fitted, piece_rows])
        self._new_pieces = new_pieces
      num_without_piece = (self._vocab_size or count) - len(fitted)
      self._num_without_piece = max(self._num_without_piece, num_without_piece)
      fitted = np.concatenate([fitted, drawn_rows[len(fitted) :]])
    return np.moveaxis(fitted, 0, axis)

  def lines(self) -> list[str]:
    """Returns the lines of the report on rows."""
    lines = []
    if self._new_pieces:
      lines.append(describe_new_rows(self._new_pieces, self._how))
    if self._num_without_piece:
      lines.append(
        f"drawn rows for ids without a piece: {self._num_without_piece}"
      )
    if self._num_left:
      lines.append(
        f"left rows of the word table beyond the pieces: {self._num_left}"
      )
    return lines


def _gather(x: jax.Array) -> np.ndarray:
  """Returns all values of an array of any sharding, on this host."""
  if not x.is_fully_addressable:
    assert isinstance(x.sharding, NamedSharding)
    replicated = NamedSharding(x.sharding.mesh, PartitionSpec())
    x = jax.jit(lambda y: y, out_shardings=replicated)(x)
  return jax.device_get(x)


def _place(array: np.ndarray, drawn: jax.Array, name: str) -> jax.Array:
  """Returns `array` with the sharding of `drawn`.

  Raises:
    ValueError: the shapes differ.
  """
  if array.shape != drawn.shape:
    raise UserError(
      f"{name} has shape {list(array.shape)}, not {list(drawn.shape)}."
    )
  return jax.make_array_from_callback(
    drawn.shape, drawn.sharding, lambda index: array[index]
  )


def _listed(paths: list[str]) -> str:
  """Lists the paths, or counts them by their first name if there are many."""
  if len(paths) <= _MAX_LISTED:
    return ", ".join(paths) or "nothing"
  counts: dict[str, int] = {}
  for path in paths:
    module = path.split("/")[0]
    counts[module] = counts.get(module, 0) + 1
  return ", ".join(f"{n} of {module}" for module, n in counts.items())


def check_init_new_rows(how: str) -> None:
  """Raises UserError if `how` is not one of `NEW_ROWS`."""
  if how not in NEW_ROWS:
    raise UserError(f"init_new_rows={how!r}: not one of {', '.join(NEW_ROWS)}.")


def new_word_rows(
  table: np.ndarray,
  new_pieces: Sequence[str],
  old_ids_of: Callable[[str], list[int]],
  how: str,
  drawn: np.ndarray,
) -> np.ndarray:
  """Makes the rows of new pieces for a word table or an output bias.

  Args:
    table: [old, ...] the trained rows, without padding rows.
    new_pieces: the pieces at the vocabulary's end that have no row yet.
    old_ids_of: a function from a text to ids of `table`; see
      `added_tokens.old_ids`.
    how: one of `NEW_ROWS`. With "mean", a piece for which `old_ids_of` returns
      no ids keeps its drawn row.
    drawn: [new, ...] randomly drawn rows, as in a new model.

  Returns:
    [new, ...] rows with the dtype of `table`.

  Raises:
    ValueError: `how` is unknown, or `drawn` does not have one row for each
      piece.
  """
  check_init_new_rows(how)
  if drawn.shape != (len(new_pieces), *table.shape[1:]):
    raise UserError(
      f"drawn rows of shape {list(drawn.shape)} for {len(new_pieces)} pieces"
      f" beside a table of shape {list(table.shape)}."
    )
  rows = np.array(drawn, table.dtype)
  if how == "mean":
    for row, piece in enumerate(new_pieces):
      ids = [i for i in old_ids_of(piece) if i < len(table)]
      if ids:
        rows[row] = table[ids].mean(0)
  return rows


def describe_new_rows(new_pieces: Sequence[str], how: str) -> str:
  """Describes the new rows: their number, their pieces, how they were made."""
  names = ", ".join(repr(piece) for piece in new_pieces[:_MAX_LISTED])
  num_hidden = len(new_pieces) - _MAX_LISTED
  if num_hidden > 0:
    names += f" and {num_hidden} more"
  origin = "each the mean of its old pieces' rows" if how == "mean" else "drawn"
  return f"new rows of the word table: {len(new_pieces)} ({names}), {origin}"
