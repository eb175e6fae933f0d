"""Writes transformers folders whose tokenizers have added tokens."""

import json

from tiny_vocabularies import (
  ALBERT_PIECES,
  bert_vocabulary,
  gpt1_vocabulary,
  roberta_vocabulary,
  sentencepiece_model,
  write_files,
)
from tokenizers import AddedToken

from bert_jax.text import added_tokens, open_vocabulary, unigram

# Each flag is set by at least one token. The last token, "a", is a piece of
# some vocabularies already.
ADDED_TOKENS = (
  AddedToken("covid19", normalized=True),
  AddedToken("[E1]", normalized=False, special=True),
  AddedToken("Qart", normalized=True, single_word=True),
  AddedToken("<x>", normalized=True, lstrip=True),
  AddedToken("<y>", normalized=False, rstrip=True),
  AddedToken("New York", normalized=False),
  AddedToken("Élan", normalized=True),
  AddedToken("a", normalized=True, single_word=True),
)

TEXTS = (
  "the covid19 a, COVID19n [E1]the a an <x> and <y> the.",
  "New York new york NEW  YORK \u00c9lan elan",
  "",
  "covid19",
  "covid19covid19 covid19",
  " [E1] the [e1]",
  "the-covid19-an don't <x><y>  <x>   the",
  "the\u200bcovid\u200b19 a",
  "Qart qart, qarts Qart. xQart 'qart'",
  "\u4e2dcovid19\u4e2d[E1]\u4e2d",
  "<y>   the    <x>",
  "[SEP] a",
)


def albert():
  return unigram.build(
    sentencepiece_model([*ALBERT_PIECES, "c", "e", "t", "x", "▁x"])
  )


MAKE_VOCABULARY = {
  "bert": lambda: bert_vocabulary("the a an ##n ##a - . , n 中 x ##x e ##e"),
  "roberta": roberta_vocabulary,
  "albert": albert,
  "gpt1": gpt1_vocabulary,
}

DECLARING_FILES = (
  "tokenizer.json",
  "tokenizer_config.json",
  "added_tokens.json",
)

MODEL_TYPES = {"gpt1": "openai-gpt"}


def added_by_id(vocabulary):
  """Returns {id: added token}; new tokens get the ids after the last piece."""
  pieces = list(vocabulary.pieces)
  token_by_id = {}
  for token in ADDED_TOKENS:
    if token.content not in pieces:
      pieces.append(token.content)
    token_by_id[pieces.index(token.content)] = token
  return token_by_id


def write_model(path, family, declaring_file):
  """Writes a transformers folder that declares its added tokens in one file.

  Args:
    path: the folder to write.
    family: the name of a tokenizer, a key of `MAKE_VOCABULARY`.
    declaring_file: the name of the file that declares the added tokens, one of
      `DECLARING_FILES`.

  Returns:
    The path as a string.
  """
  vocabulary = MAKE_VOCABULARY[family]()
  files = open_vocabulary.to_files(vocabulary)
  files.pop("pieces.json", None)
  settings = json.loads(files.pop("tokenizer_config.json"))
  # Delete the digests, as the files are changed below. Other programs write
  # no digests either.
  for key in ("sha256", "checksum"):
    settings.pop(key)
  files.pop("tokenizer.json", None)
  if family == "albert":
    settings["tokenizer_class"] = "AlbertTokenizer"
  token_by_id = added_by_id(vocabulary)
  if declaring_file == "tokenizer.json":
    tokenizer = added_tokens.make_model_tokenizer(vocabulary)
    tokenizer.add_tokens([token_by_id[i] for i in sorted(token_by_id)])
    files = {"tokenizer.json": tokenizer.to_str().encode()}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
  elif declaring_file == "tokenizer_config.json":
    settings["added_tokens_decoder"] = {
      str(i): {"content": token.content, **added_tokens.flags_of(token)}
      for i, token in token_by_id.items()
    }
  else:
    id_by_content = {token.content: i for i, token in token_by_id.items()}
    files["added_tokens.json"] = json.dumps(id_by_content).encode()
    special_tokens = {"additional_special_tokens": ["[E1]"]}
    files["special_tokens_map.json"] = json.dumps(special_tokens).encode()
  files["tokenizer_config.json"] = json.dumps(settings).encode()
  config = {"model_type": MODEL_TYPES.get(family, family)}
  return write_files(path, files | {"config.json": json.dumps(config).encode()})
