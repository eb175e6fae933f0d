"""Byte-pair encodings: byte-level (GPT-2, RoBERTa) and GPT-1's.

Byte-level BPE loses nothing: any text is 256 kinds of bytes, and decoding
gives back what was encoded (Radford et al. 2019, section 2.2; openai/gpt-2
encoder.py). GPT-1's marks the end of a word (openai/finetune-transformer-lm
text_utils.py); its text is cleaned as BERT's is, which is what transformers
does where spaCy is not installed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import (
  AddedToken,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

from bert_jax.messages import UserError
from bert_jax.text.vocabulary import WORDS as BERT_WORDS
from bert_jax.text.vocabulary import SpecialIds, Vocabulary, mark

# Names of the roles in the published vocabularies. RoBERTa: fairseq
# data/dictionary.py and gpt2_bpe; the others have fewer.
ROBERTA = dict(cls="<s>", pad="<pad>", sep="</s>", unk="<unk>", mask="<mask>")
GPT2 = dict(cls="<|endoftext|>", sep="<|endoftext|>", pad="<|endoftext|>")
GPT1 = dict(unk="<unk>")
END_OF_WORD = "</w>"
# A space between two words belongs to the second; see `Vocabulary.atoms`. In
# the first pattern ASCII is cut as encoder.py of GPT-2 does, unless what is not
# ASCII follows, which could belong to the same word.
_ASCII_WORDS = re.compile(
  r"(?>'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[!-/:-@\[-`{-~]+)(?![^ -~])"
  r"| ?[^ ]+"
)
WORDS = re.compile(" ?[^ ]+")
# The last one of several spaces belongs to a word, the others do not.
_WHOLE = re.compile(r"\s(?:\s|\Z)")
# The printable character that stands for a space.
SPACE = "Ġ"


def bytelevel(
  vocab: Mapping[str, int],
  merges: Sequence[tuple[str, str]],
  source: str = "vocabulary",
  add_prefix_space: bool = False,
) -> Vocabulary:
  """Builds a byte-level BPE tokenizer, GPT-2's or RoBERTa's by its tokens.

  Args:
    vocab: piece -> id.
    merges: pairs of pieces in the order of their learning.
    source: the file that they come from, for messages.
    add_prefix_space: treat the first word as one in the middle of a text.

  Raises:
    UserError: bytes, special tokens or ids are missing.
  """
  pieces = in_order(vocab, source)
  missing = [p for p in pre_tokenizers.ByteLevel.alphabet() if p not in vocab]
  if missing:
    raise UserError(
      f"{source}: no byte-level BPE: {len(missing)} of the 256 bytes are not"
      f" among its pieces, {sorted(missing)[0]!r} first."
    )
  roles = ROBERTA if ROBERTA["mask"] in vocab else GPT2
  merges = check(merges, vocab, source)
  tokenizer = bytelevel_rules(vocab, merges, add_prefix_space)
  if roles is ROBERTA:
    # As published there: the space before a word is no part of its offsets.
    tokenizer.post_processor = processors.ByteLevel(
      add_prefix_space=add_prefix_space, trim_offsets=True
    )
  tokens = [t for t in dict.fromkeys(roles.values()) if t in vocab]
  marked = mark(tokenizer, tokens)
  if roles is ROBERTA:
    # As in the published tokenizer, a mask includes the space before it.
    mask = AddedToken(roles["mask"], lstrip=True, normalized=False)
    marked.add_special_tokens([mask])
  begins = [p.startswith(SPACE) or p in tokens for p in pieces]
  return Vocabulary(
    kind="bytelevel",
    pieces=pieces,
    special=special_ids(vocab, roles, source),
    plain=tokenizer,
    marked=marked,
    boundary=np.array(begins),
    options=dict(add_prefix_space=add_prefix_space),
    files=files(vocab, merges),
    **cuts(add_prefix_space),
  )


def bytelevel_rules(
  vocab: Mapping[str, int],
  merges: Sequence[tuple[str, str]],
  add_prefix_space: bool,
) -> Tokenizer:
  """The library's byte-level BPE, without special tokens."""
  tokenizer = Tokenizer(models.BPE(dict(vocab), list(merges)))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
    add_prefix_space=add_prefix_space
  )
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def cuts(add_prefix_space: bool) -> dict[str, Any]:
  """How `Vocabulary` may cut the text of a byte-level BPE."""
  if add_prefix_space:
    # A part of a word alone would get a space.
    return dict(atoms=WORDS, whole=_WHOLE)
  return dict(atoms=_ASCII_WORDS, whole=_WHOLE, ascii=_spell)


def _spell(word: str) -> str:
  return word.replace(" ", SPACE)


def gpt1(
  vocab: Mapping[str, int],
  merges: Sequence[tuple[str, str]],
  source: str = "vocabulary",
) -> Vocabulary:
  """Builds GPT-1's tokenizer: lower case, BERT's words, `</w>` at their end.

  Raises:
    UserError: `<unk>` or ids are missing.
  """
  pieces = in_order(vocab, source)
  tokenizer = gpt1_rules(vocab, check(merges, vocab, source))
  ends = [p.endswith(END_OF_WORD) or p == GPT1["unk"] for p in pieces]
  return Vocabulary(
    kind="gpt1",
    pieces=pieces,
    special=special_ids(vocab, GPT1, source),
    plain=tokenizer,
    marked=mark(tokenizer, [GPT1["unk"]]),
    boundary=np.array(ends),
    ends=True,
    options={"lower_case": True},
    files=files(vocab, merges),
    atoms=BERT_WORDS,
    ascii=str.lower,
  )


def gpt1_rules(
  vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> Tokenizer:
  """The library's form of GPT-1's BPE, without special tokens."""
  tokenizer = Tokenizer(
    models.BPE(
      dict(vocab),
      list(merges),
      unk_token=GPT1["unk"],
      end_of_word_suffix=END_OF_WORD,
    )
  )
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
  return tokenizer


def in_order(vocab: Mapping[str, int], source: str) -> list[str]:
  """Returns the pieces by id.

  Only fairseq's fillers may be missing, which stand before RoBERTa's `<mask>`
  and make the size of its dictionary a multiple of eight.

  Raises:
    UserError: an id twice, below 0, or without a piece.
  """
  by_id = {i: piece for piece, i in vocab.items()}
  size = max(by_id, default=-1) + 1
  if len(by_id) != len(vocab) or not by_id or min(by_id) < 0:
    raise UserError(f"{source}: ids must be different and not below 0.")
  mask = vocab.get(ROBERTA["mask"], 0)
  fillers = [i for i in range(max(mask - 7, 0), mask) if i not in by_id]
  by_id |= {g: f"madeupword{n:04d}" for n, g in enumerate(fillers)}
  if missing := size - len(by_id):
    first = next(i for i in range(size) if i not in by_id)
    raise UserError(
      f"{source}: {missing} ids below {size} have no piece, {first} first; is a"
      " piece there twice?"
    )
  return [by_id[i] for i in range(size)]


def check(
  merges: Sequence[tuple[str, str]], vocab: Mapping[str, int], source: str
) -> list[tuple[str, str]]:
  """Returns the merges; UserError names one whose pieces are not there."""
  for i, (left, right) in enumerate(merges):
    if not (left in vocab and right in vocab and left + right in vocab):
      raise UserError(
        f"{source}: merge {i + 1}, {left!r} and {right!r}, has pieces that are"
        " not in the vocabulary; are both files of one model?"
      )
  return list(merges)


def special_ids(
  vocab: Mapping[str, int], roles: Mapping[str, str], source: str
) -> SpecialIds:
  """Returns ids by role, None for a role that the family does not have."""
  missing = [token for token in roles.values() if token not in vocab]
  if missing:
    raise UserError(f"{source}: special tokens are missing: {missing}.")
  return SpecialIds(
    **{r: vocab.get(roles.get(r, "")) for r in SpecialIds._fields}
  )


def read_merges(text: str, source: str) -> list[tuple[str, str]]:
  """Reads `merges.txt`: a pair a line, after a line that begins `#version`.

  Raises:
    UserError: a line that is not a pair, by its number.
  """
  merges = []
  for number, line in enumerate(text.split("\n"), 1):
    if not line.strip() or (number == 1 and line.startswith("#version")):
      continue
    pair = line.rstrip("\r").split(" ")
    if len(pair) != 2:
      raise UserError(f"{source}:{number}: {line[:40]!r} is not a pair.")
    merges.append((pair[0], pair[1]))
  return merges


def check_pieces(vocab: Mapping[str, Any], source: str) -> dict[str, int]:
  """Returns an object from pieces to ids; UserError if it is none."""
  if not all(type(i) is int for i in vocab.values()):
    raise UserError(f"{source}: not an object from pieces to ids.")
  return dict(vocab)


def files(
  vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> dict[str, bytes]:
  """The two files, with Hugging Face's names."""
  lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
  return {
    "vocab.json": json.dumps(vocab, ensure_ascii=False).encode("utf-8"),
    "merges.txt": ("\n".join(lines) + "\n").encode("utf-8"),
  }
