"""Defines rules that turn the arrays of a file into parameters, and back.

Each parameter needs exactly one rule. Each array must belong to a rule, unless
its name matches a pattern of names that are skipped.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.messages import UserError

Shape = tuple[int, ...]
LAYER_INDEX = "{i}"
# The largest number of problems that one message names. The message counts the
# rest.
MAX_NAMED_PROBLEMS = 10


@dataclasses.dataclass(frozen=True)
class Rule:
  """Says where a file holds one parameter.

  Attributes:
    path: the parameter's path, such as "encoder/embeddings/word/embedding".
    name_in_file: the array's name. A name with `{i}` stands for one array
      per layer; the parameter stacks the layers' arrays along a new first axis.
    layout: how the array is laid out in the file, a key of `LAYOUTS`.
    section: (index, count) if several parameters share one array. The array's
      last axis has `count` equal sections, and section `index` is this
      parameter. The rules of an array's sections are in the order of the
      sections. None if the array holds only this parameter.
  """

  path: str
  name_in_file: str
  layout: str = "same"
  section: tuple[int, int] | None = None


class ArrayLayout(NamedTuple):
  """Converts between an array, as a file lays it out, and the parameter.

  Attributes:
    to_parameter: (array, the parameter's shape without the layer axis) ->
      parameter.
    to_array: parameter -> array, the inverse of `to_parameter`.
  """

  to_parameter: Callable[[np.ndarray, Shape], np.ndarray]
  to_array: Callable[[np.ndarray], np.ndarray]


def _join_inputs(array: np.ndarray) -> np.ndarray:
  return array.reshape(-1, array.shape[-1])


def _join_outputs(array: np.ndarray) -> np.ndarray:
  return array.reshape(array.shape[0], -1)


# | layout | in the file | parameter | used by |
# | --- | --- | --- | --- |
# | same | any shape | the same shape | |
# | transpose | [outputs, inputs] | [inputs, outputs] | torch's Linear |
# | heads | [h k, d] | [d, h, k] | torch's query, key, value |
# | split_outputs | [d, h k] | [d, h, k] | query, key, value of TF1, GPT-1 |
# | heads_bias | [h k] | [h, k] | biases of query, key, value |
# | output | [d, h k] | [h, k, d] | torch's output of attention |
# | split_inputs | [h k, d] | [h, k, d] | output of attention of TF1, GPT-1 |
#
# d is the width of the hidden states, h the number of heads, k the width of a
# head. In the joined axis `h k`, the heads are the outer axis.
LAYOUTS: dict[str, ArrayLayout] = {
  "same": ArrayLayout(lambda array, shape: array, lambda array: array),
  "transpose": ArrayLayout(lambda array, shape: array.T, np.transpose),
  "heads": ArrayLayout(
    lambda array, shape: array.T.reshape(shape),
    lambda array: _join_outputs(array).T,
  ),
  "split_outputs": ArrayLayout(
    lambda array, shape: array.reshape(shape), _join_outputs
  ),
  "heads_bias": ArrayLayout(
    lambda array, shape: array.reshape(shape), lambda array: array.reshape(-1)
  ),
  "output": ArrayLayout(
    lambda array, shape: array.T.reshape(shape),
    lambda array: _join_inputs(array).T,
  ),
  "split_inputs": ArrayLayout(
    lambda array, shape: array.reshape(shape), _join_inputs
  ),
}


def names_in_file(rule: Rule, shape: Shape) -> list[str]:
  """Returns the names of a rule's arrays in the file.

  Args:
    rule: the rule.
    shape: the shape of the parameter.
  """
  if LAYER_INDEX not in rule.name_in_file:
    return [rule.name_in_file]
  return [
    rule.name_in_file.replace(LAYER_INDEX, str(i)) for i in range(shape[0])
  ]


def _shape_of_layer(rule: Rule, shape: Shape) -> Shape:
  """Returns a parameter's shape without the axis of layers."""
  return shape[1:] if LAYER_INDEX in rule.name_in_file else shape


def _array_shape(rule: Rule, shape: Shape) -> Shape:
  # A broadcast array needs no memory, even if a damaged config has huge sizes.
  zeros = np.broadcast_to(np.float32(0), _shape_of_layer(rule, shape))
  array_shape = LAYOUTS[rule.layout].to_array(zeros).shape
  if rule.section:
    return (*array_shape[:-1], array_shape[-1] * rule.section[1])
  return array_shape


def shapes_in_file(
  rules: Sequence[Rule], shapes: Mapping[str, Shape]
) -> dict[str, Shape]:
  """Returns name -> shape of every array that a file must have.

  Args:
    rules: the rules. A rule whose path is not in `shapes` adds no name.
    shapes: path -> shape of every parameter.
  """
  return {
    name: _array_shape(rule, shapes[rule.path])
    for rule in rules
    if rule.path in shapes
    for name in names_in_file(rule, shapes[rule.path])
  }


def matches_pattern(name: str, patterns: Iterable[str]) -> bool:
  """Returns True if a name matches a pattern; `*` stands for any characters."""
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def raise_if_problems(problems: Sequence[str], source: str) -> None:
  """Raises a UserError with one sentence if there are problems.

  Args:
    problems: short texts, each about one fault.
    source: where the arrays are from, for the message.
  """
  if problems:
    num_unnamed = len(problems) - MAX_NAMED_PROBLEMS
    ending = f"; and {num_unnamed} more" if num_unnamed > 0 else ""
    raise UserError(
      f"{source}: {'; '.join(problems[:MAX_NAMED_PROBLEMS])}{ending}."
    )


def check_shapes(
  shapes: Mapping[str, Shape], needed_shapes: Mapping[str, Shape], source: str
) -> None:
  """Raises a UserError unless arrays have the names and shapes of a model.

  Args:
    shapes: the names and shapes of the arrays.
    needed_shapes: the names and shapes that the model needs.
    source: where the arrays are from, for the message.
  """
  # Another program may have put a prefix such as "model." before all names.
  prefix = next(iter(shapes), "").partition(".")[0] + "."
  all_have_prefix = all(
    name.startswith(prefix) and name not in needed_shapes for name in shapes
  )
  names_without_prefix = {name.removeprefix(prefix) for name in shapes}
  if all_have_prefix and names_without_prefix & needed_shapes.keys():
    raise UserError(
      f"{source}: all names in it begin with {prefix!r}; remove this prefix."
    )
  raise_if_problems(
    [f"{name} is missing" for name in needed_shapes if name not in shapes]
    + [
      f"{name} belongs to no parameter"
      for name in shapes
      if name not in needed_shapes
    ]
    + [
      f"{name} has shape {list(shapes[name])}, not {list(shape)}"
      for name, shape in needed_shapes.items()
      if name in shapes and tuple(shapes[name]) != tuple(shape)
    ],
    source,
  )


def to_params(
  rules: Sequence[Rule],
  arrays: Mapping[str, np.ndarray],
  shapes: Mapping[str, Shape],
  skipped_patterns: Iterable[str],
  source: str,
) -> dict[str, np.ndarray]:
  """Makes the parameters of a model from the arrays of a file.

  Args:
    rules: one rule for each parameter.
    arrays: name in the file -> array of any float dtype.
    shapes: path -> shape of every parameter.
    skipped_patterns: patterns of the names that need no rule.
    source: the file, for messages.

  Returns:
    Path -> float32 array, in the order of `shapes`.

  Raises:
    UserError: an array is missing, belongs to no parameter, or has the wrong
      shape; or the paths of `rules` and `shapes` differ. The message is one
      sentence.
  """
  rule_by_path = {rule.path: rule for rule in rules}
  unmatched_paths = sorted(rule_by_path.keys() ^ shapes.keys())
  raise_if_problems(
    [
      f"{path} has no rule, or the model has no such parameter"
      for path in unmatched_paths
    ],
    source,
  )
  needed_shapes = shapes_in_file(rules, shapes)
  skipped_patterns = tuple(skipped_patterns)
  array_shapes = {
    name: array.shape
    for name, array in arrays.items()
    if name in needed_shapes or not matches_pattern(name, skipped_patterns)
  }
  check_shapes(array_shapes, needed_shapes, source)
  params = {}
  for path, shape in shapes.items():
    rule = rule_by_path[path]
    params[path] = np.empty(shape, np.float32)
    # Fill the stack layer by layer, so that memory holds it only once.
    layers = (
      params[path] if LAYER_INDEX in rule.name_in_file else params[path][None]
    )
    for layer, name in zip(layers, names_in_file(rule, shape), strict=True):
      array = arrays[name]
      if rule.section:
        section_index, num_sections = rule.section
        array = np.split(array, num_sections, axis=-1)[section_index]
      to_parameter = LAYOUTS[rule.layout].to_parameter
      layer[...] = to_parameter(array, _shape_of_layer(rule, shape))
  return params


def to_arrays(
  rules: Sequence[Rule], params: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Makes the arrays of a file from parameters: the inverse of `to_params`.

  Args:
    rules: the rules of the parameters to write. Parameters without a rule are
      left out.
    params: path -> array.

  Returns:
    Name -> contiguous array of the parameter's dtype.
  """
  sections_by_name: dict[str, list[np.ndarray]] = {}
  for rule in rules:
    array = np.asarray(params[rule.path])
    layers = array if LAYER_INDEX in rule.name_in_file else array[None]
    array_names = names_in_file(rule, array.shape)
    for layer, name in zip(layers, array_names, strict=True):
      section = LAYOUTS[rule.layout].to_array(layer)
      sections_by_name.setdefault(name, []).append(section)
  return {
    name: np.ascontiguousarray(
      sections[0] if len(sections) == 1 else np.concatenate(sections, axis=-1)
    )
    for name, sections in sections_by_name.items()
  }
