"""Lines of JSON to examples without labels, for `bert_jax predict`."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.files import tables

Example = dict[str, Any]


# How tokenizers of the published families spell the mask.
_MASKS = ("[MASK]", "<mask>")


def read(
  lines: Iterable[str], kind: str, where: str, mask: str | None = None
) -> Iterator[Example]:
  """Yields an example for each line; fields as in `rows`, and `id`.

  | kind | fields of a line |
  |---|---|
  | classification, regression, multi_label | text, text_pair if there is one |
  | choice | text (it may be left out), choices |
  | tagging | words; or text, whose words spaces separate |
  | span | question, context |
  | fill | text with one or more mask tokens |

  `texts` (a list of one or two, of choices a list of such) does as well.

  Args:
    lines: each a JSON object; `id` and other fields are allowed.
    kind: the kind of prediction that the model makes.
    where: the file, for messages.
    mask: spelling of the model's mask token; a text of kind fill without it is
      an error.

  Raises:
    ValueError: a line that is no object, lacks a field, or has no mask where
      there must be one; names its number.
  """
  parse = PARSERS[kind]
  for number, line in enumerate(lines, 1):
    try:
      try:
        value = tables.parse_json(line)
      except ValueError as e:
        what = "it is empty" if not line.strip() else f"no JSON ({e})"
        raise UserError(what) from e
      if not isinstance(value, dict):
        raise UserError('no object, such as {"text": "..."}')
      example = parse(value)
      if kind == "fill" and mask is not None:
        _check_mask(example["text"], mask)
      yield {"id": value.get("id", number)} | example
    except ValueError as e:
      raise UserError(f"{where}:{number}: {e}.") from e


def _check_mask(text: str, mask: str) -> None:
  if mask in text:
    return
  others = [token for token in _MASKS if token in text]
  has = f"; it has {others[0]}, which is another model's" if others else ""
  raise UserError(
    f"the text has no mask to fill{has}: this model's mask is {mask}"
  )


def _text(value: Any, name: str) -> str:
  if not isinstance(value, str):
    raise UserError(f"{name} is {json.dumps(value)[:40]}, not text")
  return value


def _field(value: Example, name: str) -> str:
  if name not in value:
    raise UserError(f"no field {name!r}; it has {', '.join(value) or 'none'}")
  return _text(value[name], name)


def _list(value: Example, name: str) -> list[str]:
  items = value[name]
  if not isinstance(items, list) or not items:
    raise UserError(f"{name} is no list, or an empty one")
  return [_text(item, f"{name}[{i}]") for i, item in enumerate(items)]


def _texts(value: Example) -> Example:
  if "texts" in value:
    texts = _list(value, "texts")
    if len(texts) > 2:
      raise UserError(f"texts has {len(texts)} texts, not one or two")
    return {"texts": texts}
  texts = [_field(value, "text")]
  if value.get("text_pair") is not None:
    texts.append(_field(value, "text_pair"))
  return {"texts": texts}


def _choices(value: Example) -> Example:
  if "choices" in value:
    choices = _list(value, "choices")
    before = [_field(value, "text")] if value.get("text") is not None else []
    return {"texts": [[*before, choice] for choice in choices]}
  rows = value.get("texts")
  if not isinstance(rows, list) or not rows:
    raise UserError("no field 'choices', a list of texts")
  return {
    "texts": [_texts({"texts": row} if row else {})["texts"] for row in rows]
  }


def _words(value: Example) -> Example:
  if "words" in value:
    return {"words": _list(value, "words"), "tags": None}
  return {"words": _field(value, "text").split(), "tags": None}


def _question(value: Example) -> Example:
  question, context = _field(value, "question"), _field(value, "context")
  return {"question": question, "context": context, "answers": None}


def _masked(value: Example) -> Example:
  return {"text": _field(value, "text")}


PARSERS: dict[str, Callable[[Example], Example]] = {
  "classification": _texts,
  "regression": _texts,
  "multi_label": _texts,
  "choice": _choices,
  "tagging": _words,
  "span": _question,
  "fill": _masked,
}
