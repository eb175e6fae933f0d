"""Opens the model that a run starts from: the key `init_from`.

The model is a run's folder (RUN@best, RUN@STEP), a converted folder or a
transformers folder, of any family. `open_model` opens it. A parameter that both
the objective and the model have is taken from the model. A head that the model
lacks is initialized. A parameter of the model that the objective does not have
is not used. A report lists the parameters of these three groups.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax import messages, models
from bert_jax.examples import loader
from bert_jax.messages import UserError, by_caller
from bert_jax.tasks import batches
from bert_jax.text import added_tokens
from bert_jax.text.open_vocabulary import (
  DifferentVocabularies,
  check_begins_with,
)
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.training import config as config_lib
from bert_jax.training.parts import PretrainedModel
from bert_jax.weights import generator_discriminator, hf_tasks
from bert_jax.weights.load import OpenedModel, open_model
from bert_jax.weights.model_folder import columns_in_task_order

# The report lists the names in a group of at most this many names. For a larger
# group, the report gives counts.
_MAX_LISTED = 6
# The word table, which holds the word embeddings, has a row for each piece.
# These are the ways to make rows for pieces that are new to the model. A
# "drawn" row is random, as in a new model. A "mean" row is the mean of the rows
# of the old pieces into which the model's tokenizer splits the new piece.
NEW_ROW_METHODS = ("mean", "drawn")
# Settings in which a run may differ from the model that it starts from. The
# parameters that are taken do not depend on them.
SETTINGS_THAT_MAY_DIFFER = (
  "dropout",
  "attention_dropout",
  "vocab_size",
  "initializer_range",
)
# Families whose models have the same parameters with the same names.
_FAMILY_GROUPS = ({"bert", "tinybert"},)
# Prefixes of the parameters that a run must take from its model, for ELECTRA
# and for every other objective. A complete model has all these parameters, so a
# missing parameter is an error.
_REQUIRED_OF_ELECTRA = ("embeddings/", "discriminator/")
_REQUIRED_OF_OTHERS = ("encoder/",)


def open_start_model(
  config: config_lib.RunConfig,
  data: loader.PretrainingData | batches.TrainingSplit,
) -> tuple[PretrainedModel, config_lib.Model]:
  """Opens the model that a run starts from, and checks that it fits the data.

  Args:
    config: the run's config.
    data: the data of the first phase.

  Returns:
    The model, and the config's section `model` with the sizes of this model.

  Raises:
    ValueError: the model cannot be read, or does not fit the data or the
      config.
  """
  pieces = data.prepared_folders[0].vocab
  if config.trains_on_task:
    pretrained_model = read_for_fine_tuning(
      config.init_from, pieces, config.data.path, config.model.family
    )
  else:
    pretrained_model = read_for_pretraining(
      config.init_from,
      pieces,
      config.data.path,
      config.objective.options(),
      config.model.family,
    )
  settings, sizes_line = fill_model_section(
    config.model.options(), pretrained_model
  )
  if sizes_line and not config.trains_on_task:
    notes = (sizes_line, *pretrained_model.notes)
    pretrained_model = dataclasses.replace(pretrained_model, notes=notes)
  return pretrained_model, config_lib.Model.from_values(settings)


def read_for_fine_tuning(
  path: str, pieces: Sequence[str], data_path: str, family: str | None = None
) -> PretrainedModel:
  """Reads a model to fine-tune, and checks that it fits the data's vocabulary.

  Args:
    path: the model; see `weights.load.open_model`.
    pieces: the pieces of the data's vocabulary. First come all pieces of the
      model's vocabulary; further pieces may follow.
    data_path: the data's folder, for messages.
    family: the family in the run's config. This family is used only for a
      folder that does not name a family.

  Raises:
    ValueError: the files cannot be read, the family cannot be fine-tuned, or
      the vocabularies differ. The message is one sentence.
  """
  model = open_configured_model(
    "init_from", path, family=family, default_tower="discriminator"
  )
  if model.config["family"] not in models.FAMILIES:
    raise UserError(
      f"init_from={path} is of the family {model.config['family']}; the"
      f" families that can be fine-tuned are {', '.join(models.FAMILIES)}."
    )
  remedy = "prepare the task with the model's tokenizer"
  vocabulary = _check_vocabulary(model, pieces, data_path, remedy)
  return PretrainedModel(
    path, model.config, model.weights.arrays, pieces, vocabulary
  )


def read_for_pretraining(
  path: str,
  pieces: Sequence[str],
  data_path: str,
  objective: Mapping[str, Any],
  family: str | None = None,
) -> PretrainedModel:
  """Reads a model to continue its pre-training on the data of this run.

  Args:
    path: the model; see `read_for_fine_tuning`.
    pieces: the pieces of the data's vocabulary; see `read_for_fine_tuning`.
    data_path: the data's folder, for messages.
    objective: the section `objective` of the config.
    family: the family in the run's config; see `read_for_fine_tuning`.

  Raises:
    ValueError: the files cannot be read, or the vocabularies differ. The
      message is one sentence.
  """
  model = open_configured_model("init_from", path, family=family)
  weights, notes = model.weights, []
  # If both families have the same parameters, read the model as one of the
  # run's family.
  if any(
    {family, weights.config["family"]} <= group for group in _FAMILY_GROUPS
  ):
    weights = weights._replace(config=weights.config | {"family": family})
  if objective["name"] == "electra" and weights.config["family"] == "electra":
    name = f"init_from={path}"
    weights = generator_discriminator.rename_for_pretraining(weights, name)
  arrays = {**weights.arrays, **weights.training_arrays}
  if objective["name"] == "elmo":
    vocabulary, note = _check_words_of_elmo(model, pieces, data_path)
    if note:  # The words differ, so the softmax over them is not taken.
      arrays = {k: v for k, v in arrays.items() if k.startswith("encoder/")}
      notes.append(note)
  else:
    remedy = "prepare the text with the model's tokenizer"
    vocabulary = _check_vocabulary(model, pieces, data_path, remedy)
  source = weights.config["source"]
  default_pair_name = "sop" if weights.config["family"] == "albert" else "nsp"
  model_pair_name = source.get("pair_name", default_pair_name)
  run_pair_name = objective.get("pair_name", "nsp")
  pair_head_names = [name for name in arrays if name.startswith("pair/")]
  # A head for the other task on pairs (NSP or SOP) is not taken.
  if (
    objective["name"] == "mlm"
    and pair_head_names
    and run_pair_name != model_pair_name
  ):
    arrays = {k: v for k, v in arrays.items() if k not in pair_head_names}
    notes.append(
      f"the model's pair head is left out: it was trained for"
      f" {model_pair_name}, and this run trains {run_pair_name}"
    )
  if "step" in source:
    notes.append(
      f"the model is from step {source['step']} of its run; this run begins at"
      " step 0"
    )
  return PretrainedModel(
    path, weights.config, arrays, pieces, vocabulary, tuple(notes)
  )


def open_configured_model(
  option: str, path: str, family: str | None = None, **options: Any
) -> OpenedModel:
  """Opens the model that a key of the config names.

  Args:
    option: the key, for messages: "init_from" or "teacher.path".
    path: the key's value.
    family: the family in the run's config. This family is used only for a
      folder that does not name a family.
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
  """Returns the model's vocabulary, built as `prepare` builds it.

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
  check_begins_with(vocabulary.pieces, pieces, name, data_path, remedy)
  return vocabulary


def _check_words_of_elmo(
  model: OpenedModel, pieces: Sequence[str], data_path: str
) -> tuple[Vocabulary | None, str | None]:
  """Compares the words of an ELMo with the words of the data.

  Only the softmax depends on the words. The encoder reads characters, which are
  the same in every ELMo.

  Returns:
    (the model's words, None) if they are the words of the data; (None, None) if
    the model has no softmax; (None, a line of the report) if the words differ.
  """
  arrays = {**model.weights.arrays, **model.weights.training_arrays}
  if all(name.startswith("encoder/") for name in arrays):
    return None, None
  try:
    return _check_vocabulary(model, pieces, data_path), None
  except DifferentVocabularies as e:
    return (
      None,
      f"the softmax is newly initialized, because the words differ ({e})",
    )


def fill_model_section(
  section_options: Mapping[str, Any], pretrained_model: PretrainedModel
) -> tuple[dict[str, Any], str | None]:
  """Returns the section `model` for a run that starts from a pre-trained model.

  The sizes come from the pre-trained model, not from the config's variant. Only
  the keys in SETTINGS_THAT_MAY_DIFFER may contradict the model.

  Args:
    section_options: the config's section, without keys whose value is None.
    pretrained_model: the pre-trained model.

  Returns:
    The whole section, and a line that names the sizes that differ from the
    config's variant. The line is None if no size differs.

  Raises:
    UserError: a key, such as `family`, contradicts the model.
  """
  family = pretrained_model.config["family"]
  sizes = {"family": family} | pretrained_model.config["model"]
  wrong_names = sorted(
    name
    for name in section_options.keys()
    & sizes.keys() - {*SETTINGS_THAT_MAY_DIFFER}
    if not _equal_in_json(section_options[name], sizes[name])
  )
  if wrong_names:
    config_text = ", ".join(
      f"model.{name}={section_options[name]!r}" for name in wrong_names
    )
    model_text = ", ".join(f"{name}={sizes[name]!r}" for name in wrong_names)
    flags_text = by_caller(" ", ", ").join(
      messages.setting(f"model.{name}", sizes[name]) for name in wrong_names
    )
    raise UserError(
      f"the config has {config_text}, but init_from={pretrained_model.path} has"
      f" {model_text}; pass {flags_text}, or leave them out of the config file"
      " to take the values of the model."
    )
  variants = models.family(family).VARIANTS
  published_sizes = variants.get(section_options.get("variant"), {})
  differing_sizes = [
    f"{name}={sizes[name]}"
    for name in published_sizes
    if name in sizes and not _equal_in_json(published_sizes[name], sizes[name])
  ]
  sizes_line = None
  if differing_sizes:
    sizes_line = (
      f"sizes: {', '.join(differing_sizes)}, not those of"
      f" model.variant={section_options['variant']!r}"
    )
  sizes.pop("vocab_size")  # The data decide it.
  # A section needs a variant. Any will do, since all its sizes are replaced.
  return {"variant": next(iter(variants))} | sizes | section_options, sizes_line


def _equal_in_json(a: Any, b: Any) -> bool:
  """Returns True if two values are equal in JSON, which has no tuples."""
  return json.dumps(a) == json.dumps(b) or a == b


def take_parameters(
  pretrained_model: PretrainedModel,
  params: Any,
  is_pretrained: Callable[[str], bool] | None,
  labels: Sequence[str],
  vocabulary_axes: Mapping[str, int] | None = None,
  vocab_size: int | None = None,
  init_new_rows: str = NEW_ROW_METHODS[0],
) -> tuple[Any, list[str]]:
  """Replaces initialized parameters by parameters of the pre-trained model.

  If the model has no pooler and the classifier is new, the pooler is new too.

  Args:
    pretrained_model: the pre-trained model.
    params: the run's initial parameters.
    is_pretrained: path of a parameter -> True if the objective takes it from
      the model. A classifier that is taken gets its columns in the order of
      `labels`. None means that the objective takes all parameters that the
      model has.
    labels: the names of the run's labels; () if the run has no labels.
    vocabulary_axes: path of a parameter -> the axis along which the parameter
      has a row for each piece; see `state.vocabulary_axes`. None means that
      only the word table has such rows, along axis 0.
    vocab_size: the number of ids. Rows of `params` beyond this number are
      padding for the mesh. None means that every row has an id.
    init_new_rows: how to make rows for pieces that the model does not have, one
      of `NEW_ROW_METHODS`.

  Returns:
    The parameters, with the shardings of `params`, and the lines of the report,
    which name the parameters that are taken, new or not used.

  Raises:
    UserError: an array is missing or has a different shape, or the model has
      different labels.
  """
  takes_head = is_pretrained is not None and is_pretrained(
    "classifier/dense/kernel"
  )
  column_order = _label_order(pretrained_model, labels) if takes_head else None
  flat_params = traverse_util.flatten_dict(params, sep="/")
  is_electra = any(path.startswith("discriminator/") for path in flat_params)
  required_prefixes = (
    _REQUIRED_OF_ELECTRA if is_electra else _REQUIRED_OF_OTHERS
  )
  if vocabulary_axes is None:
    vocabulary_axes = {
      p: 0 for p in flat_params if p.endswith("word/embedding")
    }
  taken_paths, new_paths = [], []
  fitter = VocabularyFitter(pretrained_model, vocab_size, init_new_rows)
  for path, initial_param in flat_params.items():
    is_missing = path not in pretrained_model.arrays
    if is_pretrained is None:
      is_new = is_missing and not path.startswith(required_prefixes)
    else:
      is_new = not is_pretrained(path)
      is_new |= is_missing and path.startswith("pooler/") and not takes_head
    if is_new:
      new_paths.append(path)
      continue
    if is_missing:
      setting = messages.setting("objective.head", "new")
      hint = f"; pass {setting}" if takes_head else ""
      raise UserError(f"init_from={pretrained_model.path} has no {path}{hint}.")
    array = pretrained_model.arrays[path]
    if column_order is not None and path.startswith("classifier/"):
      array = array[..., column_order]
    if path in vocabulary_axes:
      array = fitter.fit(array, initial_param, vocabulary_axes[path], path)
    flat_params[path] = _place_like(
      array, initial_param, f"init_from={pretrained_model.path}: {path}"
    )
    taken_paths.append(path)
  unused_paths = [
    path for path in pretrained_model.arrays if path not in flat_params
  ]
  paths_by_group = {
    "taken": taken_paths,
    "newly initialized": new_paths,
    "not used": unused_paths,
  }
  lines = [
    f"{name}: {_list_or_count(paths)}" for name, paths in paths_by_group.items()
  ]
  lines += [*fitter.report_lines(), *pretrained_model.notes]
  return traverse_util.unflatten_dict(flat_params, sep="/"), lines


def _label_order(
  pretrained_model: PretrainedModel, labels: Sequence[str]
) -> Any:
  """Returns the indices of the classifier's columns in the order of `labels`.

  Returns None if the run or the model has no names of labels.

  Raises:
    UserError: the model has different labels.
  """
  model_labels = pretrained_model.config["labels"]
  if not labels or model_labels is None:
    return None
  columns = columns_in_task_order(labels, model_labels)
  if columns is None:
    raise UserError(
      f"init_from={pretrained_model.path} has the labels {model_labels}, and"
      f" the task has {list(labels)}; pass"
      f" {messages.setting('objective.head', 'new')}."
    )
  return columns


class VocabularyFitter:
  """Fits arrays that have a row for each piece to the data's vocabulary.

  The rows of the model's pieces are taken. Further pieces at the end of the
  data's vocabulary get new rows. If the model's array has more rows than the
  model has pieces (padding to a round number), the additional rows are not
  used.
  """

  def __init__(
    self, pretrained_model: PretrainedModel, vocab_size: int | None, method: str
  ):
    """Raises UserError if `method` is not one of `NEW_ROW_METHODS`.

    The arguments are those of `take_parameters`; `method` is `init_new_rows`.
    """
    check_init_new_rows(method)
    self._pretrained_model, self._vocab_size = pretrained_model, vocab_size
    self._method = method
    self._new_pieces: Sequence[str] = ()
    # The number of rows for ids without a piece, and the number of unused rows.
    self._num_without_piece, self._num_unused = 0, 0

  def fit(
    self, array: np.ndarray, initial_param: jax.Array, axis: int, path: str
  ) -> np.ndarray:
    """Returns the model's array with as many rows as `initial_param`.

    Args:
      array: the model's parameter, float32.
      initial_param: the run's initial parameter. This array may have rows
        beyond the data's pieces: for ids that a task adds, and as padding for
        the mesh.
      axis: the axis of the rows in both arrays.
      path: the parameter's path, for messages.

    Raises:
      UserError: the shapes differ, not only along `axis`.
    """
    shapes = [list(x.shape) for x in (array, initial_param)]
    other_sizes = [shape[:axis] + shape[axis + 1 :] for shape in shapes]
    if array.ndim != initial_param.ndim or other_sizes[0] != other_sizes[1]:
      raise UserError(
        f"init_from={self._pretrained_model.path}: {path} has shape"
        f" {shapes[0]}, not {shapes[1]}."
      )
    array, num_rows = np.moveaxis(array, axis, 0), initial_param.shape[axis]
    pieces, vocabulary = (
      self._pretrained_model.data_pieces,
      self._pretrained_model.vocabulary,
    )
    num_model_rows = len(array)
    if vocabulary is not None:
      num_model_rows = min(num_model_rows, len(vocabulary.pieces))
    new_pieces = pieces[num_model_rows:]
    if not new_pieces:
      # Rows beyond the pieces belong to ids that a task adds. In the model and
      # in the run, these ids have the same meaning, so their rows are taken.
      num_model_rows = min(len(array), num_rows)
    self._num_unused = max(self._num_unused, len(array) - num_model_rows)
    fitted_array = array[:num_model_rows]
    if num_model_rows < num_rows:
      initial_rows = np.moveaxis(
        np.asarray(_gather_on_host(initial_param)), axis, 0
      )
      if new_pieces and vocabulary is not None:
        end = num_model_rows + len(new_pieces)
        old_ids_of = added_tokens.old_piece_cutter(vocabulary, num_model_rows)
        new_rows = new_word_rows(
          fitted_array,
          new_pieces,
          old_ids_of,
          self._method,
          initial_rows[num_model_rows:end],
        )
        fitted_array = np.concatenate([fitted_array, new_rows])
        self._new_pieces = new_pieces
      num_without_piece = (self._vocab_size or num_rows) - len(fitted_array)
      self._num_without_piece = max(self._num_without_piece, num_without_piece)
      fitted_array = np.concatenate(
        [fitted_array, initial_rows[len(fitted_array) :]]
      )
    return np.moveaxis(fitted_array, 0, axis)

  def report_lines(self) -> list[str]:
    """Returns the lines of the report on rows."""
    lines = []
    if self._new_pieces:
      lines.append(describe_new_rows(self._new_pieces, self._method))
    if self._num_without_piece:
      lines.append(
        f"random rows for ids without a piece: {self._num_without_piece}"
      )
    if self._num_unused:
      lines.append(
        f"unused rows of the word table, beyond its pieces: {self._num_unused}"
      )
    return lines


def _gather_on_host(x: jax.Array) -> np.ndarray:
  """Returns all values of an array of any sharding, on this host."""
  if not x.is_fully_addressable:
    assert isinstance(x.sharding, NamedSharding)
    replicated_sharding = NamedSharding(x.sharding.mesh, PartitionSpec())
    x = jax.jit(lambda y: y, out_shardings=replicated_sharding)(x)
  return jax.device_get(x)


def _place_like(array: np.ndarray, initial: jax.Array, name: str) -> jax.Array:
  """Returns an array with the sharding of an initial array.

  Raises:
    UserError: the shapes differ.
  """
  if array.shape != initial.shape:
    raise UserError(
      f"{name} has shape {list(array.shape)}, not {list(initial.shape)}."
    )
  return jax.make_array_from_callback(
    initial.shape, initial.sharding, lambda index: array[index]
  )


def _list_or_count(paths: list[str]) -> str:
  """Lists paths; if there are many, counts them by the first name in a path."""
  if len(paths) <= _MAX_LISTED:
    return ", ".join(paths) or "none"
  num_by_module: dict[str, int] = {}
  for path in paths:
    module = path.split("/")[0]
    num_by_module[module] = num_by_module.get(module, 0) + 1
  return ", ".join(f"{n} of {module}" for module, n in num_by_module.items())


def check_init_new_rows(method: str) -> None:
  """Raises UserError if `method` is not one of `NEW_ROW_METHODS`."""
  if method not in NEW_ROW_METHODS:
    raise UserError(
      f"init_new_rows={method!r} is not one of {', '.join(NEW_ROW_METHODS)}."
    )


def new_word_rows(
  table: np.ndarray,
  new_pieces: Sequence[str],
  old_ids_of: Callable[[str], list[int]],
  method: str,
  random_rows: np.ndarray,
) -> np.ndarray:
  """Makes the rows of new pieces for a word table or an output bias.

  Args:
    table: [old, ...] the trained rows, without padding rows.
    new_pieces: the pieces at the vocabulary's end that have no row yet.
    old_ids_of: a function from a text to ids of `table`; see
      `added_tokens.old_piece_cutter`.
    method: one of `NEW_ROW_METHODS`. With "mean", a piece for which
      `old_ids_of` returns no ids keeps its random row.
    random_rows: [new, ...] random rows, as in a new model.

  Returns:
    [new, ...] rows with the dtype of `table`.

  Raises:
    UserError: the method is unknown, or `random_rows` does not have one row
      for each piece.
  """
  check_init_new_rows(method)
  if random_rows.shape != (len(new_pieces), *table.shape[1:]):
    raise UserError(
      f"the random rows have shape {list(random_rows.shape)}, but there are"
      f" {len(new_pieces)} new pieces, and the table has shape"
      f" {list(table.shape)}."
    )
  rows = np.array(random_rows, table.dtype)
  if method == "mean":
    for row_index, piece in enumerate(new_pieces):
      ids = [i for i in old_ids_of(piece) if i < len(table)]
      if ids:
        rows[row_index] = table[ids].mean(0)
  return rows


def describe_new_rows(new_pieces: Sequence[str], method: str) -> str:
  """Describes the new rows: their number, their pieces, how they were made."""
  names = ", ".join(repr(piece) for piece in new_pieces[:_MAX_LISTED])
  num_unlisted = len(new_pieces) - _MAX_LISTED
  if num_unlisted > 0:
    names += f" and {num_unlisted} more"
  origin = "each the mean of old rows" if method == "mean" else "all random"
  return f"new rows of the word table: {len(new_pieces)} ({names}), {origin}"
