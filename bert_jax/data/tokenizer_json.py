"""Hugging Face's `tokenizer.json` as a `Vocabulary`, with its own rules."""

import copy
import json
import re
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bert_jax.data import bpe, corpus, unigram, wordpiece
from bert_jax.data.tokenizer import SPACED, WORDS, Vocabulary

_BERT = dict(zip(corpus.SpecialIds._fields, corpus.SPECIAL_TOKENS, strict=True))
# Roles of the special tokens, the first of which all tokens are there.
_ROLES = (_BERT, unigram.ALBERT, bpe.ROBERTA, bpe.GPT2, bpe.GPT1)


def from_json(text: str, source: str = "tokenizer.json") -> Vocabulary:
  """Builds a tokenizer that does what the file says.

  Its cleaning, splitting and model are kept; the special tokens that it would
  add, its padding and truncation are not, as in every `Vocabulary`.

  Args:
    text: content of the file.
    source: its name, for messages.

  Raises:
    ValueError: damaged, a model that is none of WordPiece, BPE, Unigram, or
      special tokens of no family.
  """
  spec = bpe.read_json(text, source)
  kind, pieces = _pieces(spec, source)
  ids = {piece: i for i, piece in enumerate(pieces)}
  roles = next((r for r in _ROLES if set(r.values()) <= ids.keys()), None)
  if roles is None:
    raise ValueError(f"{source}: its special tokens are those of no family.")
  spec |= {"truncation": None, "padding": None}
  plain = copy.deepcopy(spec) | {"added_tokens": []}
  if kind == "unigram":
    # No word has a space in it: such a piece is never matched.
    for token in set(roles.values()):
      plain["model"]["vocab"][ids[token]][0] += " "
  return Vocabulary(
    kind=kind,
    pieces=pieces,
    special=bpe.special_ids(ids, roles, source),
    plain=_tokenizer(plain, source),
    marked=_tokenizer(spec, source),
    boundary=np.array([_bounds(kind, p, roles) for p in pieces]),
    options={"lower_case": _lowers(spec.get("normalizer"))},
    files={"tokenizer.json": text.encode("utf-8")},
    ends=kind == "gpt1",
    **_cuts(spec),
  )


def _cuts(spec: dict[str, Any]) -> dict[str, Any]:
  """How `Vocabulary` may cut a text; not at all where rules are unknown."""
  normalizer, splitter = (
    spec.get(key) or {} for key in ("normalizer", "pre_tokenizer")
  )
  parts = splitter.get("pretokenizers") or [splitter]
  first = parts[0].get("type")
  if first == "WhitespaceSplit":
    return dict(atoms=SPACED)
  if normalizer.get("type") == "BertNormalizer" and len(parts) == 1:
    if first == "BertPreTokenizer":
      lower = normalizer.get("lowercase", True)
      return dict(atoms=WORDS, ascii=str.lower if lower else str)
  if not normalizer and first == "ByteLevel" and len(parts) == 1:
    if splitter.get("use_regex", True):
      return bpe.cuts(splitter.get("add_prefix_space", True))
  return {}


def _pieces(spec: dict[str, Any], source: str) -> tuple[str, list[str]]:
  """Returns the kind of tokenizer and its pieces, added ones included."""
  try:
    model, added = spec["model"], spec.get("added_tokens") or []
    vocab = model["vocab"]
    if isinstance(vocab, list):
      vocab = {piece: i for i, (piece, _) in enumerate(vocab)}
    vocab = vocab | {token["content"]: token["id"] for token in added}
    name = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
    suffix = model.get("end_of_word_suffix")
  except (KeyError, TypeError, ValueError, AttributeError) as e:
    raise ValueError(f"{source}: damaged ({e}).") from e
  kinds = {"WordPiece": "wordpiece", "Unigram": "unigram"}
  kinds["BPE"] = "gpt1" if suffix else "bytelevel"
  if name not in kinds:
    raise ValueError(f"{source}: a {name} model: not one of {sorted(kinds)}.")
  return kinds[name], bpe.in_order(vocab, source)


def _tokenizer(spec: dict[str, Any], source: str) -> Tokenizer:
  try:
    return Tokenizer.from_str(json.dumps(spec))
  except Exception as e:
    raise ValueError(f"{source}: damaged ({e}).") from e


def _lowers(normalizer: dict[str, Any] | None) -> bool:
  text = json.dumps(normalizer or {})
  return bool(re.search(r'"lowercase": true|"type": "Lowercase"', text))


def _bounds(kind: str, piece: str, roles: dict[str, str]) -> bool:
  """See `Vocabulary.boundary`."""
  if piece in roles.values():
    return True
  if kind == "wordpiece":
    return not piece.startswith(wordpiece.CONTINUATION)
  if kind == "gpt1":
    return piece.endswith(bpe.END_OF_WORD)
  return piece.startswith(bpe.SPACE if kind == "bytelevel" else unigram.SPACE)
