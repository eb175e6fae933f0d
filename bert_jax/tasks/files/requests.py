"""Reads JSON lines as examples without labels, for `bert_jax predict`."""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bert_jax.messages import UserError
from bert_jax.tasks.files import tables

Example = dict[str, Any]

# The spellings of the mask token in the published families.
_MASK_TOKENS = ("[MASK]", "<mask>")
# Punctuation that belongs to the word beside it, as in "@name".
_WORD_PUNCTUATION = "@#%&*/\\_-"


def read(
  lines: Iterable[str], kind: str, location: str, mask: str | None = None
) -> Iterator[Example]:
  """Yields an example for each line, with the fields of `encoded_rows`.

  | kind | fields of a line |
  |---|---|
  | classification, regression, multi_label | text; text_pair is optional |
  | choice | choices; text is optional |
  | tagging | words; or text, which `split_words` splits |
  | span | question, context |
  | fill | text with one or more mask tokens |

  In place of text and text_pair, a line may have the field texts with a list of
  one or two texts. In place of text and choices, the field texts has such a
  list for each choice.

  Args:
    lines: JSON objects; `id` and other fields are allowed.
    kind: the kind of the predictions, a key of `PARSERS`.
    location: the file, for messages.
    mask: the model's mask token. If it is not None, a text of kind fill must
      have this token.

  Raises:
    ValueError: a line is not an object, lacks a field, or lacks a mask; the
      message has the number of the line.
  """
  for line_number, line in enumerate(lines, 1):
    try:
      try:
        fields = tables.parse_json(line)
      except ValueError as e:
        is_empty = not line.strip()
        fault = "it is empty" if is_empty else f"it is not JSON ({e})"
        raise UserError(fault) from e
      if not isinstance(fields, dict):
        raise UserError('it is not an object, such as {"text": "..."}')
      yield {"id": fields.get("id", line_number)} | parse(fields, kind, mask)
    except ValueError as e:
      raise UserError(f"{location}:{line_number}: {e}.") from e


def parse(fields: Example, kind: str, mask: str | None = None) -> Example:
  """Turns the fields of a line into an example, which has no id yet.

  Args:
    fields: the fields; see `read`.
    kind: a key of `PARSERS`.
    mask: see `read`.

  Raises:
    UserError: a field is missing or wrong. The message has no full stop.
  """
  example = PARSERS[kind](fields)
  if kind == "fill" and mask is not None:
    _check_mask(example["text"], mask)
  return example


def _check_mask(text: str, mask: str) -> None:
  """Raises UserError if a text has no mask."""
  if mask in text:
    return
  other_masks = [token for token in _MASK_TOKENS if token in text]
  hint = ""
  if other_masks:
    hint = f"; it has {other_masks[0]}, the mask of another model"
  raise UserError(
    f"the text has no mask to fill{hint}: this model's mask is {mask}"
  )


def _check_text(content: Any, name: str) -> str:
  """Returns `content`; raises UserError if it is not a text."""
  if not isinstance(content, str):
    raise UserError(f"{name} is {json.dumps(content)[:40]}, not text")
  return content


def _text_field(fields: Example, name: str) -> str:
  """Returns the text in a field; raises UserError if the field is missing."""
  if name not in fields:
    raise UserError(
      f"it has no field {name!r}; its fields are {', '.join(fields) or 'none'};"
      " rename one, or add it"
    )
  return _check_text(fields[name], name)


def _text_list_field(fields: Example, name: str) -> list[str]:
  """Returns the list of texts in a field; raises UserError if it is empty."""
  texts = fields[name]
  if not isinstance(texts, list) or not texts:
    raise UserError(f"{name} is not a list of texts, or is empty")
  return [_check_text(text, f"{name}[{i}]") for i, text in enumerate(texts)]


def _parse_texts(fields: Example) -> Example:
  if "texts" in fields:
    texts = _text_list_field(fields, "texts")
    if len(texts) > 2:
      raise UserError(f"texts has {len(texts)} texts, not one or two")
    return {"texts": texts}
  texts = [_text_field(fields, "text")]
  if fields.get("text_pair") is not None:
    texts.append(_text_field(fields, "text_pair"))
  return {"texts": texts}


def _parse_choices(fields: Example) -> Example:
  if "choices" in fields:
    choices = _text_list_field(fields, "choices")
    first_texts = (
      [_text_field(fields, "text")] if fields.get("text") is not None else []
    )
    return {"texts": [[*first_texts, choice] for choice in choices]}
  texts_by_choice = fields.get("texts")
  if not isinstance(texts_by_choice, list) or not texts_by_choice:
    raise UserError("it has no field 'choices' with a list of texts")
  return {
    "texts": [
      _parse_texts({"texts": choice_texts} if choice_texts else {})["texts"]
      for choice_texts in texts_by_choice
    ]
  }


def _parse_words(fields: Example) -> Example:
  if "words" in fields:
    return {"words": _text_list_field(fields, "words"), "tags": None}
  text = _text_field(fields, "text")
  spans = split_words(text)
  words = [text[begin:end] for begin, end in spans]
  return {"words": words, "tags": None, "text": text, "spans": spans}


def split_words(text: str) -> list[tuple[int, int]]:
  """Splits a text into words, at white space and around punctuation.

  Punctuation at either end of a word is split off, so that "Oslo." gives two
  words, as in the published data sets of entities. Punctuation inside a word is
  not split off, as in "O'Brien".

  Returns:
    The characters (begin, end) of each word.
  """
  spans: list[tuple[int, int]] = []
  for match in re.finditer(r"\S+", text):
    begin, end = match.span()
    if all(map(_is_split_off, match[0])):
      spans.append((begin, end))
      continue
    while _is_split_off(text[begin]):
      spans.append((begin, begin + 1))
      begin += 1
    word_end = end
    while _is_split_off(text[word_end - 1]):
      word_end -= 1
    spans.append((begin, word_end))
    spans += [(i, i + 1) for i in range(word_end, end)]
  return spans


def _is_split_off(character: str) -> bool:
  """Returns True for punctuation that is a separate word."""
  is_punctuation = unicodedata.category(character)[0] == "P"
  return is_punctuation and character not in _WORD_PUNCTUATION


def _parse_question(fields: Example) -> Example:
  question, context = (
    _text_field(fields, "question"),
    _text_field(fields, "context"),
  )
  return {"question": question, "context": context, "answers": None}


def _parse_masked_text(fields: Example) -> Example:
  return {"text": _text_field(fields, "text")}


# Kind -> the function that makes an example from the fields of a line.
PARSERS: dict[str, Callable[[Example], Example]] = {
  "classification": _parse_texts,
  "regression": _parse_texts,
  "multi_label": _parse_texts,
  "choice": _parse_choices,
  "tagging": _parse_words,
  "span": _parse_question,
  "fill": _parse_masked_text,
}
