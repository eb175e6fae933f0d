"""Hugging Face's `tokenizer.json` as a `Vocabulary`, with its own rules."""

import base64
import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from bert_jax.files import parse_json
from bert_jax.messages import Damaged, UserError
from bert_jax.text import added_tokens, bpe, unigram, wordpiece
from bert_jax.text.vocabulary import (
  SPACED,
  SPECIAL_TOKENS,
  WORDS,
  SpecialIds,
  Vocabulary,
  share,
)

_BERT = dict(zip(SpecialIds._fields, SPECIAL_TOKENS, strict=True))
# Roles of the special tokens, the first of which all tokens are there.
_ROLES = (_BERT, unigram.ALBERT, bpe.ROBERTA, bpe.GPT2, bpe.GPT1)

_CHARSMAP = re.compile(r'"precompiled_charsmap"\s*:\s*("[^"]*"|[^\s,}]*)')


def from_json(
  text: str,
  source: str = "tokenizer.json",
  keep_accents: bool | None = None,
  word_starts: str | None = None,
) -> Vocabulary:
  """Builds a tokenizer that does what the file says.

  Its cleaning, splitting and model are kept; the special tokens that it would
  add, its padding and truncation are not, as in every `Vocabulary`.

  Args:
    text: content of the file.
    source: its name, for messages.
    keep_accents: the value in the settings of the same folder; it does not
      change the normalizer of the file.
    word_starts: one of `unigram.WORD_STARTS`, for a unigram model; None means
      the first.

  Raises:
    UserError: damaged, a model that is none of WordPiece, BPE, Unigram, or
      special tokens of no family.
  """
  marked = read(text, source)
  kind = _kind(marked, source)
  pieces = bpe.in_order(marked.get_vocab(), source)
  ids = {piece: i for i, piece in enumerate(pieces)}
  roles = next((r for r in _ROLES if set(r.values()) <= ids.keys()), None)
  if roles is None:
    raise UserError(f"{source}: its special tokens are those of no family.")
  plain = share(marked)
  if kind == "unigram":
    plain.model = _without(text, roles.values())
  rules = _rules(marked)
  if word_starts and kind != "unigram":
    raise UserError(
      f"{source}: --word-starts={word_starts} is for SentencePiece models;"
      " leave it out."
    )
  word_starts = word_starts or unigram.WORD_STARTS[0]
  unigram.check_word_starts(word_starts, source)
  vocabulary = Vocabulary(
    kind=kind,
    pieces=pieces,
    special=bpe.special_ids(ids, roles, source),
    plain=plain,
    marked=marked,
    boundary=np.array([_bounds(kind, p, roles, word_starts) for p in pieces]),
    options=_options(kind, rules["normalizer"], keep_accents, word_starts),
    files={"tokenizer.json": text.encode("utf-8")},
    ends=kind == "gpt1",
    **_cuts(rules),
  )
  return added_tokens.with_added(vocabulary, marked)


def read(text: str, source: str) -> Tokenizer:
  """Opens the file as the library does, without padding and truncation.

  Files remember the length of their last batch; transformers forgets it.
  """
  for match in _CHARSMAP.finditer(text):
    try:
      charsmap = base64.b64decode(parse_json(match[1]), validate=True)
    except (ValueError, TypeError) as e:
      raise Damaged(f"{source}: its charsmap is damaged ({e}).") from e
    unigram.check_charsmap(charsmap, source)
  try:
    tokenizer = Tokenizer.from_str(text)
  except Exception as e:
    raise Damaged(f"{source}: damaged ({e}).") from e
  unknown = getattr(tokenizer.model, "unk_token", None)
  if unknown is not None and tokenizer.token_to_id(unknown) is None:
    raise UserError(f"{source}: its pieces lack {unknown!r}, the unknown one.")
  tokenizer.no_padding()
  tokenizer.no_truncation()
  return tokenizer


def _kind(tokenizer: Tokenizer, source: str) -> str:
  name = type(tokenizer.model).__name__
  kinds = {"WordPiece": "wordpiece", "Unigram": "unigram", "BPE": "bytelevel"}
  if name not in kinds:
    raise UserError(f"{source}: a {name} model: not one of {sorted(kinds)}.")
  ends = name == "BPE" and tokenizer.model.end_of_word_suffix
  return "gpt1" if ends else kinds[name]


def _rules(tokenizer: Tokenizer) -> dict[str, Any]:
  """The parts of the file around its model, which may be large."""
  small = share(tokenizer)
  small.model = models.WordLevel({}, unk_token="")
  return json.loads(small.to_str())


def _without(text: str, tokens: Iterable[str]) -> models.Model:
  """The unigram model of a file, in which no text can be special tokens."""
  spec = parse_json(text)["model"]
  # No word has a space in it: such a piece is never matched.
  vocab = [(p + " " if p in tokens else p, s) for p, s in spec["vocab"]]
  fallback = spec.get("byte_fallback", False)
  return models.Unigram(vocab, spec["unk_id"], fallback)


def _cuts(rules: dict[str, Any]) -> dict[str, Any]:
  """How `Vocabulary` may cut a text; not at all where rules are unknown."""
  normalizer, splitter = (
    rules[key] or {} for key in ("normalizer", "pre_tokenizer")
  )
  parts = splitter.get("pretokenizers") or [splitter]
  first = parts[0].get("type")
  if first == "WhitespaceSplit" and "Prepend" not in json.dumps(normalizer):
    return dict(atoms=SPACED)
  if normalizer.get("type") == "BertNormalizer" and len(parts) == 1:
    if first == "BertPreTokenizer":
      lower = normalizer.get("lowercase", True)
      return dict(atoms=WORDS, ascii=str.lower if lower else str)
  if not normalizer and first == "ByteLevel" and len(parts) == 1:
    if splitter.get("use_regex", True):
      return bpe.cuts(splitter.get("add_prefix_space", True))
  return {}


def _lowers(normalizer: dict[str, Any] | None) -> bool:
  text = json.dumps(normalizer or {})
  return bool(re.search(r'"lowercase": true|"type": "Lowercase"', text))


def _strips(normalizer: dict[str, Any] | None) -> bool:
  """Returns True if the normalizer strips accents."""
  steps = (normalizer or {}).get("normalizers") or [normalizer or {}]
  for step in steps:
    strips = step.get("strip_accents")
    if strips is None and step.get("type") == "BertNormalizer":
      strips = step.get("lowercase", True)
    if strips or step.get("type") == "StripAccents":
      return True
  return False


def _options(
  kind: str,
  normalizer: dict[str, Any] | None,
  keep_accents: bool | None,
  word_starts: str,
) -> dict[str, Any]:
  """Returns `Vocabulary.options`; leaves out an option that has its default."""
  lower = _lowers(normalizer)
  options: dict[str, Any] = {"lower_case": lower}
  keep = keep_accents is not False and not _strips(normalizer)
  if keep == lower:
    options["keep_accents"] = keep
  if kind == "unigram":
    options["word_starts"] = word_starts
  return options


def _bounds(
  kind: str, piece: str, roles: dict[str, str], word_starts: str
) -> bool:
  """See `Vocabulary.boundary`."""
  if piece in roles.values():
    return True
  if kind == "wordpiece":
    return not piece.startswith(wordpiece.CONTINUATION)
  if kind == "gpt1":
    return piece.endswith(bpe.END_OF_WORD)
  if kind == "bytelevel":
    return piece.startswith(bpe.SPACE)
  return unigram.begins_word(piece, word_starts)
