"""The tokenizer of a converted model, from the files that came with it.

It adds the special tokens of the model's family, as transformers does
(tokenization_bert.py, tokenization_roberta.py, tokenization_albert.py).
"""

import os
from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer, decoders, processors

from bert_jax.data import tokenizer_json, vocabulary_files, wordpiece
from bert_jax.data.tokenizer import Vocabulary, mark, share


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
    return tokenizer_json.read(vocabulary_files.text(files[name], path), path)
  vocabulary = vocabulary_files.of_files(files, folder)
  if vocabulary.special.mask is None:
    return vocabulary.marked
  return _adding(vocabulary)


def _adding(vocabulary: Vocabulary) -> Tokenizer:
  """[CLS] text [SEP], with the names and segments of the kind."""
  special, pieces = vocabulary.special, vocabulary.pieces
  ends = [(pieces[i], i) for i in (special.sep, special.cls)]
  made = share(vocabulary.marked)
  if vocabulary.kind == "bytelevel":
    made = mark(made, [pieces[i] for i in special if i != special.mask])
    # The space before a mask belongs to it.
    token = pieces[special.mask]
    made.add_special_tokens([AddedToken(token, lstrip=True, normalized=False)])
    space = vocabulary.options["add_prefix_space"]
    made.post_processor = processors.RobertaProcessing(
      *ends, add_prefix_space=space
    )
    return made
  made = mark(made, [pieces[i] for i in special])
  made.post_processor = processors.BertProcessing(*ends)
  if vocabulary.kind == "wordpiece":
    made.decoder = decoders.WordPiece(prefix=wordpiece.CONTINUATION)
  return made
