"""Opens a `tokenizer.json` of Hugging Face as a `Vocabulary` with its rules."""

import base64
import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from bert_jax.files import parse_json
from bert_jax.messages import DamagedFile, UserError
from bert_jax.text import added_tokens, bpe, unigram, wordpiece
from bert_jax.text.vocabulary import (
  SPACED_PATTERN,
  SPECIAL_TOKENS,
  WORD_PATTERN,
  SpecialIds,
  Vocabulary,
  copy_without_added_tokens,
)

_BERT_TOKENS = dict(zip(SpecialIds._fields, SPECIAL_TOKENS, strict=True))
# Role -> special token, for each family. The roles are the fields of
# `SpecialIds`. A file belongs to the first family whose special tokens are all
# among the pieces of the file.
_FAMILY_TOKENS = (
  _BERT_TOKENS,
  unigram.ALBERT_TOKENS,
  bpe.ROBERTA_TOKENS,
  bpe.GPT2_TOKENS,
  bpe.GPT1_TOKENS,
)

# Matches a normalizer's compiled rules, which are bytes in base64.
_CHARSMAP_PATTERN = re.compile(
  r'"precompiled_charsmap"\s*:\s*("[^"]*"|[^\s,}]*)'
)


def from_json(
  text: str,
  source: str = "tokenizer.json",
  keep_accents: bool | None = None,
  word_starts: str | None = None,
) -> Vocabulary:
  """Builds a tokenizer with the cleaning, splitting and model of the file.

  Like every `Vocabulary`, the tokenizer adds no special tokens around a text,
  and neither pads nor cuts texts.

  Args:
    text: the content of the file.
    source: the name of the file, for messages.
    keep_accents: the value in the folder's tokenizer_config.json. This value
      does not change the normalizer of the file.
    word_starts: one of `unigram.WORD_STARTS`, only for a unigram model; None
      means "space".

  Raises:
    UserError: the file is damaged, its model is not WordPiece, BPE or
      Unigram, it does not have the special tokens of any family, or
      `word_starts` is wrong.
  """
  special_tokenizer = open_tokenizer(text, source)
  algorithm = _read_algorithm(special_tokenizer, source)
  pieces = bpe.pieces_by_id(special_tokenizer.get_vocab(), source)
  id_by_piece = {piece: piece_id for piece_id, piece in enumerate(pieces)}
  token_by_role = next(
    (
      family_tokens
      for family_tokens in _FAMILY_TOKENS
      if set(family_tokens.values()) <= id_by_piece.keys()
    ),
    None,
  )
  if token_by_role is None:
    raise UserError(
      f"{source}: its special tokens are not those of BERT, ALBERT, RoBERTa,"
      " GPT-2 or GPT-1."
    )
  plain_text_tokenizer = copy_without_added_tokens(special_tokenizer)
  if algorithm == "unigram":
    plain_text_tokenizer.model = _model_without_special(
      text, token_by_role.values()
    )
  rules = _read_rules(special_tokenizer)
  if word_starts and algorithm != "unigram":
    raise UserError(
      f"{source}: --word-starts={word_starts} is for SentencePiece models;"
      " leave it out."
    )
  word_starts = word_starts or unigram.WORD_STARTS[0]
  unigram.check_word_starts(word_starts, source)
  vocabulary = Vocabulary(
    algorithm=algorithm,
    pieces=pieces,
    special=bpe.special_ids(id_by_piece, token_by_role, source),
    plain_text_tokenizer=plain_text_tokenizer,
    special_tokenizer=special_tokenizer,
    at_word_boundary=np.array(
      [
        _is_at_word_boundary(algorithm, piece, token_by_role, word_starts)
        for piece in pieces
      ]
    ),
    options=_options(algorithm, rules["normalizer"], keep_accents, word_starts),
    files={"tokenizer.json": text.encode("utf-8")},
    marks_word_ends=algorithm == "gpt1",
    **_chunk_fields(rules),
  )
  return added_tokens.take_library_tokens(vocabulary, special_tokenizer)


def open_tokenizer(text: str, source: str) -> Tokenizer:
  """Opens the file with `tokenizers`; turns padding and truncation off.

  A file may store padding and truncation; transformers also ignores both.

  Args:
    text: the content of the file.
    source: the name of the file, for messages.

  Raises:
    UserError: the file is damaged, or its unknown token is not a piece.
  """
  for match in _CHARSMAP_PATTERN.finditer(text):
    try:
      charsmap = base64.b64decode(parse_json(match[1]), validate=True)
    except (ValueError, TypeError) as e:
      raise DamagedFile(f"{source}: its charsmap is damaged ({e}).") from e
    unigram.check_charsmap(charsmap, source)
  try:
    tokenizer = Tokenizer.from_str(text)
  except Exception as e:
    raise DamagedFile(f"{source} is damaged ({e}).") from e
  unknown_token = getattr(tokenizer.model, "unk_token", None)
  if unknown_token is not None and tokenizer.token_to_id(unknown_token) is None:
    raise UserError(
      f"{source}: its pieces lack the unknown token {unknown_token!r}."
    )
  tokenizer.no_padding()
  tokenizer.no_truncation()
  return tokenizer


def _read_algorithm(tokenizer: Tokenizer, source: str) -> str:
  """Returns the `Vocabulary.algorithm` of a tokenizer."""
  model_class = type(tokenizer.model).__name__
  algorithms = {
    "WordPiece": "wordpiece",
    "Unigram": "unigram",
    "BPE": "bytelevel",
  }
  if model_class not in algorithms:
    raise UserError(
      f"{source}: its model {model_class} is not one of {sorted(algorithms)}."
    )
  has_end_suffix = model_class == "BPE" and tokenizer.model.end_of_word_suffix
  return "gpt1" if has_end_suffix else algorithms[model_class]


def _read_rules(tokenizer: Tokenizer) -> dict[str, Any]:
  """Returns the content of the file without the model, which may be large."""
  small_tokenizer = copy_without_added_tokens(tokenizer)
  small_tokenizer.model = models.WordLevel({}, unk_token="")
  return json.loads(small_tokenizer.to_str())


def _model_without_special(text: str, tokens: Iterable[str]) -> models.Model:
  """Returns the unigram model of a file, changed to read `tokens` as text.

  Args:
    text: the content of the file.
    tokens: the special tokens.
  """
  model_fields = parse_json(text)["model"]
  # Name the special tokens with a space at the end. No word of a text has a
  # space in it, so these pieces are never matched.
  vocab = [
    (piece + " " if piece in tokens else piece, score)
    for piece, score in model_fields["vocab"]
  ]
  byte_fallback = model_fields.get("byte_fallback", False)
  return models.Unigram(vocab, model_fields["unk_id"], byte_fallback)


def _chunk_fields(rules: dict[str, Any]) -> dict[str, Any]:
  """Returns the fields of `Vocabulary` that say how text becomes chunks.

  For rules that this module does not know, it returns {}; each text is then one
  chunk.
  """
  normalizer, splitter = (
    rules[key] or {} for key in ("normalizer", "pre_tokenizer")
  )
  splitters = splitter.get("pretokenizers") or [splitter]
  first_splitter_type = splitters[0].get("type")
  # `Prepend` adds text before the whole text, but would add it to each chunk.
  if first_splitter_type == "WhitespaceSplit" and "Prepend" not in json.dumps(
    normalizer
  ):
    return dict(chunk_pattern=SPACED_PATTERN)
  if len(splitters) > 1:
    return {}
  is_bert = normalizer.get("type") == "BertNormalizer"
  if is_bert and first_splitter_type == "BertPreTokenizer":
    normalize = str.lower if normalizer.get("lowercase", True) else str
    return dict(chunk_pattern=WORD_PATTERN, normalize_ascii=normalize)
  if (
    not normalizer
    and first_splitter_type == "ByteLevel"
    and splitter.get("use_regex", True)
  ):
    return bpe.chunk_fields(splitter.get("add_prefix_space", True))
  return {}


def _lowers_case(normalizer: dict[str, Any] | None) -> bool:
  """Returns True if the normalizer changes text to lower case."""
  normalizer_json = json.dumps(normalizer or {})
  return bool(
    re.search(r'"lowercase": true|"type": "Lowercase"', normalizer_json)
  )


def _strips_accents(normalizer: dict[str, Any] | None) -> bool:
  """Returns True if the normalizer strips accents."""
  steps = (normalizer or {}).get("normalizers") or [normalizer or {}]
  for step in steps:
    strips_accents = step.get("strip_accents")
    if strips_accents is None and step.get("type") == "BertNormalizer":
      strips_accents = step.get("lowercase", True)
    if strips_accents or step.get("type") == "StripAccents":
      return True
  return False


def _options(
  algorithm: str,
  normalizer: dict[str, Any] | None,
  keep_accents: bool | None,
  word_starts: str,
) -> dict[str, Any]:
  """Returns `Vocabulary.options`; leaves out `keep_accents` at its default."""
  lowers_case = _lowers_case(normalizer)
  options: dict[str, Any] = {"lower_case": lowers_case}
  keeps_accents = keep_accents is not False and not _strips_accents(normalizer)
  if keeps_accents == lowers_case:
    options["keep_accents"] = keeps_accents
  if algorithm == "unigram":
    options["word_starts"] = word_starts
  return options


def _is_at_word_boundary(
  algorithm: str, piece: str, token_by_role: dict[str, str], word_starts: str
) -> bool:
  """Returns the entry of `Vocabulary.at_word_boundary` for a piece."""
  if piece in token_by_role.values():
    return True
  if algorithm == "wordpiece":
    return not piece.startswith(wordpiece.CONTINUATION)
  if algorithm == "gpt1":
    return piece.endswith(bpe.END_OF_WORD)
  if algorithm == "bytelevel":
    return piece.startswith(bpe.SPACE_LETTER)
  return unigram.begins_word(piece, word_starts)
