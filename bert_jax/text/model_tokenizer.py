"""Builds the tokenizer of a converted model from the files that came with it.

The tokenizer adds the special tokens of the model's family around a text, as
transformers does (tokenization_bert.py, tokenization_roberta.py,
tokenization_albert.py).
"""

from collections.abc import Mapping

from tokenizers import Tokenizer

from bert_jax.messages import by_caller
from bert_jax.text import (
  added_tokens,
  file_contents,
  open_vocabulary,
  tokenizer_json,
)

TOKENIZER_JSON = open_vocabulary.TOKENIZER_JSON


def build(files: Mapping[str, bytes], folder: str) -> Tokenizer | None:
  """Builds a tokenizer that adds special tokens, and neither pads nor cuts.

  Args:
    files: file name -> content.
    folder: the folder of the files, for messages.

  Returns:
    The tokenizer; None means that no vocabulary is among the files.

  Raises:
    UserError: a file is damaged.
  """
  if not open_vocabulary.has_tokenizer(files):
    return None
  name = open_vocabulary.TOKENIZER_JSON
  if name in files:
    # tokenizer.json says which special tokens are added around a text.
    path = file_contents.path_of(folder, name)
    open_vocabulary.check_digests(files, folder)
    text = file_contents.decode_file(files, folder, name)
    tokenizer = tokenizer_json.open_tokenizer(text, path)
    added_tokens.add_declared_in_place(
      tokenizer, added_tokens.read_declared_tokens(files, folder)
    )
    return tokenizer
  vocabulary = open_vocabulary.from_files(files, folder)
  if name in vocabulary.files:
    text = file_contents.decode_file(vocabulary.files, folder, name)
    return tokenizer_json.open_tokenizer(text, folder)
  return added_tokens.make_model_tokenizer(vocabulary)


def missing_rows_message(tokenizer: Tokenizer, num_rows: int, path: str) -> str:
  """Returns a message that lists the pieces without a vector in the word table.

  Args:
    tokenizer: the model's tokenizer.
    num_rows: the number of rows of the model's word table: a vector for each
      id.
    path: the path of the model, for the message.

  Returns:
    The message; "" means that every piece has a vector.
  """
  id_by_piece = tokenizer.get_vocab(with_added_tokens=True)
  pieces_without_vector = {
    piece_id: piece
    for piece, piece_id in id_by_piece.items()
    if piece_id >= num_rows
  }
  if not pieces_without_vector:
    return ""
  names = added_tokens.short_list(
    [
      pieces_without_vector[piece_id]
      for piece_id in sorted(pieces_without_vector)
    ]
  )
  return (
    f"{path}: the tokenizer has {max(id_by_piece.values()) + 1} pieces, but the"
    f" word table has {num_rows} rows; these pieces have no row: {names}. A"
    " text with one of them cannot be read. To train rows for them, start a run"
    f" from this model{by_caller(' with init_from', '')}."
  )


def read_missing_rows_message(
  files: Mapping[str, bytes], num_rows: int, path: str
) -> str:
  """Returns the `missing_rows_message` for the files of a tokenizer.

  If a file is damaged, the function returns a message about the damage. If
  there is no vocabulary among the files, the function returns "".

  Args:
    files: file name -> content.
    num_rows: see `missing_rows_message`.
    path: the path of the model, for the message.
  """
  try:
    tokenizer = build(files, path)
  except ValueError as e:
    return f"the tokenizer's files cannot be read ({e})"
  if tokenizer is None:
    return ""
  return missing_rows_message(tokenizer, num_rows, path)
