"""Arrays of one naming to arrays of another by rules; nothing is left over."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.messages import UserError

Shape = tuple[int, ...]
LAYER = "{i}"
# Problems that one sentence names; the rest are counted.
MAX_NAMED = 10


class Rule(NamedTuple):
  """One parameter and the array, or arrays, that it is in a file.

  Attributes:
    ours: path in the tree, such as "encoder/embeddings/word/embedding".
    theirs: name in the file. With `{i}` there is one array a layer, and the
      parameter stacks them along a leading axis.
    move: a key of `MOVES`.
    part: (n, of): the parameter is the n-th of `of` equal parts of the array's
      last axis; the rules of all parts stand together.
  """

  ours: str
  theirs: str
  move: str = "copy"
  part: tuple[int, int] | None = None


class Move(NamedTuple):
  """How an array of a file becomes a parameter, and back.

  Attributes:
    to_ours: (array, wanted shape without layer axis) -> array.
    to_theirs: its inverse: array -> array.
  """

  to_ours: Callable[[np.ndarray, Shape], np.ndarray]
  to_theirs: Callable[[np.ndarray], np.ndarray]


def _copy(array: np.ndarray) -> np.ndarray:
  return array


def _join_inputs(array: np.ndarray) -> np.ndarray:
  return array.reshape(-1, array.shape[-1])


def _join_outputs(array: np.ndarray) -> np.ndarray:
  return array.reshape(array.shape[0], -1)


# The transposed ones are torch's Linear: [outputs, inputs]. Heads are axes of
# their own here, in both namings the outer ones.
MOVES: dict[str, Move] = {
  "copy": Move(lambda array, shape: array, _copy),
  "transpose": Move(lambda array, shape: array.T, np.transpose),
  # Query, key, value: [h k, d] -> [d, h, k], and [d, h k] as TF1 has it.
  "heads": Move(
    lambda array, shape: array.T.reshape(shape),
    lambda array: _join_outputs(array).T,
  ),
  "split_outputs": Move(
    lambda array, shape: array.reshape(shape), _join_outputs
  ),
  # Their bias: [h k] -> [h, k].
  "heads_bias": Move(
    lambda array, shape: array.reshape(shape), lambda array: array.reshape(-1)
  ),
  # The output of attention: [d, h k] -> [h, k, d], and [h k, d] in TF1.
  "output": Move(
    lambda array, shape: array.T.reshape(shape),
    lambda array: _join_inputs(array).T,
  ),
  "split_inputs": Move(lambda array, shape: array.reshape(shape), _join_inputs),
}


def keys_of(rule: Rule, shape: Shape) -> list[str]:
  """Names in the file of a rule whose parameter has `shape`."""
  if LAYER not in rule.theirs:
    return [rule.theirs]
  return [rule.theirs.replace(LAYER, str(i)) for i in range(shape[0])]


def _inner(rule: Rule, shape: Shape) -> Shape:
  return shape[1:] if LAYER in rule.theirs else shape


def _their_shape(rule: Rule, shape: Shape) -> Shape:
  # Without memory, whatever a damaged config says.
  empty = np.broadcast_to(np.float32(0), _inner(rule, shape))
  their_shape = MOVES[rule.move].to_theirs(empty).shape
  if rule.part:
    return (*their_shape[:-1], their_shape[-1] * rule.part[1])
  return their_shape


def wanted(
  rules: Sequence[Rule], shapes: Mapping[str, Shape]
) -> dict[str, Shape]:
  """Name -> shape of every array that a file must have.

  Args:
    rules: one for each parameter.
    shapes: path -> shape of every parameter.
  """
  return {
    key: _their_shape(rule, shapes[rule.ours])
    for rule in rules
    if rule.ours in shapes
    for key in keys_of(rule, shapes[rule.ours])
  }


def is_skipped(key: str, patterns: Iterable[str]) -> bool:
  """Returns True if a name matches a pattern; `*` stands for any characters."""
  return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def complain(problems: Sequence[str], where: str) -> None:
  """Raises ValueError with one sentence if there are problems."""
  if problems:
    more = len(problems) - MAX_NAMED
    rest = f"; and {more} more" if more > 0 else ""
    raise UserError(f"{where}: {'; '.join(problems[:MAX_NAMED])}{rest}.")


def check(
  shapes: Mapping[str, Shape], needed: Mapping[str, Shape], where: str
) -> None:
  """Raises ValueError unless both have the same names and shapes.

  Args:
    shapes: the names and shapes of the arrays.
    needed: the names and shapes that the model needs.
    where: the place that the arrays are from, for the message.
  """
  first = next(iter(shapes), "").partition(".")[0] + "."
  if needed and all(
    name.startswith(first) and name not in needed for name in shapes
  ):
    if not needed.keys().isdisjoint(n.removeprefix(first) for n in shapes):
      raise UserError(
        f"{where}: all its names begin with {first!r}; remove that from each."
      )
  complain(
    [f"{name} is missing" for name in needed if name not in shapes]
    + [f"{name} has no place" for name in shapes if name not in needed]
    + [
      f"{name} has shape {list(shapes[name])}, not {list(shape)}"
      for name, shape in needed.items()
      if name in shapes and tuple(shapes[name]) != tuple(shape)
    ],
    where,
  )


def to_ours(
  rules: Sequence[Rule],
  arrays: Mapping[str, np.ndarray],
  shapes: Mapping[str, Shape],
  skipped: Iterable[str],
  where: str,
) -> dict[str, np.ndarray]:
  """Makes the parameters of a model from the arrays of a file.

  Args:
    rules: one for each parameter.
    arrays: name in the file -> array; float arrays become float32.
    shapes: path -> shape of every parameter.
    skipped: patterns of names that need no rule.
    where: the file, for messages.

  Returns:
    Path -> array, in the order of `shapes`.

  Raises:
    ValueError: an array is missing, has no place, or another shape. One
      sentence names the first of them all.
  """
  by_path = {rule.ours: rule for rule in rules}
  odd = sorted(by_path.keys() ^ shapes.keys())
  complain([f"{path} has no rule or no place" for path in odd], where)
  needed, skipped = wanted(rules, shapes), tuple(skipped)
  there = {
    key: array.shape
    for key, array in arrays.items()
    if key in needed or not is_skipped(key, skipped)
  }
  check(there, needed, where)
  result = {}
  for path, shape in shapes.items():
    rule = by_path[path]
    inner, result[path] = _inner(rule, shape), np.empty(shape, np.float32)
    # Written in place: a stack is never held twice.
    slots = result[path] if LAYER in rule.theirs else result[path][None]
    for slot, key in zip(slots, keys_of(rule, shape), strict=True):
      array = arrays[key]
      if rule.part:
        n, of = rule.part
        array = np.split(array, of, axis=-1)[n]
      slot[...] = MOVES[rule.move].to_ours(array, inner)
  return result


def to_theirs(
  rules: Sequence[Rule], params: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Makes the arrays of a file from parameters: the inverse of `to_ours`.

  Args:
    rules: the rules of the parameters to write; others are left out.
    params: path -> array.

  Returns:
    Name -> contiguous array of the parameter's dtype.
  """
  parts: dict[str, list[np.ndarray]] = {}
  for rule in rules:
    array = np.asarray(params[rule.ours])
    slots = array if LAYER in rule.theirs else array[None]
    keys = keys_of(rule, array.shape)
    for slot, key in zip(slots, keys, strict=True):
      parts.setdefault(key, []).append(MOVES[rule.move].to_theirs(slot))
  return {
    key: np.ascontiguousarray(
      arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)
    )
    for key, arrays in parts.items()
  }
