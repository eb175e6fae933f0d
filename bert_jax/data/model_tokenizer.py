"""The tokenizer of a converted model, from the files that came with it.

It adds the special tokens of the model's family, as transformers does
(tokenization_bert.py, tokenization_roberta.py, tokenization_albert.py).
"""

import os
from collections.abc import Mapping

from tokenizers import Tokenizer

from bert_jax.data import added_tokens, tokenizer_json, vocabulary_files


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
    text = vocabulary_files.text(files[name], path)
    made = tokenizer_json.read(text, path)
    added_tokens.declare(made, added_tokens.declared(files, folder))
    return made
  return added_tokens.adding(vocabulary_files.of_files(files, folder))
