"""The tokenizer of a converted model, from the files that came with it.

It adds the special tokens of the model's family, as transformers does
(tokenization_bert.py, tokenization_roberta.py, tokenization_albert.py).
"""

import os
from collections.abc import Mapping

from tokenizers import Tokenizer

from bert_jax.data import added_tokens, tokenizer_json, vocabulary_files

JSON = vocabulary_files.JSON


def build(files: Mapping[str, bytes], folder: str) -> Tokenizer | None:
  """Builds a tokenizer that adds special tokens, and neither pads nor cuts.

  Args:
    files: name -> bytes.
    folder: where they are, for messages.

  Returns:
    None if no vocabulary is among them.

  Raises:
    ValueError: a damaged file.
  """
  if not vocabulary_files.has_tokenizer(files):
    return None
  name = vocabulary_files.JSON
  if name in files:
    # Whatever it is, it says itself what it adds.
    path = os.path.join(folder, name)
    vocabulary_files.check_written(files, folder)
    text = vocabulary_files.text(files[name], path)
    made = tokenizer_json.read(text, path)
    added_tokens.declare(made, added_tokens.declared(files, folder))
    return made
  vocabulary = vocabulary_files.of_files(files, folder)
  if name in vocabulary.files:
    text = vocabulary_files.text(vocabulary.files[name], folder)
    return tokenizer_json.read(text, folder)
  return added_tokens.with_special_tokens(vocabulary)


def without_rows(tokenizer: Tokenizer, rows: int, where: str) -> str:
  """Says which pieces of a tokenizer a model has no row for.

  Args:
    tokenizer: the model's.
    rows: rows of its word table.
    where: the model, for the sentence.

  Returns:
    One sentence; empty if every piece has a row.
  """
  numbers = tokenizer.get_vocab(with_added_tokens=True)
  beyond = {number: p for p, number in numbers.items() if number >= rows}
  if not beyond:
    return ""
  names = added_tokens.listed([beyond[number] for number in sorted(beyond)])
  return (
    f"{where}: the tokenizer has {max(numbers.values()) + 1} pieces, the word"
    f" table {rows} rows; these pieces have none: {names}. A text that holds"
    " one of them cannot be read until a run with init_from has trained rows"
    " for them."
  )


def without_rows_of(files: Mapping[str, bytes], rows: int, where: str) -> str:
  """The same for a model's files; damaged ones are named, not refused."""
  try:
    made = build(files, where)
  except ValueError as e:
    return f"the tokenizer's files are not read here ({e})"
  return without_rows(made, rows, where) if made is not None else ""
