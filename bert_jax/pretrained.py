"""The model that a run begins with: `init_from`, of training and fine-tuning.

A run's --workdir (RUN@best, RUN@STEP), a converted folder or one of
transformers, of any family, opened as `bert_jax.load` does. What the run's
objective has and the model has too is taken; a head that the model lacks is
drawn; what the objective has no place for is left. One report names them all.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax import loading, models
from bert_jax.convert import hf_tasks, new_rows, towers
from bert_jax.convert.folder import Weights
from bert_jax.data import added_tokens, vocabulary_files
from bert_jax.data.pieces import OtherVocabulary, check_begins
from bert_jax.data.tokenizer import Vocabulary

# Names of each sort that the report writes out; more are counted.
_NAMED = 6
# Attributes that a run may have of its own: they change no parameter that is
# taken.
_FREE = ("dropout", "attention_dropout", "vocab_size", "initializer_range")
# Families that have the same parameters under the same names.
_ALIKE = ({"bert", "tinybert"},)
# Where the parameters stand that no run begins without, by objective; all of
# them come with a whole model, and a missing one is an error.
_BODIES = {"electra": ("embeddings/", "discriminator/")}
_BODY = ("encoder/",)


class Pretrained(NamedTuple):
  """A pre-trained model as its files have it.

  Attributes:
    path: the model's folder, run or name, as the config gives it.
    config: see convert/folder.py.
    arrays: path in the run's parameter tree, joined by "/", -> float32 array.
    pieces: pieces of the data's vocabulary, in the order of their ids.
    vocabulary: the model's own; None where it has none and needs none.
    notes: lines for the report.
  """

  path: str
  config: dict[str, Any]
  arrays: Mapping[str, np.ndarray]
  pieces: Sequence[str] = ()
  vocabulary: Vocabulary | None = None
  notes: tuple[str, ...] = ()


def read(
  path: str, pieces: Sequence[str], where: str, family: str | None = None
) -> Pretrained:
  """Reads a model to fine-tune, and checks that it fits the data's vocabulary.

  Args:
    path: see `loading.read`.
    pieces: pieces of the data's vocabulary. It is the model's own, perhaps
      with more at its end.
    where: the data's folder, for messages.
    family: the config's, for a folder that names none.

  Raises:
    ValueError: with one sentence: the files, the family, or another
      vocabulary.
  """
  weights = _open(path, family)
  if weights.config["family"] not in models.FAMILIES:
    raise ValueError(
      f"init_from={path} is of family {weights.config['family']}; fine-tuned"
      f" are {', '.join(models.FAMILIES)}."
    )
  both = weights.config["task"] == "pretraining"
  if weights.config["family"] == "electra" and both:
    weights = towers.split(weights, "discriminator")
  vocabulary = _vocabulary(path, weights, where)
  remedy = "prepare the task with the model's tokenizer"
  name = f"init_from={path}"
  check_begins(vocabulary.pieces, pieces, name, where, remedy)
  return Pretrained(path, weights.config, weights.arrays, pieces, vocabulary)


def read_to_go_on(
  path: str,
  pieces: Sequence[str],
  where: str,
  objective: Mapping[str, Any],
  family: str | None = None,
) -> Pretrained:
  """Reads a model whose pre-training goes on, on the data of this run.

  Args:
    path: and `pieces`, `where`, `family`: see `read`.
    objective: the config's section.

  Raises:
    ValueError: with one sentence: the files, or another vocabulary.
  """
  weights = _open(path, family)
  if family in models.FAMILIES and weights.config["family"] != family:
    if any({family, weights.config["family"]} <= same for same in _ALIKE):
      weights = weights._replace(config=weights.config | {"family": family})
  if objective["name"] == "electra" and weights.config["family"] == "electra":
    weights = _both_towers(path, weights)
  arrays, notes = {**weights.arrays, **weights.heads}, []
  if objective["name"] == "elmo":
    vocabulary = _words_of_elmo(path, weights, pieces, where, arrays, notes)
  else:
    vocabulary = _vocabulary(path, weights, where)
    remedy = "prepare the text with the model's tokenizer"
    name = f"init_from={path}"
    check_begins(vocabulary.pieces, pieces, name, where, remedy)
  own, other = objective.get("pair_name", "nsp"), _pair_name(weights)
  heads = [name for name in arrays if name.startswith("pair/")]
  if objective["name"] == "mlm" and heads and own != other:
    for name in heads:
      del arrays[name]
    notes.append(f"the model's pair head tells {other}, this run's {own}")
  step = weights.config["source"].get("step")
  if step is not None:
    notes.append(f"the run's step {step}; this one begins at step 0")
  return Pretrained(
    path, weights.config, arrays, pieces, vocabulary, tuple(notes)
  )


def _open(path: str, family: str | None) -> Weights:
  """`loading.read`; the config's family serves a folder that names none."""
  try:
    try:
      return loading.read(path)
    except hf_tasks.UnknownFamily:
      if family is None:
        raise
      return loading.read(path, family)
  except ValueError as e:
    raise ValueError(f"init_from: {e}") from e


def _both_towers(path: str, weights: Weights) -> Weights:
  """ELECTRA's parameters by the names of both towers, maybe of one alone."""
  task = weights.config["task"]
  if task == "pretraining":
    return weights
  if task == "generator":
    raise ValueError(
      f"init_from={path} is ELECTRA's generator alone, and says nothing of the"
      " discriminator; name a folder that holds both, each in a folder of its"
      f" own named {' and '.join(towers.TOWERS)}, or the discriminator's."
    )
  return weights._replace(
    arrays=towers.pretraining_names(weights.arrays, "discriminator")
  )


def _pair_name(weights: Weights) -> str:
  """What a model's head for pairs tells."""
  usual = "sop" if weights.config["family"] == "albert" else "nsp"
  return weights.config["source"].get("pair_name", usual)


def _vocabulary(path: str, weights: Weights, where: str) -> Vocabulary:
  """A model's own vocabulary; ValueError if it has none."""
  if not vocabulary_files.has_tokenizer(weights.tokenizer_files):
    raise ValueError(
      f"init_from={path} has no vocabulary, so that nobody knows if it is that"
      f" of {where}; put its tokenizer's files beside it."
    )
  try:
    # As the data was prepared, which fills gaps between ids.
    return vocabulary_files.of_files(weights.tokenizer_files, path)
  except ValueError as e:
    raise ValueError(f"init_from: {e}") from e


def _words_of_elmo(
  path: str,
  weights: Weights,
  pieces: Sequence[str],
  where: str,
  arrays: dict[str, np.ndarray],
  notes: list[str],
) -> Vocabulary | None:
  """Compares ELMo's words, which only its softmax needs.

  With other words the softmax is drawn anew: it is taken out of `arrays`. The
  encoder reads characters, the same ones in every ELMo.
  """
  softmax = [name for name in arrays if not name.startswith("encoder/")]
  if not softmax:
    return None
  vocabulary, name = _vocabulary(path, weights, where), f"init_from={path}"
  try:
    check_begins(vocabulary.pieces, pieces, name, where)
  except OtherVocabulary as e:
    for name in softmax:
      del arrays[name]
    notes.append(f"the softmax is drawn anew, as it has other words ({e})")
  return vocabulary


def fill_model(model: dict[str, Any], found: Pretrained) -> dict[str, Any]:
  """The `model` section of a run that begins with a pre-trained model.

  Its sizes are the model's. A config's variant gives way to them; any other
  key that contradicts them is an error.

  Args:
    model: the config's section; a key that is None is taken from the files.
    found: the files.

  Raises:
    ValueError: the config says another family or size.
  """
  given = {name: value for name, value in model.items() if value is not None}
  family = found.config["family"]
  sizes = {"family": family} | found.config["model"]
  other = [
    name
    for name, value in given.items()
    if name in sizes and name not in _FREE and not _equal(value, sizes[name])
  ]
  if other:
    raise ValueError(
      f"the config has {', '.join(f'model.{n}={given[n]!r}' for n in other)},"
      f" but init_from={found.path} has"
      f" {', '.join(f'{n}={sizes[n]!r}' for n in other)}; pass"
      f" {' '.join(f'--config.model.{n}={sizes[n]}' for n in other)}, or leave"
      " them out of the config's file to take them from there."
    )
  sizes.pop("vocab_size")
  first = next(iter(models.family(family).VARIANTS))
  return {"family": family, "variant": first} | sizes | given


def _equal(a: Any, b: Any) -> bool:
  """Whether two values are the same in JSON, which knows no tuples."""
  return json.dumps(a) == json.dumps(b) or a == b


def variant_line(model: Mapping[str, Any], found: Pretrained) -> str | None:
  """Says which sizes of a config's variant give way to the model's."""
  variants = models.family(found.config["family"]).VARIANTS
  usual = variants.get(model.get("variant"), {})
  sizes = found.config["model"]
  other = [n for n in usual if n in sizes and not _equal(usual[n], sizes[n])]
  if not other:
    return None
  values = ", ".join(f"{name}={sizes[name]}" for name in other)
  return f"sizes: {values}, not those of model.variant={model['variant']!r}"


def take(
  found: Pretrained,
  params: Any,
  takes: Callable[[str], bool] | None,
  labels: Sequence[str],
  vocabulary_axes: Mapping[str, int] | None = None,
  vocab_size: int | None = None,
  init_new_rows: str = new_rows.HOW[0],
) -> tuple[Any, list[str]]:
  """Puts the pre-trained arrays in place of drawn ones.

  A pooler that the files lack stays as drawn where the classifier does.

  Args:
    found: the files.
    params: the run's initial parameters.
    takes: path in the tree -> whether it is taken; the objective's. A
      classifier that is taken gets its labels in order by name. None: all that
      the files have.
    labels: names of the run's labels, () if it has none.
    vocabulary_axes: path -> axis along which a parameter has a row for each
      piece; see `state.vocabulary_axes`. None: the word table's alone.
    vocab_size: rows that have an id; those of `params` beyond it fill up the
      mesh. None: all have.
    init_new_rows: how rows of pieces are made that the model has none for, one
      of `new_rows.HOW`.

  Returns:
    The parameters, with the shardings of `params`, and the lines of the report:
    what is taken, new and left.

  Raises:
    ValueError: an array is missing or has another shape.
  """
  head = takes is not None and takes("classifier/dense/kernel")
  order = _label_order(found, labels) if head else None
  flat = traverse_util.flatten_dict(params, sep="/")
  electra = any(path.startswith("discriminator/") for path in flat)
  bodies = _BODIES["electra"] if electra else _BODY
  if vocabulary_axes is None:
    vocabulary_axes = {p: 0 for p in flat if p.endswith("word/embedding")}
  taken, new = [], []
  rows = Rows(found, vocab_size, init_new_rows)
  for path, drawn in flat.items():
    lacking = path not in found.arrays
    if takes is None:
      draws = lacking and not path.startswith(bodies)
    else:
      draws = not takes(path)
      draws |= lacking and path.startswith("pooler/") and not head
    if draws:
      new.append(path)
      continue
    if lacking:
      hint = "; pass --config.objective.head=new" if head else ""
      raise ValueError(f"init_from={found.path} has no {path}{hint}.")
    array = found.arrays[path]
    if order is not None and path.startswith("classifier/"):
      array = array[..., order]
    if path in vocabulary_axes:
      array = rows.fit(array, drawn, vocabulary_axes[path], path)
    flat[path] = _place(array, drawn, f"init_from={found.path}: {path}")
    taken.append(path)
  left = [path for path in found.arrays if path not in flat]
  lists = {"taken": taken, "new": new, "left": left}
  lines = [f"{name}: {_listed(paths)}" for name, paths in lists.items()]
  lines += [*rows.lines(), *found.notes]
  return traverse_util.unflatten_dict(flat, sep="/"), lines


def _label_order(found: Pretrained, labels: Sequence[str]) -> Any:
  """Columns of the files' classifier in the order of `labels`.

  Raises:
    ValueError: the files have other labels.
  """
  theirs = found.config["labels"]
  if not labels or theirs is None:
    return None
  if sorted(theirs) != sorted(labels):
    raise ValueError(
      f"init_from={found.path} has the labels {theirs}, the task"
      f" {list(labels)}; pass --config.objective.head=new."
    )
  return [theirs.index(name) for name in labels]


class Rows:
  """Fits tables with a row for each piece to the data's vocabulary.

  Rows of the model's own pieces are taken. Pieces beyond these, which the
  data's vocabulary has at its end, get new rows. What the model has beyond its
  pieces (a table padded to a round number) is left out.
  """

  def __init__(self, found: Pretrained, vocab_size: int | None, how: str):
    """See `take`: the files, rows that have an id, how new rows are made."""
    new_rows.check_how(how)
    self._found, self._vocab_size, self._how = found, vocab_size, how
    self._new: Sequence[str] = ()
    self._beyond, self._left = 0, 0

  def fit(
    self, array: np.ndarray, drawn: jax.Array, axis: int, path: str
  ) -> np.ndarray:
    """The model's rows, cut or filled up to those of `drawn`.

    Args:
      array: the model's, float32.
      drawn: the run's own, which may have rows beyond the data's pieces: ids
        that a task adds, and rows that fill up the mesh.
      axis: of the rows, in both.
      path: the parameter's, for messages.

    Raises:
      ValueError: they differ in more than the rows.
    """
    shapes = [list(x.shape) for x in (array, drawn)]
    rest = [shape[:axis] + shape[axis + 1 :] for shape in shapes]
    if array.ndim != drawn.ndim or rest[0] != rest[1]:
      raise ValueError(
        f"init_from={self._found.path}: {path} has shape {shapes[0]}, not"
        f" {shapes[1]}."
      )
    array, count = np.moveaxis(array, axis, 0), drawn.shape[axis]
    pieces, vocabulary = self._found.pieces, self._found.vocabulary
    size = len(array)
    if vocabulary is not None:
      size = min(size, len(vocabulary.pieces))
    new_pieces = pieces[size:]
    if not new_pieces:
      # Ids beyond the pieces are a task's; they are the same in the model.
      size = min(len(array), count)
    self._left = max(self._left, len(array) - size)
    fitted = array[:size]
    if size < count:
      own = np.moveaxis(np.asarray(_whole(drawn)), axis, 0)
      if new_pieces:
        until = size + len(new_pieces)
        old_ids = added_tokens.old_ids(vocabulary, size)
        made = new_rows.new_word_rows(
          fitted, new_pieces, old_ids, self._how, own[size:until]
        )
        fitted = np.concatenate([fitted, made])
        self._new = new_pieces
      beyond = (self._vocab_size or count) - len(fitted)
      self._beyond = max(self._beyond, beyond)
      fitted = np.concatenate([fitted, own[len(fitted) :]])
    return np.moveaxis(fitted, 0, axis)

  def lines(self) -> list[str]:
    """Lines of the report."""
    lines = [new_rows.line(self._new, self._how)] if self._new else []
    if self._beyond:
      lines.append(f"drawn rows of ids beyond the pieces: {self._beyond}")
    if self._left:
      lines.append(
        f"left rows of the word table beyond the pieces: {self._left}"
      )
    return lines


def _whole(x: jax.Array) -> np.ndarray:
  """An array of any sharding, whole on this host."""
  if not x.is_fully_addressable:
    place = NamedSharding(x.sharding.mesh, PartitionSpec())
    x = jax.jit(lambda y: y, out_shardings=place)(x)
  return jax.device_get(x)


def _place(array: np.ndarray, drawn: jax.Array, where: str) -> jax.Array:
  """`array` as `drawn` lies; ValueError if it has another shape."""
  if array.shape != drawn.shape:
    raise ValueError(
      f"{where} has shape {list(array.shape)}, not {list(drawn.shape)}."
    )
  return jax.make_array_from_callback(
    drawn.shape, drawn.sharding, lambda index: array[index]
  )


def _listed(paths: list[str]) -> str:
  """A count by the first part of each name, and a few names."""
  if len(paths) <= _NAMED:
    return ", ".join(paths) or "nothing"
  counts: dict[str, int] = {}
  for path in paths:
    part = path.split("/")[0]
    counts[part] = counts.get(part, 0) + 1
  return ", ".join(f"{n} of {part}" for part, n in counts.items())
