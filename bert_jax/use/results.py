"""Turns users' inputs into lists, and shows lists of results in notebooks."""

import html
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_jax.messages import UserError, note_once

# The largest numbers of rows, of entries of a list, and of characters that a
# table in a notebook shows.
_MAX_ROWS, _MAX_ENTRIES, _MAX_CHARACTERS = 50, 5, 100


class Results(list[dict[str, Any]]):
  """A list of dicts, for example one for each text; notebooks show a table."""

  def _repr_html_(self) -> str:
    columns = list(dict.fromkeys(key for row in self for key in row))
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in columns)
    lines = [f"<tr><th></th>{head}</tr>"]
    for row_index, row in enumerate(self[:_MAX_ROWS]):
      cells = [html.escape(_short_text(row.get(name, ""))) for name in columns]
      line = "".join(f"<td>{cell}</td>" for cell in cells)
      lines.append(f"<tr><th>{row_index}</th>{line}</tr>")
    if len(self) > _MAX_ROWS:
      lines.append(f"<tr><th>...</th><td>{len(self):,} rows</td></tr>")
    return f"<table>{''.join(lines)}</table>"


def _short_text(value: Any) -> str:
  """Returns a value as a short text."""
  if isinstance(value, float):
    return f"{value:.4f}"
  if isinstance(value, np.ndarray):
    return f"{value.dtype} {list(value.shape)}"
  if isinstance(value, Mapping):
    pairs = list(value.items())
    if value and all(isinstance(x, float) for x in value.values()):
      pairs.sort(key=lambda pair: -pair[1])
      return _join_entries([f"{name} {_short_text(x)}" for name, x in pairs])
    return " ".join(_short_text(x) for _, x in pairs)
  if isinstance(value, list | tuple):
    separator = "; " if value and isinstance(value[0], list) else ", "
    return _join_entries(
      [_short_text(x) for x in value[: _MAX_ENTRIES + 1]], separator
    )
  text = str(value)
  return (
    text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
  )


def _join_entries(entries: list[str], separator: str = ", ") -> str:
  if len(entries) > _MAX_ENTRIES:
    entries = [*entries[:_MAX_ENTRIES], "..."]
  return separator.join(entries)


class NoCollection(UserError):
  """Says that an argument is neither one input nor a collection of inputs."""


def items_of(
  inputs: Any, single_types: tuple[type, ...]
) -> tuple[bool, list[Any]]:
  """Returns a list of the inputs that a user passes.

  A set is refused, because it has no order in which results could be given.

  Args:
    inputs: one input, or a collection: a list, an array, a column, a DataFrame
      (its rows become dicts), or a data set of dicts.
    single_types: the types of one input. A string is always one input.

  Returns:
    True if the inputs are a collection, and the list.

  Raises:
    NoCollection: the inputs are neither one input nor a collection.
    UserError: the inputs are a set, or two columns have the same name.
  """
  if isinstance(inputs, (str, *single_types)):
    return False, [inputs]
  if isinstance(inputs, set | frozenset):
    raise UserError(
      "a set has no order, so no result could be matched to its text; pass a"
      " list."
    )
  if isinstance(inputs, np.ndarray) and not inputs.ndim:
    return items_of(inputs.item(), single_types)
  if hasattr(inputs, "to_dicts"):  # polars
    return True, list(inputs.to_dicts())
  if hasattr(inputs, "columns") and hasattr(inputs, "to_dict"):  # pandas
    names = list(inputs.columns)
    for name in names:
      # pandas would drop all columns of this name except the last one.
      if names.count(name) > 1:
        raise UserError(
          f"the table has {names.count(name)} columns with the name {name!r};"
          " rename or drop all but one."
        )
    return True, list(inputs.to_dict("records"))
  if isinstance(inputs, bytes) or not isinstance(inputs, Iterable):
    raise NoCollection(
      f"{inputs!r:.60} is not a text; pass a string or a list of strings."
    )
  return True, list(inputs)


def text_of(item: Any, index: int) -> str:
  """Returns the text of an input, which is a string or a dict with `text`.

  Raises:
    UserError: the input has no text. The message names the input by `index`.
  """
  text = item.get("text") if isinstance(item, Mapping) else item
  if isinstance(text, str):
    return str(text)
  if isinstance(item, Mapping):
    if "text" in item:
      raise UserError(_wrong_field(index, "text", text))
    names = ", ".join(map(str, item)) or "no field"
    raise UserError(
      f"input {index} has no field 'text' that is a string; it has {names}."
    )
  raise UserError(f"input {index} is {item!r:.60}, not a text.")


def fields_of(item: Any, kind: str, index: int) -> dict[str, Any]:
  """Returns the fields of an input: name -> value.

  `tasks.files.requests.parse` takes this dict.

  Args:
    item: a string; a tuple or list of values, in the order of the fields; or a
      dict. A value of a dict may be an array. NaN stands for a missing value,
      as in a row of a DataFrame.
    kind: what the model predicts, a key of `requests.PARSERS`.
    index: the index of the input, for messages.

  Raises:
    UserError: the input is not of these types, or has the wrong number of
      entries.
  """
  if isinstance(item, str):
    return {"text": str(item)}
  if isinstance(item, Mapping):
    fields = {str(name): to_python(field) for name, field in item.items()}
    filled_fields = {
      name: field for name, field in fields.items() if field is not None
    }
    for name in _needed_fields(kind, filled_fields):
      if name in fields and name not in filled_fields:
        raise UserError(_wrong_field(index, name, item[name]))
    _note_unread_texts(filled_fields)
    return filled_fields
  if not isinstance(item, list | tuple | np.ndarray):
    raise UserError(f"input {index} is {item!r:.60}, not a text.")
  entries = [to_python(entry) for entry in item]
  if kind == "tagging":
    return {"words": entries}
  names = _FIELD_NAMES.get(kind, ("text", "text_pair"))
  if len(entries) != len(names):
    raise UserError(
      f"input {index} has {len(entries)} entries; pass ({', '.join(names)})."
    )
  return dict(zip(names, entries, strict=True))


# Fields that a model reads, or that describe an input.
_KNOWN_FIELDS = frozenset(
  {
    *("text", "text_pair", "texts", "choices", "words", "question", "context"),
    *("id", "label", "labels", "answers", "tags"),
  }
)


def _note_unread_texts(fields: Mapping[str, Any]) -> None:
  """Says which texts of an input no model reads."""
  names = [
    name
    for name, content in fields.items()
    if isinstance(content, str) and name not in _KNOWN_FIELDS
  ]
  if names:
    note_once(
      f"predict does not read the text in {', '.join(names)}. A second text is"
      " read from the field text_pair."
    )


# Kind -> the fields that a dict must have. `_needed_fields` gives the fields of
# all other kinds.
_NEEDED_FIELDS: dict[str, tuple[str, ...]] = {
  "span": ("question", "context"),
  "choice": (),
}
# Kind -> the names of a tuple's entries. For tagging, a tuple is a list of
# words. For every other kind, it is a pair of texts.
_FIELD_NAMES = {"span": ("question", "context"), "choice": ("text", "choices")}


def _needed_fields(kind: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns the names of the fields that a dict with `fields` must have."""
  if kind == "tagging":
    return () if "words" in fields or "text" in fields else ("text", "words")
  return _NEEDED_FIELDS.get(kind, () if "texts" in fields else ("text",))


def _wrong_field(index: int, name: str, value: Any) -> str:
  """Returns a message about a field that is empty, or is not a text."""
  if to_python(value) is None:
    return (
      f"input {index} has no text: its field {name!r} is {value!r}; leave the"
      " input out, or give it a text."
    )
  remedy = ""
  if isinstance(value, list | tuple | np.ndarray):
    remedy = "; for several texts, pass a list of them, or of dicts"
  return (
    f"input {index}: its field {name!r} is {value!r:.60}, not a text{remedy}."
  )


def to_python(value: Any) -> Any:
  """Turns NumPy's scalars and arrays into numbers and lists, NaN into None.

  pandas.NA and pandas.NaT become None as well. The values of a dict are
  turned, too: a table of SQuAD has dicts of arrays in its column `answers`.
  """
  if isinstance(value, str):
    return str(value)
  if isinstance(value, np.generic):
    value = value.item()
  if isinstance(value, np.ndarray) and not value.ndim:
    return to_python(value.item())
  if isinstance(value, list | tuple | np.ndarray):
    return [to_python(x) for x in value]
  if isinstance(value, dict):
    return {name: to_python(x) for name, x in value.items()}
  # NaN is the only number that differs from itself. pandas.NA == x gives no
  # bool, so ask for its type.
  is_nan = isinstance(value, float) and value != value
  if is_nan or type(value).__name__ in ("NAType", "NaTType"):
    return None
  return value
